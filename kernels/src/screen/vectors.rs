//! Functions compiled for the vectors of several processors, of which the widest is taken.

/// Defines a function whose loops the compiler turns into vectors: once for AVX-512, once for AVX2
/// and once for what every processor has. Nothing in it is fused or reordered, so all three give
/// the same bits. What it calls must be `#[inline(always)]` to have a part in this.
macro_rules! vectorized {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident(
            $($argument:ident: $type:ty),* $(,)?
        ) $(-> $result:ty)? $body:block
    ) => {
        $(#[$attribute])*
        #[cfg_attr(
            target_arch = "x86_64",
            expect(unsafe_code, reason = "calls what the processor was found to have")
        )]
        $visibility fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn plain($($argument: $type),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
                fn avx512($($argument: $type),*) $(-> $result)? {
                    plain($($argument),*)
                }
                #[target_feature(enable = "avx2")]
                fn avx2($($argument: $type),*) $(-> $result)? {
                    plain($($argument),*)
                }
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                {
                    // SAFETY: these are its features.
                    return unsafe { avx512($($argument),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: this is its feature.
                    return unsafe { avx2($($argument),*) };
                }
            }
            plain($($argument),*)
        }
    };
}
pub(super) use vectorized;

//! Asks the processor for memory that is about to be read, without waiting for it.

/// Has the first cache line of `what` fetched. Where there is no such instruction nothing happens.
#[inline(always)]
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "a prefetch through a pointer")]
pub fn prefetch<T>(what: &T) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    let from: *const T = what;
    // SAFETY: a prefetch reads nothing that the program sees and faults nowhere.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) };
}

/// Has the first cache line of `what` fetched. Where there is no such instruction nothing happens.
#[inline(always)]
#[cfg(not(target_arch = "x86_64"))]
pub fn prefetch<T>(_: &T) {}

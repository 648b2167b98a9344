//! Any processor: eight lanes that the compiler may turn into what there is.

use half::f16;

pub(super) const LANES: usize = 8;
pub(super) const CHAINS: usize = 2;

type Floats = [f32; LANES];
type Words = [u64; 8];

super::kernels::kernels!();

fn zero() -> Floats {
    [0.0; LANES]
}

fn load(from: &[f32; LANES]) -> Floats {
    *from
}

fn load_f16(from: &[f16; LANES]) -> Floats {
    from.map(f16::to_f32)
}

/// Rounds twice: a fused one would be a call into the C library.
fn mul_add(left: Floats, right: Floats, sum: Floats) -> Floats {
    std::array::from_fn(|lane| sum[lane] + left[lane] * right[lane])
}

fn total([first, second]: [Floats; CHAINS]) -> Floats {
    std::array::from_fn(|lane| first[lane] + second[lane])
}

fn lane_sums(rows: [Floats; 4]) -> [f32; 4] {
    rows.map(|lanes| {
        let [a, b, c, d, e, f, g, h] = lanes;
        ((a + b) + (c + d)) + ((e + f) + (g + h))
    })
}

fn no_words() -> Words {
    [0; 8]
}

fn load_words(from: &[u8; 64]) -> Words {
    let (words, _) = from.as_chunks::<8>();
    std::array::from_fn(|word| u64::from_ne_bytes(words[word]))
}

fn xor(left: Words, right: Words) -> Words {
    std::array::from_fn(|lane| left[lane] ^ right[lane])
}

fn fold(words: Words) -> u64 {
    words.into_iter().fold(0, |all, word| all ^ word)
}

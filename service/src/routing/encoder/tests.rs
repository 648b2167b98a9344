//! Encoders against transformers, and folders that are no models.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;

use super::*;

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/encoder")
        .canonicalize()
        .unwrap()
}

/// What transformers makes of a model.
struct Expected {
    frame: KeyFrame,
    tokens: Vec<u32>,
    starts: Vec<u64>,
    /// `[tokens]`, each `[heads, head_dim]`.
    pre_rope: Vec<Vec<f32>>,
    /// `[starts, tokens]`.
    post_rope: Vec<Vec<f32>>,
}

impl Expected {
    fn read(model: &str, size: usize) -> Self {
        let bytes = std::fs::read(data().join(model).join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let words = |name: &str| -> Vec<u32> {
            let data = file.tensor(name).unwrap();
            let words = data.data().as_chunks().0.iter();
            words.map(|&word| u32::from_le_bytes(word)).collect()
        };
        let floats =
            |name: &str| -> Vec<f32> { words(name).into_iter().map(f32::from_bits).collect() };
        let vectors = |name: &str| -> Vec<Vec<f32>> {
            floats(name)
                .chunks_exact(size)
                .map(<[f32]>::to_vec)
                .collect()
        };
        Self {
            frame: KeyFrame {
                rope: RopeFrame::PostRope,
                layout: PairLayout::Half,
                inv_freq: floats("inv_freq").into(),
                attention_scaling: floats("attention_scaling")[0],
                block_size: 16,
                layer_ids: Box::new([0, 1]),
            },
            tokens: words("tokens"),
            starts: words("starts").into_iter().map(u64::from).collect(),
            pre_rope: vectors("pre_rope"),
            post_rope: vectors("post_rope"),
        }
    }
}

#[test]
fn probe() {
    for entry in std::fs::read_dir(data()).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let encoder = Encoder::open(&path, &data()).unwrap();
        let e = Expected::read(&name, encoder.config.query_size() as usize);
        let mut freq = 0.0_f64;
        for (a, b) in e.frame.inv_freq.iter().zip(&encoder.rope.inv_freq) {
            freq = freq.max(f64::from((a - b).abs() / b));
        }
        println!(
            "{name}: freq {freq:.1e} bits {} scaling {} {}",
            e.frame
                .inv_freq
                .iter()
                .zip(&encoder.rope.inv_freq)
                .filter(|(a, b)| a != b)
                .count(),
            e.frame.attention_scaling,
            encoder.rope.attention_scaling
        );
        for (s, &start) in e.starts.iter().enumerate() {
            let (mut worst_head, mut worst_l2) = (0.0_f32, 0.0_f32);
            for i in 0..e.tokens.len() {
                let q = encoder.query(&e.tokens[..=i], start, 0, &e.frame).unwrap();
                let want = &e.post_rope[s * e.tokens.len() + i];
                let mut d2 = 0.0;
                let mut n2 = 0.0;
                for (a, b) in q
                    .values
                    .chunks(encoder.config.head_dim as usize)
                    .zip(want.chunks(encoder.config.head_dim as usize))
                {
                    let m = b.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                    let d = a
                        .iter()
                        .zip(b)
                        .fold(0.0_f32, |m, (x, y)| m.max((x - y).abs()));
                    worst_head = worst_head.max(d / m);
                    d2 += a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f32>();
                    n2 += b.iter().map(|x| x.powi(2)).sum::<f32>();
                }
                worst_l2 = worst_l2.max((d2 / n2).sqrt());
            }
            println!("  start {start}: head {worst_head:.1e} l2 {worst_l2:.1e}");
        }
    }
}

//! Files of queries: the forms that are read, and what is said of others.

use std::collections::HashMap;

use proptest::prelude::*;
use safetensors::{Dtype, serialize, tensor::TensorView as SafeView};
use serde::Deserialize;

use super::*;

const OF_GPU: &[u8] = include_bytes!("../../../../tests/data/online/stats_gpu.pt");
const OF_CPU: &[u8] = include_bytes!("../../../../tests/data/online/stats_cpu.pt");
const SOME_HEADS: &[u8] = include_bytes!("../../../../tests/data/online/stats_some_heads.pt");
const BY_LAYER: &[u8] = include_bytes!("../../../../tests/data/online/layer_stats.pt");

/// What `make_statistics.py` put into its files.
#[derive(Deserialize)]
struct Expected {
    heads: u32,
    head_dim: u32,
    layer_ids: Vec<u32>,
    mean_real: Vec<f32>,
    mean_imaginary: Vec<f32>,
    mean_absolute: Vec<f32>,
}

impl Expected {
    fn read() -> Self {
        serde_json::from_str(include_str!("../../../../tests/data/online/expect.json")).unwrap()
    }

    /// Of those layers.
    fn file(&self, layers: &[u32]) -> QueryFile {
        let of_layers = |values: &[f32]| {
            let width = values.len() / self.layer_ids.len();
            let layer = |&layer: &u32| &values[layer as usize * width..][..width];
            layers.iter().flat_map(layer).copied().collect()
        };
        QueryFile {
            layer_ids: layers.to_vec(),
            heads: self.heads,
            head_dim: self.head_dim,
            vectors: None,
            statistics: Some(Statistics {
                mean_real: of_layers(&self.mean_real),
                mean_imaginary: of_layers(&self.mean_imaginary),
                mean_absolute: of_layers(&self.mean_absolute),
            }),
            rope: None,
            layout: Some(PairLayout::Half),
            group_mean: None,
            position: None,
        }
    }
}

#[test]
fn statistics_read_as_they_are_saved() {
    let expected = Expected::read();
    for bytes in [OF_GPU, OF_CPU] {
        let file = QueryFile::read(bytes, None, None).unwrap();
        assert_eq!(file, expected.file(&expected.layer_ids));
        let file = QueryFile::read(bytes, None, Some(&[0, 2])).unwrap();
        assert_eq!(file, expected.file(&[0, 2]));
    }
}

#[test]
fn statistics_by_layer_are_the_same() {
    let expected = Expected::read();
    let file = QueryFile::read(BY_LAYER, None, None).unwrap();
    let (found, expected) = (file, expected.file(&expected.layer_ids));
    let (found, expected) = (found.statistics.unwrap(), expected.statistics.unwrap());
    assert_eq!(found.mean_real, expected.mean_real);
    assert_eq!(found.mean_imaginary, expected.mean_imaginary);
    // One of its layers holds differences.
    for (found, expected) in found.mean_absolute.iter().zip(&expected.mean_absolute) {
        assert!((found - expected).abs() <= 1e-6, "{found}, not {expected}");
    }
}

#[test]
fn a_layer_without_all_of_its_heads_is_refused_by_name() {
    let message = "layer 1 has statistics of only some of its 4 query heads, 1, 2 are missing: \
                   kri-t needs every head of a layer";
    check(SOME_HEADS, None, message);
    // The others are whole.
    let file = QueryFile::read(SOME_HEADS, None, Some(&[0, 2])).unwrap();
    assert_eq!(file, Expected::read().file(&[0, 2]));
    let message = "layer 9 is not in the file, which has 3 layers";
    check(OF_GPU, Some(&[0, 9]), message);
    check(OF_GPU, Some(&[]), "there are 0 layers; 1 to 512 are read");
}

fn check(bytes: &[u8], layers: Option<&[u32]>, message: &str) {
    let error = QueryFile::read(bytes, None, layers).unwrap_err();
    assert_eq!(error.to_string(), message);
}

/// A safetensors file of f32 tensors, each element the next number, and metadata.
fn file(tensors: &[(&str, &[usize])], metadata: &[(&str, &str)]) -> Vec<u8> {
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, shape)| {
            let elements = 0..u16::try_from(shape.iter().product::<usize>()).unwrap();
            elements.flat_map(|n| f32::from(n).to_le_bytes()).collect()
        })
        .collect();
    let views = tensors.iter().zip(&data).map(|((name, shape), data)| {
        let view = SafeView::new(Dtype::F32, shape.to_vec(), data).unwrap();
        (name.to_owned(), view)
    });
    let text = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
    let metadata: HashMap<String, String> = metadata.iter().map(text).collect();
    serialize(views, Some(metadata)).unwrap()
}

fn numbers(count: u16) -> Vec<f32> {
    (0..count).map(f32::from).collect()
}

#[test]
fn our_own_names_hold_vectors_and_statistics() {
    let shape: &[usize] = &[2, 3, 4];
    let half: &[usize] = &[2, 3, 2];
    let tensors = [
        ("vectors", shape),
        ("mean_real", half),
        ("mean_imaginary", half),
        ("mean_absolute", half),
    ];
    let metadata = [
        ("layer_ids", "[4, 7]"),
        ("frame", "PRE-ROPE"),
        ("pair_layout", "interleaved"),
        ("group_mean", "true"),
        ("position", "4096"),
    ];
    let bytes = file(&tensors, &metadata);
    let mut expected = QueryFile {
        layer_ids: vec![4, 7],
        heads: 3,
        head_dim: 4,
        vectors: Some(numbers(24)),
        statistics: Some(Statistics {
            mean_real: numbers(12),
            mean_imaginary: numbers(12),
            mean_absolute: numbers(12),
        }),
        rope: Some(RopeFrame::PreRope),
        layout: Some(PairLayout::Interleaved),
        group_mean: Some(true),
        position: Some(4096),
    };
    assert_eq!(QueryFile::read(&bytes, None, None).unwrap(), expected);
    expected.layer_ids = vec![7];
    expected.vectors = Some(numbers(24).split_off(12));
    let half = numbers(12).split_off(6);
    expected.statistics = Some(Statistics {
        mean_real: half.clone(),
        mean_imaginary: half.clone(),
        mean_absolute: half,
    });
    let picked = QueryFile::read(&bytes, None, Some(&[7])).unwrap();
    assert_eq!(picked, expected);
    // What nobody says is open, but for the layers.
    let bytes = file(&[("vectors", shape)], &[]);
    let expected = QueryFile {
        layer_ids: vec![0, 1],
        heads: 3,
        head_dim: 4,
        vectors: Some(numbers(24)),
        statistics: None,
        rope: None,
        layout: None,
        group_mean: None,
        position: None,
    };
    assert_eq!(QueryFile::read(&bytes, None, None).unwrap(), expected);
}

/// Statistics by head, with so many bands for each (layer, head).
fn by_head(bands: &[(u32, u32, usize)]) -> Vec<u8> {
    let names: Vec<(String, [usize; 1])> = bands
        .iter()
        .flat_map(|&(layer, head, bands)| {
            let name = |part| format!("stats.layer{layer:02}_head{head:02}.{part}");
            OF_HEAD.map(|part| (name(part), [bands]))
        })
        .collect();
    let tensors: Vec<(&str, &[usize])> = names
        .iter()
        .map(|(name, shape)| (name.as_str(), shape.as_slice()))
        .collect();
    file(&tensors, &[("metadata.rope_style", "interleaved")])
}

#[test]
fn layers_and_heads_have_one_shape() {
    let bytes = by_head(&[(3, 0, 2), (3, 1, 2), (100, 0, 2), (100, 1, 2)]);
    let found = QueryFile::read(&bytes, None, None).unwrap();
    assert_eq!(found.layer_ids, [3, 100]);
    assert_eq!((found.heads, found.head_dim), (2, 4));
    assert_eq!(found.layout, Some(PairLayout::Interleaved));
    let bytes = by_head(&[(0, 0, 2), (0, 1, 2), (1, 0, 4), (1, 1, 4)]);
    let message = "layer 1 has [heads, bands] of [2, 4], the layers before it [2, 2]: a key \
                   summary has one shape for all of its layers";
    check(&bytes, None, message);
    assert!(QueryFile::read(&bytes, None, Some(&[1])).is_ok());
    let bytes = by_head(&[(0, 0, 2), (0, 1, 3)]);
    let message = "stats.layer00_head01.q_mean_real has the shape [3], must be [2]";
    check(&bytes, None, message);
    let bytes = by_head(&[(0, 2_000, 2)]);
    check(&bytes, None, "there are 2001 heads; 1 to 1024 are read");
}

#[test]
fn other_files_are_refused_with_what_was_found() {
    let vectors: (&str, &[usize]) = ("vectors", &[1, 2, 4]);
    let real: (&str, &[usize]) = ("mean_real", &[1, 2, 2]);
    let field = |name, text| file(&[vectors], &[(name, text)]);
    for (bytes, message) in [
        (
            file(&[("q", &[1, 2, 4])], &[]),
            "neither `vectors`, nor `mean_real` with `mean_imaginary` and `mean_absolute`, nor \
             TriAttention's `stats` are there; found 1 tensors [q]",
        ),
        (
            file(&[("vectors", &[8])], &[]),
            "vectors has the shape [8], must be [layers, heads, channels]",
        ),
        (file(&[real], &[]), "mean_imaginary is missing"),
        (
            file(&[vectors, ("mean_real", &[1, 2, 4])], &[]),
            "mean_real has the shape [1, 2, 4], must be [1, 2, 2]",
        ),
        (
            file(&[("vectors", &[1, 0, 4])], &[]),
            "there are 0 heads; 1 to 1024 are read",
        ),
        (
            file(&[("vectors", &[1, 2, 1026])], &[]),
            "there are 1026 channels of a head; 1 to 1024 are read",
        ),
        (
            field("frame", "rotated"),
            "frame is \"rotated\", must be pre_rope or post_rope",
        ),
        (
            field("pair_layout", "thirds"),
            "pair_layout is \"thirds\", must be half or interleaved",
        ),
        (
            field("group_mean", "yes"),
            "group_mean is \"yes\", must be true or false",
        ),
        (
            field("position", "-1"),
            "position is \"-1\", must be a number",
        ),
        (
            field("layer_ids", "1,2"),
            "layer_ids is \"1,2\", must be as many ascending numbers as there are \
             layers",
        ),
    ] {
        check(&bytes, None, message);
    }
}

proptest! {
    /// A damaged file is refused or, where the damage is to its numbers, read: it never ends the
    /// process. Checksums of zip entries are not what stops it everywhere.
    #[test]
    fn damage_is_an_error_or_another_number(
        which in 0..4_usize,
        at: prop::sample::Index,
        byte: u8,
        cut: bool,
    ) {
        let mut bytes = [OF_GPU, OF_CPU, SOME_HEADS, BY_LAYER][which].to_vec();
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] = byte;
        }
        if let Ok(file) = QueryFile::read(&bytes, None, None) {
            let statistics = file.statistics.unwrap();
            let wanted = file.layer_ids.len() * file.heads as usize * file.head_dim as usize / 2;
            prop_assert_eq!(statistics.mean_real.len(), wanted);
            prop_assert_eq!(statistics.mean_absolute.len(), wanted);
        }
    }
}

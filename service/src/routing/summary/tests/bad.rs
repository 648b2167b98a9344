//! Everything that is refused: the message names the field, and nothing stays on the disk.

use super::*;
use crate::routing::import::{BLOCKS_MAX, Format};

const SHAPE: [usize; 4] = [2, 2, 3, 4];
const COUNT: usize = 48;

/// Puts a file and checks that the refusal says all of the words and leaves nothing behind.
#[track_caller]
fn check_refused(frame: &KeyFrame, file: &[u8], words: &[&str]) {
    let fixture = Fixture::new();
    let refused = fixture.put("p", frame, file).unwrap_err().to_string();
    for word in words {
        assert!(refused.contains(word), "no {word:?} in {refused:?}");
    }
    assert_eq!(fixture.blob_files().len(), 0, "nothing is half-stored");
    assert!(fixture.summaries.is_empty());
}

#[track_caller]
fn refused(tensors: &[Named<'_>], words: &[&str]) {
    check_refused(&frame(2, 4, 16), &file(tensors), words);
}

#[track_caller]
fn frame_refused(change: impl FnOnce(&mut KeyFrame), words: &[&str]) {
    let mut frame = frame(2, 4, 16);
    change(&mut frame);
    let means = [1.0; COUNT];
    check_refused(
        &frame,
        &file(&[("key_means", Element::F32, &SHAPE, &means)]),
        words,
    );
}

#[test]
fn frames_that_do_not_fit() {
    frame_refused(
        |f| f.inv_freq = [1.0; 3].into(),
        &["inv_freq", "2 (head_dim / 2), got 3"],
    );
    frame_refused(|f| f.inv_freq = [].into(), &["inv_freq", "1 to 512"]);
    frame_refused(
        |f| f.inv_freq = [1.0; 513].into(),
        &["inv_freq: 513", "1 to 512"],
    );
    for bad in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        frame_refused(|f| f.inv_freq[1] = bad, &["inv_freq: number 1", "above 0"]);
        frame_refused(
            |f| f.attention_scaling = bad,
            &["attention_scaling", "above 0"],
        );
    }
    for bad in [0, (1 << 20) + 1] {
        frame_refused(|f| f.block_size = bad, &["block_size", "1 to 1048576"]);
    }
    frame_refused(
        |f| f.layer_ids = [].into(),
        &["layer_ids: 0 layers", "1 to 512"],
    );
    frame_refused(
        |f| f.layer_ids = [1].into(),
        &["layer_ids: 1 given", "2 layers"],
    );
    frame_refused(
        |f| f.layer_ids = [1, 1].into(),
        &["layer_ids: 1 follows 1", "ascending"],
    );
    frame_refused(|f| f.layer_ids = [2, 1].into(), &["layer_ids: 1 follows 2"]);
    frame_refused(
        |f| f.layer_ids = (0..513).collect(),
        &["layer_ids: 513 layers", "512"],
    );
}

#[test]
fn names_that_are_missing() {
    let (values, f32s) = ([1.0; COUNT], Element::F32);
    refused(
        &[("other", f32s, &SHAPE, &values)],
        &["key_means", "found 1 tensors [other]"],
    );
    let means = ("key_means", f32s, &SHAPE[..], &values[..]);
    refused(
        &[means, ("key_min", f32s, &SHAPE, &values)],
        &["key_max: missing"],
    );
    refused(
        &[means, ("key_max", f32s, &SHAPE, &values)],
        &["key_min: missing"],
    );
    let keys = |name| (name, f32s, &[2_usize, 6, 4][..], &values[..]);
    refused(
        &[keys("layers.0.keys"), keys("layers.2.keys")],
        &["layers.1.keys: missing"],
    );
    refused(
        &[
            keys("trainable_keys.0"),
            keys("trainable_keys.1"),
            keys("frozen_keys.0"),
        ],
        &["frozen_keys.1: missing"],
    );
    let file = file(&[keys("layers.0.keys"), keys("layers.1.keys")]);
    let fixture = Fixture::new();
    let upload = |content, format| SummaryUpload {
        prefix_hash: "p",
        frame: frame(2, 4, 16),
        content: Some(content),
        format,
        file: &file,
        now_unix_ms: 7,
        is_wanted: &|| true,
    };
    let refused = fixture
        .summaries
        .put(upload(Content::Summary, None))
        .unwrap_err();
    assert!(
        refused.to_string().contains("key_means: missing"),
        "{refused}"
    );
    let torch = fixture
        .summaries
        .put(upload(Content::Cartridge, Some(Format::Torch)));
    assert!(matches!(torch, Err(PutSummaryError::Import(_))));
    fixture
        .summaries
        .put(upload(Content::Cartridge, None))
        .unwrap();
}

#[test]
fn keys_whose_tokens_have_no_certain_place() {
    let values = [1.0; COUNT];
    let keys = |name| (name, Element::F32, &[2_usize, 6, 4][..], &values[..]);
    refused(
        &[
            keys("trainable_keys.0"),
            keys("trainable_keys.1"),
            keys("fixed_keys.1"),
        ],
        &["fixed_keys.0: missing"],
    );
    refused(
        &["trainable_keys.0", "fixed_keys.0", "frozen_keys.0"].map(keys),
        &["frozen_keys, fixed_keys: two names"],
    );
    for other in ["sink_keys.0", "sink_keys", "sink_keys.x.y"] {
        refused(
            &[keys("frozen_keys.0"), keys(other)],
            &["sink_keys: unknown beside trainable_keys"],
        );
    }
}

#[test]
fn shapes_that_do_not_fit() {
    let f32s = Element::F32;
    let of = |shape: &[usize]| vec![1.0; shape.iter().product()];
    let means = |shape: &[usize], words: &[&str]| {
        refused(&[("key_means", f32s, shape, &of(shape))], words);
    };
    means(
        &[2, 2, 3],
        &["key_means", "[layers, kv_heads, blocks, head_dim]"],
    );
    means(&[0, 2, 3, 4], &["key_means: 0 layers", "1 to 512"]);
    means(&[513, 1, 1, 2], &["key_means: 513 layers", "1 to 512"]);
    means(&[2, 0, 3, 4], &["key_means: 0 KV heads", "1 to 1024"]);
    means(&[2, 1025, 1, 2], &["key_means: 1025 KV heads"]);
    means(&[2, 2, 0, 4], &["key_means: 0 blocks", "1 to 1048576"]);
    check_refused(
        &frame(1, 2, 16),
        &zeros(&[1, 1, BLOCKS_MAX as usize + 1, 2]),
        &["key_means: 1048577 blocks"],
    );
    for head_dim in [0, 1, 3, 1026] {
        means(
            &[1, 1, 1, head_dim],
            &["head_dim", "even number, 2 to 1024"],
        );
    }
    let (shape, other) = (of(&SHAPE), of(&[2, 2, 3, 2]));
    let first = ("key_means", f32s, &SHAPE[..], &shape[..]);
    let magnitudes = ("key_magnitudes", f32s, &SHAPE[..], &shape[..]);
    refused(
        &[first, magnitudes],
        &["key_magnitudes", "[2, 2, 3, 2]", "[2, 2, 3, 4]"],
    );
    let min = ("key_min", f32s, &[2_usize, 2, 3, 2][..], &other[..]);
    refused(
        &[first, min, ("key_max", f32s, &SHAPE, &shape)],
        &["key_min", "[2, 2, 3, 4]"],
    );
    check_refused(
        &frame(512, 1024, 16),
        &zeros(&[512, 4, 1, 1024]),
        &["layers x KV heads x head_dim is 2097152", "1048576"],
    );
}

#[test]
fn layers_that_do_not_fit_each_other() {
    let keys = |name, shape: &'static [usize]| (name, shape);
    let cartridge = |tensors: &[(&str, &[usize])], words: &[&str]| {
        let ones = vec![1.0; 1000];
        let named = tensors.iter().map(|&(name, shape)| {
            let count = shape.iter().product::<usize>();
            (name, Element::F32, shape, &ones[..count])
        });
        refused(&named.collect::<Vec<_>>(), words);
    };
    let good = keys("layers.0.keys", &[2, 6, 4]);
    let second = |shape| [good, keys("layers.1.keys", shape)];
    cartridge(
        &second(&[2, 5, 4]),
        &["layers.1.keys", "[2, 6, 4] of the first", "[2, 5, 4]"],
    );
    cartridge(&second(&[3, 6, 4]), &["layers.1.keys", "[3, 6, 4]"]);
    cartridge(
        &second(&[2, 2, 6, 4]),
        &["layers.1.keys", "[1, kv_heads, tokens, head_dim]"],
    );
    cartridge(
        &second(&[2, 6]),
        &["layers.1.keys", "[1, kv_heads, tokens, head_dim]"],
    );
    cartridge(&second(&[2, 6, 3]), &["layers.1.keys", "head_dim is 3"]);
    cartridge(&second(&[0, 6, 4]), &["layers.1.keys: 0 KV heads"]);
    let empty = [keys("0.0", &[2, 0, 4]), keys("1.0", &[2, 0, 4])];
    cartridge(&empty, &["0.0: 0 blocks"]);
    let parts = [
        keys("frozen_keys.0", &[2, 3, 4]),
        keys("trainable_keys.0", &[1, 3, 4]),
    ];
    cartridge(&parts, &["trainable_keys.0", "[2, 3, 4]", "[1, 3, 4]"]);
}

/// Many f16 means.
fn zeros(shape: &[usize]) -> Vec<u8> {
    let bytes = vec![0; 2 * shape.iter().product::<usize>()];
    let view = SafeView::new(Dtype::F16, shape.to_vec(), &bytes).unwrap();
    safetensors::serialize([("key_means", view)], None).unwrap()
}

#[test]
fn elements_that_are_no_floats() {
    let bytes = vec![0; COUNT * 4];
    let view = SafeView::new(Dtype::I32, SHAPE.into(), &bytes).unwrap();
    let file = safetensors::serialize([("key_means", view)], None).unwrap();
    check_refused(&frame(2, 4, 16), &file, &["key_means", "I32"]);
}

/// The number stands at layer 1, KV head 0, block 2.
#[test]
fn numbers_that_cannot_be_stored() {
    const AT: usize = (2 * 3 + 2) * 4 + 1;
    const PLACE: &str = "layer 1, KV head 0, block 2";
    let halves = &[2, 2, 3, 2][..];
    let with = |count: usize, of: f32, at: usize, bad: f32| {
        let mut values = vec![of; count];
        values[at] = bad;
        values
    };
    let (means, min, max) = ([1.0; COUNT], [0.5; COUNT], [1.5; COUNT]);
    for (bad, word) in [
        (f32::NAN, "NaN"),
        (f32::INFINITY, "infinite"),
        (f32::NEG_INFINITY, "infinite"),
        (65_505.0, "65505 is beyond f16"),
        (-1e30, "beyond f16"),
    ] {
        let f32s = Element::F32;
        let values = with(COUNT, 1.0, AT, bad);
        refused(
            &[("key_means", f32s, &SHAPE, &values)],
            &["key_means", PLACE, word],
        );
        let first = ("key_means", f32s, &SHAPE[..], &means[..]);
        let (low, high) = (with(COUNT, 0.5, AT, bad), with(COUNT, 1.5, AT, bad));
        let (good_low, good_high) = (
            ("key_min", f32s, &SHAPE[..], &min[..]),
            ("key_max", f32s, &SHAPE[..], &max[..]),
        );
        refused(
            &[first, ("key_min", f32s, &SHAPE, &low), good_high],
            &["key_min", PLACE, word],
        );
        refused(
            &[first, good_low, ("key_max", f32s, &SHAPE, &high)],
            &["key_max", PLACE, word],
        );
        let values = with(COUNT / 2, 1.0, AT / 2, bad);
        let magnitudes = ("key_magnitudes", f32s, halves, &values[..]);
        refused(&[first, magnitudes], &["key_magnitudes", PLACE, word]);
        let mut keys = [1.0; COUNT];
        keys[AT] = bad;
        let shape = &[2, 6, 4][..];
        let file = file(&[
            ("layers.0.keys", f32s, shape, &means),
            ("layers.1.keys", f32s, shape, &keys),
        ]);
        check_refused(
            &frame(2, 4, 3),
            &file,
            &["keys: layer 1, KV head 1, block 0", word],
        );
    }
    let values = with(COUNT / 2, 1.0, AT / 2, -0.25);
    let first = ("key_means", Element::F32, &SHAPE[..], &means[..]);
    let magnitudes = ("key_magnitudes", Element::F32, halves, &values[..]);
    refused(
        &[first, magnitudes],
        &["key_magnitudes", PLACE, "-0.25 is below 0"],
    );
}

#[test]
fn means_outside_their_range() {
    let of = |min: f32, mean: f32, max: f32, element| {
        let [min, mean, max] = [min, mean, max].map(|value| vec![value; COUNT]);
        file(&[
            ("key_means", element, &SHAPE, &mean),
            ("key_min", element, &SHAPE, &min),
            ("key_max", element, &SHAPE, &max),
        ])
    };
    for (min, mean, max) in [(1.0, 0.9, 2.0), (1.0, 2.1, 2.0), (2.0, 1.5, 1.0)] {
        for element in [Element::F16, Element::Bf16, Element::F32] {
            let words = [
                "key_means",
                "layer 0, KV head 0, block 0",
                "between the smallest",
            ];
            check_refused(&frame(2, 4, 16), &of(min, mean, max, element), &words);
        }
    }
    // What rounding does: all three of a block of equal keys, rounded apart.
    for (min, mean, max, element) in [
        (1.0, 1.0 - 1.0 / 2048.0, 1.0, Element::F16),
        (1.0, 1.0 + 1.0 / 128.0, 1.0, Element::Bf16),
        (1.0, 1.000_001, 1.0, Element::F32),
        (1e-7, 0.0, 1e-7, Element::F16),
    ] {
        let file = of(min, mean, max, element);
        Fixture::new().put("p", &frame(2, 4, 16), &file).unwrap();
    }
}

#[test]
fn a_prefix_hash_has_its_limits() {
    let fixture = Fixture::new();
    for length in [0, 513] {
        let refused = fixture
            .put(&"x".repeat(length), &frame(2, 4, 16), &[])
            .unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("prefix_hash: expected 1 to 512 bytes")
        );
    }
}

#[test]
fn what_nobody_waits_for_is_dropped() {
    let fixture = Fixture::new();
    let values = [1.0; COUNT];
    let file = file(&[("key_means", Element::F32, &SHAPE, &values)]);
    // Before the first tile, or before the screen.
    for asked_max in 0..2 {
        let asked = std::cell::Cell::new(0);
        let is_wanted = || asked.replace(asked.get() + 1) < asked_max;
        let refused = fixture.summaries.put(SummaryUpload {
            prefix_hash: "p",
            frame: frame(2, 4, 16),
            content: None,
            format: None,
            file: &file,
            now_unix_ms: 7,
            is_wanted: &is_wanted,
        });
        assert!(
            matches!(refused, Err(PutSummaryError::Unwanted)),
            "{refused:?}"
        );
        assert_eq!(fixture.blob_files().len(), 0);
        assert!(fixture.summaries.is_empty());
    }
}

/// No cut and no flipped byte makes the reader panic; a cut file is refused.
#[test]
fn no_damage_to_a_file_is_more_than_an_error() {
    let fixture = Fixture::new();
    let (tables, keys) = ([1.0; COUNT], [0.5; COUNT / 2]);
    let summary = file(&[
        ("key_means", Element::F32, &SHAPE, &tables),
        ("key_magnitudes", Element::F32, &[2, 2, 3, 2], &keys),
    ]);
    let cartridges = ["cart_trainable", "cart_list", "cart_modules"]
        .map(|name| fixture_file(&format!("pt/{name}.pt")));
    let files = cartridges.iter().chain([&summary]);
    let frames = [(4, 8), (3, 16), (11, 4), (2, 4)];
    let frames = frames.map(|(layers, head_dim)| frame(layers, head_dim, 16));
    for (file, frame) in files.zip(frames) {
        fixture.put("p", &frame, file).unwrap();
        fixture.summaries.delete("p").unwrap();
        let step = file.len() / 700 + 1;
        for length in (0..file.len()).step_by(step) {
            assert!(
                fixture.put("p", &frame, &file[..length]).is_err(),
                "cut to {length}"
            );
        }
        for at in (0..file.len().min(4096)).step_by(37) {
            let mut damaged = file.clone();
            damaged[at] ^= 0x41;
            // A flipped byte of a value is just another value.
            drop(fixture.put("p", &frame, &damaged));
        }
        fixture.summaries.delete("p").unwrap();
        assert_eq!(fixture.blob_files().len(), 0);
    }
}

//! What a dict must say to be a prior, in either format.

use ::safetensors::tensor::{Dtype, TensorView, serialize};

use super::build::{self, dict, list, tensor, torch};
use super::*;

fn read(fields: &[(&str, &[u8])]) -> Result<ImportedPrior, ImportError> {
    import(&torch(&dict(fields), &[("0", &[1; 64])]), None)
}

/// A dict of these fields, beside a legacy list, is refused with a message that holds `wanted`.
fn check(fields: &[(&str, &[u8])], wanted: &str) {
    let legacy = list(&[4, 2]);
    let fields = [&[("kmeans_blocks", legacy.as_slice())], fields].concat();
    let message = read(&fields).unwrap_err().to_string();
    assert!(
        message.contains(wanted),
        "{message:?} does not say {wanted:?}"
    );
}

#[test]
fn numbers_must_be_in_range_and_agree_with_the_tensor() {
    let scores = tensor("ByteStorage", 30, 0, &[(2, 15), (3, 5), (5, 1)]);
    let scores = ("block_affinities", scores.as_slice());
    let fits: [(&str, &[u8]); 3] = [
        ("num_layers", b"K\x02"),
        ("num_kv_heads", b"K\x03"),
        ("num_blocks", b"K\x05"),
    ];
    let prior = read(&[&fits[..], &[scores]].concat()).unwrap();
    assert_eq!((prior.total_blocks, prior.metadata.len()), (Some(5), 0));
    for (field, _) in fits {
        check(
            &[scores, (field, b"K\x04")],
            &format!("{field} is 4, but block_affinities has"),
        );
    }
    check(
        &[("num_layers", b"M\x01\x02")],
        "num_layers is 513; 1 to 512 are read",
    );
    check(&[("num_kv_heads", b"K\0")], "num_kv_heads is 0; 1 to 1024");
    check(
        &[("num_blocks", b"J\xff\xff\xff\xff")],
        "num_blocks is -1; 1 to 1048576",
    );
    check(&[("block_size", b"K\0")], "block_size is 0; 1 to 1048576");
    check(
        &[("block_size", b"G\x3f\xf0\0\0\0\0\0\0")],
        "block_size is a float, not an integer",
    );
    check(
        &[("num_blocks", b"\x88")],
        "num_blocks is a bool, not an integer",
    );
    let large = tensor("ByteStorage", 64, 0, &[(513, 0), (1, 1), (1, 1)]);
    check(
        &[("block_affinities", &large)],
        "block_affinities has 513 layers; 1 to 512",
    );
    check(
        &[("block_affinities", b"]")],
        "block_affinities is a list, not a tensor",
    );
}

#[test]
fn lists_must_be_distinct_blocks() {
    let by_k = |k: &[u8], entries: &[u32]| [b"}".as_slice(), k, &list(entries), b"s"].concat();
    let bad = |k: &[u8], entries: &[u32], wanted: &str| {
        check(&[("kmeans_blocks_perK", &by_k(k, entries))], wanted);
    };
    bad(
        b"K\x03",
        &[1, 2, 1],
        "kmeans_blocks_perK[3] lists block 1 twice",
    );
    bad(
        b"K\x03",
        &[1, 1 << 20],
        "kmeans_blocks_perK[3] lists block 1048576; blocks are 0 to 1048575",
    );
    bad(
        b"K\x03",
        &[u32::MAX],
        "kmeans_blocks_perK[3] lists block -1",
    );
    bad(
        b"K\x03",
        &[1, 2, 3, 4],
        "kmeans_blocks_perK[3] lists 4 blocks",
    );
    bad(
        b"K\0",
        &[1],
        "kmeans_blocks_perK has the key 0; 1 to 1048576",
    );
    bad(
        b"X\x01\0\0\x003",
        &[1],
        "a key of kmeans_blocks_perK is a text, not an integer",
    );
    check(
        &[("kmeans_blocks_perK", b"]")],
        "kmeans_blocks_perK is a list, not a dict",
    );
    check(
        &[("kmeans_blocks_perK", b"}K\x01K\x01s")],
        "kmeans_blocks_perK[1] is an integer, not",
    );
    check(
        &[("num_blocks", b"K\x04")],
        "kmeans_blocks lists block 4; blocks are 0 to 3",
    );
    check(
        &[("kmeans_blocks", b"]Na")],
        "kmeans_blocks is none, not an integer",
    );
    let square = tensor("ByteStorage", 4, 0, &[(2, 2), (2, 1)]);
    check(
        &[("kmeans_blocks", &square)],
        "kmeans_blocks is a tensor of several dimensions, not",
    );
    let floats = tensor("FloatStorage", 4, 0, &[(4, 1)]);
    check(
        &[("kmeans_blocks", &floats)],
        "kmeans_blocks: the tensor's elements are no integers",
    );
    let mut keys = b"}(".to_vec();
    for k in 1..=4097 {
        build::int(&mut keys, k);
        keys.push(b'N');
    }
    keys.push(b'u');
    check(
        &[("kmeans_blocks_perK", &keys)],
        "kmeans_blocks_perK has more than 4096 keys",
    );
}

#[test]
fn lists_may_be_tensors_and_be_short_and_a_later_key_counts() {
    let one = tensor("ByteStorage", 1, 0, &[]);
    let row = tensor("ShortStorage", 2, 1, &[(1, 1)]);
    let mixed = [b"](K\x09".as_slice(), &one, b"e"].concat();
    let by_k = [
        b"}K\x02".as_slice(),
        &list(&[7]),
        b"sK\x02",
        &one,
        b"sK\x03",
        &row,
        b"s",
    ]
    .concat();
    let fields = [
        ("kmeans_blocks_perK", by_k.as_slice()),
        ("kmeans_blocks", b"]"),
        ("kmeans_blocks", &mixed),
        ("block_size", &row),
    ];
    let prior = read(&fields).unwrap();
    assert_eq!(prior.lists_by_k, [(2, vec![1]), (3, vec![257])].into());
    assert_eq!(
        (prior.legacy_list, prior.total_blocks),
        (Some(vec![9, 1]), None)
    );
    assert_eq!(prior.block_size, Some(257));
}

#[test]
fn absent_and_empty_fields_are_no_prior() {
    for fields in [
        [
            ("kmeans_blocks", b"N".as_slice()),
            ("block_affinities", b"N"),
        ],
        [("kmeans_blocks", b"]"), ("kmeans_blocks_perK", b"}")],
    ] {
        let message = read(&fields).unwrap_err().to_string();
        let keys = format!("a dict with the keys [{}, {}]", fields[0].0, fields[1].0);
        assert!(message.contains(&keys), "{message}");
    }
    let message = import(&torch(b"\x80\x02K\x07.", &[]), None)
        .unwrap_err()
        .to_string();
    assert!(message.contains("found an integer"), "{message}");
}

#[test]
fn metadata_and_type_are_bounded() {
    let names: Vec<_> = (0..20).map(|number| format!("note{number:02}")).collect();
    let long = "k".repeat(METADATA_KEY_BYTES_MAX + 1);
    let legacy = list(&[1]);
    let mut fields = vec![
        ("kmeans_blocks", legacy.as_slice()),
        (&long, b"K\x01"),
        ("", b"K\x01"),
    ];
    fields.extend(
        names
            .iter()
            .map(|name| (name.as_str(), b"K\x01".as_slice())),
    );
    let kept: Vec<_> = read(&fields).unwrap().metadata.into_keys().collect();
    assert_eq!(kept, names[..METADATA_ENTRIES_MAX]);

    let mut text = Vec::new();
    build::text(&mut text, &"ü".repeat(200));
    let prior = read(&[
        ("kmeans_blocks", &legacy),
        (
            "odd",
            &[b"X\x01\x02\0\0a", &*"ü".repeat(256).into_bytes()].concat(),
        ),
    ]);
    assert_eq!(
        prior.unwrap().metadata["odd"],
        format!("a{}", "ü".repeat(127))
    );
    check(
        &[("prior_type", &text)],
        "prior_type has 400 bytes; at most 128",
    );
    check(
        &[("prior_type", b"K\x01")],
        "prior_type is an integer, not a text",
    );
}

/// Name, element type, shape, bytes.
type Named<'a> = (&'a str, Dtype, Vec<usize>, &'a [u8]);

fn safetensors(tensors: Vec<Named<'_>>, metadata: &[(&str, &str)]) -> Vec<u8> {
    let tensors = tensors.into_iter().map(|(name, dtype, shape, data)| {
        (
            name.to_owned(),
            TensorView::new(dtype, shape, data).unwrap(),
        )
    });
    let metadata = metadata
        .iter()
        .map(|&(key, text)| (key.to_owned(), text.to_owned()));
    serialize(tensors.collect::<Vec<_>>(), Some(metadata.collect())).unwrap()
}

#[test]
fn safetensors_hold_the_same_fields() {
    let scores: Vec<u8> = (0_u8..12)
        .flat_map(|score| f32::from(score).to_le_bytes())
        .collect();
    let file = safetensors(
        vec![
            ("block_affinities", Dtype::F32, vec![1, 2, 6], &scores),
            ("kmeans_blocks", Dtype::U8, vec![3], &[5, 0, 1]),
            ("kmeans_blocks_perK.2", Dtype::I16, vec![2], &[3, 0, 1, 0]),
            ("other", Dtype::F8_E4M3, vec![1], &[0]),
        ],
        &[
            ("num_blocks", "6"),
            ("block_size", "16"),
            ("prior_type", "kri-g"),
            ("model_id", "m"),
            ("note", &format!("a{}", "ü".repeat(200))),
        ],
    );
    for format in [None, Some(Format::Safetensors)] {
        let prior = import(&file, format).unwrap();
        let tensor = prior.affinities.unwrap();
        assert_eq!((tensor.layers, tensor.kv_heads, tensor.blocks), (1, 2, 6));
        assert_eq!(
            tensor.scores,
            Scores::F32((0_u8..12).map(f32::from).collect())
        );
        assert_eq!(prior.lists_by_k, [(2, vec![3, 1])].into());
        assert_eq!(prior.legacy_list, Some(vec![5, 0, 1]));
        assert_eq!((prior.total_blocks, prior.block_size), (Some(6), Some(16)));
        assert_eq!(prior.prior_type.as_deref(), Some("kri-g"));
        let note = format!("a{}", "ü".repeat(127));
        let metadata = [("model_id", "m"), ("note", &note)];
        let metadata = metadata.map(|(key, text)| (key.to_owned(), text.to_owned()));
        assert_eq!(prior.metadata, metadata.into());
    }
    for length in 0..file.len() {
        assert!(import(&file[..length], None).is_err(), "cut to {length}");
    }
}

#[test]
fn safetensors_beyond_the_rules_are_refused() {
    let check = |file: &[u8], wanted: &str| {
        let message = import(file, Some(Format::Safetensors))
            .unwrap_err()
            .to_string();
        assert!(
            message.contains(wanted),
            "{message:?} does not say {wanted:?}"
        );
    };
    let file = |tensors, metadata: &[_]| safetensors(tensors, metadata);
    check(&file(vec![], &[("num_blocks", "6")]), "no prior");
    let eight_bits = vec![(
        "block_affinities",
        Dtype::F8_E4M3,
        vec![1, 1, 1],
        [1].as_slice(),
    )];
    check(
        &file(eight_bits, &[]),
        "block_affinities has the element type F8_E4M3",
    );
    let flat = vec![("block_affinities", Dtype::U8, vec![1, 1], [1].as_slice())];
    check(&file(flat, &[]), "the shape [1, 1], not");
    let list = |name, shape| vec![(name, Dtype::U8, shape, [1].as_slice())];
    check(
        &file(list("kmeans_blocks_perK.x", vec![1]), &[]),
        "has the key x;",
    );
    check(
        &file(list("kmeans_blocks_perK.-2", vec![1]), &[]),
        "has the key -2;",
    );
    check(
        &file(list("kmeans_blocks", vec![1, 1]), &[]),
        "a tensor of several dimensions",
    );
    check(
        &file(list("kmeans_blocks", vec![1]), &[("num_blocks", "many")]),
        "is a text, not a dec",
    );
    check(
        &file(list("kmeans_blocks", vec![1]), &[("num_blocks", "1")]),
        "lists block 1",
    );
    check(
        b"\xff\xff\xff\xff\xff\0\0\0{",
        "the header has 1099511627775 bytes; at most 4194304",
    );
}

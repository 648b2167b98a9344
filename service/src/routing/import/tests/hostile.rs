//! Files that nobody wrote in good faith: bombs, views beyond their storage, cut and mutated bytes.

use proptest::prelude::*;

use super::build::{self, Layout, archive, dict, torch};
use super::*;
use crate::routing::import::pickle;

/// The message that a file is refused with holds `wanted`.
fn check(file: &[u8], wanted: &str) {
    let message = import(file, Some(Format::Torch)).unwrap_err().to_string();
    assert!(
        message.contains(wanted),
        "{message:?} does not say {wanted:?}"
    );
}

/// Nested lists, each holding the one before it ten times: 10^40 elements for who expands them.
fn bomb() -> Vec<u8> {
    let mut opcodes = b"]q\0".to_vec();
    for level in 1..=40 {
        opcodes.extend_from_slice(b"](");
        for _ in 0..10 {
            opcodes.extend_from_slice(&[b'h', level - 1]);
        }
        opcodes.extend_from_slice(&[b'e', b'q', level, b'0']);
        opcodes.extend_from_slice(&[b'h', level]);
    }
    opcodes
}

#[test]
fn a_memo_bomb_takes_the_room_of_its_own_bytes() {
    let pickle = [b"\x80\x02(".as_slice(), &bomb(), b"t."].concat();
    let arena = pickle::read(&pickle).unwrap().arena;
    let elements: usize = arena.lists.iter().map(Vec::len).sum();
    assert!(
        elements <= pickle.len(),
        "{elements} elements of {} bytes",
        pickle.len()
    );

    let bomb = [b"(".as_slice(), &bomb(), b"t"].concat();
    let harmless = dict(&[("note", &bomb), ("kmeans_blocks", &build::list(&[3, 1]))]);
    assert_eq!(
        import(&torch(&harmless, &[]), None).unwrap().legacy_list,
        Some(vec![3, 1])
    );
    check(
        &torch(&dict(&[("kmeans_blocks", &bomb)]), &[]),
        "kmeans_blocks is a list, not an int",
    );
}

#[test]
fn one_list_under_every_key_is_counted_every_time() {
    let mut by_k = build::list(&(0..4000).collect::<Vec<_>>());
    by_k.extend_from_slice(b"r\x07\0\0\0" as &[u8]);
    by_k.extend_from_slice(b"0}(");
    for k in 4000..4000 + 1100 {
        build::int(&mut by_k, k);
        by_k.extend_from_slice(b"h\x07");
    }
    by_k.push(b'u');
    check(
        &torch(&dict(&[("kmeans_blocks_perK", &by_k)]), &[]),
        "more than 4194304 entries",
    );
}

#[test]
fn a_list_that_holds_itself_is_no_list_of_integers() {
    let file = torch(&dict(&[("kmeans_blocks", b"]q\0h\0a")]), &[]);
    check(&file, "kmeans_blocks is a list, not an integer");
}

#[test]
fn a_small_file_makes_no_large_tensor() {
    for (length, wanted) in [
        (
            1 << 19,
            "block_affinities: the tensor has more than 16777216 elements",
        ),
        (
            1 << 20,
            "block_affinities: the tensor has more than 67108864 elements",
        ),
    ] {
        let tensor = build::tensor("FloatStorage", 1, 0, &[(8, 0), (9, 0), (length, 0)]);
        let file = torch(&dict(&[("block_affinities", &tensor)]), &[("0", &[0; 4])]);
        check(&file, wanted);
    }
}

#[test]
fn tensors_that_reach_outside_are_refused() {
    let check_view =
        |kind, stored: &[u8], (elements, offset), dimensions: &[(u32, u32)], wanted| {
            let tensor = build::tensor(kind, elements, offset, dimensions);
            check(
                &torch(&dict(&[("block_affinities", &tensor)]), &[("0", stored)]),
                wanted,
            );
        };
    let row = [(1, 1), (1, 1), (4, 1)];
    let outside = "block_affinities: the tensor reaches beyond its storage of 4 elements";
    check_view("ByteStorage", &[0; 4], (4, 1), &row, outside);
    check_view("ByteStorage", &[0; 4], (4, u32::MAX >> 1), &row, outside);
    check_view(
        "ByteStorage",
        &[0; 9],
        (4, 0),
        &[(2, 1), (1, 0), (4, 1)],
        outside,
    );
    let far = u32::MAX >> 1;
    check_view(
        "ByteStorage",
        &[0; 4],
        (4, 0),
        &[(2, far), (2, far), (4, far)],
        outside,
    );
    check_view(
        "FloatStorage",
        &[0; 15],
        (4, 0),
        &row,
        "storage 0 has 15 bytes where 16 are needed",
    );
    check_view(
        "ByteStorage",
        &[0; 4],
        (4, 0),
        &row[1..],
        "the shape [1, 4], not",
    );
    check_view(
        "ByteStorage",
        &[0; 4],
        (4, 0),
        &[(1, 1), (0, 1), (4, 1)],
        "has 0 KV heads",
    );
    check_view(
        "ByteStorage",
        &[0; 4],
        (4, 0),
        &[(1, 1); 17],
        "has 17 dimensions; at most 16",
    );
    let lost = build::tensor("ByteStorage", 4, 0, &row);
    check(
        &torch(&dict(&[("block_affinities", &lost)]), &[("1", &[0; 4])]),
        "storage 0 is missing",
    );
}

/// Opens a file and reads what can be read by name.
fn read_by_name(bytes: &[u8]) {
    let Ok(mut file) = TensorFile::open(bytes, None) else {
        return;
    };
    let names: Vec<_> = file.names().map(str::to_owned).collect();
    for name in names {
        if let Ok(Some(tensor)) = file.tensor(&name)
            && let Ok(values) = tensor.to_f32(1 << 20)
        {
            assert_eq!(values.len(), tensor.elements());
        }
    }
}

/// Every length near both ends of a file, and some between.
#[test]
fn no_cut_file_is_read_and_none_panics() {
    for (name, bytes) in fixtures() {
        let edge = 120;
        let between = (edge..bytes.len()).step_by(1 + bytes.len() / 24);
        let end = bytes.len().saturating_sub(edge)..bytes.len();
        for length in (0..edge.min(bytes.len())).chain(between).chain(end) {
            let result = import(&bytes[..length], Some(Format::Torch));
            read_by_name(&bytes[..length]);
            assert!(
                result.is_err(),
                "{name}, cut to {length} of {} bytes",
                bytes.len()
            );
        }
    }
}

#[test]
fn every_seed_of_the_fuzzer_is_survived() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/import_prior");
    let mut read = 0;
    for file in std::fs::read_dir(corpus).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        for format in [None, Some(Format::Torch), Some(Format::Safetensors)] {
            read += usize::from(import(&bytes, format).is_ok());
        }
        read_by_name(&bytes);
    }
    assert!(
        read >= 20,
        "the seeds lead deep into the reader: {read} were read"
    );
}

/// A fixture's pickle, its storages, and whether it still is what torch wrote.
fn parts(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let archive = zip::Archive::open(bytes).unwrap();
    let part = |name: &str| {
        (
            name.to_owned(),
            archive.read(name).unwrap().unwrap().to_vec(),
        )
    };
    archive.names().map(part).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn mutated_files_never_panic(
        pick in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let fixtures: Vec<_> = fixtures().into_values().collect();
        let mut bytes = pick.get(&fixtures).clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = import(&bytes, None);
        read_by_name(&bytes);
    }

    /// Here the checksums are right again, so that the changes reach the pickle.
    #[test]
    fn mutated_pickles_never_panic(
        pick in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let fixtures = fixtures();
        let fixtures: Vec<_> = fixtures.values().filter(|bytes| bytes.starts_with(b"PK")).collect();
        let mut parts = parts(fixtures[pick.index(fixtures.len())]);
        for (name, data) in &mut parts {
            if name.ends_with("data.pkl") {
                for (at, byte) in &changes {
                    let at = at.index(data.len());
                    data[at] = *byte;
                }
            }
        }
        let parts: Vec<_> = parts.iter().map(|(name, data)| (&**name, &**data)).collect();
        let file = archive(&parts, Layout::Stream);
        let _ = import(&file, None);
        read_by_name(&file);
    }

    #[test]
    fn opcodes_in_any_order_never_panic(
        opcodes in prop::collection::vec(prop::sample::select(OPCODES.to_vec()), 0..60),
    ) {
        let pickle = [b"\x80\x04", opcodes.concat().as_slice(), b"."].concat();
        let file = torch(&pickle, &[("0", &[0; 64])]);
        let _ = import(&file, None);
        read_by_name(&file);
    }
}

/// Opcodes with operands that make sense, for the property above.
const OPCODES: [&[u8]; 45] = [
    b"(",
    b"0",
    b"1",
    b"2",
    b"N",
    b"\x88",
    b"\x89",
    b"K\x01",
    b"M\x02\x03",
    b"J\xff\xff\xff\xff",
    b"\x8a\x01\xff",
    b"\x8a\x09123456789",
    b"G\x7f\xf8\0\0\0\0\0\0",
    b"]",
    b"l",
    b"a",
    b"e",
    b")",
    b"t",
    b"\x85",
    b"\x86",
    b"\x87",
    b"}",
    b"d",
    b"s",
    b"u",
    b"q\0",
    b"h\0",
    b"\x94",
    b"R",
    b"b",
    b"Q",
    b"\x8c\x07storage",
    b"\x8c\x010",
    b"ctorch\nFloatStorage\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ccollections\nOrderedDict\n",
    b"ctorch.nn.modules.container\nParameterList\n",
    b"\x81",
    b"\x8f",
    b"\x8c\x0b_parameters",
    b"\x8c\x0dkmeans_blocks",
    b"\x8c\x10block_affinities",
    b"cnumpy\ndtype\n",
    b"cnumpy.core.multiarray\nscalar\n",
];

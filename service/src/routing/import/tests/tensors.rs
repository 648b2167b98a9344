//! Every element type, and strided views against an obvious twin.

use proptest::prelude::*;

use super::build::{dict, tensor, torch};
use super::*;
use crate::routing::import::tensor::{Element, View, integers, scores};

/// The elements of a `[1, 1, n]` tensor of a storage type.
fn read(kind: &str, bytes: &[u8], blocks: u32) -> Scores {
    let opcodes = tensor(kind, blocks, 0, &[(1, blocks), (1, blocks), (blocks, 1)]);
    let file = torch(&dict(&[("block_affinities", &opcodes)]), &[("0", bytes)]);
    import(&file, None).unwrap().affinities.unwrap().scores
}

#[test]
fn every_storage_type_keeps_its_values() {
    let narrow = |kind, bytes: &[u8], expected: [f32; 2]| {
        assert_eq!(
            read(kind, bytes, 2),
            Scores::F32(expected.to_vec()),
            "{kind}"
        );
    };
    narrow("BoolStorage", &[0, 1], [0.0, 1.0]);
    narrow("ByteStorage", &[0, 255], [0.0, 255.0]);
    narrow("CharStorage", &[1, 255], [1.0, -1.0]);
    narrow("ShortStorage", &[1, 0, 0, 128], [1.0, -32768.0]);
    narrow(
        "HalfStorage",
        &[0x00, 0x3c, 0x00, 0xfc],
        [1.0, f32::NEG_INFINITY],
    );
    narrow("BFloat16Storage", &[0x80, 0x3f, 0x00, 0xc0], [1.0, -2.0]);
    narrow(
        "FloatStorage",
        &[0, 0, 128, 63, 1, 0, 0, 0],
        [1.0, f32::from_bits(1)],
    );
    let wide = |kind, bytes: &[u8], expected: [f64; 2]| {
        assert_eq!(
            read(kind, bytes, 2),
            Scores::F64(expected.to_vec()),
            "{kind}"
        );
    };
    wide(
        "IntStorage",
        &[255, 255, 255, 127, 0, 0, 0, 128],
        [2_147_483_647.0, -2_147_483_648.0],
    );
    wide(
        "LongStorage",
        &[[1, 0, 0, 0, 1, 0, 0, 0], [255; 8]].concat(),
        [4_294_967_297.0, -1.0],
    );
    let doubles = [0.1_f64, -1e300].map(f64::to_le_bytes).concat();
    wide("DoubleStorage", &doubles, [0.1, -1e300]);
}

#[test]
fn a_nan_is_read_as_one() {
    let Scores::F32(scores) = read("HalfStorage", &[0x00, 0x7e, 0x00, 0x3c], 2) else {
        unreachable!("halves fit into f32")
    };
    assert!(scores[0].is_nan() && !scores[1].is_nan());
}

/// The element at each position of the shape in row-major order, one position at a time.
fn twin(stored: &[u8], offset: u64, dimensions: &[(u64, u64)]) -> Option<Vec<i64>> {
    let Some((&(length, stride), inner)) = dimensions.split_first() else {
        let element = stored.get(usize::try_from(offset).ok()?)?;
        return Some(vec![i64::from(*element)]);
    };
    let rows = (0..length).map(|row| twin(stored, offset + row * stride, inner));
    rows.collect::<Option<Vec<_>>>().map(|rows| rows.concat())
}

proptest! {
    #[test]
    fn views_agree_with_their_twin(
        stored in prop::collection::vec(any::<u8>(), 0..60),
        offset in 0_u64..12,
        dimensions in prop::collection::vec((0_u64..5, 0_u64..14), 0..5),
        contiguous in any::<bool>(),
    ) {
        let mut dimensions = dimensions;
        if contiguous {
            let mut packed = 1;
            for (length, stride) in dimensions.iter_mut().rev() {
                *stride = packed;
                packed *= (*length).max(1);
            }
        }
        let (shape, strides): (Vec<_>, Vec<_>) = dimensions.iter().copied().unzip();
        let (element, bytes) = (Element::U8, stored.as_slice());
        let view = View { element, bytes, offset, shape: &shape, strides: &strides };
        let expected = twin(&stored, offset, &dimensions);
        prop_assert_eq!(integers(&view).ok(), expected.clone());
        let Some(expected) = expected else { return Ok(()) };
        let expected: Vec<_> = expected.iter().map(|&n| n as f64).collect();
        prop_assert_eq!(wide(&scores(&view).unwrap()), expected);
    }
}

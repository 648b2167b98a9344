//! Tensors by name: the fixtures, hostile nesting, and views against an obvious twin.

use proptest::prelude::*;

use super::build::{archive, dict, tensor, torch};
use super::*;
use crate::routing::import::tensor::{Element, View, scores};

fn open(file: &[u8]) -> TensorFile<'_> {
    TensorFile::open(file, None).unwrap()
}

#[expect(clippy::cast_possible_truncation, reason = "as views do it")]
fn narrow(value: f64) -> f32 {
    value as f32
}

/// Every float tensor of a fixture, read row by row, is what the gathering reader reads.
#[test]
fn every_affinity_reads_the_same_by_name() {
    let mut read = 0;
    for (name, file) in fixtures() {
        let Ok(Some(affinities)) = import(&file, None).map(|prior| prior.affinities) else {
            continue;
        };
        let mut file = open(&file);
        let name_of = if name == "aff_toplevel_tensor" {
            ""
        } else {
            "block_affinities"
        };
        let view = file.tensor(name_of).unwrap().unwrap();
        let shape = [affinities.layers, affinities.kv_heads, affinities.blocks];
        assert_eq!(*view.shape, shape.map(|length| length as usize), "{name}");
        let values = view.to_f32(view.elements());
        if name == "aff_int32" {
            let error = values.unwrap_err().to_string();
            assert!(error.contains("I32, not F16"), "{error}");
            continue;
        }
        let values: Vec<f64> = values.unwrap().into_iter().map(f64::from).collect();
        let wanted = wide(&affinities.scores).into_iter();
        let wanted: Vec<f64> = wanted.map(|score| f64::from(narrow(score))).collect();
        assert_eq!(values, wanted, "{name}");
        let limit = view.to_f32(view.elements() - 1).unwrap_err();
        assert!(limit.to_string().contains("more than"), "{limit}");
        read += 1;
    }
    assert!(read >= 15, "{read} fixtures have affinities");
}

#[test]
fn names_are_the_way_from_the_top() {
    let fixtures = fixtures();
    let list = open(&fixtures["cart_list"]);
    assert_eq!(
        list.names().collect::<Vec<_>>(),
        ["0.0", "0.1", "1.0", "1.1", "2.0", "2.1"]
    );
    let mut trained = open(&fixtures["cart_trainable"]);
    let wanted = [
        "frozen_keys",
        "frozen_values",
        "trainable_keys",
        "trainable_values",
    ];
    let wanted = wanted
        .iter()
        .flat_map(|part| (0..4).map(move |layer| format!("{part}.{layer}")));
    assert_eq!(
        trained.names().collect::<Vec<_>>(),
        wanted.collect::<Vec<_>>()
    );
    let view = trained.tensor("frozen_keys.1").unwrap().unwrap();
    assert_eq!(
        (view.element, &*view.shape),
        (Element::Bf16, &[1, 2, 2, 8][..])
    );
    assert_eq!(*view.without_batch().shape, [2, 2, 8]);
    assert!(trained.tensor("frozen_keys.4").unwrap().is_none());
    assert!(
        trained
            .describe()
            .starts_with("16 tensors [frozen_keys.0, ")
    );
    assert!(trained.describe().ends_with(", ...]"));

    let scalars = open(&fixtures["aff_float32"]);
    assert_eq!(scalars.scalar("block_size"), Some(&Scalar::Integer(16)));
    let model = Scalar::Text("meta-llama/Llama-3.2-3B-Instruct".into());
    assert_eq!(scalars.scalar("model_id"), Some(&model));
    assert_eq!(scalars.scalar("block_affinities"), None);
    let py = open(&fixtures["py_protocol5"]);
    assert_eq!(py.scalar("ratio"), Some(&Scalar::Float(0.25)));
    assert_eq!(py.scalar("normalised"), Some(&Scalar::Bool(true)));
    assert_eq!(
        py.scalar("kmeans_blocks_perK.3.1"),
        Some(&Scalar::Integer(4))
    );
}

#[test]
fn what_no_name_may_be_is_refused_as_for_priors() {
    let error = TensorFile::open(&fixtures()["evil"], None).unwrap_err();
    assert!(error.to_string().contains("is refused"), "{error}");
    assert!(matches!(
        TensorFile::open(b"what?", None),
        Err(ImportError::UnknownFormat)
    ));
}

/// Opening reads no element; asking for a tensor checks its own bytes alone.
#[test]
fn a_damaged_storage_is_found_when_it_is_asked_for() {
    let mut file = fixtures()["cart_list"].clone();
    // The last storage's bytes end well before the directory.
    let at = file.len() - 4096;
    file[at] ^= 1;
    let mut opened = open(&file);
    assert!(opened.tensor("0.0").unwrap().is_some());
    let error = opened.tensor("2.1").unwrap_err().to_string();
    assert!(error.contains("does not have its checksum"), "{error}");
}

/// Lists in lists, each twice in the next: 2^depth ways, none of them a tensor's.
#[test]
fn a_name_bomb_is_cut_at_its_depth_or_refused() {
    let nested = |depth: usize, width: usize| {
        let mut pickle = vec![0x80, 2, b']', b'q', 0];
        for memo in 0..depth {
            let memo = u8::try_from(memo).unwrap();
            pickle.extend([b']', b'q', memo + 1, b'(']);
            for _ in 0..width {
                pickle.extend([b'h', memo]);
            }
            pickle.push(b'e');
        }
        pickle.push(b'.');
        archive(&[("x/data.pkl", &pickle)], build::Layout::Stream)
    };
    assert_eq!(open(&nested(200, 2)).names().count(), 0);
    let error = TensorFile::open(&nested(200, 60), None).unwrap_err();
    assert!(matches!(error, ImportError::Names), "{error}");
    let itself = [0x80, 2, b']', b'q', 0, b'h', 0, b'a', b'.'];
    let file = archive(&[("x/data.pkl", &itself)], build::Layout::Stream);
    assert_eq!(open(&file).names().count(), 0);
}

#[test]
fn a_tensor_that_reaches_too_far_is_refused_by_name() {
    let opcodes = tensor("HalfStorage", 4, 1, &[(2, 2), (2, 1)]);
    let bytes = torch(&dict(&[("keys", &opcodes)]), &[("0", &[0; 8])]);
    let error = open(&bytes).tensor("keys").unwrap_err().to_string();
    assert!(
        error.contains("keys: the tensor reaches beyond its storage of 4"),
        "{error}"
    );
}

proptest! {
    #[test]
    fn rows_agree_with_the_gathered_tensor(
        stored in prop::collection::vec(any::<[u8; 2]>(), 1..300),
        offset in 0_u64..12,
        dimensions in prop::collection::vec((0_u64..5, 0_u64..14), 0..4),
        last in (1_u64..280, 0_u64..3),
        element in prop_oneof![
            Just(Element::F16), Just(Element::Bf16), Just(Element::F32), Just(Element::F64)
        ],
    ) {
        let bytes = stored.as_flattened();
        let mut dimensions = dimensions;
        dimensions.push(last);
        let (shape, strides): (Vec<_>, Vec<_>) = dimensions.into_iter().unzip();
        let view = View { element, bytes, offset, shape: &shape, strides: &strides };
        let named = TensorView::new(element, bytes, offset, [&shape, &strides]);
        let gathered = scores(&view);
        prop_assert_eq!(named.is_ok(), gathered.is_ok());
        let (Ok(named), Ok(gathered)) = (named, gathered) else { return Ok(()) };
        let rows = named.to_f32(1 << 20).unwrap();
        let bits = |value: f32| if value.is_nan() { u32::MAX } else { value.to_bits() };
        let rows: Vec<u32> = rows.into_iter().map(bits).collect();
        let gathered: Vec<u32> = wide(&gathered).into_iter().map(|v| bits(narrow(v))).collect();
        prop_assert_eq!(rows, gathered);
    }
}

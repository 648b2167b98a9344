//! What a rotation keeps, whatever the vector.

use proptest::prelude::*;

use crate::routing::encoder::rope::{Rope, RopeParameters, RopeScaling, Rotation};

fn rope(bands: u32) -> Rope {
    let parameters = RopeParameters {
        theta: 10_000.0,
        scaling: RopeScaling::None,
    };
    Rope::new(&parameters, 2 * bands)
}

fn rotated(head: &[f32], position: u32, scaling: f32) -> Vec<f32> {
    let bands = u32::try_from(head.len() / 2).unwrap();
    let mut head = head.to_vec();
    Rotation::at(position, &rope(bands).inv_freq, scaling).apply(&mut head);
    head
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b);
    products.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

#[test]
fn a_band_is_a_complex_number_that_turns_by_its_frequency() {
    // Bands 1 and 0.01: after 100 positions, 100 rad and 1 rad.
    let turned = rotated(&[1.0, 0.0, 0.0, 2.0], 100, 1.0);
    let expected = [
        100_f64.cos(),
        -2.0 * 1_f64.sin(),
        100_f64.sin(),
        2.0 * 1_f64.cos(),
    ];
    for (found, expected) in turned.iter().zip(expected) {
        assert!(
            (f64::from(*found) - expected).abs() < 1e-6,
            "{turned:?}, must be {expected:?}"
        );
    }
}

#[test]
fn nothing_turns_at_position_0() {
    let head = [0.5, -1.5, 2.0, 3.0];
    assert_eq!(rotated(&head, 0, 1.0), head);
}

fn heads() -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    (1_usize..40).prop_flat_map(|bands| {
        let head = || prop::collection::vec(-10.0_f32..10.0, 2 * bands);
        (head(), head())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lengths_are_kept_up_to_the_attention_scaling(
        (head, _) in heads(),
        position in 0_u32..1 << 24,
        scaling in 0.5_f32..2.0,
    ) {
        let turned = rotated(&head, position, scaling);
        let expected = dot(&head, &head) * f64::from(scaling).powi(2);
        prop_assert!((dot(&turned, &turned) - expected).abs() <= 1e-5 * expected);
    }

    #[test]
    fn products_depend_on_the_distance_alone(
        (query, key) in heads(),
        (at, distance, shift) in (0_u32..200, 0_u32..200, 0_u32..200),
    ) {
        let product = |at| dot(&rotated(&query, at + distance, 1.0), &rotated(&key, at, 1.0));
        let bound = 1e-4 * (dot(&query, &query) * dot(&key, &key)).sqrt() + 1e-9;
        prop_assert!((product(at) - product(at + shift)).abs() <= bound);
    }
}

//! Summaries of random cartridges against an obvious twin.

use proptest::prelude::*;

use super::*;

/// A cartridge, and how its file is written.
#[derive(Clone, Debug)]
struct Case {
    /// Layers, KV heads, tokens, half of head_dim.
    sizes: [usize; 4],
    block_size: usize,
    element: Element,
    layout: PairLayout,
    naming: Naming,
    has_batch: bool,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Naming {
    Trained,
    /// So many tokens first, at most all.
    Frozen(usize),
    Pairs,
    Layers,
}

fn case() -> impl Strategy<Value = Case> {
    let naming = prop_oneof![
        Just(Naming::Trained),
        (0_usize..40).prop_map(Naming::Frozen),
        Just(Naming::Pairs),
        Just(Naming::Layers),
    ];
    let element = prop_oneof![Just(Element::F16), Just(Element::Bf16), Just(Element::F32)];
    let layout = prop_oneof![Just(PairLayout::Half), Just(PairLayout::Interleaved)];
    let sizes = [1_usize..4, 1..4, 1..40, 1..20];
    (
        sizes,
        1_usize..20,
        element,
        layout,
        naming,
        any::<(bool, u64)>(),
    )
        .prop_map(
            |(sizes, block_size, element, layout, naming, (has_batch, seed))| Case {
                sizes,
                block_size,
                element,
                layout,
                naming,
                has_batch,
                seed,
            },
        )
}

/// SplitMix64 to [-8, 8), in the element's precision.
fn random(state: &mut u64, element: Element) -> f32 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut word = *state;
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let value = (word >> 40) as f32 / 1_048_576.0 - 8.0;
    if element == Element::F16 {
        f16::from_f32(value).to_f32()
    } else if element == Element::Bf16 {
        bf16::from_f32(value).to_f32()
    } else {
        value
    }
}

/// Keys `[layers][kv_heads][tokens][head_dim]`.
fn keys(case: &Case) -> Vec<Vec<Vec<Vec<f32>>>> {
    let [layers, heads, tokens, half] = case.sizes;
    let mut state = case.seed;
    let mut key = || {
        (0..2 * half)
            .map(|_| random(&mut state, case.element))
            .collect()
    };
    let mut head = || (0..tokens).map(|_| key()).collect();
    let mut layer = || (0..heads).map(|_| head()).collect();
    (0..layers).map(|_| layer()).collect()
}

fn cartridge(case: &Case, keys: &[Vec<Vec<Vec<f32>>>]) -> Vec<u8> {
    let [_, heads, tokens, half] = case.sizes;
    let mut tensors = Vec::new();
    let mut add = |name: String, layer: &[Vec<Vec<f32>>], from: usize, to: usize| {
        let mut shape = vec![heads, to - from, 2 * half];
        if case.has_batch {
            shape.insert(0, 1);
        }
        let values = layer.iter().flat_map(|head| head[from..to].concat());
        tensors.push((name, shape, values.collect::<Vec<f32>>()));
    };
    for (index, layer) in keys.iter().enumerate() {
        match case.naming {
            Naming::Trained => add(format!("trainable_keys.{index}"), layer, 0, tokens),
            Naming::Frozen(frozen) => {
                let frozen = frozen.min(tokens);
                add(format!("trainable_keys.{index}"), layer, frozen, tokens);
                add(format!("frozen_keys.{index}"), layer, 0, frozen);
            }
            Naming::Pairs => {
                add(format!("{index}.0"), layer, 0, tokens);
                add(format!("{index}.1"), layer, 0, 1);
            }
            Naming::Layers => add(format!("layers.{index}.keys"), layer, 0, tokens),
        }
    }
    let named = tensors.iter();
    let named = named.map(|(name, shape, values)| (&**name, case.element, &**shape, &**values));
    file(&named.collect::<Vec<_>>())
}

#[expect(clippy::cast_possible_truncation, reason = "to the precision of keys")]
fn narrow(value: f64) -> f32 {
    value as f32
}

/// One number after the other, as one would write it down.
fn expected(case: &Case, keys: &[Vec<Vec<Vec<f32>>>]) -> Expected {
    let half = case.sizes[3];
    let blocks = keys
        .iter()
        .flatten()
        .flat_map(|head| head.chunks(case.block_size));
    let blocks: Vec<&[Vec<f32>]> = blocks.collect();
    let of_channels = |of: &dyn Fn(&[f32]) -> f32| -> Vec<f32> {
        let channel = |block: &&[Vec<f32>], channel: usize| {
            of(&block.iter().map(|key| key[channel]).collect::<Vec<_>>())
        };
        let channels = blocks.iter();
        channels
            .flat_map(|block| (0..2 * half).map(move |at| channel(block, at)))
            .collect()
    };
    let mean = |values: &[f32]| {
        let sum: f64 = values.iter().rev().copied().map(f64::from).sum();
        narrow(sum / values.len() as f64)
    };
    let magnitude = |block: &[Vec<f32>], band: usize| {
        let (x, y) = match case.layout {
            PairLayout::Half => (band, band + half),
            PairLayout::Interleaved => (2 * band, 2 * band + 1),
        };
        let length = |key: &Vec<f32>| narrow(f64::from(key[x]).hypot(f64::from(key[y])));
        mean(&block.iter().map(length).collect::<Vec<_>>())
    };
    Expected {
        means: of_channels(&mean),
        extremes: Some([
            of_channels(&|values| values.iter().copied().fold(f32::INFINITY, f32::min)),
            of_channels(&|values| values.iter().copied().fold(f32::NEG_INFINITY, f32::max)),
        ]),
        magnitudes: Some(
            blocks
                .iter()
                .flat_map(|block| (0..half).map(move |band| magnitude(block, band)))
                .collect(),
        ),
    }
}

const CASES: u32 = 48;

#[test]
fn cartridges_make_what_the_twin_makes_of_them() {
    let fixture = Fixture::new();
    proptest!(ProptestConfig::with_cases(CASES), |(case in case())| {
        let keys = keys(&case);
        let [layers, heads, tokens, half] = case.sizes;
        let frame = KeyFrame {
            layout: case.layout,
            ..frame(
                u32::try_from(layers).unwrap(),
                u16::try_from(2 * half).unwrap(),
                u32::try_from(case.block_size).unwrap(),
            )
        };
        let put = fixture.put("p", &frame, &cartridge(&case, &keys)).unwrap();
        let shape = &put.summary.shape;
        prop_assert_eq!(shape.blocks as usize, tokens.div_ceil(case.block_size));
        prop_assert_eq!(shape.kv_heads as usize, heads);
        check(&fixture.store, &put.summary, &expected(&case, &keys));
    });
}

/// The numbers of a summary, given in any type.
#[derive(Clone, Debug)]
struct Given {
    /// Layers, KV heads, blocks, half of head_dim.
    sizes: [usize; 4],
    /// Of the means, the extremes and the magnitudes.
    elements: [Element; 3],
    has_extremes: bool,
    has_magnitudes: bool,
    seed: u64,
}

fn given() -> impl Strategy<Value = Given> {
    let types = [Element::F16, Element::Bf16, Element::F32, Element::F64];
    let element = move || (0..types.len()).prop_map(move |index| types[index]);
    let sizes = [1_usize..4, 1..4, 1..9, 1..9];
    let elements = [element(), element(), element()];
    (sizes, elements, any::<(bool, bool, u64)>()).prop_map(
        |(sizes, elements, (has_extremes, has_magnitudes, seed))| Given {
            sizes,
            elements,
            has_extremes,
            has_magnitudes,
            seed,
        },
    )
}

#[test]
fn summaries_keep_the_numbers_they_are_given() {
    let fixture = Fixture::new();
    proptest!(ProptestConfig::with_cases(CASES), |(given in given())| {
        let [layers, heads, blocks, half] = given.sizes;
        let [means_type, extremes_type, magnitudes_type] = given.elements;
        let (shape, narrow) = ([layers, heads, blocks, 2 * half], [layers, heads, blocks, half]);
        let count = shape.iter().product::<usize>();
        let mut state = given.seed;
        let mut numbers = |count: usize, element| -> Vec<f32> {
            (0..count).map(|_| random(&mut state, element)).collect()
        };
        let means = numbers(count, means_type);
        let min: Vec<f32> = means.iter().map(|mean| mean.floor() - 1.0).collect();
        let max: Vec<f32> = means.iter().map(|mean| mean.ceil() + 1.0).collect();
        let mut magnitudes = numbers(count / 2, magnitudes_type);
        magnitudes.iter_mut().for_each(|magnitude| *magnitude = magnitude.abs());
        let mut tensors: Vec<Named<'_>> = vec![("key_means", means_type, &shape, &means)];
        if given.has_extremes {
            tensors.push(("key_min", extremes_type, &shape, &min));
            tensors.push(("key_max", extremes_type, &shape, &max));
        }
        if given.has_magnitudes {
            tensors.push(("key_magnitudes", magnitudes_type, &narrow, &magnitudes));
        }
        let (layers, head_dim) = (u32::try_from(layers).unwrap(), u16::try_from(2 * half).unwrap());
        let put = fixture.put("p", &frame(layers, head_dim, 16), &file(&tensors)).unwrap();
        check(&fixture.store, &put.summary, &Expected {
            means,
            extremes: given.has_extremes.then_some([min, max]),
            magnitudes: given.has_magnitudes.then_some(magnitudes),
        });
    });
}

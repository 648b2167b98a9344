//! Blocks of sizes that engines do not use, unless somebody says that one does.

use super::*;
use crate::view::Outcome;

/// Two blocks of a prompt that has `size` tokens a block, and a short last one.
fn pages(size: u32) -> [Event<'static>; 3] {
    let page = |number: u32, tokens: u32| Stored {
        hashes: hashes(&[number.into()]),
        parent: (number > 1).then(|| EngineHash(u64::from(number) - 1)),
        tokens: ((number - 1) * size..).take(tokens as usize).collect(),
        block_size: tokens,
        ..stored(0..16)
    };
    [page(1, size), page(2, size), page(3, size - 1)].map(store)
}

/// Tokens of the prompt on the device, where the source's blocks are said to have `said` tokens.
fn check(size: u32, said: Option<u32>, want: u32) -> Engine {
    let mut engine = Engine::new();
    if let Some(said) = said {
        engine.view.set_block_size(engine.source, said);
    }
    // Also in its next life.
    engine.view.reset(engine.source, &mut engine.changes);
    for page in pages(size) {
        engine.send(&[page]);
    }
    let shape = Shape {
        block_size: size,
        lookahead: 0,
    };
    let tokens: Vec<u32> = (0..3 * size).collect();
    assert_eq!(engine.finds(&prompt(&tokens), shape), (want, 0), "{size}");
    engine
}

#[test]
fn blocks_of_an_odd_size_count_where_it_is_said() {
    for size in [3, 12, 20, 100] {
        check(size, Some(size), 2 * size);
        for said in [None, Some(16)] {
            let engine = check(size, said, 0);
            // One page less has a size that is used where one more has not.
            let odd = engine.counts.get(Outcome::OddSize);
            assert!(odd >= 2, "{size}: {odd}");
            assert_eq!(engine.counts.get(Outcome::Stored), 0, "{size}");
        }
    }
    check(16, Some(12), 32);
}

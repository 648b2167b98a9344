//! Sources come, go and begin anew; nothing grows without end.

use super::*;
use crate::view::{ORPHAN_BLOCKS_MAX, Outcome, SOURCES_MAX};

fn all() -> [Event<'static>; 1] {
    [Event::Stored(stored(0..32))]
}

#[test]
fn sources_are_told_apart() {
    let engine = Engine::after(&[&all()]);
    let view = &engine.view;
    let other = view.add(MODEL).expect("room");
    view.apply(other, &[Event::Stored(stored(0..16))], &mut Vec::new());
    let tokens: Vec<u32> = (0..32).collect();
    let found = view.matches(SHAPE, &chain(&prompt(&tokens), SHAPE));
    let found: Vec<_> = found
        .iter()
        .map(|found| (found.source, found.device_blocks))
        .collect();
    assert_eq!(found, [(engine.source, 2), (other, 1)]);
}

#[test]
fn namespaces_and_shapes_are_told_apart() {
    let engine = Engine::after(&[&all()]);
    let tokens: Vec<u32> = (0..32).collect();
    let elsewhere = Prompt {
        namespace: Namespace(1),
        ..prompt(&tokens)
    };
    assert_eq!(engine.finds(&elsewhere, SHAPE), (0, 0));
    assert_eq!(
        engine.finds(
            &prompt(&tokens),
            Shape {
                block_size: 32,
                lookahead: 0
            }
        ),
        (0, 0)
    );
    assert_eq!(engine.view.shapes(MODEL), [SHAPE]);
    assert_eq!(engine.view.shapes(Namespace(1)), []);
}

#[test]
fn a_source_that_begins_anew_is_empty_and_knows_no_groups() {
    let mut engine = Engine::after(&[&all()]);
    engine
        .view
        .reset(engine.source, &mut engine.changes)
        .expect("it is followed");
    assert_eq!(engine.finds_tokens(0..32), (0, 0));
    assert_eq!(engine.changes.last(), Some(&Change::Cleared));
    assert_eq!(
        (
            engine.view.blocks(engine.source),
            engine.view.index.blocks()
        ),
        (0, 0)
    );
    assert_eq!(engine.view.shapes(MODEL), []);
    engine.send(&all());
    assert_eq!(engine.finds_tokens(0..32), (32, 0));
}

#[test]
fn late_events_of_a_source_that_is_gone_change_nothing() {
    let engine = Engine::after(&[&all()]);
    let (view, mut changes) = (&engine.view, Vec::new());
    let late = view.source(engine.source).expect("it is followed");
    view.remove(engine.source, &mut changes)
        .expect("it is followed");
    assert_eq!(changes, [Change::Cleared]);
    let applied = view.write_to(&late, &mut changes, |late, around| {
        late.apply(&all(), around);
    });
    assert_eq!((applied, view.index.blocks()), (None, 0));
    let next = view.add(MODEL).expect("room");
    assert_ne!(next, engine.source);
    assert_eq!(view.apply(engine.source, &all(), &mut changes), None);
    assert_eq!(view.remove(engine.source, &mut changes), None);
    assert_eq!(engine.finds_tokens(0..32), (0, 0));
}

#[test]
fn sources_have_a_limit() {
    let view = View::default();
    assert!((0..SOURCES_MAX).all(|_| view.add(MODEL).is_some()));
    assert_eq!(view.add(MODEL), None);
}

#[test]
fn blocks_of_all_sources_have_a_limit_that_leaves_room_for_one_more() {
    let view = View::new(12);
    let long = [store(stored(0..20 * SIZE))];
    let hold = || {
        let source = view.add(MODEL).expect("room");
        let counts = view.apply(source, &long, &mut Vec::new());
        let full = counts.expect("it is followed").get(Outcome::Full);
        (source, view.blocks(source), full)
    };
    let held = [hold(), hold(), hold()];
    assert_eq!(
        held.map(|(_, blocks, full)| (blocks, full)),
        [(6, 14), (3, 17), (1, 19)]
    );
    let tokens: Vec<u32> = (0..20 * SIZE).collect();
    let found = view.matches(SHAPE, &chain(&prompt(&tokens), SHAPE));
    assert!(found.iter().map(|found| found.device_blocks).eq([6, 3, 1]));
    let first = held[0].0;
    view.apply(first, &long, &mut Vec::new());
    assert_eq!(view.blocks(first), 6, "who has most gets nothing more");
    view.remove(first, &mut Vec::new());
    assert_eq!(hold().1, 4);
}

#[test]
fn blocks_that_wait_have_a_limit_and_the_oldest_go_first() {
    let mut engine = Engine::new();
    let waiting = u32::try_from(ORPHAN_BLOCKS_MAX).expect("small") + 1;
    for block in 1..=waiting {
        engine.send(&[Event::Stored(stored(block * SIZE..(block + 1) * SIZE))]);
    }
    assert_eq!(engine.counts.get(Outcome::OrphanDropped), 1);
    engine.send(&[Event::Stored(stored(0..16))]);
    assert_eq!(
        engine.finds_tokens(0..48),
        (16, 0),
        "the one after it was dropped"
    );
    engine.send(&[Event::Stored(stored(16..32))]);
    assert_eq!(
        engine.finds_tokens(0..(waiting + 1) * SIZE),
        ((waiting + 1) * SIZE, 0)
    );
    assert_eq!(
        engine.counts.get(Outcome::OrphanHealed),
        u64::from(waiting) - 1
    );
}

#[test]
fn nothing_stays_of_what_comes_and_goes() {
    let mut engine = Engine::new();
    for round in 0..64 {
        let renamed = |mut stored: Stored<'static>| {
            stored.tokens[0] = round;
            Event::Stored(stored)
        };
        let names: Vec<u64> = (1..=50).collect();
        engine.send(&[renamed(stored(0..800))]);
        engine.send(&[Event::Removed(removed(&names))]);
        assert_eq!(engine.view.index.blocks(), 0);
    }
}

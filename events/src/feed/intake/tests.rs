//! What is told of batches that come in, and in what order.

use std::cell::{Cell, RefCell};

use super::*;
use crate::event::{Batch, EngineHash, Event, Kind, Medium, Removed, Stored};
use crate::feed::{Frame, track::ASKS_MAX};
use crate::wire::{Form, encode};

const MODEL: Namespace = Namespace(7);

/// What was told: changes as their number, clears as none.
#[derive(Clone, Debug, PartialEq)]
enum Told {
    Follows(u32),
    Changes(usize),
    Cleared,
    State(State, u64),
    Forgets,
}

use Told::{Changes, Cleared, Follows, Forgets};

const EXACT: State = State::Exact;
const DEGRADED: State = State::Degraded;
const STALE: State = State::Stale;

fn note(news: News<'_>) -> Told {
    match news {
        News::Follows { rank, .. } => Follows(rank),
        News::Changes {
            changes: [Change::Cleared],
            ..
        } => Cleared,
        News::Changes { changes, .. } => Changes(changes.len()),
        News::State { state, epoch } => Told::State(state, epoch),
        News::Failed { .. } => panic!("nothing fails here"),
        News::Forgets { .. } => Forgets,
    }
}

/// Hands in the inputs, each at once after the other; gives what was told, what is wanted, and
/// how far it is.
fn check(has_replay: bool, inputs: Vec<Input<Bytes>>, want: &[Told]) -> (Vec<Want>, Progress) {
    let told = RefCell::new(Vec::new());
    let shared = Shared::default();
    let view = Arc::clone(&shared.view);
    let mut intake = Intake::new(engine(has_replay), &shared, |news: News<'_>| {
        told.borrow_mut().push(note(news));
        Reply::Heard
    });
    let wants = inputs
        .into_iter()
        .filter_map(|input| intake.step(input, 0))
        .collect();
    // An idle engine is followed all the same.
    assert_eq!(told.borrow_mut().remove(0), Follows(3));
    assert_eq!(*told.borrow(), want);
    let progress = intake.progress();
    intake.forget();
    let told = told.into_inner();
    let follows = told.iter().filter(|told| matches!(told, Follows(_)));
    let forgets = told.iter().filter(|told| **told == Forgets);
    assert_eq!(forgets.count(), follows.count() + 1);
    assert_eq!(view.shapes(MODEL), []);
    (wants, progress)
}

fn engine(has_replay: bool) -> Engine {
    Engine {
        namespace: MODEL,
        block_size: None,
        rank: 3,
        has_replay,
    }
}

fn live(sequence: u64, payload: &[u8]) -> Input<Bytes> {
    Input::Live(Frame::new(sequence, Bytes::copy_from_slice(payload)))
}

fn batch(rank: Option<u32>, events: Vec<Event<'_>>) -> Vec<u8> {
    let batch = Batch {
        rank,
        events,
        ..Batch::default()
    };
    encode(&batch, Form::Map)
}

/// One block.
fn stored() -> Vec<u8> {
    batch(None, vec![block()])
}

fn block() -> Event<'static> {
    Event::Stored(Stored {
        hashes: vec![EngineHash(1)],
        parent: None,
        tokens: (0..16).collect(),
        bigram_end: None,
        block_size: 16,
        medium: Medium::Device,
        adapter: None,
        salt: None,
        extra: Vec::new(),
        group: None,
        kind: Kind::Absent,
        lookahead: Vec::new(),
    })
}

fn removed() -> Vec<u8> {
    let removed = Removed {
        hashes: vec![EngineHash(1)],
        medium: Medium::Device,
        group: None,
    };
    batch(None, vec![Event::Removed(removed)])
}

/// A time, and one event: a name with one value.
fn odd(name: &str) -> Vec<u8> {
    let length = 0xa0 + u8::try_from(name.len()).unwrap();
    [&[0x92, 1, 0x91, 0x92, length], name.as_bytes(), &[0xc0]].concat()
}

#[test]
fn what_comes_is_told_in_order() {
    let more = live(1, &batch(Some(0), vec![block()]));
    let (wants, progress) = check(
        false,
        vec![
            Input::Connected,
            live(0, &stored()),
            more,
            live(2, &removed()),
        ],
        &[
            Told::State(DEGRADED, 0),
            Changes(1),
            Told::State(EXACT, 0),
            Follows(0),
            Changes(1),
            Changes(1),
        ],
    );
    assert_eq!((wants, progress.applied), (vec![], Some((0, 2))));
    let Met { batches, gaps, .. } = progress.met;
    assert_eq!((batches, gaps), (3, 0));
}

#[test]
fn a_gap_begins_an_epoch_or_is_asked_for() {
    let inputs = || vec![Input::Connected, live(0, &stored()), live(4, &stored())];
    let (wants, progress) = check(
        false,
        inputs(),
        &[
            Told::State(DEGRADED, 0),
            Changes(1),
            Told::State(EXACT, 0),
            Cleared,
            Changes(1),
            Told::State(EXACT, 1),
        ],
    );
    assert_eq!((wants, progress.met.gaps), (vec![], 1));
    let (wants, _) = check(true, inputs(), &[Told::State(DEGRADED, 0)]);
    assert_eq!(wants, [Want::Ask { ask: 1, from: 0 }]);
}

#[test]
fn the_end_of_a_connection_is_told_before_what_it_voids() {
    check(
        false,
        vec![Input::Connected, live(0, &stored()), Input::Lost],
        &[
            Told::State(DEGRADED, 0),
            Changes(1),
            Told::State(EXACT, 0),
            Told::State(STALE, 1),
            Cleared,
        ],
    );
}

/// After a batch like this one nothing is exact, and it is told before its other changes are.
fn check_doubt(payload: &[u8]) -> Met {
    let inputs = vec![
        Input::Connected,
        live(0, &stored()),
        live(1, payload),
        live(2, &removed()),
        live(9, &stored()),
    ];
    let told = [
        Told::State(DEGRADED, 0),
        Changes(1),
        Told::State(EXACT, 0),
        Told::State(DEGRADED, 0),
        Changes(1),
        Cleared,
        Changes(1),
        Told::State(EXACT, 1),
    ];
    check(false, inputs, &told).1.met
}

#[test]
fn what_is_not_understood_of_a_known_type_costs_the_epoch() {
    assert_eq!(check_doubt(&odd("BlockRemoved")).malformed_events, 1);
    assert_eq!(check_doubt(&stored()[..20]).decode_errors, 1);
    assert_eq!(check_doubt(b"\xc0").decode_errors, 1);
}

#[test]
fn an_unknown_type_and_a_malformed_store_cost_nothing_else() {
    let inputs = ["BlockMoved", "BlockStored"].map(|name| live(1, &odd(name)));
    let met = inputs.map(|odd| {
        let inputs = vec![Input::Connected, live(0, &stored()), odd];
        let told = [Told::State(DEGRADED, 0), Changes(1), Told::State(EXACT, 0)];
        check(false, inputs, &told).1.met
    });
    assert_eq!(met[0].unknown_events, 1);
    assert_eq!(met[1].malformed_events, 1);
}

#[test]
fn a_doubt_ends_with_a_clear_of_all_that_there_is() {
    let of_rank = |rank| {
        let clear = batch(Some(3), vec![Event::Cleared]);
        vec![
            Input::Connected,
            live(0, &stored()),
            live(1, &batch(rank, vec![block()])),
            live(2, &odd("BlockRemoved")),
            live(3, &clear),
        ]
    };
    let told = [
        Told::State(DEGRADED, 0),
        Changes(1),
        Told::State(EXACT, 0),
        Told::State(DEGRADED, 0),
        Cleared,
        Told::State(EXACT, 0),
    ];
    check(false, of_rank(Some(3)), &told);
    // What was not understood may have been the other rank's.
    let told = [&told[..3], &[Follows(4), Changes(1)], &told[3..5]].concat();
    check(false, of_rank(Some(4)), &told);
}

#[test]
fn a_replay_that_is_another_engines_is_told_once() {
    let mut inputs = vec![Input::Connected];
    for ask in 1..8 {
        let frames = (0..9).map(|number| Frame::new(number, Bytes::from(removed())));
        inputs.extend(frames.map(|frame| Input::Replayed { ask, frame }));
        inputs.extend([Input::Ended { ask }, live(ask.into(), &stored())]);
    }
    let failures = RefCell::new(Vec::new());
    let mut intake = Intake::new(engine(true), &Shared::default(), |news: News<'_>| {
        if let News::Failed { socket, error } = news {
            failures.borrow_mut().push((socket, error.to_string()));
        }
        Reply::Heard
    });
    for input in inputs {
        intake.step(input, 0);
    }
    let [(Socket::Replay, error)] = &failures.borrow()[..] else {
        panic!("{failures:?}");
    };
    assert!(error.contains("another engine"));
}

#[test]
fn a_doubt_ends_with_the_epoch_it_is_about() {
    // Both wait for a replay that never comes, and are let go at once.
    let mut inputs = vec![
        Input::Connected,
        live(0, &odd("BlockRemoved")),
        live(5, &stored()),
    ];
    for ask in 1..=ASKS_MAX {
        inputs.extend([Input::Failed { ask }, Input::Tick]);
    }
    let hear = |_: News<'_>| Reply::Heard;
    let mut intake = Intake::new(engine(true), &Shared::default(), hear);
    for (at, input) in inputs.into_iter().enumerate() {
        intake.step(input, at as u64 * 1_000);
    }
    let progress = intake.progress();
    assert_eq!((progress.state, progress.epoch), (EXACT, 1));
    assert_eq!(progress.met.malformed_events, 1);
}

#[test]
fn a_rank_that_another_source_brings_is_left_to_it_and_costs_the_epoch() {
    let taken = Cell::new(Some(4));
    let shared = Shared::default();
    let mut intake = Intake::new(engine(false), &shared, |news| match news {
        News::Follows { rank, .. } if taken.get() == Some(rank) => Reply::NotYours,
        News::Follows { .. }
        | News::Changes { .. }
        | News::State { .. }
        | News::Failed { .. }
        | News::Forgets { .. } => Reply::Heard,
    });
    let mut standing = |input| {
        intake.step(input, 0);
        let progress = intake.progress();
        let refused = progress.met.refused_batches;
        (progress.state, refused, intake.not_ours())
    };
    let of_rank = |sequence, rank| live(sequence, &batch(Some(rank), vec![block()]));
    standing(Input::Connected);
    assert_eq!(standing(of_rank(0, 3)), (EXACT, 0, None));
    // More often than the view has places for sources.
    for number in 1..=5_000 {
        assert_eq!(standing(of_rank(number, 4)), (DEGRADED, number, Some(4)));
    }
    assert_eq!(standing(of_rank(5_001, 3)), (DEGRADED, 5_000, None));
    taken.set(None);
    assert_eq!(standing(of_rank(5_002, 4)), (DEGRADED, 5_000, None));
    assert_eq!(standing(of_rank(9_000, 4)), (EXACT, 5_000, None));

    let not_ours = |_: News<'_>| Reply::NotYours;
    let intake = Intake::new(engine(false), &shared, not_ours);
    assert_eq!(intake.not_ours(), Some(3), "before anything came");
}

#[test]
fn ranks_have_a_limit() {
    let mut inputs = vec![Input::Connected];
    let ranks = u32::try_from(RANKS_MAX).unwrap();
    inputs.extend((0..=ranks).map(|rank| live(rank.into(), &batch(Some(rank), vec![block()]))));
    let mut told = vec![
        Told::State(DEGRADED, 0),
        Cleared,
        Forgets,
        Follows(0),
        Changes(1),
    ];
    told.push(Told::State(EXACT, 0));
    told.extend((1..ranks).flat_map(|rank| [Follows(rank), Changes(1)]));
    let (_, progress) = check(false, inputs, &told);
    assert_eq!(progress.met.refused_batches, 1);
}

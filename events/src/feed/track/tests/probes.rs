//! Replays beside an exact run: they verify it, and must hold nothing up.

use super::*;

/// Exact up to 1, and silent for so long that a replay is asked for.
fn probed() -> Vec<(u64, Input<Payload>)> {
    let silent = (SILENCE_MS_MAX, Input::Tick);
    vec![CONNECTED, ended(1), live(0), live(1), silent]
}

fn at(ms: u64, (_, input): (u64, Input<Payload>)) -> (u64, Input<Payload>) {
    (SILENCE_MS_MAX + ms, input)
}

#[test]
fn what_continues_an_exact_run_waits_for_no_replay() {
    use Told::{Apply, Ask};
    let applied = [Ask(0), Apply(1, 0), Apply(1, 1), Ask(1), Apply(1, 2)];
    let inputs = [probed(), vec![at(1, live(2))]].concat();
    let (track, told) = check(true, inputs.clone());
    assert_eq!(told, applied);
    assert_eq!(track.state(), State::Exact);
    // The replay was made before or after that: both verify what was applied.
    for replay in [vec![1], vec![1, 2], vec![2]] {
        let replay = replay
            .into_iter()
            .map(|number| at(2, replayed(2, 1, number)));
        let inputs = inputs.iter().cloned().chain(replay);
        let (track, told) = check(
            true,
            inputs.chain([at(3, ended(2)), at(4, live(3))]).collect(),
        );
        assert_eq!(told[..5], applied);
        assert_eq!(told[5..], [Apply(1, 3)]);
        assert_eq!(track.state(), State::Exact);
    }
    // What does not continue it is not passed over in silence.
    let (track, _) = check(true, [inputs, vec![at(2, live(4))]].concat());
    assert_eq!(track.state(), State::Degraded);
}

#[test]
fn a_replay_that_brings_nothing_does_not_go_on() {
    let from_long_ago = at(0, replayed(2, 1, 0));
    let drip = (1..20).map(|second| at(second * 1_000, from_long_ago.clone()));
    let drip = drip.flat_map(|input| [(input.0, Input::Tick), input]);
    let inputs = probed().into_iter().chain(drip).collect();
    let (_, told) = check(true, inputs);
    assert!(
        told.iter()
            .filter(|told| matches!(told, Told::Ask(_)))
            .count()
            > 2
    );
}

#[test]
fn a_replay_is_over_where_it_reaches_what_waits() {
    use Told::{Apply, Ask};
    // It may also pause before that.
    for (last, then) in [(3, None), (2, Some((REPLAY_PAUSE_MS_MAX, Input::Tick)))] {
        let mut inputs = vec![CONNECTED, live(3), live(4)];
        inputs.extend((0..=last).map(|number| replayed(1, 1, number)));
        inputs.extend(then);
        let (track, told) = check(true, inputs);
        assert_eq!(told[0], Ask(0));
        let applied = (0..=4).map(|number| Apply(1, number));
        assert!(
            told[1..].iter().eq(&applied.collect::<Vec<_>>()),
            "{told:?}"
        );
        assert_eq!(track.state(), State::Exact);
    }
}

#[test]
fn another_engines_replay_is_believed_a_few_times_at_most() {
    use Told::Ask;
    let mut inputs = vec![CONNECTED];
    for ask in 1..20 {
        inputs.extend((0..10).map(|number| replayed(ask, 2, number)));
        inputs.push(ended(ask));
        inputs.push(live(u64::from(ask)));
    }
    let (track, told) = check(true, inputs);
    let asks = told.iter().filter(|told| matches!(told, Ask(_))).count();
    assert_eq!(asks, CONTRADICTIONS_MAX as usize);
    assert!(!track.believes_replay());
    assert_eq!(
        (track.state(), track.applied()),
        (State::Exact, Some((1, 19)))
    );
    // What agrees with it makes up for what did not.
    let mut inputs = vec![CONNECTED, replayed(1, 2, 0), ended(1), live(0)];
    inputs.extend([replayed(2, 1, 0), replayed(2, 1, 1), ended(2), live(1)]);
    let (track, _) = check(true, inputs);
    assert_eq!(track.contradictions, 0);
}

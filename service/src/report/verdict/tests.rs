//! Each boundary of the rule: at the limit it passes, one step beyond it does not.

use super::*;

// Everything passes, with room.
fn good() -> Measured {
    Measured {
        lines: 100_000,
        damaged: 0,
        lookups: 50_000,
        period_ms: 24 * 3_600_000,
        failed: 0,
        p99_us: 200,
        prompt_tokens: 100_000_000,
        exact_lookups: 20_000,
        exact_tokens: 30_000_000,
        verified_lookups: 10_000,
        verified_tokens: 20_000_000,
        loads: 5_000,
        loads_failed: 0,
        facts_compared: 5_000,
        facts_differ: 10,
        is_materializing: true,
    }
}

fn check(change: impl FnOnce(&mut Measured), expected: Step) {
    let mut measured = good();
    change(&mut measured);
    assert_eq!(judge(&measured).step, expected, "{measured:?}");
}

#[test]
fn nothing_is_recommended_on_too_little_data() {
    check(|m| *m = Measured::default(), Step::StayInDiscovery);
    check(|m| m.period_ms = PERIOD_MS_MIN, Step::TryVerified);
    check(|m| m.period_ms = PERIOD_MS_MIN - 1, Step::StayInDiscovery);
    let with_lookups = |lookups| {
        move |m: &mut Measured| {
            m.lookups = lookups;
            m.exact_lookups = lookups / 2;
            m.verified_lookups = lookups / 2;
        }
    };
    check(with_lookups(LOOKUPS_MIN), Step::TryVerified);
    check(with_lookups(LOOKUPS_MIN - 1), Step::StayInDiscovery);
    let few = judge(&Measured {
        lookups: 10,
        ..good()
    });
    assert_eq!(few.why, "There is too little data to recommend anything.");
}

#[test]
fn late_failed_slow_or_damaged_stays_in_discovery() {
    check(|m| m.p99_us = P99_US_MAX, Step::TryVerified);
    check(|m| m.p99_us = P99_US_MAX + 1, Step::StayInDiscovery);
    check(|m| m.damaged = 1_000, Step::TryVerified);
    check(|m| m.damaged = 1_001, Step::StayInDiscovery);
    let (passes, fails) = boundary(50_000, |some| {
        interval(some, 50_000).unwrap().1 <= FAILED_SHARE_MAX
    });
    check(|m| m.failed = passes, Step::TryVerified);
    check(|m| m.failed = fails, Step::StayInDiscovery);
    check(
        |m| (m.loads, m.loads_failed) = (9_900, 101),
        Step::StayInDiscovery,
    );
}

#[test]
fn exact_needs_frequent_and_long_prefixes() {
    let exact_only = |m: &mut Measured| (m.verified_lookups, m.verified_tokens) = (0, 0);
    check(exact_only, Step::EnableExact);
    let at = |tokens| {
        move |m: &mut Measured| {
            exact_only(m);
            m.exact_tokens = tokens;
        }
    };
    check(at(5_000_000), Step::EnableExact);
    check(at(4_999_999), Step::StayInDiscovery);
    let (fails, passes) = boundary(50_000, |some| {
        interval(some, 50_000).unwrap().0 < EXACT_LOOKUPS_SHARE_MIN
    });
    let at = |lookups| {
        move |m: &mut Measured| {
            exact_only(m);
            m.exact_lookups = lookups;
        }
    };
    check(at(passes), Step::EnableExact);
    check(at(fails), Step::StayInDiscovery);
}

#[test]
fn verified_needs_loads_that_worked_and_texts_that_agree() {
    check(|m| m.verified_tokens = 10_000_000, Step::TryVerified);
    check(|m| m.verified_tokens = 9_999_999, Step::EnableExact);
    check(|m| m.loads = LOADS_MIN, Step::TryVerified);
    check(|m| m.loads = LOADS_MIN - 1, Step::EnableExact);
    check(
        |m| (m.facts_compared, m.facts_differ) = (FACTS_MIN, 0),
        Step::TryVerified,
    );
    check(
        |m| (m.facts_compared, m.facts_differ) = (FACTS_MIN - 1, 0),
        Step::EnableExact,
    );
    let (passes, fails) = boundary(5_000, |some| {
        interval(some, 5_000).unwrap().1 <= FACTS_DIFFER_SHARE_MAX
    });
    check(|m| m.facts_differ = passes, Step::TryVerified);
    check(|m| m.facts_differ = fails, Step::EnableExact);
    let (passes, fails) = boundary(5_000, |some| {
        interval(some, 5_000 + some).unwrap().1 <= LOADS_FAILED_SHARE_MAX
    });
    check(|m| m.loads_failed = passes, Step::TryVerified);
    // Within the base's limit still, which takes the share as it is.
    check(|m| m.loads_failed = fails, Step::EnableExact);
    let (fails, passes) = boundary(50_000, |some| {
        interval(some, 50_000).unwrap().0 < VERIFIED_LOOKUPS_SHARE_MIN
    });
    check(|m| m.verified_lookups = passes, Step::TryVerified);
    check(|m| m.verified_lookups = fails, Step::EnableExact);
}

#[test]
fn what_was_never_measured_passes_nothing() {
    check(|m| (m.loads, m.loads_failed) = (0, 0), Step::EnableExact);
    check(
        |m| (m.facts_compared, m.facts_differ) = (0, 0),
        Step::EnableExact,
    );
    let verdict = judge(&Measured::default());
    let all = verdict
        .base
        .iter()
        .chain(&verdict.exact)
        .chain(&verdict.verified);
    let passing: Vec<_> = all.filter(|it| it.passes).map(|it| it.name).collect();
    assert_eq!(passing, ["look-up p99"]);
}

#[test]
fn the_interval_is_wilsons() {
    let (low, high) = interval(10, 100).unwrap();
    // Newcombe (1998), Statistics in Medicine 17: 857-872, gives the formula; values by hand.
    assert!((low - 0.0552).abs() < 1e-4, "{low}");
    assert!((high - 0.1744).abs() < 1e-4, "{high}");
    assert_eq!(interval(0, 0), None);
    let (low, high) = (interval(0, 10).unwrap().0, interval(10, 10).unwrap().1);
    assert!(
        low.abs() < 1e-9 && (high - 1.0).abs() < 1e-9,
        "{low} {high}"
    );
}

// The last count for which `holds`, and the next.
fn boundary(most: u64, holds: impl Fn(u64) -> bool) -> (u64, u64) {
    let last = (0..most).take_while(|some| holds(*some)).last().unwrap();
    (last, last + 1)
}

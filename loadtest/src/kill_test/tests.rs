use super::*;

fn run_small(assumptions: &Assumptions, seeds: usize) -> VariantReport {
    run(assumptions, VARIANTS[0], seeds, &Random::new(7)).unwrap()
}

#[test]
fn what_asks_the_query_keeps_the_needle_and_what_does_not_is_chance() {
    let report = run_small(&Assumptions::default(), 200);
    let recall = |name: &str| report.recall[name];
    assert!(recall("kri_q") >= 0.95, "{report:?}");
    assert!(recall("quest") >= 0.95, "{report:?}");
    // 7 of 28, and 4 of the 25 between the pins: within four deviations.
    assert!((recall("random") - 0.25).abs() < 0.13, "{report:?}");
    assert!((recall("a1r2k13") - 0.16).abs() < 0.11, "{report:?}");
    assert!(
        recall("recency") < 0.01 && recall("hybrid") < 0.15,
        "{report:?}"
    );
    assert_eq!(report.policies["a1r2k13"], "A1R2K4");
}

#[test]
fn a_needle_that_nothing_attends_to_is_found_by_chance_alone() {
    let none = Assumptions {
        needle: Strength {
            retrieval_share: 0.0,
            attention_mass: 0.5,
        },
        ..Assumptions::default()
    };
    let report = run_small(&none, 200);
    for name in ["kri_q", "quest"] {
        assert!(
            (report.recall[name] - 0.25).abs() < 0.13,
            "{name}: {report:?}"
        );
    }
}

#[test]
fn more_heads_and_more_attention_find_more() {
    let report = run_small(&Assumptions::default(), 100);
    let (first, last) = (report.sweep[0], report.sweep[report.sweep.len() - 1]);
    assert!(first.kri_q < 0.6 && last.kri_q > 0.98, "{report:?}");
    assert!(first.quest < 0.9 && last.quest > 0.98, "{report:?}");
}

#[test]
fn the_same_seed_gives_the_same_recall() {
    let [one, other] = [(), ()].map(|()| run_small(&Assumptions::default(), 20));
    assert_eq!((one.recall, one.sweep), (other.recall, other.sweep));
}

/// The margin is what it takes: softmax over normal background logits gives the needle its mass.
#[test]
fn dense_reading_gives_the_needle_the_assumed_mass() {
    let assumptions = Assumptions::default();
    let blocks = 2048;
    let mut random = Random::new(5);
    let tokens = blocks * assumptions.block_tokens;
    let background: f64 = (0..tokens)
        .map(|_| f64::from(crate::score::noise::normal(&mut random)).exp())
        .sum();
    for mass in ATTENTION_MASSES {
        let needle = f64::from(assumptions.margin(blocks, mass)).exp();
        let found = needle / (needle + background);
        assert!((found - f64::from(mass)).abs() < 0.05, "{mass}: {found}");
    }
}

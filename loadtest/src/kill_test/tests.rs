//! The keys are what they are said to be, and selections find what they should.

use super::*;

fn run_small(assumptions: &Assumptions, seeds: usize, sweep: &[Strength]) -> VariantReport {
    run(assumptions, (VARIANTS[0], seeds), sweep, &Random::new(7)).unwrap()
}

/// One run for all thresholds: it is what takes the time.
#[test]
fn what_asks_the_query_keeps_the_needle_and_what_does_not_is_chance() {
    const SEEDS: usize = 40;
    // Four standard deviations of a share of the seeds.
    let near = |found: f64, share: f64| {
        (found - share).abs() < 4.0 * (share * (1.0 - share) / SEEDS as f64).sqrt()
    };
    let strength = |retrieval_share, attention_mass| Strength {
        retrieval_share,
        attention_mass,
    };
    let sweep =
        [(0.0, 0.5), (0.031_25, 0.01), (0.5, 0.9)].map(|(share, mass)| strength(share, mass));
    let report = run_small(&Assumptions::default(), SEEDS, &sweep);
    let recall = |name: &str| report.recall[name];
    assert!(recall("kri_q") >= 0.95, "{report:?}");
    assert!(recall("quest") >= 0.95, "{report:?}");
    // 7 of 28; 4 of the 25 between the pins; an old block is no recent one, one in 20 is pinned.
    assert!(near(recall("random"), 0.25), "{report:?}");
    assert!(near(recall("a1r2k13"), 0.16), "{report:?}");
    assert!(near(recall("hybrid"), 0.05), "{report:?}");
    assert!(recall("recency") < 0.01, "{report:?}");
    assert_eq!(report.policies["a1r2k13"], "A1R2K4");

    let [none, weak, strong] = [0, 1, 2].map(|point| report.sweep[point]);
    assert!(near(none.kri_q, 0.25) && near(none.quest, 0.25), "{none:?}");
    assert!(weak.kri_q < 0.6 && weak.quest < 0.6, "{weak:?}");
    assert!(strong.kri_q > 0.98 && strong.quest > 0.98, "{strong:?}");
}

#[test]
fn the_same_seed_gives_the_same_recall() {
    let [one, other] = [(), ()].map(|()| run_small(&Assumptions::default(), 2, &strengths()));
    assert_eq!((one.recall, one.sweep), (other.recall, other.sweep));
}

#[test]
fn the_table_says_that_it_is_synthetic_and_what_is_assumed() {
    let assumptions = Assumptions::default();
    let variants = vec![run_small(&assumptions, 1, &strengths())];
    let report = KillTestReport {
        synthetic: true,
        assumptions,
        variants,
    };
    let table = report.table();
    assert!(table.starts_with("Synthetic: no model runs"), "{table}");
    for part in ["in 0.25 of the heads", "keep 7 of 28", "A1R2K4", "0.03125"] {
        assert!(table.contains(part), "{part}: {table}");
    }
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

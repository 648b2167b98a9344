//! Whole fleets by chance: engines whose events are lost, repeated and cut off, donors that are
//! registered and leased meanwhile, and a model of what every cache truly holds.
//!
//! One seed decides everything: time is a counter, and nothing waits. `KVATLAS_SIMULATION_SEED`
//! plays one seed, `KVATLAS_SIMULATION_SEEDS` that many from it on, `KVATLAS_SIMULATION_STEPS` so
//! many steps of each.

#[cfg(test)]
mod cache;
#[cfg(test)]
mod check;
#[cfg(test)]
mod content;
#[cfg(test)]
mod donors;
#[cfg(test)]
mod engine;
#[cfg(test)]
mod line;
#[cfg(test)]
mod random;
#[cfg(test)]
mod service;
#[cfg(test)]
mod tally;
#[cfg(test)]
mod world;

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasher, RandomState};

    use tempfile::TempDir;

    use crate::{service, tally::Tally, world::World};

    const SEEDS: u64 = 20;
    const STEPS: u64 = 400;

    #[test]
    fn the_view_is_never_wrong_and_no_lease_names_a_block_that_is_gone() {
        let [seed, seeds, steps] = ["SEED", "SEEDS", "STEPS"].map(said);
        let steps = steps.unwrap_or(STEPS);
        let mut tally = Tally::default();
        if let Some(first) = seed {
            for seed in first..first + seeds.unwrap_or(1) {
                play(seed, steps, &mut tally);
            }
        } else {
            for seed in 0..seeds.unwrap_or(SEEDS) {
                play(seed, steps, &mut tally);
            }
            for (met, times) in tally.all() {
                assert!(times > 0, "no schedule met: {met:?}");
            }
            // Another one with every run.
            let one_more = RandomState::new().hash_one(std::process::id());
            play(one_more, steps, &mut tally);
        }
        println!("{:?}", tally.all().collect::<Vec<_>>());
    }

    fn play(seed: u64, steps: u64, tally: &mut Tally) {
        println!("KVATLAS_SIMULATION_SEED={seed} KVATLAS_SIMULATION_STEPS={steps}");
        let mut at = At(0);
        let folder = TempDir::new().unwrap();
        service::run(folder.path(), |service| {
            let mut world = World::new(service, seed);
            for step in 0..steps {
                at.0 = step;
                world.step();
                world.check();
            }
            world.settle();
            world.check();
            world.count_progress();
            world.check_end();
            tally.add(&world.tally);
        });
    }

    /// Says how far it came, where it fails.
    struct At(u64);

    impl Drop for At {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("at step {}", self.0);
            }
        }
    }

    fn said(name: &str) -> Option<u64> {
        #[expect(clippy::disallowed_methods, reason = "a test has no configuration")]
        let value = std::env::var(format!("KVATLAS_SIMULATION_{name}"));
        value.ok()?.parse().ok()
    }
}

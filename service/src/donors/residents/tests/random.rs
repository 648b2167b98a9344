//! Random schedules beside obvious models of the engines' caches: what is claimed is what is there.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ENGINES: usize = 2;
const DONORS: usize = 5;
/// Blocks of a prompt at most, each of two kinds.
const DEPTH_MAX: usize = 5;
const TAIL: usize = 7;

#[derive(Clone, Debug)]
enum Step {
    /// An engine computes a prompt: it stores what it lacks, or a copy of the last block.
    Store(usize, Vec<u8>),
    /// It removes a copy of a block, whichever it has at this place of its list.
    Remove(usize, prop::sample::Index),
    Clear(usize),
    Register {
        donor: usize,
        owner: usize,
        path: Vec<u8>,
        /// Of which blocks its names are, if it has any.
        names: Option<Vec<u8>>,
        has_tail: bool,
    },
    Unregister(usize),
    Lookup(Vec<u8>),
    /// Events may have been missed.
    Lapse(usize),
    /// The engine begins anew, with nothing in its cache.
    Restart(usize),
    Recover(usize),
    Forget(usize),
    Follow(usize, Named),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Rightly,
    Not,
    /// Another model.
    Wrongly,
}

fn step() -> impl Strategy<Value = Step> {
    let engine = || 0..ENGINES;
    let path = || prop::collection::vec(0..2_u8, 1..=DEPTH_MAX);
    let names = prop_oneof![
        2 => Just(None),
        1 => path().prop_map(Some),
        2 => Just(Some(Vec::new())),
    ];
    let register = (0..DONORS, engine(), path(), names, any::<bool>()).prop_map(
        |(donor, owner, path, names, has_tail)| {
            // Of an empty path: the right ones.
            let names = names.map(|other| match other.is_empty() {
                true => path.clone(),
                false => other.into_iter().cycle().take(path.len()).collect(),
            });
            Step::Register {
                donor,
                owner,
                path,
                names,
                has_tail,
            }
        },
    );
    let named = prop_oneof![
        4 => Just(Named::Rightly),
        1 => Just(Named::Not),
        1 => Just(Named::Wrongly),
    ];
    prop_oneof![
        10 => (engine(), path()).prop_map(|(engine, path)| Step::Store(engine, path)),
        6 => (engine(), any::<prop::sample::Index>())
            .prop_map(|(engine, at)| Step::Remove(engine, at)),
        1 => engine().prop_map(Step::Clear),
        6 => register,
        2 => (0..DONORS).prop_map(Step::Unregister),
        8 => path().prop_map(Step::Lookup),
        1 => engine().prop_map(Step::Lapse),
        1 => engine().prop_map(Step::Restart),
        3 => engine().prop_map(Step::Recover),
        1 => engine().prop_map(Step::Forget),
        2 => (engine(), named).prop_map(|(engine, named)| Step::Follow(engine, named)),
    ]
}

/// An engine's true cache.
#[derive(Clone, Debug, Default)]
struct Cache {
    /// By path: copies, and whether one was removed since it was last stored.
    blocks: BTreeMap<Vec<u8>, (u32, bool)>,
    /// How often a copy of the block was removed.
    went: BTreeMap<Vec<u8>, u64>,
    /// How often everything went, or may have.
    lost: u64,
    followed: Option<Named>,
    is_exact: bool,
}

impl Cache {
    fn is_sure(&self, path: &Path) -> bool {
        self.blocks
            .get(path)
            .is_some_and(|&(copies, in_doubt)| copies > 0 && !in_doubt)
    }

    /// Blocks of a path, from its start, that are there.
    fn live(&self, path: &Path) -> usize {
        let can_hold = self.followed.is_some_and(|named| named != Named::Wrongly);
        let there = (1..=path.len()).take_while(|&end| self.is_sure(&path[..end]));
        if can_hold { there.count() } else { 0 }
    }

    /// What a lease on a path hangs on.
    fn stand(&self, path: &Path) -> (u64, Vec<u64>) {
        let of = |end| self.went.get(&path[..end]).copied().unwrap_or(0);
        (self.lost, (1..=path.len()).map(of).collect())
    }
}

#[derive(Clone)]
struct Registered {
    donor: Arc<Donor>,
    owner: usize,
    path: Vec<u8>,
    names: Option<Vec<u8>>,
}

struct Leased {
    answer: Arc<Answer>,
    of: Registered,
    /// Blocks that were lent.
    lent: usize,
    stand: (u64, Vec<u64>),
}

struct Pair {
    world: World,
    caches: Vec<Cache>,
    donors: BTreeMap<usize, Registered>,
    leased: Vec<Leased>,
}

impl Pair {
    fn take(&mut self, step: Step) {
        match step {
            Step::Store(engine, path) => self.store(engine, &path),
            Step::Remove(engine, at) => self.remove(engine, at),
            Step::Clear(engine) => {
                let cache = &mut self.caches[engine];
                cache.blocks.clear();
                cache.lost += 1;
                self.world.send(engine, &[Event::Cleared]);
            }
            Step::Register {
                donor,
                owner,
                path,
                names,
                has_tail,
            } => self.register(donor, (owner, path), names, has_tail),
            Step::Unregister(donor) => {
                let gone = self.donors.remove(&donor).is_some();
                let found = self.world.catalog.unpublish(&self.world.shard, &id(donor));
                assert_eq!(found.is_some(), gone);
            }
            Step::Lookup(path) => self.look_up(&path),
            Step::Lapse(engine) => {
                self.world.set_exact(engine, false);
                self.caches[engine].is_exact = false;
                self.caches[engine].lost += 1;
            }
            Step::Restart(engine) => {
                self.take(Step::Lapse(engine));
                self.caches[engine].blocks.clear();
                self.world.reset(engine);
            }
            Step::Recover(engine) => {
                self.world.set_exact(engine, true);
                self.caches[engine].is_exact = self.caches[engine].followed.is_some();
            }
            Step::Forget(engine) => {
                self.take(Step::Lapse(engine));
                self.world.forget(engine);
                self.caches[engine].blocks.clear();
                self.caches[engine].followed = None;
            }
            Step::Follow(engine, named) => {
                self.take(Step::Forget(engine));
                let mut other = namespace();
                other.model_revision = "another".into();
                match named {
                    Named::Rightly => self.world.follow(engine, Some(&namespace())),
                    Named::Not => self.world.follow(engine, None),
                    Named::Wrongly => self.world.follow(engine, Some(&other)),
                }
                self.caches[engine].followed = Some(named);
            }
        }
        self.check();
    }

    fn store(&mut self, engine: usize, path: &Path) {
        let cache = &mut self.caches[engine];
        let is_there = |end: &usize| cache.blocks.get(&path[..*end]).is_some_and(|it| it.0 > 0);
        let have = (1..=path.len()).take_while(is_there).count();
        let from = have.min(path.len() - 1);
        for end in from + 1..=path.len() {
            let block = cache.blocks.entry(path[..end].to_vec()).or_default();
            *block = (block.0 + 1, false);
        }
        self.world.send(engine, &[stored(engine, path, from)]);
    }

    fn remove(&mut self, engine: usize, at: prop::sample::Index) {
        let cache = &mut self.caches[engine];
        if cache.blocks.is_empty() {
            return;
        }
        let path = cache
            .blocks
            .keys()
            .nth(at.index(cache.blocks.len()))
            .unwrap()
            .clone();
        let block = cache.blocks.get_mut(&path).unwrap();
        *block = (block.0 - 1, true);
        if block.0 == 0 {
            cache.blocks.remove(&path);
        }
        *cache.went.entry(path.clone()).or_default() += 1;
        self.world.send(engine, &[removed(engine, &path)]);
    }

    fn register(
        &mut self,
        donor: usize,
        (owner, path): (usize, Vec<u8>),
        names: Option<Vec<u8>>,
        has_tail: bool,
    ) {
        let mut captured = tokens(&path);
        captured.extend((0..TAIL).filter(|_| has_tail).map(|_| 60_000));
        let new = New {
            id: &id(donor),
            owner,
            captured,
            names: names
                .as_deref()
                .map_or_else(Vec::new, |path| super::names(owner, path)),
            medium: Medium::Device,
        };
        let donor_now = self.world.register(new);
        let registered = Registered {
            donor: donor_now,
            owner,
            path,
            names,
        };
        self.donors.insert(donor, registered);
    }

    fn look_up(&mut self, target: &Path) {
        let answer = self.world.find(&tokens(target));
        // What the best donor has of the target from its start, as far as it is there.
        let offers = self.donors.values().filter_map(|it| {
            let is_right = it.names.as_ref().is_none_or(|names| *names == it.path);
            let cache = &self.caches[it.owner];
            (is_right && cache.is_exact).then(|| cache.live(&it.path).min(common(&it.path, target)))
        });
        let best = offers.max().unwrap_or(0);
        // Of one or two blocks not every prompt has a seed.
        assert!(
            answer.lease.is_some() || best < 3,
            "{best} blocks are there"
        );
        if let Some(found) = &answer.found {
            let of = self
                .donors
                .values()
                .find(|it| Arc::ptr_eq(&it.donor, &found.donor));
            let of = of.unwrap().clone();
            let cache = &self.caches[of.owner];
            let reach = found
                .spans
                .iter()
                .map(|(span, _)| span.donor_end())
                .max()
                .unwrap();
            assert!(reach as usize <= cache.live(&of.path) * SIZE as usize);
            let reused = found.worth.prefix.map_or(0, |prefix| prefix.tokens);
            assert!(reused as usize >= best * SIZE as usize || best < 3);
            let (lent, stand) = ((reach / SIZE) as usize, cache.stand(&of.path));
            self.leased.push(Leased {
                answer,
                of,
                lent,
                stand,
            });
        }
    }

    fn check(&self) {
        for it in self.donors.values() {
            let cache = &self.caches[it.owner];
            let live = cache.live(&it.path) * SIZE as usize;
            let claimed = it.donor.claim.residency.live_tokens().unwrap_or(0) as usize;
            match &it.names {
                Some(names) if *names != it.path => {
                    assert!(claimed <= live.min(common(names, &it.path) * SIZE as usize));
                }
                Some(_) | None => assert_eq!(claimed, live, "{:?}", it.path),
            }
        }
        for leased in &self.leased {
            let Leased {
                answer,
                of,
                lent,
                stand: (lost, went),
            } = leased;
            let cache = &self.caches[of.owner];
            let (lost_now, went_now) = cache.stand(&of.path);
            let is_watched = cache.is_exact && lost_now == *lost && !of.donor.claim.is_retired();
            let is_valid = self.world.is_valid(answer);
            let is_there = is_watched && went_now[..*lent] == went[..*lent];
            assert!(is_there || !is_valid, "{:?}", of.path);
            // A lease may end early for a block that was not lent, and where its donor says of
            // itself what is not so.
            let is_right = of.names.as_ref().is_none_or(|names| *names == of.path);
            let is_whole = is_watched && went_now == *went && is_right;
            assert!(is_valid || !is_whole, "{:?}", of.path);
        }
    }
}

fn id(donor: usize) -> String {
    format!("donor-{donor}")
}

fn common(one: &Path, other: &Path) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 96,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_lease_names_a_block_that_is_gone(steps in prop::collection::vec(step(), 1..90)) {
        let mut pair = Pair {
            world: World::new(ENGINES, Mode::Materialize, namespace()),
            caches: vec![Cache::default(); ENGINES],
            donors: BTreeMap::new(),
            leased: Vec::new(),
        };
        for engine in 0..ENGINES {
            pair.take(Step::Follow(engine, Named::Rightly));
            pair.take(Step::Recover(engine));
        }
        for step in steps {
            pair.take(step);
        }
        for donor in 0..DONORS {
            pair.take(Step::Unregister(donor));
        }
        for engine in 0..ENGINES {
            prop_assert_eq!(pair.world.counts(engine), Counts::default(), "nothing is left behind");
        }
    }
}

//! What must hold after every step, and once nothing is on its way any more.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas::{
    donors::{owners::OwnerKey, scope::EVERYTHING, vocabulary::Medium, writes::Removal},
    events::fleet::WorkerQuery,
    leases::TTL_MS_MAX,
};
use kvatlas_events::{
    event::Adapter,
    feed::State,
    view::{self, Match, Prompt, Shape, SourceId, tenant_key},
};

use crate::{
    cache::Cache,
    content::{Prefix, ROOTS, SIZE, namespace, shape},
    donors::{Leased, Names, Registered, Seen},
    engine::{Damage, Moment},
    line::Exact,
    tally::Met,
    world::World,
};

const STRIDES: [usize; 2] = [1, 2];

/// What is true of one followed rank that is exact.
struct Truth<'a> {
    exact: Exact<'a>,
    cache: Cache,
    source: SourceId,
}

impl Truth<'_> {
    /// All of it is to be claimed: nothing was lost or meant less than it said.
    fn is_whole(&self) -> bool {
        let from_start = self.exact.applied.is_none_or(|(first, _)| first == 0);
        let is_vague = self.exact.moment.is_some_and(|moment| moment.is_vague);
        from_start && !is_vague && !self.exact.style.layout.is_silent()
    }

    /// Blocks from a prompt's start that a lease may rest on, in tokens.
    fn sure_tokens(&self, prompt: &Prefix, strides: &BTreeSet<usize>) -> usize {
        let layout = self.exact.style.layout;
        let of = |&stride: &usize| {
            let mut ends = ends(prompt, stride);
            let first = ends.find(|end| !self.cache.is_sure(layout, stride, &prompt.first(*end)));
            let all = prompt.depth() / stride;
            first.map_or(all, |end| end / stride - 1) * stride * SIZE
        };
        strides.iter().map(of).min().unwrap_or(0)
    }
}

fn ends(prompt: &Prefix, stride: usize) -> impl Iterator<Item = usize> + use<> {
    (1..=prompt.depth() / stride).map(move |end| end * stride)
}

impl World<'_> {
    pub(crate) fn check(&mut self) {
        self.check_view();
        self.check_donors();
        self.check_leases();
        self.check_fleet();
    }

    fn truth(&self, line: usize, rank: u32) -> Option<Truth<'_>> {
        let line = &self.lines[line];
        let exact = line.exact(self.service)?;
        let sources = line.sources(self.service);
        let (_, source) = sources.into_iter().find(|(other, _)| *other == rank)?;
        let cache_of = |moment: &Moment| moment.caches.get(&rank).cloned();
        let cache = exact.moment.and_then(cache_of).unwrap_or_default();
        Some(Truth {
            exact,
            cache,
            source,
        })
    }

    /// Where the source says exact, no block is claimed that is not there, and all are where
    /// nothing was lost.
    fn check_view(&mut self) {
        let mut found = BTreeMap::new();
        let view = &self.service.catalog.residents.view;
        for line in &self.lines {
            for prompt in self.longest.iter() {
                for stride in STRIDES {
                    let key = (line.namespace, prompt, stride);
                    found.entry(key).or_insert_with(|| {
                        let chain = self.chains.of(line.namespace, prompt, stride);
                        (view.matches(shape(stride), &chain), chain)
                    });
                }
            }
        }
        let (mut exact, mut whole) = (0, 0);
        for (at, line) in self.lines.iter().enumerate() {
            for (rank, source) in line.sources(self.service) {
                let Some(truth) = self.truth(at, rank) else {
                    continue;
                };
                exact += 1;
                whole += u64::from(truth.is_whole() && truth.exact.moment.is_some());
                for prompt in self.longest.iter() {
                    for stride in STRIDES {
                        let (matches, chain) = &found[&(line.namespace, prompt, stride)];
                        let claimed = matches.iter().find(|found| found.source == source);
                        let resident = view.resident(source, shape(stride), chain);
                        check_claim(&truth, prompt, stride, (claimed, resident));
                    }
                }
            }
        }
        self.tally.many(Met::Exact, exact);
        self.tally.many(Met::Whole, whole);
    }

    /// A donor in device memory is as long as what is there of it.
    fn check_donors(&mut self) {
        let mut live_ones = 0;
        for donor in self.donors.values() {
            if donor.medium != Medium::Device {
                continue;
            }
            let claim = donor.claim.upgrade().expect("the catalog holds it");
            let live = claim.residency.live_tokens().unwrap_or(0) as usize;
            let Some(truth) = self.truth(donor.line, donor.rank) else {
                continue;
            };
            live_ones += u64::from(live > 0);
            let layout = truth.exact.style.layout;
            let there = truth.cache.has_first(layout, &donor.prompt, live / SIZE);
            assert!(
                there && live.is_multiple_of(SIZE),
                "{live} tokens of {donor:?}"
            );
            let line = &self.lines[donor.line];
            let residents = &self.service.catalog.residents;
            let right = residents.engine_namespace(Some(&namespace(0)));
            let can_hold = [right, residents.engine_namespace(None)].contains(&line.namespace);
            assert!(can_hold || live == 0, "another model's: {donor:?}");
            let shapes = residents.view.shapes_of(truth.source);
            let strides = shapes.iter().map(|shape| shape.block_size as usize / SIZE);
            let strides: BTreeSet<usize> = strides.collect();
            let is_named_rightly = match donor.names {
                Names::Unsaid => true,
                // Groups with blocks of two sizes name two blocks alike.
                Names::Of(process) => process == truth.exact.process && strides.len() < 2,
                Names::Wrong => false,
            };
            if truth.is_whole() && can_hold && is_named_rightly {
                let sure = truth.sure_tokens(&donor.prompt, &strides);
                assert_eq!(live, sure, "{donor:?}");
            }
        }
        self.tally.many(Met::LiveDonor, live_ones);
    }

    /// No lease is valid that names a block which is gone or was; others end only as they must.
    fn check_leases(&mut self) {
        let mut leases = std::mem::take(&mut self.leases);
        leases.retain(|leased| {
            // A lease that is found stale ends there: what goes and comes again between two looks
            // must end it as well.
            if self.random.percent(60) {
                return true;
            }
            let is_valid = self.service.is_valid(leased.id.as_ref());
            let lives = self.lives(leased);
            self.tally.met(match (is_valid, leased.seen.is_some()) {
                (true, true) => Met::DeviceValid,
                (true, false) => Met::HostValid,
                (false, true) => Met::DeviceOver,
                (false, false) => Met::HostOver,
            });
            match &leased.seen {
                None => assert_eq!(is_valid, lives, "{leased:?}"),
                Some(_) if is_valid => {
                    assert!(lives, "{leased:?}");
                    assert_eq!(self.fault(leased), None, "{leased:?}");
                }
                Some(seen) => {
                    let ended = !lives || self.may_end(leased, seen);
                    assert!(ended, "it ended for nothing: {leased:?}");
                }
            }
            // One that is over never comes back, which the table's own model shows.
            is_valid
        });
        self.leases = leases;
    }

    /// Whether donor, owner and time allow a lease.
    fn lives(&self, leased: &Leased) -> bool {
        let Leased {
            donor,
            key,
            until_ms,
            ..
        } = leased;
        let now_ms = self.service.now_ms();
        let held = self.donors.get(key);
        let owner = self.lines[donor.line].key(donor.rank);
        let life = self.owners.get(&owner).copied().unwrap_or_default();
        held.is_some_and(|held| held.number == donor.number)
            && life.generation == donor.generation
            && now_ms < life.until_ms.min(*until_ms)
    }

    /// Why a lease on a donor in device memory should not be valid.
    fn fault(&self, leased: &Leased) -> Option<&'static str> {
        let Leased { donor, seen, .. } = leased;
        let seen = seen.as_ref()?;
        let Some(truth) = self.truth(donor.line, donor.rank) else {
            return Some("the source is not exact");
        };
        if truth.exact.process != seen.process {
            return Some("the process is gone");
        }
        let layout = truth.exact.style.layout;
        if !truth.cache.has_first(layout, &donor.prompt, seen.blocks) {
            return Some("a block is gone");
        }
        (truth.cache.went(&donor.prompt, seen.blocks) != seen.went[0]).then_some("a copy went")
    }

    /// Whether something happened that ends a lease, or may to those who hear of it.
    fn may_end(&self, leased: &Leased, seen: &Seen) -> bool {
        let Leased { donor, .. } = leased;
        let Some(truth) = self.truth(donor.line, donor.rank) else {
            return true;
        };
        let lapses = self.lines[donor.line].lapses;
        let went = truth.cache.went(&donor.prompt, donor.prompt.depth());
        lapses != seen.lapses
            || went != seen.went[1]
            || !truth.is_whole()
            || donor.names != Names::Unsaid
    }

    /// What a lease is given for.
    pub(crate) fn see(&self, donor: &Registered, reach: usize) -> Seen {
        let truth = self.truth(donor.line, donor.rank);
        let truth = truth.expect("only of an exact source");
        let blocks = reach.div_ceil(SIZE);
        let (layout, depth) = (truth.exact.style.layout, donor.prompt.depth());
        let is_there = truth.cache.has_first(layout, &donor.prompt, blocks);
        assert!(is_there, "{blocks} blocks of {donor:?}");
        Seen {
            process: truth.exact.process,
            blocks,
            went: [blocks, depth].map(|blocks| truth.cache.went(&donor.prompt, blocks)),
            lapses: self.lines[donor.line].lapses,
        }
    }

    /// Every followed worker is found, with what the view says and no other.
    fn check_fleet(&mut self) {
        let Some(prompt) = self.longest.any(&mut self.random) else {
            return;
        };
        let view = &self.service.catalog.residents.view;
        let names: BTreeSet<view::Namespace> =
            self.lines.iter().map(|line| line.namespace).collect();
        for &namespace in &names {
            let matches: Vec<Match> = view
                .shapes(namespace)
                .into_iter()
                .flat_map(|shape| view.matches(shape, &prompt.chain(namespace, shape)))
                .collect();
            let tokens = |source: SourceId| {
                let of = matches.iter().filter(|found| found.source == source);
                let of_shape = |found: &Match| {
                    let tokens = found.device_blocks * found.shape.block_size;
                    (found.shape, tokens)
                };
                let by_shape: BTreeMap<Shape, u32> = of.map(of_shape).collect();
                let several = view.several_shapes(source).into_iter();
                let least = several.map(|shape| by_shape.get(&shape).copied().unwrap_or(0));
                let best = || by_shape.values().copied().max();
                least.min().or_else(best).unwrap_or(0)
            };
            let mut expected: BTreeMap<OwnerKey, (State, u32)> = BTreeMap::new();
            for line in self.lines.iter().filter(|line| line.namespace == namespace) {
                for (rank, source) in line.sources(self.service) {
                    let state = line.progress(self.service).unwrap().state;
                    expected.insert(line.key(rank), (state, tokens(source)));
                }
            }
            let tenant = ROOTS[prompt.root].salt.map(tenant_key);
            let query = WorkerQuery {
                visible: &EVERYTHING.workers,
                prompt: Prompt {
                    namespace,
                    adapter: ROOTS[prompt.root].adapter.map(Adapter::Name),
                    tenant: tenant.as_deref(),
                    items: &[],
                    tokens: &prompt.tokens(0),
                },
                is_known: true,
                block_size: 16,
            };
            let fleet = &self.service.fleet;
            let (workers, picked) = fleet.find(&query, Some("request"), self.service.now_ms());
            let found: BTreeMap<OwnerKey, (State, u32)> = workers
                .iter()
                .map(|found| {
                    let tokens = found.holding.device_tokens();
                    ((*found.owner).clone(), (found.state, tokens))
                })
                .collect();
            assert_eq!(found, expected);
            let is_found = |owner: &OwnerKey| expected.contains_key(owner);
            assert!(picked.is_none_or(|picked| is_found(&picked.owner)));
            fleet.finish(&["request".into()]);
        }
    }

    /// What was heard last is applied, and the source exact unless some of it could not be read.
    pub(crate) fn check_settled(&self) {
        for line in &self.lines {
            let (Some(progress), Some(heard)) = (line.progress(self.service), line.heard()) else {
                continue;
            };
            let (first, last) = progress.applied.unwrap_or_default();
            let worker = line.worker;
            assert!(last >= heard, "{worker}: {heard} was heard; {progress:?}");
            let is_exact = progress.state == State::Exact;
            if let Some(latest) = line.latest().filter(|_| is_exact) {
                assert_eq!(last, latest, "{worker}: {progress:?}");
            }
            let is_right = match line.damage(first, last) {
                Damage::None => is_exact,
                Damage::Odd => true,
                Damage::Lossy => !is_exact,
            };
            assert!(is_right, "{progress:?}");
        }
    }

    /// Nothing is left once everything is taken out.
    pub(crate) fn check_end(&mut self) {
        for at in 0..self.lines.len() {
            self.remove(at);
            self.check();
        }
        for line in &self.lines {
            for &rank in &line.process().style.ranks {
                self.service.remove(Removal::Owner(line.key(rank)));
            }
        }
        self.donors.clear();
        self.check();
        self.leases.clear();
        self.service.forget_answers();
        self.service.pass_ms(2 * u64::from(TTL_MS_MAX));
        let now_ms = self.service.now_ms();
        let Self {
            service, claims, ..
        } = self;
        service.leases.sweep(now_ms);
        assert_eq!(service.leases.counts().held, 0);
        let catalog = &service.catalog;
        assert_eq!((catalog.donors(), catalog.tokens()), (0, 0));
        // Ties and leases hold one each.
        let held = claims.iter().filter(|claim| claim.strong_count() > 0);
        assert_eq!(held.count(), 0, "claims of donors that are gone");
        assert_eq!(service.fleet.states(), [0; 3]);
        assert_eq!(service.fleet.requests(), 0);
        for line in &self.lines {
            let view = &catalog.residents.view;
            assert_eq!(view.shapes(line.namespace), []);
            for prompt in self.longest.iter() {
                let chain = prompt.chain(line.namespace, shape(1));
                assert_eq!(view.matches(shape(1), &chain), []);
            }
        }
    }
}

fn check_claim(
    truth: &Truth<'_>,
    prompt: &Prefix,
    stride: usize,
    (claimed, resident): (Option<&Match>, usize),
) {
    let Truth { exact, cache, .. } = truth;
    let layout = exact.style.layout;
    let device = claimed.map_or(0, |found| found.device_blocks as usize);
    let all = device + claimed.map_or(0, |found| found.lower_blocks as usize);
    let ends: Vec<Prefix> = ends(prompt, stride).map(|end| prompt.first(end)).collect();
    let may_match = |last: &Prefix| cache.may_match(layout, stride, last);
    let of = || {
        let applied = exact.applied;
        format!("{device}, {all}, {resident} of {prompt:?} by {stride}: {applied:?}, {layout:?}")
    };
    for (at, last) in ends.iter().enumerate() {
        let may_match = may_match(last);
        assert!(
            at >= device || may_match,
            "{last:?} is not on the device: {}",
            of()
        );
        let may_be_lower = may_match || cache.may_be_lower(last);
        assert!(at >= all || may_be_lower, "{last:?} is not there: {}", of());
        let is_there = cache.is_there(layout, stride, last);
        assert!(
            at >= resident || is_there,
            "{last:?} does not reside: {}",
            of()
        );
    }
    if truth.is_whole() && layout.strides().contains(&stride) {
        let has = |last: &&Prefix| cache.is_there(layout, stride, last);
        assert!(device >= ends.iter().take_while(has).count(), "{}", of());
        let is_sure = |last: &&Prefix| cache.is_sure(layout, stride, last);
        assert_eq!(
            resident,
            ends.iter().take_while(is_sure).count(),
            "{}",
            of()
        );
    }
}

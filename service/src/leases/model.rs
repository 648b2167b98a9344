//! Donor leases beside an obvious model, through random steps.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

const CAPACITY: usize = 4;
const CLAIMS: usize = 3;
const OWNERS: usize = 2;
const HOLDERS: [&str; 2] = ["one", "two"];
const REMEMBERED_MS: u64 = 60_000;

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire(Wanted),
    Validate {
        lease: usize,
        holder: Option<usize>,
    },
    Renew {
        lease: usize,
        holder: usize,
        ttl_ms: u32,
    },
    Release {
        lease: usize,
        holder: usize,
    },
    Pass {
        ms: u64,
    },
    Sweep,
    Announce {
        owner: usize,
        generation: u64,
        ttl_ms: u64,
    },
    Replace {
        claim: usize,
    },
    ReplaceIfUnleased {
        claim: usize,
    },
    Restart,
    /// Somebody looks at a donor on an owner's device, and will ask for a lease later.
    Look {
        claim: usize,
        owner: usize,
    },
    Grow {
        claim: usize,
        tokens: u32,
    },
    Shrink {
        claim: usize,
        tokens: u32,
    },
    Doubt {
        claim: usize,
    },
    Watch {
        owner: usize,
        watch: Watch,
    },
}

/// Where the donor lies that is to be leased.
#[derive(Clone, Copy, Debug)]
enum Lies {
    OffDevice,
    /// On the device, and is looked at now.
    OnDevice,
    /// On the device, and was looked at before; what is asked for is what was looked at.
    Looked,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    claim: usize,
    owner: usize,
    /// How far the donor's generation lies behind the owner's.
    behind: u64,
    holder: usize,
    ttl_ms: u32,
    lies: Lies,
}

fn step() -> impl Strategy<Value = Step> {
    let ttl_ms = || 0..3_000_u32;
    let lies = prop_oneof![
        2 => Just(Lies::OffDevice),
        2 => Just(Lies::OnDevice),
        1 => Just(Lies::Looked),
    ];
    let wanted = (0..CLAIMS, 0..OWNERS, 0..2_u64, 0..2_usize, ttl_ms(), lies).prop_map(
        |(claim, owner, behind, holder, ttl_ms, lies)| {
            Step::Acquire(Wanted {
                claim,
                owner,
                behind,
                holder,
                ttl_ms,
                lies,
            })
        },
    );
    let validate = (any::<usize>(), prop::option::of(0..2_usize))
        .prop_map(|(lease, holder)| Step::Validate { lease, holder });
    let renew =
        (any::<usize>(), 0..2_usize, ttl_ms()).prop_map(|(lease, holder, ttl_ms)| Step::Renew {
            lease,
            holder,
            ttl_ms,
        });
    let release =
        (any::<usize>(), 0..2_usize).prop_map(|(lease, holder)| Step::Release { lease, holder });
    let announce = (0..OWNERS, 0..4_u64, 0..100_000_u64).prop_map(|(owner, generation, ttl_ms)| {
        Step::Announce {
            owner,
            generation,
            ttl_ms,
        }
    });
    prop_oneof![
        6 => wanted,
        6 => validate,
        3 => renew,
        3 => release,
        3 => (0..1_500_u64).prop_map(|ms| Step::Pass { ms }),
        1 => (0..90_000_u64).prop_map(|ms| Step::Pass { ms }),
        1 => Just(Step::Sweep),
        2 => announce,
        1 => (0..CLAIMS).prop_map(|claim| Step::Replace { claim }),
        1 => (0..CLAIMS).prop_map(|claim| Step::ReplaceIfUnleased { claim }),
        1 => Just(Step::Restart),
        6 => on_device(),
    ]
}

fn on_device() -> impl Strategy<Value = Step> {
    let claim = || 0..CLAIMS;
    let watch = prop_oneof![
        1 => Just(Watch::Unfollowed),
        1 => Just(Watch::Doubtful),
        3 => Just(Watch::Exact),
    ];
    prop_oneof![
        2 => (claim(), 0..OWNERS).prop_map(|(claim, owner)| Step::Look { claim, owner }),
        3 => (claim(), 1..4_u32).prop_map(|(claim, tokens)| Step::Grow { claim, tokens }),
        1 => (claim(), 0..4_u32).prop_map(|(claim, tokens)| Step::Shrink { claim, tokens }),
        1 => claim().prop_map(|claim| Step::Doubt { claim }),
        2 => (0..OWNERS, watch).prop_map(|(owner, watch)| Step::Watch { owner, watch }),
    ]
}

/// What the table is said to do, without an order, a bound on its work or a lock.
#[derive(Default)]
struct Model {
    now_ms: u64,
    epoch: u64,
    leases: Vec<ModelLease>,
    /// Generation and deadline.
    owners: [(u64, u64); OWNERS],
    /// Everything that ends leases on devices, in order.
    went: Vec<Went>,
    /// What was looked at, and how much had gone before.
    looked: Option<Looked>,
}

#[derive(Clone, Debug)]
enum Went {
    FromDonor(*const Claim),
    /// All of an owner's.
    Owner(usize),
}

#[derive(Clone, Debug)]
struct Looked {
    claim: Arc<Claim>,
    owner: usize,
    sighting: Sighting,
    /// Something was there, and all was heard.
    was_sure: bool,
    went_before: usize,
}

#[derive(Clone)]
struct ModelLease {
    id: LeaseId,
    holder: &'static str,
    deadline_ms: u64,
    claim: Arc<Claim>,
    owner: usize,
    generation: u64,
    epoch: u64,
    looked: Option<Looked>,
    ended: Option<LeaseState>,
}

impl Model {
    /// Nothing of what was looked at has gone since.
    fn is_there(&self, looked: &Looked) -> bool {
        let is_of_it = |went: &Went| match went {
            Went::FromDonor(claim) => *claim == Arc::as_ptr(&looked.claim),
            Went::Owner(owner) => *owner == looked.owner,
        };
        looked.was_sure && !self.went[looked.went_before..].iter().any(is_of_it)
    }

    fn is_live(&self, owner: usize, generation: u64) -> bool {
        let (announced, deadline_ms) = self.owners[owner];
        announced == generation && self.now_ms < deadline_ms
    }

    fn held(&self) -> usize {
        let holds = |lease: &&ModelLease| {
            lease.ended.is_none() && lease.epoch == self.epoch && lease.deadline_ms > self.now_ms
        };
        self.leases.iter().filter(holds).count()
    }

    fn look(&mut self, index: usize, holder: Option<&str>) -> LeaseState {
        let lease = self.leases[index].clone();
        if lease.epoch != self.epoch {
            return LeaseState::Stale;
        }
        if self.now_ms >= lease.deadline_ms + REMEMBERED_MS {
            self.leases[index].ended.get_or_insert(LeaseState::Expired);
            return LeaseState::Unknown;
        }
        if lease.ended == Some(LeaseState::Unknown) {
            return LeaseState::Unknown;
        }
        if holder.is_some_and(|holder| holder != lease.holder) {
            return LeaseState::NotHolder;
        }
        let state = match lease.ended {
            Some(ended) => ended,
            None if lease.deadline_ms <= self.now_ms => LeaseState::Expired,
            None if lease.claim.is_retired() => LeaseState::Stale,
            None if !lease.looked.is_none_or(|looked| self.is_there(&looked)) => LeaseState::Stale,
            None if !self.is_live(lease.owner, lease.generation) => LeaseState::Stale,
            None => {
                let remaining_ms = u32::try_from(lease.deadline_ms - self.now_ms).unwrap();
                return LeaseState::Valid { remaining_ms };
            }
        };
        self.leases[index].ended = Some(state);
        state
    }
}

/// The table beside its model.
struct Pair {
    table: DonorLeases,
    claims: Vec<Arc<Claim>>,
    retired: Vec<Arc<Claim>>,
    owners: Vec<Arc<OwnerLife>>,
    model: Model,
}

impl Pair {
    fn new() -> Self {
        Self {
            table: DonorLeases::new(0, CAPACITY),
            claims: (0..CLAIMS).map(|_| Arc::default()).collect(),
            retired: Vec::new(),
            owners: (0..OWNERS).map(|_| Arc::default()).collect(),
            model: Model::default(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Acquire(wanted) => self.acquire(wanted),
            Step::Validate { lease, holder } => self.validate(lease, holder.map(|i| HOLDERS[i])),
            Step::Renew {
                lease,
                holder,
                ttl_ms,
            } => self.renew(lease, HOLDERS[holder], ttl_ms),
            Step::Release { lease, holder } => self.release(lease, HOLDERS[holder]),
            Step::Pass { ms } => self.model.now_ms += ms,
            Step::Sweep => self.sweep(),
            Step::Announce {
                owner,
                generation,
                ttl_ms,
            } => {
                self.announce(owner, generation, ttl_ms);
            }
            Step::Replace { claim } => {
                self.claims[claim].retire();
                self.replace(claim);
            }
            Step::ReplaceIfUnleased { claim } => {
                let is_unleased = self.claims[claim].leases() == 0;
                assert_eq!(self.claims[claim].retire_if_unleased(), is_unleased);
                assert_eq!(self.claims[claim].is_retired(), is_unleased);
                if is_unleased {
                    self.replace(claim);
                }
            }
            Step::Restart => {
                self.model.epoch += 1;
                self.table = DonorLeases::new(self.model.epoch, CAPACITY);
            }
            Step::Look { claim, owner } => self.model.looked = Some(self.look(claim, owner)),
            Step::Grow { claim, tokens } => {
                let residency = &self.claims[claim].residency;
                residency.grow(residency.live_tokens().unwrap_or(0).max(tokens));
            }
            Step::Shrink { claim, tokens } => {
                self.claims[claim].residency.shrink(tokens);
                self.went_from(claim);
            }
            Step::Doubt { claim } => {
                self.claims[claim].residency.doubt();
                self.went_from(claim);
            }
            Step::Watch { owner, watch } => {
                let device = &self.owners[owner].device;
                if device.watch() == Watch::Exact && watch != Watch::Exact {
                    self.model.went.push(Went::Owner(owner));
                }
                device.set(watch);
            }
        }
    }

    fn went_from(&mut self, claim: usize) {
        let claim = Arc::as_ptr(&self.claims[claim]);
        self.model.went.push(Went::FromDonor(claim));
    }

    fn look(&self, claim: usize, owner: usize) -> Looked {
        let (claim, life) = (&self.claims[claim], &self.owners[owner]);
        let some_is_there = claim.residency.live_tokens().is_some_and(|live| live > 0);
        Looked {
            claim: Arc::clone(claim),
            owner,
            sighting: Sighting::take(claim, life),
            was_sure: some_is_there && life.device.watch() == Watch::Exact,
            went_before: self.model.went.len(),
        }
    }

    fn acquire(&mut self, wanted: Wanted) {
        let Wanted {
            claim,
            owner,
            behind,
            holder,
            ttl_ms,
            lies,
        } = wanted;
        let looked = match lies {
            Lies::OffDevice => None,
            Lies::OnDevice => Some(self.look(claim, owner)),
            Lies::Looked => self.model.looked.clone(),
        };
        let (claim, owner) = match &looked {
            Some(looked) => (Arc::clone(&looked.claim), looked.owner),
            None => (Arc::clone(&self.claims[claim]), owner),
        };
        let model = &mut self.model;
        let generation = model.owners[owner].0.saturating_sub(behind);
        let is_there = looked.as_ref().is_none_or(|looked| model.is_there(looked));
        let holder = HOLDERS[holder];
        let terms = LeaseTerms {
            realm: [7; 32],
            holder,
            ttl_ms,
            claim: Arc::clone(&claim),
            owner: Arc::clone(&self.owners[owner]),
            generation,
            sighting: looked.as_ref().map(|looked| looked.sighting),
        };
        let outcome = self.table.acquire(model.now_ms, terms);
        if !model.is_live(owner, generation) || !is_there {
            assert_eq!(outcome, Err(AcquireError::Stale));
        } else if model.held() >= CAPACITY {
            assert_eq!(outcome, Err(AcquireError::Full));
        } else if claim.is_retired() {
            assert_eq!(outcome, Err(AcquireError::Stale));
        } else {
            let Grant { id, deadline_ms } = outcome.unwrap();
            assert_eq!(deadline_ms, model.now_ms + u64::from(ttl_ms));
            let epoch = model.epoch;
            let ended = None;
            let lease = ModelLease {
                id,
                holder,
                deadline_ms,
                claim,
                owner,
                generation,
                epoch,
                looked,
                ended,
            };
            model.leases.push(lease);
        }
    }

    fn validate(&mut self, lease: usize, holder: Option<&str>) {
        let Some((index, id)) = self.pick(lease) else {
            return;
        };
        let state = self.table.validate(self.model.now_ms, id.as_ref(), holder);
        let expected = self.model.look(index, holder);
        self.check(index, state, expected);
    }

    fn renew(&mut self, lease: usize, holder: &str, ttl_ms: u32) {
        let Some((index, id)) = self.pick(lease) else {
            return;
        };
        let (state, grant) = self
            .table
            .renew(self.model.now_ms, id.as_ref(), holder, ttl_ms);
        let mut expected = self.model.look(index, Some(holder));
        if matches!(expected, LeaseState::Valid { .. }) {
            let deadline_ms = self.model.now_ms + u64::from(ttl_ms);
            assert_eq!(grant, Some(Grant { id, deadline_ms }));
            self.model.leases[index].deadline_ms = deadline_ms;
            expected = LeaseState::Valid {
                remaining_ms: ttl_ms,
            };
        } else {
            assert_eq!(grant, None);
        }
        self.check(index, state, expected);
    }

    fn release(&mut self, lease: usize, holder: &str) {
        let Some((index, id)) = self.pick(lease) else {
            return;
        };
        let (released, state) = self.table.release(self.model.now_ms, id.as_ref(), holder);
        let expected = self.model.look(index, Some(holder));
        let is_valid = matches!(expected, LeaseState::Valid { .. });
        assert_eq!(released, is_valid);
        if is_valid {
            self.model.leases[index].ended = Some(LeaseState::Unknown);
        }
        self.check(index, state, expected);
    }

    fn announce(&mut self, owner: usize, generation: u64, ttl_ms: u64) {
        let deadline_ms = self.model.now_ms + ttl_ms;
        let announced = &mut self.model.owners[owner];
        let is_taken = generation >= announced.0;
        if is_taken {
            *announced = (generation, deadline_ms);
        }
        assert_eq!(
            self.owners[owner].announce(generation, deadline_ms),
            is_taken
        );
    }

    /// After a sweep the counts are exact.
    fn sweep(&mut self) {
        let model = &mut self.model;
        self.table.sweep(model.now_ms);
        for lease in &mut model.leases {
            if lease.deadline_ms <= model.now_ms && lease.ended.is_none() {
                lease.ended = Some(LeaseState::Expired);
            }
        }
        assert_eq!(
            self.table.counts(),
            LeaseCounts {
                held: model.held(),
                capacity: CAPACITY
            }
        );
        let mut expected: HashMap<*const Claim, u64> = HashMap::new();
        for lease in model.leases.iter().filter(|lease| lease.ended.is_none()) {
            if lease.epoch == model.epoch {
                *expected.entry(Arc::as_ptr(&lease.claim)).or_default() += 1;
            }
        }
        for claim in self.claims.iter().chain(&self.retired) {
            let leases = expected.get(&Arc::as_ptr(claim)).copied().unwrap_or(0);
            assert_eq!(claim.leases(), leases);
        }
    }

    fn replace(&mut self, claim: usize) {
        let old = std::mem::take(&mut self.claims[claim]);
        assert!(old.is_retired());
        self.retired.push(old);
    }

    fn pick(&self, lease: usize) -> Option<(usize, LeaseId)> {
        let index = lease.checked_rem(self.model.leases.len())?;
        Some((index, self.model.leases[index].id))
    }

    /// An ended lease may be forgotten early for lack of room, never the other way round.
    fn check(&self, index: usize, state: LeaseState, expected: LeaseState) {
        let lease = &self.model.leases[index];
        let given = self
            .model
            .leases
            .iter()
            .filter(|lease| lease.epoch == self.model.epoch);
        let is_crowded = given.count() > CAPACITY;
        let is_over = lease.ended.is_some() || lease.deadline_ms <= self.model.now_ms;
        if is_crowded && is_over && state == LeaseState::Unknown {
            return;
        }
        assert_eq!(state, expected, "lease {index}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_table_does_what_its_model_does(steps in prop::collection::vec(step(), 1..80)) {
        let mut pair = Pair::new();
        for owner in 0..OWNERS {
            pair.take(Step::Announce { owner, generation: 1, ttl_ms: 50_000 });
        }
        for step in steps {
            pair.take(step);
        }
        pair.sweep();
        pair.model.now_ms += u64::from(TTL_MS_MAX);
        pair.sweep();
        for claim in pair.claims.iter().chain(&pair.retired) {
            prop_assert_eq!(claim.leases(), 0);
        }
    }
}

//! Engines, donors, look-ups and leases around one service, and what a model says of each.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
};

use kvatlas::{
    donors::{
        owners::{OwnerKey, OwnerRefusal},
        vocabulary::Medium,
        writes::{Admission, NamespaceName, NewDonor, Removal, WriteRefusal},
    },
    leases::{Claim, LeaseId},
};
use kvatlas_events::view;

use crate::{
    cache::Layout,
    content::{Chains, Longest, Prefix, namespace},
    engine::{Process, Style},
    line::{Faults, Line, Way},
    random::Random,
    service::{LEASE_MS, STORE, Service},
    tally::{Met, Tally},
};

/// In each namespace.
const DONORS_MAX: usize = 6;
const ANNOUNCED_MS: u64 = 120_000;
/// Longer than an engine may be silent before it is asked.
const IDLE_MS: u64 = 11_000;
/// Batches before the service first hears of an engine.
const LATE_MAX: usize = 120;
const BATCHES_MAX: usize = 4_000;

pub(crate) struct World<'a> {
    pub(crate) service: &'a mut Service,
    pub(crate) random: Random,
    pub(crate) lines: Vec<Line>,
    /// Every chain that ever was.
    pub(crate) longest: Longest,
    pub(crate) owners: BTreeMap<OwnerKey, Life>,
    /// By root and number.
    pub(crate) donors: BTreeMap<(usize, usize), Registered>,
    pub(crate) leases: Vec<Leased>,
    /// Of every donor that ever was.
    pub(crate) claims: Vec<Weak<Claim>>,
    registrations: u64,
    pub(crate) chains: Chains,
    pub(crate) tally: Tally,
}

/// What is announced of an owner.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Life {
    pub(crate) generation: u64,
    pub(crate) until_ms: u64,
}

/// A donor as the model knows it.
#[derive(Clone, Debug)]
pub(crate) struct Registered {
    /// The registration's own.
    pub(crate) number: u64,
    pub(crate) prompt: Prefix,
    pub(crate) line: usize,
    pub(crate) rank: u32,
    pub(crate) generation: u64,
    pub(crate) medium: Medium,
    pub(crate) names: Names,
    pub(crate) claim: Weak<Claim>,
}

/// What the engine's names of a donor's blocks are said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    Unsaid,
    /// Those of this process.
    Of(usize),
    Wrong,
}

#[derive(Debug)]
pub(crate) struct Leased {
    pub(crate) id: LeaseId,
    pub(crate) donor: Registered,
    pub(crate) key: (usize, usize),
    pub(crate) until_ms: u64,
    /// Of a donor in device memory.
    pub(crate) seen: Option<Seen>,
}

/// What a lease was given for.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) process: usize,
    /// The donor's first blocks that the answer names.
    pub(crate) blocks: usize,
    /// What had gone of these, and of all.
    pub(crate) went: [(u64, u64); 2],
    pub(crate) lapses: u64,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Publish,
    Deliver,
    Settle,
    Connect,
    Cut,
    Restart,
    Idle,
    Add,
    Remove,
    Register,
    Unregister,
    LookUp,
    Announce,
    Begin,
    Return,
}

const STEPS: [(u32, Step); 15] = [
    (44, Step::Publish),
    (44, Step::Deliver),
    (8, Step::Settle),
    (10, Step::Connect),
    (3, Step::Cut),
    (2, Step::Restart),
    (2, Step::Idle),
    (8, Step::Add),
    (1, Step::Remove),
    (14, Step::Register),
    (3, Step::Unregister),
    (18, Step::LookUp),
    (4, Step::Announce),
    (1, Step::Begin),
    (3, Step::Return),
];

impl<'a> World<'a> {
    pub(crate) fn new(service: &'a mut Service, seed: u64) -> Self {
        let mut world = Self {
            service,
            random: Random::new(seed),
            lines: Vec::new(),
            longest: Longest::default(),
            owners: BTreeMap::new(),
            donors: BTreeMap::new(),
            leases: Vec::new(),
            claims: Vec::new(),
            registrations: 0,
            chains: Chains::default(),
            tally: Tally::default(),
        };
        let ranks: [(&str, u32, &[u32]); 4] = [
            ("a", 0, &[0]),
            ("b", 0, &[0, 1]),
            ("c", 0, &[0]),
            ("c", 1, &[1]),
        ];
        for (worker, rank, ranks) in ranks {
            let line = world.line((worker, rank), ranks);
            world.lines.push(line);
            let at = world.lines.len() - 1;
            if world.random.percent(30) {
                for _ in 0..world.random.below(LATE_MAX) {
                    world.publish(at);
                }
            }
            if world.random.percent(80) {
                world.add(at);
            }
            world.announce(at, 0);
        }
        world
    }

    fn line(&mut self, owner: (&'static str, u32), ranks: &[u32]) -> Line {
        let random = &mut self.random;
        // Two streams of one worker are for feeds alone.
        let is_fed = owner.0 == "c" || random.percent(60);
        let way = if is_fed { Way::Fed } else { Way::Pushed };
        let faults = match random.below(3) {
            0 => [0, 0, 0],
            1 => [3, 1, 20],
            _ => [15, 3, 50],
        };
        let [loss, twice, replay] = faults;
        let faults = Faults {
            loss,
            twice,
            replay,
        };
        let has_replay = random.percent(75);
        let style = style(ranks, owner.1, random);
        let process = Process::new(style, random);
        let name = name(self.service, random);
        Line::new(owner, (way, has_replay, faults), name, process)
    }

    pub(crate) fn step(&mut self) {
        let at = self.random.below(self.lines.len());
        match self.random.weighed(&STEPS) {
            Step::Publish => self.publish(at),
            Step::Deliver => {
                for _ in 0..self.random.between(1, 6) {
                    self.lines[at].deliver(self.service, &mut self.random);
                    self.lines[at].tick(self.service, &mut self.random);
                }
            }
            Step::Settle => self.settle(),
            Step::Connect => {
                for line in &mut self.lines {
                    if self.random.percent(60) {
                        line.connect(self.service, &mut self.random);
                    }
                }
            }
            Step::Cut => self.lines[at].cut(&mut self.random),
            Step::Restart => self.restart(at),
            Step::Idle => self.pass_ms(IDLE_MS),
            Step::Add => self.add(at),
            Step::Remove => self.remove(at),
            Step::Register => self.register(at),
            Step::Unregister => self.unregister(),
            Step::LookUp => self.look_up(),
            Step::Announce => self.announce(at, 0),
            Step::Begin => self.announce(at, 1),
            Step::Return => self.give_back(),
        }
    }

    fn publish(&mut self, at: usize) {
        let Self {
            random,
            lines,
            longest,
            ..
        } = self;
        let mut prompt = |random: &mut Random| {
            let known = longest.any(random).filter(|_| random.percent(70));
            let prompt = match known {
                Some(known) => known.first(random.between(1, known.depth())),
                None => Prefix::any(random),
            };
            longest.add(&prompt);
            prompt
        };
        lines[at].publish(random, &mut prompt);
    }

    fn restart(&mut self, at: usize) {
        let random = &mut self.random;
        let line = &mut self.lines[at];
        let mut next = line.process().style.clone();
        if random.percent(30) {
            next = style(&next.ranks.clone(), line.rank, random);
        }
        line.restart(Process::new(next, random), random);
        self.tally.met(Met::Restart);
        for _ in 0..self.random.between(0, 4) {
            self.publish(at);
        }
    }

    /// Everything on its way arrives, and every answer that is waited for comes or is given up.
    pub(crate) fn settle(&mut self) {
        for _ in 0..BATCHES_MAX {
            for line in &mut self.lines {
                while line.deliver(self.service, &mut self.random) {}
            }
            let now_ms = self.service.now_ms();
            let due = self.lines.iter().filter_map(|line| line.due_ms(now_ms));
            let Some(due_ms) = due.min() else {
                return self.check_settled();
            };
            self.pass_ms(due_ms.saturating_sub(now_ms));
        }
        panic!("it never settles");
    }

    fn pass_ms(&mut self, ms: u64) {
        self.service.pass_ms(ms);
        for line in &mut self.lines {
            line.tick(self.service, &mut self.random);
        }
    }

    fn add(&mut self, at: usize) {
        if !self.lines[at].is_on() {
            self.lines[at].add(self.service);
            self.lines[at].connect(self.service, &mut self.random);
        }
    }

    /// A source is taken out, and its donors in device memory with it.
    pub(crate) fn remove(&mut self, at: usize) {
        if !self.lines[at].is_on() {
            return;
        }
        self.tally.met(Met::Removal);
        for rank in self.lines[at].remove(self.service) {
            let gone =
                self.take_donors(|it| (it.line, it.rank, it.medium) == (at, rank, Medium::Device));
            let key = self.lines[at].key(rank);
            assert_eq!(self.service.remove(Removal::OnDevice(key)), gone);
        }
        let random = &mut self.random;
        self.lines[at].namespace = name(self.service, random);
    }

    /// What the transports met.
    pub(crate) fn count_progress(&mut self) {
        for line in &self.lines {
            if let Some(progress) = line.progress(self.service) {
                let met = progress.met;
                self.tally.many(Met::Epoch, progress.epoch);
                self.tally.many(Met::Replay, met.replays);
                self.tally.many(Met::Gap, met.gaps);
                self.tally
                    .many(Met::Damage, met.malformed_events + met.decode_errors);
            }
        }
    }

    fn take_donors(&mut self, is_gone: impl Fn(&Registered) -> bool) -> u64 {
        self.donors.extract_if(.., |_, it| is_gone(it)).count() as u64
    }

    fn register(&mut self, at: usize) {
        let random = &mut self.random;
        let process = self.lines[at].process();
        let rank = *random.pick(&process.style.ranks).unwrap();
        let held = process.held(rank, random).filter(|_| random.percent(80));
        let prompt = held.or_else(|| self.longest.any(random));
        let prompt = prompt.unwrap_or_else(|| Prefix::any(random));
        let medium = match random.percent(95) {
            true => Medium::Device,
            false => Medium::Host,
        };
        let (names, block_names) = match random.below(5) {
            0 | 1 if medium == Medium::Device => {
                let of = Names::Of(self.lines[at].processes.len() - 1);
                (of, process.names(&prompt))
            }
            2 if medium == Medium::Device => {
                let mut other = Prefix::any(random);
                other.path.resize(prompt.depth(), 0);
                (Names::Wrong, process.names(&other))
            }
            _ => (Names::Unsaid, Vec::new()),
        };
        let owner = self.lines[at].key(rank);
        let known = self.owners.get(&owner).copied().unwrap_or_default();
        let generation = match random.below(30) {
            0 => known.generation.saturating_sub(1),
            1 => known.generation + 1,
            _ => known.generation,
        };
        let key = (prompt.root, random.below(DONORS_MAX));
        let mut captured = prompt.tokens(0);
        if random.percent(50) {
            captured.extend([60_000; 7]);
        }
        let new = NewDonor {
            donor_id: id(key.1),
            namespace: NamespaceName::Full(Box::new(namespace(prompt.root))),
            owner: owner.clone(),
            owner_generation: generation,
            exact_tokens: u32::try_from(captured.len()).unwrap(),
            captured,
            medium,
            store_id: STORE.into(),
            source_request_id: "".into(),
            block_names,
            text: None,
            now_ms: self.service.now_ms(),
        };
        let registered = match self.service.register(new) {
            Ok(registered) => registered,
            Err(WriteRefusal::Owner(OwnerRefusal::OldGeneration { .. })) => {
                assert!(generation < known.generation);
                return;
            }
            Err(refusal) => panic!("{refusal}"),
        };
        assert!(generation >= known.generation);
        if generation > known.generation {
            let until_ms = 0;
            self.owners.insert(
                owner,
                Life {
                    generation,
                    until_ms,
                },
            );
        }
        match registered.admission {
            Admission::Added | Admission::Replaced => {}
            Admission::Covered(_) => {
                self.donors.remove(&key);
                return;
            }
            Admission::NothingCaptured => panic!("all was captured"),
        }
        let shard = self.service.catalog.shard(registered.namespace).unwrap();
        let claim = Arc::downgrade(&shard.read().by_id(&id(key.1)).unwrap().claim);
        self.claims.push(Weak::clone(&claim));
        self.registrations += 1;
        let registered = Registered {
            number: self.registrations,
            prompt,
            line: at,
            rank,
            generation,
            medium,
            names,
            claim,
        };
        self.donors.insert(key, registered);
    }

    fn unregister(&mut self) {
        let keys: Vec<_> = self.donors.keys().copied().collect();
        let Some(&(root, number)) = self.random.pick(&keys) else {
            return;
        };
        if self.random.percent(80) {
            let name = NamespaceName::Id(namespace(root).id());
            let ids = vec![id(number).into()];
            assert_eq!(self.service.remove(Removal::Ids(name, ids)), 1);
            self.donors.remove(&(root, number));
        } else {
            let Registered { line: at, rank, .. } = self.donors[&(root, number)];
            let gone = self.take_donors(|it| (it.line, it.rank) == (at, rank));
            let key = self.lines[at].key(rank);
            assert_eq!(self.service.remove(Removal::Owner(key)), gone);
        }
    }

    /// Says that an owner lives, in the same generation or a later one.
    pub(crate) fn announce(&mut self, at: usize, later: u64) {
        for rank in self.lines[at].process().style.ranks.clone() {
            let key = self.lines[at].key(rank);
            let life = self.owners.entry(key.clone()).or_default();
            life.generation = (life.generation + later).max(1);
            life.until_ms = self.service.now_ms() + ANNOUNCED_MS;
            let Life {
                generation,
                until_ms,
            } = *life;
            let gone = self
                .take_donors(|it| (it.line, it.rank) == (at, rank) && it.generation < generation);
            let dropped = self.service.announce(&key, generation, until_ms);
            assert_eq!(dropped, Ok(gone));
        }
    }

    fn look_up(&mut self) {
        let random = &mut self.random;
        let donors: Vec<&Registered> = self.donors.values().collect();
        let donor = random.pick(&donors).filter(|_| random.percent(70));
        let known = donor.map(|donor| donor.prompt.clone());
        let Some(known) = known.or_else(|| self.longest.any(random)) else {
            return;
        };
        let request = match random.percent(20) {
            true => format!("request-{}", random.below(4)),
            false => String::new(),
        };
        let answer = self.service.find(&known, &request);
        let (Some(found), Some(grant)) = (&answer.found, answer.lease) else {
            return;
        };
        if answer.repeated {
            assert!(self.leases.iter().any(|leased| leased.id == grant.id));
            return;
        }
        let number = found.donor.id.strip_prefix("donor-").unwrap();
        let key = (known.root, number.parse().unwrap());
        let donor = self.donors[&key].clone();
        let is_it = std::ptr::eq(Weak::as_ptr(&donor.claim), Arc::as_ptr(&found.donor.claim));
        assert!(is_it, "the donor was replaced");
        let reach = found.spans.iter().map(|(span, _)| span.donor_end()).max();
        let seen = match donor.medium {
            Medium::Device => Some(self.see(&donor, reach.unwrap() as usize)),
            Medium::Host | Medium::Disk => None,
        };
        self.tally.met(match donor.medium {
            Medium::Device => Met::DeviceLease,
            Medium::Host | Medium::Disk => Met::HostLease,
        });
        self.leases.push(Leased {
            id: grant.id,
            donor,
            key,
            until_ms: self.service.now_ms() + u64::from(LEASE_MS),
            seen,
        });
    }

    fn give_back(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let at = self.random.below(self.leases.len());
        let leased = &mut self.leases[at];
        let now_ms = self.service.now_ms();
        let (id, holder) = (leased.id, crate::service::HOLDER);
        if self.random.percent(50) {
            let renewed = self
                .service
                .leases
                .renew(now_ms, id.as_ref(), holder, LEASE_MS);
            if renewed.1.is_some() {
                leased.until_ms = now_ms + u64::from(LEASE_MS);
            }
        } else {
            self.service.leases.release(now_ms, id.as_ref(), holder);
            self.leases.remove(at);
        }
    }
}

pub(crate) fn id(number: usize) -> Box<str> {
    format!("donor-{number}").into()
}

/// Under which a source's blocks are in the view: rightly, under none, or as another model's.
fn name(service: &Service, random: &mut Random) -> view::Namespace {
    let residents = &service.catalog.residents;
    let mut other = namespace(0);
    other.model = "other".into();
    match random.below(8) {
        0 => residents.engine_namespace(Some(&other)),
        1 | 2 => residents.engine_namespace(None),
        _ => residents.engine_namespace(Some(&namespace(0))),
    }
}

fn style(ranks: &[u32], rank: u32, random: &mut Random) -> Style {
    Style {
        layout: random.weighed(&Layout::ALL),
        ranks: ranks.to_vec(),
        names_rank: ranks.len() > 1 || ranks[0] != rank || random.percent(50),
        removals_name_group: random.percent(80),
        names_salt: random.percent(30),
        kept_max: *random.pick(&[0, 1, 3, 10, 1_000, 1_000]).unwrap(),
        has_ghosts: random.percent(40),
        damage: *random.pick(&[0, 0, 0, 1]).unwrap(),
    }
}

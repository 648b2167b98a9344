//! Donors and their leases: registered, replaced and removed, looked up, renewed and given back.

use std::sync::{Arc, Weak};

use kvatlas::{
    donors::{
        owners::OwnerRefusal,
        vocabulary::Medium,
        writes::{Admission, NamespaceName, NewDonor, Removal, WriteRefusal},
    },
    leases::{Claim, LeaseId},
};
use kvatlas_events::event::EngineHash;

use crate::{
    content::{Prefix, namespace},
    service::{HOLDER, LEASE_MS, STORE},
    tally::Met,
    world::World,
};

/// In each namespace.
const DONORS_MAX: usize = 6;
/// How long an announcement lasts.
const ANNOUNCED_MS: u64 = 120_000;

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
    pub(crate) number: usize,
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

/// A registration that is to be made.
struct Wanted {
    prompt: Prefix,
    rank: u32,
    medium: Medium,
    names: (Names, Vec<EngineHash>),
}

impl World<'_> {
    /// Registers a donor of an engine: what it holds or may come to hold.
    pub(crate) fn register(&mut self, at: usize) {
        let Wanted {
            prompt,
            rank,
            medium,
            names: (names, block_names),
        } = self.wanted(at);
        let random = &mut self.random;
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
            // The beginning of one more block.
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
        let registered = self.service.register(new);
        let is_old = generation < known.generation;
        if let Err(WriteRefusal::Owner(OwnerRefusal::OldGeneration { .. })) = registered {
            assert!(is_old);
            return;
        }
        assert!(!is_old);
        if generation > known.generation {
            let silent = Life {
                generation,
                until_ms: 0,
            };
            self.owners.insert(owner, silent);
        }
        match registered.unwrap().admission {
            Admission::Added | Admission::Replaced => {}
            Admission::Covered(_) => {
                self.donors.remove(&key);
                return;
            }
            Admission::NothingCaptured => panic!("all was captured"),
        }
        let shard = self.service.catalog.shard(namespace(key.0).id()).unwrap();
        let claim = Arc::downgrade(&shard.read().by_id(&id(key.1)).unwrap().claim);
        self.claims.push(Weak::clone(&claim));
        let registered = Registered {
            number: self.claims.len(),
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

    fn wanted(&mut self, at: usize) -> Wanted {
        let random = &mut self.random;
        let process = self.lines[at].process();
        let rank = *random.pick(&process.style.ranks).unwrap();
        let held = process.held(rank, random).filter(|_| random.percent(80));
        let prompt = held.or_else(|| self.longest.any(random));
        let prompt = prompt.unwrap_or_else(|| Prefix::any(random));
        if random.percent(5) {
            return Wanted {
                prompt,
                rank,
                medium: Medium::Host,
                names: (Names::Unsaid, Vec::new()),
            };
        }
        let names = match random.below(5) {
            0 | 1 => {
                let of = Names::Of(self.lines[at].processes.len() - 1);
                (of, process.names(&prompt))
            }
            2 => {
                let mut other = Prefix::any(random);
                other.path.resize(prompt.depth(), 0);
                (Names::Wrong, process.names(&other))
            }
            _ => (Names::Unsaid, Vec::new()),
        };
        Wanted {
            prompt,
            rank,
            medium: Medium::Device,
            names,
        }
    }

    pub(crate) fn unregister(&mut self) {
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

    pub(crate) fn look_up(&mut self) {
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

    pub(crate) fn give_back(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let at = self.random.below(self.leases.len());
        let leased = &mut self.leases[at];
        let now_ms = self.service.now_ms();
        let (id, holder) = (leased.id, HOLDER);
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

fn id(number: usize) -> Box<str> {
    format!("donor-{number}").into()
}

//! A twin of the view that is slow and obvious: it remembers whole prefixes instead of hashes,
//! and looks through lists.

use std::collections::{BTreeMap, BTreeSet};

use super::random::SIZE;
use crate::event::{EngineHash, Event, Kind, Medium, Removed, Stored};

type Lane = (Medium, Option<u32>);
type Prefix = Vec<u32>;

#[derive(Clone, Debug)]
struct Waiting {
    lane: Lane,
    parent: EngineHash,
    hashes: Vec<EngineHash>,
    tokens: Vec<u32>,
}

impl Waiting {
    fn is_paired(&self) -> bool {
        self.hashes.len() * SIZE == self.tokens.len()
    }
}

#[derive(Debug, Default)]
pub(super) struct Twin {
    proven: Vec<Lane>,
    lanes: Vec<Lane>,
    others: Vec<Option<u32>>,
    held: BTreeMap<(Lane, EngineHash), (Prefix, u32)>,
    waiting: Vec<Waiting>,
    waiting_references: BTreeMap<(Lane, EngineHash), u32>,
    /// Removed while they waited, and not stored since.
    waiting_doubted: BTreeSet<(Lane, EngineHash)>,
    /// Stored, and no copy removed since.
    sure: BTreeSet<(Lane, Prefix)>,
    /// Lanes whose hashes paired with blocks.
    named: Vec<Lane>,
    loose: Vec<(Lane, Vec<EngineHash>, Vec<Prefix>)>,
}

impl Twin {
    pub(super) fn apply(&mut self, events: &[Event<'_>]) {
        for (number, settled) in events.split(|event| *event == Event::Cleared).enumerate() {
            if number > 0 {
                self.held.clear();
                self.waiting.clear();
                self.waiting_references.clear();
                self.waiting_doubted.clear();
                self.sure.clear();
                self.loose.clear();
            }
            for event in settled {
                if let Event::Stored(stored) = event
                    && !stored.tokens.is_empty()
                {
                    self.store(stored);
                }
            }
            for event in settled {
                if let Event::Stored(stored) = event
                    && stored.tokens.is_empty()
                {
                    self.store_bare(stored);
                }
            }
            for event in settled {
                if let Event::Removed(removed) = event {
                    self.remove(removed);
                }
            }
        }
    }

    fn lane(&mut self, stored: &Stored<'_>) -> Option<Lane> {
        if matches!(stored.kind, Kind::Other | Kind::Unknown) {
            self.others.push(stored.group);
            return None;
        }
        let lane = (stored.medium, stored.group);
        self.lanes.push(lane);
        if stored.kind == Kind::Attention {
            self.proven.push(lane);
        }
        Some(lane)
    }

    fn store(&mut self, stored: &Stored<'_>) {
        let Some(lane) = self.lane(stored) else {
            return;
        };
        let Stored { hashes, tokens, .. } = stored.clone();
        let Some(parent) = stored.parent else {
            let run = Waiting {
                lane,
                parent: EngineHash(0),
                hashes,
                tokens,
            };
            return self.put_and_heal(&run, Vec::new());
        };
        let run = Waiting {
            lane,
            parent,
            hashes,
            tokens,
        };
        if let Some(prefix) = self.before(&run) {
            return self.put_and_heal(&run, prefix);
        }
        if run.is_paired() {
            for &hash in &run.hashes {
                *self.waiting_references.entry((lane, hash)).or_default() += 1;
                self.waiting_doubted.remove(&(lane, hash));
            }
        }
        self.waiting.push(run);
    }

    fn put_and_heal(&mut self, run: &Waiting, prefix: Prefix) {
        self.put(run, prefix, &vec![(1, true); run.hashes.len()]);
        let removed = self.heal();
        self.forget_all(&removed);
    }

    /// What the blocks of a run follow, by its parent or else by its first block.
    fn before(&self, run: &Waiting) -> Option<Prefix> {
        self.prefix(run.lane, run.parent).or_else(|| {
            let (first, _) = self
                .held
                .get(&(run.lane, run.hashes[0]))
                .filter(|_| run.is_paired())?;
            Some(first[..first.len() - SIZE].to_vec())
        })
    }

    /// The references that each block gets, and whether it is surely there.
    fn put(&mut self, run: &Waiting, mut prefix: Prefix, references: &[(u32, bool)]) {
        let Waiting {
            lane,
            hashes,
            tokens,
            ..
        } = run;
        let mut prefixes = Vec::new();
        for block in tokens.chunks_exact(SIZE) {
            prefix.extend(block);
            prefixes.push(prefix.clone());
        }
        if run.is_paired() {
            self.named.push(*lane);
            for ((&hash, prefix), &(more, is_sure)) in hashes.iter().zip(prefixes).zip(references) {
                if is_sure {
                    self.sure.insert((*lane, prefix.clone()));
                }
                self.held.entry((*lane, hash)).or_insert((prefix, 0)).1 += more;
            }
        } else {
            self.loose.push((*lane, hashes.clone(), prefixes));
        }
    }

    fn heal(&mut self) -> Vec<(Lane, EngineHash)> {
        let mut removed = Vec::new();
        while let Some(at) = self
            .waiting
            .iter()
            .position(|run| self.before(run).is_some())
        {
            let prefix = self.before(&self.waiting[at]).expect("just found");
            let run = self.waiting.remove(at);
            let waited = |&hash: &EngineHash| {
                let key = (run.lane, hash);
                let references = self.waiting_references.remove(&key).unwrap_or(0);
                let is_doubted = self.waiting_doubted.remove(&key);
                let is_sure = references > 0 && !is_doubted && !self.held.contains_key(&key);
                (references, is_sure)
            };
            let references: Vec<(u32, bool)> = run.hashes.iter().map(waited).collect();
            self.put(&run, prefix, &references);
            removed.extend(run.hashes.iter().map(|&hash| (run.lane, hash)));
        }
        removed
    }

    fn forget_all(&mut self, removed: &[(Lane, EngineHash)]) {
        for key in removed {
            if self
                .held
                .get(key)
                .is_some_and(|(_, references)| *references == 0)
            {
                self.held.remove(key);
            }
        }
    }

    fn store_bare(&mut self, stored: &Stored<'_>) {
        for &hash in &stored.hashes {
            let known = self.held.iter().find(|((_, held), _)| *held == hash);
            let Some((_, (prefix, _))) = known else {
                continue;
            };
            let prefix = prefix.clone();
            if let Some(lane) = self.lane(stored) {
                self.sure.insert((lane, prefix.clone()));
                self.held.entry((lane, hash)).or_insert((prefix, 0)).1 += 1;
            }
        }
        if matches!(stored.kind, Kind::Other | Kind::Unknown) {
            self.others.push(stored.group);
        }
    }

    fn remove(&mut self, removed: &Removed) {
        for &hash in &removed.hashes {
            let lanes = self.meant(removed, hash);
            for lane in lanes {
                for (of, hashes, prefixes) in std::mem::take(&mut self.loose) {
                    if of == lane && hashes.contains(&hash) {
                        for prefix in prefixes {
                            self.sure.remove(&(lane, prefix));
                        }
                    } else {
                        self.loose.push((of, hashes, prefixes));
                    }
                }
                if let Some((prefix, references)) = self.held.get_mut(&(lane, hash)) {
                    self.sure.remove(&(lane, prefix.clone()));
                    *references -= 1;
                    if *references == 0 {
                        let gone = prefix.clone();
                        self.held.remove(&(lane, hash));
                        for (of, _, prefixes) in &mut self.loose {
                            prefixes.retain(|prefix| of.0 != lane.0 || *prefix != gone);
                        }
                    }
                } else if let Some(references) = self.waiting_references.get_mut(&(lane, hash)) {
                    *references = references.saturating_sub(1);
                    self.waiting_doubted.insert((lane, hash));
                }
                self.waiting.retain(|run| {
                    run.lane != lane || run.is_paired() || !run.hashes.contains(&hash)
                });
            }
        }
    }

    fn meant(&self, removed: &Removed, hash: EngineHash) -> Vec<Lane> {
        let holding: Vec<Lane> = [Medium::Device, Medium::Host, Medium::Disk]
            .into_iter()
            .flat_map(|medium| [None, Some(0), Some(1), Some(2)].map(|group| (medium, group)))
            .filter(|&lane| lane.0 == removed.medium && self.holds(lane, hash))
            .collect();
        let same = (removed.medium, removed.group);
        let is_other = self.others.contains(&removed.group)
            && self.lanes.iter().all(|lane| lane.1 != removed.group);
        if holding.contains(&same) {
            vec![same]
        } else if is_other {
            Vec::new()
        } else if removed.group.is_none() {
            holding
        } else {
            holding
                .into_iter()
                .filter(|lane| lane.1.is_none())
                .collect()
        }
    }

    fn holds(&self, lane: Lane, hash: EngineHash) -> bool {
        self.held.contains_key(&(lane, hash))
            || self
                .loose
                .iter()
                .any(|(of, hashes, _)| *of == lane && hashes.contains(&hash))
            || self
                .waiting
                .iter()
                .any(|run| run.lane == lane && run.hashes.contains(&hash))
    }

    fn prefix(&self, lane: Lane, hash: EngineHash) -> Option<Prefix> {
        let own = self.held.get(&(lane, hash));
        let any = || {
            self.held
                .iter()
                .find(|((_, held), _)| *held == hash)
                .map(|(_, held)| held)
        };
        own.or_else(any).map(|(prefix, _)| prefix.clone())
    }

    fn lane_has(&self, lane: Lane, prefix: &[u32]) -> bool {
        self.held
            .iter()
            .any(|((of, _), (held, _))| *of == lane && held == prefix)
            || self
                .loose
                .iter()
                .any(|(of, _, all)| *of == lane && all.iter().any(|p| p == prefix))
    }

    fn on_device(&self, prefix: &[u32]) -> bool {
        let proven: Vec<Lane> = self
            .proven
            .iter()
            .copied()
            .filter(|lane| lane.0 == Medium::Device && lane.1.is_some())
            .collect();
        let has = |lane| self.lane_has(lane, prefix);
        if has((Medium::Device, None)) {
            return true;
        }
        if proven.is_empty() {
            return (0..3).any(|group| has((Medium::Device, Some(group))));
        }
        proven.into_iter().all(has)
    }

    /// Leases may rest on it.
    pub(super) fn is_sure(&self, prefix: &[u32]) -> bool {
        let has = |lane| self.sure.contains(&(lane, prefix.to_vec()));
        let groups = |lanes: &[Lane]| -> Vec<Lane> {
            let lanes = lanes.iter().copied();
            lanes
                .filter(|lane| lane.0 == Medium::Device && lane.1.is_some())
                .collect()
        };
        let proven = groups(&self.proven);
        let meant = if proven.is_empty() {
            groups(&self.named)
        } else {
            proven
        };
        has((Medium::Device, None)) || (!meant.is_empty() && meant.into_iter().all(has))
    }

    pub(super) fn resident(&self, tokens: &[u32]) -> usize {
        let prefixes = (1..=tokens.len() / SIZE).map(|blocks| &tokens[..blocks * SIZE]);
        prefixes.take_while(|prefix| self.is_sure(prefix)).count()
    }

    fn on_lower(&self, prefix: &[u32]) -> bool {
        [Medium::Host, Medium::Disk]
            .into_iter()
            .flat_map(|medium| [None, Some(0), Some(1), Some(2)].map(|group| (medium, group)))
            .any(|lane| self.lane_has(lane, prefix))
    }

    pub(super) fn matches(&self, tokens: &[u32]) -> (usize, usize) {
        let prefixes = || (1..=tokens.len() / SIZE).map(|blocks| &tokens[..blocks * SIZE]);
        let device = prefixes()
            .take_while(|prefix| self.on_device(prefix))
            .count();
        let any = prefixes()
            .take_while(|prefix| self.on_device(prefix) || self.on_lower(prefix))
            .count();
        (device, any)
    }
}

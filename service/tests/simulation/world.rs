//! Engines, their lines, and all that happens to them around one service.

use std::{collections::BTreeMap, sync::Weak};

use kvatlas::{
    donors::{owners::OwnerKey, vocabulary::Medium, writes::Removal},
    leases::Claim,
};
use kvatlas_events::view;

use crate::{
    cache::Layout,
    content::{Chains, Longest, Prefix, namespace},
    donors::{Leased, Life, Registered},
    engine::{Process, Salts, Style},
    line::{Faults, Line, Way},
    random::Random,
    service::Service,
    tally::{Met, Tally},
};

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
    pub(crate) chains: Chains,
    pub(crate) tally: Tally,
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

    pub(crate) fn take_donors(&mut self, is_gone: impl Fn(&Registered) -> bool) -> u64 {
        self.donors.extract_if(.., |_, it| is_gone(it)).count() as u64
    }
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
        salts: match random.percent(30) {
            true => Salts::InEvents,
            false => Salts::InFirstBlock,
        },
        kept_max: *random.pick(&[0, 1, 3, 10, 1_000, 1_000]).unwrap(),
        has_ghosts: random.percent(40),
        lower_stride: *random.pick(&[1, 1, 2]).unwrap(),
        late: *random.pick(&[0, 4, 8, 12]).unwrap(),
        damage: *random.pick(&[0, 0, 0, 1]).unwrap(),
    }
}

//! The service's own way from events to a pick, in this process: payloads go through the intake
//! into the view, prompts of tokens through the fleet.

use std::sync::Arc;

use bytes::Bytes;
use kvatlas::{
    donors::{
        catalog::{Catalog, Defaults},
        gate::Gates,
        scope::Workers,
        vocabulary::Mode,
    },
    events::{
        Hearing,
        fleet::{Fleet, WorkerQuery},
    },
};
use kvatlas_events::{
    event::{Batch, EngineHash, Event, Kind, Medium, Rejected, Removed, Stored},
    feed::{Engine, Frame, Input, Intake, News, Reply},
    view::{Namespace, Prompt},
    wire::{Form, encode},
};

use super::super::subject::world::mix;

const VOCABULARY: u64 = 150_000;

type Tell = Box<dyn FnMut(News<'_>) -> Reply>;

/// The service, and the engines that it follows.
pub(super) struct Service {
    fleet: Arc<Fleet>,
    namespace: Namespace,
    block_tokens: usize,
    engines: Vec<Followed>,
}

struct Followed {
    name: String,
    intake: Intake<Tell>,
    sent: u64,
}

/// What FindWorkers says of a prompt.
#[derive(Debug)]
pub(super) struct Answer {
    /// Blocks that each worker holds from the start.
    pub(super) held: Vec<usize>,
    pub(super) picked: Option<usize>,
}

impl Service {
    /// Follows engines whose caches are empty. The seed is that of an instance.
    pub(super) fn new(workers: usize, block_tokens: usize, seed: u64) -> Self {
        let defaults = Defaults {
            mode: Mode::default(),
            mode_is_given: false,
            gates: Gates::default(),
        };
        let catalog = Arc::new(Catalog::new(defaults, 1));
        let namespace = catalog.residents.engine_namespace(None);
        let fleet = Arc::new(Fleet::new(catalog, Box::new(|| 0), seed));
        let follow = |number: usize| {
            // By name they are in the order of their numbers.
            let name = format!("{number:04}");
            let mut hearing = Hearing::new(Arc::clone(&fleet), &name, namespace);
            let tell: Tell = Box::new(move |news| hearing.hear(news));
            let engine = Engine {
                namespace,
                block_size: None,
                rank: 0,
                has_replay: false,
            };
            let mut intake = Intake::new(engine, &fleet.shared, tell);
            intake.step(Input::Connected, 0);
            let sent = 0;
            Followed { name, intake, sent }
        };
        let mut service = Self {
            engines: (0..workers).map(follow).collect(),
            fleet,
            namespace,
            block_tokens,
        };
        for worker in 0..workers {
            service.publish(worker, Vec::new(), 0);
        }
        service
    }

    /// Who holds how much of a prompt, and who gets it where it is a request's.
    pub(super) fn find(&self, blocks: &[u32], request: Option<&str>, now_ms: u64) -> Answer {
        let tokens = self.tokens(blocks);
        let query = WorkerQuery {
            prompt: Prompt {
                namespace: self.namespace,
                adapter: None,
                tenant: None,
                items: &[],
                tokens: &tokens,
            },
            is_known: true,
            block_size: u32::try_from(self.block_tokens).unwrap_or(u32::MAX),
            visible: &Workers::All,
        };
        let (found, picked) = self.fleet.find(&query, request, now_ms);
        let of = |name: &str| self.engines.iter().position(|engine| engine.name == name);
        let mut held = vec![0; self.engines.len()];
        for one in &found {
            if let Some(worker) = of(&one.owner.worker_id) {
                held[worker] = one.holding.device_tokens() as usize / self.block_tokens;
            }
        }
        let picked = picked.and_then(|picked| of(&picked.owner.worker_id));
        Answer { held, picked }
    }

    pub(super) fn finish(&self, request: String) {
        self.fleet.finish(&[request]);
    }

    /// An engine computed a prompt's blocks but for the first `held`, and dropped others.
    pub(super) fn computed(
        &mut self,
        worker: usize,
        (blocks, held): (&[u32], usize),
        gone: Vec<u32>,
        now_ms: u64,
    ) {
        let new = &blocks[held..];
        let stored = Stored {
            hashes: new.iter().copied().map(engine_hash).collect(),
            parent: held.checked_sub(1).map(|last| engine_hash(blocks[last])),
            tokens: self.tokens(new),
            bigram_end: None,
            block_size: u32::try_from(self.block_tokens).expect("blocks are small"),
            medium: Medium::Device,
            adapter: None,
            salt: None,
            extra: Vec::new(),
            group: Some(0),
            kind: Kind::Attention,
            lookahead: Vec::new(),
        };
        let stored = (!new.is_empty()).then_some(Event::Stored(stored));
        let removed = gone.into_iter().map(|block| {
            Event::Removed(Removed {
                hashes: vec![engine_hash(block)],
                medium: Medium::Device,
                group: Some(0),
            })
        });
        self.publish(worker, stored.into_iter().chain(removed).collect(), now_ms);
    }

    fn publish(&mut self, worker: usize, events: Vec<Event<'static>>, now_ms: u64) {
        let batch = Batch {
            sent_at_s: 1.0,
            rank: Some(0),
            events,
            rejected: Rejected::default(),
        };
        let payload = Bytes::from(encode(&batch, Form::Map));
        let followed = &mut self.engines[worker];
        let frame = Frame::new(followed.sent, payload);
        followed.sent += 1;
        followed.intake.step(Input::Live(frame), now_ms);
    }

    /// A block's name stands for its tokens.
    fn tokens(&self, blocks: &[u32]) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(blocks.len() * self.block_tokens);
        for &block in blocks {
            let first = u64::from(block) << 32;
            tokens.extend((0..self.block_tokens as u64).map(|at| {
                u32::try_from(mix(first | at) % VOCABULARY).expect("below the vocabulary's size")
            }));
        }
        tokens
    }
}

fn engine_hash(block: u32) -> EngineHash {
    EngineHash(mix(u64::from(block)))
}

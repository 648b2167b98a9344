//! The three indexes of the crate `dynamo-kv-router`.

use std::{cell::RefCell, sync::Arc, thread};

use dynamo_kv_router::{
    ConcurrentRadixTreeCompressed, LocalBlockHash, OverlapScores, PositionalIndexer, RadixTree,
    RouterEvent, SyncIndexer,
    indexer::WorkerTask,
    nested_map::LevelIndex,
    protocols::{
        ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData,
        KvCacheStoreData, KvCacheStoredBlockData, WorkerWithDpRank,
    },
};
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use crate::subject::{Finds, Subject, world::Block};

/// As its documentation suggests.
const POSITIONAL_JUMP: usize = 32;
const COUNTERS: Option<&dynamo_kv_router::indexer::PreBoundEventCounters> = None;

fn stored(worker: usize, parent: Option<&Block>, blocks: &[Block]) -> RouterEvent {
    let block = |block: &Block| KvCacheStoredBlockData {
        block_hash: ExternalSequenceBlockHash(block.engine),
        tokens_hash: LocalBlockHash(block.content),
        mm_extra_info: None,
    };
    let data = KvCacheEventData::Stored(KvCacheStoreData {
        parent_hash: parent.map(|parent| ExternalSequenceBlockHash(parent.engine)),
        start_position: None,
        blocks: blocks.iter().map(block).collect(),
    });
    event(worker, data)
}

fn removed(worker: usize, blocks: &[Block]) -> RouterEvent {
    let hashes = blocks
        .iter()
        .map(|block| ExternalSequenceBlockHash(block.engine));
    let data = KvCacheEventData::Removed(KvCacheRemoveData {
        block_hashes: hashes.collect(),
    });
    event(worker, data)
}

fn event(worker: usize, data: KvCacheEventData) -> RouterEvent {
    let event = KvCacheEvent {
        event_id: 0,
        data,
        dp_rank: 0,
    };
    RouterEvent::new(worker as u64, event)
}

fn hashes(prompt: &[Block]) -> Vec<LocalBlockHash> {
    prompt
        .iter()
        .map(|block| LocalBlockHash(block.content))
        .collect()
}

fn held(found: &OverlapScores, worker: usize) -> usize {
    let held = found.scores.get(&WorkerWithDpRank::new(worker as u64, 0));
    held.map_or(0, |&blocks| blocks as usize)
}

/// The radix tree, which belongs to one thread.
#[derive(Default)]
pub struct Radix(RefCell<RadixTree>);

impl Subject for Radix {
    type Event = RouterEvent;
    type Writer = ();

    fn writer(&self) {}

    fn stored(&self, worker: usize, parent: Option<&Block>, blocks: &[Block]) -> RouterEvent {
        stored(worker, parent, blocks)
    }

    fn removed(&self, worker: usize, blocks: &[Block]) -> RouterEvent {
        removed(worker, blocks)
    }

    fn apply(&self, (): &mut (), event: RouterEvent) {
        self.0.borrow_mut().apply_event(event).expect("well formed");
    }
}

impl Finds for Radix {
    type Chain = Vec<LocalBlockHash>;
    type Found = OverlapScores;

    fn chain(&self, prompt: &[Block]) -> Vec<LocalBlockHash> {
        hashes(prompt)
    }

    fn find(&self, chain: Vec<LocalBlockHash>) -> OverlapScores {
        self.0.borrow().find_matches(chain, false)
    }

    fn held(&self, found: &OverlapScores, worker: usize) -> usize {
        held(found, worker)
    }
}

/// The concurrent radix tree: the only way to write is a thread behind a queue.
#[derive(Default)]
pub struct Concurrent(Arc<ConcurrentRadixTreeCompressed>);

impl Subject for Concurrent {
    type Event = RouterEvent;
    type Writer = flume::Sender<WorkerTask>;

    fn writer(&self) -> flume::Sender<WorkerTask> {
        let (tasks, to_do) = flume::unbounded();
        let tree = Arc::clone(&self.0);
        thread::spawn(move || tree.worker(to_do, None));
        tasks
    }

    fn stored(&self, worker: usize, parent: Option<&Block>, blocks: &[Block]) -> RouterEvent {
        stored(worker, parent, blocks)
    }

    fn removed(&self, worker: usize, blocks: &[Block]) -> RouterEvent {
        removed(worker, blocks)
    }

    fn apply(&self, tasks: &mut flume::Sender<WorkerTask>, event: RouterEvent) {
        tasks.send(WorkerTask::Event(event)).expect("it runs");
    }

    fn settle(&self, tasks: &mut flume::Sender<WorkerTask>) {
        if self.0.try_schedule_cleanup() {
            tasks
                .send(WorkerTask::CleanupStaleChildren)
                .expect("it runs");
        }
        let (done, is_done) = oneshot::channel();
        tasks.send(WorkerTask::Flush(done)).expect("it runs");
        is_done.blocking_recv().expect("it answers");
    }
}

impl Finds for Concurrent {
    type Chain = Vec<LocalBlockHash>;
    type Found = OverlapScores;

    fn chain(&self, prompt: &[Block]) -> Vec<LocalBlockHash> {
        hashes(prompt)
    }

    fn find(&self, chain: Vec<LocalBlockHash>) -> OverlapScores {
        self.0.find_matches(&chain, false)
    }

    fn held(&self, found: &OverlapScores, worker: usize) -> usize {
        held(found, worker)
    }
}

/// The positional index.
pub struct Positional(PositionalIndexer);

pub fn positional() -> Positional {
    Positional(PositionalIndexer::new(POSITIONAL_JUMP))
}

impl Subject for Positional {
    type Event = RouterEvent;
    type Writer = FxHashMap<WorkerWithDpRank, LevelIndex>;

    fn writer(&self) -> Self::Writer {
        FxHashMap::default()
    }

    fn stored(&self, worker: usize, parent: Option<&Block>, blocks: &[Block]) -> RouterEvent {
        stored(worker, parent, blocks)
    }

    fn removed(&self, worker: usize, blocks: &[Block]) -> RouterEvent {
        removed(worker, blocks)
    }

    fn apply(&self, held: &mut Self::Writer, event: RouterEvent) {
        let applied = self.0.apply_event(held, event, COUNTERS);
        applied.expect("well formed");
    }
}

impl Finds for Positional {
    type Chain = Vec<LocalBlockHash>;
    type Found = OverlapScores;

    fn chain(&self, prompt: &[Block]) -> Vec<LocalBlockHash> {
        hashes(prompt)
    }

    fn find(&self, chain: Vec<LocalBlockHash>) -> OverlapScores {
        self.0.find_matches(&chain, false)
    }

    fn held(&self, found: &OverlapScores, worker: usize) -> usize {
        held(found, worker)
    }
}

//! The chain index of the crate `kv-index`.

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, OverlapScores, SequenceHash, StoredBlock};

use crate::subject::{Finds, Subject, world::Block};

pub struct Chains {
    index: ChainIndex,
    workers: Vec<u32>,
}

pub enum Event {
    Stored {
        worker: usize,
        parent: Option<SequenceHash>,
        blocks: Vec<StoredBlock>,
    },
    Removed {
        worker: usize,
        hashes: Vec<SequenceHash>,
    },
}

impl Chains {
    pub fn new(workers: usize) -> Self {
        let index = ChainIndex::with_max_workers(workers);
        let worker = |number| index.intern_worker(&format!("worker-{number}"));
        let workers = (0..workers).map(|number| worker(number).expect("as many as asked for"));
        let workers = workers.collect();
        Self { index, workers }
    }
}

impl Subject for Chains {
    type Event = Event;
    type Writer = Vec<ChainBlockMap>;

    fn writer(&self) -> Vec<ChainBlockMap> {
        self.workers.iter().map(|_| ChainBlockMap::new()).collect()
    }

    fn stored(&self, worker: usize, parent: Option<&Block>, blocks: &[Block]) -> Event {
        let block = |block: &Block| StoredBlock {
            seq_hash: SequenceHash(block.engine),
            content_hash: ContentHash(block.content),
        };
        Event::Stored {
            worker,
            parent: parent.map(|parent| SequenceHash(parent.engine)),
            blocks: blocks.iter().map(block).collect(),
        }
    }

    fn removed(&self, worker: usize, blocks: &[Block]) -> Event {
        let hashes = blocks.iter().map(|block| SequenceHash(block.engine));
        Event::Removed {
            worker,
            hashes: hashes.collect(),
        }
    }

    fn apply(&self, maps: &mut Vec<ChainBlockMap>, event: Event) {
        match event {
            Event::Stored {
                worker,
                parent,
                blocks,
            } => {
                let map = &mut maps[worker];
                let stored = self
                    .index
                    .apply_stored(self.workers[worker], &blocks, parent, map);
                stored.expect("the parent is there");
            }
            Event::Removed { worker, hashes } => {
                self.index
                    .apply_removed(self.workers[worker], &hashes, &mut maps[worker]);
            }
        }
    }
}

impl Finds for Chains {
    type Chain = Vec<ContentHash>;
    type Found = OverlapScores;

    fn chain(&self, prompt: &[Block]) -> Vec<ContentHash> {
        prompt
            .iter()
            .map(|block| ContentHash(block.content))
            .collect()
    }

    fn find(&self, chain: Vec<ContentHash>) -> OverlapScores {
        self.index.find_matches(&chain, false)
    }

    fn held(&self, found: &OverlapScores, worker: usize) -> usize {
        let held = found.scores.get(&self.workers[worker]);
        held.map_or(0, |&blocks| blocks as usize)
    }
}

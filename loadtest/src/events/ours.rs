//! Our index and our view as what is measured, each in a process of its own.

use clap::ValueEnum;
use kvatlas_events::{
    event::{EngineHash, Event, Kind, Medium, Removed, Stored},
    view::{
        Change, Index, Match, Namespace, OwnHash, Place, Prompt, Put, Seat, Shape, SourceId, Start,
        View, chain,
    },
};
use serde::{Deserialize, Serialize};

use super::subject::{
    Figures, Filled, Finds, Subject,
    world::{Block, World, mix},
};
use crate::{args::EventsChildArgs, error::LoadtestError};

/// What such a process measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Which {
    /// The prefix index alone.
    Index,
    /// All rules, from events with tokens.
    View,
}

/// Tokens a block.
pub(super) const BLOCK_TOKENS: usize = 16;
const VOCABULARY: u64 = 150_000;
pub(super) const SHAPE: Shape = Shape {
    block_size: 16,
    lookahead: 0,
};
const MODEL: Namespace = Namespace(0x5eed);
const ROOT: OwnHash = OwnHash(1);

/// Measures one of them.
///
/// # Errors
/// When an answer is wrong.
pub fn measure(args: &EventsChildArgs) -> Result<Figures, LoadtestError> {
    let world = World::of(args.blocks, args.workers);
    match args.which {
        Which::Index => {
            let mut filled = Filled::new(|| OurIndex::new(world), world)?;
            filled.chunks();
            Ok(filled.figures)
        }
        Which::View => {
            let mut filled = Filled::new(|| OurView::new(world.workers), world)?;
            filled.finds(args.look_ups).map_err(wrong)?;
            filled.finds_beside_writer(args.look_ups).map_err(wrong)?;
            filled.chunks();
            Ok(filled.figures)
        }
    }
}

fn wrong(reason: String) -> LoadtestError {
    let call = "look-up in the view";
    LoadtestError::WrongAnswer { call, reason }
}

/// The index says where a block is and takes it back from there: who uses it keeps a place for each
/// block, here by its number, in the view by the engine's name.
#[derive(Debug)]
struct OurIndex {
    index: Index,
    seats: Vec<Seat>,
    entries: usize,
}

impl OurIndex {
    fn new(world: World) -> Self {
        let seat = |worker| Seat::new(u16::try_from(worker).expect("fewer than 65,536"), 0);
        Self {
            index: Index::default(),
            seats: (0..world.workers).map(seat).collect(),
            entries: world.entries(),
        }
    }
}

enum IndexEvent {
    Stored {
        seat: Seat,
        parent: Option<usize>,
        first: usize,
        contents: Vec<u64>,
    },
    Removed {
        seat: Seat,
        blocks: Vec<usize>,
    },
}

#[derive(Debug)]
struct IndexWriter {
    places: Vec<Option<Place>>,
    puts: Vec<Put>,
}

impl Subject for OurIndex {
    type Event = IndexEvent;
    type Writer = IndexWriter;

    fn writer(&self) -> IndexWriter {
        IndexWriter {
            places: vec![None; self.entries],
            puts: Vec::new(),
        }
    }

    fn stored(&self, worker: usize, parent: Option<&Block>, blocks: &[Block]) -> IndexEvent {
        IndexEvent::Stored {
            seat: self.seats[worker],
            parent: parent.map(|parent| parent.number),
            first: blocks.first().map_or(0, |block| block.number),
            contents: blocks.iter().map(|block| block.content).collect(),
        }
    }

    fn removed(&self, worker: usize, blocks: &[Block]) -> IndexEvent {
        IndexEvent::Removed {
            seat: self.seats[worker],
            blocks: blocks.iter().map(|block| block.number).collect(),
        }
    }

    fn apply(&self, writer: &mut IndexWriter, event: IndexEvent) {
        let IndexWriter { places, puts } = writer;
        match event {
            IndexEvent::Stored {
                seat,
                parent,
                first,
                contents,
            } => {
                let after = parent.and_then(|parent| places[parent]);
                let start = after.map_or(Start::Root(ROOT), Start::After);
                self.index.put(seat, start, &contents, puts);
                for (place, put) in places[first..].iter_mut().zip(puts) {
                    *place = Some(put.place);
                }
            }
            IndexEvent::Removed { seat, blocks } => {
                for block in blocks {
                    if let Some(place) = places[block].take() {
                        self.index.release(seat, place);
                    }
                }
            }
        }
    }
}

#[derive(Debug)]
struct OurView {
    view: View,
    sources: Vec<SourceId>,
}

impl OurView {
    fn new(workers: usize) -> Self {
        let view = View::default();
        let sources = (0..workers).filter_map(|_| view.add(MODEL)).collect();
        Self { view, sources }
    }
}

impl Subject for OurView {
    type Event = (SourceId, [Event<'static>; 1]);
    type Writer = Vec<Change>;

    fn writer(&self) -> Vec<Change> {
        Vec::new()
    }

    fn stored(&self, worker: usize, parent: Option<&Block>, blocks: &[Block]) -> Self::Event {
        let parent = parent.map(|parent| EngineHash(parent.engine));
        (self.sources[worker], [stored(parent, blocks)])
    }

    fn removed(&self, worker: usize, blocks: &[Block]) -> Self::Event {
        (self.sources[worker], [removed(blocks)])
    }

    fn apply(&self, changes: &mut Vec<Change>, (source, events): Self::Event) {
        changes.clear();
        self.view.apply(source, &events, changes);
    }
}

impl Finds for OurView {
    type Chain = Vec<OwnHash>;
    type Found = Vec<Match>;

    fn chain(&self, prompt: &[Block]) -> Vec<OwnHash> {
        let tokens: Vec<u32> = prompt.iter().flat_map(|of| tokens(of.content)).collect();
        let prompt = Prompt {
            namespace: MODEL,
            adapter: None,
            tenant: None,
            items: &[],
            tokens: &tokens,
        };
        chain(&prompt, SHAPE)
    }

    fn find(&self, chain: Vec<OwnHash>) -> Vec<Match> {
        self.view.matches(SHAPE, &chain)
    }

    fn held(&self, found: &Vec<Match>, worker: usize) -> usize {
        let of = found.iter().find(|of| of.source == self.sources[worker]);
        of.map_or(0, |of| of.device_blocks as usize)
    }
}

/// Such blocks as an engine tells of them.
pub(super) fn stored(parent: Option<EngineHash>, blocks: &[Block]) -> Event<'static> {
    Event::Stored(Stored {
        hashes: blocks
            .iter()
            .map(|block| EngineHash(block.engine))
            .collect(),
        parent,
        tokens: blocks.iter().flat_map(|of| tokens(of.content)).collect(),
        bigram_end: None,
        block_size: u32::try_from(BLOCK_TOKENS).expect("a small constant"),
        medium: Medium::Device,
        adapter: None,
        salt: None,
        extra: Vec::new(),
        group: Some(0),
        kind: Kind::Attention,
        lookahead: Vec::new(),
    })
}

/// The tokens of a block, which its content stands for.
pub(super) fn tokens(content: u64) -> impl Iterator<Item = u32> {
    (0..BLOCK_TOKENS as u64).map(move |at| {
        u32::try_from(mix(content ^ at) % VOCABULARY).expect("below the vocabulary's size")
    })
}

pub(super) fn removed(blocks: &[Block]) -> Event<'static> {
    Event::Removed(Removed {
        hashes: blocks
            .iter()
            .map(|block| EngineHash(block.engine))
            .collect(),
        medium: Medium::Device,
        group: Some(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_are_measured_and_the_view_answers_rightly() {
        for which in [Which::Index, Which::View] {
            let figures = measure(&EventsChildArgs {
                which,
                blocks: 8192,
                workers: 4,
                look_ups: 40,
            });
            let figures = figures.unwrap();
            assert_eq!(figures.entries, 8192);
            assert!(figures.removes_per_s > 0.0 && figures.chunk_events_per_s > 0.0);
            assert_eq!(figures.find_p99_us.is_some(), which == Which::View);
        }
    }
}

//! The rules of the view, one case each; its limits; and a slow twin under random events.

mod bounds;
mod names;
mod random;
mod rules;
mod sizes;
mod sure;
mod twin;

use std::ops::Range;

use super::{Change, Counts, Namespace, OwnHash, Prompt, Shape, SourceId, View, chain};
use crate::event::{EngineHash, Event, Kind, Medium, Removed, Stored};

const MODEL: Namespace = Namespace(0xfeed);
const SIZE: u32 = 16;
const SHAPE: Shape = Shape {
    block_size: SIZE,
    lookahead: 0,
};

/// An attention group's blocks on the device, named 1, 2, ... after the place of their tokens.
fn stored(tokens: Range<u32>) -> Stored<'static> {
    let names = tokens.start / SIZE + 1..=tokens.end / SIZE;
    let parent = (tokens.start > 0).then(|| EngineHash(u64::from(tokens.start / SIZE)));
    Stored {
        hashes: names.map(|name| EngineHash(name.into())).collect(),
        parent,
        tokens: tokens.collect(),
        bigram_end: None,
        block_size: SIZE,
        medium: Medium::Device,
        adapter: None,
        salt: None,
        extra: Vec::new(),
        group: Some(0),
        kind: Kind::Attention,
        lookahead: Vec::new(),
    }
}

fn removed(names: &[u64]) -> Removed {
    Removed {
        hashes: hashes(names),
        medium: Medium::Device,
        group: Some(0),
    }
}

fn hashes(names: &[u64]) -> Vec<EngineHash> {
    names.iter().map(|&name| EngineHash(name)).collect()
}

/// A view that follows one source, and what became of the events it was given.
struct Engine {
    view: View,
    source: SourceId,
    counts: Counts,
    changes: Vec<Change>,
}

impl Engine {
    fn new() -> Self {
        let view = View::default();
        let source = view.add(MODEL).expect("room for one");
        Self {
            view,
            source,
            counts: Counts::default(),
            changes: Vec::new(),
        }
    }

    fn after(batches: &[&[Event<'_>]]) -> Self {
        let mut engine = Self::new();
        for batch in batches {
            engine.send(batch);
        }
        engine
    }

    fn send(&mut self, batch: &[Event<'_>]) {
        self.counts += self
            .view
            .apply(self.source, batch, &mut self.changes)
            .expect("it is followed");
    }

    /// Tokens of a prompt on the device, and on lower tiers after those.
    fn finds(&self, prompt: &Prompt<'_>, shape: Shape) -> (u32, u32) {
        let found = self.view.matches(shape, &chain(prompt, shape));
        found.first().map_or((0, 0), |found| {
            (
                found.device_blocks * shape.block_size,
                found.lower_blocks * shape.block_size,
            )
        })
    }

    /// Blocks that leases may rest on.
    fn resident(&self, chain: &[OwnHash]) -> usize {
        self.view.resident(self.source, SHAPE, chain)
    }

    fn finds_tokens(&self, tokens: Range<u32>) -> (u32, u32) {
        let tokens: Vec<u32> = tokens.collect();
        self.finds(&prompt(&tokens), SHAPE)
    }
}

fn names(tokens: Range<u32>) -> Vec<OwnHash> {
    let tokens: Vec<u32> = tokens.collect();
    chain(&prompt(&tokens), SHAPE)
}

fn prompt(tokens: &[u32]) -> Prompt<'_> {
    Prompt {
        namespace: MODEL,
        adapter: None,
        tenant: None,
        items: &[],
        tokens,
    }
}

fn store(stored: Stored<'static>) -> Event<'static> {
    Event::Stored(stored)
}

fn remove(names: &[u64]) -> Event<'static> {
    Event::Removed(removed(names))
}

/// A group that stores one state for all of its tokens, under the hash of their last block.
fn mamba(tokens: Range<u32>, group: u32) -> Stored<'static> {
    let last = EngineHash(u64::from(tokens.end / SIZE));
    Stored {
        hashes: vec![last],
        group: Some(group),
        kind: Kind::Other,
        ..stored(tokens)
    }
}

fn without_kind(stored: Stored<'static>) -> Stored<'static> {
    Stored {
        kind: Kind::Absent,
        ..stored
    }
}

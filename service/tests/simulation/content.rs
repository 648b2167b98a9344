//! What prompts are made of: few blocks, so that engines and donors share many prefixes.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use kvatlas::donors::namespace::Namespace;
use kvatlas_events::{
    event::Adapter,
    view::{self, OwnHash, Prompt, Shape, chain, tenant_key},
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::random::Random;

/// Tokens a block: enough for seeds in every two of them.
pub(crate) const SIZE: usize = 64;
/// Blocks of a prompt at most.
pub(crate) const DEPTH_MAX: usize = 6;
const CHOICES: usize = 2;

/// What a chain begins from: the adapter and the cache salt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Root {
    pub(crate) adapter: Option<&'static str>,
    pub(crate) salt: Option<&'static str>,
}

pub(crate) const ROOTS: [Root; 5] = [
    root(None, None),
    root(None, Some("salt")),
    root(Some("lora"), None),
    root(Some("lora"), Some("salt")),
    // Told apart by nothing but their places.
    root(Some("salt"), None),
];

const fn root(adapter: Option<&'static str>, salt: Option<&'static str>) -> Root {
    Root { adapter, salt }
}

/// A block and all before it: a choice for each.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Prefix {
    pub(crate) root: usize,
    pub(crate) path: Vec<u8>,
}

impl Prefix {
    pub(crate) fn any(random: &mut Random) -> Self {
        let root = match random.percent(75) {
            true => 0,
            false => random.below(ROOTS.len()),
        };
        let depth = random.between(1, DEPTH_MAX);
        let choice = |_| u8::try_from(random.below(CHOICES)).unwrap();
        let path = (0..depth).map(choice).collect();
        Self { root, path }
    }

    pub(crate) fn depth(&self) -> usize {
        self.path.len()
    }

    /// Its first blocks.
    pub(crate) fn first(&self, depth: usize) -> Self {
        Self {
            root: self.root,
            path: self.path[..depth].to_vec(),
        }
    }

    pub(crate) fn begins(&self, other: &Self) -> bool {
        self.root == other.root && other.path.starts_with(&self.path)
    }

    /// Of the blocks from `from` on.
    pub(crate) fn tokens(&self, from: usize) -> Vec<u32> {
        let block = |(place, &choice): (usize, &u8)| {
            (0..SIZE).map(move |at| {
                let place = (place * SIZE + at) as u64;
                u32::try_from(xxh3_64_with_seed(&[choice], place) % 50_021).unwrap()
            })
        };
        let blocks = self.path.iter().enumerate();
        blocks.skip(from).flat_map(block).collect()
    }

    /// Its blocks' names in the view.
    pub(crate) fn chain(&self, namespace: view::Namespace, shape: Shape) -> Vec<OwnHash> {
        let Root { adapter, salt } = ROOTS[self.root];
        let tenant = salt.map(tenant_key);
        let prompt = Prompt {
            namespace,
            adapter: adapter.map(Adapter::Name),
            tenant: tenant.as_deref(),
            items: &[],
            tokens: &self.tokens(0),
        };
        chain(&prompt, shape)
    }
}

/// Blocks of so many times [`SIZE`].
pub(crate) fn shape(stride: usize) -> Shape {
    Shape {
        block_size: u32::try_from(stride * SIZE).unwrap(),
        lookahead: 0,
    }
}

/// The namespace of donors whose prompts begin from a root.
pub(crate) fn namespace(root: usize) -> Namespace {
    let Root { adapter, salt } = ROOTS[root];
    Namespace {
        model: "model".into(),
        block_size: u32::try_from(SIZE).unwrap(),
        adapter: adapter.unwrap_or("none").into(),
        tenant_key: tenant_key(salt.unwrap_or_default()),
        ..Namespace::default()
    }
}

/// Chains that were worked out: a step looks at all of them.
#[derive(Debug, Default)]
pub(crate) struct Chains(BTreeMap<Question, Rc<[OwnHash]>>);

type Question = (view::Namespace, Prefix, usize);

impl Chains {
    pub(crate) fn of(
        &mut self,
        namespace: view::Namespace,
        prompt: &Prefix,
        stride: usize,
    ) -> Rc<[OwnHash]> {
        let key = (namespace, prompt.clone(), stride);
        let make = || prompt.chain(namespace, shape(stride)).into();
        Rc::clone(self.0.entry(key).or_insert_with(make))
    }
}

/// Prefixes that begin no other of them.
#[derive(Debug, Default)]
pub(crate) struct Longest(BTreeSet<Prefix>);

impl Longest {
    pub(crate) fn add(&mut self, prefix: &Prefix) {
        if !self.0.iter().any(|known| prefix.begins(known)) {
            self.0.retain(|known| !known.begins(prefix));
            self.0.insert(prefix.clone());
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Prefix> {
        self.0.iter()
    }

    pub(crate) fn any(&self, random: &mut Random) -> Option<Prefix> {
        let all: Vec<&Prefix> = self.0.iter().collect();
        random.pick(&all).map(|&prefix| prefix.clone())
    }
}

//! Our own names of blocks: a hash of all that decides a block's content, chained from the root.
//!
//! ```text
//! root    = namespace, shape, adapter, tenant
//! content = the block's tokens and its look-ahead, the items of other media in it
//! own     = link(own of the parent, or root; content)
//! ```
//!
//! An own hash therefore names the whole prefix that ends with its block. Sixty-four bits are
//! enough: among ten million different blocks two share a name with a probability of 3e-6, and a
//! prompt of ten thousand blocks meets a wrong one with 5e-9. Every name is made with a secret of
//! this process, since without one two blocks of the same name can be written down by hand. The
//! names are never written down.

use std::sync::LazyLock;

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::{xxh3_64_with_secret, xxh3_64_with_seed};

use crate::event::{Adapter, Extra};

/// The name of a block and of all blocks before it.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct OwnHash(pub u64);

/// What makes blocks of different engines interchangeable (the model and how it is run), as a
/// number that is the same for the same namespace. Make it from a secret, so that no client can
/// search for two prompts with one name.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Namespace(pub u128);

/// How an engine cuts tokens into blocks. Blocks of different shapes never share a name.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shape {
    /// Tokens a block, at least 1.
    pub block_size: u32,
    /// How many of the following tokens went into a block's hash: the block is a hit only where
    /// they follow. 1 for bigrams.
    pub lookahead: u32,
}

/// Everything about a prompt that decides which blocks it can use.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    pub namespace: Namespace,
    pub adapter: Option<Adapter<'a>>,
    /// Whose it is, by a [`tenant_key`]; that of no salt is the same as none.
    pub tenant: Option<&'a str>,
    /// In the order of their starts.
    pub items: &'a [Item<'a>],
    pub tokens: &'a [u32],
}

/// An image or the like whose placeholders stand among the tokens.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    pub id: &'a str,
    /// The first placeholder, in tokens from the start of the prompt.
    pub start: u32,
    /// How many placeholders.
    pub tokens: u32,
}

/// The own hashes of a prompt's full blocks, from the start. A block whose look-ahead goes past
/// the end is left out: it would hit only if the right tokens followed.
#[must_use]
pub fn chain(prompt: &Prompt<'_>, shape: Shape) -> Vec<OwnHash> {
    let (size, lookahead) = (shape.block_size as usize, shape.lookahead as usize);
    let usable = prompt.tokens.len().saturating_sub(lookahead);
    let blocks = usable.checked_div(size).unwrap_or(0);
    let mut last = root(prompt.namespace, shape, prompt.adapter, prompt.tenant);
    let end_of = |item: &Item<'_>| item.start as usize + item.tokens as usize;
    let mut items = prompt.items;
    (0..blocks)
        .map(|block| {
            let start = block * size;
            let mut content = tokens(&prompt.tokens[start..start + size + lookahead]);
            while let [first, later @ ..] = items
                && end_of(first) <= start
            {
                items = later;
            }
            let begun = |item: &&Item<'_>| (item.start as usize) < start + size;
            for item in items.iter().take_while(begun) {
                if end_of(item) > start {
                    let offset = offset(item.start as usize, start);
                    content = with_item(content, item.id, offset);
                }
            }
            last = link(last, content);
            last
        })
        .collect()
}

/// The name of the tenant whose prompts have a cache salt, as donors and requests carry it: they
/// never carry the salt. Without a salt everybody is one tenant.
#[must_use]
pub fn tenant_key(salt: &str) -> String {
    if salt.is_empty() {
        return NO_TENANT.to_owned();
    }
    let digest = Sha256::digest(salt);
    digest[..TENANT_BYTES]
        .iter()
        .fold(TENANT_PREFIX.to_owned(), |key, byte| {
            format!("{key}{byte:02x}")
        })
}

const TENANT_PREFIX: &str = "semblend:tenant:v1:";
const NO_TENANT: &str = "semblend:tenant:v1:none";
/// Of the salt's digest.
const TENANT_BYTES: usize = 16;

/// What a chain begins from.
pub(super) fn root(
    namespace: Namespace,
    shape: Shape,
    adapter: Option<Adapter<'_>>,
    tenant: Option<&str>,
) -> OwnHash {
    let mut bytes = [0; 24];
    bytes[..16].copy_from_slice(&namespace.0.to_le_bytes());
    bytes[16..20].copy_from_slice(&shape.block_size.to_le_bytes());
    bytes[20..].copy_from_slice(&shape.lookahead.to_le_bytes());
    let mut root = xxh3_64_with_secret(&bytes, &*SECRET);
    match adapter {
        None => {}
        Some(Adapter::Name(name)) => root = xxh3_64_with_seed(name.as_bytes(), root ^ NAMED),
        Some(Adapter::Id(id)) => root = xxh3_64_with_seed(&id.to_le_bytes(), root ^ NUMBERED),
    }
    if let Some(tenant) = tenant.filter(|tenant| *tenant != NO_TENANT) {
        root = xxh3_64_with_seed(tenant.as_bytes(), root ^ TENANT);
    }
    OwnHash(root)
}

/// A block's content where it continues a chain: its window of tokens (the block and its
/// look-ahead) and what else went into its hash.
pub(super) fn content(window: &[u32], extra: &Extra<'_>) -> u64 {
    let mut content = content_at_root(window, extra);
    if let Some(salt) = extra.salt.filter(|salt| !salt.is_empty()) {
        content = xxh3_64_with_seed(salt.as_bytes(), content ^ SALTED);
    }
    content
}

/// The same where it begins a chain: there the salt is the root's, as a tenant.
pub(super) fn content_at_root(window: &[u32], extra: &Extra<'_>) -> u64 {
    extra
        .items
        .iter()
        .fold(tokens(window), |content, &(id, offset)| {
            with_item(content, id, offset)
        })
}

/// Chains a block to its parent.
pub(super) fn link(parent: OwnHash, content: u64) -> OwnHash {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&parent.0.to_le_bytes());
    bytes[8..].copy_from_slice(&content.to_le_bytes());
    OwnHash(xxh3_64_with_secret(&bytes, &*SECRET))
}

/// As long as the hash can use.
static SECRET: LazyLock<[u8; 192]> = LazyLock::new(|| {
    let mut secret = [0; 192];
    getrandom::fill(&mut secret).expect("the system has random numbers");
    secret
});

// One for each kind of thing that is mixed in, so that an adapter never passes for a salt.
const NAMED: u64 = 0x6164_6170_7465_7231;
const NUMBERED: u64 = 0x6164_6170_7465_7232;
const TENANT: u64 = 0x7465_6e61_6e74_7465;
const SALTED: u64 = 0x7361_6c74_7361_6c74;
const ITEM: u64 = 0x6974_656d_6974_656d;

/// The bytes as they lie: the names never leave this process.
fn tokens(window: &[u32]) -> u64 {
    xxh3_64_with_secret(bytemuck::cast_slice(window), &*SECRET)
}

fn with_item(content: u64, id: &str, offset: i64) -> u64 {
    let place = xxh3_64_with_seed(&offset.to_le_bytes(), content ^ ITEM);
    xxh3_64_with_seed(id.as_bytes(), place)
}

/// Where an item begins as seen from a block's start: negative when it began in an earlier one.
fn offset(item: usize, block: usize) -> i64 {
    let [item, block] = [item, block].map(|at| i64::try_from(at).unwrap_or(i64::MAX));
    item - block
}

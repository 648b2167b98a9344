//! Random batches of events that an engine could send.

use proptest::{option, prelude::*, sample::select};

use crate::event::{
    Adapter, Batch, EngineHash, Event, Extra, Kind, Medium, Rejected, Removed, Stored,
};

pub(super) fn batches() -> impl Strategy<Value = Batch<'static>> {
    let events = prop_oneof![
        4 => stores().prop_map(Event::Stored),
        2 => removals().prop_map(Event::Removed),
        1 => Just(Event::Cleared),
    ];
    let events = prop::collection::vec(events, 0..20);
    (any::<f32>(), option::of(any::<u32>()), events).prop_filter_map(
        "NaN",
        |(sent, rank, events)| {
            let rejected = Rejected::default();
            (!sent.is_nan()).then(|| Batch {
                sent_at_s: sent.into(),
                rank,
                events,
                rejected,
            })
        },
    )
}

fn removals() -> impl Strategy<Value = Removed> {
    let hashes = prop::collection::vec(any::<u64>().prop_map(EngineHash), 0..6);
    (hashes, media(), option::of(any::<u32>())).prop_map(|(hashes, medium, group)| Removed {
        hashes,
        medium,
        group,
    })
}

fn stores() -> impl Strategy<Value = Stored<'static>> {
    let hashes = prop::collection::btree_set(any::<u64>().prop_map(EngineHash), 0..40);
    let lookahead = prop::collection::vec(ids(), 0..4);
    let kinds = select(vec![
        Kind::Absent,
        Kind::Attention,
        Kind::Other,
        Kind::Unknown,
    ]);
    let chain = (hashes, any::<bool>(), option::of(ids()), lookahead);
    let tokens = prop::collection::vec(ids(), 0..200);
    let about = (
        any::<u32>(),
        media(),
        adapters(),
        option::of(names()),
        option::of(any::<u32>()),
    );
    (chain, tokens, about, kinds, keys()).prop_map(
        |((hashes, child, end, lookahead), tokens, about, kind, keys)| {
            let mut hashes: Vec<_> = hashes.into_iter().collect();
            let parent = if child { hashes.pop() } else { None };
            let (block_size, medium, adapter, salt, group) = about;
            Stored {
                extra: fit(keys, hashes.len(), parent.is_none()),
                bigram_end: end.filter(|_| !tokens.is_empty()),
                hashes,
                parent,
                tokens,
                block_size,
                medium,
                adapter,
                salt,
                group,
                kind,
                lookahead,
            }
        },
    )
}

/// As many as there are blocks, with a salt at the beginning of a chain only.
fn fit(keys: Vec<Extra<'static>>, blocks: usize, begins_chain: bool) -> Vec<Extra<'static>> {
    let mut keys: Vec<_> = keys.into_iter().cycle().take(blocks).collect();
    for key in keys.iter_mut().skip(usize::from(begins_chain)) {
        key.salt = None;
    }
    let plain = keys.iter().all(|key| *key == Extra::default());
    if plain { Vec::new() } else { keys }
}

fn keys() -> impl Strategy<Value = Vec<Extra<'static>>> {
    let items = prop::collection::vec((names(), any::<i64>()), 0..3);
    let extra = (option::of(names()), items).prop_map(|(salt, items)| Extra { salt, items });
    prop::collection::vec(extra, 0..5)
}

/// As long on the wire as each form is, as often.
fn ids() -> impl Strategy<Value = u32> {
    (any::<u32>(), select(vec![25_u32, 24, 16, 16, 16, 8, 0])).prop_map(|(id, less)| id >> less)
}

fn media() -> impl Strategy<Value = Medium> {
    select(vec![Medium::Device, Medium::Host, Medium::Disk])
}

fn adapters() -> impl Strategy<Value = Option<Adapter<'static>>> {
    option::of(prop_oneof![
        names().prop_map(Adapter::Name),
        any::<i64>().prop_map(Adapter::Id)
    ])
}

fn names() -> impl Strategy<Value = &'static str> {
    select(vec![
        "",
        "a",
        "adapter-a",
        "a name that is longer than any short head of a text holds",
    ])
}

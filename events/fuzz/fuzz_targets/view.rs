//! Whatever events say, the view takes them without a panic, is never surer of a block than it
//! holds it, and has nothing left after a clear. The fixtures are its seeds:
//! `cargo fuzz run view fuzz/corpus/view tests/fixtures/payloads`.

#![no_main]

use std::slice::from_ref;

use kvatlas_events::{
    event::Event,
    view::{Namespace, Prompt, Shape, SourceId, View, chain},
    wire::decode,
};
use libfuzzer_sys::fuzz_target;

const MODEL: Namespace = Namespace(1);

fuzz_target!(|payload: &[u8]| {
    let Ok(batch) = decode(payload) else {
        return;
    };
    let view = View::default();
    let source = view.add(MODEL).expect("room for one source");
    let mut changes = Vec::new();
    // All at once, and then one by one the other way round: on what is there, orphans first.
    view.apply(source, &batch.events, &mut changes);
    check(&view, source, &batch.events);
    for event in batch.events.iter().rev() {
        view.apply(source, from_ref(event), &mut changes);
    }
    check(&view, source, &batch.events);
    view.apply(source, &[Event::Cleared], &mut changes);
    assert_eq!(view.blocks(source), 0);
    view.remove(source, &mut changes);
    assert_eq!(view.shapes(MODEL), []);
});

fn check(view: &View, source: SourceId, events: &[Event<'_>]) {
    for event in events {
        let Event::Stored(stored) = event else {
            continue;
        };
        if stored.block_size == 0 {
            continue;
        }
        let shape = Shape {
            block_size: stored.block_size,
            lookahead: u32::try_from(stored.lookahead.len()).unwrap_or(0),
        };
        let prompt = Prompt {
            namespace: MODEL,
            adapter: stored.adapter,
            tenant: None,
            items: &[],
            tokens: &stored.tokens,
        };
        let names = chain(&prompt, shape);
        let found = view.matches(shape, &names);
        let held = found.first().map_or(0, |found| found.device_blocks as usize);
        assert!(view.resident(source, shape, &names) <= held);
        assert!(held <= names.len());
    }
}

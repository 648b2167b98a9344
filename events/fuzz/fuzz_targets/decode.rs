//! No bytes make the decoder panic, what it reads it reads again in either form, and no part of a
//! payload is a payload. The fixtures are its seeds:
//! `cargo fuzz run decode fuzz/corpus/decode tests/fixtures/payloads`.

#![no_main]

use kvatlas_events::{
    event::{Batch, Event, Rejected},
    wire::{Form, decode, encode},
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|payload: &[u8]| {
    let Ok(mut batch) = decode(payload) else {
        return;
    };
    assert!(decode(&payload[..payload.len() / 2]).is_err());
    batch.rejected = Rejected::default();
    assert_comes_back(&batch, Form::Map);
    for event in &mut batch.events {
        if let Event::Stored(stored) = event {
            stored.salt = None;
        }
    }
    assert_comes_back(&batch, Form::Positional);
});

fn assert_comes_back(batch: &Batch<'_>, form: Form) {
    let payload = encode(batch, form);
    let again = decode(&payload).expect("what was written can be read");
    // A time may be no number, which equals nothing.
    assert_eq!(again.sent_at_s.to_bits(), batch.sent_at_s.to_bits());
    assert_eq!(again.rank, batch.rank);
    assert_eq!(again.events, batch.events);
    assert_eq!(again.rejected, batch.rejected);
}

//! How fast batches are decoded: stores of 128 blocks whose ids are as frequent as a tokenizer's.

use std::{hint::black_box, time::Duration};

use kvatlas_events::{
    event::{Batch, EngineHash, Event, Rejected},
    wire::{Form, decode, encode},
};
use tokio::time::Instant;

use super::{
    ours::{BLOCK_TOKENS, stored},
    subject::{CHUNK_BLOCKS, world::Block},
};
use crate::{error::LoadtestError, measure::median, random::Random};

const EVENTS: usize = 8;
const TURNS: usize = 9;
const TURN: Duration = Duration::from_millis(100);
const VOCABULARY: f64 = 151_936.0;

/// Gigabytes of payload a second, on one thread.
///
/// # Errors
/// When a payload is not understood.
pub(super) fn measure(random: &mut Random) -> Result<f64, LoadtestError> {
    let payload = payload(random);
    let rejected = decode(&payload).map(|batch| batch.rejected);
    if rejected != Ok(Rejected::default()) {
        let (call, reason) = ("decoding", format!("{rejected:?}"));
        return Err(LoadtestError::WrongAnswer { call, reason });
    }
    turn(&payload);
    let turns: Vec<f64> = (0..TURNS).map(|_| turn(&payload)).collect();
    Ok(median(&turns))
}

fn turn(payload: &[u8]) -> f64 {
    let (began, mut bytes) = (Instant::now(), 0);
    loop {
        let _batch = black_box(decode(black_box(payload)));
        bytes += payload.len();
        let took = began.elapsed();
        if took >= TURN {
            return bytes as f64 / took.as_secs_f64() / 1e9;
        }
    }
}

fn payload(random: &mut Random) -> Vec<u8> {
    let events = (0..EVENTS).map(|_| event(random)).collect();
    let batch = Batch {
        sent_at_s: 1.0,
        rank: Some(0),
        events,
        rejected: Rejected::default(),
    };
    encode(&batch, Form::Map)
}

fn event(random: &mut Random) -> Event<'static> {
    let mut block = || Block {
        content: random.bits(),
        engine: random.bits(),
        number: 0,
    };
    let blocks: Vec<Block> = (0..CHUNK_BLOCKS).map(|_| block()).collect();
    let mut event = stored(Some(EngineHash(random.bits())), &blocks);
    if let Event::Stored(stored) = &mut event {
        let ids = (0..CHUNK_BLOCKS * BLOCK_TOKENS).map(|_| zipf(random));
        stored.tokens = ids.collect();
    }
    event
}

/// Ranks by Zipf's law, and ids by rank, which is how tokenizers number what they merge.
fn zipf(random: &mut Random) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "below the vocabulary's size, and never negative"
    )]
    let id = VOCABULARY.powf(random.unit()) as u32;
    id
}

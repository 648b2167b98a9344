//! Plays engines, in a process of its own: publishers over ZMTP whose batches are made beforehand
//! and sent on order.
//!
//! Each batch stores 128 blocks, a quarter of a prompt. Where engines have a capacity, a batch
//! also removes as many of the oldest, each by an event of its own and those at the end of a
//! prompt first. The socket's buffer holds a sender up; nothing is dropped.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use kvatlas_events::{
    event::{Batch, EngineHash, Event, Rejected},
    wire::{Form, encode},
};

use super::{
    ours::{removed, stored},
    subject::{
        CHUNK_BLOCKS,
        world::{PROMPT_BLOCKS, Prompt, World, each},
    },
};
use crate::{
    args::EngineChildArgs,
    child::{Ready, orders},
    error::LoadtestError,
};

/// Batches that a prompt makes.
pub(super) const PROMPT_BATCHES: usize = PROMPT_BLOCKS / CHUNK_BLOCKS;
const GREETING_BYTES: usize = 64;
/// Commands and subscriptions have no more.
const FRAME_BYTES_MAX: usize = 255;

/// What engines send, in this order.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    pub(super) world: World,
    /// Of the prompts, so that streams differ.
    pub(super) round: usize,
}

/// A quarter of a prompt.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub(super) prompt: Prompt,
    pub(super) number: usize,
}

impl Schedule {
    pub(super) fn parts(self) -> impl Iterator<Item = Part> {
        self.world.groups(self.round).flat_map(|some| {
            (0..PROMPT_BATCHES)
                .flat_map(move |number| each(&some).map(move |prompt| Part { prompt, number }))
        })
    }
}

/// Listens at as many addresses as there are engines, waits for a subscriber at each, and then
/// sends as many batches as each order says.
///
/// # Errors
/// When a socket fails, or who connects is no subscriber.
pub fn serve(args: &EngineChildArgs) -> Result<(), LoadtestError> {
    let orders = orders()?;
    let schedule = Schedule {
        world: World::of(args.batches * CHUNK_BLOCKS, args.engines),
        round: args.round,
    };
    let held = (args.held > 0).then_some(args.held);
    let mut messages = messages(schedule, held).into_iter();
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let listeners = (0..args.engines).map(|_| TcpListener::bind(loopback));
    let listeners: Vec<TcpListener> = listeners.collect::<Result<_, _>>()?;
    let addresses = listeners.iter().map(TcpListener::local_addr);
    Ready::at_all(addresses.collect::<Result<Vec<_>, _>>()?).say()?;
    let streams = listeners.iter().map(subscriber);
    let mut streams: Vec<TcpStream> = streams.collect::<Result<_, _>>()?;
    for batches in orders {
        for (engine, message) in messages.by_ref().take(batches) {
            streams[engine].write_all(&message)?;
        }
    }
    Ok(())
}

/// All messages, frames and all, each with the number of its engine.
fn messages(schedule: Schedule, held: Option<usize>) -> Vec<(usize, Vec<u8>)> {
    let world = schedule.world;
    let mut sent: Vec<Vec<Part>> = vec![Vec::new(); world.workers];
    let message = |part: Part| {
        let engine = world.worker(part.prompt);
        let sequence = sent[engine].len();
        sent[engine].push(part);
        let gone = held.and_then(|held| sequence.checked_sub(held / CHUNK_BLOCKS));
        // Within a prompt the last part goes first.
        let gone =
            gone.map(|at| at - at % PROMPT_BATCHES + PROMPT_BATCHES - 1 - at % PROMPT_BATCHES);
        let gone = gone.and_then(|at| sent[engine].get(at)).copied();
        (engine, frames(sequence as u64, &payload(world, part, gone)))
    };
    schedule.parts().map(message).collect()
}

fn payload(world: World, part: Part, gone: Option<Part>) -> Vec<u8> {
    let blocks = world.blocks(part.prompt);
    let first = part.number * CHUNK_BLOCKS;
    let parent = first
        .checked_sub(1)
        .map(|last| EngineHash(blocks[last].engine));
    let mut events = vec![stored(parent, &blocks[first..first + CHUNK_BLOCKS])];
    if let Some(gone) = gone {
        let blocks = world.blocks(gone.prompt);
        let blocks = &blocks[gone.number * CHUNK_BLOCKS..][..CHUNK_BLOCKS];
        events.extend(blocks.iter().rev().map(|&block| removed(&[block])));
    }
    encode(&batch(events), Form::Map)
}

fn batch(events: Vec<Event<'_>>) -> Batch<'_> {
    Batch {
        sent_at_s: 1.0,
        rank: Some(0),
        events,
        rejected: Rejected::default(),
    }
}

/// An empty topic, the number, the payload.
fn frames(sequence: u64, payload: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(payload.len() + 21);
    message.extend([1, 0, 1, 8]);
    message.extend(sequence.to_be_bytes());
    message.push(2);
    message.extend((payload.len() as u64).to_be_bytes());
    message.extend(payload);
    message
}

/// Waits for one to connect, and greets it as a publisher does.
fn subscriber(listener: &TcpListener) -> io::Result<TcpStream> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let mut greeting = [0; GREETING_BYTES];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    stream.write_all(&greeting)?;
    stream.read_exact(&mut greeting)?;
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";
    stream.write_all(ready)?;
    // Its own READY, and what it subscribes to.
    for _ in 0..2 {
        let mut head = [0; 2];
        stream.read_exact(&mut head)?;
        let mut body = [0; FRAME_BYTES_MAX];
        stream.read_exact(&mut body[..head[1].into()])?;
    }
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use kvatlas_events::wire::decode;

    use super::*;

    #[test]
    fn a_capacity_is_kept_and_prompts_go_from_their_ends() {
        let schedule = Schedule {
            world: World::of(20 * CHUNK_BLOCKS, 1),
            round: 3,
        };
        let capacity = 8 * CHUNK_BLOCKS;
        let (mut held, mut parents) = (HashSet::new(), Vec::new());
        for (number, (engine, message)) in messages(schedule, Some(capacity)).iter().enumerate() {
            assert_eq!(
                (*engine, &message[4..12]),
                (0, &(number as u64).to_be_bytes()[..])
            );
            let batch = decode(&message[21..]).unwrap();
            assert_eq!(batch.rejected, Rejected::default());
            for event in &batch.events {
                match event {
                    Event::Stored(stored) => {
                        let parent = stored.parent;
                        assert!(parent.is_none_or(|parent| held.contains(&parent)));
                        parents.extend(parent.map(|parent| (parent, stored.hashes[0])));
                        held.extend(stored.hashes.iter().copied());
                    }
                    Event::Removed(removed) => {
                        let gone = removed.hashes[0];
                        assert!(held.remove(&gone));
                        let orphan = parents.iter().find(|(parent, _)| *parent == gone);
                        assert!(orphan.is_none_or(|(_, child)| !held.contains(child)));
                    }
                    Event::Cleared => unreachable!("engines here never clear"),
                }
            }
            assert!(held.len() <= capacity);
        }
        assert_eq!(held.len(), capacity);
    }
}

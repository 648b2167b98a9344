//! Answers to remember: a look-up repeated under one request id gets the same answer and lease.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use xxhash_rust::xxh3::Xxh3;

use super::{answer::Answer, namespace::NamespaceId};

/// What makes two look-ups the same one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RepeatKey {
    pub namespace: NamespaceId,
    pub holder: Box<str>,
    pub request_id: Box<str>,
    /// Of the tokens and of exact_prefix_tokens.
    pub digest: u128,
}

impl RepeatKey {
    #[must_use]
    pub fn new(
        namespace: NamespaceId,
        holder: &str,
        request_id: &str,
        prompt: (&[u32], u32),
    ) -> RepeatKey {
        let (tokens, exact_prefix_tokens) = prompt;
        let mut hash = Xxh3::new();
        hash.update(&exact_prefix_tokens.to_le_bytes());
        for some in tokens.chunks(64) {
            let mut bytes = [0_u8; 256];
            for (place, token) in bytes.chunks_exact_mut(4).zip(some) {
                place.copy_from_slice(&token.to_le_bytes());
            }
            hash.update(&bytes[..some.len() * 4]);
        }
        RepeatKey {
            namespace,
            holder: holder.into(),
            request_id: request_id.into(),
            digest: hash.digest128(),
        }
    }
}

/// A bounded table of answers that hold a lease; the oldest makes room.
#[derive(Debug)]
pub struct Repeats {
    entries_max: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    answers: HashMap<RepeatKey, (u64, Arc<Answer>)>,
    order: VecDeque<(u64, RepeatKey)>,
    next: u64,
}

impl Repeats {
    #[must_use]
    pub fn new(entries_max: usize) -> Repeats {
        Repeats {
            entries_max: entries_max.max(1),
            table: Mutex::default(),
        }
    }

    #[must_use]
    pub fn get(&self, key: &RepeatKey) -> Option<Arc<Answer>> {
        self.table
            .lock()
            .answers
            .get(key)
            .map(|(_, answer)| Arc::clone(answer))
    }

    /// Remembers an answer, unless one that `is_valid` accepts is there already: then that one is
    /// returned, and is the one to give.
    pub fn remember(
        &self,
        key: RepeatKey,
        answer: &Arc<Answer>,
        is_valid: impl FnOnce(&Answer) -> bool,
    ) -> Option<Arc<Answer>> {
        let mut table = self.table.lock();
        if let Some((_, earlier)) = table.answers.get(&key)
            && is_valid(earlier)
        {
            return Some(Arc::clone(earlier));
        }
        let number = table.next;
        table.next += 1;
        table
            .answers
            .insert(key.clone(), (number, Arc::clone(answer)));
        table.order.push_back((number, key));
        while table.order.len() > self.entries_max {
            let Some((number, oldest)) = table.order.pop_front() else {
                break;
            };
            // An entry that was remembered anew since has a later number.
            if table
                .answers
                .get(&oldest)
                .is_some_and(|(current, _)| *current == number)
            {
                table.answers.remove(&oldest);
            }
        }
        None
    }
}

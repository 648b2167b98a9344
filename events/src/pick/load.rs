//! The load book: what every source was given to do lately, and has not finished.
//!
//! ```text
//! load of a source = IN_FLIGHT_BLOCKS for each request in flight
//!                  + RECENT_SHARE of the blocks it was charged with,
//!                    halved every RECENT_HALF_LIFE_MS
//! ```
//!
//! The first term is the slot that a request holds until it is done, the second the computing
//! that stands before the next prompt. They are apart because the computing is over long before
//! the request: to hold the whole prompt against a source for as long as it decodes drives the
//! next turn of a conversation away from its blocks. On the Mooncake conversation trace that
//! leaves 68 to 72 % of the hits that are possible, and these two terms 95 %, with shorter waits.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::PARTS_PER_BLOCK;
use crate::view::{self, SourceId};

/// Requests in flight at once.
pub const REQUESTS_MAX: usize = 100_000;
/// Sources with a load at once.
pub const SOURCES_MAX: usize = view::SOURCES_MAX;
pub const REQUEST_ID_BYTES_MAX: usize = 256;
/// Requests whose lease ends in one call: a tenth of a millisecond. The rest end in the next.
pub const EXPIRED_AT_ONCE_MAX: usize = 256;

/// What a request in flight weighs. One block is the least that keeps one cached block from
/// drawing requests to a busy source. On the trace 0 to 2 differ by half a percent of the hits.
pub const IN_FLIGHT_BLOCKS: u64 = 1;
/// How much of a prompt's missing blocks counts as load at first. More spreads better and hits
/// less: the trace gives 98, 95 and 90 % of the possible hits for a quarter, a half and all, with
/// the same waits.
pub const RECENT_SHARE: f64 = 0.5;
/// How fast that wears off: about as fast as prompts are computed, a few seconds for the long
/// ones. On the trace half a second gives 96 % of the hits, 2 s give 95 and 8 s 92; the waits for
/// the first token are longer below 2 s, and no shorter above.
pub const RECENT_HALF_LIFE_MS: u64 = 2_000;

/// Why a request is not in the book. It can be served all the same; it just weighs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("request_id has {bytes} bytes; it takes 1 to {REQUEST_ID_BYTES_MAX}")]
    RequestId { bytes: usize },
    #[error("there are {REQUESTS_MAX} requests in flight")]
    TooManyRequests,
    #[error("there are {SOURCES_MAX} sources with a load")]
    TooManySources,
}

/// See the module. Times are milliseconds of one clock; one that goes back counts as standing.
#[derive(Debug)]
pub struct Load {
    lease_ms: u64,
    stays: u64,
    sources: HashMap<SourceId, Carried>,
    requests: HashMap<Arc<str>, Flight>,
    /// Every request by the end of its lease.
    ends: BTreeSet<(u64, Arc<str>)>,
}

/// What a source carries.
#[derive(Debug)]
struct Carried {
    /// Tells this stay of the source in the book from an earlier one.
    stay: u64,
    in_flight: u64,
    recent_parts: f64,
    /// When `recent_parts` was right.
    at_ms: u64,
}

#[derive(Debug)]
struct Flight {
    source: SourceId,
    stay: u64,
    ends_ms: u64,
}

impl Load {
    /// An empty book. A request that nobody finishes ends `lease_ms` after its last start.
    #[must_use]
    pub fn new(lease_ms: u64) -> Self {
        Self {
            lease_ms,
            stays: 0,
            sources: HashMap::new(),
            requests: HashMap::new(),
            ends: BTreeSet::new(),
        }
    }

    /// Puts a request in flight at a source, which then has `charge_blocks` more to do (see
    /// [`Picked`](super::Picked)). Again for the same source it only renews the lease; for
    /// another it moves the request there.
    ///
    /// # Errors
    ///
    /// A [`LoadError`], and nothing has changed but the leases that were over.
    pub fn start(
        &mut self,
        request: &str,
        source: SourceId,
        charge_blocks: u32,
        now_ms: u64,
    ) -> Result<(), LoadError> {
        if request.is_empty() || request.len() > REQUEST_ID_BYTES_MAX {
            let bytes = request.len();
            return Err(LoadError::RequestId { bytes });
        }
        self.expire(now_ms);
        let is_known = self.requests.contains_key(request);
        if !is_known && self.requests.len() >= REQUESTS_MAX {
            return Err(LoadError::TooManyRequests);
        }
        let stay = self.carried(source, now_ms)?.stay;
        if self.end(request) != Some((source, stay)) {
            self.charge(source, charge_blocks, now_ms)?;
        }
        self.carried(source, now_ms)?.in_flight += 1;
        let (request, ends_ms): (Arc<str>, _) =
            (request.into(), now_ms.saturating_add(self.lease_ms));
        self.ends.insert((ends_ms, Arc::clone(&request)));
        let flight = Flight {
            source,
            stay,
            ends_ms,
        };
        self.requests.insert(request, flight);
        Ok(())
    }

    /// Charges a source for a request whose end nobody will report.
    ///
    /// # Errors
    ///
    /// [`LoadError::TooManySources`], and nothing has changed.
    pub fn charge(
        &mut self,
        source: SourceId,
        charge_blocks: u32,
        now_ms: u64,
    ) -> Result<(), LoadError> {
        let carried = self.carried(source, now_ms)?;
        carried.recent_parts = carried.recent_at(now_ms)
            + f64::from(charge_blocks) * RECENT_SHARE * PARTS_PER_BLOCK as f64;
        carried.at_ms = carried.at_ms.max(now_ms);
        Ok(())
    }

    /// Ends a request. False when it is not in flight: it ended before, or never began.
    pub fn finish(&mut self, request: &str) -> bool {
        self.end(request).is_some()
    }

    /// Ends the requests whose lease is over, at most [`EXPIRED_AT_ONCE_MAX`] of them. Every
    /// start does so too; before a pick it keeps old requests from weighing.
    pub fn expire(&mut self, now_ms: u64) -> usize {
        for ended in 0..EXPIRED_AT_ONCE_MAX {
            match self.ends.first() {
                Some((ends_ms, request)) if *ends_ms <= now_ms => {
                    let request = Arc::clone(request);
                    self.end(&request);
                }
                Some(_) | None => return ended,
            }
        }
        EXPIRED_AT_ONCE_MAX
    }

    /// Forgets a source. What is in flight there weighs nothing from now on.
    pub fn remove(&mut self, source: SourceId) {
        self.sources.remove(&source);
    }

    /// Requests in flight, over all sources, removed ones too.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// A source's load, in blocks, rounded up.
    #[must_use]
    pub fn blocks(&self, source: SourceId, now_ms: u64) -> u32 {
        let blocks = self.parts(source, now_ms).div_ceil(PARTS_PER_BLOCK);
        u32::try_from(blocks).unwrap_or(u32::MAX)
    }

    pub(super) fn parts(&self, source: SourceId, now_ms: u64) -> u64 {
        self.sources
            .get(&source)
            .map_or(0, |carried| carried.parts(now_ms))
    }

    fn carried(&mut self, source: SourceId, now_ms: u64) -> Result<&mut Carried, LoadError> {
        if !self.sources.contains_key(&source) && self.sources.len() >= SOURCES_MAX {
            self.sources.retain(|_, carried| carried.parts(now_ms) > 0);
            if self.sources.len() >= SOURCES_MAX {
                return Err(LoadError::TooManySources);
            }
        }
        Ok(self.sources.entry(source).or_insert_with(|| {
            self.stays += 1;
            Carried {
                stay: self.stays,
                in_flight: 0,
                recent_parts: 0.0,
                at_ms: now_ms,
            }
        }))
    }

    /// Takes a request out of the book and says where it was.
    fn end(&mut self, request: &str) -> Option<(SourceId, u64)> {
        let (request, flight) = self.requests.remove_entry(request)?;
        self.ends.remove(&(flight.ends_ms, request));
        if let Some(carried) = self.sources.get_mut(&flight.source)
            && carried.stay == flight.stay
        {
            carried.in_flight -= 1;
        }
        Some((flight.source, flight.stay))
    }
}

impl Carried {
    fn parts(&self, now_ms: u64) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "never negative, and rounding down is what is wanted"
        )]
        let recent = self.recent_at(now_ms) as u64;
        self.in_flight * IN_FLIGHT_BLOCKS * PARTS_PER_BLOCK + recent
    }

    fn recent_at(&self, now_ms: u64) -> f64 {
        let passed = Duration::from_millis(now_ms.saturating_sub(self.at_ms));
        let half_life = Duration::from_millis(RECENT_HALF_LIFE_MS);
        self.recent_parts * (-passed.div_duration_f64(half_life)).exp2()
    }
}

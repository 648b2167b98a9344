//! Gives space back: copies what holds in the oldest segment to the end, a little with each batch,
//! then removes the file.

use std::sync::Arc;

use super::frame::{self, HEADER_BYTES, Kind};
use super::segment::Segment;
use super::{KEY_BYTES_MAX, Log, Place};
use crate::store::blob::{remove_file, sync_folder};
use crate::store::error::StoreError;

/// Bytes of the oldest segment that one call looks through, for each byte that waits.
const CLEANED_PER_WRITTEN: usize = 3;
const CLEANED_BYTES_MAX: usize = 8 << 20;
/// Where cleaning stands once a segment has been looked through.
const CLEANED_ALL: u32 = u32::MAX;
/// How cleaning goes on after damage.
const CLEANED_STEP: u32 = 8;
const _: () = assert!(CLEANED_STEP as usize == frame::ALIGNMENT);
/// Files that one call removes.
const REMOVED_MAX: usize = 4;

/// A record that was copied: once the copy is durable it lies at `to`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Moved {
    pub key: Vec<u8>,
    pub from: Place,
    pub to: Place,
}

impl Log {
    /// While more than half of the log is dead: copies what holds, as `holds` says of a key and
    /// its place, from a stretch of the oldest segment. To be called between two batches, when
    /// `holds` knows of everything that was appended; the copies go with the next commit.
    ///
    /// # Errors
    /// A failing disk.
    pub fn clean(&mut self, holds: &mut dyn FnMut(&[u8], Place) -> bool) -> Result<(), StoreError> {
        let Some(oldest) = self.to_clean() else {
            return Ok(());
        };
        let budget = (self.last_commit_bytes * CLEANED_PER_WRITTEN)
            .clamp(self.sizes.cleaned_bytes_min, CLEANED_BYTES_MAX);
        let mut head = vec![0; HEADER_BYTES + KEY_BYTES_MAX];
        let mut looked = 0;
        while looked < budget && self.cleaned != CLEANED_ALL {
            looked += HEADER_BYTES;
            let at = self.cleaned;
            let read = oldest.read_at(at, &mut head)?;
            let Some(header) = frame::header(&head[..read], oldest.seed, at) else {
                // The end, or damage, which the start has counted or the next one will.
                let next = at.checked_add(CLEANED_STEP);
                let next = next.filter(|_| read > 0);
                self.cleaned = next.unwrap_or(CLEANED_ALL);
                continue;
            };
            let from = Place {
                segment: oldest.number,
                offset: at,
                length: u32::try_from(header.frame_bytes()).unwrap_or(u32::MAX),
            };
            let key = head[HEADER_BYTES..read].get(..usize::from(header.key_bytes));
            if let Some(key) = key
                && header.kind == Kind::Put
                && holds(key, from)
                && let Some(to) = self.copy(&oldest, from)?
            {
                looked += from.length as usize;
                self.moving.push(Moved {
                    key: key.to_vec(),
                    from,
                    to,
                });
            }
            self.cleaned = at.saturating_add(from.length);
        }
        Ok(())
    }

    /// After a commit: tells `take` of every record that was copied, which answers whether it
    /// still held where it was; then files of which nothing holds go. Returns how many went.
    ///
    /// # Errors
    /// A failing disk.
    pub fn settle(&mut self, take: &mut dyn FnMut(&Moved) -> bool) -> Result<usize, StoreError> {
        for moved in std::mem::take(&mut self.moving) {
            let dead = if take(&moved) { moved.from } else { moved.to };
            self.forget(dead);
        }
        let mut removed = 0;
        while removed < REMOVED_MAX
            && let Some((&number, usage)) = self.usage.first_key_value()
            && number != self.current.number
            // What could not be copied is damaged: it is lost whether the file stays or not.
            && (usage.live_bytes == 0 || self.cleaned == CLEANED_ALL)
        {
            if usage.live_bytes > 0 {
                let bytes = usage.live_bytes;
                tracing::error!(bytes, "donors could not be copied: they end with this run");
            }
            let segment = self.reader.segments.write().remove(&number);
            self.usage.remove(&number);
            self.cleaned = 0;
            if let Some(segment) = segment {
                remove_file(&segment.path)?;
                // No file may go before an older one has: hence the sync after each.
                self.synced(sync_folder(&self.folder))?;
            }
            removed += 1;
        }
        Ok(removed)
    }

    /// A commit has failed: what was copied stays where it was.
    pub(super) fn unclean(&mut self) {
        for moved in std::mem::take(&mut self.moving) {
            self.forget(moved.to);
        }
        self.cleaned = 0;
    }

    fn to_clean(&self) -> Option<Arc<Segment>> {
        let usage = self.usage();
        let dead_bytes = usage.bytes - usage.live_bytes;
        let number = *self.usage.first_key_value()?.0;
        let is_worth_it = dead_bytes > usage.live_bytes + self.sizes.segment_bytes_max as u64;
        let is_under_way = self.cleaned > 0;
        if number == self.current.number || !(is_worth_it || is_under_way) {
            return None;
        }
        self.reader.segments.read().get(&number).map(Arc::clone)
    }

    // Appends a record anew; none where it is damaged.
    fn copy(&mut self, oldest: &Segment, from: Place) -> Result<Option<Place>, StoreError> {
        let mut bytes = vec![0; from.length as usize];
        let read = oldest.read_at(from.offset, &mut bytes)?;
        bytes.truncate(read);
        let Some(header) = frame::header(&bytes, oldest.seed, from.offset) else {
            return Ok(None);
        };
        let Some((key, payload)) = header.split(&bytes, oldest.seed) else {
            return Ok(None);
        };
        let copy = super::LogChange {
            kind: header.kind,
            sequence: header.sequence,
            key,
            parts: &[payload],
        };
        self.append(&copy).map(Some)
    }
}

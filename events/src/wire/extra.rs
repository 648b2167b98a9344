//! Untangles what went into a block's hash besides its tokens: untagged values whose meaning is
//! told by their form, their place and the event's adapter.

use super::{
    EVENT_HASHES_MAX,
    reader::{Head, Reader},
};
use crate::event::{EngineHash, Extra};

/// The most values of one block.
const BLOCK_VALUES_MAX: usize = 1 << 10;

/// One entry for each block, or none where no block has any.
///
/// The adapter's name comes first where the event names one, and is left out. A string alone is
/// the salt, on the first block of a chain. Anywhere else it is something that engines have not
/// explained: it then stands as an item, so that such a block is never taken for a plain one.
pub(super) fn read_extra<'a>(
    reader: &mut Reader<'a>,
    adapter: Option<&str>,
    parent: Option<EngineHash>,
) -> Option<Vec<Extra<'a>>> {
    let Some(count) = reader.optional(Reader::list)? else {
        return Some(Vec::new());
    };
    if count > EVENT_HASHES_MAX {
        return None;
    }
    let mut extra = Vec::new();
    for block in 0..count {
        let Some(values) = reader.optional(Reader::list)? else {
            continue;
        };
        let begins_chain = block == 0 && parent.is_none();
        let said = read_block(reader, values, adapter, begins_chain)?;
        if said == Extra::default() {
            continue;
        }
        extra.resize(count, Extra::default());
        *extra.get_mut(block)? = said;
    }
    Some(extra)
}

fn read_block<'a>(
    reader: &mut Reader<'a>,
    values: usize,
    adapter: Option<&str>,
    begins_chain: bool,
) -> Option<Extra<'a>> {
    if values > BLOCK_VALUES_MAX {
        return None;
    }
    let mut extra = Extra::default();
    for place in 0..values {
        let head = reader.head().ok()?;
        if let Head::Array(count) = head {
            let pair = (count == 2).then(|| Some((reader.text()?, reader.signed_64()?)))?;
            extra.items.push(pair?);
            continue;
        }
        let Head::Text(text) = head else { return None };
        let text = str::from_utf8(text).ok()?;
        if place == 0 && adapter == Some(text) {
            continue;
        }
        if begins_chain && extra.salt.is_none() {
            extra.salt = Some(text);
        } else {
            extra.items.push((text, 0));
        }
    }
    Some(extra)
}

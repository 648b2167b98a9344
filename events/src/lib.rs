//! KV-cache events: what engines publish, decoded, and a true view of what their caches hold.
//!
//! ```text
//! payload -> wire::decode -> Batch of Event -> view::View::apply -> blocks by content, per source
//! ```

pub mod event;
pub mod feed;
pub mod pick;
mod repeats;
pub mod view;
pub mod wire;

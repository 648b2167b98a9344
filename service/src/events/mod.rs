//! What engines publish about their caches: who is followed, who holds what, who gets a prompt.
//!
//! ```text
//! feeds (ZMQ), pushed (gRPC) -> Hearing -> residents of the catalog: which donors are there
//!                                       -> Fleet: which workers there are, and how sure
//! prompt -> Fleet -> how much each worker holds, and the one that it should go to
//! ```

pub mod feeds;
pub mod fleet;
mod hearing;
mod holdings;
pub mod pushed;
pub mod sources;

pub use hearing::Hearing;

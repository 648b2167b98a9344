//! Block manifests and donor discovery for LLM engines, over gRPC.
//!
//! Dependencies point one way: `app -> rpc -> { routing, events -> donors -> leases } -> store`.
//! Only `rpc` knows generated types; only `cli` uses the client crate.

pub mod access;
pub mod app;
pub mod cli;
pub mod config;
pub mod donor_events;
pub mod donors;
pub mod events;
pub mod leases;
mod listen;
pub mod report;
pub mod routing;
pub mod rpc;
pub mod store;
pub mod supervise;
pub mod telemetry;

/// Donors are prepared on one thread and dropped on another. With the C library's allocator a third
/// fewer are registered in a second.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

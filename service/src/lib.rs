//! Block manifests and donor discovery for LLM engines, over gRPC.
//!
//! Dependencies point one way: `app -> rpc -> { routing, donors, leases } -> store`. Only `rpc`
//! knows generated types; only `cli` uses the client crate.

pub mod app;
pub mod cli;
pub mod config;
pub mod donors;
pub mod leases;
mod listen;
pub mod routing;
pub mod rpc;
pub mod store;
pub mod supervise;
pub mod telemetry;

/// Millions of small pieces that threads hand on to each other: prepared on one, dropped on
/// another. The C library's allocator keeps a quarter more memory for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

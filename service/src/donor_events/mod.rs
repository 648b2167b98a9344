//! Donors that other providers announce: their events as they arrive, by gRPC and from NATS.
//!
//! The form is the draft that SemBlend and Dynamo share, schema version 1: JSON on the subject
//! `semantic-kv-events`. [`decode()`] makes events of it, [`intake`] applies them one at a time,
//! [`nats`] subscribes.

pub mod decode;
pub mod intake;
mod isolation;
pub mod nats;
pub mod refusal;
mod wire;

pub use decode::decode;
pub use refusal::Refusal;

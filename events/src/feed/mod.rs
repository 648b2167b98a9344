//! Follows engines: their events come in over sockets, in order and without a gap, into the view.
//!
//! [`track`] decides what to believe, by sequence, digest and connection; [`zmq`] does what it
//! says; [`zmtp`] is the protocol of the sockets, and [`config`] says where they are.

pub mod config;
mod link;
pub mod track;
pub mod zmq;
pub mod zmtp;

pub use config::{Source, SourceError};
pub use track::State;
pub use zmq::{Feed, Met, News, Progress, Socket};

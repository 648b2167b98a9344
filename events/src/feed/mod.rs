//! Follows engines: their events come in over sockets, in order and without a gap, into the view.
//!
//! [`track`] decides what to believe, by sequence, digest and connection, and what has to wait
//! meanwhile is [`held`]; [`intake`] brings that into the view, whatever it came over; [`zmq`] is
//! for engines with sockets, [`zmtp`] the protocol of these, and [`config`] says where they are.

pub mod config;
pub mod held;
pub mod inputs;
pub mod intake;
mod link;
mod recent;
pub mod track;
pub mod zmq;
pub mod zmtp;

pub use config::{Source, SourceError};
pub use inputs::{Frame, Input, State};
pub use intake::{Engine, Intake, Met, News, Progress, Reply, Shared, Socket, Want};
pub use zmq::Feed;

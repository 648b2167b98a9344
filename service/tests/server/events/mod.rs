//! Engines' events over real sockets into a running server, and what routers are told then.

mod donors;
mod file;
mod harness;
mod lost;
mod outcomes;
mod publish;
mod ranks;
mod scenarios;
mod trust;
mod workers;

//! Engines' events over real sockets into a running server, and what routers are told then.

#[cfg(test)]
#[path = "../common/mod.rs"]
mod common;
#[cfg(test)]
#[path = "../../../events/tests/scenarios/engine.rs"]
mod engine;
#[cfg(test)]
mod harness;
#[cfg(test)]
#[path = "../../../events/tests/scenarios/list.rs"]
mod list;
#[cfg(test)]
#[path = "../../../events/tests/scenarios/payloads.rs"]
mod payloads;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod workers;

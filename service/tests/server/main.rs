//! The server as callers see it: one test binary, a module for each topic.

#[cfg(test)]
mod bad_input;
#[cfg(test)]
#[path = "../common/mod.rs"]
mod common;
#[cfg(test)]
#[path = "../console/mod.rs"]
mod console;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod donor_events;
#[cfg(test)]
mod durability;
#[cfg(test)]
mod encoders;
/// The engines and the scenarios of the events crate, played into a whole server here.
#[cfg(test)]
#[path = "../../../events/tests/scenarios/engine.rs"]
mod engine;
#[cfg(test)]
mod events;
#[cfg(test)]
mod grpcurl;
#[cfg(test)]
mod http_port;
#[cfg(test)]
#[path = "../../../events/tests/scenarios/list.rs"]
mod list;
#[cfg(test)]
mod online;
#[cfg(test)]
#[path = "../../../events/tests/scenarios/payloads.rs"]
mod payloads;
#[cfg(test)]
#[path = "../../../events/tests/scenarios/publisher.rs"]
mod publisher;
#[cfg(test)]
mod queries;
#[cfg(test)]
#[path = "../report/live.rs"]
mod report;
#[cfg(test)]
mod serving;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod summaries;
#[cfg(test)]
mod tools;

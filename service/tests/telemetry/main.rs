//! What operators see of calls: metrics, records, the audit log and traces, and nothing they must
//! not see.

#[cfg(test)]
mod audit;
#[cfg(test)]
mod collector;
#[cfg(test)]
#[path = "../common/mod.rs"]
#[expect(dead_code, reason = "other tests need more of it")]
mod common;
#[cfg(test)]
mod exposition;
#[cfg(test)]
mod full_disk;
#[cfg(test)]
mod openmetrics;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod traces;

//! What operators see: logs, metrics, records and traces. Never prompt text, a token or a salt.

pub mod audit;
pub mod console;
pub mod digests;
pub mod http;
mod line;
pub mod logs;
pub mod metrics;
pub mod record;
pub mod recorder;
pub mod traces;
pub mod window;
pub mod words;

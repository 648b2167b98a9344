//! What operators see: logs, metrics, records and traces. Never prompt text, a token or a salt.

pub mod http;
pub mod logs;
pub mod metrics;
pub mod record;
pub mod words;

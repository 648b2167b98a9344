//! What operators see: logs and metrics. Never prompt text, a token or a salt.

pub mod http;
pub mod logs;
pub mod metrics;

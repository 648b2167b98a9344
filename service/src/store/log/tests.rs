//! The donor log.

//! Manifests: which blocks of a cached prefix should a request read?

pub mod import;
pub mod policy;
pub mod ranking;

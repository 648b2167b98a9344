//! Manifests: which blocks of a cached prefix should a request read?
//!
//! Pure decisions: `policy` (tags), `ranking` (packed rankings), `resolve` and `middle` (the
//! blocks). Around them: `import` (files), `prior`, `record` and `priors` (what is stored),
//! `stored` (a prior as a file again), `manifest` (the answer).

pub mod encoder;
pub mod frame;
pub mod import;
pub mod manifest;
mod middle;
pub mod online;
pub mod policy;
pub mod prior;
pub mod priors;
pub mod query;
pub mod ranking;
mod record;
pub mod resolve;
pub mod scorer;
pub mod stored;
pub mod summary;

//! Measures a kvatlas server, and judges its answers against what is true by construction.

pub mod args;
pub mod child;
pub mod donors;
pub mod echo;
pub mod error;
pub mod events;
pub mod judge;
pub mod kill_test;
pub mod manifest;
pub mod measure;
pub mod passages;
pub mod prior;
pub mod priors;
pub mod prompts;
pub mod quality;
pub mod random;
pub mod report;
pub mod run;
pub mod score;
pub mod server;
pub mod table;
pub mod telemetry;
pub mod wire;

pub use error::LoadtestError;
pub use run::run;

//! `score`.
pub mod model;
pub mod noise;
pub use model::{Algorithm, Model, ModelShape};

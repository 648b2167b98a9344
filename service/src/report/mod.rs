//! What an operator decides from: records of look-ups, manifests and reuse become a picture.
//!
//! [`read`] takes audit files, [`picture`] counts, [`summary`] says what the counts mean and
//! [`verdict`] what to do; [`html`] and [`text`] show it. All but [`read`] is pure.

pub mod class;
pub mod html;
pub mod latency;
mod merge;
pub mod picture;
pub mod read;
pub mod relax;
pub mod series;
pub mod show;
pub mod summary;
pub mod tally;
pub mod text;
pub mod verdict;

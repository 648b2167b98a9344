//! Scores of blocks against a request's own query.
//!
//! Every online algorithm comes down to two products over a [`Table`], whose row `b` holds what is
//! known of block `b` for all layers and KV heads:
//! - [`RowQuery`]: one dot product a row. KRI-Q with means everywhere is this, and Quest's bound
//!   with a mean over the group: its `max(q kmax, q kmin)` is `q+ kmax + q- kmin`.
//! - [`HeadQuery`]: one dot product for each query head. Everything else: a maximum over the group,
//!   cosine, KRI-T, answers for each head.
//!
//! [`scalar`] is the specification; [`Cpu`] is the fast twin.

mod best;
mod cpu;
mod heads;
mod query;
pub mod scalar;
mod table;

pub use best::{best, best_scalar};
pub use cpu::{Cpu, Grouping, Level, ROW_DOT_UNDERFLOW, THREADS_MAX, row_dot_error};
pub use heads::{Aggregate, GroupScores, group_scores, standardize};
pub use query::{HeadQuery, RowQuery};
pub use table::{Elements, Table};

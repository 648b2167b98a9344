//! Why an event is refused: the field and the limit, never content.

use thiserror::Error;

use crate::donors::announced::Lost;

/// An event that is not applied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{fault}")]
pub struct Refusal {
    pub fault: Fault,
    /// What is known of it nevertheless, so that its place among its emitter's is not a gap.
    pub lost: Option<Lost>,
}

/// A field, and what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{field}: {problem}")]
pub struct Fault {
    pub field: &'static str,
    pub problem: Problem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Problem {
    #[error("is missing")]
    Missing,
    #[error("must be {0}")]
    Form(&'static str),
    #[error("{found} {unit}, at most {most}")]
    TooMuch {
        found: usize,
        most: usize,
        unit: &'static str,
    },
    #[error("is blank")]
    Blank,
    #[error("disagrees with {0}")]
    Disagrees(&'static str),
    #[error("is given twice")]
    Twice,
}

impl Fault {
    pub(super) fn new(field: &'static str, problem: Problem) -> Fault {
        Fault { field, problem }
    }

    pub(super) fn form(field: &'static str, wanted: &'static str) -> Fault {
        Fault::new(field, Problem::Form(wanted))
    }
}

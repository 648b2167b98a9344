//! Donor discovery: whose cached prompt can a new one borrow from?

pub mod align;
pub mod index;
mod postings;
pub mod search;
mod seeds;
pub mod tokens;
mod votes;

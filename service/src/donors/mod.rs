//! Donor discovery: whose cached prompt can a new one borrow from?

mod admission;
pub mod align;
pub mod answer;
pub mod catalog;
mod evict;
pub mod find;
pub mod gate;
mod ids;
pub mod index;
mod load;
mod names;
pub mod namespace;
mod owned;
pub mod owners;
mod postings;
pub mod record;
mod removal;
pub mod repeats;
pub mod search;
mod seeds;
mod slots;
pub mod texts;
pub mod tokens;
pub mod vocabulary;
mod votes;
pub mod writer;
pub mod writes;

//! Donor discovery: whose cached prompt can a new one borrow from?

pub mod align;
pub mod catalog;
pub mod cover;
mod evict;
pub mod facts;
pub mod find;
pub mod gate;
pub mod index;
mod load;
pub mod namespace;
pub mod owners;
mod postings;
pub mod record;
pub mod repeats;
pub mod search;
mod seeds;
pub mod tokens;
pub mod vocabulary;
mod votes;
pub mod writer;
pub mod writes;

//! Donor discovery: whose cached prompt can a new one borrow from?

pub mod align;
pub mod catalog;
pub mod find;
pub mod gate;
pub mod namespace;
pub mod owners;
pub mod record;
pub mod repeats;
pub mod vocabulary;

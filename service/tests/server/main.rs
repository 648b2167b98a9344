//! The server as callers see it: one test binary, a module for each topic.

#[cfg(test)]
#[path = "../common/mod.rs"]
mod common;
#[cfg(test)]
mod serving;

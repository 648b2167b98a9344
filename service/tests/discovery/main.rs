//! Donor discovery seen from outside: a real server, its wire, and what must be found or not.

mod faults;
mod harness;
mod leasing;
mod peers;

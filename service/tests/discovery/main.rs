//! Donor discovery seen from outside: a real server, its wire, and what must be found or not.

#[cfg(test)]
mod crowds;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod leasing;
#[cfg(test)]
mod near;
#[cfg(test)]
mod peers;
#[cfg(test)]
mod retrieval;

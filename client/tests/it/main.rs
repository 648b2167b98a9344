//! The client against a server in this process that is slow, erring, lying, dying or well.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod lookups;
#[cfg(test)]
mod streams;

//! What an operator does with a server, by the run book: deploys it, watches it, asks it by hand,
//! saves and restores it, upgrades it.

#[cfg(test)]
mod backup;
#[cfg(test)]
mod book;
#[cfg(test)]
mod cookbook;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod image;
#[cfg(test)]
mod json;
#[cfg(test)]
mod prometheus;
#[cfg(test)]
mod shell;
#[cfg(test)]
#[path = "../server/tools.rs"]
mod tools;
#[cfg(test)]
mod unit;
#[cfg(test)]
mod upgrade;

//! `kvatlas report` from outside: files in, a page, a table and JSON out.

#[cfg(test)]
mod command;
#[cfg(test)]
mod example;
#[cfg(test)]
mod files;

//! The `kvatlas-loadtest` command.

fn main() {}

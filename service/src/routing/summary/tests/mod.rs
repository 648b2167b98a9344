//! Key summaries from files, through one store.

//! Plans against the oracles and against slow twins.

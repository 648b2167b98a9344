//! Leases: the right to use an answer until a deadline.

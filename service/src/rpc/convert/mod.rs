//! Bytes from outside become types that cannot be wrong. All validation is here.

pub mod answers;
pub mod donors;
pub mod encoders;
pub mod events;
pub mod leases;
pub mod namespace;
pub mod online;
pub mod queries;
pub mod routing;
pub mod summaries;

use std::fmt::Display;

use tonic::Status;

use crate::leases::TTL_MS_MAX;

/// INVALID_ARGUMENT that names the field and what is wrong with it.
pub fn invalid(field: &str, problem: impl Display) -> Status {
    Status::invalid_argument(format!("{field}: {problem}"))
}

/// Checks a string's length in bytes.
pub fn check_length(field: &str, value: &str, min: usize, max: usize) -> Result<(), Status> {
    let size = value.len();
    if size < min {
        return Err(invalid(
            field,
            format!("must not be empty, {min} to {max} bytes"),
        ));
    }
    if size > max {
        return Err(invalid(field, format!("{size} bytes, at most {max}")));
    }
    Ok(())
}

/// A time to live in milliseconds, 0 meaning the default.
pub fn ttl(field: &str, value: u32, default: u32) -> Result<u32, Status> {
    match value {
        0 => Ok(default),
        1..=TTL_MS_MAX => Ok(value),
        _ => Err(invalid(field, format!("{value} ms, at most {TTL_MS_MAX}"))),
    }
}

/// A page size, 0 meaning 100.
pub fn page_size(value: u32) -> Result<usize, Status> {
    match value {
        0 => Ok(100),
        1..=1000 => Ok(value as usize),
        _ => Err(invalid("page_size", format!("{value}, at most 1000"))),
    }
}

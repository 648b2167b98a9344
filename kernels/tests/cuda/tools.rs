//! What the machine has, as the environment says.

use std::ffi::OsString;
use std::io::Write;

/// What a variable says; without it the test is skipped with a line that no harness captures, or
/// fails where `required` is 1.
pub(crate) fn find(variable: &str, required: &str) -> Option<OsString> {
    let found = environment(variable);
    if found.is_none() {
        skip(&format!("{variable} is not set"), required);
    }
    found
}

pub(crate) fn skip(reason: &str, required: &str) {
    let required = environment(required).is_some_and(|value| value == "1");
    assert!(!required, "{reason}");
    writeln!(std::io::stderr(), "SKIPPED: {reason}").unwrap();
}

#[expect(
    clippy::disallowed_methods,
    reason = "tests are told about the machine by its environment, and have no flags"
)]
fn environment(variable: &str) -> Option<OsString> {
    std::env::var_os(variable).filter(|value| !value.is_empty())
}

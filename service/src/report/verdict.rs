//! What to do next: stay in discovery, enable exact loads, or try verified spans.
//!
//! The rule, in full. Each line is a [`Check`] with its limit and what was measured. A share of few
//! is not what it looks like, so shares of look-ups and reports are judged by the end of their
//! 95 % interval (Wilson's) that speaks against going on.
//!
//! - Anything but discovery needs the **base**: enough look-ups over enough time, few of them late
//!   or failed, fast enough, few damaged lines, and few failed loads where loads were reported.
//! - **Enable exact** needs the base, and exact prefixes that are frequent and long enough.
//! - **Try verified** needs the base, verified reuse that is frequent and long enough, engines that
//!   have shown that they load well, and texts that were compared and seldom differ in a fact.

use serde::Serialize;

/// Fewer say nothing.
pub const LOOKUPS_MIN: u64 = 1_000;
/// An hour: shorter times are seldom like the rest of the day.
pub const PERIOD_MS_MIN: u64 = 3_600_000;
/// Of all look-ups, those that were late or failed.
pub const FAILED_SHARE_MAX: f64 = 0.01;
/// What a connector gives a look-up.
pub const P99_US_MAX: u64 = 5_000;
/// Of all lines: beyond it, what is missing could say something else.
pub const DAMAGED_SHARE_MAX: f64 = 0.01;
/// Of all look-ups, those that an exact prefix serves.
pub const EXACT_LOOKUPS_SHARE_MIN: f64 = 0.02;
/// Of all prompt tokens, those in exact prefixes.
pub const EXACT_TOKENS_SHARE_MIN: f64 = 0.05;
/// Of all look-ups, those that a verified prefix or spans serve.
pub const VERIFIED_LOOKUPS_SHARE_MIN: f64 = 0.05;
/// Of all prompt tokens, those in verified prefixes and spans.
pub const VERIFIED_TOKENS_SHARE_MIN: f64 = 0.10;
/// Reports of loads that engines' health is judged by.
pub const LOADS_MIN: u64 = 500;
/// Of all reported loads.
pub const LOADS_FAILED_SHARE_MAX: f64 = 0.01;
/// Compared texts that the safety of verified spans is judged by.
pub const FACTS_MIN: u64 = 500;
/// Of all compared texts, those that differ in a number, a name, a negation or an identifier.
pub const FACTS_DIFFER_SHARE_MAX: f64 = 0.05;

/// What is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    pub lines: u64,
    pub damaged: u64,
    pub lookups: u64,
    pub period_ms: u64,
    pub failed: u64,
    pub p99_us: u64,
    pub prompt_tokens: u64,
    pub exact_lookups: u64,
    pub exact_tokens: u64,
    pub verified_lookups: u64,
    pub verified_tokens: u64,
    /// Reports of engines: loads that worked, and those that did not.
    pub loads: u64,
    pub loads_failed: u64,
    pub facts_compared: u64,
    pub facts_differ: u64,
    /// Some look-ups were made in materialize mode.
    pub is_materializing: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    StayInDiscovery,
    EnableExact,
    TryVerified,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    pub step: Step,
    /// One sentence.
    pub why: String,
    pub base: Vec<Check>,
    pub exact: Vec<Check>,
    pub verified: Vec<Check>,
}

/// One line of the rule.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub measured: Value,
    /// What is judged, where that is the end of an interval.
    pub judged: Option<Value>,
    pub limit: Value,
    /// Whether the limit is the least that passes, or the most.
    pub is_minimum: bool,
    pub passes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Value {
    Count(u64),
    Milliseconds(u64),
    Microseconds(u64),
    Share(f64),
    /// Of nothing.
    Unknown,
}

/// Judges what was measured.
#[must_use]
pub fn judge(measured: &Measured) -> Verdict {
    let m = measured;
    let mut base = vec![
        least(
            "look-ups",
            Value::Count(m.lookups),
            Value::Count(LOOKUPS_MIN),
        ),
        least(
            "time covered",
            Value::Milliseconds(m.period_ms),
            Value::Milliseconds(PERIOD_MS_MIN),
        ),
        seldom(
            "look-ups late or failed",
            m.failed,
            m.lookups,
            FAILED_SHARE_MAX,
        ),
        most(
            "look-up p99",
            Value::Microseconds(m.p99_us),
            Value::Microseconds(P99_US_MAX),
        ),
        most(
            "damaged lines",
            share(m.damaged, m.lines),
            Value::Share(DAMAGED_SHARE_MAX),
        ),
    ];
    if m.loads + m.loads_failed > 0 {
        let all = m.loads + m.loads_failed;
        let limit = Value::Share(LOADS_FAILED_SHARE_MAX);
        base.push(most(
            "reported loads that failed",
            share(m.loads_failed, all),
            limit,
        ));
    }
    let exact = vec![
        often(
            "served by an exact prefix",
            m.exact_lookups,
            m.lookups,
            EXACT_LOOKUPS_SHARE_MIN,
        ),
        least(
            "prompt tokens in exact prefixes",
            share(m.exact_tokens, m.prompt_tokens),
            Value::Share(EXACT_TOKENS_SHARE_MIN),
        ),
    ];
    let verified = verified(m);
    let holds = |checks: &[Check]| checks.iter().all(|check| check.passes);
    let step = match (holds(&base), holds(&exact), holds(&verified)) {
        (false, _, _) | (true, false, false) => Step::StayInDiscovery,
        (true, _, true) => Step::TryVerified,
        (true, true, false) => Step::EnableExact,
    };
    let why = why(m, step, [&base, &exact, &verified]);
    Verdict {
        step,
        why,
        base,
        exact,
        verified,
    }
}

fn verified(m: &Measured) -> Vec<Check> {
    vec![
        often(
            "served by a verified prefix or spans",
            m.verified_lookups,
            m.lookups,
            VERIFIED_LOOKUPS_SHARE_MIN,
        ),
        least(
            "prompt tokens in verified reuse",
            share(m.verified_tokens, m.prompt_tokens),
            Value::Share(VERIFIED_TOKENS_SHARE_MIN),
        ),
        least(
            "loads that engines reported",
            Value::Count(m.loads),
            Value::Count(LOADS_MIN),
        ),
        seldom(
            "loads that failed",
            m.loads_failed,
            m.loads + m.loads_failed,
            LOADS_FAILED_SHARE_MAX,
        ),
        least(
            "texts compared",
            Value::Count(m.facts_compared),
            Value::Count(FACTS_MIN),
        ),
        seldom(
            "texts that differ in a fact",
            m.facts_differ,
            m.facts_compared,
            FACTS_DIFFER_SHARE_MAX,
        ),
    ]
}

fn why(m: &Measured, step: Step, [base, exact, verified]: [&[Check]; 3]) -> String {
    let first = |checks: &[Check]| checks.iter().find(|check| !check.passes).map(|it| it.name);
    let on = m.is_materializing;
    match step {
        Step::TryVerified => "Verified reuse is frequent, engines load well, and the texts that \
                              were compared seldom differ in a fact: try it under strict gates."
            .into(),
        Step::EnableExact if on => "Exact prefixes pay and nothing speaks against them: keep \
                                    exact loads on."
            .into(),
        Step::EnableExact => "Exact prefixes are frequent and long enough to pay, and nothing \
                              speaks against loading them."
            .into(),
        Step::StayInDiscovery => match (first(base), first(exact), first(verified)) {
            (Some("look-ups" | "time covered"), _, _) => {
                "There is too little data to recommend anything.".into()
            }
            (Some(name), _, _) if on => {
                format!("Go back to discovery: {name}, beyond the limit.")
            }
            (Some(name), _, _) => format!("First see to this: {name}, beyond the limit."),
            (None, _, Some("loads that engines reported")) => {
                "Exact prefixes would bring little. Verified reuse would bring more, but no \
                 engine has shown yet that it loads well: enable exact in one namespace to find \
                 out."
                    .into()
            }
            (None, _, Some("texts compared")) => {
                "Exact prefixes would bring little. Verified reuse would bring more, but too few \
                 texts were compared to say how safe it is: start the server with --text."
                    .into()
            }
            (None, _, _) => "What could be reused is not worth it yet.".into(),
        },
    }
}

fn least(name: &'static str, measured: Value, limit: Value) -> Check {
    Check {
        name,
        measured,
        judged: None,
        limit,
        is_minimum: true,
        passes: measured != Value::Unknown && measured >= limit,
    }
}

fn most(name: &'static str, measured: Value, limit: Value) -> Check {
    Check {
        name,
        measured,
        judged: None,
        limit,
        is_minimum: false,
        passes: measured != Value::Unknown && measured <= limit,
    }
}

// Even the lowest share that agrees with the counts must pass.
fn often(name: &'static str, some: u64, all: u64, limit: f64) -> Check {
    let judged = interval(some, all).map_or(Value::Unknown, |(low, _)| Value::Share(low));
    Check {
        measured: share(some, all),
        judged: Some(judged),
        ..least(name, judged, Value::Share(limit))
    }
}

// Even the highest share that agrees with the counts must pass.
fn seldom(name: &'static str, some: u64, all: u64, limit: f64) -> Check {
    let judged = interval(some, all).map_or(Value::Unknown, |(_, high)| Value::Share(high));
    Check {
        measured: share(some, all),
        judged: Some(judged),
        ..most(name, judged, Value::Share(limit))
    }
}

fn share(some: u64, all: u64) -> Value {
    match all {
        0 => Value::Unknown,
        _ => Value::Share(real(some) / real(all)),
    }
}

/// Wilson's 95 % interval of a share; none of nothing.
#[must_use]
pub fn interval(some: u64, all: u64) -> Option<(f64, f64)> {
    const Z: f64 = 1.959_964;
    if all == 0 {
        return None;
    }
    let n = real(all);
    let p = real(some.min(all)) / n;
    let middle = p + Z * Z / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + Z * Z / (4.0 * n * n)).sqrt();
    let whole = 1.0 + Z * Z / n;
    let low = ((middle - half) / whole).max(0.0);
    Some((low, ((middle + half) / whole).min(1.0)))
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn real(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests;

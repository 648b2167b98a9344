//! The gate: who is let in, what a reload ends, and what it lets go on.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::access::{
    grant::{CALLS, Role, call},
    tokens::parse,
};

const FIND: &str = "/kvatlas.v1.Donors/FindDonor";

struct Scene {
    gate: Gate,
    now_ns: Arc<AtomicU64>,
}

/// Each is a name (the token begins with it), a role, and what else is said of it.
fn tokens(entries: &[(&str, &str, &str)]) -> Vec<Token> {
    let entries = entries.iter().map(|(name, role, more)| {
        let token = token(name);
        format!("{{\"name\":\"{name}\",\"token\":\"{token}\",\"role\":\"{role}\"{more}}}")
    });
    let text = entries.collect::<Vec<_>>().join(",");
    parse(format!("{{\"tokens\":[{text}]}}").as_bytes()).unwrap()
}

fn token(name: &str) -> String {
    format!("{name}-0123456789abcdef")
}

fn scene(entries: &[(&str, &str, &str)]) -> Scene {
    let now_ns = Arc::new(AtomicU64::new(0));
    let clock = Arc::clone(&now_ns);
    Scene {
        gate: Gate::new(
            tokens(entries),
            [7; 16],
            Box::new(move || clock.load(Relaxed)),
        ),
        now_ns,
    }
}

impl Scene {
    fn enter(&self, path: &str, name: &str) -> Result<Arc<Bearer>, Refusal> {
        let credentials = format!("Bearer {}", token(name));
        self.gate.enter(call(path), Some(credentials.as_bytes()))
    }
}

#[test]
fn only_a_bearers_known_token_is_let_in() {
    let scene = scene(&[("a", "operator", ""), ("b", "operator", "")]);
    let enter = |credentials: Option<&str>| {
        let entered = scene.gate.enter(call(FIND), credentials.map(str::as_bytes));
        entered.map(|bearer| bearer.grant.name.to_string())
    };
    assert_eq!(enter(None), Err(Refusal::NoToken));
    for (name, scheme) in [
        ("a", "Bearer"),
        ("b", "bearer"),
        ("a", "BEARER"),
        ("b", "Bearer"),
    ] {
        let given = format!("{scheme} {}", token(name));
        assert_eq!(enter(Some(&given)), Ok(name.to_owned()));
    }
    for wrong in ["", "Bearer", "Basic YTpi", &token("a")] {
        assert_eq!(enter(Some(wrong)), Err(Refusal::NotBearer), "{wrong}");
    }
    let almost = [
        format!("Bearer {}x", token("a")),
        format!("Bearer  {}", token("a")),
        format!("Bearer {}", &token("a")[1..]),
        "Bearer ".to_owned(),
    ];
    for wrong in &almost {
        assert_eq!(enter(Some(wrong)), Err(Refusal::UnknownToken), "{wrong}");
    }
    assert_eq!(scene.gate.counts.unauthenticated.load(Relaxed), 9);
}

#[test]
fn a_call_that_is_not_listed_is_nobodys() {
    let scene = scene(&[("a", "operator", "")]);
    let entered = scene.enter("/kvatlas.v1.Donors/New", "a");
    assert_eq!(entered.unwrap_err(), Refusal::Role(Role::Operator));
    assert!(CALLS.iter().all(|call| scene.enter(call.path, "a").is_ok()));
}

#[test]
fn calls_over_the_whole_server_are_for_operators_of_everything() {
    let tenant = ", \"tenants\": [\"semblend:tenant:v1:none\"], \"workers\": []";
    let scene = scene(&[("a", "operator", ""), ("b", "operator", tenant)]);
    let path = "/kvatlas.v1.Admin/AddEventSource";
    assert!(scene.enter(path, "a").is_ok());
    assert_eq!(scene.enter(path, "b").unwrap_err(), Refusal::Scope);
    assert!(scene.enter(FIND, "b").is_ok());
}

#[test]
fn each_token_has_a_limit_of_its_own_that_a_reload_does_not_refill() {
    let limits = |rate: &'static str| [("a", "operator", rate), ("b", "operator", "")];
    let slow = ", \"calls_per_second_max\": 10, \"burst\": 2";
    let scene = scene(&limits(slow));
    let limited = Refusal::Rate {
        calls_per_second_max: 10,
        wait_ns: 100_000_000,
    };
    assert!(scene.enter(FIND, "a").is_ok() && scene.enter(FIND, "a").is_ok());
    assert_eq!(scene.enter(FIND, "a").unwrap_err(), limited);
    assert_eq!(
        (limited.retry_after_ms(), limited.retry_after_s()),
        (100, 1)
    );
    assert!(scene.enter(FIND, "b").is_ok());
    scene.gate.replace(tokens(&limits(slow)));
    assert_eq!(scene.enter(FIND, "a").unwrap_err(), limited);
    scene.now_ns.store(100_000_000, Relaxed);
    assert!(scene.enter(FIND, "a").is_ok());
    assert!(scene.enter(FIND, "a").is_err());
    scene.gate.replace(tokens(&limits("")));
    assert!(scene.enter(FIND, "a").is_ok());
}

#[test]
fn a_reload_ends_what_is_gone_or_stands_for_something_else() {
    let scene = scene(&[
        ("stays", "engine", ", \"tenants\": \"*\""),
        ("goes", "engine", ", \"tenants\": \"*\""),
        ("changes", "engine", ", \"tenants\": \"*\""),
    ]);
    let held = ["stays", "goes", "changes"].map(|name| scene.enter(FIND, name).unwrap());
    scene.gate.replace(tokens(&[
        ("comes", "engine", ", \"tenants\": \"*\""),
        ("changes", "baker", ""),
        (
            "stays",
            "engine",
            ", \"tenants\": \"*\", \"calls_per_second_max\": 5",
        ),
    ]));
    assert_eq!(
        held.each_ref().map(|it| it.has_ended()),
        [false, true, true]
    );
    assert!(scene.enter(FIND, "comes").is_ok());
    assert_eq!(
        scene.enter(FIND, "goes").unwrap_err(),
        Refusal::UnknownToken
    );
    let changed = scene.enter(FIND, "changes").unwrap_err();
    assert_eq!(changed, Refusal::Role(Role::Baker));
    assert!(Arc::ptr_eq(&held[0], &scene.enter(FIND, "stays").unwrap()));
}

#[tokio::test]
async fn whoever_waits_for_the_end_is_told() {
    let scene = scene(&[("a", "operator", ""), ("b", "operator", "")]);
    let bearer = scene.enter(FIND, "a").unwrap();
    let ends = bearer.ends();
    scene.gate.replace(tokens(&[("b", "operator", "")]));
    ends.await;
    bearer.ends().await;
}

#[test]
fn nothing_of_a_token_is_shown() {
    let scene = scene(&[("a", "operator", "")]);
    let bearer = scene.enter(FIND, "a").unwrap();
    assert!(!format!("{:?} {bearer:?}", scene.gate).contains("0123456789abcdef"));
}

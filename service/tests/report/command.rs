//! The command: what it prints, what it writes, how it exits.

use std::process::{Command, Output};

use kvatlas::report::text;
use tempfile::TempDir;

use crate::example;

fn report(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvatlas"));
    command.arg("report").args(arguments).output().unwrap()
}

fn printed(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_table_the_page_and_the_json_say_the_same() {
    let folder = TempDir::new().unwrap();
    let page = folder.path().join("report.html");
    let file = example::path();
    let file = file.to_str().unwrap();
    let rates = [
        "--prefill-tokens-per-second",
        "9000",
        "--cost-per-gpu-hour",
        "2.5",
    ];
    let html = ["--html", page.to_str().unwrap()];
    let table = printed(&report(&[&[file][..], &rates, &html].concat()));
    assert!(table.contains("VERDICT: enable exact loads"), "{table}");
    assert!(table.contains("report.html"));
    let page = std::fs::read_to_string(page).unwrap();
    assert_eq!(page, kvatlas::report::html::page(&example::summary()));
    let json = printed(&report(&[&[file, "--output", "json"][..], &rates].concat()));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    // Through text, as what is compared: numbers may differ in the last digit otherwise.
    let expected = serde_json::to_string(&example::summary()).unwrap();
    let expected: serde_json::Value = serde_json::from_str(&expected).unwrap();
    assert_eq!(json, expected);
    assert_eq!(json["verdict"]["step"], "enable_exact");
    let short = printed(&report(&[&[file, "--json"][..], &rates].concat()));
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&short).unwrap(),
        json
    );
}

// A report of reuse as the audit log has it.
fn reuse(provenance: &str, more: &str) -> String {
    format!(
        "{{\"v\":1,\"at_ms\":1772431310598,\"kind\":\"reuse\",\"request\":\"1a82e79b05b5faeb\",\
         \"took_us\":1.0,\"provenance\":\"{provenance}\",\"released\":false,{more}}}\n"
    )
}

#[test]
fn loads_that_failed_are_a_share_of_those_that_were_tried() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("audit-1.jsonl");
    let well = "\"tokens_loaded\":64,\"invalid_blocks\":0";
    let failed = |why: &str| {
        let more = format!("\"reason\":\"{why}\",\"tokens_loaded\":0,\"invalid_blocks\":0");
        reuse("fallback_recompute", &more)
    };
    let lines = [
        reuse("exact_external_hit", well).repeat(14),
        reuse("request_only_reuse", well),
        failed("load_failed").repeat(2),
        failed("allocation_failed"),
        failed("invalid_blocks"),
        // Blocks that were not what was promised are a failure, whatever else is said.
        reuse(
            "exact_external_hit",
            "\"tokens_loaded\":64,\"invalid_blocks\":3",
        ),
        // Neither tried nor failed.
        failed("recompute_policy").repeat(7),
        reuse("exact_local_prefix_hit", well).repeat(7),
        reuse(
            "candidate_rejected",
            "\"tokens_loaded\":0,\"invalid_blocks\":0",
        )
        .repeat(7),
    ];
    std::fs::write(&file, lines.concat()).unwrap();
    let file = file.to_str().unwrap();
    let table = printed(&report(&[file]));
    assert!(table.contains("5 loads failed"), "{table}");
    let json: serde_json::Value =
        serde_json::from_str(&printed(&report(&[file, "--json"]))).unwrap();
    assert_eq!(json["engines"]["failed"], 5, "{json:#}");
    assert_eq!(json["engines"]["invalid_blocks"], 3);
    let checks = json["verdict"]["base"].as_array().unwrap();
    let check = checks
        .iter()
        .find(|check| check["name"] == "reported loads that failed");
    let check = check.expect("loads were reported");
    assert_eq!(check["measured"]["share"], 0.25, "{check}");
    assert_eq!(check["passes"], false, "{check}");
}

#[test]
fn the_table_fits_every_terminal() {
    let summary = example::summary();
    for columns in [40, 41, 60, 79, 80, 100, 300] {
        let most = columns.clamp(text::COLUMNS_MIN, text::COLUMNS_MAX);
        for line in text::text(&summary, columns).lines() {
            assert!(line.chars().count() <= most, "{columns}: {line}");
        }
    }
}

#[test]
fn wrong_arguments_are_told_and_end_with_2() {
    let file = example::path();
    let file = file.to_str().unwrap();
    for (arguments, words) in [
        (&[][..], "FILE|DIR"),
        (&["/nowhere/audit-1.jsonl"], "/nowhere/audit-1.jsonl"),
        (&[file, "--live"], "--live"),
        (
            &[file, "--cost-per-gpu-hour", "2"],
            "--prefill-tokens-per-second",
        ),
        (&[file, "--prefill-tokens-per-second", "0"], "above 0"),
        (&[file, "--prefill-tokens-per-second", "inf"], "above 0"),
        (
            &[file, "--html", "/nowhere/report.html"],
            "/nowhere/report.html",
        ),
    ] {
        let output = report(arguments);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
}

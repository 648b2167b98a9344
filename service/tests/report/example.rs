//! The committed example: the file that it is made from, and the page that comes of it.

use std::{io::Read, path::PathBuf};

use flate2::read::GzDecoder;
use kvatlas::report::{
    html, read,
    summary::{Assumptions, Summary, summarize},
};

pub(crate) fn path() -> PathBuf {
    repository().join("examples/audit-example.jsonl.gz")
}

/// Its lines.
pub(crate) fn text() -> String {
    let mut text = String::new();
    let file = std::fs::File::open(path()).unwrap();
    GzDecoder::new(file).read_to_string(&mut text).unwrap();
    text
}

pub(crate) fn summary() -> Summary {
    let picture = read::read(&[path()]).unwrap();
    let assumptions = Assumptions {
        prefill_tokens_per_second: Some(9_000.0),
        cost_per_gpu_hour: Some(2.5),
        currency: "USD".into(),
    };
    summarize(&picture, "audit-example.jsonl.gz".into(), assumptions)
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_committed_page_is_what_the_example_gives() {
    let page = html::page(&summary());
    let committed = repository().join("docs/report-example.html");
    let there = std::fs::read_to_string(&committed).unwrap_or_default();
    if there != page {
        let fresh = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("report-example.html");
        std::fs::write(&fresh, page).unwrap();
        panic!(
            "docs/report-example.html is not up to date: take {}",
            fresh.display()
        );
    }
}

#[test]
fn the_page_needs_nothing_else_and_runs_nothing() {
    let page = html::page(&summary());
    for word in [
        "<script",
        "javascript:",
        "http://",
        "https://",
        " src=",
        "href=",
        "@import",
        "url(",
        " style=",
        " onclick",
    ] {
        assert!(!page.contains(word), "{word}");
    }
    for part in [
        "<!doctype html>",
        "width=device-width",
        "prefers-color-scheme: dark",
        "<svg ",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn the_example_shows_every_section_and_a_verdict_from_its_numbers() {
    let summary = summary();
    let of = |class: &str| {
        let row = summary.classes.iter().find(|row| row.class == class);
        row.unwrap().lookups
    };
    let lines = text();
    let count = |what: &str| lines.lines().filter(|line| line.contains(what)).count() as u64;
    assert_eq!(summary.lines, lines.lines().count() as u64);
    assert_eq!(summary.lookups, count("\"kind\":\"lookup\""));
    assert_eq!(summary.manifests.calls, count("\"kind\":\"manifest\""));
    assert_eq!(of("exact_prefix"), count("\"tier\":\"exact\""));
    assert_eq!(of("spans"), count("\"outcome\":\"spans\""));
    assert_eq!(of("below_gates"), count("\"reason\":\"low_"));
    let page = html::page(&summary);
    for section in html::SECTIONS {
        let opening = format!("<section id=\"{}\"", section.id);
        assert!(page.contains(&opening), "{opening}");
    }
    assert!(page.contains("Enable exact loads"));
    // Reusable tokens over 9,000 a second, and a GPU for that time at 2.50 an hour.
    let savings = &summary.savings;
    let seconds = savings.prefix_tokens as f64 / 9_000.0;
    assert!((savings.prefix_seconds.unwrap() - seconds).abs() < 1e-9);
    assert!((savings.prefix_cost.unwrap() - seconds / 3_600.0 * 2.5).abs() < 1e-9);
}

#[test]
fn words_of_others_are_text_and_never_markup() {
    let mut hostile = summary();
    hostile.source = "<img src=x onerror=alert(1)> & \"co\"".into();
    hostile.version = Some("<script>alert(1)</script>".into());
    hostile.assumptions.currency = "<b>'".into();
    let page = html::page(&hostile);
    assert!(!page.contains("<img") && !page.contains("<script") && !page.contains("<b>"));
    assert!(page.contains("&lt;img src=x onerror=alert(1)&gt; &amp; &quot;co&quot;"));
    assert!(page.contains("&lt;b&gt;&#39;"));
}

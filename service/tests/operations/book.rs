//! The run book names whatever the service can answer, and everything that it points at is there.

use std::{collections::BTreeSet, fs, path::Path};

use kvatlas::donors::vocabulary::{FallbackReason, VectorSearch};
use kvatlas_proto::v1;

use crate::harness::{is_quoted, kvatlas, read, root, text};

const PAGE: &str = "docs/operations.md";

#[track_caller]
fn check_named(words: impl IntoIterator<Item = String>, least: usize) {
    let page = read(PAGE);
    let mut count = 0;
    for word in words {
        assert!(is_quoted(&page, &word), "{word} is not in {PAGE}");
        count += 1;
    }
    assert!(count >= least, "{count}");
}

/// The plain words of an enum of the wire, without its "unspecified".
fn words<T: TryFrom<i32>>(name: impl Fn(T) -> &'static str, prefix: &str) -> Vec<String> {
    let values = (1..).map_while(|number| T::try_from(number).ok());
    let plain = |value| {
        name(value)
            .strip_prefix(prefix)
            .unwrap()
            .to_ascii_lowercase()
    };
    values.map(plain).collect()
}

#[test]
fn every_fallback_reason_is_in_the_book() {
    let wire = words(
        |it: v1::FallbackReason| it.as_str_name(),
        "FALLBACK_REASON_",
    );
    let ours = FallbackReason::ALL.map(|reason| reason.as_str().to_owned());
    assert_eq!(wire, ours);
    check_named(ours, 16);
}

#[test]
fn every_other_word_of_an_answer_is_in_the_book() {
    check_named(
        words(|it: v1::LeaseRefusal| it.as_str_name(), "LEASE_REFUSAL_"),
        4,
    );
    check_named(
        words(|it: v1::LeaseState| it.as_str_name(), "LEASE_STATE_"),
        5,
    );
    check_named(
        words(
            |it: v1::ManifestReason| it.as_str_name(),
            "MANIFEST_REASON_",
        ),
        5,
    );
    check_named(VectorSearch::ALL.map(|end| end.as_str().to_owned()), 8);
}

/// From the source of the edge, the only place that makes a status.
#[test]
fn every_status_that_the_server_gives_is_in_the_book() {
    let mut source = String::new();
    gather(&root().join("service/src/rpc"), &mut source);
    gather(&root().join("service/src/access"), &mut source);
    // HTTP has codes of its own.
    let source = source.replace("StatusCode::", "");
    let mut found = BTreeSet::new();
    for (marker, is_function) in [("Status::", true), ("Code::", false)] {
        for rest in source.split(marker).skip(1) {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (word, rest) = rest.split_at(end.unwrap());
            let begins_lower = word.starts_with(|c: char| c.is_ascii_lowercase());
            if begins_lower == is_function && (!is_function || rest.starts_with('(')) {
                found.insert(snake(word).to_ascii_uppercase());
            }
        }
    }
    for no_error in [
        "OK",
        "NEW",
        "FROM_ERROR",
        "TRY_FROM_ERROR",
        "FROM",
        "WITH_DETAILS",
    ] {
        found.remove(no_error);
    }
    for known in ["NOT_FOUND", "RESOURCE_EXHAUSTED", "DATA_LOSS", "ABORTED"] {
        assert!(found.contains(known), "{found:?}");
    }
    check_named(found, 10);
}

/// `NotFound` as `not_found`.
fn snake(word: &str) -> String {
    let mut spelled = String::new();
    for (at, letter) in word.char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            spelled.push('_');
        }
        spelled.push(letter.to_ascii_lowercase());
    }
    spelled
}

fn gather(folder: &Path, source: &mut String) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            gather(&path, source);
        } else {
            let text = fs::read_to_string(&path).unwrap();
            *source += text.split("#[cfg(test)]").next().unwrap();
        }
    }
}

#[test]
fn every_exit_code_is_in_the_book_the_help_and_the_manual() {
    let page = read(PAGE);
    let help = text(&kvatlas(&["--help"]).stdout);
    let manual = text(&kvatlas(&["man"]).stdout);
    for code in ["0", "1", "2", "3"] {
        assert!(page.contains(&format!("\n| {code} | ")), "{code}");
        assert!(help.contains(&format!("\n  {code}  ")), "{code} in\n{help}");
        assert!(
            manual.contains(&format!("\n  {code}  ")),
            "{code} in\n{manual}"
        );
    }
}

#[test]
fn every_flag_that_the_book_names_exists() {
    let page = read(PAGE);
    let mut help = String::new();
    for command in [&["serve"][..], &["donor", "find"], &["mode"], &[]] {
        help += &text(&kvatlas(&[command, &["--help"]].concat()).stdout);
    }
    let quoted = page.split('`').skip(1).step_by(2);
    // Not those of other programs.
    let ours = quoted.filter(|text| text.starts_with("--") || text.starts_with("kvatlas "));
    let flags: BTreeSet<&str> = ours
        .flat_map(str::split_whitespace)
        .filter(|word| word.starts_with("--"))
        .collect();
    assert!(flags.len() > 15, "{flags:?}");
    for flag in flags {
        assert!(help.contains(flag), "{flag} is in the book only");
    }
}

#[test]
fn every_link_of_the_book_leads_somewhere() {
    let page = read(PAGE);
    let headings: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .map(|line| anchor(line.trim_start_matches('#').trim()))
        .collect();
    let targets = page.split("](").skip(1);
    for target in targets.map(|rest| rest.split(')').next().unwrap()) {
        match target.split_once('#') {
            Some(("", anchor)) => assert!(headings.contains(anchor), "#{anchor}"),
            _ => assert!(root().join("docs").join(target).exists(), "{target}"),
        }
    }
}

/// As a heading is linked to.
fn anchor(heading: &str) -> String {
    let kept = |c: char| c.is_alphanumeric() || c == ' ' || c == '-';
    let kept: String = heading
        .to_lowercase()
        .chars()
        .filter(|c| kept(*c))
        .collect();
    kept.replace(' ', "-")
}

//! How files are read: in pieces, in parallel, damaged or not, always the same picture.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};

use flate2::{Compression, write::GzEncoder};
use kvatlas::report::{
    picture::Picture,
    read::{LINE_BYTES_MAX, ReadError, read},
    summary::{Assumptions, Summary, summarize},
    tally::Merge,
};
use tempfile::TempDir;

use crate::example;

fn summary(picture: &Picture) -> Summary {
    summarize(picture, String::new(), Assumptions::default())
}

// The slow twin: one line after the other.
fn one_by_one(lines: impl IntoIterator<Item: AsRef<str>>) -> Picture {
    let mut picture = Picture::default();
    for line in lines {
        picture.add(line.as_ref());
    }
    picture
}

fn write(path: &Path, text: &[u8]) {
    fs::write(path, text).unwrap();
}

// What a file with this content amounts to, and how many of its lines are damaged.
fn check(text: &[u8], expected: &Summary, damaged: u64) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit-1.jsonl");
    write(&path, text);
    let mut read = summary(&read(&[path]).unwrap());
    assert_eq!(read.damaged_lines, damaged);
    (read.lines, read.damaged_lines) = (expected.lines, expected.damaged_lines);
    // Damage alone may change the rule's line on it.
    read.verdict = expected.verdict.clone();
    assert_eq!(&read, expected);
}

#[test]
fn a_file_of_many_pieces_is_read_as_line_by_line() {
    let example = example::text();
    // Some 20 MB, in pieces of 4 that no line fits evenly.
    let mut text = String::new();
    for copy in 0..24 {
        text += &example;
        text += &"\n".repeat(copy);
    }
    let lines = text.lines().filter(|line| !line.is_empty());
    check(text.as_bytes(), &summary(&one_by_one(lines)), 0);
}

#[test]
fn where_the_files_are_split_changes_nothing() {
    let text = example::text();
    let lines: Vec<&str> = text.lines().collect();
    let expected = summary(&one_by_one(lines.iter().copied()));
    for cut in [0, 1, 7, lines.len() / 3, lines.len() - 1, lines.len()] {
        let (early, late) = lines.split_at(cut);
        let folder = TempDir::new().unwrap();
        let file = |name: &str, lines: &[&str]| {
            write(&folder.path().join(name), lines.join("\n").as_bytes());
        };
        // In the other order, as files of two servers may come.
        file("audit-1.jsonl", late);
        file("audit-2.jsonl", early);
        file("notes.txt", &["not an audit file"]);
        let folder = folder.path().to_owned();
        assert_eq!(summary(&read(&[folder]).unwrap()), expected, "{cut}");
        let mut merged = one_by_one(late.iter().copied());
        merged.merge(&one_by_one(early.iter().copied()));
        assert_eq!(summary(&merged), expected, "{cut}");
    }
}

#[test]
fn damaged_lines_are_counted_and_the_rest_is_read() {
    let example = example::text();
    let expected = summary(&one_by_one(example.lines()));
    let long = "x".repeat(LINE_BYTES_MAX + 1);
    let whole = format!("{{\"v\":1,\"pad\":\"{}\"}}", "y".repeat(9 << 20));
    let cases: [(&[u8], u64); 9] = [
        (b"", 0),
        (b"\n\n  \r\n", 0),
        (b"{\"v\":1,\"at_ms\":17", 1),
        (b"null\n[]\n\"lookup\"\n", 3),
        (b"{\"v\":2,\"at_ms\":1,\"kind\":\"lookup\"}\n", 1),
        (b"{\"v\":1,\"at_ms\":1,\"kind\":\"later\"}\n", 1),
        (b"\xff\xfe\x00\n", 1),
        (long.as_bytes(), 1),
        // Longer than two pieces of a file.
        (whole.as_bytes(), 1),
    ];
    for (damage, count) in cases {
        check(&[example.as_bytes(), damage].concat(), &expected, count);
        let first = [damage, b"\n", example.as_bytes()].concat();
        check(&first, &expected, count);
    }
}

#[test]
fn a_connectors_own_audit_is_called_by_its_name() {
    let folder = TempDir::new().unwrap();
    let ours = folder.path().join("audit-1.jsonl");
    let theirs = folder.path().join("audit-vllm.jsonl");
    let damaged = "{\"time\": 1.5}\n{\"time\": \"1\", \"event\": \"lookup\"}\n";
    let of_connector = "{\"time\": 1764500000.25, \"event\": \"engine\", \"mode\": \"x\"}\n\
        {\"time\": 1764500001, \"event\": \"lookup\", \"request_id\": \"1\", \"v\": 1}\n";
    write(&ours, example::text().as_bytes());
    let expected = summary(&read(std::slice::from_ref(&ours)).unwrap());
    assert_eq!(expected.connector_lines, 0);
    assert!(!kvatlas::report::text::text(&expected, 80).contains("connector"));

    write(&theirs, of_connector.as_bytes());
    let mut both = summary(&read(&[ours, theirs.clone()]).unwrap());
    assert_eq!((both.connector_lines, both.damaged_lines), (2, 0));
    let table = kvatlas::report::text::text(&both, 80);
    assert!(
        table.contains("2 lines are of a vLLM connector's own audit"),
        "{table}"
    );
    let page = kvatlas::report::html::page(&both);
    assert!(page.contains("2 lines are of a vLLM connector"));
    both.connector_lines = 0;
    assert_eq!(both, expected);

    write(&theirs, [of_connector, damaged].concat().as_bytes());
    let alone = summary(&read(&[theirs]).unwrap());
    let lines = (alone.connector_lines, alone.lines, alone.damaged_lines);
    assert_eq!(lines, (2, 2, 2));
}

#[test]
fn times_that_cannot_be_and_numbers_that_are_too_large_end_nothing() {
    let mut text = example::text();
    for at_ms in [0, 1, u64::MAX] {
        let lines = text.lines().take(40).map(|line| {
            let end = line.find(",\"kind\"").unwrap();
            format!("{{\"v\":1,\"at_ms\":{at_ms}{}\n", &line[end..])
        });
        let more: String = lines.collect();
        text += &more;
    }
    let picture = one_by_one(text.lines());
    assert_eq!(picture.lines.damaged, 0);
    let summary = summary(&picture);
    let page = kvatlas::report::html::page(&summary);
    let table = kvatlas::report::text::text(&summary, 80);
    assert!(page.len() > 10_000 && table.len() > 1_000);
}

#[test]
fn a_zipped_file_is_read_and_one_that_is_cut_off_as_far_as_it_goes() {
    let example = example::text();
    let expected = summary(&one_by_one(example.lines()));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("audit-1.jsonl.gz");
    let mut zip = GzEncoder::new(Vec::new(), Compression::fast());
    zip.write_all(example.as_bytes()).unwrap();
    let zipped = zip.finish().unwrap();
    write(&path, &zipped);
    assert_eq!(
        summary(&read(std::slice::from_ref(&path)).unwrap()),
        expected
    );
    write(&path, &zipped[..zipped.len() / 2]);
    let cut = read(std::slice::from_ref(&path)).unwrap();
    assert!(cut.lines.read > 100 && cut.lines.read < expected.lines);
    assert!(
        (1..=2).contains(&cut.lines.damaged),
        "{}",
        cut.lines.damaged
    );
    write(&path, b"no gzip at all");
    assert_eq!(read(&[path]).unwrap().lines.damaged, 1);
}

#[test]
fn what_is_not_there_is_an_error_that_names_it() {
    let folder = TempDir::new().unwrap();
    let absent = folder.path().join("absent.jsonl");
    let error = read(&[absent]).unwrap_err();
    assert!(error.to_string().contains("absent.jsonl"), "{error}");
    let empty: PathBuf = folder.path().to_owned();
    assert!(matches!(read(&[empty]), Err(ReadError::NoFiles { .. })));
}

#[test]
fn a_pipe_is_read_to_its_end() {
    let example = example::text();
    let output = Command::new("sh")
        .args(["-c", "gunzip | \"$0\" --output json report /dev/stdin"])
        .arg(env!("CARGO_BIN_EXE_kvatlas"))
        .stdin(File::open(example::path()).unwrap())
        .output()
        .unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["lines"], example.lines().count());
    assert_eq!(
        told["lookups"],
        summary(&one_by_one(example.lines())).lookups
    );
}

#[test]
fn more_files_are_read_than_may_be_open() {
    let folder = TempDir::new().unwrap();
    let line = example::text().lines().nth(1).unwrap().to_owned();
    for at in 0..100 {
        write(
            &folder.path().join(format!("audit-{at}.jsonl")),
            line.as_bytes(),
        );
    }
    let script = "ulimit -n 48; exec \"$0\" --output json report \"$1\"";
    let output = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_kvatlas")])
        .arg(folder.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["lines"], 100);
}

//! Priors go from one server to another and answer the same.

use std::fs;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{Server, check_exit, example, text};

/// Scores of many heads, of one layer, lists by K and a legacy list, some under a query.
fn fill(server: &Server) {
    for (file, more) in [
        (
            "aff_float32.pt",
            &["--prefix-hash", "scored", "--pooling", "max"][..],
        ),
        (
            "rarity.safetensors",
            &["--prefix-hash", "scored", "--algorithm", "z-first"],
        ),
        (
            "aff_float32.pt",
            &["--prefix-hash", "scored", "--algorithm", "a-last"],
        ),
        (
            "perk.pt",
            &["--prefix-hash", "listed", "--repair", "xa25:0.25"],
        ),
        (
            "legacy_list.pt",
            &["--prefix-hash", "listed", "--query-hash", "q"],
        ),
    ] {
        let put = ["prior", "put", &example(file)];
        server.check(&[&put[..], more].concat(), 0);
    }
}

/// Answers that together say everything of a prior that a request can see.
fn answers(server: &Server) -> Vec<Value> {
    let mut answers = Vec::new();
    for (prefix, more, ks) in [
        ("scored", &[][..], &["1", "7", "64"][..]),
        ("scored", &["--algorithm", "z-first"], &["1", "5"]),
        ("scored", &["--policy", "per-head"], &["1", "9"]),
        ("scored", &["--policy", "A2R3K15"], &["20"]),
        ("listed", &[], &["4", "8", "16"]),
        ("listed", &["--query-hash", "q"], &["3", "10"]),
    ] {
        for k in ks {
            let ask = [&["manifest", prefix, "--k", k], more].concat();
            let mut answer = server.json(&ask, 0);
            for new in ["lease", "prior_generation"] {
                answer.as_object_mut().unwrap().remove(new);
            }
            answers.push(answer);
        }
    }
    answers
}

fn priors(server: &Server) -> Vec<Value> {
    let listed = server.json(&["prior", "ls"], 0);
    let mut priors = listed.as_array().unwrap().clone();
    for prior in &mut priors {
        prior.as_object_mut().unwrap().remove("generation");
    }
    priors
}

/// Name and bytes of every file.
fn files(folder: &TempDir) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder.path()).unwrap().map(Result::unwrap);
    let mut files: Vec<_> = entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_round_trip_is_bit_identical() {
    let (one, other) = (Server::start(), Server::start());
    fill(&one);
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let [to, back] = [&first, &second].map(|folder| folder.path().to_str().unwrap());
    let exported = one.json(&["export", to], 0);
    assert_eq!(exported["exported"], 5);
    assert_eq!(files(&first).len(), 6);

    let imported = other.json(&["import", to], 0);
    assert_eq!(
        imported,
        serde_json::json!({ "imported": 5, "replaced": 0 })
    );
    assert_eq!(priors(&other), priors(&one));
    assert_eq!(
        answers(&other),
        answers(&one),
        "the newest is the newest there, too"
    );

    other.check(&["export", back], 0);
    assert_eq!(files(&second), files(&first));

    let imported = other.json(&["import", to], 0);
    assert_eq!(imported["replaced"], 5);
    assert_eq!(answers(&other), answers(&one));
}

#[test]
fn a_part_is_exported_by_the_beginning_of_its_prefix() {
    let server = Server::start();
    fill(&server);
    let folder = TempDir::new().unwrap();
    let to = folder.path().join("new").display().to_string();
    let begins = ["export", &to, "--prefix-hash-begins", "list"];
    assert!(server.check(&begins, 0).starts_with("exported 2 priors, "));
}

#[test]
fn what_was_altered_or_cut_off_is_not_imported() {
    let server = Server::start();
    fill(&server);
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    server.check(&["import", path], 2);
    server.check(&["export", path], 0);
    // A backup is not written over.
    let output = server.command(&["export", path]).output().unwrap();
    check_exit(&output, 2);
    assert!(text(&output.stderr).contains("is not empty"));

    let (name, mut bytes) = files(&folder).swap_remove(0);
    bytes[20] ^= 1;
    fs::write(folder.path().join(&name), bytes).unwrap();
    let output = server.command(&["import", path]).output().unwrap();
    check_exit(&output, 2);
    assert!(text(&output.stderr).contains("its SHA-256 differs"));

    let index = folder.path().join("priors.json");
    let newer = fs::read_to_string(&index).unwrap();
    fs::write(&index, newer.replace("\"version\": 1", "\"version\": 2")).unwrap();
    let output = server.command(&["import", path]).output().unwrap();
    check_exit(&output, 2);
    assert!(text(&output.stderr).contains("in version 2, this kvatlas reads up to 1"));
}

//! `--output json` gives one JSON document, whatever the command.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use crate::harness::{Server, check_exit, example, kvatlas, root};

/// Commands that answer nothing: one serves, one shows, and one tells how to use the others.
const WITHOUT: [&str; 2] = ["kvatlas-serve", "kvatlas-quickstart"];

#[test]
fn every_command_answers_in_json() {
    let server = Server::start();
    let folder = server.folder.path();
    let template = server.check(&["donor", "namespace-template"], 0);
    let ns = server.file("ns.json", &template);
    let ids: Vec<u32> = (0..2_000).map(|n: u32| n * 7919 % 50_000).collect();
    let tokens = server.file("tokens.json", &json!(ids).to_string());
    let data = root().join("service/tests/data");
    let cartridge = data.join("pt/cart_list.pt").display().to_string();
    let inv_freq = server.file("inv_freq.json", "[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]");
    let calibration = data.join("online/stats_gpu.pt").display().to_string();
    let prior = example("perk.pt");
    let backup = folder.join("backup").display().to_string();
    let pages = folder.join("man").display().to_string();
    let source = "tcp://127.0.0.1:1,worker=w1";
    let owner = ["--owner", "w", "--generation", "1"];
    let about = ["--namespace", &ns, "--tokens", &tokens];
    let mut seen = BTreeSet::new();
    let mut check = |args: &[&str], code| {
        let answer = server.json(args, code);
        let words = args.iter().take_while(|word| {
            word.bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'-')
                && !word.starts_with("--")
        });
        let words: Vec<&str> = words.copied().collect();
        for length in 1..=words.len() {
            seen.insert(format!("kvatlas-{}", words[..length].join("-")));
        }
        answer
    };

    check(&["status"], 0);
    check(&["health"], 0);
    check(&["completions", "zsh"], 0);
    check(&["man"], 0);
    check(&["mode", "materialize"], 0);
    check(&["prior", "put", &prior, "--prefix-hash", "C1"], 0);
    check(&["prior", "ls"], 0);
    check(&["prior", "show", "C1"], 0);
    let manifest = check(&["manifest", "C1", "--k", "4"], 0);
    let id = manifest["lease"]["id"].as_str().unwrap().to_owned();
    check(&["lease", "validate", &id], 0);
    check(&["lease", "renew", "00", "--holder", "h"], 3);
    check(&["lease", "release", "00", "--holder", "h"], 3);
    check(&["export", &backup], 0);
    check(&["import", &backup], 0);
    check(&["prior", "rm", "C1"], 0);
    check(&["encoder", "put", "qwen3-bf16"], 0);
    check(&["encoder", "list"], 0);
    check(&["encoder", "delete", "qwen3-bf16"], 0);
    let summary = ["summary", "put", &cartridge, "--prefix-hash", "C2"];
    let shape = [
        "--block-size",
        "16",
        "--layers",
        "0-2",
        "--inv-freq",
        &inv_freq,
    ];
    check(&[&summary[..], &shape].concat(), 0);
    check(&["summary", "list"], 0);
    check(&["summary", "show", "C2"], 0);
    check(&["summary", "delete", "C2"], 0);
    let query = ["query", "put", &calibration, "--query-hash", "q"];
    check(&[&query[..], &["--position", "4096"]].concat(), 0);
    check(&["donor", "namespace-template"], 0);
    check(&[&["donor", "announce"], &owner[..]].concat(), 0);
    check(
        &[&["donor", "register", "D1"], &about[..], &owner[..]].concat(),
        0,
    );
    check(&[&["donor", "find"], &about[..]].concat(), 0);
    check(&["donor", "ls"], 0);
    check(&["donor", "rm", "--namespace", &ns, "D1"], 0);
    check(&["worker", "follow", source, "--namespace", &ns], 0);
    check(&["worker", "ls"], 0);
    let pick = ["--pick", "--request-id", "R1"];
    check(&[&["worker", "find"], &about[..], &pick].concat(), 0);
    check(&["worker", "finish", "R1"], 0);
    check(&["worker", "unfollow", "w1"], 0);

    // Nobody is left out: the manual has a page of each command.
    let listed = check_exit(&kvatlas(&["--output", "json", "man", &pages]), 0);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        fs::read_dir(&pages).unwrap().count(),
        listed["pages"].as_array().unwrap().len()
    );
    for page in listed["pages"].as_array().unwrap() {
        let command = page.as_str().unwrap().trim_end_matches(".1");
        let is_known = seen.contains(command) || WITHOUT.contains(&command);
        assert!(is_known || command == "kvatlas", "{command} is not checked");
    }
}

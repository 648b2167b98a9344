//! `--output json` gives one JSON document, whatever the command.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};

use crate::harness::{Server, check_exit, example, kvatlas, root};

/// Commands that answer nothing: one serves, and one shows.
const WITHOUT: [&str; 2] = ["kvatlas-serve", "kvatlas-quickstart"];

/// A server, and the commands that it was asked by.
struct Asked<'a> {
    server: &'a Server,
    seen: BTreeSet<String>,
}

impl Asked<'_> {
    #[track_caller]
    fn json(&mut self, args: &[&str], code: i32) -> Value {
        let is_command = |word: &&&str| {
            let lower = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            word.bytes().all(lower) && !word.starts_with("--")
        };
        let words: Vec<&str> = args.iter().take_while(is_command).copied().collect();
        for length in 1..=words.len() {
            let command = format!("kvatlas-{}", words[..length].join("-"));
            self.seen.insert(command);
        }
        let answer = self.server.json(args, code);
        assert!(
            answer.is_object() || answer.is_array(),
            "{args:?}: {answer}"
        );
        answer
    }
}

#[test]
fn every_command_answers_in_json() {
    let server = Server::start();
    let mut asked = Asked {
        server: &server,
        seen: BTreeSet::new(),
    };
    for args in [&["status"][..], &["health"], &["completions", "zsh"]] {
        asked.json(args, 0);
    }
    asked.json(&["man"], 0);
    asked.json(&["mode", "materialize"], 0);
    priors(&mut asked);
    scoring(&mut asked);
    donors_and_workers(&mut asked);

    // Nobody is left out: the manual has a page of each command.
    let pages = server.folder.path().join("man").display().to_string();
    let listed = check_exit(&kvatlas(&["--output", "json", "man", &pages]), 0);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let listed = listed["pages"].as_array().unwrap();
    assert_eq!(fs::read_dir(&pages).unwrap().count(), listed.len());
    for page in listed {
        let command = page.as_str().unwrap().trim_end_matches(".1");
        let is_known = asked.seen.contains(command) || WITHOUT.contains(&command);
        assert!(is_known || command == "kvatlas", "{command} is not checked");
    }
}

fn priors(asked: &mut Asked<'_>) {
    let prior = example("perk.pt");
    let backup = asked.server.folder.path().join("backup");
    let backup = backup.display().to_string();
    asked.json(&["prior", "put", &prior, "--prefix-hash", "C1"], 0);
    asked.json(&["prior", "ls"], 0);
    asked.json(&["prior", "show", "C1"], 0);
    let manifest = asked.json(&["manifest", "C1", "--k", "4"], 0);
    let id = manifest["lease"]["id"].as_str().unwrap();
    asked.json(&["lease", "validate", id], 0);
    asked.json(&["lease", "renew", "00", "--holder", "h"], 3);
    asked.json(&["lease", "release", "00", "--holder", "h"], 3);
    asked.json(&["report", "--live"], 0);
    asked.json(&["export", &backup], 0);
    asked.json(&["import", &backup], 0);
    asked.json(&["prior", "rm", "C1"], 0);
}

fn scoring(asked: &mut Asked<'_>) {
    let data = root().join("service/tests/data");
    let cartridge = data.join("pt/cart_list.pt").display().to_string();
    let calibration = data.join("online/stats_gpu.pt").display().to_string();
    let inv_freq = asked
        .server
        .file("inv_freq.json", &json!(vec![0.5; 8]).to_string());
    asked.json(&["encoder", "put", "qwen3-bf16"], 0);
    asked.json(&["encoder", "list"], 0);
    asked.json(&["encoder", "delete", "qwen3-bf16"], 0);
    let summary = ["summary", "put", &cartridge, "--prefix-hash", "C2"];
    let shape = [
        "--block-size",
        "16",
        "--layers",
        "0-2",
        "--inv-freq",
        &inv_freq,
    ];
    asked.json(&[&summary[..], &shape].concat(), 0);
    asked.json(&["summary", "list"], 0);
    asked.json(&["summary", "show", "C2"], 0);
    asked.json(&["summary", "delete", "C2"], 0);
    let query = ["query", "put", &calibration, "--query-hash", "q"];
    asked.json(&[&query[..], &["--position", "4096"]].concat(), 0);
}

fn donors_and_workers(asked: &mut Asked<'_>) {
    let template = asked.json(&["donor", "namespace-template"], 0);
    let ns = asked.server.file("ns.json", &template.to_string());
    let ids: Vec<u32> = (0..2_000).map(|n: u32| n * 7919 % 50_000).collect();
    let tokens = asked.server.file("tokens.json", &json!(ids).to_string());
    let owner = ["--owner", "w", "--generation", "1"];
    let about = ["--namespace", &ns, "--tokens", &tokens];
    asked.json(&[&["donor", "announce"], &owner[..]].concat(), 0);
    let register = [&["donor", "register", "D1"], &about[..], &owner[..]].concat();
    asked.json(&register, 0);
    asked.json(&[&["donor", "find"], &about[..]].concat(), 0);
    asked.json(&["donor", "ls"], 0);
    asked.json(&["donor", "rm", "--namespace", &ns, "D1"], 0);
    let source = "tcp://127.0.0.1:1,worker=w1";
    asked.json(&["worker", "follow", source, "--namespace", &ns], 0);
    asked.json(&["worker", "ls"], 0);
    let pick = ["--pick", "--request-id", "R1"];
    asked.json(&[&["worker", "find"], &about[..], &pick].concat(), 0);
    asked.json(&["worker", "finish", "R1"], 0);
    asked.json(&["worker", "unfollow", "w1"], 0);
}

//! Completions, manual pages, exit codes, and what a terminal sees that a pipe does not.

use std::{
    collections::BTreeSet,
    fs,
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::harness::{
    BINARY, Server, check_exit, example, is_installed, kvatlas, serve_command, text,
};

/// What bash offers for the last of these words.
fn offered(words: &[&str]) -> Vec<String> {
    let script = r#"
        eval "$("$0" completions bash)"
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
        _kvatlas "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\n' "${COMPREPLY[@]}""#;
    let output = Command::new("bash")
        .args(["-c", script, BINARY])
        .args(words)
        .output()
        .unwrap();
    let offered = check_exit(&output, 0);
    offered.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let commands = offered(&["kvatlas", "pri"]);
    assert_eq!(commands, ["prior"]);
    let commands = offered(&["kvatlas", "prior", ""]);
    for command in ["put", "ls", "show", "rm"] {
        assert!(commands.contains(&command.to_owned()), "{commands:?}");
    }
    let flags = offered(&["kvatlas", "donor", "find", "--seg"]);
    assert_eq!(flags, ["--segment-donors-max"]);
    let values = offered(&["kvatlas", "--output", ""]);
    assert_eq!(values, ["table", "json"]);
}

#[test]
fn every_shell_has_its_script() {
    for (shell, begins) in [
        ("zsh", "#compdef kvatlas\n"),
        ("fish", "# Print an optspec"),
        ("elvish", "\nuse builtin;"),
        (
            "powershell",
            "\nusing namespace System.Management.Automation\n",
        ),
    ] {
        let script = check_exit(&kvatlas(&["completions", shell]), 0);
        assert!(script.starts_with(begins), "{shell}: {script:.60}");
        assert!(script.contains("segment-donors-max"), "{shell}");
    }
    check_exit(&kvatlas(&["completions", "cmd"]), 2);
}

#[test]
fn every_command_has_its_manual_page() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("man1");
    check_exit(&kvatlas(&["man", path.to_str().unwrap()]), 0);
    let entries = fs::read_dir(&path).unwrap();
    let pages: BTreeSet<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    for page in [
        "kvatlas.1",
        "kvatlas-serve.1",
        "kvatlas-donor-find.1",
        "kvatlas-man.1",
    ] {
        assert!(pages.contains(page), "{pages:?}");
    }
    let main = fs::read_to_string(path.join("kvatlas.1")).unwrap();
    assert!(main.contains(".TH kvatlas 1"), "{main:.200}");
    assert!(main.contains("Exit status:"), "{main}");
    // Each page that another one points at is there.
    for page in &pages {
        let text = fs::read_to_string(path.join(page)).unwrap();
        let pointers = text
            .split_whitespace()
            .filter_map(|word| word.strip_suffix("(1)"));
        for pointer in pointers {
            let pointed = format!("{}.1", pointer.replace("\\-", "-"));
            assert!(pages.contains(&pointed), "{page} points at {pointed}");
        }
    }
    if !is_installed("groff") {
        return;
    }
    for page in &pages {
        let output = Command::new("groff")
            .args(["-man", "-Tutf8", "-ww", "-z"])
            .arg(path.join(page))
            .output()
            .unwrap();
        assert_eq!(text(&output.stderr), "", "{page}");
    }
}

/// Every code, each from something that a person can meet.
#[test]
fn exit_codes_are_what_the_book_says() {
    let server = Server::start();
    server.check(&["health"], 0);
    server.check(&["status"], 0);
    server.check(&["manifest", "unheard-of", "--k", "4"], 3);
    server.check(&["lease", "validate", "00"], 3);
    server.check(&["prior", "put", "/nowhere", "--prefix-hash", "c"], 2);
    server.check(&["prior"], 2);
    // Refused by the server.
    server.check(&["manifest", "c", "--k", "0"], 1);

    let nobody = ["--address", "unix:/nowhere/kvatlas.sock"];
    let health = kvatlas(&[&nobody[..], &["health"]].concat());
    check_exit(&health, 1);
    assert!(text(&health.stderr).contains("kvatlas serve"));
    check_exit(&kvatlas(&[&nobody[..], &["status"]].concat()), 1);

    // A second server on the same folder.
    let second = serve_command(&server.folder.path().join("data"))
        .output()
        .unwrap();
    check_exit(&second, 1);
    assert!(text(&second.stderr).contains("is in use by another process"));
    check_exit(&kvatlas(&["serve", "--listen", "nonsense"]), 2);
}

/// Runs a command under a terminal of so many columns; its two outputs come as one.
fn under_terminal(server: &Server, columns: u32, args: &[&str]) -> Output {
    let words = ["--address", &server.grpc];
    let words = [&words[..], args].concat();
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    let line = format!("stty cols {columns}; '{BINARY}' {}", quoted.join(" "));
    Command::new("script")
        .args(["--quiet", "--return", "--command", &line, "/dev/null"])
        .env("TERM", "xterm")
        .output()
        .unwrap()
}

#[test]
fn a_terminal_sees_fitting_tables_and_a_pipe_all_of_them() {
    let server = Server::start();
    let prefix = "a-prefix-hash-that-is-as-long-as-sha-256-in-hexadecimal-digits-1";
    server.check(
        &["prior", "put", &example("perk.pt"), "--prefix-hash", prefix],
        0,
    );
    let piped = server.check(&["prior", "ls"], 0);
    assert!(piped.contains(prefix), "{piped}");
    if !is_installed("script") {
        return;
    }
    let narrow = text(&under_terminal(&server, 80, &["prior", "ls"]).stdout);
    assert!(!narrow.contains(prefix) && narrow.contains('…'), "{narrow}");
    let columns = narrow.lines().map(|line| line.trim_end().chars().count());
    assert_eq!(columns.max(), Some(80), "{narrow}");
    let wide = text(&under_terminal(&server, 200, &["prior", "ls"]).stdout);
    assert!(wide.contains(prefix), "{wide}");
}

#[test]
fn an_upload_shows_how_far_it_is_on_a_terminal_only() {
    let server = Server::start();
    let file = example("aff_float32.pt");
    let put = ["prior", "put", &file, "--prefix-hash", "c"];
    let piped = server.command(&put).output().unwrap();
    check_exit(&piped, 0);
    assert_eq!(text(&piped.stderr), "");
    if !is_installed("script") {
        return;
    }
    let shown = text(&under_terminal(&server, 200, &put).stdout);
    assert!(
        shown.contains("KiB, ") && shown.contains("aff_float32.pt ["),
        "{shown}"
    );
    assert!(shown.contains("replaced"), "{shown}");
}

//! The image's files suffice: the program runs where there is nothing but them.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::{
    harness::{BINARY, check_exit, is_installed, root, text},
    tools,
};

/// The image's root folder, as the Dockerfile makes it. None, said visibly, where this user may
/// give files away as little as change the root.
fn assemble() -> Option<TempDir> {
    let folder = TempDir::new().unwrap();
    if !is_installed("chroot") || !may_change_root(folder.path()) {
        eprintln!("SKIPPED: only root may change the root folder");
        return None;
    }
    let output = Command::new(root().join("deploy/assemble-image"))
        .arg(BINARY)
        .arg(folder.path())
        .output()
        .unwrap();
    check_exit(&output, 0);
    Some(folder)
}

fn may_change_root(folder: &Path) -> bool {
    let output = Command::new("chroot").arg(folder).arg("/nothing").output();
    // It ends with 125 when the root could not be changed, with 127 when nothing is found there.
    output.unwrap().status.code() == Some(127)
}

/// Runs a program of the image as its user.
fn inside(folder: &TempDir, words: &[&str]) -> Output {
    Command::new("chroot")
        .arg("--userspec=65532:65532")
        .arg(folder.path())
        .args(words)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap()
}

#[test]
fn the_program_runs_in_the_image_and_finds_nothing_else_there() {
    let Some(folder) = assemble() else {
        return;
    };
    let version = check_exit(&inside(&folder, &["/usr/bin/kvatlas", "--version"]), 0);
    assert!(version.starts_with("kvatlas "), "{version}");
    // Not the usual port: the network is that of the machine.
    let nobody = ["/usr/bin/kvatlas", "--address", "unix:/nobody.sock"];
    let health = inside(&folder, &[&nobody[..], &["health"]].concat());
    check_exit(&health, 1);
    assert!(text(&health.stderr).contains("Is the server running?"));
    assert_eq!(inside(&folder, &["/bin/sh"]).status.code(), Some(127));
    let programs = fs::read_dir(folder.path().join("usr/bin")).unwrap();
    assert_eq!(programs.count(), 1);
    let data = fs::metadata(folder.path().join("var/lib/kvatlas")).unwrap();
    assert_eq!(data.permissions().mode() & 0o777, 0o750);
    check_serves(&folder);
}

/// As its user, on its own data folder.
fn check_serves(folder: &TempDir) {
    let mut process = Command::new("chroot")
        .arg("--userspec=65532:65532")
        .arg(folder.path())
        .args([
            "/usr/bin/kvatlas",
            "serve",
            "--data-dir",
            "/var/lib/kvatlas",
        ])
        .args(["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let mut out = BufReader::new(process.stdout.take().unwrap());
    out.read_line(&mut ready).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    assert!(ready.starts_with("{\"grpc\":[\"127.0.0.1:"), "{ready}");
}

#[test]
fn onnx_runtime_finds_what_it_asks_for_in_the_image() {
    let Some((_, onnxruntime)) = tools::embedding_model() else {
        return;
    };
    let Some(folder) = assemble() else {
        return;
    };
    let libraries = fs::read_dir(onnxruntime).unwrap();
    let library = libraries
        .map(|entry| entry.unwrap().path())
        .find(|path| path.display().to_string().contains("libonnxruntime.so"))
        .unwrap();
    fs::copy(library, folder.path().join("libonnxruntime.so")).unwrap();
    let loader = fs::read_dir(folder.path().join("lib64")).unwrap().next();
    let loader = Path::new("/lib64").join(loader.unwrap().unwrap().file_name());
    let list = [loader.to_str().unwrap(), "--list", "/libonnxruntime.so"];
    let needed = check_exit(&inside(&folder, &list), 0);
    assert!(!needed.contains("not found"), "{needed}");
    assert!(needed.contains("libdl.so.2 => /lib/"), "{needed}");
}

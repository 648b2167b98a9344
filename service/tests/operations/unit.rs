//! What the unit promises of a running server: a reload that never ends it, and a socket for its
//! group.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use tempfile::TempDir;

use crate::harness::{BINARY, Server, check_exit, kvatlas, read};

#[test]
fn a_reload_without_files_to_read_changes_nothing() {
    let unit = read("deploy/kvatlas.service");
    assert!(unit.contains("\nExecReload=/bin/kill -HUP $MAINPID\n"));
    let server = Server::start();
    server.signal("HUP");
    server.check(&["health"], 0);
    server.signal("HUP");
    server.check(&["status"], 0);
}

#[test]
fn the_group_may_use_the_socket_under_the_units_umask() {
    let unit = read("deploy/kvatlas.service");
    let umask = unit.lines().find_map(|line| line.strip_prefix("UMask="));
    let folder = TempDir::new().unwrap();
    let socket = folder.path().join("kvatlas.sock");
    let script = format!("umask {}; exec \"$@\"", umask.unwrap());
    let mut command = Command::new("sh");
    command
        .args(["-c", &script, "sh", BINARY, "serve", "--log", "warn"])
        .args(["--http-listen", "127.0.0.1:0", "--listen"])
        .arg(format!("unix:{}", socket.display()))
        .arg("--data-dir")
        .arg(folder.path().join("data"));
    let server = Server::launch(folder, &mut command);
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    // To connect is to write.
    assert_eq!(mode & 0o777, 0o660, "{mode:o}");
    check_exit(&kvatlas(&["--address", &server.grpc, "health"]), 0);
}

//! The audit log on a disk that is full for a while.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use super::common::{Clients, ServerProcess, http_get, lookup, prompt, serve_flags, within};

/// Bytes of the disk.
const DISK: usize = 200 << 10;
/// The log is tried again once a second.
const TRIES_MS: u64 = 3_500;

/// A command with a small disk of its own at `place`; none where that may not be made.
fn with_disk(place: &Path) -> Option<Command> {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script]);
        command.arg(place);
        command
    };
    let mount = format!("mount -t tmpfs -o size={DISK},mode=700 tmpfs \"$0\"");
    let tried = unshare(&mount).output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        println!("skipped: no disk can be mounted");
        return None;
    }
    Some(unshare(&format!("{mount} && exec \"$@\"")))
}

fn audit_files(disk: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(disk.join("audit")).unwrap();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn metric(server: &ServerProcess, name: &str) -> u64 {
    let page = http_get(server.http, "/metrics");
    let mut values = page
        .lines()
        .filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    values.next().unwrap()
}

// Looks donors up until it holds.
async fn find_until(clients: &Clients, mut holds: impl AsyncFnMut() -> bool) {
    within(async {
        loop {
            let mut donors = clients.donors.clone();
            let asked = lookup(prompt(1, 32));
            within(donors.find_donor(asked)).await.unwrap();
            if holds().await {
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn what_was_written_before_is_there_after() {
    let folder = TempDir::new().unwrap();
    let place = folder.path().join("disk");
    fs::create_dir(&place).unwrap();
    let Some(mut command) = with_disk(&place) else {
        return;
    };
    command.arg(env!("CARGO_BIN_EXE_kvatlas"));
    serve_flags(&mut command, &folder.path().join("data"));
    command.args(["--audit-files-max", "2", "--log", "off", "--audit"]);
    command.arg(place.join("audit"));
    let server = ServerProcess::launch(command).await;
    let clients = server.clients();
    let lines = || metric(&server, "kvatlas_audit_lines_total ");
    find_until(&clients, async || lines() > 0).await;
    // As the server sees it.
    let disk = PathBuf::from(format!("/proc/{}/root{}", server.id(), place.display()));
    let first = audit_files(&disk);
    assert_eq!(first.len(), 1);
    let before = fs::read_to_string(&first[0]).unwrap();

    fs::write(disk.join("filler"), vec![0; 2 * DISK]).unwrap_err();
    let until_ms = clients.status().await.uptime_ms + TRIES_MS;
    find_until(&clients, async || {
        clients.status().await.uptime_ms > until_ms
    })
    .await;
    assert!(metric(&server, "kvatlas_audit_lines_lost_total ") > 0);
    assert_eq!(audit_files(&disk), first, "none is begun in vain");

    fs::remove_file(disk.join("filler")).unwrap();
    let written = lines();
    find_until(&clients, async || lines() > written).await;
    let after = fs::read_to_string(&first[0]).unwrap();
    assert!(after.starts_with(&before) && after.ends_with('\n'));
}

//! The store as another process sees it: killed at any moment, and watched at the system calls.

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::io::{BufRead, BufReader, Write};
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command, Stdio};

    use kvatlas::store::{Change, INLINE_BYTES_MAX, Store, Table};

    /// Tells this program, when a test starts it anew, which folder to write to.
    const FOLDER_VARIABLE: &str = "KVATLAS_TEST_STORE";
    const REQUIRE_TOOLS_VARIABLE: &str = "KVATLAS_REQUIRE_TOOLS";

    #[expect(
        clippy::disallowed_methods,
        reason = "how a test speaks to the process it starts"
    )]
    fn variable(name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    /// One system call a line: no buffer between what is acknowledged and what is seen.
    fn say(line: &str) {
        std::io::stdout()
            .write_all(format!("{line}\n").as_bytes())
            .unwrap();
    }

    fn child(command: &mut Command, test: &str, folder: &Path) -> Child {
        command
            .args([
                "--exact",
                test,
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(FOLDER_VARIABLE, folder)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    // Killed at any moment.

    const ROUNDS: u64 = 50;
    /// Records alive at a time: each step puts one and deletes the one this far behind.
    const WINDOW: u64 = 20;

    fn payload(number: u64) -> Vec<u8> {
        let length = if number.is_multiple_of(9) {
            INLINE_BYTES_MAX + 7
        } else {
            300
        };
        (number..)
            .map(|value| value.to_le_bytes()[0])
            .take(length)
            .collect()
    }

    #[test]
    #[ignore = "a process that nothing_acknowledged_is_lost_by_a_kill starts"]
    fn writes_until_killed() {
        let Some(folder) = variable(FOLDER_VARIABLE) else {
            return;
        };
        let (store, _) = Store::open(&PathBuf::from(folder)).unwrap();
        let mut next = 0;
        store
            .scan(Table::Donors, &mut |key, _| {
                next = u64::from_be_bytes(key.try_into().unwrap()) + 1;
            })
            .unwrap();
        loop {
            let key = next.to_be_bytes();
            let old = next.wrapping_sub(WINDOW).to_be_bytes();
            let payload = payload(next);
            store
                .write(&[
                    Change::Delete {
                        table: Table::Donors,
                        key: &old,
                    },
                    Change::Put {
                        table: Table::Donors,
                        key: &key,
                        payload: &payload,
                    },
                ])
                .unwrap();
            store.commit().unwrap();
            say(&format!("ack {next} {}", store.next_sequence().unwrap()));
            next += 1;
        }
    }

    /// What the store must hold after `last` was acknowledged: that step, or one more.
    fn check_window(store: &Store, last: Option<u64>, round: u64) {
        let mut found = BTreeMap::new();
        let report = store
            .scan(Table::Donors, &mut |key, payload| {
                found.insert(
                    u64::from_be_bytes(key.try_into().unwrap()),
                    payload.to_vec(),
                );
            })
            .unwrap();
        assert_eq!((report.damaged, report.missing), (0, 0), "round {round}");
        for (&number, bytes) in &found {
            assert!(*bytes == payload(number), "round {round}: record {number}");
        }
        let Some(newest) = found.last_key_value().map(|(&number, _)| number) else {
            assert_eq!(last, None, "round {round}: everything is gone");
            return;
        };
        let is_last = last.is_none_or(|last| newest == last || newest == last + 1);
        assert!(
            is_last,
            "round {round}: {newest} is the newest, {last:?} was acknowledged"
        );
        let window: Vec<u64> = ((newest + 1).saturating_sub(WINDOW)..=newest).collect();
        assert_eq!(
            found.into_keys().collect::<Vec<_>>(),
            window,
            "round {round}: half a batch"
        );
    }

    #[test]
    fn nothing_acknowledged_is_lost_by_a_kill() {
        let folder = tempfile::tempdir().unwrap();
        let mut seed = u64::from(std::process::id());
        println!("seed {seed}");
        let mut last = None;
        let mut last_sequence = 0;
        for round in 0..ROUNDS {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let wanted = (seed >> 33) % 12;
            let mut command = Command::new(std::env::current_exe().unwrap());
            let mut writer = child(&mut command, "tests::writes_until_killed", folder.path());
            let lines = BufReader::new(writer.stdout.take().unwrap()).lines();
            let mut acknowledged = 0;
            let acks = lines.map(Result::unwrap).filter_map(|line| {
                let (number, sequence) = line.strip_prefix("ack ")?.split_once(' ')?;
                Some((
                    number.parse::<u64>().unwrap(),
                    sequence.parse::<u64>().unwrap(),
                ))
            });
            for (number, sequence) in acks {
                assert!(
                    sequence > last_sequence,
                    "round {round}: {sequence} given twice"
                );
                last_sequence = sequence;
                last = Some(number);
                acknowledged += 1;
                if acknowledged > wanted {
                    // Kills again what is dead already: the lines still in the pipe count too.
                    writer.kill().unwrap();
                }
            }
            assert!(
                acknowledged > wanted,
                "round {round}: the writer died by itself"
            );
            writer.wait().unwrap();
            let (store, report) = Store::open(folder.path()).unwrap();
            assert_eq!(
                (report.damaged, report.writes_lost),
                (0, 0),
                "round {round}"
            );
            check_window(&store, last, round);
        }
    }

    // Watched at the system calls.

    const WRITERS: u64 = 8;
    const COMMITS_EACH: u64 = 10;

    #[test]
    #[ignore = "a process that every_acknowledgement_follows_a_sync starts"]
    fn writes_and_acknowledges() {
        let Some(folder) = variable(FOLDER_VARIABLE) else {
            return;
        };
        let (store, _) = Store::open(&PathBuf::from(folder)).unwrap();
        let write = |number: u64, payload: &[u8]| {
            let key = &number.to_be_bytes();
            store
                .write(&[Change::Put {
                    table: Table::Donors,
                    key,
                    payload,
                }])
                .unwrap();
            say(&format!("wrote {number}"));
            store.commit().unwrap();
            say(&format!("ack {number}"));
        };
        for number in 0..5 {
            write(number, b"short");
        }
        write(5, &[5; INLINE_BYTES_MAX + 1]);
        say("together");
        std::thread::scope(|scope| {
            for writer in 1..=WRITERS {
                let write = &write;
                scope.spawn(move || {
                    for number in 0..COMMITS_EACH {
                        write(writer * 100 + number, b"short");
                    }
                });
            }
        });
    }

    /// A system call of the trace: the lines where it began and where it ended.
    #[derive(Debug)]
    struct Call {
        began: usize,
        ended: usize,
        name: String,
        arguments: String,
        succeeded: bool,
    }

    /// Reads `strace -f -y`: `PID name(arguments) = result`, or that line in two parts with
    /// `<unfinished ...>` and `<... name resumed>` where another process came between.
    fn parse(trace: &str) -> Vec<Call> {
        let mut calls = Vec::new();
        let mut open: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
        for (at, line) in trace.lines().enumerate() {
            let Some((process, rest)) = line.split_once(' ') else {
                continue;
            };
            let rest = rest.trim_start();
            let (began, head, tail) = if let Some(head) = rest.strip_suffix(" <unfinished ...>") {
                open.insert(process, (at, head));
                continue;
            } else if rest.starts_with("<... ") {
                let (began, head) = open.remove(process).unwrap();
                (began, head, rest)
            } else {
                (at, rest, rest)
            };
            let Some((name, arguments)) = head.split_once('(') else {
                continue;
            };
            let succeeded = tail.rsplit_once("= ").is_some_and(|(_, result)| {
                result
                    .split(' ')
                    .next()
                    .unwrap()
                    .parse::<i64>()
                    .is_ok_and(|result| result >= 0)
            });
            let (name, arguments) = (name.to_owned(), arguments.to_owned());
            calls.push(Call {
                began,
                ended: at,
                name,
                arguments,
                succeeded,
            });
        }
        calls
    }

    /// The calls of one of these names on the file or folder whose path ends so.
    fn on<'a>(calls: &'a [Call], names: &[&str], path_end: &str) -> Vec<&'a Call> {
        let path_end = format!("{path_end}>");
        let is_on = |call: &&Call| {
            let descriptor = call.arguments.split([',', ')']).next().unwrap();
            call.succeeded && names.contains(&call.name.as_str()) && descriptor.ends_with(&path_end)
        };
        calls.iter().filter(is_on).collect()
    }

    fn said<'a>(calls: &'a [Call], line: &str) -> &'a Call {
        let line = format!("\"{line}\\n\"");
        let is_it = |call: &&Call| call.name == "write" && call.arguments.contains(&line);
        calls
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("{line} is not in the trace"))
    }

    fn strace(trace: &Path) -> Option<Command> {
        let found = Command::new("strace")
            .arg("-V")
            .stdout(Stdio::null())
            .status();
        if !found.is_ok_and(|status| status.success()) {
            assert!(
                variable(REQUIRE_TOOLS_VARIABLE).is_none(),
                "strace is not installed"
            );
            println!("SKIPPED: strace is not installed");
            return None;
        }
        let mut command = Command::new("strace");
        command
            .args([
                "-f",
                "-y",
                "-s",
                "64",
                "-e",
                "trace=fdatasync,fsync,write,pwrite64",
                "-o",
            ])
            .arg(trace)
            .arg(std::env::current_exe().unwrap());
        Some(command)
    }

    #[test]
    fn every_acknowledgement_follows_a_sync() {
        let folder = tempfile::tempdir().unwrap();
        let trace = folder.path().join("trace");
        let Some(mut command) = strace(&trace) else {
            return;
        };
        let store = folder.path().join("store");
        let writer = child(&mut command, "tests::writes_and_acknowledges", &store);
        let output = writer.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
        let calls = parse(&std::fs::read_to_string(trace).unwrap());
        check_start(&calls);
        check_alone(&calls);
        check_long(&calls);
        check_together(&calls);
    }

    /// The epoch and the names of the store's own files, before anything is acknowledged.
    fn check_start(calls: &[Call]) {
        let first = said(calls, "wrote 0");
        for path_end in ["/store/header.new", "/store/records", "/store"] {
            let synced = on(calls, &["fdatasync", "fsync"], path_end);
            assert!(
                synced.iter().any(|sync| sync.ended < first.began),
                "{path_end}"
            );
        }
    }

    /// One at a time: written, handed to the kernel, on the disk, acknowledged.
    fn check_alone(calls: &[Call]) {
        let syncs = on(calls, &["fdatasync"], "/records/db");
        let log_writes = on(calls, &["pwrite64"], "/records/db");
        for number in 0..=5 {
            let wrote = said(calls, &format!("wrote {number}"));
            let ack = said(calls, &format!("ack {number}"));
            let is_followed = |log_write: &Call| {
                syncs
                    .iter()
                    .any(|sync| sync.began > log_write.ended && sync.ended < ack.began)
            };
            let mut later = log_writes
                .iter()
                .filter(|log_write| log_write.began > wrote.ended);
            let is_synced = later.any(|log_write| is_followed(log_write));
            assert!(
                is_synced,
                "{number} was acknowledged before it was on the disk"
            );
        }
    }

    /// A long payload: its file, then the name of its file, then the record.
    fn check_long(calls: &[Call]) {
        let file_syncs = on(calls, &["fdatasync"], ".new");
        let name_syncs = on(calls, &["fsync"], "/spilled");
        let (before, wrote) = (said(calls, "ack 4"), said(calls, "wrote 5"));
        let file_sync = file_syncs
            .iter()
            .find(|sync| sync.began > before.ended)
            .unwrap();
        let is_between = |sync: &&Call| sync.began > file_sync.ended && sync.ended < wrote.began;
        assert!(name_syncs.into_iter().any(|sync| is_between(&sync)));
    }

    /// Together: a sync that began after the write, and fewer of them than commits.
    fn check_together(calls: &[Call]) {
        let syncs = on(calls, &["fdatasync"], "/records/db");
        for number in (1..=WRITERS).flat_map(|writer| writer * 100..writer * 100 + COMMITS_EACH) {
            let wrote = said(calls, &format!("wrote {number}"));
            let ack = said(calls, &format!("ack {number}"));
            let is_synced = syncs
                .iter()
                .any(|sync| sync.began > wrote.ended && sync.ended < ack.began);
            assert!(
                is_synced,
                "{number} was acknowledged before it was on the disk"
            );
        }
        let together = said(calls, "together");
        let shared = syncs
            .iter()
            .filter(|sync| sync.began > together.ended)
            .count() as u64;
        let commits = WRITERS * COMMITS_EACH;
        assert!(shared < commits, "{shared} syncs for {commits} commits");
        println!("{shared} syncs for {commits} commits");
    }
}

//! What the kernel saw: an acknowledgement leaves only after a sync of the log that came after
//! the request, and concurrent registrations share syncs.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use kvatlas_proto::v1;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::{
    common::{ServerProcess, donor, prior_file, prompt, serve_flags, until, upload, within},
    tools,
};

const ONE_BY_ONE: u64 = 8;
const TOGETHER: u64 = 128;
const CALLS: &str = "trace=read,readv,recvfrom,recvmsg,write,writev,sendto,sendmsg,fdatasync";

#[tokio::test]
async fn an_acknowledgement_follows_a_sync_that_followed_the_request() {
    let Some(strace) = tools::find("strace", "KVATLAS_STRACE") else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let trace = folder.path().join("trace");
    let mut command = Command::new(strace);
    // With -D the child is the server itself, and the tracer a process beside it.
    command.args(["-D", "-f", "-y", "-s", "4096", "-e", CALLS, "-o"]);
    command.arg(&trace).arg(env!("CARGO_BIN_EXE_kvatlas"));
    serve_flags(&mut command, &folder.path().join("data"));
    command.stderr(Stdio::null());
    let mut server = ServerProcess::launch(command).await;
    let clients = server.clients();

    let mut expected = Vec::new();
    for number in 0..ONE_BY_ONE {
        let id = format!("alone-donor-{number}");
        let request = donor(&id, prompt(number, 64));
        let registered = within(clients.donors.clone().register_donor(request)).await;
        expected.push((id, registered.unwrap().into_inner().namespace_id));

        let id = format!("alone-prior-{number}");
        let header = v1::PutPriorHeader {
            prefix_hash: id.clone(),
            ..Default::default()
        };
        let parts = upload(header, &prior_file("perk.pt"));
        let mut routing = clients.routing.clone();
        let put = routing.put_prior(tokio_stream::iter(parts));
        within(put).await.unwrap();
        expected.push((id.clone(), id));
    }
    let mut together = JoinSet::new();
    for number in 0..TOGETHER {
        let mut donors = clients.donors.clone();
        let request = donor(&format!("together-{number}"), prompt(1000 + number, 64));
        together.spawn(async move { donors.register_donor(request).await });
    }
    while let Some(registered) = within(together.join_next()).await {
        registered.unwrap().unwrap();
    }
    drop(clients);
    server.terminate();
    assert_eq!(server.exit_code().await, Some(0));
    let leader = server.id().to_string();
    let is_last = |line: &str| line.starts_with(&leader) && line.contains("+++ exited");
    until(|| {
        let written = std::fs::read(&trace).unwrap();
        let is_whole = String::from_utf8_lossy(&written).lines().any(is_last);
        std::future::ready(is_whole)
    })
    .await;

    let events = read(&trace);
    for (request, answer) in &expected {
        check(&events, request, answer);
    }
    let first = position(&events, 0, |event| event.reads("together-"));
    let syncs = events[first..]
        .iter()
        .filter(|event| matches!(event, Event::SyncBegan { .. }))
        .count() as u64;
    println!("{TOGETHER} registrations at a time took {syncs} syncs");
    assert!(
        syncs < TOGETHER / 2,
        "{syncs} syncs for {TOGETHER} registrations"
    );
}

// From the read of the request to the write of the answer there is a whole sync.
fn check(events: &[Event], request: &str, answer: &str) {
    let asked = position(events, 0, |event| event.reads(request));
    let answered = position(events, asked, |event| event.writes(answer));
    let between = &events[asked..answered];
    let is_whole = between.iter().enumerate().any(|(place, event)| {
        let Event::SyncBegan { thread } = event else {
            return false;
        };
        let mut rest = between[place..].iter();
        rest.any(|event| matches!(event, Event::SyncEnded { thread: ended } if ended == thread))
    });
    assert!(
        is_whole,
        "{request} was acknowledged without a sync: {between:?}"
    );
}

fn position(events: &[Event], from: usize, is: impl Fn(&Event) -> bool) -> usize {
    let place = events[from..].iter().position(is);
    from + place.expect("the trace holds the request and its answer")
}

#[derive(Debug)]
enum Event {
    /// A read from a socket, once it returned.
    Read(String),
    /// A write to a socket, as it began.
    Wrote(String),
    /// A sync of the record log.
    SyncBegan {
        thread: String,
    },
    SyncEnded {
        thread: String,
    },
}

impl Event {
    fn reads(&self, text: &str) -> bool {
        matches!(self, Event::Read(line) if line.contains(text))
    }

    fn writes(&self, text: &str) -> bool {
        matches!(self, Event::Wrote(line) if line.contains(text))
    }
}

// One line a call, or two where another thread's call came in between: "unfinished", "resumed".
fn read(trace: &Path) -> Vec<Event> {
    let text = std::fs::read(trace).unwrap();
    let text = String::from_utf8_lossy(&text);
    let mut events = Vec::new();
    for line in text.lines() {
        let Some((thread, call)) = line.trim_start().split_once(' ') else {
            continue;
        };
        let call = call.trim_start();
        let (begins, ends) = (
            !call.starts_with("<..."),
            !call.ends_with("unfinished ...>"),
        );
        let name = call.trim_start_matches("<... ");
        let thread = thread.to_owned();
        if name.starts_with("fdatasync") {
            // Priors lie among the records, donors in a log of their own.
            let is_log =
                |call: &str| call.contains("/records/db>") || call.contains("/data/donors/");
            if begins && is_log(call) {
                events.push(Event::SyncBegan {
                    thread: thread.clone(),
                });
            }
            if ends && call.ends_with("= 0") && (!begins || is_log(call)) {
                events.push(Event::SyncEnded { thread });
            }
        } else if name.starts_with("read") || name.starts_with("recv") {
            if ends {
                events.push(Event::Read(call.to_owned()));
            }
        } else if begins && (name.starts_with("write") || name.starts_with("send")) {
            let is_socket = call.contains("<socket:") || call.contains("<TCP");
            if is_socket {
                events.push(Event::Wrote(call.to_owned()));
            }
        }
    }
    events
}

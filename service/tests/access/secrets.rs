//! No token is ever written down: not with every log line that there is, not in the data folder.

use std::{fs, path::Path};

use kvatlas_proto::v1;

use crate::{
    common::{donor, lookup, prompt, until, within},
    doors::{PLANTED, http_get, replace, start, token, write_tokens},
};

const TOKENS: [(&str, &str, &str); 2] = [
    ("operator", "operator", ""),
    (
        "engine",
        "engine",
        ", \"tenants\": \"*\", \"calls_per_second_max\": 5",
    ),
];

#[tokio::test]
async fn nothing_that_the_process_wrote_has_a_token_in_it() {
    let server = start(|command, folder| {
        let path = folder.join("tokens.json");
        write_tokens(&path, &TOKENS);
        command.arg("--token-file").arg(path);
        command.args(["--log", "trace"]);
    })
    .await;
    for name in ["", "unknown", "engine", "operator"] {
        let caller = server.caller(name);
        for _ in 0..7 {
            // Some are refused, and some are beyond the limit.
            let _either = caller.status().await;
        }
        let mut donors = caller.donors.clone();
        let _either = within(donors.register_donor(donor("d", prompt(1, 64)))).await;
        let request = v1::FindDonorsRequest {
            correlation_id: 1,
            request: Some(lookup(prompt(1, 64))),
        };
        let _either = within(donors.find_donors(tokio_stream::once(request))).await;
        for scheme in ["Bearer", "Basic"] {
            http_get(
                server.process.http,
                "/metrics",
                &format!("{scheme} {}", token(name)),
            );
        }
    }
    let path = server.path("tokens.json");
    let good = fs::read_to_string(&path).unwrap();
    for (number, (from, to)) in (1..).zip([("\"role\"", PLANTED), ("\"operator\"", "\"none\"")]) {
        replace(&path, &good.replace(from, to));
        let refused = || server.log().matches("nothing has changed").count();
        until(|| std::future::ready(refused() == number)).await;
    }
    fs::remove_file(&path).unwrap();
    fs::remove_file(path.with_extension("new")).unwrap_or_default();
    server.process.terminate();
    let mut server = server;
    assert_eq!(server.process.exit_code().await, Some(0));
    assert!(
        server.log().lines().count() > 100,
        "it was told to say everything"
    );
    let files = grep(server.folder.path());
    assert!(files > 2, "{files} files");
}

/// How many files there are, none of which has a token in it.
fn grep(folder: &Path) -> usize {
    let mut files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files += grep(&path);
            continue;
        }
        files += 1;
        let bytes = fs::read(&path).unwrap();
        let windows = bytes.windows(PLANTED.len());
        let found = windows.into_iter().any(|some| some == PLANTED.as_bytes());
        assert!(!found, "a token is in {}", path.display());
    }
    files
}

//! `--live`: what a running server's newest records amount to.

use std::process::Command;

use kvatlas_proto::v1;
use serde_json::Value;

use crate::common::{self, donor, lookup, prompt, until, within};

fn ask(address: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_kvatlas"))
        .args(["--address", address, "--output", "json", "report", "--live"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn real_look_ups_are_in_the_picture() {
    let server = common::start();
    let address = server.server.grpc_addresses()[0].to_string();
    let mut donors = server.clients.donors.clone();
    within(donors.register_donor(donor("d1", prompt(1, 512))))
        .await
        .unwrap();
    for seed in [1, 1, 2] {
        let mut asked = prompt(seed, 512);
        asked.extend(prompt(seed + 10, 64));
        within(donors.find_donor(lookup(asked))).await.unwrap();
    }
    within(donors.report_reuse(v1::ReportReuseRequest {
        provenance: v1::ReuseProvenance::FallbackRecompute.into(),
        ..Default::default()
    }))
    .await
    .unwrap();
    // Records reach the window behind the answers.
    until(|| std::future::ready(ask(&address)["lookups"] == 3)).await;
    let report = ask(&address);
    assert_eq!(report["found"], 2);
    assert_eq!(report["namespaces"][0]["lookups"], 3);
    assert_eq!(report["donors"][0]["lookups"], 2);
    assert!(report["reusable_tokens"].as_u64().unwrap() >= 2 * 496);
    assert_eq!(report["verdict"]["step"], "stay_in_discovery");
}

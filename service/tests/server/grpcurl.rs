//! What a person with grpcurl sees, over TCP and over a Unix socket.

use std::{
    path::PathBuf,
    process::{Command, Output},
};

use kvatlas::config::ListenAddress;
use kvatlas_proto::v1;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    common::{self, prior_file, prompt, upload, within},
    tools,
};

/// grpcurl ends with this plus the status code.
const EXIT_BASE: i32 = 64;
const SECONDS_MAX: &str = "60";

#[tokio::test]
async fn people_can_ask_for_everything_by_reflection() {
    let Some(grpcurl) = tools::find("grpcurl", "KVATLAS_GRPCURL") else {
        return;
    };
    let sockets = TempDir::new().unwrap();
    let socket = sockets.path().join("kvatlas.sock");
    let server = common::start_with(|args| args.listen.push(ListenAddress::Unix(socket.clone())));
    let header = v1::PutPriorHeader {
        prefix_hash: "document".into(),
        ..Default::default()
    };
    let parts = upload(header, &prior_file("perk.pt"));
    let mut routing = server.clients.routing.clone();
    within(routing.put_prior(tokio_stream::iter(parts)))
        .await
        .unwrap();
    let tcp = server.server.grpc_addresses()[0].to_string();
    check(&Grpcurl {
        program: grpcurl.clone(),
        flags: Vec::new(),
        address: tcp,
    });
    check(&Grpcurl {
        program: grpcurl,
        // Otherwise grpcurl sends the path as the authority, which is none in HTTP/2.
        flags: ["-unix", "-authority", "localhost"]
            .map(String::from)
            .into(),
        address: socket.display().to_string(),
    });
}

fn check(grpcurl: &Grpcurl) {
    check_reflection(grpcurl);
    check_answers(grpcurl);
    check_refusals(grpcurl);
}

fn check_reflection(grpcurl: &Grpcurl) {
    let listed = grpcurl.text(&["list"]);
    let listed: Vec<_> = listed.lines().collect();
    assert_eq!(
        listed,
        [
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
            "kvatlas.v1.Admin",
            "kvatlas.v1.Donors",
            "kvatlas.v1.Events",
            "kvatlas.v1.Leases",
            "kvatlas.v1.Routing",
        ]
    );
    let methods = grpcurl.text(&["list", "kvatlas.v1.Leases"]);
    for method in ["Validate", "Renew", "Release"] {
        assert!(methods.contains(method), "{methods}");
    }
    let described = grpcurl.text(&["describe", "kvatlas.v1.Routing.GetManifest"]);
    assert!(described.contains("rpc GetManifest"), "{described}");
    let described = grpcurl.text(&["describe", ".kvatlas.v1.GetManifestRequest"]);
    assert!(described.contains("string prefix_hash = 1;"), "{described}");
}

fn check_answers(grpcurl: &Grpcurl) {
    for service in ["", "kvatlas.v1.Routing", "kvatlas.v1.Donors"] {
        let asked = json!({ "service": service });
        let health = grpcurl.call("grpc.health.v1.Health/Check", &asked);
        assert_eq!(health, json!({ "status": "SERVING" }), "{service}");
    }
    let asked = json!({ "prefix_hash": "document", "k": 4 });
    let manifest = grpcurl.call("kvatlas.v1.Routing/GetManifest", &asked);
    assert_eq!(manifest["blockIndices"], json!([10, 102, 174, 242]));
    assert_eq!(manifest["provenance"], "MANIFEST_PROVENANCE_PRIOR");

    let namespace = namespace();
    let tokens = json!({ "ids": prompt(1, 128) });
    let donor = json!({
        "donor_id": "by-hand",
        "namespace": { "namespace": namespace },
        "owner": { "worker_id": "person" },
        "owner_generation": 1,
        "tokens": tokens,
        "captured_tokens": 128,
        "medium": "MEDIUM_HOST",
        "store_id": "store",
    });
    let registered = grpcurl.call("kvatlas.v1.Donors/RegisterDonor", &donor);
    let id = &registered["namespaceId"];
    assert_eq!(id.as_str().unwrap().len(), 64, "{registered}");
    let lookup = json!({
        "tokens": tokens,
        "namespace": { "namespace_id": id },
        "gates": { "min_prompt_tokens": 16, "min_reuse_tokens": 16 },
    });
    let found = grpcurl.call("kvatlas.v1.Donors/FindDonor", &lookup);
    assert_eq!(found["outcome"], "FIND_OUTCOME_PREFIX", "{found}");
    assert_eq!(found["match"]["donorId"], "by-hand");
    assert_eq!(found["match"]["reusablePrefixTokens"], 112);
    assert_eq!(found["leaseRefusal"], "LEASE_REFUSAL_DISCOVERY_ONLY");
}

fn check_refusals(grpcurl: &Grpcurl) {
    for (method, asked, code, name, message) in [
        (
            "kvatlas.v1.Routing/GetManifest",
            json!({ "prefix_hash": "document" }),
            3,
            "InvalidArgument",
            "k:",
        ),
        (
            "kvatlas.v1.Routing/GetManifest",
            json!({ "prefix_hash": "unheard-of", "k": 4 }),
            5,
            "NotFound",
            "no prior is stored under this prefix_hash",
        ),
        (
            "kvatlas.v1.Donors/FindDonor",
            json!({ "namespace": { "namespace": namespace() } }),
            3,
            "InvalidArgument",
            "tokens: must not be empty",
        ),
        (
            "kvatlas.v1.Events/FindWorkers",
            json!({}),
            3,
            "InvalidArgument",
            "tokens: must not be empty",
        ),
    ] {
        let output = grpcurl.run(&["-d", &asked.to_string()], &[method]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(EXIT_BASE + code), "{told}");
        assert!(told.contains(&format!("Code: {name}")), "{told}");
        assert!(told.contains(&format!("Message: {message}")), "{told}");
    }
}

/// grpcurl against one listener.
struct Grpcurl {
    program: PathBuf,
    flags: Vec<String>,
    address: String,
}

impl Grpcurl {
    fn call(&self, method: &str, asked: &Value) -> Value {
        let output = self.run(&["-d", &asked.to_string()], &[method]);
        serde_json::from_str(&succeeded(&output)).unwrap()
    }

    fn text(&self, words: &[&str]) -> String {
        succeeded(&self.run(&[], words))
    }

    fn run(&self, flags: &[&str], words: &[&str]) -> Output {
        Command::new(&self.program)
            .args(["-plaintext", "-max-time", SECONDS_MAX])
            .args(&self.flags)
            .args(flags)
            .arg(&self.address)
            .args(words)
            .output()
            .unwrap()
    }
}

fn succeeded(output: &Output) -> String {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn namespace() -> Value {
    json!({
        "model": "test-model",
        "model_revision": "r1",
        "tokenizer": "test-tokenizer",
        "tokenizer_revision": "r2",
        "tokenization": "no-special-tokens",
        "chat_template": "none",
        "dtype": "bfloat16",
        "kv_cache_dtype": "auto",
        "block_size": 16,
        "kv_layout": "NHD",
        "attention_backend": "flash_attn",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "adapter": "none",
        "rope_scaling": "none",
        "tenant_key": "semblend:tenant:v1:none",
    })
}

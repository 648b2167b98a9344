//! A data folder of the format before opens, and one of a later format is refused and left alone.

use std::{fs, path::Path, process::Command};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Server, check_exit, read, root, serve_command, text};

/// Written by the last version of format 1: a prior, a key summary, an encoder, a namespace that
/// materializes under its own gates, and a donor; one donor was removed again.
const FORMAT_1: &str = "service/tests/data/store/format-1.tar.gz";
/// Where the header says its format.
const VERSION_BYTE: usize = 8;

fn unpacked() -> TempDir {
    let folder = TempDir::new().unwrap();
    let unpack = Command::new("tar")
        .arg("-xzf")
        .arg(root().join(FORMAT_1))
        .arg("-C")
        .arg(folder.path())
        .output()
        .unwrap();
    check_exit(&unpack, 0);
    folder
}

fn version(data: &Path) -> u8 {
    fs::read(data.join("header")).unwrap()[VERSION_BYTE]
}

#[test]
fn a_folder_of_the_format_before_opens_with_all_that_is_in_it() {
    let folder = unpacked();
    let data = folder.path().join("data");
    assert_eq!(version(&data), 1);
    let mut server = Server::start_on(folder, &data);
    assert_eq!(version(&data), 2);
    // Brought over at the first start, and there at the second.
    for _ in 0..2 {
        check_all(&server);
        server = server.again(&data);
    }
}

fn check_all(server: &Server) {
    assert_eq!(server.json(&["status"], 0)["damaged_records"], 0);
    let manifest = server.json(&["manifest", "c1", "--k", "4"], 0);
    assert_eq!(manifest["block_indices"], json!([10, 102, 174, 242]));
    assert_eq!(manifest["repair"]["name"], "xa25");
    let summary = server.json(&["summary", "show", "c2"], 0);
    assert_eq!(summary["head_dim"], 16);
    let encoders = server.json(&["encoder", "list"], 0);
    assert_eq!(encoders[0]["name"], "draft");
    let namespaces = server.json(&["donor", "ls"], 0);
    assert_eq!(namespaces[0]["donors"], 1);
    assert_eq!(namespaces[0]["mode"], "materialize");
    let template = server.check(&["donor", "namespace-template"], 0);
    let namespace = server.file("ns.json", &template);
    let ids: Vec<u32> = (0..2_000).map(|n: u32| n * 7919 % 50_000).collect();
    let tokens = server.file("tokens.json", &json!(ids).to_string());
    server.check(
        &["donor", "announce", "--owner", "w", "--generation", "1"],
        0,
    );
    let find = [
        "donor",
        "find",
        "--holder",
        "h",
        "--namespace",
        &namespace,
        "--tokens",
        &tokens,
    ];
    let found = server.json(&find, 0);
    assert_eq!(found["match"]["donor_id"], "d1");
    assert!(found["lease"]["id"].is_string(), "{found}");
}

#[test]
fn a_folder_of_a_later_format_is_refused_and_left_alone() {
    let folder = TempDir::new().unwrap();
    let data = folder.path().join("data");
    drop(Server::start_on(TempDir::new().unwrap(), &data));
    let mut header = fs::read(data.join("header")).unwrap();
    let supported = header[VERSION_BYTE];
    header[VERSION_BYTE] += 1;
    fs::write(data.join("header"), &header).unwrap();
    let refused = serve_command(&data).output().unwrap();
    check_exit(&refused, 1);
    let told = text(&refused.stderr);
    let expected = format!(
        "was written in format {}, this version reads up to {supported}: start the newer version, \
         or give another folder",
        supported + 1
    );
    assert!(told.contains(&expected), "{told}");
    assert_eq!(fs::read(data.join("header")).unwrap(), header);
    assert!(
        read("docs/operations.md").contains(&expected),
        "the run book says the same"
    );
    // What the refusal advises: the version that wrote it opens it still.
    header[VERSION_BYTE] -= 1;
    fs::write(data.join("header"), &header).unwrap();
    let server = Server::start_on(folder, &data);
    assert_eq!(server.json(&["status"], 0)["damaged_records"], 0);
}

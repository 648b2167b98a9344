//! Health, drain, admission, deadlines, the HTTP port: how the server behaves around the calls.

use crate::common::{self, ServerProcess, lookup, prompt, serve_command, within};

#[tokio::test]
async fn smoke() {
    let mut inside = common::start();
    let answer = within(inside.clients.donors.find_donor(lookup(prompt(1, 64)))).await;
    println!("{answer:?}");
    println!(
        "{}",
        common::http_get(inside.server.http_address(), "/healthz")
    );
    let mut child =
        ServerProcess::launch(serve_command(inside.data_dir.path().join("x").as_path())).await;
    let answer = within(child.clients().donors.find_donor(lookup(prompt(1, 64)))).await;
    println!("{answer:?}");
    child.terminate();
    assert_eq!(child.exit_code().await, Some(0));
}

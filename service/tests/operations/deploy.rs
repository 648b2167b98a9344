//! The files that deploy the service: read by the programs that read them elsewhere.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::{
    harness::{BINARY, is_installed, kvatlas, read, root, text},
    tools,
};

fn told(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn check_passes(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", told(&output));
    text(&output.stdout)
}

#[test]
fn compose_takes_the_file_with_and_without_nats() {
    let Some(compose) = tools::find("docker-compose", "KVATLAS_DOCKER_COMPOSE") else {
        return;
    };
    let services = |profile: &[&str]| {
        let mut command = Command::new(&compose);
        command.current_dir(root()).args(profile);
        command.args(["config", "--services"]);
        let listed = check_passes(&mut command);
        let mut services: Vec<String> = listed.lines().map(str::to_owned).collect();
        services.sort();
        services
    };
    // Whether a profile's services are listed without it depends on compose's version.
    let always = ["grafana", "kvatlas", "prometheus"];
    assert!(
        always
            .iter()
            .all(|name| services(&[]).iter().any(|it| it == name))
    );
    assert_eq!(
        services(&["--profile", "nats"]),
        ["grafana", "kvatlas", "nats", "prometheus"]
    );
    let file = read("docker-compose.yml");
    assert_eq!(file.matches("    profiles: [nats]\n").count(), 1);
    assert_eq!(file.matches("profiles:").count(), 1);
    let mut command = Command::new(&compose);
    command.current_dir(root());
    let whole = check_passes(command.args(["--profile", "nats", "config"]));
    check_services(&whole);
}

/// Every service is held to the same rules. The file as compose sees it, with all that it refers
/// to put in: so many lines of each kind as there are services.
fn check_services(config: &str) {
    let count = |line: &str| config.lines().filter(|each| each.trim() == line).count();
    let begins = |line: &str| {
        let lines = config.lines().map(str::trim);
        lines.filter(|each| each.starts_with(line)).count()
    };
    for line in [
        "read_only: true",
        "- no-new-privileges:true",
        "cap_drop:",
        "healthcheck:",
    ] {
        assert_eq!(count(line), 4, "{line} in\n{config}");
    }
    for line in [
        "memory: ",
        "cpus: ",
        "stop_grace_period: ",
        "user: ",
        "pids_limit: ",
    ] {
        let all = begins(line);
        assert!(all >= 4, "{all} times {line} in\n{config}");
    }
    for line in ["user: 0", "user: root", "privileged: true"] {
        assert_eq!(begins(line), 0, "{line}");
    }
    let images = config
        .lines()
        .filter_map(|line| line.trim().strip_prefix("image: "));
    let images: Vec<_> = images.collect();
    assert_eq!(images.len(), 4);
    for image in images {
        let (_, version) = image.split_once(':').expect("a pinned version");
        assert!(version.contains('.'), "{image} has no whole version");
    }
    let ports = config.lines().filter(|line| line.trim().ends_with("/tcp"));
    let ports: Vec<_> = ports.collect();
    assert_eq!(ports.len(), 5, "{ports:?}");
    for port in ports {
        assert!(
            port.trim().starts_with("- 127.0.0.1:"),
            "{port} is published to everybody"
        );
    }
}

#[test]
fn promtool_takes_the_configuration_and_every_alarm_is_raised_and_is_silent() {
    let Some(promtool) = tools::find("promtool", "KVATLAS_PROMTOOL") else {
        return;
    };
    for words in [
        ["check", "config", "deploy/prometheus.yml"],
        ["check", "rules", "deploy/alerts.yml"],
        ["test", "rules", "deploy/alerts.test.yml"],
    ] {
        check_passes(Command::new(&promtool).current_dir(root()).args(words));
    }
    let alarms = read("deploy/alerts.yml");
    let tests = read("deploy/alerts.test.yml");
    let page = read("docs/operations.md");
    let names = alarms
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut count = 0;
    for name in names {
        assert!(
            tests.contains(&format!("alertname: {name} ")),
            "{name} is not tested"
        );
        assert!(
            page.contains(&format!("`{name}`")),
            "{name} is not in the run book"
        );
        count += 1;
    }
    assert!(
        tests.contains(&format!("value: {count} ")),
        "all {count} are raised"
    );
}

#[test]
fn grafana_finds_its_source_and_its_dashboard_where_compose_puts_them() {
    let compose = read("docker-compose.yml");
    let provider = read("deploy/grafana/provisioning/dashboards/kvatlas.yml");
    let source = read("deploy/grafana/provisioning/datasources/prometheus.yml");
    assert!(compose.contains("./deploy/grafana/provisioning:/etc/grafana/provisioning:ro"));
    assert!(compose.contains("./deploy/grafana/dashboards:/etc/grafana/dashboards:ro"));
    assert!(provider.contains("path: /etc/grafana/dashboards\n"));
    assert!(compose.contains("/etc/grafana/dashboards/kvatlas.json"));
    assert!(source.contains("url: http://prometheus:9090\n"));
    let dashboard: Value =
        serde_json::from_str(&read("deploy/grafana/dashboards/kvatlas.json")).unwrap();
    let current = &dashboard["templating"]["list"][0]["current"]["value"];
    assert!(source.contains(&format!("uid: {}\n", current.as_str().unwrap())));
    let mut ids: Vec<_> = dashboard["panels"].as_array().unwrap().iter().collect();
    ids.sort_by_key(|panel| panel["id"].as_u64());
    ids.dedup_by_key(|panel| panel["id"].as_u64());
    assert_eq!(ids.len(), dashboard["panels"].as_array().unwrap().len());
}

#[test]
fn systemd_takes_the_unit_and_kvatlas_its_flags() {
    let unit = read("deploy/kvatlas.service");
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix("ExecStart="));
    let words: Vec<&str> = start.unwrap().split(' ').collect();
    assert_eq!(words[..2], ["/usr/local/bin/kvatlas", "serve"]);
    let help = text(&kvatlas(&["serve", "--help"]).stdout);
    for flag in words.iter().filter(|word| word.starts_with("--")) {
        assert!(help.contains(&format!("{flag} <")), "{flag}");
    }
    // Not where there is no systemd at all, such as in a container.
    if !is_installed("systemd-analyze") {
        return;
    }
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("kvatlas.service");
    fs::write(&path, unit.replace("/usr/local/bin/kvatlas", BINARY)).unwrap();
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", told(&output));
    assert_eq!(told(&output), "", "it has remarks");
}

#[test]
fn the_docker_file_and_compose_name_flags_that_exist() {
    let help = text(&kvatlas(&["serve", "--help"]).stdout);
    // Without its line ends.
    let help: Vec<&str> = help.split_whitespace().collect();
    let help = help.join(" ");
    let is_variable = |name: &str| {
        let shown = [format!("[env: {name}="), format!("[env: {name}]")];
        shown.iter().any(|shown| help.contains(shown))
    };
    let mut seen = 0;
    for file in ["Dockerfile", "docker-compose.yml"] {
        let text = read(file);
        // Of the build, not of the server.
        let text = text.replace("KVATLAS_REVISION", "");
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for variable in words.filter(|word| word.starts_with("KVATLAS_") && word.len() > 8) {
            assert!(is_variable(variable), "{file}: {variable}");
            seen += 1;
        }
    }
    assert!(seen > 8, "{seen}");
}

#[test]
fn everything_that_the_image_is_built_from_gets_past_the_ignore_file() {
    let ignore = read(".dockerignore");
    let workspace = read("Cargo.toml");
    let members = workspace
        .lines()
        .find(|line| line.starts_with("members = "));
    let names = members.unwrap().split('"').skip(1).step_by(2);
    for name in names.chain(["Cargo.toml", "Cargo.lock", "rust-toolchain.toml"]) {
        assert!(ignore.contains(&format!("\n!{name}\n")), "{name}");
    }
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.lines().find(|line| line.starts_with("channel"));
    let version = channel.unwrap().split('"').nth(1).unwrap();
    let docker = read("Dockerfile");
    assert!(docker.contains(&format!("FROM rust:{version}-slim-bookworm ")));
    assert!(Path::new(&root().join("deploy/assemble-image")).exists());
    assert!(ignore.contains("\n!deploy/assemble-image\n"));
}

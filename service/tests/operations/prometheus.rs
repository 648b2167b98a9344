//! A real Prometheus scrapes a real server with the files that are deployed, and answers every
//! expression of the dashboard.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::{PATIENCE, Server, example, read, root},
    tools,
};

const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Prometheus as a child process. Killed when dropped.
struct Prometheus {
    process: Child,
    address: String,
    folder: TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ended = self.process.kill();
        let _reaped = self.process.wait();
    }
}

impl Prometheus {
    /// With the deployed configuration, but for the target and the pace.
    fn start(program: &Path, target: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let config = read("deploy/prometheus.yml")
            .replace(
                "targets: [kvatlas:9464]",
                &format!("targets: [\"{target}\"]"),
            )
            .replace("scrape_interval: 5s", "scrape_interval: 200ms")
            .replace("evaluation_interval: 15s", "evaluation_interval: 1s");
        assert!(config.contains(target) && config.contains("200ms"));
        fs::write(folder.path().join("prometheus.yml"), config).unwrap();
        let alerts = root().join("deploy/alerts.yml");
        fs::copy(alerts, folder.path().join("alerts.yml")).unwrap();
        // Free a moment ago; Prometheus tells nobody which port it took.
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let log = File::create(folder.path().join("log")).unwrap();
        let process = Command::new(program)
            .arg(format!(
                "--config.file={}",
                folder.path().join("prometheus.yml").display()
            ))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let prometheus = Self {
            process,
            address: address.to_string(),
            folder,
        };
        prometheus.until("it is ready", || {
            prometheus
                .get("/-/ready")
                .is_some_and(|body| body.contains("Ready"))
        });
        prometheus
    }

    /// Looks again and again until `holds`.
    #[track_caller]
    fn until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        for _ in 0..PATIENCE.as_millis() / LOOK_EVERY.as_millis() {
            if holds() {
                return;
            }
            // It tells nothing by itself, and nobody unparks this thread.
            thread::park_timeout(LOOK_EVERY);
        }
        let log = fs::read_to_string(self.folder.path().join("log")).unwrap();
        panic!("not within {PATIENCE:?}: {what}\n{log}");
    }

    /// The body of an answer; none while nobody listens.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let host = &self.address;
        let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        Some(body.to_owned())
    }

    /// What an expression gives now.
    fn query(&self, expression: &str) -> Value {
        let body = self.get(&format!("/api/v1/query?query={}", percent(expression)));
        let answer: Value = serde_json::from_str(&body.unwrap()).unwrap();
        assert_eq!(answer["status"], "success", "{expression}: {answer}");
        answer["data"]["result"].clone()
    }
}

/// As a query string spells it.
fn percent(text: &str) -> String {
    let spelled = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(spelled).collect()
}

/// Every expression of the dashboard, with Grafana's variables put in.
fn expressions() -> Vec<String> {
    let dashboard: Value =
        serde_json::from_str(&read("deploy/grafana/dashboards/kvatlas.json")).unwrap();
    let mut found = Vec::new();
    gather(&dashboard, &mut found);
    let put_in = |text: String| {
        text.replace("$__rate_interval", "1m")
            .replace("$__range", "5m")
            .replace("$instance", ".*")
    };
    found.into_iter().map(put_in).collect()
}

fn gather(value: &Value, found: &mut Vec<String>) {
    if let Some(Value::String(expression)) = value.get("expr") {
        found.push(expression.clone());
    }
    match value {
        Value::Array(values) => values.iter().for_each(|value| gather(value, found)),
        Value::Object(fields) => fields.values().for_each(|value| gather(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The names of the service's metrics in an expression.
fn names(expression: &str) -> BTreeSet<&str> {
    let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = |word: &&str| word.starts_with("semantic_") || word.starts_with("kvatlas_");
    words.filter(ours).collect()
}

/// One of everything that the service counts: a manifest and a miss, a hit with a lease and a
/// miss, and a report of reuse.
fn make_traffic(server: &Server) {
    server.check(
        &["prior", "put", &example("perk.pt"), "--prefix-hash", "c1"],
        0,
    );
    server.check(&["manifest", "c1", "--k", "4"], 0);
    server.check(&["manifest", "nothing", "--k", "4"], 3);
    let fallback = ["--fallback-policy", "recency", "--total-blocks", "10"];
    server.check(
        &[&["manifest", "nothing", "--k", "2"], &fallback[..]].concat(),
        0,
    );
    let namespace = server.check(&["donor", "namespace-template"], 0);
    let namespace = server.file("ns.json", &namespace);
    let ids: Vec<u32> = (0..2_000).map(|n: u32| n * 7919 % 50_000).collect();
    let known = server.file("known.json", &json!(ids).to_string());
    let other = server.file(
        "other.json",
        &json!((0..700).collect::<Vec<u32>>()).to_string(),
    );
    let owner = ["--owner", "w", "--generation", "1"];
    server.check(&[&["donor", "announce"], &owner[..]].concat(), 0);
    let about = ["--namespace", &namespace, "--tokens", &known];
    server.check(
        &[&["donor", "register", "d1"], &about[..], &owner[..]].concat(),
        0,
    );
    server.check(&["mode", "materialize"], 0);
    server.check(
        &[&["donor", "find", "--holder", "h"], &about[..]].concat(),
        0,
    );
    let about = ["--namespace", &namespace, "--tokens", &other];
    server.check(&[&["donor", "find"], &about[..]].concat(), 3);
    let about = ["--namespace", &namespace, "--tokens", &known];
    server.check(&[&["worker", "find"], &about[..]].concat(), 3);
}

#[test]
fn prometheus_gathers_what_the_dashboard_and_the_alarms_ask_for() {
    let Some(program) = tools::find("prometheus", "KVATLAS_PROMETHEUS") else {
        return;
    };
    let server = Server::start();
    make_traffic(&server);
    let prometheus = Prometheus::start(&program, &server.http);
    prometheus.until("two scrapes after the traffic", || {
        let seen = prometheus.query("min_over_time(semantic_lookup_hits_total[1m])");
        let scrapes = prometheus.query("count_over_time(semantic_lookup_hits_total[1m])");
        seen[0]["value"][1] == "1" && scrapes[0]["value"][1].as_str().is_some_and(|n| n != "1")
    });
    assert_eq!(prometheus.query("up{job=\"kvatlas\"}")[0]["value"][1], "1");

    let page = server.get("/metrics");
    let expressions = expressions();
    assert!(expressions.len() > 60, "{}", expressions.len());
    for expression in &expressions {
        for name in names(expression) {
            assert!(page.contains(&format!("\n{name}")), "no {name} on /metrics");
        }
        let result = prometheus.query(expression);
        let found = result.as_array().unwrap();
        let is_a_condition = expression.contains("changes(");
        assert!(
            is_a_condition || !found.is_empty(),
            "{expression} gives nothing"
        );
    }

    prometheus.until("the alarms were looked at", || {
        let rules = prometheus.get("/api/v1/rules").unwrap();
        let rules: Value = serde_json::from_str(&rules).unwrap();
        let rules = rules["data"]["groups"][0]["rules"]
            .as_array()
            .unwrap()
            .clone();
        rules.len() == read("deploy/alerts.yml").matches("- alert: ").count()
            && rules.iter().all(|rule| rule["health"] == "ok")
    });
    assert_eq!(
        prometheus.query("ALERTS"),
        json!([]),
        "an idle server raises nothing"
    );
}

#[test]
fn the_alarms_ask_for_names_that_the_server_has() {
    let server = Server::start();
    let page = server.get("/metrics");
    let alarms = read("deploy/alerts.yml");
    let expressions = alarms.split("expr: ").skip(1);
    let mut count = 0;
    for expression in expressions.map(|rest| rest.split("labels:").next().unwrap()) {
        for name in names(expression) {
            let name = name.trim_end_matches("_bucket");
            assert!(page.contains(&format!("\n{name}")), "no {name} on /metrics");
            count += 1;
        }
    }
    assert!(count > 9, "{count}");
}

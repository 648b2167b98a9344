//! Whole runs of the command, tiny, against the servers it starts.

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader},
        process::{Command, Stdio},
    };

    use serde_json::Value;

    const COMMAND: &str = env!("CARGO_BIN_EXE_kvatlas-loadtest");
    const TINY_PRIORS: [&str; 6] = ["--layers", "2", "--kv-heads", "2", "--blocks", "64"];

    fn check(arguments: &[&str]) -> Value {
        let output = Command::new(COMMAND)
            .args(arguments)
            .arg("--json")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {errors}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn assert_positive(report: &Value, fields: &[&str]) {
        for field in fields {
            let value = report[field].as_f64();
            assert!(value.is_some_and(|value| value > 0.0), "{field}: {value:?}");
        }
    }

    #[test]
    fn manifest_closed_and_open() {
        let sizes = [
            "--priors",
            "2",
            "--rounds",
            "2",
            "--turn-ms",
            "50",
            "--concurrency",
            "8",
        ];
        for rate in [&[][..], &["--rate", "500"], &["--tokens", "3"]] {
            let report = check(&[&["manifest"][..], &sizes, &TINY_PRIORS, rate].concat());
            let fields = [
                "rps",
                "stream_rps",
                "p50_us",
                "p99_us",
                "echo_rps",
                "echo_p50_us",
                "echo_p99_us",
                "rps_ratio",
                "p50_ratio",
            ];
            assert_positive(&report, &fields);
            assert_eq!(report["failed"], 0);
        }
    }

    #[test]
    fn donors_of_every_class() {
        let sizes = [
            "--donors",
            "120",
            "--tokens",
            "1024",
            "--queries",
            "3",
            "--load-ms",
            "50",
            "--donors-from",
            "100",
            "--contention-donors",
            "120",
            "--restart-donors",
            "100",
        ];
        let report = check(&[&["donors"][..], &sizes].concat());
        let fields = [
            "find_p50_us",
            "find_p99_us",
            "find_rps",
            "register_per_s",
            "rss_mb",
            "rss_bytes_per_token",
            "generate_us",
        ];
        assert_positive(&report, &fields);
        assert_eq!(
            (&report["failed"], &report["false_spans"]),
            (&0.into(), &0.into())
        );
        assert_positive(
            &report["mixed"],
            &["capacity_per_s", "search_p50_us", "register_p50_us"],
        );
        let contention = ["registrations_per_s", "removals_per_s"];
        assert_positive(&report["contention"], &contention);
        assert_positive(&report["contention"]["p99_ratios"], &["whole", "search"]);
        let growth = report["growth"].as_array().unwrap();
        let sizes: Vec<_> = growth.iter().map(|size| size["donors"].as_u64()).collect();
        assert_eq!(sizes, [Some(100), Some(120)]);
        let restart = &growth[0]["restart"];
        assert!(restart["held_donors"].as_u64().unwrap() >= 100, "{restart}");
        assert_eq!(restart["asked"], restart["right"]);
        let classes = report["classes"].as_object().unwrap();
        assert_eq!(classes.len(), 13);
        for (name, class) in classes {
            assert_eq!(class["asked"], 3, "{name}");
            assert_eq!(class["right"], 3, "{name}");
            assert_eq!(class["false_spans"], 0, "{name}");
            assert!(
                class["coverage"].as_f64().unwrap() > 0.95,
                "{name}: {class}"
            );
        }
    }

    #[test]
    fn quality_of_every_class() {
        let sizes = ["--donors", "120", "--tokens", "1024", "--queries", "17"];
        let report = check(&[&["quality", "--seed", "7"][..], &sizes].concat());
        let classes = report["classes"].as_object().unwrap();
        assert_eq!(classes.len(), 17);
        for (name, class) in classes {
            if name == "paraphrase" {
                assert_eq!(class["not_asked"], "no --verses");
                continue;
            }
            assert_eq!(class["asked"], 17, "{name}");
            assert_eq!(class["right"], 17, "{name}");
            assert_eq!(class["false_spans"], 0, "{name}");
            let nothing = matches!(name.as_str(), "negative" | "cross_namespace");
            assert_eq!(class["found"], if nothing { 0 } else { 17 }, "{name}");
            if !nothing {
                let coverage = class["coverage"].as_f64().unwrap();
                assert!(coverage >= 0.98, "{name}: {coverage}");
            }
        }
        let flagged = |class: &str| classes[class]["flagged"].as_u64().unwrap();
        assert_eq!(classes["fact_flip"]["compared"], 17);
        assert_eq!(flagged("fact_flip"), 17);
        assert!(flagged("benign") <= 1);
    }

    #[test]
    fn priors_are_there_after_a_new_start() {
        let report = check(&[&["priors", "--count", "3"][..], &TINY_PRIORS].concat());
        assert_positive(&report, &["import_ms_p50", "import_ms_max", "start_s"]);
    }

    #[test]
    fn scores_are_the_same_screened_and_over_the_wire() {
        let sizes = ["--blocks", "40", "--seeds", "1", "--rounds", "1"];
        let calls = ["--calls", "2", "--python", "/nonexistent/python"];
        for algorithm in ["kri-q", "quest", "kri-t"] {
            let which = ["score", "--algorithm", algorithm];
            let report = check(&[&which[..], &sizes, &calls].concat());
            let fields = ["ms_p50", "gb_per_s", "bandwidth_ratio", "rpc_ms_p50"];
            assert_positive(&report, &fields);
            assert!(report["numpy_ms_p50"].is_null() && report["torch_ms_p50"].is_null());
            let identical = (algorithm != "kri-t").then_some(true);
            assert_eq!(report["identical_topk"], serde_json::json!(identical));
        }
        let sweep = check(&["score", "--sweep", "--blocks", "32", "--rounds", "1"]);
        assert_eq!(sweep["points"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn tokens_lead_to_a_manifest() {
        let report = check(&["score-tokens", "--blocks", "40", "--calls", "2"]);
        assert_positive(&report, &["rpc_ms_p50", "rpc_ms_p99"]);
    }

    #[test]
    fn events_are_followed_and_asked_about() {
        let sizes = [
            "--blocks",
            "8192",
            "--workers",
            "4",
            "--look-ups",
            "40",
            "--rounds",
            "1",
            "--turn-batches",
            "16",
            "--turns",
            "2",
            "--churn-blocks",
            "2048",
            "--rpc-rounds",
            "1",
            "--turn-ms",
            "20",
        ];
        let report = check(&[&["events"][..], &sizes].concat());
        let fields = [
            "decode_gb_per_s",
            "view_stores_per_s",
            "view_bytes_per_entry",
            "stores_per_s",
            "chunk_events_per_s",
            "removes_per_s",
            "find_p50_us",
            "find_p99_us",
            "find_p99_us_with_writer",
            "bytes_per_entry",
            "zmq_batches_per_s_to_visible",
            "zmq_churn_batches_per_s_to_visible",
            "rpc_find_p50_us",
            "rpc_echo_p50_us",
        ];
        assert_positive(&report, &fields);
        assert_eq!(report["blocks"], 8192);
        let indexes = report["indexes"].as_object().unwrap();
        assert_eq!(indexes.keys().collect::<Vec<_>>(), ["index", "view"]);
    }

    #[test]
    fn a_trace_is_replayed() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("trace.jsonl");
        let line = |at: u32, blocks: &str| {
            let tokens = 512 * blocks.split(',').count();
            format!(
                "{{\"timestamp\": {at}, \"input_length\": {tokens}, \"output_length\": 30, \
                 \"hash_ids\": [{blocks}]}}\n"
            )
        };
        let text = line(0, "0,1,2") + &line(1000, "5,6") + &line(9000, "0,1,2,3");
        std::fs::write(&path, text).unwrap();
        let report = check(&["events", "--trace", path.to_str().unwrap()]);
        assert_eq!(
            (&report["ideal_hits"], &report["blocks"]),
            (&3.into(), &9.into())
        );
        assert_eq!(report["find_workers_share"], 1.0);
        assert_eq!(report["round_robin_share"], 0.0);
    }

    #[test]
    fn what_cannot_be_run_is_an_error_and_prints_nothing() {
        for arguments in [
            &["manifest", "--concurrency", "0"][..],
            &["donors", "--passages", "/nonexistent"],
            &["manifest", "--address", "127.0.0.1:1"],
            &["events", "--trace", "/nonexistent"],
            &["events", "--peers", "/nonexistent"],
        ] {
            let output = Command::new(COMMAND).args(arguments).output().unwrap();
            assert!(!output.status.success(), "{arguments:?}");
            assert!(output.stdout.is_empty() && !output.stderr.is_empty());
        }
    }

    #[test]
    fn a_server_ends_with_the_process_that_started_it() {
        let mut child = Command::new(COMMAND)
            .arg("echo-child")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut ready)
            .unwrap();
        assert!(ready.starts_with("{\"grpc\":[\"127.0.0.1:"), "{ready}");
        drop(child.stdin.take());
        assert!(child.wait().unwrap().success());
    }
}

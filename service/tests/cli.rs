//! The built `kvatlas` binary, driven as a person would, against a server that it started.

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{BufRead, BufReader, pipe},
        path::{Path, PathBuf},
        process::{Child, Command, Output, Stdio},
    };

    use serde_json::Value;
    use tempfile::TempDir;

    const BINARY: &str = env!("CARGO_BIN_EXE_kvatlas");

    /// A server on free ports and a folder of its own.
    struct Server {
        process: Child,
        address: String,
        folder: TempDir,
    }

    impl Drop for Server {
        fn drop(&mut self) {
            self.process.kill().unwrap();
            self.process.wait().unwrap();
        }
    }

    impl Server {
        fn start() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let mut process = Command::new(BINARY)
                .args([
                    "serve",
                    "--listen",
                    "127.0.0.1:0",
                    "--http-listen",
                    "127.0.0.1:0",
                ])
                .args(["--log", "off", "--data-dir"])
                .arg(folder.path().join("data"))
                .arg("--models-dir")
                .arg(models())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut ready = String::new();
            let mut out = BufReader::new(process.stdout.take().unwrap());
            out.read_line(&mut ready).unwrap();
            let ready: Value = serde_json::from_str(&ready).unwrap();
            let address = ready["grpc"][0].as_str().unwrap().to_owned();
            Self {
                process,
                address,
                folder,
            }
        }

        fn run(&self, args: &[&str]) -> Output {
            let connection = ["--address", &self.address, "--timeout-ms", "60000"];
            kvatlas(&[connection.as_slice(), args].concat())
        }

        /// Runs a command and checks its exit status. Returns what it printed.
        #[track_caller]
        fn check(&self, args: &[&str], code: i32) -> String {
            check_exit(&self.run(args), code)
        }

        #[track_caller]
        fn json(&self, args: &[&str], code: i32) -> Value {
            let printed = self.check(&[&["--output", "json"], args].concat(), code);
            serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{printed}: {error}"))
        }

        fn file(&self, name: &str, text: &str) -> String {
            let path = self.folder.path().join(name);
            fs::write(&path, text).unwrap();
            path.display().to_string()
        }
    }

    fn kvatlas(args: &[&str]) -> Output {
        Command::new(BINARY).args(args).output().unwrap()
    }

    #[track_caller]
    fn check_exit(output: &Output, code: i32) -> String {
        let (out, error) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{out}{error}");
        out
    }

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    /// A folder of tiny models.
    fn models() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoder")
    }

    fn example(name: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/priors");
        let path: PathBuf = root.join(name);
        path.display().to_string()
    }

    fn online(name: &str) -> String {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/online");
        root.join(name).display().to_string()
    }

    #[test]
    fn a_calibration_file_is_kept_as_a_query() {
        let server = Server::start();
        let file = online("stats_gpu.pt");
        let put = ["query", "put", &file, "--query-hash", "q1"];
        let kept = server.json(&[&put[..], &["--position", "4096"]].concat(), 0);
        assert_eq!(kept["holds"], "statistics");
        assert_eq!(kept["layer_ids"], serde_json::json!([0, 1, 2]));
        assert_eq!(kept["heads"], 4);
        assert!(kept["expires_unix_ms"].as_u64().unwrap() > 0);
        let some = ["--position", "4096", "--layers", "0,2", "--ttl-ms", "9000"];
        let shown = server.check(&[&put[..], &some].concat(), 0);
        assert!(shown.contains("layers      0,2\n"), "{shown}");

        let refused = |args: &[&str], words: &str| {
            let output = server.run(&[&put[..], args].concat());
            let error = text(&output.stderr);
            assert_eq!(output.status.code(), Some(2), "{error}");
            assert!(error.contains(words), "{error}");
        };
        refused(&[], "need the position of the next token: --position");
        refused(
            &["--position", "1", "--pair-layout", "interleaved"],
            "it says otherwise than --pair-layout",
        );
        refused(
            &["--position", "1", "--layers", "7"],
            "layer 7 is not in the file",
        );
        refused(&["--position", "1", "--layers", "3-1"], "such as 0,4-7");
        // What the server refuses is not a matter of usage.
        let far = ["--position", "99999999999"];
        let output = server.run(&[&put[..], &far].concat());
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains("query.position: 99999999999, at most"));
    }

    #[test]
    fn an_encoder_is_registered_by_its_folder_and_forgotten() {
        let server = Server::start();
        let none = server.check(&["encoder", "list"], 0);
        assert!(none.contains("no encoders"), "{none}");
        let absolute = models().canonicalize().unwrap().join("qwen3-bf16");
        let absolute = absolute.to_str().unwrap();
        let encoder = server.json(&["encoder", "put", absolute], 0);
        assert_eq!(encoder["name"], "qwen3-bf16");
        assert_eq!(encoder["model_dir"], "qwen3-bf16");
        assert_eq!(encoder["element_type"], "bf16");
        let put = server.check(&["encoder", "put", "qwen2-f16", "--name", "draft"], 0);
        assert!(
            put.starts_with(
                "registered
"
            ),
            "{put}"
        );
        let listed = server.check(&["encoder", "list"], 0);
        assert!(listed.contains("\ndraft       qwen2-f16"), "{listed}");
        server.check(&["encoder", "put", "nowhere"], 1);
        server.check(&["encoder", "put", ".."], 2);
        server.check(&["encoder", "delete", "draft"], 0);
        server.check(&["encoder", "delete", "draft"], 3);
    }

    #[test]
    fn a_prior_goes_in_and_manifests_come_out() {
        let server = Server::start();
        let put = ["prior", "put", &example("perk.pt"), "--prefix-hash", "c1"];
        let prior = server.json(&[&put[..], &["--repair", "xa25:0.25"]].concat(), 0);
        assert_eq!(prior["total_blocks"], 258);
        assert_eq!(prior["replaced"], false);

        let listed = server.check(&["prior", "ls"], 0);
        assert!(listed.contains("lists for K 4, 8, 16"), "{listed}");

        let manifest = server.json(&["manifest", "c1", "--k", "4"], 0);
        assert_eq!(
            manifest["block_indices"],
            serde_json::json!([10, 102, 174, 242])
        );
        assert_eq!(manifest["repair"]["name"], "xa25");
        let shown = server.check(&["manifest", "c1", "--k", "4"], 0);
        assert!(shown.contains("\n10 102 174 242\n"), "{shown}");

        let lease_id = manifest["lease"]["id"].as_str().unwrap();
        let valid = server.json(&["lease", "validate", lease_id], 0);
        assert_eq!(valid["state"], "valid");

        server.check(&["prior", "rm", "c1"], 0);
        server.check(&["prior", "rm", "c1"], 3);
        server.check(&["prior", "show", "c1"], 3);
        server.check(&["manifest", "c1", "--k", "4"], 3);
        let fallback = ["--fallback-policy", "recency", "--total-blocks", "10"];
        let manifest = server.json(
            &[&["manifest", "c1", "--k", "2"], &fallback[..]].concat(),
            0,
        );
        assert_eq!(manifest["block_indices"], serde_json::json!([8, 9]));
    }

    #[test]
    fn a_donor_is_registered_found_leased_and_removed() {
        let server = Server::start();
        let template = server.check(&["donor", "namespace-template"], 0);
        let namespace = server.file("ns.json", &template);
        let ids: Vec<u32> = (0..2_000).map(|n: u32| n * 7919 % 50_000).collect();
        let prompt = server.file("prompt.json", &serde_json::to_string(&ids).unwrap());
        let about = ["--namespace", &namespace, "--tokens", &prompt];
        let owner = ["--owner", "w:1", "--generation", "1"];

        server.check(&[&["donor", "announce"], &owner[..]].concat(), 0);
        let register = [&["donor", "register", "d1"], &about[..], &owner[..]].concat();
        assert_eq!(server.json(&register, 0)["admission"], "added");
        assert_eq!(server.json(&register, 0)["admission"], "replaced");

        let find = [&["donor", "find", "--holder", "h"], &about[..]].concat();
        let found = server.json(&find, 0);
        assert_eq!(found["outcome"], "prefix");
        assert_eq!(found["match"]["donor_id"], "d1");
        assert_eq!(found["match"]["tier"], "exact");
        assert_eq!(found["lease"], Value::Null);
        assert_eq!(found["lease_refusal"], "discovery_only");

        let namespace_id = found["namespace_id"].as_str().unwrap();
        server.check(&["mode", "--namespace", namespace_id, "materialize"], 0);
        let leased = server.json(&find, 0);
        let lease_id = leased["lease"]["id"].as_str().unwrap();
        server.check(&["lease", "validate", lease_id, "--holder", "h"], 0);
        server.check(&["lease", "renew", lease_id, "--holder", "thief"], 3);
        server.check(
            &[
                "lease", "renew", lease_id, "--holder", "h", "--ttl-ms", "9000",
            ],
            0,
        );
        server.check(&["lease", "release", lease_id, "--holder", "h"], 0);
        server.check(&["lease", "validate", lease_id, "--holder", "h"], 3);

        let listed = server.check(&["donor", "ls"], 0);
        assert!(listed.contains(namespace_id), "{listed}");
        server.check(&["donor", "rm", "--namespace", namespace_id], 2);
        server.check(&["donor", "rm", "--namespace", namespace_id, "d1"], 0);
        let missed = server.json(&find, 3);
        assert_eq!(missed["outcome"], "miss");
        assert_eq!(missed["reason"], "provider_miss");
    }

    #[test]
    fn tokens_come_from_the_standard_input_too() {
        let server = Server::start();
        let template = server.check(&["donor", "namespace-template"], 0);
        let namespace = server.file("ns.json", &template);
        let tokens = server.file(
            "prompt.json",
            &format!("{:?}", (0..600).collect::<Vec<u32>>()),
        );
        let output = Command::new(BINARY)
            .args(["--address", &server.address, "--timeout-ms", "60000"])
            .args(["donor", "find", "--tokens", "-", "--namespace", &namespace])
            .stdin(fs::File::open(tokens).unwrap())
            .output()
            .unwrap();
        let printed = check_exit(&output, 3);
        assert!(printed.contains("provider_miss"), "{printed}");
    }

    #[test]
    fn the_mode_and_the_gates_are_shown_as_they_were_set() {
        let server = Server::start();
        assert_eq!(server.json(&["status"], 0)["mode"], "discovery-only");
        server.check(&["mode", "disabled", "--min-reuse-tokens", "64"], 0);
        let status = server.json(&["status"], 0);
        assert_eq!(status["mode"], "disabled");
        assert_eq!(status["gates"]["min_reuse_tokens"], 64);
        server.check(&["mode", "follow"], 2);
    }

    #[test]
    fn an_error_says_what_to_do_next() {
        let folder = tempfile::tempdir().unwrap();
        let nobody = format!("unix:{}", folder.path().join("nobody").display());
        let output = kvatlas(&["--address", &nobody, "status"]);
        check_exit(&output, 1);
        let error = text(&output.stderr);
        assert!(error.contains("Start it with `kvatlas serve`"), "{error}");

        check_exit(&kvatlas(&["no-such-command"]), 2);
        check_exit(&kvatlas(&["--address", "nowhere", "status"]), 2);
    }

    #[test]
    fn a_worker_is_followed_picked_finished_and_forgotten() {
        let server = Server::start();
        let template = server.check(&["donor", "namespace-template"], 0);
        let namespace = server.file("ns.json", &template);
        let prompt = server.file("prompt.json", "[1, 2, 3]");
        let source = "tcp://127.0.0.1:1,worker=vllm-0,rank=2";
        let follow = ["worker", "follow", source, "--namespace", &namespace];
        assert_eq!(server.check(&follow, 0), "followed\n");
        assert_eq!(server.check(&follow, 0), "followed already\n");
        let listed = server.json(&["worker", "ls"], 0);
        assert_eq!(listed["sources"][0]["worker_id"], "vllm-0");
        assert_eq!(listed["sources"][0]["state"], "stale");

        let find = [
            "worker",
            "find",
            "--namespace",
            &namespace,
            "--tokens",
            &prompt,
        ];
        let found = server.json(&find, 3);
        assert_eq!(found["workers"][0]["owner"]["data_parallel_rank"], 2);
        assert_eq!(found["picked"], Value::Null);
        let pick = [&find[..], &["--pick", "--request-id", "r1"]].concat();
        let picked = server.json(&pick, 0);
        assert_eq!(picked["picked"]["worker_id"], "vllm-0");
        assert!(server.check(&pick, 0).contains("picked"));
        assert_eq!(
            server.check(&["worker", "finish", "r1", "r2"], 0),
            "1 of 2 were in flight\n"
        );
        server.check(&["worker", "finish", "r1"], 3);

        server.check(&["worker", "unfollow", "vllm-0"], 0);
        server.check(&["worker", "unfollow", "vllm-0"], 3);
        assert_eq!(
            server.check(&["worker", "ls"], 0),
            "no engine is followed\n"
        );
    }

    #[test]
    fn an_error_in_a_prompt_does_not_quote_it() {
        let folder = tempfile::tempdir().unwrap();
        let prompt = folder.path().join("prompt.json");
        fs::write(&prompt, r#"[1, "secret words"]"#).unwrap();
        let namespace = "0".repeat(64);
        let find = ["donor", "find", "--namespace", &namespace, "--tokens"];
        let output = kvatlas(&[&find[..], &[prompt.to_str().unwrap()]].concat());
        check_exit(&output, 2);
        let error = text(&output.stderr);
        assert!(error.contains("line 1"), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn a_reader_that_has_gone_is_no_error() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        let status = Command::new(BINARY)
            .args(["donor", "namespace-template"])
            .stdout(writer)
            .status();
        assert_eq!(status.unwrap().code(), Some(0));
    }

    #[test]
    fn the_tour_goes_to_its_end_within_100_columns() {
        let shown = check_exit(&kvatlas(&["quickstart", "--exit"]), 0);
        assert!(shown.ends_with("Done.\n"), "{shown}");
        for line in shown.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        let row = |name: &str| {
            let row = shown.lines().find(|line| line.trim().starts_with(name));
            row.unwrap_or_else(|| panic!("no row {name} in:\n{shown}"))
        };
        for (name, expected) in [
            ("identical", ["prefix", "exact"]),
            ("the next turn", ["prefix", "exact"]),
            ("other instruction", ["spans", "verified"]),
            ("reordered", ["spans", "verified"]),
            ("shifted by 37", ["spans", "verified"]),
            ("1 in 40 edited", ["spans", "verified"]),
            ("unrelated", ["miss", "low_reuse_tokens"]),
            ("Validate, by another", ["not_holder", ""]),
            ("Validate, afterwards", ["unknown", ""]),
        ] {
            for word in expected {
                assert!(row(name).contains(word), "{}", row(name));
            }
        }
    }
}

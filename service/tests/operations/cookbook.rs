//! Every line of the run book's cookbook runs, in its order, and answers what the page says.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::{
    harness::{BINARY, Server, read, root, text},
    tools,
};

const PAGE: &str = "docs/operations.md";
const ADDRESS: &str = "127.0.0.1:50051";

/// The lines of the fenced blocks that are marked as shell.
fn lines(page: &str) -> Vec<&str> {
    let blocks = page.split("\n```sh\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("\n```").next().unwrap());
    blocks.flat_map(str::lines).collect()
}

/// The variable that a line sets.
fn assigned(line: &str) -> Option<&str> {
    let (name, _) = line.split_once('=')?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_uppercase());
    is_name.then_some(name)
}

/// One shell whose variables stay from line to line.
struct Shell<'a> {
    server: &'a Server,
    grpcurl: &'a Path,
    variables: Vec<(String, String)>,
}

impl Shell<'_> {
    /// Runs a line, and keeps what it assigns.
    fn run(&mut self, line: &str) -> Output {
        let name = assigned(line);
        let script = match name {
            Some(name) => format!("{line}\nprintf %s \"${name}\""),
            None => line.to_owned(),
        };
        let output = Command::new("sh")
            .args(["-euc", &script.replace(ADDRESS, &self.server.grpc)])
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("PATH", self.path())
            .env("KVATLAS_ADDRESS", &self.server.grpc)
            .current_dir(self.server.folder.path())
            .output()
            .unwrap();
        if let Some(name) = name {
            let value = text(&output.stdout);
            assert!(!value.is_empty(), "{line} assigns nothing");
            self.variables.push((name.to_owned(), value));
        }
        output
    }

    /// The folder of links to the two programs, then what the system has.
    fn path(&self) -> String {
        let bin = self.server.folder.path().join("bin");
        if !bin.exists() {
            fs::create_dir(&bin).unwrap();
            std::os::unix::fs::symlink(self.grpcurl, bin.join("grpcurl")).unwrap();
            std::os::unix::fs::symlink(BINARY, bin.join("kvatlas")).unwrap();
        }
        format!("{}:/usr/bin:/bin", bin.display())
    }
}

#[test]
fn every_line_runs_and_answers_what_it_says() {
    let Some(grpcurl) = tools::find("grpcurl", "KVATLAS_GRPCURL") else {
        return;
    };
    let page = read(PAGE);
    let server = Server::start();
    let data = root().join("service/tests/data/pt");
    for (from, to) in [("perk.pt", "prior.pt"), ("cart_list.pt", "cartridge.pt")] {
        fs::copy(data.join(from), server.folder.path().join(to)).unwrap();
    }
    let mut shell = Shell {
        server: &server,
        grpcurl: &grpcurl,
        variables: Vec::new(),
    };
    let (mut ran, mut called) = (0, BTreeSet::new());
    for line in lines(&page) {
        let (command, expected) = line.rsplit_once("  # ").unwrap_or((line, ""));
        let output = shell.run(command);
        let (out, told) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{command}\n{told}");
        let squeezed = |text: &str| text.split_whitespace().collect::<String>();
        assert!(
            squeezed(&out).contains(&squeezed(expected)),
            "{command}\nexpected {expected} in\n{out}"
        );
        let is_assignment = assigned(command).is_some();
        assert!(
            is_assignment || !expected.is_empty(),
            "{command} says no answer"
        );
        called.extend(
            command
                .split(' ')
                .filter(|word| word.starts_with("kvatlas.v1.")),
        );
        ran += 1;
    }
    let fences = page.split("\n```sh\n").skip(1);
    let written: usize = fences
        .map(|rest| rest.lines().take_while(|line| *line != "```").count())
        .sum();
    assert_eq!(ran, written);
    for method in methods(&grpcurl, &server) {
        assert!(called.contains(method.as_str()), "no line calls {method}");
    }
}

/// Every method of every service of kvatlas.v1, as reflection tells them.
fn methods(grpcurl: &Path, server: &Server) -> Vec<String> {
    let list = |words: &[&str]| {
        let output = Command::new(grpcurl)
            .args(["-plaintext", &server.grpc, "list"])
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success());
        let listed = text(&output.stdout);
        listed.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let services = list(&[]);
    let ours = services
        .iter()
        .filter(|name| name.starts_with("kvatlas.v1."));
    let methods: Vec<String> = ours.flat_map(|service| list(&[service])).collect();
    let slashed = |method: &String| {
        let (service, name) = method.rsplit_once('.').unwrap();
        format!("{service}/{name}")
    };
    let methods: Vec<String> = methods.iter().map(slashed).collect();
    assert!(methods.len() > 30, "{methods:?}");
    methods
}

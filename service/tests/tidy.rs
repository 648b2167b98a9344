//! House rules that a compiler does not check: who may know what, and how long things get.

#[cfg(test)]
mod tidy {
    use std::{
        fs,
        path::{Path, PathBuf},
    };

    /// Decisions: no clock, lock, log, I/O, async or generated type.
    const PURE: [&str; 74] = [
        "access/grant.rs",
        "access/limits.rs",
        "donor_events/decode.rs",
        "donor_events/isolation.rs",
        "donor_events/refusal.rs",
        "donor_events/wire.rs",
        "donors/align.rs",
        "donors/announced/event.rs",
        "donors/announced/namespace.rs",
        "donors/announced/stream.rs",
        "donors/cover.rs",
        "donors/facts/judge.rs",
        "donors/facts/lexicon.rs",
        "donors/facts/marks.rs",
        "donors/facts/mod.rs",
        "donors/facts/numbers.rs",
        "donors/facts/seeds.rs",
        "donors/facts/shape.rs",
        "donors/facts/spelling.rs",
        "donors/facts/words.rs",
        "donors/gate.rs",
        "donors/ids.rs",
        "donors/index.rs",
        "donors/listed.rs",
        "donors/namespace.rs",
        "donors/neighbours/pending.rs",
        "donors/neighbours/sketch.rs",
        "donors/postings.rs",
        "donors/residents/blocks.rs",
        "donors/scope.rs",
        "donors/search.rs",
        "donors/seeds.rs",
        "donors/slots.rs",
        "donors/text/segments.rs",
        "donors/token_store.rs",
        "donors/tokens.rs",
        "donors/vocabulary.rs",
        "donors/votes.rs",
        "report/class.rs",
        "report/html/chart.rs",
        "report/html/engine_sections.rs",
        "report/html/lookup_sections.rs",
        "report/html/mod.rs",
        "report/html/verdict_section.rs",
        "report/latency.rs",
        "report/merge.rs",
        "report/picture.rs",
        "report/relax.rs",
        "report/series.rs",
        "report/show.rs",
        "report/summary.rs",
        "report/tally.rs",
        "report/text.rs",
        "report/verdict.rs",
        "routing/encoder/config.rs",
        "routing/encoder/forward.rs",
        "routing/encoder/rope.rs",
        "routing/import/mod.rs",
        "routing/import/pickle.rs",
        "routing/import/tensors.rs",
        "routing/import/view.rs",
        "routing/import/zip.rs",
        "routing/policy.rs",
        "routing/query/file.rs",
        "routing/query/fold.rs",
        "routing/query/mod.rs",
        "routing/query/plan.rs",
        "routing/ranking.rs",
        "routing/resolve.rs",
        "routing/summary/block.rs",
        "routing/summary/content.rs",
        "store/log/frame.rs",
        "telemetry/console/pulse.rs",
        "telemetry/console/state.rs",
    ];
    const IMPURE_WORDS: [&str; 11] = [
        "async ",
        "tokio",
        "parking_lot",
        "std::fs",
        "std::io",
        "tracing",
        "Instant",
        "SystemTime",
        "kvatlas_proto",
        "tonic",
        "crate::store",
    ];
    const LINES_MAX: usize = 600;
    const COLUMNS_MAX: usize = 100;

    #[test]
    fn decisions_are_pure() {
        for file in PURE {
            let text = code(&source().join(file));
            for word in IMPURE_WORDS {
                assert!(
                    !text.contains(word),
                    "{file} is a decision and must not know {word}"
                );
            }
        }
    }

    #[test]
    fn only_the_edge_knows_generated_types_and_status() {
        // app and listen put the transport together; cli is a client like any other.
        check_only_in(
            &["kvatlas_proto", "tonic::"],
            &["rpc/", "app.rs", "listen.rs", "cli/"],
        );
    }

    #[test]
    fn only_the_commands_use_the_client() {
        check_only_in(&["kvatlas_client"], &["cli/"]);
    }

    #[test]
    fn dependencies_point_one_way() {
        let allowed: [(&str, &[&str]); 8] = [
            (
                "access/",
                &[
                    "crate::config",
                    "crate::donors::namespace",
                    "crate::donors::scope",
                ],
            ),
            ("store/", &[]),
            ("leases/", &[]),
            ("routing/", &["crate::store"]),
            ("donors/", &["crate::store", "crate::leases"]),
            (
                "donor_events/",
                &["crate::donors", "crate::telemetry::metrics"],
            ),
            (
                "report/",
                &[
                    "crate::donors::vocabulary",
                    // Records and their words; the console shows reports in turn.
                    "crate::telemetry::",
                ],
            ),
            (
                "telemetry/",
                &[
                    "crate::config",
                    "crate::donors::vocabulary",
                    "crate::report",
                ],
            ),
        ];
        let domains = [
            "access",
            "app",
            "cli",
            "config",
            "donor_events",
            "donors",
            "leases",
            "report",
            "routing",
            "rpc",
            "store",
            "telemetry",
        ];
        for (domain, may) in allowed {
            for file in files(&source().join(domain)) {
                let text = code(&file);
                for other in domains.iter().filter(|other| !domain.starts_with(**other)) {
                    let name = format!("crate::{other}");
                    let uses = text
                        .match_indices(&name)
                        .any(|(at, _)| !may.iter().any(|may| text[at..].starts_with(may)));
                    let group =
                        text.contains("use crate::{") && text.contains(&format!("    {other}::"));
                    let group = group && !may.iter().any(|may| may.contains(&name));
                    assert!(!uses && !group, "{} must not use {name}", file.display());
                }
            }
        }
    }

    #[test]
    fn files_are_short_and_say_what_they_are_for() {
        let root = source();
        let root = root.parent().and_then(Path::parent).unwrap();
        for crate_folder in [
            "service", "events", "kernels", "client", "loadtest", "proto",
        ] {
            for folder in ["src", "tests", "benches"] {
                for file in files(&root.join(crate_folder).join(folder)) {
                    let text = fs::read_to_string(&file).unwrap();
                    let name = file.display();
                    assert!(
                        text.starts_with("//! "),
                        "{name} must open with a sentence on its use"
                    );
                    let lines = text.lines().count();
                    assert!(
                        lines <= LINES_MAX,
                        "{name} has {lines} lines, at most {LINES_MAX}"
                    );
                    for (number, line) in text.lines().enumerate() {
                        let columns = line.chars().count();
                        assert!(
                            columns <= COLUMNS_MAX,
                            "{name}:{} has {columns} columns",
                            number + 1
                        );
                    }
                }
            }
        }
    }

    fn check_only_in(words: &[&str], places: &[&str]) {
        let source = source();
        for file in files(&source) {
            let name = file.strip_prefix(&source).unwrap().to_str().unwrap();
            if places.iter().any(|place| name.starts_with(place)) {
                continue;
            }
            let text = code(&file);
            for word in words {
                assert!(!text.contains(word), "{name} must not know {word}");
            }
        }
    }

    // The file without its comments and without its tests.
    fn code(file: &Path) -> String {
        let text = fs::read_to_string(file).unwrap();
        let text = text.split("#[cfg(test)]").next().unwrap();
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        lines.collect::<Vec<_>>().join("\n")
    }

    fn source() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let Ok(entries) = fs::read_dir(folder) else {
            return found;
        };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(files(&path));
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
        found
    }
}

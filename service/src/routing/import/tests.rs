//! Reads every fixture, and everything that could be made of one.

use std::collections::BTreeMap;
use std::path::Path;

use kvatlas_kernels::Scores;
use serde_json::Value as Json;

use super::*;

/// Files that torch wrote, by name without `.pt`.
fn fixtures() -> BTreeMap<String, Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/pt");
    let files = std::fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "pt"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, std::fs::read(path).unwrap())
        })
        .collect()
}

fn expectations() -> BTreeMap<String, Json> {
    serde_json::from_str(include_str!("../../../tests/data/pt/expect.json")).unwrap()
}

fn wide(scores: &Scores) -> Vec<f64> {
    match scores {
        Scores::F32(scores) => scores.iter().copied().map(f64::from).collect(),
        Scores::F64(scores) => scores.clone(),
    }
}

fn list(json: &Json) -> Vec<u32> {
    serde_json::from_value(json.clone()).unwrap()
}

/// Compares what was read with an entry of expect.json.
fn check(name: &str, result: Result<ImportedPrior, ImportError>, expected: &Json) {
    if let Some(refused) = expected.get("refused") {
        let message = result.unwrap_err().to_string();
        assert!(
            message.contains(refused.as_str().unwrap()),
            "{name}: {message}"
        );
        return;
    }
    if expected.as_object().unwrap().is_empty() {
        return;
    }
    let prior = result.unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut compared = 0;
    if let Some(shape) = expected.get("shape") {
        let tensor = prior.affinities.as_ref().unwrap();
        assert_eq!(
            [tensor.layers, tensor.kv_heads, tensor.blocks].as_slice(),
            list(shape)
        );
        let scores = wide(&tensor.scores);
        // The JSON reader rounds the last bit of a float, so that f64s are not compared exactly.
        let near = |field: &str, found: f64| {
            let wanted = expected[field].as_f64().unwrap();
            assert!(
                (found - wanted).abs() < 1e-9,
                "{name}: {field} is {found}, not {wanted}"
            );
        };
        near("first", scores[0]);
        near(
            "e123",
            scores[((tensor.kv_heads + 2) * tensor.blocks + 3) as usize],
        );
        near("last", scores[scores.len() - 1]);
        near("sum", scores.iter().sum());
        assert_eq!(prior.total_blocks, Some(tensor.blocks), "{name}");
        compared += 1;
    }
    if let Some(lists) = expected.get("perK") {
        let lists = lists.as_object().unwrap();
        let lists = lists
            .iter()
            .map(|(k, blocks)| (k.parse().unwrap(), list(blocks)))
            .collect();
        assert_eq!(prior.lists_by_k, lists, "{name}");
        compared += 1;
    }
    if let Some(blocks) = expected.get("list") {
        assert_eq!(prior.legacy_list, Some(list(blocks)), "{name}");
        compared += 1;
    }
    assert!(
        compared > 0,
        "{name} has an expectation that was not compared: {expected}"
    );
    compared
}

#[test]
fn every_fixture_reads_as_expected() {
    let fixtures = fixtures();
    for (name, expected) in expectations() {
        check(&name, import(&fixtures[&name], None), &expected);
        check(
            &name,
            import(&fixtures[&name], Some(Format::Torch)),
            &expected,
        );
    }
}

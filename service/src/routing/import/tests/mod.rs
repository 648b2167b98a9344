//! Reads every file that torch and CPython wrote; the modules below read those that nobody would.

mod archives;
mod build;
mod hostile;
mod legacy;
mod modules;
mod named;
mod pickles;
mod schema;
mod tensors;

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
    serde_json::from_str(include_str!("../../../../tests/data/pt/expect.json")).unwrap()
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
    let Some(prior) = result
        .ok()
        .filter(|_| !expected.as_object().unwrap().is_empty())
    else {
        assert_eq!(
            expected.as_object().map(serde_json::Map::len),
            Some(0),
            "{name} is refused"
        );
        return;
    };
    if expected.get("shape").is_some() {
        check_tensor(name, &prior, expected);
    }
    if let Some(lists) = expected.get("perK") {
        let lists = lists.as_object().unwrap();
        let lists = lists
            .iter()
            .map(|(k, blocks)| (k.parse().unwrap(), list(blocks)))
            .collect();
        assert_eq!(prior.lists_by_k, lists, "{name}");
    }
    if let Some(blocks) = expected.get("list") {
        assert_eq!(prior.legacy_list, Some(list(blocks)), "{name}");
    }
}

fn check_tensor(name: &str, prior: &ImportedPrior, expected: &Json) {
    let tensor = prior.affinities.as_ref().unwrap();
    let shape = [tensor.layers, tensor.kv_heads, tensor.blocks];
    assert_eq!(shape.as_slice(), list(&expected["shape"]), "{name}");
    assert_eq!(prior.total_blocks, Some(tensor.blocks), "{name}");
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
    // Element [1, 2, 3].
    near(
        "e123",
        scores[((tensor.kv_heads + 2) * tensor.blocks + 3) as usize],
    );
    near("last", scores[scores.len() - 1]);
    near("sum", scores.iter().sum());
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

/// The fixtures that expect.json only wants read or refused.
#[test]
fn the_other_fixtures_read_or_are_refused_clearly() {
    let fixtures = fixtures();
    let tuples = import(&fixtures["perk_tuples"], None).unwrap();
    assert_eq!(
        tuples.lists_by_k,
        import(&fixtures["perk"], None).unwrap().lists_by_k
    );
    let big = import(&fixtures["big_perk"], None).unwrap();
    let lengths: Vec<_> = big
        .lists_by_k
        .iter()
        .map(|(&k, list)| (k, list.len()))
        .collect();
    assert_eq!(
        (big.total_blocks, lengths),
        (Some(8192), vec![(1024, 1024), (2048, 2048)])
    );
    for (name, found) in [
        ("cart_list", "found a list of 3"),
        (
            "cart_trainable",
            "[trainable_keys, trainable_values, frozen_keys, frozen_values]",
        ),
        (
            "cart_modules",
            "[trainable_keys, trainable_values, frozen_keys, frozen_values]",
        ),
        (
            "cart_modules_protocol4",
            "[trainable_keys, trainable_values, fixed_keys, fixed_values]",
        ),
        (
            "cart_object",
            "__main__.TrainableCache at byte 2 is refused",
        ),
    ] {
        let message = import(&fixtures[name], None).unwrap_err().to_string();
        assert!(message.contains(found), "{name}: {message}");
    }
}

#[test]
fn metadata_is_kept_as_text() {
    let prior = import(&fixtures()["aff_float32"], None).unwrap();
    assert_eq!(
        (prior.block_size, prior.prior_type.as_deref()),
        (Some(16), None)
    );
    let metadata = prior
        .metadata
        .iter()
        .map(|(key, text)| (key.as_str(), text.as_str()));
    assert_eq!(
        metadata.collect::<Vec<_>>(),
        [
            ("cartridge_path", "/data/c.pt"),
            ("context_length", "8192"),
            ("doc_len", "2048"),
            ("experiment_root", ""),
            ("model_id", "meta-llama/Llama-3.2-3B-Instruct"),
            ("timestamp", "2026-11-29T00:00:00+0000"),
            ("version", "1"),
        ]
    );
    let bigints = import(&fixtures()["bigints"], None).unwrap().metadata;
    assert_eq!(bigints["neg"], "-1099511627776");
    assert_eq!(bigints["neg1"], "-1");
    assert_eq!(bigints["huge"], "1180591620717411303424");
}

/// proto4's lists name blocks up to 248, its tensor has 128.
#[test]
fn lists_that_do_not_fit_the_tensor_are_dropped_and_said_so() {
    let prior = import(&fixtures()["proto4"], None).unwrap();
    assert_eq!((prior.lists_by_k.len(), prior.total_blocks), (0, Some(128)));
    let note = &prior.metadata["dropped kmeans_blocks_perK"];
    assert_eq!(
        note,
        "kmeans_blocks_perK[4] lists block 174, block_affinities has 128"
    );
}

#[test]
fn every_protocol_reads_the_same() {
    let fixtures = fixtures();
    for protocol in 2..=5 {
        let prior = import(&fixtures[&format!("py_protocol{protocol}")], None).unwrap();
        let tensor = prior.affinities.unwrap();
        assert_eq!((tensor.layers, tensor.kv_heads, tensor.blocks), (2, 2, 5));
        let halves: Vec<f32> = (0_u8..20).map(|number| f32::from(number) * 0.5).collect();
        assert_eq!(tensor.scores, Scores::F32(halves));
        let lists = [
            (2, vec![3, 1]),
            (3, vec![1, 4, 2]),
            (4, vec![0, 2, 3, 4]),
            (5, vec![4, 3, 2, 1, 0]),
        ];
        assert_eq!(prior.lists_by_k, lists.into(), "protocol {protocol}");
        assert_eq!(prior.legacy_list, Some(vec![1, 4, 2]));
        assert_eq!((prior.total_blocks, prior.block_size), (Some(5), Some(128)));
        assert_eq!(prior.prior_type.as_deref(), Some("kri-d"));
        let metadata = [
            ("model_id", "Größe-3B"),
            ("seed", "-1267650600228229401496703205376"),
            ("ratio", "0.25"),
            ("normalised", "true"),
            ("long", &"x".repeat(METADATA_VALUE_BYTES_MAX)),
        ];
        let metadata = metadata.map(|(key, text)| (key.to_owned(), text.to_owned()));
        assert_eq!(prior.metadata, metadata.into(), "protocol {protocol}");
    }
}

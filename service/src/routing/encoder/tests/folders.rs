//! Folders that are no models: each is refused by what is wrong with it.

use std::os::unix::fs::symlink;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

use crate::routing::encoder::weights::HEADER_BYTES_MAX;

const SHARDED: &str = "llama-yarn-bf16";
const INDEX: &str = "model.safetensors.index.json";
const QUERY: &str = "model.layers.0.self_attn.q_proj.weight";

/// Opens a copy of a model after `change` was made to its folder.
fn check(model: &str, change: impl FnOnce(&Path), expected: &str) {
    let folder = copy(model);
    change(folder.path());
    match open_copy(&folder) {
        Ok(_) => panic!("{expected}: was not found"),
        Err(error) => assert_eq!(error.to_string(), expected),
    }
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

/// Writes other bytes for the ones that are found; as many, so that a header keeps its length.
fn replace(path: &Path, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut bytes = fs::read(path).unwrap();
    let found = bytes
        .windows(from.len())
        .position(|window| window == from.as_bytes());
    let at = found.expect("the bytes to replace");
    bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
    fs::write(path, bytes).unwrap();
}

#[test]
fn files_that_are_missing_are_named() {
    let remove =
        |name: &'static str| move |folder: &Path| fs::remove_file(folder.join(name)).unwrap();
    let nothing = "No such file or directory (os error 2)";
    check(
        "qwen2-f16",
        remove("config.json"),
        &format!("config.json: cannot find: {nothing}"),
    );
    check(
        "qwen2-f16",
        remove("model.safetensors"),
        "neither model.safetensors nor model.safetensors.index.json is there",
    );
    check(
        SHARDED,
        remove("model-00005-of-00005.safetensors"),
        &format!("model-00005-of-00005.safetensors: cannot find: {nothing}"),
    );
}

#[test]
fn files_that_are_cut_off_are_named() {
    let cut = |folder: &Path| {
        let file = fs::File::options()
            .write(true)
            .open(folder.join("model.safetensors"));
        file.unwrap().set_len(20_000).unwrap();
    };
    check(
        "qwen2-f16",
        cut,
        "model.safetensors: not whole safetensors: incomplete metadata, file not fully covered",
    );
    let empty = |folder: &Path| fs::write(folder.join("model.safetensors"), []).unwrap();
    check(
        "qwen2-f16",
        empty,
        "model.safetensors: not whole safetensors: header too small",
    );
}

#[test]
fn a_header_beyond_its_limit_is_not_read() {
    let longer = |folder: &Path| {
        let mut bytes = (HEADER_BYTES_MAX + 1).to_le_bytes().to_vec();
        bytes.extend([b' '; 100]);
        fs::write(folder.join("model.safetensors"), bytes).unwrap();
    };
    check(
        "qwen2-f16",
        longer,
        "model.safetensors (its header): 8388609 bytes, at most 8388608",
    );
}

#[test]
fn tensors_that_are_missing_or_of_another_shape_or_type_are_named() {
    let single = |from: &'static str, to: &'static str| {
        move |folder: &Path| replace(&folder.join("model.safetensors"), from, to)
    };
    check(
        "qwen2-f16",
        single("self_attn.q_proj.bias", "self_attn.q_proj.bios"),
        "model.layers.0.self_attn.q_proj.bias: missing",
    );
    check(
        "qwen3-bf16",
        single("self_attn.q_norm.weight", "self_attn.q_form.weight"),
        "model.layers.0.self_attn.q_norm.weight: missing",
    );
    check(
        "qwen2-f16",
        single(
            r#"q_proj.weight":{"dtype":"F16""#,
            r#"q_proj.weight":{"dtype":"I16""#,
        ),
        "model.layers.0.self_attn.q_proj.weight: of type I16; F32, F16 and BF16 are supported",
    );
    let taller = |folder: &Path| {
        edit(&folder.join("config.json"), |config| {
            config["vocab_size"] = 43.into();
        });
    };
    check(
        "qwen2-f16",
        taller,
        "model.embed_tokens.weight: of shape [42, 56], must be [43, 56] by config.json",
    );
    let unlisted = |folder: &Path| {
        edit(&folder.join(INDEX), |index| {
            index["weight_map"].as_object_mut().unwrap().remove(QUERY);
        });
    };
    check(SHARDED, unlisted, &format!("{QUERY}: missing"));
    // In a file that is there, but not in this one.
    let misplaced = |folder: &Path| {
        edit(&folder.join(INDEX), |index| {
            index["weight_map"][QUERY] = "model-00004-of-00005.safetensors".into();
        });
    };
    check(SHARDED, misplaced, &format!("{QUERY}: missing"));
}

#[test]
fn an_index_leads_nowhere_else() {
    for path in [
        "../model-00001-of-00005.safetensors",
        "/etc/passwd.safetensors",
        "a\\b.safetensors",
        "..",
        "",
        "model.bin",
    ] {
        let evil = |folder: &Path| {
            edit(&folder.join(INDEX), |index| {
                index["weight_map"][QUERY] = path.into();
            });
        };
        check(
            SHARDED,
            evil,
            &format!("{INDEX}: the file of {QUERY} must be a name that ends in .safetensors"),
        );
    }
    let no_map = |folder: &Path| fs::write(folder.join(INDEX), "{}").unwrap();
    check(
        SHARDED,
        no_map,
        &format!("{INDEX}: missing field `weight_map` at line 1 column 2"),
    );
}

#[test]
fn links_may_stay_in_the_models_folder_only() {
    let elsewhere = copy("qwen2-f16");
    let outside = elsewhere.path().join("model.safetensors");
    let out = |folder: &Path| {
        fs::remove_file(folder.join("model.safetensors")).unwrap();
        symlink(&outside, folder.join("model.safetensors")).unwrap();
    };
    check(
        "qwen2-f16",
        out,
        "model.safetensors: leads out of the models folder",
    );

    let folder = copy("qwen2-f16");
    let blob = folder.path().join("blob");
    fs::rename(folder.path().join("model.safetensors"), &blob).unwrap();
    symlink("blob", folder.path().join("model.safetensors")).unwrap();
    assert!(open_copy(&folder).is_ok());

    let in_place = |folder: &Path| {
        fs::remove_file(folder.join("config.json")).unwrap();
        fs::create_dir(folder.join("config.json")).unwrap();
    };
    check("qwen2-f16", in_place, "config.json: not a regular file");
}

#[test]
fn a_config_beyond_its_limit_is_not_read() {
    let long = |folder: &Path| {
        let spaces = vec![b' '; usize::try_from(config::CONFIG_BYTES_MAX).unwrap() + 1];
        fs::write(folder.join("config.json"), spaces).unwrap();
    };
    check(
        "qwen2-f16",
        long,
        "config.json: 1048577 bytes, at most 1048576",
    );
}

#[test]
fn weights_that_give_no_finite_query_are_found_when_they_are_used() {
    let folder = copy("qwen2-f16");
    let path = folder.path().join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let header = usize::try_from(header).unwrap();
    // Infinity in every element of every tensor.
    for element in bytes[8 + header..].chunks_exact_mut(2) {
        element.copy_from_slice(&[0x00, 0x7c]);
    }
    fs::write(&path, bytes).unwrap();
    let encoder = open_copy(&folder).unwrap();
    let Expected { frame, .. } = Expected::read("qwen2-f16", &encoder);
    let query = encoder.query(&[1], 0, 0, &frame);
    assert_eq!(query, Err(EncoderError::OutOfBounds));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happened to a file, the folder is refused or served.
    #[test]
    fn no_damage_makes_it_panic(
        (name, at, to) in (0..3_usize, any::<prop::sample::Index>(), any::<u8>()),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let folder = copy(SHARDED);
        let name = ["config.json", INDEX, "model-00001-of-00005.safetensors"][name];
        let path = folder.path().join(name);
        let mut bytes = fs::read(&path).unwrap();
        // Mostly the header: the rest are numbers.
        let length = bytes.len().min(1000);
        bytes[at.index(length)] = to;
        if let Some(cut) = cut {
            bytes.truncate(cut.index(length));
        }
        fs::write(&path, bytes).unwrap();
        if let Ok(encoder) = open_copy(&folder) {
            let frame = KeyFrame {
                rope: RopeFrame::PostRope,
                layout: PairLayout::Half,
                inv_freq: encoder.rope.inv_freq.clone(),
                attention_scaling: encoder.rope.attention_scaling,
                block_size: 16,
                layer_ids: Box::new([0]),
            };
            let _served_or_refused = encoder.query(&[1, 2, 3], 5, 2, &frame);
        }
    }
}

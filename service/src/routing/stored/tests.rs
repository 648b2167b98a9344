//! Priors go out as files and come back the same, and nothing else comes back.

use std::sync::Arc;

use kvatlas_kernels::{Pooling, Scores};
use tempfile::TempDir;

use super::*;
use crate::routing::import::{Affinities, ImportedPrior};
use crate::routing::priors::{
    Priors,
    tests::{lists, scores, upload},
};

/// Priors in a store of their own.
struct Place {
    _folder: TempDir,
    store: Arc<Store>,
    priors: Priors,
}

fn place() -> Place {
    let folder = TempDir::new().unwrap();
    let store = Arc::new(Store::open(folder.path()).unwrap().0);
    let (priors, _) = Priors::open(Arc::clone(&store)).unwrap();
    Place {
        _folder: folder,
        store,
        priors,
    }
}

/// The file of a prior that is put as it was imported.
fn exported(imported: ImportedPrior) -> Vec<u8> {
    let place = place();
    let repair = Some(Repair {
        name: "xa25".into(),
        ratio: 0.25,
    });
    let upload = PriorUpload {
        pooling: Pooling::Max,
        repair,
        ..upload("p", "q")
    };
    let put = place.priors.put_imported(&upload, imported).unwrap();
    file(&put.prior, &place.store).unwrap()
}

fn put_back(place: &Place, bytes: &[u8]) -> Result<Arc<Prior>, String> {
    let upload = PriorUpload {
        algorithm: "",
        bytes,
        now_unix_ms: 1,
        ..upload("p", "q")
    };
    let put = place.priors.put(&upload);
    put.map(|put| put.prior).map_err(|error| error.to_string())
}

/// Two heads over a layer, three over none, many blocks, lists alone, and all together.
fn kinds() -> Vec<ImportedPrior> {
    let blocks: u32 = 70_000;
    let many = (0..blocks).map(|block| (block * 7919 % blocks) as f32);
    let wide = Affinities {
        layers: 1,
        kv_heads: 1,
        blocks,
        scores: Scores::F32(many.collect()),
    };
    let both = ImportedPrior {
        affinities: scores(&[&[3.0, 1.0, 2.0], &[1.0, 3.0, 2.0]]).affinities,
        ..lists(Some(3), &[&[2], &[0, 2]], &[1, 0])
    };
    vec![
        scores(&[&[1.0, 2.0, 3.0]]),
        scores(&[&[1.0, 2.0, 3.0], &[3.0, 1.0, 2.0]]),
        ImportedPrior {
            affinities: Some(wide),
            ..lists(None, &[], &[])
        },
        lists(None, &[&[5], &[7, 5]], &[]),
        lists(Some(9), &[], &[8, 0, 3]),
        both,
    ]
}

#[test]
fn every_kind_comes_back_bit_by_bit_and_is_there_after_a_restart() {
    for imported in kinds() {
        let bytes = exported(imported);
        let other = place();
        let back = put_back(&other, &bytes).unwrap();
        assert_eq!(file(&back, &other.store).unwrap(), bytes);
        assert_eq!(back.put_unix_ms, 1_700_000_000_000, "when it was first put");
        assert_eq!(
            back.repair.as_ref().unwrap().ratio.to_bits(),
            0.25_f32.to_bits()
        );
        let (reopened, report) = Priors::open(Arc::clone(&other.store)).unwrap();
        assert_eq!((report.loaded, report.damaged), (1, 0));
        let kept = reopened.get("p", "q", "kri-d").unwrap();
        assert_eq!(file(&kept, &other.store).unwrap(), bytes);
    }
}

#[test]
fn an_uploads_names_and_repair_go_before_the_files() {
    let bytes = exported(scores(&[&[1.0, 2.0]]));
    let place = place();
    let upload = PriorUpload {
        algorithm: "other",
        repair: Some(Repair {
            name: "xa50".into(),
            ratio: 0.5,
        }),
        bytes: &bytes,
        ..upload("p2", "")
    };
    let prior = place.priors.put(&upload).unwrap().prior;
    assert_eq!(&*prior.key.prefix_hash, "p2");
    assert_eq!(&*prior.key.algorithm, "other");
    assert_eq!(&*prior.repair.as_ref().unwrap().name, "xa50");
    assert_eq!(prior.pooling, Pooling::Max, "the file's");
}

#[test]
fn a_file_with_any_flipped_byte_or_cut_anywhere_is_refused() {
    let bytes = exported(scores(&[&[1.0, 2.0, 3.0], &[3.0, 1.0, 2.0]]));
    let place = place();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        assert!(put_back(&place, &flipped).is_err(), "byte {at}");
        assert!(put_back(&place, &bytes[..at]).is_err(), "cut to {at}");
    }
    assert!(place.priors.is_empty());
    assert!(put_back(&place, &bytes).is_ok());
}

#[test]
fn a_newer_format_is_named() {
    let mut bytes = exported(scores(&[&[1.0]]));
    bytes[MAGIC.len()] = VERSION + 1;
    let error = put_back(&place(), &bytes).unwrap_err();
    assert_eq!(
        error,
        "the file: a stored prior of format 2; this version reads up to 1"
    );
}

/// What a file says of a prior that `change` has changed, with a right hash.
#[track_caller]
fn check_refused(change: impl FnOnce(&mut Prior, &mut Vec<u8>), field: &str) {
    let imported = ImportedPrior {
        affinities: scores(&[&[3.0, 1.0, 2.0], &[1.0, 3.0, 2.0]]).affinities,
        ..lists(Some(3), &[&[2], &[0, 2]], &[1, 0])
    };
    let bytes = exported(imported);
    let (record, heads) = parts(&bytes).unwrap();
    let (mut prior, mut heads) = (record::decode_apart(record).unwrap(), heads.to_vec());
    change(&mut prior, &mut heads);
    let record = record::encode_apart(&prior);
    let mut bytes = [MAGIC, &[VERSION][..], &(record.len() as u64).to_le_bytes()].concat();
    bytes.extend([record, heads].concat());
    bytes.extend(xxh3_64(&bytes).to_le_bytes());
    let error = put_back(&place(), &bytes).unwrap_err();
    assert_eq!(
        error,
        format!("the file: a stored prior with a bad {field}")
    );
}

#[test]
fn what_no_import_could_have_made_is_refused() {
    let list = |blocks: &[u32]| Box::from(blocks);
    check_refused(|prior, _| prior.layers = 0, "shape");
    check_refused(|prior, _| prior.kv_heads = KV_HEADS_MAX + 1, "shape");
    check_refused(
        |prior, _| prior.block_size = BLOCK_SIZE_MAX + 1,
        "block_size",
    );
    check_refused(|prior, _| prior.key.algorithm = "".into(), "algorithm");
    check_refused(
        |prior, _| prior.repair.as_mut().unwrap().ratio = f32::NAN,
        "repair",
    );
    check_refused(
        |prior, _| {
            let long = "x".repeat(METADATA_VALUE_BYTES_MAX + 1);
            prior.metadata.insert("key".into(), long);
        },
        "metadata",
    );
    check_refused(|prior, _| prior.blocks.legacy = list(&[3]), "block list");
    check_refused(|prior, _| prior.blocks.legacy = list(&[1, 1]), "block list");
    check_refused(
        |prior, _| drop(prior.blocks.per_k.insert(1, list(&[0, 1]))),
        "block list",
    );
    check_refused(
        |prior, _| drop(prior.blocks.per_k.insert(0, list(&[]))),
        "block list",
    );
    check_refused(|prior, _| prior.blocks.total_blocks = Some(2), "record");
    check_refused(|_, heads| heads[0] = heads[2], "head");
    check_refused(|_, heads| heads.truncate(6), "head");
    check_refused(|_, heads| heads.extend([0, 0, 1, 0, 2, 0]), "head");
    check_refused(|prior, _| prior.kv_heads = 1, "head");
}

#[test]
fn a_prior_without_any_block_is_refused() {
    let bytes = exported(lists(None, &[], &[1]));
    let mut prior = record::decode_apart(parts(&bytes).unwrap().0).unwrap();
    prior.blocks.legacy = Box::default();
    assert_eq!(
        check(&prior),
        Err(StoredError::Field {
            field: "block list"
        })
    );
}

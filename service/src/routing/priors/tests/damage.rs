//! Priors that are refused, and what damage and crashes leave.

use super::super::super::prior::PerHeadError;
use super::*;
use crate::store::Damage;

#[test]
fn what_a_crash_left_is_swept() {
    let fixture = Fixture::new();
    let heads: [&[f32]; 2] = [&[1.0, 2.0], &[1.0, 2.0]];
    fixture
        .priors
        .put_imported(&upload("p", ""), scores(&heads))
        .unwrap();
    fixture
        .store()
        .put_blob(b"the record was never written")
        .unwrap();
    let fixture = fixture.reopen();
    assert_eq!(
        fixture
            .store()
            .remove_unreferenced_blobs(&fixture.report.blobs)
            .unwrap(),
        1
    );
    let prior = fixture.priors.get("p", "", "").unwrap();
    prior.load_per_head(fixture.store()).unwrap();
}

#[test]
fn damage_is_counted_and_the_rest_serves() {
    let fixture = Fixture::new();
    let heads: [&[f32]; 2] = [&[1.0, 2.0], &[1.0, 2.0]];
    for prefix in ["a", "b", "c"] {
        fixture
            .priors
            .put_imported(&upload(prefix, ""), scores(&heads))
            .unwrap();
    }
    // A record under another's key, one that is no prior, one with half a ranking.
    let good = fixture.priors.get("a", "", "").unwrap();
    let key = record::store_key(&fixture.priors.get("b", "", "").unwrap().key);
    let payload = record::encode(&good);
    let table = Table::Priors;
    fixture
        .store()
        .write(&[
            Change::Put {
                table,
                key: &key,
                payload: &payload,
            },
            Change::Put {
                table,
                key: b"no prior",
                payload: b"\xff\xff\xff",
            },
            Change::Put {
                table,
                key: b"empty",
                payload: b"",
            },
        ])
        .unwrap();
    fixture.store().commit().unwrap();
    let blob = *good.blob().unwrap();
    let file = fixture
        .folder
        .path()
        .join("blobs")
        .join(blob.name.to_string());
    std::fs::write(file, [9; 8]).unwrap();

    let fixture = fixture.reopen();
    assert_eq!((fixture.report.loaded, fixture.report.damaged), (2, 3));
    assert!(fixture.priors.get("b", "", "").is_none());
    let a = fixture.priors.get("a", "", "").unwrap();
    let error = a.load_per_head(fixture.store()).unwrap_err();
    let is_checksum = |error: &PerHeadError| match error {
        PerHeadError::Store(StoreError::Blob { damage, .. }) => *damage == Damage::Checksum,
        PerHeadError::Store(_) | PerHeadError::NoRanking => false,
    };
    assert!(is_checksum(&error), "{error}");
    // Putting it again repairs both.
    for prefix in ["a", "b"] {
        fixture
            .priors
            .put_imported(&upload(prefix, ""), scores(&heads))
            .unwrap();
    }
    assert_eq!(fixture.reopen().report.damaged, 2);
}

#[test]
fn heads_that_rank_nothing_are_refused_and_their_prior_serves() {
    let fixture = Fixture::new();
    let heads: [&[f32]; 2] = [&[1.0, 2.0], &[1.0, 2.0]];
    let put = fixture
        .priors
        .put_imported(&upload("p", ""), scores(&heads))
        .unwrap();
    let key = record::store_key(&put.prior.key);
    let mut prior = record::decode(&key, &record::encode(&put.prior)).unwrap();
    let blob = fixture.store().put_blob(&[0; 8]).unwrap();
    prior.per_head = PerHeadRanks::in_blob(blob);
    fixture.priors.write(&prior).unwrap();
    let fixture = fixture.reopen();
    assert_eq!((fixture.report.loaded, fixture.report.damaged), (1, 0));
    let prior = fixture.priors.get("p", "", "").unwrap();
    let loaded = prior.load_per_head(fixture.store());
    assert!(matches!(loaded, Err(PerHeadError::NoRanking)));
    assert!(matches!(prior.per_head(), PerHead::NotLoaded));
    assert_eq!(ranked(&prior), [1, 0]);
}

#[test]
fn refusals_name_the_field() {
    let fixture = Fixture::new();
    let (long, repair) = ("x".repeat(513), |name: &str, ratio| {
        Some(Repair {
            name: name.into(),
            ratio,
        })
    });
    let check = |upload: &PriorUpload<'_>, says: &str| {
        let error = fixture.priors.put(upload).unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
        assert!(!error.contains("xxxx"));
    };
    check(
        &upload("", ""),
        "prefix_hash: expected 1 to 512 bytes, got 0",
    );
    check(
        &upload(&long, ""),
        "prefix_hash: expected 1 to 512 bytes, got 513",
    );
    check(
        &upload("p", &long),
        "query_hash: expected at most 512 bytes, got 513",
    );
    check(
        &PriorUpload {
            algorithm: &long[..129],
            ..upload("p", "")
        },
        "algorithm: expected at most 128",
    );
    check(
        &PriorUpload {
            repair: repair("", 0.5),
            ..upload("p", "")
        },
        "repair.name: expected 1 to 64",
    );
    for ratio in [-0.1, 1.1, f32::NAN] {
        check(
            &PriorUpload {
                repair: repair("xa25", ratio),
                ..upload("p", "")
            },
            "repair.ratio",
        );
    }
    check(
        &PriorUpload {
            bytes: b"nonsense",
            ..upload("p", "")
        },
        "the file: ",
    );
    let empty = fixture
        .priors
        .put_imported(&upload("p", ""), lists(Some(4), &[&[]], &[]));
    assert!(matches!(empty, Err(PutError::NoBlocks)));
    for algorithm in 0..=ALGORITHMS_MAX {
        let algorithm = algorithm.to_string();
        let upload = PriorUpload {
            algorithm: &algorithm,
            ..upload("p", "")
        };
        let put = fixture
            .priors
            .put_imported(&upload, lists(Some(4), &[], &[1]));
        assert_eq!(put.is_err(), algorithm == "64");
    }
    assert_eq!(fixture.priors.len(), ALGORITHMS_MAX);
}

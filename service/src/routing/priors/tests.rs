//! Priors from put to a restart, on a store of their own.

use std::path::Path;
use std::thread;

use kvatlas_kernels::Scores;
use tempfile::TempDir;

use super::super::prior::{PerHead, PerHeadError};
use super::*;
use crate::store::Damage;

/// Priors on a new folder, and what a restart of them finds.
pub(crate) struct Fixture {
    pub folder: TempDir,
    pub priors: Priors,
    pub report: LoadReport,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::on(tempfile::tempdir().unwrap())
    }

    fn on(folder: TempDir) -> Self {
        let (priors, report) = open(folder.path());
        Self {
            folder,
            priors,
            report,
        }
    }

    pub(crate) fn reopen(self) -> Self {
        let Self {
            folder,
            priors,
            report: _,
        } = self;
        drop(priors);
        Self::on(folder)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.priors.store
    }

    fn blob_files(&self) -> usize {
        std::fs::read_dir(self.folder.path().join("blobs"))
            .unwrap()
            .count()
    }
}

fn open(folder: &Path) -> (Priors, LoadReport) {
    let (store, _) = Store::open(folder).unwrap();
    Priors::open(Arc::new(store)).unwrap()
}

pub(crate) fn upload<'a>(prefix_hash: &'a str, query_hash: &'a str) -> PriorUpload<'a> {
    PriorUpload {
        prefix_hash,
        query_hash,
        algorithm: "kri-d",
        format: None,
        pooling: Pooling::Mean,
        repair: None,
        bytes: &[],
        now_unix_ms: 1_700_000_000_000,
    }
}

/// A tensor of one layer, a row per head.
pub(crate) fn scores(heads: &[&[f32]]) -> ImportedPrior {
    let count = |length: usize| u32::try_from(length).unwrap();
    let blocks = count(heads[0].len());
    ImportedPrior {
        affinities: Some(Affinities {
            layers: 1,
            kv_heads: count(heads.len()),
            blocks,
            scores: Scores::F32(heads.concat()),
        }),
        total_blocks: Some(blocks),
        ..lists(None, &[], &[])
    }
}

pub(crate) fn lists(total_blocks: Option<u32>, per_k: &[&[u32]], legacy: &[u32]) -> ImportedPrior {
    let key = |list: &[u32]| u32::try_from(list.len()).unwrap();
    ImportedPrior {
        affinities: None,
        lists_by_k: per_k
            .iter()
            .map(|list| (key(list), list.to_vec()))
            .collect(),
        legacy_list: (!legacy.is_empty()).then(|| legacy.to_vec()),
        total_blocks,
        block_size: Some(16),
        prior_type: None,
        metadata: BTreeMap::from([("model_id".to_owned(), "tiny".to_owned())]),
    }
}

/// Everything that a reader can see of a prior.
fn seen(prior: &Prior) -> impl PartialEq + std::fmt::Debug + use<> {
    let dimensions = (
        prior.layers,
        prior.kv_heads,
        prior.block_size,
        prior.file_bytes,
    );
    let names = (prior.key.clone(), prior.generation, prior.put_unix_ms);
    (
        names,
        prior.blocks.clone(),
        dimensions,
        prior.pooling,
        prior.repair.clone(),
        prior.metadata.clone(),
    )
}

fn ranked(prior: &Prior) -> Vec<u32> {
    prior
        .blocks
        .ranking
        .as_ref()
        .unwrap()
        .view()
        .iter()
        .collect()
}

fn keys(priors: &[Arc<Prior>]) -> Vec<String> {
    let key = |prior: &Arc<Prior>| {
        let PriorKey {
            prefix_hash,
            query_hash,
            algorithm,
        } = &prior.key;
        format!("{prefix_hash}/{query_hash}/{algorithm}")
    };
    priors.iter().map(key).collect()
}

#[test]
fn a_prior_is_the_same_after_a_restart() {
    let fixture = Fixture::new();
    let mut two_heads = scores(&[&[1.0, 2.0, 3.0, 0.0], &[9.0, 2.0, 3.0, f32::NAN]]);
    two_heads.lists_by_k.insert(2, vec![3, 1]);
    let repair = Some(Repair {
        name: "xa25".into(),
        ratio: 0.25,
    });
    let pooling = Pooling::Max;
    let with_scores = PriorUpload {
        repair,
        pooling,
        bytes: b"file",
        ..upload("p", "q")
    };
    let with_scores = fixture
        .priors
        .put_imported(&with_scores, two_heads)
        .unwrap();
    let listed = lists(None, &[&[10, 102, 174, 242]], &[31, 10]);
    let listed = fixture
        .priors
        .put_imported(&upload("p", ""), listed)
        .unwrap();
    assert!(!with_scores.replaced && !listed.replaced);
    assert_eq!(ranked(&with_scores.prior), [0, 2, 1, 3]);
    assert!(matches!(listed.prior.per_head(), PerHead::Absent));

    let fixture = fixture.reopen();
    assert_eq!((fixture.report.loaded, fixture.report.damaged), (2, 0));
    for put in [&with_scores.prior, &listed.prior] {
        let key = &put.key;
        let read = fixture
            .priors
            .get(&key.prefix_hash, &key.query_hash, &key.algorithm)
            .unwrap();
        assert_eq!(seen(&read), seen(put));
        assert!(fixture.priors.is_current_generation(read.generation));
    }
    assert!(
        !fixture
            .priors
            .is_current_generation(listed.prior.generation + 1)
    );
}

#[test]
fn heads_are_ranked_at_the_put_and_loaded_on_first_use() {
    let fixture = Fixture::new();
    let put = |prefix, imported| fixture.priors.put_imported(&upload(prefix, ""), imported);
    put("two", scores(&[&[1.0, 2.0, 3.0], &[9.0, 2.0, 3.0]])).unwrap();
    put("one", scores(&[&[1.0, 2.0, 3.0]])).unwrap();
    assert_eq!(
        fixture.blob_files(),
        1,
        "a single head is the pooled ranking"
    );

    let fixture = fixture.reopen();
    let one = fixture.priors.get("one", "", "").unwrap();
    assert!(matches!(one.per_head(), PerHead::Ready(heads) if heads.packed == [2, 0, 1, 0, 0, 0]));
    let two = fixture.priors.get("two", "", "").unwrap();
    assert!(matches!(two.per_head(), PerHead::NotLoaded));
    two.load_per_head(fixture.store()).unwrap();
    two.load_per_head(fixture.store()).unwrap();
    let PerHead::Ready(heads) = two.per_head() else {
        panic!("loaded before")
    };
    assert_eq!((heads.layers, heads.kv_heads, heads.blocks), (1, 2, 3));
    assert_eq!(heads.packed, [2, 0, 1, 0, 0, 0, 0, 0, 2, 0, 1, 0]);
}

#[test]
fn the_order_of_heads_does_not_matter() {
    let fixture = Fixture::new();
    let rows: [&[f32]; 3] = [
        &[0.1, 0.3, 0.2, 0.1],
        &[0.2, 0.1, 0.3, 0.1],
        &[0.3, 0.2, 0.1, 0.1],
    ];
    for (index, order) in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1]]
        .into_iter()
        .enumerate()
    {
        let prefix = format!("p{index}");
        let imported = scores(&order.map(|row: usize| rows[row]));
        let put = fixture
            .priors
            .put_imported(&upload(&prefix, ""), imported)
            .unwrap();
        assert_eq!(ranked(&put.prior), [0, 1, 2, 3], "the first three tie");
    }
}

#[test]
fn the_newest_prior_answers_an_empty_algorithm() {
    let fixture = Fixture::new();
    let put = |algorithm, query| {
        let upload = PriorUpload {
            algorithm,
            ..upload("p", query)
        };
        fixture
            .priors
            .put_imported(&upload, scores(&[&[1.0, 2.0]]))
            .unwrap()
    };
    put("old", "");
    put("new", "");
    put("only-here", "q");
    let again = put("old", "");
    assert!(again.replaced);
    let check = |priors: &Priors, query: &str, algorithm: &str, expected: Option<(&str, bool)>| {
        let found = priors.find("p", query, algorithm);
        let found = found
            .as_ref()
            .map(|found| (&*found.prior.key.algorithm, found.exact_query));
        assert_eq!(found, expected, "{query} {algorithm}");
    };
    let reopened = |priors: &Priors| {
        check(priors, "", "", Some(("old", true)));
        check(priors, "", "new", Some(("new", true)));
        check(priors, "", "only-here", None);
        check(priors, "q", "", Some(("only-here", true)));
        check(priors, "q", "new", Some(("new", false)));
        check(priors, "other", "", Some(("old", false)));
        assert!(priors.find("another", "", "").is_none());
        assert!(priors.get("p", "other", "").is_none());
    };
    reopened(&fixture.priors);
    reopened(&fixture.reopen().priors);
}

#[test]
fn the_algorithm_is_the_senders_then_the_files() {
    let fixture = Fixture::new();
    let put = |algorithm, prior_type: Option<&str>| {
        let imported = ImportedPrior {
            prior_type: prior_type.map(str::to_owned),
            ..scores(&[&[1.0, 2.0]])
        };
        let upload = PriorUpload {
            algorithm,
            ..upload("p", "")
        };
        let put = fixture.priors.put_imported(&upload, imported).unwrap();
        put.prior.key.algorithm.to_string()
    };
    assert_eq!(put("mine", Some("kri-a")), "mine");
    assert_eq!(put("", Some("kri-a")), "kri-a");
    assert_eq!(put("", Some("")), "unknown");
    assert_eq!(put("", None), "unknown");
}

#[test]
fn pages_are_sorted_by_key() {
    let fixture = Fixture::new();
    for (prefix, query, algorithm) in [
        ("b", "", "z"),
        ("a", "q", "y"),
        ("a", "", "y"),
        ("ab", "", "x"),
        ("a", "", "x"),
    ] {
        let upload = PriorUpload {
            algorithm,
            ..upload(prefix, query)
        };
        fixture
            .priors
            .put_imported(&upload, scores(&[&[1.0]]))
            .unwrap();
    }
    let all = ["a//x", "a//y", "a/q/y", "ab//x", "b//z"];
    let priors = &fixture.priors;
    assert_eq!(keys(&priors.list("", None, 10)), all);
    assert_eq!(keys(&priors.list("a", None, 10)), all[..4]);
    assert_eq!(keys(&priors.list("ab", None, 10)), all[3..4]);
    assert_eq!(keys(&priors.list("c", None, 10)), [""; 0]);
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = priors.list("", after.as_ref(), 2);
        let Some(last) = page.last() else { break };
        after = Some(last.key.clone());
        pages.extend(keys(&page));
    }
    assert_eq!(pages, all);
    let before_all = PriorKey {
        prefix_hash: "a".into(),
        query_hash: "".into(),
        algorithm: "".into(),
    };
    assert_eq!(keys(&priors.list("b", Some(&before_all), 9)), all[4..]);
}

#[test]
fn a_put_replaces_and_a_delete_removes_also_on_the_disk() {
    let fixture = Fixture::new();
    let heads: [&[f32]; 2] = [&[1.0, 2.0], &[1.0, 2.0]];
    let put = |algorithm, query| {
        let upload = PriorUpload {
            algorithm,
            ..upload("p", query)
        };
        fixture
            .priors
            .put_imported(&upload, scores(&heads))
            .unwrap()
    };
    let first = put("a", "").prior.generation;
    let second = put("a", "").prior.generation;
    assert!(second > first);
    assert!(!fixture.priors.is_current_generation(first));
    assert_eq!((fixture.priors.len(), fixture.blob_files()), (1, 1));
    put("b", "");
    put("c", "");
    put("a", "q");
    assert_eq!(fixture.priors.delete("p", "", "c").unwrap(), 1);
    assert_eq!(fixture.priors.delete("p", "", "c").unwrap(), 0);
    assert_eq!(fixture.priors.delete("p", "", "").unwrap(), 2);
    assert_eq!(fixture.priors.delete("unknown", "", "").unwrap(), 0);
    assert!(!fixture.priors.is_current_generation(second));
    assert_eq!(fixture.blob_files(), 1);

    let fixture = fixture.reopen();
    assert_eq!(keys(&fixture.priors.list("", None, 9)), ["p/q/a"]);
    let third = fixture
        .priors
        .put_imported(&upload("p", ""), scores(&heads))
        .unwrap();
    assert!(third.prior.generation > second, "no generation twice");
}

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

/// Readers see a whole prior, old or new, and generations that only grow.
#[test]
fn readers_go_on_while_a_prior_is_replaced() {
    let fixture = Fixture::new();
    let put = |blocks: usize| {
        let row = vec![1.0; blocks];
        fixture
            .priors
            .put_imported(&upload("p", ""), scores(&[&row, &row]))
            .unwrap()
    };
    let first = put(1).prior.generation;
    thread::scope(|scope| {
        let writer = scope.spawn(|| (2..=20).for_each(|blocks| drop(put(blocks))));
        let mut last = first;
        while !writer.is_finished() {
            let prior = fixture.priors.find("p", "", "").unwrap().prior;
            assert!(prior.generation >= last);
            assert_eq!(
                ranked(&prior).len(),
                prior.blocks.total_blocks.unwrap() as usize
            );
            last = prior.generation;
        }
    });
    assert_eq!(
        fixture
            .priors
            .find("p", "", "")
            .unwrap()
            .prior
            .blocks
            .total_blocks,
        Some(20)
    );
    assert_eq!((fixture.priors.len(), fixture.blob_files()), (1, 1));
}

//! Priors from put to a restart, on a store of their own.

mod damage;

use std::path::Path;
use std::thread;

use kvatlas_kernels::{Scores, pool_scalar, rank_scalar};
use tempfile::TempDir;

use super::super::policy::Policy;
use super::super::prior::PerHead;
use super::super::resolve::resolve;
use super::*;

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

/// Files as torch writes them, from bytes to blocks: the golden lists of 258 blocks.
#[test]
fn files_of_torch_answer_with_their_own_lists() {
    let fixture = Fixture::new();
    let blocks = |bytes: &[u8], k| {
        let upload = PriorUpload {
            bytes,
            algorithm: "",
            ..upload("p", "")
        };
        let prior = fixture.priors.put(&upload).unwrap().prior;
        assert_eq!(prior.file_bytes, bytes.len() as u64);
        let resolved = resolve(&Policy::TopK, k, 0, Some(&prior.blocks)).unwrap();
        (resolved.blocks, resolved.total_blocks)
    };
    let listed: &[u8] = include_bytes!("../../../tests/data/pt/perk.pt");
    assert_eq!(blocks(listed, 4), (vec![10, 102, 174, 242], 258));
    let eight = vec![10, 57, 77, 102, 159, 174, 221, 246];
    assert_eq!(blocks(listed, 8), (eight, 258));
    let legacy: &[u8] = include_bytes!("../../../tests/data/pt/legacy_list.pt");
    assert_eq!(blocks(legacy, 4), (vec![10, 14, 24, 31], 258));

    let scored: &[u8] = include_bytes!("../../../tests/data/pt/aff_float32.pt");
    let affinities = import(scored, None).unwrap().affinities.unwrap();
    let pooled = pool_scalar(&affinities.scores, 128, Pooling::Mean);
    let mut best = rank_scalar(&pooled)[..16].to_vec();
    best.sort_unstable();
    assert_eq!(blocks(scored, 16), (best, 128));
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

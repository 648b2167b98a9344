//! Whole answers, from the request's fields to blocks, provenance and reason.

use super::super::online::stored_instead;
use super::super::priors::tests::{Fixture, lists, scores, upload};
use super::*;

const PRIOR: Provenance = Provenance::Prior;
const POLICY_ONLY: Provenance = Provenance::PolicyOnly;

/// Scores under "p" and, with two heads, under "p" and the query "q"; lists under "listed".
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    let first = [9.0, 1.0, 8.0, 2.0, 3.0, 0.0];
    let second = [9.0, 9.0, 1.0, 1.0, 1.0, 1.0];
    for (prefix_hash, query_hash, imported) in [
        ("p", "", scores(&[&[1.0, 5.0, 2.0, 4.0, 3.0, 0.0]])),
        ("p", "q", scores(&[&first, &second])),
        (
            "listed",
            "",
            lists(Some(258), &[&[10, 102, 174, 242]], &[10, 31, 14]),
        ),
    ] {
        let upload = upload(prefix_hash, query_hash);
        fixture.priors.put_imported(&upload, imported).unwrap();
    }
    fixture
}

/// Reads "p k=2 policy=recency": a prefix and whatever fields are set.
fn query(text: &str) -> ManifestQuery<'_> {
    let mut words = text.split(' ');
    let mut query = ManifestQuery {
        prefix_hash: words.next().unwrap(),
        ..ManifestQuery::default()
    };
    for (field, value) in words.map(|word| word.split_once('=').unwrap()) {
        match field {
            "query" => query.query_hash = value,
            "k" => query.k = value.parse().unwrap(),
            "policy" => query.policy = value,
            "algorithm" => query.algorithm = value,
            "total" => query.total_blocks = value.parse().unwrap(),
            "fallback" => query.fallback_policy = value,
            _ => panic!("unknown field {field}"),
        }
    }
    query
}

type Answer<'a> = (&'a [u32], Provenance, Option<Reason>);

#[track_caller]
fn check(priors: &Priors, text: &str, (blocks, provenance, reason): Answer<'_>) {
    let manifest = get_manifest(priors, &query(text)).unwrap();
    assert_eq!(manifest.blocks, blocks, "{text}");
    assert_eq!((manifest.provenance, manifest.reason), (provenance, reason));
    assert_eq!(manifest.effective_k as usize, blocks.len());
}

#[track_caller]
fn refused(priors: &Priors, text: &str, says: &str) {
    let error = get_manifest(priors, &query(text)).unwrap_err().to_string();
    assert!(error.contains(says), "{text}: {error}");
}

#[test]
fn answers_are_the_same_after_a_restart() {
    let ask_everything = |priors: &Priors| {
        for (text, answer) in [
            ("p k=2", (&[1, 3][..], PRIOR, None)),
            ("p k=0 policy=A1R1K1", (&[0, 1, 5], PRIOR, None)),
            ("p k=2 query=q", (&[0, 1], PRIOR, None)),
            (
                "p k=2 query=x",
                (&[1, 3], PRIOR, Some(Reason::QueryUnknown)),
            ),
            ("p k=2 algorithm=kri-d", (&[1, 3], PRIOR, None)),
            ("p k=2 policy=per-head", (&[1, 3], PRIOR, None)),
            (
                "p k=9",
                (&[0, 1, 2, 3, 4, 5], PRIOR, Some(Reason::AllBlocks)),
            ),
            ("listed k=4", (&[10, 102, 174, 242], PRIOR, None)),
            (
                "listed k=9",
                (&[10, 14, 31], PRIOR, Some(Reason::PriorShort)),
            ),
            ("p k=2 policy=recency", (&[4, 5], POLICY_ONLY, None)),
        ] {
            check(priors, text, answer);
        }
        let manifest = get_manifest(priors, &query("p k=2")).unwrap();
        manifest.prior.unwrap().generation
    };
    let fixture = fixture();
    let before = ask_everything(&fixture.priors);
    assert_eq!(ask_everything(&fixture.reopen().priors), before);
}

#[test]
fn of_several_reasons_the_weightier_is_told() {
    let fixture = fixture();
    let online = |text: &str, blocks: &[u32], provenance, reason| {
        let text = format!("{text} algorithm=kri-q query=x");
        let asked = query(&text);
        let manifest = stored_instead(&fixture.priors, &asked, Reason::OnlineUnavailable).unwrap();
        assert_eq!(manifest.blocks, blocks, "{text}");
        assert_eq!(
            (manifest.provenance, manifest.reason),
            (provenance, Some(reason))
        );
    };
    online("p k=2", &[1, 3], PRIOR, Reason::OnlineUnavailable);
    let unavailable = Reason::OnlineUnavailable;
    online("p k=6", &[0, 1, 2, 3, 4, 5], PRIOR, unavailable);
    online("listed k=9", &[10, 14, 31], PRIOR, unavailable);
    let missing = "none k=2 fallback=hybrid total=2";
    online(missing, &[0, 1], POLICY_ONLY, Reason::PriorMissing);
}

#[test]
fn an_unknown_prefix_is_answered_by_position_only_when_asked_to() {
    let fixture = fixture();
    let priors = &fixture.priors;
    for text in [
        "none k=2",
        "none k=2 total=9",
        "none k=2 policy=recency",
        "p k=2 algorithm=kri-a",
    ] {
        refused(priors, text, "no prior is stored under this prefix_hash");
    }
    refused(priors, "p k=2 algorithm=kri-a", "prefix_hash and algorithm");
    let asked = query("none k=2 algorithm=kri-q");
    let online = stored_instead(priors, &asked, Reason::OnlineUnavailable);
    let online = online.unwrap_err().to_string();
    assert!(online.ends_with("this prefix_hash"), "{online}");

    let by_policy = "none k=2 policy=recency total=9";
    check(priors, by_policy, (&[7, 8], POLICY_ONLY, None));
    let manifest = get_manifest(priors, &query(by_policy)).unwrap();
    assert!(manifest.prior.is_none());

    let missing = Some(Reason::PriorMissing);
    for (text, blocks) in [
        ("none k=3 fallback=recency total=9", &[6, 7, 8][..]),
        ("none policy=A1R1K1 fallback=recency total=9", &[6, 7, 8]),
        ("none k=7 fallback=HYBRID:1,1 total=9", &[0, 8]),
    ] {
        check(priors, text, (blocks, POLICY_ONLY, missing));
        let policy = get_manifest(priors, &query(text)).unwrap().policy;
        assert_eq!(policy.needs(), Needs::Positions, "the policy that answered");
    }
    let says = "total_blocks: expected at least 1 with a fallback_policy";
    refused(priors, "none k=3 fallback=recency", says);
    let spread = "none k=3 fallback=anchor-recency-spread:2,2 total=9";
    refused(priors, spread, "k: expected at least 4");
    // A known prefix needs no fallback, whatever the fallback lacks.
    check(priors, "p k=2 fallback=recency", (&[1, 3], PRIOR, None));
}

#[test]
fn positions_of_a_known_prefix_take_its_number_of_blocks() {
    let fixture = fixture();
    let text = "p k=2 policy=recency query=x";
    let reason = Some(Reason::QueryUnknown);
    check(&fixture.priors, text, (&[4, 5], POLICY_ONLY, reason));
    let manifest = get_manifest(&fixture.priors, &query(text)).unwrap();
    assert_eq!(manifest.total_blocks, 6);
    assert_eq!(&*manifest.prior.unwrap().key.query_hash, "");
    let says = "total_blocks: 6 blocks are known";
    refused(&fixture.priors, "p k=2 policy=recency total=9", says);
}

#[test]
fn contradictions_are_refused_whatever_is_stored() {
    let fixture = fixture();
    let priors = &fixture.priors;
    for prefix in ["p", "none"] {
        for (fields, says) in [
            ("k=0", "k: expected 1 to"),
            ("k=2 policy=A1R2", "policy: expected A<a>R<r>K<k>"),
            ("k=2 fallback=A1R2", "fallback_policy: expected A<a>R<r>"),
            ("k=2 fallback=top-k", "needs no prior, got top-k"),
            ("k=2 fallback=A1R1K1", "needs no prior, got A/R/K"),
        ] {
            refused(priors, &format!("{prefix} total=6 {fields}"), says);
        }
    }
    for text in [
        "listed k=0 policy=A1R2K13",
        "listed k=500 policy=segment-quota:0,0,8",
        "listed k=500 policy=per-head",
    ] {
        refused(priors, text, "only a list of blocks");
    }
    let long = "x".repeat(513);
    for (text, says) in [
        (" k=2", "prefix_hash: expected 1 to 512 bytes, got 0"),
        (&*format!("{long} k=2"), "prefix_hash: expected 1 to 512"),
        (
            &*format!("p k=2 query={long}"),
            "query_hash: expected 0 to 512",
        ),
        (
            &*format!("p k=2 algorithm={long}"),
            "algorithm: expected 0 to 128",
        ),
    ] {
        refused(priors, text, says);
    }
}

#[test]
fn heads_are_loaded_by_the_caller_once() {
    let fixture = fixture();
    let per_head = query("p k=2 policy=per-head query=q");
    let answer = get_manifest(&fixture.priors, &per_head).unwrap_err();
    let ManifestError::LoadPerHead(prior) = answer else {
        panic!("{answer}")
    };
    prior.load_per_head(fixture.store()).unwrap();
    let manifest = get_manifest(&fixture.priors, &per_head).unwrap();
    assert_eq!(manifest.blocks, [0, 2, 0, 1]);
    assert_eq!((manifest.heads, manifest.effective_k), (Some((1, 2)), 2));
    assert_eq!((manifest.provenance, manifest.reason), (PRIOR, None));
    let all = query("p k=5 total=5 policy=per-head query=q");
    let manifest = get_manifest(&fixture.priors, &all).unwrap();
    assert_eq!(manifest.blocks, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]);
    assert_eq!(manifest.reason, Some(Reason::AllBlocks));
}

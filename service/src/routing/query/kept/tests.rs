//! Kept queries against a list that is searched from end to end.

use proptest::prelude::*;

use super::*;
use crate::routing::{
    frame::{PairLayout, RopeFrame},
    query::QueryVectors,
};

const QUERIES_MAX: usize = 3;
const BYTES_MAX: usize = 4_000;

/// A query of about `size` bytes.
fn query(size: usize) -> Arc<OnlineQuery> {
    Arc::new(OnlineQuery {
        vectors: Some(QueryVectors {
            rope: RopeFrame::PostRope,
            layout: PairLayout::Half,
            layer_ids: [0].into(),
            heads: 1,
            head_dim: 2,
            group_mean: false,
            values: vec![0.0; size / 4].into(),
        }),
        calibration: None,
    })
}

fn bytes_of(query_hash: &str, query: &OnlineQuery) -> usize {
    query.bytes() + 2 * query_hash.len() + ENTRY_BYTES
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        hash: usize,
        size: usize,
        ttl_ms: u64,
    },
    Find {
        hash: usize,
    },
    Sweep,
    Wait {
        ms: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..5_usize, 0..2_500_usize, 1..20_u64)
            .prop_map(|(hash, size, ttl_ms)| Step::Put { hash, size, ttl_ms }),
        4 => (0..5_usize).prop_map(|hash| Step::Find { hash }),
        1 => Just(Step::Sweep),
        3 => (1..10_u64).prop_map(|ms| Step::Wait { ms }),
    ]
}

/// What is kept, in no order: hash, query, deadline.
#[derive(Default)]
struct Model(Vec<(String, Arc<OnlineQuery>, u64)>);

impl Model {
    fn sweep(&mut self, now_ms: u64) {
        self.0.retain(|(.., deadline_ms)| now_ms < *deadline_ms);
    }

    fn bytes(&self) -> usize {
        let bytes = self.0.iter().map(|(hash, query, _)| bytes_of(hash, query));
        bytes.sum()
    }

    /// Whether there was room.
    fn put(&mut self, hash: &str, query: &Arc<OnlineQuery>, deadline_ms: u64) -> bool {
        let before = self.0.clone();
        self.0.retain(|(other, ..)| other != hash);
        self.0
            .push((hash.to_owned(), Arc::clone(query), deadline_ms));
        let fits = self.0.len() <= QUERIES_MAX && self.bytes() <= BYTES_MAX;
        if !fits {
            self.0 = before;
        }
        fits
    }
}

proptest! {
    #[test]
    fn kept_queries_are_those_of_the_list(steps in prop::collection::vec(step(), 1..60)) {
        let queries = Queries::new(QUERIES_MAX, BYTES_MAX);
        let mut model = Model::default();
        let mut now_ms = 1_000;
        for step in steps {
            match step {
                Step::Put { hash, size, ttl_ms } => {
                    let (hash, query) = ("q".repeat(hash + 1), query(size));
                    model.sweep(now_ms);
                    let fits = model.put(&hash, &query, now_ms + ttl_ms);
                    let put = queries.put(&hash, query, now_ms, now_ms + ttl_ms);
                    prop_assert_eq!(put.is_ok(), fits, "{:?}", put);
                }
                Step::Find { hash } => {
                    let hash = "q".repeat(hash + 1);
                    let found = queries.find(&hash, now_ms);
                    let expected = model.0.iter().find(|(other, _, deadline_ms)| {
                        *other == hash && now_ms < *deadline_ms
                    });
                    let same = match (&found, expected) {
                        (Some(found), Some((_, expected, _))) => Arc::ptr_eq(found, expected),
                        (None, None) => true,
                        (Some(_), None) | (None, Some(_)) => false,
                    };
                    prop_assert!(same, "{}", hash);
                }
                Step::Sweep => {
                    model.sweep(now_ms);
                    queries.sweep(now_ms);
                }
                Step::Wait { ms } => now_ms += ms,
            }
            let counts = queries.counts();
            prop_assert_eq!((counts.queries, counts.bytes), (model.0.len(), model.bytes()));
        }
    }
}

#[test]
fn a_full_house_says_which_limit_it_was() {
    let queries = Queries::new(1, 2_000);
    assert_eq!(queries.put("a", query(100), 0, 9), Ok(()));
    let refused = queries.put("b", query(100), 0, 9).unwrap_err();
    assert_eq!(refused.to_string(), "1 queries are kept, no more are taken");
    let refused = queries.put("a", query(4_000), 0, 9).unwrap_err();
    assert!(matches!(
        refused,
        QueriesFull::Bytes {
            bytes_max: 2_000,
            ..
        }
    ));
    // What was there stays, until its time.
    assert!(queries.find("a", 8).is_some());
    assert!(queries.find("a", 9).is_none());
    assert_eq!(queries.put("b", query(100), 9, 10), Ok(()));
    assert_eq!(queries.counts().queries, 1);
}

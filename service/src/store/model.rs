//! The store beside a map, through random steps.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::tests::{check_donors, delete, open, put, spilled_files};
use super::*;

#[derive(Clone, Debug)]
enum Step {
    Put { key: u8, length: usize },
    Delete { key: u8 },
    Replace { old: u8, new: u8, length: usize },
    Commit,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let length = || prop_oneof![4 => 0..200_usize, 1 => Just(INLINE_BYTES_MAX + 9)];
    prop_oneof![
        6 => (0..24_u8, length()).prop_map(|(key, length)| Step::Put { key, length }),
        3 => (0..24_u8).prop_map(|key| Step::Delete { key }),
        2 => (0..24_u8, 0..24_u8, length())
            .prop_map(|(old, new, length)| Step::Replace { old, new, length }),
        2 => Just(Step::Commit),
        1 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 16,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn the_store_does_what_a_map_does(steps in prop::collection::vec(step(), 1..50)) {
        let folder = tempfile::tempdir().unwrap();
        let mut store = open(&folder);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (fill, step) in (0..).zip(steps) {
            match step {
                Step::Put { key, length } => {
                    put(&store, &[key], &vec![fill; length]);
                    model.insert(vec![key], vec![fill; length]);
                }
                Step::Delete { key } => {
                    delete(&store, &[key]);
                    model.remove(&vec![key]);
                }
                Step::Replace { old, new, length } => {
                    let payload = vec![fill; length];
                    let (table, payload) = (Table::Donors, payload.as_slice());
                    let delete = Change::Delete { table, key: &[old] };
                    store.write(&[delete, Change::Put { table, key: &[new], payload }]).unwrap();
                    model.remove(&vec![old]);
                    model.insert(vec![new], payload.to_vec());
                }
                Step::Commit => store.commit().unwrap(),
                Step::Reopen => {
                    store.commit().unwrap();
                    drop(store);
                    store = open(&folder);
                }
            }
            let expected: Vec<(&[u8], &[u8])> =
                model.iter().map(|(key, payload)| (key.as_slice(), payload.as_slice())).collect();
            assert_eq!(check_donors(&store, &expected), 0);
        }
        store.commit().unwrap();
        let is_long = |payload: &&Vec<u8>| payload.len() > INLINE_BYTES_MAX;
        prop_assert_eq!(spilled_files(&folder), model.values().filter(is_long).count());
    }
}

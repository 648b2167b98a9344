//! The store from the outside, damage included.

use super::*;

fn open(folder: &tempfile::TempDir) -> Store {
    Store::open(folder.path()).unwrap().0
}

fn put(store: &Store, key: &[u8], payload: &[u8]) {
    store
        .write(&[Change::Put {
            table: Table::Donors,
            key,
            payload,
        }])
        .unwrap();
}

fn delete(store: &Store, key: &[u8]) {
    store
        .write(&[Change::Delete {
            table: Table::Donors,
            key,
        }])
        .unwrap();
}

/// Checks the donors as a scan and as reads see them; returns what the scan skipped.
fn check_donors(store: &Store, expected: &[(&[u8], &[u8])]) -> u64 {
    let mut found = Vec::new();
    let report = store
        .scan(Table::Donors, &mut |key, payload| {
            found.push((key.to_vec(), payload.to_vec()));
        })
        .unwrap();
    let expected: Vec<_> = expected
        .iter()
        .map(|(k, p)| (k.to_vec(), p.to_vec()))
        .collect();
    assert!(
        found == expected,
        "{} records, expected {}",
        found.len(),
        expected.len()
    );
    assert_eq!(report.visited, expected.len() as u64);
    for (key, payload) in &expected {
        assert!(store.read(Table::Donors, key).unwrap().as_ref() == Some(payload));
    }
    report.damaged
}

fn spilled_files(folder: &tempfile::TempDir) -> usize {
    std::fs::read_dir(folder.path().join(SPILLED_FOLDER))
        .unwrap()
        .count()
}

fn long(fill: u8) -> Vec<u8> {
    vec![fill; INLINE_BYTES_MAX + 1]
}

#[test]
fn records_survive_a_restart_whatever_their_length() {
    let folder = tempfile::tempdir().unwrap();
    let longest_inline = vec![1; INLINE_BYTES_MAX];
    let spilled = long(2);
    let records: [(&[u8], &[u8]); 4] = [
        (b"", b"empty key"),
        (b"a", b""),
        (b"b", &longest_inline),
        (b"c", &spilled),
    ];
    let store = open(&folder);
    for (key, payload) in records {
        put(&store, key, payload);
    }
    assert_eq!(check_donors(&store, &records), 0);
    store.commit().unwrap();
    drop(store);
    let store = open(&folder);
    assert_eq!(check_donors(&store, &records), 0);
    assert_eq!(spilled_files(&folder), 1);
    for table in [Table::Meta, Table::Priors, Table::Namespaces] {
        assert_eq!(store.read(table, b"a").unwrap(), None);
    }
}

#[test]
fn a_spilled_file_goes_once_its_successor_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    put(&store, b"a", &long(1));
    store.commit().unwrap();
    put(&store, b"a", &long(2));
    assert_eq!(
        spilled_files(&folder),
        2,
        "the old file must outlive a crash before the commit"
    );
    store.commit().unwrap();
    assert_eq!(spilled_files(&folder), 1);
    check_donors(&store, &[(b"a", &long(2))]);
    put(&store, b"a", b"short");
    store.commit().unwrap();
    assert_eq!(spilled_files(&folder), 0);
    put(&store, b"a", &long(3));
    delete(&store, b"a");
    store.commit().unwrap();
    assert_eq!(spilled_files(&folder), 0);
    check_donors(&store, &[]);
}

#[test]
fn epoch_and_sequence_only_rise() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = 0;
    for epoch in 1..=3 {
        let (store, report) = Store::open(folder.path()).unwrap();
        assert_eq!((store.epoch(), report.epoch), (epoch, epoch));
        for _ in 0..3 {
            let next = store.next_sequence().unwrap();
            assert!(next > last, "{next} after {last}");
            last = next;
        }
    }
}

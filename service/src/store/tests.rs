//! The store from the outside, damage included.

use super::*;

pub(super) fn open(folder: &tempfile::TempDir) -> Store {
    Store::open(folder.path()).unwrap().0
}

pub(super) fn put(store: &Store, key: &[u8], payload: &[u8]) {
    store
        .write(&[Change::Put {
            table: Table::Donors,
            key,
            payload,
        }])
        .unwrap();
}

pub(super) fn delete(store: &Store, key: &[u8]) {
    store
        .write(&[Change::Delete {
            table: Table::Donors,
            key,
        }])
        .unwrap();
}

/// Checks the donors as a scan and as reads see them; returns what the scan skipped.
pub(super) fn check_donors(store: &Store, expected: &[(&[u8], &[u8])]) -> u64 {
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
    assert_eq!((report.visited, report.missing), (expected.len() as u64, 0));
    let listed = store.records.scan_prefix([SPILLED_BYTE]).count();
    let is_long = |(_, payload): &&(Vec<u8>, Vec<u8>)| payload.len() > INLINE_BYTES_MAX;
    if report.damaged == 0 {
        assert_eq!(listed, expected.iter().filter(is_long).count());
    }
    for (key, payload) in &expected {
        assert!(store.read(Table::Donors, key).unwrap().as_ref() == Some(payload));
    }
    report.damaged
}

pub(super) fn spilled_files(folder: &tempfile::TempDir) -> usize {
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

#[test]
fn a_batch_keeps_the_last_of_two_changes_and_reaches_every_table() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let first = long(1);
    store
        .write(&[
            Change::Put {
                table: Table::Meta,
                key: b"a",
                payload: b"meta",
            },
            Change::Put {
                table: Table::Donors,
                key: b"a",
                payload: &first,
            },
            Change::Put {
                table: Table::Donors,
                key: b"a",
                payload: b"second",
            },
            Change::Put {
                table: Table::Priors,
                key: b"b",
                payload: b"prior",
            },
            Change::Delete {
                table: Table::Priors,
                key: b"b",
            },
        ])
        .unwrap();
    check_donors(&store, &[(b"a", b"second")]);
    assert_eq!(store.read(Table::Meta, b"a").unwrap().unwrap(), b"meta");
    assert_eq!(store.read(Table::Priors, b"b").unwrap(), None);
    assert_eq!(spilled_files(&folder), 0);
}

#[test]
fn what_is_over_a_limit_is_refused_whole() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let key = [0; KEY_BYTES_MAX + 1];
    let fine = Change::Put {
        table: Table::Donors,
        key: b"a",
        payload: b"",
    };
    let refused = store.write(&[
        fine,
        Change::Delete {
            table: Table::Donors,
            key: &key,
        },
    ]);
    assert!(matches!(
        refused,
        Err(StoreError::TooLarge { limit: 512, .. })
    ));
    let refused = store.write(&vec![fine; CHANGES_MAX + 1]);
    assert!(matches!(
        refused,
        Err(StoreError::TooLarge { limit: 16_384, .. })
    ));
    check_donors(&store, &[]);
    store
        .write(&[Change::Put {
            table: Table::Donors,
            key: &key[1..],
            payload: b"",
        }])
        .unwrap();
}

/// Three records, of which `alter` damages the middle one.
#[track_caller]
fn check_damage(payload: &[u8], alter: impl FnOnce(&Store, &Path), expected: Damage) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    put(&store, b"a", b"first");
    put(&store, b"b", payload);
    put(&store, b"c", &long(3));
    store.commit().unwrap();
    alter(&store, &folder.path().join(SPILLED_FOLDER));
    let (store, report) = {
        store.commit().unwrap();
        drop(store);
        Store::open(folder.path()).unwrap()
    };
    assert_eq!((report.damaged, report.files_removed), (0, 0));
    let long = long(3);
    let rest: [(&[u8], &[u8]); 2] = [(b"a", b"first"), (b"c", &long)];
    assert_eq!(check_donors(&store, &rest), 1);
    match store.read(Table::Donors, b"b") {
        Err(StoreError::Record { damage, .. }) => assert_eq!(damage, expected),
        other => panic!("{other:?}"),
    }
    assert_eq!(
        check_donors(&store, &rest),
        1,
        "a damaged record is kept in place"
    );
    put(&store, b"b", b"again");
    store.commit().unwrap();
    let rest: [(&[u8], &[u8]); 3] = [(b"a", b"first"), (b"b", b"again"), (b"c", &long)];
    assert_eq!(check_donors(&store, &rest), 0);
    assert_eq!(spilled_files(&folder), 1);
}

fn alter_record(store: &Store, key: &[u8], alter: impl FnOnce(&mut Vec<u8>)) {
    let key = whole_key(Table::Donors as u8, key);
    let mut record = store.records.get(&key).unwrap().unwrap().to_vec();
    alter(&mut record);
    store.records.insert(key, record).unwrap();
}

/// The file of the only spilled payload of this first byte.
fn alter_spilled(folder: &Path, first: u8, alter: impl FnOnce(&Path, Vec<u8>)) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        if bytes[0] == first {
            return alter(&path, bytes);
        }
    }
    panic!("no such file");
}

#[test]
fn a_flipped_bit_in_a_record_is_found_and_the_rest_stays_up() {
    let flip = |store: &Store, _: &Path| alter_record(store, b"b", |record| record[12] ^= 4);
    check_damage(b"second", flip, Damage::Checksum);
    let cut = |store: &Store, _: &Path| alter_record(store, b"b", |record| record.truncate(9));
    check_damage(b"second", cut, Damage::Length);
}

#[test]
fn a_record_under_the_key_of_another_is_found() {
    let swap = |store: &Store, _: &Path| {
        let first = whole_key(Table::Donors as u8, b"a");
        let first = store.records.get(first).unwrap().unwrap();
        alter_record(store, b"b", |record| *record = first.to_vec());
    };
    check_damage(b"first", swap, Damage::Checksum);
}

#[test]
fn a_record_of_a_newer_format_is_skipped_and_kept() {
    let raise = |store: &Store, _: &Path| alter_record(store, b"b", |record| record[0] = 200);
    check_damage(b"second", raise, Damage::Newer);
}

#[test]
fn damage_to_a_spilled_file_is_found_and_the_rest_stays_up() {
    let payload = long(2);
    let flip = |_: &Store, folder: &Path| {
        alter_spilled(folder, 2, |path, mut bytes| {
            bytes[60_000] ^= 1;
            std::fs::write(path, bytes).unwrap();
        });
    };
    check_damage(&payload, flip, Damage::Checksum);
    let cut = |_: &Store, folder: &Path| {
        alter_spilled(folder, 2, |path, bytes| {
            std::fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        });
    };
    check_damage(&payload, cut, Damage::Length);
    let remove = |_: &Store, folder: &Path| {
        alter_spilled(folder, 2, |path, _| std::fs::remove_file(path).unwrap());
    };
    check_damage(&payload, remove, Damage::Missing);
}

#[track_caller]
fn check_blob_damage(bytes: &[u8], alter: impl FnOnce(&Path), expected: Damage) {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let other = store.put_blob(b"other").unwrap();
    let blob = store.put_blob(bytes).unwrap();
    assert_eq!(BlobRef::from_bytes(&blob.to_bytes()), Some(blob));
    assert_eq!(&*store.map_blob(&blob).unwrap(), bytes);
    alter(&folder.path().join(BLOBS_FOLDER).join(blob.name.to_string()));
    match store.map_blob(&blob) {
        Err(StoreError::Blob { name, damage }) => {
            assert_eq!((name, damage), (blob.name, expected));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(&*store.map_blob(&other).unwrap(), b"other");
}

#[test]
fn damage_to_a_blob_is_found() {
    let flip = |path: &Path| std::fs::write(path, b"eight bytes").unwrap();
    check_blob_damage(b"Eight bytes", flip, Damage::Checksum);
    let cut = |path: &Path| std::fs::write(path, b"").unwrap();
    check_blob_damage(b"x", cut, Damage::Length);
    let lengthen = |path: &Path| std::fs::write(path, b"x").unwrap();
    check_blob_damage(b"", lengthen, Damage::Length);
    check_blob_damage(
        b"x",
        |path| std::fs::remove_file(path).unwrap(),
        Damage::Missing,
    );
}

#[test]
fn blobs_survive_a_restart_and_removal_ends_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let kept = store.put_blob(&long(1)).unwrap();
    let removed = store.put_blob(&long(2)).unwrap();
    let unreferenced = store.put_blob(&long(3)).unwrap();
    let mapped = store.map_blob(&removed).unwrap();
    store.remove_blob(&removed).unwrap();
    store.remove_blob(&removed).unwrap();
    assert!(*mapped == *long(2), "a map outlives its file");
    put(&store, b"spilled", &long(4));
    store.commit().unwrap();
    drop(store);
    std::fs::write(folder.path().join(BLOBS_FOLDER).join("1.new"), b"half").unwrap();
    let store = open(&folder);
    assert_eq!(
        store
            .remove_unreferenced_blobs(&HashSet::from([kept.name]))
            .unwrap(),
        2
    );
    assert!(*store.map_blob(&kept).unwrap() == *long(1));
    assert!(store.map_blob(&unreferenced).is_err());
    check_donors(&store, &[(b"spilled", &long(4))]);
}

#[test]
fn spilled_files_that_a_crash_left_go_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    put(&store, b"a", &long(1));
    store.commit().unwrap();
    drop(store);
    for name in ["0000000000000001", "0000010000000000.new"] {
        std::fs::write(folder.path().join(SPILLED_FOLDER).join(name), b"left").unwrap();
    }
    let (store, report) = Store::open(folder.path()).unwrap();
    assert_eq!(
        report,
        OpenReport {
            epoch: 2,
            files_removed: 2,
            damaged: 0,
            writes_lost: 0
        }
    );
    check_donors(&store, &[(b"a", &long(1))]);
}

#[test]
fn a_record_that_the_log_lost_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    put(&store, b"a", b"first");
    put(&store, b"b", b"second");
    store
        .records
        .remove(whole_key(Table::Donors as u8, b"a"))
        .unwrap();
    store.commit().unwrap();
    drop(store);
    let store = open(&folder);
    let report = store.scan(Table::Donors, &mut |_, _| {}).unwrap();
    assert_eq!(
        report,
        ScanReport {
            visited: 1,
            damaged: 0,
            missing: 1
        }
    );
    assert_eq!(
        store.scan(Table::Priors, &mut |_, _| {}).unwrap(),
        ScanReport::default()
    );
}

/// sled's log put back to an earlier state stands for one that it cut at some damage.
#[test]
fn writes_that_the_log_lost_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    put(&store, b"a", b"first");
    store.commit().unwrap();
    drop(store);
    let log = folder.path().join(RECORDS_FOLDER);
    let earlier = folder.path().join("earlier");
    std::fs::rename(&log, &earlier).unwrap();
    std::fs::create_dir(&log).unwrap();
    for entry in std::fs::read_dir(&earlier).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), log.join(entry.file_name())).unwrap();
        }
    }
    let (store, report) = Store::open(folder.path()).unwrap();
    assert_eq!(report.writes_lost, 0);
    put(&store, b"b", b"second");
    delete(&store, b"a");
    store.commit().unwrap();
    put(
        &store,
        b"c",
        b"never committed, but flushed when it is closed",
    );
    drop(store);
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::rename(&earlier, &log).unwrap();
    let (store, report) = Store::open(folder.path()).unwrap();
    assert_eq!(report.writes_lost, 2);
    check_donors(&store, &[(b"a", b"first")]);
    drop(store);
    assert_eq!(
        Store::open(folder.path()).unwrap().1.writes_lost,
        0,
        "said once"
    );
}

#[test]
fn nothing_is_swept_while_the_list_of_spilled_files_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    put(&store, b"a", &long(1));
    let list_key = spilled_key(&whole_key(Table::Donors as u8, b"a"));
    store.records.insert(list_key, b"?").unwrap();
    store.commit().unwrap();
    drop(store);
    let (store, report) = Store::open(folder.path()).unwrap();
    assert_eq!((report.files_removed, report.damaged), (0, 1));
    check_donors(&store, &[(b"a", &long(1))]);
}

#[test]
fn a_folder_of_a_newer_format_is_refused_and_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(&folder));
    let path = folder.path().join("header");
    let mut header = std::fs::read(&path).unwrap();
    header[8] += 1;
    std::fs::write(&path, &header).unwrap();
    let error = Store::open(folder.path()).unwrap_err();
    assert!(
        matches!(
            error,
            StoreError::NewerFormat {
                found: 3,
                supported: 2,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("written in format 3, this version reads up to 2")
    );
    assert_eq!(std::fs::read(&path).unwrap(), header);
}

#[test]
fn a_folder_without_its_restart_counter_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(&folder));
    let path = folder.path().join("header");
    std::fs::write(&path, b"kvatlas").unwrap();
    assert!(matches!(
        Store::open(folder.path()),
        Err(StoreError::Header { .. })
    ));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(
        Store::open(folder.path()),
        Err(StoreError::Header { .. })
    ));
}

#[test]
fn a_folder_in_use_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| Store::open(folder.path()).map(|(store, _)| store.epoch()));
        put(&store, b"a", b"first");
        store.commit().unwrap();
        drop(store);
        assert_eq!(second.join().unwrap().unwrap(), 2);
    });
    check_donors(&open(&folder), &[(b"a", b"first")]);
}

#[test]
fn a_folder_that_stays_in_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = || Store::open_within(folder.path(), 40).map(|(store, _)| store.epoch());
    let store = open(&folder);
    assert!(matches!(
        refused(),
        Err(StoreError::InUse { waited_ms: 40, .. })
    ));
    drop(store);
    // sled has a lock of its own, and tells of it in words only.
    let log = File::open(folder.path().join(RECORDS_FOLDER).join("db")).unwrap();
    log.lock().unwrap();
    assert!(matches!(
        refused(),
        Err(StoreError::InUse { waited_ms: 40, .. })
    ));
    log.unlock().unwrap();
    assert!(refused().is_ok());
}

#[test]
fn a_failed_sync_ends_all_commits() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = open(&folder);
    let disk = std::mem::replace(&mut store.records_file, File::open("/dev/null").unwrap());
    put(&store, b"a", b"first");
    assert!(matches!(
        store.commit(),
        Err(StoreError::Io { action: "sync", .. })
    ));
    store.records_file = disk;
    assert!(matches!(store.commit(), Err(StoreError::SyncFailed { .. })));
}

/// sled would write a longer page to a file of its own, which nobody syncs.
#[test]
fn pages_of_the_longest_inline_records_stay_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let payload = vec![7; INLINE_BYTES_MAX];
    for round in 0..3_u8 {
        for key in 0..120_u8 {
            put(&store, &[key.wrapping_mul(37), round % 2], &payload);
        }
        store.commit().unwrap();
    }
    let sled_blobs = folder.path().join(RECORDS_FOLDER).join("blobs");
    assert_eq!(std::fs::read_dir(sled_blobs).unwrap().count(), 0);
}

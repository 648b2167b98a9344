//! Blobs and records that were altered behind the server's back.

use super::*;
use crate::store::{Change, Damage, Table as StoreTable};

/// A summary with every table under "p", whole ones beside it.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    let frame = frame(3, 16, 16);
    for prefix in ["p", "whole"] {
        fixture
            .put(prefix, &frame, &fixture_file("pt/cart_list.pt"))
            .unwrap();
    }
    fixture.put_prior("p", 4).unwrap();
    fixture.reopen()
}

#[expect(clippy::ptr_arg, reason = "one type for all harms")]
fn flip(bytes: &mut Vec<u8>) {
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
}

fn cut(bytes: &mut Vec<u8>) {
    bytes.pop();
}

/// A way to alter a file; `None` removes it.
type Harm = Option<fn(&mut Vec<u8>)>;

#[test]
fn an_altered_table_is_found_and_refused_and_the_rest_stays_up() {
    let mut fixture = fixture();
    let tables = fixture.summaries.find("p").unwrap().blobs.all().count();
    assert_eq!(tables, 8, "every table is there");
    for table in 0..tables {
        let harms: [(Harm, Damage); 3] = [
            (Some(flip), Damage::Checksum),
            (Some(cut), Damage::Length),
            (None, Damage::Missing),
        ];
        for (harm, damage) in harms {
            // Nothing is loaded after a restart.
            fixture = fixture.reopen();
            let found = fixture.summaries.find("p").unwrap();
            let blob = found.blobs.all().nth(table).unwrap().name.to_string();
            let path = fixture.folder.path().join("blobs").join(blob);
            match harm {
                Some(harm) => {
                    let mut bytes = std::fs::read(&path).unwrap();
                    harm(&mut bytes);
                    std::fs::write(&path, bytes).unwrap();
                }
                None => std::fs::remove_file(&path).unwrap(),
            }
            for _ in 0..2 {
                let error = found.load(&fixture.store).unwrap_err();
                let SummaryError::Damaged { damage: found, .. } = &error else {
                    panic!("{error}");
                };
                assert_eq!(*found, damage, "table {table}");
                assert!(error.to_string().contains("put it again"), "{error}");
            }
            assert!(found.tables().is_none());
            let whole = fixture.summaries.find("whole").unwrap();
            whole.load(&fixture.store).unwrap();
            assert!(fixture.priors.find("p", "", "").is_some());
            // Putting it again helps.
            let file = fixture_file("pt/cart_list.pt");
            let put = fixture.put("p", &frame(3, 16, 16), &file).unwrap();
            assert!(put.summary.tables().is_some());
        }
    }
}

#[test]
fn a_damaged_record_is_counted_and_left_out() {
    let fixture = fixture();
    for payload in [&b"no protobuf \xff"[..], b""] {
        let change = Change::Put {
            table: StoreTable::KeySummaries,
            key: b"p",
            payload,
        };
        fixture.store.write(&[change]).unwrap();
    }
    fixture.store.commit().unwrap();
    let fixture = fixture.reopen();
    assert_eq!((fixture.report.loaded, fixture.report.damaged), (1, 1));
    assert!(fixture.summaries.find("p").is_none());
    assert!(fixture.summaries.find("whole").is_some());
}

/// A record is not believed where it contradicts itself.
#[test]
fn a_record_under_another_key_or_of_other_lengths_is_damaged() {
    let fixture = fixture();
    let payload = fixture
        .store
        .read(StoreTable::KeySummaries, b"p")
        .unwrap()
        .unwrap();
    assert!(record::decode(b"p", &payload).is_some());
    assert!(record::decode(b"q", &payload).is_none());
    let whole = record::decode(b"p", &payload).unwrap();
    let with = |change: &dyn Fn(&mut KeySummary)| {
        let mut summary = record::decode(b"p", &payload).unwrap();
        change(&mut summary);
        record::decode(b"p", &record::encode(&summary))
    };
    assert_eq!(with(&|_| {}).unwrap().shape, whole.shape);
    assert!(with(&|summary| summary.shape.blocks += 1).is_none());
    assert!(with(&|summary| summary.shape.kv_heads = 0).is_none());
    assert!(with(&|summary| summary.shape.head_dim = 17).is_none());
    assert!(with(&|summary| summary.shape.frame.inv_freq = [1.0].into()).is_none());
    assert!(with(&|summary| summary.shape.frame.layer_ids = [].into()).is_none());
    assert!(with(&|summary| summary.blobs.means.length += 2).is_none());
    let screen_cut = |summary: &mut KeySummary| {
        summary.blobs.screen.as_mut().unwrap().parameters.length -= 4;
    };
    assert!(with(&screen_cut).is_none());
}

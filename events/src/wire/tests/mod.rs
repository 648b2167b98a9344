//! What payloads are decoded to, seen from outside.

mod random;
mod value;

use proptest::prelude::*;

use super::{
    BATCH_EVENTS_MAX, DecodeError, EVENT_TOKENS_MAX, Form, PAYLOAD_BYTES_MAX, decode, encode,
};
use crate::event::{Adapter, Batch, EngineHash, Event, Extra, Kind, Medium, Rejected, Stored};
use random::batches;
use value::{Headers, Value, list, map};

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = decode(&bytes);
    }

    #[test]
    fn what_is_encoded_is_decoded(batch in batches()) {
        let payload = encode(&batch, Form::Map);
        prop_assert_eq!(&decode(&payload).unwrap(), &batch);
    }

    #[test]
    fn both_forms_say_the_same(mut batch in batches()) {
        batch.events.iter_mut().for_each(without_own_salt);
        let payload = encode(&batch, Form::Positional);
        prop_assert_eq!(&decode(&payload).unwrap(), &batch);
    }

    #[test]
    fn a_part_of_a_payload_is_refused(batch in batches(), cut in any::<prop::sample::Index>()) {
        for form in [Form::Map, Form::Positional] {
            let payload = encode(&batch, form);
            let error = decode(&payload[..cut.index(payload.len())]).unwrap_err();
            let in_place = matches!(error, DecodeError::Truncated { at } if at <= payload.len());
            prop_assert!(in_place, "{error}");
        }
    }

    #[test]
    fn a_changed_byte_does_no_harm(
        batch in batches(),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut payload = encode(&batch, Form::Map);
        let place = place.index(payload.len());
        payload[place] = byte;
        if let Ok(decoded) = decode(&payload) {
            let Rejected {
                unknown, malformed, ..
            } = decoded.rejected;
            let rejected = usize::try_from(unknown + malformed).unwrap();
            prop_assert!(decoded.events.len() + rejected <= payload.len());
        }
    }
}

fn without_own_salt(event: &mut Event<'_>) {
    if let Event::Stored(stored) = event {
        stored.salt = None;
    }
}

/// Decodes a batch of these events, written with the shortest and with the longest headers.
fn check(events: &[Value], look: impl Fn(&Batch<'_>)) {
    for headers in [Headers::Shortest, Headers::Longest] {
        let batch = list([
            Value::Float(1.5),
            Value::List(events.to_vec()),
            3_u32.into(),
        ]);
        look(&decode(&value::encode(&batch, headers)).unwrap());
    }
}

fn stored(change: impl FnOnce(&mut Vec<(Value, Value)>)) -> Value {
    let Value::Map(mut fields) = map([
        ("type", "BlockStored".into()),
        ("block_hashes", list([11_u64, 12])),
        ("parent_block_hash", Value::Nil),
        ("token_ids", list([1_u32, 2, 3, 4])),
        ("block_size", 2_u32.into()),
    ]) else {
        unreachable!()
    };
    change(&mut fields);
    Value::Map(fields)
}

fn with(changes: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    stored(|fields| {
        for (name, value) in changes {
            fields.retain(|(key, _)| *key != name.into());
            fields.push((name.into(), value));
        }
    })
}

fn cleared() -> Value {
    map([("type", "AllBlocksCleared".into())])
}

/// The event that these changes make is left out, and nothing else is.
fn check_rejected(event: &Value, rejected: Rejected) {
    check(&[cleared(), event.clone(), cleared()], |batch| {
        assert_eq!(batch.events, [Event::Cleared, Event::Cleared], "{event:?}");
        assert_eq!(batch.rejected, rejected, "{event:?}");
    });
}

fn check_stored(event: Value, look: impl Fn(&Stored<'_>)) {
    check(&[event], |batch| {
        assert_eq!(batch.rejected, Rejected::default());
        let [Event::Stored(stored)] = &batch.events[..] else {
            panic!("{batch:?}")
        };
        look(stored);
    });
}

#[test]
fn a_malformed_event_costs_itself_alone() {
    for event in no_events().into_iter().chain(unfit_values()) {
        check_rejected(
            &event,
            Rejected {
                malformed: 1,
                ..Rejected::default()
            },
        );
    }
    let missing = ["block_hashes", "token_ids", "block_size"];
    for name in missing {
        let event = stored(|fields| fields.retain(|(key, _)| *key != name.into()));
        check_rejected(
            &event,
            Rejected {
                malformed: 1,
                ..Rejected::default()
            },
        );
    }
}

#[test]
fn only_what_may_be_a_removal_hides_one_and_only_until_a_clear() {
    let store = stored(|fields| fields.retain(|(key, _)| *key != "token_ids".into()));
    let removal = map([("type", "BlockRemoved".into())]);
    let untyped = map([("to", list([1_u64]))]);
    let unknown = map([("type", "BlockMoved".into())]);
    for (events, hides) in [
        (vec![store, unknown], false),
        (vec![removal.clone()], true),
        (vec![untyped.clone()], true),
        (vec![removal, cleared()], false),
        (vec![cleared(), untyped], true),
    ] {
        check(&events, |batch| {
            assert_eq!(batch.rejected.may_hide_removal, hides, "{events:?}");
        });
    }
}

/// What is no event, or one that lacks something.
fn no_events() -> Vec<Value> {
    vec![
        Value::Nil,
        Value::Integer(7),
        "BlockStored".into(),
        list::<Value>([]),
        map([]),
        list([Value::Integer(1), Value::Integer(2)]),
        list(["BlockStored"]),
        map([("block_hashes", list([1_u64]))]),
        map([("type", Value::Nil)]),
        map([("type", "BlockRemoved".into())]),
        map([
            ("type", "BlockStored".into()),
            ("block_hashes", list([1_u64])),
        ]),
    ]
}

/// Events with one value that cannot be.
fn unfit_values() -> Vec<Value> {
    let pairs = |pairs: [[u32; 2]; 2]| Value::List(pairs.map(list).into());
    vec![
        with([("block_hashes", Value::Nil)]),
        with([("block_hashes", list([11_u64, 11]))]),
        with([("block_hashes", list((0_u64..40).chain([39])))]),
        with([("block_hashes", list(["11"]))]),
        with([("block_hashes", list([Value::Float(11.0)]))]),
        with([("block_hashes", list([Value::Bytes(vec![0; 7])]))]),
        with([("block_hashes", list([Value::Bytes(vec![0; 33])]))]),
        with([("parent_block_hash", Value::Integer(12))]),
        with([("parent_block_hash", Value::Bool(false))]),
        with([("token_ids", Value::Nil)]),
        with([("token_ids", list([Value::Integer(-1)]))]),
        with([("token_ids", list([Value::Integer(1 << 32)]))]),
        with([("token_ids", list([1_u32.into(), list([1_u32, 2])]))]),
        with([("token_ids", list([list([1_u32, 2]), 2_u32.into()]))]),
        with([("token_ids", pairs([[1, 2], [3, 4]]))]),
        with([("token_ids", list([list([1_u32, 2, 3])]))]),
        with([("block_size", Value::Nil)]),
        with([("block_size", Value::Integer(-1))]),
        with([("lora_id", "one".into())]),
        with([("lora_id", Value::Integer(u64::MAX.into()))]),
        with([("lora_name", Value::Integer(1))]),
        with([("medium", Value::Integer(1))]),
        with([("cache_salt", Value::Bytes(vec![1]))]),
        with([("group_idx", Value::Integer(-1))]),
        with([("kv_cache_spec_kind", Value::Integer(1))]),
        with([("extra_keys", list([list(["salt"])]))]),
        with([("extra_keys", list([list([Value::Integer(1)]), Value::Nil]))]),
        with([("extra_keys", list([list([list(["image"])]), Value::Nil]))]),
        with([(
            "extra_keys",
            list([
                list([list::<Value>(["i".into(), 1_u32.into(), Value::Nil])]),
                Value::Nil,
            ]),
        )]),
        with([("lookahead_token_ids", list(["5"]))]),
        with([("lookahead_token_ids", list([list([Value::Integer(-5)])]))]),
    ]
}

#[test]
fn an_unknown_type_is_counted_as_such() {
    let unknown = Rejected {
        unknown: 1,
        ..Rejected::default()
    };
    check_rejected(
        &map([("type", "BlockMoved".into()), ("to", list([1_u64]))]),
        unknown,
    );
    check_rejected(&list(["BlockMoved".into(), Value::Float(1.0)]), unknown);
    check_rejected(&list([""]), unknown);
}

#[test]
fn bad_utf8_is_malformed_only_where_a_name_is_needed() {
    let check = |event: &[u8], malformed: u32| {
        let payload = [b"\x92\x01\x91", event].concat();
        assert_eq!(
            decode(&payload).unwrap().rejected.malformed,
            malformed,
            "{event:x?}"
        );
    };
    check(b"\x93\xacBlockRemoved\x90\xa1\xff", 1);
    check(b"\x94\xacBlockRemoved\x90\xc0\xa1\xff", 1);
    check(b"\x95\xacBlockRemoved\x90\xc0\xc0\xa1\xff", 0);
    check(
        b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x90\xa6medium\xa1\xff",
        1,
    );
    check(
        b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x90\xa6future\xa1\xff",
        0,
    );
    check(
        b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x90\xa1\xff\xa1\xff",
        0,
    );
}

#[test]
fn names_stand_for_media_and_kinds() {
    let medium = |name: &str, medium| {
        check_stored(with([("medium", name.into())]), |stored| {
            assert_eq!(stored.medium, medium);
        });
    };
    medium("GPU", Medium::Device);
    for name in ["CPU", "CPU_PINNED"] {
        medium(name, Medium::Host);
    }
    for name in ["STORAGE", "FS", "OBJ", "DISK", "EXTERNAL", "gpu", ""] {
        medium(name, Medium::Disk);
    }
    check_stored(with([("medium", Value::Nil)]), |stored| {
        assert_eq!(stored.medium, Medium::Device);
    });

    let kind = |name: &str, kind| {
        let event = with([("kv_cache_spec_kind", name.into())]);
        check_stored(event, |stored| assert_eq!(stored.kind, kind, "{name}"));
    };
    for name in ["full_attention", "mla_attention", "sink_full_attention"] {
        kind(name, Kind::Attention);
    }
    for name in [
        "sliding_window",
        "sliding_window_mla",
        "mamba",
        "chunked_local_attention",
        "encoder_only_attention",
        "cross_attention",
    ] {
        kind(name, Kind::Other);
    }
    for name in ["unknown", "Full_attention", ""] {
        kind(name, Kind::Unknown);
    }
    check_stored(stored(|_| ()), |stored| {
        assert_eq!(stored.kind, Kind::Absent);
    });
}

#[test]
fn an_adapter_goes_by_its_name_before_its_number() {
    let check = |name: Value, id: Value, adapter: Option<Adapter<'_>>| {
        let event = with([("lora_name", name), ("lora_id", id)]);
        check_stored(event, |stored| assert_eq!(stored.adapter, adapter));
    };
    check("a".into(), Value::Integer(7), Some(Adapter::Name("a")));
    check(Value::Nil, Value::Integer(7), Some(Adapter::Id(7)));
    check(Value::Nil, Value::Nil, None);
}

#[test]
fn what_is_not_known_is_passed_over() {
    let deep = (0..1000).fold(Value::Nil, |inner, _| list([inner]));
    let mut event = with([("future", deep.clone()), ("medium", "CPU".into())]);
    if let Value::Map(fields) = &mut event {
        fields.insert(0, (Value::Integer(1), deep));
        fields.rotate_left(2);
    }
    check_stored(event, |stored| {
        assert_eq!(stored.hashes, [EngineHash(11), EngineHash(12)]);
        assert_eq!(stored.medium, Medium::Host);
    });
}

#[test]
fn values_of_every_type_are_passed_over_to_their_last_byte() {
    let values: [&[u8]; 24] = [
        b"\x7f",
        b"\xe0",
        b"\xc0",
        b"\xc2",
        b"\xc3",
        b"\xa2ab",
        b"\xd9\x02ab",
        b"\xda\x00\x02ab",
        b"\xdb\x00\x00\x00\x02ab",
        b"\xc4\x02ab",
        b"\xc5\x00\x02ab",
        b"\xc6\x00\x00\x00\x02ab",
        b"\xc7\x02tab",
        b"\xc8\x00\x02tab",
        b"\xc9\x00\x00\x00\x02tab",
        b"\xd4ta",
        b"\xd5tab",
        b"\xd6tabcd",
        b"\xd7tabcdefgh",
        b"\xd8tabcdefghijklmnop",
        b"\xca\x00\x00\x00\x00",
        b"\xcb\x00\x00\x00\x00\x00\x00\x00\x00",
        b"\xd3\x80\x00\x00\x00\x00\x00\x00\x00",
        b"\x82\x01\x92\x02\x03\x04\x81\x05\x06",
    ];
    for value in values {
        let payload = [b"\x92\x01\x92", value, b"\x91\xb0AllBlocksCleared"].concat();
        let batch = decode(&payload).unwrap();
        assert_eq!(batch.events, [Event::Cleared], "{value:x?}");
        assert_eq!(batch.rejected.malformed, 1, "{value:x?}");
    }
}

#[test]
fn a_time_may_be_any_number() {
    let check = |time: &[u8], seconds: f64| {
        let payload = [b"\x92", time, b"\x90"].concat();
        assert_eq!(
            decode(&payload).unwrap().sent_at_s.to_bits(),
            seconds.to_bits()
        );
    };
    check(b"\xca\x3f\xc0\x00\x00", 1.5);
    check(b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00", 1.5);
    check(b"\x07", 7.0);
    check(b"\xce\xff\xff\xff\xff", 4_294_967_295.0);
}

#[test]
fn depth_costs_no_stack() {
    let depth = 2_000_000;
    let mut payload = b"\x92\x01\x92\x82\xa1x".to_vec();
    payload.extend(vec![0x91; depth]);
    payload.extend(b"\xc0\xa4type\xb0AllBlocksCleared\x90");
    let batch = decode(&payload).unwrap();
    assert_eq!((batch.events.len(), batch.rejected.malformed), (1, 1));
}

#[test]
fn a_hash_has_one_value_in_every_form() {
    let digest = |bytes: usize| {
        let mut digest = vec![0xab; bytes];
        digest[bytes - 8..].copy_from_slice(&u64::MAX.to_be_bytes());
        digest[bytes - 1] = 0xfe;
        Value::Bytes(digest)
    };
    let same = [Value::Integer(-2), Value::Integer((u64::MAX - 1).into())]
        .into_iter()
        .chain([8, 16, 32].map(digest));
    for hash in same {
        check_stored(with([("block_hashes", list([hash]))]), |stored| {
            assert_eq!(stored.hashes, [EngineHash(u64::MAX - 1)]);
        });
    }
}

#[test]
fn a_removal_may_name_a_hash_twice() {
    let event = map([
        ("type", "BlockRemoved".into()),
        ("block_hashes", list([5_u64, 5])),
    ]);
    check(&[event], |batch| {
        let [Event::Removed(removed)] = &batch.events[..] else {
            panic!("{batch:?}")
        };
        assert_eq!(removed.hashes, [EngineHash(5); 2]);
    });
}

#[test]
fn keys_beside_the_tokens_mean_what_their_place_says() {
    let item = |id: &'static str, offset: i128| list([id.into(), Value::Integer(offset)]);
    let keys = |first: Vec<Value>, second: Vec<Value>| list([list(first), list(second)]);
    let check = |changes: Vec<(&'static str, Value)>, expected: &[Extra<'_>]| {
        check_stored(with(changes), |stored| assert_eq!(stored.extra, expected));
    };
    let extra = |salt, items: &[(&'static str, i64)]| Extra {
        salt,
        items: items.to_vec(),
    };

    let plain = list([Value::Nil, list::<Value>([])]);
    check(vec![("extra_keys", plain)], &[]);
    let salted = ("extra_keys", keys(vec!["s".into()], vec![]));
    check(
        vec![salted.clone()],
        &[extra(Some("s"), &[]), Extra::default()],
    );
    // Not at the beginning of a chain: no salt, but not nothing either.
    let child = ("parent_block_hash", 9_u64.into());
    check(
        vec![salted.clone(), child],
        &[extra(None, &[("s", 0)]), Extra::default()],
    );
    let later = ("extra_keys", keys(vec![], vec!["s".into()]));
    check(vec![later], &[Extra::default(), extra(None, &[("s", 0)])]);
    // The first of them is the adapter's name where the event names that adapter.
    let adapter = ("lora_name", "s".into());
    check(vec![salted.clone(), adapter.clone()], &[]);
    check(
        vec![salted, ("lora_name", "other".into())],
        &[extra(Some("s"), &[]), Extra::default()],
    );
    let all = vec!["s".into(), item("i", 3), item("j", -13), "s".into()];
    let all = ("extra_keys", keys(all, vec!["s".into(), item("j", -29)]));
    check(
        vec![all, adapter],
        &[
            extra(Some("s"), &[("i", 3), ("j", -13)]),
            extra(None, &[("j", -29)]),
        ],
    );
}

#[test]
fn lookahead_is_that_of_the_last_block() {
    let blocks = list([list([3_u32, 4]), list([5_u32, 6])]);
    let check = |blocks: Value, expected: &[u32]| {
        let event = with([("lookahead_token_ids", blocks)]);
        check_stored(event, |stored| assert_eq!(stored.lookahead, expected));
    };
    check(blocks, &[5, 6]);
    check(list([list([3_u32]), Value::Nil]), &[]);
    check(Value::Nil, &[]);
}

#[test]
fn a_payload_that_is_no_batch_is_refused_by_place() {
    let refuse = |payload: &[u8], error: &str| {
        assert_eq!(
            decode(payload).unwrap_err().to_string(),
            error,
            "{payload:x?}"
        );
    };
    refuse(b"", "the payload ends before what byte 0 announces");
    refuse(b"\xc1", "no value begins with what stands at byte 0");
    refuse(
        b"\x92\x01\x91\xc1",
        "no value begins with what stands at byte 3",
    );
    refuse(b"\x07", "byte 0 does not begin a batch");
    refuse(b"\x91\x01", "byte 0 does not begin a batch");
    refuse(b"\x92\xa1x\x90", "byte 1 does not begin a time");
    refuse(b"\x92\x01\x80", "byte 2 does not begin a list of events");
    refuse(b"\x93\x01\x90\xa1x", "byte 3 does not begin a rank");
    refuse(
        b"\x92\x01\x90\x00",
        "the batch ends at byte 3, and the payload goes on",
    );
    refuse(b"\x81\xa2ts\x01", "byte 0 does not begin a batch");
    refuse(
        b"\x82\xa6events\x90\xa6events\x90",
        "byte 0 does not begin a batch",
    );
    refuse(
        b"\x92\x01\xdd\xff\xff\xff\xff",
        "the payload ends before what byte 2 announces",
    );
    refuse(
        b"\xdf\xff\xff\xff\xff",
        "the payload ends before what byte 0 announces",
    );
}

#[test]
fn limits_are_kept_to_the_last() {
    let long = vec![0xc0; PAYLOAD_BYTES_MAX + 1];
    assert_eq!(
        decode(&long),
        Err(DecodeError::TooLong {
            bytes: PAYLOAD_BYTES_MAX + 1
        })
    );

    let events = |count: usize| {
        let count_bytes = u32::try_from(count).unwrap().to_be_bytes();
        [b"\x92\x01\xdd", &count_bytes[..], &vec![0xc0; count]].concat()
    };
    let most = u32::try_from(BATCH_EVENTS_MAX).unwrap();
    assert_eq!(
        decode(&events(BATCH_EVENTS_MAX))
            .unwrap()
            .rejected
            .malformed,
        most
    );
    let beyond = DecodeError::TooManyEvents {
        count: BATCH_EVENTS_MAX + 1,
    };
    assert_eq!(decode(&events(BATCH_EVENTS_MAX + 1)), Err(beyond));

    for (count, malformed) in [(EVENT_TOKENS_MAX, 0), (EVENT_TOKENS_MAX + 1, 1)] {
        let count_bytes = u32::try_from(count).unwrap().to_be_bytes();
        let head = b"\x92\x01\x91\x95\xabBlockStored\x91\x01\xc0\xdd";
        let payload = [head, &count_bytes[..], &vec![7; count], b"\x10"].concat();
        assert_eq!(decode(&payload).unwrap().rejected.malformed, malformed);
    }
}

#[test]
fn a_map_of_a_batch_keeps_no_order() {
    let rank = ("attn_dp_rank", 4_u32.into());
    let fields = [
        ("future", Value::Nil),
        rank,
        ("events", list([cleared()])),
        ("ts", Value::Nil),
    ];
    let mut batch = map(fields);
    if let Value::Map(fields) = &mut batch {
        fields.pop();
    }
    let payload = value::encode(&batch, Headers::Longest);
    let batch = decode(&payload).unwrap();
    assert_eq!((batch.rank, batch.events), (Some(4), vec![Event::Cleared]));
}

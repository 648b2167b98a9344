//! Every kind of event, every way to be refused, and whatever bytes may come.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::donors::vocabulary::Unfindable;

const ACME: &str = "semblend:tenant:v1:9332cc3fc0ec09d0f04fa8e1e08637b5";
const NONE: &str = "semblend:tenant:v1:none";
const REGISTERED_JSON: &str = include_str!("../../../tests/data/donor_events/registered.json");
const ALL: [&str; 9] = [
    REGISTERED_JSON,
    include_str!("../../../tests/data/donor_events/registered_keyed.json"),
    include_str!("../../../tests/data/donor_events/registered_segments.json"),
    include_str!("../../../tests/data/donor_events/evicted.json"),
    include_str!("../../../tests/data/donor_events/evicted_segments.json"),
    include_str!("../../../tests/data/donor_events/purged.json"),
    include_str!("../../../tests/data/donor_events/purged_worker.json"),
    include_str!("../../../tests/data/donor_events/purged_location.json"),
    include_str!("../../../tests/data/donor_events/generation_reset.json"),
];

fn events() -> Vec<Event> {
    ALL.map(|text| decode(text.as_bytes()).unwrap()).into()
}

fn announcement(event: &Event) -> &Announcement {
    match &event.change {
        Change::Registered(announcement) => announcement,
        Change::Evicted { .. } | Change::Purged(_) | Change::Reset => panic!("{event:?}"),
    }
}

fn worker(worker_id: &str, data_parallel_rank: u32) -> OwnerKey {
    OwnerKey {
        worker_id: worker_id.into(),
        data_parallel_rank,
    }
}

#[test]
fn every_kind_is_read() {
    let events = events();
    let heads: Vec<_> = events.iter().map(|event| &event.at).collect();
    let seven = worker("7", 0);
    let expected = [
        (&seven, 1, Some(3)),
        (&seven, 2, Some(3)),
        (&seven, 3, Some(3)),
        (&seven, 4, Some(3)),
        (&seven, 5, Some(3)),
        (&seven, 6, None),
        (&worker("router", 2), 7, Some(0)),
        (&seven, 8, Some(3)),
        (&seven, 0, Some(4)),
    ];
    for (at, (stream, event_id, generation)) in heads.iter().zip(expected) {
        assert_eq!(
            (&at.stream, at.event_id, at.generation),
            (stream, event_id, generation)
        );
    }
    let changes: Vec<_> = events[3..]
        .iter()
        .map(|event| event.change.clone())
        .collect();
    let shared = announcement(&events[2]).location.clone();
    let evicted = |donor_id: &str, segments| Change::Evicted {
        donor_id: donor_id.into(),
        segments,
    };
    assert_eq!(
        changes,
        [
            evicted("cmpl-1", None),
            evicted("cmpl-2", Some(vec![4, 9])),
            Change::Purged(Scope::Stream),
            Change::Purged(Scope::Worker("7".into())),
            Change::Purged(Scope::Location(shared.fingerprint)),
            Change::Reset,
        ]
    );
}

#[test]
fn a_registration_is_read_whole() {
    let events = events();
    let plain = announcement(&events[0]);
    assert_eq!(&*plain.donor_id, "0b7f5a2e-4c4e-4f0e-9a55-6d2c1a1f0c11");
    let namespace = AnnouncedNamespace {
        model: "test-model".into(),
        tokenizer: "test-tokenizer".into(),
        kv_layout: "NHD".into(),
        block_size: 16,
        adapter: "none".into(),
        quantization: None,
        tenant_key: NONE.into(),
    };
    assert_eq!(plain.namespace, Ok(namespace.clone()));
    assert_eq!(plain.location.holder, Some(worker("7", 0)));
    let vector = Vector::new(&[0.5, -1.0, 0.25, 2.0]);
    assert_eq!(plain.segments, [Segment { id: 0, vector }]);

    let keyed = AnnouncedNamespace {
        adapter: "sql".into(),
        quantization: Some("fp8".into()),
        tenant_key: ACME.into(),
        ..namespace
    };
    assert_eq!(announcement(&events[1]).namespace, Ok(keyed));

    let shared = announcement(&events[2]);
    assert_eq!(shared.location.holder, None);
    assert_ne!(shared.location.fingerprint, plain.location.fingerprint);
    let ids = shared
        .segments
        .iter()
        .map(|it| (it.id, it.vector.is_some()));
    assert_eq!(ids.collect::<Vec<_>>(), [(4, true), (9, false), (5, true)]);
}

/// The plain registration with one value put elsewhere; nothing: taken out.
fn with(path: &str, value: Option<Value>) -> String {
    let mut event: Value = serde_json::from_str(REGISTERED_JSON).unwrap();
    let (parent, name) = path.rsplit_once('/').unwrap();
    let parent = event.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Some(value) => parent.insert(name.to_owned(), value),
        None => parent.remove(name),
    };
    event.to_string()
}

fn refusal(event: &str) -> Refusal {
    decode(event.as_bytes()).unwrap_err()
}

/// A place in the plain registration, what stands there instead (nothing: it is taken out), and how
/// the refusal begins.
const WRONG: &str = r#"
/schema_version | 2 | schema_version: must be 1
/schema_version | | schema_version: is missing
/event_id | -1 | event_id: must be a whole number below 2^64
/event_id | 1.5 | event_id: must be a whole number below 2^64
/event_id | | event_id: is missing
/worker_id | [] | worker_id: must be a string, or a whole number below 2^64
/worker_id | " " | worker_id: is blank
/dp_rank | 4294967296 | dp_rank: must be a whole number below 2^32
/data | "s3cret" | data: must be an object
/data | ["donors_purged"] | data: must be an object
/data | | data: is missing
/data/kind | "s3cret" | data.kind: must be donor_registered,
/data/donor_id | "" | data.donor_id: is blank
/data/donor_id | 7 | data.donor_id: must be a string
/data/token_count | "s3cret" | data.token_count: must be a whole number below 2^32
/data/provider_generation | | data.provider_generation: is missing
/data/namespace | | data.namespace: is missing
/data/namespace/model | "\t" | data.namespace.model: is blank
/data/namespace/model | | data.namespace.model: is missing
/data/namespace/kv_layout | null | data.namespace.kv_layout: is missing
/data/namespace/block_size | 0 | data.namespace.block_size: must be 1 to 4096
/data/namespace/block_size | 4097 | data.namespace.block_size: must be 1 to 4096
/data/namespace/lora | "" | data.namespace.lora: is blank
/data/namespace/quant | 8 | data.namespace.quant: must be a string
/data/namespace/extra | "s3cret" | data.namespace.extra: must be an object
/data/location | | data.location: is missing
/data/location/kind | "s3cret" | data.location.kind: must be worker or shared
/data/location/kind | "shared" | data.location.backend: is missing
/data/location/dp_rank | | data.location.dp_rank: is missing
/data/segments | [] | data.segments: is missing
/data/segments | [7] | data.segments: must be an object
/data/segments | "s3cret" | data.segments: must be a list
"#;

#[test]
fn what_is_wrong_is_named_and_nothing_is_quoted() {
    for line in WRONG.trim().lines() {
        let [path, value, expected] = line.split('|').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let value = value.trim();
        let value = (!value.is_empty()).then(|| serde_json::from_str(value).unwrap());
        check_refused(&with(path.trim(), value), expected.trim());
    }
    for text in ["", "7", "[1]", "{", "{\"data\":{},\"data\":{}}", "{} {}"] {
        check_refused(text, "event: must be a JSON object in UTF-8");
    }
}

fn check_refused(event: &str, expected: &str) {
    let told = refusal(event).to_string();
    assert!(told.starts_with(expected), "{told}, not {expected}");
    assert!(!told.contains("s3cret"), "{told}");
}

#[test]
fn what_is_too_long_is_named_with_its_limit() {
    for (path, field, most) in [
        ("/worker_id", "worker_id", 256),
        ("/data/donor_id", "data.donor_id", 256),
        ("/data/namespace/model", "data.namespace.model", 512),
        ("/data/namespace/tokenizer", "data.namespace.tokenizer", 512),
        ("/data/namespace/lora", "data.namespace.lora", 512),
        ("/data/location/tier", "data.location.tier", 256),
    ] {
        let long = |length| with(path, Some(json!("s".repeat(length))));
        assert!(decode(long(most).as_bytes()).is_ok(), "{path}");
        let expected = format!("{field}: {} bytes, at most {most}", most + 1);
        check_refused(&long(most + 1), &expected);
    }
    let large = vec![b' '; EVENT_BYTES_MAX + 1];
    let refusal = decode(&large).unwrap_err();
    assert_eq!(refusal.to_string(), "event: 4194305 bytes, at most 4194304");
}

#[test]
fn segments_are_a_few_within_the_donor_and_their_vectors_finite() {
    let check = |segments: Value, expected: &str| {
        check_refused(&with("/data/segments", Some(segments)), expected);
    };
    let segment = |id: usize| json!({"segment_id": id, "token_range": [0, 96]});
    let many = |count: usize| json!((0..count).map(segment).collect::<Vec<_>>());
    assert!(decode(with("/data/segments", Some(many(64))).as_bytes()).is_ok());
    check(many(65), "data.segments: 65 elements, at most 64");
    check(
        json!([segment(3), segment(3)]),
        "data.segments.segment_id: is given twice",
    );
    for range in [json!([0, 97]), json!([5, 5]), json!([0]), json!("s3cret")] {
        let segments = json!([{"segment_id": 0, "token_range": range}]);
        check(segments, "data.segments.token_range: must be ");
    }
    let metadata = |value: Value| {
        let mut segment = segment(0);
        segment["provider_metadata"] = value;
        json!([segment])
    };
    let field = "data.segments.provider_metadata";
    let long = format!("{field}: 16385 elements, at most 16384");
    check(metadata(json!(vec![7; 16_385])), &long);
    let not_bytes = format!("{field}: must be a list of bytes, four to a number");
    for value in [json!([1, 2, 3]), json!([1, 2, 3, 256]), json!("s3cret")] {
        check(metadata(value), &not_bytes);
    }
    let not_finite = format!("{field}: must be finite numbers");
    for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        check(metadata(json!(number.to_le_bytes())), &not_finite);
    }
}

#[test]
fn a_tenant_is_told_by_key_by_salt_or_by_digest_and_never_by_default() {
    let digest = "semblend:ns:salt:9332cc3fc0ec09d0f04fa8e1e08637b5";
    let other = "semblend:ns:salt:00000000000000000000000000000000";
    let cases: [(Value, Result<&str, Unfindable>); 17] = [
        (json!({"tenant_key": ACME}), Ok(ACME)),
        (json!({"tenant_key": NONE}), Ok(NONE)),
        (json!({"cache_salt": "tenant-acme"}), Ok(ACME)),
        (
            json!({"cache_salt": "tenant-acme", "tenant_key": ACME}),
            Ok(ACME),
        ),
        (json!({"cache_salt": digest}), Ok(ACME)),
        (json!({"cache_salt": digest, "tenant_key": ACME}), Ok(ACME)),
        (json!({"cache_salt": "semblend:ns:no-cache-salt"}), Ok(NONE)),
        (json!({}), Err(Unfindable::NoTenant)),
        (
            json!({"cache_salt": digest, "tenant_key": NONE}),
            Err(Unfindable::OtherIsolation),
        ),
        (
            json!({"cache_salt": other, "tenant_key": ACME}),
            Err(Unfindable::OtherIsolation),
        ),
        (
            json!({"cache_salt": "semblend:ns:no-cache-salt", "tenant_key": ACME}),
            Err(Unfindable::OtherIsolation),
        ),
        (
            json!({"cache_salt": "semblend:ns:trtllm:x"}),
            Err(Unfindable::OtherIsolation),
        ),
        (
            json!({"cache_salt": "semblend:ns:salt:none"}),
            Err(Unfindable::OtherIsolation),
        ),
        (
            json!({"cache_salt": "semblend:ns:salt:"}),
            Err(Unfindable::OtherIsolation),
        ),
        (
            json!({"tenant_key": ACME, "tenant": "acme"}),
            Err(Unfindable::UnknownKey),
        ),
        (
            json!({"tenant_key": ACME, "x": {"y": []}}),
            Err(Unfindable::UnknownKey),
        ),
        (json!({"template": "t"}), Err(Unfindable::UnknownKey)),
    ];
    for (extra, expected) in cases {
        let event = with("/data/namespace/extra", Some(extra.clone()));
        let event = decode(event.as_bytes()).unwrap();
        let namespace = announcement(&event).namespace.clone();
        let tenant = namespace.map(|namespace| namespace.tenant_key);
        assert_eq!(tenant.as_deref(), expected.as_ref().copied(), "{extra}");
        assert!(
            !format!("{event:?}").contains("tenant-acme"),
            "a raw salt goes no further"
        );
    }
    let without = decode(with("/data/namespace/extra", None).as_bytes()).unwrap();
    assert_eq!(announcement(&without).namespace, Err(Unfindable::NoTenant));
}

#[test]
fn a_tenant_that_has_no_meaning_or_two_is_refused() {
    let salt = "data.namespace.extra.cache_salt";
    let key = "data.namespace.extra.tenant_key";
    let cases = [
        (json!({"cache_salt": ""}), salt, "is blank"),
        (json!({"cache_salt": " \t"}), salt, "is blank"),
        (json!({"cache_salt": null}), salt, "must be a string"),
        (json!({"cache_salt": 7}), salt, "must be a string"),
        (
            json!({"cache_salt": "s".repeat(1025)}),
            salt,
            "1025 bytes, at most 1024",
        ),
        (
            json!({"cache_salt": "s3cret", "tenant_key": ACME}),
            salt,
            "disagrees with tenant_key",
        ),
        (
            json!({"cache_salt": "s3cret", "tenant_key": NONE}),
            salt,
            "disagrees with tenant_key",
        ),
        (json!({"tenant_key": ""}), key, "must be a tenant key v1"),
        (
            json!({"tenant_key": "s3cret"}),
            key,
            "must be a tenant key v1",
        ),
        (json!({"tenant_key": null}), key, "must be a string"),
    ];
    for (extra, field, expected) in cases {
        let refusal = refusal(&with("/data/namespace/extra", Some(extra)));
        assert_eq!(refusal.to_string(), format!("{field}: {expected}"));
    }
    let twice = r#"{"tenant_key": "x", "tenant_\u006bey": "y"}"#;
    let event = with("/data/namespace/extra", Some(json!("HERE"))).replace("\"HERE\"", twice);
    let refusal = refusal(&event);
    assert_eq!(refusal.to_string(), "data.namespace.extra: is given twice");
}

#[test]
fn what_is_refused_keeps_its_place_and_takes_away_what_it_might_have() {
    let at = |generation| Position {
        stream: worker("7", 0),
        event_id: 1,
        generation,
    };
    let donor = "0b7f5a2e-4c4e-4f0e-9a55-6d2c1a1f0c11";
    let cases = [
        ("/event_id", None, None),
        ("/schema_version", Some(json!(2)), None),
        ("/data", Some(json!([])), Some((None, None))),
        (
            "/data/kind",
            Some(json!("donor_moved")),
            Some((Some(3), None)),
        ),
        ("/data/donor_id", Some(json!(7)), Some((Some(3), None))),
        ("/data/segments", None, Some((Some(3), Some(donor)))),
        (
            "/data/provider_generation",
            Some(json!("3")),
            Some((None, Some(donor))),
        ),
    ];
    for (path, value, expected) in cases {
        let lost = refusal(&with(path, value)).lost;
        let expected = expected.map(|(generation, donor_id)| Lost {
            at: at(generation),
            donor_id: donor_id.map(Box::from),
        });
        assert_eq!(lost, expected, "{path}");
    }
}

#[test]
fn zeros_are_no_direction_and_the_longest_vector_is_one() {
    let vector = |numbers: &[f32]| {
        let bytes: Vec<u8> = numbers.iter().flat_map(|it| it.to_le_bytes()).collect();
        let segment = json!([{
            "segment_id": 0, "token_range": [0, 96], "provider_metadata": bytes,
        }]);
        let event = with("/data/segments", Some(segment));
        let event = decode(event.as_bytes()).unwrap();
        announcement(&event).segments[0].vector.clone()
    };
    assert_eq!(vector(&[0.0; 8]), None);
    assert_eq!(vector(&[]), None);
    let longest = vec![1.0; DIMENSIONS_MAX];
    assert_eq!(vector(&longest), Vector::new(&longest));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _any = decode(&bytes);
    }

    #[test]
    fn no_damage_makes_it_panic(
        which in 0..ALL.len(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = ALL[which].as_bytes().to_vec();
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] = byte;
        }
        let _any = decode(&bytes);
    }

    #[test]
    fn no_value_in_the_place_of_another_makes_it_panic(
        which in 0..ALL.len(), pick in any::<prop::sample::Index>(),
        new in prop::sample::select(vec![
            "null", "true", "-1", "1e400", "0.5", "18446744073709551616", "\"\"", "\"\\u0000\"",
            "[]", "{}", "[[[[]]]]", "{\"kind\":{}}",
        ]),
    ) {
        let text = ALL[which];
        let starts: Vec<usize> = text.match_indices(": ").map(|(at, _)| at + 2).collect();
        let start = starts[pick.index(starts.len())];
        let end = text[start..].find([',', '}']).map_or(text.len(), |end| start + end);
        let _any = decode(format!("{}{new}{}", &text[..start], &text[end..]).as_bytes());
    }
}

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

#[test]
fn what_is_wrong_is_named_and_nothing_is_quoted() {
    let long = |length: usize| json!("s3cret".repeat(length.div_ceil(6)));
    let many = |length: usize| json!(vec![7; length]);
    let segment = json!({"segment_id": 0, "token_range": [0, 96]});
    let segments = |count: usize| json!(vec![segment.clone(); count]);
    let secret = || json!("s3cret");
    let metadata = "/data/segments/0/provider_metadata";
    let nan: Vec<u8> = [f32::NAN; 4]
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    let cases = [
        (
            "/schema_version",
            Some(json!(2)),
            "schema_version: must be 1",
        ),
        ("/schema_version", None, "schema_version: is missing"),
        (
            "/event_id",
            Some(json!(-1)),
            "event_id: must be a whole number",
        ),
        (
            "/event_id",
            Some(json!(1.5)),
            "event_id: must be a whole number",
        ),
        ("/event_id", None, "event_id: is missing"),
        (
            "/worker_id",
            Some(json!([])),
            "worker_id: must be a string, or",
        ),
        ("/worker_id", Some(json!(" ")), "worker_id: is blank"),
        (
            "/worker_id",
            Some(long(258)),
            "worker_id: 258 bytes, at most 256",
        ),
        (
            "/dp_rank",
            Some(json!(1_u64 << 32)),
            "dp_rank: must be a whole number below 2^32",
        ),
        ("/data", Some(secret()), "data: must be an object"),
        (
            "/data",
            Some(json!(["donors_purged"])),
            "data: must be an object",
        ),
        ("/data", None, "data: is missing"),
        (
            "/data/kind",
            Some(secret()),
            "data.kind: must be donor_registered,",
        ),
        ("/data/donor_id", Some(json!("")), "data.donor_id: is blank"),
        (
            "/data/donor_id",
            Some(json!(7)),
            "data.donor_id: must be a string",
        ),
        (
            "/data/donor_id",
            Some(long(258)),
            "data.donor_id: 258 bytes, at most 256",
        ),
        (
            "/data/token_count",
            Some(secret()),
            "data.token_count: must be a whole number",
        ),
        (
            "/data/provider_generation",
            None,
            "data.provider_generation: is missing",
        ),
        ("/data/namespace", None, "data.namespace: is missing"),
        (
            "/data/namespace/model",
            Some(json!("\t")),
            "data.namespace.model: is blank",
        ),
        (
            "/data/namespace/model",
            None,
            "data.namespace.model: is missing",
        ),
        (
            "/data/namespace/tokenizer",
            Some(long(516)),
            "data.namespace.tokenizer: 516 bytes",
        ),
        (
            "/data/namespace/kv_layout",
            Some(json!(null)),
            "data.namespace.kv_layout: is missing",
        ),
        (
            "/data/namespace/block_size",
            Some(json!(0)),
            "data.namespace.block_size: must be 1 to",
        ),
        (
            "/data/namespace/lora",
            Some(json!("")),
            "data.namespace.lora: is blank",
        ),
        (
            "/data/namespace/quant",
            Some(json!(8)),
            "data.namespace.quant: must be a string",
        ),
        (
            "/data/namespace/extra",
            Some(secret()),
            "data.namespace.extra: must be an object",
        ),
        ("/data/location", None, "data.location: is missing"),
        (
            "/data/location/kind",
            Some(secret()),
            "data.location.kind: must be worker or shared",
        ),
        (
            "/data/location/tier",
            Some(long(258)),
            "data.location.tier: 258 bytes, at most 256",
        ),
        (
            "/data/location/dp_rank",
            None,
            "data.location.dp_rank: is missing",
        ),
        (
            "/data/segments",
            Some(json!([])),
            "data.segments: is missing",
        ),
        (
            "/data/segments",
            Some(segments(65)),
            "data.segments: 65 elements, at most 64",
        ),
        (
            "/data/segments",
            Some(segments(2)),
            "data.segments.segment_id: is given twice",
        ),
        (
            "/data/segments",
            Some(json!([7])),
            "data.segments: must be an object",
        ),
        (
            "/data/segments",
            Some(secret()),
            "data.segments: must be a list",
        ),
        (
            metadata,
            Some(many(16_385)),
            "data.segments.provider_metadata: 16385 elements, at most",
        ),
        (
            metadata,
            Some(many(6)),
            "data.segments.provider_metadata: must be a list of bytes",
        ),
        (
            metadata,
            Some(json!([1, 2, 3, 256])),
            "data.segments.provider_metadata: must be a list",
        ),
        (
            metadata,
            Some(secret()),
            "data.segments.provider_metadata: must be a list of bytes",
        ),
        (
            metadata,
            Some(json!(nan)),
            "data.segments.provider_metadata: must be finite numbers",
        ),
    ];
    for (path, value, expected) in cases {
        // The pointer cannot go through a list's element when its parent is to be changed.
        let event = if path == metadata {
            let segment = json!([{
                "segment_id": 0, "token_range": [0, 96], "provider_metadata": value.unwrap(),
            }]);
            with("/data/segments", Some(segment))
        } else {
            with(path, value)
        };
        let refusal = refusal(&event);
        assert!(
            refusal.to_string().starts_with(expected),
            "{refusal}, not {expected}"
        );
        assert!(!refusal.to_string().contains("s3cret"), "{refusal}");
    }
    for range in [json!([0, 97]), json!([5, 5]), json!([0]), json!("s3cret")] {
        let segment = json!([{"segment_id": 0, "token_range": range}]);
        let refusal = refusal(&with("/data/segments", Some(segment)));
        assert!(
            refusal
                .to_string()
                .starts_with("data.segments.token_range: must be"),
            "{refusal}"
        );
    }
    for text in ["", "7", "[1]", "{", "{\"data\":{},\"data\":{}}", "{} {}"] {
        assert_eq!(
            refusal(text).to_string(),
            "event: must be a JSON object in UTF-8",
            "{text}"
        );
    }
    let large = vec![b' '; EVENT_BYTES_MAX + 1];
    let refusal = decode(&large).unwrap_err();
    assert_eq!(refusal.to_string(), "event: 4194305 bytes, at most 4194304");
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
        which in 0..ALL.len(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>(),
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

//! Donors that other providers announce, over gRPC: what becomes of their events, and who finds
//! them.

mod nats;

use kvatlas::donors::text::{Embed, ModelFiles, TextModel};
use kvatlas_proto::v1::{
    self, Discovery, DonorEventOutcome as Outcome, FindOutcome, NeighbourSearch,
    events_client::EventsClient, namespace_selector::Selector,
};
use serde_json::{Value, json};

use crate::{
    common::{self, Clients, InProcess, http_get, lookup, namespace, prompt, until, within},
    tools,
};

const NO_TENANT: &str = "semblend:tenant:v1:none";
const ACME: &str = "semblend:tenant:v1:9332cc3fc0ec09d0f04fa8e1e08637b5";
const TEXT: &str =
    "The committee met on the evening of the third day and heard both sides at length.";

/// A registration of worker 7 in the namespace of the tests, by these vectors.
fn registered(event_id: u64, donor_id: &str, vectors: &[Vec<f32>]) -> Value {
    let segment = |(at, vector): (usize, &Vec<f32>)| {
        let bytes: Vec<u8> = vector.iter().flat_map(|it| it.to_le_bytes()).collect();
        json!({
            "segment_id": at, "token_range": [0, 64], "digest": 1, "provider_metadata": bytes,
        })
    };
    let segments: Vec<Value> = vectors.iter().enumerate().map(segment).collect();
    event(
        event_id,
        &json!({
            "kind": "donor_registered",
            "donor_id": donor_id,
            "namespace": {
                "model": "test-model", "tokenizer": "test-tokenizer", "kv_layout": "NHD",
                "block_size": 16, "extra": {"tenant_key": NO_TENANT},
            },
            "location": {"kind": "worker", "worker_id": 7, "dp_rank": 0, "tier": "device"},
            "token_count": 64,
            "segments": segments,
            "provider_generation": 1,
        }),
    )
}

fn event(event_id: u64, data: &Value) -> Value {
    json!({
        "schema_version": 1, "event_id": event_id, "worker_id": 7, "dp_rank": 0, "data": data,
    })
}

/// The event with one value put elsewhere.
fn with(mut event: Value, path: &str, value: Value) -> Value {
    let (parent, name) = path.rsplit_once('/').unwrap();
    event.pointer_mut(parent).unwrap()[name] = value;
    event
}

async fn publish(
    clients: &Clients,
    events: impl IntoIterator<Item = Vec<u8>>,
) -> Vec<v1::PublishDonorEventsResponse> {
    let requests: Vec<_> = events
        .into_iter()
        .map(|event| v1::PublishDonorEventsRequest {
            event: event.into(),
        })
        .collect();
    let mut client = EventsClient::new(clients.channel.clone());
    let answers = within(client.publish_donor_events(tokio_stream::iter(requests))).await;
    let mut answers = answers.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(answer) = within(answers.message()).await.unwrap() {
        all.push(answer);
    }
    all
}

// Publishes events and expects these outcomes, in order.
async fn check_outcomes(clients: &Clients, events: &[(Value, Outcome)]) {
    let sent = events
        .iter()
        .map(|(event, _)| event.to_string().into_bytes());
    let answers = publish(clients, sent).await;
    let outcomes: Vec<Outcome> = answers.iter().map(|answer| answer.outcome()).collect();
    let expected: Vec<Outcome> = events.iter().map(|(_, outcome)| *outcome).collect();
    assert_eq!(outcomes, expected, "{answers:?}");
}

/// The number behind a metric's name and labels.
fn metric(address: std::net::SocketAddr, name: &str) -> u64 {
    let page = http_get(address, "/metrics");
    let value = page
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = value.unwrap_or_else(|| panic!("no {name} in {page}"));
    value.parse().unwrap()
}

/// Publishes events that have a secret in every place, and sees that no answer has it.
pub(crate) async fn publish_secrets(clients: &Clients, secret: &str) {
    let places = [
        "/event_id",
        "/worker_id",
        "/data/kind",
        "/data/donor_id",
        "/data/token_count",
        "/data/segments",
        "/data/location/kind",
        "/data/location/tier",
        "/data/namespace/model",
        "/data/namespace/lora",
        "/data/namespace/extra/cache_salt",
        "/data/namespace/extra/tenant_key",
        "/data/namespace/extra/unknown",
    ];
    let plain = registered(0, "d", &[vec![1.0]]);
    let event = |(at, place): (usize, &&str)| {
        let event = with(plain.clone(), "/event_id", json!(at));
        with(event, place, json!(secret)).to_string().into_bytes()
    };
    let events: Vec<_> = places.iter().enumerate().map(event).collect();
    let answers = publish(clients, events).await;
    assert_eq!(answers.len(), places.len());
    for (answer, place) in answers.iter().zip(places) {
        assert!(
            !answer.detail.contains(secret),
            "{place}: {}",
            answer.detail
        );
    }
}

#[tokio::test]
async fn events_are_answered_in_order_and_by_name() {
    let server = common::start();
    let vectors = [vec![1.0, 0.5]];
    let d = |event_id| registered(event_id, "d", &vectors);
    let refused = with(d(5), "/data/token_count", json!("SECRET"));
    let events: Vec<Vec<u8>> = [d(1), d(1), d(2), d(4), refused, d(6)]
        .iter()
        .map(|event| event.to_string().into_bytes())
        .chain([b"SECRET".to_vec(), vec![b' '; (4 << 20) + 1]])
        .collect();
    let answers = publish(&server.clients, events).await;
    let told: Vec<(Outcome, &str)> = answers
        .iter()
        .map(|answer| (answer.outcome(), answer.detail.as_str()))
        .collect();
    let no_model = "no look-up finds it: this server has no embedding model";
    assert_eq!(
        told,
        [
            (Outcome::Applied, no_model),
            (Outcome::Duplicate, ""),
            (Outcome::Applied, no_model),
            (Outcome::AppliedAfterGap, no_model),
            (
                Outcome::Refused,
                "data.token_count: must be a whole number below 2^32"
            ),
            (Outcome::Applied, no_model),
            (Outcome::Refused, "event: must be a JSON object in UTF-8"),
            (Outcome::Refused, "event: 4194305 bytes, at most 4194304"),
        ]
    );
    let metric = |name: &str| metric(server.server.http_address(), name);
    for (outcome, count) in [
        ("applied", 3),
        ("applied_after_gap", 1),
        ("duplicate", 1),
        ("refused", 3),
    ] {
        let name = format!("kvatlas_donor_events_total{{outcome=\"{outcome}\"}}");
        assert_eq!(metric(&name), count, "{outcome}");
    }
    let unfindable = "kvatlas_announced_donors_unfindable_total{reason=\"no_model\"}";
    assert_eq!(metric(unfindable), 4);
    assert_eq!(metric("kvatlas_donor_event_streams"), 1);
    assert_eq!(metric("kvatlas_announced_donors"), 0);
}

/// A server with the tests' model, and the same model here.
struct Announcing {
    server: InProcess,
    model: TextModel,
}

impl Announcing {
    fn start() -> Option<Announcing> {
        let (folder, onnxruntime) = tools::embedding_model()?;
        let files = ModelFiles {
            folder: folder.clone(),
            onnxruntime: onnxruntime.clone(),
            threads: 1,
        };
        let model = TextModel::open(&files).unwrap();
        let server = common::start_with(|args| {
            args.text.enabled = true;
            args.text.embedding_model = Some(folder);
            args.text.onnxruntime = Some(onnxruntime);
        });
        Some(Announcing { server, model })
    }

    fn registered(&mut self, event_id: u64, donor_id: &str) -> Value {
        let vectors = self.model.embed(&[TEXT]).unwrap();
        registered(event_id, donor_id, &vectors)
    }

    async fn find(&self, change: impl FnOnce(&mut v1::FindDonorRequest)) -> v1::FindDonorResponse {
        let mut request = v1::FindDonorRequest {
            text: TEXT.into(),
            neighbours_max: 5,
            ..lookup(prompt(3, 64))
        };
        change(&mut request);
        let mut donors = self.server.clients.donors.clone();
        within(donors.find_donor(request))
            .await
            .unwrap()
            .into_inner()
    }

    // Looks up the text in a namespace and expects these donors.
    async fn check_found(&self, change: impl FnOnce(&mut v1::Namespace), expected: &[&str]) {
        let mut asked = namespace();
        change(&mut asked);
        let answer = self.find(|it| it.namespace = common::selector(asked)).await;
        let mut found: Vec<&str> = answer.neighbours.iter().map(|it| &*it.donor_id).collect();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}

#[tokio::test]
async fn an_announced_donor_is_a_hint_and_nothing_more() {
    let Some(mut announcing) = Announcing::start() else {
        return;
    };
    let event = announcing.registered(0, "announced");
    check_outcomes(&announcing.server.clients, &[(event, Outcome::Applied)]).await;
    let set_mode = v1::SetModeRequest {
        mode: v1::Mode::Materialize.into(),
        ..Default::default()
    };
    let mut admin = announcing.server.clients.admin.clone();
    within(admin.set_mode(set_mode)).await.unwrap();
    let answer = announcing
        .find(|it| {
            it.holder = "holder".into();
            it.minimum_tier = v1::Tier::Semantic.into();
            it.accept_spans = true;
        })
        .await;
    assert_eq!(answer.outcome(), FindOutcome::Miss);
    assert_eq!(answer.reason(), v1::FallbackReason::ProviderMiss);
    assert_eq!((&answer.r#match, &answer.lease), (&None, &None));
    assert_eq!(answer.text_search(), NeighbourSearch::Done);
    let [neighbour] = &answer.neighbours[..] else {
        panic!("{answer:?}");
    };
    assert_eq!(neighbour.donor_id, "announced");
    assert_eq!(neighbour.owner, common::owner("7"));
    assert_eq!(neighbour.discovery(), Discovery::Announced);
    assert!(neighbour.score > 0.99, "{}", neighbour.score);
    assert!(!neighbour.quality.unwrap().facts_compared);

    let none = announcing.find(|it| it.neighbours_max = 0).await;
    assert_eq!(none.text_search(), NeighbourSearch::NotNeeded);
    let textless = announcing.find(|it| it.text.clear()).await;
    let own = announcing
        .find(|it| it.request_id = "announced".into())
        .await;
    for answer in [none, textless, own] {
        assert!(answer.neighbours.is_empty(), "{answer:?}");
    }
    let http = announcing.server.server.http_address();
    assert_eq!(metric(http, "kvatlas_announced_donors_listed_total"), 1);
}

#[tokio::test]
async fn whatever_part_of_the_namespace_differs_hides_a_donor() {
    let Some(mut announcing) = Announcing::start() else {
        return;
    };
    let plain = announcing.registered(0, "plain");
    let at = "/data/namespace/";
    let salt = json!({"cache_salt": "tenant-acme"});
    let keyed = with(
        announcing.registered(1, "acme"),
        &format!("{at}extra"),
        salt,
    );
    let no_key = with(
        announcing.registered(2, "nobody's"),
        &format!("{at}extra"),
        json!({}),
    );
    let lora = with(
        announcing.registered(3, "lora"),
        &format!("{at}lora"),
        json!("sql"),
    );
    let quant = with(
        announcing.registered(4, "quant"),
        &format!("{at}quant"),
        json!("fp8"),
    );
    let events = [plain, keyed, no_key, lora, quant].map(|event| (event, Outcome::Applied));
    check_outcomes(&announcing.server.clients, &events).await;

    announcing.check_found(|_| {}, &["plain"]).await;
    announcing
        .check_found(|it| it.tenant_key = ACME.into(), &["acme"])
        .await;
    announcing
        .check_found(|it| it.adapter = "sql".into(), &["lora"])
        .await;
    announcing
        .check_found(|it| it.kv_cache_dtype = "fp8".into(), &["quant"])
        .await;
    let other_tenant = format!("semblend:tenant:v1:{}", "0".repeat(32));
    announcing
        .check_found(|it| it.tenant_key = other_tenant, &[])
        .await;
    announcing
        .check_found(|it| it.model = "other".into(), &[])
        .await;
    announcing
        .check_found(|it| it.tokenizer = "other".into(), &[])
        .await;
    announcing
        .check_found(|it| it.kv_layout = "other".into(), &[])
        .await;
    announcing.check_found(|it| it.block_size = 32, &[]).await;
    announcing
        .check_found(|it| it.multimodal_hashes.push("image".into()), &[])
        .await;
}

/// What is published, and who is found afterwards.
type Step<'a> = (Vec<(Value, Outcome)>, &'a [&'a str]);

#[tokio::test]
async fn what_may_be_gone_is_not_listed() {
    let Some(mut announcing) = Announcing::start() else {
        return;
    };
    let mut donor = |event_id, donor_id: &str| announcing.registered(event_id, donor_id);
    let evicted = |event_id, donor_id: &str| {
        event(
            event_id,
            &json!({"kind": "donor_evicted", "donor_id": donor_id}),
        )
    };
    let reset = |event_id, generation: u64| {
        let kind = "provider_generation_reset";
        event(event_id, &json!({"kind": kind, "generation": generation}))
    };
    let generation =
        |event, generation: u64| with(event, "/data/provider_generation", json!(generation));
    let steps: [Step<'_>; 9] = [
        (
            vec![
                (donor(0, "a"), Outcome::Applied),
                (donor(1, "b"), Outcome::Applied),
                (donor(2, "c"), Outcome::Applied),
                (donor(0, "late"), Outcome::Duplicate),
            ],
            &["a", "b", "c"],
        ),
        (vec![(evicted(3, "b"), Outcome::Applied)], &["a", "c"]),
        (vec![(donor(5, "d"), Outcome::AppliedAfterGap)], &["d"]),
        (
            vec![(generation(donor(6, "e"), 2), Outcome::Applied)],
            &["e"],
        ),
        (vec![(donor(7, "old"), Outcome::Refused)], &["e"]),
        (vec![(reset(0, 3), Outcome::Applied)], &[]),
        (
            vec![
                (generation(donor(1, "f"), 3), Outcome::Applied),
                (
                    with(donor(0, "of another rank"), "/dp_rank", json!(1)),
                    Outcome::Applied,
                ),
            ],
            &["f", "of another rank"],
        ),
        (
            vec![(event(2, &json!({"kind": "donor_moved"})), Outcome::Refused)],
            &["of another rank"],
        ),
        (
            vec![(
                event(
                    3,
                    &json!({"kind": "donors_purged", "scope": {
                        "kind": "worker", "worker_id": 7,
                    }}),
                ),
                Outcome::Applied,
            )],
            &[],
        ),
    ];
    for (events, found) in steps {
        check_outcomes(&announcing.server.clients, &events).await;
        announcing.check_found(|_| {}, found).await;
    }
}

#[tokio::test]
async fn a_donor_that_is_also_registered_is_listed_once() {
    let Some(mut announcing) = Announcing::start() else {
        return;
    };
    let both = announcing.registered(0, "both");
    let other = announcing.registered(1, "other");
    let events = [both, other].map(|event| (event, Outcome::Applied));
    check_outcomes(&announcing.server.clients, &events).await;
    let mut record = common::donor("both", prompt(9, 64));
    record.owner = common::owner("7");
    record.text = TEXT.into();
    let mut donors = announcing.server.clients.donors.clone();
    let registered = within(donors.register_donor(record)).await.unwrap();
    // Its text is embedded behind the acknowledgement.
    until(async || {
        let answer = announcing.find(|_| {}).await;
        let known = answer.neighbours.iter();
        known.filter(|it| it.discovery() == Discovery::Text).count() == 1
    })
    .await;
    let id = registered.into_inner().namespace_id;
    let by_id = Some(v1::NamespaceSelector {
        selector: Some(Selector::NamespaceId(id)),
    });
    let answer = announcing.find(|it| it.namespace = by_id).await;
    let mut listed: Vec<(&str, Discovery)> = answer
        .neighbours
        .iter()
        .map(|it| (&*it.donor_id, it.discovery()))
        .collect();
    listed.sort_unstable_by_key(|(id, _)| *id);
    assert_eq!(
        listed,
        [("both", Discovery::Text), ("other", Discovery::Announced)]
    );
    let one = announcing.find(|it| it.neighbours_max = 1).await;
    assert_eq!(one.neighbours.len(), 1);
}

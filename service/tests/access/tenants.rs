//! A tenant that names another tenant's namespace learns nothing, not even that there is one.

use kvatlas_proto::v1::{self, LeaseState, namespace_selector::Selector};
use prost::Message;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Response, Status};

use crate::{
    common::{donor, lookup, namespace, owner, prompt, tokens, within},
    doors::{ACME, BOLT, Caller, NOBODY, Server, start_with_tokens},
};

const PROMPT_TOKENS: usize = 256;
const HOLDER: &str = "engine";

/// Acme asks, Bolt has: both engines, each of its own tenant; one worker serves both.
struct Scene {
    server: Server,
    acme: Caller,
    bolt: Caller,
    operator: Caller,
    prompt: Vec<u32>,
    /// Of Bolt's namespace.
    bolt_id: String,
    bolt_lease: Vec<u8>,
}

fn of(tenant: &str) -> v1::Namespace {
    v1::Namespace {
        tenant_key: tenant.into(),
        ..namespace()
    }
}

#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
fn full(tenant: &str) -> Option<v1::NamespaceSelector> {
    Some(v1::NamespaceSelector {
        selector: Some(Selector::Namespace(of(tenant))),
    })
}

#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
fn by_id(id: &str) -> Option<v1::NamespaceSelector> {
    Some(v1::NamespaceSelector {
        selector: Some(Selector::NamespaceId(id.into())),
    })
}

fn registration(
    id: &str,
    namespace: Option<v1::NamespaceSelector>,
    worker: &str,
    prompt: &[u32],
) -> v1::RegisterDonorRequest {
    v1::RegisterDonorRequest {
        namespace,
        owner: owner(worker),
        ..donor(id, prompt.to_vec())
    }
}

fn asked(prompt: &[u32], namespace: Option<v1::NamespaceSelector>) -> v1::FindDonorRequest {
    v1::FindDonorRequest {
        namespace,
        holder: HOLDER.into(),
        request_id: "request".into(),
        readable_store_ids: vec!["store".into()],
        ..lookup(prompt.to_vec())
    }
}

// On the heap: it is awaited in every test.
fn scene() -> std::pin::Pin<Box<dyn Future<Output = Scene>>> {
    Box::pin(make_scene())
}

async fn make_scene() -> Scene {
    let engine = |tenant: &str, workers: &str| {
        format!(", \"tenants\": [\"{tenant}\"], \"workers\": [\"{workers}-*\", \"shared\"]")
    };
    let server = start_with_tokens(&[
        ("acme", "engine", &engine(ACME, "acme")),
        ("bolt", "engine", &engine(BOLT, "bolt")),
        ("operator", "operator", ""),
    ])
    .await;
    let [acme, bolt, operator] = ["acme", "bolt", "operator"].map(|name| server.caller(name));
    let mode = v1::SetModeRequest {
        mode: v1::Mode::Materialize.into(),
        ..Default::default()
    };
    within(operator.admin.clone().set_mode(mode)).await.unwrap();
    let prompt = prompt(1, PROMPT_TOKENS);
    let mut donors = bolt.donors.clone();
    for worker in ["bolt-1", "shared"] {
        let alive = v1::AnnounceOwnerRequest {
            owner: owner(worker),
            generation: 1,
            ttl_ms: 0,
        };
        within(donors.announce_owner(alive)).await.unwrap();
        let shift = usize::from(worker == "shared");
        let request = registration(worker, full(BOLT), worker, &prompt[shift..]);
        within(donors.register_donor(request)).await.unwrap();
    }
    let found = within(donors.find_donor(asked(&prompt, full(BOLT)))).await;
    let found = found.unwrap().into_inner();
    let bolt_lease = found.lease.expect("a lease of its own").id.to_vec();
    Scene {
        server,
        acme,
        bolt,
        operator,
        prompt,
        bolt_id: found.namespace_id,
        bolt_lease,
    }
}

/// All of an answer that a caller can look at.
type Bytes = Result<Vec<u8>, (Code, String, String)>;

fn bytes<M: Message>(answer: Result<Response<M>, Status>) -> Bytes {
    match answer {
        Ok(answer) => Ok(answer.into_inner().encode_to_vec()),
        Err(status) => {
            let mut metadata = status.metadata().clone();
            metadata.remove("date");
            Err((
                status.code(),
                status.message().to_owned(),
                format!("{metadata:?}"),
            ))
        }
    }
}

/// The same without what differs between any two answers: how long they took, and what was asked.
fn found(answer: Result<Response<v1::FindDonorResponse>, Status>, id: Option<&str>) -> Bytes {
    bytes(answer.map(|answer| {
        answer.map(|mut found| {
            if let Some(id) = id {
                assert_eq!(found.namespace_id, id, "as it was asked for");
            }
            assert_eq!(found.namespace_id.len(), 64);
            found.namespace_id.clear();
            found.timings = None;
            found
        })
    }))
}

const UNKNOWN_ID: &str = "00000000000000000000000000000000000000000000000000000000000000aa";

#[tokio::test]
async fn a_look_up_in_anothers_namespace_is_one_in_none() {
    let scene = scene().await;
    let shapes: [fn(&mut v1::FindDonorRequest); 5] = [
        |_| {},
        |it| it.explain = true,
        |it| {
            it.neighbours_max = 5;
            it.text = "what bolt said".into();
        },
        |it| it.segment_donors_max = 8,
        |it| it.request_id = String::new(),
    ];
    for shape in shapes {
        let ask = async |caller: &Caller, namespace| {
            let mut request = asked(&scene.prompt, namespace);
            shape(&mut request);
            within(caller.donors.clone().find_donor(request)).await
        };
        let hit = ask(&scene.bolt, full(BOLT)).await.unwrap().into_inner();
        assert!(hit.r#match.is_some(), "there is something to hide");
        let elsewhere = v1::NamespaceSelector {
            selector: Some(Selector::Namespace(v1::Namespace {
                model: "unused".into(),
                ..of(ACME)
            })),
        };
        let nothing = found(ask(&scene.acme, Some(elsewhere)).await, None);
        assert!(nothing.is_ok());
        let bolt = ask(&scene.acme, full(BOLT)).await;
        assert_eq!(found(bolt, Some(&scene.bolt_id)), nothing);
        assert_eq!(found(ask(&scene.acme, full(NOBODY)).await, None), nothing);
        let known = ask(&scene.acme, by_id(&scene.bolt_id)).await;
        assert_eq!(found(known, Some(&scene.bolt_id)), nothing);
        let unknown = ask(&scene.acme, by_id(UNKNOWN_ID)).await;
        assert_eq!(found(unknown, Some(UNKNOWN_ID)), nothing);
    }
}

/// The answers to these messages over one stream.
async fn all<M, S>(answers: Result<Response<S>, Status>) -> Vec<M>
where
    S: Stream<Item = Result<M, Status>> + Unpin,
{
    let mut answers = answers.unwrap().into_inner();
    let mut all = Vec::new();
    while let Some(answer) = within(answers.next()).await {
        all.push(answer.unwrap());
    }
    all
}

#[tokio::test]
async fn streams_tell_no_more() {
    let scene = scene().await;
    let names = [
        full(BOLT),
        full(NOBODY),
        by_id(&scene.bolt_id),
        by_id(UNKNOWN_ID),
    ];
    let requests = names.clone().map(|namespace| v1::FindDonorsRequest {
        correlation_id: 7,
        request: Some(asked(&scene.prompt, namespace)),
    });
    let mut donors = scene.acme.donors.clone();
    let call = Box::pin(donors.find_donors(tokio_stream::iter(requests)));
    let call = within(call).await;
    let answers = all(call).await.into_iter().map(|answer| {
        let Some(v1::find_donors_response::Result::Answer(answer)) = answer.result else {
            panic!("an error");
        };
        found(Ok(Response::new(answer)), None)
    });
    let answers: Vec<_> = answers.collect();
    assert_eq!(answers.len(), 4);
    assert!(answers.iter().all(|answer| *answer == answers[0]));

    let requests = names.map(|namespace| v1::RegisterDonorsRequest {
        correlation_id: 7,
        request: Some(registration("new", namespace, "acme-1", &scene.prompt)),
    });
    let requests = tokio_stream::iter(Vec::from(requests));
    let call = within(donors.register_donors(requests)).await;
    let refusals: Vec<_> = all(call).await.iter().map(Message::encode_to_vec).collect();
    assert_eq!(refusals[0], refusals[1], "in full");
    assert_eq!(refusals[2], refusals[3], "by id");
}

#[tokio::test]
async fn writes_into_anothers_namespace_are_refused_as_into_none() {
    let scene = scene().await;
    let mut donors = scene.acme.donors.clone();
    let mut pairs = Vec::new();
    for (hidden, none) in [
        (full(BOLT), full(NOBODY)),
        (by_id(&scene.bolt_id), by_id(UNKNOWN_ID)),
    ] {
        for namespace in [hidden, none] {
            let request = registration("bolt-1", namespace.clone(), "acme-1", &scene.prompt);
            let registered = bytes(within(donors.register_donor(request)).await);
            use v1::remove_donors_request::What;
            let ids = v1::DonorIds {
                namespace: namespace.clone(),
                donor_ids: vec!["bolt-1".into()],
            };
            let mut removed = Vec::new();
            for what in [
                What::Donors(ids),
                What::Namespace(namespace.clone().unwrap()),
            ] {
                let request = v1::RemoveDonorsRequest { what: Some(what) };
                removed.push(bytes(within(donors.remove_donors(request)).await));
            }
            let workers = v1::FindWorkersRequest {
                tokens: tokens(scene.prompt.clone()),
                namespace: namespace.clone(),
                pick: true,
                ..Default::default()
            };
            let workers = scene.acme.events.clone().find_workers(workers).await;
            pairs.push((registered, removed, bytes(workers)));
        }
    }
    let [in_full, in_none, by_id, by_no_id] = &pairs[..] else {
        panic!("four");
    };
    assert_eq!(in_full, in_none);
    assert_eq!(by_id, by_no_id);
    let code = |answer: &Bytes| answer.as_ref().map(|_| ()).map_err(|(code, ..)| *code);
    assert_eq!(code(&in_full.0), Err(Code::PermissionDenied));
    assert_eq!(code(&by_id.0), Err(Code::NotFound));
    assert_eq!(in_full.1, [Ok(Vec::new()), Ok(Vec::new())], "removed: 0");
    assert_eq!(in_full.2, Ok(Vec::new()), "no workers");
    let mine = bytes(
        within(
            scene
                .bolt
                .donors
                .clone()
                .find_donor(asked(&scene.prompt, full(BOLT))),
        )
        .await,
    );
    assert!(mine.is_ok());
    let names = scene.names(&scene.bolt).await;
    assert_eq!(
        (names[0].namespace_id.as_str(), names[0].donors),
        (&*scene.bolt_id, 2)
    );
}

#[tokio::test]
async fn anothers_lease_is_one_that_was_never_given() {
    let scene = scene().await;
    let mut guessed = scene.bolt_lease.clone();
    *guessed.last_mut().unwrap() ^= 1;
    let mut answers = Vec::new();
    for lease in [&scene.bolt_lease, &guessed] {
        let (id, holder) = (lease.clone(), HOLDER.to_owned());
        let mut leases = scene.acme.leases.clone();
        let validate = v1::ValidateRequest {
            lease_id: id.clone().into(),
            holder: holder.clone(),
        };
        let renew = v1::RenewRequest {
            lease_id: id.clone().into(),
            holder: holder.clone(),
            ttl_ms: 0,
        };
        let release = v1::ReleaseRequest {
            lease_id: id.clone().into(),
            holder: holder.clone(),
        };
        let report = v1::ReportReuseRequest {
            holder,
            lease_id: id.into(),
            provenance: v1::ReuseProvenance::CandidateRejected.into(),
            ..Default::default()
        };
        let validated = within(leases.validate(validate)).await;
        let state = validated.as_ref().unwrap().get_ref().state();
        assert_eq!(state, LeaseState::Unknown);
        answers.push([
            bytes(validated),
            bytes(within(leases.renew(renew)).await),
            bytes(within(leases.release(release)).await),
            bytes(within(scene.acme.donors.clone().report_reuse(report)).await),
        ]);
    }
    assert_eq!(answers[0], answers[1]);
    let validate = v1::ValidateRequest {
        lease_id: scene.bolt_lease.clone().into(),
        holder: HOLDER.into(),
    };
    let mine = within(scene.bolt.leases.clone().validate(validate))
        .await
        .unwrap();
    assert_eq!(mine.into_inner().state(), LeaseState::Valid);
}

#[tokio::test]
async fn a_worker_that_the_token_does_not_name_is_out_of_reach() {
    let scene = scene().await;
    let mut donors = scene.acme.donors.clone();
    let mut answers = Vec::new();
    for worker in ["bolt-1", "bolt-none"] {
        let announce = v1::AnnounceOwnerRequest {
            owner: owner(worker),
            generation: 9,
            ttl_ms: 0,
        };
        let what = v1::remove_donors_request::What::Owner(owner(worker).unwrap());
        let remove = v1::RemoveDonorsRequest { what: Some(what) };
        let publish = v1::PublishRequest {
            owner: owner(worker),
            ..Default::default()
        };
        let mut events = scene.acme.events.clone();
        let published = within(events.publish(tokio_stream::once(publish))).await;
        let published = within(published.unwrap().into_inner().message()).await;
        let register = registration("d", full(ACME), worker, &scene.prompt);
        answers.push([
            bytes(within(donors.announce_owner(announce)).await),
            bytes(within(donors.remove_donors(remove)).await),
            bytes(within(donors.register_donor(register)).await),
            bytes(published.map(|answer| Response::new(answer.unwrap()))),
        ]);
    }
    assert_eq!(answers[0], answers[1]);
    for answer in &answers[0] {
        let code = answer.as_ref().unwrap_err().0;
        assert_eq!(code, Code::PermissionDenied);
    }
}

#[tokio::test]
async fn workers_that_the_token_does_not_name_are_not_there() {
    let scene = scene().await;
    for (caller, tenant, worker) in [
        (&scene.bolt, BOLT, "bolt-1"),
        (&scene.bolt, BOLT, "shared"),
        (&scene.acme, ACME, "acme-1"),
    ] {
        let hello = v1::PublishRequest {
            owner: owner(worker),
            namespace: full(tenant),
            ..Default::default()
        };
        let mut events = caller.events.clone();
        let call = events.publish(tokio_stream::once(hello));
        all(within(call).await).await;
    }
    let seen = async |caller: &Caller, namespace| {
        let request = v1::FindWorkersRequest {
            tokens: tokens(scene.prompt.clone()),
            namespace,
            pick: true,
            ..Default::default()
        };
        let found = within(caller.events.clone().find_workers(request)).await;
        let found = found.unwrap().into_inner();
        let picked = found.picked.map(|owner| owner.worker_id);
        let name = |it: v1::WorkerMatch| it.owner.unwrap().worker_id;
        (
            found.workers.into_iter().map(name).collect::<Vec<_>>(),
            picked,
        )
    };
    let (everybody, _) = seen(&scene.operator, full(BOLT)).await;
    assert_eq!(everybody, ["acme-1", "bolt-1", "shared"]);
    for _ in 0..8 {
        let (workers, picked) = seen(&scene.acme, full(ACME)).await;
        assert_eq!(workers, ["acme-1", "shared"]);
        assert!(workers.contains(&picked.unwrap()));
    }
    for hidden in [full(BOLT), full(NOBODY), None] {
        assert_eq!(seen(&scene.acme, hidden).await, (Vec::new(), None));
    }
}

#[tokio::test]
async fn a_worker_that_serves_both_loses_the_callers_donors_alone() {
    let scene = scene().await;
    let mut donors = scene.acme.donors.clone();
    let request = registration("mine", full(ACME), "shared", &scene.prompt);
    within(donors.register_donor(request)).await.unwrap();
    let what = v1::remove_donors_request::What::Owner(owner("shared").unwrap());
    let remove = v1::RemoveDonorsRequest { what: Some(what) };
    let removed = within(donors.remove_donors(remove)).await.unwrap();
    assert_eq!(removed.into_inner().removed, 1);
    assert_eq!(scene.names(&scene.bolt).await[0].donors, 2);
}

#[tokio::test]
async fn lists_and_counts_are_of_what_the_token_names() {
    let scene = scene().await;
    let names = |listed: &[v1::NamespaceStatus]| {
        let tenant = |it: &v1::NamespaceStatus| it.namespace.as_ref().unwrap().tenant_key.clone();
        listed.iter().map(tenant).collect::<Vec<_>>()
    };
    assert!(scene.names(&scene.acme).await.is_empty());
    assert_eq!(names(&scene.names(&scene.bolt).await), [BOLT]);
    let still = |status: v1::GetStatusResponse| v1::GetStatusResponse {
        uptime_ms: 0,
        ..status
    };
    let before = still(scene.acme.status().await.unwrap());
    let more = registration("more", full(BOLT), "bolt-1", &prompt(9, PROMPT_TOKENS));
    within(scene.bolt.donors.clone().register_donor(more))
        .await
        .unwrap();
    assert_eq!(still(scene.acme.status().await.unwrap()), before);
    assert_eq!(scene.operator.status().await.unwrap().donors, 3);
}

#[tokio::test]
async fn an_operator_of_some_tenants_sets_their_modes_alone() {
    let of_acme = format!(", \"tenants\": [\"{ACME}\"], \"workers\": []");
    let server =
        start_with_tokens(&[("acme", "operator", &of_acme), ("all", "operator", "")]).await;
    let set = async |caller: &str, namespace: Option<v1::NamespaceSelector>| {
        let mut admin = server.caller(caller).admin;
        let mode = v1::Mode::Disabled.into();
        let gates = None;
        bytes(
            within(admin.set_mode(v1::SetModeRequest {
                namespace,
                mode,
                gates,
            }))
            .await,
        )
    };
    assert!(set("acme", full(ACME)).await.is_ok());
    assert!(set("all", full(BOLT)).await.is_ok());
    assert_eq!(
        set("acme", None).await.unwrap_err().0,
        Code::PermissionDenied
    );
    let hidden = set("acme", full(BOLT)).await;
    assert_eq!(hidden, set("acme", full(NOBODY)).await);
    assert_eq!(hidden.unwrap_err().0, Code::PermissionDenied);
}

#[tokio::test]
async fn an_event_about_anothers_donors_is_refused_as_about_none() {
    let scene = scene().await;
    let event = |worker: &str, tenant: &str, id: u64| {
        let text = serde_json::json!({
            "schema_version": 1, "event_id": id, "worker_id": worker, "dp_rank": 0,
            "data": {
                "kind": "donor_registered", "donor_id": "d",
                "namespace": {
                    "model": "test-model", "tokenizer": "test-tokenizer", "kv_layout": "NHD",
                    "block_size": 16, "extra": {"tenant_key": tenant},
                },
                "location": {
                    "kind": "worker", "worker_id": worker, "dp_rank": 0, "tier": "hbm",
                },
                "token_count": 64, "provider_generation": 1,
                "segments": [{"segment_id": 0, "token_range": [0, 64], "digest": "00",
                              "provider_metadata": [0, 0, 128, 63]}],
            },
        });
        v1::PublishDonorEventsRequest {
            event: text.to_string().into_bytes().into(),
        }
    };
    let purge = |worker: &str| v1::PublishDonorEventsRequest {
        event: serde_json::json!({
            "schema_version": 1, "event_id": 1, "worker_id": worker, "dp_rank": 0,
            "data": {"kind": "donors_purged"},
        })
        .to_string()
        .into_bytes()
        .into(),
    };
    let send = async |caller: &Caller, requests: Vec<v1::PublishDonorEventsRequest>| {
        let mut events = caller.events.clone();
        let call = events.publish_donor_events(tokio_stream::iter(requests));
        all(within(call).await).await
    };
    let own = send(&scene.bolt, vec![event("bolt-1", BOLT, 1)]).await;
    let applied = v1::DonorEventOutcome::Applied;
    assert_eq!(own[0].outcome(), applied, "{}", own[0].detail);
    let refused = send(
        &scene.acme,
        vec![
            event("bolt-1", BOLT, 2),
            event("bolt-none", BOLT, 2),
            event("acme-1", BOLT, 2),
            event("acme-1", NOBODY, 2),
            event("bolt-1", ACME, 2),
            purge("bolt-1"),
            purge("bolt-none"),
        ],
    )
    .await;
    assert_eq!(refused.len(), 7);
    for answer in &refused {
        assert_eq!(*answer, refused[0]);
        assert_eq!(answer.outcome(), v1::DonorEventOutcome::Refused);
    }
    let mine = send(&scene.acme, vec![event("acme-1", ACME, 1)]).await;
    assert_eq!(mine[0].outcome(), applied, "{}", mine[0].detail);
}

impl Scene {
    async fn names(&self, caller: &Caller) -> Vec<v1::NamespaceStatus> {
        assert!(!self.server.log().contains("panicked"));
        let mut admin = caller.admin.clone();
        let listed = within(admin.list_namespaces(v1::ListNamespacesRequest::default())).await;
        listed.unwrap().into_inner().namespaces
    }
}

//! Long streams, pages, settings and what the server says of itself.

use kvatlas_proto::v1::{self, namespace_selector::Selector};
use tempfile::TempDir;
use tonic::Code;
use tonic_reflection::pb;

use crate::common::{
    self, Clients, ServerProcess, donor, lookup, namespace, prior_file, prompt, selector,
    serve_command, upload, within,
};

const STREAM_CALLS: u64 = 1000;
const PAGES_MAX: usize = 100;
const SERVICES: [&str; 8] = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "kvatlas.v1.Admin",
    "kvatlas.v1.Donors",
    "kvatlas.v1.Events",
    "kvatlas.v1.Leases",
    "kvatlas.v1.Routing",
];

#[tokio::test]
async fn a_thousand_manifests_come_in_order_around_bad_requests() {
    let server = common::start();
    put_prior(&server.clients, "known", "").await;
    // Every fifth is bad, in one of four ways.
    let request = |number: u64| {
        let (prefix_hash, k) = match number % 20 {
            0 => ("unknown", 4),
            5 => ("known", 0),
            10 => ("", 4),
            15 => return None,
            _ => ("known", 4),
        };
        Some(v1::GetManifestRequest {
            prefix_hash: prefix_hash.into(),
            k,
            ..Default::default()
        })
    };
    let requests = (0..STREAM_CALLS).map(move |number| v1::GetManifestsRequest {
        correlation_id: number * 7,
        request: request(number),
    });
    let mut routing = server.clients.routing.clone();
    let opened = within(routing.get_manifests(tokio_stream::iter(requests))).await;
    let mut answers = opened.unwrap().into_inner();
    for number in 0..STREAM_CALLS {
        let answer = within(answers.message()).await.unwrap().unwrap();
        assert_eq!(answer.correlation_id, number * 7);
        let code = match answer.result.unwrap() {
            v1::get_manifests_response::Result::Manifest(manifest) => {
                assert_eq!(manifest.block_indices, [10, 102, 174, 242]);
                Code::Ok
            }
            v1::get_manifests_response::Result::Error(error) => Code::from(error.code),
        };
        let expected = match number % 20 {
            0 => Code::NotFound,
            5 | 10 | 15 => Code::InvalidArgument,
            _ => Code::Ok,
        };
        assert_eq!(code, expected, "{number}");
    }
    assert!(within(answers.message()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_thousand_look_ups_come_in_order_around_bad_requests() {
    let server = common::start();
    let mut donors = server.clients.donors.clone();
    within(donors.register_donor(donor("kept", prompt(1, 128))))
        .await
        .unwrap();
    let requests = (0..STREAM_CALLS).map(|number| v1::FindDonorsRequest {
        correlation_id: STREAM_CALLS - number,
        request: match number % 10 {
            0 => None,
            // Without a common token.
            5 => Some(lookup(prompt(2, 128))),
            _ => Some(lookup(prompt(1, 128))),
        },
    });
    let opened = within(donors.find_donors(tokio_stream::iter(requests))).await;
    let mut answers = opened.unwrap().into_inner();
    for number in 0..STREAM_CALLS {
        let answer = within(answers.message()).await.unwrap().unwrap();
        assert_eq!(answer.correlation_id, STREAM_CALLS - number);
        let outcome = match answer.result.unwrap() {
            v1::find_donors_response::Result::Answer(found) => Ok(found.outcome()),
            v1::find_donors_response::Result::Error(error) => Err(Code::from(error.code)),
        };
        let expected = match number % 10 {
            0 => Err(Code::InvalidArgument),
            5 => Ok(v1::FindOutcome::Miss),
            _ => Ok(v1::FindOutcome::Prefix),
        };
        assert_eq!(outcome, expected, "{number}");
    }
    assert!(within(answers.message()).await.unwrap().is_none());
}

#[tokio::test]
async fn priors_are_listed_in_pages_in_the_order_of_their_keys() {
    let server = common::start();
    for (prefix, query) in [
        ("b", "2"),
        ("a1", ""),
        ("b", ""),
        ("a0", "x"),
        ("a0", ""),
        ("c", ""),
    ] {
        put_prior(&server.clients, prefix, query).await;
    }
    let all = [
        ("a0", ""),
        ("a0", "x"),
        ("a1", ""),
        ("b", ""),
        ("b", "2"),
        ("c", ""),
    ]
    .map(|(prefix, query)| (prefix.to_owned(), query.to_owned()));
    for size in [1, 2, 3, 6, 7, 0] {
        assert_eq!(
            list(&server.clients, "", size).await,
            all,
            "pages of {size}"
        );
    }
    assert_eq!(list(&server.clients, "a", 2).await, all[..3]);
    assert_eq!(list(&server.clients, "b", 1).await, all[3..5]);
    assert!(list(&server.clients, "d", 1).await.is_empty());
}

async fn list(clients: &Clients, begins: &str, page_size: u32) -> Vec<(String, String)> {
    let mut request = v1::ListPriorsRequest {
        page_size,
        page_token: String::new(),
        prefix_hash_begins: begins.into(),
    };
    let mut keys = Vec::new();
    for _ in 0..PAGES_MAX {
        let mut routing = clients.routing.clone();
        let page = within(routing.list_priors(request.clone())).await.unwrap();
        let page = page.into_inner();
        if page_size > 0 {
            assert!(page.priors.len() <= page_size as usize);
        }
        let of_page = page.priors.into_iter();
        keys.extend(of_page.map(|prior| (prior.prefix_hash, prior.query_hash)));
        if page.next_page_token.is_empty() {
            return keys;
        }
        request.page_token = page.next_page_token;
    }
    panic!("the pages have no end");
}

#[tokio::test]
async fn namespaces_are_listed_in_pages_in_the_order_of_their_ids() {
    let server = common::start();
    let mut ids = Vec::new();
    for model in ["a", "b", "c", "d", "e"] {
        let mut kept = donor("kept", prompt(1, 128));
        kept.namespace = selector(named(model));
        let mut donors = server.clients.donors.clone();
        let registered = within(donors.register_donor(kept)).await.unwrap();
        ids.push((registered.into_inner().namespace_id, model.to_owned()));
    }
    ids.sort_unstable();
    for page_size in [1, 2, 5, 6, 0] {
        let listed = list_namespaces(&server.clients, page_size).await;
        let listed: Vec<_> = listed
            .into_iter()
            .map(|status| (status.namespace_id, status.namespace.unwrap().model))
            .collect();
        assert_eq!(listed, ids, "pages of {page_size}");
    }
}

async fn list_namespaces(clients: &Clients, page_size: u32) -> Vec<v1::NamespaceStatus> {
    let mut request = v1::ListNamespacesRequest {
        page_size,
        page_token: String::new(),
    };
    let mut all = Vec::new();
    for _ in 0..PAGES_MAX {
        let mut admin = clients.admin.clone();
        let page = within(admin.list_namespaces(request.clone())).await;
        let page = page.unwrap().into_inner();
        all.extend(page.namespaces);
        if page.next_page_token.is_empty() {
            return all;
        }
        request.page_token = page.next_page_token;
    }
    panic!("the pages have no end");
}

#[tokio::test]
async fn modes_and_gates_outlive_the_server_and_the_flag_wins() {
    let folder = TempDir::new().unwrap();
    let mut server = ServerProcess::launch(serve_command(folder.path())).await;
    let clients = server.clients();
    check_modes(&clients, v1::Mode::DiscoveryOnly, &[]).await;
    let gates = v1::Gates {
        min_reuse_tokens: Some(64),
        ..Default::default()
    };
    set(&clients, None, v1::Mode::Materialize, Some(gates)).await;
    set(&clients, Some(named("own")), v1::Mode::Disabled, None).await;
    set(&clients, Some(named("freed")), v1::Mode::Disabled, None).await;
    set(&clients, Some(named("freed")), v1::Mode::Unspecified, None).await;
    let modes = [("own", v1::Mode::Disabled, true)];
    server.kill();

    let mut server = ServerProcess::launch(serve_command(folder.path())).await;
    check_modes(&server.clients(), v1::Mode::Materialize, &modes).await;
    let mut asked = lookup(prompt(1, 128));
    asked.namespace = selector(named("own"));
    let answer = within(server.clients().donors.find_donor(asked)).await;
    let answer = answer.unwrap().into_inner();
    assert_eq!(answer.reason(), v1::FallbackReason::ProviderDisabled);
    let gates = server.clients().status().await.gates.unwrap();
    assert_eq!(gates.min_reuse_tokens, Some(64));
    assert_eq!(gates.min_prompt_tokens, Some(512));
    server.kill();

    let mut command = serve_command(folder.path());
    command.args(["--mode", "discovery-only"]);
    let server = ServerProcess::launch(command).await;
    check_modes(&server.clients(), v1::Mode::DiscoveryOnly, &modes).await;
}

async fn set(
    clients: &Clients,
    namespace: Option<v1::Namespace>,
    mode: v1::Mode,
    gates: Option<v1::Gates>,
) {
    let request = v1::SetModeRequest {
        namespace: namespace.and_then(selector),
        mode: mode.into(),
        gates,
    };
    within(clients.admin.clone().set_mode(request))
        .await
        .unwrap();
}

// The server's mode, and those that namespaces have for themselves.
async fn check_modes(clients: &Clients, server: v1::Mode, own: &[(&str, v1::Mode, bool)]) {
    assert_eq!(clients.status().await.mode(), server);
    let namespaces = list_namespaces(clients, 0).await;
    let modes: Vec<_> = namespaces
        .iter()
        .filter(|status| status.mode_is_own)
        .map(|status| {
            let model = status.namespace.as_ref().unwrap().model.as_str();
            (model, status.mode(), true)
        })
        .collect();
    assert_eq!(modes, own);
    for status in &namespaces {
        assert!(status.mode_is_own || status.mode() == server, "{status:?}");
    }
}

#[tokio::test]
async fn a_namespace_can_be_named_by_the_id_of_an_answer() {
    let server = common::start();
    let mut donors = server.clients.donors.clone();
    let kept = within(donors.register_donor(donor("kept", prompt(1, 128)))).await;
    let id = kept.unwrap().into_inner().namespace_id;
    let mut asked = lookup(prompt(1, 128));
    asked.namespace = Some(v1::NamespaceSelector {
        selector: Some(Selector::NamespaceId(id.clone())),
    });
    let answer = within(donors.find_donor(asked)).await.unwrap().into_inner();
    assert_eq!(answer.outcome(), v1::FindOutcome::Prefix);
    assert_eq!(answer.namespace_id, id);
}

#[tokio::test]
async fn both_reflections_list_every_service() {
    let server = common::start();
    let channel = server.clients.channel.clone();
    {
        use pb::v1::{
            ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
            server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
        };
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut client = ServerReflectionClient::new(channel.clone());
        let asked = client.server_reflection_info(tokio_stream::once(request));
        let mut answers = within(asked).await.unwrap().into_inner();
        let answer = within(answers.message()).await.unwrap().unwrap();
        let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else {
            panic!("{answer:?}");
        };
        check_services(listed.service.into_iter().map(|service| service.name));
    }
    {
        use pb::v1alpha::{
            ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
            server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
        };
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let mut client = ServerReflectionClient::new(channel);
        let asked = client.server_reflection_info(tokio_stream::once(request));
        let mut answers = within(asked).await.unwrap().into_inner();
        let answer = within(answers.message()).await.unwrap().unwrap();
        let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else {
            panic!("{answer:?}");
        };
        check_services(listed.service.into_iter().map(|service| service.name));
    }
}

fn check_services(names: impl Iterator<Item = String>) {
    let mut names: Vec<_> = names.collect();
    names.sort_unstable();
    assert_eq!(names, SERVICES);
}

async fn put_prior(clients: &Clients, prefix_hash: &str, query_hash: &str) {
    let header = v1::PutPriorHeader {
        prefix_hash: prefix_hash.into(),
        query_hash: query_hash.into(),
        ..Default::default()
    };
    let parts = upload(header, &prior_file("perk.pt"));
    let mut routing = clients.routing.clone();
    within(routing.put_prior(tokio_stream::iter(parts)))
        .await
        .unwrap();
}

fn named(model: &str) -> v1::Namespace {
    v1::Namespace {
        model: model.into(),
        ..namespace()
    }
}

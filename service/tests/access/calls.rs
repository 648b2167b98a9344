//! Every call of the contract, under every kind of token.

use std::collections::BTreeMap;

use http::uri::PathAndQuery;
use kvatlas::access::grant;
use prost::Message;
use prost_types::FileDescriptorSet;
use tonic::{Code, Request, Status, client::Grpc};
use tonic_prost::ProstCodec;

use crate::{
    common::within,
    doors::{Caller, start_with_tokens},
};

/// Beside operators, who may call what. Written down a second time, on purpose.
const ENGINES: [&str; 23] = [
    "Routing/GetManifest",
    "Routing/GetManifests",
    "Routing/PutQuery",
    "Routing/GetPrior",
    "Routing/GetKeySummary",
    "Donors/FindDonor",
    "Donors/FindDonors",
    "Donors/AnnounceOwner",
    "Donors/RegisterDonor",
    "Donors/RegisterDonors",
    "Donors/RemoveDonors",
    "Donors/ReportReuse",
    "Leases/Validate",
    "Leases/Renew",
    "Leases/Release",
    "Events/Publish",
    "Events/FindWorkers",
    "Events/FinishRequests",
    "Events/PublishDonorEvents",
    "Admin/GetStatus",
    "Admin/ListNamespaces",
    "ServerReflection/ServerReflectionInfo",
    "Health/Check",
];
const BAKERS: [&str; 17] = [
    "Routing/GetManifest",
    "Routing/GetManifests",
    "Routing/PutQuery",
    "Routing/PutPrior",
    "Routing/GetPrior",
    "Routing/ListPriors",
    "Routing/ReadPrior",
    "Routing/DeletePrior",
    "Routing/PutKeySummary",
    "Routing/GetKeySummary",
    "Routing/ListKeySummaries",
    "Routing/DeleteKeySummary",
    "Routing/PutEncoder",
    "Routing/ListEncoders",
    "Routing/DeleteEncoder",
    "Admin/GetStatus",
    "ServerReflection/ServerReflectionInfo",
];
/// Not for an operator of some tenants; of SetMode the server's mode, which an empty message is.
const WHOLE_SERVER: [&str; 5] = [
    "Admin/SetMode",
    "Admin/AddEventSource",
    "Admin/RemoveEventSource",
    "Admin/ListEventSources",
    "Admin/ReadWindow",
];

/// The path of every call that is served, and whether it is a stream.
fn contract() -> BTreeMap<String, bool> {
    let sets = [
        kvatlas_proto::FILE_DESCRIPTOR_SET,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
        tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
    ];
    let mut paths = BTreeMap::new();
    for set in sets {
        for file in FileDescriptorSet::decode(set).unwrap().file {
            for service in &file.service {
                for method in &service.method {
                    let (service, name) = (service.name(), method.name());
                    let path = format!("/{}.{service}/{name}", file.package());
                    let is_stream = method.client_streaming() || method.server_streaming();
                    paths.insert(path, is_stream);
                }
            }
        }
    }
    paths
}

#[test]
fn every_call_of_the_contract_is_in_the_table_and_no_other() {
    let listed = grant::CALLS.iter();
    let table: BTreeMap<_, _> = listed
        .map(|call| (call.path.to_owned(), call.is_stream))
        .collect();
    assert_eq!(table, contract());
    assert_eq!(table.len(), grant::CALLS.len(), "one is listed twice");
}

// One empty message, and the status that it is answered with at once.
async fn call(caller: &Caller, path: &str) -> Code {
    let mut grpc = Grpc::new(caller.service.clone());
    let path: PathAndQuery = path.parse().unwrap();
    let ask = async {
        grpc.ready()
            .await
            .map_err(|_| Status::unknown("not ready"))?;
        let codec = ProstCodec::<(), ()>::default();
        let request = Request::new(());
        let mut answers = grpc.server_streaming(request, path, codec).await?;
        // A watch has an answer at once and never ends.
        answers.get_mut().message().await
    };
    within(ask)
        .await
        .map_or_else(|status| status.code(), |_| Code::Ok)
}

#[tokio::test]
async fn every_call_is_for_those_that_the_table_says() {
    let tenants = ", \"tenants\": [\"semblend:tenant:v1:none\"], \"workers\": \"*\"";
    let server = start_with_tokens(&[
        ("engine", "engine", ", \"tenants\": \"*\""),
        ("baker", "baker", ""),
        ("operator", "operator", ""),
        ("some", "operator", tenants),
    ])
    .await;
    let paths: Vec<_> = contract().into_keys().collect();
    let check = |name: &'static str, expected: &dyn Fn(&str) -> Code| {
        let caller = server.caller(name);
        let wanted: Vec<_> = paths.iter().map(|path| expected(path)).collect();
        let paths = &paths;
        async move {
            for (path, wanted) in paths.iter().zip(wanted) {
                let code = call(&caller, path).await;
                let is_turned_away =
                    [Code::Unauthenticated, Code::PermissionDenied].contains(&code);
                if wanted == Code::Ok {
                    assert!(!is_turned_away, "{name} {path}: {code:?}");
                } else {
                    assert_eq!(code, wanted, "{name} {path}");
                }
            }
        }
    };
    let is_health = |path: &str| path.starts_with("/grpc.health");
    let is_of = |path: &str, list: &[&str]| list.iter().any(|call| path.ends_with(call));
    let denied_unless = |is_allowed: bool| match is_allowed {
        true => Code::Ok,
        false => Code::PermissionDenied,
    };
    let closed = |path: &str| match is_health(path) {
        true => Code::Ok,
        false => Code::Unauthenticated,
    };
    check("", &closed).await;
    check("unknown", &closed).await;
    let by = |list: &'static [&'static str]| {
        move |path: &str| denied_unless(is_health(path) || is_of(path, list))
    };
    check("engine", &by(&ENGINES)).await;
    check("baker", &by(&BAKERS)).await;
    check("operator", &|_| Code::Ok).await;
    let some = |path: &str| denied_unless(!is_of(path, &WHOLE_SERVER));
    check("some", &some).await;
}

#[tokio::test]
async fn an_unknown_path_is_closed_as_well() {
    let server = start_with_tokens(&[("operator", "operator", "")]).await;
    for path in ["/kvatlas.v1.Donors/Nothing", "/x"] {
        assert_eq!(call(&server.caller(""), path).await, Code::Unauthenticated);
        let code = call(&server.caller("operator"), path).await;
        assert_eq!(code, Code::PermissionDenied, "{path}");
    }
}

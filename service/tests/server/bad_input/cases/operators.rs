//! What can be wrong with leases, reports and what operators ask.

use kvatlas_proto::v1;
use tonic::Code;

use super::{Call, Case, by_id, case, coded};
use crate::bad_input::secret;

pub(crate) fn validate(change: impl FnOnce(&mut v1::ValidateRequest)) -> Call {
    let mut sound = v1::ValidateRequest {
        lease_id: secret(24).into_bytes().into(),
        holder: secret(32),
    };
    change(&mut sound);
    Call::Validate(sound)
}

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn leases_and_reports() -> Vec<Case> {
    let renew = |change: fn(&mut v1::RenewRequest)| {
        let mut sound = v1::RenewRequest {
            lease_id: secret(24).into_bytes().into(),
            holder: secret(32),
            ttl_ms: 0,
        };
        change(&mut sound);
        Call::Renew(sound)
    };
    let release = |change: fn(&mut v1::ReleaseRequest)| {
        let mut sound = v1::ReleaseRequest {
            lease_id: secret(24).into_bytes().into(),
            holder: secret(32),
        };
        change(&mut sound);
        Call::Release(sound)
    };
    let report = |change: fn(&mut v1::ReportReuseRequest)| {
        let mut sound = v1::ReportReuseRequest {
            request_id: secret(31),
            holder: secret(32),
            lease_id: secret(24).into_bytes().into(),
            provenance: v1::ReuseProvenance::FallbackRecompute.into(),
            ..Default::default()
        };
        change(&mut sound);
        Call::Report(sound)
    };
    let long = || secret(129).into_bytes().into();
    vec![
        case("no lease", validate(|it| it.lease_id.clear()), ["lease_id"]),
        case(
            "lease",
            validate(|it| it.lease_id = long()),
            ["lease_id", "128"],
        ),
        case(
            "holder",
            validate(|it| it.holder = secret(257)),
            ["holder", "256"],
        ),
        case("no lease", renew(|it| it.lease_id.clear()), ["lease_id"]),
        case(
            "lease",
            renew(|it| it.lease_id = vec![0; 129].into()),
            ["lease_id", "128"],
        ),
        case("no holder", renew(|it| it.holder.clear()), ["holder"]),
        case(
            "holder",
            renew(|it| it.holder = secret(257)),
            ["holder", "256"],
        ),
        case("ttl", renew(|it| it.ttl_ms = 600_001), ["ttl_ms", "600000"]),
        case("no lease", release(|it| it.lease_id.clear()), ["lease_id"]),
        case(
            "lease",
            release(|it| it.lease_id = vec![0; 129].into()),
            ["lease_id", "128"],
        ),
        case("no holder", release(|it| it.holder.clear()), ["holder"]),
        case(
            "holder",
            release(|it| it.holder = secret(257)),
            ["holder", "256"],
        ),
        case(
            "request",
            report(|it| it.request_id = secret(257)),
            ["request_id", "256"],
        ),
        case(
            "lease",
            report(|it| it.lease_id = vec![0; 129].into()),
            ["lease_id", "128"],
        ),
        case("no holder", report(|it| it.holder.clear()), ["holder"]),
        case(
            "holder",
            report(|it| it.holder = secret(257)),
            ["holder", "256"],
        ),
        case(
            "no provenance",
            report(|it| it.provenance = 0),
            ["provenance"],
        ),
        case(
            "provenance",
            report(|it| it.provenance = 99),
            ["provenance"],
        ),
        case("reason", report(|it| it.reason = 99), ["reason", "99"]),
    ]
}

pub(crate) fn list_namespaces(change: impl FnOnce(&mut v1::ListNamespacesRequest)) -> Call {
    let mut sound = v1::ListNamespacesRequest::default();
    change(&mut sound);
    Call::ListNamespaces(sound)
}

pub(crate) fn operators() -> Vec<Case> {
    let set = |change: fn(&mut v1::SetModeRequest)| {
        let mut sound = v1::SetModeRequest::default();
        change(&mut sound);
        Call::SetMode(sound)
    };
    vec![
        case(
            "page size",
            list_namespaces(|it| it.page_size = 1001),
            ["page_size", "1000"],
        ),
        case(
            "page token",
            list_namespaces(|it| it.page_token = secret(64)),
            ["page_token"],
        ),
        case("no change", set(|_| {}), ["mode"]),
        case("mode", set(|it| it.mode = 99), ["mode", "99"]),
        case(
            "gates",
            set(|it| {
                it.gates = Some(v1::Gates {
                    min_similarity: Some(2.0),
                    ..Default::default()
                });
            }),
            ["gates.min_similarity", "0 to 1"],
        ),
        coded(
            Code::NotFound,
            "unknown namespace",
            set(|it| {
                it.mode = 1;
                it.namespace = by_id("0".repeat(64));
            }),
            ["namespace_id"],
        ),
        case(
            "empty namespace",
            set(|it| {
                it.mode = 1;
                it.namespace = Some(v1::NamespaceSelector::default());
            }),
            ["namespace"],
        ),
    ]
}

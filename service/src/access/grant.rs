//! Who may call what: the one table of every call, and the rule over it.

use std::fmt;

use crate::donors::scope::Scope;

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// An engine's connector: asks for manifests and donors, tells what its workers hold.
    Engine,
    /// Makes priors, key summaries and encoders, and tries them.
    Baker,
    /// Everything.
    Operator,
}

impl Role {
    #[must_use]
    pub fn parse(name: &str) -> Option<Role> {
        match name {
            "engine" => Some(Role::Engine),
            "baker" => Some(Role::Baker),
            "operator" => Some(Role::Operator),
            _ => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Role::Engine => "engine",
            Role::Baker => "baker",
            Role::Operator => "operator",
        })
    }
}

/// Who beside operators may make a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Callers {
    Everybody,
    Engines,
    Bakers,
    EnginesAndBakers,
    /// Operators alone.
    Operators,
    /// Operators alone, and of them those that may name everything: what it shows or changes is of
    /// all tenants.
    WholeServer,
    /// As `--health` says.
    Health,
    /// As `--reflection` says.
    Reflection,
}

/// One call of the wire contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub path: &'static str,
    pub callers: Callers,
    /// Whether it can last: then it ends when its token does.
    pub is_stream: bool,
}

const fn one(path: &'static str, callers: Callers) -> Call {
    Call {
        path,
        callers,
        is_stream: false,
    }
}

const fn stream(path: &'static str, callers: Callers) -> Call {
    Call {
        path,
        callers,
        is_stream: true,
    }
}

/// Every call that is served, the most frequent first. What is not listed is refused.
pub const CALLS: &[Call] = &[
    one("/kvatlas.v1.Routing/GetManifest", Callers::EnginesAndBakers),
    one("/kvatlas.v1.Donors/FindDonor", Callers::Engines),
    one("/kvatlas.v1.Leases/Validate", Callers::Engines),
    one("/kvatlas.v1.Leases/Release", Callers::Engines),
    one("/kvatlas.v1.Events/FindWorkers", Callers::Engines),
    one("/kvatlas.v1.Donors/ReportReuse", Callers::Engines),
    one("/kvatlas.v1.Donors/RegisterDonor", Callers::Engines),
    one("/kvatlas.v1.Routing/PutQuery", Callers::EnginesAndBakers),
    one("/kvatlas.v1.Leases/Renew", Callers::Engines),
    one("/kvatlas.v1.Events/FinishRequests", Callers::Engines),
    one("/kvatlas.v1.Donors/AnnounceOwner", Callers::Engines),
    one("/kvatlas.v1.Donors/RemoveDonors", Callers::Engines),
    stream(
        "/kvatlas.v1.Routing/GetManifests",
        Callers::EnginesAndBakers,
    ),
    stream("/kvatlas.v1.Donors/FindDonors", Callers::Engines),
    stream("/kvatlas.v1.Donors/RegisterDonors", Callers::Engines),
    stream("/kvatlas.v1.Events/Publish", Callers::Engines),
    stream("/kvatlas.v1.Events/PublishDonorEvents", Callers::Engines),
    stream("/kvatlas.v1.Routing/PutPrior", Callers::Bakers),
    one("/kvatlas.v1.Routing/GetPrior", Callers::EnginesAndBakers),
    one("/kvatlas.v1.Routing/ListPriors", Callers::Bakers),
    stream("/kvatlas.v1.Routing/ReadPrior", Callers::Bakers),
    one("/kvatlas.v1.Routing/DeletePrior", Callers::Bakers),
    stream("/kvatlas.v1.Routing/PutKeySummary", Callers::Bakers),
    one(
        "/kvatlas.v1.Routing/GetKeySummary",
        Callers::EnginesAndBakers,
    ),
    one("/kvatlas.v1.Routing/ListKeySummaries", Callers::Bakers),
    one("/kvatlas.v1.Routing/DeleteKeySummary", Callers::Bakers),
    one("/kvatlas.v1.Routing/PutEncoder", Callers::Bakers),
    one("/kvatlas.v1.Routing/ListEncoders", Callers::Bakers),
    one("/kvatlas.v1.Routing/DeleteEncoder", Callers::Bakers),
    one("/kvatlas.v1.Admin/GetStatus", Callers::Everybody),
    one("/kvatlas.v1.Admin/ListNamespaces", Callers::Engines),
    one("/kvatlas.v1.Admin/SetMode", Callers::Operators),
    one("/kvatlas.v1.Admin/AddEventSource", Callers::WholeServer),
    one("/kvatlas.v1.Admin/RemoveEventSource", Callers::WholeServer),
    one("/kvatlas.v1.Admin/ListEventSources", Callers::WholeServer),
    stream("/kvatlas.v1.Admin/ReadWindow", Callers::WholeServer),
    one("/grpc.health.v1.Health/Check", Callers::Health),
    stream("/grpc.health.v1.Health/Watch", Callers::Health),
    stream(
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        Callers::Reflection,
    ),
    stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        Callers::Reflection,
    ),
];

/// The call of that path.
#[must_use]
pub fn call(path: &str) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.path == path)
}

/// Whether a token of that role and scope may make the call.
#[must_use]
pub fn allows(role: Role, scope: &Scope, callers: Callers) -> bool {
    match (callers, role) {
        (Callers::Everybody | Callers::Health | Callers::Reflection, _)
        | (Callers::Engines | Callers::EnginesAndBakers, Role::Engine)
        | (Callers::Bakers | Callers::EnginesAndBakers, Role::Baker)
        | (
            Callers::Engines | Callers::Bakers | Callers::EnginesAndBakers | Callers::Operators,
            Role::Operator,
        ) => true,
        (Callers::WholeServer, Role::Operator) => scope.is_everything(),
        (Callers::Bakers | Callers::Operators | Callers::WholeServer, Role::Engine)
        | (Callers::Engines | Callers::Operators | Callers::WholeServer, Role::Baker) => false,
    }
}

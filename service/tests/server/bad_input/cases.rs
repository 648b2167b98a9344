//! The table of refusals: a sound request for each call, and what can be wrong with it.

pub(crate) mod donors;
pub(crate) mod namespaces;
pub(crate) mod operators;
pub(crate) mod routing;

use kvatlas_proto::v1::{self, namespace_selector::Selector};
use tonic::{Code, Status};

use crate::common::{self, Clients, within};

/// One request that is refused.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) call: Call,
    pub(crate) code: Code,
    /// What the message says: the field, and the limit.
    pub(crate) words: Vec<&'static str>,
}

pub(crate) enum Call {
    Manifest(v1::GetManifestRequest),
    Put(v1::PutPriorHeader),
    Get(v1::GetPriorRequest),
    List(v1::ListPriorsRequest),
    Read(v1::ReadPriorRequest),
    Delete(v1::DeletePriorRequest),
    Find(v1::FindDonorRequest),
    Register(v1::RegisterDonorRequest),
    Announce(v1::AnnounceOwnerRequest),
    Remove(v1::RemoveDonorsRequest),
    Report(v1::ReportReuseRequest),
    Validate(v1::ValidateRequest),
    Renew(v1::RenewRequest),
    Release(v1::ReleaseRequest),
    ListNamespaces(v1::ListNamespacesRequest),
    SetMode(v1::SetModeRequest),
}

impl Call {
    pub(crate) async fn send(self, clients: &Clients) -> Result<(), Status> {
        let Clients {
            mut routing,
            mut donors,
            mut leases,
            mut admin,
            ..
        } = clients.clone();
        within(async {
            match self {
                Call::Manifest(asked) => routing.get_manifest(asked).await.map(drop),
                Call::Put(header) => {
                    let parts = common::upload(header, &common::prior_file("perk.pt"));
                    routing.put_prior(tokio_stream::iter(parts)).await.map(drop)
                }
                Call::Get(asked) => routing.get_prior(asked).await.map(drop),
                Call::List(asked) => routing.list_priors(asked).await.map(drop),
                Call::Read(asked) => routing.read_prior(asked).await.map(drop),
                Call::Delete(asked) => routing.delete_prior(asked).await.map(drop),
                Call::Find(asked) => donors.find_donor(asked).await.map(drop),
                Call::Register(asked) => donors.register_donor(asked).await.map(drop),
                Call::Announce(asked) => donors.announce_owner(asked).await.map(drop),
                Call::Remove(asked) => donors.remove_donors(asked).await.map(drop),
                Call::Report(asked) => donors.report_reuse(asked).await.map(drop),
                Call::Validate(asked) => leases.validate(asked).await.map(drop),
                Call::Renew(asked) => leases.renew(asked).await.map(drop),
                Call::Release(asked) => leases.release(asked).await.map(drop),
                Call::ListNamespaces(asked) => admin.list_namespaces(asked).await.map(drop),
                Call::SetMode(asked) => admin.set_mode(asked).await.map(drop),
            }
        })
        .await
    }
}

pub(crate) fn all() -> Vec<Case> {
    let tables = [
        routing::manifests(),
        routing::headers(),
        routing::priors(),
        donors::look_ups(),
        donors::registrations(),
        donors::owners_and_removals(),
        operators::leases_and_reports(),
        operators::operators(),
        namespaces::namespaces(),
    ];
    tables.into_iter().flatten().collect()
}

pub(crate) fn case<const N: usize>(
    name: &'static str,
    call: Call,
    words: [&'static str; N],
) -> Case {
    Case {
        name,
        call,
        code: Code::InvalidArgument,
        words: words.into(),
    }
}

pub(crate) fn coded<const N: usize>(
    code: Code,
    name: &'static str,
    call: Call,
    words: [&'static str; N],
) -> Case {
    Case {
        code,
        ..case(name, call, words)
    }
}

#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
pub(crate) fn by_id(id: String) -> Option<v1::NamespaceSelector> {
    Some(v1::NamespaceSelector {
        selector: Some(Selector::NamespaceId(id)),
    })
}

#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
pub(crate) fn packed(bytes: usize) -> Option<v1::Tokens> {
    Some(v1::Tokens {
        ids: Vec::new(),
        packed: vec![0; bytes].into(),
    })
}

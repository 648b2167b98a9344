//! The table of refusals: a sound request for each call, and what can be wrong with it.

use kvatlas_proto::v1::{self, namespace_selector::Selector, remove_donors_request::What};
use tonic::{Code, Status};

use super::{SECRET_TEXT, secret, secret_prompt};
use crate::common::{self, Clients, selector, tokens, within};

/// One request that is refused.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) call: Call,
    pub(super) code: Code,
    /// What the message says: the field, and the limit.
    pub(super) words: Vec<&'static str>,
}

pub(super) enum Call {
    Manifest(v1::GetManifestRequest),
    Put(v1::PutPriorHeader),
    Get(v1::GetPriorRequest),
    List(v1::ListPriorsRequest),
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
    pub(super) async fn send(self, clients: &Clients) -> Result<(), Status> {
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

type StringOf = fn(&mut v1::Namespace) -> &mut String;

pub(super) const NAMESPACE_STRINGS: [(&str, StringOf); 13] = [
    ("namespace.model", |it| &mut it.model),
    ("namespace.model_revision", |it| &mut it.model_revision),
    ("namespace.tokenizer", |it| &mut it.tokenizer),
    ("namespace.tokenizer_revision", |it| {
        &mut it.tokenizer_revision
    }),
    ("namespace.tokenization", |it| &mut it.tokenization),
    ("namespace.chat_template", |it| &mut it.chat_template),
    ("namespace.dtype", |it| &mut it.dtype),
    ("namespace.kv_cache_dtype", |it| &mut it.kv_cache_dtype),
    ("namespace.kv_layout", |it| &mut it.kv_layout),
    ("namespace.attention_backend", |it| {
        &mut it.attention_backend
    }),
    ("namespace.adapter", |it| &mut it.adapter),
    ("namespace.rope_scaling", |it| &mut it.rope_scaling),
    ("namespace.tenant_key", |it| &mut it.tenant_key),
];

type NumberOf = fn(&mut v1::Namespace) -> &mut u32;

const NAMESPACE_NUMBERS: [(&str, NumberOf, u32, &str); 3] = [
    (
        "namespace.block_size",
        |it| &mut it.block_size,
        4097,
        "4096",
    ),
    (
        "namespace.tensor_parallel_size",
        |it| &mut it.tensor_parallel_size,
        65_537,
        "65536",
    ),
    (
        "namespace.pipeline_parallel_size",
        |it| &mut it.pipeline_parallel_size,
        65_537,
        "65536",
    ),
];

pub(super) fn all() -> Vec<Case> {
    let tables = [
        manifests(),
        headers(),
        priors(),
        look_ups(),
        registrations(),
        owners_and_removals(),
        leases_and_reports(),
        operators(),
        namespaces(),
    ];
    tables.into_iter().flatten().collect()
}

fn case<const N: usize>(name: &'static str, call: Call, words: [&'static str; N]) -> Case {
    Case {
        name,
        call,
        code: Code::InvalidArgument,
        words: words.into(),
    }
}

fn coded<const N: usize>(
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

// Whole, with a secret in every string that may hold one.
fn secret_namespace() -> v1::Namespace {
    let mut namespace = common::namespace();
    for (name, field) in NAMESPACE_STRINGS {
        if name != "namespace.tenant_key" {
            *field(&mut namespace) = secret(30);
        }
    }
    namespace.multimodal_hashes = vec![secret(30)];
    namespace
}

pub(super) fn manifest(change: impl FnOnce(&mut v1::GetManifestRequest)) -> Call {
    let mut sound = v1::GetManifestRequest {
        prefix_hash: secret(40),
        query_hash: secret(50),
        k: 4,
        ..Default::default()
    };
    change(&mut sound);
    Call::Manifest(sound)
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn manifests() -> Vec<Case> {
    let unknown = |it: &mut v1::GetManifestRequest| it.prefix_hash = secret(41);
    vec![
        case(
            "no prefix",
            manifest(|it| it.prefix_hash.clear()),
            ["prefix_hash", "512"],
        ),
        case(
            "prefix",
            manifest(|it| it.prefix_hash = secret(513)),
            ["prefix_hash", "512"],
        ),
        case(
            "query",
            manifest(|it| it.query_hash = secret(513)),
            ["query_hash", "512"],
        ),
        case(
            "algorithm",
            manifest(|it| it.algorithm = secret(129)),
            ["algorithm", "128"],
        ),
        case("no k", manifest(|it| it.k = 0), ["k:", "1048576"]),
        case("k", manifest(|it| it.k = 1_048_577), ["k:", "1048576"]),
        case(
            "policy",
            manifest(|it| it.policy = secret(20)),
            ["policy:", "top-k"],
        ),
        case(
            "long policy",
            manifest(|it| it.policy = secret(5000)),
            ["policy:", "bytes"],
        ),
        case(
            "budget against k",
            manifest(|it| it.policy = "A1R1K8".into()),
            ["k:", "10"],
        ),
        case(
            "total_blocks",
            manifest(|it| it.total_blocks = 1_048_577),
            ["total_blocks", "1048576"],
        ),
        case(
            "fallback",
            manifest(|it| it.fallback_policy = secret(20)),
            ["fallback_policy:", "recency"],
        ),
        case(
            "fallback that needs a prior",
            manifest(|it| it.fallback_policy = "top-k".into()),
            ["fallback_policy:"],
        ),
        case(
            "fallback without blocks",
            manifest(|it| {
                unknown(it);
                it.fallback_policy = "recency".into();
            }),
            ["total_blocks"],
        ),
        case(
            "lease",
            manifest(|it| it.lease_ttl_ms = 600_001),
            ["lease_ttl_ms", "600000"],
        ),
        coded(
            Code::NotFound,
            "unknown prefix",
            manifest(unknown),
            ["prefix_hash"],
        ),
        coded(
            Code::Unimplemented,
            "online",
            manifest(|it| it.algorithm = "kri-q".into()),
            ["algorithm"],
        ),
        coded(
            Code::Unimplemented,
            "query vectors",
            manifest(|it| it.query = Some(v1::QueryVectors::default())),
            ["query:"],
        ),
        coded(
            Code::Unimplemented,
            "query tokens",
            manifest(|it| {
                it.query_tokens = Some(v1::QueryTokens {
                    encoder: secret(20),
                    ..Default::default()
                });
            }),
            ["query_tokens:"],
        ),
        coded(
            Code::FailedPrecondition,
            "total_blocks against the prior",
            manifest(|it| it.total_blocks = 4),
            ["total_blocks"],
        ),
    ]
}

/// Of a sound upload.
pub(super) fn header() -> v1::PutPriorHeader {
    v1::PutPriorHeader {
        prefix_hash: secret(40),
        query_hash: secret(50),
        algorithm: secret(60),
        repair: Some(v1::Repair {
            name: secret(30),
            ratio: 0.5,
        }),
        ..Default::default()
    }
}

fn headers() -> Vec<Case> {
    let put = |change: fn(&mut v1::PutPriorHeader)| {
        let mut sound = header();
        change(&mut sound);
        Call::Put(sound)
    };
    let repair = |length: usize, ratio: f32| {
        let mut sound = header();
        sound.repair = Some(v1::Repair {
            name: secret(length),
            ratio,
        });
        Call::Put(sound)
    };
    vec![
        case(
            "no prefix",
            put(|it| it.prefix_hash.clear()),
            ["prefix_hash", "512"],
        ),
        case(
            "prefix",
            put(|it| it.prefix_hash = secret(513)),
            ["prefix_hash", "512"],
        ),
        case(
            "query",
            put(|it| it.query_hash = secret(513)),
            ["query_hash", "512"],
        ),
        case(
            "algorithm",
            put(|it| it.algorithm = secret(129)),
            ["algorithm", "128"],
        ),
        case("format", put(|it| it.format = 99), ["format", "99"]),
        case("pooling", put(|it| it.pooling = 99), ["pooling", "99"]),
        case(
            "size",
            put(|it| it.size_bytes = 4_194_305),
            ["size_bytes", "4194304"],
        ),
        case("no repair name", repair(0, 0.5), ["repair.name", "64"]),
        case("repair name", repair(65, 0.5), ["repair.name", "64"]),
        case("ratio over 1", repair(9, 1.1), ["repair.ratio", "0 to 1"]),
        case("ratio below 0", repair(9, -0.1), ["repair.ratio", "0 to 1"]),
        case(
            "ratio no number",
            repair(9, f32::NAN),
            ["repair.ratio", "0 to 1"],
        ),
    ]
}

pub(super) fn list(change: impl FnOnce(&mut v1::ListPriorsRequest)) -> Call {
    let mut sound = v1::ListPriorsRequest::default();
    change(&mut sound);
    Call::List(sound)
}

fn priors() -> Vec<Case> {
    let key = |change: fn(&mut v1::PriorKey)| {
        let mut sound = v1::PriorKey {
            prefix_hash: secret(40),
            query_hash: secret(51),
            algorithm: secret(60),
        };
        change(&mut sound);
        Some(sound)
    };
    let mut cases = vec![
        case(
            "page size",
            list(|it| it.page_size = 1001),
            ["page_size", "1000"],
        ),
        case(
            "page token",
            list(|it| it.page_token = secret(20)),
            ["page_token"],
        ),
        case(
            "begins",
            list(|it| it.prefix_hash_begins = secret(513)),
            ["prefix_hash_begins", "512"],
        ),
        case(
            "no key",
            Call::Get(v1::GetPriorRequest { key: None }),
            ["key"],
        ),
        case(
            "no key",
            Call::Delete(v1::DeletePriorRequest { key: None }),
            ["key"],
        ),
    ];
    type Change = fn(&mut v1::PriorKey);
    let wrong: [(&str, Change, &str); 4] = [
        ("no prefix", |it| it.prefix_hash.clear(), "prefix_hash"),
        ("prefix", |it| it.prefix_hash = secret(513), "512"),
        ("query", |it| it.query_hash = secret(513), "512"),
        ("algorithm", |it| it.algorithm = secret(129), "128"),
    ];
    for (name, change, word) in wrong {
        let get = v1::GetPriorRequest { key: key(change) };
        cases.push(case(name, Call::Get(get), ["key.", word]));
        let delete = v1::DeletePriorRequest { key: key(change) };
        cases.push(case(name, Call::Delete(delete), ["key.", word]));
    }
    let get = v1::GetPriorRequest { key: key(|_| {}) };
    cases.push(coded(
        Code::NotFound,
        "unknown",
        Call::Get(get),
        ["no prior"],
    ));
    let delete = v1::DeletePriorRequest { key: key(|_| {}) };
    cases.push(coded(
        Code::NotFound,
        "unknown",
        Call::Delete(delete),
        ["no prior"],
    ));
    cases
}

pub(super) fn find(change: impl FnOnce(&mut v1::FindDonorRequest)) -> Call {
    let mut sound = common::lookup(secret_prompt(64));
    sound.namespace = selector(secret_namespace());
    sound.request_id = secret(31);
    sound.holder = secret(32);
    sound.readable_store_ids = vec![secret(33)];
    sound.text = SECRET_TEXT.into();
    sound.explain = true;
    change(&mut sound);
    Call::Find(sound)
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn look_ups() -> Vec<Case> {
    let gates = |gates: v1::Gates| find(|it| it.gates = Some(gates));
    let mut cases = vec![
        case("no tokens", find(|it| it.tokens = None), ["tokens"]),
        case(
            "tokens twice",
            find(|it| it.tokens.as_mut().unwrap().packed = vec![0; 4].into()),
            ["tokens", "packed"],
        ),
        case(
            "odd bytes",
            find(|it| it.tokens = packed(5)),
            ["tokens.packed", "4"],
        ),
        case(
            "tokens",
            find(|it| it.tokens = packed(4_194_308)),
            ["tokens", "1048576"],
        ),
        case(
            "prefix",
            find(|it| it.exact_prefix_tokens = 65),
            ["exact_prefix_tokens", "64"],
        ),
        case(
            "request id",
            find(|it| it.request_id = secret(257)),
            ["request_id", "256"],
        ),
        case(
            "holder",
            find(|it| it.holder = secret(257)),
            ["holder", "256"],
        ),
        case(
            "stores",
            find(|it| it.readable_store_ids = vec![secret(9); 65]),
            ["readable_store_ids", "64"],
        ),
        case(
            "store",
            find(|it| it.readable_store_ids = vec![secret(257)]),
            ["readable_store_ids", "256"],
        ),
        case(
            "no store",
            find(|it| it.readable_store_ids = vec![String::new()]),
            ["readable_store_ids"],
        ),
        case(
            "tier",
            find(|it| it.minimum_tier = 99),
            ["minimum_tier", "99"],
        ),
        case(
            "lease",
            find(|it| it.lease_ttl_ms = 600_001),
            ["lease_ttl_ms", "600000"],
        ),
        case(
            "segments",
            find(|it| it.segment_donors_max = 9),
            ["segment_donors_max", "8"],
        ),
        coded(
            Code::Unimplemented,
            "one segment",
            find(|it| it.segment_donors_max = 1),
            ["segment_donors_max"],
        ),
        case(
            "namespace id",
            find(|it| it.namespace = by_id(secret(64))),
            ["namespace_id", "64"],
        ),
    ];
    for share in [-0.1, 1.1, f32::NAN] {
        let share = Some(share);
        let similarity = v1::Gates {
            min_similarity: share,
            ..Default::default()
        };
        let ratio = v1::Gates {
            min_reuse_ratio: share,
            ..Default::default()
        };
        let skip = v1::Gates {
            exact_prefix_skip_ratio: share,
            ..Default::default()
        };
        cases.extend([
            case(
                "gates",
                gates(similarity),
                ["gates.min_similarity", "0 to 1"],
            ),
            case("gates", gates(ratio), ["gates.min_reuse_ratio", "0 to 1"]),
            case(
                "gates",
                gates(skip),
                ["gates.exact_prefix_skip_ratio", "0 to 1"],
            ),
        ]);
    }
    cases
}

/// A sound registration with a secret in every string.
pub(super) fn registration() -> v1::RegisterDonorRequest {
    v1::RegisterDonorRequest {
        donor_id: secret(34),
        namespace: selector(secret_namespace()),
        owner: common::owner(&secret(35)),
        owner_generation: 1,
        tokens: tokens(secret_prompt(64)),
        captured_tokens: 64,
        exact_tokens: 64,
        medium: v1::Medium::Host.into(),
        store_id: secret(36),
        source_request_id: secret(37),
        block_hashes: vec![secret(32).into_bytes().into()],
        text: SECRET_TEXT.into(),
    }
}

fn register(change: impl FnOnce(&mut v1::RegisterDonorRequest)) -> Call {
    let mut sound = registration();
    change(&mut sound);
    Call::Register(sound)
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn registrations() -> Vec<Case> {
    vec![
        case("no id", register(|it| it.donor_id.clear()), ["donor_id"]),
        case(
            "id",
            register(|it| it.donor_id = secret(257)),
            ["donor_id", "256"],
        ),
        case(
            "no namespace",
            register(|it| it.namespace = None),
            ["namespace"],
        ),
        case(
            "namespace id",
            register(|it| it.namespace = by_id(secret(64))),
            ["namespace_id", "64"],
        ),
        coded(
            Code::NotFound,
            "unknown namespace",
            register(|it| it.namespace = by_id("0".repeat(64))),
            ["namespace_id"],
        ),
        case("no owner", register(|it| it.owner = None), ["owner"]),
        case(
            "no worker",
            register(|it| it.owner = common::owner("")),
            ["owner.worker_id"],
        ),
        case(
            "worker",
            register(|it| it.owner = common::owner(&secret(257))),
            ["owner.worker_id", "256"],
        ),
        case(
            "generation",
            register(|it| it.owner_generation = 0),
            ["owner_generation", "1"],
        ),
        case("no tokens", register(|it| it.tokens = None), ["tokens"]),
        case(
            "odd bytes",
            register(|it| it.tokens = packed(7)),
            ["tokens.packed", "4"],
        ),
        case(
            "tokens",
            register(|it| it.tokens = packed(4_194_308)),
            ["tokens", "1048576"],
        ),
        case(
            "captured",
            register(|it| it.captured_tokens = 65),
            ["captured_tokens", "64"],
        ),
        case(
            "exact",
            register(|it| it.exact_tokens = 65),
            ["exact_tokens", "64"],
        ),
        case("no medium", register(|it| it.medium = 0), ["medium"]),
        case("medium", register(|it| it.medium = 99), ["medium", "99"]),
        case("no store", register(|it| it.store_id.clear()), ["store_id"]),
        case(
            "store",
            register(|it| it.store_id = secret(257)),
            ["store_id", "256"],
        ),
        case(
            "source",
            register(|it| it.source_request_id = secret(257)),
            ["source_request_id", "256"],
        ),
        case(
            "hashes",
            register(|it| it.block_hashes = vec![vec![1].into(); 65]),
            ["block_hashes", "64"],
        ),
    ]
}

pub(super) fn announce(change: impl FnOnce(&mut v1::AnnounceOwnerRequest)) -> Call {
    let mut sound = v1::AnnounceOwnerRequest {
        owner: common::owner(&secret(35)),
        generation: 1,
        ttl_ms: 0,
    };
    change(&mut sound);
    Call::Announce(sound)
}

/// By id, in a namespace that nobody knows.
pub(super) fn remove_ids(donor_ids: Vec<String>) -> Call {
    let mut namespace = common::namespace();
    namespace.model = secret(38);
    remove(Some(What::Donors(v1::DonorIds {
        namespace: selector(namespace),
        donor_ids,
    })))
}

fn remove(what: Option<What>) -> Call {
    Call::Remove(v1::RemoveDonorsRequest { what })
}

fn owners_and_removals() -> Vec<Case> {
    let nowhere = v1::DonorIds {
        namespace: None,
        donor_ids: vec![secret(9)],
    };
    let nobody = v1::Owner::default();
    vec![
        case("no owner", announce(|it| it.owner = None), ["owner"]),
        case(
            "no worker",
            announce(|it| it.owner = common::owner("")),
            ["owner.worker_id"],
        ),
        case(
            "worker",
            announce(|it| it.owner = common::owner(&secret(257))),
            ["owner.worker_id", "256"],
        ),
        case(
            "generation",
            announce(|it| it.generation = 0),
            ["generation", "1"],
        ),
        case("ttl", announce(|it| it.ttl_ms = 999), ["ttl_ms", "1000"]),
        case(
            "ttl",
            announce(|it| it.ttl_ms = 3_600_001),
            ["ttl_ms", "3600000"],
        ),
        case("nothing", remove(None), ["what"]),
        case(
            "no worker",
            remove(Some(What::Owner(nobody))),
            ["owner.worker_id"],
        ),
        case(
            "empty namespace",
            remove(Some(What::Namespace(v1::NamespaceSelector::default()))),
            ["namespace"],
        ),
        case(
            "no namespace",
            remove(Some(What::Donors(nowhere))),
            ["namespace"],
        ),
        case("no ids", remove_ids(vec![]), ["donor_ids", "1000"]),
        case(
            "ids",
            remove_ids(vec![secret(9); 1001]),
            ["donor_ids", "1000"],
        ),
        case("no id", remove_ids(vec![String::new()]), ["donor_ids"]),
        case("id", remove_ids(vec![secret(257)]), ["donor_ids", "256"]),
    ]
}

pub(super) fn validate(change: impl FnOnce(&mut v1::ValidateRequest)) -> Call {
    let mut sound = v1::ValidateRequest {
        lease_id: secret(24).into_bytes().into(),
        holder: secret(32),
    };
    change(&mut sound);
    Call::Validate(sound)
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn leases_and_reports() -> Vec<Case> {
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

pub(super) fn list_namespaces(change: impl FnOnce(&mut v1::ListNamespacesRequest)) -> Call {
    let mut sound = v1::ListNamespacesRequest::default();
    change(&mut sound);
    Call::ListNamespaces(sound)
}

fn operators() -> Vec<Case> {
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

/// Every required field empty, one at a time, and the namespace itself.
pub(super) fn incomplete_namespaces() -> Vec<(&'static str, Option<v1::NamespaceSelector>)> {
    let mut incomplete = vec![
        ("namespace", None),
        ("namespace", Some(v1::NamespaceSelector::default())),
    ];
    for (name, field) in NAMESPACE_STRINGS {
        for blank in ["", " \t"] {
            let mut namespace = secret_namespace();
            *field(&mut namespace) = blank.into();
            incomplete.push((name, selector(namespace)));
        }
    }
    for (name, field, ..) in NAMESPACE_NUMBERS {
        let mut namespace = secret_namespace();
        *field(&mut namespace) = 0;
        incomplete.push((name, selector(namespace)));
    }
    incomplete
}

fn namespaces() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut both = |name, namespace: v1::Namespace, limit| {
        let looked_up = selector(namespace.clone());
        cases.push(case(
            name,
            find(|it| it.namespace = looked_up),
            [name, limit],
        ));
        let registered = selector(namespace);
        cases.push(case(
            name,
            register(|it| it.namespace = registered),
            [name, limit],
        ));
    };
    for (name, field) in NAMESPACE_STRINGS {
        let mut namespace = secret_namespace();
        *field(&mut namespace) = secret(513);
        both(name, namespace, "512");
    }
    for (name, field, value, limit) in NAMESPACE_NUMBERS {
        let mut namespace = secret_namespace();
        *field(&mut namespace) = value;
        both(name, namespace, limit);
    }
    for (hashes, limit) in [
        (vec![secret(9); 65], "64"),
        (vec![secret(129)], "128"),
        (vec![String::new()], "128"),
    ] {
        let mut namespace = secret_namespace();
        namespace.multimodal_hashes = hashes;
        both("namespace.multimodal_hashes", namespace, limit);
    }
    for key in [secret(40), format!("semblend:tenant:v1:{}", secret(32))] {
        let mut namespace = secret_namespace();
        namespace.tenant_key = key;
        both("namespace.tenant_key", namespace, "32");
    }
    for (name, namespace) in incomplete_namespaces() {
        let call = register(|it| it.namespace = namespace);
        cases.push(case(name, call, [name, "required"]));
    }
    cases
}

#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
fn by_id(id: String) -> Option<v1::NamespaceSelector> {
    Some(v1::NamespaceSelector {
        selector: Some(Selector::NamespaceId(id)),
    })
}

#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
fn packed(bytes: usize) -> Option<v1::Tokens> {
    Some(v1::Tokens {
        ids: Vec::new(),
        packed: vec![0; bytes].into(),
    })
}

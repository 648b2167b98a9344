//! What can be wrong with look-ups, registrations, announcements and removals.

use kvatlas_proto::v1::{self, remove_donors_request::What};
use tonic::Code;

use super::{Call, Case, by_id, case, coded, namespaces::secret_namespace, packed};
use crate::{
    bad_input::{SECRET_TEXT, secret, secret_prompt},
    common::{self, selector, tokens},
};

pub(crate) fn find(change: impl FnOnce(&mut v1::FindDonorRequest)) -> Call {
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
pub(crate) fn look_ups() -> Vec<Case> {
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
pub(crate) fn registration() -> v1::RegisterDonorRequest {
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

pub(crate) fn register(change: impl FnOnce(&mut v1::RegisterDonorRequest)) -> Call {
    let mut sound = registration();
    change(&mut sound);
    Call::Register(sound)
}

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn registrations() -> Vec<Case> {
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
            "worker that no source can name",
            register(|it| it.owner = common::owner(&format!("{}\n", secret(9)))),
            ["owner.worker_id", "control characters"],
        ),
        case(
            "generation",
            register(|it| it.owner_generation = 0),
            ["owner_generation", "1"],
        ),
        case(
            "a generation that none can follow",
            register(|it| it.owner_generation = 253_402_300_800_000),
            ["owner_generation", "253402300799999"],
        ),
        case(
            "a number that is 0",
            register(|it| {
                let mut namespace = secret_namespace();
                namespace.block_size = 0;
                it.namespace = selector(namespace);
            }),
            ["block_size", "numbers begin at 1"],
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
        case(
            "short hash",
            register(|it| it.block_hashes = vec![vec![1; 7].into()]),
            ["block_hashes", "8"],
        ),
        case(
            "hash of a length that no event has",
            register(|it| it.block_hashes = vec![vec![1; 24].into()]),
            ["block_hashes", "8, 16 or 32"],
        ),
        case(
            "long hash",
            register(|it| it.block_hashes = vec![vec![1; 64].into()]),
            ["block_hashes", "8, 16 or 32"],
        ),
        case(
            "hashes of a device",
            register(|it| {
                it.medium = v1::Medium::Device.into();
                it.block_hashes.push(secret(8).into_bytes().into());
            }),
            ["block_hashes", "2"],
        ),
    ]
}

pub(crate) fn announce(change: impl FnOnce(&mut v1::AnnounceOwnerRequest)) -> Call {
    let mut sound = v1::AnnounceOwnerRequest {
        owner: common::owner(&secret(35)),
        generation: 1,
        ttl_ms: 0,
    };
    change(&mut sound);
    Call::Announce(sound)
}

/// By id, in a namespace that nobody knows.
pub(crate) fn remove_ids(donor_ids: Vec<String>) -> Call {
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

pub(crate) fn owners_and_removals() -> Vec<Case> {
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
        case(
            "a generation that none can follow",
            announce(|it| it.generation = u64::MAX),
            ["generation", "253402300799999"],
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

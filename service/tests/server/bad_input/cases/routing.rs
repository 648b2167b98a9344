//! What can be wrong with manifests and priors.

use kvatlas_proto::v1;
use tonic::Code;

use super::{Call, Case, case, coded};
use crate::bad_input::{SECRET_TOKEN, secret};

pub(crate) fn manifest(change: impl FnOnce(&mut v1::GetManifestRequest)) -> Call {
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
pub(crate) fn manifests() -> Vec<Case> {
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
        case(
            "online without a query",
            manifest(|it| {
                it.algorithm = "kri-q".into();
                it.query_hash.clear();
            }),
            ["query", "query_tokens", "query_hash"],
        ),
        case(
            "query vectors that nothing scores",
            manifest(|it| it.query = Some(Box::default())),
            ["query:", "kri-q"],
        ),
        case(
            "query tokens that nothing scores",
            manifest(|it| it.query_tokens = Some(query_tokens())),
            ["query_tokens:", "kri-q"],
        ),
        coded(
            Code::NotFound,
            "unknown encoder",
            manifest(|it| {
                it.algorithm = "kri-q".into();
                it.query_tokens = Some(query_tokens());
            }),
            ["query_tokens.encoder"],
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
pub(crate) fn header() -> v1::PutPriorHeader {
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

pub(crate) fn headers() -> Vec<Case> {
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
        case(
            "no stored prior",
            put(|it| it.format = v1::PriorFormat::Stored.into()),
            ["the file:", "not a stored prior"],
        ),
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

pub(crate) fn list(change: impl FnOnce(&mut v1::ListPriorsRequest)) -> Call {
    let mut sound = v1::ListPriorsRequest::default();
    change(&mut sound);
    Call::List(sound)
}

pub(crate) fn priors() -> Vec<Case> {
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
    ];
    let calls: [Keyed; 3] = [
        |key| Call::Get(v1::GetPriorRequest { key }),
        |key| Call::Read(v1::ReadPriorRequest { key }),
        |key| Call::Delete(v1::DeletePriorRequest { key }),
    ];
    cases.extend(calls.into_iter().flat_map(of_a_key));
    cases
}

/// A call that names one prior.
type Keyed = fn(Option<v1::PriorKey>) -> Call;

/// What can be wrong with its key.
fn of_a_key(call: Keyed) -> Vec<Case> {
    let sound = || v1::PriorKey {
        prefix_hash: secret(40),
        query_hash: secret(51),
        algorithm: secret(60),
    };
    type Change = fn(&mut v1::PriorKey);
    let wrong: [(&str, Change, &str); 4] = [
        ("no prefix", |it| it.prefix_hash.clear(), "prefix_hash"),
        ("prefix", |it| it.prefix_hash = secret(513), "512"),
        ("query", |it| it.query_hash = secret(513), "512"),
        ("algorithm", |it| it.algorithm = secret(129), "128"),
    ];
    let mut cases = vec![case("no key", call(None), ["key"])];
    for (name, change, word) in wrong {
        let mut key = sound();
        change(&mut key);
        cases.push(case(name, call(Some(key)), ["key.", word]));
    }
    let unknown = call(Some(sound()));
    cases.push(coded(Code::NotFound, "unknown", unknown, ["no prior"]));
    cases
}

fn query_tokens() -> Box<v1::QueryTokens> {
    Box::new(v1::QueryTokens {
        tokens: SECRET_TOKEN.to_le_bytes().to_vec().into(),
        encoder: secret(20),
        ..Default::default()
    })
}

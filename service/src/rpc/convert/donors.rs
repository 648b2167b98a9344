//! Donor messages from and to the wire.

use bytes::Bytes;
use kvatlas_events::event::EngineHash;
use kvatlas_proto::v1;
use tonic::Status;

use super::{answers::reason_to_wire, check_length, invalid, namespace, ttl};
use crate::donors::{
    gate::{GateOverrides, Gates},
    owners::{OwnerKey, WORKER_ID_BYTES_MAX},
    vocabulary::{FallbackReason, Medium, Mode, Tier},
    writes::{Admission, NewDonor, Registered, Removal},
};

/// Longest prompt, in tokens.
pub const PROMPT_TOKENS_MAX: usize = 1 << 20;
/// Most stores that a recipient can list.
pub const STORE_IDS_MAX: usize = 64;
/// Longest id of a store, request or donor, in bytes.
pub const ID_BYTES_MAX: usize = 256;
/// Most donors that one call removes by id.
pub const REMOVED_IDS_MAX: usize = 1000;
/// Most donors whose spans are combined.
pub const SEGMENT_DONORS_MAX: u32 = 8;
/// Most neighbours that a miss lists.
pub const NEIGHBOURS_MAX: u32 = 5;
/// Longest text of a prompt, in bytes.
pub const TEXT_BYTES_MAX: usize = 4 << 20;
/// Of a block's hash, the bytes that are its name: the last, as in events.
const BLOCK_NAME_BYTES: usize = 8;
/// Lengths of blocks' hashes that engines have.
const BLOCK_HASH_BYTES: [usize; 3] = [8, 16, 32];
/// Longest announcement, in milliseconds.
const OWNER_TTL_MS_MAX: u32 = 3_600_000;
const OWNER_TTL_MS_MIN: u32 = 1000;
const OWNER_TTL_MS: u32 = 30_000;

/// A look-up whose fields have been checked.
#[derive(Debug)]
pub struct Lookup {
    pub tokens: Vec<u32>,
    pub namespace: namespace::LookupNamespace,
    pub exact_prefix_tokens: u32,
    pub request_id: String,
    pub holder: String,
    pub readable_store_ids: Vec<String>,
    pub gates: GateOverrides,
    pub accept_spans: bool,
    pub asynchronous_load: bool,
    pub minimum_tier: Tier,
    pub explain: bool,
    pub lease_ttl_ms: u32,
    pub text: String,
    pub segment_donors_max: u32,
    pub neighbours_max: u32,
}

/// Checks a look-up.
pub fn lookup(request: v1::FindDonorRequest, lease_ttl_ms: u32) -> Result<Lookup, Status> {
    let v1::FindDonorRequest {
        tokens: prompt,
        namespace,
        exact_prefix_tokens,
        request_id,
        holder,
        readable_store_ids,
        gates,
        accept_spans,
        asynchronous_load,
        minimum_tier,
        explain,
        lease_ttl_ms: wanted_ttl_ms,
        text,
        segment_donors_max,
        neighbours_max,
    } = request;
    let prompt = tokens(prompt)?;
    if exact_prefix_tokens as usize > prompt.len() {
        let problem = format!(
            "{exact_prefix_tokens}, the prompt has {} tokens",
            prompt.len()
        );
        return Err(invalid("exact_prefix_tokens", problem));
    }
    check_length("request_id", &request_id, 0, ID_BYTES_MAX)?;
    check_length("holder", &holder, 0, crate::leases::HOLDER_BYTES_MAX)?;
    if readable_store_ids.len() > STORE_IDS_MAX {
        let problem = format!("{} ids, at most {STORE_IDS_MAX}", readable_store_ids.len());
        return Err(invalid("readable_store_ids", problem));
    }
    for id in &readable_store_ids {
        check_length("readable_store_ids", id, 1, ID_BYTES_MAX)?;
    }
    if segment_donors_max > SEGMENT_DONORS_MAX {
        let problem = format!("{segment_donors_max}, at most {SEGMENT_DONORS_MAX}");
        return Err(invalid("segment_donors_max", problem));
    }
    if neighbours_max > NEIGHBOURS_MAX {
        let problem = format!("{neighbours_max}, at most {NEIGHBOURS_MAX}");
        return Err(invalid("neighbours_max", problem));
    }
    check_length("text", &text, 0, TEXT_BYTES_MAX)?;
    Ok(Lookup {
        tokens: prompt,
        namespace: namespace::for_lookup(namespace)?,
        exact_prefix_tokens,
        request_id,
        holder,
        readable_store_ids,
        gates: gates
            .as_ref()
            .map_or(Ok(GateOverrides::default()), gate_overrides)?,
        accept_spans,
        asynchronous_load,
        minimum_tier: tier(minimum_tier)?,
        explain,
        lease_ttl_ms: ttl("lease_ttl_ms", wanted_ttl_ms, lease_ttl_ms)?,
        text,
        segment_donors_max,
        neighbours_max,
    })
}

/// Checks a registration and cuts its tokens to the captured ones. Its text is dropped here where
/// the operator has not enabled text.
pub fn registration(
    request: v1::RegisterDonorRequest,
    now_ms: u64,
    keeps_text: bool,
) -> Result<NewDonor, Status> {
    let v1::RegisterDonorRequest {
        donor_id,
        namespace,
        owner,
        owner_generation,
        tokens: prompt,
        captured_tokens,
        exact_tokens,
        medium,
        store_id,
        source_request_id,
        block_hashes,
        text,
    } = request;
    check_length("donor_id", &donor_id, 1, ID_BYTES_MAX)?;
    let namespace = namespace::required(namespace)?;
    let owner = owner_key(owner)?;
    check_generation("owner_generation", owner_generation)?;
    let mut captured = tokens(prompt)?;
    if captured_tokens as usize > captured.len() {
        let problem = format!(
            "{captured_tokens}, the prompt has {} tokens",
            captured.len()
        );
        return Err(invalid("captured_tokens", problem));
    }
    if exact_tokens > captured_tokens {
        let problem = format!("{exact_tokens}, captured_tokens is {captured_tokens}");
        return Err(invalid("exact_tokens", problem));
    }
    let medium = self::medium(medium)?;
    let names = block_names(&block_hashes, captured_tokens)?;
    check_length("store_id", &store_id, 1, ID_BYTES_MAX)?;
    check_length("source_request_id", &source_request_id, 0, ID_BYTES_MAX)?;
    check_length("text", &text, 0, TEXT_BYTES_MAX)?;
    captured.truncate(captured_tokens as usize);
    captured.shrink_to_fit();
    Ok(NewDonor {
        donor_id: donor_id.into(),
        namespace,
        owner,
        owner_generation,
        captured,
        exact_tokens,
        medium,
        store_id: store_id.into(),
        source_request_id: source_request_id.into(),
        // Of use where the owner's events tell what became of its blocks.
        block_names: if medium == Medium::Device {
            names
        } else {
            Vec::new()
        },
        text: (keeps_text && !text.is_empty()).then(|| text.into()),
        now_ms,
    })
}

// Of each the last eight bytes. Whether there are as many as blocks is seen where the namespace is
// known: here it may be named by its id.
fn block_names(hashes: &[Bytes], captured_tokens: u32) -> Result<Vec<EngineHash>, Status> {
    if hashes.len() > captured_tokens as usize {
        let problem = format!(
            "{} hashes for {captured_tokens} captured tokens",
            hashes.len()
        );
        return Err(invalid("block_hashes", problem));
    }
    let name = |hash: &Bytes| match hash.last_chunk::<BLOCK_NAME_BYTES>() {
        Some(last) if BLOCK_HASH_BYTES.contains(&hash.len()) => {
            Ok(EngineHash(u64::from_be_bytes(*last)))
        }
        Some(_) | None => {
            let problem = format!("a hash of {} bytes, must be 8, 16 or 32", hash.len());
            Err(invalid("block_hashes", problem))
        }
    };
    hashes.iter().map(name).collect()
}

/// An announcement: the owner, its generation, and how long it lasts in milliseconds.
pub fn announcement(request: v1::AnnounceOwnerRequest) -> Result<(OwnerKey, u64, u32), Status> {
    let v1::AnnounceOwnerRequest {
        owner,
        generation,
        ttl_ms,
    } = request;
    let owner = owner_key(owner)?;
    check_generation("generation", generation)?;
    match ttl_ms {
        0 => Ok((owner, generation, OWNER_TTL_MS)),
        OWNER_TTL_MS_MIN..=OWNER_TTL_MS_MAX => Ok((owner, generation, ttl_ms)),
        _ => {
            let problem = format!("{ttl_ms} ms, must be {OWNER_TTL_MS_MIN} to {OWNER_TTL_MS_MAX}");
            Err(invalid("ttl_ms", problem))
        }
    }
}

/// Which donors are to go.
pub fn removal(request: v1::RemoveDonorsRequest) -> Result<Removal, Status> {
    use v1::remove_donors_request::What;
    match request.what {
        None => Err(invalid(
            "what",
            "one of donors, owner, namespace must be given",
        )),
        Some(What::Owner(owner)) => Ok(Removal::Owner(owner_key(Some(owner))?)),
        Some(What::Namespace(selector)) => {
            Ok(Removal::Namespace(namespace::required(Some(selector))?))
        }
        Some(What::Donors(v1::DonorIds {
            namespace,
            donor_ids,
        })) => {
            if donor_ids.is_empty() || donor_ids.len() > REMOVED_IDS_MAX {
                let problem = format!("{} ids, must be 1 to {REMOVED_IDS_MAX}", donor_ids.len());
                return Err(invalid("donor_ids", problem));
            }
            for id in &donor_ids {
                check_length("donor_ids", id, 1, ID_BYTES_MAX)?;
            }
            Ok(Removal::Ids(namespace::required(namespace)?, donor_ids))
        }
    }
}

/// Thresholds that a message sets.
pub fn gate_overrides(gates: &v1::Gates) -> Result<GateOverrides, Status> {
    let v1::Gates {
        min_prompt_tokens,
        min_reuse_tokens,
        min_similarity,
        min_reuse_ratio,
        exact_prefix_skip_ratio,
    } = *gates;
    for (field, value) in [
        ("gates.min_similarity", min_similarity),
        ("gates.min_reuse_ratio", min_reuse_ratio),
        ("gates.exact_prefix_skip_ratio", exact_prefix_skip_ratio),
    ] {
        if value.is_some_and(|value| !(0.0..=1.0).contains(&value)) {
            return Err(invalid(field, "must be 0 to 1"));
        }
    }
    Ok(GateOverrides {
        min_prompt_tokens,
        min_reuse_tokens,
        min_similarity,
        min_reuse_ratio,
        exact_prefix_skip_ratio,
    })
}

#[must_use]
pub fn gates_to_wire(gates: &Gates) -> v1::Gates {
    v1::Gates {
        min_prompt_tokens: Some(gates.min_prompt_tokens),
        min_reuse_tokens: Some(gates.min_reuse_tokens),
        min_similarity: Some(gates.min_similarity),
        min_reuse_ratio: Some(gates.min_reuse_ratio),
        exact_prefix_skip_ratio: Some(gates.exact_prefix_skip_ratio),
    }
}

/// A mode that must be given.
pub fn mode(value: i32) -> Result<Option<Mode>, Status> {
    match v1::Mode::try_from(value) {
        Ok(v1::Mode::Unspecified) => Ok(None),
        Ok(v1::Mode::Disabled) => Ok(Some(Mode::Disabled)),
        Ok(v1::Mode::DiscoveryOnly) => Ok(Some(Mode::DiscoveryOnly)),
        Ok(v1::Mode::Materialize) => Ok(Some(Mode::Materialize)),
        Err(_) => Err(invalid("mode", format!("{value} is not a mode"))),
    }
}

#[must_use]
pub fn mode_to_wire(mode: Mode) -> v1::Mode {
    match mode {
        Mode::Disabled => v1::Mode::Disabled,
        Mode::DiscoveryOnly => v1::Mode::DiscoveryOnly,
        Mode::Materialize => v1::Mode::Materialize,
    }
}

/// The answer on the wire. `decode_ns` is what came before the look-up.
#[must_use]
pub fn registered(registered: Registered) -> v1::RegisterDonorResponse {
    let Registered {
        admission,
        namespace,
        evicted,
    } = registered;
    let (admission, covered_by) = match admission {
        Admission::Added => (v1::Admission::Added, String::new()),
        Admission::Replaced => (v1::Admission::Replaced, String::new()),
        Admission::Covered(by) => (v1::Admission::Covered, by.into()),
        Admission::NothingCaptured => (v1::Admission::NothingCaptured, String::new()),
    };
    v1::RegisterDonorResponse {
        admission: admission.into(),
        namespace_id: namespace.to_string(),
        covered_by,
        evicted,
    }
}

/// A reason that an engine reports; none when it gives none.
pub fn reason(value: i32) -> Result<Option<FallbackReason>, Status> {
    if value == 0 {
        return Ok(None);
    }
    FallbackReason::ALL
        .into_iter()
        .find(|reason| reason_to_wire(*reason) == value)
        .map(Some)
        .ok_or_else(|| invalid("reason", format!("{value} is not a reason")))
}

/// What became of a nomination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provenance {
    ExactLocalPrefixHit,
    ExactExternalHit,
    RequestOnlyReuse,
    CandidateRejected,
    FallbackRecompute,
}

/// A provenance that must be given.
pub fn provenance(value: i32) -> Result<Provenance, Status> {
    match v1::ReuseProvenance::try_from(value) {
        Ok(v1::ReuseProvenance::ExactLocalPrefixHit) => Ok(Provenance::ExactLocalPrefixHit),
        Ok(v1::ReuseProvenance::ExactExternalHit) => Ok(Provenance::ExactExternalHit),
        Ok(v1::ReuseProvenance::RequestOnlyReuse) => Ok(Provenance::RequestOnlyReuse),
        Ok(v1::ReuseProvenance::CandidateRejected) => Ok(Provenance::CandidateRejected),
        Ok(v1::ReuseProvenance::FallbackRecompute) => Ok(Provenance::FallbackRecompute),
        Ok(v1::ReuseProvenance::Unspecified) => Err(invalid("provenance", "must be given")),
        Err(_) => Err(invalid(
            "provenance",
            format!("{value} is not a provenance"),
        )),
    }
}

pub(super) fn tokens(tokens: Option<v1::Tokens>) -> Result<Vec<u32>, Status> {
    let v1::Tokens { ids, packed } = tokens.unwrap_or_default();
    if !ids.is_empty() && !packed.is_empty() {
        return Err(invalid(
            "tokens",
            "ids and packed are given, only one may be",
        ));
    }
    if !packed.len().is_multiple_of(4) {
        let problem = format!("{} bytes, must be a multiple of 4", packed.len());
        return Err(invalid("tokens.packed", problem));
    }
    let count = ids.len() + packed.len() / 4;
    if count == 0 {
        return Err(invalid("tokens", "must not be empty"));
    }
    if count > PROMPT_TOKENS_MAX {
        return Err(invalid(
            "tokens",
            format!("{count} tokens, at most {PROMPT_TOKENS_MAX}"),
        ));
    }
    if packed.is_empty() {
        return Ok(ids);
    }
    let (words, _) = packed.as_chunks::<4>();
    Ok(words.iter().map(|word| u32::from_le_bytes(*word)).collect())
}

pub(in crate::rpc) fn owner_key(owner: Option<v1::Owner>) -> Result<OwnerKey, Status> {
    let Some(v1::Owner {
        worker_id,
        data_parallel_rank,
    }) = owner
    else {
        return Err(invalid("owner", "must be given"));
    };
    check_length("owner.worker_id", &worker_id, 1, WORKER_ID_BYTES_MAX)?;
    if worker_id.chars().any(char::is_control) {
        return Err(invalid("owner.worker_id", "has control characters"));
    }
    Ok(OwnerKey {
        worker_id: worker_id.into(),
        data_parallel_rank,
    })
}

/// The last millisecond of the year 9999: from a higher generation an owner could never go on.
const GENERATION_MAX: u64 = 253_402_300_799_999;

fn check_generation(field: &str, generation: u64) -> Result<(), Status> {
    match generation {
        1..=GENERATION_MAX => Ok(()),
        _ => Err(invalid(
            field,
            format!("must be from 1 to {GENERATION_MAX}"),
        )),
    }
}

fn tier(value: i32) -> Result<Tier, Status> {
    match v1::Tier::try_from(value) {
        Ok(v1::Tier::Exact) => Ok(Tier::Exact),
        // Nothing semantic is nominated yet: whoever accepts it accepts what is better.
        Ok(v1::Tier::Unspecified | v1::Tier::Verified | v1::Tier::Semantic) => Ok(Tier::Verified),
        Err(_) => Err(invalid("minimum_tier", format!("{value} is not a tier"))),
    }
}

fn medium(value: i32) -> Result<Medium, Status> {
    match v1::Medium::try_from(value) {
        Ok(v1::Medium::Device) => Ok(Medium::Device),
        Ok(v1::Medium::Host) => Ok(Medium::Host),
        Ok(v1::Medium::Disk) => Ok(Medium::Disk),
        Ok(v1::Medium::Unspecified) => Err(invalid("medium", "must be given")),
        Err(_) => Err(invalid("medium", format!("{value} is not a medium"))),
    }
}

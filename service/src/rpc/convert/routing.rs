//! Routing messages from and to the wire.

use bytes::Bytes;
use kvatlas_kernels::Pooling;
use kvatlas_proto::v1;
use tonic::Status;

use super::{check_length, invalid, ttl};
use crate::{
    leases::ManifestToken,
    routing::{
        import::Format,
        manifest::{Manifest, ManifestQuery, Provenance, Reason},
        prior::{Prior, Repair},
        priors::{ALGORITHM_BYTES_MAX, PREFIX_HASH_BYTES_MAX, QUERY_HASH_BYTES_MAX},
    },
};

/// Checks what the manifest domain does not know of, and borrows the rest.
///
/// Returns the query and the lease in milliseconds.
pub fn query(
    request: &v1::GetManifestRequest,
    lease_ttl_ms: u32,
) -> Result<(ManifestQuery<'_>, u32), Status> {
    let v1::GetManifestRequest {
        prefix_hash,
        query_hash,
        k,
        policy,
        algorithm,
        total_blocks,
        fallback_policy,
        // What scoring online looks at: `convert::online`.
        allow_fallback: _,
        lease_ttl_ms: wanted_ttl_ms,
        query: _,
        query_tokens: _,
        similarity: _,
        aggregation: _,
    } = request;
    let lease = ttl("lease_ttl_ms", *wanted_ttl_ms, lease_ttl_ms)?;
    let query = ManifestQuery {
        prefix_hash,
        query_hash,
        k: *k,
        policy,
        algorithm,
        total_blocks: *total_blocks,
        fallback_policy,
    };
    Ok((query, lease))
}

/// A manifest's lease on the wire.
#[must_use]
pub fn lease(token: &ManifestToken, now_ms: u64, ttl_ms: u32) -> v1::Lease {
    v1::Lease {
        id: Bytes::copy_from_slice(token.as_ref()),
        ttl_ms,
        deadline_unix_ms: now_ms.saturating_add(u64::from(ttl_ms)),
    }
}

/// The answer on the wire, with its lease.
#[must_use]
pub fn manifest(manifest: Manifest, lease: v1::Lease) -> v1::GetManifestResponse {
    let prior_generation = manifest.generation();
    let Manifest {
        blocks,
        heads,
        total_blocks,
        effective_k,
        policy,
        prior,
        provenance,
        online,
        reason,
    } = manifest;
    let (block_indices, per_head) = match heads {
        None => (blocks, None),
        Some((layers, kv_heads)) => (
            Vec::new(),
            Some(Box::new(v1::PerHeadBlocks {
                layers,
                kv_heads,
                block_indices: blocks,
            })),
        ),
    };
    let provenance = match provenance {
        Provenance::Prior => v1::ManifestProvenance::Prior,
        Provenance::Online => v1::ManifestProvenance::Online,
        Provenance::PolicyOnly => v1::ManifestProvenance::PolicyOnly,
    };
    let reason = match reason {
        Some(Reason::PriorMissing) => v1::ManifestReason::PriorMissing,
        Some(Reason::PriorShort) => v1::ManifestReason::PriorShort,
        Some(Reason::AllBlocks) => v1::ManifestReason::AllBlocks,
        Some(Reason::OnlineUnavailable) => v1::ManifestReason::OnlineUnavailable,
        Some(Reason::QueryUnknown) => v1::ManifestReason::QueryUnknown,
        None => v1::ManifestReason::Unspecified,
    };
    let prior = prior.as_deref();
    let of_prior = prior.map(|prior| prior.key.algorithm.as_ref());
    let algorithm = online.map(|online| online.algorithm).or(of_prior);
    v1::GetManifestResponse {
        block_indices,
        total_blocks,
        effective_k,
        algorithm: algorithm.unwrap_or_default().to_owned(),
        policy: policy.tag(),
        prior_generation,
        repair: prior
            .and_then(|prior| prior.repair.as_ref())
            .map(repair_to_wire),
        lease: Some(lease),
        provenance: provenance.into(),
        reason: reason.into(),
        per_head,
    }
}

/// An upload's header whose fields have been checked as far as the wire goes.
#[derive(Debug)]
pub struct UploadHeader {
    pub prefix_hash: String,
    pub query_hash: String,
    pub algorithm: String,
    pub format: Option<Format>,
    pub pooling: Pooling,
    pub repair: Option<Repair>,
    /// 0: not said.
    pub size_bytes: u64,
}

pub fn upload_header(header: v1::PutPriorHeader, bytes_max: u64) -> Result<UploadHeader, Status> {
    let v1::PutPriorHeader {
        prefix_hash,
        query_hash,
        algorithm,
        format,
        pooling,
        repair,
        size_bytes,
    } = header;
    let format = self::format(format)?;
    let pooling = match v1::Pooling::try_from(pooling) {
        Ok(v1::Pooling::Unspecified | v1::Pooling::Mean) => Pooling::Mean,
        Ok(v1::Pooling::Max) => Pooling::Max,
        Err(_) => return Err(invalid("pooling", format!("{pooling} is not a pooling"))),
    };
    // Before the file comes rather than after it.
    check_length("prefix_hash", &prefix_hash, 1, PREFIX_HASH_BYTES_MAX)?;
    check_length("query_hash", &query_hash, 0, QUERY_HASH_BYTES_MAX)?;
    check_length("algorithm", &algorithm, 0, ALGORITHM_BYTES_MAX)?;
    if size_bytes > bytes_max {
        return Err(invalid(
            "size_bytes",
            format!("{size_bytes}, at most {bytes_max}"),
        ));
    }
    let repair = repair.map(|v1::Repair { name, ratio }| Repair {
        name: name.into(),
        ratio,
    });
    Ok(UploadHeader {
        prefix_hash,
        query_hash,
        algorithm,
        format,
        pooling,
        repair,
        size_bytes,
    })
}

/// A file's format; none where its first bytes are to tell.
pub fn format(number: i32) -> Result<Option<Format>, Status> {
    match v1::PriorFormat::try_from(number) {
        Ok(v1::PriorFormat::Unspecified) => Ok(None),
        Ok(v1::PriorFormat::Torch) => Ok(Some(Format::Torch)),
        Ok(v1::PriorFormat::Safetensors) => Ok(Some(Format::Safetensors)),
        Ok(v1::PriorFormat::Stored) => Ok(Some(Format::Stored)),
        Err(_) => Err(invalid("format", format!("{number} is not a format"))),
    }
}

#[must_use]
pub fn prior(prior: &Prior) -> v1::Prior {
    let pooling = match prior.pooling {
        Pooling::Mean => v1::Pooling::Mean,
        Pooling::Max => v1::Pooling::Max,
    };
    v1::Prior {
        prefix_hash: prior.key.prefix_hash.to_string(),
        query_hash: prior.key.query_hash.to_string(),
        algorithm: prior.key.algorithm.to_string(),
        generation: prior.generation,
        total_blocks: prior.blocks.total_blocks.unwrap_or(0),
        layers: prior.layers,
        kv_heads: prior.kv_heads,
        block_size: prior.block_size,
        pooling: pooling.into(),
        repair: prior.repair.as_ref().map(repair_to_wire),
        listed_k: prior.blocks.per_k.keys().copied().collect(),
        legacy_list_length: u32::try_from(prior.blocks.legacy.len()).unwrap_or(u32::MAX),
        file_bytes: prior.file_bytes,
        put_unix_ms: prior.put_unix_ms,
        metadata: prior
            .metadata
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
    }
}

fn repair_to_wire(repair: &Repair) -> v1::Repair {
    v1::Repair {
        name: repair.name.to_string(),
        ratio: repair.ratio,
    }
}

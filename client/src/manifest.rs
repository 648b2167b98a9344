//! GetManifest: which blocks of a cached prefix a request should read.

use kvatlas_proto::v1;
use tokio::time::Instant;

use crate::{
    client::{Client, within},
    error::ClientError,
    leases::Lease,
};

/// Which manifest to ask for.
#[derive(Debug, Clone, Default)]
pub struct ManifestQuery {
    pub prefix_hash: String,
    /// Empty: the prior that serves every query.
    pub query_hash: String,
    /// Blocks wanted; 0 only with a policy that fixes its own budget.
    pub k: u32,
    /// Empty: top-k.
    pub policy: String,
    /// Empty: the newest stored prior.
    pub algorithm: String,
    /// Blocks of the caller's cartridge; 0: as many as the prior has.
    pub total_blocks: u32,
    /// Used when the prefix is unknown; needs `total_blocks`. Empty: none.
    pub fallback_policy: String,
    /// When online scoring cannot serve the request: answer from the stored prior.
    pub allow_fallback: bool,
    /// In milliseconds; 0: the server's default.
    pub lease_ttl_ms: u32,
    pub query: Option<v1::QueryVectors>,
    pub query_tokens: Option<v1::QueryTokens>,
    /// For kri-q.
    pub similarity: v1::Similarity,
    /// For kri-q and kri-q-quest.
    pub aggregation: v1::GroupAggregation,
}

/// The blocks to read. Checked: ascending, distinct, each below `total_blocks`.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub blocks: BlockSet,
    pub total_blocks: u32,
    /// How many blocks there are (per head, for per-head).
    pub effective_k: u32,
    /// The prior's; empty when no prior took part.
    pub algorithm: String,
    /// In its canonical spelling.
    pub policy: String,
    /// 0 when no prior took part.
    pub prior_generation: u64,
    pub repair: Option<v1::Repair>,
    pub lease: Lease,
    pub provenance: v1::ManifestProvenance,
    /// `Unspecified` when it is exactly what was asked for.
    pub reason: v1::ManifestReason,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BlockSet {
    /// The same for every head.
    Uniform(Vec<u32>),
    /// `[layers, kv_heads, effective_k]`.
    PerHead(v1::PerHeadBlocks),
}

impl Client {
    /// One manifest, or `None` when the prefix is unknown: the engine then reads every block.
    ///
    /// # Errors
    /// When the call fails or the answer contradicts itself.
    pub async fn get_manifest(
        &self,
        query: &ManifestQuery,
    ) -> Result<Option<Manifest>, ClientError> {
        let sent = Instant::now();
        let mut routing = self.routing();
        let answer = within(
            self.deadlines.lookup,
            query.to_wire(),
            |request| async move { routing.get_manifest(request).await },
        )
        .await;
        Manifest::from_answer(answer, sent)
    }
}

impl ManifestQuery {
    /// The `k` best blocks of the prefix.
    pub fn top_k(prefix_hash: &str, k: u32) -> Self {
        Self {
            prefix_hash: prefix_hash.to_owned(),
            k,
            ..Self::default()
        }
    }

    pub(crate) fn to_wire(&self) -> v1::GetManifestRequest {
        v1::GetManifestRequest {
            prefix_hash: self.prefix_hash.clone(),
            query_hash: self.query_hash.clone(),
            k: self.k,
            policy: self.policy.clone(),
            algorithm: self.algorithm.clone(),
            total_blocks: self.total_blocks,
            fallback_policy: self.fallback_policy.clone(),
            allow_fallback: self.allow_fallback,
            lease_ttl_ms: self.lease_ttl_ms,
            query: self.query.clone().map(Box::new),
            query_tokens: self.query_tokens.clone().map(Box::new),
            similarity: self.similarity.into(),
            aggregation: self.aggregation.into(),
        }
    }
}

impl Manifest {
    pub(crate) fn from_answer(
        answer: Result<v1::GetManifestResponse, ClientError>,
        sent: Instant,
    ) -> Result<Option<Self>, ClientError> {
        match answer {
            Ok(wire) => checked(wire, sent)
                .map(Some)
                .map_err(|what| ClientError::Malformed(what.to_owned())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn checked(wire: v1::GetManifestResponse, sent: Instant) -> Result<Manifest, &'static str> {
    let (provenance, reason) = (wire.provenance(), wire.reason());
    let v1::GetManifestResponse {
        block_indices,
        total_blocks,
        effective_k,
        algorithm,
        policy,
        prior_generation,
        repair,
        lease,
        provenance: _,
        reason: _,
        per_head,
    } = wire;
    let blocks = match per_head {
        None => BlockSet::Uniform(block_indices),
        Some(_) if !block_indices.is_empty() => return Err("blocks both per head and for all"),
        Some(per_head) => BlockSet::PerHead(*per_head),
    };
    check_blocks(&blocks, effective_k, total_blocks)?;
    Ok(Manifest {
        blocks,
        total_blocks,
        effective_k,
        algorithm,
        policy,
        prior_generation,
        repair,
        lease: Lease::from_wire(lease.ok_or("a manifest without a lease")?, sent)?,
        provenance,
        reason,
    })
}

fn check_blocks(blocks: &BlockSet, k: u32, total: u32) -> Result<(), &'static str> {
    let (heads, indices) = match blocks {
        BlockSet::Uniform(indices) => (1, indices),
        BlockSet::PerHead(per_head) => (
            u64::from(per_head.layers) * u64::from(per_head.kv_heads),
            &per_head.block_indices,
        ),
    };
    let expected = heads.checked_mul(k.into());
    if k == 0 || heads == 0 || u64::try_from(indices.len()).ok() != expected {
        return Err("a manifest whose length is not its effective_k");
    }
    let k = usize::try_from(k).map_err(|_| "a manifest larger than memory")?;
    let fits = |head: &[u32]| {
        head.is_sorted_by(|before, after| before < after)
            && head.last().is_some_and(|last| *last < total)
    };
    if indices.chunks_exact(k).all(fits) {
        Ok(())
    } else {
        Err("blocks out of order or beyond total_blocks")
    }
}

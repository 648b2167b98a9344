//! `kvatlas manifest`: which blocks of a cached prefix a request should read.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use kvatlas_client::{BlockSet, Client, Manifest, ManifestQuery, v1};
use serde_json::json;

use super::{
    error::CliError,
    input,
    output::{Report, facts, hex, word},
    query::QueryFileArgs,
};

/// Columns that lists of blocks are wrapped at.
const WRAP_COLUMNS: usize = 84;

const EXAMPLES: &str = "\
Policies:
  top-k                       the K best-scored blocks (the default)
  A<a>R<r>K<k>                first a, last r and the best k between, such as A1R2K13
  hybrid[:a,r]                first a and last r; needs no prior
  recency                     the last K; needs no prior
  anchor-recency-spread:a,r   first a, last r, and evenly spaced between; needs no prior
  random-middle:a,r,SEED      first a, last r, and drawn at random between; needs no prior
  segment-quota:a,r,SEGMENTS  first a, last r, and the best of each segment between
  per-head                    each layer and KV head has its own K blocks

Examples:
  kvatlas manifest c1 --k 16
  kvatlas manifest c1 --policy A1R2K13
  kvatlas manifest c1 --k 16 --algorithm kri-q --query q.safetensors --frame post-rope
  kvatlas manifest unknown --k 8 --fallback-policy recency --total-blocks 128";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ManifestArgs {
    /// The cached prefix, as its prior was stored
    #[arg(value_name = "PREFIX")]
    prefix_hash: String,
    /// Blocks wanted; may be left out with a policy that fixes its own budget
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    k: u32,
    /// How the blocks are chosen
    #[arg(long, default_value = "", hide_default_value = true)]
    policy: String,
    /// kri-q, kri-q-quest or kri-t, scored online against a query; or a stored prior's algorithm.
    /// Without it, the newest stored prior
    #[arg(long, default_value = "", hide_default_value = true)]
    algorithm: String,
    /// Look for a prior of this query first; for online scoring, the query that was put under it
    #[arg(long, default_value = "", hide_default_value = true)]
    query_hash: String,
    /// Blocks of the caller's cartridge; without it, as many as the prior has
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    total_blocks: u32,
    /// A policy that needs no prior, for an unknown prefix; needs --total-blocks
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "POLICY"
    )]
    fallback_policy: String,
    /// Lease wanted, in milliseconds; without it, the server's default
    #[arg(
        long,
        default_value_t = 0,
        hide_default_value = true,
        value_name = "MS"
    )]
    lease_ttl_ms: u32,
    /// Answer from the stored prior when online scoring cannot serve the request
    #[arg(long)]
    allow_fallback: bool,
    /// Score against this query: see `kvatlas query put --help` for its file
    #[arg(long, value_name = "FILE")]
    query: Option<PathBuf>,
    /// For kri-q, what a block's score is; without it, dot
    #[arg(long, value_enum)]
    similarity: Option<SimilarityName>,
    /// For kri-q and kri-q-quest, how query heads that share a KV head are taken together;
    /// without it, mean for kri-q and max for kri-q-quest
    #[arg(long, value_enum)]
    aggregation: Option<AggregationName>,
    #[command(flatten)]
    open: QueryFileArgs,
    #[command(flatten)]
    by_tokens: TokensArgs,
}

/// A query that an encoder makes of tokens.
#[derive(Debug, Args)]
struct TokensArgs {
    /// Score layer 0 against the query of these tokens, the sequence's last ones: a JSON array, in
    /// a file or - for the standard input
    #[arg(
        long,
        value_name = "FILE",
        requires = "encoder",
        conflicts_with = "query"
    )]
    query_tokens: Option<PathBuf>,
    /// The encoder that makes it, as `kvatlas encoder put` named it
    #[arg(long, value_name = "NAME", requires = "query_tokens")]
    encoder: Option<String>,
    /// Position of the first of the tokens in the sequence
    #[arg(long, default_value_t = 0, requires = "query_tokens", value_name = "P")]
    start_position: u64,
    /// The mean query of the last N positions instead of the last alone
    #[arg(
        long,
        default_value_t = 0,
        hide_default_value = true,
        requires = "query_tokens",
        value_name = "N"
    )]
    mean_of_last: u32,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SimilarityName {
    Dot,
    Cosine,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum AggregationName {
    Mean,
    Max,
}

impl ManifestArgs {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        let online = match &self.query {
            Some(path) => Some(self.open.read(path)?.to_wire()),
            // Of statistics that were put before.
            None => self.open.position_alone(),
        };
        let query_tokens = self.by_tokens.read()?;
        let query = ManifestQuery {
            prefix_hash: self.prefix_hash,
            query_hash: self.query_hash,
            k: self.k,
            policy: self.policy,
            algorithm: self.algorithm,
            total_blocks: self.total_blocks,
            fallback_policy: self.fallback_policy,
            lease_ttl_ms: self.lease_ttl_ms,
            allow_fallback: self.allow_fallback,
            query: online,
            query_tokens,
            similarity: match self.similarity {
                None => v1::Similarity::Unspecified,
                Some(SimilarityName::Dot) => v1::Similarity::Dot,
                Some(SimilarityName::Cosine) => v1::Similarity::Cosine,
            },
            aggregation: match self.aggregation {
                None => v1::GroupAggregation::Unspecified,
                Some(AggregationName::Mean) => v1::GroupAggregation::Mean,
                Some(AggregationName::Max) => v1::GroupAggregation::Max,
            },
        };
        match client.get_manifest(&query).await? {
            Some(manifest) => Ok(report(&manifest)),
            None => Err(CliError::NotFound(missing(&query))),
        }
    }
}

fn missing(query: &ManifestQuery) -> String {
    let prefix = &query.prefix_hash;
    if query.query_tokens.is_some() {
        return format!(
            "no key summary of prefix {prefix:?}, or no such encoder: `kvatlas summary list` and \
             `kvatlas encoder list` show what there is."
        );
    }
    if query.algorithm.starts_with("kri-q") || query.algorithm == "kri-t" {
        return format!(
            "nothing to score prefix {prefix:?} with, and no prior to fall back on: either it has \
             no key summary (`kvatlas summary list`), or no query is kept under the query_hash \
             (`kvatlas query put`)."
        );
    }
    format!(
        "no prior of prefix {prefix:?} matches. `kvatlas prior ls` lists what is stored; \
         --fallback-policy recency --total-blocks N answers without one."
    )
}

impl TokensArgs {
    fn read(self) -> Result<Option<v1::QueryTokens>, CliError> {
        let Self {
            query_tokens,
            encoder,
            start_position,
            mean_of_last,
        } = self;
        let (Some(path), Some(encoder)) = (query_tokens, encoder) else {
            return Ok(None);
        };
        Ok(Some(v1::QueryTokens {
            tokens: input::tokens(&path)?.packed(),
            start_position,
            mean_of_last,
            encoder,
        }))
    }
}

fn report(manifest: &Manifest) -> Report {
    let provenance = word(manifest.provenance.as_str_name(), "MANIFEST_PROVENANCE_");
    let reason = reason_word(manifest.reason);
    let repair = manifest.repair.as_ref();
    let text = facts(&[
        (
            "blocks",
            format!("{} of {}", manifest.effective_k, manifest.total_blocks),
        ),
        ("policy", manifest.policy.clone()),
        ("provenance", provenance.clone()),
        ("reason", reason.clone()),
        ("algorithm", manifest.algorithm.clone()),
        ("generation", non_zero(manifest.prior_generation)),
        (
            "repair",
            repair.map_or_else(String::new, |repair| {
                format!("{} ({})", repair.name, repair.ratio)
            }),
        ),
        ("lease", format!("{} ms", manifest.lease.ttl.as_millis())),
        ("lease id", hex(&manifest.lease.id)),
    ]) + &block_lines(manifest);
    let (blocks, per_head) = match &manifest.blocks {
        BlockSet::Uniform(blocks) => (Some(blocks), None),
        BlockSet::PerHead(heads) => (None, Some(heads)),
    };
    let json = json!({
        "block_indices": blocks,
        "per_head": per_head.map(|heads| json!({
            "layers": heads.layers,
            "kv_heads": heads.kv_heads,
            "block_indices": heads.block_indices,
        })),
        "total_blocks": manifest.total_blocks,
        "effective_k": manifest.effective_k,
        "algorithm": manifest.algorithm,
        "policy": manifest.policy,
        "prior_generation": manifest.prior_generation,
        "repair": repair.map(|repair| json!({"name": repair.name, "ratio": repair.ratio})),
        "lease": {"id": hex(&manifest.lease.id), "ttl_ms": manifest.lease.ttl.as_millis()},
        "provenance": provenance,
        "reason": reason,
    });
    Report::found(text, json)
}

/// Empty when the manifest is exactly what was asked for.
pub(super) fn reason_word(reason: v1::ManifestReason) -> String {
    if reason == v1::ManifestReason::Unspecified {
        String::new()
    } else {
        word(reason.as_str_name(), "MANIFEST_REASON_")
    }
}

fn non_zero(number: u64) -> String {
    match number {
        0 => String::new(),
        _ => number.to_string(),
    }
}

fn block_lines(manifest: &Manifest) -> String {
    match &manifest.blocks {
        BlockSet::Uniform(blocks) => format!("\n{}\n", wrapped(blocks)),
        BlockSet::PerHead(heads) => {
            let k = usize::try_from(manifest.effective_k).unwrap_or(usize::MAX);
            let kv_heads = usize::try_from(heads.kv_heads).unwrap_or(usize::MAX);
            let mut text = String::new();
            for (at, blocks) in heads.block_indices.chunks(k.max(1)).enumerate() {
                let (layer, head) = (at / kv_heads.max(1), at % kv_heads.max(1));
                text += &format!("\nlayer {layer} head {head}: {}", wrapped(blocks));
            }
            text + "\n"
        }
    }
}

fn wrapped(blocks: &[u32]) -> String {
    let mut text = String::new();
    let mut column = 0;
    for block in blocks {
        let cell = block.to_string();
        if column > 0 && column + cell.len() > WRAP_COLUMNS {
            text.push('\n');
            column = 0;
        } else if column > 0 {
            text.push(' ');
        }
        column += cell.len() + 1;
        text += &cell;
    }
    text
}

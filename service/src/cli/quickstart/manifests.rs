//! The tour's first half: priors in, manifests out.

use std::io::Cursor;

use kvatlas_client::{BlockSet, Client, Manifest, ManifestQuery, PriorUpload, v1};
use tokio::time::Instant;

use super::{REPEATS, heading, median, show_table};
use crate::cli::{
    error::CliError,
    manifest::reason_word,
    output::{Align, Table, word},
    prior::scores,
};

/// Columns for a list of blocks.
const BLOCKS_COLUMNS: usize = 27;

/// A prior as it is stored: the prefix, the file's name, and its bytes.
const PRIORS: [(&str, &str, &[u8]); 4] = [
    (
        "scores",
        "aff_float32.pt",
        include_bytes!("../../../../examples/priors/aff_float32.pt"),
    ),
    (
        "lists",
        "perk.pt",
        include_bytes!("../../../../examples/priors/perk.pt"),
    ),
    (
        "legacy",
        "legacy_list.pt",
        include_bytes!("../../../../examples/priors/legacy_list.pt"),
    ),
    (
        "rarity",
        "rarity.safetensors",
        include_bytes!("../../../../examples/priors/rarity.safetensors"),
    ),
];

/// The prefix, k, policy and fallback policy of each question.
const QUESTIONS: [(&str, u32, &str, &str); 12] = [
    ("scores", 16, "top-k", ""),
    ("scores", 16, "A1R2K13", ""),
    ("scores", 8, "hybrid:2,6", ""),
    ("scores", 8, "recency", ""),
    ("scores", 8, "anchor-recency-spread:1,2", ""),
    ("scores", 8, "random-middle:1,2,42", ""),
    ("scores", 16, "segment-quota:1,2,8", ""),
    ("scores", 4, "per-head", ""),
    ("rarity", 16, "top-k", ""),
    ("lists", 8, "top-k", ""),
    ("legacy", 16, "top-k", ""),
    ("unknown", 8, "top-k", "recency"),
];
/// What the caller says of the unknown prefix.
const UNKNOWN_TOTAL_BLOCKS: u32 = 128;

/// Stores the priors and asks for manifests under every policy.
pub(super) async fn show(client: &Client) -> Result<(), CliError> {
    heading(
        1,
        "Priors: which blocks of a cached prefix matter, baked offline, one file each",
        "kvatlas prior put FILE --prefix-hash PREFIX",
    )?;
    show_table(&put_priors(client).await?)?;
    heading(
        2,
        "Manifests: which blocks should one request read?",
        "kvatlas manifest PREFIX --k K --policy POLICY",
    )?;
    let mut table = Table::new(&[
        ("PREFIX", Align::Left),
        ("POLICY", Align::Left),
        ("GOT", Align::Right),
        ("BLOCKS", Align::Left),
        ("NOTE", Align::Left),
        ("CALL", Align::Right),
    ]);
    for (prefix, k, policy, fallback) in QUESTIONS {
        let query = ManifestQuery {
            policy: policy.to_owned(),
            fallback_policy: fallback.to_owned(),
            total_blocks: match fallback {
                "" => 0,
                _ => UNKNOWN_TOTAL_BLOCKS,
            },
            ..ManifestQuery::top_k(prefix, k)
        };
        let (manifest, took) = ask(client, &query).await?;
        table.row([
            prefix.to_owned(),
            manifest.policy.clone(),
            format!("{} of {}", manifest.effective_k, manifest.total_blocks),
            blocks(&manifest),
            note(&manifest),
            took,
        ]);
    }
    show_table(&table)?;
    Ok(())
}

async fn put_priors(client: &Client) -> Result<Table, CliError> {
    let mut table = Table::new(&[
        ("PREFIX", Align::Left),
        ("FILE", Align::Left),
        ("BLOCKS", Align::Right),
        ("RANKS BY", Align::Left),
        ("ON DISK IN", Align::Right),
    ]);
    for (prefix, name, file) in PRIORS {
        let header = v1::PutPriorHeader {
            prefix_hash: prefix.to_owned(),
            ..v1::PutPriorHeader::default()
        };
        let upload = PriorUpload {
            header,
            file: Cursor::new(file),
        };
        let started = Instant::now();
        let prior = client.put_prior(upload).await?.prior.unwrap_or_default();
        table.row([
            prefix.to_owned(),
            name.to_owned(),
            prior.total_blocks.to_string(),
            scores(&prior),
            median(vec![started.elapsed()]),
        ]);
    }
    Ok(table)
}

pub(super) async fn ask(
    client: &Client,
    query: &ManifestQuery,
) -> Result<(Manifest, String), CliError> {
    let mut times = Vec::with_capacity(REPEATS);
    let mut answer = None;
    for _ in 0..REPEATS {
        let started = Instant::now();
        answer = client.get_manifest(query).await?;
        times.push(started.elapsed());
    }
    let unknown = || CliError::NotFound(format!("the prefix {}", query.prefix_hash));
    Ok((answer.ok_or_else(unknown)?, median(times)))
}

pub(super) fn note(manifest: &Manifest) -> String {
    match reason_word(manifest.reason).as_str() {
        "" => word(manifest.provenance.as_str_name(), "MANIFEST_PROVENANCE_"),
        reason => reason.to_owned(),
    }
}

pub(super) fn blocks(manifest: &Manifest) -> String {
    match &manifest.blocks {
        BlockSet::Uniform(blocks) => shortened(blocks, BLOCKS_COLUMNS),
        BlockSet::PerHead(heads) => {
            let k = usize::try_from(manifest.effective_k).unwrap_or(usize::MAX);
            let first = heads.block_indices.chunks(k.max(1)).next();
            let count = u64::from(heads.layers) * u64::from(heads.kv_heads);
            let label = format!("{count} heads, first ");
            let room = BLOCKS_COLUMNS.saturating_sub(label.len());
            format!("{label}{}", shortened(first.unwrap_or_default(), room))
        }
    }
}

/// As many blocks as fit, and the last one.
fn shortened(blocks: &[u32], columns: usize) -> String {
    let join = |blocks: &[u32]| {
        let words: Vec<String> = blocks.iter().map(u32::to_string).collect();
        words.join(" ")
    };
    let whole = join(blocks);
    let (Some(last), true) = (blocks.last(), whole.len() > columns) else {
        return whole;
    };
    (1..blocks.len())
        .rev()
        .map(|head| format!("{} .. {last}", join(&blocks[..head])))
        .find(|text| text.len() <= columns)
        .unwrap_or_else(|| format!(".. {last}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_keeps_its_ends() {
        assert_eq!(shortened(&[1, 2, 3], 5), "1 2 3");
        assert_eq!(shortened(&[10, 20, 30, 40], 8), "10 .. 40");
        assert_eq!(shortened(&[10, 20, 30, 40], 2), ".. 40");
    }
}

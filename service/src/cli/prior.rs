//! `kvatlas prior`: store, list, show and remove priors.

use std::{fs::File, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use kvatlas_client::{Client, PriorPage, PriorUpload, v1};
use serde_json::{Value, json};

use super::{
    error::CliError,
    output::{Align, Report, Table, facts, grouped, word},
    progress,
};

/// Priors in one page of a listing.
const PAGE_SIZE: u32 = 1_000;

#[derive(Debug, Subcommand)]
pub(super) enum PriorCommand {
    /// Store a prior: a .pt file as torch writes it, or safetensors
    #[command(after_help = "\
Examples:
  kvatlas prior put prior.pt --prefix-hash c1
  kvatlas prior put prior.safetensors --prefix-hash c1 --algorithm kri-d --repair xa25:0.25")]
    Put(PutArgs),
    /// List the stored priors
    Ls {
        /// Only prefixes that begin so
        #[arg(
            default_value = "",
            hide_default_value = true,
            value_name = "BEGINNING"
        )]
        begins: String,
    },
    /// Show one prior
    Show(KeyArgs),
    /// Remove a prior; without --algorithm, every prior of the prefix and query
    Rm(KeyArgs),
}

#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The cached prefix that it belongs to
    #[arg(long, value_name = "HASH")]
    prefix_hash: String,
    /// The one query that it serves; without it, every query
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "HASH"
    )]
    query_hash: String,
    /// Its algorithm's name; without it, as the file says
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "NAME"
    )]
    algorithm: String,
    /// How scores are pooled over layers and heads
    #[arg(long, value_enum, default_value_t = PoolingName::Mean)]
    pooling: PoolingName,
    /// The file's format; without it, told by its first bytes
    #[arg(long, value_enum)]
    format: Option<FormatName>,
    /// What engines should recompute after injection, and which share of the positions
    #[arg(long, value_name = "NAME:RATIO", value_parser = parse_repair)]
    repair: Option<v1::Repair>,
}

#[derive(Debug, Args)]
pub(super) struct KeyArgs {
    /// The cached prefix that it belongs to
    #[arg(value_name = "PREFIX")]
    prefix_hash: String,
    /// The one query that it serves
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "HASH"
    )]
    query_hash: String,
    /// Its algorithm; without it, the newest
    #[arg(
        long,
        default_value = "",
        hide_default_value = true,
        value_name = "NAME"
    )]
    algorithm: String,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PoolingName {
    Mean,
    Max,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatName {
    Torch,
    Safetensors,
    /// As ReadPrior and `kvatlas export` give it
    Stored,
}

impl PriorCommand {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        match self {
            Self::Put(args) => put(args, client).await,
            Self::Ls { begins } => list(begins, client).await,
            Self::Show(key) => show(key, client).await,
            Self::Rm(key) => remove(key, client).await,
        }
    }
}

async fn put(args: PutArgs, client: &Client) -> Result<Report, CliError> {
    let unreadable = |source| CliError::File {
        path: args.file.clone(),
        source,
    };
    let file = File::open(&args.file).map_err(unreadable)?;
    let size_bytes = file.metadata().map_err(unreadable)?.len();
    let pooling = match args.pooling {
        PoolingName::Mean => v1::Pooling::Mean,
        PoolingName::Max => v1::Pooling::Max,
    };
    let format = match args.format {
        None => v1::PriorFormat::Unspecified,
        Some(FormatName::Torch) => v1::PriorFormat::Torch,
        Some(FormatName::Safetensors) => v1::PriorFormat::Safetensors,
        Some(FormatName::Stored) => v1::PriorFormat::Stored,
    };
    let header = v1::PutPriorHeader {
        prefix_hash: args.prefix_hash,
        query_hash: args.query_hash,
        algorithm: args.algorithm,
        format: format.into(),
        pooling: pooling.into(),
        repair: args.repair,
        size_bytes,
    };
    let file = progress::watched(&args.file.display().to_string(), size_bytes, file);
    let answer = client.put_prior(PriorUpload { header, file }).await?;
    let prior = answer.prior.unwrap_or_default();
    let verb = if answer.replaced {
        "replaced"
    } else {
        "stored"
    };
    let text = format!("{verb}\n{}", describe(&prior));
    let mut json = to_json(&prior);
    json["replaced"] = answer.replaced.into();
    Ok(Report::found(text, json))
}

async fn list(begins: String, client: &Client) -> Result<Report, CliError> {
    let mut priors = Vec::new();
    let mut page = PriorPage {
        page_size: PAGE_SIZE,
        page_token: String::new(),
        prefix_hash_begins: begins,
    };
    loop {
        let answer = client.list_priors(page.clone()).await?;
        priors.extend(answer.priors);
        if answer.next_page_token.is_empty() {
            break;
        }
        page.page_token = answer.next_page_token;
    }
    let mut table = Table::new(&[
        ("PREFIX", Align::Left),
        ("QUERY", Align::Left),
        ("ALGORITHM", Align::Left),
        ("BLOCKS", Align::Right),
        ("SCORES", Align::Left),
        ("BYTES", Align::Right),
        ("GENERATION", Align::Right),
    ]);
    for prior in &priors {
        table.row([
            prior.prefix_hash.clone(),
            prior.query_hash.clone(),
            prior.algorithm.clone(),
            prior.total_blocks.to_string(),
            scores(prior),
            grouped(prior.file_bytes),
            prior.generation.to_string(),
        ]);
    }
    let text = if table.is_empty() {
        "no priors; `kvatlas prior put FILE --prefix-hash HASH` stores one\n".to_owned()
    } else {
        table.to_string()
    };
    let json = priors.iter().map(to_json).collect();
    Ok(Report::found(text, json))
}

async fn show(key: KeyArgs, client: &Client) -> Result<Report, CliError> {
    let key = key.into_wire();
    match client.get_prior(key.clone()).await? {
        Some(prior) => Ok(Report::found(describe(&prior), to_json(&prior))),
        None => Err(missing(&key)),
    }
}

async fn remove(key: KeyArgs, client: &Client) -> Result<Report, CliError> {
    let key = key.into_wire();
    match client.delete_prior(key.clone()).await? {
        0 => Err(missing(&key)),
        deleted => Ok(Report::found(
            format!("removed {deleted}\n"),
            json!({ "deleted": deleted }),
        )),
    }
}

fn missing(key: &v1::PriorKey) -> CliError {
    CliError::NotFound(format!(
        "no such prior of prefix {:?}. `kvatlas prior ls` lists what is stored.",
        key.prefix_hash
    ))
}

impl KeyArgs {
    fn into_wire(self) -> v1::PriorKey {
        v1::PriorKey {
            prefix_hash: self.prefix_hash,
            query_hash: self.query_hash,
            algorithm: self.algorithm,
        }
    }
}

fn parse_repair(text: &str) -> Result<v1::Repair, String> {
    let (name, ratio) = text.split_once(':').ok_or("write NAME:RATIO")?;
    let ratio = ratio.parse().map_err(|_| "RATIO is a number, 0 to 1")?;
    if name.is_empty() || !(0.0..=1.0).contains(&ratio) {
        return Err("NAME is not empty and RATIO is 0 to 1".into());
    }
    Ok(v1::Repair {
        name: name.to_owned(),
        ratio,
    })
}

/// What the prior ranks its blocks by.
pub(super) fn scores(prior: &v1::Prior) -> String {
    if prior.layers > 0 {
        format!("{} layers x {} heads", prior.layers, prior.kv_heads)
    } else if prior.listed_k.is_empty() {
        format!("list of {}", prior.legacy_list_length)
    } else {
        let listed: Vec<String> = prior.listed_k.iter().map(u32::to_string).collect();
        format!("lists for K {}", listed.join(", "))
    }
}

fn describe(prior: &v1::Prior) -> String {
    let repair = prior.repair.as_ref();
    let mut pairs = vec![
        ("prefix", prior.prefix_hash.clone()),
        ("query", prior.query_hash.clone()),
        ("algorithm", prior.algorithm.clone()),
        ("generation", prior.generation.to_string()),
        ("blocks", prior.total_blocks.to_string()),
        ("scores", scores(prior)),
        (
            "repair",
            repair.map_or_else(String::new, |repair| {
                format!("{} ({})", repair.name, repair.ratio)
            }),
        ),
        ("file bytes", grouped(prior.file_bytes)),
    ];
    if prior.layers > 0 {
        pairs.push(("pooling", word(prior.pooling().as_str_name(), "POOLING_")));
    }
    if prior.block_size > 0 {
        pairs.push(("block size", prior.block_size.to_string()));
    }
    let mut metadata: Vec<(&str, String)> = prior
        .metadata
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()))
        .collect();
    metadata.sort();
    pairs.extend(metadata);
    facts(&pairs)
}

fn to_json(prior: &v1::Prior) -> Value {
    let repair = prior.repair.as_ref();
    json!({
        "prefix_hash": prior.prefix_hash,
        "query_hash": prior.query_hash,
        "algorithm": prior.algorithm,
        "generation": prior.generation,
        "total_blocks": prior.total_blocks,
        "layers": prior.layers,
        "kv_heads": prior.kv_heads,
        "block_size": prior.block_size,
        "pooling": word(prior.pooling().as_str_name(), "POOLING_"),
        "repair": repair.map(|repair| json!({"name": repair.name, "ratio": repair.ratio})),
        "listed_k": prior.listed_k,
        "legacy_list_length": prior.legacy_list_length,
        "file_bytes": prior.file_bytes,
        "put_unix_ms": prior.put_unix_ms,
        "metadata": prior.metadata,
    })
}

//! `kvatlas summary`: make, list, show and remove the key summaries that online scoring reads.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand, ValueEnum};
use kvatlas_client::{Client, SummaryPage, SummaryUpload, v1};
use serde_json::{Value, json};

use super::{
    error::CliError,
    output::{Align, Report, Table, facts, grouped, word},
    progress,
};
use crate::routing::encoder::{
    config::ModelConfig,
    rope::{Rope, RopeParameters, RopeScaling},
};

/// Summaries in one page of a listing.
const PAGE_SIZE: u32 = 1_000;
/// What an upload may take beyond the bytes, and the slowest disk that is waited for.
const UPLOAD_MS_MIN: u64 = 120_000;
const UPLOAD_BYTES_A_MS: u64 = 20_000;

#[derive(Debug, Subcommand)]
pub(super) enum SummaryCommand {
    /// Make the key summary of a prefix from a .pt or safetensors file, and store it
    #[command(after_help = "\
The file holds a summary (key_means [layers, kv_heads, blocks, head_dim], optionally key_min and
key_max, and key_magnitudes), or a cartridge's keys to make one of: trainable_keys.<layer> and
frozen_keys.<layer>, a list of (keys, values), or layers.<layer>.keys.

Examples:
  kvatlas summary put cartridge.pt --prefix-hash c1 --block-size 16 --model-config config.json
  kvatlas summary put means.safetensors --prefix-hash c1 --block-size 16 --layers 0-27 \\
      --rope-theta 500000 --head-dim 128")]
    Put(Box<PutArgs>),
    /// List the key summaries
    #[command(visible_alias = "ls")]
    List {
        /// Only prefixes that begin so
        #[arg(
            default_value = "",
            hide_default_value = true,
            value_name = "BEGINNING"
        )]
        begins: String,
    },
    /// Show the key summary of a prefix
    Show {
        #[arg(value_name = "PREFIX")]
        prefix_hash: String,
    },
    /// Remove the key summary of a prefix
    #[command(visible_alias = "rm")]
    Delete {
        #[arg(value_name = "PREFIX")]
        prefix_hash: String,
    },
}

#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The cached prefix that it belongs to
    #[arg(long, value_name = "HASH")]
    prefix_hash: String,
    /// Whether the keys are from before or after RoPE; engines cache them after
    #[arg(long, value_enum, default_value_t = FrameName::PostRope)]
    frame: FrameName,
    /// Which two channels make a frequency band: f and f + head_dim / 2, or 2f and 2f + 1
    #[arg(long, value_enum, default_value_t = LayoutName::Half)]
    pair_layout: LayoutName,
    /// Tokens per block
    #[arg(long, value_name = "N")]
    block_size: u32,
    /// The model layers in the file, such as 0-27 or 0,8,16; without it, all that --model-config
    /// says
    #[arg(long, value_name = "LAYERS", value_parser = parse_layers)]
    layers: Option<Layers>,
    #[command(flatten)]
    rope: RopeArgs,
    /// What the file holds; without it, told by its names
    #[arg(long, value_enum)]
    content: Option<ContentName>,
    /// The file's format; without it, told by its first bytes
    #[arg(long, value_enum)]
    format: Option<FormatName>,
}

/// Where the inverse frequencies come from: one of three.
#[derive(Debug, Args)]
struct RopeArgs {
    /// The model's config.json: base, head_dim and llama3, yarn or linear scaling
    #[arg(long, value_name = "FILE", conflicts_with_all = ["inv_freq", "rope_theta"])]
    model_config: Option<PathBuf>,
    /// A JSON array of the head_dim / 2 inverse frequencies
    #[arg(long, value_name = "FILE", conflicts_with = "rope_theta")]
    inv_freq: Option<PathBuf>,
    /// The base of the frequencies of a model without scaling
    #[arg(long, value_name = "THETA", requires = "head_dim")]
    rope_theta: Option<f64>,
    /// Channels of a head
    #[arg(long, value_name = "N", requires = "rope_theta")]
    head_dim: Option<u32>,
    /// The factor on cos and sin that YaRN brings; without it, as --model-config says, else 1
    #[arg(long, value_name = "FACTOR")]
    attention_scaling: Option<f32>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FrameName {
    PreRope,
    PostRope,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LayoutName {
    Half,
    Interleaved,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ContentName {
    Summary,
    Cartridge,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FormatName {
    Torch,
    Safetensors,
}

impl SummaryCommand {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        match self {
            Self::Put(args) => put(*args, client).await,
            Self::List { begins } => list(begins, client).await,
            Self::Show { prefix_hash } => show(&prefix_hash, client).await,
            Self::Delete { prefix_hash } => delete(&prefix_hash, client).await,
        }
    }
}

async fn put(args: PutArgs, client: &Client) -> Result<Report, CliError> {
    let file = File::open(&args.file).map_err(|source| unreadable(&args.file, source))?;
    let metadata = file.metadata();
    let size_bytes = metadata
        .map_err(|source| unreadable(&args.file, source))?
        .len();
    let file = progress::watched(&args.file.display().to_string(), size_bytes, file);
    let header = header(args, size_bytes)?;
    let deadline = Duration::from_millis(UPLOAD_MS_MIN + size_bytes / UPLOAD_BYTES_A_MS);
    let client = client.clone().with_upload_deadline(deadline);
    let answer = client
        .put_key_summary(SummaryUpload { header, file })
        .await?;
    let summary = answer.summary.unwrap_or_default();
    let verb = if answer.replaced {
        "replaced"
    } else {
        "stored"
    };
    let text = format!("{verb}\n{}", describe(&summary));
    let mut json = to_json(&summary);
    json["replaced"] = answer.replaced.into();
    Ok(Report::found(text, json))
}

async fn list(begins: String, client: &Client) -> Result<Report, CliError> {
    let mut summaries = Vec::new();
    let mut page = SummaryPage {
        page_size: PAGE_SIZE,
        page_token: String::new(),
        prefix_hash_begins: begins,
    };
    loop {
        let answer = client.list_key_summaries(page.clone()).await?;
        summaries.extend(answer.summaries);
        if answer.next_page_token.is_empty() {
            break;
        }
        page.page_token = answer.next_page_token;
    }
    let mut table = Table::new(&[
        ("PREFIX", Align::Left),
        ("BLOCKS", Align::Right),
        ("LAYERS", Align::Right),
        ("HEADS", Align::Right),
        ("DIM", Align::Right),
        ("FRAME", Align::Left),
        ("SCORES", Align::Left),
        ("BYTES", Align::Right),
        ("GENERATION", Align::Right),
    ]);
    for summary in &summaries {
        table.row([
            summary.prefix_hash.clone(),
            summary.total_blocks.to_string(),
            summary.layer_ids.len().to_string(),
            summary.kv_heads.to_string(),
            summary.head_dim.to_string(),
            word(summary.frame().as_str_name(), "ROPE_FRAME_"),
            algorithms(summary),
            grouped(summary.stored_bytes),
            summary.generation.to_string(),
        ]);
    }
    let text = if table.is_empty() {
        "no key summaries; `kvatlas summary put FILE --prefix-hash HASH ...` makes one\n".to_owned()
    } else {
        table.to_string()
    };
    let json = summaries.iter().map(to_json).collect();
    Ok(Report::found(text, json))
}

async fn show(prefix_hash: &str, client: &Client) -> Result<Report, CliError> {
    match client.get_key_summary(prefix_hash).await? {
        Some(summary) => Ok(Report::found(describe(&summary), to_json(&summary))),
        None => Err(missing(prefix_hash)),
    }
}

async fn delete(prefix_hash: &str, client: &Client) -> Result<Report, CliError> {
    match client.delete_key_summary(prefix_hash).await? {
        true => Ok(Report::found(
            "removed\n".to_owned(),
            json!({ "deleted": 1 }),
        )),
        false => Err(missing(prefix_hash)),
    }
}

fn missing(prefix_hash: &str) -> CliError {
    CliError::NotFound(format!(
        "no key summary of prefix {prefix_hash:?}. `kvatlas summary list` lists what is stored."
    ))
}

fn unreadable(path: &Path, source: std::io::Error) -> CliError {
    CliError::File {
        path: path.to_owned(),
        source,
    }
}

fn header(args: PutArgs, size_bytes: u64) -> Result<v1::PutKeySummaryHeader, CliError> {
    let PutArgs {
        file: _,
        prefix_hash,
        frame,
        pair_layout,
        block_size,
        layers,
        rope,
        content,
        format,
    } = args;
    let Frequencies {
        inv_freq,
        attention_scaling,
        layers: model_layers,
    } = frequencies(&rope)?;
    let layer_ids = match (layers, model_layers) {
        (Some(Layers(layers)), _) => layers,
        (None, Some(layers)) => (0..layers).collect(),
        (None, None) => {
            let problem = "--layers: must be given, such as 0-27, unless --model-config says it";
            return Err(CliError::Usage(problem.into()));
        }
    };
    let frame = match frame {
        FrameName::PreRope => v1::RopeFrame::PreRope,
        FrameName::PostRope => v1::RopeFrame::PostRope,
    };
    let pair_layout = match pair_layout {
        LayoutName::Half => v1::PairLayout::Half,
        LayoutName::Interleaved => v1::PairLayout::Interleaved,
    };
    let content = match content {
        None => v1::KeySummaryContent::Unspecified,
        Some(ContentName::Summary) => v1::KeySummaryContent::Summary,
        Some(ContentName::Cartridge) => v1::KeySummaryContent::Cartridge,
    };
    let format = match format {
        None => v1::PriorFormat::Unspecified,
        Some(FormatName::Torch) => v1::PriorFormat::Torch,
        Some(FormatName::Safetensors) => v1::PriorFormat::Safetensors,
    };
    Ok(v1::PutKeySummaryHeader {
        prefix_hash,
        frame: frame.into(),
        pair_layout: pair_layout.into(),
        inv_freq,
        attention_scaling: rope.attention_scaling.unwrap_or(attention_scaling),
        block_size,
        layer_ids,
        size_bytes,
        content: content.into(),
        format: format.into(),
    })
}

#[derive(Debug, PartialEq)]
struct Frequencies {
    inv_freq: Vec<f32>,
    attention_scaling: f32,
    /// The model's, where they are known.
    layers: Option<u32>,
}

fn frequencies(args: &RopeArgs) -> Result<Frequencies, CliError> {
    if let Some(path) = &args.model_config {
        let json = fs::read(path).map_err(|source| unreadable(path, source))?;
        return of_model(&json)
            .map_err(|why| CliError::Usage(format!("{}: {why}", path.display())));
    }
    if let Some(path) = &args.inv_freq {
        let json = fs::read(path).map_err(|source| unreadable(path, source))?;
        let inv_freq = serde_json::from_slice(&json).map_err(|error| {
            CliError::Usage(format!(
                "{} is not a JSON array of numbers: {error}",
                path.display()
            ))
        })?;
        return Ok(Frequencies {
            inv_freq,
            attention_scaling: 1.0,
            layers: None,
        });
    }
    let (Some(theta), Some(head_dim)) = (args.rope_theta, args.head_dim) else {
        let problem = "give --model-config, --inv-freq, or --rope-theta and --head-dim";
        return Err(CliError::Usage(problem.into()));
    };
    let parameters = RopeParameters {
        theta,
        scaling: RopeScaling::None,
    };
    let sound = (2..=HEAD_DIM_MAX).contains(&head_dim) && head_dim.is_multiple_of(2);
    let rope = sound.then(|| Rope::new(&parameters, head_dim));
    match rope.filter(Rope::is_sound) {
        Some(rope) => Ok(of_rope(rope, None)),
        None => Err(CliError::Usage(format!(
            "--rope-theta must be above 0 and --head-dim an even number, 2 to {HEAD_DIM_MAX}"
        ))),
    }
}

const HEAD_DIM_MAX: u32 = 1024;

fn of_model(json: &[u8]) -> Result<Frequencies, String> {
    let config = ModelConfig::parse(json).map_err(|error| error.to_string())?;
    let rope = Rope::new(&config.rope, config.head_dim);
    if !rope.is_sound() {
        return Err("its frequencies are not finite numbers above 0".to_owned());
    }
    // Of no concern to encoders, which know layer 0 alone.
    let whole: Value = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let layers = whole["num_hidden_layers"].as_u64();
    Ok(of_rope(
        rope,
        layers.and_then(|layers| layers.try_into().ok()),
    ))
}

fn of_rope(rope: Rope, layers: Option<u32>) -> Frequencies {
    Frequencies {
        inv_freq: rope.inv_freq.into(),
        attention_scaling: rope.attention_scaling,
        layers,
    }
}

/// Model layers, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Layers(Vec<u32>);

/// Numbers and ranges with commas between.
fn parse_layers(text: &str) -> Result<Layers, String> {
    const LAYERS_MAX: u32 = 512;
    let number = |text: &str| {
        let number = text.trim().parse::<u32>();
        number.map_err(|_| "write such as 0-27 or 0,8,16".to_owned())
    };
    let mut layers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last
            .checked_sub(first)
            .is_none_or(|more| more >= LAYERS_MAX)
        {
            return Err(format!("a range ascends, over at most {LAYERS_MAX} layers"));
        }
        layers.extend(first..=last);
    }
    Ok(Layers(layers))
}

/// The online algorithms that it serves.
fn algorithms(summary: &v1::KeySummary) -> String {
    let algorithms = [
        (true, "kri-q"),
        (summary.has_extremes, "kri-q-quest"),
        (summary.has_magnitudes, "kri-t"),
    ];
    let served = algorithms.iter().filter(|(is_served, _)| *is_served);
    served
        .map(|(_, algorithm)| *algorithm)
        .collect::<Vec<_>>()
        .join(", ")
}

fn describe(summary: &v1::KeySummary) -> String {
    let layers = &summary.layer_ids;
    facts(&[
        ("prefix", summary.prefix_hash.clone()),
        ("generation", summary.generation.to_string()),
        ("blocks", summary.total_blocks.to_string()),
        ("block size", summary.block_size.to_string()),
        ("layers", show_layers(layers)),
        ("kv heads", summary.kv_heads.to_string()),
        ("head dim", summary.head_dim.to_string()),
        ("frame", word(summary.frame().as_str_name(), "ROPE_FRAME_")),
        (
            "pair layout",
            word(summary.pair_layout().as_str_name(), "PAIR_LAYOUT_"),
        ),
        ("attention scaling", summary.attention_scaling.to_string()),
        ("scores", algorithms(summary)),
        ("stored bytes", grouped(summary.stored_bytes)),
    ])
}

/// As [`parse_layers`] reads them.
fn show_layers(layers: &[u32]) -> String {
    let runs = layers.chunk_by(|before, after| after - before == 1);
    let run = |run: &[u32]| match *run {
        [first, .., last] => format!("{first}-{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(",")
}

fn to_json(summary: &v1::KeySummary) -> Value {
    json!({
        "prefix_hash": summary.prefix_hash,
        "generation": summary.generation,
        "total_blocks": summary.total_blocks,
        "block_size": summary.block_size,
        "layer_ids": summary.layer_ids,
        "kv_heads": summary.kv_heads,
        "head_dim": summary.head_dim,
        "frame": word(summary.frame().as_str_name(), "ROPE_FRAME_"),
        "pair_layout": word(summary.pair_layout().as_str_name(), "PAIR_LAYOUT_"),
        "inv_freq": summary.inv_freq,
        "attention_scaling": summary.attention_scaling,
        "has_extremes": summary.has_extremes,
        "has_magnitudes": summary.has_magnitudes,
        "stored_bytes": summary.stored_bytes,
        "put_unix_ms": summary.put_unix_ms,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_numbers_and_ranges() {
        let parsed = |text: &str| parse_layers(text).map(|Layers(layers)| layers);
        assert_eq!(parsed("0-3"), Ok(vec![0, 1, 2, 3]));
        assert_eq!(parsed("0,8, 16-17"), Ok(vec![0, 8, 16, 17]));
        for bad in ["", "x", "3-1", "0-", "-1", "0-512", "0,,1"] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        for text in ["0-3", "7", "0,8,16-17"] {
            assert_eq!(show_layers(&parsed(text).unwrap()), text);
        }
    }

    #[test]
    fn frequencies_come_from_a_base_a_list_or_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            Some(path)
        };
        let none = || RopeArgs {
            model_config: None,
            inv_freq: None,
            rope_theta: None,
            head_dim: None,
            attention_scaling: None,
        };
        let theta = |rope_theta, head_dim| RopeArgs {
            rope_theta: Some(rope_theta),
            head_dim: Some(head_dim),
            ..none()
        };
        let made = frequencies(&theta(10_000.0, 4)).unwrap();
        assert_eq!((made.inv_freq, made.layers), (vec![1.0, 0.01], None));
        for bad in [theta(0.0, 4), theta(10.0, 3), theta(10.0, 2048), none()] {
            assert!(frequencies(&bad).is_err(), "{bad:?}");
        }
        let listed = |text| {
            frequencies(&RopeArgs {
                inv_freq: write("list.json", text),
                ..none()
            })
        };
        assert_eq!(listed("[1, 0.5]").unwrap().inv_freq, [1.0, 0.5]);
        assert!(listed("{}").is_err());
        let model = |text| {
            frequencies(&RopeArgs {
                model_config: write("config.json", text),
                ..none()
            })
        };
        let made = model(
            r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "vocab_size": 9,
                "num_attention_heads": 2, "num_hidden_layers": 3, "rope_theta": 10000.0,
                "max_position_embeddings": 64,
                "rope_scaling": {"rope_type": "linear", "factor": 2.0}}"#,
        );
        let wanted = Frequencies {
            inv_freq: vec![0.5, 0.005],
            attention_scaling: 1.0,
            layers: Some(3),
        };
        assert_eq!(made.unwrap(), wanted);
        assert!(model(r#"{"architectures": ["Other"]}"#).is_err());
    }
}

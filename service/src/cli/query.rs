//! `kvatlas query`: put a query before manifests name it; and what a query's file leaves open.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};
use kvatlas_client::{Calibration, Client, OnlineQuery, QueryVectors, v1};
use serde_json::json;

use super::{
    error::CliError,
    output::{Report, facts, grouped},
};
use crate::routing::{
    frame::{PairLayout, RopeFrame},
    import::FILE_BYTES_MAX,
    query::{LAYERS_MAX, QueryFile, Statistics},
};

const EXAMPLES: &str = "\
Files, as safetensors or .pt:
  vectors                      [layers, heads, head_dim], for kri-q and kri-q-quest
  mean_real, mean_imaginary,   [layers, heads, head_dim / 2], for kri-t
  mean_absolute
  with the metadata layer_ids, frame, pair_layout, group_mean and position; or the statistics
  file that TriAttention's scripts/calibrate.py writes, as it is.

Examples:
  kvatlas query put q.safetensors --query-hash q1 --frame post-rope
  kvatlas query put qwen3_8b_stats.pt --query-hash qwen3 --position 32768 --ttl-ms 3600000
  kvatlas manifest c1 --k 16 --algorithm kri-t --query-hash qwen3";

#[derive(Debug, Subcommand)]
pub(super) enum QueryCommand {
    /// Keep query vectors, or kri-t's statistics, under a query_hash for a while
    #[command(after_help = EXAMPLES)]
    Put(PutArgs),
}

#[derive(Debug, Args)]
pub(super) struct PutArgs {
    /// The file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What manifests will name it by
    #[arg(long, value_name = "HASH")]
    query_hash: String,
    /// How long it is kept, in milliseconds; without it, as long as the server says
    #[arg(
        long,
        default_value_t = 0,
        hide_default_value = true,
        value_name = "MS"
    )]
    ttl_ms: u32,
    #[command(flatten)]
    open: QueryFileArgs,
}

/// What a query's file may leave open.
#[derive(Debug, Args)]
#[command(next_help_heading = "What the query's file does not say")]
pub(super) struct QueryFileArgs {
    /// Position of the next token, which kri-t scores keys for
    #[arg(long, value_name = "T")]
    position: Option<u64>,
    /// Whether the vectors are taken before or after rotary embedding
    #[arg(long, value_enum)]
    frame: Option<FrameName>,
    /// The channels that make up a frequency band: f and f + head_dim / 2, or 2f and 2f + 1;
    /// without it, half
    #[arg(long, value_enum)]
    pair_layout: Option<LayoutName>,
    /// The vectors are means over the query heads that share a KV head
    #[arg(long)]
    group_mean: bool,
    /// Layers to take from the file, such as 0,4-7; without it, all
    #[arg(long, value_parser = parse_layers)]
    layers: Option<Layers>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FrameName {
    PreRope,
    PostRope,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LayoutName {
    Half,
    Interleaved,
}

/// Ascending, distinct.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Layers(Vec<u32>);

impl QueryCommand {
    pub(super) async fn run(self, client: &Client) -> Result<Report, CliError> {
        match self {
            Self::Put(args) => put(args, client).await,
        }
    }
}

impl QueryFileArgs {
    /// A position without statistics, which were put before.
    pub(super) fn position_alone(&self) -> Option<v1::QueryVectors> {
        self.position.map(|position| v1::QueryVectors {
            position,
            ..v1::QueryVectors::default()
        })
    }
}

async fn put(args: PutArgs, client: &Client) -> Result<Report, CliError> {
    let query = args.open.read(&args.file)?;
    let wire = query.to_wire();
    let expires_unix_ms = client
        .put_query(&args.query_hash, wire, args.ttl_ms)
        .await?;
    let kind = match (&query.vectors, &query.calibration) {
        (Some(vectors), None) if vectors.group_mean => "group means",
        (Some(_), None) => "vectors",
        (None, Some(_)) => "statistics",
        (Some(_), Some(_)) => "vectors and statistics",
        (None, None) => "nothing",
    };
    let layers = ranges(&query.layer_ids);
    let text = facts(&[
        ("query", args.query_hash.clone()),
        ("holds", kind.to_owned()),
        ("layers", layers),
        ("heads", query.heads.to_string()),
        ("head dim", query.head_dim.to_string()),
        (
            "kept until",
            format!("{} (ms since 1970)", grouped(expires_unix_ms)),
        ),
    ]);
    let json = json!({
        "query_hash": args.query_hash,
        "holds": kind,
        "layer_ids": query.layer_ids,
        "heads": query.heads,
        "head_dim": query.head_dim,
        "expires_unix_ms": expires_unix_ms,
    });
    Ok(Report::found(text, json))
}

impl QueryFileArgs {
    /// The query of a file, with what the arguments say of it. They must not contradict the file.
    pub(super) fn read(&self, path: &Path) -> Result<OnlineQuery, CliError> {
        let unreadable = |source| CliError::File {
            path: path.to_owned(),
            source,
        };
        let size = fs::metadata(path).map_err(unreadable)?.len();
        if usize::try_from(size).map_or(true, |size| size > FILE_BYTES_MAX) {
            return Err(CliError::Usage(format!(
                "{} has {size} bytes, a query at most {FILE_BYTES_MAX}",
                path.display()
            )));
        }
        let bytes = fs::read(path).map_err(unreadable)?;
        let layers = self.layers.as_ref().map(|Layers(ids)| ids.as_slice());
        let in_file = |problem: String| {
            CliError::Usage(format!("{} is not a query: {problem}", path.display()))
        };
        let file =
            QueryFile::read(&bytes, None, layers).map_err(|error| in_file(error.to_string()))?;
        self.complete(file).map_err(in_file)
    }

    fn complete(&self, file: QueryFile) -> Result<OnlineQuery, String> {
        let QueryFile {
            layer_ids,
            heads,
            head_dim,
            vectors,
            statistics,
            rope,
            layout,
            group_mean,
            position,
        } = file;
        let layout = one_of(
            "--pair-layout",
            self.pair_layout,
            layout.map(LayoutName::from),
        )?;
        let frame = one_of("--frame", self.frame, rope.map(FrameName::from))?;
        let group_mean = one_of("--group-mean", self.group_mean.then_some(true), group_mean)?;
        let position = one_of("--position", self.position, position)?;
        let vectors = match (vectors, frame) {
            (None, _) => None,
            (Some(values), Some(frame)) => Some(QueryVectors {
                group_mean: group_mean.unwrap_or(false),
                ..QueryVectors::of_f32(frame.to_wire(), &values)
            }),
            (Some(_), None) => {
                return Err("its vectors are pre-rope or post-rope, say which: --frame".into());
            }
        };
        let calibration = match (statistics, position) {
            (None, _) => None,
            (Some(statistics), Some(position)) => Some(calibration(statistics, position)),
            (Some(_), None) => {
                return Err(
                    "its statistics need the position of the next token: --position".into(),
                );
            }
        };
        Ok(OnlineQuery {
            layer_ids,
            heads,
            head_dim,
            pair_layout: layout.unwrap_or(LayoutName::Half).to_wire(),
            vectors,
            calibration,
        })
    }
}

fn calibration(statistics: Statistics, position: u64) -> Calibration {
    let Statistics {
        mean_real,
        mean_imaginary,
        mean_absolute,
    } = statistics;
    Calibration {
        position,
        mean_real,
        mean_imaginary,
        mean_absolute,
    }
}

/// What is given or what the file says; both may, when they agree.
fn one_of<T: PartialEq>(
    flag: &str,
    given: Option<T>,
    in_file: Option<T>,
) -> Result<Option<T>, String> {
    match (given, in_file) {
        (Some(given), Some(in_file)) if given != in_file => {
            Err(format!("it says otherwise than {flag}"))
        }
        (given, in_file) => Ok(given.or(in_file)),
    }
}

/// Numbers and ranges with commas between, ascending.
fn parse_layers(text: &str) -> Result<Layers, String> {
    let wrong = || "must be ascending layers and ranges, such as 0,4-7".to_owned();
    let mut layers = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let (first, last) = (number(first)?, number(last)?);
        let after_the_last = layers.last().is_none_or(|&before| before < first);
        if !after_the_last || last < first {
            return Err(wrong());
        }
        // Before the range is written out.
        let count = usize::try_from(last - first).map_or(usize::MAX, |count| count + 1);
        if layers.len().saturating_add(count) > LAYERS_MAX {
            return Err(format!("a query has at most {LAYERS_MAX} layers"));
        }
        layers.extend(first..=last);
    }
    Ok(Layers(layers))
}

/// The same, the other way.
fn ranges(layers: &[u32]) -> String {
    let parts = layers.chunk_by(|before, after| before + 1 == *after);
    let parts: Vec<String> = parts
        .map(|part| match part {
            [first, .., last] => format!("{first}-{last}"),
            other => other.iter().map(u32::to_string).collect(),
        })
        .collect();
    parts.join(",")
}

impl FrameName {
    fn to_wire(self) -> v1::RopeFrame {
        match self {
            Self::PreRope => v1::RopeFrame::PreRope,
            Self::PostRope => v1::RopeFrame::PostRope,
        }
    }
}

impl From<RopeFrame> for FrameName {
    fn from(frame: RopeFrame) -> Self {
        match frame {
            RopeFrame::PreRope => Self::PreRope,
            RopeFrame::PostRope => Self::PostRope,
        }
    }
}

impl LayoutName {
    fn to_wire(self) -> v1::PairLayout {
        match self {
            Self::Half => v1::PairLayout::Half,
            Self::Interleaved => v1::PairLayout::Interleaved,
        }
    }
}

impl From<PairLayout> for LayoutName {
    fn from(layout: PairLayout) -> Self {
        match layout {
            PairLayout::Half => Self::Half,
            PairLayout::Interleaved => Self::Interleaved,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_numbers_and_ranges() {
        for (text, layers) in [
            ("0", vec![0]),
            ("0,4-7,9", vec![0, 4, 5, 6, 7, 9]),
            ("0-511", (0..512).collect()),
        ] {
            assert_eq!(parse_layers(text), Ok(Layers(layers.clone())));
            assert_eq!(ranges(&layers), text);
        }
        for bad in [
            "",
            "x",
            "4,4",
            "7-4",
            "4-7,6",
            "0-",
            "-1",
            "0-512",
            "0-4294967295",
        ] {
            assert!(parse_layers(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_flag_must_not_contradict_the_file() {
        assert_eq!(one_of("--x", Some(1), None), Ok(Some(1)));
        assert_eq!(one_of("--x", None, Some(1)), Ok(Some(1)));
        assert_eq!(one_of("--x", Some(1), Some(1)), Ok(Some(1)));
        assert_eq!(one_of("--x", None::<u8>, None), Ok(None));
        assert!(one_of("--x", Some(2), Some(1)).is_err());
    }
}

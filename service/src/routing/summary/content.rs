//! Finds the tensors of a key summary or a cartridge in a file, and checks their shapes.

use super::HEAD_DIM_MAX;
use super::error::PutSummaryError;
use crate::routing::import::{
    BLOCKS_MAX, ImportError, KV_HEADS_MAX, LAYERS_MAX, TensorFile, TensorView, shown,
};

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Summary,
    /// The keys of every token.
    Cartridge,
}

pub(super) const MEANS: &str = "key_means";
pub(super) const MIN: &str = "key_min";
pub(super) const MAX: &str = "key_max";
pub(super) const MAGNITUDES: &str = "key_magnitudes";

/// The tensors that a summary is made of, and the numbers that they agree in.
#[derive(Debug)]
pub(super) struct Source<'a> {
    pub tensors: Tensors<'a>,
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub blocks: usize,
}

#[derive(Debug)]
pub(super) enum Tensors<'a> {
    Summary(Box<SummaryTensors<'a>>),
    /// For each layer its parts `[kv_heads, tokens, head_dim]` in the order of the tokens.
    Cartridge {
        layers: Vec<Vec<TensorView<'a>>>,
        tokens: usize,
    },
}

/// `[layers, kv_heads, blocks, head_dim]`, of the magnitudes half of it.
#[derive(Debug)]
pub(super) struct SummaryTensors<'a> {
    pub means: TensorView<'a>,
    /// Smallest and largest.
    pub extremes: Option<[TensorView<'a>; 2]>,
    pub magnitudes: Option<TensorView<'a>>,
}

impl Tensors<'_> {
    /// Whether there are extremes, and magnitudes.
    pub(super) fn has(&self) -> (bool, bool) {
        match self {
            Self::Cartridge { .. } => (true, true),
            Self::Summary(tensors) => (tensors.extremes.is_some(), tensors.magnitudes.is_some()),
        }
    }
}

/// Finds what there is, or what the sender says that there is.
pub(super) fn find<'a>(
    file: &mut TensorFile<'a>,
    content: Option<Content>,
    block_size: usize,
) -> Result<Source<'a>, PutSummaryError> {
    let naming = Naming::of(file);
    match (content, naming) {
        (Some(Content::Summary), _) => summary(file),
        (None, _) if file.has(MEANS) => summary(file),
        (Some(Content::Cartridge) | None, Some(naming)) => cartridge(file, naming, block_size),
        (Some(Content::Cartridge) | None, None) => Err(PutSummaryError::Unknown {
            found: file.describe(),
        }),
    }
}

fn summary<'a>(file: &mut TensorFile<'a>) -> Result<Source<'a>, PutSummaryError> {
    let means = need(file, MEANS)?;
    let [layers, kv_heads, blocks, head_dim] = *means.shape else {
        return Err(PutSummaryError::Shape {
            field: MEANS.into(),
            wanted: "[layers, kv_heads, blocks, head_dim]".into(),
            found: means.shape,
        });
    };
    check_dimension(MEANS, "layers", layers, LAYERS_MAX)?;
    check_dimension(MEANS, "KV heads", kv_heads, KV_HEADS_MAX)?;
    check_dimension(MEANS, "blocks", blocks, BLOCKS_MAX)?;
    check_head_dim(MEANS, head_dim)?;
    let has = [MIN, MAX, MAGNITUDES].map(|name| file.has(name));
    let mut of_width = |name: &str, width: usize| {
        let tensor = need(file, name)?;
        check_shape(name, &tensor, &[layers, kv_heads, blocks, width])?;
        Ok::<_, PutSummaryError>(tensor)
    };
    let tensors = SummaryTensors {
        extremes: match has {
            [false, false, _] => None,
            // The one that is missing is named.
            [_, _, _] => Some([of_width(MIN, head_dim)?, of_width(MAX, head_dim)?]),
        },
        magnitudes: match has {
            [_, _, true] => Some(of_width(MAGNITUDES, head_dim / 2)?),
            [_, _, false] => None,
        },
        means,
    };
    Ok(Source {
        tensors: Tensors::Summary(Box::new(tensors)),
        layers,
        kv_heads,
        head_dim,
        blocks,
    })
}

fn cartridge<'a>(
    file: &mut TensorFile<'a>,
    naming: Naming,
    block_size: usize,
) -> Result<Source<'a>, PutSummaryError> {
    let parts = naming.parts();
    if naming == Naming::Trained {
        check_trained(file)?;
    }
    let counts: Vec<usize> = parts.iter().map(|part| part.count(file)).collect();
    let count = counts.iter().copied().max().unwrap_or(0);
    check_dimension(&parts[0].name(0), "layers", count, LAYERS_MAX)?;
    let mut layers = Vec::with_capacity(count);
    let mut first = None;
    for index in 0..count {
        let there = parts.iter().zip(&counts).filter(|&(_, &count)| count > 0);
        let names: Vec<String> = there.map(|(part, _)| part.name(index)).collect();
        let (layer, shape) = cartridge_layer(file, &names)?;
        let wanted = *first.get_or_insert(shape);
        if shape != wanted {
            return Err(PutSummaryError::Shape {
                field: names.join(" + "),
                wanted: format!("{wanted:?} of the first layer"),
                found: shape.into(),
            });
        }
        layers.push(layer);
    }
    let [kv_heads, tokens, head_dim] = first.unwrap_or_default();
    let blocks = tokens.div_ceil(block_size.max(1));
    check_dimension(&parts[0].name(0), "blocks", blocks, BLOCKS_MAX)?;
    Ok(Source {
        layers: layers.len(),
        tensors: Tensors::Cartridge { layers, tokens },
        kv_heads,
        head_dim,
        blocks,
    })
}

/// Whether every tensor of keys has its place among the tokens.
fn check_trained(file: &TensorFile<'_>) -> Result<(), PutSummaryError> {
    if [FROZEN, FIXED].iter().all(|part| part.count(file) > 0) {
        return Err(PutSummaryError::FrozenTwice);
    }
    let mut fields = file.names().filter_map(|name| name.split('.').next());
    let is_other = |field: &&str| {
        let known = ["trainable_keys", "frozen_keys", "fixed_keys"];
        field.ends_with("_keys") && !known.contains(field)
    };
    match fields.find(is_other) {
        None => Ok(()),
        Some(field) => Err(PutSummaryError::OtherKeys {
            field: shown(field),
        }),
    }
}

/// The parts of a layer that have tokens, and `[kv_heads, tokens, head_dim]` of all together.
fn cartridge_layer<'a>(
    file: &mut TensorFile<'a>,
    names: &[String],
) -> Result<(Vec<TensorView<'a>>, [usize; 3]), PutSummaryError> {
    let mut parts = Vec::new();
    let mut shape: Option<[usize; 3]> = None;
    for name in names {
        let mut part = need(file, name)?;
        if part.shape.len() == 4 {
            part = part.without_batch();
        }
        let [kv_heads, tokens, head_dim] = *part.shape else {
            return Err(PutSummaryError::Shape {
                field: name.clone(),
                wanted: "[1, kv_heads, tokens, head_dim]".into(),
                found: part.shape,
            });
        };
        check_dimension(name, "KV heads", kv_heads, KV_HEADS_MAX)?;
        check_head_dim(name, head_dim)?;
        let [kv_heads, tokens_before, head_dim] = shape.unwrap_or([kv_heads, 0, head_dim]);
        check_shape(name, &part, &[kv_heads, tokens, head_dim])?;
        shape = Some([kv_heads, tokens_before.saturating_add(tokens), head_dim]);
        if tokens > 0 {
            parts.push(part);
        }
    }
    Ok((parts, shape.unwrap_or_default()))
}

/// How a cartridge names its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Naming {
    /// Parameters that were trained, after some that were kept as they were.
    Trained,
    /// A list of (keys, values).
    Pairs,
    Layers,
}

/// The keys of all layers, or a part of each layer's tokens: named before, index, after.
#[derive(Clone, Copy, Debug)]
struct Part(&'static str, &'static str);

const TRAINABLE: Part = Part("trainable_keys.", "");
const FROZEN: Part = Part("frozen_keys.", "");
/// What older files call the frozen keys.
const FIXED: Part = Part("fixed_keys.", "");

impl Naming {
    fn of(file: &TensorFile<'_>) -> Option<Self> {
        let is_there = |naming: &Self| naming.parts().iter().any(|part| part.count(file) > 0);
        [Self::Trained, Self::Layers, Self::Pairs]
            .into_iter()
            .find(is_there)
    }

    /// In the order of the tokens.
    fn parts(self) -> &'static [Part] {
        match self {
            Self::Trained => &[FROZEN, FIXED, TRAINABLE],
            Self::Pairs => &[Part("", ".0")],
            Self::Layers => &[Part("layers.", ".keys")],
        }
    }
}

impl Part {
    fn name(self, layer: usize) -> String {
        let Self(before, after) = self;
        format!("{before}{layer}{after}")
    }

    /// How many of the file's tensors are named so. A gap shows where the names are asked for.
    fn count(self, file: &TensorFile<'_>) -> usize {
        let Self(before, after) = self;
        let is_so = |name: &&str| {
            let index = name
                .strip_prefix(before)
                .and_then(|n| n.strip_suffix(after));
            index.is_some_and(|index| index.parse::<u32>().is_ok())
        };
        file.names().filter(is_so).count()
    }
}

fn need<'a>(file: &mut TensorFile<'a>, name: &str) -> Result<TensorView<'a>, PutSummaryError> {
    let tensor = file.tensor(name)?.ok_or_else(|| PutSummaryError::Missing {
        field: name.to_owned(),
        found: file.describe(),
    })?;
    tensor.check_floats().map_err(|error| ImportError::Tensor {
        field: name.to_owned(),
        error,
    })?;
    Ok(tensor)
}

fn check_dimension(
    field: &str,
    what: &'static str,
    found: usize,
    limit: u32,
) -> Result<(), PutSummaryError> {
    let limit = limit as usize;
    if (1..=limit).contains(&found) {
        return Ok(());
    }
    Err(PutSummaryError::Dimension {
        field: field.to_owned(),
        what,
        found,
        limit,
    })
}

fn check_head_dim(field: &str, found: usize) -> Result<(), PutSummaryError> {
    if found.is_multiple_of(2) && (2..=HEAD_DIM_MAX).contains(&found) {
        return Ok(());
    }
    Err(PutSummaryError::HeadDim {
        field: field.to_owned(),
        found,
    })
}

fn check_shape(
    field: &str,
    tensor: &TensorView<'_>,
    wanted: &[usize],
) -> Result<(), PutSummaryError> {
    if *tensor.shape == *wanted {
        return Ok(());
    }
    Err(PutSummaryError::Shape {
        field: field.to_owned(),
        wanted: format!("{wanted:?}"),
        found: tensor.shape.clone(),
    })
}

//! Files of query vectors and of calibration statistics.
//!
//! Two forms are read, from safetensors and from `.pt` files:
//!
//! | name | content |
//! |---|---|
//! | `vectors` | `[layers, heads, head_dim]` |
//! | `mean_real`, `mean_imaginary`, `mean_absolute` | `[layers, heads, head_dim / 2]` |
//! | `layer_ids` | model layers; without it, 0, 1 and so on |
//! | `frame` | `pre_rope` or `post_rope`, of the vectors |
//! | `pair_layout` | `half` or `interleaved` |
//! | `group_mean` | `true` when the vectors are means over the heads that share a KV head |
//! | `position` | of the next token |
//!
//! (the lower five are metadata: texts in safetensors, plain values beside the tensors in `.pt`),
//! and the statistics that TriAttention's calibration writes (github.com/WeianMao/triattention):
//! `stats`, a dict of `layer<l>_head<h>` with `q_mean_real`, `q_mean_imag` and `q_abs_mean` of
//! `[head_dim / 2]` each, or its later form `layer_stats`, a dict by layer of `q_mean_complex`
//! `[heads, head_dim / 2, 2]` and `q_abs_mean` (or `extra_coef`, which is that less the mean's
//! magnitude) of `[heads, head_dim / 2]`; beside them `metadata` with `rope_style`.

use std::collections::BTreeMap;

use super::super::{
    frame::{PairLayout, RopeFrame},
    import::{Format, ImportError, Scalar, TensorError, TensorFile, TensorView},
};
use super::{HEAD_DIM_MAX, HEADS_MAX, LAYERS_MAX};

/// Elements of all layers together that are read of a file: 64 MiB.
pub const FILE_ELEMENTS_MAX: usize = 1 << 24;
/// Missing heads in a message.
const HEADS_SHOWN_MAX: usize = 8;
/// The arrays of statistics, as we name them.
const STATISTICS: [&str; 3] = ["mean_real", "mean_imaginary", "mean_absolute"];
/// The same as TriAttention names them.
const OF_HEAD: [&str; 3] = ["q_mean_real", "q_mean_imag", "q_abs_mean"];

/// What a file says; it may leave open what somebody else must then say.
#[derive(Clone, Debug, PartialEq)]
pub struct QueryFile {
    /// Model layers, ascending.
    pub layer_ids: Vec<u32>,
    /// Per layer.
    pub heads: u32,
    pub head_dim: u32,
    /// `[layers, heads, head_dim]`.
    pub vectors: Option<Vec<f32>>,
    pub statistics: Option<Statistics>,
    pub rope: Option<RopeFrame>,
    pub layout: Option<PairLayout>,
    pub group_mean: Option<bool>,
    pub position: Option<u64>,
}

/// See [`Calibration`](super::Calibration); each `[layers, heads, head_dim / 2]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    pub mean_real: Vec<f32>,
    pub mean_imaginary: Vec<f32>,
    pub mean_absolute: Vec<f32>,
}

/// Why a file is not one of a query.
#[derive(Debug, thiserror::Error)]
pub enum QueryFileError {
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(
        "neither `vectors`, nor `mean_real` with `mean_imaginary` and `mean_absolute`, nor \
         TriAttention's `stats` are there; found {found}"
    )]
    Unknown { found: String },
    #[error("{name} is missing")]
    Missing { name: String },
    #[error("{name} has the shape {found:?}, must be {wanted}")]
    Shape {
        name: String,
        found: Vec<usize>,
        wanted: String,
    },
    #[error("{name}: {error}")]
    Tensor { name: String, error: TensorError },
    #[error("{field} is {found}, must be {wanted}")]
    Field {
        field: &'static str,
        found: String,
        wanted: &'static str,
    },
    #[error("layer {layer} is not in the file, which has {found} layers")]
    LayerMissing { layer: u32, found: usize },
    #[error(
        "layer {layer} has statistics of only some of its {of} query heads, {missing} are missing: \
         kri-t needs every head of a layer"
    )]
    HeadsMissing {
        layer: u32,
        missing: String,
        of: u32,
    },
    #[error(
        "layer {layer} has [heads, bands] of {found:?}, the layers before it {before:?}: a key \
         summary has one shape for all of its layers"
    )]
    LayersDiffer {
        layer: u32,
        found: [usize; 2],
        before: [usize; 2],
    },
    #[error("there are {found} {what}; 1 to {limit} are read")]
    Limit {
        what: &'static str,
        found: usize,
        limit: usize,
    },
}

impl QueryFile {
    /// Reads a file, or those of its layers that are asked for (ascending). Without a `format`, the
    /// file's first bytes tell it.
    ///
    /// # Errors
    /// When the file is damaged, passes a limit, is no file of a query, or lacks a layer or a head.
    pub fn read(
        bytes: &[u8],
        format: Option<Format>,
        layers: Option<&[u32]>,
    ) -> Result<Self, QueryFileError> {
        let mut file = TensorFile::open(bytes, format)?;
        if file.has("vectors") || file.has(STATISTICS[0]) {
            return plain(&mut file, layers);
        }
        let by_head = by_head(&file);
        if !by_head.is_empty() {
            return calibrated(&mut file, &by_head, layers, of_heads);
        }
        let by_layer = by_layer(&file);
        if !by_layer.is_empty() {
            return calibrated(&mut file, &by_layer, layers, of_layer);
        }
        let found = file.describe();
        Err(QueryFileError::Unknown { found })
    }
}

/// A file with the names of our own.
fn plain(file: &mut TensorFile<'_>, layers: Option<&[u32]>) -> Result<QueryFile, QueryFileError> {
    // The first array says the shape.
    let (first, per_channel) = if file.has("vectors") {
        ("vectors", 1)
    } else {
        (STATISTICS[0], 2)
    };
    let view = tensor(file, first)?;
    let &[found_layers, heads, last] = &*view.shape else {
        let wanted = "[layers, heads, channels]".to_owned();
        return Err(shape_error(first, &view, wanted));
    };
    let head_dim = last.saturating_mul(per_channel);
    check_limits(found_layers, heads, head_dim)?;
    let ids = layer_ids(file, found_layers)?;
    let picked = pick(&ids, layers)?;
    let has_statistics = file.has(STATISTICS[0]);
    let mut array = |name: &str, width: usize| {
        let view = tensor(file, name)?;
        if *view.shape != [found_layers, heads, width] {
            let wanted = format!("[{found_layers}, {heads}, {width}]");
            return Err(shape_error(name, &view, wanted));
        }
        let values = values(&view, name)?;
        let of_layer = |&at: &usize| &values[at * heads * width..][..heads * width];
        Ok(picked.iter().flat_map(of_layer).copied().collect())
    };
    let vectors = match first {
        "vectors" => Some(array(first, head_dim)?),
        _ => None,
    };
    let statistics = if has_statistics {
        let [real, imaginary, absolute] = STATISTICS.map(|name| array(name, head_dim / 2));
        Some(Statistics {
            mean_real: real?,
            mean_imaginary: imaginary?,
            mean_absolute: absolute?,
        })
    } else {
        None
    };
    Ok(QueryFile {
        layer_ids: picked.iter().map(|&at| ids[at]).collect(),
        heads: narrow(heads),
        head_dim: narrow(head_dim),
        vectors,
        statistics,
        rope: rope(file)?,
        layout: layout(file, "pair_layout")?,
        group_mean: truth(file)?,
        position: position(file)?,
    })
}

/// The statistics of one layer, `[heads, bands]` each.
struct Layer {
    heads: usize,
    bands: usize,
    arrays: [Vec<f32>; 3],
}

/// A file of TriAttention's: `found` is what was found of each layer, and `read` reads it.
fn calibrated<T>(
    file: &mut TensorFile<'_>,
    found: &BTreeMap<u32, T>,
    layers: Option<&[u32]>,
    read: fn(&mut TensorFile<'_>, u32, &T) -> Result<Layer, QueryFileError>,
) -> Result<QueryFile, QueryFileError> {
    let ids: Vec<u32> = found.keys().copied().collect();
    let picked = pick(&ids, layers)?;
    let layer_ids: Vec<u32> = picked.iter().map(|&at| ids[at]).collect();
    let mut shape = None;
    let mut all: [Vec<f32>; 3] = Default::default();
    for &layer in &layer_ids {
        let Layer {
            heads,
            bands,
            arrays,
        } = read(file, layer, &found[&layer])?;
        check_limits(layer_ids.len(), heads, 2 * bands)?;
        let found = [heads, bands];
        let before = *shape.get_or_insert(found);
        if found != before {
            return Err(QueryFileError::LayersDiffer {
                layer,
                found,
                before,
            });
        }
        for (all, array) in all.iter_mut().zip(arrays) {
            all.extend(array);
        }
        let elements = all.iter().map(Vec::len).sum();
        if elements > FILE_ELEMENTS_MAX {
            return Err(QueryFileError::Limit {
                what: "elements",
                found: elements,
                limit: FILE_ELEMENTS_MAX,
            });
        }
    }
    let [heads, bands] = shape.expect("pick leaves a layer");
    let [mean_real, mean_imaginary, mean_absolute] = all;
    Ok(QueryFile {
        layer_ids,
        heads: narrow(heads),
        head_dim: narrow(2 * bands),
        vectors: None,
        statistics: Some(Statistics {
            mean_real,
            mean_imaginary,
            mean_absolute,
        }),
        rope: None,
        layout: layout(file, "metadata.rope_style")?,
        group_mean: None,
        position: None,
    })
}

/// `stats`: the heads of each layer, with the beginnings of their names; and how many there are.
type Heads = (u32, BTreeMap<u32, String>);

fn by_head(file: &TensorFile<'_>) -> BTreeMap<u32, Heads> {
    let mut found: BTreeMap<u32, Heads> = BTreeMap::new();
    let mut heads = 0;
    for name in file.names() {
        let parts = || {
            let (entry, array) = name.strip_prefix("stats.")?.split_once('.')?;
            let (layer, head) = entry.strip_prefix("layer")?.split_once("_head")?;
            let is_first = array == OF_HEAD[0];
            is_first.then_some((entry, layer.parse().ok()?, head.parse::<u32>().ok()?))
        };
        if let Some((entry, layer, head)) = parts() {
            let (_, of_layer) = found.entry(layer).or_default();
            of_layer.insert(head, format!("stats.{entry}"));
            heads = heads.max(head.saturating_add(1));
        }
    }
    for (of, _) in found.values_mut() {
        *of = heads;
    }
    found
}

fn of_heads(
    file: &mut TensorFile<'_>,
    layer: u32,
    (of, heads): &Heads,
) -> Result<Layer, QueryFileError> {
    check_limits(1, *of as usize, 2)?;
    let missing: Vec<u32> = (0..*of).filter(|head| !heads.contains_key(head)).collect();
    if !missing.is_empty() {
        return Err(heads_missing(layer, &missing, *of));
    }
    let mut layer = Layer {
        heads: heads.len(),
        bands: 0,
        arrays: Default::default(),
    };
    for entry in heads.values() {
        for (part, all) in OF_HEAD.iter().zip(&mut layer.arrays) {
            let name = format!("{entry}.{part}");
            let view = tensor(file, &name)?;
            if layer.bands == 0
                && let [bands] = *view.shape
            {
                layer.bands = bands;
            }
            let bands = layer.bands;
            if *view.shape != [bands] {
                return Err(shape_error(&name, &view, format!("[{bands}]")));
            }
            check_limits(1, 1, bands.saturating_mul(2))?;
            all.extend(values(&view, &name)?);
        }
    }
    Ok(layer)
}

/// `layer_stats`: the beginnings of the names of each layer.
fn by_layer(file: &TensorFile<'_>) -> BTreeMap<u32, String> {
    let layer = |name: &str| {
        let (layer, array) = name.strip_prefix("layer_stats.")?.split_once('.')?;
        let is_first = array == "q_mean_complex";
        is_first.then_some((layer.parse().ok()?, format!("layer_stats.{layer}")))
    };
    file.names().filter_map(layer).collect()
}

fn of_layer(
    file: &mut TensorFile<'_>,
    _layer: u32,
    entry: &String,
) -> Result<Layer, QueryFileError> {
    let name = format!("{entry}.q_mean_complex");
    let view = tensor(file, &name)?;
    let &[heads, bands, 2] = &*view.shape else {
        return Err(shape_error(&name, &view, "[heads, bands, 2]".to_owned()));
    };
    check_limits(1, heads, bands.saturating_mul(2))?;
    let pairs = values(&view, &name)?;
    let (pairs, _) = pairs.as_chunks();
    let real = pairs.iter().map(|&[real, _]| real).collect();
    let imaginary = pairs.iter().map(|&[_, imaginary]| imaginary).collect();
    let mut array = |part: &str| {
        let name = format!("{entry}.{part}");
        let view = tensor(file, &name)?;
        if *view.shape != [heads, bands] {
            return Err(shape_error(&name, &view, format!("[{heads}, {bands}]")));
        }
        values(&view, &name)
    };
    let absolute = match array(OF_HEAD[2]) {
        // What is kept instead of it is its distance from the mean's magnitude.
        Err(QueryFileError::Missing { name }) => {
            let extra = array("extra_coef").map_err(|_| QueryFileError::Missing { name })?;
            let pairs = extra.iter().zip(pairs);
            let absolute = pairs.map(|(extra, [real, imaginary])| extra + real.hypot(*imaginary));
            absolute.collect()
        }
        array => array?,
    };
    Ok(Layer {
        heads,
        bands,
        arrays: [real, imaginary, absolute],
    })
}

/// Where the layers that are asked for are among those of the file; at least one.
fn pick(found: &[u32], layers: Option<&[u32]>) -> Result<Vec<usize>, QueryFileError> {
    let Some(layers) = layers else {
        return Ok((0..found.len()).collect());
    };
    let place = |&layer: &u32| {
        found
            .binary_search(&layer)
            .map_err(|_| QueryFileError::LayerMissing {
                layer,
                found: found.len(),
            })
    };
    let picked: Vec<usize> = layers.iter().map(place).collect::<Result<_, _>>()?;
    check_limits(picked.len(), 1, 2)?;
    Ok(picked)
}

fn check_limits(layers: usize, heads: usize, head_dim: usize) -> Result<(), QueryFileError> {
    for (what, found, limit) in [
        ("layers", layers, LAYERS_MAX),
        ("heads", heads, HEADS_MAX as usize),
        ("channels of a head", head_dim, HEAD_DIM_MAX as usize),
    ] {
        if found == 0 || found > limit {
            return Err(QueryFileError::Limit { what, found, limit });
        }
    }
    Ok(())
}

fn tensor<'a>(file: &mut TensorFile<'a>, name: &str) -> Result<TensorView<'a>, QueryFileError> {
    file.tensor(name)?.ok_or_else(|| QueryFileError::Missing {
        name: name.to_owned(),
    })
}

fn values(view: &TensorView<'_>, name: &str) -> Result<Vec<f32>, QueryFileError> {
    view.to_f32(FILE_ELEMENTS_MAX)
        .map_err(|error| QueryFileError::Tensor {
            name: name.to_owned(),
            error,
        })
}

fn shape_error(name: &str, view: &TensorView<'_>, wanted: String) -> QueryFileError {
    QueryFileError::Shape {
        name: name.to_owned(),
        found: view.shape.to_vec(),
        wanted,
    }
}

fn heads_missing(layer: u32, missing: &[u32], of: u32) -> QueryFileError {
    let shown: Vec<String> = missing
        .iter()
        .take(HEADS_SHOWN_MAX)
        .map(u32::to_string)
        .collect();
    let more = if missing.len() > shown.len() {
        " and more"
    } else {
        ""
    };
    QueryFileError::HeadsMissing {
        layer,
        missing: shown.join(", ") + more,
        of,
    }
}

/// From a text such as `0,4,5` or `[0, 4, 5]`, or from a list of as many numbers.
fn layer_ids(file: &TensorFile<'_>, layers: usize) -> Result<Vec<u32>, QueryFileError> {
    const FIELD: &str = "layer_ids";
    let scalar = file.scalar(FIELD);
    let wrong = || QueryFileError::Field {
        field: FIELD,
        found: scalar.map_or("a list or a tensor".to_owned(), |scalar| {
            format!("{:?}", shown(scalar))
        }),
        wanted: "as many ascending numbers as there are layers",
    };
    let ids: Option<Vec<u32>> = match scalar {
        Some(Scalar::Text(text)) => text
            .trim_matches(['[', ']'])
            .split(',')
            .map(|id| id.trim().parse().ok())
            .collect(),
        Some(Scalar::Bool(_) | Scalar::Integer(_) | Scalar::Float(_)) => None,
        // Its numbers are not read, and to take others for them would be wrong.
        None if file.has(FIELD) => None,
        None if file.scalar("layer_ids.0").is_some() => (0..layers)
            .map(|at| match file.scalar(&format!("{FIELD}.{at}")) {
                Some(Scalar::Integer(id)) => u32::try_from(*id).ok(),
                Some(_) | None => None,
            })
            .collect(),
        None => Some((0..narrow(layers)).collect()),
    };
    ids.filter(|ids| ids.len() == layers && ids.is_sorted_by(|before, after| before < after))
        .ok_or_else(wrong)
}

fn rope(file: &TensorFile<'_>) -> Result<Option<RopeFrame>, QueryFileError> {
    let wanted = "pre_rope or post_rope";
    choice(file, "frame", wanted, |text| match text {
        "pre_rope" => Some(RopeFrame::PreRope),
        "post_rope" => Some(RopeFrame::PostRope),
        _ => None,
    })
}

fn layout(
    file: &TensorFile<'_>,
    field: &'static str,
) -> Result<Option<PairLayout>, QueryFileError> {
    choice(file, field, "half or interleaved", |text| match text {
        "half" => Some(PairLayout::Half),
        "interleaved" => Some(PairLayout::Interleaved),
        _ => None,
    })
}

fn truth(file: &TensorFile<'_>) -> Result<Option<bool>, QueryFileError> {
    choice(file, "group_mean", "true or false", |text| match text {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    })
}

fn position(file: &TensorFile<'_>) -> Result<Option<u64>, QueryFileError> {
    choice(file, "position", "a number", |text| text.parse().ok())
}

/// What the text, number or truth of that name says; none when it is not there.
fn choice<T>(
    file: &TensorFile<'_>,
    field: &'static str,
    wanted: &'static str,
    read: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, QueryFileError> {
    let Some(scalar) = file.scalar(field) else {
        return Ok(None);
    };
    let text = shown(scalar);
    match read(&text.to_lowercase().replace('-', "_")) {
        Some(choice) => Ok(Some(choice)),
        None => Err(QueryFileError::Field {
            field,
            found: format!("{text:?}"),
            wanted,
        }),
    }
}

fn shown(scalar: &Scalar) -> String {
    match scalar {
        Scalar::Text(text) => text.clone(),
        Scalar::Bool(truth) => truth.to_string(),
        Scalar::Integer(number) => number.to_string(),
        Scalar::Float(number) => number.to_string(),
    }
}

/// Of a number that was checked against its limit.
fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;

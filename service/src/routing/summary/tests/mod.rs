//! Key summaries from files to mapped tables, on a store of their own.

mod bad;
mod damage;
mod stored;
mod twin;

use std::collections::BTreeMap;
use std::sync::Arc;

use half::{bf16, f16};
use kvatlas_kernels::score::Table;
use kvatlas_kernels::screen::OwnedScreen;
use safetensors::Dtype;
use safetensors::tensor::TensorView as SafeView;
use tempfile::TempDir;

use super::*;
use crate::routing::frame::{KeyFrame, PairLayout, RopeFrame, SummaryShape};
use crate::routing::import::{Element, TensorFile};
use crate::routing::priors::{PriorUpload, Priors};
use crate::store::Store;

/// Fixed, so that the copies can be made again.
const DITHER_SEED: u64 = 17;

/// Summaries on a new folder, and what a restart of them finds.
struct Fixture {
    folder: TempDir,
    store: Arc<Store>,
    priors: Arc<Priors>,
    summaries: Summaries,
    report: LoadReport,
}

impl Fixture {
    fn new() -> Self {
        Self::on(tempfile::tempdir().unwrap())
    }

    fn on(folder: TempDir) -> Self {
        let store = Arc::new(Store::open(folder.path()).unwrap().0);
        let priors = Arc::new(Priors::open(Arc::clone(&store)).unwrap().0);
        let (summaries, report) = Summaries::open(Arc::clone(&store), Arc::clone(&priors)).unwrap();
        Self {
            folder,
            store,
            priors,
            summaries,
            report,
        }
    }

    fn reopen(self) -> Self {
        let folder = self.folder;
        drop((self.summaries, self.priors, self.store));
        Self::on(folder)
    }

    fn put(
        &self,
        prefix_hash: &str,
        frame: &KeyFrame,
        file: &[u8],
    ) -> Result<PutOutcome, PutSummaryError> {
        let upload = SummaryUpload {
            prefix_hash,
            frame: frame.clone(),
            content: None,
            format: None,
            file,
            now_unix_ms: 7,
            is_wanted: &|| true,
        };
        self.summaries.put_dithered(upload, DITHER_SEED)
    }

    fn put_prior(&self, prefix_hash: &str, blocks: usize) -> Result<(), String> {
        let scores = vec![0.5; blocks];
        let file = file(&[("block_affinities", Element::F32, &[1, 1, blocks], &scores)]);
        let put = self.priors.put(&PriorUpload {
            prefix_hash,
            query_hash: "",
            algorithm: "kri-d",
            format: None,
            pooling: kvatlas_kernels::Pooling::Mean,
            repair: None,
            bytes: &file,
            now_unix_ms: 7,
        });
        put.map(drop).map_err(|error| error.to_string())
    }

    fn blob_files(&self) -> Vec<std::path::PathBuf> {
        let entries = std::fs::read_dir(self.folder.path().join("blobs")).unwrap();
        let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }
}

fn frame(layers: u32, head_dim: u16, block_size: u32) -> KeyFrame {
    KeyFrame {
        rope: RopeFrame::PostRope,
        layout: PairLayout::Half,
        inv_freq: (0..head_dim / 2).map(|f| 1.0 / f32::from(f + 1)).collect(),
        attention_scaling: 1.0,
        block_size,
        layer_ids: (0..layers).collect(),
    }
}

/// A name, the type of the elements, the shape, and the elements.
type Named<'t> = (&'t str, Element, &'t [usize], &'t [f32]);

const DTYPES: [(Element, Dtype); 4] = [
    (Element::F16, Dtype::F16),
    (Element::Bf16, Dtype::BF16),
    (Element::F32, Dtype::F32),
    (Element::F64, Dtype::F64),
];

/// A safetensors file.
fn file(tensors: &[Named<'_>]) -> Vec<u8> {
    let bytes: Vec<_> = tensors
        .iter()
        .map(|(_, element, _, values)| bytes_of(*element, values))
        .collect();
    let views = tensors.iter().zip(&bytes);
    let views = views.map(|((name, element, shape, _), bytes)| {
        let (_, dtype) = DTYPES.into_iter().find(|(of, _)| of == element).unwrap();
        (*name, SafeView::new(dtype, shape.to_vec(), bytes).unwrap())
    });
    safetensors::serialize(views.collect::<BTreeMap<_, _>>(), None).unwrap()
}

fn bytes_of(element: Element, values: &[f32]) -> Vec<u8> {
    let bytes = |value: &f32| {
        if element == Element::F16 {
            f16::from_f32(*value).to_le_bytes().to_vec()
        } else if element == Element::Bf16 {
            bf16::from_f32(*value).to_le_bytes().to_vec()
        } else if element == Element::F64 {
            f64::from(*value).to_le_bytes().to_vec()
        } else {
            value.to_le_bytes().to_vec()
        }
    };
    values.iter().flat_map(bytes).collect()
}

fn fixture_file(name: &str) -> Vec<u8> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    std::fs::read(folder.join(name)).unwrap()
}

/// What tables should hold, each `[layers, kv_heads, blocks, ...]`, to f32.
struct Expected {
    means: Vec<f32>,
    extremes: Option<[Vec<f32>; 2]>,
    magnitudes: Option<Vec<f32>>,
}

/// Checks every number of every table, and the screens against the kernels' own.
fn check(store: &Store, summary: &KeySummary, expected: &Expected) {
    let tables = summary.load(store).unwrap();
    let SummaryShape {
        frame,
        kv_heads,
        head_dim,
        blocks,
        ..
    } = &summary.shape;
    let [heads, width, blocks] = [
        frame.layer_ids.len() * *kv_heads as usize,
        *head_dim as usize,
        *blocks as usize,
    ];
    let each = |width: usize, check: &mut dyn FnMut(usize, usize, usize)| {
        for head in 0..heads {
            for block in 0..blocks {
                for channel in 0..width {
                    check(
                        block,
                        head * width + channel,
                        (head * blocks + block) * width + channel,
                    );
                }
            }
        }
    };
    assert_eq!(tables.means().rows(), blocks);
    assert_eq!(expected.means.len(), blocks * heads * width);
    each(width, &mut |block, column, at| {
        near(tables.means().get(block, column), expected.means[at], 0.5);
    });
    assert_eq!(tables.extremes().is_some(), expected.extremes.is_some());
    if let (Some(table), Some([min, max])) = (tables.extremes(), &expected.extremes) {
        each(width, &mut |block, column, at| {
            let column = column / width * 2 * width + column % width;
            let (low, high) = (table.get(block, column), table.get(block, column + width));
            assert!(low <= min[at] && high >= max[at], "a bound stays one");
            near(low, min[at], 1.0);
            near(high, max[at], 1.0);
        });
    }
    assert_eq!(tables.magnitudes().is_some(), expected.magnitudes.is_some());
    if let (Some(table), Some(magnitudes)) = (tables.magnitudes(), &expected.magnitudes) {
        each(width / 2, &mut |block, column, at| {
            near(table.get(block, column), magnitudes[at], 0.5);
        });
    }
    check_norms(tables, heads, width);
    let screen = |table: Table<'_>| OwnedScreen::new(&table, DITHER_SEED);
    let means = screen(tables.means());
    assert_eq!(tables.screen().unwrap().codes, means.codes);
    assert_eq!(tables.screen().unwrap().block_norms, means.block_norms);
    assert_eq!(tables.screen().unwrap().block_scales, means.block_scales);
    assert_eq!(
        tables.screen().unwrap().channel_scales,
        means.channels.scales
    );
    assert_eq!(
        tables.screen().unwrap().channel_centres,
        means.channels.centres
    );
    let codes = tables.extremes_screen().map(|screen| screen.codes.to_vec());
    assert_eq!(codes, tables.extremes().map(|table| screen(table).codes));
}

fn check_norms(tables: &Tables, heads: usize, width: usize) {
    let means = tables.means();
    assert_eq!(tables.inverse_norms().len(), means.rows() * heads);
    for (part, inverse) in tables.inverse_norms().iter().enumerate() {
        let (row, head) = (part / heads, part % heads);
        let values = (0..width).map(|channel| f64::from(means.get(row, head * width + channel)));
        let norm = values.map(|value| value * value).sum::<f64>().sqrt();
        let expected = 1.0 / norm.max(1e-12);
        assert!(
            (f64::from(*inverse) / expected - 1.0).abs() < 1e-6,
            "{inverse} of {norm}"
        );
    }
}

/// So many units in the last place of f16 away, and a little for the rounding to f32 before.
#[track_caller]
fn near(found: f32, exact: f32, units: f32) {
    let (off, unit) = ((found - exact).abs(), exact.abs() / 1024.0 + 6e-8);
    assert!(off <= units * unit * 1.001, "{found}, not {exact}");
}

fn tensor(file: &mut TensorFile<'_>, name: &str) -> Option<Vec<f32>> {
    let view = file.tensor(name).unwrap()?;
    Some(view.to_f32(1 << 20).unwrap())
}

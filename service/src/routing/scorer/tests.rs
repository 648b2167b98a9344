//! The queue, the batches, and what is dropped.

use kvatlas_kernels::cuda::DeviceChoice;
use kvatlas_kernels::score::{Aggregate, Cpu};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::routing::frame::{KeyFrame, PairLayout, RopeFrame};
use crate::routing::priors::Priors;
use crate::routing::query::{QueryVectors, Similarity};
use crate::routing::summary::{Summaries, SummaryUpload};

const BLOCKS: usize = 6;
const HEAD_DIM: usize = 4;

struct Fixture {
    store: Arc<Store>,
    summary: Arc<KeySummary>,
    _folder: TempDir,
}

impl Fixture {
    /// One layer and head, whose block b has b in every channel; read anew, so nothing is mapped.
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let open = || {
            let (store, _) = Store::open(folder.path()).unwrap();
            let store = Arc::new(store);
            let (priors, _) = Priors::open(Arc::clone(&store)).unwrap();
            let (summaries, _) = Summaries::open(Arc::clone(&store), Arc::new(priors)).unwrap();
            (store, summaries)
        };
        let (store, summaries) = open();
        let values = (0..BLOCKS).flat_map(|block| [block as f32; HEAD_DIM]);
        let upload = SummaryUpload {
            prefix_hash: "p",
            frame: KeyFrame {
                rope: RopeFrame::PostRope,
                layout: PairLayout::Half,
                inv_freq: [1.0, 0.1].into(),
                attention_scaling: 1.0,
                block_size: 16,
                layer_ids: [0].into(),
            },
            content: None,
            format: None,
            file: &safetensors(values),
            now_unix_ms: 0,
            is_wanted: &|| true,
        };
        summaries.put(upload).unwrap();
        drop((store, summaries));
        let (store, summaries) = open();
        Self {
            summary: summaries.find("p").unwrap(),
            store,
            _folder: folder,
        }
    }

    fn scorer(&self, queue_depth_max: usize) -> (Scorer, ScorerWorker) {
        let device = Device::open(DeviceChoice::Cpu, Cpu::start(1).unwrap()).unwrap();
        Scorer::new(queue_depth_max, device, Arc::clone(&self.store), || 0)
    }

    /// The best two of a range, by a query of one value.
    fn task(&self, value: f32, want: Want) -> Task {
        let vectors = QueryVectors {
            rope: RopeFrame::PostRope,
            layout: PairLayout::Half,
            layer_ids: [0].into(),
            heads: 1,
            head_dim: 4,
            group_mean: true,
            values: [value; HEAD_DIM].into(),
        };
        Task {
            summary: Arc::clone(&self.summary),
            query: QuerySource::Given {
                query: Arc::new(OnlineQuery {
                    vectors: Some(vectors),
                    calibration: None,
                }),
                position: None,
            },
            algorithm: Algorithm::KriQ {
                similarity: Similarity::Dot,
                aggregate: Aggregate::Mean,
            },
            want,
        }
    }
}

/// `key_means` `[1, 1, BLOCKS, HEAD_DIM]`.
fn safetensors(values: impl Iterator<Item = f32>) -> Vec<u8> {
    let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
    let shape = [1, 1, BLOCKS, HEAD_DIM];
    let tensor = json!({"dtype": "F32", "shape": shape, "data_offsets": [0, bytes.len()]});
    let header = json!({ "key_means": tensor }).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(bytes);
    file
}

fn best(among: Range<usize>) -> Want {
    Want::Best { among, k: 2 }
}

type Receiver = oneshot::Receiver<Result<Scored, ScoreError>>;

/// The order of an answer and how many were scored together.
#[track_caller]
fn check(mut scored: Receiver, order: &[u32], batch: usize) {
    let scored = scored.try_recv().unwrap().unwrap();
    let Order::Pooled(found) = scored.order else {
        panic!("a pooled order");
    };
    assert_eq!((&found[..], scored.batch), (order, batch));
}

#[test]
fn what_reads_the_same_table_is_scored_together() {
    let fixture = Fixture::new();
    let (scorer, worker) = fixture.scorer(8);
    let ask = |value, want| scorer.submit(fixture.task(value, want)).unwrap();
    let rising = ask(1.0, best(0..6));
    let falling = ask(-1.0, best(0..6));
    let of_a_range = ask(1.0, best(1..4));
    let all = ask(1.0, Want::All);
    assert_eq!(scorer.queued(), 4);
    scorer.stop();
    worker.run();
    check(rising, &[5, 4, 0, 1, 2, 3], 2);
    check(falling, &[0, 1, 2, 3, 4, 5], 2);
    check(of_a_range, &[3, 2, 0, 1, 4, 5], 1);
    check(all, &[5, 4, 3, 2, 1, 0], 1);
    assert_eq!(scorer.queued(), 0);
}

#[test]
fn a_full_queue_refuses_at_once_and_what_waits_is_still_scored() {
    let fixture = Fixture::new();
    let (scorer, worker) = fixture.scorer(1);
    let first = scorer.submit(fixture.task(1.0, Want::All)).unwrap();
    let second = scorer.submit(fixture.task(1.0, Want::All));
    assert_eq!(second.unwrap_err(), ScorerBusy);
    assert_eq!(scorer.queued(), 1);
    scorer.stop();
    let stopped = scorer.submit(fixture.task(1.0, Want::All));
    assert_eq!(stopped.unwrap_err(), ScorerBusy);
    worker.run();
    check(first, &[5, 4, 3, 2, 1, 0], 1);
}

#[test]
fn a_task_that_nobody_waits_for_is_dropped() {
    let fixture = Fixture::new();
    let (scorer, worker) = fixture.scorer(1);
    drop(scorer.submit(fixture.task(1.0, Want::All)).unwrap());
    scorer.stop();
    worker.run();
    assert!(
        fixture.summary.tables().is_none(),
        "not even its tables were read"
    );
}

#[test]
fn a_refused_task_leaves_the_others_alone() {
    let fixture = Fixture::new();
    let (scorer, worker) = fixture.scorer(2);
    let mut wrong = fixture.task(1.0, Want::All);
    wrong.algorithm = Algorithm::KriT;
    let mut wrong = scorer.submit(wrong).unwrap();
    let right = scorer.submit(fixture.task(1.0, Want::All)).unwrap();
    scorer.stop();
    worker.run();
    let refused = wrong.try_recv().unwrap().unwrap_err();
    assert!(matches!(refused, ScoreError::Plan(_)), "{refused}");
    check(right, &[5, 4, 3, 2, 1, 0], 1);
}

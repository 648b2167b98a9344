//! Every way in which a query does not fit, and what is said of it.

use super::*;

const DOT: Algorithm = Algorithm::KriQ {
    similarity: Similarity::Dot,
    aggregate: Aggregate::Mean,
};
const QUEST: Algorithm = Algorithm::Quest {
    aggregate: Aggregate::Mean,
};

fn shape() -> SummaryShape {
    SummaryShape {
        frame: KeyFrame {
            rope: RopeFrame::PostRope,
            layout: PairLayout::Half,
            inv_freq: [1.0, 0.5].into(),
            attention_scaling: 1.0,
            block_size: 16,
            layer_ids: [0, 4, 5].into(),
        },
        kv_heads: 2,
        head_dim: 4,
        blocks: 7,
        has_extremes: true,
        has_magnitudes: true,
    }
}

fn query() -> OnlineQuery {
    OnlineQuery {
        vectors: Some(QueryVectors {
            rope: RopeFrame::PostRope,
            layout: PairLayout::Half,
            layer_ids: [0, 5].into(),
            heads: 4,
            head_dim: 4,
            group_mean: false,
            values: [1.0; 2 * 4 * 4].into(),
        }),
        calibration: Some(Calibration {
            layout: PairLayout::Half,
            layer_ids: [0, 5].into(),
            heads: 4,
            head_dim: 4,
            position: 0,
            mean_real: [1.0; 2 * 4 * 2].into(),
            mean_imaginary: [0.0; 2 * 4 * 2].into(),
            mean_absolute: [1.0; 2 * 4 * 2].into(),
        }),
    }
}

fn vectors(change: impl FnOnce(&mut QueryVectors)) -> OnlineQuery {
    let mut query = query();
    change(query.vectors.as_mut().unwrap());
    query
}

fn statistics(change: impl FnOnce(&mut Calibration)) -> OnlineQuery {
    let mut query = query();
    change(query.calibration.as_mut().unwrap());
    query
}

fn summary(change: impl FnOnce(&mut SummaryShape)) -> SummaryShape {
    let mut shape = shape();
    change(&mut shape);
    shape
}

fn check(algorithm: Algorithm, query: &OnlineQuery, shape: &SummaryShape, message: &str) {
    let error = plan(algorithm, query, shape, false).unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[test]
fn what_fits_is_planned() {
    for algorithm in [DOT, QUEST, Algorithm::KriT] {
        assert!(plan(algorithm, &query(), &shape(), false).is_ok());
    }
}

#[test]
fn what_the_request_lacks_is_its_own_fault() {
    let max = kri_q(Similarity::Dot, Aggregate::Max);
    let mut no_vectors = query();
    no_vectors.vectors = None;
    let mut no_statistics = query();
    no_statistics.calibration = None;
    let means = vectors(|vectors| {
        vectors.group_mean = true;
        vectors.heads = 2;
        vectors.values = [1.0; 2 * 2 * 4].into();
    });
    for (algorithm, query, message) in [
        (DOT, &no_vectors, "query.vectors: must be given for kri-q"),
        (
            QUEST,
            &no_vectors,
            "query.vectors: must be given for kri-q-quest",
        ),
        (
            Algorithm::KriT,
            &no_statistics,
            "query.mean_real: the calibration statistics must be given for kri-t",
        ),
        (
            max,
            &means,
            "aggregation: max needs the vectors of every query head; group means know only the \
             mean",
        ),
    ] {
        check(algorithm, query, &shape(), message);
        assert!(
            plan(algorithm, query, &shape(), false)
                .unwrap_err()
                .is_of_request()
        );
    }
}

#[test]
fn what_does_not_fit_the_summary_is_refused_with_both_sides() {
    let shape = shape();
    for algorithm in [DOT, QUEST] {
        let frame = "query.frame: the vectors are pre-RoPE, the summary's keys post-RoPE";
        check(
            algorithm,
            &vectors(|v| v.rope = RopeFrame::PreRope),
            &shape,
            frame,
        );
        let pre_rope = summary(|shape| shape.frame.rope = RopeFrame::PreRope);
        let frame = "query.frame: the vectors are post-RoPE, the summary's keys pre-RoPE";
        check(algorithm, &query(), &pre_rope, frame);
        let layout = "query.pair_layout: interleaved, the summary's is half";
        check(
            algorithm,
            &vectors(|v| v.layout = PairLayout::Interleaved),
            &shape,
            layout,
        );
        let head_dim = "query.head_dim: 8, the summary's is 4";
        check(algorithm, &vectors(|v| v.head_dim = 8), &shape, head_dim);
        let heads = "query.heads: 3, not a multiple of the summary's 2 KV heads";
        check(algorithm, &vectors(|v| v.heads = 3), &shape, heads);
        let means = "query.heads: 4 group means, the summary has 2 KV heads";
        check(algorithm, &vectors(|v| v.group_mean = true), &shape, means);
        let layer = "query.layer_ids: layer 3 is not in the summary, which has 3 layers";
        check(
            algorithm,
            &vectors(|v| v.layer_ids = [0, 3].into()),
            &shape,
            layer,
        );
    }
    let check = |query: &OnlineQuery, message| check(Algorithm::KriT, query, &shape, message);
    check(
        &statistics(|s| s.layout = PairLayout::Interleaved),
        "query.pair_layout: interleaved, the summary's is half",
    );
    check(
        &statistics(|s| s.head_dim = 2),
        "query.head_dim: 2, the summary's is 4",
    );
    check(
        &statistics(|s| s.heads = 5),
        "query.heads: 5, not a multiple of the summary's 2 KV heads",
    );
    check(
        &statistics(|s| s.layer_ids = [4, 6].into()),
        "query.layer_ids: layer 6 is not in the summary, which has 3 layers",
    );
}

#[test]
fn what_the_summary_lacks_is_said() {
    for (algorithm, shape, message) in [
        (
            QUEST,
            summary(|shape| shape.has_extremes = false),
            "the summary holds no smallest and largest keys (key_min, key_max), which kri-q-quest \
             reads",
        ),
        (
            Algorithm::KriT,
            summary(|shape| shape.has_magnitudes = false),
            "the summary holds no mean magnitudes (key_magnitudes), which kri-t reads",
        ),
        (
            Algorithm::KriT,
            summary(|shape| shape.frame.rope = RopeFrame::PreRope),
            "the summary's keys are pre-RoPE: kri-t needs them post-RoPE, since the mean over a \
             block loses the positions that it turns them by",
        ),
    ] {
        check(algorithm, &query(), &shape, message);
        assert!(
            !plan(algorithm, &query(), &shape, false)
                .unwrap_err()
                .is_of_request()
        );
        // It is of no concern to the others.
        let other = if algorithm == QUEST {
            Algorithm::KriT
        } else {
            QUEST
        };
        if shape.frame.rope == RopeFrame::PostRope {
            assert!(plan(other, &query(), &shape, false).is_ok());
        }
    }
}

/// Statistics of KV heads, means over a group, are a group of one.
#[test]
fn statistics_of_kv_heads_are_groups_of_one() {
    let query = statistics(|s| {
        s.heads = 2;
        for array in [
            &mut s.mean_real,
            &mut s.mean_imaginary,
            &mut s.mean_absolute,
        ] {
            *array = [1.0; 2 * 2 * 2].into();
        }
    });
    let Plan::Calibrated { means, magnitudes } =
        plan(Algorithm::KriT, &query, &shape(), false).unwrap()
    else {
        panic!("kri-t is calibrated");
    };
    assert_eq!((means.group, magnitudes.group), (1, 1));
    assert_eq!((means.width, magnitudes.width), (4, 2));
    assert_eq!(means.starts, [0, 4, 16, 20]);
    assert_eq!(magnitudes.starts, [0, 2, 8, 10]);
}

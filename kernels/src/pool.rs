//! Pools the rows of a score tensor into one score per block.

use crate::Scores;

/// How the scores of one block are pooled over layers and heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pooling {
    #[default]
    Mean,
    Max,
}

/// Pools `scores` of shape `[rows, blocks]` over its rows; one score per block, in f64.
///
/// A NaN anywhere in a column makes that column NaN, so that the block is ranked last: a block
/// that one head could not score is not a block to trust the others about. The mean adds in row
/// order, so the answer has the same bits as [`pool_scalar`]'s.
///
/// # Panics
/// When the scores are not one or more whole rows of at least one block.
#[must_use]
pub fn pool(scores: &Scores, blocks: usize, pooling: Pooling) -> Vec<f64> {
    match scores {
        Scores::F32(scores) => pool_rows(scores, blocks, pooling),
        Scores::F64(scores) => pool_rows(scores, blocks, pooling),
    }
}

/// The specification of [`pool`]: column by column, as one would write it down.
///
/// # Panics
/// As [`pool`].
#[must_use]
pub fn pool_scalar(scores: &Scores, blocks: usize, pooling: Pooling) -> Vec<f64> {
    let rows = rows_of(scores.len(), blocks);
    let score = |row: usize, block: usize| match scores {
        Scores::F32(scores) => f64::from(scores[row * blocks + block]),
        Scores::F64(scores) => scores[row * blocks + block],
    };
    (0..blocks)
        .map(|block| {
            let column = (0..rows).map(|row| score(row, block));
            match pooling {
                Pooling::Mean => column.fold(0.0, |sum, score| sum + score) / count(rows),
                Pooling::Max if column.clone().any(f64::is_nan) => f64::NAN,
                Pooling::Max => column.fold(f64::NEG_INFINITY, f64::max),
            }
        })
        .collect()
}

/// One pass over the tensor in memory order; the accumulators of 8,192 blocks stay in L2.
fn pool_rows<T: Copy + Into<f64>>(scores: &[T], blocks: usize, pooling: Pooling) -> Vec<f64> {
    let rows = rows_of(scores.len(), blocks);
    match pooling {
        Pooling::Mean => {
            let mut pooled = vec![0.0; blocks];
            for row in scores.chunks_exact(blocks) {
                for (sum, &score) in pooled.iter_mut().zip(row) {
                    *sum += score.into();
                }
            }
            let rows = count(rows);
            for sum in &mut pooled {
                *sum /= rows;
            }
            pooled
        }
        Pooling::Max => {
            let mut pooled = vec![f64::NEG_INFINITY; blocks];
            for row in scores.chunks_exact(blocks) {
                for (best, &score) in pooled.iter_mut().zip(row) {
                    let score: f64 = score.into();
                    // Nothing is greater than a NaN, so that once there it stays.
                    *best = if score > *best || score.is_nan() {
                        score
                    } else {
                        *best
                    };
                }
            }
            pooled
        }
    }
}

fn rows_of(elements: usize, blocks: usize) -> usize {
    assert!(blocks > 0, "scores have at least one block");
    assert!(
        elements > 0 && elements.is_multiple_of(blocks),
        "scores are whole rows: {elements} elements, {blocks} blocks"
    );
    elements / blocks
}

#[expect(
    clippy::cast_precision_loss,
    reason = "2^53 rows do not fit into memory"
)]
fn count(rows: usize) -> f64 {
    rows as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits(scores: &[f64]) -> Vec<u64> {
        // One NaN is as good as another.
        let canonical = |score: &f64| {
            if score.is_nan() {
                f64::NAN
            } else {
                *score + 0.0
            }
        };
        scores
            .iter()
            .map(|score| canonical(score).to_bits())
            .collect()
    }

    fn check(scores: &Scores, blocks: usize, pooling: Pooling, expected: &[f64]) {
        assert_eq!(bits(&pool(scores, blocks, pooling)), bits(expected));
        assert_eq!(bits(&pool_scalar(scores, blocks, pooling)), bits(expected));
    }

    #[test]
    fn pools_over_rows() {
        let scores = Scores::F32(vec![1.0, -2.0, 0.5, 3.0, -4.0, 0.25]);
        check(&scores, 3, Pooling::Mean, &[2.0, -3.0, 0.375]);
        check(&scores, 3, Pooling::Max, &[3.0, -2.0, 0.5]);
        let scores = Scores::F64(vec![1.0, 2.0, 6.0]);
        check(&scores, 1, Pooling::Mean, &[3.0]);
        check(&scores, 1, Pooling::Max, &[6.0]);
    }

    #[test]
    fn a_nan_anywhere_spoils_its_column_only() {
        let nan = f32::NAN;
        for scores in [
            vec![nan, 1.0, 5.0, 1.0, 7.0, 1.0],
            vec![5.0, 1.0, nan, 1.0, 7.0, 1.0],
            vec![5.0, 1.0, 7.0, 1.0, nan, 1.0],
        ] {
            for pooling in [Pooling::Mean, Pooling::Max] {
                check(&Scores::F32(scores.clone()), 2, pooling, &[f64::NAN, 1.0]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "whole rows")]
    fn half_a_row_is_a_bug_of_the_caller() {
        let _ = pool(&Scores::F32(vec![1.0; 5]), 2, Pooling::Mean);
    }

    proptest! {
        #[test]
        fn agrees_with_its_twin(
            blocks in 1_usize..40,
            rows in 1_usize..9,
            seed in prop::collection::vec(any::<f32>(), 320),
            wide in any::<bool>(),
        ) {
            let narrow = &seed[..rows * blocks];
            let scores = if wide {
                Scores::F64(narrow.iter().map(|&score| f64::from(score) * 1.1).collect())
            } else {
                Scores::F32(narrow.to_vec())
            };
            for pooling in [Pooling::Mean, Pooling::Max] {
                prop_assert_eq!(
                    bits(&pool(&scores, blocks, pooling)),
                    bits(&pool_scalar(&scores, blocks, pooling))
                );
            }
        }
    }
}

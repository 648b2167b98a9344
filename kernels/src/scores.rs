//! A tensor of block scores in the width it was stored in.

/// Scores of shape `[rows, blocks]`, row-major; a row is one (layer, KV head).
///
/// Scores stay in the width of their file: ranking then reads no byte twice, and two scores that
/// differ in the file never become equal.
#[derive(Debug, Clone, PartialEq)]
pub enum Scores {
    F32(Vec<f32>),
    F64(Vec<f64>),
}

impl Scores {
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(scores) => scores.len(),
            Self::F64(scores) => scores.len(),
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

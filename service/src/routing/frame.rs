//! What vectors are given in: the frame, the pairs of channels, the layers.

/// Whether vectors are taken before or after rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeFrame {
    PreRope,
    PostRope,
}

/// Which two channels make up frequency band f of F = head_dim / 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PairLayout {
    /// f and f + F.
    Half,
    /// 2f and 2f + 1.
    Interleaved,
}

/// What the keys of a summary are given in.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyFrame {
    pub rope: RopeFrame,
    pub layout: PairLayout,
    /// The model's inverse frequencies after any scaling, head_dim / 2 of them.
    pub inv_freq: Box<[f32]>,
    /// The factor on cos and sin that YaRN brings; 1 without.
    pub attention_scaling: f32,
    /// Tokens per block.
    pub block_size: u32,
    /// Model layers, ascending.
    pub layer_ids: Box<[u32]>,
}

/// A key summary's numbers: all that a query is checked against.
#[derive(Clone, Debug, PartialEq)]
pub struct SummaryShape {
    pub frame: KeyFrame,
    pub kv_heads: u32,
    pub head_dim: u32,
    pub blocks: u32,
    /// Whether there are smallest and largest keys, which kri-q-quest reads.
    pub has_extremes: bool,
    /// Whether there are mean magnitudes, which kri-t reads.
    pub has_magnitudes: bool,
}

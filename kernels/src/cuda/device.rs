//! What scoring asks of a device: memory, and kernels that run in order.

use std::fmt::Debug;

use super::CudaError;

/// A device that runs the kernels of `cuda/score.cu`. There are two: the driver's, and the one of
/// the tests, which runs the same source compiled for the processor.
pub trait Device: Debug {
    type Buffer: Debug;

    /// Memory with any content, aligned for every element.
    ///
    /// # Errors
    /// When the device has too little memory left, or failed.
    fn allocate(&mut self, bytes: usize) -> Result<Self::Buffer, CudaError>;

    /// Copies to the buffer's start; the bytes are free again on return.
    ///
    /// # Errors
    /// When the device failed.
    fn write(&mut self, buffer: &mut Self::Buffer, bytes: &[u8]) -> Result<(), CudaError>;

    /// Fills `bytes` from the buffer, once all that was launched before has run.
    ///
    /// # Errors
    /// When the device failed, also in a launch before.
    fn read(
        &mut self,
        from: &BufferAt<'_, Self::Buffer>,
        bytes: &mut [u8],
    ) -> Result<(), CudaError>;

    /// Runs a kernel after those launched before.
    ///
    /// # Errors
    /// When the device failed.
    fn launch(&mut self, launch: &Launch<'_, Self::Buffer>) -> Result<(), CudaError>;
}

/// One run of a kernel.
#[derive(Debug)]
pub struct Launch<'a, B> {
    pub kernel: Kernel,
    /// Blocks in x and y, neither 0.
    pub grid: (usize, usize),
    /// What the kernel takes, in its order: the buffers, then the numbers.
    pub buffers: &'a [BufferAt<'a, B>],
    pub numbers: &'a [usize],
}

/// A buffer from a byte onwards.
#[derive(Debug)]
pub struct BufferAt<'a, B> {
    pub buffer: &'a B,
    pub byte: usize,
}

impl<'a, B> BufferAt<'a, B> {
    #[must_use]
    pub fn start(buffer: &'a B) -> Self {
        Self { buffer, byte: 0 }
    }
}

/// The kernels of `cuda/score.cu`; the number behind a name is how many queries or query heads a
/// block takes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    RowDots1,
    RowDots4,
    SumPlanes,
    HeadScores1,
    HeadScores4,
    HeadScores8,
    StandardScores,
    BestScores,
    BestKeys,
}

impl Kernel {
    pub const ALL: [Self; 9] = [
        Self::RowDots1,
        Self::RowDots4,
        Self::SumPlanes,
        Self::HeadScores1,
        Self::HeadScores4,
        Self::HeadScores8,
        Self::StandardScores,
        Self::BestScores,
        Self::BestKeys,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RowDots1 => "row_dots_1",
            Self::RowDots4 => "row_dots_4",
            Self::SumPlanes => "sum_planes",
            Self::HeadScores1 => "head_scores_1",
            Self::HeadScores4 => "head_scores_4",
            Self::HeadScores8 => "head_scores_8",
            Self::StandardScores => "standard_scores",
            Self::BestScores => "best_scores",
            Self::BestKeys => "best_keys",
        }
    }

    /// Threads of a block, as the kernel's launch bounds say.
    #[must_use]
    pub fn threads(self) -> u32 {
        match self {
            Self::RowDots1
            | Self::RowDots4
            | Self::SumPlanes
            | Self::HeadScores1
            | Self::HeadScores4
            | Self::HeadScores8
            | Self::StandardScores => 256,
            Self::BestScores | Self::BestKeys => 1024,
        }
    }
}

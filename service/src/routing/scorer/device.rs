//! The device that scores: a GPU as long as it works, and the processor.

use kvatlas_kernels::cuda::{Chosen, CudaError, DeviceChoice};
use kvatlas_kernels::score::{Cpu, RowQuery};

use super::cpu::CpuScorer;
use super::cuda::CudaScorer;
use super::{Answer, Order, Want};
use crate::routing::query::{Plan, WhichTable};
use crate::routing::summary::KeySummary;

/// Where scores are computed.
#[derive(Debug)]
pub struct Device {
    cuda: Option<CudaScorer>,
    cpu: CpuScorer,
}

impl Device {
    /// The chosen device. With `auto`, says once why there is no GPU.
    ///
    /// # Errors
    /// When a certain GPU was chosen and cannot be had.
    pub fn open(choice: DeviceChoice, cpu: Cpu) -> Result<Self, CudaError> {
        let cuda = match choice.open()? {
            Chosen::Cuda(cuda) => {
                tracing::info!("scoring on a CUDA device");
                Some(CudaScorer::new(*cuda))
            }
            Chosen::Cpu(why) => {
                let why = why.map(|error| error.to_string());
                let (level, threads) = (cpu.level(), cpu.threads());
                tracing::info!(?level, threads, no_gpu = why, "scoring on the processor");
                None
            }
        };
        let cpu = CpuScorer::new(cpu);
        Ok(Self { cuda, cpu })
    }

    /// The order for each query over whole rows.
    pub(super) fn rows(
        &mut self,
        summary: &KeySummary,
        which: WhichTable,
        queries: &[&RowQuery],
        want: &Want,
    ) -> Vec<Answer> {
        self.on_cuda(|cuda| cuda.rows(summary, which, queries, want))
            .unwrap_or_else(|| self.cpu.rows(summary, which, queries, want))
    }

    /// The order for a plan that is about single heads.
    pub(super) fn heads(&mut self, summary: &KeySummary, plan: &Plan, want: &Want) -> Order {
        self.on_cuda(|cuda| cuda.heads(summary, plan, want))
            .unwrap_or_else(|| self.cpu.heads(summary, plan, want))
    }

    /// `None` without a GPU, and for tables that do not fit into its memory. One that fails is not
    /// asked again: what a failed context still answers is not to be trusted.
    fn on_cuda<T>(
        &mut self,
        score: impl FnOnce(&mut CudaScorer) -> Result<Option<T>, CudaError>,
    ) -> Option<T> {
        match score(self.cuda.as_mut()?) {
            Ok(scored) => scored,
            Err(error) => {
                tracing::error!(%error, "the CUDA device failed: scoring on the processor now");
                self.cuda = None;
                None
            }
        }
    }
}

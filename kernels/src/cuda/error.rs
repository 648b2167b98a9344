//! What can go wrong between this process and a device.

use cudarc::driver::DriverError;

#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    #[error("no CUDA driver: libcuda is not on this machine")]
    NoDriver,
    #[error("the CUDA driver could not be loaded: {reason}")]
    DriverUnusable { reason: String },
    #[error("no CUDA device {ordinal}: the driver knows {count}")]
    NoDevice { ordinal: usize, count: usize },
    #[error("{name} has compute capability {major}.{minor}; at least 8.0 is needed")]
    DeviceTooOld {
        name: String,
        major: i32,
        minor: i32,
    },
    #[error("CUDA: {doing}")]
    Driver {
        doing: &'static str,
        source: DriverError,
    },
    #[error("a device holds f16 tables only")]
    TableNotF16,
    /// From a device that is no driver's, such as the tests'.
    #[error("device: {reason}")]
    Device { reason: String },
}

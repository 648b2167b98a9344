//! Which device an operator wants.

use std::str::FromStr;

use super::{Cuda, CudaError};

/// `auto`, `cpu` or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first CUDA device if there is one, else the processor.
    #[default]
    Auto,
    Cpu,
    Cuda(usize),
}

/// The device that was found.
#[derive(Debug)]
pub enum Chosen {
    /// The processor; with `auto`, why no CUDA device.
    Cpu(Option<CudaError>),
    Cuda(Box<Cuda>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a device is auto, cpu or cuda:N, such as cuda:0")]
pub struct BadDevice;

impl DeviceChoice {
    /// # Errors
    /// When a certain CUDA device was asked for and cannot be had.
    pub fn open(self) -> Result<Chosen, CudaError> {
        let cuda = |ordinal| Cuda::open(ordinal).map(|cuda| Chosen::Cuda(Box::new(cuda)));
        match self {
            Self::Auto => Ok(cuda(0).unwrap_or_else(|error| Chosen::Cpu(Some(error)))),
            Self::Cpu => Ok(Chosen::Cpu(None)),
            Self::Cuda(ordinal) => cuda(ordinal),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = BadDevice;

    fn from_str(text: &str) -> Result<Self, BadDevice> {
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            _ => {
                let ordinal = text.strip_prefix("cuda:").ok_or(BadDevice)?;
                let digits = ordinal.bytes().all(|byte| byte.is_ascii_digit());
                let ordinal = ordinal.parse().map_err(|_| BadDevice)?;
                digits.then_some(Self::Cuda(ordinal)).ok_or(BadDevice)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_spelled_one_way() {
        assert_eq!("auto".parse(), Ok(DeviceChoice::Auto));
        assert_eq!("cpu".parse(), Ok(DeviceChoice::Cpu));
        assert_eq!("cuda:0".parse(), Ok(DeviceChoice::Cuda(0)));
        assert_eq!("cuda:12".parse(), Ok(DeviceChoice::Cuda(12)));
        for bad in [
            "", "cuda", "cuda:", "cuda:+1", "cuda:-1", "gpu", "CPU", "cuda:0 ",
        ] {
            assert_eq!(bad.parse::<DeviceChoice>(), Err(BadDevice), "{bad:?}");
        }
    }
}

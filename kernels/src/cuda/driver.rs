//! A real device, through its driver's library, which is looked for at run time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaSlice, CudaStream, DriverError, LaunchConfig, PinnedHostSlice,
    PushKernelArg, sys,
};
use cudarc::nvrtc::Ptx;

use super::device::{BufferAt, Device, Kernel, Launch};
use super::{CudaError, narrow};

const PTX_SM80: &str = include_str!("../../cuda/score_sm80.ptx");
const PTX_SM90: &str = include_str!("../../cuda/score_sm90.ptx");

/// A device's context and its one stream, on which everything runs in order.
#[derive(Debug)]
pub struct Driver {
    /// The device's name, such as the vendor's for the model.
    pub name: String,
    pub compute_capability: (i32, i32),
    /// Where each launch's time is noted, in milliseconds, once somebody wants to know it; every
    /// launch is then waited for.
    pub times: Option<Vec<(Kernel, f32)>>,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    /// In the order of [`Kernel::ALL`].
    functions: Vec<CudaFunction>,
    /// Page-locked memory that small answers are copied to: the device writes it by itself.
    landing: PinnedHostSlice<u8>,
}

/// Answers up to this size take the page-locked way.
const LANDING_BYTES: usize = 1 << 20;

impl Driver {
    /// Opens device `ordinal` and has the driver compile the kernels for it.
    ///
    /// # Errors
    /// Without a driver or the device; when the device or the driver is too old.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        if !driver_is_present() {
            return Err(CudaError::NoDriver);
        }
        // A library that lacks what is looked up in it makes the bindings panic.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let count = CudaContext::device_count().map_err(during("counting devices"))?;
            let count = usize::try_from(count).unwrap_or(0);
            if ordinal >= count {
                return Err(CudaError::NoDevice { ordinal, count });
            }
            CudaContext::new(ordinal).map_err(during("opening the device"))
        }));
        let context = opened.unwrap_or_else(|panic| {
            let reason = panic.downcast_ref::<String>().cloned();
            Err(CudaError::DriverUnusable {
                reason: reason.unwrap_or_else(|| "a function is missing".to_owned()),
            })
        })?;
        Self::load(context)
    }

    fn load(context: Arc<CudaContext>) -> Result<Self, CudaError> {
        let name = context.name().map_err(during("naming the device"))?;
        let (major, minor) = context
            .compute_capability()
            .map_err(during("asking for the compute capability"))?;
        let ptx = match major {
            9.. => PTX_SM90,
            8 => PTX_SM80,
            _ => return Err(CudaError::DeviceTooOld { name, major, minor }),
        };
        let module = context
            .load_module(Ptx::from_src(ptx))
            .map_err(during("loading the kernels (the driver may be too old)"))?;
        let functions = Kernel::ALL.map(|kernel| module.load_function(kernel.name()));
        let functions: Result<Vec<_>, _> = functions.into_iter().collect();
        let landing = page_locked(&context, LANDING_BYTES)?;
        Ok(Self {
            name,
            compute_capability: (major, minor),
            times: None,
            stream: context.default_stream(),
            functions: functions.map_err(during("finding a kernel"))?,
            landing,
            context,
        })
    }

    /// Memory of the device: free and in all, in bytes. Waits for what was launched, as a dropped
    /// buffer is free only after what still uses it.
    ///
    /// # Errors
    /// When the driver failed.
    pub fn memory(&self) -> Result<(usize, usize), CudaError> {
        self.finish()?;
        let memory = self.context.mem_get_info();
        memory.map_err(during("asking for the memory"))
    }

    /// Waits for all that was launched.
    ///
    /// # Errors
    /// When any of it failed.
    pub fn finish(&self) -> Result<(), CudaError> {
        self.stream.synchronize().map_err(during("running"))
    }

    /// Copies one buffer over another on the device: what its memory can do.
    ///
    /// # Errors
    /// When the driver failed.
    pub fn copy(&self, from: &CudaSlice<u8>, to: &mut CudaSlice<u8>) -> Result<(), CudaError> {
        let copied = self.stream.memcpy_dtod(from, to);
        copied.map_err(during("copying on the device"))
    }
}

impl Device for Driver {
    type Buffer = CudaSlice<u8>;

    fn allocate(&mut self, bytes: usize) -> Result<CudaSlice<u8>, CudaError> {
        let allocated = self.stream.alloc_zeros(bytes.max(1));
        allocated.map_err(during("allocating device memory"))
    }

    fn write(&mut self, buffer: &mut CudaSlice<u8>, bytes: &[u8]) -> Result<(), CudaError> {
        let mut start = buffer.slice_mut(..bytes.len());
        let copied = self.stream.memcpy_htod(bytes, &mut start);
        copied.map_err(during("copying to the device"))
    }

    fn read(
        &mut self,
        from: &BufferAt<'_, CudaSlice<u8>>,
        bytes: &mut [u8],
    ) -> Result<(), CudaError> {
        let view = from.buffer.slice(from.byte..from.byte + bytes.len());
        let copying = "copying from the device";
        if bytes.len() > LANDING_BYTES {
            let copied = self.stream.memcpy_dtoh(&view, bytes);
            let copied = copied.and_then(|()| self.stream.synchronize());
            return copied.map_err(during(copying));
        }
        // A copy fills all of what it is given: no more than was asked for.
        let landing = self.landing.as_mut_slice().map_err(during(copying))?;
        let landing = &mut landing[..bytes.len()];
        let copied = self.stream.memcpy_dtoh(&view, landing);
        let copied = copied.and_then(|()| self.stream.synchronize());
        copied.map_err(during(copying))?;
        bytes.copy_from_slice(landing);
        Ok(())
    }

    fn launch(&mut self, launch: &Launch<'_, CudaSlice<u8>>) -> Result<(), CudaError> {
        let views: Vec<_> = launch
            .buffers
            .iter()
            .map(|at| at.buffer.slice(at.byte..))
            .collect();
        let numbers: Vec<u32> = launch
            .numbers
            .iter()
            .map(|&number| narrow(number))
            .collect();
        let function = &self.functions[launch.kernel as usize];
        let mut builder = self.stream.launch_builder(function);
        for view in &views {
            builder.arg(view);
        }
        for number in &numbers {
            builder.arg(number);
        }
        if self.times.is_some() {
            builder.record_kernel_launch(sys::CUevent_flags::CU_EVENT_DEFAULT);
        }
        let (x, y) = launch.grid;
        let config = LaunchConfig {
            grid_dim: (narrow(x), narrow(y), 1),
            block_dim: (launch.kernel.threads(), 1, 1),
            shared_mem_bytes: 0,
        };
        #[expect(unsafe_code, reason = "the one call that starts a kernel")]
        // SAFETY: the callers pass each kernel the buffers and numbers that it declares, buffers
        // of the lengths that these numbers say, and no byte as both read-only and written; the
        // tests run the same launches under a checker that has a guard page behind each buffer.
        let launched = unsafe { builder.launch(config) };
        let events = launched.map_err(during("launching a kernel"))?;
        if let (Some(times), Some((start, end))) = (&mut self.times, events) {
            let elapsed = start.elapsed_ms(&end).map_err(during("running a kernel"))?;
            times.push((launch.kernel, elapsed));
        }
        Ok(())
    }
}

fn driver_is_present() -> bool {
    #[expect(unsafe_code, reason = "loading a library runs its initialisers")]
    // SAFETY: the library is the vendor's driver, found under its own name on the search path.
    unsafe {
        sys::is_culib_present()
    }
}

fn page_locked(context: &Arc<CudaContext>, bytes: usize) -> Result<PinnedHostSlice<u8>, CudaError> {
    // Not write-combined, as this side reads it.
    const FLAGS: u32 = 0;
    #[expect(unsafe_code, reason = "the memory comes with any content")]
    // SAFETY: any content is a valid u8, and nobody reads what was not copied there before.
    let memory = unsafe { context.alloc_pinned_with_flags(bytes, FLAGS) };
    memory.map_err(during("allocating page-locked memory"))
}

fn during(doing: &'static str) -> impl FnOnce(DriverError) -> CudaError + Copy {
    move |error| CudaError::Driver { doing, error }
}

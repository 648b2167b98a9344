//! A device that is no device: the kernels' own source, compiled for the processor, in a process
//! of its own.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::{env, fs};

use kvatlas_kernels::cuda::{BufferAt, Cuda, CudaError, Device, Launch};

/// What is broken on purpose at one `__syncthreads` of the source.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sabotage {
    /// No thread waits there.
    Omit { line: usize },
    /// Half of the last warp does not wait there.
    Stray { line: usize },
}

#[derive(Debug)]
pub(crate) struct Shim {
    child: Child,
    orders: BufWriter<ChildStdin>,
    answers: BufReader<ChildStdout>,
    buffers: u64,
}

pub(crate) fn source() -> PathBuf {
    folder().join("score.cu")
}

pub(crate) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda")
}

/// A device whose threads run in the order of a seed: 0 ascending, 1 descending, else shuffled.
pub(crate) fn open(seed: u64, sabotage: Option<Sabotage>) -> Cuda<Shim> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    const CHECKS: [&str; 2] = ["-fsanitize=undefined", "-fno-sanitize-recover=all"];
    let program = PROGRAM.get_or_init(|| compiled("device.cpp", "device", &CHECKS));
    let mut command = Command::new(program);
    command.arg(seed.to_string());
    match sabotage {
        Some(Sabotage::Omit { line }) => command.args(["omit", &line.to_string()]),
        Some(Sabotage::Stray { line }) => command.args(["stray", &line.to_string()]),
        None => &mut command,
    };
    if sabotage.is_some() {
        // What its own checks then say is no news.
        command.stderr(Stdio::null());
    }
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    Cuda::on(Shim {
        orders: BufWriter::new(child.stdin.take().unwrap()),
        answers: BufReader::new(child.stdout.take().unwrap()),
        child,
        buffers: 0,
    })
}

/// A folder with a `libcuda.so` that a process takes for the driver's library.
pub(crate) fn driver_folder() -> PathBuf {
    compiled("libcuda.cpp", "libcuda.so", &["-shared", "-fPIC"])
        .parent()
        .unwrap()
        .to_owned()
}

/// What a source of the shim makes, in a folder of its own; compiled unless these very sources
/// were before.
fn compiled(main: &str, name: &str, flags: &[&str]) -> PathBuf {
    let folder = folder().join("shim");
    let mut hasher = DefaultHasher::new();
    for file in [
        "block.cpp",
        "block.h",
        "cuda.h",
        "kernels.h",
        main,
        "../score.cu",
    ] {
        fs::read(folder.join(file)).unwrap().hash(&mut hasher);
    }
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let made = temporary.join(format!("cuda-shim-{:016x}", hasher.finish()));
    if !made.exists() {
        // Another process may be compiling the same: each in a folder of its own, then renamed.
        let unfinished = tempfile::tempdir_in(temporary).unwrap();
        let output = Command::new("g++")
            .args(["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror"])
            // The unroll hints are CUDA's; fibers jump between stacks on purpose.
            .args(["-Wno-unknown-pragmas", "-U_FORTIFY_SOURCE"])
            .args(flags)
            .arg("-o")
            .arg(unfinished.path().join(name))
            .args(["block.cpp", main].map(|file| folder.join(file)))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "g++: {errors}");
        if let Err(error) = fs::rename(unfinished.path(), &made) {
            assert!(made.exists(), "{error}");
        }
    }
    made.join(name)
}

impl Shim {
    fn order(&mut self, letter: u8, numbers: &[usize], bytes: &[u8]) -> std::io::Result<()> {
        self.orders.write_all(&[letter])?;
        for &number in numbers {
            self.orders.write_all(&(number as u64).to_ne_bytes())?;
        }
        self.orders.write_all(bytes)?;
        self.orders.flush()
    }

    fn answer(&mut self, bytes: &mut [u8]) -> std::io::Result<Result<(), String>> {
        let mut status = [0];
        self.answers.read_exact(&mut status)?;
        if status == [0] {
            return self.answers.read_exact(bytes).map(Ok);
        }
        let mut length = [0; 8];
        self.answers.read_exact(&mut length)?;
        let mut message = String::new();
        self.answers.read_to_string(&mut message)?;
        Ok(Err(message))
    }

    fn call(
        &mut self,
        letter: u8,
        numbers: &[usize],
        bytes: &[u8],
        answer: &mut [u8],
    ) -> Result<(), CudaError> {
        let called = self
            .order(letter, numbers, bytes)
            .and_then(|()| self.answer(answer));
        let reason = match called {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(message)) => message,
            // Past a buffer there is a page that nobody may touch.
            Err(_) => format!("the process died: {:?}", self.child.wait()),
        };
        Err(CudaError::Device { reason })
    }
}

impl Device for Shim {
    type Buffer = u64;

    fn allocate(&mut self, bytes: usize) -> Result<u64, CudaError> {
        self.call(b'A', &[bytes], &[], &mut [])?;
        self.buffers += 1;
        Ok(self.buffers - 1)
    }

    fn write(&mut self, buffer: &mut u64, bytes: &[u8]) -> Result<(), CudaError> {
        let buffer = usize::try_from(*buffer).unwrap();
        self.call(b'W', &[buffer, bytes.len()], bytes, &mut [])
    }

    fn read(&mut self, from: &BufferAt<'_, u64>, bytes: &mut [u8]) -> Result<(), CudaError> {
        let buffer = usize::try_from(*from.buffer).unwrap();
        self.call(b'R', &[buffer, from.byte, bytes.len()], &[], bytes)
    }

    fn launch(&mut self, launch: &Launch<'_, u64>) -> Result<(), CudaError> {
        let (x, y) = launch.grid;
        let threads = usize::try_from(launch.kernel.threads()).unwrap();
        let mut numbers = vec![launch.kernel as usize, x, y, threads, launch.buffers.len()];
        for at in launch.buffers {
            numbers.extend([usize::try_from(*at.buffer).unwrap(), at.byte]);
        }
        numbers.push(launch.numbers.len());
        numbers.extend(launch.numbers);
        self.call(b'L', &numbers, &[], &mut [])
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        // It ends with its orders, or did before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

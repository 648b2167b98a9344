//! Times the kernels on a CUDA device, beside a copy from the device to itself: 28 layers, 24
//! query heads, 8 KV heads, 128 columns a head (Llama-3.2-3B), as many blocks as the first argument
//! says, else 8,192 (128k tokens).

use std::env;
use std::error::Error;
use std::io::{Write, stdout};

use half::f16;
use kvatlas_kernels::cuda::{
    Cuda, CudaError, Device, DeviceTable, Driver, Kernel, Plane, Selection,
};
use kvatlas_kernels::score::{Aggregate, Elements, HeadQuery, RowQuery, Table};

const LAYERS: usize = 28;
const KV_HEADS: usize = 8;
const GROUP: usize = 3;
const HEAD_DIM: usize = 128;
const BLOCKS_DEFAULT: usize = 8192;
const K: usize = 16;
const WARM_UP: usize = 3;
const ROUNDS: usize = 51;

fn main() -> Result<(), Box<dyn Error>> {
    let blocks = env::args().nth(1).map(|blocks| blocks.parse());
    let blocks = blocks.transpose()?.unwrap_or(BLOCKS_DEFAULT);
    let mut cuda = Cuda::open(0)?;
    let device = &cuda.device;
    writeln!(
        stdout(),
        "{}, {:?}, {blocks} blocks",
        device.name,
        device.compute_capability
    )?;

    let table = upload(&mut cuda, blocks, LAYERS * KV_HEADS * HEAD_DIM)?;
    let magnitudes = upload(&mut cuda, blocks, LAYERS * KV_HEADS * HEAD_DIM / 2)?;
    let copied = copy_rate(&mut cuda, table.bytes)?;
    writeln!(
        stdout(),
        "device copy: {copied:.0} GB/s, read and written\n"
    )?;
    writeln!(
        stdout(),
        "{:<34} {:>9} {:>9} {:>7} {:>7}  kernels in us",
        "p50 of a call with its best blocks",
        "call us",
        "kernel us",
        "GB/s",
        "of copy"
    )?;

    let whole = 0..table.width;
    let row = RowQuery::new(vec![whole], values(table.width));
    let heads = head_query(HEAD_DIM);
    let bands = head_query(HEAD_DIM / 2);
    let scales = cuda.upload_scales(&vec![1.0; blocks * LAYERS * KV_HEADS], LAYERS * KV_HEADS)?;
    let (rows, four) = ([&row], [&row; 4]);
    let (one, band) = ([&heads], [&bands]);
    let bytes = table.bytes;

    report("rows, 1 query", copied, bytes, &mut cuda, |cuda| {
        cuda.row_dots(&table, &rows)?
            .best(&selections(blocks, 1))
            .map(drop)
    })?;
    report("rows, 4 queries", copied, bytes, &mut cuda, |cuda| {
        cuda.row_dots(&table, &four)?
            .best(&selections(blocks, 4))
            .map(drop)
    })?;
    report("heads, mean, cosine", copied, bytes, &mut cuda, |cuda| {
        let scores = cuda.head_scores(&table, &one, Aggregate::Mean, Some(&scales));
        scores?.best(&selections(blocks, 1)).map(drop)
    })?;
    report("heads, max", copied, bytes, &mut cuda, |cuda| {
        let scores = cuda.head_scores(&table, &one, Aggregate::Max, None);
        scores?.best(&selections(blocks, 1)).map(drop)
    })?;
    let both = bytes + magnitudes.bytes;
    report("calibrated (KRI-T)", copied, both, &mut cuda, |cuda| {
        let scores = cuda.calibrated_scores((&table, &one), (&magnitudes, &band));
        scores?.best(&selections(blocks, 1)).map(drop)
    })
}

fn report(
    name: &str,
    copied: f64,
    bytes: usize,
    cuda: &mut Cuda,
    call: impl Fn(&mut Cuda) -> Result<(), CudaError>,
) -> Result<(), Box<dyn Error>> {
    for _ in 0..WARM_UP {
        call(cuda)?;
    }
    let calls: Result<Vec<f64>, CudaError> = (0..ROUNDS)
        .map(|_| seconds(|| call(cuda)).map(|taken| taken * 1e6))
        .collect();

    let mut kernels: Vec<(Kernel, Vec<f64>)> = Vec::new();
    for _ in 0..ROUNDS {
        cuda.device.times = Some(Vec::new());
        call(cuda)?;
        for (at, (kernel, milliseconds)) in
            cuda.device.times.take().into_iter().flatten().enumerate()
        {
            if kernels.len() == at {
                kernels.push((kernel, Vec::new()));
            }
            kernels[at].1.push(f64::from(milliseconds) * 1e3);
        }
    }
    let kernels: Vec<(Kernel, f64)> = kernels
        .into_iter()
        .map(|(kernel, times)| (kernel, median(times)))
        .collect();
    let in_all: f64 = kernels.iter().map(|(_, time)| time).sum();
    let rate = giga(bytes) / (in_all * 1e-6);
    write!(
        stdout(),
        "{name:<34} {:>9.1} {in_all:>9.1} {rate:>7.0} {:>7.2} ",
        median(calls?),
        rate / copied
    )?;
    for (kernel, time) in kernels {
        write!(stdout(), " {} {time:.1}", kernel.name())?;
    }
    Ok(writeln!(stdout())?)
}

/// What the device's memory moves in a copy: bytes read plus bytes written.
fn copy_rate(cuda: &mut Cuda, bytes: usize) -> Result<f64, CudaError> {
    let from = cuda.device.allocate(bytes)?;
    let mut to = cuda.device.allocate(bytes)?;
    let mut copy = |device: &Driver| {
        seconds(|| {
            device.copy(&from, &mut to)?;
            device.finish()
        })
    };
    for _ in 0..WARM_UP {
        copy(&cuda.device)?;
    }
    let times: Result<Vec<f64>, CudaError> = (0..ROUNDS).map(|_| copy(&cuda.device)).collect();
    Ok(2.0 * giga(bytes) / median(times?))
}

fn upload(cuda: &mut Cuda, blocks: usize, width: usize) -> Result<DeviceTable, CudaError> {
    let elements: Vec<f16> = values(blocks * width)
        .into_iter()
        .map(f16::from_f32)
        .collect();
    cuda.upload(&Table::new(Elements::F16(&elements), width))
}

fn head_query(width: usize) -> HeadQuery {
    HeadQuery {
        starts: (0..LAYERS * KV_HEADS).map(|part| part * width).collect(),
        width,
        group: GROUP,
        values: values(LAYERS * KV_HEADS * GROUP * width),
    }
}

fn selections(blocks: usize, queries: usize) -> Vec<Selection> {
    let plane = |query| Plane::Pooled { query };
    let select = |query| Selection {
        plane: plane(query),
        among: 0..blocks,
        k: K,
    };
    (0..queries).map(select).collect()
}

/// Numbers from -1 to 1, the same in each run.
fn values(count: usize) -> Vec<f32> {
    let mut state = 1_u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f32::from((state >> 16) as u16) / 32768.0 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

fn seconds(work: impl FnOnce() -> Result<(), CudaError>) -> Result<f64, CudaError> {
    #[expect(clippy::disallowed_methods, reason = "a stopwatch")]
    let start = std::time::Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[expect(clippy::cast_precision_loss, reason = "for a reader")]
fn giga(bytes: usize) -> f64 {
    bytes as f64 / 1e9
}

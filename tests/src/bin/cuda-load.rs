//! A CUDA program that launches many small kernels without memory accesses, and says how many, and
//! when the first had ended. It takes the first GPU that it sees. With `--by-rank` it takes the GPU
//! of its local rank modulo their number.

use std::ffi::{CString, c_void};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use clap::Parser;
use cudarc::driver::{CudaContext, result, sys};

/// Keeps one multiprocessor busy for some cycles of its clock.
const KERNEL: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 cycles)
{
    .reg .pred %more;
    .reg .b64 %limit, %start, %now;
    ld.param.u64 %limit, [cycles];
    mov.u64 %start, %clock64;
again:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %more, %now, %limit;
    @%more bra again;
    ret;
}
";
/// Cycles of a kernel: about 17 microseconds on an H200.
const CYCLES: u64 = 30_000;
/// Kernels between two waits for the GPU.
const BURST: u64 = 8;

#[derive(Debug, Parser)]
struct Options {
    /// When all clients begin to count, seconds since 1970
    #[arg(long, required_unless_present = "after")]
    at: Option<f64>,
    /// The same, from this client's start
    #[arg(long, conflicts_with = "at")]
    after: Option<f64>,
    /// How long they count
    #[arg(long)]
    seconds: f64,
    /// Blocks of a kernel, of 128 threads each: one keeps one multiprocessor busy
    #[arg(long, default_value_t = 1)]
    blocks: u32,
    /// GPU memory that it holds, MiB
    #[arg(long, default_value_t = 0)]
    memory: usize,
    /// The GPU of the local rank modulo the number of those that it sees
    #[arg(long)]
    by_rank: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("cuda-load: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<serde_json::Value> {
    let started = SystemTime::now();
    let begin = match (options.at, options.after) {
        (Some(at), _) => UNIX_EPOCH + Duration::try_from_secs_f64(at)?,
        (None, after) => started + Duration::try_from_secs_f64(after.unwrap_or_default())?,
    };
    let rank = mpsd_core::environment::rank(&|name| std::env::var(name).ok());
    let rank = rank.map_or(0, |(rank, _)| rank.local as usize);
    let visible = usize::try_from(CudaContext::device_count()?)?;
    anyhow::ensure!(visible > 0, "no GPU is visible");
    let own = if options.by_rank { rank % visible } else { 0 };
    let context = CudaContext::new(own).context("no context")?;
    context.bind_to_thread()?;
    let function = kernel()?;
    if options.memory > 0 {
        // SAFETY: the memory is never used; the driver frees it when this process ends.
        unsafe { result::malloc_sync(options.memory << 20) }.context("no memory")?;
    }
    // The first launch loads what the kernel needs.
    burst(&context, function, options.blocks)?;
    let first = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let late = begin.elapsed().is_ok();
    std::thread::sleep(begin.duration_since(SystemTime::now()).unwrap_or_default());
    let length = Duration::try_from_secs_f64(options.seconds)?;
    let started = Instant::now();
    let mut launches = 0;
    while started.elapsed() < length {
        burst(&context, function, options.blocks)?;
        launches += BURST;
    }
    let bytes = context.uuid()?.bytes;
    let bytes = bytes.map(|byte| format!("{:02x}", byte as u8));
    let groups = [0..4, 4..6, 6..8, 8..10, 10..16].map(|group| bytes[group].concat());
    Ok(serde_json::json!({
        "rank": rank,
        "uuid": format!("GPU-{}", groups.join("-")),
        "late": late,
        "first_at": first.as_secs_f64(),
        "per_second": launches as f64 / started.elapsed().as_secs_f64(),
    }))
}

fn kernel() -> Result<sys::CUfunction> {
    let image = CString::new(KERNEL)?;
    // SAFETY: the image is a program in PTX that ends with a null byte; the module lives as long as
    // this process.
    let module = unsafe { result::module::load_data(image.as_ptr().cast::<c_void>()) }?;
    // SAFETY: the module was loaded in the line before, and is never freed.
    Ok(unsafe { result::module::get_function(module, CString::new("spin")?) }?)
}

fn burst(context: &CudaContext, function: sys::CUfunction, blocks: u32) -> Result<()> {
    let (mut cycles, stream) = (CYCLES, std::ptr::null_mut());
    let (grid, block) = ((blocks, 1, 1), (128, 1, 1));
    for _ in 0..BURST {
        let mut arguments = [(&raw mut cycles).cast::<c_void>()];
        // SAFETY: the kernel takes one number, which the driver copies before the call returns.
        unsafe { result::launch_kernel(function, grid, block, 0, stream, &mut arguments) }?;
    }
    Ok(context.synchronize()?)
}

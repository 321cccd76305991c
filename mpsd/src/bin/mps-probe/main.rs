//! Opens a CUDA context as a job's task does, and reports what it got.
//!
//! A client that finds no MPS daemon runs without MPS, with the whole GPU and no error (driver
//! 580). So only this program's exit code shows whether a job's MPS works.

mod cuda;
mod report;

use std::io::{self, Write as _};
use std::panic;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser as _;
use cuda::{CudaFailure, Device};
use mpsd::cli::programs::Probe as Options;
use mpsd_core::environment::rank;
use nix::unistd;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use report::{GpuReport, ProbeReport};

/// How far beyond an expected memory limit it tries to allocate.
const BEYOND_MIB: u64 = 512;

/// Sent when the report is ready, when the hold is over, and when the contexts are closed.
type Step = Result<Option<ProbeReport>, Problem>;

#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("no libcuda.so.1 or libcuda.so: NVIDIA's driver is not installed here")]
    NoLibrary,
    #[error("{0}")]
    NoCuda(String),
    #[error("{0}")]
    Cuda(CudaFailure),
    #[error("GPU {0}: {1}")]
    Gpu(u32, CudaFailure),
    #[error("{0}")]
    Unexpected(String),
    #[error("CUDA did not answer within {0} s: the MPS daemon or its server hangs")]
    Hangs(u64),
}

impl Problem {
    fn of(index: u32) -> impl FnOnce(CudaFailure) -> Self {
        move |failure| Self::Gpu(index, failure)
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::NoLibrary | Self::NoCuda(_) => 2,
            Self::Cuda(failure) | Self::Gpu(_, failure) if failure.means_no_device() => 2,
            Self::Cuda(_) | Self::Gpu(..) | Self::Hangs(_) => 3,
            Self::Unexpected(_) => 1,
        }
    }
}

fn main() -> ExitCode {
    // cudarc panics on a symbol that an old driver lacks: that must become a line and an exit code.
    panic::set_hook(Box::new(|_| {}));
    let options = Options::parse();
    let alarm = options.deadline_s + options.hold + 2;
    unistd::alarm::set(u32::try_from(alarm).unwrap_or(u32::MAX));
    ExitCode::from(watch(&options).unwrap_or_else(|problem| tell(&options, &problem)))
}

/// In a thread: a client's CUDA calls can hang without end, as behind a stopped control daemon.
fn watch(options: &Options) -> Result<u8, Problem> {
    let (sender, steps) = mpsc::channel();
    let worker_options = options.clone();
    let work = move || {
        // Without a receiver the process is ending.
        if let Err(problem) = probe(&worker_options, &sender) {
            let _ = sender.send(Err(problem));
        }
    };
    let worker = thread::Builder::new().name("cuda".into()).spawn(work);
    let worker = worker.map_err(|e| Problem::Unexpected(format!("no thread for CUDA: {e}")))?;
    let Some(report) = next(&steps, options.deadline_s)? else {
        return Err(Problem::Unexpected(
            "the probe ended without a report".into(),
        ));
    };
    show(options, &report).map_err(|e| Problem::Unexpected(format!("standard output: {e}")))?;
    next(&steps, options.deadline_s + options.hold)?;
    next(&steps, options.deadline_s)?;
    let ended = worker.join();
    ended.map_err(|_| Problem::Unexpected("the CUDA thread panicked".into()))?;
    Ok(u8::from(!report.unmet.is_empty()))
}

fn next(steps: &Receiver<Step>, seconds: u64) -> Step {
    match steps.recv_timeout(Duration::from_secs(seconds)) {
        Ok(step) => step,
        Err(RecvTimeoutError::Timeout) => Err(Problem::Hangs(seconds)),
        Err(RecvTimeoutError::Disconnected) => Err(Problem::NoCuda(
            "libcuda lacks a function that this program needs: the driver is too old".into(),
        )),
    }
}

fn probe(options: &Options, steps: &Sender<Step>) -> Result<(), Problem> {
    if !cuda::library_present() {
        return Err(Problem::NoLibrary);
    }
    let begin = Instant::now();
    let devices = open(options)?;
    let context_ms = begin.elapsed().as_millis() as u64;
    let report = examine(options, &devices, context_ms)?;
    let _ = steps.send(Ok(Some(report)));
    if options.hold > 0 {
        thread::sleep(Duration::from_secs(options.hold));
        for (index, device) in &devices {
            if !device.memset_checked(0x5a).map_err(Problem::of(*index))? {
                let why = format!("GPU {index}: memory read back wrong after the hold");
                return Err(Problem::Unexpected(why));
            }
        }
    }
    let _ = steps.send(Ok(None));
    drop(devices);
    let _ = steps.send(Ok(None));
    Ok(())
}

fn open(options: &Options) -> Result<Vec<(u32, Device)>, Problem> {
    let count = cuda::device_count().map_err(Problem::Cuda)?;
    let wanted: Vec<u32> = match options.gpu {
        Some(index) => vec![index],
        None => (0..count).collect(),
    };
    if wanted.is_empty() {
        return Err(Problem::NoCuda("no GPU is visible to this process".into()));
    }
    let open = |index| Ok((index, Device::open(index).map_err(Problem::of(index))?));
    wanted.into_iter().map(open).collect()
}

fn examine(
    options: &Options,
    devices: &[(u32, Device)],
    context_ms: u64,
) -> Result<ProbeReport, Problem> {
    // Without NVML the driver's own attribute remains.
    let nvml = match &options.nvml {
        Some(path) => Nvml::builder().lib_path(path).init().ok(),
        None => Nvml::init().ok(),
    };
    let one = |(index, device): &(u32, Device)| {
        examine_gpu(options, *index, device, nvml.as_ref()).map_err(Problem::of(*index))
    };
    let gpus: Vec<GpuReport> = devices.iter().map(one).collect::<Result<_, _>>()?;
    Ok(ProbeReport {
        host: host(),
        pid: std::process::id(),
        uid: unistd::getuid().as_raw(),
        local_rank: rank(&|name| std::env::var(name).ok()).map(|(rank, _)| rank.local),
        pipe_directory: std::env::var_os("CUDA_MPS_PIPE_DIRECTORY")
            .map(|path| path.to_string_lossy().into_owned()),
        under_mps: gpus.iter().all(GpuReport::under_mps),
        context_ms,
        unmet: gpus
            .iter()
            .flat_map(|gpu| report::unmet(gpu, options))
            .collect(),
        gpus,
    })
}

fn host() -> String {
    unistd::gethostname().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

fn examine_gpu(
    options: &Options,
    index: u32,
    device: &Device,
    nvml: Option<&Nvml>,
) -> Result<GpuReport, CudaFailure> {
    let facts = device.facts()?;
    let memset_ok = device.memset_checked(0xa5)?;
    let cap = options
        .expect_mem
        .map(|limit| limit.saturating_add(BEYOND_MIB))
        .or(options.alloc);
    let allocated = cap.map(|cap_mib| device.allocatable(cap_mib)).transpose()?;
    Ok(GpuReport {
        index,
        mps_listed: lists(nvml, &name_in_nvml(&facts.uuid), std::process::id()),
        facts,
        allocatable_mib: allocated.map(|(mib, _)| mib),
        allocation_capped: allocated.is_some_and(|(_, capped)| capped),
        memset_ok,
    })
}

/// Whether NVML lists `pid` among the device's MPS clients; `None`: it does not answer.
fn lists(nvml: Option<&Nvml>, uuid: &str, pid: u32) -> Option<bool> {
    let device = nvml?.device_by_uuid(uuid).ok()?;
    // The list may grow between its length and its content.
    for _ in 0..8 {
        match device.mps_running_compute_processes() {
            Ok(clients) => return Some(clients.iter().any(|client| client.pid == pid)),
            Err(NvmlError::InsufficientSize(_)) => {}
            Err(_) => return None,
        }
    }
    None
}

/// A process sees only one MIG device, and `cuDeviceGetUuid` may return its GPU's UUID
/// (docs/facts/mps-control.md#mig).
fn name_in_nvml(uuid: &str) -> String {
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let first = visible.split(',').next().unwrap_or_default().trim();
    match first.starts_with(mpsd_core::gpu::MIG) {
        true => first.to_owned(),
        false => uuid.to_owned(),
    }
}

fn show(options: &Options, report: &ProbeReport) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if options.json {
        serde_json::to_writer(&mut out, report)?;
        writeln!(out)?;
    } else {
        out.write_all(report::text(report).as_bytes())?;
    }
    out.flush()?;
    let mut err = io::stderr().lock();
    for line in &report.unmet {
        writeln!(err, "mps-probe: {line}")?;
    }
    Ok(())
}

fn tell(options: &Options, problem: &Problem) -> u8 {
    let code = problem.exit_code();
    let failure = match problem {
        Problem::Cuda(failure) | Problem::Gpu(_, failure) => Some(failure),
        _ => None,
    };
    if options.json {
        let line = serde_json::json!({
            "host": host(), "pid": std::process::id(), "error": problem.to_string(), "cuda": failure, "exit_code": code,
            "libcuda": !matches!(problem, Problem::NoLibrary),
        });
        // If standard output is closed, the exit code tells.
        let _ = writeln!(io::stdout().lock(), "{line}");
    }
    let _ = writeln!(io::stderr().lock(), "mps-probe: {problem}");
    code
}

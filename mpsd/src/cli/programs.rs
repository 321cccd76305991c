//! The command lines of `mpsd` and `mps-probe`.

use clap::Parser;
use std::ffi::OsString;

/// Supervises the NVIDIA MPS control daemons of one batch job.
///
/// Started by mps-prologue as the job's user, with its specification on descriptor 3; it is of no
/// use by hand.
#[derive(Debug, Clone, Parser)]
#[command(name = "mpsd", version = super::version(), after_help = super::examples::of("mpsd"))]
pub struct Daemon {
    /// Ask the job's control daemons to end, then end (used by the teardown).
    #[arg(long, conflicts_with = "nvml")]
    pub stop: bool,
    /// Ask the job's control daemons what they say of their clients, and report it on descriptor 4
    /// (used by 'mpsctl status').
    #[arg(long, conflicts_with_all = ["nvml", "stop"])]
    pub look: bool,
    /// End these clients of the control daemons, pids with commas, and report it on descriptor 4
    /// (used by mps-epilogue).
    #[arg(long, value_name = "PIDS", conflicts_with_all = ["nvml", "stop", "look"])]
    pub terminate: Option<String>,
    /// Answer questions about the node's GPUs through this NVML library, on descriptor 3 (used by
    /// root's programs).
    #[arg(long, value_name = "LIBRARY")]
    pub nvml: Option<String>,
    /// Append the line on standard input to this file, as the job's user (used by mps-prologue).
    #[arg(long, value_name = "FILE", conflicts_with_all = ["nvml", "stop", "look"])]
    pub note: Option<std::path::PathBuf>,
    /// The group of that file if '--note' makes it: the user's own, in place of the daemons'.
    #[arg(long, value_name = "GID", requires = "note")]
    pub group: Option<u32>,
}

/// Step in which `mps-probe` finds out how much it can allocate.
pub const STEP_MIB: u64 = 64;

/// What a client on this many multiprocessors must be able to allocate of its memory limit: all but
/// its context (27 MiB and 3.69 for each, docs/facts/mps-control.md#memory-limits) and two steps.
/// One step is too few: 2816 MiB of 3072 were recorded on 32.
pub fn least_mib(limit: u64, multiprocessors: u32) -> u64 {
    let context = 27 + (u64::from(multiprocessors) * 369).div_ceil(100);
    limit.saturating_sub(context + 2 * STEP_MIB)
}

const EXIT_CODES: &str = "\
Exit codes:
  0  everything as expected
  1  an expectation was not met, or --require-mps was given and a context does not go through MPS
  2  no CUDA here: no libcuda, or no GPU visible; also a wrong option
  3  CUDA failed, or did not answer within the deadline

A call into a driver that hangs cannot be taken back: a process that is still there two seconds after its deadline is \
ended by SIGALRM.";

/// Opens a CUDA context through the MPS daemon of this environment (CUDA_MPS_PIPE_DIRECTORY) and
/// says what it got: whether it is under MPS, multiprocessors, memory it may allocate, and one
/// memset that was read back.
#[derive(Debug, Clone, Parser)]
#[command(name = "mps-probe", version = super::version())]
#[command(after_help = format!("{EXIT_CODES}\n\n{}", super::examples::of("mps-probe")))]
pub struct Probe {
    /// One JSON object on one line instead of the table
    #[arg(long)]
    pub json: bool,
    /// Look at this visible device only (index as CUDA counts)
    #[arg(long, value_name = "INDEX")]
    pub gpu: Option<u32>,
    /// Fail unless every context goes through MPS
    #[arg(long)]
    pub require_mps: bool,
    /// Fail unless exactly N multiprocessors are visible
    #[arg(long, value_name = "N")]
    pub expect_sms: Option<u32>,
    /// Fail unless the memory limit is MIB: at most that can be allocated, and only its context and
    /// 128 MiB may be missing
    #[arg(long, value_name = "MIB")]
    pub expect_mem: Option<u64>,
    /// Find out how much can be allocated, in steps of 64 MiB up to the cap; it is freed again
    #[arg(long, value_name = "CAP_MIB", num_args = 0..=1, require_equals = true, default_missing_value = "16384")]
    pub alloc: Option<u64>,
    /// After the report keep the contexts for this long, then check the memory again
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub hold: u64,
    /// Give up when CUDA has not answered after this long (the time of --hold is added)
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub deadline_s: u64,
    /// NVML's library, if the loader does not find it
    #[arg(long, value_name = "FILE")]
    pub nvml: Option<OsString>,
}

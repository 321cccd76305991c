//! What `mpsctl selftest` does in its two jobs, and says in one line of JSON: one looks at its own MPS, and the other, which has
//! none, for what the first one left.

use super::super::attach::Caller;
use super::super::status::gather::of_user;
use super::super::status::view::View;
use crate::daemon::dialogue::InForce;
use crate::node::worker::{NvmlWorker, Question};
use crate::sys::Exit;
use crate::sys::deadline::Deadline;
use crate::sys::process::{Process, ProcessId};
use crate::sys::spawn::Spawn;
use mpsd_core::gpu::ComputeMode;
use mpsd_core::text::one_line;
use mpsd_core::{Failure, GpuUuid, JobId};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// Longest that the probe may take: it keeps a deadline of its own.
const PROBE_TIME: Duration = Duration::from_secs(60);
/// Most that is read of its words. Bytes.
const MOST: usize = 64 * 1024;
/// The end of a job's MPS may take so long after the job's.
const END_TIME: Duration = Duration::from_secs(60);
/// How often it is looked for.
const TURN: Duration = Duration::from_millis(200);
/// For each answer of NVML.
const NVML_TIME: Duration = Duration::from_secs(10);
/// The processes that a job's MPS consists of, from a server upwards, as the kernel shortens their names.
const CHAIN: [&str; 3] = ["nvidia-cuda-mps", "nvidia-cuda-mps", "mpsd"];

/// What the job that asked saw.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// The job.
    pub job: String,
    /// The node, as its scheduler calls it.
    pub node: String,
    /// Why the probe is not under MPS; `None`: it is.
    pub outside: Option<String>,
    /// Multiprocessors that it may use, of the first GPU.
    pub multiprocessors: Option<u64>,
    /// The daemons' own words.
    pub limits: Vec<InForce>,
    /// Why they say none.
    pub silent: Option<String>,
    /// The job's GPUs.
    pub gpus: Vec<GpuUuid>,
    /// The processes of its MPS, as far as they are to be seen.
    pub processes: Vec<ProcessId>,
}

/// What the other one saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct After {
    /// Its node.
    pub node: String,
    /// Whether the first job's directory is still there, or why that is not known.
    pub directory: Result<bool, String>,
    /// Those of its processes that are still there.
    pub processes: Vec<ProcessId>,
    /// The compute mode of each of its GPUs, or why it is not known.
    pub modes: Vec<(GpuUuid, Result<ComputeMode, String>)>,
}

/// In the job that asked; `programs` is the directory of ours.
///
/// # Errors
/// This is no job.
pub fn asked(caller: &Caller<'_>, programs: &Path) -> Result<Seen, Failure> {
    let mut seen = Seen {
        job: caller
            .job()
            .map_or_else(String::new, |job| job.as_str().to_owned()),
        node: node(caller),
        ..Seen::default()
    };
    probe(&programs.join("mps-probe"), &mut seen);
    match of_user(caller, &programs.join("mpsd")) {
        Ok(gathered) => match gathered.jobs.first() {
            Some(view) => told(view, &mut seen),
            None => seen.silent = gathered.whether.map(|whether| whether.because),
        },
        Err(failure) => seen.silent = Some(failure.to_string()),
    }
    Ok(seen)
}

/// The scheduler's name of this node: Slurm's variable, else the first line of a PBS's list, else the host's.
fn node(caller: &Caller<'_>) -> String {
    let listed = || {
        let list = std::fs::read_to_string((caller.env)("PBS_NODEFILE")?).ok()?;
        list.lines().next().map(|line| line.trim().to_owned())
    };
    let host = || nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
    let named = (caller.env)("SLURMD_NODENAME").or_else(listed);
    named.unwrap_or_else(|| host().unwrap_or_default())
}

fn probe(program: &Path, seen: &mut Seen) {
    let mut spawn = Spawn::new(program);
    spawn.args = vec!["--require-mps".into(), "--json".into()];
    spawn.env = std::env::vars_os().collect();
    let ended = match spawn.run(Deadline::after(PROBE_TIME), MOST) {
        Ok(ended) => ended,
        Err(error) => return seen.outside = Some(error.to_string()),
    };
    let text = String::from_utf8_lossy(&ended.out).into_owned();
    let told: Option<serde_json::Value> = text.lines().find_map(|line| serde_json::from_str(line).ok());
    let told = told.unwrap_or_default();
    seen.multiprocessors = told["gpus"][0]["sms"].as_u64();
    if ended.exit != Exit::Code(0) || told["under_mps"] != true {
        let all = ended.text();
        let last = all.lines().rfind(|line| !line.trim().is_empty());
        let error = told["error"].as_str().or(last).unwrap_or("it said nothing");
        seen.outside = Some(format!("mps-probe: {} ({})", one_line(error, 300), ended.exit));
    }
}

fn told(view: &View, seen: &mut Seen) {
    seen.gpus = view.gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
    let daemons = || view.daemons.iter();
    seen.silent = daemons()
        .find_map(|daemon| daemon.silent.clone())
        .or(view.reason.clone());
    seen.limits = daemons().flat_map(|daemon| daemon.limits.clone()).collect();
    let servers = daemons().flat_map(|daemon| &daemon.servers);
    seen.processes = servers.flat_map(|server| chain(server.pid)).collect();
}

/// A server, its control daemon, and that one's `mpsd`, as far as they are to be seen.
fn chain(server: i32) -> Vec<ProcessId> {
    let mut pid = server;
    let mut found = Vec::new();
    for name in CHAIN {
        let Some((id, stat)) = Process::find(pid).and_then(|process| Some((process.id(), process.stat()?)))
        else {
            break;
        };
        if !stat.name.to_string_lossy().starts_with(name) {
            break;
        }
        found.push(id);
        pid = stat.parent;
    }
    found
}

/// In the other job; `seen` is what the first one saw. Waits for the end of its MPS.
///
/// # Errors
/// The first job's name is none.
pub fn after(caller: &Caller<'_>, seen: &Seen, worker: &Path) -> Result<After, Failure> {
    let (settings, _) = caller.settings();
    let job = JobId::parse(&seen.job)?;
    let directory = settings.paths.job(&job).directory().to_owned();
    let deadline = Deadline::after(END_TIME);
    let look = || match directory.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(gone) if gone.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(format!("'{}': {error}", directory.display())),
    };
    let alive = || -> Vec<ProcessId> {
        let all = seen.processes.iter().copied();
        all.filter(|id| id.open().is_some()).collect()
    };
    while (look() == Ok(true) || !alive().is_empty()) && deadline.sleep(TURN) {}
    Ok(After {
        node: node(caller),
        directory: look(),
        processes: alive(),
        modes: modes(&seen.gpus, worker, &settings.nvml),
    })
}

fn modes(gpus: &[GpuUuid], worker: &Path, nvml: &str) -> Vec<(GpuUuid, Result<ComputeMode, String>)> {
    let mut worker = NvmlWorker::start(worker, nvml, NVML_TIME).map_err(|failure| failure.to_string());
    let mut mode = |gpu: &GpuUuid| match &mut worker {
        Ok(worker) => worker
            .ask(&Question::Mode(gpu.clone()))
            .map_err(|failure| failure.to_string()),
        Err(why) => Err(why.clone()),
    };
    gpus.iter().map(|gpu| (gpu.clone(), mode(gpu))).collect()
}

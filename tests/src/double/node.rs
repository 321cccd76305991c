//! The node that a directory of doubles stands for: `node.toml`, the compute modes, and the
//! contexts on its GPUs.
//!
//! Every double reads `NODE/node.toml` when it starts. `NODE/modes/<uuid>` has a compute mode (root
//! writes it, through the double). `NODE/state/contexts/<uuid>/<pid>` is one context: `<bytes> <kind>
//! <start time>`. The double of NVML compiles this file too, so it uses only `serde`, `toml` and
//! `std`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub const MIB: u64 = 1 << 20;

const DEFAULT_MODE: &str = "default";

/// Memory that an MPS server itself takes on each of its GPUs, MiB (recorded).
pub const SERVER_MIB: u64 = 66;

/// `node.toml`. The defaults are as recorded on an H200 with driver 580.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Description {
    pub name: String,
    pub driver_version: String,
    pub cuda_version: u32,
    /// 48 recorded with 580 (docs/facts/mps-control.md#clients). From CUDA 13.1 on 60 are
    /// documented, not verified (MPS guide 615, "When to Use MPS").
    pub max_clients: usize,
    /// How many connections a GPU has for its clients' `CUDA_DEVICE_MAX_CONNECTIONS` (recorded: 48
    /// clients with 1, 15 with 8, 3 with 32). 120 is the least number that fits.
    pub connections: u32,
    pub times: Times,
    pub faults: Faults,
    pub nvml: NvmlFaults,
    pub gpu: Vec<Gpu>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Gpu {
    pub uuid: String,
    pub name: String,
    pub memory_mib: u64,
    /// Whether NVML tells its memory: not if it is the machine's (GB10).
    pub memory_told: bool,
    /// Total memory as CUDA reports it, MiB (less than NVML's).
    pub cuda_memory_mib: u64,
    pub sms: u32,
    pub capability: (u32, u32),
    /// Compute mode at boot: `default`, `exclusive_process`, `prohibited`.
    pub mode: String,
    pub pci: String,
    /// Minor number of `/dev/nvidia<minor>`; by default the position in the list.
    pub minor: Option<u32>,
    /// A program that may not open it does not see this GPU. `None`: every program sees it.
    pub device: Option<PathBuf>,
    /// Persistence mode: the driver keeps its state while no program uses it.
    pub persistence: bool,
    /// CPUs near it, in bits from CPU 0 on.
    pub cpus: u64,
    /// Its MIG devices; any entry means that MIG is on.
    pub mig: Vec<MigDevice>,
    /// More device files that a program needs for it: those of a MIG device's capabilities.
    pub caps: Vec<PathBuf>,
    /// Of a MIG device: its part of the compute slices.
    pub slices: Option<u32>,
    /// `lost`: every call about it answers "GPU is lost". `gone`: it is not found.
    pub fault: String,
    /// What the driver counts of it; `None`: it has no such call.
    pub counts: Option<Counts>,
}

/// What a GPU does all the time, by its driver's counters.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Counts {
    /// Percent of the time with a running kernel, and with memory reads or writes.
    pub busy: u32,
    pub memory_busy: u32,
    /// Percent of the multiprocessors with work, and of the memory's bandwidth (Hopper or newer).
    pub shares: Option<(f64, f64)>,
    pub watts: u64,
}

impl Counts {
    /// A GPU on which a kernel always runs and leaves most multiprocessors idle.
    pub const NARROW: Self = Self {
        busy: 97,
        memory_busy: 9,
        shares: Some((12.0, 6.4)),
        watts: 200,
    };
}

/// Compute slices of a GPU, and so the maximum of MIG devices (H100, H200: NVIDIA's MIG guide,
/// "Supported MIG Profiles").
pub const SLICES: u32 = 7;

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct MigDevice {
    pub uuid: String,
    pub slices: u32,
    /// Its memory in eighths of the GPU's.
    pub eighths: u32,
    /// The files of its capabilities (`/dev/nvidia-caps/nvidia-capN`, of its GPU instance and its
    /// compute instance). A program needs them beside the GPU's own (NVIDIA's MIG guide, "Device
    /// Nodes and Capabilities").
    pub caps: Vec<PathBuf>,
}

impl MigDevice {
    /// As CUDA shows it: a device of its own (NVIDIA's MIG guide, "CUDA Device Enumeration"), with
    /// sevenths of the multiprocessors and eighths of the memory ("Supported MIG Profiles").
    /// Documented, not verified.
    pub fn of(&self, gpu: &Gpu) -> Gpu {
        let part = |mib: u64| mib * u64::from(self.eighths) / 8;
        // NVML's name for it ends in its profile (NVIDIA's MIG guide, "MIG Device Names").
        let gib = part(gpu.memory_mib).div_ceil(1024);
        Gpu {
            uuid: self.uuid.clone(),
            name: format!("{} MIG {}g.{gib}gb", gpu.name, self.slices),
            memory_mib: part(gpu.memory_mib),
            cuda_memory_mib: part(gpu.cuda_memory_mib),
            sms: gpu.sms / SLICES * self.slices,
            mode: DEFAULT_MODE.into(),
            caps: self.caps.clone(),
            slices: Some(self.slices),
            mig: Vec::new(),
            ..gpu.clone()
        }
    }
}

/// Durations, in ms; the defaults are the recorded ones.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Times {
    /// From exec to the socket.
    pub start: u64,
    /// From the start of a server to `Ready`: at least, at most.
    pub server_ready: (u64, u64),
    /// From the order to an idle server to its end.
    pub server_exit: u64,
    /// From a client's connection to its context.
    pub client: u64,
    /// Of `nvmlInit`.
    pub nvml: u64,
    /// Of NVML's first look at each GPU.
    pub nvml_look: u64,
}

impl Default for Times {
    fn default() -> Self {
        Times {
            start: 14,
            server_ready: (106, 263),
            server_exit: 70,
            client: 90,
            nvml: 12,
            nvml_look: 7,
        }
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// `slow`, `never` (alive, no socket), `exits` (status 1), `hangs` (socket, never answers).
    pub start: String,
    /// `slow`, `never-ready` (the daemon waits for it forever), `initializing` (listed, never
    /// ACTIVE), `exits`, `fault-state` (status FAULT).
    pub server: String,
    pub slow_ms: u64,
    pub hang_on: Vec<String>,
    /// Commands that get half their answer, without a newline.
    pub truncate: Vec<String>,
    pub answer: BTreeMap<String, String>,
    /// `quit` gets a stranger's answer.
    pub refuse_quit: bool,
    pub ignore_sigterm: bool,
    pub server_survives_sigterm: bool,
    pub server_survives_control: bool,
    /// Limits are accepted and read back, and never applied.
    pub drop_limits: bool,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct NvmlFaults {
    pub init_hangs: bool,
    /// `nvmlInit` answers "driver not loaded".
    pub init_fails: bool,
    /// `nvmlInit` answers with this number of `nvmlReturn_t`, if it is not 0.
    pub init_answers: u32,
    /// The kernel kills the process in `nvmlInit`, as if memory had run out.
    pub init_killed: bool,
    /// Every call after `nvmlInit` never returns.
    pub calls_hang: bool,
    /// Setting a compute mode answers "no permission".
    pub set_refused: bool,
    /// Setting a compute mode answers success and changes nothing.
    pub set_ignored: bool,
    /// The process lists name this pid too, as a compute process.
    pub stale_pid: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub pid: u32,
    pub bytes: u64,
    /// `server`, `mps` (a client of a server) or `bare`.
    pub kind: String,
}

impl Default for Description {
    fn default() -> Self {
        Self {
            name: "gpu001".into(),
            driver_version: "580.159.04".into(),
            cuda_version: 13000,
            max_clients: 48,
            connections: 120,
            times: Times::default(),
            faults: Faults::default(),
            nvml: NvmlFaults::default(),
            gpu: Vec::new(),
        }
    }
}

impl Default for Gpu {
    fn default() -> Self {
        Self {
            uuid: String::new(),
            name: "NVIDIA H200".into(),
            memory_mib: 143_771,
            memory_told: true,
            cuda_memory_mib: 143_155,
            sms: 132,
            capability: (9, 0),
            mode: DEFAULT_MODE.into(),
            pci: String::new(),
            minor: None,
            device: None,
            persistence: true,
            cpus: u64::MAX >> 1,
            mig: Vec::new(),
            caps: Vec::new(),
            slices: None,
            fault: String::new(),
            counts: None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Node {
    pub dir: PathBuf,
    pub is: Description,
}

impl Node {
    pub fn open(dir: &Path) -> Result<Node, String> {
        let file = dir.join("node.toml");
        let (text, file) = (fs::read_to_string(&file), file.display());
        let text = text.map_err(|why| format!("cannot read '{file}': {why}"))?;
        let is = toml::from_str(&text);
        Ok(Node {
            dir: dir.to_owned(),
            is: is.map_err(|why| format!("cannot understand '{file}': {why}"))?,
        })
    }

    pub fn of_this_program() -> Result<Node, String> {
        let exe = fs::read_link("/proc/self/exe");
        let exe = exe.map_err(|why| format!("cannot read '/proc/self/exe': {why}"))?;
        Node::open(exe.parent().ok_or("the program has no directory")?)
    }

    /// What CUDA can show: the GPUs, but the MIG devices in place of a GPU in MIG mode.
    pub fn cuda(&self) -> Vec<Gpu> {
        let parts = |gpu: &Gpu| match gpu.mig.as_slice() {
            [] => vec![gpu.clone()],
            devices => devices.iter().map(|mig| mig.of(gpu)).collect(),
        };
        self.is.gpu.iter().flat_map(parts).collect()
    }

    /// The present compute mode of a GPU: the last one set, else that of `node.toml`.
    pub fn mode(&self, uuid: &str) -> String {
        let set = fs::read_to_string(self.dir.join("modes").join(uuid));
        let gpu = self.is.gpu.iter().find(|g| g.uuid == uuid);
        let boot = gpu.map_or(DEFAULT_MODE, |gpu| &gpu.mode);
        set.as_deref().unwrap_or(boot).trim().to_owned()
    }

    pub fn set_mode(&self, uuid: &str, mode: &str) -> io::Result<()> {
        let modes = self.dir.join("modes");
        let new = modes.join(format!(".{uuid}.{}", std::process::id()));
        fs::write(&new, format!("{mode}\n"))?;
        // The GPU tells every user its mode, under any umask of who set it.
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644))?;
        fs::rename(new, modes.join(uuid))
    }

    fn contexts_dir(&self, uuid: &str) -> PathBuf {
        self.dir.join("state/contexts").join(uuid)
    }

    pub fn register(&self, uuid: &str, pid: u32, bytes: u64, kind: &str) -> io::Result<()> {
        let (Some(start), dir) = (start_time(pid), self.contexts_dir(uuid)) else {
            return Err(io::Error::other(format!("no process {pid}")));
        };
        let new = dir.join(format!(".{pid}.{}", std::process::id()));
        fs::write(&new, format!("{bytes} {kind} {start}\n"))?;
        fs::rename(new, dir.join(pid.to_string()))
    }

    pub fn unregister(&self, uuid: &str, pid: u32) {
        let _ = fs::remove_file(self.contexts_dir(uuid).join(pid.to_string()));
    }

    /// The contexts on a GPU, of living processes only, by pid.
    pub fn contexts(&self, uuid: &str) -> Vec<Context> {
        let entries = fs::read_dir(self.contexts_dir(uuid))
            .into_iter()
            .flatten()
            .flatten();
        let mut found: Vec<Context> = entries.filter_map(|e| read_context(&e.path())).collect();
        found.sort_by_key(|c| c.pid);
        found
    }
}

fn read_context(file: &Path) -> Option<Context> {
    let pid: u32 = file.file_name()?.to_str()?.parse().ok()?;
    let text = fs::read_to_string(file).ok()?;
    let mut words = text.split_whitespace();
    let (bytes, kind) = (words.next()?.parse().ok()?, words.next()?.to_owned());
    let start: u64 = words.next()?.parse().ok()?;
    (start_time(pid) == Some(start)).then_some(Context { pid, bytes, kind })
}

/// In clock ticks since boot; `None` for a zombie, which no longer holds a context.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    if state == "Z" || state == "X" {
        return None;
    }
    // Field 22 of proc_pid_stat(5); two are consumed with the name, one is the state.
    fields.nth(18)?.parse().ok()
}

//! What is in force on one node, and from which line of the file each value comes.

use super::error::position;
use super::fragment::Fragment;
use super::values::{
    Bounded, CgroupRule, Clients, ComputeModeRule, DeviceNames, GpusUnknown, LeftoverClients, Library,
    MemoryOverLimit, Name, PathPattern, Prefix, Seconds, TooManyTasks, UnattachedTasks, Wait, Window, Worded,
    Written,
};
use crate::limits::{Amount, Percent, Priority};
use crate::paths::Paths;
use crate::request::{MemoryLimit, Threads};
use std::path::PathBuf;
use std::time::Duration;
use toml::Spanned;

/// What is in force on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Volatile and lasting directories (`run_dir`, `state_dir`).
    pub paths: Paths,
    /// NVIDIA's control daemon.
    pub control: PathBuf,
    /// NVML: a name for the system's loader, or an absolute path.
    pub nvml: String,
    /// Whether compute modes are set.
    pub compute_mode: ComputeModeRule,
    /// What a job gets whose GPUs the scheduler does not tell.
    pub gpus_unknown: GpusUnknown,
    /// More tasks on a GPU than it takes clients.
    pub too_many_tasks: TooManyTasks,
    /// Clients that a GPU takes.
    pub max_clients: u32,
    /// Shares that each GPU of the node is advertised as.
    pub replicas: Option<u32>,
    /// How `CUDA_VISIBLE_DEVICES` is written.
    pub cuda_visible_devices: DeviceNames,
    /// Where the daemons live.
    pub cgroup: Cgroup,
    /// Time for a whole prologue, and for a whole epilogue.
    pub deadline: Duration,
    /// What happens to a client of the job that stays on its GPU.
    pub leftover_clients: LeftoverClients,
    /// What happens to a client that holds more memory than its limit.
    pub memory_over_limit: MemoryOverLimit,
    /// What a request means that does not say.
    pub defaults: Defaults,
    /// What no request may exceed.
    pub ceilings: Ceilings,
    /// Slurm.
    pub slurm: Slurm,
    /// Torque and OpenPBS.
    pub pbs: Pbs,
    /// Taking the node out of service.
    pub drain: Drain,
    /// Every key with its value in force and its line, in the order of the file's documentation.
    pub origins: Vec<Origin>,
}

/// `cgroup`, for this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cgroup {
    /// Found by looking at the node.
    Auto,
    /// None of our own.
    None,
    /// Below this directory.
    Below(PathBuf),
}

/// `[defaults]`
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Defaults {
    /// Active thread percentage.
    pub threads: Option<Threads>,
    /// Memory limit of each client.
    pub memory: Option<MemoryLimit>,
    /// Client priority.
    pub priority: Option<Priority>,
    /// Whether `mps-probe` proves each daemon.
    pub verify: Option<bool>,
}

/// `[ceilings]`
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ceilings {
    /// Highest active thread percentage.
    pub threads: Option<Percent>,
    /// Highest memory limit of a client.
    pub memory: Option<Amount>,
}

/// `[slurm]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slurm {
    /// Who waits for readiness in a job that srun started.
    pub wait: Wait,
    /// Whether a batch job whose MPS did not start, for a cause not proved, is requeued.
    pub requeue: bool,
    /// Jobs with `--gres=mps:N` get a daemon without having asked.
    pub auto_gres: bool,
    /// Jobs with this feature among their constraints do.
    pub auto_constraint: Option<String>,
    /// Jobs in these partitions do.
    pub auto_partitions: Vec<String>,
}

/// `[pbs]`: places are found by looking where not given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pbs {
    /// `PBS_HOME`, or Torque's server home.
    pub home: Option<PathBuf>,
    /// The directory with `bin` and `sbin`.
    pub exec: Option<PathBuf>,
    /// This node's name in PBS.
    pub node: Option<String>,
    /// A job whose TM tasks nothing of ours attaches.
    pub unattached_tasks: UnattachedTasks,
}

/// `[drain]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Whether a fault takes the node out of service.
    pub enabled: bool,
    /// What our reasons begin with, and so what we may lift.
    pub prefix: String,
    /// Whether the timer lifts our own drains after a clean recheck.
    pub auto_undrain: bool,
    /// Failed starts of several users within this time are evidence against the node.
    pub failed_starts_window: Duration,
}

/// Where a value in force comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `slurm.wait`
    pub key: &'static str,
    /// As it would be written in the file; `None`: not set, and there is no default.
    pub value: Option<String>,
    /// The line of the file; `None`: the default.
    pub line: Option<usize>,
}

impl Settings {
    /// What is in force without any file, for a teardown that must go on when the file is gone.
    pub fn usual(node: &str) -> Self {
        merge("", Vec::new(), node)
    }

    /// The value of every key in force on the node, one a line, with the line of the file it comes from.
    pub fn explain(&self, file: &std::path::Path) -> String {
        let line = |origin: &Origin| {
            let value = match &origin.value {
                Some(value) => format!("{} = {value}", origin.key),
                None => format!("{} is not set", origin.key),
            };
            match origin.line {
                Some(line) => format!("{value:<50}  # {}:{line}\n", file.display()),
                None => format!("{value:<50}  # default\n"),
            }
        };
        self.origins.iter().map(line).collect()
    }
}

/// The layers put together, each over the ones before it.
pub(super) fn merge(text: &str, layers: Vec<&Fragment>, node: &str) -> Settings {
    let mut m = Merge {
        text,
        layers,
        node,
        origins: Vec::new(),
    };
    let run = m.path("run_dir", |f| &f.run_dir, "/run/mpsd");
    let state = m.path("state_dir", |f| &f.state_dir, "/var/lib/mpsd");
    let mut settings = Settings {
        paths: Paths::new(run, state),
        control: m.path("control", |f| &f.control, "/usr/bin/nvidia-cuda-mps-control"),
        nvml: m.library("nvml", |f| &f.nvml, "libnvidia-ml.so.1"),
        compute_mode: m.value("compute_mode", |f| &f.compute_mode, ComputeModeRule::Exclusive),
        gpus_unknown: m.value("gpus_unknown", |f| &f.gpus_unknown, GpusUnknown::Refuse),
        too_many_tasks: m.value("too_many_tasks", |f| &f.too_many_tasks, TooManyTasks::Warn),
        max_clients: m
            .value("max_clients", |f| &f.max_clients, Bounded(48) as Clients)
            .0,
        replicas: m.optional("replicas", |f| &f.replicas).map(|replicas| replicas.0),
        cuda_visible_devices: m.value(
            "cuda_visible_devices",
            |f| &f.cuda_visible_devices,
            DeviceNames::Uuid,
        ),
        cgroup: m.cgroup(),
        deadline: m.seconds("deadline_s", |f| &f.deadline_s, 20),
        leftover_clients: m.value(
            "leftover_clients",
            |f| &f.leftover_clients,
            LeftoverClients::Report,
        ),
        memory_over_limit: m.value(
            "memory_over_limit",
            |f| &f.memory_over_limit,
            MemoryOverLimit::Log,
        ),
        defaults: m.defaults(),
        ceilings: m.ceilings(),
        slurm: m.slurm(),
        pbs: m.pbs(),
        drain: m.drain(),
        origins: Vec::new(),
    };
    settings.origins = m.origins;
    settings
}

struct Merge<'a> {
    text: &'a str,
    layers: Vec<&'a Fragment>,
    node: &'a str,
    origins: Vec<Origin>,
}

/// Where a fragment keeps a key.
type Place<T> = fn(&Fragment) -> &Option<Spanned<T>>;

impl Merge<'_> {
    /// The last layer's word on a key, and its line.
    fn last<T: Clone>(&self, place: Place<T>) -> Option<(T, usize)> {
        let spanned = self.layers.iter().rev().find_map(|layer| place(layer).as_ref())?;
        Some((
            spanned.get_ref().clone(),
            position(self.text, spanned.span().start).0,
        ))
    }

    fn note(&mut self, key: &'static str, value: Option<String>, line: Option<usize>) {
        self.origins.push(Origin { key, value, line });
    }

    fn optional<T: Clone + Written>(&mut self, key: &'static str, place: Place<T>) -> Option<T> {
        let found = self.last(place);
        self.note(
            key,
            found.as_ref().map(|(value, _)| value.written()),
            found.as_ref().map(|(_, line)| *line),
        );
        found.map(|(value, _)| value)
    }

    fn value<T: Clone + Written>(&mut self, key: &'static str, place: Place<T>, default: T) -> T {
        let found = self.last(place);
        let line = found.as_ref().map(|(_, line)| *line);
        let value = found.map_or(default, |(value, _)| value);
        self.note(key, Some(value.written()), line);
        value
    }

    fn text_on_node(&mut self, key: &'static str, found: Option<(String, usize)>, default: &str) -> String {
        let line = found.as_ref().map(|(_, line)| *line);
        let value = found.map_or_else(|| default.to_owned(), |(value, _)| value);
        self.note(key, Some(value.written()), line);
        value
    }

    fn path(&mut self, key: &'static str, place: Place<PathPattern>, default: &str) -> PathBuf {
        let found = self
            .last(place)
            .map(|(pattern, line)| (pattern.on(self.node), line));
        self.text_on_node(key, found, default).into()
    }

    fn library(&mut self, key: &'static str, place: Place<Library>, default: &str) -> String {
        let found = self
            .last(place)
            .map(|(pattern, line)| (pattern.on(self.node), line));
        self.text_on_node(key, found, default)
    }

    fn optional_path(&mut self, key: &'static str, place: Place<PathPattern>) -> Option<PathBuf> {
        let found = self
            .last(place)
            .map(|(pattern, line)| (pattern.on(self.node), line));
        self.note(
            key,
            found.as_ref().map(|(path, _)| path.written()),
            found.as_ref().map(|(_, line)| *line),
        );
        found.map(|(path, _)| path.into())
    }

    fn seconds(&mut self, key: &'static str, place: Place<Seconds>, default: u32) -> Duration {
        Duration::from_secs(self.value(key, place, Bounded(default)).0.into())
    }

    fn cgroup(&mut self) -> Cgroup {
        match self.value("cgroup", |f| &f.cgroup, CgroupRule::Auto) {
            CgroupRule::Auto => Cgroup::Auto,
            CgroupRule::None => Cgroup::None,
            CgroupRule::Below(path) => Cgroup::Below(path.on(self.node).into()),
        }
    }

    fn defaults(&mut self) -> Defaults {
        Defaults {
            threads: self.worded("defaults.threads", |f| &f.defaults.threads),
            memory: self.worded("defaults.mem", |f| &f.defaults.mem),
            priority: self.worded("defaults.priority", |f| &f.defaults.priority),
            verify: self.optional("defaults.verify", |f| &f.defaults.verify),
        }
    }

    fn ceilings(&mut self) -> Ceilings {
        Ceilings {
            threads: self.worded("ceilings.threads", |f| &f.ceilings.threads),
            memory: self.worded("ceilings.mem", |f| &f.ceilings.mem),
        }
    }

    fn worded<T>(&mut self, key: &'static str, place: Place<Worded<T>>) -> Option<T>
    where
        Worded<T>: Clone + Written,
    {
        self.optional(key, place).map(|value| value.0)
    }

    fn slurm(&mut self) -> Slurm {
        let names = |names: Vec<Name>| names.into_iter().map(|name| name.0).collect();
        Slurm {
            wait: self.value("slurm.wait", |f| &f.slurm.wait, Wait::Task),
            requeue: self.value("slurm.requeue", |f| &f.slurm.requeue, true),
            auto_gres: self.value("slurm.auto_gres", |f| &f.slurm.auto_gres, false),
            auto_constraint: self
                .optional("slurm.auto_constraint", |f| &f.slurm.auto_constraint)
                .map(|name| name.0),
            auto_partitions: names(self.value(
                "slurm.auto_partitions",
                |f| &f.slurm.auto_partitions,
                Vec::new(),
            )),
        }
    }

    fn pbs(&mut self) -> Pbs {
        Pbs {
            home: self.optional_path("pbs.home", |f| &f.pbs.home),
            exec: self.optional_path("pbs.exec", |f| &f.pbs.exec),
            node: self.optional("pbs.node", |f| &f.pbs.node).map(|name| name.0),
            unattached_tasks: self.value(
                "pbs.unattached_tasks",
                |f| &f.pbs.unattached_tasks,
                UnattachedTasks::Warn,
            ),
        }
    }

    fn drain(&mut self) -> Drain {
        let window: Window = Bounded(600);
        let window = |m: &mut Self| {
            m.value(
                "drain.failed_starts_window_s",
                |f| &f.drain.failed_starts_window_s,
                window,
            )
            .0
        };
        Drain {
            enabled: self.value("drain.enabled", |f| &f.drain.enabled, true),
            prefix: self
                .value("drain.prefix", |f| &f.drain.prefix, Prefix("mpsd:".to_owned()))
                .0,
            auto_undrain: self.value("drain.auto_undrain", |f| &f.drain.auto_undrain, false),
            failed_starts_window: Duration::from_secs(window(self).into()),
        }
    }
}

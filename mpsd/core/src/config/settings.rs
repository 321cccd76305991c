//! The keys of `mpsd.toml`, a row each. The shipped file, mpsd.toml(5) and `mpsctl config show` are
//! printed from them.

use super::values::{
    Cgroup, ComputeModeRule, ConfigError, Entry, GpusUnknown, LeftoverClients, MemoryOverLimit,
    Value, WarnOrRefuse,
};
use crate::bind::{Bind, DeviceNames};
use crate::gpu::MOST_CLIENTS;
use crate::limits::{Amount, Percent};
use crate::paths::Paths;
use crate::request::{MemoryLimit, Mode, Request, Threads};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug)]
pub struct Row {
    /// `wait`
    pub key: &'static str,
    /// `slurm.requeue`
    pub name: &'static str,
    /// A value for the file's comment, if there is no default.
    pub example: Option<&'static str>,
    pub(super) read: fn(&mut Settings, &Entry<'_>) -> Result<(), ConfigError>,
    written: fn(&Settings) -> Option<String>,
}

impl Row {
    /// `max_clients = 48`: its default, or its example.
    pub(super) fn usual(&self) -> String {
        let example = || self.example.map(str::to_owned);
        let value = (self.written)(&Settings::default()).or_else(example);
        format!("{} = {}", self.key, value.unwrap_or_default())
    }
}

/// The keys of one table, or the keys outside of tables.
#[derive(Debug)]
pub struct Section {
    /// The table's name; empty: outside of tables.
    pub name: &'static str,
    pub rows: &'static [Row],
}

type Lines = &'static [&'static str];

/// `field as "key": Type = default => example, parser;`. `as "key"`, the example and the parser are
/// optional; `values` has each type's usual parser. Fields behind `+` are no keys.
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])* $name:ident $section:tt $(+ { $($(#[doc = $other_text:literal])* $other:ident: $other_type:ty,)+ })? {
            $($(#[doc = $text:literal])* $field:ident $(as $key:literal)?: $type:ty
                = $default:expr $(=> $example:literal)? $(, $read:path)?;)+
        }
    )+) => {
        $(
            #[doc = concat!("`", stringify!($section), "`\n")]
            $(#[doc = $about])*
            #[derive(Debug, Clone, PartialEq, Eq)]
            #[allow(rustdoc::broken_intra_doc_links)]
            pub struct $name {
                $(
                    #[doc = concat!("`", settings!(@name $section $field $($key)?), "`\n")]
                    $(#[doc = $text])*
                    pub $field: $type,
                )+
                $($($(#[doc = $other_text])* pub $other: $other_type,)+)?
            }

            impl Default for $name {
                fn default() -> Self {
                    Self {
                        $($field: $default,)+
                        $($($other: Default::default(),)+)?
                    }
                }
            }
        )+

        /// The keys outside of tables, then the tables.
        pub static SECTIONS: &[Section] = &[$(Section {
            name: settings!(@section $section),
            rows: &[$(Row {
                key: settings!(@name [] $field $($key)?),
                name: settings!(@name $section $field $($key)?),
                example: settings!(@some $($example)?),
                read: |settings, entry| {
                    settings!(@part settings $section).$field = settings!(@read entry $($read)?)?;
                    Ok(())
                },
                written: |settings| settings!(@part settings $section).$field.written(),
            }),+],
        }),+];

        /// The file's text above each table, and above each of its keys, in the order of
        /// [`SECTIONS`]; a key without one shares the text above it. Apart, because only the
        /// shipped file needs it.
        pub static TEXTS: &[(Lines, &[Lines])] = &[$((&[$($about),*], &[$(&[$($text),*]),+])),+];
    };
    (@name [] $field:ident) => { stringify!($field) };
    (@name [] $field:ident $key:literal) => { $key };
    (@name [$section:ident] $($field:tt)+) => { concat!(stringify!($section), ".", settings!(@name [] $($field)+)) };
    (@section []) => { "" };
    (@section [$section:ident]) => { stringify!($section) };
    (@part $settings:ident []) => { $settings };
    (@part $settings:ident [$section:ident]) => { $settings.$section };
    (@some) => { None };
    (@some $example:literal) => { Some(stringify!($example)) };
    (@read $entry:ident) => { Value::read($entry) };
    (@read $entry:ident $read:path) => { $read($entry) };
}

settings! {
    Settings [] + {
        defaults: Defaults,
        ceilings: Ceilings,
        slurm: Slurm,
        pbs: Pbs,
        drain: Drain,
        reports: Reports,
        paths: Paths,
        /// Every key with its value in force and its line, in the order of the file's
        /// documentation.
        origins: Vec<Origin>,
    } {
        /// The directories of mpsd: run_dir is lost at a reboot, state_dir stays. In both, in
        /// control, nvml and cgroup, and in home and exec of [pbs], '%n' is the node's name in the
        /// scheduler, else the host's. Use it if several nodes run on one host. Change run_dir only
        /// on a node without jobs ('mpsctl idle'): nothing would end the MPS of a running job. Change it in
        /// /etc/profile.d/mpsd* too, and add a new run_dir or state_dir to ReadWritePaths
        /// of mpsd-boot, mpsd-reconcile and mpsd-metrics.service ('systemctl edit'). A new state_dir
        /// has none of the earlier drains and reports.
        run_dir: PathBuf = "/run/mpsd".into();
        state_dir: PathBuf = "/var/lib/mpsd".into();

        /// NVIDIA's control daemon. The file must belong to root, and others must not be able to
        /// write it.
        control: PathBuf = "/usr/bin/nvidia-cuda-mps-control".into();

        /// NVIDIA's management library: a name for the system's loader, or the absolute path of a
        /// file that belongs to root.
        nvml: String = "libnvidia-ml.so.1".to_owned(), Entry::library;

        /// "exclusive": set a GPU to EXCLUSIVE_PROCESS for the job if the job provably has it
        /// alone, its mode is DEFAULT, and no other process uses it. A client that misses the
        /// daemon then fails with CUDA error 46 ("all CUDA-capable devices are busy or
        /// unavailable"). The old mode is restored after the GPU's last user. On any other GPU, and
        /// in a step with a daemon of its own, the mode stays. A client that misses the daemon then
        /// runs outside MPS without a message. "keep": never change a compute mode.
        compute_mode: ComputeModeRule = ComputeModeRule::Exclusive;

        /// The scheduler may not name a job's GPUs, and the job have neither all GPUs of the node
        /// nor the node alone. "refuse": it gets no MPS, and is told so. "whole-node-if-exclusive":
        /// it gets all GPUs of the node, if the scheduler proves that no other job is there.
        gpus_unknown: GpusUnknown = GpusUnknown::Refuse;

        /// true: the scheduler gives a GPU of this node to several jobs at once, and does not say
        /// so. (Slurm's shards and Torque's gpus=1:shared say so.) The jobs with MPS of one user on
        /// a GPU then share one MPS.
        shared_gpus: bool = false;

        /// Clients that one GPU takes. Not set: NVIDIA's number for the driver, 48 up to 580 and 60
        /// from 590 on (CUDA 13.1).
        max_clients: Option<u32> = None => 48, Entry::whole::<1, 1024, _>;

        /// Shares of each GPU that 'mpsctl advertise' offers to the scheduler; 1 to 60. They limit
        /// no job. Not set: none.
        replicas: Option<u32> = None => 4, Entry::whole::<1, MOST_CLIENTS, _>;

        /// The names of a task's GPUs in CUDA_VISIBLE_DEVICES. A job can choose them too
        /// (MPS_VISIBLE). "uuid": UUIDs, because a daemon with some of the node's GPUs gives them
        /// numbers of its own. "ordinal": the daemon's own numbers, from 0, for programs that read
        /// numbers (vLLM, DeepSpeed's launcher, Ray before 2.10). A program that misses the daemon
        /// may then find another job's GPU. "auto": numbers if that cannot happen, because the
        /// device cgroup holds only the job's GPUs or because they are the first of the node; else
        /// UUIDs.
        cuda_visible_devices: DeviceNames = DeviceNames::Auto;

        /// The cgroup of the daemons, which lets running jobs stay attached when the scheduler's
        /// own daemon restarts. "auto": mpsd finds a place. "none": no cgroup. A path: a directory
        /// of the cgroup file system.
        cgroup: Cgroup = Cgroup::Auto;

        /// Group id of a job's daemons: a group without members and files. The kernel lets no user
        /// debug a process of another group. So users cannot take over their job's daemons, which
        /// are outside the job's limits. The daemons also have the user's own groups, to open
        /// files. 0: only the user's own group. If a user is in the group, the node's log names the
        /// user when a job begins.
        daemon_group: u32 = 65_530, Entry::whole::<0, 0x7FFF_FFFF, _>;

        /// Time for a whole prologue, and for a whole epilogue, in seconds; 1 to 3600. Both end 6 s
        /// before the scheduler's own limit if that is earlier; 'mpsctl slurm check' and 'mpsctl
        /// pbs check' tell.
        deadline as "deadline_s": Duration = Duration::from_secs(20), Entry::seconds::<3600>;

        /// A client of the job that stays on its GPU after the daemon should have ended it.
        /// "report": a line in the log. "kill": also SIGKILL, if root can prove that the client
        /// belongs to this job.
        leftover_clients: LeftoverClients = LeftoverClients::Report;

        /// A client that holds more GPU memory than its limit: NVIDIA's limit only binds programs
        /// that cooperate. "log": a line in the job's own log. "terminate": also terminate_client.
        /// "ignore": no check, and no memory in the job's report. mpsd checks every second while
        /// the job has clients, and every ten seconds if the job has no memory limit. It checks the
        /// limit of a whole job in the same way (mem "job=24G", or "auto" on a shared GPU). Above
        /// that limit, "terminate" ends the job's youngest client.
        memory_over_limit: MemoryOverLimit = MemoryOverLimit::Log;
    }

    /// Defaults of a job with MPS, in the words of a request: threads 25, 12.5, "auto", "30:70";
    /// mem "4G", "25%", "auto", "job=24G"; bind "auto", "none", "block", "cyclic", "closest". Not
    /// set: no limit, bind "auto". report says what a job's output tells at its end: true: a
    /// paragraph; false: nothing; not set: one line (clients at once, use of the GPUs, 'mpsctl
    /// report JOB').
    Defaults [defaults] {
        /// The mode of a job that gets MPS without a request ([slurm] auto_..., [pbs] auto_queues).
        /// "auto": MPS if the job has more tasks on the node than GPUs, or a GPU that jobs share;
        /// else the job is as if there were no mpsd. "on", "per-gpu", "own": also where it brings
        /// nothing.
        mode: Mode = Mode::Auto;

        threads: Option<Threads> = None => "auto";
        memory as "mem": Option<MemoryLimit> = None => "auto";
        report: Option<bool> = None => false;
        bind: Option<Bind> = None => "block";
    }

    /// Limits that no job may exceed. A user's higher number is refused, and a job without a number
    /// gets the ceiling. Not set: none.
    Ceilings [ceilings] {
        threads: Option<Percent> = None => 50;
        memory as "mem": Option<Amount> = None => "50%";
    }

    /// exec is the directory with Slurm's bin and sbin, conf is slurm.conf. Not set: those of the
    /// slurmd that runs on the node.
    Slurm [slurm] {
        exec: Option<PathBuf> = None => "/opt/slurm";
        conf: Option<PathBuf> = None => "/etc/slurm/slurm.conf";

        /// Requeue a batch job if its MPS did not start for a cause that is not provably the
        /// node's.
        requeue: bool = true;

        /// Hold the job at the next failed start after so many, with the reason in its comment and
        /// a note in the node's comment. The job's comment counts them; if it has several lines or
        /// no room, Slurm's restarts of any cause count. 0: never hold.
        requeue_limit: u32 = 3, Entry::whole::<0, 1000, _>;

        /// Jobs that get MPS without a request, by the mode of [defaults]: jobs with --gres=mps:N;
        /// jobs with this feature among their constraints; jobs in one of these partitions.
        /// '--mps=off' keeps a job out. Not set: none.
        auto_gres: bool = false;
        auto_constraint: Option<String> = None => "mps";
        auto_partitions: Vec<String> = Vec::new();
    }

    /// The home and exec directories of PBS, and the node's name in PBS. Not set: mpsd finds them.
    Pbs [pbs] {
        home: Option<PathBuf> = None => "/var/spool/pbs";
        exec: Option<PathBuf> = None => "/opt/pbs";
        node: Option<String> = None => "node17";

        /// Jobs that get MPS without a request, by the mode of [defaults]: jobs with GPUs in one of
        /// these execution queues. 'MPS=off' keeps a job out. After a change run 'mpsctl pbs
        /// install' again: its scripts, or its hook, ask for the jobs of these queues.
        auto_queues: Vec<String> = Vec::new();

        /// Projects of the site that are written like a request, in accounts (qsub -A). Without
        /// this a job with the account "mps" is refused, because its user may have meant "MPS=on".
        projects: Vec<String> = Vec::new();

        /// A job with tasks that could run outside its MPS without a message, because TM starts
        /// them (pbsdsh, mpirun on several nodes): on Torque without our $job_starter. 'mpsctl pbs
        /// check' names these nodes. "warn": a line in the job's error file says that such tasks
        /// need 'mpsctl exec -- COMMAND'. "refuse": the job gets no MPS, and is told so.
        unattached_tasks: WarnOrRefuse = WarnOrRefuse::Warn;
    }

    Drain [drain] {
        /// Take a node that is proved broken out of service.
        enabled: bool = true;

        /// Let the timer lift our own drains after a clean check; else only 'mpsctl undrain' does.
        auto_undrain: bool = false;
    }

    /// Root's report of each job with MPS, for 'mpsctl report': a file in reports below state_dir,
    /// for root alone.
    Reports [reports] {
        /// How many reports stay on the node, those of the youngest jobs; 0: mpsd writes none.
        keep: u32 = 1000, Entry::whole::<0, 100_000, _>;

        /// A report stays at most so many days.
        days: u32 = 30, Entry::whole::<1, 3650, _>;
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `slurm.requeue`
    pub key: &'static str,
    /// The value as it would stand in the file; `None`: not set, and there is no default.
    pub value: Option<String>,
    /// The line of the file; `None`: the default.
    pub line: Option<usize>,
}

impl Settings {
    /// The settings without a file. A teardown uses them if the file is gone.
    pub fn usual() -> Self {
        Self::default().with_origins(&BTreeMap::new())
    }

    /// The request with the site's defaults for what it leaves open.
    pub fn with_defaults(&self, request: &Request) -> Request {
        let mut whole = request.clone();
        if request.is_on() {
            whole.fill(&Request {
                threads: self.defaults.threads.clone(),
                memory: self.defaults.memory.clone(),
                report: self.defaults.report,
                bind: self.defaults.bind,
                ..Request::default()
            });
        }
        whole
    }

    /// Sets what follows from the keys; `lines` has those that the file sets, by name.
    pub(super) fn with_origins(mut self, lines: &BTreeMap<&'static str, usize>) -> Self {
        self.paths = Paths::new(&self.run_dir, &self.state_dir);
        let rows = SECTIONS.iter().flat_map(|section| section.rows);
        let origins = rows.map(|row| Origin {
            key: row.name,
            value: (row.written)(&self),
            line: lines.get(row.name).copied(),
        });
        self.origins = origins.collect();
        self
    }

    pub fn explain(&self, file: &Path) -> String {
        let line = |origin: &Origin| {
            let value = match &origin.value {
                Some(value) => format!("{} = {value}", origin.key),
                None => format!("{} is not set", origin.key),
            };
            let place = origin.line.map(|line| format!("{}:{line}", file.display()));
            format!("{value:<50}  # {}\n", place.as_deref().unwrap_or("default"))
        };
        self.origins.iter().map(line).collect()
    }
}

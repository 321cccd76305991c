//! The keys of `mpsd.toml`, a row each: name, type, default, parser with its range, and the text that the shipped file and
//! mpsd.toml(5) print. `mpsctl config show` prints from the same rows.

use super::layer::ConfigError;
use super::values::{
    Cgroup, ComputeModeRule, Entry, GpusUnknown, LeftoverClients, MemoryOverLimit, Value, Wait, WarnOrRefuse,
};
use crate::bind::{Bind, DeviceNames};
use crate::gpu::MOST_CLIENTS;
use crate::limits::{Amount, Percent, Priority};
use crate::paths::Paths;
use crate::request::{MemoryLimit, Request, Threads};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One key.
#[derive(Debug)]
pub struct Row {
    /// `wait`
    pub key: &'static str,
    /// `slurm.wait`
    pub name: &'static str,
    /// Its text in the file, a line each; empty: it shares the text above it.
    pub text: &'static [&'static str],
    /// A value for the file's comment, if there is no default.
    pub example: Option<&'static str>,
    /// It is needed before NVML answers, so it cannot depend on a GPU's product.
    pub(super) early: bool,
    pub(super) read: fn(&mut Settings, &Entry<'_>) -> Result<(), ConfigError>,
    written: fn(&Settings) -> Option<String>,
}

/// The keys of one table, or the keys outside of tables.
#[derive(Debug)]
pub struct Section {
    /// The table's name; empty: outside of tables.
    pub name: &'static str,
    /// The file's text above the table.
    pub text: &'static [&'static str],
    /// Its keys.
    pub rows: &'static [Row],
}

/// `[early] field as "key": Type = default => example, parser;`. `[early]`, `as "key"`, the example and the parser are
/// optional; `values` has each type's usual parser. Fields behind `+` are no keys.
macro_rules! settings {
    ($(
        $(#[doc = $about:literal])* $name:ident $section:tt $(+ { $($(#[doc = $other_text:literal])* $other:ident: $other_type:ty,)+ })? {
            $($(#[doc = $text:literal])* $([$early:ident])? $field:ident $(as $key:literal)?: $type:ty
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
            text: &[$($about),*],
            rows: &[$(Row {
                key: settings!(@name [] $field $($key)?),
                name: settings!(@name $section $field $($key)?),
                text: &[$($text),*],
                example: settings!(@some $($example)?),
                early: settings!(@early $($early)?),
                read: |settings, entry| {
                    settings!(@part settings $section).$field = settings!(@read entry $($read)?)?;
                    Ok(())
                },
                written: |settings| settings!(@part settings $section).$field.written(),
            }),+],
        }),+];
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
    (@early) => { false };
    (@early early) => { true };
    (@read $entry:ident) => { Value::read($entry) };
    (@read $entry:ident $read:path) => { $read($entry) };
}

settings! {
    Settings [] + {
        /// `[defaults]`
        defaults: Defaults,
        /// `[ceilings]`
        ceilings: Ceilings,
        /// `[slurm]`
        slurm: Slurm,
        /// `[pbs]`
        pbs: Pbs,
        /// `[drain]`
        drain: Drain,
        /// `[reports]`
        reports: Reports,
        /// `[metrics]`
        metrics: Metrics,
        /// `run_dir` and `state_dir`.
        paths: Paths,
        /// Every key with its value in force and its line, in the order of the file's documentation.
        origins: Vec<Origin>,
    } {
        /// Directories of the suite: what is gone after a reboot, and what stays. In these two, in control, nvml and cgroup,
        /// and in home and exec of [pbs], '%n' stands for the node's name as the scheduler gives it, else the host's: needed
        /// where several nodes run on one host. With another run_dir, change it in /etc/profile.d/mpsd.{sh,csh} too: they look
        /// there.
        [early] run_dir: PathBuf = "/run/mpsd".into();
        [early] state_dir: PathBuf = "/var/lib/mpsd".into();

        /// NVIDIA's control daemon. Root's file, not writable by others.
        control: PathBuf = "/usr/bin/nvidia-cuda-mps-control".into();

        /// NVIDIA's management library: a name for the system's loader, or the absolute path of a file of root's.
        [early] nvml: String = "libnvidia-ml.so.1".to_owned(), Entry::library;

        /// "exclusive": a GPU that the job is proved to hold alone, that is in mode DEFAULT and free of foreign contexts, is
        /// set to EXCLUSIVE_PROCESS for the job, so that a client which misses the daemon fails (CUDA error 46, "all CUDA-capable
        /// devices are busy or unavailable") instead of running outside of MPS without a word. The mode found is restored after
        /// the last user of the GPU. On every other GPU, and in a step with a daemon of its own, the mode stays, and such a client
        /// runs outside of MPS without a word.
        /// "keep": no compute mode is ever changed.
        compute_mode: ComputeModeRule = ComputeModeRule::Exclusive;

        /// A job whose GPUs the scheduler does not name. One with as many as the node has, or alone on its node, needs no names.
        /// "refuse": it gets no MPS and is told so.
        /// "whole-node-if-exclusive": all GPUs of the node, if the scheduler proves that the node is the job's alone.
        gpus_unknown: GpusUnknown = GpusUnknown::Refuse;

        /// More tasks on a GPU than it takes MPS clients: "warn" (not every task is a client), or "refuse".
        too_many_tasks: WarnOrRefuse = WarnOrRefuse::Warn;

        /// Clients that one GPU takes. Not set: what its driver is known for, 48 up to 580 and 60 from 590 on (CUDA 13.1) by
        /// NVIDIA's documentation. GPUs before Volta take 16, whatever stands here.
        max_clients: Option<u32> = None => 48, Entry::whole::<1, 1024, _>;

        /// Into how many shares the GPUs of a node are advertised to the scheduler ('mpsctl advertise'); 1 to 60. It limits no
        /// job. Not set: none are advertised.
        replicas: Option<u32> = None => 4, Entry::whole::<1, MOST_CLIENTS, _>;

        /// How tasks find their GPUs in CUDA_VISIBLE_DEVICES; a job may say it (MPS_VISIBLE).
        /// "uuid": by UUID, since a daemon that sees some of the node's GPUs numbers them anew. "ordinal": by the daemon's own
        /// numbers, from 0, for programs that read numbers (vLLM, DeepSpeed's launcher, Ray before 2.10): one that misses
        /// the daemon may then meet another job's GPU. "auto": by number where that cannot happen, because its device cgroup
        /// holds the job's GPUs alone or because these are the first of the node, else by UUID. "keep": the variable stays
        /// as the scheduler set it.
        cuda_visible_devices: DeviceNames = DeviceNames::Auto;

        /// Where the daemons live, so that a restart of the scheduler's own daemon leaves running jobs attached: "auto" finds a
        /// place, "none" uses no cgroup of our own, a path is a directory of the cgroup file system.
        cgroup: Cgroup = Cgroup::Auto;

        /// Group id of a job's daemons: one that nobody is in and that owns no file. The kernel lets nobody debug a process of
        /// another group, so that a user cannot take their job's daemons, which are outside of the job's limits, over. Files are
        /// opened by the user's own groups, which the daemons have besides. 0: the user's own group, without this. A user who is in it
        /// all the same is named in the node's log when a job of theirs begins.
        daemon_group: u32 = 65_530, Entry::whole::<0, 0x7FFF_FFFF, _>;

        /// Time for a whole prologue, and for a whole epilogue, in seconds; 1 to 3600. Where the scheduler's own limit is less than
        /// 6 s above it, both end 6 s before that limit; 'mpsctl slurm check' and 'mpsctl pbs check' tell.
        deadline as "deadline_s": Duration = Duration::from_secs(20), Entry::seconds::<3600>;

        /// A client of the job that stays on its GPU after the daemon was asked to terminate it: "report" it in the log, or
        /// "kill" it as well (SIGKILL), if root can prove that it belongs to this job.
        leftover_clients: LeftoverClients = LeftoverClients::Report;

        /// A client that holds more GPU memory than the limit asked for; NVIDIA's limit binds only programs that cooperate.
        /// "log": a line in the job's own log. "terminate": and terminate_client. Looked at once a second while the job has
        /// clients, and where no memory limit was asked for every ten seconds, for the job's report. "ignore": nothing is
        /// looked at, and the report says nothing of memory.
        memory_over_limit: MemoryOverLimit = MemoryOverLimit::Log;
    }

    /// What a job that asks for MPS gets where it does not say. The words are those of the request: threads 25, 12.5,
    /// "auto", "30:70"; mem "4G", "25%", "auto"; priority "normal", "below-normal"; bind "block", "cyclic", "closest", each
    /// also with "+peers", "auto", "none". Not set: no limit, normal priority, no probe, bind "auto".
    Defaults [defaults] {
        threads: Option<Threads> = None => "auto";
        memory as "mem": Option<MemoryLimit> = None => "auto";
        priority: Option<Priority> = None => "normal";
        verify: Option<bool> = None => false;
        report: Option<bool> = None => false;
        bind: Option<Bind> = None => "block";
    }

    /// What no job may exceed. A number above it is refused; a job that gives no number gets the ceiling. Not set: none.
    Ceilings [ceilings] {
        threads: Option<Percent> = None => 50;
        memory as "mem": Option<Amount> = None => "50%";
    }

    /// Where Slurm lives: exec, the directory with its bin and sbin, and conf, its slurm.conf, are those of the slurmd that runs
    /// on the node if not set.
    Slurm [slurm] {
        [early] exec: Option<PathBuf> = None => "/opt/slurm";
        [early] conf: Option<PathBuf> = None => "/etc/slurm/slurm.conf";

        /// Who waits until a job's MPS is proved ready. "task": the task itself, just before it starts, for srun; the prolog
        /// comes back at once, and srun starts earlier. "prolog": the prolog always waits. For sbatch and salloc it always
        /// does.
        [early] wait: Wait = Wait::Task;

        /// A batch job whose MPS did not start, for a cause that is not proved to be the node's, is requeued.
        [early] requeue: bool = true;

        /// Where its MPS had failed to start so often before, it is held, with the reason in its comment and a note in the
        /// comment of the node. The job's comment counts; where that has several lines or no room, Slurm's restarts of any
        /// cause do. 0: it is never held.
        requeue_limit: u32 = 3, Entry::whole::<0, 1000, _>;

        /// Jobs that get MPS without having asked: those with --gres=mps:N; those with this feature among their constraints;
        /// those in one of these partitions. Not set: none.
        [early] auto_gres: bool = false;
        [early] auto_constraint: Option<String> = None => "mps";
        [early] auto_partitions: Vec<String> = Vec::new();
    }

    /// Where PBS lives; home, exec and node are found by looking if not set.
    Pbs [pbs] {
        [early] home: Option<PathBuf> = None => "/var/spool/pbs";
        [early] exec: Option<PathBuf> = None => "/opt/pbs";
        [early] node: Option<String> = None => "node17";

        /// A job whose tasks could run outside its MPS without a word, because TM starts them (pbsdsh, mpirun on several nodes)
        /// and nothing of ours does: on Torque without our $job_starter, on OpenPBS with the classic scripts.
        /// "warn": a line in the job's error file says that such tasks need 'mpsctl exec -- COMMAND'. "refuse": it gets no MPS and
        /// is told so. 'mpsctl pbs check' tells which nodes this concerns.
        [early] unattached_tasks: WarnOrRefuse = WarnOrRefuse::Warn;
    }

    Drain [drain] {
        /// A node that is proved broken is taken out of service.
        enabled: bool = true;

        /// What our reasons begin with. We lift only drains whose reason begins so.
        prefix: String = "mpsd:".to_owned(), Entry::prefix;

        /// The timer lifts our own drains after a clean recheck; else only 'mpsctl undrain' does.
        auto_undrain: bool = false;

        /// Starts that fail for two or more users drain the node. Two users who work together can bring that about on every node
        /// that runs their jobs: by default the node's log and 'mpsctl reconcile' tell the administrator, and nothing is drained.
        on_failed_starts: bool = false;

        /// Starts that fail for two or more users within this time (seconds) count together. A start does not count where its user
        /// had another process on the node, somebody else held its GPU, or run_dir was full.
        failed_starts_window as "failed_starts_window_s": Duration = Duration::from_secs(600), Entry::seconds::<86_400>;
    }

    /// What root writes down of each job with MPS at its end, for 'mpsctl report': in reports below state_dir, for root alone.
    Reports [reports] {
        /// So many are kept on the node, of the youngest jobs; 0: none is written.
        keep: u32 = 1000, Entry::whole::<0, 100_000, _>;

        /// And none for longer than so many days.
        days: u32 = 30, Entry::whole::<1, 3650, _>;
    }

    /// What other exporters are told of a job with MPS: a line in a file for each of its GPUs, from its begin to its end. Leave a
    /// key out where a prolog of the site's own writes such files for all jobs. The directory must be there, be root's alone to
    /// write, be reached through no link, and lie on the file system of run_dir. A job that shares its GPU leaves the others'
    /// lines; steps with a daemon of their own are not entered. What cannot be written is a line of the node's log.
    Metrics [metrics] {
        /// The directory of dcgm-exporter's --hpc-job-mapping-dir: a file is named by NVML's index, and has a job id a line.
        dcgm_job_map: Option<PathBuf> = None => "/run/dcgm-job-map";

        /// That of jobstats, which its exporter reads: a file is named by the GPU's UUID, and has JOBID UID a line.
        gpustat: Option<PathBuf> = None => "/run/gpustat";
    }
}

/// The origin of a value in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// `slurm.wait`
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
        if !request.is_on() {
            return whole;
        }
        // Static partitions ignore a percentage. A default binding must not make a task fail that keeps the scheduler's
        // CUDA_VISIBLE_DEVICES.
        let keeps = request.visible.unwrap_or(self.cuda_visible_devices) == DeviceNames::Keep;
        let is_shared = request.replicas.is_some();
        let defaults = self.defaults.clone();
        whole.fill(&Request {
            threads: defaults.threads.filter(|_| !is_shared && request.sms.is_none()),
            memory: defaults.memory.filter(|_| !is_shared),
            priority: defaults.priority,
            verify: defaults.verify,
            report: defaults.report,
            bind: defaults.bind.filter(|_| !keeps),
            ..Request::default()
        });
        whole
    }

    /// Sets the fields that follow from the keys. `lines` has the lines of the keys that the file sets, by name.
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

    /// Every key in force on the node with its value and the line of the file, one a line.
    pub fn explain(&self, file: &Path) -> String {
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

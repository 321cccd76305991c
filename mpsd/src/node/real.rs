//! This node, as root changes it. The files beside this one implement the traits of
//! [`crate::job::node`].

use super::worker::{NvmlWorker, Question};
use super::{failure, log, site_directory, unless_scarce};
use crate::job::audit::Entry;
use crate::job::journal::ProcessRef;
use crate::job::node::{Console, Gpus, NodeSettings, Scheduling, Severity};
use crate::job::{DrainTarget, Journal, User, ledger};
use crate::plan::effects::Effect;
use batch::control::Controller;
use batch::drain::{self, Cause, Place, markers};
use batch::gpu_host::unless_no_gpu_host;
use batch::{Location, UserRef};
use mpsd_core::config::{Cgroup as CgroupRule, Settings};
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::gpu::GpuProcess;
use mpsd_core::text;
use mpsd_core::{ComputeMode, Failure, GpuUuid, Inventory, JobId, Refusal};
use mpsd_sys::cgroup::Cgroup;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::process::{Process, State};
use mpsd_sys::spawn::Child;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{self, Gid};
use serde::de::DeserializeOwned;
use std::cell::OnceCell;
use std::ffi::CString;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// For one answer; the first needs 12 ms or more (docs/facts/mps-control.md#times).
const NVML_TIME: Duration = Duration::from_secs(5);
/// Most time that other work waits for the worker's start.
const PREPARATION: Duration = Duration::from_millis(100);
const WAIT_STEP: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(super) struct Started {
    pub(super) child: Child,
    pub(super) report: UnixStream,
}

#[derive(Debug)]
pub struct RealNode {
    pub(super) program: &'static str,
    pub(super) settings: NodeSettings,
    /// In force on this node, except that the NVML library is that of the job in hand.
    pub(super) in_force: Settings,
    pub(super) mpsd: PathBuf,
    nvml_time: Duration,
    /// Stays until the servers are ready: without persistence mode the driver shuts down a GPU that
    /// no process holds open.
    pub(super) worker: Option<NvmlWorker>,
    pub(super) silent: Option<ProcessRef>,
    pub(super) started: Option<Started>,
    /// A process keeps the lock of the directory with the jobs' cgroups.
    pub(super) cgroups_kept: OnceCell<bool>,
    pub(super) namespace_kept: OnceCell<bool>,
}

impl RealNode {
    /// For `program`, which has `limit` for all, and `teardown` of it for the ladder.
    pub fn new(
        program: &'static str,
        settings: &Settings,
        limit: Duration,
        teardown: Duration,
    ) -> Self {
        Self {
            program,
            settings: NodeSettings::new(settings, limit, teardown),
            in_force: settings.clone(),
            mpsd: beside("mpsd").unwrap_or_default(),
            nvml_time: NVML_TIME.min(limit / 3),
            worker: None,
            silent: None,
            started: None,
            cgroups_kept: OnceCell::new(),
            namespace_kept: OnceCell::new(),
        }
    }

    /// Whether a process keeps the lock of the site's directory that holds the job's cgroup. Then
    /// the job's processes are found as on a node without one.
    pub(super) fn is_cgroup_kept(&self, journal: &Journal) -> bool {
        let base = match (&journal.cgroup, &self.in_force.cgroup) {
            (Some(path), _) => path.parent(),
            (None, CgroupRule::Below(base)) => Some(base.as_path()),
            (None, CgroupRule::None | CgroupRule::Auto) => None,
        };
        let base = base.filter(|_| journal.has_begun(&Effect::MakeCgroup));
        base.is_some_and(|base| {
            let kept = || site_directory::is_kept(&self.settings.paths, base);
            *self.cgroups_kept.get_or_init(kept)
        })
    }

    pub(super) fn cgroup_of(&self, journal: &Journal) -> Option<Cgroup> {
        if self.is_cgroup_kept(journal) {
            return None;
        }
        if let Some(path) = journal.cgroup.as_deref() {
            return Cgroup::open(path).ok().flatten();
        }
        // Its maker may have been killed before it journaled the path.
        let name = journal.job().directory_name();
        match &self.in_force.cgroup {
            _ if !journal.has_begun(&Effect::MakeCgroup) => None,
            CgroupRule::None => None,
            CgroupRule::Auto => Cgroup::find(&name),
            CgroupRule::Below(base) => Cgroup::open(&base.join(name)).ok().flatten(),
        }
    }

    pub(super) fn in_cgroup(&self, journal: &Journal) -> Vec<i32> {
        let procs = |cgroup: Cgroup| cgroup.procs().ok();
        self.cgroup_of(journal).and_then(procs).unwrap_or_default()
    }

    pub(super) fn is_contained(&self, journal: &Journal) -> bool {
        let unified = journal.cgroup.as_deref().is_some_and(Cgroup::is_unified);
        unified && !self.is_cgroup_kept(journal)
    }

    /// The first question starts the worker, and so does the first after a failure.
    fn ask<T: DeserializeOwned>(&mut self, question: &Question) -> Result<T, Failure> {
        let mut worker = match self.worker.take() {
            Some(worker) => worker,
            None => NvmlWorker::start(&beside("mpsd")?, &self.in_force.nvml, self.nvml_time)?,
        };
        let answer = worker.ask(question);
        match &answer {
            Ok(_) => self.worker = Some(worker),
            Err(_) => self.silent = worker.silent().or(self.silent),
        }
        answer
    }
}

pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|e| {
        let evidence = unless_scarce(Evidence::Storage, e.raw_os_error().map(Errno::from_raw));
        failure(evidence, "/proc/self/exe", e.to_string())
    })?;
    Ok(own.with_file_name(name))
}

pub fn find_user(user: &UserRef) -> Result<User, Failure> {
    let found = match user {
        UserRef::Name(name) => unistd::User::from_name(name),
        UserRef::Uid(uid) => unistd::User::from_uid((*uid).into()),
    };
    let Ok(Some(found)) = found else {
        let why = "not known on this node (directory service down, another node's user, or one of nss_slurm, which serves steps alone)";
        return Err(Undetermined::new(text::user(user), why).into());
    };
    if found.uid.is_root() {
        let why = "MPS runs under the job's own user id, and never as root";
        return Err(Refusal::new("user 'root'", why, "an ordinary user's job").into());
    }
    Ok(User {
        name: found.name,
        uid: found.uid.as_raw(),
        gid: found.gid.as_raw(),
    })
}

pub(super) fn groups_of(user: &str, gid: u32) -> Vec<u32> {
    let user = CString::new(user).unwrap_or_default();
    let known = unistd::getgrouplist(&user, gid.into()).unwrap_or_default();
    known.into_iter().map(Gid::as_raw).chain([gid]).collect()
}

pub(super) fn uid_of(pid: i32) -> Option<u32> {
    let process = Process::find(pid)?;
    match process.state()? {
        State::Defunct | State::Dead => None,
        _ => process.uids().map(|uids| uids.effective),
    }
}

impl Gpus for RealNode {
    fn use_nvml(&mut self, library: &str) {
        if self.in_force.nvml != library {
            library.clone_into(&mut self.in_force.nvml);
            self.worker = None;
        }
    }

    fn prepare_nvml(&mut self, gpus: &[GpuUuid]) {
        if self.worker.is_none() {
            let started = beside("mpsd")
                .and_then(|mpsd| NvmlWorker::start(&mpsd, &self.in_force.nvml, PREPARATION));
            self.worker = started.ok().map(|mut worker| {
                worker.limit = self.nvml_time;
                worker.attach(gpus);
                worker
            });
        }
    }

    fn inventory(
        &mut self,
        known: Option<(Inventory, Vec<GpuUuid>)>,
    ) -> Result<Inventory, Failure> {
        let question = known.map_or(Question::Inventory, |(known, gpus)| {
            Question::InventoryAgain(known, gpus)
        });
        let inventory = self.ask(&question);
        inventory.map_err(|failure| unless_no_gpu_host(failure, &self.in_force.nvml))
    }

    fn compute_mode(&mut self, gpu: &GpuUuid) -> Result<ComputeMode, Failure> {
        self.ask(&Question::Mode(gpu.clone()))
    }

    fn set_compute_mode(&mut self, gpu: &GpuUuid, mode: ComputeMode) -> Result<(), Failure> {
        self.ask::<()>(&Question::SetMode(gpu.clone(), mode))?;
        let now = self.compute_mode(gpu)?;
        let why = || format!("set to {mode}, and it is {now}");
        let failed = || Undetermined::new(format!("compute mode of {gpu}"), why()).into();
        (now == mode).then_some(()).ok_or_else(failed)
    }

    fn silent_nvml(&mut self) -> Option<ProcessRef> {
        self.silent.take()
    }

    fn gpu_processes(&mut self, gpu: &GpuUuid) -> Result<Vec<GpuProcess>, Failure> {
        let mut processes: Vec<GpuProcess> = self.ask(&Question::Processes(gpu.clone()))?;
        // NVML lists processes that are gone or of another namespace
        // (docs/facts/mps-control.md#nvml).
        processes.retain(|process| uid_of(process.pid).is_some());
        Ok(processes)
    }
}

impl Scheduling for RealNode {
    fn controller(&mut self, place: &Place<'_>) -> Box<dyn Controller> {
        place.controller()
    }

    fn remark(&mut self, place: &Place<'_>, failure: &Failure) -> Option<String> {
        drain::remark(&self.settings.paths, place, failure)
    }

    fn withdraw_remarks(&mut self, location: &Location) -> Vec<String> {
        let told = drain::withdraw_remarks(&self.settings.paths, location).into_iter();
        told.map(|told| told.unwrap_or_else(|why| why)).collect()
    }

    fn undelivered(&mut self, node: &str) -> Option<String> {
        markers::undelivered(&self.settings.paths, node).map(|marker| marker.reason)
    }

    fn drain(
        &mut self,
        place: &Place<'_>,
        target: &DrainTarget,
        fault: &Fault,
    ) -> Option<(String, bool)> {
        target.prefix.as_ref()?;
        let cause = Cause {
            jobs: &target.jobs(),
            fault,
            gpus: target.gpus.clone(),
            of: ledger::gpus_with(self, &target.gpus),
        };
        let (paths, controller) = (&self.settings.paths, place.controller());
        let controller = controller.as_ref();
        Some(drain::deliver(paths, place, controller, cause))
    }

    fn note(
        &mut self,
        place: &Place<'_>,
        job: &JobId,
        user: &UserRef,
        line: &str,
    ) -> Result<(), String> {
        let Some(file) = place.controller().output(job)? else {
            return Ok(());
        };
        let user = find_user(user).map_err(|failure| failure.to_string())?;
        let written = self.append_as_user(&user, &file, line);
        written.map_err(|why| format!("its output file is not written: {why}"))
    }
}

impl Console for RealNode {
    fn log(&mut self, severity: Severity, line: &str) {
        log::line(self.program, severity, line);
    }

    fn audit(&mut self, entry: &Entry) {
        log::entry(self.program, entry);
    }

    fn complain(&mut self, line: &str) {
        log::complain(self.program, line);
    }

    fn since_boot(&self) -> u64 {
        let now = clock_gettime(ClockId::CLOCK_BOOTTIME);
        now.map_or(0, |now| u64::try_from(now.tv_sec()).unwrap_or(0))
    }

    fn wait_until(&mut self, end: Deadline) {
        while end.sleep(WAIT_STEP) {}
    }
}

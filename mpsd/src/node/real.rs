//! This node, as root changes it. What it does stands in its neighbours, a trait of [`crate::job::node`] each.

use super::user::find_user;
use super::worker::NvmlWorker;
use super::{failure, listed, log, unless_scarce};
use crate::job::Journal;
use crate::job::audit::Entry;
use crate::job::journal::ProcessRef;
use crate::job::node::{Console, NodeSettings, Scheduling, Severity};
use crate::plan::effects::Effect;
use crate::scheduler::control::Controller;
use crate::scheduler::drain::{self, Place, markers};
use crate::scheduler::{Site, UserRef};
use crate::sys::Exit;
use crate::sys::cgroup::Cgroup;
use crate::sys::confine::Confinement;
use crate::sys::deadline::Deadline;
use crate::sys::files::FileError;
use crate::sys::spawn::{Child, Identity, Spawn};
use mpsd_core::config::{Cgroup as CgroupRule, Reports, Settings};
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::text::one_line;
use mpsd_core::{Failure, JobId};
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};
use std::cell::OnceCell;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time for one answer of NVML; the first needs 12 ms (docs/facts/mps-control.md#times), more with many GPUs.
const NVML_TIME: Duration = Duration::from_secs(5);
/// Time for a line in a user's file.
const NOTE_TIME: Duration = Duration::from_secs(2);
/// Most that is read of what the process that writes it says. Bytes.
const LONGEST_COMPLAINT: usize = 4096;
/// How often a waiting program looks at its deadline.
const WAIT_STEP: Duration = Duration::from_millis(200);

/// What is known of a daemon that was started and not yet heard.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) child: Child,
    pub(super) report: OwnedFd,
}

/// This node.
#[derive(Debug)]
pub struct RealNode {
    pub(super) program: &'static str,
    pub(super) settings: NodeSettings,
    /// Our own `mpsd`, as members are told by it.
    pub(super) mpsd: PathBuf,
    pub(super) nvml: String,
    pub(super) cgroup: CgroupRule,
    /// Group of what runs as a job's user; 0: the user's own.
    pub(super) daemon_group: u32,
    /// Time for one answer of NVML.
    pub(super) nvml_time: Duration,
    /// How many job reports are kept, and for how long.
    pub(super) reports: Reports,
    pub(super) worker: Option<NvmlWorker>,
    pub(super) leaving: Option<NvmlWorker>,
    /// A worker that gave no answer in its time.
    pub(super) silent: Option<ProcessRef>,
    pub(super) started: Option<Started>,
    /// Whether somebody keeps the lock of the directory with the jobs' cgroups.
    cgroups_kept: OnceCell<bool>,
    /// Whether a mount namespace is kept for the job.
    pub(super) namespace_kept: OnceCell<bool>,
}

impl RealNode {
    /// The node under `settings`, for `program`, which has `limit` for all, and `teardown` of it for the ladder.
    pub fn new(program: &'static str, settings: &Settings, limit: Duration, teardown: Duration) -> Self {
        Self {
            program,
            settings: NodeSettings::new(settings, limit, teardown),
            mpsd: beside("mpsd").unwrap_or_default(),
            nvml: settings.nvml.clone(),
            cgroup: settings.cgroup.clone(),
            daemon_group: settings.daemon_group,
            nvml_time: NVML_TIME.min(limit / 3),
            reports: settings.reports.clone(),
            worker: None,
            leaving: None,
            silent: None,
            started: None,
            cgroups_kept: OnceCell::new(),
            namespace_kept: OnceCell::new(),
        }
    }

    /// Whether the job's cgroup is out of reach: somebody keeps the lock of the site's directory that it lies in. Then its processes
    /// are told as where there is none.
    pub(super) fn is_cgroup_kept(&self, journal: &Journal) -> bool {
        let base = match (&journal.cgroup, &self.cgroup) {
            (Some(path), _) => path.parent(),
            (None, CgroupRule::Below(base)) => Some(base.as_path()),
            (None, CgroupRule::None | CgroupRule::Auto) => None,
        };
        let base = base.filter(|_| journal.has_begun(&Effect::MakeCgroup));
        base.is_some_and(|base| {
            let kept = || listed::is_kept(&self.settings.paths, base);
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
        // Made, and its maker killed before the path stood in the journal.
        let name = journal.job.directory_name();
        match &self.cgroup {
            _ if !journal.has_begun(&Effect::MakeCgroup) => None,
            CgroupRule::None => None,
            CgroupRule::Auto => Cgroup::find(&name),
            CgroupRule::Below(base) => Cgroup::open(&base.join(name)).ok().flatten(),
        }
    }

    /// The processes in the job's own cgroup.
    pub(super) fn grouped(&self, journal: &Journal) -> Vec<i32> {
        let cgroup = self.cgroup_of(journal);
        cgroup.and_then(|cgroup| cgroup.procs().ok()).unwrap_or_default()
    }

    /// Whether none of the job's processes can be anywhere but in the job's own cgroup.
    pub(super) fn is_contained(&self, journal: &Journal) -> bool {
        let unified = journal.cgroup.as_deref().is_some_and(Cgroup::is_unified);
        unified && !self.is_cgroup_kept(journal)
    }

    /// The suite's program `name`, to be run as the job's user: in a session of its own, in the job's cgroup, confined, and in a
    /// group that its user's other processes are not in: they cannot debug it (ptrace(2), "Ptrace access mode checking").
    pub(super) fn as_user(&self, journal: &Journal, name: &str, groups: Vec<u32>) -> Result<Spawn, Failure> {
        let mut spawn = Spawn::new(&beside(name)?);
        let directory = |cgroup: Cgroup| {
            let failed = |e: FileError| {
                let evidence = unless_scarce(Evidence::Storage, e.errno());
                failure(evidence, "the job's cgroup", e.to_string())
            };
            cgroup.directory().map_err(failed)
        };
        spawn.cgroup = self.cgroup_of(journal).map(directory).transpose()?;
        if journal.cgroup.is_some() && spawn.cgroup.is_none() {
            return Err(Undetermined::new("the job's cgroup", "it cannot be entered, or is gone").into());
        }
        spawn.confinement = Some(Confinement::of_user());
        spawn.identity = Some(Identity {
            uid: journal.uid,
            gid: match self.daemon_group {
                0 => journal.gid,
                own => own,
            },
            groups,
        });
        spawn.session = true;
        Ok(spawn)
    }
}

/// The user's groups, from the directory service; without it none but their own.
pub(super) fn groups_of(journal: &Journal) -> Vec<u32> {
    let known = users::get_user_groups(&journal.user, journal.gid).unwrap_or_default();
    let known = known.iter().map(users::Group::gid);
    known.chain([journal.gid]).collect()
}

/// The suite's program `name`, beside this one.
///
/// # Errors
/// A fault when this program's own file cannot be told.
pub fn beside(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|e| {
        let evidence = unless_scarce(Evidence::Storage, e.raw_os_error().map(Errno::from_raw));
        failure(evidence, "/proc/self/exe", e.to_string())
    })?;
    let directory = own.parent().unwrap_or(Path::new("/"));
    Ok(directory.join(name))
}

impl Scheduling for RealNode {
    fn controller(&mut self, place: &Place<'_>) -> Box<dyn Controller> {
        place.controller()
    }

    fn remark(&mut self, place: &Place<'_>, prefix: &str, failure: &Failure) -> Option<String> {
        drain::remark(&self.settings.paths, place, prefix, failure)
    }

    fn withdraw_remarks(&mut self, site: &Site) -> Vec<String> {
        let told = drain::withdraw_remarks(&self.settings.paths, site).into_iter();
        told.map(|told| told.unwrap_or_else(|why| why)).collect()
    }

    fn undelivered(&mut self, node: &str) -> Option<String> {
        markers::undelivered(&self.settings.paths, node).map(|marker| marker.reason)
    }

    fn drain(
        &mut self,
        place: &Place<'_>,
        prefix: &str,
        job: &JobId,
        fault: &Fault,
        gpus: Vec<String>,
    ) -> (String, bool) {
        drain::deliver(&self.settings.paths, place, prefix, job, fault, gpus)
    }

    /// By a process of the user's: what lies on the way to the file is the user's, and may block.
    fn note(&mut self, place: &Place<'_>, job: &JobId, user: &UserRef, line: &str) -> Result<(), String> {
        let Some(file) = place.controller().output(job)? else {
            return Ok(());
        };
        let user = find_user(user).map_err(|failure| failure.to_string())?;
        let groups = users::get_user_groups(&user.name, user.gid).unwrap_or_default();
        let mut spawn = Spawn::new(beside("mpsd").map_err(|failure| failure.to_string())?);
        spawn.args = vec!["--note".into(), file.into()];
        spawn.confinement = Some(Confinement::of_user());
        spawn.identity = Some(Identity {
            uid: user.uid,
            gid: user.gid,
            groups: groups.iter().map(users::Group::gid).collect(),
        });
        let not_written = |why: String| format!("its output file is not written: {why}");
        let line = format!("{line}\n");
        spawn.input(line.as_bytes()).map_err(|error| error.to_string())?;
        let ended = spawn.run(Deadline::after(NOTE_TIME), LONGEST_COMPLAINT);
        let ended = ended.map_err(|error| not_written(error.to_string()))?;
        match ended.exit {
            Exit::Code(0) => Ok(()),
            _ => Err(not_written(one_line(&String::from_utf8_lossy(&ended.err), 300))),
        }
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

//! Programs of the suite that run as a job's user: in the job's cgroup, confined, and with `mpsd`'s specification.

use super::real::{RealNode, beside, groups_of};
use super::{failure, unless_scarce};
use crate::job::Journal;
use crate::job::journal::ProcessRef;
use crate::job::spec::{REPORT_FD, SPEC_FD, Spec};
use crate::sys::cgroup::Cgroup;
use crate::sys::confine::Confinement;
use crate::sys::deadline::Deadline;
use crate::sys::descriptors::{holding, read_line};
use crate::sys::files::FileError;
use crate::sys::spawn::{Identity, Spawn};
use mpsd_core::Failure;
use mpsd_core::config::MemoryOverLimit;
use mpsd_core::environment::PIPE_DIRECTORY;
use mpsd_core::failure::{Evidence, Fault, Undetermined};
use mpsd_core::record::ClientLimits;
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

/// 48 clients need several descriptors each in the server. NVIDIA's guide asks for more than the usual 1024.
const OPEN_FILES: u64 = 16_384;
const COMMAND_MS: u64 = 2_000;
const LONGEST_LINE: usize = 256 * 1024;

/// `mpsd` as the job's user, with `spec` on its descriptor. With `args` it only talks to the daemons that are there.
pub(super) fn with_spec(
    node: &RealNode,
    journal: &Journal,
    spec: &Spec,
    args: &[&str],
) -> Result<Spawn, Failure> {
    let text = serde_json::to_string(spec)
        .map_err(|e| Fault::new(Evidence::Storage, "specification", e.to_string()))?;
    let groups = match args {
        [] => groups_of(&journal.user, journal.gid),
        // The groups of the job's `mpsd`, which may need them to reach NVIDIA's program. This spares the directory service.
        _ => {
            let supervisor = journal.supervisor.and_then(ProcessRef::open);
            let groups = supervisor.and_then(|mpsd| mpsd.groups());
            groups.unwrap_or_else(|| vec![journal.gid])
        }
    };
    let mut spawn = node.as_user(journal, "mpsd", groups)?;
    spawn.args = args.iter().map(Into::into).collect();
    // `mpsd` needs no variable. This one identifies it without a cgroup, if its starter died before it journaled the pid.
    let first = journal.daemons.first();
    let pipe = first.map(|daemon| (PIPE_DIRECTORY.into(), daemon.pipe.clone().into()));
    spawn.env = pipe.into_iter().collect();
    spawn.nofile = Some(OPEN_FILES);
    let text = holding(text.as_bytes());
    let text = text.map_err(|e| Undetermined::new("mpsd's specification", e.desc()))?;
    spawn.inherit = vec![(text, SPEC_FD)];
    Ok(spawn)
}

/// The specification of an `mpsd` that only asks a job's daemons, `command_ms` for each command.
pub(super) fn to_ask(journal: &Journal, command_ms: u64) -> Spec {
    Spec {
        job: journal.job.as_str().to_owned(),
        uid: journal.uid,
        control: journal.control.clone(),
        nvml: journal.nvml.clone(),
        run: PathBuf::new(),
        daemons: journal.daemons.clone(),
        servers: journal.servers().map(|server| server.pid).collect(),
        start_ms: 0,
        command_ms,
        over_limit: MemoryOverLimit::Ignore,
        usage: false,
        most: ClientLimits::default(),
    }
}

/// The polite rung, by a process of the job's user: root does not talk to sockets that a user owns.
pub(super) fn ask_to_stop(node: &mut RealNode, journal: &Journal, deadline: Deadline) {
    let per_command = u64::try_from((deadline.remaining() / 3).as_millis()).unwrap_or(COMMAND_MS);
    let spec = to_ask(journal, per_command.min(COMMAND_MS));
    let spawn = with_spec(node, journal, &spec, &["--stop"]).ok();
    let Some(mut child) = spawn.and_then(|spawn| spawn.start(deadline).ok()) else {
        return;
    };
    if child.wait(deadline).is_none() {
        child.kill(Deadline::after_ms(200));
    }
}

impl RealNode {
    /// The suite's program `name`, to be run as the job's user: in a session of its own, in the job's cgroup, and confined. It has
    /// a group that the user's other processes lack, so they cannot debug it (ptrace(2), "Ptrace access mode checking").
    pub(super) fn as_user(&self, journal: &Journal, name: &str, groups: Vec<u32>) -> Result<Spawn, Failure> {
        let mut spawn = Spawn::new(&beside(name)?);
        let directory = |cgroup: Cgroup| {
            cgroup.directory().map_err(|e: FileError| {
                let evidence = unless_scarce(Evidence::Storage, e.errno());
                failure(evidence, "the job's cgroup", e.to_string())
            })
        };
        spawn.cgroup = self.cgroup_of(journal).map(directory).transpose()?;
        if journal.cgroup.is_some() && spawn.cgroup.is_none() {
            return Err(Undetermined::new("the job's cgroup", "it cannot be entered, or is gone").into());
        }
        spawn.confinement = Some(Confinement::of_user());
        let uid = journal.uid;
        let gid = match self.site.daemon_group {
            0 => journal.gid,
            own => own,
        };
        spawn.identity = Some(Identity { uid, gid, groups });
        spawn.session = true;
        Ok(spawn)
    }

    /// What `mpsd` with `args`, run as the job's user, answers in one line: the user could forge it.
    pub(crate) fn ask_mpsd(&self, journal: &Journal, args: &[&str], limit: Duration) -> Option<Vec<u8>> {
        let deadline = Deadline::after(limit);
        let daemons = u32::try_from(journal.daemons.len().max(1)).unwrap_or(u32::MAX);
        let each = (limit * 3 / 4 / daemons).as_millis();
        let spec = to_ask(journal, u64::try_from(each).unwrap_or(u64::MAX));
        let (report, theirs) = pipe2(OFlag::O_CLOEXEC).ok()?;
        let mut spawn = with_spec(self, journal, &spec, args).ok()?;
        spawn.inherit.push((theirs, REPORT_FD));
        let mut child = spawn.start(deadline).ok()?;
        let line = read_line(report.as_fd(), deadline, LONGEST_LINE).ok().flatten();
        child.kill(Deadline::after(Duration::from_millis(200)));
        line
    }
}

//! `mpsd` as root sees it: started as the job's user, heard, never believed.

use super::device_files;
use super::launch::with_spec;
use super::real::{RealNode, Started, groups_of};
use super::{failure, files, listed, looks, members as processes, unless_scarce};
use crate::job::journal::{Journal, ProcessRef, Programs};
use crate::job::node::{Console, Daemons, Gpus, Proved, Role, Severity};
use crate::job::spec::{OBSERVATIONS_FD, REPORT_FD, ReadyDaemon, Spec, StartReport, Unready};
use crate::sys::confine;
use crate::sys::deadline::Deadline;
use crate::sys::descriptors::read_line;
use crate::sys::files::{Dir, FileError, TmpfsSize};
use crate::sys::guard::detach;
use crate::sys::process::Process;
use mpsd_core::failure::{Evidence, Undetermined};
use mpsd_core::partitions::is_id;
use mpsd_core::paths::{KILLED, OBSERVATIONS, PARTITIONS, PARTITIONS_LOCK, TOLD};
use mpsd_core::record::Daemon;
use mpsd_core::text::{self, one_line};
use mpsd_core::trusted::open_trusted;
use mpsd_core::{Failure, Refusal};
use nix::fcntl::OFlag;
use nix::unistd::{Gid, Uid, fchown, pipe2};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for a process that was killed to go.
const KILL_MS: u64 = 2_000;
/// How long `mpsd` may take beyond its own time to say why it is not ready.
const REPORT_TIME: Duration = Duration::from_millis(500);
/// Longest report, bytes.
const LONGEST_REPORT: usize = 64 * 1024;
/// The file by which ranks take their partitions is empty, and its user's.
const PARTITIONS_ROOM: TmpfsSize = TmpfsSize {
    bytes: 64 << 10,
    files: 8,
};

impl Daemons for RealNode {
    fn check_control(&mut self, control: &Path) -> Result<(), Failure> {
        open_trusted(control).map(drop).map_err(|e| {
            let evidence = unless_scarce(Evidence::VendorProgram, e.errno());
            failure(evidence, "NVIDIA's MPS control daemon", e.to_string())
        })
    }

    fn programs(&mut self, control: &Path) -> Programs {
        Programs {
            mpsd: looks::file(&self.mpsd),
            control: looks::file(control),
            server: looks::server_beside(control).and_then(|path| looks::file(&path)),
        }
    }

    fn make_cgroup(&mut self, journal: &Journal) -> Result<Option<PathBuf>, Failure> {
        // Without one, processes are told by pid, start time and file; a line in the log is all that is lost.
        match listed::make_cgroup(&self.settings.paths, &self.cgroup, &journal.job.directory_name()) {
            Ok(path) => Ok(path),
            Err(why) => {
                let line = format!("job {}: no cgroup: {why}", journal.job);
                self.log(Severity::Info, &line);
                Ok(None)
            }
        }
    }

    fn remove_cgroup(&mut self, journal: &Journal) -> Result<(), Failure> {
        if journal.cgroup.is_some() && self.is_cgroup_kept(journal) {
            let why = "somebody keeps the lock of the directory above it";
            return Err(Undetermined::new("the job's cgroup stays", why).into());
        }
        let Some(cgroup) = self.cgroup_of(journal) else {
            return Ok(());
        };
        listed::remove_cgroup(&self.settings.paths, &cgroup)
            .map_err(|why| Undetermined::new("the job's cgroup stays", why).into())
    }

    fn start_daemon(&mut self, journal: &Journal, spec: &Spec) -> Result<ProcessRef, Failure> {
        let (report, theirs) =
            pipe2(OFlag::O_CLOEXEC).map_err(|e| Undetermined::new("no pipe to be had", e.desc()))?;
        device_files::of_unified_memory();
        let lacking = confine::lacking();
        if !lacking.is_empty() {
            let line = format!(
                "job {}: this kernel has no {}: processes are confined by less",
                journal.job,
                lacking.join(", ")
            );
            self.log(Severity::Info, &line);
        }
        if self.daemon_group != 0 && groups_of(journal).contains(&self.daemon_group) {
            let (job, user, group) = (&journal.job, text::user(&journal.user), self.daemon_group);
            let line = format!(
                "job {job}: {user} is in group {group}, the daemons' own (daemon_group), and can take over the job's daemons, which \
                 are outside of the job's limits: name a group in mpsd.toml that nobody is in"
            );
            self.log(Severity::Warning, &line);
        }
        let mut spawn = with_spec(self, journal, spec, &[])?;
        spawn.inherit.push((theirs, REPORT_FD));
        let directory = Dir::open(self.settings.paths.job(&journal.job).directory());
        if journal.daemons.iter().any(|daemon| !daemon.partitions.is_empty()) {
            let made = directory.as_ref().map_err(ToString::to_string);
            made.and_then(|directory| ranks_of(self, directory, journal))
                .map_err(|e| Undetermined::new("the lock of the ranks' static partitions", e))?;
        }
        // Without one the job has no account in its report, and that is all.
        let observations = directory.and_then(|dir| {
            dir.create_file(KILLED, 0o600)?;
            dir.create_file(TOLD, 0o600)?;
            dir.create_file(OBSERVATIONS, 0o600)
        });
        spawn
            .inherit
            .extend(observations.ok().map(|file| (file, OBSERVATIONS_FD)));
        // A user at the limit of their processes, or a full process table, proves nothing against the node.
        let mut child = spawn
            .start(Deadline::after_ms(spec.start_ms))
            .map_err(|e| Undetermined::new("the job's daemon", e.to_string()))?;
        let Some(process) = child.id() else {
            child.kill(Deadline::after_ms(KILL_MS));
            // It may have ended, or the look at it have found no memory or descriptor.
            return Err(Undetermined::new("mpsd", "'/proc' does not show it").into());
        };
        self.started = Some(Started { child, report });
        Ok(process)
    }

    fn await_ready(&mut self, journal: &Journal, spec: &Spec) -> Result<Proved, Failure> {
        let Some(mut started) = self.started.take() else {
            return Err(Undetermined::new("mpsd", "it was not started by this program").into());
        };
        let start = Duration::from_millis(spec.start_ms);
        let deadline = Deadline::after(start + REPORT_TIME.min(start / 8));
        let began = Instant::now();
        let report = hear(&started.report, deadline).ok_or_else(|| {
            let how = match started.child.try_wait() {
                Some(end) => format!("it ended without a report ({end})"),
                None if deadline.expired() => format!("no report within {} ms", began.elapsed().as_millis()),
                None => "its report cannot be read".to_owned(),
            };
            Undetermined::new("mpsd", how)
        })?;
        self.dismiss_nvml();
        let daemons = report.map_err(|why| match why {
            Unready::Failed(why) => {
                Failure::from(Undetermined::new("MPS did not start", one_line(&why, 300)))
            }
            Unready::Refused { what, why, allowed } => {
                let [what, why, allowed] = [what, why, allowed].map(|part| one_line(&part, 120));
                Refusal::new(what, why, allowed).into()
            }
        })?;
        Ok(check(self, journal, spec, daemons)?)
    }

    fn probe(&mut self, journal: &Journal, daemon: &Daemon, deadline: Deadline) -> Result<(), Failure> {
        super::probe::probe(self, journal, daemon, deadline)
    }

    fn end_starter(&mut self, starter: ProcessRef) {
        if starter.pid != nix::unistd::getpid().as_raw() {
            processes::end_own(starter);
        }
    }

    fn own_process(&self) -> Option<ProcessRef> {
        Process::find(nix::unistd::getpid().as_raw()).map(|process| process.id())
    }

    fn detach(&mut self, rest: impl FnOnce(&mut Self, Option<ProcessRef>)) -> bool {
        let work = || {
            let own = self.own_process();
            rest(self, own);
        };
        if detach(work).is_err() {
            return false;
        }
        // The other process uses the NVML worker and the daemon's report from now on.
        std::mem::forget((self.worker.take(), self.leaving.take(), self.started.take()));
        true
    }
}

fn hear(report: &OwnedFd, deadline: Deadline) -> Option<StartReport> {
    serde_json::from_slice(&read_line(report.as_fd(), deadline, LONGEST_REPORT).ok()??).ok()
}

fn check(
    node: &mut RealNode,
    journal: &Journal,
    spec: &Spec,
    daemons: Vec<ReadyDaemon>,
) -> Result<Proved, Undetermined> {
    let wrong = |why: String| Undetermined::new("mpsd's report does not hold", why);
    if daemons.len() != spec.daemons.len() {
        return Err(wrong(format!(
            "{} daemons reported, {} asked for",
            daemons.len(),
            spec.daemons.len()
        )));
    }
    let pids: Vec<i32> = daemons
        .iter()
        .flat_map(|daemon| [daemon.control, daemon.server])
        .collect();
    let by_file = processes::by_file(node, journal, &pids);
    let mut proved = Proved::default();
    for (daemon, asked) in daemons.into_iter().zip(&spec.daemons) {
        for (pid, role) in [(daemon.control, Role::Control), (daemon.server, Role::Server)] {
            let process = processes::prove(node, journal, pid, role, &by_file);
            let process = process.ok_or_else(|| wrong(format!("process {pid} is not this job's {role}")))?;
            proved.processes.push(process);
        }
        let ids = &daemon.partitions;
        if ids.len() != asked.partitions.len() || !ids.iter().all(|id| is_id(id)) {
            return Err(wrong("its partitions are not those asked for".to_owned()));
        }
        proved.partitions.push(daemon.partitions);
    }
    Ok(proved)
}

/// Makes what the job's ranks lock for their partitions: the user's, so that `mpsctl exec` can. Removed as the user's directories are.
fn ranks_of(node: &RealNode, directory: &Dir, journal: &Journal) -> Result<(), String> {
    let shown = |e: FileError| e.to_string();
    let path = directory.path().join(PARTITIONS);
    files::bounded(node, &journal.job, &path, PARTITIONS_ROOM, (0o711, (0, 0))).map_err(shown)?;
    let directory = directory.open_dir(PARTITIONS).map_err(shown)?;
    let file = directory.create_file(PARTITIONS_LOCK, 0o600).map_err(shown)?;
    let owner = (Uid::from_raw(journal.uid), Gid::from_raw(journal.gid));
    fchown(&file, Some(owner.0), Some(owner.1)).map_err(|e| format!("cannot give '{PARTITIONS}' away: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::launch::to_ask;
    use crate::sys::spawn::Spawn;
    use mpsd_core::config::Settings;

    /// Its user can stop it; only the rollback of a start gives the GPU back at once.
    #[test]
    fn a_daemon_that_says_nothing_is_waited_for_no_longer_than_its_start_may_take() {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let recorded = include_str!("../job/recorded/journal-1.json");
            let journal: Journal = serde_json::from_str(recorded).unwrap();
            let limit = Duration::from_secs(60);
            let mut node = RealNode::new("test", &Settings::usual(), limit, limit);
            let (report, theirs) = pipe2(OFlag::O_CLOEXEC).unwrap();
            let mut silent = Spawn::new(Path::new("/bin/sleep"));
            silent.args = vec!["60".into()];
            let child = silent.start(Deadline::after_ms(20_000)).unwrap();
            let silent = child.id().unwrap();
            node.started = Some(Started { child, report });
            let spec = Spec {
                start_ms: 200,
                ..to_ask(&journal, 1)
            };
            let failed = node.await_ready(&journal, &spec).err();
            drop(theirs);
            processes::end_own(silent);
            tell.send(failed.map(|failure| failure.to_string()))
        });
        let failed = told.recv_timeout(Duration::from_secs(20)).expect("an answer");
        let failed = failed.expect("it said nothing");
        assert!(failed.contains("no report within "), "{failed}");
    }
}

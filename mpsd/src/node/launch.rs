//! `mpsd`, run as the job's user. Root starts it and reads its word, and believes none of it.

use super::as_user::with_spec;
use super::members as processes;
use super::real::{RealNode, Started};
use super::worker::make_device;
use super::{failure, site_directory, unless_scarce};
use crate::job::Journal;
use crate::job::journal::{ProcessRef, Programs};
use crate::job::node::{Console, Daemons, Role, Severity};
use crate::job::spec::{OBSERVATIONS_FD, REPORT_FD, ReadyDaemon, Spec, StartReport};
use crate::job::store::Store as _;
use batch::gpu_host::unless_no_gpu_host;
use mpsd_core::Failure;
use mpsd_core::failure::{Evidence, Undetermined};
use mpsd_core::paths::{KILLED, OBSERVATIONS, TOLD};
use mpsd_core::text::{self, one_line};
use mpsd_core::trusted::open_trusted;
use mpsd_sys::Exit;
use mpsd_sys::confine;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::descriptors::read_line;
use mpsd_sys::files::Dir;
use mpsd_sys::guard::detach;
use mpsd_sys::process::Process;
use mpsd_sys::spawn::Identity;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const KILL_MS: u64 = 2_000;
/// How much longer than its start `mpsd` may take to say why it is not ready.
const REPORT_TIME: Duration = Duration::from_millis(500);
const LONGEST_REPORT: usize = 64 * 1024;

impl Daemons for RealNode {
    fn check_control(&mut self, control: &Path) -> Result<(), Failure> {
        open_trusted(control).map(drop).map_err(|e| {
            let evidence = unless_scarce(Evidence::VendorProgram, e.errno());
            let failed = failure(evidence, "NVIDIA's MPS control daemon", e.to_string());
            unless_no_gpu_host(failed, &self.in_force.nvml)
        })
    }

    fn programs(&mut self, control: &Path) -> Programs {
        Programs {
            mpsd: processes::file(&self.mpsd),
            control: processes::file(control),
            server: processes::server_beside(control).and_then(|path| processes::file(&path)),
        }
    }

    fn make_cgroup(&mut self, journal: &Journal) -> Result<Option<PathBuf>, Failure> {
        let name = journal.job().directory_name();
        let made = site_directory::make_cgroup(&self.settings.paths, &self.in_force.cgroup, &name);
        if made.is_ok() {
            // The directory was reached. A second look could wait too long for our own lock, which
            // other jobs hold.
            let _ = self.cgroups_kept.set(false);
        }
        // Without a cgroup, processes are identified by pid, start time and file.
        Ok(made.unwrap_or_else(|why| {
            let line = format!("job {}: no cgroup: {why}", journal.job());
            self.log(Severity::Info, &line);
            None
        }))
    }

    fn remove_cgroup(&mut self, journal: &Journal) -> Result<(), Failure> {
        let stays = |why| Undetermined::new("the job's cgroup stays", why).into();
        if journal.cgroup.is_some() && self.is_cgroup_kept(journal) {
            let why = "a process keeps the lock of the directory above it";
            return Err(stays(why.to_owned()));
        }
        match self.cgroup_of(journal) {
            Some(cgroup) => {
                site_directory::remove_cgroup(&self.settings.paths, &cgroup).map_err(stays)
            }
            None => Ok(()),
        }
    }

    fn start_supervisor(&mut self, journal: &Journal, spec: &Spec) -> Result<ProcessRef, Failure> {
        let (report, theirs) = UnixStream::pair()
            .map_err(|e| Undetermined::new("no socket to be had", e.to_string()))?;
        make_device("/dev/nvidia-uvm", &["-u", "-c", "0"]);
        let (job, user, group) = (
            journal.job(),
            text::user(&journal.user),
            self.in_force.daemon_group,
        );
        let lacking = confine::lacking();
        if !lacking.is_empty() {
            let lacking = lacking.join(", ");
            let line =
                format!("job {job}: this kernel has no {lacking}: processes are confined by less");
            self.log(Severity::Info, &line);
        }
        let mut spawn = with_spec(self, journal, spec, &[])?;
        // `spawn` has the groups already, which spares the directory service.
        let is_in_group = |identity: &Identity| identity.groups.contains(&group);
        if group != 0 && spawn.identity.as_ref().is_some_and(is_in_group) {
            let line = format!(
                "job {job}: {user} is in group {group}, the daemons' own (daemon_group), and can take over the job's daemons, which \
                 are outside of the job's limits: name a group without members in mpsd.toml"
            );
            self.log(Severity::Warning, &line);
        }
        spawn.inherit.push((theirs.into(), REPORT_FD));
        let directory = Dir::open(self.job_files(job).directory());
        // Without these files the job's report lacks what its `mpsd` saw, no more.
        let observations = directory.and_then(|dir| {
            dir.create_file(KILLED, 0o600)?;
            dir.create_file(TOLD, 0o600)?;
            dir.create_file(OBSERVATIONS, 0o600)
        });
        let observations = observations.ok().map(|file| (file, OBSERVATIONS_FD));
        spawn.inherit.extend(observations);
        // A user at the limit of processes proves nothing against the node.
        let mut child = spawn
            .start(Deadline::after_ms(spec.start_ms))
            .map_err(|e| Undetermined::new("the job's mpsd", e.to_string()))?;
        if let Some(why) = child.unhidden() {
            let line = format!(
                "job {job}: its daemons see every GPU of the node, which makes a start slower: no mount namespace: {why}"
            );
            self.log(Severity::Info, &line);
        }
        let Some(process) = child.id() else {
            child.kill(Deadline::after_ms(KILL_MS));
            // It may have ended, or this look had no memory or descriptor left.
            return Err(Undetermined::new("mpsd", "'/proc' does not show it").into());
        };
        self.started = Some(Started { child, report });
        Ok(process)
    }

    fn await_ready(&mut self, journal: &Journal, spec: &Spec) -> Result<Vec<ProcessRef>, Failure> {
        let Some(mut started) = self.started.take() else {
            return Err(Undetermined::new("mpsd", "it was not started by this program").into());
        };
        let start = Duration::from_millis(spec.start_ms);
        let deadline = Deadline::after(start + REPORT_TIME.min(start / 8));
        let began = Instant::now();
        let report = hear(&started.report, deadline).ok_or_else(|| {
            let is_gone = |process: ProcessRef| process.open().is_none();
            // After `detach` this is not its parent, and its exit code is lost.
            let end = started.child.try_wait();
            let how = match end.filter(|end| *end != Exit::Code(u8::MAX)) {
                Some(end) => format!("it ended without a report ({end})"),
                None if journal.supervisor.is_some_and(is_gone) => {
                    "it ended without a report".to_owned()
                }
                None if deadline.expired() => {
                    format!("no report within {} ms", began.elapsed().as_millis())
                }
                None => "its report cannot be read".to_owned(),
            };
            Undetermined::new("mpsd", how)
        })?;
        let daemons =
            report.map_err(|why| Undetermined::new("MPS did not start", one_line(&why, 300)))?;
        check(self, journal, spec, daemons)
            .map_err(|why| Undetermined::new("mpsd's report does not hold", why).into())
    }

    fn end_starter(&mut self, starter: ProcessRef) {
        if starter.pid != nix::unistd::getpid().as_raw() {
            processes::end_own(starter);
        }
    }

    fn own_process(&self) -> Option<ProcessRef> {
        Process::find(nix::unistd::getpid().as_raw()).map(|process| process.id())
    }

    fn detach(&mut self, rest: impl FnOnce(&mut Self)) -> bool {
        let alone = || {
            // The worker ends with the process that started it.
            self.worker = None;
            rest(self);
        };
        if detach(alone).is_err() {
            return false;
        }
        // The other process has the report from now on. A drop of the worker would wait for its
        // end.
        std::mem::forget((self.worker.take(), self.started.take()));
        true
    }
}

fn hear(report: &UnixStream, deadline: Deadline) -> Option<StartReport> {
    serde_json::from_slice(&read_line(report.as_fd(), deadline, LONGEST_REPORT).ok()??).ok()
}

fn check(
    node: &RealNode,
    journal: &Journal,
    spec: &Spec,
    daemons: Vec<ReadyDaemon>,
) -> Result<Vec<ProcessRef>, String> {
    let (reported, planned) = (daemons.len(), spec.daemons.len());
    if reported != planned {
        return Err(format!("{reported} daemons reported, {planned} asked for"));
    }
    let both = |daemon: ReadyDaemon| {
        [
            (daemon.control, Role::Control),
            (daemon.server, Role::Server),
        ]
    };
    let reported: Vec<_> = daemons.into_iter().flat_map(both).collect();
    let by_file = processes::by_file(node, journal, reported.iter().map(|(pid, _)| *pid));
    let prove = |(pid, role)| {
        let process = processes::prove(node, journal, pid, role, &by_file);
        process.ok_or_else(|| format!("process {pid} is not this job's {role}"))
    };
    reported.into_iter().map(prove).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::outcome;
    use crate::node::testing::{self, journal};
    use mpsd_core::config::Cgroup as CgroupRule;
    use mpsd_sys::cgroup::Cgroup;
    use mpsd_sys::spawn::Spawn;
    use mpsd_sys::testing::{STRANGER, alone};
    use std::os::unix::fs::PermissionsExt;

    fn node() -> (tempfile::TempDir, RealNode) {
        let dir = tempfile::tempdir().unwrap();
        let node = testing::node(dir.path(), Duration::from_secs(60));
        (dir, node)
    }

    #[test]
    fn a_cgroup_is_reached_while_other_jobs_change_the_sites_directory() {
        let _alone = alone();
        let sites = Cgroup::create(&(Cgroup::passing() + "sites")).unwrap();
        let sites = sites.expect("this machine has no cgroup hierarchy to test with");
        // Of the name of our own.
        let base = sites.path().join("mpsd");
        std::fs::create_dir(&base).unwrap();
        std::fs::set_permissions(&base, PermissionsExt::from_mode(0o755)).unwrap();
        let ((dir, mut node), mut journal) = (node(), journal());
        node.in_force.cgroup = CgroupRule::Below(base.clone());
        journal.cgroup = node.make_cgroup(&journal).unwrap();
        assert_eq!(journal.cgroup, Some(base.join("10.srv")));
        let other = Dir::open(dir.path()).unwrap();
        let lock = other.lock(site_directory::lock_of(&base), Deadline::after_ms(500));
        let reached = node.cgroup_of(&journal);
        drop(lock.unwrap());
        assert!(reached.is_some());
        node.remove_cgroup(&journal).unwrap();
        assert!(!base.join("10.srv").exists());
        // It is the site's, and stays.
        std::fs::remove_dir(&base).unwrap();
        assert!(sites.remove().unwrap());
    }

    #[test]
    fn a_record_that_cannot_be_written_costs_no_journal() {
        for is_journaled in [false, true] {
            let ((_dir, mut node), journal) = (node(), journal());
            let id = journal.job().clone();
            drop(node.open_job(&id).unwrap());
            if is_journaled {
                node.write_journal(&journal).unwrap();
            }
            // No file can take its place.
            let record = node.settings.paths.job(&id).record();
            std::fs::create_dir_all(record.join("x")).unwrap();
            let failure = Undetermined::new("a start", "it failed").into();
            outcome::record_without_mps(&mut node, &id, 1, &failure);
            assert_eq!(node.has_directory(&id), is_journaled);
            let left = node.read_journal(&id).unwrap();
            assert_eq!(left.is_some(), is_journaled);
        }
    }

    /// Only the rollback of the start gives the GPU back at once.
    #[test]
    fn a_daemon_that_says_nothing_is_waited_for_no_longer_than_its_start_may_take() {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let (mut journal, (_dir, mut node)) = (journal(), node());
            let (report, theirs) = UnixStream::pair().unwrap();
            let mut silent = Spawn::new(Path::new("/bin/sleep"));
            silent.args = vec!["60".into()];
            let child = silent.start(Deadline::after_ms(20_000)).unwrap();
            let silent = child.id().unwrap();
            journal.supervisor = Some(silent);
            node.started = Some(Started { child, report });
            let spec = Spec {
                start_ms: 200,
                ..Spec::to_ask(&journal, 1)
            };
            let failed = node.await_ready(&journal, &spec).err();
            drop(theirs);
            processes::end_own(silent);
            tell.send(failed.map(|failure| failure.to_string()))
        });
        let failed = told.recv_timeout(Duration::from_secs(20)).unwrap();
        let failed = failed.expect("it said nothing");
        assert!(failed.contains("no report within "), "{failed}");
    }

    #[test]
    fn nothing_of_a_job_runs_outside_of_the_cgroup_that_was_made_for_it() {
        let (mut journal, (_dir, node)) = (journal(), node());
        let starts = |journal: &Journal| with_spec(&node, journal, &Spec::to_ask(journal, 1), &[]);
        journal.cgroup = Some("/sys/fs/cgroup/gone".into());
        assert!(matches!(starts(&journal), Err(Failure::Undetermined(_))));
    }

    #[test]
    fn what_only_talks_to_the_daemons_has_the_groups_of_the_jobs_mpsd_and_asks_nobody_for_them() {
        let (mut journal, (_dir, node)) = (journal(), node());
        journal.cgroup = None;
        (journal.user, journal.gid) = ("root".to_owned(), 0);
        let groups = |journal: &Journal, args| {
            let spawn = with_spec(&node, journal, &Spec::to_ask(journal, 1), args).unwrap();
            spawn.identity.unwrap().groups
        };
        // From the directory, and the journal's own.
        let all = groups(&journal, &[]);
        assert_eq!(all.iter().filter(|gid| **gid == 0).count(), 2);
        let mut sleeper = Spawn::new("/bin/sleep");
        sleeper.args = vec!["60".into()];
        sleeper.identity = Some(Identity {
            uid: STRANGER,
            gid: STRANGER,
            groups: vec![STRANGER + 1, STRANGER + 2],
        });
        let mut sleeper = sleeper.start(Deadline::after_ms(20_000)).unwrap();
        journal.supervisor = sleeper.id();
        let has = groups(&journal, &["--stop"]);
        assert!([1, 2].iter().all(|more| has.contains(&(STRANGER + more))));
        assert!(!has.contains(&0), "{has:?}");
        sleeper.kill(Deadline::after_ms(20_000));
        assert_eq!(groups(&journal, &["--stop"]), [0]);
    }
}

//! A shared MPS comes back if one of its jobs told it to quit: the other jobs did not ask for that.
//!
//! NVIDIA's daemon serves its clients to their end before it quits, and refuses new ones meanwhile
//! (805). So another daemon begins at once, in the same directory, and takes over the sockets.

use super::events::Events;
use super::logs::Tail;
use super::observer::Observer;
use super::start::{self, Running};
use crate::job::spec::Spec;
use crate::node::controls::LONGEST_NAME;
use crate::node::tasks::cgroup_name;
use mpsd_core::observations::{DaemonLost, keep};
use mpsd_core::record::{self, Daemon};
use mpsd_core::{JobId, text};
use mpsd_sys::deadline::Deadline;
use mpsd_sys::process::ProcessTable;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A serving daemon holds it (docs/facts/mps-control.md#starting).
const LOCK: &str = "control_lock";
/// What a daemon removes at its end, though another one may have made it anew.
const REMOVED: [&str; 2] = ["log", "nvidia-cuda-mps-control.pid"];

#[derive(Debug)]
struct Successor {
    daemon: Running,
    end: Deadline,
    /// The earlier daemon, and who told it to quit.
    before: i32,
    by: String,
    /// It must not be asked: it may still answer for the earlier daemon.
    earlier: Option<SocketFile>,
}

#[derive(Debug, Default)]
pub struct Comeback {
    leaving: Vec<Running>,
    coming: Vec<Successor>,
    /// They failed beside the earlier daemon; they begin after its end.
    waiting: Vec<(Daemon, i32, String)>,
    /// A daemon that begins must be asked again without an event.
    again: bool,
}

impl Comeback {
    pub fn is_busy(&self) -> bool {
        !self.coming.is_empty() || !self.waiting.is_empty()
    }

    pub fn period(&self) -> Option<Duration> {
        let ends = self.coming.iter().map(|next| next.end.remaining());
        ends.chain(self.again.then_some(start::RETRY)).min()
    }

    /// Begins a successor if jobs share the MPS: root empties their list before it ends that.
    pub fn begin(
        &mut self,
        told: i32,
        spec: &Spec,
        running: &mut Vec<Running>,
        events: &mut Events,
        observer: &mut Observer,
    ) {
        let sharers = spec.sharers();
        let Some(at) = running.iter().position(|daemon| daemon.child.pid() == told) else {
            return;
        };
        if sharers.is_empty() {
            return;
        }
        let by = quitter(spec).map_or_else(
            || format!("a program of one of its jobs ({})", list(&sharers)),
            |job| format!("job {job}"),
        );
        let leaving = running.remove(at);
        let daemon = leaving.daemon.clone();
        // A start refuses a directory whose lock is held.
        let _ = std::fs::remove_file(daemon.pipe.join(LOCK));
        let _ = Tail::set_aside(&daemon.log);
        self.leaving.push(leaving);
        self.spawn(&daemon, (told, by), spec, events, observer);
    }

    fn spawn(
        &mut self,
        daemon: &Daemon,
        (before, by): (i32, String),
        spec: &Spec,
        events: &mut Events,
        observer: &mut Observer,
    ) {
        let end = Deadline::after_ms(spec.start_ms);
        let earlier = SocketFile::of(&daemon.pipe);
        match start::spawn(spec, daemon, events) {
            Ok(daemon) => self.coming.push(Successor {
                earlier,
                daemon,
                end,
                before,
                by,
            }),
            Err(why) => lost(before, &by, &why, observer),
        }
    }

    /// A daemon that is ready joins `running`.
    pub fn go_on(
        &mut self,
        spec: &Spec,
        running: &mut Vec<Running>,
        events: &mut Events,
        observer: &mut Observer,
    ) {
        self.again = false;
        for mut next in std::mem::take(&mut self.coming) {
            keep_names(&next.daemon.daemon.pipe);
            let listens = SocketFile::of(&next.daemon.daemon.pipe) != next.earlier;
            match start::advance(spec, &mut next.daemon, listens, next.end) {
                Err(why) => self.failed(next, &why, observer),
                Ok(_) if next.daemon.server.is_some() => {
                    back(spec, &next, observer);
                    events.forget(&mut next.daemon.watches.socket);
                    running.push(next.daemon);
                }
                Ok(_) if next.end.expired() => {
                    let why = format!("not ready after {} ms", spec.start_ms);
                    self.failed(next, &why, observer);
                }
                Ok(again) => {
                    self.again |= again;
                    self.coming.push(next);
                }
            }
        }
        let is_gone = |daemon: &mut Running| daemon.child.try_wait().is_some();
        let gone: Vec<_> = self.leaving.extract_if(.., is_gone).collect();
        for daemon in gone {
            observer.forget(daemon.child.pid());
            restore_names(&daemon.daemon.pipe);
            for (daemon, before, by) in std::mem::take(&mut self.waiting) {
                self.spawn(&daemon, (before, by), spec, events, observer);
            }
        }
    }

    /// The earlier daemon may have kept it from the directory.
    fn failed(&mut self, mut next: Successor, why: &str, observer: &mut Observer) {
        start::end(&mut next.daemon);
        observer.forget(next.daemon.child.pid());
        let is_there = |daemon: &Running| daemon.child.pid() == next.before;
        match self.leaving.iter().any(is_there) {
            true => self
                .waiting
                .push((next.daemon.daemon, next.before, next.by)),
            false => lost(next.before, &next.by, why, observer),
        }
    }

    pub fn end(&mut self) {
        let coming = self.coming.iter_mut().map(|next| &mut next.daemon);
        self.leaving.iter_mut().chain(coming).for_each(start::end);
    }

    /// They still write into their logs.
    pub fn leaving(&mut self) -> impl Iterator<Item = &mut Running> {
        self.leaving.iter_mut()
    }
}

/// A control daemon's socket, by its inode, which another one may get, and when it was made.
#[derive(Debug, PartialEq, Eq)]
struct SocketFile(u64, i64, i64);

impl SocketFile {
    fn of(pipe: &Path) -> Option<Self> {
        let about = pipe.join("control").symlink_metadata().ok()?;
        Some(Self(about.ino(), about.ctime(), about.ctime_nsec()))
    }
}

/// Says who told the earlier daemon to quit, to all jobs that share the MPS.
fn back(spec: &Spec, next: &Successor, observer: &mut Observer) {
    let (by, pid, before) = (&next.by, next.daemon.child.pid(), next.before);
    let how = format!("told to quit; {pid} took its place");
    let lost = DaemonLost { pid: before, how };
    keep(&mut observer.all.daemons_lost, lost);
    observer.say(&format!(
        "{by} told control daemon {before} to quit, which jobs {} share: control daemon {pid} has taken its place, with the \
         same limits. Programs that started meanwhile may have got error 805. Remove 'quit' from the script: mpsd ends the MPS",
        list(&spec.sharers())
    ));
}

fn lost(before: i32, by: &str, why: &str, observer: &mut Observer) {
    let how = "told to quit".to_owned();
    let lost = DaemonLost { pid: before, how };
    keep(&mut observer.all.daemons_lost, lost);
    observer.say(&format!(
        "{by} told control daemon {before} to quit, and no other one could take its place: {why}; from now on new steps and \
         'mpsctl exec' are refused, and other programs run without MPS"
    ));
}

fn list(jobs: &BTreeSet<JobId>) -> String {
    let jobs: Vec<&str> = jobs.iter().map(JobId::as_str).collect();
    text::one_line(&jobs.join(", "), 120)
}

/// A program that tells a daemon to quit waits for its end. Its cgroup tells the job.
fn quitter(spec: &Spec) -> Option<JobId> {
    let name = spec.control.file_name()?.as_bytes();
    let name = OsStr::from_bytes(name.get(..LONGEST_NAME).unwrap_or(name));
    let table = ProcessTable::scan()?;
    let own = table.descendants(std::process::id().cast_signed());
    let is_own = |pid: i32| own.iter().any(|entry| entry.stat.id.pid == pid);
    let others = table.of_user(spec.uid).map(|entry| &entry.stat);
    let others = others.filter(|stat| stat.name == name && !is_own(stat.id.pid));
    let paths = spec.paths();
    let record = |job: &JobId| paths.job(job).record();
    let by_sluid = |sluid: &str| record::by_sluid(record, spec.sharers(), sluid);
    let jobs = others.filter_map(|stat| cgroup_name(&stat.id.open()?)?.job(&by_sluid));
    let jobs: BTreeSet<JobId> = jobs.collect();
    jobs.first().filter(|_| jobs.len() == 1).cloned()
}

/// Gives each file that an ending daemon removes a second name while another daemon uses it.
fn keep_names(pipe: &Path) {
    let inode = |path: &Path| path.symlink_metadata().map(|about| about.ino()).ok();
    for (name, kept) in names(pipe).filter(|(name, kept)| inode(name) != inode(kept)) {
        let _ = std::fs::remove_file(&kept);
        let _ = std::fs::hard_link(name, kept);
    }
}

fn restore_names(pipe: &Path) {
    for (name, kept) in names(pipe) {
        // Fails if the name is there.
        let _ = std::fs::hard_link(kept, name);
    }
}

fn names(pipe: &Path) -> impl Iterator<Item = (PathBuf, PathBuf)> {
    REMOVED
        .into_iter()
        .map(|name| (pipe.join(name), pipe.join(format!(".{name}"))))
}

//! Takes down a job that does not begin here after all, on a node that may get no epilogue for it.

use super::log;
use super::real::RealNode;
use crate::job::node::{Daemons as _, Severity};
use crate::job::store::Store as _;
use crate::job::{self, Ending, Journal};
use batch::Location;
use batch::control::JobState;
use mpsd_core::JobId;
use mpsd_sys::deadline::Deadline;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// Time between two checks; it grows while the scheduler has to be asked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_SELDOM: Duration = Duration::from_secs(30);

/// Takes `job` down as soon as the scheduler no longer has it. Gives up after `limit`.
pub fn take_down(program: &'static str, job: &JobId, ending: &Ending<'_>, limit: Duration) {
    let (settings, end) = (ending.settings, Deadline::after(limit));
    let mut node = RealNode::new(program, settings, limit, settings.deadline);
    let Some(journal) = enter_as_starter(&mut node, job) else {
        return;
    };
    let directory = settings.paths.job(job);
    let scheduler = batch::of(ending.scheduler).at(&Location::of(settings));
    let known = scheduler.known_jobs(ending.node);
    let mut pause = LOOK_EVERY;
    while stays(directory.directory(), end.within(pause)) && !end.expired() {
        if node.read_journal(job).ok().flatten().as_ref() != Some(&journal) {
            return;
        }
        if scheduler.has_file_of(job) {
            pause = LOOK_EVERY;
        } else if let JobState::Gone(why) = known(job) {
            let text = format!("job {job}: did not begin here ({why}): taken down");
            log::line(program, Severity::Info, &text);
            let limit = settings.deadline;
            let mut node = RealNode::new(program, settings, limit, limit / 2);
            let is_this = |found: Option<&Journal>| found == Some(&journal);
            job::end_if(&mut node, job, ending, is_this);
            return;
        } else {
            pause = (2 * pause).min(LOOK_SELDOM);
        }
    }
}

/// Enters this process into the journal, so that the job's end ends it. Returns the journal.
fn enter_as_starter(node: &mut RealNode, job: &JobId) -> Option<Journal> {
    let _held = node.find_job(job).ok()??;
    let mut journal = node.read_journal(job).ok()??;
    journal.starter = node.own_process();
    node.write_journal(&journal).ok()?;
    Some(journal)
}

fn stays(directory: &Path, deadline: Deadline) -> bool {
    let watch = || -> nix::Result<Inotify> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        inotify.add_watch(directory, AddWatchFlags::IN_DELETE_SELF)?;
        Ok(inotify)
    };
    match watch() {
        Ok(inotify) => {
            let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, deadline.poll_timeout());
        }
        Err(_) => drop(deadline.sleep(LOOK_EVERY)),
    }
    directory.symlink_metadata().is_ok()
}

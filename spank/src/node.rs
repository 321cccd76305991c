//! This node's files, as [`Node`].

use crate::handle::{Ended, Node, Program};
use mpsd_core::JobId;
use mpsd_core::config::{Config, Settings};
use mpsd_core::record::{self, Look, Record, Step, Waiting};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a change may stay unseen if the kernel does not tell (no inotify instance left for this user).
const LOOK: Duration = Duration::from_millis(250);

/// The real node.
pub struct ThisNode;

impl Node for ThisNode {
    fn settings(&self, path: &Path, name: Option<&str>) -> Result<Settings, String> {
        let config = Config::load(path).map_err(|e| e.to_string())?;
        // No GPU's product is known here, and nothing that we need may depend on it.
        config.for_node(&node_name(name), &[]).map_err(|e| e.to_string())
    }

    fn run(&self, program: &Program) -> Ended {
        crate::sys::run(program)
    }

    fn has_directories(&self, jobs: &Path, job: &JobId) -> bool {
        let Ok(entries) = std::fs::read_dir(jobs) else {
            return false;
        };
        let name = job.directory_name();
        // By name: that of a step's directory is its id, which is short.
        entries.flatten().any(|entry| {
            let found = entry.file_name();
            let Some(found) = found.to_str() else { return false };
            found == name || JobId::parse(found).is_ok_and(|id| id.belongs_to(job))
        })
    }

    fn record(&self, path: &Path) -> Result<Option<Record>, String> {
        match record::look(path)? {
            Look::Found(record) => Ok(Some(*record)),
            Look::Absent => Ok(None),
            Look::Denied(why) => Err(why),
        }
    }

    fn leave_record(&self, path: &Path, record: &Record) -> Result<(), String> {
        let failed = |what: &str, e: std::io::Error| format!("cannot {what} '{}': {e}", path.display());
        let text = record.to_text()?;
        if let Some(directory) = path.parent() {
            // Every directory on the way is root's, or mps-prologue and the tasks would not trust it either.
            let mut builder = std::fs::DirBuilder::new();
            builder
                .recursive(true)
                .mode(0o711)
                .create(directory)
                .map_err(|e| failed("make the directory of", e))?;
        }
        let new = path.with_extension("new");
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .custom_flags(OFlag::O_NOFOLLOW.bits());
        let written = options.open(&new).and_then(|mut file| {
            // Slurm's umask is not ours to know.
            file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
            file.write_all(text.as_bytes())
        });
        written
            .and_then(|()| std::fs::rename(&new, path))
            .map_err(|e| failed("write", e))
    }

    fn settled_record(&self, path: &Path, deadline: Duration) -> Result<Option<Record>, String> {
        let begin = Instant::now();
        let mut waiting = Waiting::new(deadline);
        loop {
            // Watched before it is read, so that no change falls between.
            let watch = watch(path);
            match waiting.step(record::look(path)?, begin.elapsed()) {
                Step::Without => return Ok(None),
                Step::Settled(record) => return Ok(Some(*record)),
                Step::Denied(why) => return Err(why),
                Step::Wait(left) => wait(watch.as_ref(), left),
            }
        }
    }
}

/// Slurm's name of this node, else the host's.
fn node_name(name: Option<&str>) -> String {
    let host = || nix::unistd::gethostname().ok()?.into_string().ok();
    name.map(str::to_owned).or_else(host).unwrap_or_default()
}

/// A watch on the file itself: it is replaced by rename, which takes the old one's last name. Its directory cannot be
/// watched, since the user may pass it (0711) but not read it.
fn watch(path: &Path) -> Option<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok()?;
    let flags = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_CLOSE_WRITE;
    inotify.add_watch(path, flags).ok()?;
    Some(inotify)
}

fn wait(watch: Option<&Inotify>, left: Duration) {
    let limit = left.min(LOOK);
    let Some(watch) = watch else {
        return std::thread::sleep(limit.min(LOOK / 10));
    };
    let mut fds = [PollFd::new(watch.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO);
    let _ = poll(&mut fds, timeout);
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::record::State;
    use std::sync::mpsc;

    /// A job's directory of the test's own, removed at the end.
    struct Place(std::path::PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let place = std::env::temp_dir().join(format!("spank-node-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&place).unwrap();
            Self(place)
        }

        fn record(&self) -> std::path::PathBuf {
            self.0.join("4711/record")
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn record(state: State) -> Record {
        let mut record = Record::closed(JobId::parse("4711").unwrap(), 1000, state, "why".into());
        record.deadline_s = 20;
        record
    }

    /// Whether the tests run as root, as CI does; a record of another owner is not read.
    fn is_root() -> bool {
        nix::unistd::geteuid().is_root()
    }

    #[test]
    fn a_record_that_others_could_have_written_is_not_read() {
        let place = Place::new("foreign");
        ThisNode
            .leave_record(&place.record(), &record(State::Ready))
            .unwrap();
        std::fs::set_permissions(place.record(), std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(
            ThisNode
                .record(&place.record())
                .unwrap_err()
                .contains("may be written by group or others")
        );
        std::fs::remove_file(place.record()).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", place.record()).unwrap();
        assert!(ThisNode.record(&place.record()).is_err());
        assert_eq!(ThisNode.record(&place.0.join("none/record")), Ok(None));
    }

    #[test]
    fn a_task_is_told_at_once_when_the_start_settles_even_by_way_of_nothing() {
        assert!(is_root(), "run as root, as CI does");
        for gap in [false, true] {
            let place = Place::new(if gap { "gap" } else { "settles" });
            let path = place.record();
            ThisNode.leave_record(&path, &record(State::Starting)).unwrap();
            let (tell, told) = mpsc::channel();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    tell.send(ThisNode.settled_record(&path, Duration::from_secs(20)))
                        .unwrap()
                });
                assert!(
                    told.recv_timeout(Duration::from_millis(100)).is_err(),
                    "it waits while starting"
                );
                if gap {
                    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
                    assert!(
                        told.recv_timeout(Duration::from_millis(100)).is_err(),
                        "it waits for what follows"
                    );
                }
                let begin = Instant::now();
                ThisNode.leave_record(&path, &record(State::Failed)).unwrap();
                let settled = told.recv_timeout(Duration::from_secs(5)).unwrap().unwrap();
                assert_eq!(settled.map(|r| r.state), Some(State::Failed));
                assert!(
                    gap || begin.elapsed() < LOOK,
                    "the kernel tells, nobody asks: {:?}",
                    begin.elapsed()
                );
            });
        }
    }

    #[test]
    fn a_start_that_never_settles_is_given_up_at_the_records_own_deadline() {
        assert!(is_root(), "run as root, as CI does");
        let place = Place::new("never");
        let mut never = record(State::Starting);
        never.deadline_s = 1;
        ThisNode.leave_record(&place.record(), &never).unwrap();
        let begin = Instant::now();
        let given_up = ThisNode
            .settled_record(&place.record(), Duration::from_secs(60))
            .unwrap();
        assert_eq!(given_up.map(|r| r.state), Some(State::Starting));
        assert!((Duration::from_secs(1)..Duration::from_secs(3)).contains(&begin.elapsed()));
    }

    #[test]
    fn a_steps_directory_counts_as_its_jobs() {
        let place = Place::new("steps");
        let job = JobId::parse("47").unwrap();
        for (name, counts) in [("471", false), (".47.lock", false), ("47.0", true)] {
            std::fs::create_dir(place.0.join(name)).unwrap();
            assert_eq!(ThisNode.has_directories(&place.0, &job), counts, "{name}");
        }
        assert!(!ThisNode.has_directories(&place.0.join("none"), &job));
    }
}

//! This node's files, as [`Node`].

use crate::handle::{Automatic, Ended, Node, Program, Settings};
use mpsd::config::{self, Config, Wait};
use mpsd::model::JobId;
use mpsd::model::record::{LONGEST, Record, State};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
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
        config
            .for_node(&node_name(name), &[])
            .map(ours)
            .map_err(|e| e.to_string())
    }

    fn usual(&self, name: Option<&str>) -> Settings {
        ours(config::Settings::usual(&node_name(name)))
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
        match open(path) {
            Ok(file) => read(path, file).map(Some),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(format!("cannot open '{}': {e}", path.display())),
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
        loop {
            // Watched before it is read, so that no change falls between.
            let watch = watch(path);
            let record = match self.record(path)? {
                Some(record) if record.state == State::Starting => record,
                settled => return Ok(settled),
            };
            let own = Duration::from_secs(u64::from(record.deadline_s));
            let limit = if own.is_zero() { deadline } else { own };
            let Some(left) = limit.checked_sub(begin.elapsed()) else {
                return Ok(Some(record));
            };
            wait(watch.as_ref(), left);
        }
    }
}

/// Slurm's name of this node, else the host's.
fn node_name(name: Option<&str>) -> String {
    let host = || nix::unistd::gethostname().ok()?.into_string().ok();
    name.map(str::to_owned).or_else(host).unwrap_or_default()
}

fn ours(settings: config::Settings) -> Settings {
    Settings {
        paths: settings.paths,
        deadline: settings.deadline,
        wait_in_task: settings.slurm.wait == Wait::Task,
        drains: settings.drain.enabled,
        automatic: Automatic {
            gres: settings.slurm.auto_gres,
            constraint: settings.slurm.auto_constraint,
            partitions: settings.slurm.auto_partitions,
        },
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC).bits())
        .open(path)
}

/// Reads a record that only root can have written.
fn read(path: &Path, file: File) -> Result<Record, String> {
    let broken = |why: String| format!("'{}': {why}", path.display());
    let about = file.metadata().map_err(|e| broken(e.to_string()))?;
    if !about.is_file() || about.uid() != 0 || about.mode() & 0o022 != 0 {
        return Err(broken("not a file that only root can write".into()));
    }
    let mut text = String::new();
    file.take(LONGEST)
        .read_to_string(&mut text)
        .map_err(|e| broken(e.to_string()))?;
    Record::parse(&text).map_err(broken)
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

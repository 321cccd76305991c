//! The only door of the dialects to the machine: bounded reads, and the scheduler's own commands with a deadline.

use crate::sys::signals::start_fresh;
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Most that a command's answer is read; a job's full status has a few kilobytes. Bytes.
const MOST_ANSWER: usize = 1 << 20;
/// How often an ended pipe's process is looked at; it ends within microseconds of its last output.
const REAP_PAUSE: Duration = Duration::from_millis(2);
/// How long a killed command may take to end.
const REAP_GRACE: Duration = Duration::from_millis(200);

/// What a command of the scheduler answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// Standard output, then standard error.
    pub text: String,
}

/// What a dialect may ask of the machine.
pub trait Host {
    /// A file of root's, at most `most` bytes of it; `None` when there is none.
    ///
    /// # Errors
    /// Anything but absence, and a file that is not root's or that others may write.
    fn read(&self, path: &Path, most: usize) -> io::Result<Option<Vec<u8>>>;

    /// A file of the scheduler's own configuration, at most `most` bytes of it; `None` when there is none. Links are followed
    /// and any owner will do: the scheduler's daemon, which is root, obeys the same file.
    ///
    /// # Errors
    /// Anything but absence, and what is no regular file.
    fn configuration(&self, path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
        self.read(path, most)
    }

    /// The minor number of a device file.
    ///
    /// # Errors
    /// It is not there, or no character device.
    fn minor(&self, path: &Path) -> io::Result<u32> {
        let about = std::fs::metadata(path)?;
        if !about.file_type().is_char_device() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a character device",
            ));
        }
        let minor = nix::sys::stat::minor(about.rdev());
        u32::try_from(minor).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    }

    /// Whether `path` is a regular file that root owns, others cannot write, and its owner may execute.
    fn executable(&self, path: &Path) -> bool;

    /// Runs `program` (absolute) without a shell and without our environment; kills it at the deadline.
    ///
    /// # Errors
    /// What kept it from running or ending.
    fn run(&self, program: &Path, arguments: &[&str], deadline: Duration) -> Result<Answer, String>;

    /// The node's own name.
    fn name(&self) -> String;
}

/// The machine we run on.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThisHost;

impl Host for ThisHost {
    fn read(&self, path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
        let roots = |about: &Metadata| about.uid() == 0 && about.mode() & 0o022 == 0;
        let why = "not a regular file of root's that others cannot write";
        regular(path, nix::libc::O_NOFOLLOW, most, why, roots)
    }

    fn configuration(&self, path: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
        regular(path, 0, most, "not a regular file", |_| true)
    }

    fn executable(&self, path: &Path) -> bool {
        let trusted = |m: &std::fs::Metadata| {
            m.is_file() && m.uid() == 0 && m.mode() & 0o022 == 0 && m.mode() & 0o100 != 0
        };
        path.is_absolute() && std::fs::metadata(path).is_ok_and(|about| trusted(&about))
    }

    fn run(&self, program: &Path, arguments: &[&str], deadline: Duration) -> Result<Answer, String> {
        run_with(program, arguments, &[], deadline)
    }

    fn name(&self) -> String {
        nix::unistd::gethostname()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default()
    }
}

/// When this node was started, seconds since 1970 (`btime`, proc(5)).
pub(crate) fn boot_time() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/stat").ok()?;
    stat.lines()
        .find_map(|line| line.strip_prefix("btime "))?
        .trim()
        .parse()
        .ok()
}

/// The first `most` bytes of a regular file that is `fit`, else the error `why`.
fn regular(
    path: &Path,
    flags: i32,
    most: usize,
    why: &'static str,
    fit: impl Fn(&Metadata) -> bool,
) -> io::Result<Option<Vec<u8>>> {
    let flags = flags | nix::libc::O_NONBLOCK | nix::libc::O_CLOEXEC;
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(gone) if gone.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(other) => return Err(other),
    };
    let about = file.metadata()?;
    if !about.is_file() || !fit(&about) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    let mut bytes = Vec::new();
    file.take(u64::try_from(most).unwrap_or(u64::MAX))
        .read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// As [`Host::run`] of this machine, with `environment` besides `PATH` and `LC_ALL`.
///
/// # Errors
/// What kept it from running or ending.
pub fn run_with(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
    deadline: Duration,
) -> Result<Answer, String> {
    let mut child = start(program, arguments, environment)
        .map_err(|e| format!("cannot start '{}': {e}", program.display()))?;
    let end = Instant::now() + deadline;
    let text = collect(&mut child, end);
    let ended = if text.is_ok() { reap(&mut child, end) } else { None };
    if ended.is_none() {
        // Its answer is lost anyway; what SIGKILL does not end at once is left to init.
        let _ = child.kill();
        reap(&mut child, Instant::now() + REAP_GRACE);
    }
    match (text, ended) {
        (Ok(text), Some(code)) => Ok(Answer { code, text }),
        (Err(why), _) => Err(format!("'{}': {why}", program.display())),
        (Ok(_), None) => Err(format!(
            "'{}': not ended within {} ms",
            program.display(),
            deadline.as_millis()
        )),
    }
}

fn start(program: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> io::Result<Child> {
    let mut command = Command::new(program);
    start_fresh(&mut command);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("LC_ALL", "C")
        .envs(environment.iter().copied())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
}

/// Reads both pipes to their end.
fn collect(child: &mut Child, end: Instant) -> Result<String, String> {
    let (mut out, mut err) = match (child.stdout.take(), child.stderr.take()) {
        (Some(out), Some(err)) => (out, err),
        _ => return Err("no pipes".to_owned()),
    };
    let mut answer = drain(&mut out, end)?;
    answer.extend(drain(&mut err, end)?);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn drain<R: Read + AsFd>(pipe: &mut R, end: Instant) -> Result<Vec<u8>, String> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut all = Vec::new();
    let mut block = [0_u8; 8192];
    while all.len() < MOST_ANSWER {
        let left = end.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let ready = match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)], wait) {
            Err(nix::errno::Errno::EINTR) => continue,
            Err(e) => return Err(e.to_string()),
            Ok(n) => n > 0,
        };
        if !ready {
            return Err("no answer within its deadline".to_owned());
        }
        match pipe.read(&mut block) {
            Ok(0) => break,
            Ok(n) => all.extend_from_slice(&block[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.to_string()),
        }
    }
    Ok(all)
}

fn reap(child: &mut Child, end: Instant) -> Option<Option<i32>> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status.code()),
            Ok(None) if Instant::now() < end => std::thread::sleep(REAP_PAUSE),
            _ => return None,
        }
    }
}

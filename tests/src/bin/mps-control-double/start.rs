//! How the control daemon starts: checks, files of the pipe directory, foreground or background.

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{SigHandler, Signal, signal};
use nix::sys::stat::Mode;
use nix::unistd::{AccessFlags, ForkResult};
use tests::double::node::Node;
use tests::double::wire;

use crate::daemon::Daemon;
use crate::log::Log;

/// The longest path that fits into a socket's address.
const SUN_PATH: usize = 107;

#[derive(Debug)]
pub struct Files {
    pub control: OwnedFd,
    pub privileged: OwnedFd,
    pub fifo: File,
    _lock: Flock<File>,
}

/// `-f`: stays, and logs to standard output.
pub fn foreground(node: Node) -> ExitCode {
    match prepare(&node) {
        Ok(lock) => serve(node, lock, Log::stdout(), || ()),
        Err(code) => code,
    }
}

/// `-d`: returns when a daemon in a session of its own listens.
pub fn background(node: Node) -> ExitCode {
    let lock = match prepare(&node) {
        Ok(lock) => lock,
        Err(code) => return code,
    };
    let Ok((started, told)) = std::io::pipe() else {
        return ExitCode::FAILURE;
    };
    // SAFETY: this process has one thread.
    match unsafe { nix::unistd::fork() } {
        Ok(ForkResult::Parent { .. }) => {
            drop(told);
            // The lock is the daemon's now: to unlock it here would free the directory.
            std::mem::forget(lock);
            match std::io::Read::bytes(started).next() {
                Some(Ok(_)) => ExitCode::SUCCESS,
                _ => ExitCode::FAILURE,
            }
        }
        Ok(ForkResult::Child) => {
            drop(started);
            detach();
            serve(node, lock, Log::files(&log_directory()), move || {
                let _ = std::io::Write::write_all(&mut &told, b"1");
            })
        }
        Err(_) => ExitCode::FAILURE,
    }
}

fn detach() {
    let _ = nix::unistd::setsid();
    let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") else {
        return;
    };
    let _ = nix::unistd::dup2_stdin(&null);
    let _ = nix::unistd::dup2_stdout(&null);
    let _ = nix::unistd::dup2_stderr(&null);
}

fn log_directory() -> PathBuf {
    let logs = std::env::var_os("CUDA_MPS_LOG_DIRECTORY");
    logs.map_or_else(|| "/var/log/nvidia-mps".into(), PathBuf::from)
}

/// The checks before it makes anything, in the recorded order of their messages.
fn prepare(node: &Node) -> Result<Flock<File>, ExitCode> {
    let pipe = wire::pipe_directory();
    if nix::unistd::access(&pipe, AccessFlags::W_OK | AccessFlags::X_OK).is_err() {
        println!("Cannot access CUDA_MPS_PIPE_DIRECTORY={}", pipe.display());
        return Err(ExitCode::FAILURE);
    }
    let lock = lock(&pipe).ok_or_else(|| {
        println!("An instance of this daemon is already running");
        ExitCode::FAILURE
    })?;
    match node.is.faults.start.as_str() {
        "exits" => return Err(ExitCode::FAILURE),
        "slow" => sleep(Duration::from_millis(node.is.faults.slow_ms)),
        _ => {}
    }
    sleep(Duration::from_millis(node.is.times.start));
    Ok(lock)
}

fn lock(pipe: &Path) -> Option<Flock<File>> {
    let path = pipe.join("control_lock");
    let mut options = OpenOptions::new();
    let options = options.create(true).truncate(false).write(true);
    let file = options.open(&path).ok()?;
    let _ = fs::set_permissions(&path, Permissions::from_mode(0o666));
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}

fn serve(node: Node, lock: Flock<File>, log: Log, listens: impl FnOnce()) -> ExitCode {
    // SAFETY: no handler is installed, only a disposition.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) };
    if node.is.faults.ignore_sigterm {
        // SAFETY: no handler is installed, only a disposition.
        let _ = unsafe { signal(Signal::SIGTERM, SigHandler::SigIgn) };
    }
    if node.is.faults.start == "never" {
        hang();
    }
    let pipe = wire::pipe_directory();
    let socket = pipe.join("control");
    let (socket, place) = (socket.display(), pipe.display());
    log.control(format!("Starting control daemon using socket {socket}"));
    let text = "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=";
    log.control(format!("{text}{place}"));
    if pipe.join("control_privileged").as_os_str().len() > SUN_PATH {
        return ExitCode::FAILURE;
    }
    let version = &node.is.cuda_version;
    log.control(format!("CUDA MPS Control binary version: {version}"));
    let files = match files(&pipe, lock) {
        Ok(files) => files,
        Err(why) => {
            log.control(format!("Failed to make the files of {place}: {why}"));
            return ExitCode::FAILURE;
        }
    };
    listens();
    if node.is.faults.start == "hangs" {
        hang();
    }
    let status = Daemon::new(node, files, log).run();
    let _ = fs::remove_file(pipe.join("log"));
    let _ = fs::remove_file(pipe.join("nvidia-cuda-mps-control.pid"));
    ExitCode::from(status)
}

/// Makes the five files with their recorded modes, over those that a dead daemon left.
fn files(pipe: &Path, lock: Flock<File>) -> std::io::Result<Files> {
    let fifo = pipe.join("log");
    let _ = fs::remove_file(&fifo);
    nix::unistd::mkfifo(&fifo, Mode::from_bits_truncate(0o777))?;
    fs::set_permissions(&fifo, Permissions::from_mode(0o777))?;
    let fifo = OpenOptions::new().read(true).write(true).open(fifo)?;
    let pid = pipe.join("nvidia-cuda-mps-control.pid");
    fs::write(&pid, std::process::id().to_string())?;
    fs::set_permissions(&pid, Permissions::from_mode(0o666))?;
    let privileged = wire::listen(&pipe.join("control_privileged"))?;
    let control = wire::listen(&pipe.join("control"))?;
    fs::set_permissions(pipe.join("control"), Permissions::from_mode(0o666))?;
    let is_free = control.as_raw_fd() > 2;
    debug_assert!(is_free, "the three standard descriptors are open");
    Ok(Files {
        control,
        privileged,
        fifo,
        _lock: lock,
    })
}

pub fn hang() -> ! {
    loop {
        nix::unistd::pause();
    }
}

//! Runs a program of ours from slurmd's or slurmstepd's process, and waits no longer than told.

use crate::handle::{Ended, Program};
use mpsd_core::text::one_line;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, AsRawFd as _, IntoRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Most that is kept of what a program writes. Bytes.
const MOST_OUTPUT: usize = 16 << 10;
/// Longest line of it that goes on to the log. Characters.
const LONGEST_LINE: usize = 500;
/// How often a child that keeps its end of the pipe shut or busy is looked after.
const LOOK: Duration = Duration::from_millis(10);

/// Runs `program` in a session of its own, with no descriptor of ours but 0, 1 and 2, and with the signals of a fresh
/// process: slurmstepd blocks TERM and others in itself, and slurmd kills the process group of a prolog that has ended
/// (docs/facts/slurm.md#processes-that-a-callback-starts). What it writes is kept; past its limit the group is killed.
pub fn run(program: &Program) -> Ended {
    let mut output = Vec::new();
    let code = start(program).and_then(|(mut child, mut pipe)| {
        let ended = watch(&mut child, &mut pipe, &mut output, program);
        drain(&mut pipe, &mut output);
        ended.map_err(|why| format!("'{}' {why}", program.path.display()))
    });
    let text = String::from_utf8_lossy(&output);
    let lines = text
        .lines()
        .filter(|l| !l.trim().is_empty())
        .map(|l| one_line(l, LONGEST_LINE))
        .collect();
    Ended { code, lines }
}

fn start(program: &Program) -> Result<(Child, PipeReader), String> {
    let failed = |e: std::io::Error| format!("cannot run '{}': {e}", program.path.display());
    reopen_standard_descriptors().map_err(|e| failed(e.into()))?;
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    let errors = writer.try_clone().map_err(failed)?;
    let mut command = Command::new(&program.path);
    command
        .args(&program.arguments)
        .env_clear()
        .envs(program.environment.iter().map(|(k, v)| (k, v)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(errors);
    let detached = program.detached;
    // SAFETY: `fresh_process` makes system calls only and does not allocate.
    unsafe { command.pre_exec(move || fresh_process(detached)) };
    let child = command.spawn().map_err(failed)?;
    // The command still holds the writing ends: without this the pipe would never end.
    drop(command);
    Ok((child, reader))
}

/// Opens /dev/null on each of 0, 1 and 2 that is closed: slurmstepd closes 0 before job_prolog, and a pipe that landed
/// on it would be overwritten in the child.
fn reopen_standard_descriptors() -> Result<(), Errno> {
    loop {
        let fd = open(c"/dev/null", OFlag::O_RDWR | OFlag::O_NOCTTY, Mode::empty())?;
        if fd.as_raw_fd() > 2 {
            return Ok(());
        }
        // It stays open for good: one of the standard ones.
        let _ = fd.into_raw_fd();
    }
}

/// In the child, between fork and exec: default signal actions, an empty mask (the standard library keeps that of
/// slurmstepd, under which a daemon would ignore SIGTERM), a session of its own, no descriptor past 2.
fn fresh_process(detached: bool) -> std::io::Result<()> {
    for number in 1..libc::SIGRTMIN() {
        // SAFETY: resets the action of one signal; those that cannot be changed return an error, which is fine.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
    SigSet::empty().thread_set_mask()?;
    nix::unistd::setsid()?;
    if detached {
        // SAFETY: between fork and exec only system calls follow, on either side.
        match Errno::result(unsafe { libc::fork() })? {
            0 => {}
            // SAFETY: ends the child that the program was to be a descendant of.
            _ => unsafe { libc::_exit(0) },
        }
    }
    close_on_exec_from_3()
}

fn close_on_exec_from_3() -> std::io::Result<()> {
    const CLOEXEC: libc::c_uint = 4; // CLOSE_RANGE_CLOEXEC, since Linux 5.11
    // SAFETY: changes flags of descriptors only; the standard library's own pipe is close-on-exec already.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, 3_u32, libc::c_uint::MAX, CLOEXEC) };
    if rc == 0 {
        return Ok(());
    }
    // An older kernel (RHEL 8's 4.18): one by one, up to the soft limit.
    // SAFETY: reads a limit.
    let limit = unsafe { libc::sysconf(libc::_SC_OPEN_MAX) }.clamp(256, 65_536);
    for fd in 3..i32::try_from(limit).unwrap_or(65_536) {
        // SAFETY: changes a flag of a descriptor, or fails on one that is not open.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    Ok(())
}

/// Waits for the child and reads what it writes meanwhile; for one that is detached, until it lets go of the pipe.
fn watch(
    child: &mut Child,
    pipe: &mut PipeReader,
    output: &mut Vec<u8>,
    program: &Program,
) -> Result<i32, String> {
    let end = Instant::now() + program.limit;
    let mut open = true;
    let mut status = None;
    loop {
        if status.is_none() {
            status = child
                .try_wait()
                .map_err(|e| format!("cannot be waited for: {e}"))?;
        }
        if let Some(status) = status.filter(|_| !(program.detached && open)) {
            return code(status);
        }
        if Instant::now() >= end {
            kill(child);
            return Err(format!(
                "did not end within {} s and was killed",
                program.limit.as_secs()
            ));
        }
        if open && readable(pipe, LOOK) {
            open = take(pipe, output);
        } else if !open {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn code(status: ExitStatus) -> Result<i32, String> {
    status.code().ok_or_else(|| format!("ended by {status}"))
}

/// Ends the group and reaps the child; a child that SIGKILL does not end is left to slurmd.
fn kill(child: &mut Child) {
    let group = i32::try_from(child.id()).map(Pid::from_raw);
    if let Ok(group) = group {
        let _ = killpg(group, Signal::SIGKILL);
    }
    for _ in 0..100 {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(LOOK);
    }
}

fn readable(pipe: &PipeReader, limit: Duration) -> bool {
    let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::ZERO);
    matches!(poll(&mut fds, limit), Ok(n) if n > 0)
}

/// Reads once; false at the end of the pipe.
fn take(pipe: &mut PipeReader, output: &mut Vec<u8>) -> bool {
    let mut buffer = [0_u8; 4096];
    match pipe.read(&mut buffer) {
        Ok(0) | Err(_) => false,
        Ok(n) => {
            let room = MOST_OUTPUT.saturating_sub(output.len());
            output.extend_from_slice(&buffer[..n.min(room)]);
            true
        }
    }
}

/// What is still in the pipe of a child that has ended. A process that it left behind may hold the other end open.
fn drain(pipe: &mut PipeReader, output: &mut Vec<u8>) {
    while output.len() < MOST_OUTPUT && readable(pipe, Duration::ZERO) {
        if !take(pipe, output) {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(path: &str, arguments: &[&str]) -> Program {
        Program {
            path: path.into(),
            arguments: arguments.iter().map(|a| (*a).to_owned()).collect(),
            environment: vec![("SLURM_JOB_ID".into(), "4711".into())],
            limit: Duration::from_secs(10),
            detached: false,
        }
    }

    #[test]
    fn what_it_writes_and_how_it_ends_come_back() {
        let ended = run(&program("/usr/bin/env", &[]));
        assert_eq!(
            ended,
            Ended {
                code: Ok(0),
                lines: vec!["SLURM_JOB_ID=4711".into()]
            }
        );
        assert_eq!(run(&program("/bin/false", &[])).code, Ok(1));
        let missing = run(&program("/usr/libexec/mpsd/none", &[])).code.unwrap_err();
        assert!(
            missing.starts_with("cannot run '/usr/libexec/mpsd/none': No such file"),
            "{missing}"
        );
    }

    #[test]
    fn it_has_a_session_of_its_own_and_the_signals_of_a_fresh_process() {
        let blocked = SigSet::from(Signal::SIGTERM);
        blocked.thread_block().unwrap();
        let status = run(&program("/bin/cat", &["/proc/self/status", "/proc/self/stat"]));
        blocked.thread_unblock().unwrap();
        let field = |name: &str| {
            let line = status.lines.iter().find(|l| l.starts_with(name)).unwrap();
            line.trim_start_matches(name)
                .trim_start_matches([':', '?', '\t', ' '])
                .to_owned()
        };
        assert_eq!(u64::from_str_radix(&field("SigBlk"), 16), Ok(0));
        // SIGPIPE was ignored here; 32 and 33 are glibc's own.
        assert_eq!(
            u64::from_str_radix(&field("SigIgn"), 16).unwrap() & 0x7fff_ffff,
            0
        );
        let stat: Vec<&str> = status.lines.last().unwrap().split(' ').collect();
        assert_eq!(
            (stat[4], stat[5]),
            (stat[0], stat[0]),
            "process group and session are its own pid"
        );
    }

    #[test]
    fn no_descriptor_of_ours_goes_along() {
        let (reader, _writer) = std::io::pipe().unwrap();
        nix::fcntl::fcntl(
            &reader,
            nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
        )
        .unwrap();
        let listed = run(&program("/bin/ls", &["/proc/self/fd"]));
        // 3 is the directory that ls reads.
        assert_eq!(listed.lines, ["0", "1", "2", "3"]);
    }

    #[test]
    fn past_its_limit_it_is_killed() {
        for detached in [false, true] {
            let limit = Duration::from_millis(300);
            let begin = Instant::now();
            let ended = run(&Program {
                limit,
                detached,
                ..program("/bin/sleep", &["30"])
            });
            assert!(ended.code.unwrap_err().contains("was killed"));
            assert!(begin.elapsed() < Duration::from_secs(5));
        }
    }

    #[test]
    fn detached_it_is_nobodys_child_and_is_waited_for_all_the_same() {
        let ended = run(&Program {
            detached: true,
            ..program("/bin/cat", &["/proc/self/stat"])
        });
        assert_eq!(ended.code, Ok(0));
        let stat: Vec<&str> = ended.lines[0].split(' ').collect();
        assert_ne!(
            stat[3],
            std::process::id().to_string(),
            "its parent is not this process"
        );
    }
}

//! Runs one of mpsd's programs from slurmd's or slurmstepd's process, and waits no longer than its
//! limit.

use crate::handle::{Program, ProgramResult};
use mpsd_core::deadline::{Deadline, Output, fix_standard_descriptors, readable};
use mpsd_core::text::one_line;
use nix::errno::Errno;
use nix::libc;
use nix::sys::signal::{SigSet, Signal, killpg};
use nix::unistd::{Pid, SysconfVar, sysconf};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Bytes that are kept of what a program writes, and characters of each line.
const MOST_OUTPUT: usize = 16 << 10;
const LONGEST_LINE: usize = 500;
/// How often a child is checked that writes nothing, and one that has closed its output.
const PAUSE: Duration = Duration::from_millis(10);
const CLOSED: Duration = Duration::from_millis(1);
/// Time for a killed child to be reaped. If SIGKILL does not end it, slurmd inherits it.
const REAP: Duration = Duration::from_secs(1);

/// Runs it in a session of its own, without our descriptors, with fresh signals: slurmstepd blocks
/// TERM and others, and slurmd kills the process group of a prolog that has ended
/// (docs/facts/slurm.md#processes-that-a-callback-starts). Past its limit the group is killed.
pub fn run(program: &Program) -> ProgramResult {
    let path = program.path.display();
    let (code, output) = match start(program) {
        Ok((child, mut output)) => (watch(child, &mut output, program), output.bytes),
        Err(e) => (Err(format!("cannot run '{path}': {e}")), Vec::new()),
    };
    let text = String::from_utf8_lossy(&output);
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let lines = lines.map(|line| one_line(line, LONGEST_LINE)).collect();
    ProgramResult { code, lines }
}

fn start(program: &Program) -> std::io::Result<(Child, Output)> {
    // slurmstepd closes 0 before job_prolog. A pipe with that number would be overwritten in the
    // child.
    fix_standard_descriptors()?;
    let (output, writer) = Output::pipe()?;
    let mut command = Command::new(&program.path);
    command
        .args(&program.arguments)
        .env_clear()
        .envs(program.environment.iter().map(|(k, v)| (k, v)))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let detached = program.detached;
    // SAFETY: `fresh_process` makes system calls only and does not allocate.
    unsafe { command.pre_exec(move || fresh_process(detached)) };
    // The command is dropped here, and with it our copies of the writing end.
    Ok((command.spawn()?, output))
}

/// In the child, before exec. Under slurmstepd's mask, which the standard library keeps, a daemon
/// would ignore SIGTERM.
fn fresh_process(detached: bool) -> std::io::Result<()> {
    for number in 1..libc::SIGRTMIN() {
        // SAFETY: resets the action of one signal; those that cannot be changed return an error,
        // which is fine.
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
    close_on_exec_from_3();
    Ok(())
}

fn close_on_exec_from_3() {
    const CLOEXEC: libc::c_uint = 4; // CLOSE_RANGE_CLOEXEC, since Linux 5.11
    // SAFETY: changes flags of descriptors only; the standard library's own pipe is close-on-exec
    // already.
    if unsafe { libc::syscall(libc::SYS_close_range, 3_u32, libc::c_uint::MAX, CLOEXEC) } == 0 {
        return;
    }
    // An older kernel (RHEL 8's 4.18): one by one, up to the soft limit.
    let limit = sysconf(SysconfVar::OPEN_MAX).ok().flatten();
    for fd in 3..limit.unwrap_or(65_536).clamp(256, 65_536) as i32 {
        // SAFETY: changes a flag of a descriptor, or fails on one that is not open.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// A detached child is over when its output is closed.
fn watch(mut child: Child, output: &mut Output, program: &Program) -> Result<i32, String> {
    let path = program.path.display();
    let deadline = Deadline::after(program.limit);
    loop {
        let status = child.try_wait();
        let status = status.map_err(|e| format!("'{path}' cannot be waited for: {e}"))?;
        // Also after the child's end: a process that it left may hold the pipe open. The rest of a
        // long output is dropped, so that the program waits for no reader.
        if !output.read(MOST_OUTPUT) {
            output.bytes.truncate(MOST_OUTPUT);
        }
        if let Some(status) = status.filter(|_| !program.detached || output.source().is_none()) {
            let code = status.code();
            return code.ok_or_else(|| format!("'{path}' ended by {status}"));
        }
        if deadline.expired() {
            kill(&mut child);
            let limit = program.limit.as_secs();
            let why = format!("'{path}' did not end within {limit} s and was killed");
            return Err(why);
        }
        match output.source() {
            Some(pipe) => drop(readable(pipe, deadline.within(PAUSE))),
            None => drop(deadline.sleep(CLOSED)),
        }
    }
}

fn kill(child: &mut Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let deadline = Deadline::after(REAP);
    while matches!(child.try_wait(), Ok(None)) && deadline.sleep(PAUSE) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn program(path: &str, arguments: &[&str]) -> Program {
        Program {
            path: path.into(),
            arguments: arguments.iter().map(|a| (*a).to_owned()).collect(),
            environment: vec![("SLURM_JOB_ID".into(), "4711".into())],
            limit: Duration::from_secs(10),
            detached: false,
        }
    }

    fn sh(line: &str) -> Program {
        program("/bin/sh", &["-c", line])
    }

    #[test]
    fn what_it_writes_and_how_it_ends_come_back() {
        let result = run(&program("/usr/bin/env", &[]));
        let expected = ProgramResult {
            code: Ok(0),
            lines: vec!["SLURM_JOB_ID=4711".into()],
        };
        assert_eq!(result, expected);
        assert_eq!(run(&program("/bin/false", &[])).code, Ok(1));
        let long = run(&sh("yes 12345 | head -c 1000000; exit 3"));
        assert_eq!(long.code, Ok(3));
        assert_eq!(long.lines.len(), MOST_OUTPUT.div_ceil(6));
        let missing = run(&program("/usr/none", &[])).code.unwrap_err();
        let why = "cannot run '/usr/none': No such file";
        assert!(missing.starts_with(why), "{missing}");
    }

    #[test]
    fn it_has_a_session_and_fresh_signals_and_no_descriptor_of_ours() {
        let blocked = SigSet::from(Signal::SIGTERM);
        blocked.thread_block().unwrap();
        let files = ["/proc/self/status", "/proc/self/stat"];
        let status = run(&program("/bin/cat", &files));
        blocked.thread_unblock().unwrap();
        let field = |name: &str| {
            let line = status.lines.iter().find(|l| l.starts_with(name)).unwrap();
            let mask = line.rsplit([':', '?', ' ']).next().unwrap();
            u64::from_str_radix(mask, 16).unwrap()
        };
        // SIGPIPE was ignored here; 32 and 33 are glibc's own.
        assert_eq!((field("SigBlk"), field("SigIgn") & 0x7fff_ffff), (0, 0));
        let stat: Vec<&str> = status.lines.last().unwrap().split(' ').collect();
        let group_and_session = (stat[4], stat[5]);
        assert_eq!(group_and_session, (stat[0], stat[0]));

        let (reader, _writer) = std::io::pipe().unwrap();
        let inheritable = nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty());
        nix::fcntl::fcntl(&reader, inheritable).unwrap();
        let listed = run(&program("/bin/ls", &["/proc/self/fd"]));
        // 3 is the directory that ls reads.
        assert_eq!(listed.lines, ["0", "1", "2", "3"]);
    }

    #[test]
    fn past_its_limit_it_is_killed() {
        for (detached, line) in [
            (false, "sleep 30"),
            (true, "sleep 30"),
            (false, "exec >&- 2>&-; sleep 30"),
            (false, "yes"),
        ] {
            let begin = Instant::now();
            let result = run(&Program {
                limit: Duration::from_millis(300),
                detached,
                ..sh(line)
            });
            assert!(result.code.unwrap_err().contains("was killed"));
            assert!(begin.elapsed() < Duration::from_secs(5));
        }
    }

    #[test]
    fn a_detached_program_is_no_child_and_is_waited_for_all_the_same() {
        let result = run(&Program {
            detached: true,
            ..program("/bin/cat", &["/proc/self/stat"])
        });
        assert_eq!(result.code, Ok(0));
        let parent = result.lines[0].split(' ').nth(3).unwrap();
        assert_ne!(parent, std::process::id().to_string());
    }
}

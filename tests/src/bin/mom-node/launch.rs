//! From an order to its program: descriptors, session, identity, then exec. There is no fork in
//! between.

use anyhow::{Context as _, Result, ensure};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{
    Gid, Uid, chdir, close, dup2_stderr, dup2_stdin, dup2_stdout, execve, setegid, seteuid, setgid,
    setgroups, setsid, setuid,
};
use serde::{Deserialize, Serialize};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::OpenOptionsExt;
use tests::mom::cluster::USER;
use tests::mom::wire::{Run, Stream};

#[derive(Serialize, Deserialize)]
pub struct Launch {
    pub run: Run,
    /// The agent's own descriptors for `run.leaked`, in that order, reached through `/proc/1/fd`.
    pub passed: Vec<i32>,
    pub terminal: Option<String>,
    pub cgroup: Option<String>,
}

pub fn become_program(order: &str) -> Result<()> {
    let launch: Launch = serde_json::from_str(order)?;
    let run = &launch.run;
    close_inherited()?;
    if let Some(cgroup) = &launch.cgroup {
        std::fs::write(format!("{cgroup}/cgroup.procs"), "0")
            .with_context(|| format!("'{cgroup}'"))?;
    }
    if run.session {
        setsid().context("setsid")?;
    }
    umask(Mode::from_bits_truncate(run.umask));
    chdir(run.cwd.as_str()).with_context(|| run.cwd.clone())?;
    leak(&launch)?;
    streams(&launch)?;
    if let Some((uid, groups)) = &run.user {
        let gids: Vec<Gid> = groups.iter().map(|g| Gid::from_raw(*g)).collect();
        setgroups(&gids).context("setgroups")?;
        gids.first()
            .map_or(Ok(()), |gid| setgid(*gid))
            .context("setgid")?;
        setuid(Uid::from_raw(*uid)).context("setuid")?;
    }
    execute(run)
}

fn execute(run: &Run) -> Result<()> {
    let argv = run.argv.clone();
    let program = run.program.as_ref().unwrap_or(&argv[0]).clone();
    let texts = |words: Vec<String>| {
        let texts = words.into_iter().map(CString::new);
        texts.collect::<Result<Vec<_>, _>>()
    };
    let env = run.env.iter();
    let env = texts(env.map(|(name, value)| format!("{name}={value}")).collect())?;
    let never = execve(&CString::new(program.as_str())?, &texts(argv)?, &env);
    let never = never.map(|never| match never {});
    never.with_context(|| format!("'{program}'"))
}

/// What the test itself inherited must not look like the mom's.
fn close_inherited() -> Result<()> {
    let entries = std::fs::read_dir("/proc/self/fd")?.flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.parse().ok());
    let numbers: Vec<i32> = numbers.collect();
    // The directory's own descriptor is in the list and closed already.
    for fd in numbers.into_iter().filter(|fd| *fd > 2) {
        let _ = close(fd);
    }
    Ok(())
}

/// Opens the descriptors that the mom leaks, at the mom's numbers, and nothing else above 2.
fn leak(launch: &Launch) -> Result<()> {
    for (agents, wanted) in launch.passed.iter().zip(&launch.run.leaked) {
        let path = format!("/proc/1/fd/{agents}");
        let pipe = OpenOptions::new().write(true).open(&path);
        let pipe = pipe.with_context(|| format!("'{path}'"))?;
        let number = if pipe.as_raw_fd() == *wanted {
            fcntl(&pipe, FcntlArg::F_SETFD(FdFlag::empty()))?;
            pipe.into_raw_fd()
        } else {
            fcntl(&pipe, FcntlArg::F_DUPFD(*wanted))?
        };
        ensure!(number == *wanted, "descriptor {wanted} is taken");
    }
    Ok(())
}

fn streams(launch: &Launch) -> Result<()> {
    let run = &launch.run;
    dup2_stdin(opened(&run.stdin, launch, false)?)?;
    dup2_stdout(opened(&run.stdout, launch, true)?)?;
    Ok(dup2_stderr(opened(&run.stderr, launch, true)?)?)
}

fn opened(stream: &Stream, launch: &Launch, write: bool) -> Result<File> {
    let path = match stream {
        Stream::Null => "/dev/null",
        // Without O_NOCTTY, the session's leader gets it as its controlling terminal.
        Stream::Terminal => launch.terminal.as_ref().context("no terminal")?,
        Stream::File(path) if write => {
            let owner = launch.run.output_of.unwrap_or(USER.1);
            return as_job_user(owner, || job_output(path)).with_context(|| format!("'{path}'"));
        }
        Stream::File(path) => path,
    };
    let mut how = OpenOptions::new();
    how.read(true).write(stream == &Stream::Terminal || write);
    how.open(path).with_context(|| format!("'{path}'"))
}

/// Both moms make and open a job's output as its user, also for root's prologue. They do not ask
/// for creation if the file exists: with `fs.protected_regular` the kernel then refuses another
/// user's file in the spool, which is open to all.
fn job_output(path: &str) -> std::io::Result<File> {
    match OpenOptions::new().append(true).open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let mut new = OpenOptions::new();
            new.append(true).create_new(true).mode(0o600).open(path)
        }
        opened => opened,
    }
}

fn as_job_user<T>(id: u32, act: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
    setegid(Gid::from_raw(id))?;
    seteuid(Uid::from_raw(id))?;
    let done = act();
    seteuid(Uid::from_raw(0))?;
    setegid(Gid::from_raw(0))?;
    done
}

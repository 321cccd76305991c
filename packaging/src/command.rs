//! One command with a deadline. Its output is read while it runs, or shown only if it fails.

use std::io::{BufRead as _, BufReader, PipeReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fs_err as fs;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::files::list;

/// Longest time for a command that shows nothing: an installation, a build.
const QUIET: Duration = Duration::from_secs(1800);

pub fn command(program: &str, words: &str) -> Command {
    let mut command = Command::new(program);
    command.args(words.split_whitespace()).stdin(Stdio::null());
    command
}

/// Hands every line of both streams to `each`, in their order. After `limit` the command is killed with all its
/// descendants, and that is an error. It stays in this process group: Ctrl-C ends it too.
pub fn lines(
    command: &mut Command,
    limit: Duration,
    mut each: impl FnMut(&str),
) -> Result<ExitStatus> {
    let program = command.get_program().to_string_lossy().into_owned();
    let (reader, writer) = std::io::pipe()?;
    command.stdin(Stdio::null());
    command.stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn();
    // Ours would keep the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = child.with_context(|| format!("cannot start '{program}'"))?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || forward(reader, &sender));
    let deadline = Instant::now() + limit;
    loop {
        match receiver.recv_timeout(Duration::from_millis(100)) {
            Ok(line) => each(&line),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if Instant::now() > deadline {
            kill_tree(child.id().cast_signed());
            child.wait()?;
            let minutes = limit.as_secs() / 60;
            bail!("'{program}' did not end within {minutes} min");
        }
    }
    Ok(child.wait()?)
}

/// What the command says is shown only when it fails.
pub fn quietly(command: &mut Command) -> Result<()> {
    quietly_within(command, QUIET)
}

pub fn quietly_within(command: &mut Command, limit: Duration) -> Result<()> {
    let mut said = Vec::new();
    let status = lines(command, limit, |line| said.push(line.to_owned()))?;
    if !status.success() {
        let tail = said[said.len().saturating_sub(25)..].join("\n");
        bail!("'{command:?}' failed ({status}):\n{tail}");
    }
    Ok(())
}

/// What a command wrote to its standard output. It must succeed.
pub fn wrote(command: &mut Command) -> Result<String> {
    let output = command.output();
    let output = output.with_context(|| format!("cannot start {command:?}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}): {}", output.status, why.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{command:?} wrote no text"))
}

pub fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

/// Does something that takes a while, and says so before and after.
pub fn step<T>(what: &str, act: impl FnOnce() -> Result<T>) -> Result<T> {
    eprintln!("{what} …");
    let started = Instant::now();
    let done = act();
    let word = if done.is_ok() { "done" } else { "failed" };
    eprintln!("{what} … {word} ({:.0} s)", started.elapsed().as_secs_f64());
    done
}

/// A process that has ended meanwhile is no failure.
fn kill_tree(root: i32) {
    let threads = list(Path::new(&format!("/proc/{root}/task"))).unwrap_or_default();
    let children = |thread: &PathBuf| fs::read_to_string(thread.join("children")).ok();
    let children: String = threads.iter().filter_map(children).collect();
    let _ = kill(Pid::from_raw(root), Signal::SIGKILL);
    for child in children.split_whitespace() {
        child.parse().into_iter().for_each(kill_tree);
    }
}

fn forward(pipe: PipeReader, sender: &Sender<String>) {
    let mut reader = BufReader::new(pipe);
    let mut bytes = Vec::new();
    while let Ok(1..) = reader.read_until(b'\n', &mut bytes) {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        bytes.clear();
        if sender.send(line).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_on_both_streams_and_the_status() {
        let mut seen = Vec::new();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo out; echo err >&2; exit 3"]);
        let each = |line: &str| seen.push(line.to_owned());
        let status = lines(&mut command, Duration::from_secs(10), each).unwrap();
        seen.sort();
        assert_eq!(seen, ["err", "out"]);
        assert_eq!(status.code(), Some(3));
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "sleep 61 & wait"]);
        let started = Instant::now();
        let error = lines(&mut command, Duration::from_millis(200), |_| {}).unwrap_err();
        assert!(error.to_string().contains("did not end"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
}

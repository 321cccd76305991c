//! NVIDIA's control daemon and server alone, unchecked: the floor of the prologue's time.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use ::tests::child::{self, Ran};
use anyhow::{Context, Result, bail, ensure};

use crate::site::{self, Place};

/// Longest time for a step of the start; 0.75 s was the longest ever seen.
const STEP: Duration = Duration::from_secs(20);

pub struct Daemon<'a> {
    place: &'a Place,
    env: BTreeMap<String, String>,
    directory: PathBuf,
    child: Child,
    /// From before the daemon's fork to the line `NEW SERVER <pid>: Ready`.
    pub ready: Duration,
    server: u32,
}

impl<'a> Daemon<'a> {
    pub fn start(place: &'a Place, gpu: &str, name: &str) -> Result<Self> {
        let directory = place.user_dir(name)?;
        let pipe = place.user_dir(&format!("{name}/pipe"))?;
        let log = place.user_dir(&format!("{name}/log"))?;
        let mut env = site::base_env();
        env.insert("CUDA_MPS_PIPE_DIRECTORY".into(), pipe.display().to_string());
        env.insert("CUDA_MPS_LOG_DIRECTORY".into(), log.display().to_string());
        env.insert("CUDA_VISIBLE_DEVICES".into(), gpu.into());
        let (reader, writer) = std::io::pipe()?;
        let mut command = control(place, &env)?;
        command
            .arg("-f")
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer);
        mpsd_sys::signals::start_fresh(&mut command);
        let begin = Instant::now();
        let child = command.spawn().context("cannot start NVIDIA's daemon")?;
        // The command holds the pipe's writing end; the reader must see the daemon's end.
        drop(command);
        let lines = read_lines(reader);
        let mut daemon = Self {
            place,
            env,
            directory,
            child,
            ready: Duration::ZERO,
            server: 0,
        };
        let session = format!("start_server -uid {}\n", place.user.uid);
        // It answers some milliseconds after its socket exists.
        let socket = pipe.join("control");
        while !socket.exists() || daemon.command(&session)?.code != Some(0) {
            let said = || lines.try_iter().map(|(line, _)| line + "\n");
            ensure!(
                begin.elapsed() < STEP,
                "the daemon does not answer:\n{}",
                said().collect::<String>()
            );
            thread::sleep(Duration::from_micros(100));
        }
        let (deadline, mut log) = (Instant::now() + STEP, String::new());
        loop {
            child::go_on()?;
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((line, at)) = lines.recv_timeout(left) else {
                bail!("no server was ready after {} s:\n{log}", STEP.as_secs());
            };
            let server = line.split_once("NEW SERVER ");
            let server = server.and_then(|(_, rest)| rest.strip_suffix(": Ready")?.parse().ok());
            if let Some(server) = server {
                (daemon.server, daemon.ready) = (server, at - begin);
                return Ok(daemon);
            }
            log += &(line + "\n");
        }
    }

    fn command(&self, session: &str) -> Result<Ran> {
        child::run(&mut control(self.place, &self.env)?, session, STEP)
    }

    pub fn quit(mut self) -> Result<Duration> {
        let begin = Instant::now();
        let _ = self.command("quit\n")?;
        let has_ended = || self.child.try_wait().is_ok_and(|status| status.is_some());
        let has_ended = child::until(STEP, Duration::from_micros(500), has_ended)?;
        let limit = STEP.as_secs();
        ensure!(has_ended, "the daemon is still there {limit} s after quit");
        let has_ended = || !child::alive(self.server);
        child::until(STEP, Duration::from_millis(1), has_ended)?;
        Ok(begin.elapsed())
    }
}

fn control(place: &Place, env: &BTreeMap<String, String>) -> Result<Command> {
    Ok(place.as_user(&site::program("nvidia-cuda-mps-control")?, env))
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        // Its server dies with it (recorded).
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Reads to the end, so that the daemon can always write.
fn read_lines(reader: std::io::PipeReader) -> Receiver<(String, Instant)> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            let _ = sender.send((line, Instant::now()));
        }
    });
    receiver
}

//! What user and administrator see of a job on NVIDIA's own daemon: status of eight clients, a report after a killed client, one
//! client too many and a server that was ended, and what `explain` says of NVIDIA's own logs of these.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::child::{self, Ran, Running};

use crate::job::{self, Job};
use crate::look;
use crate::result::Section;
use crate::site::Run;

/// Clients that run, and most that a GPU takes with driver 580.
const CLIENTS: usize = 8;
const MOST: usize = 48;
/// Longest that something may take to be seen.
const SOON: Duration = Duration::from_secs(20);
/// Longest that one program may take.
const PROGRAM: Duration = Duration::from_secs(60);
/// Seconds that a client runs if nobody ends it.
const LOAD: &str = "90";

struct Scene<'a> {
    run: &'a Run,
    job: Job<'a>,
    /// What is kept of what was seen.
    kept: String,
}

/// The whole play.
pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    look::unchanged(section, &run.place, [&run.gpu().uuid], 5, |section| {
        play(section, run)
    })
}

fn play(section: &mut Section, run: &Run) -> Result<()> {
    let job = Job::named(&run.place, run.gpu(), "7100.srv")?;
    job.prologue(job::ACCOUNT)?.success()?;
    let mut scene = Scene {
        run,
        job,
        kept: String::new(),
    };
    let mut clients = scene.clients(CLIENTS)?;
    scene.wait_for(section, "eight clients", CLIENTS)?;
    for (name, as_user) in [("status", true), ("status-root", false)] {
        let ran = scene.mpsctl(as_user, &["status"])?;
        let shown = clients
            .iter()
            .filter(|one| ran.stdout.contains(&one.pid().to_string()));
        section.equal(format!("{name}: clients that it names"), &shown.count(), &CLIENTS);
        scene.keep(name, &ran.stdout);
    }
    let killed = clients.pop().context("a client")?;
    let killed_pid = killed.pid();
    kill(Pid::from_raw(killed.pid().cast_signed()), Signal::SIGKILL)?;
    killed.finish(SOON)?;
    scene.wait_for(section, "one client killed", CLIENTS - 1)?;
    clients.extend(scene.clients(MOST - clients.len())?);
    scene.wait_for(section, "a full GPU", MOST)?;
    let extra = scene.load("1")?.finish(PROGRAM)?;
    section.check(
        "one client too many is refused",
        extra.code == Some(1),
        extra.story(),
    );
    scene.keep("refused", &extra.stderr);
    let server = scene.server()?;
    kill(Pid::from_raw(server.cast_signed()), Signal::SIGTERM)?;
    let mut said = Vec::new();
    for client in clients {
        said.push(client.finish(SOON)?.stderr);
    }
    section.fact(
        "a client whose server ended",
        said.first().cloned().unwrap_or_default(),
    );
    let logs = scene.logs()?;
    scene.job.epilogue()?.success()?;
    let report = scene.mpsctl(false, &["report", scene.job.id()])?;
    scene.keep("report", &report.stdout);
    let json = scene.mpsctl(false, &["report", scene.job.id(), "--json"])?;
    scene.keep("report.json", &json.stdout);
    section.check("report: exit status", report.code == Some(0), report.story());
    for (what, words) in [
        ("the ended server", server.to_string()),
        ("the refused client", "49".into()),
    ] {
        let told = report.stdout.contains(&words) || json.stdout.contains(&words);
        section.check(format!("report: {what}"), told, report.stdout.clone());
    }
    killed_is_named(section, killed_pid, &report.stdout)?;
    for (name, text) in logs {
        let file = run.place.dir.join(&name);
        fs::write(&file, &text)?;
        scene.keep(&name, &text);
        let told = scene.mpsctl(true, &["explain", &file.display().to_string()])?;
        scene.keep(&format!("explain-{name}"), &told.stdout);
        section.check(format!("explain {name}"), told.code == Some(0), told.story());
    }
    let told = scene.mpsctl(true, &["explain", "806"])?;
    section.check("explain 806", told.code == Some(0), told.story());
    run.keep("seen.txt", &scene.kept)
}

/// In NVIDIA's log the killed client looks like one that ends by itself: without Slurm the report names it where the kernel tells its job's
/// `mpsd` how another's child ended.
fn killed_is_named(section: &mut Section, pid: u32, report: &str) -> Result<()> {
    let kernel = nix::sys::utsname::uname()?;
    let release = kernel.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|word| word.parse::<u32>().ok());
    let tells = (numbers.next(), numbers.next()) >= (Some(6), Some(15));
    let named = report.contains(&format!("client {pid} was ended by signal 9 (SIGKILL)"));
    if !tells {
        let why = format!("not tried: needs Linux 6.15 or Slurm, this is {release}");
        section.fact("report: the killed client", why);
    }
    section.check(
        "report: a killed client is named where the kernel tells, and else not",
        named == tells,
        report.to_owned(),
    );
    Ok(())
}

impl Scene<'_> {
    fn clients(&self, count: usize) -> Result<Vec<Running>> {
        (0..count).map(|_| self.load(LOAD)).collect()
    }

    fn load(&self, seconds: &str) -> Result<Running> {
        let place = &self.run.place;
        let mut command = place.as_user(&place.staged("cuda-load")?, &self.job.environment()?);
        Running::start(command.args(["--after", "0", "--seconds", seconds]), "")
    }

    fn command(&self, as_user: bool) -> Result<Command> {
        match as_user {
            true => self.job.user_mpsctl(self.job.environment()?),
            false => self.job.mpsctl(),
        }
    }

    fn mpsctl(&self, as_user: bool, words: &[&str]) -> Result<Ran> {
        child::run(self.command(as_user)?.args(words), "", PROGRAM)
    }

    fn status(&self) -> Result<Value> {
        let ran = self.mpsctl(false, &["status", self.job.id(), "--json"])?;
        serde_json::from_str(&ran.stdout).with_context(|| ran.story())
    }

    fn wait_for(&self, section: &mut Section, what: &str, count: usize) -> Result<()> {
        let deadline = Instant::now() + SOON;
        loop {
            let status = self.status()?;
            let gpus = status["jobs"][0]["gpus"].as_array();
            let clients = gpus
                .into_iter()
                .flatten()
                .filter_map(|gpu| gpu["clients"].as_array());
            let seen: usize = clients.map(Vec::len).sum();
            if seen == count || Instant::now() > deadline {
                section.equal(format!("{what}: clients in the status"), &seen, &count);
                return Ok(());
            }
            child::pause(Duration::from_millis(200))?;
        }
    }

    fn server(&self) -> Result<u32> {
        let status = self.status()?;
        let pid = status["jobs"][0]["daemons"][0]["servers"][0]["pid"].as_u64();
        Ok(u32::try_from(
            pid.with_context(|| format!("no server in {status}"))?,
        )?)
    }

    /// NVIDIA's logs of the job, by name, as long as they are there.
    fn logs(&self) -> Result<Vec<(String, String)>> {
        let mut found = Vec::new();
        collect(
            &self.run.place.run.join("mpsd/jobs").join(self.job.id()),
            &mut found,
        );
        let mut logs = Vec::new();
        for path in found {
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            logs.push((name, fs::read_to_string(path)?));
        }
        Ok(logs)
    }

    fn keep(&mut self, name: &str, text: &str) {
        self.kept += &format!("=== {name}\n{text}\n");
    }
}

fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.file_name().and_then(|name| name.to_str()) {
            Some("control.log" | "server.log") => found.push(path),
            _ if path.is_dir() => collect(&path, found),
            _ => {}
        }
    }
}

//! What users and administrators see of a job on NVIDIA's daemon, and what `explain` says of
//! NVIDIA's logs.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tests::child::{self, Ran, Running};
use tests::place::kernel_tells_of_ends;

use crate::job::{self, Job};
use crate::result::Section;
use crate::site::Run;

/// Clients that run, and how many a GPU takes with driver 580.
const CLIENTS: usize = 8;
const MOST: usize = 48;
const SOON: Duration = Duration::from_secs(20);
const PROGRAM: Duration = Duration::from_secs(60);
const LOAD: &str = "90";

struct Scene<'a> {
    run: &'a Run,
    job: Job<'a>,
    kept: String,
}

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
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
        let names = |one: &&Running| ran.stdout.contains(&one.pid().to_string());
        let shown = clients.iter().filter(names);
        section.equal(
            format!("{name}: clients that it names"),
            &shown.count(),
            &CLIENTS,
        );
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
    let is_refused = extra.code == Some(1);
    section.check("one client too many is refused", is_refused, extra.story());
    scene.keep("refused", &extra.stderr);
    let server = scene.server()?;
    kill(Pid::from_raw(server.cast_signed()), Signal::SIGTERM)?;
    let ended = clients.into_iter().map(|client| client.finish(SOON));
    let ended = ended.collect::<Result<Vec<Ran>>>()?;
    let said = ended.first().map_or("", |ran| &ran.stderr);
    section.fact("a client whose server ended", said);
    let logs = scene.job.logs();
    scene.job.epilogue()?.success()?;
    let report = scene.mpsctl(false, &["report", scene.job.id()])?;
    scene.keep("report", &report.stdout);
    let json = scene.mpsctl(false, &["report", scene.job.id(), "--json"])?;
    scene.keep("report.json", &json.stdout);
    section.good("report: exit status", &report);
    let [ended, refused] = [server.to_string(), (MOST + 1).to_string()];
    for (what, words) in [("the ended server", ended), ("the refused client", refused)] {
        let told = report.stdout.contains(&words) || json.stdout.contains(&words);
        section.check(format!("report: {what}"), told, report.stdout.clone());
    }
    killed_is_named(section, killed_pid, &report.stdout);
    for (name, text) in logs
        .into_iter()
        .filter(|(name, _)| ["control.log", "server.log"].contains(&&**name))
    {
        let file = run.place.dir.join(&name);
        fs::write(&file, &text)?;
        scene.keep(&name, &text);
        let told = scene.mpsctl(true, &["explain", &file.display().to_string()])?;
        scene.keep(&format!("explain-{name}"), &told.stdout);
        section.good(format!("explain {name}"), &told);
    }
    let told = scene.mpsctl(true, &["explain", "806"])?;
    section.good("explain 806", &told);
    run.keep("seen.txt", &scene.kept)
}

/// In NVIDIA's log the killed client looks like one that ends by itself. Without Slurm the report
/// names it only if the kernel tells the job's `mpsd` how another process's child ended.
fn killed_is_named(section: &mut Section, pid: u32, report: &str) {
    let tells = kernel_tells_of_ends();
    let named = report.contains(&format!("client {pid} was ended by signal 9 (SIGKILL)"));
    if !tells {
        let why = "not tried: needs Linux 6.15 or Slurm";
        section.fact("report: the killed client", why);
    }
    section.check(
        "report: a killed client is named where the kernel tells, and else not",
        named == tells,
        report.to_owned(),
    );
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

    fn mpsctl(&self, as_user: bool, words: &[&str]) -> Result<Ran> {
        let mut command = match as_user {
            true => self.job.user_mpsctl(self.job.environment()?)?,
            false => self.job.mpsctl()?,
        };
        child::run(command.args(words), "", PROGRAM)
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
            let clients = gpus.into_iter().flatten();
            let clients = clients.filter_map(|gpu| gpu["clients"].as_array());
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

    fn keep(&mut self, name: &str, text: &str) {
        self.kept += &format!("=== {name}\n{text}\n");
    }
}

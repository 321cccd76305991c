//! A job whose clients hold more memory together than it may, in an MPS that another job shares: its
//! youngest client is ended, and the other job is not touched. They exceed it by plain allocations.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::tests::child::{self, Ran, Running};
use ::tests::place::own_cgroup;
use anyhow::{Context, Result};
use serde_json::Value;

use crate::job::Job;
use crate::result::Section;
use crate::site::Run;
use crate::timeline::within;

const SETTINGS: &str = "shared_gpus = true\nmemory_over_limit = \"terminate\"\n";
const ACCOUNT: &str = "MPS=true,MPS_MEM=job=8G";
const LIMIT_MIB: u64 = 8192;
/// Two such clients fit, and three do not, even if a context took nothing beyond 512 MiB.
const EACH_MIB: u64 = 3500;
/// The other job's account, and what each of its clients holds.
const OTHER: &str = "MPS=true,MPS_MEM=16G";
const OTHERS_MIB: u64 = 12_000;
/// How long clients run, seconds: longer than all looks at them.
const RUN: &str = "30";
const SOON: Duration = Duration::from_secs(15);
const PROGRAM: Duration = Duration::from_secs(60);
/// Longest until the youngest has ended: two looks of mpsd and NVIDIA's own time.
const ENDS_MS: f64 = 5000.0;
/// Time in which another client would be ended too.
const LOOKS: Duration = Duration::from_secs(4);

struct Member<'a> {
    run: &'a Run,
    job: Job<'a>,
    group: PathBuf,
}

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let Some(cgroups) = own_cgroup() else {
        section.fact("not tried", "this machine has no writable cgroup hierarchy");
        return Ok(());
    };
    let done = beside_another(section, run, &cgroups);
    for below in ["torque/7201.srv", "torque/7202.srv", "torque", ""] {
        let _ = fs::remove_dir(cgroups.join(below));
    }
    done
}

fn beside_another(section: &mut Section, run: &Run, cgroups: &Path) -> Result<()> {
    let one = Member::begin(run, cgroups, "7201.srv", ACCOUNT)?;
    let other = Member::begin(run, cgroups, "7202.srv", OTHER)?;
    let first = [one.client(EACH_MIB)?, one.client(EACH_MIB)?];
    let before = other.client(OTHERS_MIB)?;
    let since = Instant::now();
    let youngest = one.client(EACH_MIB)?;
    let after = other.client(OTHERS_MIB)?;
    let pid = youngest.pid();
    let ended = youngest.finish(PROGRAM)?;
    section.at_most(
        "ms until the youngest has ended",
        milliseconds(since),
        ENDS_MS,
    );
    section.equal("exit code of the youngest", &ended.code, &Some(1));
    section.fact("the youngest", ended.stderr.trim());
    child::pause(LOOKS)?;
    for (what, client) in [
        ("the job's first", &first[0]),
        ("the job's second", &first[1]),
    ] {
        section.check(
            format!("{what} client runs on"),
            child::alive(client.pid()),
            "",
        );
    }
    for (what, client) in [("an older", &before), ("a younger", &after)] {
        let name = format!("the other job's client runs on: {what} one");
        section.check(name, child::alive(client.pid()), "");
    }
    one.shown(section)?;
    for client in first.into_iter().chain([before, after]) {
        section.good("a client that was not touched", &client.finish(PROGRAM)?);
    }
    let ends =
        format!("their limit together is {LIMIT_MIB} MiB: client {pid}, the youngest, is ended");
    let said = one.end()?.said();
    section.fact("job 7201.srv at its end", said.trim());
    let name = "its output says it once";
    section.equal(name, &said.matches(&ends).count(), &1);
    let report = child::run(
        one.job.mpsctl()?.args(["report", one.job.id()]),
        "",
        PROGRAM,
    )?;
    let has_it = report.stdout.contains("MiB that they may together");
    section.check("its report has held and allowed", has_it, report.stdout);
    other.end()?;
    let report = child::run(
        other.job.mpsctl()?.args(["report", other.job.id()]),
        "",
        PROGRAM,
    )?;
    let has_none = !report.stdout.contains("that they may together");
    section.check("the other job's report has none", has_none, report.stdout);
    Ok(())
}

fn milliseconds(since: Instant) -> f64 {
    ::tests::samples::milliseconds(since.elapsed())
}

impl<'a> Member<'a> {
    fn begin(run: &'a Run, cgroups: &Path, id: &str, account: &str) -> Result<Self> {
        let job = Job::named(&run.place, run.gpu(), id)?.under("memory.toml", SETTINGS)?;
        job.prologue(account)?.success()?;
        let group = cgroups.join("torque").join(id);
        fs::create_dir_all(&group)?;
        Ok(Self { run, job, group })
    }

    /// A client that is attached.
    fn client(&self, mib: u64) -> Result<Running> {
        let place = &self.run.place;
        let mut command = place.as_user(&place.staged("cuda-load")?, &self.job.environment()?);
        command.args([
            "--after",
            "0",
            "--seconds",
            RUN,
            "--memory",
            &mib.to_string(),
        ]);
        let client = within(&self.group, || Running::start(&mut command, ""))?;
        let is_there = || {
            let status = self.status().unwrap_or_default();
            let clients = status["jobs"][0]["gpus"][0]["clients"].as_array();
            clients.is_some_and(|all| all.iter().any(|one| one["pid"] == client.pid()))
        };
        let every = Duration::from_millis(100);
        let came = child::until(SOON, every, || is_there() || !child::alive(client.pid()))?;
        anyhow::ensure!(came, "client {} does not attach", client.pid());
        Ok(client)
    }

    fn mpsctl(&self, words: &[&str]) -> Result<Ran> {
        child::run(self.job.mpsctl()?.args(words), "", PROGRAM)
    }

    fn status(&self) -> Result<Value> {
        let ran = self.mpsctl(&["status", self.job.id(), "--json"])?;
        serde_json::from_str(&ran.stdout).with_context(|| ran.story())
    }

    /// What status and metrics show of the job that was over its limit.
    fn shown(&self, section: &mut Section) -> Result<()> {
        let status = self.status()?;
        let gpu = &status["jobs"][0]["gpus"][0];
        section.equal(
            "status: allowed",
            &gpu["job_limit_mib"].as_u64(),
            &Some(LIMIT_MIB),
        );
        let held = gpu["job_held_mib"].as_u64();
        let within = 2 * EACH_MIB..LIMIT_MIB + 1024;
        let is_its = held.is_some_and(|held| within.contains(&held));
        section.check("status: held, of two clients", is_its, format!("{held:?}"));
        let metrics = self.mpsctl(&["metrics"])?;
        let id = self.job.id();
        let limits = metrics.stdout.lines();
        let mut limits = limits.filter(|line| line.starts_with("mpsd_job_memory_limit_bytes{"));
        let is_told = limits.next().is_some_and(|line| {
            line.contains(id) && line.ends_with(&format!(" {}", LIMIT_MIB << 20))
        });
        let name = "metrics: allowed, of this job alone";
        let alone = is_told && limits.next().is_none();
        section.check(name, alone, metrics.stdout.clone());
        Ok(())
    }

    fn end(&self) -> Result<Ran> {
        let ran = self.job.epilogue()?.success()?;
        fs::remove_dir(&self.group)?;
        Ok(ran)
    }
}

//! CUDA clients: several `mps-probe` at once, and what they report outside MPS and under a daemon
//! that was started by hand.

use std::process::Command;
use std::time::Duration;

use ::tests::child::{self, Ran, Running};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::job::Job;
use crate::result::Section;
use crate::runner::PROGRAM;
use crate::site::{self, Place, Run};

/// A thread percentage is granted in units of two multiprocessors: 25 % of 132 gave 32 and 10 %
/// gave 12 (recorded).
const SM_UNIT: f64 = 2.0;

/// How much less than the limit a client may get, in MiB: its context counts against the limit.
pub const MARGIN_MIB: u64 = 256;

pub const CLIENTS: usize = 8;

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub percent: f64,
    pub memory_mib: u64,
    pub device_sms: u64,
}

impl Limits {
    pub fn sms(&self) -> u64 {
        ((self.device_sms as f64 * self.percent / 100.0 / SM_UNIT).floor() * SM_UNIT) as u64
    }

    pub fn probe_options(&self) -> Vec<String> {
        let (sms, memory) = (self.sms().to_string(), self.memory_mib.to_string());
        let words = [
            "--json",
            "--require-mps",
            "--expect-sms",
            &sms,
            "--expect-mem",
            &memory,
        ];
        words.map(String::from).to_vec()
    }
}

#[derive(Debug, Clone)]
pub struct Client {
    pub code: Option<i32>,
    pub report: Value,
}

impl Client {
    pub fn number(&self, key: &str) -> Option<u64> {
        self.report["gpus"][0][key].as_u64()
    }

    pub fn sms(&self) -> Result<u64> {
        let none = || format!("the probe saw no multiprocessors: {}", self.report);
        self.number("sms").with_context(none)
    }

    pub fn word(&self, key: &str) -> &str {
        self.report["gpus"][0][key].as_str().unwrap_or("")
    }
}

/// Starts so many clients with the limits and a rank each, waits until all have reported, looks at
/// what nvidia-smi lists, and judges them.
pub fn at_once(section: &mut Section, place: &Place, job: &Job<'_>, limits: &Limits) -> Result<()> {
    let (probe, env) = (place.staged("mps-probe")?, job.environment()?);
    let start = |rank: usize| {
        let mut command = place.as_user(&probe, &env);
        command.env("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string());
        command.args(limits.probe_options()).args(["--hold", "2"]);
        Running::start(&mut command, "")
    };
    let started: Vec<Running> = (0..CLIENTS).map(start).collect::<Result<_>>()?;
    let has_said = |client: &Running| client.stdout_so_far().ends_with('\n');
    let is_done = |client| has_said(client) || !child::alive(client.pid());
    let all = || started.iter().all(is_done);
    let have_all = child::until(PROGRAM, Duration::from_millis(20), all)?;
    ensure!(have_all, "not all {CLIENTS} clients reported in time");
    let apps = "--query-compute-apps=pid,process_name --format=csv,noheader";
    let apps = site::smi(&apps.split(' ').collect::<Vec<_>>())?;
    let ended = started.into_iter();
    let clients = ended.map(|client| read(client.finish(PROGRAM * 2)?));
    let clients = clients.collect::<Result<Vec<Client>>>()?;
    judge(section, &clients, limits);
    section.fact("first_client", clients[0].report.to_string());
    let is_listed = |client: &&Client| {
        let pid = format!("{},", client.report["pid"]);
        apps.lines().any(|line| line.starts_with(&pid))
    };
    let listed = clients.iter().filter(is_listed).count();
    let name = "clients that nvidia-smi lists while they run";
    section.equal(name, &listed, &CLIENTS);
    Ok(())
}

pub fn alone(command: &mut Command) -> Result<Client> {
    read(child::run(command, "", PROGRAM)?)
}

fn read(ran: Ran) -> Result<Client> {
    let first = from_lines(&ran.stdout, ran.code).into_iter().next();
    first.with_context(|| format!("no report: {}", ran.story()))
}

/// Reads the reports of several clients on one stream, a line each. `code` is the exit code of
/// their launcher.
pub fn from_lines(stdout: &str, code: Option<i32>) -> Vec<Client> {
    let reports = stdout
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    reports.map(|report| Client { code, report }).collect()
}

/// Checks every client against the limits by the harness's own arithmetic, not only by the probe's
/// exit code.
pub fn judge(section: &mut Section, clients: &[Client], limits: &Limits) {
    let (sms, most) = (limits.sms(), limits.memory_mib);
    let least = most.saturating_sub(MARGIN_MIB);
    let allowed = |mib| (least..=most).contains(&mib);
    let good = |client: &&Client| {
        client.code == Some(0)
            && client.report["under_mps"] == true
            && client.number("sms") == Some(sms)
            && client.number("allocatable_mib").is_some_and(allowed)
            && client.report["gpus"][0]["memset_ok"] == true
    };
    let (good, bad): (Vec<&Client>, Vec<&Client>) = clients.iter().partition(good);
    let name = format!(
        "each client is under MPS, has {sms} multiprocessors and may allocate {least} to {most} \
         MiB, which it read back as written"
    );
    let seen = format!("{} good; not: {bad:?}", good.len());
    section.check(name, bad.is_empty() && !good.is_empty(), seen);
}

/// What a client outside MPS reports of the GPUs in `visible`. It looks for a daemon in a directory
/// that does not exist.
pub fn outside(run: &Run, visible: &str, options: &[&str]) -> Result<Client> {
    let mut env = site::base_env();
    let none = run.place.run.join("none").display().to_string();
    env.insert("CUDA_MPS_PIPE_DIRECTORY".into(), none);
    env.insert("CUDA_VISIBLE_DEVICES".into(), visible.into());
    let probe = run.place.staged("mps-probe")?;
    alone(run.place.as_user(&probe, &env).arg("--json").args(options))
}

pub fn bare(section: &mut Section, run: &Run) -> Result<u64> {
    let uuid = run.gpu().uuid.as_str();
    let client = outside(run, uuid, &["--alloc=1024"])?;
    let report = client.report.to_string();
    section.fact("bare_client", report.clone());
    let is_outside = client.report["under_mps"] == false;
    section.check("a client without a daemon says so", is_outside, report);
    section.equal("UUID as nvidia-smi tells it", &client.word("uuid"), &uuid);
    let refused = outside(run, uuid, &["--require-mps"])?;
    section.equal(
        "--require-mps outside MPS: exit code",
        &refused.code,
        &Some(1),
    );
    client.sms()
}

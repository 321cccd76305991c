//! CUDA clients: several `mps-probe` at once, and what they report outside MPS and under a daemon
//! that was started by hand.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use ::tests::child::{self, Ran, Running};
use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::result::Section;
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
    pub complaint: String,
    pub report: Value,
}

impl Client {
    pub fn number(&self, key: &str) -> Option<u64> {
        self.report["gpus"][0][key].as_u64()
    }

    pub fn sms(&self) -> Result<u64> {
        match self.number("sms") {
            Some(sms) => Ok(sms),
            None => bail!("the probe saw no multiprocessors: {}", self.report),
        }
    }

    pub fn word(&self, key: &str) -> &str {
        self.report["gpus"][0][key].as_str().unwrap_or("")
    }
}

/// Starts `count` clients with the limits and a rank each, waits until all have reported, calls
/// `look`, and judges them.
pub fn at_once<T>(
    section: &mut Section,
    place: &Place,
    env: &BTreeMap<String, String>,
    (count, limits): (usize, &Limits),
    look: impl FnOnce() -> Result<T>,
) -> Result<(Vec<Client>, T)> {
    let probe = place.staged("mps-probe")?;
    let start = |rank: usize| {
        let mut command = place.as_user(&probe, env);
        command.env("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string());
        Running::start(
            command.args(limits.probe_options()).args(["--hold", "2"]),
            "",
        )
    };
    let started: Vec<Running> = (0..count).map(start).collect::<Result<_>>()?;
    let has_said = |client: &Running| client.stdout_so_far().ends_with('\n');
    let is_done = |client| has_said(client) || !child::alive(client.pid());
    let all = || started.iter().all(is_done);
    if !child::until(Duration::from_secs(60), Duration::from_millis(20), all)? {
        bail!("not all {count} clients reported within 60 s")
    }
    let seen = look()?;
    let ended = started.into_iter();
    let ended = ended.map(|client| client.finish(Duration::from_secs(120)));
    let clients = ended
        .map(|ran| read(ran?))
        .collect::<Result<Vec<Client>>>()?;
    judge(section, &clients, limits);
    if let Some(client) = clients.first() {
        section.fact("first_client", client.report.to_string());
    }
    Ok((clients, seen))
}

pub fn alone(command: &mut Command) -> Result<Client> {
    read(child::run(command, "", Duration::from_secs(60))?)
}

fn read(ran: Ran) -> Result<Client> {
    let line = ran.stdout.lines().next().unwrap_or("");
    let report =
        serde_json::from_str(line).with_context(|| format!("no report: {}", ran.story()))?;
    Ok(Client {
        code: ran.code,
        complaint: ran.stderr.trim().to_owned(),
        report,
    })
}

/// Reads the reports of several clients on one stream, a line each. `code` is the exit code of
/// their launcher.
pub fn from_lines(stdout: &str, code: Option<i32>) -> Vec<Client> {
    let reports = stdout
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    let client = |report| Client {
        code,
        complaint: String::new(),
        report,
    };
    reports.map(client).collect()
}

/// Checks every client against the limits by the harness's own arithmetic, not only by the probe's
/// exit code.
pub fn judge(section: &mut Section, clients: &[Client], limits: &Limits) {
    let numbers = |key| -> Vec<Option<u64>> { clients.iter().map(|one| one.number(key)).collect() };
    let all = |values: &[Option<u64>], good: &dyn Fn(u64) -> bool| {
        !values.is_empty() && values.iter().all(|value| value.is_some_and(good))
    };
    let codes: Vec<_> = clients.iter().map(|client| client.code).collect();
    let good = codes.iter().all(|code| *code == Some(0));
    section.check("every client's own verdict", good, format!("{codes:?}"));
    let under = clients.iter().filter(|one| one.report["under_mps"] == true);
    section.equal("clients under MPS", &under.count(), &clients.len());
    let (seen, wanted) = (numbers("sms"), limits.sms());
    section.check(
        format!("multiprocessors of each client are {wanted}"),
        all(&seen, &|value| value == wanted),
        format!("{seen:?}"),
    );
    let (seen, most) = (numbers("allocatable_mib"), limits.memory_mib);
    let least = most.saturating_sub(MARGIN_MIB);
    section.check(
        format!("each client may allocate {least} to {most} MiB"),
        all(&seen, &|value| (least..=most).contains(&value)),
        format!("{seen:?}"),
    );
    let memsets = clients.iter();
    let memsets = memsets.filter(|one| one.report["gpus"][0]["memset_ok"] == true);
    section.equal(
        "memory read back as written",
        &memsets.count(),
        &clients.len(),
    );
    let complaints = clients.iter().map(|client| client.complaint.as_str());
    let complaints: Vec<&str> = complaints.filter(|text| !text.is_empty()).collect();
    if !complaints.is_empty() {
        section.fact("complaints", complaints.join("\n"));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        percent: 25.0,
        memory_mib: 4096,
        device_sms: 132,
    };

    #[test]
    fn one_client_with_too_much_memory_fails_the_judgement() {
        let client = |mib: u64| Client {
            code: Some(0),
            complaint: String::new(),
            report: serde_json::json!({"under_mps": true, "gpus": [{"sms": 32, "allocatable_mib": mib, "memset_ok": true}]}),
        };
        let failed = |clients: &[Client]| {
            let mut section = Section::new("test");
            judge(&mut section, clients, &LIMITS);
            section.checks.iter().filter(|check| !check.ok).count()
        };
        assert_eq!(failed(&[client(3840), client(4096)]), 0);
        assert_eq!(failed(&[client(3840), client(4160)]), 1);
        assert_eq!(failed(&[client(3776)]), 1);
        assert_eq!(failed(&[]), 2, "no client at all is no success");
    }
}

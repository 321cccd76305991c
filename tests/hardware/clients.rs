//! CUDA clients: several `mps-probe` at once, and what they report in a job and outside MPS.

use std::time::Duration;

use ::tests::child::{self, Ran, Running};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::job::{Job, MEMORY_MIB, PERCENT};
use crate::result::Section;
use crate::runner::{PROGRAM, Scene};
use crate::site::{self, Run};

/// A thread percentage is granted in units of two multiprocessors: 25 % of 132 gave 32 and 10 %
/// gave 12 (recorded).
const SM_UNIT: f64 = 2.0;

/// How much less than the limit a client may get, in MiB: its context counts against the limit.
pub const MARGIN_MIB: u64 = 256;

pub const CLIENTS: usize = 8;

fn sms(run: &Run) -> u64 {
    ((run.device_sms as f64 * PERCENT / 100.0 / SM_UNIT).floor() * SM_UNIT) as u64
}

pub fn probe_options(run: &Run) -> String {
    let sms = sms(run);
    format!("--json --require-mps --expect-sms {sms} --expect-mem {MEMORY_MIB}")
}

#[derive(Debug, Clone)]
pub struct Client {
    code: Option<i32>,
    report: Value,
}

impl Client {
    fn gpu(&self, key: &str) -> &Value {
        &self.report["gpus"][0][key]
    }
}

/// Starts so many clients with the limits and a rank each in the job that the table begins, waits
/// until all have reported, looks at what nvidia-smi lists, and judges them.
pub fn at_once(scene: &mut Scene<'_>) -> Result<()> {
    let (run, job) = (scene.run, scene.job("4711.srv")?);
    let (probe, env) = (run.place.staged("mps-probe")?, job.environment()?);
    scene.fact("task_environment", format!("{env:?}"));
    let server = job.ask("get_server_list")?;
    let status = job.ask(&format!("get_server_status {server}"))?;
    let name = "read back: server status";
    scene.section.equal(name, &status.as_str(), &"ACTIVE");
    idle(scene.section, &job)?;
    let options = probe_options(run);
    let start = |rank: usize| {
        let mut command = run.place.as_user(&probe, &env);
        command.env("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string());
        command.args(options.split(' ')).args(["--hold", "2"]);
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
    judge(scene.section, &clients, run);
    let first = clients[0].report.to_string();
    scene.fact("first_client", first);
    let is_listed = |client: &&Client| {
        let pid = format!("{},", client.report["pid"]);
        apps.lines().any(|line| line.starts_with(&pid))
    };
    let listed = clients.iter().filter(is_listed).count();
    let name = "clients that nvidia-smi lists while they run";
    scene.section.equal(name, &listed, &CLIENTS);
    Ok(())
}

/// The cost of an idle `mpsd`: wake-ups in two seconds, and its share of memory as the kernel
/// counts it.
fn idle(section: &mut Section, job: &Job<'_>) -> Result<()> {
    let pid = job.mpsd_pid()?;
    let number = |file: &str, name: &str| -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}"))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        number.with_context(|| format!("no '{name}' in '/proc/{pid}/{file}'"))
    };
    let turns = || number("status", "voluntary_ctxt_switches:");
    // Time for its work after the questions by hand.
    child::pause(Duration::from_millis(500))?;
    let before = turns()?;
    child::pause(Duration::from_secs(2))?;
    section.equal("wake-ups of mpsd in 2 s", &turns()?, &before);
    let kib = number("smaps_rollup", "Pss:")? as f64;
    section.at_most("KiB that mpsd takes", kib, 3.0 * 1024.0);
    Ok(())
}

fn read(ran: Ran) -> Result<Client> {
    let first = from_lines(&ran.stdout, ran.code).into_iter().next();
    first.with_context(|| format!("no report: {}", ran.story()))
}

/// Reads the reports of several clients on one stream, a line each. `code` is the exit code of
/// their launcher.
pub fn from_lines(stdout: &str, code: Option<i32>) -> Vec<Client> {
    let lines = stdout.lines();
    let reports = lines.filter_map(|line| serde_json::from_str(line).ok());
    reports.map(|report| Client { code, report }).collect()
}

/// Checks every client against the limits by the harness's own arithmetic, not only by the probe's
/// exit code.
pub fn judge(section: &mut Section, clients: &[Client], run: &Run) {
    let (sms, least) = (sms(run), MEMORY_MIB - MARGIN_MIB);
    let allowed = |mib| (least..=MEMORY_MIB).contains(&mib);
    let good = |client: &&Client| {
        client.code == Some(0)
            && client.report["under_mps"] == true
            && *client.gpu("sms") == sms
            && client.gpu("allocatable_mib").as_u64().is_some_and(allowed)
            && *client.gpu("memset_ok") == true
    };
    let (good, bad): (Vec<&Client>, Vec<&Client>) = clients.iter().partition(good);
    let name = format!(
        "each client is under MPS, has {sms} multiprocessors and may allocate {least} to \
         {MEMORY_MIB} MiB, which it read back as written"
    );
    let seen = format!("{} good; not: {bad:?}", good.len());
    section.check(name, bad.is_empty() && !good.is_empty(), seen);
}

/// What a client outside MPS reports of the GPU. It looks for a daemon in a directory that does not
/// exist. Returns the GPU's multiprocessors.
pub fn bare(section: &mut Section, run: &Run) -> Result<u64> {
    let uuid = run.gpu().uuid.as_str();
    let mut env = site::base_env();
    let none = run.place.run.join("none").display().to_string();
    env.insert("CUDA_MPS_PIPE_DIRECTORY".into(), none);
    env.insert("CUDA_VISIBLE_DEVICES".into(), uuid.into());
    let mut probe = run.place.as_user(&run.place.staged("mps-probe")?, &env);
    let client = read(child::run(
        probe.args(["--json", "--alloc=1024"]),
        "",
        PROGRAM,
    )?)?;
    let report = client.report.to_string();
    section.fact("bare_client", report.clone());
    let is_outside = client.report["under_mps"] == false;
    section.check("a client without a daemon says so", is_outside, &*report);
    let name = "UUID as nvidia-smi tells it";
    section.equal(name, &client.gpu("uuid").as_str(), &Some(uuid));
    let refused = child::run(probe.arg("--require-mps"), "", PROGRAM)?;
    let name = "--require-mps outside MPS: exit code";
    section.equal(name, &refused.code, &Some(1));
    let none = || format!("the probe saw no multiprocessors: {report}");
    client.gpu("sms").as_u64().with_context(none)
}

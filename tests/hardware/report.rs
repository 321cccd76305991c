//! What reports say of wasteful jobs and of a good one, what their advice brings, and what
//! measuring costs a job.
//!
//! All run small kernels of `cuda-load`. A kernel of [`WHOLE`] blocks fills an H100 or H200 once;
//! one block keeps one of its 132 multiprocessors busy.

use std::fs;
use std::time::Duration;

use ::tests::child::{self, Running};
use ::tests::samples::{in_turn, median, rounded};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::job::Job;
use crate::result::Section;
use crate::site::{self, Run};

/// Sixteen blocks of 128 threads on each of 132 multiprocessors.
const WHOLE: u32 = 2112;
const PROGRAM: Duration = Duration::from_secs(60);
/// From a client's start until all count, and for how long. Seconds. `mpsd` looks 1, 2, 4 and 8
/// seconds after the first client. So each client of [`cost`] counts through more looks than a
/// client of a long job does in the same time.
const UP: f64 = 2.0;
const COUNT: f64 = 8.0;
const FOLLOWED: f64 = 4.0;
const COST: f64 = 10.0;
/// Interleaved pairs with and without measuring, and the highest cost.
const PAIRS: usize = 4;
const MOST: f64 = 0.002;
const UNMEASURED: &str = "memory_over_limit = \"ignore\"\n[reports]\nkeep = 0\n";

struct Waste {
    name: &'static str,
    /// The rule that must apply; empty if none must.
    rule: &'static str,
    before: Work,
    /// The same work as advised.
    after: Option<Work>,
}

#[derive(Clone, Copy)]
struct Work {
    account: &'static str,
    clients: usize,
    blocks: u32,
    memory_mib: usize,
}

const fn work(account: &'static str, clients: usize, blocks: u32) -> Work {
    Work {
        account,
        clients,
        blocks,
        memory_mib: 0,
    }
}

const fn holding(memory_mib: usize, work: Work) -> Work {
    Work { memory_mib, ..work }
}

const WASTES: [Waste; 5] = [
    Waste {
        name: "good",
        rule: "",
        before: work("MPS=true", 4, WHOLE / 4),
        after: None,
    },
    Waste {
        name: "one client",
        rule: "one-client",
        before: work("MPS=true", 1, 1),
        after: Some(work("MPS=true", 16, 1)),
    },
    Waste {
        name: "four clients at 10 %",
        rule: "threads",
        before: work("MPS=true,MPS_THREADS=10", 4, WHOLE),
        after: Some(work("MPS=true,MPS_THREADS=50", 4, WHOLE)),
    },
    Waste {
        name: "nearly out of memory",
        rule: "memory",
        before: holding(3550, work("MPS=true,MPS_MEM=4G", 4, WHOLE / 4)),
        // With a quarter more input, which the limit does not allow (below).
        after: Some(holding(4438, work("MPS=true,MPS_MEM=8G", 4, WHOLE / 4))),
    },
    // Judged by the multiprocessors in use. Without that counter, a kernel that always runs leaves
    // no room.
    Waste {
        name: "room",
        rule: "room",
        before: work("MPS=true", 4, 1),
        after: Some(work("MPS=true", 12, 1)),
    },
];

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let mut kept = String::new();
    for (number, waste) in WASTES.iter().enumerate() {
        eprintln!("hardware: report of '{}'", waste.name);
        kept += &one(section, run, number, waste)?;
    }
    run.keep("report.txt", &kept)?;
    cost(section, run)
}

fn one(section: &mut Section, run: &Run, number: usize, waste: &Waste) -> Result<String> {
    let name = waste.name;
    let job = Job::named(
        &run.place,
        run.gpu(),
        &format!("{}.srv", 7300 + 10 * number),
    )?;
    job.prologue(waste.before.account)?.success()?;
    let clients = start(run, &job, waste.before, COUNT)?;
    if name == "good" {
        // The length of the driver's buffers, as a foreign program sees it.
        child::pause(Duration::from_secs_f64(UP + COUNT / 2.0))?;
        let samples = site::smi(&["-q", "-d", "UTILIZATION"])?;
        section.fact("nvidia-smi -q -d UTILIZATION", samples);
    }
    let before = sum(clients)?;
    if name == "nearly out of memory" {
        let too_much = waste.after.context("what was advised")?.memory_mib;
        let load = Work {
            clients: 1,
            memory_mib: too_much,
            ..waste.before
        };
        let refused = start(run, &job, load, 1.0)?.remove(0).finish(PROGRAM)?;
        let is_refused = refused.code != Some(0) && refused.stderr.contains("no memory");
        section.check(
            format!("{name}: {too_much} MiB are refused"),
            is_refused,
            refused.story(),
        );
    }
    // The time between the end of a scheduler's last task and its epilogue.
    child::pause(Duration::from_millis(300))?;
    let epilogue = job.end(section, &format!("{name}: "))?;
    section.fact(&format!("{name}: epilogue_ms"), epilogue.ms());
    let report = |more: &[&str]| {
        let mut command = job.user_mpsctl(site::base_env())?;
        child::run(command.args(["report", job.id()]).args(more), "", PROGRAM)?.success()
    };
    let (text, json) = (report(&[])?.stdout, report(&["--json"])?.stdout);
    println!("\n{name}\n{text}");
    section.fact(&format!("{name}: report"), text.as_str());
    section.fact(&format!("{name}: per_second"), rounded(before));
    let told: Value = serde_json::from_str(&json).with_context(|| json.clone())?;
    run.keep(&format!("report-{number}.json"), &json)?;
    let usage = &told["said_by_user"]["usage"]["gpus"][0];
    let counted = usage["busy_percent"].is_u64() && usage["energy_mj"].is_u64();
    section.check(
        format!("{name}: busy and energy are counted"),
        counted,
        usage.to_string(),
    );
    let rule = told["advice"]["rule"].as_str().unwrap_or_default();
    let expected = match usage["sm_percent"].is_u64() {
        false if waste.rule == "room" => "",
        _ => waste.rule,
    };
    section.equal(format!("{name}: rule"), &rule, &expected);
    let mut kept =
        format!("{name}\n\n{text}\n{before:.0} kernels a second, all clients together\n");
    if let Some(after) = waste.after {
        let job = Job::named(
            &run.place,
            run.gpu(),
            &format!("{}.srv", 7301 + 10 * number),
        )?;
        job.prologue(after.account)?.success()?;
        let after = sum(start(run, &job, after, FOLLOWED)?)?;
        job.end(section, &format!("{name}, as advised: "))?;
        section.fact(&format!("{name}, as advised: per_second"), rounded(after));
        let gain = after / before;
        section.fact(&format!("{name}: gain"), rounded(gain));
        if waste.rule == "memory" {
            kept += "a quarter more memory was refused; as advised it is held\n";
        } else {
            let helps = format!("{name}: the advice helps");
            section.check(helps, gain > 1.2, format!("{gain:.2}"));
        }
        kept += &format!("as advised: {after:.0} ({gain:.2} times)\n");
    }
    Ok(kept + "\n")
}

fn start(run: &Run, job: &Job<'_>, work: Work, seconds: f64) -> Result<Vec<Running>> {
    let env = job.environment()?;
    let load = run.place.staged("cuda-load")?;
    let client = |_| {
        let mut command = run.place.as_user(&load, &env);
        command.args([
            "--after",
            &UP.to_string(),
            "--seconds",
            &seconds.to_string(),
        ]);
        command.args([
            "--blocks",
            &work.blocks.to_string(),
            "--memory",
            &work.memory_mib.to_string(),
        ]);
        Running::start(&mut command, "")
    };
    (0..work.clients).map(client).collect()
}

/// Kernels a second of all clients together.
fn sum(clients: Vec<Running>) -> Result<f64> {
    let mut sum = 0.0;
    for client in clients {
        let ran = client.finish(PROGRAM)?.success()?;
        let told: Value = serde_json::from_str(&ran.stdout).with_context(|| ran.story())?;
        sum += told["per_second"].as_f64().context("kernels a second")?;
    }
    ensure!(sum > 0.0, "the clients ran no kernel");
    Ok(sum)
}

/// The same load in two jobs in turn, only one of which is measured. Only one of them has clients
/// at a time.
fn cost(section: &mut Section, run: &Run) -> Result<()> {
    let job = |id: &str| Job::named(&run.place, run.gpu(), id);
    let jobs = [
        job("7390.srv")?,
        job("7391.srv")?.under("unmeasured.toml", UNMEASURED)?,
    ];
    for job in &jobs {
        job.prologue("MPS=true")?.success()?;
    }
    let figures = in_turn(&jobs, PAIRS, |job, pair| {
        eprintln!("hardware: cost of measuring, pair {pair} of {PAIRS}");
        let load = start(run, job, work("MPS=true", 4, WHOLE / 4), COST)?;
        Ok(rounded(sum(load)?))
    })?;
    let pairs = figures[0].iter().zip(&figures[1]);
    let ratios: Vec<f64> = pairs.map(|(measured, plain)| measured / plain).collect();
    let cpu_ms = jobs.each_ref().map(|job| cpu_ms(job));
    let [measured, unmeasured] = &jobs;
    measured.end(section, "measured: ")?;
    unmeasured.end(section, "unmeasured: ")?;
    section.times("measured_per_second", &figures[0]);
    section.times("unmeasured_per_second", &figures[1]);
    for (name, cpu_ms) in ["measured", "unmeasured"].into_iter().zip(cpu_ms) {
        section.fact(&format!("{name}: mpsd_cpu_ms"), cpu_ms?);
    }
    let cost = 1.0 - median(&ratios);
    section.fact("cost_of_measuring", cost);
    section.check(
        format!("measuring costs {} % at most", MOST * 100.0),
        cost <= MOST,
        format!("{:.3} %, ratios {ratios:?}", cost * 100.0),
    );
    Ok(())
}

/// CPU time of the job's `mpsd` since its start.
fn cpu_ms(job: &Job<'_>) -> Result<f64> {
    let pid = job.mpsd_pid()?;
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat"))?;
    let nanoseconds: f64 = text.split(' ').next().context("schedstat")?.parse()?;
    Ok(rounded(nanoseconds / 1e6))
}

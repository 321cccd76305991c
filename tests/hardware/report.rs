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

use crate::job::{Job, Order, PLAIN};
use crate::runner::{PROGRAM, Scene, counted};
use crate::site;

/// Sixteen blocks of 128 threads on each of 132 multiprocessors.
const WHOLE: u32 = 2112;
/// From a client's start until all count, and for how long. Seconds. `mpsd` looks 1, 2, 4 and 8
/// seconds after the first client. So each client of [`cost`] counts through more looks than a
/// client of a long job does in the same time.
const UP: f64 = 2.0;
const COUNT: f64 = 8.0;
const FOLLOWED: f64 = 4.0;
const COST: f64 = 10.0;

struct Waste {
    name: &'static str,
    /// The rule that must apply; empty if none must.
    rule: &'static str,
    before: Load,
    /// The same work as advised.
    after: Option<Load>,
}

#[derive(Clone, Copy)]
struct Load {
    order: Order,
    clients: usize,
    blocks: u32,
    memory_mib: u64,
}

const fn load(id: &'static str, account: &'static str, clients: usize, blocks: u32) -> Load {
    Load {
        order: Order::new(id, account),
        clients,
        blocks,
        memory_mib: 0,
    }
}

const fn holding(memory_mib: u64, load: Load) -> Load {
    Load { memory_mib, ..load }
}

const WASTES: [Waste; 5] = [
    Waste {
        name: "good",
        rule: "",
        before: load("7300.srv", PLAIN, 4, WHOLE / 4),
        after: None,
    },
    Waste {
        name: "one client",
        rule: "one-client",
        before: load("7310.srv", PLAIN, 1, 1),
        after: Some(load("7311.srv", PLAIN, 16, 1)),
    },
    Waste {
        name: "four clients at 10 %",
        rule: "threads",
        before: load("7320.srv", "MPS=true,MPS_THREADS=10", 4, WHOLE),
        after: Some(load("7321.srv", "MPS=true,MPS_THREADS=50", 4, WHOLE)),
    },
    Waste {
        name: "nearly out of memory",
        rule: "memory",
        before: holding(3550, load("7330.srv", "MPS=true,MPS_MEM=4G", 4, WHOLE / 4)),
        // With a quarter more input, which the limit does not allow (below).
        after: Some(holding(
            4438,
            load("7331.srv", "MPS=true,MPS_MEM=8G", 4, WHOLE / 4),
        )),
    },
    // Judged by the multiprocessors in use. Without that counter, a kernel that always runs leaves
    // no room.
    Waste {
        name: "room",
        rule: "room",
        before: load("7340.srv", PLAIN, 4, 1),
        after: Some(load("7341.srv", PLAIN, 12, 1)),
    },
];

pub fn wastes(scene: &mut Scene<'_>) -> Result<()> {
    let mut kept = String::new();
    for (number, waste) in WASTES.iter().enumerate() {
        eprintln!("hardware: report of '{}'", waste.name);
        kept += &one(scene, number, waste)?;
    }
    scene.run.keep("report.txt", &kept)
}

fn one(scene: &mut Scene<'_>, number: usize, waste: &Waste) -> Result<String> {
    let name = waste.name;
    let job = scene.begin(&waste.before.order)?;
    let clients = start(&job, waste.before, COUNT)?;
    if name == "good" {
        // The length of the driver's buffers, as a foreign program sees it.
        child::pause(Duration::from_secs_f64(UP + COUNT / 2.0))?;
        let samples = site::smi(&["-q", "-d", "UTILIZATION"])?;
        scene.fact("nvidia-smi -q -d UTILIZATION", samples);
    }
    let before = sum(clients)?;
    if waste.rule == "memory" {
        let too_much = waste.after.context("what was advised")?.memory_mib;
        let load = Load {
            clients: 1,
            ..holding(too_much, waste.before)
        };
        let refused = start(&job, load, 1.0)?.remove(0).finish(PROGRAM)?;
        let is_refused = refused.code != Some(0) && refused.stderr.contains("no memory");
        let name = format!("{name}: {too_much} MiB are refused");
        scene.check(name, is_refused, refused.story());
    }
    // The time between the end of a scheduler's last task and its epilogue.
    child::pause(Duration::from_millis(300))?;
    scene.end(&job.id)?;
    let report = |more: &[&str]| {
        let mut command = job.user_mpsctl(site::base_env())?;
        child::run(command.args(["report", &job.id]).args(more), "", PROGRAM)?.success()
    };
    let (text, json) = (report(&[])?.stdout, report(&["--json"])?.stdout);
    println!("\n{name}\n{text}");
    scene.run.keep(&format!("report-{number}.json"), &json)?;
    let section = &mut *scene.section;
    section.fact(&format!("{name}: report"), text.as_str());
    section.fact(&format!("{name}: per_second"), rounded(before));
    let told: Value = serde_json::from_str(&json).with_context(|| json.clone())?;
    let usage = &told["said_by_user"]["usage"]["gpus"][0];
    let counted = usage["busy_percent"].is_u64() && usage["energy_mj"].is_u64();
    let busy = format!("{name}: busy and energy are counted");
    section.check(busy, counted, usage.to_string());
    let rule = told["advice"]["rule"].as_str().unwrap_or_default();
    let no_counter = waste.rule == "room" && !usage["sm_percent"].is_u64();
    let expected = if no_counter { "" } else { waste.rule };
    section.equal(format!("{name}: rule"), &rule, &expected);
    let mut kept =
        format!("{name}\n\n{text}\n{before:.0} kernels a second, all clients together\n");
    if let Some(after) = waste.after {
        kept += &followed(scene, waste, before, after)?;
    }
    Ok(kept + "\n")
}

fn followed(scene: &mut Scene<'_>, waste: &Waste, before: f64, after: Load) -> Result<String> {
    let name = waste.name;
    let job = scene.begin(&after.order)?;
    let after = sum(start(&job, after, FOLLOWED)?)?;
    scene.end(&job.id)?;
    let gain = after / before;
    scene.fact(&format!("{name}, as advised: per_second"), rounded(after));
    scene.fact(&format!("{name}: gain"), rounded(gain));
    let told = format!("as advised: {after:.0} ({gain:.2} times)\n");
    if waste.rule == "memory" {
        return Ok("a quarter more memory was refused; as advised it is held\n".to_owned() + &told);
    }
    let helps = format!("{name}: the advice helps");
    scene.check(helps, gain > 1.2, format!("{gain:.2}"));
    Ok(told)
}

fn start(job: &Job<'_>, load: Load, seconds: f64) -> Result<Vec<Running>> {
    let (blocks, memory) = (load.blocks, load.memory_mib);
    let options = format!("--after {UP} --seconds {seconds} --blocks {blocks} --memory {memory}");
    job.load(load.clients, &options)
}

/// Kernels a second of all clients together.
fn sum(clients: Vec<Running>) -> Result<f64> {
    let mut sum = 0.0;
    for client in clients {
        let ran = client.finish(PROGRAM)?.success()?;
        let [client] = &counted(&ran.stdout)[..] else {
            anyhow::bail!("no figure: {}", ran.story());
        };
        sum += client.per_second;
    }
    ensure!(sum > 0.0, "the clients ran no kernel");
    Ok(sum)
}

/// The same load in two jobs in turn, only one of which is measured. Only one of them has clients
/// at a time.
pub fn cost(scene: &mut Scene<'_>) -> Result<()> {
    const UNMEASURED: Order = Order {
        settings: "memory_over_limit = \"ignore\"\n[reports]\nkeep = 0\n",
        ..Order::new("7391.srv", PLAIN)
    };
    const PAIRS: usize = 4;
    const MOST: f64 = 0.002;
    let jobs = [
        scene.begin(&Order::new("7390.srv", PLAIN))?,
        scene.begin(&UNMEASURED)?,
    ];
    let figures = in_turn(&jobs, PAIRS, |job, pair| {
        eprintln!("hardware: cost of measuring, pair {pair} of {PAIRS}");
        let clients = start(job, load("", "", 4, WHOLE / 4), COST)?;
        Ok(rounded(sum(clients)?))
    })?;
    for ((name, job), figures) in ["measured", "unmeasured"].iter().zip(&jobs).zip(&figures) {
        scene.fact(&format!("{name}: mpsd_cpu_ms"), cpu_ms(job)?);
        scene.section.times(&format!("{name}_per_second"), figures);
        scene.end(&job.id)?;
    }
    let pairs = figures[0].iter().zip(&figures[1]);
    let ratios: Vec<f64> = pairs.map(|(measured, plain)| measured / plain).collect();
    let cost = 1.0 - median(&ratios);
    scene.fact("cost_of_measuring", cost);
    let seen = format!("{:.3} %, ratios {ratios:?}", cost * 100.0);
    let name = format!("measuring costs {} % at most", MOST * 100.0);
    scene.check(name, cost <= MOST, seen);
    Ok(())
}

fn cpu_ms(job: &Job<'_>) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{}/schedstat", job.mpsd_pid()?))?;
    let nanoseconds: f64 = text.split(' ').next().context("schedstat")?.parse()?;
    Ok(rounded(nanoseconds / 1e6))
}

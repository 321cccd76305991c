//! What a case does beyond the steps of the table: it asks NVIDIA's daemon and `mpsctl`, and judges
//! their answers.

use std::fs;
use std::process::Command;
use std::time::Duration;

use ::tests::child;
use anyhow::{Context, Result};

use crate::clients::{self, CLIENTS};
use crate::job::Job;
use crate::result::Section;
use crate::runner::{PROGRAM, Scene};
use crate::site;

/// The most clients of a GPU with driver 580.
pub const MOST: usize = 48;

// The whole job.

/// The limits of the job that the table begins, as the daemon says them and as clients find them.
pub fn limits(scene: &mut Scene<'_>) -> Result<()> {
    let run = scene.run;
    let (limits, gpu) = (&run.limits, &run.gpu().uuid);
    let job = scene.job("4711.srv")?;
    let section = &mut *scene.section;
    section.fact("task_environment", format!("{:?}", job.environment()?));
    let threads = job
        .ask("get_default_active_thread_percentage")?
        .parse()
        .ok();
    section.equal(
        "read back: thread percentage",
        &threads,
        &Some(limits.percent),
    );
    let memory = job.ask(&format!("get_default_device_pinned_mem_limit {gpu}"))?;
    let expected = Some(limits.memory_mib);
    section.equal("read back: memory limit", &mebibytes(&memory), &expected);
    let server = job.ask("get_server_list")?;
    let status = job.ask(&format!("get_server_status {server}"))?;
    section.equal("read back: server status", &status.as_str(), &"ACTIVE");
    idle(section, &job)?;
    clients::at_once(section, &run.place, &job, limits)
}

/// The cost of an idle `mpsd`: wake-ups in two seconds, and its share of memory as the kernel
/// counts it.
fn idle(section: &mut Section, job: &Job<'_>) -> Result<()> {
    let pid = job.mpsd_pid()?;
    let number = |file: &str, name: &str| -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{pid}/{file}"))?;
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
    section.fact("mpsd_rss_kib", number("status", "VmRSS:")? as i64);
    let kib = number("smaps_rollup", "Pss:")? as f64;
    section.at_most("KiB that mpsd takes", kib, 3.0 * 1024.0);
    Ok(())
}

/// The daemon's answer about a memory limit (`3G`, `4096M`) in MiB.
fn mebibytes(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.len().checked_sub(1)?);
    let number: u64 = number.parse().ok()?;
    match unit {
        "G" => Some(number << 10),
        "M" => Some(number),
        "K" => Some(number >> 10),
        _ => None,
    }
}

/// The same job by `srun`. The first of its runs also brings the programs into the page cache.
pub fn by_srun(scene: &mut Scene<'_>) -> Result<()> {
    const RUNS: usize = 3;
    let (limits, (bed, user)) = (&scene.run.limits, scene.bed()?);
    let probe = scene.run.place.staged("mps-probe")?.display().to_string();
    let line = format!("--gres=gpu:1 --mps --mps-threads=25 --mps-mem=4G -n{CLIENTS} {probe}");
    let options = limits.probe_options();
    let words = line.split(' ').chain(options.iter().map(String::as_str));
    let words: Vec<&str> = words.collect();
    for number in 0..RUNS {
        let ran = bed.srun(&user, &words, PROGRAM)?;
        scene.section.fact(&format!("srun_{number}_ms"), ran.ms());
        scene.section.good(format!("srun {number}"), &ran);
        let clients = clients::from_lines(&ran.stdout, ran.code);
        let name = format!("srun {number}: a report of each task");
        scene.section.equal(name, &clients.len(), &CLIENTS);
        clients::judge(scene.section, &clients, limits);
    }
    Ok(())
}

/// The contract suite against NVIDIA's control daemon, with the same tests as against the double:
/// the result of each belief.
pub fn contract(scene: &mut Scene<'_>) -> Result<()> {
    let place = &scene.run.place;
    let mut command = Command::new(place.staged("contract")?);
    command.current_dir("/").env("MPS_SUBJECT", "nvidia");
    command.args(["--test-threads=1", "--nocapture"]);
    if let Ok(control) = site::program("nvidia-cuda-mps-control") {
        command.env("MPS_CONTROL", control);
    }
    command.env("MPS_PROBE", place.bin("mps-probe"));
    command.env("MPS_LOAD", place.bin("cuda-load"));
    command.env("MPS_USER", &place.user.name);
    let ran = child::run(&mut command, "", PROGRAM * 7)?;
    let mut lines = ran.stdout.lines();
    let summary = lines.rfind(|line| line.starts_with("test result:"));
    let summary = summary.unwrap_or("no summary");
    let section = &mut *scene.section;
    section.fact("summary", summary);
    section.fact("seconds", (ran.wall.as_secs_f64() * 10.0).round() / 10.0);
    section.fact("output", ran.said());
    let good = ran.code == Some(0) && summary.contains(": ok.");
    section.check("contract suite with MPS_SUBJECT=nvidia", good, summary);
    Ok(())
}

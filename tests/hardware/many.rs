//! All GPUs of one host: jobs of a GPU each that start and end at once, one job of all GPUs, the load that they take together,
//! the GPU near a task's core, and a GPU full of clients beside busy ones.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::tests::slurm::{Bed, User};
use anyhow::{Context, Result, bail};

use crate::bind;
use crate::child::{self, Running};
use crate::debs::Debs;
use crate::job::{self, Job};
use crate::look::{self, Look};
use crate::result::{self, Section, Spread};
use crate::site::{self, Gpu, Place};
use crate::slurm::{self, Slice, tail};
use crate::vendor::Daemon;

/// How often jobs start and end at once, and each alone.
const ROUNDS: usize = 8;
/// Starts, or ends, at once may take this many times one alone.
const LIMIT: f64 = 1.5;
/// Two ratios of medians are the same within this.
const NOISE: f64 = 1.1;
/// Clients on each GPU under load; no GPU takes more than 48 in all.
const EACH: usize = 8;
const MOST: usize = 48;
/// Plain MPS: no limits, which a load would feel.
const PLAIN: &str = "MPS=true";

/// The whole experiment.
pub fn run(section: &mut Section, place: &Place, debs: &Path) -> Result<()> {
    let gpus = site::gpus()?;
    if gpus.len() < 2 {
        section.fact("left_out", "this machine has one GPU");
        return Ok(());
    }
    section.fact("gpus", gpus.len() as i64);
    section.fact("topology", site::smi(&["topo", "-m"])?);
    let before = Look::take(&place.run)?;
    at_once(section, place, &gpus)?;
    one_of_all(section, place, &gpus)?;
    full(section, place, &gpus)?;
    let brought = Debs::install(debs)?;
    let slice = Slice::make();
    under_slurm(section, place, &gpus)?;
    drop((brought, slice));
    let kept: Vec<_> = gpus
        .iter()
        .flat_map(|gpu| job::kept(&place.run, &gpu.uuid))
        .collect();
    look::compare(section, &before, &place.run, &kept, Duration::from_secs(5))
}

/// A job on each GPU: begins and ends of all at once against the same alone, in turn.
fn at_once(section: &mut Section, place: &Place, gpus: &[Gpu]) -> Result<()> {
    let mut times = BTreeMap::<&str, Vec<f64>>::new();
    let mut note = |name, values: Vec<f64>| times.entry(name).or_default().extend(values);
    for round in 0..=ROUNDS {
        let alone = &gpus[round % gpus.len()];
        let (begin, end) = together(place, std::slice::from_ref(alone))?;
        let (floor_alone, quit_alone) = floor_together(place, std::slice::from_ref(alone))?;
        let (begins, ends) = together(place, gpus)?;
        let (floors, quits) = floor_together(place, gpus)?;
        // The first brings programs and libraries into the page cache.
        if round > 0 {
            note("begin_alone_ms", begin);
            note("end_alone_ms", end);
            note("begin_floor_alone_ms", floor_alone);
            note("end_floor_alone_ms", quit_alone);
            note("begin_last_of_all_ms", vec![last(&begins)]);
            note("end_last_of_all_ms", vec![last(&ends)]);
            note("begin_floor_last_of_all_ms", vec![last(&floors)]);
            note("end_floor_last_of_all_ms", vec![last(&quits)]);
        }
    }
    let mut medians = BTreeMap::new();
    for (name, values) in &times {
        let spread = Spread::of(values).context("no times")?;
        section.fact(name, result::times(values));
        section.fact(&format!("{name}_spread"), spread.text());
        medians.insert(*name, spread.median);
    }
    let of = |name: String| medians.get(name.as_str()).copied().unwrap_or(f64::NAN);
    for what in ["begin", "end"] {
        let ratio =
            |floor: &str| of(format!("{what}_{floor}last_of_all_ms")) / of(format!("{what}_{floor}alone_ms"));
        let (ours, floor) = (ratio(""), ratio("floor_"));
        section.fact(&format!("{what}_last_of_all_by_one_alone"), round(ours));
        section.fact(&format!("{what}_floor_last_of_all_by_one_alone"), round(floor));
        // Where NVIDIA's own programs take turns, nobody beside them can be quicker.
        let name = format!(
            "{} jobs {what} at once: the last within {LIMIT} of one alone, or no slower for it than the floor",
            gpus.len()
        );
        let seen = format!("{ours:.2} of one alone, the floor {floor:.2}");
        section.check(name, ours <= LIMIT || ours <= floor * NOISE, seen);
    }
    Ok(())
}

/// The same by the shortest possible means: daemon and server on each of `gpus`, then `quit`.
fn floor_together(place: &Place, gpus: &[Gpu]) -> Result<(Vec<f64>, Vec<f64>)> {
    let started: Result<Vec<_>> = thread::scope(|scope| {
        let start = |(number, gpu): (usize, &Gpu)| {
            let (name, uuid) = (format!("floor{number}"), gpu.uuid.clone());
            scope.spawn(move || Daemon::start(place, &uuid, &name, &[]))
        };
        let threads: Vec<_> = gpus.iter().enumerate().map(start).collect();
        threads.into_iter().map(joined).collect()
    });
    let started = started?;
    let begins = started.iter().map(|daemon| child::ms(daemon.ready)).collect();
    let ends: Result<Vec<_>> = thread::scope(|scope| {
        let threads: Vec<_> = started
            .into_iter()
            .map(|daemon| scope.spawn(|| daemon.quit()))
            .collect();
        threads.into_iter().map(joined).collect()
    });
    child::pause(Duration::from_millis(200))?;
    Ok((begins, ends?.into_iter().map(child::ms).collect()))
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| bail!("a thread panicked"))
}

fn round(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

fn last(times: &[f64]) -> f64 {
    times.iter().copied().fold(0.0, f64::max)
}

/// A job on each of `gpus`: milliseconds of each begin, then of each end.
fn together(place: &Place, gpus: &[Gpu]) -> Result<(Vec<f64>, Vec<f64>)> {
    let jobs: Result<Vec<_>> = gpus
        .iter()
        .enumerate()
        .map(|(number, gpu)| Job::named(place, gpu, &format!("{}.srv", 6100 + number)))
        .collect();
    let begun = each(jobs?, |job| Ok(job.prologue_with(PLAIN)?.success()?.ms()))?;
    let (jobs, begins): (Vec<_>, Vec<_>) = begun.into_iter().unzip();
    let ended = each(jobs, |job| Ok(job.epilogue()?.success()?.ms()))?;
    child::pause(Duration::from_millis(200))?;
    Ok((begins, ended.into_iter().map(|(_, time)| time).collect()))
}

/// `act` for all jobs at once.
fn each<'a>(jobs: Vec<Job<'a>>, act: impl Fn(&Job<'a>) -> Result<f64> + Sync) -> Result<Vec<(Job<'a>, f64)>> {
    thread::scope(|scope| {
        let threads: Vec<_> = jobs
            .into_iter()
            .map(|job| scope.spawn(|| act(&job).map(|time| (job, time))))
            .collect();
        threads.into_iter().map(joined).collect()
    })
}

/// One job of all GPUs, with a daemon for the node and with one for each GPU.
fn one_of_all(section: &mut Section, place: &Place, gpus: &[Gpu]) -> Result<()> {
    let all: Vec<&Gpu> = gpus.iter().collect();
    for (name, account) in [("one_daemon", PLAIN), ("a_daemon_each", "MPS=per-gpu")] {
        let (mut begins, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let job = Job::named(place, &gpus[0], "6200.srv")?.on(&all);
            begins.push(job.prologue_with(account)?.success()?.ms());
            ends.push(job.epilogue()?.success()?.ms());
            child::pause(Duration::from_millis(200))?;
        }
        section.fact(&format!("all_gpus_{name}_begin_ms"), result::times(&begins));
        section.fact(&format!("all_gpus_{name}_end_ms"), result::times(&ends));
    }
    Ok(())
}

/// 48 clients on the first GPU and one too many, while every other GPU is busy with a job of its own.
fn full(section: &mut Section, place: &Place, gpus: &[Gpu]) -> Result<()> {
    let jobs: Result<Vec<_>> = gpus
        .iter()
        .enumerate()
        .map(|(number, gpu)| Job::named(place, gpu, &format!("{}.srv", 6300 + number)))
        .collect();
    let jobs = jobs?;
    for job in &jobs {
        job.prologue_with(PLAIN)?.success()?;
    }
    let load = place.staged("cuda-load")?;
    let start = |job: &Job<'_>, at: f64, seconds: f64| -> Result<Running> {
        let mut command = place.as_user(&load, &job.environment()?);
        command.args(["--at", &at.to_string(), "--seconds", &seconds.to_string()]);
        Running::start(&mut command, "")
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let begin = Instant::now();
    let busy: Result<Vec<_>> = jobs[1..].iter().map(|job| start(job, now + 2.0, 8.0)).collect();
    let crowd: Result<Vec<_>> = (0..MOST).map(|_| start(&jobs[0], now + 6.0, 3.0)).collect();
    child::pause(Duration::from_secs(5).saturating_sub(begin.elapsed()))?;
    let extra = start(&jobs[0], now, 0.1)?.finish(Duration::from_secs(30))?;
    section.check(
        format!("client {} of a GPU is refused", MOST + 1),
        extra.code == Some(1),
        extra.story(),
    );
    let ended = |running: Vec<Running>| -> Result<Vec<String>> {
        let ended = running.into_iter().map(|one| one.finish(Duration::from_secs(60)));
        let failed = ended.filter_map(|ran| match ran {
            Ok(ran) if ran.code == Some(0) => None,
            Ok(ran) => Some(Ok(ran.story())),
            Err(error) => Some(Err(error)),
        });
        failed.collect()
    };
    let failed = ended(crowd?)?;
    section.check(
        format!("{MOST} clients of it run"),
        failed.is_empty(),
        failed.join("\n"),
    );
    let failed = ended(busy?)?;
    section.check(
        "nobody on another GPU is touched",
        failed.is_empty(),
        failed.join("\n"),
    );
    for job in &jobs {
        job.epilogue()?.success()?;
    }
    Ok(())
}

fn under_slurm(section: &mut Section, place: &Place, gpus: &[Gpu]) -> Result<()> {
    let mut options = slurm::options((0..gpus.len() as u32).collect());
    options.cpus = std::thread::available_parallelism()?.get() as u32;
    options.slurm_lines.push("TaskPlugin=task/affinity".into());
    let bed = slurm::with_plugin(place, options)?;
    slurm::start(section, &bed)?;
    let user = User::named(&place.user.name)?;
    let outcome =
        load(section, place, &bed, &user, gpus.len()).and_then(|()| near(section, place, &bed, &user, gpus));
    if outcome.is_err() {
        section.fact("slurmd_log", tail(&bed.log("node1")));
    }
    outcome?;
    let forced = bed.end()?;
    section.check("Slurm ended by itself", forced.is_empty(), format!("{forced:?}"));
    Ok(())
}

/// Clients of small kernels on one GPU, then as many on each of all, bound and unbound.
fn load(section: &mut Section, place: &Place, bed: &Bed, user: &User, gpus: usize) -> Result<()> {
    let mut rate = |name: &str, on: usize, count: usize, flag: &str| -> Result<f64> {
        let clients = bind::run_clients(place, bed, user, on, count, &[flag], false)?;
        let name = format!("{name}, {count} clients");
        let each: Vec<usize> = bind::by_gpu(&clients)
            .into_values()
            .map(|(count, _)| count)
            .collect();
        if flag.ends_with("block") && on > 1 {
            section.equal(format!("{name}: on each GPU"), &each, &vec![count / on; on]);
        }
        Ok(bind::tell(section, &name, &clients))
    };
    let one = rate("one GPU", 1, EACH, "--mps-bind=none")?;
    let bound = rate("all GPUs, bound", gpus, EACH * gpus, "--mps-bind=block")?;
    let unbound = rate(
        "all GPUs, unbound",
        gpus,
        (EACH * gpus).min(MOST),
        "--mps-bind=none",
    )?;
    let times = |rate: f64| format!("{:.2}", rate / one);
    section.fact("bound: times one GPU", times(bound));
    section.fact("unbound: times one GPU", times(unbound));
    let each = bound / one / gpus as f64;
    section.check(
        "bound: 0.9 or more of one GPU on each",
        each >= 0.9,
        format!("{each:.3}"),
    );
    Ok(())
}

/// A task's core, and the GPU that it is bound to by `closest`: `nvidia-smi topo -m` lists that core with that GPU.
fn near(section: &mut Section, place: &Place, bed: &Bed, user: &User, gpus: &[Gpu]) -> Result<()> {
    let lists = nearby(&site::smi(&["topo", "-m"])?, gpus.len());
    if lists.len() != gpus.len() || lists.iter().any(BTreeSet::is_empty) {
        section.fact("closest", "left out: 'nvidia-smi topo -m' names no cores");
        return Ok(());
    }
    let probe = place.staged("mps-probe")?.display().to_string();
    let script = format!("grep Cpus_allowed_list /proc/self/status; exec {probe} --json");
    let gres = format!("--gres=gpu:{}", gpus.len());
    let tasks = format!("-n{}", 2 * gpus.len());
    let words = [
        &*gres,
        &tasks,
        "-l",
        "--cpu-bind=cores",
        "--mps",
        "--mps-bind=closest",
        "/bin/sh",
        "-c",
        &script,
    ];
    let said = bed.srun(user, &words, Duration::from_secs(90))?.success()?.stdout;
    let (mut cores, mut on) = (BTreeMap::new(), BTreeMap::new());
    for (task, text) in said.lines().filter_map(|line| line.split_once(": ")) {
        if let Some(list) = text.strip_prefix("Cpus_allowed_list:") {
            cores.insert(task.trim().to_owned(), cores_of(list.trim()));
        } else if let Ok(report) = serde_json::from_str::<serde_json::Value>(text) {
            on.insert(
                task.trim().to_owned(),
                report["gpus"][0]["uuid"].as_str().unwrap_or("").to_owned(),
            );
        }
    }
    section.equal("tasks bound by 'closest'", &on.len(), &(2 * gpus.len()));
    for (task, uuid) in &on {
        let Some(place) = gpus.iter().position(|gpu| gpu.uuid == *uuid) else {
            bail!("task {task} is on '{uuid}'");
        };
        let own = cores.get(task).cloned().unwrap_or_default();
        let best = lists.iter().map(|list| list.intersection(&own).count()).max();
        section.equal(
            format!("task {task}: its cores near its GPU, as the best of all GPUs"),
            &Some(lists[place].intersection(&own).count()),
            &best,
        );
    }
    Ok(())
}

/// The column `CPU Affinity` of `nvidia-smi topo -m`, a set of cores for each GPU.
fn nearby(topology: &str, gpus: usize) -> Vec<BTreeSet<u32>> {
    let mut rows = topology.lines();
    let header: Vec<&str> = rows.next().unwrap_or("").split('\t').map(str::trim).collect();
    let Some(column) = header.iter().position(|name| name.contains("CPU Affinity")) else {
        return Vec::new();
    };
    let rows = rows.filter(|row| row.starts_with("GPU")).take(gpus);
    rows.map(|row| {
        let cell = row.split('\t').nth(column).unwrap_or("").trim();
        cores_of(cell)
    })
    .collect()
}

/// `0-3,8` as numbers; empty where it is none.
fn cores_of(list: &str) -> BTreeSet<u32> {
    let mut cores = BTreeSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse()) {
            cores.extend(first..=last);
        }
    }
    cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cores_of_each_gpu_are_read_from_nvidias_table() {
        let table = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\t0-1,4\t0\nGPU1\tNV18\t X \t2-3\t1\n\nLegend:\n";
        let lists = nearby(table, 2);
        assert_eq!(lists, [BTreeSet::from([0, 1, 4]), BTreeSet::from([2, 3])]);
        assert!(nearby("GPU0 X\n", 1).is_empty());
    }
}

//! All GPUs of one host: jobs at once, their load, the GPU near a task's core, and a full GPU
//! beside busy ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::tests::child::{self, Running};
use ::tests::slurm::{Bed, User};
use anyhow::{Result, bail};

use crate::bench::{self, PLAIN};
use crate::job::Job;
use crate::load::{self, FIRST, Load, Program};
use crate::result::Section;
use crate::site::{self, Run};
use crate::slurm;

/// Clients on each GPU under load; no GPU takes more than 48 in all.
const EACH: usize = 8;
const MOST: usize = 48;

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    section.fact("gpus", run.gpus.len() as i64);
    section.fact("topology", site::smi(&["topo", "-m"])?);
    bench::at_once(section, run)?;
    full(section, run)?;
    let mut options = slurm::options((0..run.gpus.len() as u32).collect());
    options.cpus = std::thread::available_parallelism()?.get() as u32;
    options.slurm_lines.push("TaskPlugin=task/affinity".into());
    slurm::on_bed(section, run, options, |section, bed, user| {
        under_load(section, run, bed, user)?;
        near(section, run, bed, user)
    })
}

/// 48 clients on the first GPU and one too many, while each other GPU is busy with its own job.
fn full(section: &mut Section, run: &Run) -> Result<()> {
    let place = &run.place;
    let mut jobs = Vec::new();
    for (number, gpu) in run.gpus.iter().enumerate() {
        let job = Job::named(place, gpu, &format!("{}.srv", 6300 + number))?;
        job.prologue(PLAIN)?.success()?;
        jobs.push(job);
    }
    let load = place.staged("cuda-load")?;
    let start = |job: &Job<'_>, at: f64, seconds: f64| -> Result<Running> {
        let mut command = place.as_user(&load, &job.environment()?);
        command.args(["--at", &at.to_string(), "--seconds", &seconds.to_string()]);
        Running::start(&mut command, "")
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let begin = Instant::now();
    let busy: Result<Vec<_>> = jobs[1..]
        .iter()
        .map(|job| start(job, now + 2.0, 8.0))
        .collect();
    let crowd: Result<Vec<_>> = (0..MOST).map(|_| start(&jobs[0], now + 6.0, 3.0)).collect();
    child::pause(Duration::from_secs(5).saturating_sub(begin.elapsed()))?;
    let extra = start(&jobs[0], now, 0.1)?.finish(Duration::from_secs(30))?;
    let name = format!("client {} of a GPU is refused", MOST + 1);
    section.check(name, extra.code == Some(1), extra.story());
    let ended = |running: Vec<Running>| -> Result<Vec<String>> {
        let ended = running
            .into_iter()
            .map(|one| one.finish(Duration::from_secs(60)));
        let failed = ended.filter_map(|ran| match ran {
            Ok(ran) if ran.code == Some(0) => None,
            Ok(ran) => Some(Ok(ran.story())),
            Err(error) => Some(Err(error)),
        });
        failed.collect()
    };
    section.none(format!("{MOST} clients of it run"), &ended(crowd?)?);
    section.none("nobody on another GPU is touched", &ended(busy?)?);
    for job in &jobs {
        job.epilogue()?.success()?;
    }
    Ok(())
}

/// Clients of small kernels on one GPU, then as many on each GPU, bound and unbound.
fn under_load(section: &mut Section, run: &Run, bed: &Bed, user: &User) -> Result<()> {
    let gpus = run.gpus.len();
    let loads = [
        Load::new(1, EACH, FIRST, &["--mps-bind=none"]),
        Load {
            each: Some(EACH),
            reach: Some(0.9),
            ..Load::new(gpus, EACH * gpus, FIRST, &["--mps-bind=block"])
        },
        Load::new(gpus, (EACH * gpus).min(MOST), FIRST, &["--mps-bind=none"]),
    ];
    let rows = load::table(section, run, (bed, user), &Program::Kernels, &loads)?;
    let times = |number: usize| format!("{:.2}", rows[number].sum / rows[0].sum);
    section.fact("bound: times one GPU", times(1));
    section.fact("unbound: times one GPU", times(2));
    Ok(())
}

/// A task's core, and the GPU that `closest` binds it to: `nvidia-smi topo -m` lists that core with
/// that GPU.
fn near(section: &mut Section, run: &Run, bed: &Bed, user: &User) -> Result<()> {
    let gpus = &run.gpus;
    let lists = nearby(&site::smi(&["topo", "-m"])?, gpus.len());
    if lists.len() != gpus.len() || lists.iter().any(BTreeSet::is_empty) {
        section.fact("closest", "left out: 'nvidia-smi topo -m' names no cores");
        return Ok(());
    }
    let probe = run.place.staged("mps-probe")?.display().to_string();
    let script = format!("grep Cpus_allowed_list /proc/self/status; exec {probe} --json");
    let gres = format!("--gres=gpu:{}", gpus.len());
    let tasks = format!("-n{}", 2 * gpus.len());
    let mut words = vec![&*gres, &tasks, "-l", "--cpu-bind=cores", "--mps"];
    words.extend(["--mps-bind=closest", "/bin/sh", "-c", &script]);
    let said = bed
        .srun(user, &words, Duration::from_secs(90))?
        .success()?
        .stdout;
    let (mut cores, mut on) = (BTreeMap::new(), BTreeMap::new());
    for (task, text) in said.lines().filter_map(|line| line.split_once(": ")) {
        if let Some(list) = text.strip_prefix("Cpus_allowed_list:") {
            cores.insert(task.trim().to_owned(), cores_of(list.trim()));
        } else if let Ok(report) = serde_json::from_str::<serde_json::Value>(text) {
            let uuid = report["gpus"][0]["uuid"].as_str().unwrap_or("");
            on.insert(task.trim().to_owned(), uuid.to_owned());
        }
    }
    section.equal("tasks bound by 'closest'", &on.len(), &(2 * gpus.len()));
    for (task, uuid) in &on {
        let Some(place) = gpus.iter().position(|gpu| gpu.uuid == *uuid) else {
            bail!("task {task} is on '{uuid}'");
        };
        let own = cores.get(task).cloned().unwrap_or_default();
        let best = lists
            .iter()
            .map(|list| list.intersection(&own).count())
            .max();
        section.equal(
            format!("task {task}: its cores near its GPU, as the best of all GPUs"),
            &Some(lists[place].intersection(&own).count()),
            &best,
        );
    }
    Ok(())
}

fn nearby(topology: &str, gpus: usize) -> Vec<BTreeSet<u32>> {
    let mut rows = topology.lines();
    let header: Vec<&str> = rows
        .next()
        .unwrap_or("")
        .split('\t')
        .map(str::trim)
        .collect();
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

/// `0-3,8` as numbers; empty if it is not such a list.
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

//! What many jobs at once cost each other: jobs on a node of sixteen GPUs, directories of jobs that
//! are gone, and a job on 1 to 32 nodes of a real Slurm.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::double::NodeDouble;
use tests::double::look::wait_until;
use tests::node_bed::{NodeBed, side_by_side};
use tests::samples::{in_turn, median, milliseconds, rounded};
use tests::slurm::{Bed, Options, Simulated};

use crate::{GPU, LIMIT};

const JOBS: [usize; 4] = [1, 4, 8, 16];
const GPUS: usize = JOBS[JOBS.len() - 1];
const NODES: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Directories of jobs that are gone: the usual number, many, and more than a node ever had.
const DIRECTORIES: [usize; 3] = [0, 100, 10_000];
const LOOKS: [&[&str]; 3] = [&["reconcile", "--dry-run"], &["metrics"], &["status"]];

pub fn run(rounds: usize) -> Result<Value> {
    let report = json!({
        "rounds": rounds,
        "jobs": jobs(rounds)?,
        "directories": directories(rounds)?,
        "nodes": nodes(rounds)?,
    });
    println!("{report:#}");
    Ok(report)
}

/// Milliseconds of begin and end: of one alone, and of the last of several.
fn jobs(rounds: usize) -> Result<Value> {
    let node = NodeDouble::builder().gpus(GPUS, GPU);
    let place = NodeBed::new(node, "deadline_s = 60\n");
    let times = in_turn(&JOBS, rounds, |count, round| {
        together(&place, round % GPUS, *count)
    })?;
    let of = |case: usize, part: usize| {
        let values: Vec<f64> = times[case].iter().map(|took| took[part]).collect();
        median(&values)
    };
    let row = |(case, count): (usize, &usize)| {
        let [begin, end] = [0, 1].map(|part| rounded(of(case, part) / of(0, part)));
        json!({
            "jobs": count, "begin_last_ms": of(case, 0), "end_last_ms": of(case, 1),
            "begin_times_one": begin, "end_times_one": end,
        })
    };
    Ok(JOBS.iter().enumerate().map(row).collect())
}

/// How long the commands that look at the node take, milliseconds. The directories belong to jobs
/// whose prologue was killed at its start.
fn directories(rounds: usize) -> Result<Value> {
    let place = NodeBed::new(NodeDouble::builder().gpus(1, GPU), "deadline_s = 60\n");
    let begun = place.torque_on_gpu_0("600.srv", "MPS=true");
    ensure!(begun.code == Some(0), "its begin");
    let mut rows = Vec::new();
    let mut made = 0;
    for count in DIRECTORIES {
        for number in made..count {
            std::fs::create_dir(place.job(&format!("{}.srv", 10_000 + number)))?;
        }
        made = count;
        let times = in_turn(&LOOKS, rounds, |words, _| {
            let ran = place.mpsctl(words);
            ensure!(ran.code.is_some_and(|code| code <= 1), "{words:?}: {ran:?}");
            Ok(milliseconds(ran.took))
        })?;
        let mut row = json!({"directories": count});
        for (words, times) in LOOKS.iter().zip(&times) {
            row[format!("{}_ms", words[0])] = median(times).into();
        }
        rows.push(row);
    }
    for number in 0..made {
        std::fs::remove_dir(place.job(&format!("{}.srv", 10_000 + number)))?;
    }
    ensure!(place.strict_end("600.srv").code == Some(0), "its end");
    Ok(Value::Array(rows))
}

/// This many jobs with a GPU each begin at once, and end at once. Returns how long until the last
/// has.
fn together(place: &NodeBed, first: usize, count: usize) -> Result<[f64; 2]> {
    let id = |n: usize| (format!("{}.srv", 500 + n), ((first + n) % GPUS).to_string());
    let ids: Vec<(String, String)> = (0..count).map(id).collect();
    let begin = Instant::now();
    side_by_side(ids.clone(), count, |(job, gpu)| {
        let ran = place.torque(&job, "MPS=true", &gpu);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    });
    let began = milliseconds(begin.elapsed());
    let begin = Instant::now();
    side_by_side(ids, count, |(job, _)| {
        let ran = place.strict_end(&job);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    });
    let ended = milliseconds(begin.elapsed());
    let as_before = wait_until(LIMIT, || place.difference().is_empty());
    ensure!(as_before, "{:?}", place.difference());
    Ok([began, ended])
}

/// A job on this many nodes: `srun true`, what `--mps` adds, and the part of that which is work of
/// the one host.
fn nodes(rounds: usize) -> Result<Value> {
    let most = NODES[NODES.len() - 1];
    let mut bed = Bed::create(Options {
        nodes: u16::try_from(most)?.into(),
        ..Options::default()
    })?;
    let _simulated = Simulated::install(&mut bed, "", |node| node)?;
    bed.start()?;
    let [user, _] = bed.users();
    let cpus = std::thread::available_parallelism()?.get() as f64;
    let mut rows = Vec::new();
    for count in NODES {
        let nodes = format!("-N{count}");
        let sides: [&[&str]; 2] = [&[], &["--mps"]];
        let times = in_turn(&sides, rounds, |mps, _| {
            let argv = [&["srun", &nodes, "--gres=gpu:1"], *mps, &["true"]].concat();
            let busy = busy()?;
            let took = milliseconds(bed.time(&user, &argv, &[], LIMIT)?);
            let busy = self::busy()? - busy;
            bed.wait_idle(LIMIT)?;
            Ok((took, busy))
        })?;
        let plain: Vec<f64> = times[0].iter().map(|(took, _)| *took).collect();
        let pairs = times[0].iter().zip(&times[1]);
        let more = pairs.map(|(without, with)| (with.0 - without.0, with.1 - without.1));
        let (added, work): (Vec<f64>, Vec<f64>) = more.unzip();
        let (added, work) = (median(&added), median(&work));
        rows.push(json!({
            "nodes": count, "srun_ms": median(&plain), "mps_adds_ms": added,
            "work_a_node_ms": rounded(work / count as f64),
            "beyond_the_hosts_work_ms": rounded(added - work / cpus),
        }));
    }
    bed.wait_clean(LIMIT)?;
    bed.end()?;
    Ok(Value::Array(rows))
}

/// Milliseconds that the processors of the host have worked (proc(5), `/proc/stat`: hundredths of a
/// second).
fn busy() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let line = text.lines().next().context("/proc/stat is empty")?;
    let words = line.split_whitespace().skip(1);
    let numbers: Vec<f64> = words.flat_map(str::parse).collect();
    // Without idle and waiting for disks.
    let work = [0, 1, 2, 5, 6, 7].iter().filter_map(|n| numbers.get(*n));
    Ok(work.sum::<f64>() * 10.0)
}

//! Each recipe as four ranks of a job on one GPU. One without its Python packages says so.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ::tests::child::{self, Running};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::clients::MARGIN_MIB;
use crate::job::{Job, Order};
use crate::result::Section;
use crate::runner::{PROGRAM, Scene};
use crate::site;

const RANKS: usize = 4;
/// The limit of each rank, and the share of it that a recipe takes.
const LIMIT_MIB: u64 = 4096;
const SHARE_MIB: u64 = LIMIT_MIB / 2;
const ACCOUNT: &str = "MPS=true,MPS_MEM=4G";
/// Longest time until all ranks of a recipe have loaded their packages and reported.
const RECIPE: Duration = Duration::from_secs(70);
/// No recipe begins later.
const PART: Duration = Duration::from_secs(180);
/// How far a program may round its share up.
const ROUNDED_MIB: u64 = 16;
/// The first NCCL that lets several ranks share a GPU, if it is asked to.
const NCCL_SHARES: (u32, u32) = (2, 30);

/// Jobs and names.
const RECIPES: [(&str, &str); 5] = [
    ("7200.srv", "pytorch"),
    ("7201.srv", "jax"),
    ("7202.srv", "cupy"),
    ("7203.srv", "nccl"),
    ("7204.srv", MPI),
];
/// `mpirun` starts its ranks.
const MPI: &str = "mpi";

pub fn has_python(scene: &mut Scene<'_>) -> Result<bool> {
    let has = site::python().is_ok();
    if !has {
        scene.fact("left_out", "no python3 in PATH");
    }
    Ok(has)
}

pub fn recipes(scene: &mut Scene<'_>) -> Result<()> {
    let end = Instant::now() + PART;
    for (id, name) in RECIPES {
        let is_late = Instant::now() > end;
        if is_late || name == MPI && site::program("mpirun").is_err() {
            let why = if is_late {
                "3 minutes were over"
            } else {
                "no 'mpirun'"
            };
            scene.fact(&format!("{name}: left_out"), why);
            continue;
        }
        eprintln!("hardware: recipe {name}");
        let job = scene.begin(&Order::new(id, ACCOUNT))?;
        if let Err(e) = one(scene, &job, name) {
            let what = format!("{name}: carried out");
            scene.check(what, false, format!("{e:#}"));
        }
        scene.end(id)?;
    }
    Ok(())
}

fn one(scene: &mut Scene<'_>, job: &Job<'_>, name: &str) -> Result<()> {
    let go = scene.home.join(format!("{name}.go"));
    let processes = if name == MPI { 1 } else { RANKS };
    let start = |rank| rank_of(scene, job, name, rank, &go);
    let ranks = (0..processes).map(start).collect::<Result<Vec<_>>>()?;
    let reports = reports(&ranks)?;
    let mut listed = Vec::new();
    for server in job.ask("get_server_list")?.lines() {
        let clients = job.ask(&format!("get_client_list {server}"))?;
        listed.extend(clients.lines().map(|line| line.trim().to_owned()));
    }
    fs::write(&go, "")?;
    for rank in ranks {
        let _ = rank.finish(RECIPE * 2)?;
    }
    let section = &mut *scene.section;
    section.fact(&format!("{name}: rank 0"), reports[0].to_string());
    let mut left_out = reports.iter().map(|report| &report["left_out"]);
    if let Some(why) = left_out.find_map(Value::as_str) {
        section.fact(&format!("{name}: left_out"), why);
        return Ok(());
    }
    let is_listed = |report: &&Value| listed.contains(&report["pid"].to_string());
    let count = reports.iter().filter(is_listed).count();
    let ranks = format!("{name}: ranks in the daemon's list of clients");
    section.equal(ranks, &count, &RANKS);
    section.fact(&format!("{name}: the daemon's list"), listed.join(" "));
    match name {
        "nccl" => collective(scene, job, &reports),
        _ => judge(section, name, &reports),
    }
}

fn rank_of(
    scene: &Scene<'_>,
    job: &Job<'_>,
    name: &str,
    rank: usize,
    go: &Path,
) -> Result<Running> {
    let place = &scene.run.place;
    let mut command = if name == MPI {
        let exec = scene.exec(job, &[])?;
        let mut command = place.as_user(&site::program("mpirun")?, &scene.env());
        command.args(["-n", &RANKS.to_string()]);
        command.arg(exec.get_program()).args(exec.get_args());
        // All ranks are here, so it must not look for a program that reaches other machines.
        command.env("OMPI_MCA_plm", "isolated");
        command.env("PBS_JOBID", &job.id).current_dir(&scene.home);
        command
    } else {
        scene.exec(job, &[("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string())])?
    };
    command
        .arg(site::python()?)
        .arg(place.staged("recipes.py")?);
    command.args([name, &rank.to_string(), &RANKS.to_string()]);
    Running::start(command.arg(LIMIT_MIB.to_string()).arg(go), "")
}

fn right(reports: &[Value]) -> usize {
    let right = reports.iter().filter(|report| report["right"] == true);
    right.count()
}

/// Several ranks of NCCL: an older one refuses, in the words that `mpsctl explain` knows; a newer
/// one runs if asked to.
fn collective(scene: &mut Scene<'_>, job: &Job<'_>, reports: &[Value]) -> Result<()> {
    let version = reports[0]["nccl"].as_str().context("NCCL's version")?;
    let mut numbers = version.split('.').filter_map(|word| word.parse().ok());
    let own = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if own >= NCCL_SHARES {
        let name = format!("nccl: right sums by NCCL {version}");
        scene.section.equal(name, &right(reports), &RANKS);
        return Ok(());
    }
    let said = |report: &Value| report["refused"].as_str().unwrap_or_default().to_owned();
    let refused = reports.iter().map(said);
    let count = refused
        .filter(|said| said.contains("Duplicate GPU detected"))
        .count();
    let name = format!("nccl: ranks that NCCL {version} refuses");
    scene.section.equal(name, &count, &RANKS);
    let mut explain = job.user_mpsctl(scene.env())?;
    let told = child::run(explain.args(["explain", "-"]), &said(&reports[0]), PROGRAM)?;
    let known = told.stdout.contains("NCCL: several ranks on one GPU");
    scene.check("nccl: mpsctl explain explains it", known, told.story());
    Ok(())
}

fn reports(ranks: &[Running]) -> Result<Vec<Value>> {
    let said = || -> Vec<Value> {
        let lines: Vec<String> = ranks.iter().map(Running::stdout_so_far).collect();
        let complete = lines.iter().flat_map(|text| text.split_inclusive('\n'));
        complete
            .filter(|line| line.ends_with('\n'))
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    };
    let over = || ranks.iter().any(|rank| !child::alive(rank.pid()));
    let (step, all) = (Duration::from_millis(50), || said().len() >= RANKS);
    child::until(RECIPE, step, || all() || over())?;
    // The last words of an ended one may still be in the pipe.
    child::until(Duration::from_millis(300), step, all)?;
    let found = said();
    let errors: String = ranks.iter().map(Running::stderr_so_far).collect();
    let count = found.len();
    ensure!(
        count == RANKS,
        "{count} of {RANKS} ranks reported: {errors}"
    );
    Ok(found)
}

fn judge(section: &mut Section, name: &str, reports: &[Value]) -> Result<()> {
    let results = format!("{name}: right results");
    section.equal(results, &right(reports), &reports.len());
    let numbers = |key: &str| -> Vec<u64> {
        let numbers = reports.iter().filter_map(|report| report[key].as_u64());
        numbers.collect()
    };
    let mut all = |what: &str, key: &str, least: u64, most: u64| {
        let seen = numbers(key);
        let good =
            seen.len() == reports.len() && seen.iter().all(|mib| (least..=most).contains(mib));
        let name = format!("{name}: {what}, {least} to {most} MiB");
        section.check(name, good, format!("{seen:?}"));
    };
    all("free memory that CUDA tells", "free_mib", 0, LIMIT_MIB);
    let whole = "whole memory that CUDA tells";
    all(whole, "whole_mib", LIMIT_MIB + 1, u64::MAX);
    if !numbers("taken_of_share_mib").is_empty() {
        // JAX rounds its share of the whole memory up: 2050 MiB of an H200's.
        let (least, most) = (SHARE_MIB - MARGIN_MIB, SHARE_MIB + ROUNDED_MIB);
        all("taken of the share", "taken_of_share_mib", least, most);
    }
    if !numbers("taken_mib").is_empty() {
        let what = "taken before it was refused";
        all(what, "taken_mib", SHARE_MIB, LIMIT_MIB);
    }
    Ok(())
}

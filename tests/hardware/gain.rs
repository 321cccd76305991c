//! What MPS brings: `mpsctl sweep` as the user of a job that the prologue has prepared, with OpenMM and with a program of small
//! kernels; and a job of its own that does as the sweep advises.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mpsd::cli::sweep::outcome::Outcome;
use mpsd::cli::sweep::plot;
use serde_json::Value;

use crate::child::{self, Running};
use crate::job::{self, Job};
use crate::look::{self, Look};
use crate::openmm::{self, Dynamics, SIMULATION};
use crate::result::Section;
use crate::site::{Gpu, Place};

/// Clients at once.
const CLIENTS: &str = "1,2,4,8,16";
/// Longest that a sweep may take.
const SWEEP: Duration = Duration::from_secs(420);
/// How far a job that does as advised may be from the sweep's figure.
const CONFIRMED: f64 = 0.10;

/// Where things of this run are.
struct Bench<'a> {
    place: &'a Place,
    gpu: &'a Gpu,
    /// Where results go.
    out: Option<&'a Path>,
    /// The user's directory.
    home: PathBuf,
}

/// The whole experiment.
pub fn run(
    section: &mut Section,
    place: &Place,
    gpu: &Gpu,
    package: &Path,
    out: Option<&Path>,
) -> Result<()> {
    let before = Look::take(&place.run)?;
    let bench = Bench {
        place,
        gpu,
        out,
        home: place.user_dir("gain")?,
    };
    section.fact("gpu", gpu.name.as_str());
    let job = Job::named(place, gpu, "7001.srv")?;
    job.prologue_with("MPS=true")?.success()?;
    let load = place.staged("cuda-load")?.display().to_string();
    let words = [
        "--metric",
        "\"per_second\":([0-9.]+)",
        "--",
        &load,
        "--after",
        "3",
        "--seconds",
        "2",
    ];
    bench.sweep(
        section,
        &job,
        "kernels",
        &[&["--clients", CLIENTS], &words[..]].concat(),
    )?;
    if let Some(dynamics) = Dynamics::prepare(section, place, package, &bench.home)? {
        let dynamics = dynamics.command;
        let command = [&["--metric", "([0-9.]+) ns/day", "--"][..], &words_of(&dynamics)].concat();
        let found = bench.sweep(
            section,
            &job,
            "openmm",
            &[&["--clients", CLIENTS], &command[..]].concat(),
        )?;
        let alone = ["--clients", "1", "--only-mps", "--threads", "none,25,12.5"];
        bench.sweep(section, &job, "openmm-alone", &[&alone, &command[..]].concat())?;
        job.epilogue()?.success()?;
        bench.confirm(section, &found, &dynamics)?;
    } else {
        job.epilogue()?.success()?;
    }
    fs::remove_dir_all(&bench.home)?;
    look::compare(
        section,
        &before,
        &place.run,
        &job::kept(&place.run, &gpu.uuid),
        Duration::from_secs(5),
    )
}

/// What it brings to inference with PyTorch, where the machine has it.
pub fn inference(section: &mut Section, place: &Place, gpu: &Gpu, out: Option<&Path>) -> Result<()> {
    let before = Look::take(&place.run)?;
    let bench = Bench {
        place,
        gpu,
        out,
        home: place.user_dir("inference")?,
    };
    let python = openmm::python().context("no python3 in PATH")?;
    let job = Job::named(place, gpu, "7003.srv")?;
    job.prologue_with("MPS=true")?.success()?;
    let script = place.staged("inference.py")?.display().to_string();
    let metric = "([0-9.]+) pictures/s";
    let words = [
        "--clients",
        "1,8",
        "--metric",
        metric,
        "--",
        &python,
        &script,
        "3",
    ];
    bench.sweep(section, &job, "pytorch", &words)?;
    job.epilogue()?.success()?;
    fs::remove_dir_all(&bench.home)?;
    let kept = job::kept(&place.run, &gpu.uuid);
    look::compare(section, &before, &place.run, &kept, Duration::from_secs(5))
}

fn words_of(command: &[String]) -> Vec<&str> {
    command.iter().map(String::as_str).collect()
}

impl Bench<'_> {
    /// One sweep in the job; what it found, with the title of its plot.
    fn sweep(&self, section: &mut Section, job: &Job<'_>, name: &str, words: &[&str]) -> Result<Value> {
        eprintln!("hardware: sweep of {name}");
        let mut command = self.as_user(&self.place.staged("mpsctl")?, job);
        command
            .arg("--config")
            .arg(job.config())
            .args(["sweep", "--json"])
            .args(words);
        let ran = child::run(&mut command, "", SWEEP)?;
        let mut told: Value = serde_json::from_str(&ran.stdout).with_context(|| ran.story())?;
        section.check(format!("{name}: sweep"), ran.code == Some(0), ran.stderr.clone());
        section.fact(
            &format!("{name}: advice"),
            told["advice"].as_str().unwrap_or_default(),
        );
        let what = match name {
            "kernels" => "small kernels",
            "pytorch" => "PyTorch inference",
            _ => "OpenMM",
        };
        let title = format!("{what}, one {}", self.gpu.name);
        told["title"] = title.as_str().into();
        if let Some(out) = self.out {
            fs::create_dir_all(out)?;
            fs::write(out.join(format!("{name}.json")), format!("{told:#}\n"))?;
            let outcome: Outcome = serde_json::from_value(told.clone())?;
            let svg = plot::svg(&outcome, &title).map_err(anyhow::Error::msg)?;
            fs::write(out.join(format!("{name}.svg")), svg)?;
        }
        Ok(told)
    }

    fn as_user(&self, program: &Path, job: &Job<'_>) -> Command {
        let mut env = openmm::environment(&self.place.dir.join("python"), &self.home);
        env.insert("PBS_JOBID".into(), job.id().into());
        let mut command = self.place.as_user(program, &env);
        command.current_dir(&self.home);
        command
    }

    /// A job of its own that asks for what the sweep found best, and starts so many simulations.
    fn confirm(&self, section: &mut Section, found: &Value, dynamics: &[String]) -> Result<()> {
        let rows = found["rows"].as_array().context("rows")?;
        let figure = |row: &Value| row["throughput"].as_f64().unwrap_or(0.0);
        let best = rows
            .iter()
            .filter(|row| row["mps"] == true)
            .max_by(|a, b| figure(a).total_cmp(&figure(b)));
        let best = best.context("no row under MPS")?;
        let clients = best["clients"].as_u64().context("clients")?;
        let account = match best["percent"].as_f64() {
            Some(percent) => format!("MPS=true,MPS_THREADS={percent}"),
            None => "MPS=true".to_owned(),
        };
        let job = Job::named(self.place, self.gpu, "7002.srv")?;
        job.prologue_with(&account)?.success()?;
        let mut running = Vec::new();
        for _ in 0..clients {
            let mut command = self.as_user(&self.place.staged("mpsctl")?, &job);
            command
                .arg("--config")
                .arg(job.config())
                .args(["exec", "--"])
                .args(dynamics);
            running.push(Running::start(&mut command, "")?);
        }
        let mut sum = 0.0;
        for one in running {
            let ran = one.finish(SIMULATION)?.success()?;
            let number = ran
                .stdout
                .split_whitespace()
                .next()
                .and_then(|word| word.parse::<f64>().ok());
            sum += number.with_context(|| ran.story())?;
        }
        job.epilogue()?.success()?;
        let expected = figure(best);
        ensure!(expected > 0.0, "the best has no figure");
        section.check(
            format!(
                "a job with {account} and {clients} simulations reaches the sweep's figure within {CONFIRMED}"
            ),
            (sum / expected - 1.0).abs() <= CONFIRMED,
            format!("{sum:.0} ns/day, the sweep {expected:.0}"),
        );
        Ok(())
    }
}

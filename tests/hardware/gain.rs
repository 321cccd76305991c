//! What MPS brings: `mpsctl sweep` as the user of a job that the prologue has prepared, with OpenMM and with a program of small
//! kernels; and a job of its own that does as the sweep advises.

use std::collections::BTreeMap;
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
use crate::result::Section;
use crate::site::{self, Gpu, Place};

/// Clients at once.
const CLIENTS: &str = "1,2,4,8,16";
/// How long a simulation counts; it warms up for 9 s before and goes on behind, so that all count side by side. Seconds.
const COUNT: &str = "6";
/// Longest that a sweep may take.
const SWEEP: Duration = Duration::from_secs(420);
/// Longest that one simulation may take, with all that comes before it counts.
const SIMULATION: Duration = Duration::from_secs(120);
/// How far a job that does as advised may be from the sweep's figure.
const CONFIRMED: f64 = 0.10;
/// OpenMM's input, in the user's directory.
const INPUT: &str = "system.xml";

/// Where things of this run are.
struct Bench<'a> {
    place: &'a Place,
    gpu: &'a Gpu,
    /// The package.
    package: &'a Path,
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
        package,
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
    if let Some(dynamics) = bench.dynamics(section)? {
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
        let what = if name == "kernels" {
            "small kernels"
        } else {
            "OpenMM"
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
        let mut env = self.environment();
        env.insert("PBS_JOBID".into(), job.id().into());
        let mut command = self.place.as_user(program, &env);
        command.current_dir(&self.home);
        command
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let mut env = site::base_env();
        env.insert("HOME".into(), self.home.display().to_string());
        env.insert(
            "PYTHONPATH".into(),
            self.place.dir.join("python").display().to_string(),
        );
        // OpenMM keeps the kernels that it has compiled there.
        env.insert("TMPDIR".into(), self.home.display().to_string());
        env.insert(
            "CUDA_CACHE_PATH".into(),
            self.home.join("cache").display().to_string(),
        );
        env
    }

    /// The command of one simulation; None where the package has no OpenMM, or the machine no Python for it.
    fn dynamics(&self, section: &mut Section) -> Result<Option<Vec<String>>> {
        let wheels: Vec<PathBuf> = fs::read_dir(self.package.join("wheels"))
            .into_iter()
            .flatten()
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        // The one in PATH: the machine's own may lack numpy and CUDA's libraries.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let python = std::env::split_paths(&path)
            .map(|dir| dir.join("python3"))
            .find(|file| file.is_file());
        let (Some(python), false) = (python, wheels.is_empty()) else {
            section.fact(
                "openmm_left_out",
                "no wheels in the package, or no python3 in PATH",
            );
            return Ok(None);
        };
        let python = python.display().to_string();
        let mut pip = Command::new(&python);
        pip.args([
            "-m",
            "pip",
            "install",
            "-q",
            "--no-index",
            "--no-deps",
            "--no-compile",
            "--no-cache-dir",
            "--target",
        ]);
        pip.arg(self.place.dir.join("python")).args(&wheels);
        child::run(&mut pip, "", SIMULATION)?.success()?;
        let script = self.place.staged("dynamics.py")?.display().to_string();
        let mut prepare = self.place.as_user(python.as_ref(), &self.environment());
        prepare.args([&script, "prepare", INPUT]).current_dir(&self.home);
        let said = child::run(&mut prepare, "", SIMULATION)?.success()?;
        section.fact("openmm", said.stdout.trim());
        let words = [python.as_str(), &script, "run", INPUT, COUNT];
        Ok(Some(words.map(str::to_owned).to_vec()))
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

//! The recipes of docs/recipes.md whose Python packages this machine has: four ranks of a job on
//! one GPU each.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ::tests::child::{self, Running};
use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::clients::MARGIN_MIB;
use crate::job::{self, Job};
use crate::result::Section;
use crate::site::{self, Place, Run};

const RANKS: usize = 4;
/// The limit of each rank, and the share of it that a recipe takes.
const LIMIT_MIB: u64 = 4096;
const SHARE_MIB: u64 = LIMIT_MIB / 2;
const ACCOUNT: &str = "MPS=true,MPS_MEM=4G";
/// Longest time to load a package, for a recipe's ranks until all have reported, and for the whole
/// part.
const LOAD: Duration = Duration::from_secs(40);
const RECIPE: Duration = Duration::from_secs(30);
const PART: Duration = Duration::from_secs(85);
/// How far a program may round its share up.
const ROUNDED_MIB: u64 = 16;
/// The first NCCL that lets several ranks share a GPU, if it is asked to.
const NCCL_SHARES: (u32, u32) = (2, 30);

struct Recipe {
    name: &'static str,
    modules: &'static [&'static str],
    launched: bool,
}

const fn recipe(name: &'static str, modules: &'static [&'static str]) -> Recipe {
    Recipe {
        name,
        modules,
        launched: false,
    }
}

const RECIPES: [Recipe; 5] = [
    recipe("pytorch", &["torch"]),
    recipe("jax", &["jax"]),
    recipe("cupy", &["cupy"]),
    recipe("nccl", &["torch"]),
    Recipe {
        launched: true,
        ..recipe("mpi", &["torch", "mpi4py"])
    },
];

struct Kitchen<'a> {
    place: &'a Place,
    python: PathBuf,
    home: PathBuf,
    end: Instant,
}

/// Every recipe in its own job. A recipe without its packages is left out and named.
pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let Ok(python) = site::python() else {
        section.fact("left_out", "no python3 in PATH");
        return Ok(());
    };
    let kitchen = Kitchen {
        place: &run.place,
        python,
        home: run.place.user_dir("recipes")?,
        end: Instant::now() + PART,
    };
    let packages = kitchen.packages(section)?;
    for (number, recipe) in RECIPES.iter().enumerate() {
        if let Some(why) = kitchen.lacks(recipe, &packages) {
            section.fact(&format!("{}: left_out", recipe.name), why);
            continue;
        }
        eprintln!("hardware: recipe {}", recipe.name);
        let job = Job::named(&run.place, run.gpu(), &format!("{}.srv", 7200 + number))?;
        if let Err(e) = kitchen.one(section, &job, recipe) {
            section.check(
                format!("{}: carried out", recipe.name),
                false,
                format!("{e:#}"),
            );
        }
        job.end(section, &format!("{}: ", recipe.name))?;
    }
    Ok(fs::remove_dir_all(&kitchen.home)?)
}

impl Kitchen<'_> {
    fn lacks(&self, recipe: &Recipe, packages: &[&str]) -> Option<String> {
        if let Some(name) = recipe.modules.iter().find(|name| !packages.contains(name)) {
            return Some(format!("no Python package '{name}'"));
        }
        if recipe.launched && site::program("mpirun").is_err() {
            return Some("no 'mpirun'".into());
        }
        (Instant::now() > self.end).then(|| format!("{} s were over", PART.as_secs()))
    }

    /// The packages that this machine has. Loads all at once, so that their files are in memory
    /// when the ranks start.
    fn packages(&self, section: &mut Section) -> Result<Vec<&'static str>> {
        let mut loading = BTreeMap::new();
        for module in RECIPES.iter().flat_map(|recipe| recipe.modules) {
            if !loading.contains_key(module) {
                let script = format!("import {module}; print({module}.__version__)");
                let mut command = self.as_user(&self.python);
                loading.insert(*module, Running::start(command.args(["-c", &script]), "")?);
            }
        }
        let mut found = Vec::new();
        for (module, running) in loading {
            let said = match running.finish(LOAD) {
                Ok(ran) if ran.code == Some(0) => {
                    found.push(module);
                    ran.stdout.trim().to_owned()
                }
                Ok(ran) => ran.stderr.lines().last().unwrap_or("no word").to_owned(),
                Err(e) => format!("{e:#}"),
            };
            section.fact(&format!("package {module}"), said);
        }
        Ok(found)
    }

    fn as_user(&self, program: &Path) -> Command {
        let env = site::home_env(self.place, &self.home);
        let mut command = self.place.as_user(program, &env);
        command.current_dir(&self.home);
        command
    }

    fn one(&self, section: &mut Section, job: &Job<'_>, recipe: &Recipe) -> Result<()> {
        let name = recipe.name;
        job.prologue(ACCOUNT)?.success()?;
        let go = self.home.join(format!("{name}.go"));
        let ranks = match recipe.launched {
            true => vec![self.launch(job, name, &go)?],
            false => {
                let ranks = (0..RANKS).map(|rank| self.rank(job, name, rank, &go));
                ranks.collect::<Result<_>>()?
            }
        };
        let reports = reports(&ranks)?;
        let listed = self.listed(job)?;
        fs::write(&go, "")?;
        for rank in ranks {
            let _ = rank.finish(RECIPE * 2)?;
        }
        section.fact(&format!("{name}: rank 0"), reports[0].to_string());
        if let Some(why) = reports
            .iter()
            .find_map(|report| report["left_out"].as_str())
        {
            section.fact(&format!("{name}: left_out"), why);
            return Ok(());
        }
        let is_listed = |report: &&Value| listed.contains(&report["pid"].to_string());
        let count = reports.iter().filter(is_listed).count();
        section.equal(
            format!("{name}: ranks in the daemon's list of clients"),
            &count,
            &RANKS,
        );
        section.fact(&format!("{name}: the daemon's list"), listed.join(" "));
        match name {
            "nccl" => self.collective(section, job, &reports),
            _ => judge(section, name, &reports),
        }
    }

    fn rank(&self, job: &Job<'_>, name: &str, rank: usize, go: &Path) -> Result<Running> {
        let mut env = site::home_env(self.place, &self.home);
        env.insert("OMPI_COMM_WORLD_LOCAL_RANK".into(), rank.to_string());
        self.started(job.exec(env)?, name, rank, go)
    }

    fn launch(&self, job: &Job<'_>, name: &str, go: &Path) -> Result<Running> {
        let exec = job.exec(site::home_env(self.place, &self.home))?;
        let mut command = self.as_user(&site::program("mpirun")?);
        command.args(["-n", &RANKS.to_string()]);
        command.arg(exec.get_program()).args(exec.get_args());
        // All ranks are here, so it must not look for a program that reaches other machines.
        command
            .env("OMPI_MCA_plm", "isolated")
            .env("PBS_JOBID", job.id());
        self.started(command, name, 0, go)
    }

    fn started(&self, mut command: Command, name: &str, rank: usize, go: &Path) -> Result<Running> {
        command
            .arg(&self.python)
            .arg(self.place.staged("recipes.py")?);
        command.args([name, &rank.to_string(), &RANKS.to_string()]);
        command.arg(LIMIT_MIB.to_string());
        Running::start(command.arg(go).current_dir(&self.home), "")
    }

    fn listed(&self, job: &Job<'_>) -> Result<Vec<String>> {
        let env = job.environment()?;
        let mut listed = Vec::new();
        for server in job::ask(self.place, &env, "get_server_list")?.lines() {
            let clients = job::ask(self.place, &env, &format!("get_client_list {server}"))?;
            listed.extend(clients.lines().map(|line| line.trim().to_owned()));
        }
        Ok(listed)
    }

    /// Several ranks of NCCL: an older one refuses, in the words that `mpsctl explain` knows; a
    /// newer one runs if asked to.
    fn collective(&self, section: &mut Section, job: &Job<'_>, reports: &[Value]) -> Result<()> {
        let version = reports[0]["nccl"].as_str().context("NCCL's version")?;
        let mut numbers = version.split('.').filter_map(|word| word.parse().ok());
        let own = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if own >= NCCL_SHARES {
            let right = reports
                .iter()
                .filter(|report| report["right"] == true)
                .count();
            section.equal(
                format!("nccl: right sums by NCCL {version}"),
                &right,
                &RANKS,
            );
            return Ok(());
        }
        let refused = |report: &&Value| {
            let said = report["refused"].as_str().unwrap_or_default();
            said.contains("Duplicate GPU detected")
        };
        let count = reports.iter().filter(refused).count();
        section.equal(
            format!("nccl: ranks that NCCL {version} refuses"),
            &count,
            &RANKS,
        );
        let said = reports[0]["refused"].as_str().unwrap_or_default();
        let mut explain = job.user_mpsctl(site::home_env(self.place, &self.home))?;
        explain.args(["explain", "-"]);
        let told = child::run(&mut explain, said, Duration::from_secs(10))?;
        let known = told.stdout.contains("NCCL: several ranks on one GPU");
        section.check("nccl: mpsctl explain explains it", known, told.story());
        Ok(())
    }
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
    let errors = || {
        let texts = ranks.iter().map(Running::stderr_so_far);
        texts.collect::<Vec<_>>().join("\n")
    };
    ensure!(
        found.len() == RANKS,
        "{} of {RANKS} ranks reported within {} s: {}",
        found.len(),
        RECIPE.as_secs(),
        errors()
    );
    Ok(found)
}

fn judge(section: &mut Section, name: &str, reports: &[Value]) -> Result<()> {
    let right = reports
        .iter()
        .filter(|report| report["right"] == true)
        .count();
    section.equal(format!("{name}: right results"), &right, &reports.len());
    let numbers = |key: &str| -> Vec<u64> {
        reports
            .iter()
            .filter_map(|report| report[key].as_u64())
            .collect()
    };
    let mut all = |what: &str, key: &str, least: u64, most: u64| {
        let seen = numbers(key);
        let good =
            seen.len() == reports.len() && seen.iter().all(|mib| (least..=most).contains(mib));
        let name = format!("{name}: {what}, {least} to {most} MiB");
        section.check(name, good, format!("{seen:?}"));
    };
    all("free memory that CUDA tells", "free_mib", 0, LIMIT_MIB);
    let beyond = LIMIT_MIB + 1;
    all(
        "whole memory that CUDA tells",
        "whole_mib",
        beyond,
        u64::MAX,
    );
    if !numbers("taken_of_share_mib").is_empty() {
        // JAX rounds its share of the whole memory up: 2050 MiB of an H200's.
        let (least, most) = (SHARE_MIB - MARGIN_MIB, SHARE_MIB + ROUNDED_MIB);
        all("taken of the share", "taken_of_share_mib", least, most);
    }
    if !numbers("taken_mib").is_empty() {
        all(
            "taken before it was refused",
            "taken_mib",
            SHARE_MIB,
            LIMIT_MIB,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(report: Value) -> Vec<String> {
        let mut section = Section::new("test");
        judge(&mut section, "pytorch", &vec![report; RANKS]).unwrap();
        let bad = section.checks.into_iter().filter(|check| !check.ok);
        bad.map(|check| check.name).collect()
    }

    #[test]
    fn memory_beyond_the_limit_or_the_share_fails() {
        let good = serde_json::json!({"right": true, "free_mib": 3600, "whole_mib": 81_000, "taken_of_share_mib": 2048, "taken_mib": 3500});
        assert_eq!(failed(good.clone()), Vec::<String>::new());
        for (key, value) in [
            ("right", Value::Bool(false)),
            ("free_mib", 80_000.into()),
            ("whole_mib", 4096.into()),
            ("taken_of_share_mib", 2112.into()),
            ("taken_of_share_mib", 0.into()),
            ("taken_mib", 4160.into()),
        ] {
            let mut report = good.clone();
            report[key] = value;
            assert_eq!(failed(report).len(), 1, "{key}");
        }
        let nothing = failed(serde_json::json!({}));
        assert_eq!(nothing.len(), 3, "a rank that says nothing is no success");
    }
}

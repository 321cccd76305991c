//! A case of the table, and the one runner of its steps: it starts, waits, collects, checks and
//! writes.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use ::tests::child::{self, Ran};
use ::tests::slurm::{Bed, Options, User};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use crate::job::{Job, Order};
use crate::load::{Dynamics, Load, Program, Sweep};
use crate::look;
use crate::result::Section;
use crate::site::{self, Run};
use crate::slurm::Debs;
use crate::times::{Ratio, Side};

/// Longest time for a client or a program of ours.
pub const PROGRAM: Duration = Duration::from_secs(60);

pub struct Case {
    /// Its word on the command line.
    pub name: &'static str,
    pub shows: &'static str,
    /// GPUs that it needs. With one or more, the machine must look afterwards as before.
    pub gpus: usize,
    pub in_whole: bool,
    pub steps: &'static [Step],
}

pub enum Step {
    Begin(Order),
    End(&'static str),
    /// A real Slurm, until the case has ended.
    Slurm(fn(&Run) -> Options),
    /// The case ends here if the machine lacks what the rest needs.
    Only(fn(&mut Scene<'_>) -> Result<bool>),
    Sides(&'static [Side], &'static [Ratio]),
    Loads(Program, fn(&Run) -> Vec<Load>, &'static str),
    Sweeps(&'static str, Sweep),
    Do(fn(&mut Scene<'_>) -> Result<()>),
}

/// What a client of `cuda-load` or a simulation says.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Counted {
    pub rank: usize,
    pub uuid: String,
    pub late: bool,
    pub per_second: f64,
    /// When its first kernel had ended, seconds since 1970.
    pub first_at: f64,
}

pub fn counted(said: &str) -> Vec<Counted> {
    let clients = said.lines().filter(|line| line.starts_with('{'));
    clients
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

/// Dropped in this order: jobs, Slurm.
pub struct Scene<'a> {
    pub run: &'a Run,
    pub section: &'a mut Section,
    pub home: PathBuf,
    jobs: Vec<Rc<Job<'a>>>,
    pub dynamics: Option<Dynamics>,
    slurm: Option<(Rc<Bed>, User, Debs)>,
}

/// Runs a case. It records that it was left out if the machine has too few GPUs.
pub fn carry_out(case: &Case, section: &mut Section, run: &Run) -> Result<()> {
    match case.gpus {
        0 => steps(case, section, run),
        least if run.gpus.len() < least => {
            section.fact("left_out", "this machine has one GPU");
            Ok(())
        }
        _ => look::unchanged(section, run, |section| steps(case, section, run)),
    }
}

fn steps(case: &Case, section: &mut Section, run: &Run) -> Result<()> {
    let home = run.place.user_dir(case.name)?;
    let mut scene = Scene {
        run,
        section,
        home: home.clone(),
        jobs: Vec::new(),
        dynamics: None,
        slurm: None,
    };
    let done = scene.steps(case.steps);
    let ended = scene.end_slurm(done.is_err());
    drop(scene);
    let removed = fs::remove_dir_all(home);
    done.and(ended)?;
    Ok(removed?)
}

impl<'a> Scene<'a> {
    fn steps(&mut self, steps: &'static [Step]) -> Result<()> {
        for step in steps {
            child::go_on()?;
            match step {
                Step::Only(has) if !has(self)? => break,
                _ => self.step(step)?,
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &'static Step) -> Result<()> {
        match step {
            Step::Begin(order) => self.begin(order).map(drop),
            Step::End(id) => self.end(id).map(drop),
            Step::Slurm(options) => self.start_slurm(options(self.run)),
            Step::Only(_) => Ok(()),
            Step::Sides(sides, ratios) => self.sides(sides, self.run.pairs, ratios).map(drop),
            Step::Loads(program, loads, file) => self.loads(*program, &loads(self.run), file),
            Step::Sweeps(id, sweep) => self.sweep(id, sweep),
            Step::Do(act) => act(self),
        }
    }

    pub fn fact(&mut self, key: &str, value: impl Into<toml::Value>) {
        self.section.fact(key, value);
    }

    pub fn check(&mut self, name: impl Into<String>, ok: bool, seen: impl Into<String>) -> bool {
        self.section.check(name, ok, seen)
    }

    pub fn begin(&mut self, order: &Order) -> Result<Rc<Job<'a>>> {
        let job = Rc::new(Job::of(self.run, order)?);
        self.jobs.push(Rc::clone(&job));
        let prologue = job.prologue()?;
        let good = self
            .section
            .good(format!("{}: mps-prologue", order.id), &prologue);
        ensure!(good, "the job did not start: {}", prologue.story());
        self.fact(&format!("{}: prologue_ms", order.id), prologue.ms());
        let name = "the prologue's output is closed when it has ended";
        self.check(name, !prologue.held_open, "a pipe of the mom");
        Ok(job)
    }

    pub fn end(&mut self, id: &str) -> Result<Ran> {
        let epilogue = self.job(id)?.epilogue()?;
        self.section.good(format!("{id}: mps-epilogue"), &epilogue);
        self.fact(&format!("{id}: epilogue_ms"), epilogue.ms());
        Ok(epilogue)
    }

    pub fn job(&self, id: &str) -> Result<Rc<Job<'a>>> {
        let job = self.jobs.iter().find(|job| job.id == id);
        job.cloned()
            .with_context(|| format!("no job '{id}' was begun"))
    }

    pub fn env(&self) -> BTreeMap<String, String> {
        let mut env = site::base_env();
        let packages = self.run.place.python_packages();
        let cache = self.home.join("cache");
        // OpenMM keeps its compiled kernels in TMPDIR.
        for (name, path) in [
            ("HOME", &self.home),
            ("TMPDIR", &self.home),
            ("PYTHONPATH", &packages),
            ("CUDA_CACHE_PATH", &cache),
        ] {
            env.insert(name.to_owned(), path.display().to_string());
        }
        env
    }

    /// `mpsctl exec --` in a task of a job, in that directory.
    pub fn exec(&self, job: &Job<'_>, more: &[(&str, String)]) -> Result<Command> {
        let mut env = self.env();
        env.extend(
            more.iter()
                .map(|(name, value)| ((*name).to_owned(), value.clone())),
        );
        let mut command = job.user_mpsctl(env)?;
        command.args(["exec", "--"]).current_dir(&self.home);
        Ok(command)
    }

    /// What a command of `mpsctl` in that directory says with `--json`. It must succeed.
    pub fn told(&mut self, job: &Job<'_>, what: &str, words: &[&str]) -> Result<Value> {
        let mut command = job.user_mpsctl(self.env())?;
        command.args(words).current_dir(&self.home);
        let ran = child::run(&mut command, "", PROGRAM * 7)?;
        eprint!("{}", ran.stderr);
        let good = ran.code == Some(0);
        self.check(what, good, ran.stderr.as_str());
        serde_json::from_str(&ran.stdout).with_context(|| ran.story())
    }

    pub fn keep_json(&self, name: &str, told: &Value) -> Result<()> {
        self.run
            .keep(&format!("{name}.json"), &format!("{told:#}\n"))
    }

    pub fn bed(&self) -> Result<(Rc<Bed>, User)> {
        let slurm = self.slurm.as_ref().context("no Slurm runs")?;
        Ok((Rc::clone(&slurm.0), slurm.1.clone()))
    }

    fn start_slurm(&mut self, options: Options) -> Result<()> {
        let debs = Debs::install(&self.run.package.join("debs"))?;
        let bed = crate::slurm::start(self.section, self.run, options)?;
        let user = User::named(&self.run.place.user.name)?;
        self.slurm = Some((Rc::new(bed), user, debs));
        Ok(())
    }

    fn end_slurm(&mut self, failed: bool) -> Result<()> {
        let Some((bed, _, _)) = &self.slurm else {
            return Ok(());
        };
        if failed {
            self.fact("slurmd_log", crate::slurm::tail(&bed.log("node1")));
            return Ok(());
        }
        let forced = bed.end()?;
        self.section.none("Slurm ended by itself", &forced);
        Ok(())
    }
}

//! Throughput: programs that count during the same seconds, started by `srun`, `mpsctl sweep` or
//! `mpsctl pack`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ::tests::child;
use ::tests::samples::rounded;
use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::plot;
use crate::result::hundredths;
use crate::runner::{Counted, Scene, counted};
use crate::site::{self, Gpu, Run};
use crate::times::now;

const SIMULATION: Duration = Duration::from_secs(120);
/// From the command until all clients of small kernels count, and how long they count. Seconds.
const UP: f64 = 6.0;
const COUNT: &str = "2";
/// How long a simulation counts. It warms up for 9 s before and continues, so that all count at the
/// same time. Seconds.
const SIMULATED: &str = "6";
const INPUT: &str = "system.xml";

#[derive(Clone, Copy)]
pub enum Program {
    Kernels,
    OpenMm,
    Inference(&'static str),
}

/// Which GPU a program takes, and the option that tells it so.
type Choice = (&'static str, &'static str);
pub const FIRST: Choice = ("takes the first GPU", "");
pub const BY_RANK: Choice = ("takes the GPU of its rank", "--by-rank");
pub const BY_BLOCK: Choice = ("takes the GPU of its block of ranks", "--by-block");

/// Clients of one `srun`.
pub struct Load {
    pub gpus: usize,
    pub clients: usize,
    pub choice: Choice,
    pub flags: String,
    /// This many clients must be on each GPU, and all must reach so much of as many times the load
    /// on one GPU.
    pub must: Option<(usize, f64)>,
}

impl Load {
    fn name(&self) -> String {
        let (gpus, clients, choice) = (self.gpus, self.clients, self.choice.0);
        format!("{clients} clients on {gpus} GPUs, {}, {choice}", self.flags)
    }
}

impl Scene<'_> {
    /// Measures loads and compares each with the mean of those on one GPU.
    pub fn loads(&mut self, program: Program, loads: &[Load], file: &str) -> Result<()> {
        let mut found = Vec::new();
        for load in loads {
            eprintln!("hardware: {}", load.name());
            found.push(self.clients_of(program, load)?);
        }
        let sum = |clients: &Vec<Counted>| clients.iter().map(|one| one.per_second).sum::<f64>();
        let alone = loads.iter().zip(&found).filter(|(load, _)| load.gpus == 1);
        let alone: Vec<f64> = alone.map(|(_, clients)| sum(clients)).collect();
        let one = alone.iter().sum::<f64>() / alone.len() as f64;
        let mut rows = Vec::new();
        for (load, clients) in loads.iter().zip(&found) {
            let (name, sum) = (load.name(), sum(clients));
            let late = clients.iter().filter(|client| client.late).count();
            let section = &mut *self.section;
            section.equal(format!("{name}: clients"), &clients.len(), &load.clients);
            section.equal(format!("{name}: clients that came late"), &late, &0);
            let mut each = BTreeMap::<&str, usize>::new();
            for client in clients {
                *each.entry(&client.uuid).or_default() += 1;
            }
            let each: Vec<usize> = each.into_values().collect();
            let (times, part) = (sum / one, sum / one / load.gpus as f64);
            let seen =
                format!("{sum:.0}; on each {each:?}; {times:.2} times one GPU, each {part:.3}");
            section.fact(&name, seen.clone());
            if let Some((expected, reach)) = load.must {
                let reaches = format!("{name}: {reach} of one GPU each");
                section.check(reaches, part >= reach, seen);
                let expected = vec![expected; load.gpus];
                section.equal(format!("{name}: on each GPU"), &each, &expected);
            }
            rows.push(json!({
                "gpus": load.gpus,
                "program": load.choice.0,
                "flags": load.flags,
                "per_second": (sum * 10.0).round() / 10.0,
                "of_one_gpu_each": rounded(part),
                "clients_on_each": each,
            }));
        }
        let title = format!("{file}, {}", self.run.gpu().name);
        self.keep_json(file, &json!({"title": title, "rows": rows}))
    }

    fn clients_of(&self, program: Program, load: &Load) -> Result<Vec<Counted>> {
        let (bed, user) = self.bed()?;
        let task = match program {
            Program::OpenMm => self.simulations()?.task("run", SIMULATED),
            _ => {
                let load = self.run.place.staged("cuda-load")?.display().to_string();
                format!("{load} --at {} --seconds {COUNT}", now()? + UP)
            }
        };
        // One option says that MPS is on, and how.
        let says_it = load.flags.contains("--mps=");
        let mps = if says_it { "" } else { "--mps" };
        let line = format!(
            "--gres=gpu:{} -n{} {mps} {} {task} {}",
            load.gpus, load.clients, load.flags, load.choice.1
        );
        let words: Vec<&str> = line.split_whitespace().collect();
        let said = bed.srun(&user, &words, SIMULATION)?.success()?.stdout;
        match program {
            Program::OpenMm => simulated(&said, &self.run.gpus),
            _ => Ok(counted(&said)),
        }
    }

    pub fn simulations(&self) -> Result<&Dynamics> {
        self.dynamics.as_ref().context("no OpenMM")
    }
}

/// The simulations' lines: `612.3 ns/day (late) on GPU-…`. The daemon's numbers are in the order of
/// the bus, like nvidia-smi's.
pub fn simulated(said: &str, gpus: &[Gpu]) -> Result<Vec<Counted>> {
    let read = |line: &str| {
        let (figure, rest) = line.split_once(" ns/day")?;
        let listed = rest.rsplit_once(" on ")?.1.trim();
        let numbered = listed.parse::<usize>().ok();
        let numbered = numbered.and_then(|number| gpus.get(number));
        Some(Counted {
            per_second: figure.trim().parse().ok()?,
            late: rest.contains("(late)"),
            uuid: numbered.map_or(listed, |gpu| gpu.uuid.as_str()).to_owned(),
            ..Counted::default()
        })
    };
    let lines = said.lines().filter(|line| line.contains(" ns/day"));
    let read = |line| read(line).with_context(|| format!("no figure or no GPU in '{line}'"));
    lines.map(read).collect()
}

/// Installs the package's wheels for this run; whether it has any.
pub fn wheels(run: &Run, python: &Path) -> Result<bool> {
    let entries = fs::read_dir(run.package.join("wheels"));
    let wheels = entries.into_iter().flatten().flatten();
    let wheels: Vec<PathBuf> = wheels.map(|entry| entry.path()).collect();
    if wheels.is_empty() {
        return Ok(false);
    }
    let words = "-m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target";
    let mut pip = Command::new(python);
    pip.args(words.split(' ')).arg(run.place.python_packages());
    child::run(pip.args(&wheels), "", SIMULATION)?.success()?;
    Ok(true)
}

pub struct Dynamics {
    python: String,
    script: String,
    input: String,
    env: BTreeMap<String, String>,
}

impl Dynamics {
    /// The words of the program, without those of its environment.
    pub fn words(&self, verb: &str, amount: &str) -> String {
        format!(
            "{} {} {verb} {} {amount}",
            self.python, self.script, self.input
        )
    }

    /// The words of a Slurm task that simulates.
    pub fn task(&self, verb: &str, seconds: &str) -> String {
        let variables = self.env.iter().filter(|(name, _)| *name != "PATH");
        let variables = variables.map(|(name, value)| format!("{name}={value} "));
        let variables: String = variables.collect();
        format!("/usr/bin/env {variables}{}", self.words(verb, seconds))
    }

    /// Installs OpenMM for this run and makes its input, unless the package lacks it or the machine
    /// lacks Python.
    pub fn has(scene: &mut Scene<'_>) -> Result<bool> {
        let run = scene.run;
        let python = site::python().ok();
        let installed = python.as_deref().map(|python| wheels(run, python));
        let (Some(python), Some(true)) = (python, installed.transpose()?) else {
            let why = "no wheels in the package, or no python3 in PATH";
            scene.fact("openmm_left_out", why);
            return Ok(false);
        };
        let (script, env) = (run.place.staged("dynamics.py")?, scene.env());
        let mut prepare = run.place.as_user(&python, &env);
        prepare.arg(&script).args(["prepare", INPUT]);
        let said = child::run(prepare.current_dir(&scene.home), "", SIMULATION)?.success()?;
        scene.fact("openmm", said.stdout.trim());
        let input = scene.home.join(INPUT);
        let [python, script, input] =
            [python, script, input].map(|path| path.display().to_string());
        scene.dynamics = Some(Self {
            python,
            script,
            input,
            env,
        });
        Ok(true)
    }
}

#[derive(Clone, Copy)]
pub struct Sweep {
    pub name: &'static str,
    pub what: &'static str,
    pub options: &'static str,
    pub program: Program,
}

impl Scene<'_> {
    pub fn sweep(&mut self, id: &str, sweep: &Sweep) -> Result<()> {
        eprintln!("hardware: sweep of {}", sweep.name);
        let place = &self.run.place;
        let (metric, program) = match sweep.program {
            Program::Kernels => {
                let load = place.staged("cuda-load")?;
                let program = format!("{} --after 3 --seconds {COUNT}", load.display());
                ("\"per_second\":([0-9.]+)", program)
            }
            Program::OpenMm => (
                "([0-9.]+) ns/day",
                self.simulations()?.words("run", SIMULATED),
            ),
            Program::Inference(kind) => {
                let (python, script) = (site::python()?, place.staged("inference.py")?);
                let program = format!("{} {} {kind} 3", python.display(), script.display());
                ("([0-9.]+) ms", program)
            }
        };
        let job = self.job(id)?;
        let options = format!("sweep --json {}", sweep.options);
        let mut words: Vec<&str> = options.split(' ').collect();
        words.extend(["--metric", metric, "--"]);
        words.extend(program.split(' '));
        let mut told = self.told(&job, &format!("{}: sweep", sweep.name), &words)?;
        let advice = told["advice"].as_str().unwrap_or_default();
        self.fact(&format!("{}: advice", sweep.name), advice);
        told["title"] = format!("{}, one {}", sweep.what, self.run.gpu().name).into();
        self.keep_json(sweep.name, &told)?;
        let svg = plot::svg(&told);
        self.run.keep(&format!("{}.svg", sweep.name), &svg)
    }
}

const STEPS: [u32; 8] = [10_000, 3_000, 19_000, 6_000, 3_000, 19_000, 6_000, 10_000];
const COMMANDS: usize = 64;
/// Commands at once on each GPU (zero: one in all), and how many of all run. The slow ones run only
/// a part, and their time is scaled. The first one also fills OpenMM's cache of compiled kernels.
const FIXED: [(usize, usize); 5] = [
    (0, 4),
    (4, 16),
    (8, COMMANDS),
    (16, COMMANDS),
    (24, COMMANDS),
];

pub fn pack(scene: &mut Scene<'_>) -> Result<()> {
    /// How much longer '-n auto' may take than the best fixed number.
    const NEAR: f64 = 1.05;
    let gpus = scene.run.gpus.len();
    let fixed = FIXED.map(|(each, commands)| match each {
        0 => ("one at a time".to_owned(), "1".to_owned(), commands),
        _ => (
            format!("{each} on each GPU"),
            (each * gpus).to_string(),
            commands,
        ),
    });
    let auto = ("auto".to_owned(), "auto".to_owned(), COMMANDS);
    let mut rows = Vec::new();
    for (place, (name, number, commands)) in fixed.into_iter().chain([auto]).enumerate() {
        eprintln!("hardware: pack, {name}");
        let told = packed(scene, place, &number, commands)?;
        let all = told["succeeded"].as_u64() == Some(commands as u64);
        scene.check(format!("{name}: all succeeded"), all, told.to_string());
        let seconds = told["seconds"].as_f64().context("seconds")?;
        let scaled = seconds * COMMANDS as f64 / commands as f64;
        let took = format!("{scaled:.1} s ({commands} commands took {seconds:.1} s)");
        scene.fact(&name, took);
        rows.push(json!({
            "name": name,
            "commands": commands,
            "seconds": hundredths(seconds),
            "seconds_of_all": hundredths(scaled),
            "most_at_once": told["most_at_once"],
            "at_once": told["at_once"],
            "memory_mib": told["memory_mib"],
        }));
    }
    let time = |row: &Value| row["seconds_of_all"].as_f64().unwrap_or(f64::INFINITY);
    let times: Vec<f64> = rows.iter().map(time).collect();
    let [single, fixed @ .., auto] = &times[..] else {
        return Ok(());
    };
    let best = fixed.iter().copied().fold(f64::INFINITY, f64::min);
    ensure!(best > 0.0, "no time");
    for (name, most) in [
        ("within 1.05 of the best fixed number", best * NEAR),
        ("quicker than 8 on each GPU", fixed[1]),
        ("quicker than one at a time", *single),
    ] {
        let seen = format!("{auto:.1} s, {most:.1} s");
        scene.check(format!("-n auto is {name}"), *auto < most, seen);
    }
    let gpu = &scene.run.gpu().name;
    let title =
        format!("{COMMANDS} OpenMM commands of {STEPS:?} steps, --threads auto, {gpus} × {gpu}");
    scene.keep_json("pack", &json!({"title": title, "gpus": gpus, "rows": rows}))
}

/// What `mpsctl pack --json` says of so many commands, `number` of them at once.
fn packed(scene: &mut Scene<'_>, place: usize, number: &str, commands: usize) -> Result<Value> {
    let dynamics = scene.simulations()?;
    let steps = STEPS.iter().cycle().take(commands);
    let lines = steps.map(|steps| dynamics.words("steps", &steps.to_string()) + "\n");
    let lines: String = lines.collect();
    let file = scene.home.join(format!("{place}.txt"));
    fs::write(&file, lines)?;
    let line = format!("pack --json --threads auto -n {number} {}", file.display());
    let words: Vec<&str> = line.split(' ').collect();
    let job = scene.job("7004.srv")?;
    let told = scene.told(&job, &format!("pack -n {number}"), &words)?;
    let log = scene.home.join(format!("{place}.txt.results/joblog"));
    let log = fs::read_to_string(log)?;
    scene.run.keep(&format!("pack-{place}.joblog"), &log)?;
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulation_is_on_the_gpu_that_it_names_by_number_or_uuid() {
        let gpu = |uuid: &str| Gpu {
            uuid: uuid.into(),
            ..Gpu::default()
        };
        let gpus = [gpu("GPU-a"), gpu("GPU-b")];
        let read = |line| {
            let mut all = simulated(line, &gpus).ok()?;
            let one = all.pop()?;
            Some((one.per_second, one.late, one.uuid))
        };
        let timely = Some((612.3, false, "GPU-b".into()));
        assert_eq!(read("612.3 ns/day on 1"), timely);
        let late = Some((5.0, true, "GPU-a".into()));
        assert_eq!(read("5.0 ns/day (late) on GPU-a"), late);
        assert_eq!(read("5.0 ns/day"), None);
    }
}

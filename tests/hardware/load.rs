//! The benchmarks of throughput: programs that count during the same seconds, started by `srun` or
//! by `mpsctl sweep`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::tests::child::{self, Running};
use ::tests::samples::in_turn;
use ::tests::slurm::{Bed, User};
use anyhow::{Context, Result, ensure};
use runner::sweep::outcome::Outcome;
use runner::sweep::plot;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::job::Job;
use crate::result::Section;
use crate::site::{self, Gpu, Run};
use crate::slurm;

/// Longest time for one `srun` of clients, or one simulation, with everything before it counts.
const SRUN: Duration = Duration::from_secs(60);
const SIMULATION: Duration = Duration::from_secs(120);
/// From the command until all clients of small kernels count, and how long they count. Seconds.
const UP: f64 = 6.0;
const COUNT: f64 = 2.0;
/// How long a simulation counts. It warms up for 9 s before and continues, so that all count at the
/// same time. Seconds.
const SIMULATED: &str = "6";
const INPUT: &str = "system.xml";
/// Clients at once that a sweep tries, and the longest time for it.
const CLIENTS: &str = "1,2,4,8,16";
const SWEEP: Duration = Duration::from_secs(420);
/// How far a job that follows the advice may be from the sweep's figure.
const CONFIRMED: f64 = 0.10;
/// Simulations on each GPU, and what several GPUs must reach of as many times one GPU.
const EACH: usize = 8;
const REACH: f64 = 0.97;

type Choice = (&'static str, Option<&'static str>);
pub const FIRST: Choice = ("takes the first GPU", None);
const BY_RANK: Choice = ("takes the GPU of its rank", Some("--by-rank"));
const BY_BLOCK: Choice = ("takes the GPU of its block of ranks", Some("--by-block"));

pub struct Load {
    pub gpus: usize,
    pub clients: usize,
    pub choice: Choice,
    pub flags: Vec<&'static str>,
    /// This many clients must be on each GPU.
    pub each: Option<usize>,
    /// What all must reach of as many times the load on one GPU.
    pub reach: Option<f64>,
}

impl Load {
    pub fn new(gpus: usize, clients: usize, choice: Choice, flags: &[&'static str]) -> Self {
        Self {
            gpus,
            clients,
            choice,
            flags: flags.to_vec(),
            each: None,
            reach: None,
        }
    }

    fn name(&self) -> String {
        let flags = self.flags.join(" ");
        let (gpus, clients, choice) = (self.gpus, self.clients, self.choice.0);
        format!("{clients} clients on {gpus} GPUs, {flags}, {choice}")
    }
}

#[derive(Debug, Default, Deserialize)]
pub struct Client {
    rank: usize,
    uuid: String,
    pub late: bool,
    pub per_second: f64,
}

pub struct Row {
    pub sum: f64,
    pub part: f64,
    gpus: Vec<String>,
}

impl Row {
    fn each(&self) -> Vec<usize> {
        let mut each = BTreeMap::<&str, usize>::new();
        for gpu in &self.gpus {
            *each.entry(gpu).or_default() += 1;
        }
        each.into_values().collect()
    }
}

pub enum Program<'a> {
    Kernels,
    /// Simulated nanoseconds a day.
    OpenMm(&'a Dynamics),
}

pub fn table(
    section: &mut Section,
    run: &Run,
    (bed, user): (&Bed, &User),
    program: &Program<'_>,
    loads: &[Load],
) -> Result<Vec<Row>> {
    let clients = in_turn(loads, 1, |load, _| {
        eprintln!("hardware: {}", load.name());
        let clients = start(run, bed, user, program, load)?;
        let (name, all) = (load.name(), clients.len());
        section.equal(format!("{name}: clients"), &all, &load.clients);
        let late = clients.iter().filter(|client| client.late).count();
        section.equal(format!("{name}: clients that came late"), &late, &0);
        Ok(clients)
    })?;
    let sum = |clients: &Vec<Client>| clients.iter().map(|client| client.per_second).sum();
    let sums: Vec<f64> = clients.iter().flatten().map(sum).collect();
    let alone = || loads.iter().zip(&sums).filter(|(load, _)| load.gpus == 1);
    let one = alone().map(|(_, sum)| sum).sum::<f64>() / alone().count() as f64;
    let mut rows = Vec::new();
    for ((load, clients), sum) in loads.iter().zip(clients.into_iter().flatten()).zip(sums) {
        let row = Row {
            sum,
            part: sum / one / load.gpus as f64,
            gpus: clients.into_iter().map(|client| client.uuid).collect(),
        };
        judge(section, load, &row, program);
        rows.push(row);
    }
    Ok(rows)
}

fn judge(section: &mut Section, load: &Load, row: &Row, program: &Program<'_>) {
    let (name, each, part) = (load.name(), row.each(), row.part);
    let unit = match program {
        Program::Kernels => "launches a second",
        Program::OpenMm(_) => "ns/day",
    };
    let mut seen = format!("{:.0} {unit}; on each {each:?}", row.sum);
    if part.is_finite() {
        seen += &format!("; {part:.3} of {} times one GPU", load.gpus);
    }
    section.fact(&name, seen.clone());
    if let Some(reach) = load.reach {
        let what = format!("{name}: {reach} of {} times one GPU", load.gpus);
        section.check(what, part >= reach, seen);
    }
    if let Some(expected) = load.each {
        section.equal(
            format!("{name}: on each GPU"),
            &each,
            &vec![expected; load.gpus],
        );
    }
}

fn start(
    run: &Run,
    bed: &Bed,
    user: &User,
    program: &Program<'_>,
    load: &Load,
) -> Result<Vec<Client>> {
    let (gres, tasks) = (
        format!("--gres=gpu:{}", load.gpus),
        format!("-n{}", load.clients),
    );
    let mut words = vec![gres, tasks];
    // One option says that MPS is on, and how.
    let says_mps = load.flags.iter().any(|flag| flag.starts_with("--mps="));
    words.extend((!says_mps).then(|| "--mps".to_owned()));
    words.extend(load.flags.iter().map(|flag| (*flag).to_owned()));
    let limit = match program {
        Program::Kernels => {
            let at = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() + UP;
            words.push(run.place.staged("cuda-load")?.display().to_string());
            words.extend(["--at".into(), at.to_string()]);
            words.extend(["--seconds".into(), COUNT.to_string()]);
            SRUN
        }
        Program::OpenMm(dynamics) => {
            let task = dynamics.task("run", SIMULATED);
            words.extend(task.split_whitespace().map(str::to_owned));
            SIMULATION
        }
    };
    words.extend(load.choice.1.map(str::to_owned));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let said = bed.srun(user, &words, limit)?.success()?.stdout;
    let clients = said.lines().filter_map(|line| match program {
        Program::Kernels => line
            .starts_with('{')
            .then(|| Ok(serde_json::from_str(line)?)),
        Program::OpenMm(_) => line
            .contains(" ns/day")
            .then(|| simulation(line, &run.gpus)),
    });
    let mut clients = clients.collect::<Result<Vec<Client>>>()?;
    clients.sort_by_key(|client| client.rank);
    Ok(clients)
}

/// A simulation's line: `612.3 ns/day (late) on GPU-…`. The daemon's numbers are in the order of
/// the bus, like nvidia-smi's.
pub fn simulation(line: &str, gpus: &[Gpu]) -> Result<Client> {
    let figure = line
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    let listed = line.rsplit_once(" on ").map(|(_, listed)| listed.trim());
    let listed = listed.with_context(|| format!("no GPU in '{line}'"))?;
    let numbered = listed
        .parse::<usize>()
        .ok()
        .and_then(|number| gpus.get(number));
    Ok(Client {
        per_second: figure.with_context(|| format!("no figure in '{line}'"))?,
        late: line.contains("(late)"),
        uuid: numbered.map_or(listed, |gpu| gpu.uuid.as_str()).to_owned(),
        ..Client::default()
    })
}

/// OpenMM, eight simulations on each GPU. With the default binding they must reach [`REACH`] of as
/// many times one GPU.
pub fn several(section: &mut Section, run: &Run) -> Result<()> {
    let most = run.gpus.len();
    let unbound = Some("--mps-bind=none");
    let mut cases = vec![(1, FIRST, None), (2, FIRST, None), (2, FIRST, unbound)];
    cases.extend([(2, BY_RANK, None), (2, BY_BLOCK, None)]);
    cases.extend(["--mps-bind=block", "--mps=per-gpu"].map(|flag| (2, FIRST, Some(flag))));
    if most > 2 {
        cases.extend([(most, FIRST, None), (most, FIRST, unbound)]);
    }
    cases.push((1, FIRST, None));
    let loads = cases.iter().map(|(gpus, choice, flag)| {
        let flags: Vec<&str> = ["--mps-threads=auto"].into_iter().chain(*flag).collect();
        let unasked = flag.is_none() && *gpus > 1;
        Load {
            each: unasked.then_some(EACH),
            reach: unasked.then_some(REACH),
            ..Load::new(*gpus, EACH * gpus, *choice, &flags)
        }
    });
    let loads: Vec<Load> = loads.collect();
    let home = run.place.user_dir("several")?;
    let Some(dynamics) = Dynamics::prepare(section, run, &home)? else {
        return Ok(());
    };
    let mut options = slurm::options((0..most as u32).collect());
    options.cpus = std::thread::available_parallelism()?.get() as u32;
    let rows = slurm::on_bed(section, run, options, |section, bed, user| {
        table(
            section,
            run,
            (bed, user),
            &Program::OpenMm(&dynamics),
            &loads,
        )
    })?;
    let figures = cases.iter().zip(&rows).map(|((gpus, choice, flag), row)| {
        json!({
            "gpus": gpus,
            "program": choice.0,
            "flag": flag,
            "ns_per_day": (row.sum * 10.0).round() / 10.0,
            "of_one_gpu_each": (row.part * 1000.0).round() / 1000.0,
            "simulations_on_each": row.each(),
        })
    });
    let title = format!("OpenMM on several GPUs, {}", run.gpus[0].name);
    let rows: Vec<Value> = figures.collect();
    let told = json!({"title": title, "simulations_each": EACH, "rows": rows});
    run.keep("several.json", &format!("{told:#}\n"))?;
    Ok(fs::remove_dir_all(&home)?)
}

/// Installs the package's wheels for this run; whether it has any.
pub fn wheels(run: &Run, python: &Path) -> Result<bool> {
    let entries = fs::read_dir(run.package.join("wheels"))
        .into_iter()
        .flatten();
    let wheels: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    if wheels.is_empty() {
        return Ok(false);
    }
    let mut pip = Command::new(python);
    let quiet = ["-m", "pip", "install", "-q", "--no-index", "--no-deps"];
    let apart = ["--no-compile", "--no-cache-dir", "--target"];
    pip.args(quiet)
        .args(apart)
        .arg(run.place.python_packages())
        .args(&wheels);
    child::run(&mut pip, "", SIMULATION)?.success()?;
    Ok(true)
}

pub struct Dynamics {
    /// Python, the script, its verb, its input, and the seconds.
    pub command: [String; 5],
    env: BTreeMap<String, String>,
}

impl Dynamics {
    /// The words of a Slurm task that simulates, with a blank at the end.
    pub fn task(&self, verb: &str, seconds: &str) -> String {
        let variables = self.env.iter().filter(|(name, _)| *name != "PATH");
        let variables: String = variables
            .map(|(name, value)| format!("{name}={value} "))
            .collect();
        let [python, script, _, input, _] = &self.command;
        format!("/usr/bin/env {variables}{python} {script} {verb} {input} {seconds} ")
    }

    /// Installs OpenMM for this run and makes its input; `None` if the package lacks it or the
    /// machine lacks Python.
    pub fn prepare(section: &mut Section, run: &Run, home: &Path) -> Result<Option<Self>> {
        let python = site::python().ok();
        let installed = python
            .as_deref()
            .map(|python| wheels(run, python))
            .transpose()?;
        let (Some(python), Some(true)) = (python, installed) else {
            let why = "no wheels in the package, or no python3 in PATH";
            section.fact("openmm_left_out", why);
            return Ok(None);
        };
        let script = run.place.staged("dynamics.py")?.display().to_string();
        let env = site::home_env(&run.place, home);
        let mut prepare = run.place.as_user(&python, &env);
        prepare.args([&script, "prepare", INPUT]).current_dir(home);
        let said = child::run(&mut prepare, "", SIMULATION)?.success()?;
        section.fact("openmm", said.stdout.trim());
        let [python, input] = [python, home.join(INPUT)].map(|path| path.display().to_string());
        let command = [python, script, "run".into(), input, SIMULATED.into()];
        Ok(Some(Self { command, env }))
    }
}

struct Sweep {
    name: &'static str,
    what: &'static str,
    options: &'static [&'static str],
    metric: &'static str,
    command: Vec<String>,
}

/// What MPS brings on one GPU: small kernels, and OpenMM if the package has it.
pub fn gain(section: &mut Section, run: &Run) -> Result<()> {
    const OPENMM: &str = "([0-9.]+) ns/day";
    let home = run.place.user_dir("gain")?;
    let load = run.place.staged("cuda-load")?.display().to_string();
    let counting = [&load, "--after", "3", "--seconds", "2"];
    let mut sweeps = vec![Sweep {
        name: "kernels",
        what: "small kernels",
        options: &["--clients", CLIENTS],
        metric: "\"per_second\":([0-9.]+)",
        command: counting.map(String::from).to_vec(),
    }];
    let dynamics = Dynamics::prepare(section, run, &home)?;
    if let Some(dynamics) = &dynamics {
        let openmm = |name, options| Sweep {
            name,
            what: "OpenMM",
            options,
            metric: OPENMM,
            command: dynamics.command.to_vec(),
        };
        sweeps.push(openmm("openmm", &["--clients", CLIENTS]));
        let alone = &["--clients", "1", "--only-mps", "--threads", "none,25,12.5"];
        sweeps.push(openmm("openmm-alone", alone));
    }
    let found = swept(section, run, &home, "7001.srv", &sweeps)?;
    if let Some(dynamics) = dynamics {
        confirm(section, run, &home, &found[1][0], &dynamics.command)?;
    }
    Ok(fs::remove_dir_all(&home)?)
}

pub fn inference(section: &mut Section, run: &Run) -> Result<()> {
    let home = run.place.user_dir("inference")?;
    let (python, script) = (site::python()?, run.place.staged("inference.py")?);
    let [python, script] = [python, script].map(|word| word.display().to_string());
    let sweep = |name, what| Sweep {
        name,
        what,
        options: &["--clients", "1,4,8", "--threads", "none"],
        metric: "([0-9.]+) ms",
        command: [&*python, &*script, name, "3"].map(String::from).to_vec(),
    };
    let sweeps = [
        sweep("convolution", "a small network, one picture at a time"),
        sweep("stream", "a kernel bound by memory"),
    ];
    swept(section, run, &home, "7003.srv", &sweeps)?;
    Ok(fs::remove_dir_all(&home)?)
}

fn swept(
    section: &mut Section,
    run: &Run,
    home: &Path,
    id: &str,
    sweeps: &[Sweep],
) -> Result<Vec<Vec<Value>>> {
    let job = Job::named(&run.place, run.gpu(), id)?;
    job.prologue("MPS=true")?.success()?;
    let found = in_turn(sweeps, 1, |sweep, _| {
        let name = sweep.name;
        eprintln!("hardware: sweep of {name}");
        let mut command = job.user_mpsctl(site::home_env(&run.place, home))?;
        command.args(["sweep", "--json"]).args(sweep.options);
        command.args(["--metric", sweep.metric, "--"]);
        command.args(&sweep.command).current_dir(home);
        let ran = child::run(&mut command, "", SWEEP)?;
        let mut told: Value = serde_json::from_str(&ran.stdout).with_context(|| ran.story())?;
        section.check(format!("{name}: sweep"), ran.code == Some(0), ran.stderr);
        let advice = told["advice"].as_str().unwrap_or_default();
        section.fact(&format!("{name}: advice"), advice);
        let title = format!("{}, one {}", sweep.what, run.gpu().name);
        told["title"] = title.as_str().into();
        run.keep(&format!("{name}.json"), &format!("{told:#}\n"))?;
        let outcome: Outcome = serde_json::from_value(told.clone())?;
        let svg = plot::svg(&outcome, &title);
        run.keep(&format!("{name}.svg"), &svg)?;
        Ok(told)
    })?;
    job.epilogue()?.success()?;
    Ok(found)
}

fn confirm(
    section: &mut Section,
    run: &Run,
    home: &Path,
    found: &Value,
    dynamics: &[String],
) -> Result<()> {
    let rows = found["rows"].as_array().context("rows")?;
    let figure = |row: &Value| row["throughput"].as_f64().unwrap_or(0.0);
    let under = rows.iter().filter(|row| row["mps"] == true);
    let best = under.max_by(|a, b| figure(a).total_cmp(&figure(b)));
    let best = best.context("no row under MPS")?;
    let clients = best["clients"].as_u64().context("clients")?;
    let account = match best["percent"].as_f64() {
        Some(percent) => format!("MPS=true,MPS_THREADS={percent}"),
        None => "MPS=true".to_owned(),
    };
    let job = Job::named(&run.place, run.gpu(), "7002.srv")?;
    job.prologue(&account)?.success()?;
    let mut running = Vec::new();
    for _ in 0..clients {
        let mut command = job.exec(site::home_env(&run.place, home))?;
        command.current_dir(home).args(dynamics);
        running.push(Running::start(&mut command, "")?);
    }
    let mut sum = 0.0;
    for one in running {
        let ran = one.finish(SIMULATION)?.success()?;
        sum += simulation(ran.stdout.trim(), &run.gpus)?.per_second;
    }
    job.epilogue()?.success()?;
    let expected = figure(best);
    ensure!(expected > 0.0, "the best has no figure");
    let name = format!(
        "a job with {account} and {clients} simulations does within {CONFIRMED} of the sweep"
    );
    let is_so = (sum / expected - 1.0).abs() <= CONFIRMED;
    section.check(
        name,
        is_so,
        format!("{sum:.0} ns/day, the sweep {expected:.0}"),
    );
    Ok(())
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
            simulation(line, &gpus)
                .map(|one| (one.per_second, one.late, one.uuid))
                .ok()
        };
        assert_eq!(
            read("612.3 ns/day on 1"),
            Some((612.3, false, "GPU-b".into()))
        );
        let late = Some((5.0, true, "GPU-a".into()));
        assert_eq!(read("5.0 ns/day (late) on GPU-a"), late);
        assert_eq!(read("5.0 ns/day"), None);
    }
}

//! Jobs of one user on one GPU that Slurm divides into shards: what one MPS for all of them brings,
//! and whether joining and leaving jobs disturb the others.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ::tests::child;
use ::tests::samples::in_turn;
use ::tests::slurm::Options;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::job::{Job, PLAIN};
use crate::load::simulated;
use crate::plot;
use crate::result::{hundredths, median};
use crate::runner::Scene;
use crate::site::Run;
use crate::slurm::one_gpu;
use crate::times::now;

const SHARDS: usize = 16;
const COUNTS: [usize; 2] = [8, 16];
/// From the command until all simulations are up, and how long each then counts, seconds.
const UP: Duration = Duration::from_secs(60);
const COUNTED: &str = "8";
/// From the word until all begin to count: longer than 100 steps of sixteen that take turns.
const AHEAD: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(60);

struct Way {
    /// The share in the table's column; `None`: without MPS.
    share: Option<&'static str>,
    asks: &'static str,
    /// Each simulation is a job of its own.
    array: bool,
}

const SHARED: &str = "shared by the jobs";
const AS_RANKS: &str = "for the ranks of one job";

const WAYS: [Way; 4] = [
    Way {
        share: None,
        asks: "",
        array: true,
    },
    Way {
        share: Some("one for each job"),
        asks: "--mps=own",
        array: true,
    },
    Way {
        share: Some(SHARED),
        asks: "--mps --mps-threads=auto",
        array: true,
    },
    Way {
        share: Some(AS_RANKS),
        asks: "--mps --mps-threads=auto",
        array: false,
    },
];

pub fn shards(run: &Run) -> Options {
    Options {
        // The simulations, the one that stays, and those that join it.
        cpus: 2 * SHARDS as u32,
        gres_types: vec!["shard".into()],
        gres_count: SHARDS as u32,
        ..one_gpu(run)
    }
}

/// How long the first member begins, later ones join and leave, and the last one ends.
pub fn times(scene: &mut Scene<'_>) -> Result<()> {
    const ROUNDS: usize = 5;
    const MEMBERS: usize = 3;
    const LIMIT_MS: f64 = 30.0;
    let run = scene.run;
    let lives = in_turn(&[()], ROUNDS, |(), _| {
        let job = |number: usize| {
            let id = format!("{}.srv", 6500 + number);
            let job = Job::new(&run.place, &id, PLAIN, &[&run.gpu().uuid])?;
            job.under("shared_gpus = true\n")
        };
        let jobs = (0..=MEMBERS).map(job).collect::<Result<Vec<_>>>()?;
        let begins = jobs.iter().map(|job| Ok(job.prologue()?.success()?.ms()));
        let begins = begins.collect::<Result<Vec<f64>>>()?;
        let ends = jobs.iter().map(|job| Ok(job.epilogue()?.success()?.ms()));
        let mut ends = ends.collect::<Result<Vec<f64>>>()?;
        ends.reverse();
        Ok([begins, ends])
    })?;
    for (side, first, later) in [(0, "first_begin", "join"), (1, "last_end", "leave")] {
        let lives = lives[0].iter().map(|life| &life[side]);
        let first_ms: Vec<f64> = lives.clone().map(|times| times[0]).collect();
        let later_ms: Vec<f64> = lives.flat_map(|times| &times[1..]).copied().collect();
        scene.section.times(&format!("{first}_ms"), &first_ms);
        scene.section.times(&format!("{later}_ms"), &later_ms);
        let name = format!("{later}: ms at most");
        scene.section.at_most(name, median(&later_ms), LIMIT_MS);
    }
    Ok(())
}

struct Gate(PathBuf);

impl Gate {
    fn make(scene: &Scene<'_>, name: &str) -> Result<Self> {
        Ok(Self(scene.run.place.user_dir(&format!("shared/{name}"))?))
    }

    fn word(&self) -> String {
        format!("--gate={}", self.0.display())
    }

    fn output(&self) -> String {
        format!("--output={}/%j.out", self.0.display())
    }

    fn files(&self, begin: &str, end: &str) -> Vec<PathBuf> {
        let files = fs::read_dir(&self.0).into_iter().flatten().flatten();
        let is = |name: &str| name.starts_with(begin) && name.ends_with(end);
        let files = files.filter(|file| is(&file.file_name().to_string_lossy()));
        files.map(|file| file.path()).collect()
    }

    fn said(&self) -> Result<String> {
        let files = self.files("", ".out").into_iter();
        files.map(|file| Ok(fs::read_to_string(file)?)).collect()
    }

    fn open(&self, count: usize) -> Result<()> {
        let up = || self.files("up.", "").len();
        if !child::until(UP, Duration::from_millis(50), || up() == count)? {
            bail!("{} of {count} simulations are up: {}", up(), self.said()?);
        }
        let at = now()? + AHEAD.as_secs_f64();
        let new = self.0.join("new");
        fs::write(&new, at.to_string())?;
        Ok(fs::rename(new, self.0.join("go"))?)
    }
}

pub fn gain(scene: &mut Scene<'_>) -> Result<()> {
    /// How far jobs that share an MPS may be from one job with as many ranks.
    const AS_ONE: f64 = 0.03;
    let mut rows = Vec::new();
    for count in COUNTS {
        for way in &WAYS {
            let sum = scene.simulations_of(count, way)?;
            let mps = way.share.is_some();
            let mut row = json!({"clients": count, "mps": mps, "throughput": sum, "runs": [sum]});
            if let Some(share) = way.share {
                row["threads"] = share.into();
            }
            rows.push(row);
        }
        let figure = |share| {
            let is = |row: &&Value| row["threads"] == share;
            let row = rows.iter().rfind(is);
            row.and_then(|row| row["throughput"].as_f64())
                .context("no figure")
        };
        let part = figure(SHARED)? / figure(AS_RANKS)?;
        let name =
            format!("{count} jobs that share an MPS: within {AS_ONE} of {count} ranks of one job");
        let is_so = (part - 1.0).abs() <= AS_ONE;
        scene.check(name, is_so, format!("{part:.3} of it"));
    }
    let gpu = scene.run.gpu();
    let told = json!({
        "title": format!("OpenMM in jobs that share one {}", gpu.name),
        "unit": "ns/day",
        "gpus": 1,
        "gpu_memory_mib": gpu.total_mib,
        "rows": rows,
    });
    scene.keep_json("shared", &told)?;
    scene.run.keep("shared.svg", &plot::svg(&told))
}

impl Scene<'_> {
    fn submit(&self, gate: &Gate, words: &str, script: &str) -> Result<u32> {
        let (bed, user) = self.bed()?;
        let output = gate.output();
        let words = words.split_whitespace().chain([&*output]);
        bed.sbatch(&user, &words.collect::<Vec<_>>(), script)
    }

    /// The sum of `count` simulations that count during the same seconds.
    fn simulations_of(&mut self, count: usize, way: &Way) -> Result<f64> {
        let name = match way.share {
            None => format!("{count} simulations, without MPS"),
            Some(share) => format!("{count} simulations, MPS, {share}"),
        };
        eprintln!("hardware: {name}");
        let gate = Gate::make(self, &name.replace([' ', ','], "-"))?;
        let task = self.simulations()?.task("run", COUNTED) + &gate.word();
        let (words, script) = match way.array {
            true => (
                format!("--array=1-{count} --gres=shard:{}", SHARDS / count),
                task,
            ),
            false => (format!("-n{count} --gres=gpu:1"), format!("srun {task}")),
        };
        self.submit(&gate, &format!("{words} {}", way.asks), &script)?;
        gate.open(count)?;
        self.bed()?.0.wait_idle(LIMIT)?;
        let said = gate.said()?;
        let all = simulated(&said, &self.run.gpus)?;
        let timely = all.iter().filter(|client| !client.late).count() == count;
        let seen = if timely { String::new() } else { said };
        self.check(format!("{name}: all counted in time"), timely, seen);
        let sum = all.iter().map(|client| client.per_second).sum();
        self.fact(&name, format!("{sum:.0} ns/day"));
        Ok(sum)
    }

    /// Waits until only the staying job is left, and all other epilogues are over.
    fn wait_alone(&self) -> Result<()> {
        let (bed, _) = self.bed()?;
        let jobs = self.run.place.run.join("mpsd/jobs");
        let is_alone = || {
            let queue = bed.said("squeue -h -a -r -o %i");
            let members = fs::read_dir(&jobs).into_iter().flatten().flatten();
            let members = members.filter(|entry| entry.path().is_dir()).count();
            members == 1 && queue.is_ok_and(|queue| queue.lines().count() == 1)
        };
        match child::until(LIMIT, Duration::from_millis(100), is_alone)? {
            true => Ok(()),
            false => bail!("the others do not end: {}", bed.situation()),
        }
    }
}

/// One member simulates and stays. Three kinds of windows take turns: quiet; other jobs join and
/// leave; and as many clients start and end in another staying job, which shows what the clients
/// themselves cost.
pub fn bystander(scene: &mut Scene<'_>) -> Result<()> {
    /// How much the staying simulation may lose while others join and leave.
    const LOSS: f64 = 0.02;
    /// Members that join and leave in a window; at most so many at once.
    const JOINS: usize = 25;
    const AT_ONCE: usize = 4;
    const QUIET: Duration = Duration::from_secs(8);
    /// Longest time for the staying simulation, seconds.
    const STAYS: &str = "150";
    eprintln!("hardware: a member that stays");
    let gate = Gate::make(scene, "stays")?;
    let task = scene.simulations()?.task("watch", STAYS) + &gate.word();
    let stays = scene.submit(&gate, "--mps --gres=shard:1", &task)?;
    gate.open(1)?;
    child::pause(AHEAD + Duration::from_secs(1))?;
    let probe = scene.run.place.staged("mps-probe")?.display().to_string();
    let client = format!("{probe} --require-mps >/dev/null && echo fine");
    let joins = format!("--mps --gres=shard:1 --array=1-{JOINS}%{AT_ONCE}");
    let clients = format!("for i in $(seq {JOINS}); do {client}; sleep 0.2; done");
    let others = [
        ("joins", &*joins, &*client),
        ("clients", "--mps --gres=shard:1", &*clients),
    ];
    let (mut quiet, mut windows) = (Vec::new(), [Vec::new(), Vec::new()]);
    for round in 1..=2 {
        quiet.push(window(|| child::pause(QUIET))?);
        for ((name, words, script), windows) in others.iter().zip(&mut windows) {
            eprintln!("hardware: {name}, round {round}");
            let gate = Gate::make(scene, &format!("{name}{round}"))?;
            windows.push(window(|| {
                scene.submit(&gate, words, script)?;
                scene.wait_alone()
            })?);
            let said = gate.said()?;
            let fine = said.lines().filter(|line| *line == "fine").count() == JOINS;
            let name = format!("{JOINS} {name}, round {round}: without an error");
            let seen = if fine { String::new() } else { said };
            scene.check(name, fine, seen);
        }
    }
    let (bed, _) = scene.bed()?;
    let state = bed.job_state(stays)?;
    scene.check("the member that stays runs on", state == "RUNNING", state);
    bed.said(&format!("scancel {stays}"))?;
    bed.wait_idle(LIMIT)?;
    let said = gate.said()?;
    let [joins, clients] = windows;
    let mut part = |name: &str, windows: Vec<Window>| -> Result<f64> {
        let rates = windows.iter().map(|window| rate(&said, window));
        let rates = rates.collect::<Result<Vec<_>>>()?;
        let text = |(rate, pause): &(f64, f64)| {
            format!("{rate:.0} ns/day, longest pause {:.0} ms", pause * 1e3)
        };
        let texts: Vec<String> = rates.iter().map(text).collect();
        scene.fact(&format!("beside {name}"), texts.join("; "));
        let lengths: f64 = windows.iter().map(|window| window.1 - window.0).sum();
        scene.fact(&format!("beside {name}: seconds"), hundredths(lengths));
        Ok(rates.iter().map(|(rate, _)| rate).sum::<f64>() / rates.len() as f64)
    };
    let quiet = part("nothing", quiet)?;
    let beside_clients = part("clients of a job that stays", clients)? / quiet;
    let beside_joins = part("joins", joins)? / quiet;
    let name = "clients_alone_leave_it";
    scene.fact(name, hundredths(beside_clients * 100.0));
    let name = format!(
        "{} joins and leaves cost a member at most {LOSS}",
        2 * JOINS
    );
    let seen = format!("{beside_joins:.3} of it is left");
    scene.check(name, beside_joins >= 1.0 - LOSS, seen);
    Ok(())
}

/// Begin and end, seconds since 1970.
struct Window(f64, f64);

fn window(act: impl FnOnce() -> Result<()>) -> Result<Window> {
    let begin = now()?;
    act()?;
    Ok(Window(begin, now()?))
}

/// What was simulated in a window, ns/day, and the longest time between two lines, seconds. A line
/// has a time and the nanoseconds simulated until then.
fn rate(said: &str, window: &Window) -> Result<(f64, f64)> {
    let number = |word: Option<&str>| word.and_then(|word| word.parse::<f64>().ok());
    let lines = said.lines().filter_map(|line| {
        let mut words = line.split(' ');
        Some((number(words.next())?, number(words.next())?))
    });
    let within = lines.filter(|(time, _)| (window.0..=window.1).contains(time));
    let within: Vec<(f64, f64)> = within.collect();
    let [first, .., last] = within[..] else {
        bail!("nothing was simulated in a window: {said}");
    };
    let pauses = within.windows(2).map(|pair| pair[1].0 - pair[0].0);
    let rate = (last.1 - first.1) / (last.0 - first.0) * 86400.0;
    Ok((rate, pauses.fold(0.0, f64::max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_a_window_is_of_its_own_lines() {
        let said = "up\n9.0 0.0\n10.0 0.1\n10.5 0.2\n12.0 0.5\n13.0 9.0\n";
        let (rate, pause) = rate(said, &Window(10.0, 12.5)).unwrap();
        assert!((rate - 0.2 * 86400.0).abs() < 1e-6, "{rate}");
        assert_eq!(pause, 1.5);
        assert!(super::rate(said, &Window(12.5, 14.0)).is_err());
    }
}

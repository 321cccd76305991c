//! Jobs of one user on one GPU that Slurm divides into shards: what one MPS for all of them brings,
//! and whether joining and leaving jobs disturb the others.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::tests::child;
use ::tests::samples::in_turn;
use ::tests::slurm::{Bed, Options, User};
use anyhow::{Context, Result, bail};
use runner::sweep::outcome::{Outcome, Row};
use runner::sweep::plot;
use serde_json::Value;

use crate::job::Job;
use crate::load::{Dynamics, simulation};
use crate::result::{Section, hundredths, median};
use crate::site::{Place, Run};
use crate::{bench, slurm};

const SHARDS: usize = 16;
const COUNTS: [usize; 2] = [8, 16];
/// From the command until all simulations are up, and how long each then counts, seconds.
const UP: Duration = Duration::from_secs(60);
const COUNTED: &str = "8";
/// From the word until all begin to count: longer than 100 steps of sixteen that take turns.
const AHEAD: Duration = Duration::from_secs(2);
const LIMIT: Duration = Duration::from_secs(60);
/// How far jobs that share an MPS may be from one job with as many ranks.
const AS_ONE: f64 = 0.03;
/// How much the staying simulation may lose while others join and leave.
const LOSS: f64 = 0.02;
/// Members that join and leave in a window; at most so many at once; the length of a quiet window.
const JOINS: usize = 25;
const AT_ONCE: usize = 4;
const QUIET: Duration = Duration::from_secs(8);
/// Longest time for the staying simulation, seconds.
const STAYS: &str = "150";
/// Times of first and later members: rounds, jobs, and the longest time to join or leave.
const ROUNDS: usize = 5;
const MEMBERS: usize = 3;
const JOIN_LIMIT_MS: f64 = 30.0;

struct Way {
    /// The share in the table's column; `None`: without MPS.
    share: Option<&'static str>,
    words: &'static str,
    array: bool,
}

const SHARED: &str = "shared";
const AS_RANKS: &str = "ranks of one job";
/// How a picture names the columns.
const NAMES: [(&str, &str); 3] = [
    ("of its own", "one for each job"),
    (SHARED, "shared by the jobs"),
    (AS_RANKS, "for the ranks of one job"),
];

/// The same with the names for a picture.
fn named(mut outcome: Outcome) -> Outcome {
    for threads in outcome
        .rows
        .iter_mut()
        .filter_map(|row| row.threads.as_mut())
    {
        let name = NAMES.iter().find(|(column, _)| column == threads);
        *threads = name.map_or(threads.clone(), |(_, name)| (*name).to_owned());
    }
    outcome
}

const WAYS: [Way; 4] = [
    Way {
        share: None,
        words: "",
        array: true,
    },
    Way {
        share: Some("of its own"),
        words: "--mps=own",
        array: true,
    },
    Way {
        share: Some(SHARED),
        words: "--mps --mps-threads=auto",
        array: true,
    },
    Way {
        share: Some(AS_RANKS),
        words: "--mps --mps-threads=auto",
        array: false,
    },
];

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    times(section, run)?;
    let home = run.place.user_dir("shared")?;
    let Some(dynamics) = Dynamics::prepare(section, run, &home)? else {
        return Ok(());
    };
    let options = Options {
        // The simulations, the one that stays, and those that join it.
        cpus: 2 * SHARDS as u32,
        gres_types: vec!["shard".into()],
        gres_count: SHARDS as u32,
        ..slurm::options(vec![run.number as u32])
    };
    slurm::on_bed(section, run, options, |section, bed, user| {
        let site = Site {
            run,
            bed,
            user,
            dynamics: &dynamics,
        };
        site.gain(section)?;
        site.bystander(section)?;
        let state = bed.node_state("node1")?;
        section.equal("the node is not drained", &state.state.as_str(), &"IDLE");
        let clean = bed.wait_clean(LIMIT);
        let left = clean
            .as_ref()
            .map_or_else(ToString::to_string, |()| String::new());
        section.check("nothing left of the jobs", clean.is_ok(), left);
        Ok(())
    })?;
    Ok(fs::remove_dir_all(&home)?)
}

/// How long the first member begins, later ones join and leave, and the last one ends.
fn times(section: &mut Section, run: &Run) -> Result<()> {
    let lives = in_turn(&[()], ROUNDS, |(), _| {
        let job = |number: usize| {
            let id = format!("{}.srv", 6500 + number);
            Job::named(&run.place, run.gpu(), &id)?.under("shared.toml", "shared_gpus = true\n")
        };
        let jobs = (0..=MEMBERS).map(job).collect::<Result<Vec<_>>>()?;
        let begins = jobs
            .iter()
            .map(|job| Ok(job.prologue(bench::PLAIN)?.success()?.ms()));
        let begins = begins.collect::<Result<Vec<f64>>>()?;
        let ends = jobs.iter().map(|job| Ok(job.epilogue()?.success()?.ms()));
        let mut ends = ends.collect::<Result<Vec<f64>>>()?;
        ends.reverse();
        Ok([begins, ends])
    })?;
    for (side, [first, later]) in [["first_begin", "join"], ["last_end", "leave"]]
        .into_iter()
        .enumerate()
    {
        let of = |part: fn(&[f64]) -> &[f64]| -> Vec<f64> {
            lives[0]
                .iter()
                .flat_map(|life| part(&life[side]))
                .copied()
                .collect()
        };
        section.times(&format!("{first}_ms"), &of(|times| &times[..1]));
        let later_ms = of(|times| &times[1..]);
        section.times(&format!("{later}_ms"), &later_ms);
        let name = format!("{later}: at most {JOIN_LIMIT_MS} ms");
        let median = median(&later_ms);
        section.check(name, median <= JOIN_LIMIT_MS, format!("{median} ms"));
    }
    Ok(())
}

struct Site<'a> {
    run: &'a Run,
    bed: &'a Bed,
    user: &'a User,
    dynamics: &'a Dynamics,
}

/// Where simulations wait for each other, and where their jobs write.
struct Gate(PathBuf);

impl Gate {
    fn make(place: &Place, name: &str) -> Result<Self> {
        Ok(Self(place.user_dir(&format!("shared/{name}"))?))
    }

    fn word(&self) -> String {
        format!("--gate={}", self.0.display())
    }

    fn output(&self) -> String {
        format!("--output={}/%j.out", self.0.display())
    }

    fn files(&self, is: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(&self.0)?;
        let paths = entries.map(|entry| Ok(entry?.path()));
        let is = |path: &PathBuf| {
            path.file_name()
                .is_some_and(|name| is(&name.to_string_lossy()))
        };
        paths
            .filter(|path| path.as_ref().map_or(true, is))
            .collect()
    }

    fn said(&self) -> Result<String> {
        let files = self.files(|name| name.ends_with(".out"))?;
        files
            .iter()
            .map(|file| Ok(fs::read_to_string(file)?))
            .collect()
    }

    /// Waits until `count` simulations are up, then lets them count.
    fn open(&self, count: usize) -> Result<()> {
        let up = || {
            self.files(|name| name.starts_with("up."))
                .map_or(0, |up| up.len())
        };
        if !child::until(UP, Duration::from_millis(50), || up() == count)? {
            bail!("{} of {count} simulations are up: {}", up(), self.said()?);
        }
        let at = (SystemTime::now() + AHEAD).duration_since(UNIX_EPOCH)?;
        let new = self.0.join("new");
        fs::write(&new, at.as_secs_f64().to_string())?;
        Ok(fs::rename(new, self.0.join("go"))?)
    }
}

impl Site<'_> {
    fn submit(&self, gate: &Gate, words: &str, script: &str) -> Result<u32> {
        let output = gate.output();
        let words = words.split_whitespace().chain([&*output]);
        self.bed
            .sbatch(self.user, &words.collect::<Vec<_>>(), script)
    }

    fn gain(&self, section: &mut Section) -> Result<()> {
        let cases = COUNTS
            .iter()
            .flat_map(|count| WAYS.iter().map(|way| (*count, way)));
        let cases: Vec<_> = cases.collect();
        let found = in_turn(&cases, 1, |(count, way), _| {
            self.simulations(section, *count, way)
        })?;
        let rows = cases.iter().zip(&found).map(|((count, way), sums)| Row {
            clients: *count as u32,
            mps: way.share.is_some(),
            threads: way.share.map(str::to_owned),
            percent: None,
            throughput: Some(sums[0]),
            runs: sums.clone(),
            percentiles: Vec::new(),
            memory_mib: None,
            failed: None,
        });
        let outcome = Outcome {
            unit: "ns/day".into(),
            time_unit: None,
            gpus: 1,
            gpu_memory_mib: Some(self.run.gpu().total_mib),
            most_clients: None,
            pbs: false,
            rows: rows.collect(),
            notes: Vec::new(),
        };
        let sum = |count: usize, share| {
            let mut rows = outcome.rows.iter();
            let row = rows
                .find(|row| row.clients == count as u32 && row.threads.as_deref() == Some(share));
            row.and_then(|row| row.throughput).context("no figure")
        };
        for count in COUNTS {
            let part = sum(count, SHARED)? / sum(count, AS_RANKS)?;
            let name = format!(
                "{count} jobs that share an MPS: within {AS_ONE} of {count} ranks of one job"
            );
            section.check(
                name,
                (part - 1.0).abs() <= AS_ONE,
                format!("{part:.3} of it"),
            );
        }
        let title = format!("OpenMM in jobs that share one {}", self.run.gpu().name);
        let mut told = serde_json::to_value(&outcome)?;
        told["title"] = Value::from(&*title);
        self.run.keep("shared.json", &format!("{told:#}\n"))?;
        let svg = plot::svg(&named(outcome), &title);
        self.run.keep("shared.svg", &svg)
    }

    /// The sum of `count` simulations that count during the same seconds.
    fn simulations(&self, section: &mut Section, count: usize, way: &Way) -> Result<f64> {
        let name = match way.share {
            None => format!("{count} simulations, without MPS"),
            Some(share) => format!("{count} simulations, MPS, {share}"),
        };
        eprintln!("hardware: {name}");
        let gate = Gate::make(&self.run.place, &name.replace([' ', ','], "-"))?;
        let task = self.dynamics.task("run", COUNTED) + &gate.word();
        let (words, script) = match way.array {
            true => (
                format!("--array=1-{count} --gres=shard:{}", SHARDS / count),
                task,
            ),
            false => (format!("-n{count} --gres=gpu:1"), format!("srun {task}")),
        };
        self.submit(&gate, &format!("{words} {}", way.words), &script)?;
        gate.open(count)?;
        self.bed.wait_idle(LIMIT)?;
        let said = gate.said()?;
        let lines = said.lines().filter(|line| line.contains(" ns/day"));
        let all = lines.map(|line| simulation(line, &self.run.gpus));
        let all = all.collect::<Result<Vec<_>>>()?;
        let timely = all.iter().filter(|client| !client.late).count();
        let seen = if timely == count { String::new() } else { said };
        section.check(
            format!("{name}: all counted in time"),
            timely == count,
            seen,
        );
        let sum = all.iter().map(|client| client.per_second).sum();
        section.fact(&name, format!("{sum:.0} ns/day"));
        Ok(sum)
    }

    /// One member simulates and stays. Three kinds of windows take turns: quiet; other jobs join
    /// and leave; and as many clients start and end in another staying job, which shows what the
    /// clients themselves cost.
    fn bystander(&self, section: &mut Section) -> Result<()> {
        eprintln!("hardware: a member that stays");
        let place = &self.run.place;
        let gate = Gate::make(place, "stays")?;
        let task = self.dynamics.task("watch", STAYS) + &gate.word();
        let stays = self.submit(&gate, "--mps --gres=shard:1", &task)?;
        gate.open(1)?;
        child::pause(AHEAD + Duration::from_secs(1))?;
        let probe = place.staged("mps-probe")?.display().to_string();
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
                let gate = Gate::make(place, &format!("{name}{round}"))?;
                windows.push(window(|| {
                    self.submit(&gate, words, script)?;
                    self.wait_alone()
                })?);
                let said = gate.said()?;
                let fine = said.lines().filter(|line| *line == "fine").count();
                let name = format!("{JOINS} {name}, round {round}: without an error");
                let seen = if fine == JOINS { String::new() } else { said };
                section.check(name, fine == JOINS, seen);
            }
        }
        let state = self.bed.job_state(stays)?;
        section.equal("the member that stays runs on", &state.as_str(), &"RUNNING");
        self.bed.said(&format!("scancel {stays}"))?;
        self.bed.wait_idle(LIMIT)?;
        let said = gate.said()?;
        let [joins, clients] = &windows;
        let mut part = |name: &str, windows: &[Window]| -> Result<f64> {
            let rates = windows.iter().map(|window| rate(&said, window));
            let rates = rates.collect::<Result<Vec<_>>>()?;
            let texts = rates.iter().map(|(rate, pause)| {
                format!("{rate:.0} ns/day, longest pause {:.0} ms", pause * 1e3)
            });
            section.fact(
                &format!("beside {name}"),
                texts.collect::<Vec<_>>().join("; "),
            );
            let lengths: f64 = windows.iter().map(|window| window.1 - window.0).sum();
            section.fact(&format!("beside {name}: seconds"), hundredths(lengths));
            Ok(rates.iter().map(|(rate, _)| rate).sum::<f64>() / rates.len() as f64)
        };
        let quiet = part("nothing", &quiet)?;
        let beside_clients = part("clients of a job that stays", clients)? / quiet;
        let beside_joins = part("joins", joins)? / quiet;
        section.fact("clients_alone_leave_it", hundredths(beside_clients * 100.0));
        let name = format!(
            "{} joins and leaves cost a member at most {LOSS}",
            2 * JOINS
        );
        section.check(
            name,
            beside_joins >= 1.0 - LOSS,
            format!("{beside_joins:.3} of it is left"),
        );
        Ok(())
    }

    /// Waits until only the staying job is left, and all other epilogues are over.
    fn wait_alone(&self) -> Result<()> {
        let jobs = self.run.place.run.join("mpsd/jobs");
        let is_alone = || {
            let queue = self.bed.said("squeue -h -a -r -o %i");
            let members = fs::read_dir(&jobs).into_iter().flatten().flatten();
            let members = members.filter(|entry| entry.path().is_dir()).count();
            members == 1 && queue.is_ok_and(|queue| queue.lines().count() == 1)
        };
        match child::until(LIMIT, Duration::from_millis(100), is_alone)? {
            true => Ok(()),
            false => bail!("the others do not end: {}", self.bed.situation()),
        }
    }
}

/// Begin and end, seconds since 1970.
struct Window(f64, f64);

fn window(act: impl FnOnce() -> Result<()>) -> Result<Window> {
    let now =
        || Ok::<_, anyhow::Error>(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64());
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

//! Times of begins and ends, all sides in turn: NVIDIA's own programs alone, a job, and what a user
//! of Slurm waits for.

use std::fs;
use std::path::PathBuf;
use std::slice;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::tests::child;
use ::tests::samples::{in_turn, milliseconds, rounded};
use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::floor::Daemon;
use crate::job::{self, Job};
use crate::plot::{self, Bar};
use crate::result::{Section, median, spread};
use crate::runner::{PROGRAM, Scene, counted};
use crate::site::{BEFORE, Gpu, Place, Run};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// NVIDIA's daemon and server alone, unchecked.
    Hand,
    /// The same where they can open the job's GPU alone.
    Hidden,
    Job(&'static str),
    /// A job of the earlier build, if one is packed.
    Before,
    /// `srun` with these words, of so many ranks with small kernels if it is not zero. It begins
    /// until the first kernel of its last rank has ended, and it ends with `srun`.
    Srun(&'static str, usize),
}

type On = fn(&Run, usize) -> &[Gpu];

/// A begin and an end to measure. On several GPUs all begin at once and all end at once, and the
/// last of them counts.
pub struct Side {
    /// Before `_begin_ms` and `_end_ms` in the result, of `srun` before `_first_kernel_ms` and
    /// `_total_ms`.
    pub name: &'static str,
    pub by: By,
    on: On,
    /// Nothing happens so long before each.
    pub rest: Duration,
}

impl Side {
    pub const fn new(name: &'static str, by: By) -> Self {
        Self {
            name,
            by,
            on: own,
            rest: Duration::ZERO,
        }
    }

    pub const fn on(self, on: On) -> Self {
        Self { on, ..self }
    }

    pub const fn after(self, rest: Duration) -> Self {
        Self { rest, ..self }
    }
}

fn own(run: &Run, _: usize) -> &[Gpu] {
    slice::from_ref(run.gpu())
}

pub fn another(run: &Run, round: usize) -> &[Gpu] {
    slice::from_ref(&run.gpus[round % run.gpus.len()])
}

pub fn all(run: &Run, _: usize) -> &[Gpu] {
    &run.gpus
}

/// Medians to compare: a fact, and a check if it has a limit for the machine's GPUs.
pub struct Ratio {
    pub fact: &'static str,
    pub of: Part,
    pub by: Part,
    /// The GPUs of a machine (zero: any), and the most that is allowed there.
    pub most: &'static [(usize, f64)],
    /// It may also be as high as this one: NVIDIA's own programs take turns too.
    pub or: Option<(Part, Part)>,
}

/// A side by its place, and its begin or its end.
type Part = (usize, usize);
pub const BEGIN: usize = 0;
pub const END: usize = 1;

pub const fn ratio(fact: &'static str, of: Part, by: Part) -> Ratio {
    Ratio {
        fact,
        of,
        by,
        most: &[],
        or: None,
    }
}

/// How long a begin and an end took, milliseconds.
pub struct Life {
    pub ms: [f64; 2],
    /// When the end was begun, or `srun` had ended.
    pub end: Instant,
    /// When the last first kernel had ended, milliseconds after the begin.
    pub first_kernel: Option<f64>,
}

impl Scene<'_> {
    /// Records the times of all sides, in turn, and how their medians, which it returns, compare.
    pub fn sides(
        &mut self,
        sides: &[Side],
        rounds: usize,
        ratios: &[Ratio],
    ) -> Result<Vec<[f64; 2]>> {
        let has_before = self.run.place.bin(BEFORE).is_dir();
        let sides = sides
            .iter()
            .filter(|side| has_before || side.by != By::Before);
        let sides: Vec<&Side> = sides.collect();
        self.fact("pairs", rounds as i64);
        let lives = in_turn(&sides, rounds, |side, round| {
            child::pause(side.rest)?;
            let life = self.live(side, round)?;
            // Time for the driver to settle, the same for all sides.
            child::pause(Duration::from_millis(200))?;
            Ok(life.ms)
        })?;
        let mut medians = Vec::new();
        for (side, lives) in sides.iter().zip(&lives) {
            let parts = match side.by {
                By::Srun(..) => ["first_kernel", "total"],
                _ => ["begin", "end"],
            };
            medians.push([BEGIN, END].map(|part| {
                let times: Vec<f64> = lives.iter().map(|life| life[part]).collect();
                let name = format!("{}_{}_ms", side.name, parts[part]);
                self.section.times(&name, &times);
                median(&times)
            }));
        }
        let there = ratios.iter().filter(|ratio| ratio.of.0 < medians.len());
        for ratio in there {
            self.compare(ratio, &medians);
        }
        Ok(medians)
    }

    fn compare(&mut self, ratio: &Ratio, medians: &[[f64; 2]]) {
        /// Two ratios of medians within this count as equal.
        const NOISE: f64 = 1.1;
        let at = |of: Part, by: Part| medians[of.0][of.1] / medians[by.0][by.1];
        let seen = rounded(at(ratio.of, ratio.by));
        self.fact(ratio.fact, seen);
        let floor = ratio.or.map_or(0.0, |(of, by)| at(of, by) * NOISE);
        let gpus = self.run.gpus.len();
        for (_, most) in ratio.most.iter().filter(|(of, _)| [0, gpus].contains(of)) {
            let name = format!("{}: at most {most}", ratio.fact);
            self.section.at_most(name, seen, most.max(floor));
        }
    }

    pub fn live(&self, side: &Side, round: usize) -> Result<Life> {
        let (place, gpus, rest) = (&self.run.place, (side.on)(self.run, round), side.rest);
        match side.by {
            By::Hand => daemons(place, gpus, rest),
            By::Hidden => hidden(&others(self.run)?, || daemons(place, gpus, rest)),
            By::Job(account) => jobs(place, gpus, account, false, rest),
            By::Before => jobs(place, gpus, job::ACCOUNT, true, rest),
            By::Srun(words, ranks) => self.srun(words, ranks),
        }
    }

    fn srun(&self, words: &str, ranks: usize) -> Result<Life> {
        let (bed, user) = self.bed()?;
        let mut line = words.to_owned();
        if ranks > 0 {
            let load = self.run.place.staged("cuda-load")?.display().to_string();
            line += &format!(" -n{ranks} {load} --by-rank --after 0 --seconds 0");
        }
        let words: Vec<&str> = line.split(' ').collect();
        let began = now()?;
        let ran = bed.srun(&user, &words, PROGRAM)?.success()?;
        let end = Instant::now();
        // `srun` returns before the epilog has run, and the next job would wait for the epilog.
        bed.wait_idle(PROGRAM)?;
        let clients = counted(&ran.stdout);
        ensure!(clients.len() == ranks, "not {ranks}: {}", ran.story());
        let ends = clients.iter().map(|client| client.first_at);
        let last = ends.reduce(f64::max);
        let first_kernel = last.map(|last| rounded((last - began) * 1e3));
        Ok(Life {
            ms: [first_kernel.unwrap_or_default(), ran.ms()],
            end,
            first_kernel,
        })
    }
}

pub fn now() -> Result<f64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64())
}

fn daemons(place: &Place, gpus: &[Gpu], rest: Duration) -> Result<Life> {
    let begin = |(number, gpu): (usize, &Gpu)| {
        let daemon = Daemon::start(place, &gpu.uuid, &format!("floor{number}"))?;
        Ok((milliseconds(daemon.ready), daemon))
    };
    life(gpus, rest, begin, |(_, daemon)| {
        Ok(milliseconds(daemon.quit()?))
    })
}

fn jobs(place: &Place, gpus: &[Gpu], account: &str, before: bool, rest: Duration) -> Result<Life> {
    let begin = |(number, gpu): (usize, &Gpu)| {
        let id = format!("{}.srv", 6100 + number);
        let mut job = Job::new(place, &id, account, &[&gpu.uuid])?;
        job.before = before;
        Ok((job.prologue()?.success()?.ms(), job))
    };
    let end = |(_, job): (&Gpu, Job<'_>)| Ok(job.epilogue()?.success()?.ms());
    life(gpus, rest, begin, end)
}

fn life<'a, T: Send>(
    gpus: &'a [Gpu],
    rest: Duration,
    begin: impl Fn((usize, &'a Gpu)) -> Result<(f64, T)> + Sync,
    end: impl Fn((&'a Gpu, T)) -> Result<f64> + Sync,
) -> Result<Life> {
    let begun = each(gpus.iter().enumerate().collect(), &begin)?;
    child::pause(rest)?;
    let (times, begun): (Vec<f64>, Vec<T>) = begun.into_iter().unzip();
    let end_begins = Instant::now();
    let ends = each(gpus.iter().zip(begun).collect(), &end)?;
    let last = |times: Vec<f64>| times.into_iter().fold(0.0, f64::max);
    let ms = [last(times), last(ends)];
    Ok(Life {
        ms,
        end: end_begins,
        first_kernel: None,
    })
}

fn each<T: Send, U: Send>(all: Vec<T>, act: &(impl Fn(T) -> Result<U> + Sync)) -> Result<Vec<U>> {
    thread::scope(|scope| {
        let start = |one| scope.spawn(move || act(one));
        let threads: Vec<_> = all.into_iter().map(start).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => bail!("a thread panicked"),
        });
        ended.collect()
    })
}

fn others(run: &Run) -> Result<Vec<PathBuf>> {
    let own = &run.gpu().uuid;
    let mut files = Vec::new();
    for entry in fs::read_dir("/proc/driver/nvidia/gpus")? {
        let text = fs::read_to_string(entry?.path().join("information"))?;
        let mut lines = text.lines();
        let minor = lines.find_map(|line| line.strip_prefix("Device Minor:"));
        let minor = minor.context("the driver does not tell a minor number")?;
        let file = PathBuf::from(format!("/dev/nvidia{}", minor.trim()));
        if !text.contains(&**own) && file.exists() {
            files.push(file);
        }
    }
    Ok(files)
}

/// Does `work` in a thread with a mount namespace in which nobody can open `files`.
fn hidden<T: Send>(files: &[PathBuf], work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let closed = tempfile::NamedTempFile::new()?;
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o000))?;
    const NONE: Option<&str> = None;
    let there = || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)?;
        for file in files {
            mount(Some(closed.path()), file, NONE, MsFlags::MS_BIND, NONE)?;
        }
        work()
    };
    let done = thread::scope(|scope| scope.spawn(there).join());
    done.unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
}

/// What `mps-prologue` takes for jobs with account strings that do not ask for MPS.
pub fn not_asked(scene: &mut Scene<'_>) -> Result<()> {
    const OTHERS: [&str; 3] = ["", "mps_physics", "MPSLAB"];
    const MOST_MS: f64 = 5.0;
    let run = scene.run;
    let job = |other: &&str| Job::new(&run.place, "6000.srv", other, &[&run.gpu().uuid]);
    let jobs = OTHERS.iter().map(job).collect::<Result<Vec<_>>>()?;
    let waits = in_turn(&[()], run.pairs, |(), round| {
        Ok(jobs[round % jobs.len()].prologue()?.success()?.ms())
    })?;
    let seen = spread(&waits[0]);
    scene.fact("not_asked_ms_spread", seen.as_str());
    let name = format!("a job that did not ask waits less than {MOST_MS} ms");
    scene.check(name, median(&waits[0]) < MOST_MS, seen);
    Ok(())
}

/// Ranks on GPUs, compared with and without MPS.
struct Row {
    gpus: usize,
    ranks: usize,
    /// It has this part of the run's pairs.
    part: usize,
}

const ROWS: [Row; 7] = [
    Row {
        gpus: 1,
        ranks: 1,
        part: 1,
    },
    Row {
        gpus: 1,
        ranks: 2,
        part: 2,
    },
    Row {
        gpus: 1,
        ranks: 8,
        part: 1,
    },
    Row {
        gpus: 1,
        ranks: 16,
        part: 4,
    },
    Row {
        gpus: 2,
        ranks: 2,
        part: 4,
    },
    Row {
        gpus: 2,
        ranks: 8,
        part: 4,
    },
    Row {
        gpus: 2,
        ranks: 16,
        part: 4,
    },
];

/// From `srun` to the end of the last rank's first kernel, and to the end of `srun`.
pub fn first_kernels(scene: &mut Scene<'_>) -> Result<()> {
    /// How much the first kernel may be later with MPS: pairs of the same command differ as much.
    const MOST: f64 = 1.03;
    let ratios = [
        Ratio {
            most: &[(0, MOST)],
            ..ratio("first_kernel_ratio", (1, BEGIN), (0, BEGIN))
        },
        ratio("srun_ratio", (1, END), (0, END)),
    ];
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    let gpus_here = scene.run.gpus.len();
    for Row { gpus, ranks, part } in ROWS.into_iter().filter(|row| row.gpus <= gpus_here) {
        let words = ["--gres=gpu:1", "--gres=gpu:2"][gpus - 1];
        let with = ["--gres=gpu:1 --mps", "--gres=gpu:2 --mps"][gpus - 1];
        let sides = [
            Side::new("srun", By::Srun(words, ranks)),
            Side::new("srun_mps", By::Srun(with, ranks)),
        ];
        let several = |count| if count == 1 { "" } else { "s" };
        let (of_ranks, of_gpus) = (several(ranks), several(gpus));
        let name = format!("{ranks} rank{of_ranks} on {gpus} GPU{of_gpus}");
        eprintln!("hardware: {name}");
        let outer = std::mem::replace(scene.section, Section::new("row"));
        let measured = scene.sides(&sides, scene.run.pairs.div_ceil(part).max(2), &ratios);
        let own = std::mem::replace(scene.section, outer);
        let begins = measured?.into_iter().map(|medians| medians[BEGIN]);
        let kinds = [("without MPS", plot::WITHOUT), ("--mps", plot::WITH)];
        bars.extend(begins.zip(kinds).map(|(to, (side, kind))| Bar {
            name: format!("{name}, {side}"),
            to,
            said: format!("{to:.0} ms"),
            kind,
            begins: kind == plot::WITHOUT,
        }));
        for check in own.checks {
            let name = format!("{name}: {}", check.name);
            scene.check(name, check.ok, check.seen);
        }
        let mut table = own.facts;
        table.insert("gpus".into(), (gpus as i64).into());
        table.insert("ranks".into(), (ranks as i64).into());
        rows.push(table);
    }
    let titles = ["From srun to the end of the first kernel of the last rank"];
    let picture = plot::bars(&titles, &bars);
    scene.run.keep("first-kernel.svg", &picture)?;
    scene.fact("rows", rows);
    Ok(())
}

//! The benchmarks of times: the begin and end of a job against the shortest possible means, and
//! what a user waits for.

use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ::tests::child;
use ::tests::samples::{in_turn, milliseconds, rounded};
use anyhow::{Result, anyhow, bail};
use mpsd::node::worker::{NvmlWorker, Question};
use mpsd_core::{ComputeMode, GpuUuid};
use toml::Table;

use crate::job::{self, Job};
use crate::result::{Section, hundredths, median, spread};
use crate::site::{self, BEFORE, Gpu, Place, Run};
use crate::slurm;

/// What begins and ends NVIDIA's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The shortest possible means.
    Hand(Nvml),
    Job,
    /// A job of the earlier build that is packed.
    Before,
}

/// NVML beside NVIDIA's programs, in its own process as under root's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nvml {
    Absent,
    /// It looks at the GPU while they begin, and again while they end.
    Beside,
    /// It has looked at the GPU before.
    Loaded,
}

/// A begin and an end to measure, and their names.
struct Sides {
    begin: &'static str,
    end: &'static str,
    by: By,
    /// On all GPUs at once; the last of them counts.
    all: bool,
}

const fn sides([begin, end]: [&'static str; 2], by: By, all: bool) -> Sides {
    Sides {
        begin,
        end,
        by,
        all,
    }
}

/// The last one takes part if an earlier build is packed. Those with NVML show what NVML costs
/// NVIDIA's programs.
const PAIR: [Sides; 5] = [
    sides(["floor_ms", "floor_quit_ms"], By::Hand(Nvml::Absent), false),
    sides(["prologue_ms", "epilogue_ms"], By::Job, false),
    sides(
        ["floor_beside_nvml_ms", "floor_quit_beside_nvml_ms"],
        By::Hand(Nvml::Beside),
        false,
    ),
    sides(
        ["floor_after_nvml_ms", "floor_quit_after_nvml_ms"],
        By::Hand(Nvml::Loaded),
        false,
    ),
    sides(
        ["prologue_before_ms", "epilogue_before_ms"],
        By::Before,
        false,
    ),
];

const AT_ONCE: [Sides; 4] = [
    sides(["begin_alone_ms", "end_alone_ms"], By::Job, false),
    sides(
        ["begin_floor_alone_ms", "end_floor_alone_ms"],
        By::Hand(Nvml::Absent),
        false,
    ),
    sides(
        ["begin_last_of_all_ms", "end_last_of_all_ms"],
        By::Job,
        true,
    ),
    sides(
        ["begin_floor_last_of_all_ms", "end_floor_last_of_all_ms"],
        By::Hand(Nvml::Absent),
        true,
    ),
];

/// The goals, as multiples of the floor.
const GOALS: [(&str, usize, f64); 2] = [("prologue", BEGIN, 1.04), ("epilogue", END, 1.15)];
/// The prologue may take this many times the floor.
const LIMIT: f64 = 1.15;
/// Account strings of jobs that did not ask for MPS, and what `mps-prologue` may take for one,
/// milliseconds.
const OTHERS: [&str; 3] = ["", "mps_physics", "MPSLAB"];
const OTHERS_LIMIT: f64 = 5.0;
pub const PLAIN: &str = "MPS=true";
const ROUNDS: usize = 8;
/// Starts, or ends, at once may take this many times a single one.
const AT_ONCE_LIMIT: f64 = 1.5;
/// Two ratios of medians within this count as equal.
const NOISE: f64 = 1.1;
const FLOOR: &str = "from before the fork of 'nvidia-cuda-mps-control -f' as the ordinary user, through its socket and one \
                     'start_server' session, to the line 'NEW SERVER <pid>: Ready'";
/// Longest time for one `srun`, and for the epilog after it.
const SRUN: Duration = Duration::from_secs(60);

/// Longest time for an answer of NVML.
const NVML: Duration = Duration::from_secs(10);

/// How long a begin and an end took, milliseconds.
type Life = [f64; 2];
const BEGIN: usize = 0;
const END: usize = 1;

pub fn pairs(section: &mut Section, run: &Run) -> Result<()> {
    let (place, gpu) = (&run.place, run.gpu());
    let job = Job::named(place, gpu, "6000.srv")?;
    let not_asked = in_turn(&[()], run.pairs, |(), round| {
        Ok(job.prologue(OTHERS[round % OTHERS.len()])?.success()?.ms())
    })?;
    let waits = &not_asked[0];
    section.fact("not_asked_ms_spread", spread(waits));
    let name = format!("a job that did not ask waits less than {OTHERS_LIMIT} ms");
    section.check(name, median(waits) < OTHERS_LIMIT, spread(waits));
    let has_before = place.bin(BEFORE).is_dir();
    let pair = if has_before { &PAIR[..] } else { &PAIR[..4] };
    let lives = in_turn(pair, run.pairs, |sides, _| {
        live(place, std::slice::from_ref(gpu), sides.by, job::ACCOUNT)
    })?;
    section.fact("floor_is", FLOOR);
    section.fact("pairs", run.pairs as i64);
    for (sides, lives) in pair.iter().zip(&lives) {
        record(section, sides, lives);
    }
    for (name, part, goal) in GOALS {
        let median = |number: usize| median(&last(&lives[number], part));
        let mut row = Table::new();
        let mut put = |key: &str, value: f64| row.insert(key.to_owned(), value.into());
        put("goal", goal);
        put("floor_ms", median(0));
        put("now_ms", median(1));
        put("now", rounded(median(1) / median(0)));
        if has_before {
            put("before_ms", median(4));
            put("before", rounded(median(4) / median(0)));
        }
        section.fact(&format!("{name}_times_the_floor"), row);
    }
    let begin = |number: usize| median(&last(&lives[number], BEGIN));
    let ratio = rounded(begin(1) / begin(0));
    let name = format!("prologue within {LIMIT} of the floor");
    section.check(name, ratio <= LIMIT, ratio.to_string());
    Ok(())
}

/// A job on each GPU: begins and ends of all at once, against one alone.
pub fn at_once(section: &mut Section, run: &Run) -> Result<()> {
    let all = &run.gpus[..];
    let lives = in_turn(&AT_ONCE, ROUNDS, |sides, round| {
        let gpus = match sides.all {
            true => all,
            false => std::slice::from_ref(&all[round % all.len()]),
        };
        live(&run.place, gpus, sides.by, PLAIN)
    })?;
    for (sides, lives) in AT_ONCE.iter().zip(&lives) {
        record(section, sides, lives);
    }
    for (what, time) in [("begin", BEGIN), ("end", END)] {
        let median = |number: usize| median(&last(&lives[number], time));
        let ratio = |floor: usize| median(2 + floor) / median(floor);
        let (ours, floor) = (ratio(0), ratio(1));
        section.fact(
            &format!("{what}_last_of_all_by_one_alone"),
            hundredths(ours),
        );
        section.fact(
            &format!("{what}_floor_last_of_all_by_one_alone"),
            hundredths(floor),
        );
        // If NVIDIA's own programs take turns, nothing can be faster.
        let jobs = all.len();
        let name = format!(
            "{jobs} jobs {what} at once: the last within {AT_ONCE_LIMIT} of one alone, or no slower for it than the floor"
        );
        let seen = format!("{ours:.2} of one alone, the floor {floor:.2}");
        section.check(name, ours <= AT_ONCE_LIMIT || ours <= floor * NOISE, seen);
    }
    Ok(())
}

fn record(section: &mut Section, sides: &Sides, lives: &[Vec<Life>]) {
    section.times(sides.begin, &last(lives, BEGIN));
    section.times(sides.end, &last(lives, END));
}

fn last(lives: &[Vec<Life>], part: usize) -> Vec<f64> {
    let last = |lives: &Vec<Life>| lives.iter().map(|life| life[part]).fold(0.0, f64::max);
    lives.iter().map(last).collect()
}

/// A begin and an end on each of `gpus`: first all begins at once, then all ends.
fn live(place: &Place, gpus: &[Gpu], by: By, account: &str) -> Result<Vec<Life>> {
    let lives = match by {
        By::Hand(nvml) => daemons(place, gpus, nvml)?,
        By::Job | By::Before => jobs(place, gpus, by, account)?,
    };
    // Time for the driver to settle after the last start, the same for all sides.
    child::pause(Duration::from_millis(200))?;
    Ok(lives)
}

fn daemons(place: &Place, gpus: &[Gpu], nvml: Nvml) -> Result<Vec<Life>> {
    let started = each(gpus.iter().enumerate().collect(), |(number, gpu)| {
        let start = || Ok(place.daemon(&gpu.uuid, &format!("floor{number}"), "")?.0);
        Ok((gpu, with_nvml(nvml, || look_at(place, gpu), start)?))
    })?;
    each(started, |(gpu, daemon)| {
        let ready = milliseconds(daemon.ready);
        let quit = with_nvml(nvml, || look_at(place, gpu), || Ok(daemon.quit()?.0))?;
        Ok([ready, milliseconds(quit)])
    })
}

fn with_nvml<T>(
    nvml: Nvml,
    look: impl FnOnce() -> Result<NvmlWorker> + Send,
    act: impl FnOnce() -> Result<T>,
) -> Result<T> {
    match nvml {
        Nvml::Absent => act(),
        Nvml::Loaded => {
            let _looked = look()?;
            act()
        }
        Nvml::Beside => thread::scope(|scope| {
            let (done, told) = mpsc::channel::<()>();
            // The worker ends with the thread that started it.
            let looking = scope.spawn(move || {
                let looked = look();
                let _ = told.recv();
                looked.map(drop)
            });
            let acted = act();
            drop(done);
            match looking.join() {
                Ok(looked) => looked.and(acted),
                Err(_) => bail!("a thread panicked"),
            }
        }),
    }
}

fn look_at(place: &Place, gpu: &Gpu) -> Result<NvmlWorker> {
    look(
        &place.staged("mpsd")?,
        &site::nvml()?.display().to_string(),
        &gpu.uuid,
    )
}

/// A process in which NVML has looked at a GPU.
fn look(mpsd: &Path, library: &str, gpu: &str) -> Result<NvmlWorker> {
    let told = |failure| anyhow!("NVML beside the floor: {failure}");
    let mut worker = NvmlWorker::start(mpsd, library, NVML).map_err(told)?;
    let question = Question::Mode(GpuUuid::parse(gpu)?);
    worker.ask::<ComputeMode>(&question).map_err(told)?;
    Ok(worker)
}

fn jobs(place: &Place, gpus: &[Gpu], by: By, account: &str) -> Result<Vec<Life>> {
    let begun = each(gpus.iter().enumerate().collect(), |(number, gpu)| {
        let job = Job::named(place, gpu, &format!("{}.srv", 6100 + number))?;
        let job = if by == By::Before {
            job.of_build_before()
        } else {
            job
        };
        let began = job.prologue(account)?.success()?.ms();
        Ok((job, began))
    })?;
    each(begun, |(job, began)| {
        Ok([began, job.epilogue()?.success()?.ms()])
    })
}

fn each<T: Send, U: Send>(all: Vec<T>, act: impl Fn(T) -> Result<U> + Sync) -> Result<Vec<U>> {
    let act = &act;
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

pub fn waits(section: &mut Section, run: &Run) -> Result<()> {
    const CASES: [&[&str]; 2] = [
        &["--gres=gpu:1", "true"],
        &["--gres=gpu:1", "--mps", "true"],
    ];
    let options = slurm::options(vec![run.number as u32]);
    let times = slurm::on_bed(section, run, options, |_, bed, user| {
        in_turn(&CASES, run.pairs, |words, _| {
            let finished = bed.srun(user, words, SRUN)?.success()?;
            // `srun` returns before the epilog has run, and the next job would wait for the epilog.
            bed.wait_idle(SRUN)?;
            Ok(finished.ms())
        })
    })?;
    let (plain, mps) = (&times[0], &times[1]);
    let more: Vec<f64> = mps
        .iter()
        .zip(plain)
        .map(|(mps, plain)| mps - plain)
        .collect();
    section.times("srun_true_ms", plain);
    section.times("srun_mps_true_ms", mps);
    section.times("more_ms", &more);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::tests::double::NodeDouble;
    use ::tests::stage::built;
    use std::sync::Mutex;

    #[test]
    fn nvml_looks_before_or_beside_what_is_measured() {
        let node = NodeDouble::builder().gpus(1, "NVIDIA H200");
        let node = node.times(|times| times.nvml = 1000).build().unwrap();
        let library = node.nvml().display().to_string();
        let order = |nvml| {
            let order = Mutex::new(Vec::new());
            let look = || {
                let looked = look(&built("mpsd"), &library, &node.uuids()[0])?;
                order.lock().unwrap().push("looked");
                Ok(looked)
            };
            with_nvml(nvml, look, || {
                order.lock().unwrap().push("acted");
                Ok(())
            })
            .unwrap();
            order.into_inner().unwrap()
        };
        assert_eq!(order(Nvml::Absent), ["acted"]);
        assert_eq!(order(Nvml::Beside), ["acted", "looked"]);
        assert_eq!(order(Nvml::Loaded), ["looked", "acted"]);
    }
}

//! The benchmarks of times, all in turn: the begin and end of a job against NVIDIA's own programs by
//! the shortest possible means, and what a user waits for.

use std::fs;
use std::path::{Path, PathBuf};
use std::slice;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ::tests::child;
use ::tests::samples::{in_turn, milliseconds, rounded};
use ::tests::slurm::{Bed, User};
use anyhow::{Context as _, Result, anyhow, bail};
use mpsd::node::worker::{NvmlWorker, Question};
use mpsd_core::{ComputeMode, GpuUuid};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use toml::Table;

use crate::job::{self, Job};
use crate::result::{Section, hundredths, median, spread};
use crate::site::{self, BEFORE, Gpu, Place, Run};
use crate::{first, slurm};

/// What begins and ends NVIDIA's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The shortest possible means.
    Hand(Nvml),
    /// The same where they can open the job's GPU alone.
    Hidden,
    /// A job with this account string.
    Job(&'static str),
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

/// The GPUs of a round.
type On = fn(&Run, usize) -> &[Gpu];

/// A begin and an end to measure. On several GPUs all begin at once and all end at once, and the
/// last of them counts.
struct Side {
    names: [&'static str; 2],
    by: By,
    on: On,
    /// Nothing happens so long before each.
    rest: Duration,
}

const fn side(names: [&'static str; 2], by: By) -> Side {
    Side {
        names,
        by,
        on: own,
        rest: Duration::ZERO,
    }
}

fn own(run: &Run, _: usize) -> &[Gpu] {
    slice::from_ref(run.gpu())
}

fn another(run: &Run, round: usize) -> &[Gpu] {
    slice::from_ref(&run.gpus[round % run.gpus.len()])
}

fn all(run: &Run, _: usize) -> &[Gpu] {
    &run.gpus
}

const HAND: By = By::Hand(Nvml::Absent);
pub const PLAIN: &str = "MPS=true";

/// The last one takes part if an earlier build is packed. Those with NVML show what NVML costs
/// NVIDIA's programs.
const PAIR: [Side; 5] = [
    side(["floor_ms", "floor_quit_ms"], HAND),
    side(["prologue_ms", "epilogue_ms"], By::Job(job::ACCOUNT)),
    side(
        ["floor_beside_nvml_ms", "floor_quit_beside_nvml_ms"],
        By::Hand(Nvml::Beside),
    ),
    side(
        ["floor_after_nvml_ms", "floor_quit_after_nvml_ms"],
        By::Hand(Nvml::Loaded),
    ),
    side(["prologue_before_ms", "epilogue_before_ms"], By::Before),
];

const fn at_once_on(on: On, names: [&'static str; 2], by: By) -> Side {
    Side {
        on,
        ..side(names, by)
    }
}

const AT_ONCE: [Side; 4] = [
    at_once_on(another, ["begin_alone_ms", "end_alone_ms"], By::Job(PLAIN)),
    at_once_on(
        another,
        ["begin_floor_alone_ms", "end_floor_alone_ms"],
        HAND,
    ),
    at_once_on(
        all,
        ["begin_last_of_all_ms", "end_last_of_all_ms"],
        By::Job(PLAIN),
    ),
    at_once_on(
        all,
        ["begin_floor_last_of_all_ms", "end_floor_last_of_all_ms"],
        HAND,
    ),
];

const fn from_sleep(names: [&'static str; 2], by: By) -> Side {
    Side {
        rest: SLEEP,
        ..side(names, by)
    }
}

const SIGHT: [Side; 3] = [
    from_sleep(["nvidia_all_seen_begin_ms", "nvidia_all_seen_end_ms"], HAND),
    from_sleep(
        [
            "nvidia_others_hidden_begin_ms",
            "nvidia_others_hidden_end_ms",
        ],
        By::Hidden,
    ),
    from_sleep(["ours_begin_ms", "ours_end_ms"], By::Job(PLAIN)),
];

/// The goals, as multiples of the floor.
const GOALS: [(&str, usize, f64); 2] = [("prologue", BEGIN, 1.04), ("epilogue", END, 1.15)];
/// The prologue may take this many times the floor.
const LIMIT: f64 = 1.15;
/// The same from sleep, by the host's GPUs: the prologue by NVIDIA's own, and one rank's first
/// kernel by that without MPS.
const SIGHT_GOALS: [(usize, f64, f64); 3] = [(1, 1.04, 1.0), (2, 0.92, 1.0), (4, 0.72, 0.95)];
/// Account strings of jobs that did not ask for MPS, and what `mps-prologue` may take for one,
/// milliseconds.
const OTHERS: [&str; 3] = ["", "mps_physics", "MPSLAB"];
const OTHERS_LIMIT: f64 = 5.0;
const ROUNDS: usize = 8;
/// Starts, or ends, at once may take this many times a single one.
const AT_ONCE_LIMIT: f64 = 1.5;
/// Two ratios of medians within this count as equal.
const NOISE: f64 = 1.1;
const FLOOR: &str = "from before the fork of 'nvidia-cuda-mps-control -f' as the ordinary user, through its socket and one \
                     'start_server' session, to the line 'NEW SERVER <pid>: Ready'";
/// A GPU without a context for one to two seconds falls asleep, and a server without a client takes
/// longer to end after half a second.
const SLEEP: Duration = Duration::from_millis(2500);
/// Longest time for one `srun`, and for the epilog after it.
pub const SRUN: Duration = Duration::from_secs(60);

/// Longest time for an answer of NVML.
const NVML: Duration = Duration::from_secs(10);

/// How long a begin and an end took, milliseconds.
type Life = [f64; 2];
const BEGIN: usize = 0;
const END: usize = 1;

/// Records the times of all sides, in turn. Returns the medians of each.
fn measure(section: &mut Section, run: &Run, sides: &[Side], rounds: usize) -> Result<Vec<Life>> {
    let lives = in_turn(sides, rounds, |side, round| live(run, side, round))?;
    let mut medians = Vec::new();
    for (side, lives) in sides.iter().zip(&lives) {
        medians.push([BEGIN, END].map(|part| {
            let times: Vec<f64> = lives.iter().map(|life| life[part]).collect();
            section.times(side.names[part], &times);
            median(&times)
        }));
    }
    Ok(medians)
}

pub fn pairs(section: &mut Section, run: &Run) -> Result<()> {
    let job = Job::named(&run.place, run.gpu(), "6000.srv")?;
    let not_asked = in_turn(&[()], run.pairs, |(), round| {
        Ok(job.prologue(OTHERS[round % OTHERS.len()])?.success()?.ms())
    })?;
    let waits = &not_asked[0];
    section.fact("not_asked_ms_spread", spread(waits));
    let name = format!("a job that did not ask waits less than {OTHERS_LIMIT} ms");
    section.check(name, median(waits) < OTHERS_LIMIT, spread(waits));
    let has_before = run.place.bin(BEFORE).is_dir();
    let pair = if has_before { &PAIR[..] } else { &PAIR[..4] };
    section.fact("floor_is", FLOOR);
    section.fact("pairs", run.pairs as i64);
    let medians = measure(section, run, pair, run.pairs)?;
    let ratio = |side: usize, part: usize| rounded(medians[side][part] / medians[0][part]);
    for (name, part, goal) in GOALS {
        let mut row = Table::new();
        let mut put = |key: &str, value: f64| row.insert(key.to_owned(), value.into());
        put("goal", goal);
        put("floor_ms", medians[0][part]);
        put("now_ms", medians[1][part]);
        put("now", ratio(1, part));
        if has_before {
            put("before_ms", medians[4][part]);
            put("before", ratio(4, part));
        }
        section.fact(&format!("{name}_times_the_floor"), row);
    }
    section.at_most(
        format!("prologue within {LIMIT} of the floor"),
        ratio(1, BEGIN),
        LIMIT,
    );
    Ok(())
}

/// A job on each GPU: begins and ends of all at once, against one alone.
pub fn at_once(section: &mut Section, run: &Run) -> Result<()> {
    let medians = measure(section, run, &AT_ONCE, ROUNDS)?;
    for (what, part) in [("begin", BEGIN), ("end", END)] {
        let ratio = |floor: usize| medians[2 + floor][part] / medians[floor][part];
        let (ours, floor) = (ratio(0), ratio(1));
        for (name, ratio) in [("", ours), ("floor_", floor)] {
            let key = format!("{what}_{name}last_of_all_by_one_alone");
            section.fact(&key, hundredths(ratio));
        }
        // If NVIDIA's own programs take turns, nothing can be faster.
        let jobs = run.gpus.len();
        let name = format!(
            "{jobs} jobs {what} at once: the last within {AT_ONCE_LIMIT} of one alone, or no slower for it than the floor"
        );
        let seen = format!("{ours:.2} of one alone, the floor {floor:.2}");
        section.check(name, ours <= AT_ONCE_LIMIT || ours <= floor * NOISE, seen);
    }
    Ok(())
}

/// What a start costs by what NVIDIA's programs may open, all from sleep: their own with all GPUs
/// of the machine and with the job's alone, and ours. And one rank's first kernel on the same host,
/// with MPS and without.
pub fn sight(section: &mut Section, run: &Run) -> Result<()> {
    section.fact("gpus_hidden", others(run)?.len() as i64);
    section.fact("idle_before_each_begin_and_end_s", SLEEP.as_secs_f64());
    section.fact("pairs", run.pairs as i64);
    let medians = measure(section, run, &SIGHT, run.pairs)?;
    let ours_by = |side: usize, part: usize| rounded(medians[2][part] / medians[side][part]);
    let (begin, end) = (ours_by(0, BEGIN), ours_by(0, END));
    section.fact("prologue_by_nvidia_all_seen", begin);
    section.fact("prologue_by_nvidia_others_hidden", ours_by(1, BEGIN));
    section.fact("epilogue_by_nvidia_all_seen", end);
    let names = ["first_kernel_ms", "first_kernel_mps_ms"];
    let [plain, mps] = with_and_without(section, run, names, |bed, user, flag| {
        child::pause(SLEEP)?;
        Ok(first::one(run, bed, user, &first::ONE, flag)?[0])
    })?;
    let kernel = rounded(median(&mps) / median(&plain));
    section.fact("first_kernel_by_without_mps", kernel);
    if let Some((gpus, most, most_kernel)) =
        SIGHT_GOALS.iter().find(|goal| goal.0 == run.gpus.len())
    {
        for (what, seen, most) in [
            ("prologue by NVIDIA's own", begin, *most),
            ("epilogue by NVIDIA's own", end, GOALS[END].2),
            (
                "first kernel of one rank by that without MPS",
                kernel,
                *most_kernel,
            ),
        ] {
            let name = format!("{gpus} GPUs, {what}: at most {most}");
            section.at_most(name, seen, most);
        }
    }
    Ok(())
}

pub fn waits(section: &mut Section, run: &Run) -> Result<()> {
    let names = ["srun_true_ms", "srun_mps_true_ms"];
    let [plain, mps] = with_and_without(section, run, names, |bed, user, flag| {
        let words = ["--gres=gpu:1", flag, "true"];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        let finished = bed.srun(user, &words, SRUN)?.success()?;
        // `srun` returns before the epilog has run, and the next job would wait for the epilog.
        bed.wait_idle(SRUN)?;
        Ok(finished.ms())
    })?;
    let more = mps.iter().zip(&plain).map(|(mps, plain)| mps - plain);
    section.times("more_ms", &more.collect::<Vec<f64>>());
    Ok(())
}

/// Times on a real Slurm without `--mps` and with it, in turn.
fn with_and_without(
    section: &mut Section,
    run: &Run,
    names: [&str; 2],
    one: impl Fn(&Bed, &User, &str) -> Result<f64>,
) -> Result<[Vec<f64>; 2]> {
    let options = slurm::options(vec![run.number as u32]);
    let times = slurm::on_bed(section, run, options, |_, bed, user| {
        in_turn(&["", "--mps"], run.pairs, |flag, _| one(bed, user, flag))
    })?;
    for (name, times) in names.into_iter().zip(&times) {
        section.times(name, times);
    }
    times.try_into().map_err(|_| anyhow!("two sides"))
}

fn live(run: &Run, side: &Side, round: usize) -> Result<Life> {
    let (place, gpus) = (&run.place, (side.on)(run, round));
    child::pause(side.rest)?;
    let lives = match side.by {
        By::Hand(nvml) => daemons(place, gpus, nvml, side.rest)?,
        By::Hidden => hidden(&others(run)?, || {
            daemons(place, gpus, Nvml::Absent, side.rest)
        })?,
        By::Job(account) => jobs(place, gpus, account, false, side.rest)?,
        By::Before => jobs(place, gpus, job::ACCOUNT, true, side.rest)?,
    };
    // Time for the driver to settle after the last start, the same for all sides.
    child::pause(Duration::from_millis(200))?;
    let last = |part: usize| lives.iter().map(|life| life[part]).fold(0.0, f64::max);
    Ok([last(BEGIN), last(END)])
}

fn daemons(place: &Place, gpus: &[Gpu], nvml: Nvml, rest: Duration) -> Result<Vec<Life>> {
    let started = each(gpus.iter().enumerate().collect(), |(number, gpu)| {
        let start = || place.daemon(&gpu.uuid, &format!("floor{number}"));
        Ok((gpu, with_nvml(nvml, || look_at(place, gpu), start)?))
    })?;
    child::pause(rest)?;
    each(started, |(gpu, daemon)| {
        let ready = milliseconds(daemon.ready);
        let quit = with_nvml(nvml, || look_at(place, gpu), || daemon.quit())?;
        Ok([ready, milliseconds(quit)])
    })
}

fn jobs(
    place: &Place,
    gpus: &[Gpu],
    account: &str,
    before: bool,
    rest: Duration,
) -> Result<Vec<Life>> {
    let begun = each(gpus.iter().enumerate().collect(), |(number, gpu)| {
        let mut job = Job::named(place, gpu, &format!("{}.srv", 6100 + number))?;
        job.before = before;
        let began = job.prologue(account)?.success()?.ms();
        Ok((job, began))
    })?;
    child::pause(rest)?;
    each(begun, |(job, began)| {
        Ok([began, job.epilogue()?.success()?.ms()])
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

/// The device files of the machine's other GPUs.
fn others(run: &Run) -> Result<Vec<PathBuf>> {
    let own = &run.gpu().uuid;
    let mut files = Vec::new();
    for entry in fs::read_dir("/proc/driver/nvidia/gpus")? {
        let text = fs::read_to_string(entry?.path().join("information"))?;
        let minor = text
            .lines()
            .find_map(|line| line.strip_prefix("Device Minor:"));
        let minor = minor
            .context("the driver does not tell a minor number")?
            .trim();
        let file = PathBuf::from(format!("/dev/nvidia{minor}"));
        if !text.contains(&**own) && file.exists() {
            files.push(file);
        }
    }
    Ok(files)
}

/// Does `work` in a thread with a mount namespace in which nobody can open `files`.
fn hidden<T: Send>(files: &[PathBuf], work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let closed = std::env::temp_dir().join(format!("mpsd-closed-{}", std::process::id()));
    fs::write(&closed, "")?;
    fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o000))?;
    const NONE: Option<&str> = None;
    let there = || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)?;
        let cover = |file: &Path| mount(Some(&*closed), file, NONE, MsFlags::MS_BIND, NONE);
        files.iter().try_for_each(|file| cover(file))?;
        work()
    };
    let done = thread::scope(|scope| scope.spawn(there).join());
    fs::remove_file(&closed)?;
    done.unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
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

//! What a start costs by what NVIDIA's programs may open, all from sleep: their own with all GPUs
//! of the machine and with the job's alone, and ours. And one rank's first kernel on the same host,
//! with MPS and without.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::tests::child;
use ::tests::samples::{in_turn, median, milliseconds, rounded};
use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::bench::PLAIN;
use crate::first;
use crate::job::Job;
use crate::result::Section;
use crate::site::Run;
use crate::slurm;

/// A GPU without a context for one to two seconds falls asleep, and a server without a client takes
/// longer to end after half a second.
const SLEEP: Duration = Duration::from_millis(2500);
const NONE: Option<&str> = None;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Nvidia,
    NvidiaHidden,
    Ours,
}

const SIDES: [(&str, Side); 3] = [
    ("nvidia_all_seen", Side::Nvidia),
    ("nvidia_others_hidden", Side::NvidiaHidden),
    ("ours", Side::Ours),
];

/// The goals by the host's GPUs: the prologue by NVIDIA's own, and one rank's first kernel by that
/// without MPS.
const GOALS: [(usize, f64, f64); 3] = [(1, 1.04, 1.0), (2, 0.92, 1.0), (4, 0.72, 0.95)];
const END_GOAL: f64 = 1.15;

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let others = others(run)?;
    section.fact("gpus_hidden", others.len() as i64);
    section.fact("idle_before_each_begin_and_end_s", SLEEP.as_secs_f64());
    section.fact("pairs", run.pairs as i64);
    let lives = in_turn(&SIDES, run.pairs, |(_, side), _| {
        child::pause(SLEEP)?;
        match side {
            Side::Nvidia => by_hand(run),
            Side::NvidiaHidden => hidden(&others, || by_hand(run)),
            Side::Ours => job(run),
        }
    })?;
    let column =
        |side: usize, of: fn(&(f64, f64)) -> f64| lives[side].iter().map(of).collect::<Vec<f64>>();
    for (number, (name, _)) in SIDES.iter().enumerate() {
        section.times(&format!("{name}_begin_ms"), &column(number, |life| life.0));
        section.times(&format!("{name}_end_ms"), &column(number, |life| life.1));
    }
    let begin = |side: usize| median(&column(side, |life| life.0));
    let end = |side: usize| median(&column(side, |life| life.1));
    section.fact("prologue_by_nvidia_all_seen", rounded(begin(2) / begin(0)));
    section.fact(
        "prologue_by_nvidia_others_hidden",
        rounded(begin(2) / begin(1)),
    );
    section.fact("epilogue_by_nvidia_all_seen", rounded(end(2) / end(0)));
    let kernels = slurm::on_bed(
        section,
        run,
        slurm::options(vec![run.number as u32]),
        |_, bed, user| {
            in_turn(&["", "--mps"], run.pairs, |flag, _| {
                child::pause(SLEEP)?;
                Ok(first::one(run, bed, user, &first::ONE, flag)?[0])
            })
        },
    )?;
    section.times("first_kernel_ms", &kernels[0]);
    section.times("first_kernel_mps_ms", &kernels[1]);
    let kernel = rounded(median(&kernels[1]) / median(&kernels[0]));
    section.fact("first_kernel_by_without_mps", kernel);
    if let Some((gpus, most, most_kernel)) = GOALS.iter().find(|goal| goal.0 == run.gpus.len()) {
        let mut goal = |what: &str, seen: f64, most: f64| {
            section.check(
                format!("{gpus} GPUs, {what}: at most {most}"),
                seen <= most,
                seen.to_string(),
            );
        };
        goal(
            "prologue by NVIDIA's own",
            rounded(begin(2) / begin(0)),
            *most,
        );
        goal(
            "epilogue by NVIDIA's own",
            rounded(end(2) / end(0)),
            END_GOAL,
        );
        goal(
            "first kernel of one rank by that without MPS",
            kernel,
            *most_kernel,
        );
    }
    Ok(())
}

fn by_hand(run: &Run) -> Result<(f64, f64)> {
    let daemon = run.place.daemon(&run.gpu().uuid, "sight", "")?.0;
    let ready = milliseconds(daemon.ready);
    child::pause(SLEEP)?;
    Ok((ready, milliseconds(daemon.quit()?.0)))
}

fn job(run: &Run) -> Result<(f64, f64)> {
    let job = Job::named(&run.place, run.gpu(), "6400.srv")?;
    let begin = job.prologue(PLAIN)?.success()?.ms();
    child::pause(SLEEP)?;
    Ok((begin, job.epilogue()?.success()?.ms()))
}

/// The device files of the machine's other GPUs.
fn others(run: &Run) -> Result<Vec<PathBuf>> {
    let own = &run.gpu().uuid;
    let mut files = Vec::new();
    for entry in std::fs::read_dir("/proc/driver/nvidia/gpus")? {
        let text = std::fs::read_to_string(entry?.path().join("information"))?;
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
    std::fs::write(&closed, "")?;
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o000))?;
    let there = || {
        unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS)?;
        mount(NONE, "/", NONE, MsFlags::MS_REC | MsFlags::MS_SLAVE, NONE)?;
        let cover = |file: &Path| mount(Some(&*closed), file, NONE, MsFlags::MS_BIND, NONE);
        files.iter().try_for_each(|file| cover(file))?;
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(there).join());
    std::fs::remove_file(&closed)?;
    done.unwrap_or_else(|_| Err(anyhow::anyhow!("a thread panicked")))
}

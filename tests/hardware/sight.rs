//! What a start costs by what NVIDIA's programs may open, all from sleep: their own with all GPUs of the machine and with the job's
//! alone, and ours.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::tests::child;
use ::tests::samples::{in_turn, median, milliseconds, rounded};
use anyhow::{Context as _, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use crate::bench::PLAIN;
use crate::job::Job;
use crate::result::Section;
use crate::site::Run;

/// A GPU without a context for one to two seconds falls asleep.
const SLEEP: Duration = Duration::from_secs(3);
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

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let others = others(run)?;
    section.fact("gpus_hidden", others.len() as i64);
    section.fact("idle_before_each_s", SLEEP.as_secs() as i64);
    let lives = in_turn(&SIDES, run.pairs, |(_, side), _| {
        child::pause(SLEEP)?;
        match side {
            Side::Nvidia => by_hand(run),
            Side::NvidiaHidden => hidden(&others, || by_hand(run)),
            Side::Ours => job(run),
        }
    })?;
    let column = |side: usize, of: fn(&(f64, f64)) -> f64| lives[side].iter().map(of).collect::<Vec<f64>>();
    for (number, (name, _)) in SIDES.iter().enumerate() {
        section.times(&format!("{name}_begin_ms"), &column(number, |life| life.0));
        section.times(&format!("{name}_end_ms"), &column(number, |life| life.1));
    }
    let begin = |side: usize| median(&column(side, |life| life.0));
    section.fact("prologue_by_nvidia_all_seen", rounded(begin(2) / begin(0)));
    section.fact("prologue_by_nvidia_others_hidden", rounded(begin(2) / begin(1)));
    Ok(())
}

fn by_hand(run: &Run) -> Result<(f64, f64)> {
    let daemon = run.place.daemon(&run.gpu().uuid, "sight", "")?.0;
    let ready = milliseconds(daemon.ready);
    Ok((ready, milliseconds(daemon.quit()?.0)))
}

fn job(run: &Run) -> Result<(f64, f64)> {
    let job = Job::named(&run.place, run.gpu(), "6400.srv")?;
    let begin = job.prologue(PLAIN)?.success()?.ms();
    Ok((begin, job.epilogue()?.success()?.ms()))
}

/// The device files of the machine's other GPUs.
fn others(run: &Run) -> Result<Vec<PathBuf>> {
    let own = &run.gpu().uuid;
    let mut files = Vec::new();
    for entry in std::fs::read_dir("/proc/driver/nvidia/gpus")? {
        let text = std::fs::read_to_string(entry?.path().join("information"))?;
        let minor = text.lines().find_map(|line| line.strip_prefix("Device Minor:"));
        let minor = minor.context("the driver does not tell a minor number")?.trim();
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

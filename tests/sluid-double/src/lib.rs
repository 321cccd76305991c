//! A double of Slurm 26.05's cgroups: a plugin that puts slurmstepd and the tasks of a step where
//! that release puts them, in `SLUID/step_N/slurm` and `SLUID/step_N/user/task_0`
//! (docs/facts/slurm.md#cgroups-of-a-job). Its word in plugstack.conf is the directory of the
//! nodes' cgroups.

#[path = "../../container-double/src/plugin.rs"]
mod plugin;

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use plugin::Spank;

/// `S_JOB_ID` and `S_JOB_STEPID` of spank.h.
const JOB: c_int = 2;
const STEP: c_int = 3;

/// `S_CTX_REMOTE`: slurmstepd.
const REMOTE: c_int = 2;

/// Steps of Slurm's own, a script and salloc's shell among them, have no small number.
const MOST_STEPS: u32 = 1000;

/// Time for the steps' slurmstepd to end behind their tasks.
const END: Duration = Duration::from_secs(10);

unsafe extern "C" {
    fn spank_get_item(spank: Spank, item: c_int, ...) -> c_int;
    fn spank_context() -> c_int;
}

/// Sets what slurmd of 25.11 and later sets.
#[allow(clippy::disallowed_methods)]
#[unsafe(no_mangle)]
pub extern "C" fn slurm_spank_job_prolog(_: Spank, _: c_int, _: *const *const c_char) -> c_int {
    if let Some(job) = job_of_script() {
        // SAFETY: Slurm runs the prolog's plugins in a process of one thread.
        unsafe { std::env::set_var("SLURM_JOB_SLUID", sluid(job)) };
    }
    0
}

/// Removes the job's cgroup, as the kernel lets go of it.
///
/// # Safety
/// Slurm calls it with the `count` words of plugstack.conf.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_job_epilog(
    _: Spank,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    let words = unsafe { plugin::texts(count, words) };
    let cgroup = job_of_script().and_then(|job| job_cgroup(job, &words));
    let Some(cgroup) = cgroup else { return 0 };
    let began = Instant::now();
    while remove(&cgroup).is_err() && began.elapsed() < END {
        std::thread::sleep(Duration::from_millis(10));
    }
    0
}

/// slurmstepd before its step begins.
///
/// # Safety
/// Slurm calls it with its own handle and the `count` words of plugstack.conf.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(
    spank: Spank,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    // SAFETY: Slurm's function, without an argument.
    if unsafe { spank_context() } != REMOTE {
        return 0;
    }
    // SAFETY: as the caller promises.
    unsafe { enter(spank, count, words, "slurm") }
}

/// The forked child of a task, as root.
///
/// # Safety
/// Slurm calls it with its own handle and the `count` words of plugstack.conf.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_task_init_privileged(
    spank: Spank,
    count: c_int,
    words: *const *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { enter(spank, count, words, "user/task_0") }
}

/// # Safety
/// The handle is a callback's, and `words` has `count` C strings.
unsafe fn enter(spank: Spank, count: c_int, words: *const *const c_char, below: &str) -> c_int {
    let (mut job, mut step) = (0_u32, 0_u32);
    // SAFETY: both items are written to a 32-bit number.
    unsafe {
        spank_get_item(spank, JOB, &raw mut job);
        spank_get_item(spank, STEP, &raw mut step);
    }
    let step = match step {
        0..MOST_STEPS => step.to_string(),
        _ => "batch".to_owned(),
    };
    // SAFETY: as the caller promises.
    let words = unsafe { plugin::texts(count, words) };
    let Some(cgroup) = job_cgroup(job, &words) else {
        return -1;
    };
    let place = cgroup.join(format!("step_{step}")).join(below);
    let moved =
        fs::create_dir_all(&place).and_then(|()| fs::write(place.join("cgroup.procs"), "0"));
    if moved.is_ok() { 0 } else { -1 }
}

fn job_of_script() -> Option<u32> {
    std::env::var("SLURM_JOB_ID").ok()?.parse().ok()
}

/// A name of the form that Slurm gives: `s` and 13 letters and digits.
fn sluid(job: u32) -> String {
    format!("sEKNKTV{job:07}")
}

fn job_cgroup(job: u32, words: &[String]) -> Option<PathBuf> {
    words
        .first()
        .map(|of_nodes| Path::new(of_nodes).join(sluid(job)))
}

/// Removes a cgroup and those below it.
fn remove(cgroup: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(cgroup) else {
        return Ok(());
    };
    for entry in entries.flatten().filter(|entry| entry.path().is_dir()) {
        remove(&entry.path())?;
    }
    fs::remove_dir(cgroup)
}

//! A user who keeps root waiting: a process outside the job locks the log that a step's own daemon
//! writes as it ends. slurmstepd ends that daemon, and Slurm waits only so long for slurmstepd.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use tests::child::Running;
use tests::fuse::{FILE, Hung};
use tests::node_bed::send;
use tests::run::skip;
use tests::slurm::Options;

use crate::jobs::{LIMIT, ONE_GPU, check_during, holds};
use crate::runner::{Context, Group, cells};
use crate::sites::no_cgroups;

/// `UnkillableStepTimeout` of this bed. Slurm's default is 60 s.
const PATIENCE: Duration = Duration::from_secs(12);
/// `KillWait`, at least 5 s. After it slurmd tells the steps of an ended job to end, and Slurm's
/// patience begins.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// How long the step runs. Meanwhile its user takes the lock.
const STEP_S: u64 = 4;

/// Our own deadline is longer than Slurm's patience.
pub const GROUP: Group = Group {
    options: || {
        let mut options = Options::default().with_cgroups(&[]);
        let line = format!("UnkillableStepTimeout={}", PATIENCE.as_secs());
        options.slurm_lines.push(line);
        options
    },
    config: "deadline_s = 40\n",
    needs: || no_cgroups(&["freezer"]),
    ..Group::new("held", cells![a_step_that_its_user_keeps_drains_nothing])
};

/// `PrologEpilogTimeout` of this bed, below our own deadline.
const PROLOG_TIMEOUT: Duration = Duration::from_secs(10);

pub const TIMED: Group = Group {
    options: || Options {
        slurm_lines: vec![format!("PrologEpilogTimeout={}", PROLOG_TIMEOUT.as_secs())],
        ..Options::default()
    },
    ..Group::new(
        "timed",
        cells![
            a_user_who_stops_the_daemon_drains_nothing,
            many_steps_that_their_user_keeps_drain_nothing,
        ],
    )
};

/// A process of the user's that hangs in a read and keeps a lock. Nothing ends it before its file
/// system, which is dropped first.
struct Holder {
    hung: Hung,
    _process: Running,
}

impl Holder {
    /// Starts it with a file system in `at`; `None` without FUSE. `variable` names what it locks.
    fn start(cell: &Context, at: &str, variable: (&str, &Path)) -> Result<Option<Holder>> {
        let at = cell.bed.home(&cell.user).join(at);
        std::fs::create_dir_all(&at)?;
        let hung = match Hung::over_reads(&at, cell.user.uid) {
            Ok(hung) => hung,
            Err(why) => {
                skip("slurm, a held lock", &format!("no FUSE: {why}"));
                return Ok(None);
            }
        };
        let mut command = Command::new(cell.nodes.node("node1")?.control());
        command.env_clear().uid(cell.user.uid).gid(cell.user.gid);
        command
            .env(variable.0, variable.1)
            .env("MPS_DOUBLE_HANGS_IN", at.join(FILE));
        let holder = Holder {
            hung,
            _process: Running::start(&mut command, "")?,
        };
        let holds = || Ok(holder.hung.holds_somebody());
        cell.bed
            .wait_until("the lock", Duration::from_secs(5), holds)?;
        Ok(Some(holder))
    }
}

/// Does what the timer does, unless the job's end did it. Then the node takes the next job.
fn check_reconciled(cell: &Context, left: &[std::path::PathBuf]) -> Result<()> {
    let done = cell.root_mpsctl("reconcile --node node1")?.success()?;
    holds(left.iter().all(|dir| !dir.exists()), &done)?;
    cell.check_node1_serves()
}

fn a_step_that_its_user_keeps_drains_nothing(cell: &Context) -> Result<()> {
    let script = format!("srun --mps /bin/sleep {STEP_S}\necho after $?");
    let job = cell.submit("-w node1 --gres=gpu:1", &script)?;
    let step = cell.bed.run_dir().join(format!("node1/jobs/{job}.0"));
    cell.wait_ready(1)?;
    let locked = ("MPS_DOUBLE_WRITES", &*step.join("log/control.log"));
    let Some(holder) = Holder::start(cell, "fuse", locked)? else {
        return cell.idle();
    };
    let ended = || Ok(cell.output(job).contains("after 0"));
    cell.wait("the step's end", ended)?;
    let time = KILL_WAIT + PATIENCE + Duration::from_secs(8);
    check_during(time, || cell.check_in_service())?;
    drop(holder);
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    check_reconciled(cell, &[step])
}

/// A process of the user's outside the job stops each of the job's daemons as soon as it exists.
fn a_user_who_stops_the_daemon_drains_nothing(cell: &Context) -> Result<()> {
    let job = cell.submit(ONE_GPU, "/bin/sleep 1")?;
    let is_ours = |name: &str| name == "mpsd" || name.starts_with("nvidia-cuda-mps");
    let mut stopped = 0;
    check_during(PROLOG_TIMEOUT + Duration::from_secs(6), || {
        // Before its exec the process is root's and has another name.
        let mut all = cell.bed.job_processes();
        all.retain(|process| process.uid == cell.user.uid && is_ours(&process.name));
        for process in all.iter().filter(|process| process.state != 'T') {
            stopped += usize::from(send(process.pid, Signal::SIGSTOP).is_ok());
        }
        cell.check_in_service()
    })?;
    ensure!(stopped > 0, "there was no daemon to stop");
    cell.cancel(job)?;
    cell.check_node1_serves()
}

/// The steps' epilogues wait for no lock, nor does the job's, which meets all of these locks.
fn many_steps_that_their_user_keeps_drain_nothing(cell: &Context) -> Result<()> {
    const STEPS: usize = 7;
    let step = "srun --mps --overlap -n1 --gres=gpu:1 /bin/sleep 300 &\n";
    let script = format!("{}wait", step.repeat(STEPS));
    let job = cell.submit("-w node1 --gres=gpu:1", &script)?;
    let jobs = cell.bed.run_dir().join("node1/jobs");
    let steps = (0..STEPS).map(|n| jobs.join(format!("{job}.{n}")));
    let steps: Vec<_> = steps.collect();
    cell.wait_ready(STEPS)?;
    let mut kept = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let pipe = step.join("pipe");
        match Holder::start(cell, &format!("fuse-{number}"), ("MPS_DOUBLE_LISTS", &pipe))? {
            Some(holder) => kept.push(holder),
            None => break,
        }
    }
    cell.root(&format!("scancel {job}"))?;
    cell.wait("the job's end", || {
        cell.check_in_service()?;
        let job = cell.bed.job(job)?;
        Ok(job.is_none_or(|job| job["JobState"] == "CANCELLED"))
    })?;
    cell.idle()?;
    cell.check_in_service()?;
    drop(kept);
    check_reconciled(cell, &steps)
}

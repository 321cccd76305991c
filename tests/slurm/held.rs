//! A user who keeps root waiting: a process outside of the job holds the lock of the log that a step's own daemon writes as it ends.
//! That daemon is ended from slurmstepd, for which Slurm has a patience of its own once the step was to end.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::fuse::{FILE, Hung};
use tests::slurm::{Bed, Options, Simulated};

use crate::leftovers::mpsctl;
use crate::mps::{LIMIT, clients, nodes, simulated};
use crate::runner::{Context, Group};
use crate::sites::no_cgroups;

/// Slurm's `UnkillableStepTimeout` of this bed; 60 s where a site sets nothing.
const PATIENCE: Duration = Duration::from_secs(12);
/// After so long slurmd tells the steps of a job that has ended to end, and Slurm's patience begins: `KillWait`, 5 s at least.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Our own deadline, of which the end of a locked step takes more than half.
const DEADLINE_S: u64 = 40;
/// How long the step runs: meanwhile its user takes the lock.
const STEP_S: u64 = 4;

/// The group.
pub const GROUP: Group = Group {
    name: "held",
    options: || Options {
        slurm_lines: vec![
            "ProctrackType=proctrack/cgroup".into(),
            "TaskPlugin=task/cgroup".into(),
            format!("UnkillableStepTimeout={}", PATIENCE.as_secs()),
        ],
        cgroup_lines: vec![
            "CgroupAutomount=no".into(),
            "CgroupMountpoint=/sys/fs/cgroup".into(),
            "CgroupPlugin=cgroup/v1".into(),
        ],
        ..Options::default()
    },
    prepare: patient,
    needs: || no_cgroups(&["freezer"]),
    cells: &[(
        "a_step_that_its_user_keeps_drains_nothing",
        a_step_that_its_user_keeps_drains_nothing,
    )],
};

/// Slurm's `PrologEpilogTimeout` of this bed: below our own deadline.
const PROLOG_TIMEOUT: Duration = Duration::from_secs(10);
/// Steps with a daemon of their own, each with a directory that its user locks.
const STEPS: usize = 7;

/// A bed whose Slurm kills a prolog and an epilog sooner than our own deadline.
pub const TIMED: Group = Group {
    name: "timed",
    options: || Options {
        slurm_lines: vec![format!("PrologEpilogTimeout={}", PROLOG_TIMEOUT.as_secs())],
        ..Options::default()
    },
    prepare: simulated,
    needs: || None,
    cells: &[
        (
            "a_user_who_stops_the_daemon_drains_nothing",
            a_user_who_stops_the_daemon_drains_nothing,
        ),
        (
            "many_steps_that_their_user_keeps_drain_nothing",
            many_steps_that_their_user_keeps_drain_nothing,
        ),
    ],
};

/// We would wait for longer than Slurm does.
fn patient(bed: &mut Bed) -> Result<Option<Simulated>> {
    Simulated::install(bed, &format!("deadline_s = {DEADLINE_S}\n"), |node| node).map(Some)
}

/// The user's process, killed and reaped at the latest when the cell is over.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Slurm counts its time from the moment at which it told the step to end, which is in slurmstepd's last callback by then: ours.
fn a_step_that_its_user_keeps_drains_nothing(cell: &Context) -> Result<()> {
    let at = cell.bed.home(&cell.user).join("fuse");
    std::fs::create_dir_all(&at)?;
    // Dropped after the file system: until then nothing ends it.
    let holder;
    let hung = match Hung::over_reads(&at, cell.user.uid) {
        Ok(hung) => hung,
        Err(why) => {
            println!("not tried here, this machine has no FUSE: {why}");
            return Ok(());
        }
    };
    let script = format!("srun --mps /bin/sleep {STEP_S}\necho after $?");
    let job = cell
        .bed
        .sbatch(&cell.user, &["-w", "node1", "--gres=gpu:1"], &script)?;
    let step = cell.bed.run_dir().join(format!("node1/jobs/{job}.0"));
    let ready = || {
        let record = std::fs::read_to_string(step.join("record")).unwrap_or_default();
        Ok(record.contains("\"ready\""))
    };
    cell.bed
        .wait_until("the step's MPS", Duration::from_secs(10), ready)?;
    let mut command = Command::new(nodes(cell)?.node("node1")?.control());
    command.env_clear().uid(cell.user.uid).gid(cell.user.gid);
    command.env("FAKE_MPS_WRITES", step.join("log/control.log"));
    command.env("FAKE_MPS_HANGS_IN", at.join(FILE));
    holder = Holder(command.stdin(Stdio::null()).spawn()?);
    cell.bed
        .wait_until("the lock", Duration::from_secs(3), || Ok(hung.holds_somebody()))?;
    let ended = || Ok(cell.bed.output(&cell.user, job).contains("after 0"));
    cell.bed
        .wait_until("the step's end", Duration::from_secs(10), ended)?;
    let end = Instant::now() + KILL_WAIT + PATIENCE + Duration::from_secs(8);
    while Instant::now() < end {
        let node = cell.bed.node_state("node1")?;
        ensure!(!node.state.contains("DRAIN"), "{node:?}");
        std::thread::sleep(Duration::from_millis(500));
    }
    drop((hung, holder));
    cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
    // What the timer does, unless the job's own end did it.
    let (code, said) = mpsctl(cell, "reconcile", "node1")?;
    ensure!(
        code == Some(0) && !step.exists(),
        "{} stays, exit code {code:?}: {said}",
        step.display()
    );
    // The node takes the next one.
    clients(cell, &["--mps", "-w", "node1", "--gres=gpu:1"], "--hold 0.1")?;
    Ok(())
}

/// The user has a process of their own on the node, which stops each of the job's daemons as soon as it is there.
fn a_user_who_stops_the_daemon_drains_nothing(cell: &Context) -> Result<()> {
    let job = cell.bed.sbatch(
        &cell.user,
        &["--mps", "-w", "node1", "--gres=gpu:1"],
        "/bin/sleep 1",
    )?;
    let is_ours = |name: &str| name == "mpsd" || name.starts_with("nvidia-cuda-mps");
    let end = Instant::now() + PROLOG_TIMEOUT + Duration::from_secs(6);
    let mut stopped = 0;
    while Instant::now() < end {
        let all = cell.bed.job_processes().into_iter();
        // Before its exec it is root's, and has another name.
        for process in all.filter(|p| p.uid == cell.user.uid && is_ours(&p.name)) {
            if process.state != 'T' && kill(Pid::from_raw(process.pid), Signal::SIGSTOP).is_ok() {
                stopped += 1;
            }
        }
        check_in_service(cell)?;
        std::thread::sleep(Duration::from_millis(20));
    }
    ensure!(stopped > 0, "there was no daemon to stop");
    // It was put back into the queue, and would be stopped no more.
    cell.bed.root(&["scancel", &job.to_string()])?.success()?;
    cell.bed.wait_idle(LIMIT)?;
    clients(cell, &["--mps", "-w", "node1", "--gres=gpu:1"], "--hold 0.1")?;
    Ok(())
}

fn check_in_service(cell: &Context) -> Result<()> {
    let node = cell.bed.node_state("node1")?;
    ensure!(!node.state.contains("DRAIN"), "{node:?}");
    Ok(())
}

/// Each step's epilogue, and the job's, which meets all of them, wait for no lock.
fn many_steps_that_their_user_keeps_drain_nothing(cell: &Context) -> Result<()> {
    let step = "srun --mps --overlap -n1 --gres=gpu:1 /bin/sleep 300 &\n";
    let script = format!("{}wait", step.repeat(STEPS));
    let job = cell
        .bed
        .sbatch(&cell.user, &["-w", "node1", "--gres=gpu:1"], &script)?;
    let steps: Vec<_> = (0..STEPS)
        .map(|n| cell.bed.run_dir().join(format!("node1/jobs/{job}.{n}")))
        .collect();
    let ready = || {
        let is_ready = |step: &std::path::PathBuf| {
            let record = std::fs::read_to_string(step.join("record")).unwrap_or_default();
            record.contains("\"ready\"")
        };
        Ok(steps.iter().all(is_ready))
    };
    cell.bed
        .wait_until("the steps' MPS", Duration::from_secs(40), ready)?;
    let mut kept = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        let at = cell.bed.home(&cell.user).join(format!("fuse-{number}"));
        std::fs::create_dir_all(&at)?;
        let hung = match Hung::over_reads(&at, cell.user.uid) {
            Ok(hung) => hung,
            Err(why) => {
                println!("not tried here, this machine has no FUSE: {why}");
                break;
            }
        };
        let mut command = Command::new(nodes(cell)?.node("node1")?.control());
        command.env_clear().uid(cell.user.uid).gid(cell.user.gid);
        command.env("FAKE_MPS_LISTS", step.join("pipe"));
        command.env("FAKE_MPS_HANGS_IN", at.join(FILE));
        let holder = Holder(command.stdin(Stdio::null()).spawn()?);
        cell.bed
            .wait_until("the lock", Duration::from_secs(5), || Ok(hung.holds_somebody()))?;
        // The file system goes before its reader: until then nothing ends that.
        kept.push((hung, holder));
    }
    cell.bed.root(&["scancel", &job.to_string()])?.success()?;
    let ended = || {
        Ok(cell
            .bed
            .job(job)?
            .is_none_or(|job| job["JobState"] == "CANCELLED"))
    };
    cell.bed.wait_until("the job's end", LIMIT, || {
        check_in_service(cell)?;
        ended()
    })?;
    cell.bed.wait_idle(LIMIT)?;
    check_in_service(cell)?;
    drop(kept);
    let (code, said) = mpsctl(cell, "reconcile", "node1")?;
    ensure!(code == Some(0), "exit code {code:?}: {said}");
    ensure!(steps.iter().all(|step| !step.exists()), "{said}");
    clients(cell, &["--mps", "-w", "node1", "--gres=gpu:1"], "--hold 0.1")?;
    Ok(())
}

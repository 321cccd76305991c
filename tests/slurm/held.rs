//! A user who keeps root waiting: a process outside of the job holds the lock of the log that a step's own daemon writes as it ends.
//! That daemon is ended from slurmstepd, for which Slurm has a patience of its own once the step was to end.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tests::fuse::{FILE, Hung};
use tests::slurm::{Bed, Options, Simulated};

use crate::leftovers::mpsctl;
use crate::mps::{LIMIT, clients, nodes};
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

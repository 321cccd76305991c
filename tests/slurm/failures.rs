//! What goes wrong, and what the scheduler, the node and the user see of it, with both words of
//! plugstack.conf.
//!
//! A refusal never drains. A fault drains with our reason. If the user may be the cause, the job is
//! requeued and nothing is drained. Meanwhile jobs that did not ask run.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tests::slurm::{Bed, Changed, Simulated};

use crate::jobs::{LIMIT, ONE_GPU, ended, holds, says};
use crate::runner::{Cell, Context, Group, cells};

pub const OPTIONAL: Group = Group::fast("failures_optional", CONFIG, CELLS);

pub const REQUIRED: Group = Group::fast("failures_required", CONFIG, CELLS).required();

pub const HELD: Group = Group {
    prepare: starts_again_soon,
    ..Group::fast(
        "failures_held",
        CONFIG,
        cells![
            a_batch_job_is_held_in_the_end,
            a_restart_of_another_cause_does_not_count,
            an_element_of_an_array_is_held_alone,
        ],
    )
};

const CELLS: &[Cell] = cells![
    forged_options_gain_nothing,
    no_control_daemon_drains_with_our_reason,
    salloc_reads_why,
    each_node_tells_in_one_line,
    a_bad_configuration_stops_no_plain_job,
];

const CONFIG: &str = "\
deadline_s = 4
[ceilings]
threads = 60
mem = \"8G\"
[slurm]
requeue_limit = 1
";

/// A requeued job of this bed starts again after some seconds (docs/facts/slurm.md#failures).
pub fn starts_again_soon(bed: &mut Bed, _: &mut Simulated) -> Result<()> {
    let socket = bed.dir().join("munge/socket");
    let line = format!("AuthInfo=socket={},cred_expire=5", socket.display());
    bed.options_mut().slurm_lines.push(line);
    Ok(())
}

fn never_ready(cell: &Context) -> Result<Changed> {
    cell.nodes
        .change(|node| node.faults.server = "never-ready".into())
}

const BY_HAND: [&str; 2] = ["--requeue", "--comment=by hand"];
const SRUN: &str = "srun --mps -w node1 --gres=gpu:1";

/// The user's variables that Slurm takes for options. The first reaches the step unchecked, but the
/// prolog's limits apply there. The client checks the others.
fn forged_options_gain_nothing(cell: &Context) -> Result<()> {
    let forged = [("_SLURM_SPANK_OPTION_mps_mps_threads", "999;reboot")];
    let command = "srun --mps --mps-threads=50 --gres=gpu:1";
    let client = cell.start_as(&cell.user, command, &cell.client(""), &forged)?;
    let records = ended(client)?;
    holds(records[0].sms == Some(66), &records)?;
    let (own, of_job) = (
        "_SLURM_SPANK_OPTION_mps_mps",
        "SLURM_SPANK__SLURM_SPANK_OPTION_mps_mps_threads",
    );
    for (command, name, value) in [
        ("srun -w node1 --gres=gpu:1", own, "../../etc"),
        (SRUN, of_job, "999"),
    ] {
        cell.check_refused_with(command, &cell.client(""), &[(name, value)], &[value])?;
    }
    cell.check_in_service()
}

fn check_fault(cell: &Context, words: &[&str]) -> Result<()> {
    cell.check_refused(SRUN, words)?;
    let mut state = cell.bed.node_state("node1")?;
    cell.wait("the drain", || {
        state = cell.bed.node_state("node1")?;
        Ok(state.state.contains("DRAIN"))
    })?;
    holds(state.reason.starts_with("mpsd: job "), &state)?;
    says(&state.reason, words)?;
    cell.run("srun -w node2 --gres=gpu:1 true", "")?.success()?;
    let other = cell.bed.node_state("node2")?;
    holds(!other.state.contains("DRAIN"), &other)
}

fn no_control_daemon_drains_with_our_reason(cell: &Context) -> Result<()> {
    let control = cell.nodes.node("node1")?.control();
    let away = control.with_extension("away");
    fs::rename(&control, &away)?;
    // Path and cause are whole, because Slurm has no limit of 79 bytes.
    let place = control.display().to_string();
    let outcome = check_fault(cell, &["control daemon", &place, "No such file"]);
    fs::rename(&away, &control)?;
    outcome?;
    cell.root_mpsctl("undrain --node node1")?.success()?;
    cell.idle()?;
    cell.check_node1_serves()
}

pub fn comment(cell: &Context, job: u32) -> Result<String> {
    let comment = cell.root(&format!("squeue -h -a -j {job} -o %k"))?;
    Ok(comment.trim().to_owned())
}

/// Each time the reason stands in the job's comment, after the user's own. The job does not come
/// back forever.
fn a_batch_job_is_held_in_the_end(cell: &Context) -> Result<()> {
    let changed = never_ready(cell)?;
    let words = ["-wnode1", "--mps", "--mps-report=off", "--gres=gpu:1"];
    let words = [&words[..], &BY_HAND].concat();
    let job = cell.bed.sbatch(&cell.user, &words, "echo ran")?;
    let outcome = is_held_and_told(cell, job);
    drop(changed);
    // Its user releases it. After that nothing mentions the failed starts.
    let outcome = outcome.and_then(|()| {
        cell.root(&format!("scontrol release {job}"))?;
        cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
        let shown = cell.shown(job)?;
        let right = shown.contains("Comment=by hand ") && !shown.contains("mpsd: ");
        let output = cell.output(job);
        holds(right && output == "ran\n", &(shown, output))
    });
    let outcome = outcome.with_context(|| format!("{:?}", cell.bed.job(job)));
    cell.bed.root(&["scancel", &job.to_string()])?;
    outcome?;
    forget_comments(cell)
}

fn is_held_and_told(cell: &Context, job: u32) -> Result<()> {
    cell.wait_shown(job, &["Restarts=1 ", "JobState=PENDING "])?;
    let said = comment(cell, job)?;
    let is_once = said.matches("mpsd: ").count() == 1;
    holds(said.starts_with("by hand; mpsd: node1: ") && is_once, &said)?;
    cell.wait("a line in its output", || {
        Ok(output_says(cell, job, 1, "starts again by itself"))
    })?;
    cell.wait_shown(job, &["Reason=JobHeldUser "])?;
    let said = comment(cell, job)?;
    holds(said.matches("mpsd: node1: ").count() == 1, &said)?;
    cell.wait("the last line in its output", || {
        Ok(output_says(cell, job, 2, "held: "))
    })?;
    let output = cell.bed.home(&cell.user).join(format!("job-{job}.out"));
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(output)?);
    ensure!(owner == cell.user.uid, "its output is of user {owner}");
    let note = format!("Comment=mpsd: job {job} was held");
    cell.wait("the node's note", || {
        Ok(cell.root("scontrol show node node1")?.contains(&note))
    })
}

/// Whether the job's output has this many lines of ours, and the last one says this.
fn output_says(cell: &Context, job: u32, lines: usize, words: &str) -> bool {
    let said = cell.output(job);
    let ours = said.lines().filter(|line| line.contains("mps: job "));
    let ours: Vec<_> = ours.collect();
    let number = format!("failed start {lines}: ");
    let told = |line: &&str| line.contains(&number) && line.contains(words);
    ours.len() == lines && ours.last().is_some_and(told)
}

/// An administrator requeued the job once while its MPS was well.
fn a_restart_of_another_cause_does_not_count(cell: &Context) -> Result<()> {
    let job = cell.submit(&format!("{ONE_GPU} --requeue"), "sleep 60")?;
    cell.wait_shown(job, &["JobState=RUNNING "])?;
    cell.root(&format!("scontrol requeue {job}"))?;
    let changed = never_ready(cell)?;
    let outcome = cell.wait_shown(job, &["Restarts=2 "]).and_then(|()| {
        std::thread::sleep(Duration::from_secs(1));
        let shown = cell.shown(job)?;
        ensure!(!shown.contains("JobHeldUser"), "{shown}");
        cell.wait_shown(job, &["Reason=JobHeldUser ", "Restarts=3 "])
    });
    drop(changed);
    end_held(cell, job)?;
    outcome
}

/// The array's id is also one element's id, and in Slurm's orders it means every element.
fn an_element_of_an_array_is_held_alone(cell: &Context) -> Result<()> {
    let words = ["--array=1-2", "--hold", "--mps", "--gres=gpu:1"];
    let words = [&words[..], &BY_HAND].concat();
    let array = cell.bed.sbatch(&cell.user, &words, "sleep 120")?;
    let (healthy, failing) = (format!("{array}_1"), format!("{array}_2"));
    let undisturbed = ["JobState=RUNNING ", "Restarts=0 ", "Comment=by hand "];
    cell.root(&format!("scontrol release {healthy}"))?;
    let mut outcome = cell.wait_shown(&healthy, &undisturbed).and_then(|()| {
        let ready = || cell.ready("node1").len() + cell.ready("node2").len();
        cell.wait("its MPS", || Ok(ready() == 1))
    });
    let changed = never_ready(cell)?;
    cell.root(&format!("scontrol release {failing}"))?;
    outcome = outcome.and_then(|()| {
        let own = format!("JobId={array} ");
        cell.wait_shown(&failing, &["Reason=JobHeldUser ", &own, "Restarts=2 "])?;
        // The comment is written after it is held.
        cell.wait_shown(&failing, &["failed start 2: "])?;
        says(&cell.shown(&healthy)?, &undisturbed)
    });
    drop(changed);
    end_held(cell, array)?;
    outcome
}

pub fn end_held(cell: &Context, job: u32) -> Result<()> {
    cell.root(&format!("scancel {job}"))?;
    forget_comments(cell)
}

fn forget_comments(cell: &Context) -> Result<()> {
    for node in cell.bed.nodes() {
        cell.root(&format!("scontrol update nodename={node} comment="))?;
    }
    cell.idle()?;
    cell.check_in_service()
}

struct BadConfiguration<'a>(&'a Context, String);

impl BadConfiguration<'_> {
    fn new(cell: &Context) -> Result<BadConfiguration<'_>> {
        let file = &cell.nodes.product.config;
        let before = fs::read_to_string(file)?;
        fs::write(file, format!("compute_mood = \"exclusive\"\n{before}"))?;
        Ok(BadConfiguration(cell, before))
    }
}

impl Drop for BadConfiguration<'_> {
    fn drop(&mut self) {
        let _ = fs::write(&self.0.nodes.product.config, &self.1);
        // An unusable file names no directory, so the note is in the usual one, which all beds
        // share.
        let _ = fs::remove_file("/var/lib/mpsd/drains/remark-slurm-node1");
        for directory in ["/var/lib/mpsd/drains", "/var/lib/mpsd"] {
            let _ = fs::remove_dir(directory);
        }
    }
}

/// The allocation starts no task that could tell the user. A notice and the comment do.
fn salloc_reads_why(cell: &Context) -> Result<()> {
    let told = |words: &str, word: &str| -> Result<()> {
        let done = cell.run(&format!("salloc -w node1 {words} /bin/sleep 1"), "")?;
        let ours = |line: &str| line.contains("mpsd: node1: ") && line.contains(word);
        holds(done.stderr.lines().any(ours), &done)?;
        cell.idle()
    };
    told("--mps --mps-threads=90 --gres=gpu:1", "60")?;
    told("--mps", "no GPU")?;
    let bad = BadConfiguration::new(cell)?;
    told("--mps --gres=gpu:1", "compute_mood")?;
    drop(bad);
    cell.check_in_service()
}

fn each_node_tells_in_one_line(cell: &Context) -> Result<()> {
    let done = cell.check_refused("srun --mps --mps-threads=90 -N2 -n8 --gres=gpu:1", &[])?;
    for node in ["node1", "node2"] {
        let ours = |line: &&str| line.contains(&format!("not started on {node}: "));
        holds(done.stderr.lines().filter(ours).count() == 1, &done)?;
    }
    Ok(())
}

/// A batch job is requeued, and the comments of the job and the node name the key.
fn a_bad_configuration_stops_no_plain_job(cell: &Context) -> Result<()> {
    let bad = BadConfiguration::new(cell)?;
    let plain = cell.run("srun -N2 --gres=gpu:1 /bin/echo untouched", "")?;
    let plain = plain.success()?;
    let is_all = plain.stdout == "untouched\nuntouched\n";
    holds(is_all && plain.stderr.is_empty(), &plain)?;
    let misconfigured = "MPS is misconfigured on node1 (not your job)";
    let words = [
        "compute_mood",
        "did you mean 'compute_mode'?",
        misconfigured,
    ];
    cell.check_refused(SRUN, &words)?;
    let job = cell.submit(&format!("{ONE_GPU} --requeue"), "echo ran")?;
    let requeued = cell.wait_shown(job, &["Restarts=1 ", "JobState=PENDING "]);
    let (said, told) = (cell.output(job), comment(cell, job));
    let node = cell.root("scontrol show node node1")?;
    cell.root(&format!("scancel {job}"))?;
    drop(bad);
    forget_comments(cell)?;
    requeued?;
    ensure!(!said.contains("ran"), "it ran without its MPS: {said}");
    says(&told?, &[misconfigured])?;
    says(&node, &["compute_mood"])
}

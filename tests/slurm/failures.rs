//! What goes wrong, and what the scheduler, the node and the user make of it, under both words of plugstack.conf.
//!
//! A refusal never drains; a fault drains with our reason; what nobody can tell requeues and does not drain; and a job
//! that did not ask runs through all of it.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tests::double::mig;
use tests::slurm::{Bed, Options, Simulated};

use crate::mps::{LIMIT, check_daemons, clients, nodes, records, required};
use crate::runner::{Cell, Context, Group};

/// Under the word that the package ships.
pub const OPTIONAL: Group = Group {
    name: "failures_optional",
    options: Options::default,
    prepare,
    needs: || None,
    cells: CELLS,
};

/// Under the other word.
pub const REQUIRED: Group = Group {
    name: "failures_required",
    options: required,
    prepare,
    needs: || None,
    cells: CELLS,
};

/// A requeued job starts again soon: Slurm waits as long as its credential is valid.
pub const HELD: Group = Group {
    name: "failures_held",
    options: Options::default,
    prepare: |bed| {
        starts_again_soon(bed);
        prepare(bed)
    },
    needs: || None,
    cells: &[
        ("a_batch_job_is_held_in_the_end", a_batch_job_is_held_in_the_end),
        (
            "a_restart_of_another_cause_does_not_count",
            a_restart_of_another_cause_does_not_count,
        ),
        (
            "an_element_of_an_array_is_held_alone",
            an_element_of_an_array_is_held_alone,
        ),
    ],
};

const CELLS: &[Cell] = &[
    ("forged_options_gain_nothing", forged_options_gain_nothing),
    (
        "a_value_over_the_ceiling_is_refused",
        a_value_over_the_ceiling_is_refused,
    ),
    ("a_gpu_in_mig_mode_is_refused", a_gpu_in_mig_mode_is_refused),
    (
        "no_control_daemon_drains_with_our_reason",
        no_control_daemon_drains_with_our_reason,
    ),
    (
        "dead_nvml_drains_with_our_reason",
        dead_nvml_drains_with_our_reason,
    ),
    (
        "a_server_never_ready_requeues_a_batch_job",
        a_server_never_ready_requeues_a_batch_job,
    ),
    (
        "a_server_never_ready_refuses_srun",
        a_server_never_ready_refuses_srun,
    ),
    ("salloc_reads_why", salloc_reads_why),
    ("one_line_a_node", one_line_a_node),
    (
        "a_bad_configuration_stops_no_plain_job",
        a_bad_configuration_stops_no_plain_job,
    ),
    (
        "a_server_that_ignores_sigterm_is_ended",
        a_server_that_ignores_sigterm_is_ended,
    ),
];

/// Seconds that our programs give themselves in these cells.
const DEADLINE: u64 = 4;

fn prepare(bed: &mut Bed) -> Result<Option<Simulated>> {
    let extra = format!(
        "deadline_s = {DEADLINE}\n[ceilings]\nthreads = 60\nmem = \"8G\"\n[slurm]\nrequeue_limit = 1\n"
    );
    Simulated::install(bed, &extra, |node| node.fast()).map(Some)
}

/// A requeued job of this bed starts again after some seconds (docs/facts/slurm.md#failures).
pub fn starts_again_soon(bed: &mut Bed) {
    let line = format!(
        "AuthInfo=socket={}/munge/socket,cred_expire=5",
        bed.dir().display()
    );
    bed.options_mut().slurm_lines.push(line);
}

/// Checks that no node is drained.
fn check_undrained(cell: &Context) -> Result<()> {
    for node in cell.bed.nodes() {
        let state = cell.bed.node_state(&node)?;
        ensure!(!state.state.contains("DRAIN"), "{node} is drained: {state:?}");
    }
    Ok(())
}

/// Runs `srun --mps ARGUMENTS client` on one node; it must fail without running and tell the user each of `words`.
fn check_refused(cell: &Context, arguments: &[&str], extra: &[(&str, &str)], words: &[&str]) -> Result<()> {
    let line = nodes(cell)?.client("");
    let argv = [
        &["srun", "-w", "node1", "--gres=gpu:1"],
        arguments,
        &["/bin/sh", "-c", &line],
    ]
    .concat();
    let done = cell.bed.spawn_with(&cell.user, &argv, extra)?.wait(LIMIT)?;
    ensure!(
        !done.status.success(),
        "'{}' succeeded: {}",
        done.command,
        done.stdout
    );
    ensure!(done.stdout.is_empty(), "the task ran: {}", done.stdout);
    for word in words {
        ensure!(
            done.stderr.contains(word),
            "'{word}' is not told: {}",
            done.stderr
        );
    }
    Ok(())
}

/// Variables of the user's that Slurm takes for options. One way reaches the step without the client's check: what the prolog
/// left is in force there, not the option. The other is checked by the client.
fn forged_options_gain_nothing(cell: &Context) -> Result<()> {
    let forged = [("_SLURM_SPANK_OPTION_mps_mps_threads", "999;reboot")];
    let line = nodes(cell)?.client("");
    let argv = [
        "srun",
        "--mps",
        "--mps-threads=50",
        "--gres=gpu:1",
        "/bin/sh",
        "-c",
        &line,
    ];
    let done = cell
        .bed
        .spawn_with(&cell.user, &argv, &forged)?
        .wait(LIMIT)?
        .success()?;
    let records = records(&done.stdout, &done.stderr)?;
    ensure!(records[0].sms == Some(66), "the job asked for 50 %: {records:?}");
    check_refused(
        cell,
        &[],
        &[("_SLURM_SPANK_OPTION_mps_mps", "../../etc")],
        &["../../etc"],
    )?;
    check_refused(
        cell,
        &["--mps"],
        &[("SLURM_SPANK__SLURM_SPANK_OPTION_mps_mps_threads", "999")],
        &["999"],
    )?;
    check_undrained(cell)
}

fn a_value_over_the_ceiling_is_refused(cell: &Context) -> Result<()> {
    check_refused(cell, &["--mps", "--mps-threads=90"], &[], &["90", "60"])?;
    check_refused(cell, &["--mps", "--mps-mem=9G"], &[], &["9", "8"])?;
    check_undrained(cell)
}

fn a_gpu_in_mig_mode_is_refused(cell: &Context) -> Result<()> {
    let changed = nodes(cell)?.change(|node| node.gpu[0].mig = vec![mig(0, 0)])?;
    check_refused(cell, &["--mps"], &[], &["MIG"])?;
    drop(changed);
    check_undrained(cell)
}

/// A fault of node1: drained with our reason; a plain job runs on node2; after repair and resume an MPS job runs.
fn check_fault(cell: &Context, words: &[&str]) -> Result<()> {
    let line = nodes(cell)?.client("");
    let argv = [
        "srun",
        "--mps",
        "-w",
        "node1",
        "--gres=gpu:1",
        "/bin/sh",
        "-c",
        &line,
    ];
    let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?;
    ensure!(
        !done.status.success() && done.stdout.is_empty(),
        "the task ran: {done:?}"
    );
    for word in words {
        ensure!(
            done.stderr.contains(word),
            "'{word}' is not told: {}",
            done.stderr
        );
    }
    let mut state = cell.bed.node_state("node1")?;
    cell.bed.wait_until("the drain", LIMIT, || {
        state = cell.bed.node_state("node1")?;
        Ok(state.state.contains("DRAIN"))
    })?;
    ensure!(
        state.reason.starts_with("mpsd: job "),
        "another's reason: {state:?}"
    );
    for word in words {
        ensure!(
            state.reason.contains(word),
            "'{word}' is not in the reason: {state:?}"
        );
    }
    cell.bed
        .srun(&cell.user, &["-w", "node2", "--gres=gpu:1", "true"], LIMIT)?
        .success()?;
    let other = cell.bed.node_state("node2")?;
    ensure!(!other.state.contains("DRAIN"), "node2 is drained too: {other:?}");
    Ok(())
}

fn check_repaired(cell: &Context) -> Result<()> {
    cell.bed.resume("node1")?;
    cell.bed.wait_idle(LIMIT)?;
    let records = clients(cell, &["--mps", "-w", "node1", "--gres=gpu:1"], "")?;
    check_daemons(&records, cell.user.uid, 1)
}

fn no_control_daemon_drains_with_our_reason(cell: &Context) -> Result<()> {
    let control = nodes(cell)?.node("node1")?.control();
    let away = control.with_extension("away");
    fs::rename(&control, &away)?;
    // Whole, path and cause: no scheduler of 79 bytes is asked.
    let place = control.display().to_string();
    let outcome = check_fault(cell, &["control daemon", &place, "No such file"]);
    fs::rename(&away, &control)?;
    outcome?;
    check_repaired(cell)
}

fn dead_nvml_drains_with_our_reason(cell: &Context) -> Result<()> {
    let changed = nodes(cell)?.change(|node| node.nvml.init_fails = node.name == "node1")?;
    let outcome = check_fault(cell, &[]);
    drop(changed);
    outcome?;
    check_repaired(cell)
}

/// The user's own processes could be the cause: PENDING again, not FAILED, and the node stays in service.
fn a_server_never_ready_requeues_a_batch_job(cell: &Context) -> Result<()> {
    let changed = nodes(cell)?.change(|node| node.faults.server = "never-ready".into())?;
    let line = nodes(cell)?.client("");
    let script = format!("({line})");
    let job = cell
        .bed
        .sbatch(&cell.user, &["--mps", "--gres=gpu:1", "--requeue"], &script)?;
    let mut shown = Default::default();
    let outcome = cell.bed.wait_until("a requeued job", LIMIT, || {
        shown = cell.bed.job(job)?.context("the job is gone")?;
        let again = shown.get("Restarts").is_some_and(|count| count == "1");
        Ok(again && shown.get("JobState").is_some_and(|state| state == "PENDING"))
    });
    let said = cell.bed.output(&cell.user, job);
    drop(changed);
    cell.bed.root(&["scancel", &job.to_string()])?.success()?;
    outcome.with_context(|| format!("{shown:?}\n{said}"))?;
    ensure!(
        !said.contains("under_mps"),
        "the script ran without its MPS: {said}"
    );
    cell.bed.wait_idle(LIMIT)?;
    check_undrained(cell)
}

/// A job's comment, whole.
pub fn comment(cell: &Context, job: u32) -> Result<String> {
    let words = ["squeue", "-h", "-a", "-j", &job.to_string(), "-o", "%k"];
    Ok(cell.bed.root(&words)?.success()?.stdout.trim().to_owned())
}

/// It has the reason in its comment, behind the user's own, each time; and does not come back for ever.
fn a_batch_job_is_held_in_the_end(cell: &Context) -> Result<()> {
    let changed = nodes(cell)?.change(|node| node.faults.server = "never-ready".into())?;
    let words = [
        "--mps",
        "--gres=gpu:1",
        "--requeue",
        "--comment=by hand",
        "-w",
        "node1",
    ];
    let job = cell.bed.sbatch(&cell.user, &words, "echo ran")?;
    let is = |key: &str, value: &str| -> Result<bool> {
        let shown = cell.bed.job(job)?.context("the job is gone")?;
        Ok(shown.get(key).is_some_and(|is| is == value))
    };
    let outcome = cell
        .bed
        .wait_until("a requeued job", LIMIT, || {
            Ok(is("Restarts", "1")? && is("JobState", "PENDING")?)
        })
        .and_then(|()| {
            let said = comment(cell, job)?;
            ensure!(
                said.starts_with("by hand; mpsd: node1: ") && said.matches("mpsd: ").count() == 1,
                "its comment: {said}"
            );
            cell.bed.wait_until("a line in its output", LIMIT, || {
                Ok(output_says(cell, job, 1, "starts again by itself"))
            })?;
            cell.bed
                .wait_until("a held job", LIMIT, || is("Reason", "JobHeldUser"))?;
            let said = comment(cell, job)?;
            ensure!(said.matches("mpsd: node1: ").count() == 1, "told once: {said}");
            let output = cell.bed.home(&cell.user).join(format!("job-{job}.out"));
            cell.bed.wait_until("the last line in its output", LIMIT, || {
                Ok(output_says(cell, job, 2, "held: "))
            })?;
            let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(output)?);
            ensure!(owner == cell.user.uid, "its output is of user {owner}");
            Ok(())
        });
    // The note is written once the job is held.
    let note = format!("Comment=mpsd: job {job} was held");
    let noted = || {
        let node = cell.bed.root(&["scontrol", "show", "node", "node1"])?;
        Ok(node.success()?.stdout.contains(&note))
    };
    let outcome = outcome.and_then(|()| cell.bed.wait_until("the node's note", LIMIT, noted));
    drop(changed);
    // Its user releases it, and nothing is said any more of starts that failed.
    let outcome = outcome
        .and_then(|()| {
            cell.bed
                .root(&["scontrol", "release", &job.to_string()])?
                .success()?;
            cell.bed.wait_job(job, &["COMPLETED"], LIMIT)?;
            let shown = shown_as(cell, &job.to_string())?;
            ensure!(
                shown.contains("Comment=by hand ") && !shown.contains("mpsd: "),
                "{shown}"
            );
            let said = cell.bed.output(&cell.user, job);
            ensure!(said == "ran\n", "its output: {said}");
            Ok(())
        })
        .with_context(|| format!("{:?}", cell.bed.job(job)));
    cell.bed.root(&["scancel", &job.to_string()])?;
    outcome?;
    cell.bed
        .root(&["scontrol", "update", "nodename=node1", "comment="])?
        .success()?;
    cell.bed.wait_idle(LIMIT)?;
    check_undrained(cell)
}

/// Whether the job's output has so many lines of ours, the last of which says this.
fn output_says(cell: &Context, job: u32, lines: usize, words: &str) -> bool {
    let said = cell.bed.output(&cell.user, job);
    let ours: Vec<_> = said.lines().filter(|line| line.contains("mps: job ")).collect();
    let number = format!("failed start {lines}: ");
    ours.len() == lines
        && ours
            .last()
            .is_some_and(|line| line.contains(&number) && line.contains(words))
}

/// An administrator requeued it once while its MPS was well.
fn a_restart_of_another_cause_does_not_count(cell: &Context) -> Result<()> {
    let words = ["--mps", "--gres=gpu:1", "--requeue", "-w", "node1"];
    let job = cell.bed.sbatch(&cell.user, &words, "sleep 60")?;
    let id = job.to_string();
    let is = |key: &str, value: &str| -> Result<bool> {
        let shown = cell.bed.job(job)?.context("the job is gone")?;
        Ok(shown.get(key).is_some_and(|is| is == value))
    };
    cell.bed
        .wait_until("the running job", LIMIT, || is("JobState", "RUNNING"))?;
    cell.bed.root(&["scontrol", "requeue", &id])?.success()?;
    let changed = nodes(cell)?.change(|node| node.faults.server = "never-ready".into())?;
    let outcome = cell
        .bed
        .wait_until("a failed start", LIMIT, || is("Restarts", "2"))
        .and_then(|()| {
            std::thread::sleep(Duration::from_secs(1));
            ensure!(!is("Reason", "JobHeldUser")?, "held after one failed start");
            cell.bed
                .wait_until("a held job", LIMIT, || is("Reason", "JobHeldUser"))?;
            ensure!(is("Restarts", "3")?, "held after two failed starts");
            Ok(())
        });
    drop(changed);
    let outcome = outcome.with_context(|| format!("{:?}", cell.bed.job(job)));
    cell.bed.root(&["scancel", &id])?.success()?;
    outcome?;
    cell.bed
        .root(&["scontrol", "update", "nodename=node1", "comment="])?
        .success()?;
    cell.bed.wait_idle(LIMIT)?;
    check_undrained(cell)
}

/// What Slurm shows of a job of this name, in one line.
fn shown_as(cell: &Context, name: &str) -> Result<String> {
    let words = ["scontrol", "-o", "show", "job", name];
    Ok(cell.bed.root(&words)?.success()?.stdout)
}

/// The id of one element is the array's own, and Slurm's orders take it for every element: the other one runs on.
fn an_element_of_an_array_is_held_alone(cell: &Context) -> Result<()> {
    let words = ["--array=1-2", "--hold", "--mps", "--gres=gpu:1", "--requeue"];
    let words = [&words[..], &["--comment=by hand"]].concat();
    let array = cell.bed.sbatch(&cell.user, &words, "sleep 120")?;
    let (healthy, failing) = (format!("{array}_1"), format!("{array}_2"));
    let is = |name: &str, words: &[&str]| -> Result<bool> {
        let shown = shown_as(cell, name)?;
        Ok(words.iter().all(|word| shown.contains(word)))
    };
    let undisturbed = ["JobState=RUNNING ", "Restarts=0 ", "Comment=by hand "];
    cell.bed.root(&["scontrol", "release", &healthy])?.success()?;
    let id = shown_as(cell, &healthy)?;
    let id = id.split_whitespace().find_map(|word| word.strip_prefix("JobId="));
    let record = format!("jobs/{}/record", id.context("its id")?);
    let mut outcome = cell.bed.wait_until("the healthy element", LIMIT, || {
        let starts = |node: &String| cell.bed.run_dir().join(node).join(&record);
        let ready = |file| fs::read_to_string(file).is_ok_and(|text| text.contains("\"ready\""));
        Ok(is(&healthy, &undisturbed)? && cell.bed.nodes().iter().map(starts).any(ready))
    });
    let changed = nodes(cell)?.change(|node| node.faults.server = "never-ready".into())?;
    cell.bed.root(&["scontrol", "release", &failing])?.success()?;
    let own = format!("JobId={array} ");
    outcome = outcome.and_then(|()| {
        cell.bed.wait_until("the failing element, held", LIMIT, || {
            is(&failing, &["Reason=JobHeldUser "])
        })?;
        ensure!(is(&failing, &[&own, "Restarts=2 "])?, "not of the array's own id");
        // The reason is written once it is held.
        cell.bed.wait_until("a comment that counts", LIMIT, || {
            is(&failing, &["failed start 2: "])
        })?;
        ensure!(is(&healthy, &undisturbed)?, "the other element was touched");
        Ok(())
    });
    drop(changed);
    let outcome = outcome.with_context(|| format!("{:?}", shown_as(cell, &array.to_string())));
    end_held(cell, array)?;
    outcome
}

/// Ends a job, and removes the notes that a job was held here.
pub fn end_held(cell: &Context, job: u32) -> Result<()> {
    cell.bed.root(&["scancel", &job.to_string()])?.success()?;
    for node in cell.bed.nodes() {
        let node = format!("nodename={node}");
        cell.bed
            .root(&["scontrol", "update", &node, "comment="])?
            .success()?;
    }
    cell.bed.wait_idle(LIMIT)?;
    check_undrained(cell)
}

/// The allocation is granted and starts no task that could tell; so a notice does, and the comment.
fn salloc_reads_why(cell: &Context) -> Result<()> {
    let told = |words: &[&str], word: &str| -> Result<()> {
        let argv = [&["salloc", "-w", "node1"], words, &["/bin/sleep", "1"]].concat();
        let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?;
        let ours = |line: &&str| line.contains("mpsd: node1: ") && line.contains(word);
        ensure!(
            done.stderr.lines().any(|line| ours(&line)),
            "not told '{word}': {done:?}"
        );
        cell.bed.wait_idle(LIMIT)
    };
    told(&["--mps", "--mps-threads=90", "--gres=gpu:1"], "60")?;
    told(&["--mps"], "no GPU")?;
    let config = nodes(cell)?.product.config.clone();
    let before = fs::read_to_string(&config)?;
    fs::write(&config, format!("compute_mood = \"exclusive\"\n{before}"))?;
    let outcome = told(&["--mps", "--gres=gpu:1"], "compute_mood");
    fs::write(&config, before)?;
    forget_the_note();
    outcome?;
    check_undrained(cell)
}

fn one_line_a_node(cell: &Context) -> Result<()> {
    let argv = [
        "srun",
        "--mps",
        "--mps-threads=90",
        "-N2",
        "-n8",
        "--gres=gpu:1",
        "/bin/echo",
        "ran",
    ];
    let done = cell.bed.spawn(&cell.user, &argv)?.wait(LIMIT)?;
    ensure!(
        !done.status.success() && done.stdout.is_empty(),
        "the task ran: {done:?}"
    );
    for node in ["node1", "node2"] {
        let ours = |line: &&str| line.contains(&format!("not started on {node}: "));
        let count = done.stderr.lines().filter(ours).count();
        ensure!(count == 1, "{count} lines of {node}: {}", done.stderr);
    }
    Ok(())
}

fn a_server_never_ready_refuses_srun(cell: &Context) -> Result<()> {
    let changed = nodes(cell)?.change(|node| node.faults.server = "never-ready".into())?;
    let started = Instant::now();
    let outcome = check_refused(cell, &["--mps"], &[], &["mps"]);
    drop(changed);
    outcome?;
    let limit = Duration::from_secs(DEADLINE * 3);
    ensure!(
        started.elapsed() < limit,
        "the user waited {:?}",
        started.elapsed()
    );
    cell.bed.wait_idle(LIMIT)?;
    check_undrained(cell)
}

fn a_bad_configuration_stops_no_plain_job(cell: &Context) -> Result<()> {
    let config = nodes(cell)?.product.config.clone();
    let before = fs::read_to_string(&config)?;
    fs::write(&config, format!("compute_mood = \"exclusive\"\n{before}"))?;
    let plain = cell.bed.srun(
        &cell.user,
        &["-N2", "--gres=gpu:1", "/bin/echo", "untouched"],
        LIMIT,
    );
    let words = [
        "compute_mood",
        "did you mean 'compute_mode'?",
        "MPS is misconfigured on node1 (not your job)",
    ];
    let asked = check_refused(cell, &["--mps"], &[], &words);
    let batch = a_batch_job_comes_back(cell);
    fs::write(&config, before)?;
    forget_the_note();
    batch?;
    let plain = plain?.success()?;
    ensure!(plain.stdout == "untouched\nuntouched\n", "{plain:?}");
    ensure!(plain.stderr.is_empty(), "a plain job is told '{}'", plain.stderr);
    asked?;
    if cell.bed.node_state("node1")?.state.contains("DRAIN") {
        check_repaired(cell)?;
    }
    Ok(())
}

/// An unusable file names no directory, so the note was remembered in the usual one, which all beds of this machine share.
fn forget_the_note() {
    let _ = fs::remove_file("/var/lib/mpsd/drains/remark-slurm-node1");
    for directory in ["/var/lib/mpsd/drains", "/var/lib/mpsd"] {
        let _ = fs::remove_dir(directory);
    }
}

/// It is put back for another try, and neither fails nor takes the node out of service; the node's comment names the key.
fn a_batch_job_comes_back(cell: &Context) -> Result<()> {
    let words = ["--mps", "--gres=gpu:1", "--requeue", "-w", "node1"];
    let job = cell.bed.sbatch(&cell.user, &words, "echo ran")?;
    let mut shown = Default::default();
    let again = cell.bed.wait_until("a requeued job", LIMIT, || {
        shown = cell.bed.job(job)?.context("the job is gone")?;
        let again = shown.get("Restarts").is_some_and(|count| count == "1");
        Ok(again && shown.get("JobState").is_some_and(|state| state == "PENDING"))
    });
    let (said, told) = (cell.bed.output(&cell.user, job), comment(cell, job));
    let node = cell
        .bed
        .root(&["scontrol", "show", "node", "node1"])?
        .success()?
        .stdout;
    cell.bed.root(&["scancel", &job.to_string()])?.success()?;
    cell.bed
        .root(&["scontrol", "update", "nodename=node1", "comment="])?
        .success()?;
    again.with_context(|| format!("{shown:?}\n{said}"))?;
    ensure!(!said.contains("ran"), "the script ran without its MPS: {said}");
    let told = told?;
    ensure!(
        told.contains("MPS is misconfigured on node1 (not your job)"),
        "its comment: {told}"
    );
    ensure!(node.contains("compute_mood"), "the node's comment: {node}");
    cell.bed.wait_idle(LIMIT)
}

fn a_server_that_ignores_sigterm_is_ended(cell: &Context) -> Result<()> {
    let changed = nodes(cell)?.change(|node| {
        node.faults.server_survives_sigterm = true;
        node.faults.ignore_sigterm = true;
        node.faults.refuse_quit = true;
    })?;
    let records = clients(cell, &["--mps", "--gres=gpu:1"], "");
    let idle = cell.bed.wait_idle(LIMIT);
    drop(changed);
    check_daemons(&records?, cell.user.uid, 1)?;
    idle
}

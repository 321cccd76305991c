//! `job_prolog` and `job_epilog`: `slurmstepd spank prolog|epilog`, a process of its own, root, started by slurmd for
//! every job of the cluster. A job that did not ask costs some getenv calls and, where the configuration may ask for
//! it, one file read.

use crate::arguments::Arguments;
use crate::handle::{Ended, Item, Level, Node, Program, Slurm, Verdict};
use crate::submission::{self, Submitter};
use mpsd_core::JobId;
use mpsd_core::config::{Settings, Wait};
use mpsd_core::failure::FailureKind;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::request::{Flags, Key};
use mpsd_core::text::one_line;
use std::path::Path;
use std::time::Duration;

/// Between the deadline that a program gives itself and the one that we give it.
pub const GRACE: Duration = Duration::from_secs(10);
/// A program's deadline where the configuration cannot be read.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// `job_prolog`. A refusal never fails it, nor does anything that the user's processes could have caused: Slurm drains
/// the node on any prolog failure. Both are recorded, and `task_init` tells the user.
pub fn prolog(slurm: &mut dyn Slurm, node: &dyn Node, arguments: &Arguments) -> Verdict {
    let demand = demand(slurm);
    if demand == Asks::Off {
        return Verdict::Continue;
    }
    let name = slurm.process_env("SLURMD_NODENAME");
    let settings = node.settings(&arguments.config, name.as_deref());
    let request = match demand {
        Asks::For(request) => request,
        Asks::Nothing | Asks::Off => match &settings {
            Ok(settings) if is_automatic(slurm, settings) => "MPS=on".to_owned(),
            _ => return Verdict::Continue,
        },
    };
    let Some(job) = slurm.job() else {
        return Verdict::Continue;
    };
    let in_task =
        Submitter::Srun.submitted(slurm) && settings.as_ref().is_ok_and(|s| s.slurm.wait == Wait::Task);
    let program = prologue(arguments, &request, in_task, environment(slurm), limit(&settings));
    let ended = node.run(&program);
    report(slurm, &format!("job {job}"), &ended);
    let Ok(settings) = settings else {
        return Verdict::Continue;
    };
    let path = settings.paths.job(&job).record();
    let record = node.record(&path).ok().flatten();
    let kind = record.as_ref().and_then(|r| r.kind);
    match &ended.code {
        // mps-prologue has drained the node with its own reason, which Slurm's "Prolog error" does not replace. A site
        // that wants no drains gets none from us this way either.
        Ok(2) if kind == Some(FailureKind::Fault) && settings.drain.enabled => return Verdict::Leave,
        Ok(0) => {}
        Ok(_) if record.is_some() => {}
        _ => no_record(slurm, node, &path, job, &ended),
    }
    Verdict::Continue
}

/// `mps-prologue` is not there, was killed or left no record. Without one, a task of a job that asked would run without
/// MPS where its flags were lost on the way.
fn no_record(slurm: &dyn Slurm, node: &dyn Node, path: &Path, job: JobId, ended: &Ended) {
    let reason = match &ended.code {
        Err(why) => Some(one_line(why, 400)),
        Ok(_) => ended.lines.last().map(|line| said(line).to_owned()),
    };
    let reason = reason.unwrap_or_else(|| "the prologue failed without a word".into());
    let uid = slurm.item(Item::JobUid).unwrap_or_default();
    let mut record = Record::closed(job, uid, RecordState::Failed, reason);
    record.kind = Some(FailureKind::Undetermined);
    if let Err(why) = node.leave_record(path, &record) {
        slurm.log(Level::Error, &format!("job {}: {why}", record.job));
    }
}

/// `job_epilog`: cleans every directory of the job, whatever its options were; one without any costs two looks. After any job
/// `mps-epilogue` looks again at what hung in the driver, where that waits for somebody.
pub fn epilog(slurm: &mut dyn Slurm, node: &dyn Node, arguments: &Arguments) -> Verdict {
    let Some(job) = slurm.job() else {
        return Verdict::Continue;
    };
    let name = slurm.process_env("SLURMD_NODENAME");
    let settings = node
        .settings(&arguments.config, name.as_deref())
        .unwrap_or_else(|_| Settings::usual());
    let paths = &settings.paths;
    if node.has_directories(&paths.jobs(), &job) || node.has_mark(&paths.look_again()) {
        let ended = node.run(&epilogue(
            arguments,
            environment(slurm),
            settings.deadline + GRACE,
        ));
        report(slurm, &format!("job {job}"), &ended);
    }
    // The verdict on the node is the drain that mps-epilogue made, if any, with its own reason.
    Verdict::Continue
}

/// What the job asked for, as `mps-prologue` takes it.
#[derive(PartialEq, Eq)]
enum Asks {
    Nothing,
    Off,
    For(String),
}

/// The job's own flags, also where a step is the first of it on this node and the flags that are here are the step's.
fn demand(slurm: &dyn Slurm) -> Asks {
    if let Some(job) = submission::told_of_job(slurm) {
        return match job.as_str() {
            "" => Asks::Nothing,
            submission::OFF => Asks::Off,
            _ => Asks::For(job),
        };
    }
    let mut flags = Flags::default();
    for key in Key::ALL {
        if let Some(argument) = slurm.option(key) {
            // A wrong one is refused with the others.
            let _ = flags.take(key, argument.as_deref());
        }
    }
    match flags.request() {
        Ok(None) => Asks::Nothing,
        Ok(Some(request)) if !request.is_on() => Asks::Off,
        Ok(Some(request)) => Asks::For(request.to_string()),
        Err(_) => Asks::For(flags.raw()),
    }
}

/// Whether the configuration asks for this job.
fn is_automatic(slurm: &dyn Slurm, settings: &Settings) -> bool {
    let site = &settings.slurm;
    // Slurm sets it in the prolog of jobs with gres/mps only (src/plugins/gres/mps, 22.05).
    let gres = site.auto_gres && slurm.process_env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").is_some();
    let partition = || {
        let of_job = slurm.process_env("SLURM_JOB_PARTITION").unwrap_or_default();
        site.auto_partitions.contains(&of_job)
    };
    let constraint = || {
        let wanted = site.auto_constraint.as_deref()?;
        let of_job = slurm.process_env("SLURM_JOB_CONSTRAINTS")?;
        // An expression like "[a*2&b*1]|c": features stand between operators.
        let mut features = of_job.split(|c: char| "&|[](),*".contains(c));
        Some(features.any(|feature| feature.trim() == wanted))
    };
    gres || partition() || constraint() == Some(true)
}

fn limit(settings: &Result<Settings, String>) -> Duration {
    settings.as_ref().map_or(DEADLINE, |s| s.deadline) + GRACE
}

/// What slurmd says of the job; nothing else of the process's environment goes on.
fn environment(slurm: &dyn Slurm) -> Vec<(String, String)> {
    let ours = |name: &str| {
        name.starts_with("SLURM")
            || name == submission::SUBMITTED
            || name == "CUDA_VISIBLE_DEVICES"
            || name == "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    };
    slurm
        .all_process_env()
        .into_iter()
        .filter(|(name, _)| ours(name))
        .collect()
}

/// `mps-prologue` for a job or step.
pub fn prologue(
    arguments: &Arguments,
    request: &str,
    started_is_enough: bool,
    environment: Vec<(String, String)>,
    limit: Duration,
) -> Program {
    let wait = if started_is_enough { "started" } else { "ready" };
    let words = ["--request", request, "--record", "--wait", wait];
    program(&arguments.prologue, arguments, &words, environment, limit)
}

/// `mps-epilogue` for a job or step.
pub fn epilogue(arguments: &Arguments, environment: Vec<(String, String)>, limit: Duration) -> Program {
    // What is left is an error of its log; Slurm hears of no exit code of ours.
    let strict = ["--strict"];
    program(&arguments.epilogue, arguments, &strict, environment, limit)
}

fn program(
    path: &Path,
    arguments: &Arguments,
    words: &[&str],
    environment: Vec<(String, String)>,
    limit: Duration,
) -> Program {
    let config = arguments.config.to_string_lossy();
    let common = ["--scheduler", "slurm", "--config", &config];
    Program {
        path: path.to_owned(),
        arguments: common
            .iter()
            .chain(words)
            .map(|word| (*word).to_owned())
            .collect(),
        environment,
        limit,
        detached: false,
    }
}

/// A line of `mps-prologue` or `mps-epilogue` without its name and job, which the reader knows already.
pub fn said(line: &str) -> &str {
    let named = ["mps-prologue: ", "mps-epilogue: "]
        .iter()
        .find_map(|name| line.strip_prefix(name));
    let of_job = named
        .and_then(|rest| rest.strip_prefix("job ")?.split_once(": "))
        .map(|(_, rest)| rest);
    of_job.or(named).unwrap_or(line)
}

/// What a program said, into slurmd's log; and why it said nothing.
pub fn report(slurm: &dyn Slurm, whose: &str, ended: &Ended) {
    let level = if ended.code == Ok(0) {
        Level::Info
    } else {
        Level::Error
    };
    for line in &ended.lines {
        slurm.log(level, &format!("{whose}: {}", said(line)));
    }
    match &ended.code {
        Err(why) => slurm.log(Level::Error, &format!("{whose}: {}", one_line(why, 400))),
        Ok(code) if *code != 0 && ended.lines.is_empty() => {
            slurm.log(Level::Error, &format!("{whose}: exit code {code} without a word"));
        }
        Ok(_) => {}
    }
}

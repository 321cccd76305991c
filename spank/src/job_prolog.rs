//! `job_prolog` and `job_epilog`: `slurmstepd spank prolog|epilog`, a root process that slurmd
//! starts for every job of the cluster. A job that does not ask for MPS costs some getenv calls and
//! one read of the configuration.

use crate::handle::{Item, Level, Node, Program, ProgramResult, Slurm, Verdict};
use crate::submission;
use mpsd_core::config::Settings;
use mpsd_core::environment::{THREADS, VISIBLE_DEVICES};
use mpsd_core::failure::FailureKind;
use mpsd_core::plugin_line::Arguments;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::request::Flags;
use mpsd_core::text::one_line;
use mpsd_core::{JobId, Request};
use std::path::Path;
use std::time::Duration;

/// Between the deadline that a program gives itself and ours.
const GRACE: Duration = Duration::from_secs(10);

/// `job_prolog`. Slurm drains the node when it fails, so neither a refusal nor anything that the
/// user's processes could have caused fails it. Both are recorded, and `task_init` tells the user.
pub fn prolog(slurm: &dyn Slurm, node: &dyn Node, line: &Arguments) -> Verdict {
    let request = request(slurm);
    if request == submission::OFF {
        return Verdict::Continue;
    }
    let settings = settings(slurm, node, line);
    let by_site = request.is_empty();
    // A GPU that the job shares is named too.
    let gpus = slurm.process_env("SLURM_JOB_GPUS").unwrap_or_default();
    let request = match &settings {
        _ if !by_site => request,
        // A job without GPUs must cost no more than any other.
        Ok(settings) if !gpus.is_empty() && site_brings_in(slurm, settings) => {
            Request::new(settings.defaults.mode).to_string()
        }
        _ => return Verdict::Continue,
    };
    let Some(job) = slurm.job() else {
        return Verdict::Continue;
    };
    let by = slurm.process_env(submission::SUBMITTER_IN_PROLOG);
    // A task of srun waits for its MPS itself, so srun starts earlier.
    let in_task = by.as_deref() == Some(submission::SRUN) && settings.is_ok();
    let wait = if in_task { "started" } else { "ready" };
    let mut words = vec!["--request", &request, "--record", "--wait", wait];
    words.extend(by_site.then_some("--by-site"));
    let usual = Settings::usual();
    let limits = settings.as_ref().unwrap_or(&usual);
    let environment = environment(slurm);
    let program = program(&line.prologue, line, limits, &words, environment);
    let result = run(slurm, node, &format!("job {job}"), &program);
    // A job that did not ask runs in any case.
    let (Ok(settings), false) = (settings, by_site) else {
        return Verdict::Continue;
    };
    let path = settings.paths.job(&job).record();
    let record = node.record(&path).ok().flatten();
    let kind = record.as_ref().and_then(|r| r.kind);
    match &result.code {
        // mps-prologue has drained the node with its own reason, which Slurm's "Prolog error" does
        // not replace. If the site wants no drains, this must not drain either.
        Ok(2) if kind == Some(FailureKind::Fault) && settings.drain.enabled => {
            return Verdict::EndProcess;
        }
        Ok(0) => {}
        Ok(_) if record.is_some_and(|record| record.state != RecordState::Starting) => {}
        _ => record_failure(slurm, node, &path, job, &result),
    }
    Verdict::Continue
}

/// For a prologue that is missing, was killed, or left no settled record: a task of a job that
/// asked would wait, or run outside MPS if its flags were lost on the way.
fn record_failure(
    slurm: &dyn Slurm,
    node: &dyn Node,
    path: &Path,
    job: JobId,
    result: &ProgramResult,
) {
    let reason = failure(result).unwrap_or_else(|| "the prologue failed without a word".into());
    let uid = slurm.item(Item::JobUid).unwrap_or_default();
    let mut record = Record::without_mps(job, uid, RecordState::Failed, reason);
    record.kind = Some(FailureKind::Undetermined);
    if let Err(why) = node.write_record(path, &record) {
        slurm.log(Level::Error, &format!("job {}: {why}", record.job));
    }
}

/// `job_epilog`: cleans every directory of the job, even if the job did not ask; without one it
/// costs two lookups and a read of mpsd.toml. `mps-epilogue` also takes its second look at what
/// hung in the driver.
pub fn epilog(slurm: &dyn Slurm, node: &dyn Node, line: &Arguments) {
    let Some(job) = slurm.job() else { return };
    let settings = settings(slurm, node, line).unwrap_or_else(|_| Settings::usual());
    let paths = &settings.paths;
    if node.has_directories(&paths.jobs(), &job) || node.exists(&paths.look_again()) {
        // mps-epilogue logs what it cannot undo. Slurm sees none of its exit codes.
        let words = ["--strict"];
        let environment = environment(slurm);
        let program = program(&line.epilogue, line, &settings, &words, environment);
        run(slurm, node, &format!("job {job}"), &program);
    }
}

/// What the job asked for: a request, [`submission::OFF`], or nothing. In a job's first step here
/// the flags are the step's; its srun has said what the job asked for.
fn request(slurm: &dyn Slurm) -> String {
    let by = slurm.process_env(submission::SUBMITTER_IN_PROLOG);
    if by.as_deref() == Some(submission::STEP) {
        let of_job = slurm.process_env(submission::OF_JOB_IN_PROLOG);
        return of_job.unwrap_or_default();
    }
    let flags = Flags::from_fn(|key| slurm.option(key));
    match flags.request() {
        Ok(request) => submission::request_text(request.as_ref()),
        Err(_) => flags.raw(),
    }
}

fn site_brings_in(slurm: &dyn Slurm, settings: &Settings) -> bool {
    let site = &settings.slurm;
    // Slurm sets it in the prolog of jobs with gres/mps only (src/plugins/gres/mps, 22.05).
    let gres = site.auto_gres && slurm.process_env(THREADS).is_some();
    let of_job = slurm.process_env("SLURM_JOB_PARTITION").unwrap_or_default();
    let constraints = slurm.process_env("SLURM_JOB_CONSTRAINTS");
    let is_constrained = |(expected, of_job): (&String, String)| {
        // An expression like "[a*2&b*1]|c": features stand between operators.
        let mut features = of_job.split(|c: char| "&|[](),*".contains(c));
        features.any(|feature| feature.trim() == expected)
    };
    let constraint = site.auto_constraint.as_ref().zip(constraints);
    gres || site.auto_partitions.contains(&of_job) || constraint.is_some_and(is_constrained)
}

pub fn settings(slurm: &dyn Slurm, node: &dyn Node, line: &Arguments) -> Result<Settings, String> {
    let name = slurm.process_env("SLURMD_NODENAME");
    node.settings(&line.config, name.as_deref())
}

/// The programs get nothing else of this process's environment.
fn environment(slurm: &dyn Slurm) -> Vec<(String, String)> {
    let others = [submission::SUBMITTER_IN_PROLOG, VISIBLE_DEVICES, THREADS];
    let mut environment = slurm.all_process_env();
    environment.retain(|(name, _)| name.starts_with("SLURM") || others.contains(&name.as_str()));
    environment
}

pub fn program(
    path: &Path,
    line: &Arguments,
    settings: &Settings,
    words: &[&str],
    environment: Vec<(String, String)>,
) -> Program {
    let config = line.config.to_string_lossy();
    let common = ["--scheduler", "slurm", "--config", &config];
    let words = common.iter().chain(words);
    Program {
        path: path.to_owned(),
        arguments: words.map(|word| (*word).to_owned()).collect(),
        environment,
        limit: settings.deadline + GRACE,
        detached: false,
    }
}

/// `owner`: a job or step.
pub fn run(slurm: &dyn Slurm, node: &dyn Node, owner: &str, program: &Program) -> ProgramResult {
    let result = node.run(program);
    let level = match result.code {
        Ok(0) => Level::Info,
        _ => Level::Error,
    };
    let mut lines: Vec<String> = result.lines.iter().map(|line| unprefixed(line)).collect();
    match &result.code {
        Err(why) => lines.push(one_line(why, 400)),
        Ok(code) if *code != 0 && lines.is_empty() => {
            lines.push(format!("exit code {code} without a word"))
        }
        Ok(_) => {}
    }
    for line in lines {
        slurm.log(level, &format!("{owner}: {line}"));
    }
    result
}

/// Why a program failed, for the user; `None`: it did not, or did not say.
pub fn failure(result: &ProgramResult) -> Option<String> {
    match &result.code {
        Ok(0) => None,
        Ok(_) => result.lines.last().map(|line| unprefixed(line)),
        Err(why) => Some(one_line(why, 400)),
    }
}

/// Without the program's name and its job, which the reader knows already.
fn unprefixed(line: &str) -> String {
    let mut names = ["mps-prologue: ", "mps-epilogue: "].iter();
    let named = names.find_map(|name| line.strip_prefix(name));
    let of_job = named.and_then(|named| named.strip_prefix("job ")?.split_once(": "));
    let rest = of_job.map(|(_, rest)| rest).or(named);
    rest.unwrap_or(line).to_owned()
}

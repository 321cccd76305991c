//! `mps-epilogue`: the journal backwards, then one look whether the node is as it was.
//!
//! It needs no request, no user and no GPU list: the journal has all. Where there is no directory of the job it ends at
//! once; so it runs after every job.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod teardown;

use arguments::Arguments;
use clap::Parser;
use mpsd::cli::complain;
use mpsd::scheduler::{self, Given, Host, Input, Program, Site, Submission, ThisHost};
use mpsd::sys::deadline::Deadline;
use mpsd::sys::{descriptors, guard};
use mpsd_core::config::{Config, Settings};
use mpsd_core::{Failure, JobId};
use std::path::Path;
use std::time::Duration;

/// Name in messages.
pub const NAME: &str = "mps-epilogue";
/// Exit code for a node that is not as it was, with `--strict`, and for a broken invocation.
const BROKEN: u8 = guard::FAULT;
/// The parent waits so much longer than the worker's own deadline.
const PARENT_GRACE: Duration = Duration::from_secs(3);

/// Runs the program; returns its exit code.
pub fn main() -> u8 {
    guard::install_panic_exit(NAME, BROKEN);
    if descriptors::fix_standard_descriptors().is_err() {
        return BROKEN;
    }
    descriptors::close_inherited();
    let arguments = Arguments::parse();
    let env = |name: &str| std::env::var(name).ok();
    let input = Input {
        program: Program::Epilogue,
        scheduler: arguments.scheduler.map(Into::into),
        arguments: &arguments.positional,
        env: &env,
        given: Given::default(),
        site: Site::default(),
        terminal: false,
    };
    match named(&arguments, &input) {
        Ok(submission) => clean(&arguments, &submission),
        Err(failure) => {
            complain(NAME, &failure.to_string());
            if arguments.strict { failure.exit_code() } else { 0 }
        }
    }
}

fn named(arguments: &Arguments, input: &Input<'_>) -> Result<Submission, Failure> {
    let mut submission = scheduler::read(input, &ThisHost)?;
    if let Some(step) = arguments.step.as_deref().filter(|_| !submission.step) {
        submission.job = submission.job.step(step)?;
        submission.step = true;
    }
    Ok(submission)
}

fn clean(arguments: &Arguments, submission: &Submission) -> u8 {
    let node = submission
        .node
        .clone()
        .filter(|n| !n.is_empty())
        .unwrap_or_else(|| ThisHost.name());
    let settings = settings(&arguments.config, &node);
    let jobs = teardown::jobs_of(&settings.paths, submission);
    if jobs.is_empty() {
        return 0;
    }
    let limit = settings.deadline;
    let code = guard::run_guarded(NAME, Deadline::after(limit + PARENT_GRACE), || {
        let deadline = Deadline::after(limit);
        let clean = jobs
            .iter()
            .all(|job: &JobId| teardown::job(job, &settings, submission, &node, deadline));
        if clean { 0 } else { BROKEN }
    });
    if arguments.strict { code } else { 0 }
}

/// What is in force here. A configuration that cannot be read must not keep the job's MPS alive: the usual directories
/// are looked into, and the journal has the rest.
fn settings(config: &Path, node: &str) -> Settings {
    let read = Config::load(config).and_then(|config| config.for_node(node, &[]));
    match read {
        Ok(settings) => settings,
        Err(error) => {
            complain(NAME, &format!("{error}; going on with the usual directories"));
            Settings::usual(node)
        }
    }
}

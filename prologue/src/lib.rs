//! `mps-prologue`: from what the scheduler says to a proved daemon, or to one clear line and an exit code.
//!
//! 1. [`mpsd::cli::asking`]: did the job ask? If not, exit 0, nothing touched, nothing read.
//! 2. [`job`]: configuration, user, settings of this node.
//! 3. [`tasks`]: can every task of it be attached?
//! 4. [`start`]: GPUs, plan, effects, proof.
//! 5. [`outcome`]: what is said, recorded, drained.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod job;
pub mod outcome;
pub mod start;
pub mod tasks;

use arguments::Arguments;
use clap::Parser;
use mpsd::cli::asking::Asked;
use mpsd::cli::complain;
use mpsd::scheduler::{self, Host, Input, Site, ThisHost};
use mpsd::sys::deadline::Deadline;
use mpsd::sys::{descriptors, guard};
use mpsd_core::Failure;
use mpsd_core::config::Config;
use std::io::IsTerminal;
use std::time::Duration;

/// Name in messages.
pub const NAME: &str = "mps-prologue";
/// Exit code of everything that is neither success nor refusal.
const BROKEN: u8 = guard::FAULT;
/// Beyond the configured deadline, the parent waits this long before it kills the worker, which has deadlines of its own.
const PARENT_GRACE: Duration = Duration::from_secs(3);

/// Runs the program; returns its exit code. Nothing in here ends it by a signal: Torque would take that for success.
pub fn main() -> u8 {
    guard::install_panic_exit(NAME, BROKEN);
    if descriptors::fix_standard_descriptors().is_err() {
        return BROKEN;
    }
    descriptors::close_inherited();
    let arguments = Arguments::parse();
    let env = |name: &str| std::env::var(name).ok();
    let input = arguments
        .asking
        .input(&env, site(&arguments), std::io::stdout().is_terminal());
    match arguments.asking.asked(&input, &ThisHost) {
        Ok(None) => 0,
        Ok(Some(asked)) => guarded(&arguments, &input, asked),
        Err(failure) => fail_early(&arguments, &input, &failure),
    }
}

/// Where PBS lives. Only the classic prologue of OpenPBS runs a command of PBS before it knows whether the job asked;
/// no other job pays for reading the configuration.
fn site(arguments: &Arguments) -> Site {
    let asking = &arguments.asking;
    let classic = asking.positional.len() == 3 && asking.account.is_none() && asking.resource.is_none();
    if !classic {
        return Site::default();
    }
    let settings = Config::load(&arguments.config).and_then(|config| config.for_node(&ThisHost.name(), &[]));
    settings
        .map(|settings| mpsd::node::clean::site(&settings))
        .unwrap_or_default()
}

/// All further work is done by a child, so that whatever becomes of it ends as an exit code.
fn guarded(arguments: &Arguments, input: &Input<'_>, asked: Asked) -> u8 {
    let limit = job::Job::limit(arguments, &asked);
    guard::run_guarded(NAME, Deadline::after(limit + PARENT_GRACE), || {
        let deadline = Deadline::after(limit);
        match job::Job::prepare(arguments, asked.clone()) {
            Ok(job) => match start::run(arguments, input, &job, deadline) {
                Ok(()) => 0,
                Err(failed) => outcome::of_failure(&job, &failed, deadline),
            },
            Err(failure) => outcome::of_unprepared(arguments, &asked, &failure),
        }
    })
}

/// A failure before it was known whose node this is: said, never recorded or drained.
fn fail_early(arguments: &Arguments, input: &Input<'_>, failure: &Failure) -> u8 {
    complain(NAME, &failure.to_string());
    let submission = scheduler::read(input, &ThisHost);
    if let (true, Failure::Refusal(_), Ok(submission)) = (arguments.record, failure, &submission) {
        outcome::record_unprepared(arguments, submission, failure);
    }
    // What was refused before any node was looked at, the mother superior refuses too.
    if submission.is_ok_and(|submission| outcome::is_left_to_tasks(&submission, failure)) {
        return 0;
    }
    failure.exit_code()
}

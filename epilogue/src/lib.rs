//! `mps-epilogue`: the journal backwards, then one look whether the node is as it was.
//!
//! It needs no request, no user and no GPU list: the journal has all. Where there is no directory of the job it ends at
//! once; so it runs after every job. What it does to the node, and in which order, is [`mpsd::job::end`].
#![forbid(unsafe_code)]

pub mod arguments;

use arguments::Arguments;
use clap::Parser;
use mpsd::cli::report;
use mpsd::job::{self, Ending, evidence};
use mpsd::node::log::complain;
use mpsd::node::real::RealNode;
use mpsd::scheduler::{self, Budget, CallOptions, Input, Program, Site, Submission, ThisHost};
use mpsd::sys::deadline::Deadline;
use mpsd::sys::{descriptors, guard, priority};
use mpsd_core::Failure;
use mpsd_core::config::{Config, Settings};
use std::path::Path;
use std::time::Duration;

/// Name in messages.
pub const NAME: &str = "mps-epilogue";
/// Exit code for a node that is not as it was, with `--strict`, and for a broken invocation.
const BROKEN: u8 = guard::FAULT;

/// Runs the program; returns its exit code.
pub fn main() -> u8 {
    priority::raise();
    guard::install_panic_exit(NAME, BROKEN);
    // First, because a full table of descriptors has no room for `/dev/null`.
    descriptors::close_inherited();
    if descriptors::fix_standard_descriptors().is_err() {
        return BROKEN;
    }
    let arguments = Arguments::parse();
    let env = |name: &str| std::env::var(name).ok();
    let input = Input {
        program: Program::Epilogue,
        scheduler: arguments.scheduler,
        arguments: &arguments.positional,
        env: &env,
        given: CallOptions::default(),
        site: Site::default(),
        terminal: false,
    };
    match named(&arguments, &input) {
        Ok(submission) => clean(&arguments, &submission, &input),
        Err(failure) => {
            complain(NAME, &failure.to_string());
            if arguments.strict { failure.exit_code() } else { 0 }
        }
    }
}

fn named(arguments: &Arguments, input: &Input<'_>) -> Result<Submission, Failure> {
    let submission = scheduler::read(input, &ThisHost)?;
    Ok(submission.of_step(arguments.step.as_deref())?)
}

fn clean(arguments: &Arguments, submission: &Submission, input: &Input<'_>) -> u8 {
    let name = submission.node_name(&ThisHost);
    let settings = settings(&arguments.config, &name);
    let node = |limit: Duration| RealNode::new(NAME, &settings, limit, limit / 2);
    look_again(&settings, submission);
    let jobs = job::jobs_of(&node(settings.deadline), submission);
    if jobs.is_empty() {
        return 0;
    }
    let system = scheduler::of(submission.scheduler);
    // Whether the job's user reads what we say.
    let shown = system.shows_end(input);
    let limit = system.time_limit(input, submission.step, &Site::of(&settings));
    let budget = Budget::new(settings.deadline, limit);
    let code = guard::run_guarded(NAME, Deadline::after(budget.whole), || {
        let deadline = Deadline::after(budget.work);
        let ending = Ending {
            settings: &settings,
            scheduler: submission.scheduler,
            node: &name,
            site: Site::of(&settings),
        };
        let mut clean = true;
        for (left, id) in (1..=jobs.len()).rev().zip(&jobs) {
            // A step whose user keeps it from its end leaves the others their share.
            let share = deadline.remaining() / u32::try_from(left).unwrap_or(1);
            let ended = job::end(&mut node(share), id, &ending);
            // First: the last line is root's own, whatever a user's process said.
            if shown {
                for words in &ended.last_words {
                    complain(NAME, &format!("job {id}: its mpsd says: {words}"));
                }
                if let Some(report) = &ended.report {
                    complain(NAME, &report::paragraph(report));
                }
            }
            ended.lines.iter().for_each(|line| complain(NAME, line));
            clean &= ended.findings.is_clean();
        }
        if clean { 0 } else { BROKEN }
    });
    if arguments.strict { code } else { 0 }
}

/// What hung in the driver is looked at again after any job of the node, so that nothing depends on a timer: in a process of its own,
/// for which no job waits. Not from a step's end, whose processes are the step's to its scheduler.
fn look_again(settings: &Settings, submission: &Submission) {
    if submission.step || settings.paths.look_again().symlink_metadata().is_err() {
        return;
    }
    let limit = settings.deadline;
    let look = || {
        let mut node = RealNode::new(NAME, settings, limit, limit / 2);
        evidence::look_again(&mut node, settings);
        Vec::new()
    };
    // Whoever comes next does it where no process is to be had now.
    let _ = guard::detach(|| drop(guard::ask(Deadline::after(limit), look)));
}

/// What is in force here. A configuration that cannot be read must not keep the job's MPS alive: the usual directories
/// are looked into, and the journal has the rest.
fn settings(config: &Path, node: &str) -> Settings {
    let read = Config::load(config).and_then(|config| config.for_node(node, &[]));
    match read {
        Ok(settings) => settings,
        Err(error) => {
            complain(NAME, &format!("{error}; going on with the usual directories"));
            Settings::usual()
        }
    }
}

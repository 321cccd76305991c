//! `mps-prologue`: from what the scheduler says to a proved daemon, or to one clear line and an exit code.
//!
//! What it does to the node, and in which order, is [`mpsd::job::begin`].
#![forbid(unsafe_code)]

pub mod arguments;

use arguments::{Arguments, Wait};
use clap::Parser;
use mpsd::cli::reconcile;
use mpsd::cli::words::words;
use mpsd::job::node::{Console, Files as _, Severity};
use mpsd::job::{self, Ending, Job, ReturnWhen, Scheduled, outcome};
use mpsd::node::log::complain;
use mpsd::node::real::{RealNode, find_user};
use mpsd::plan::JobRequest;
use mpsd::scheduler::drain::{self, Place};
use mpsd::scheduler::{
    self, BatchSystem, Budget, Devices, Host, Input, Site, Submission, ThisHost, Unattached,
};
use mpsd::sys::deadline::Deadline;
use mpsd::sys::{descriptors, guard, priority};
use mpsd_core::Failure;
use mpsd_core::config::{Config, Settings};
use mpsd_core::failure::Fault;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Name in messages.
pub const NAME: &str = "mps-prologue";
/// Exit code of everything that is neither success nor refusal.
const BROKEN: u8 = guard::FAULT;
/// How long a held prologue sleeps at a time.
const HELD_STEP: Duration = Duration::from_millis(200);
/// Time to leave a record where there was no job to speak of.
const RECORD_LIMIT: Duration = Duration::from_secs(5);

/// Runs the program; returns its exit code. Nothing in here ends it by a signal: Torque would take that for success.
pub fn main() -> u8 {
    priority::raise();
    guard::install_panic_exit(NAME, BROKEN);
    if descriptors::fix_standard_descriptors().is_err() {
        return BROKEN;
    }
    descriptors::close_inherited();
    let arguments = match words() {
        Ok(words) => Arguments::parse_from(words),
        Err(failure) => {
            complain(NAME, &failure.to_string());
            return failure.exit_code();
        }
    };
    let env = |name: &str| std::env::var(name).ok();
    let input = arguments
        .asking
        .input(&env, site(&arguments), std::io::stdout().is_terminal());
    match arguments.asking.asked(&input, &ThisHost) {
        Ok(None) => {
            if arguments.gone {
                clear_before(&arguments, &input);
            }
            0
        }
        Ok(Some(asked)) => guarded(&arguments, input, asked),
        Err(failure) => fail_early(&arguments, &input, &failure),
    }
}

/// Where PBS lives. Only the classic prologue of OpenPBS runs a command of PBS before it knows whether the job asked;
/// no other job pays for reading the configuration.
fn site(arguments: &Arguments) -> Site {
    let asking = &arguments.asking;
    let classic =
        asking.positional.len() == 3 && asking.given.account.is_none() && asking.given.resource.is_none();
    if !classic {
        return Site::default();
    }
    let settings = load(arguments, &ThisHost.name()).map(|(_, settings)| settings);
    settings.as_ref().map(Site::of).unwrap_or_default()
}

/// All further work is done by a child, so that whatever becomes of it ends as an exit code.
fn guarded(arguments: &Arguments, input: Input<'_>, asked: JobRequest) -> u8 {
    let submission = &asked.submission;
    let system = scheduler::of(submission.scheduler);
    let node = submission.node_name(&ThisHost);
    let budget = budget(arguments, &input, system, &node, submission.step);
    let limit = budget.work;
    guard::run_guarded(NAME, Deadline::after(budget.whole), || {
        let deadline = Deadline::after(limit);
        let submission = asked.submission.clone();
        match prepare(arguments, asked, deadline) {
            Ok(job) => {
                if system.may_skip_epilogue() {
                    reconcile::take_down_gone(&job.settings, &job.node, &submission.job, limit / 2);
                }
                let limit = deadline.remaining();
                // A rollback must fit behind a start that took its whole time.
                let mut node = RealNode::new(NAME, &job.settings, limit, limit / 3);
                let when = match arguments.wait {
                    Wait::Ready => ReturnWhen::Ready,
                    Wait::Started => ReturnWhen::Started,
                    Wait::Announced => ReturnWhen::Announced,
                };
                let watched = submission.sister && system.may_skip_epilogue();
                let its = watched
                    .then(|| system.time_limit(&input, false, &job.site))
                    .flatten();
                let again =
                    when == ReturnWhen::Ready && !job.asked.submission.step && system.was_put_back(&input);
                let begun = job::begin(&mut node, &job, &Told::of(input, &job), when);
                if again && begun.failed.is_none() {
                    outcome::of_success(&mut node, &job);
                }
                drop(node);
                if begun.code == 0 && watched {
                    watch_start(system, &job, its);
                }
                begun.code
            }
            Err(failure) => fail_unprepared(arguments, &submission, &failure, deadline),
        }
    })
}

/// For a job that did not ask, before which our script saw that an earlier one may have left its MPS: that is taken down first.
fn clear_before(arguments: &Arguments, input: &Input<'_>) {
    let Some(system) = scheduler::caller(input).filter(|system| system.may_skip_epilogue()) else {
        return;
    };
    let Ok(submission) = scheduler::read(input, &ThisHost) else {
        return;
    };
    let name = submission.node_name(&ThisHost);
    let Ok((_, settings)) = load(arguments, &name) else {
        return;
    };
    let budget = budget(arguments, input, system, &name, submission.step);
    reconcile::take_down_gone(&settings, &name, &submission.job, budget.work);
}

/// Leaves a process that takes this job down if the job does not begin after all: no epilogue runs here then. It need not last
/// longer than the other nodes' prologues and the mother superior's after them. `its`: the scheduler's
/// limit of each.
fn watch_start(system: &dyn BatchSystem, job: &Job, its: Option<Duration>) {
    let site = Site::of(&job.settings);
    let limit = 2 * its.unwrap_or(job.settings.deadline);
    let ending = Ending {
        settings: &job.settings,
        scheduler: system.scheduler(),
        node: &job.node,
        site,
    };
    let id = &job.asked.submission.job;
    // The next prologue here does it where no process is to be had.
    let _ = guard::detach(|| reconcile::take_down_unbegun(&job.settings, &ending, id, limit));
}

/// The time for the whole prologue: the configured one, but below the scheduler's own.
fn budget(
    arguments: &Arguments,
    input: &Input<'_>,
    system: &dyn BatchSystem,
    node: &str,
    step: bool,
) -> Budget {
    let settings = load(arguments, node).map_or_else(|_| Settings::usual(), |(_, settings)| settings);
    let limit = system.time_limit(input, step, &Site::of(&settings));
    Budget::new(settings.deadline, limit)
}

/// Reads the configuration and looks the user up: a fault for an unusable one, undetermined when he is not known here.
fn prepare(arguments: &Arguments, asked: JobRequest, deadline: Deadline) -> Result<Job, Failure> {
    let node = asked.submission.node_name(&ThisHost);
    let (config, settings) = load(arguments, &node)?;
    let user = find_user(&asked.submission.user)?;
    Ok(Job {
        asked,
        config,
        site: Site::of(&settings),
        settings,
        user,
        node,
        record: arguments.record,
        deadline,
    })
}

fn load(arguments: &Arguments, node: &str) -> Result<(Config, Settings), Fault> {
    let config = Config::load(&arguments.config)?;
    let settings = config.for_node(node, &[])?;
    Ok((config, settings))
}

/// The scheduler's words, to be asked for more.
struct Told<'a> {
    submission: &'a Submission,
    input: Input<'a>,
}

impl<'a> Told<'a> {
    fn of(mut input: Input<'a>, job: &'a Job) -> Self {
        input.site = job.site.clone();
        let submission = &job.asked.submission;
        Self { submission, input }
    }
}

impl Scheduled for Told<'_> {
    fn unattached(&self) -> Option<Unattached> {
        let mut input = self.input.clone();
        input.site.home = input.site.home.or_else(home_of_caller);
        scheduler::of(self.submission.scheduler).unattached(self.submission, &input, &ThisHost)
    }

    fn devices(&self) -> Result<Devices, Failure> {
        scheduler::devices(self.submission, &self.input, &ThisHost)
    }
}

/// The home of the mom that runs us, whose prologue starts in its `mom_priv`
/// (docs/facts/pbs.md#environment-identity-and-descriptors).
fn home_of_caller() -> Option<PathBuf> {
    let here = std::env::current_dir().ok()?;
    (here.file_name()? == "mom_priv").then(|| here.parent().map(PathBuf::from))?
}

/// A failure before there was a job to speak of, an unusable configuration or an unknown user: said, recorded, not drained,
/// and held back.
fn fail_unprepared(
    arguments: &Arguments,
    submission: &Submission,
    failure: &Failure,
    deadline: Deadline,
) -> u8 {
    let name = submission.node_name(&ThisHost);
    let settings = load(arguments, &name).ok().map(|(_, s)| s);
    let known = settings.is_some();
    let mut settings = settings.unwrap_or_else(Settings::usual);
    if !known {
        // Where this node's counters are is not known: none are made elsewhere.
        settings.reports.keep = 0;
    }
    let mut node = RealNode::new(NAME, &settings, RECORD_LIMIT, RECORD_LIMIT / 3);
    let told = match failure.clone() {
        Failure::Fault(fault) => fault.to_user(&name).into(),
        other => other,
    };
    outcome::say(&mut node, &submission.job, &told);
    if arguments.record && known {
        outcome::leave_record(&mut node, &submission.job, 0, &told);
    }
    if let Failure::Fault(fault) = failure {
        show(&mut node, submission, &settings, fault);
    }
    let place = place(submission, &settings, &name);
    let requeued = outcome::requeue(&mut node, &place, submission, &settings, failure, false);
    outcome::tell(&mut node, &place, submission, &told, requeued.as_ref());
    if arguments.wait != Wait::Announced {
        outcome::hold(&mut node, submission, deadline);
    }
    outcome::exit_code(submission, arguments.record, failure)
}

/// Shows the administrator an unusable configuration where he looks at his nodes: it does not drain.
fn show(node: &mut RealNode, submission: &Submission, settings: &Settings, fault: &Fault) {
    if !settings.drain.enabled {
        return;
    }
    let name = submission.node_name(&ThisHost);
    let place = place(submission, settings, &name);
    if let Some(line) = drain::remark(&settings.paths, &place, &settings.drain.prefix, fault) {
        node.log(Severity::Warning, &line);
    }
}

fn place<'a>(submission: &Submission, settings: &Settings, node: &'a str) -> Place<'a> {
    Place {
        scheduler: submission.scheduler,
        site: Site::of(settings),
        node,
    }
}

/// A failure before it was known whose node this is: said, never drained; a refusal is recorded.
fn fail_early(arguments: &Arguments, input: &Input<'_>, failure: &Failure) -> u8 {
    let submission = scheduler::read(input, &ThisHost);
    if let Ok(submission) = &submission
        && is_left_to_shell(arguments, submission, failure)
    {
        return 0;
    }
    complain(NAME, &failure.to_string());
    let Ok(submission) = submission else {
        let held = arguments.wait != Wait::Announced;
        let system = scheduler::caller(input).filter(|system| held && system.retries_at_once());
        if let (Some(system), false, BROKEN) = (system, input.terminal, failure.exit_code()) {
            let budget = budget(arguments, input, system, &ThisHost.name(), false);
            let end = Deadline::after(budget.work);
            while end.less(HELD_STEP).sleep(HELD_STEP) {}
        }
        return failure.exit_code();
    };
    // What was refused before any node was looked at, the mother superior refuses too.
    if outcome::is_left_to_tasks(&submission, failure) {
        return 0;
    }
    failure.exit_code()
}

/// Records a refusal and tells the user, where there is a usable configuration; whether the job's own shell does the telling.
fn is_left_to_shell(arguments: &Arguments, submission: &Submission, failure: &Failure) -> bool {
    let name = submission.node_name(&ThisHost);
    let settings = load(arguments, &name).map(|(_, settings)| settings);
    let (Failure::Refusal(_), Ok(settings)) = (failure, settings) else {
        return false;
    };
    let to_shell = outcome::is_told_by_shell(submission, failure, &Site::of(&settings));
    let uid = find_user(&submission.user).map_or(0, |user| user.uid);
    let mut node = RealNode::new(NAME, &settings, RECORD_LIMIT, RECORD_LIMIT / 3);
    node.count_failure(failure.kind());
    let recorded =
        (arguments.record || to_shell) && outcome::leave_record(&mut node, &submission.job, uid, failure);
    let told = to_shell && recorded;
    if !told {
        let place = place(submission, &settings, &name);
        outcome::tell(&mut node, &place, submission, failure, None);
    }
    told
}

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
use mpsd::scheduler::drain::{self, Place};
use mpsd::scheduler::{
    self, BatchSystem, Budget, Devices, Host, Input, Site, Submission, ThisHost, Unattached,
};
use mpsd::sys::deadline::Deadline;
use mpsd::sys::{descriptors, guard, priority};
use mpsd_core::config::{Config, Settings};
use mpsd_core::failure::Fault;
use mpsd_core::request::Syntax;
use mpsd_core::{Failure, Request};
use std::cell::OnceCell;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

/// Name in messages.
pub const NAME: &str = "mps-prologue";
/// Exit code of everything but success and a refusal.
const BROKEN: u8 = guard::FAULT;
/// How long a held prologue sleeps at a time.
const HELD_STEP: Duration = Duration::from_millis(200);
/// Time to write a record without a prepared job.
const RECORD_LIMIT: Duration = Duration::from_secs(5);

/// Runs the program; returns its exit code. It must not end by a signal: Torque would take that for success.
pub fn main() -> u8 {
    priority::raise();
    guard::install_panic_exit(NAME, BROKEN);
    // First, because a full table of descriptors has no room for `/dev/null`.
    descriptors::close_inherited();
    if descriptors::fix_standard_descriptors().is_err() {
        return BROKEN;
    }
    let arguments = match words() {
        Ok(words) => Arguments::parse_from(words),
        Err(failure) => {
            complain(NAME, &failure.to_string());
            return failure.exit_code();
        }
    };
    let prologue = Prologue {
        config: OnceCell::new(),
        arguments,
    };
    let env = |name: &str| std::env::var(name).ok();
    let job = &prologue.arguments.job;
    let input = job.input(&env, prologue.site(), std::io::stdout().is_terminal());
    let submission = job.submission(&input, &ThisHost);
    let found = submission.and_then(|submission| Ok((job.request_of(&submission)?, submission)));
    match found {
        Ok((None, _)) => {
            if prologue.arguments.gone {
                prologue.clear_before(&input);
            }
            0
        }
        Ok((Some(request), submission)) => prologue.guarded(input, &submission, request),
        Err(failure) => prologue.fail_early(&input, &failure),
    }
}

/// One run of the program.
struct Prologue {
    arguments: Arguments,
    /// The configuration, read once, and only for a job that asked.
    config: OnceCell<Config>,
}

impl Prologue {
    fn load(&self, node: &str) -> Result<(Config, Settings), Fault> {
        let config = match self.config.get() {
            Some(config) => config.clone(),
            // A failure is not kept: it may pass.
            None => {
                let config = Config::load(&self.arguments.config)?;
                self.config.get_or_init(|| config).clone()
            }
        };
        let settings = config.for_node(node, &[])?;
        Ok((config, settings))
    }

    /// Where PBS lives. Only the classic prologue of OpenPBS runs a command of PBS before it knows whether the job asked;
    /// no other job pays for reading the configuration.
    fn site(&self) -> Site {
        let job = &self.arguments.job;
        let classic =
            job.positional.len() == 3 && job.given.account.is_none() && job.given.resource.is_none();
        let settings = classic.then(|| self.load(&ThisHost.name()).ok()).flatten();
        settings
            .map(|(_, settings)| Site::of(&settings))
            .unwrap_or_default()
    }

    /// A child does all further work, so that its crash becomes an exit code.
    fn guarded(&self, input: Input<'_>, submission: &Submission, request: (Request, Syntax)) -> u8 {
        let system = scheduler::of(submission.scheduler);
        let node = submission.node_name(&ThisHost);
        let budget = self.budget(&input, system, &node, submission.step);
        let limit = budget.work;
        guard::run_guarded(NAME, Deadline::after(budget.whole), || {
            let deadline = Deadline::after(limit);
            match self.prepare(submission, request, deadline) {
                Ok(job) => {
                    if system.facts().may_skip_epilogue {
                        reconcile::take_down_gone(&job.settings, &job.node, &submission.job, limit / 2);
                    }
                    let limit = deadline.remaining();
                    // A rollback must fit behind a start that took its whole time.
                    let mut node = RealNode::new(NAME, &job.settings, limit, limit / 3);
                    let when = match self.arguments.wait {
                        Wait::Ready => ReturnWhen::Ready,
                        Wait::Started => ReturnWhen::Started,
                        Wait::Announced => ReturnWhen::Announced,
                    };
                    let watched = submission.sister && system.facts().may_skip_epilogue;
                    let its = watched
                        .then(|| system.time_limit(&input, false, &job.site))
                        .flatten();
                    let again =
                        when == ReturnWhen::Ready && !job.submission.step && system.was_put_back(&input);
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
                Err(failure) => self.fail_unprepared(submission, &failure, deadline),
            }
        })
    }

    /// Takes down what an earlier job may have left, which our script saw before this job that did not ask.
    fn clear_before(&self, input: &Input<'_>) {
        let Some(system) = scheduler::caller(input).filter(|system| system.facts().may_skip_epilogue) else {
            return;
        };
        let Ok(submission) = scheduler::read(input, &ThisHost) else {
            return;
        };
        let name = submission.node_name(&ThisHost);
        let Ok((_, settings)) = self.load(&name) else {
            return;
        };
        let budget = self.budget(input, system, &name, submission.step);
        reconcile::take_down_gone(&settings, &name, &submission.job, budget.work);
    }

    /// The time for the whole prologue: the configured limit, below the scheduler's.
    fn budget(&self, input: &Input<'_>, system: &dyn BatchSystem, node: &str, step: bool) -> Budget {
        let settings = self
            .load(node)
            .map_or_else(|_| Settings::usual(), |(_, settings)| settings);
        let limit = system.time_limit(input, step, &Site::of(&settings));
        Budget::new(settings.deadline, limit)
    }

    /// Reads the configuration (fault) and looks the user up (undetermined).
    fn prepare(
        &self,
        submission: &Submission,
        (request, syntax): (Request, Syntax),
        deadline: Deadline,
    ) -> Result<Job, Failure> {
        let node = submission.node_name(&ThisHost);
        let (config, settings) = self.load(&node)?;
        let user = find_user(&submission.user)?;
        Ok(Job {
            submission: submission.clone(),
            request,
            syntax,
            config,
            site: Site::of(&settings),
            settings,
            user,
            node,
            record: self.arguments.record,
            deadline,
        })
    }

    /// Reports and records a failure without a prepared job: an unusable configuration or an unknown user. It is not drained,
    /// and the exit is delayed.
    fn fail_unprepared(&self, submission: &Submission, failure: &Failure, deadline: Deadline) -> u8 {
        let name = submission.node_name(&ThisHost);
        let settings = self.load(&name).ok().map(|(_, s)| s);
        let known = settings.is_some();
        let mut settings = settings.unwrap_or_else(Settings::usual);
        if !known {
            // The place of this node's counters is unknown: make none elsewhere.
            settings.reports.keep = 0;
        }
        let mut node = RealNode::new(NAME, &settings, RECORD_LIMIT, RECORD_LIMIT / 3);
        let told = match failure.clone() {
            Failure::Fault(fault) => fault.to_user(&name).into(),
            other => other,
        };
        outcome::say(&mut node, &submission.job, &told);
        if self.arguments.record && known {
            outcome::leave_record(&mut node, &submission.job, 0, &told);
        }
        if let Failure::Fault(fault) = failure {
            show(&mut node, submission, &settings, fault);
        }
        let place = place(submission, &settings, &name);
        let requeued = outcome::requeue(&mut node, &place, submission, &settings, failure, false);
        outcome::tell(&mut node, &place, submission, &told, requeued.as_ref());
        if self.arguments.wait != Wait::Announced {
            outcome::hold(&mut node, submission, deadline);
        }
        outcome::exit_code(submission, self.arguments.record, failure)
    }

    /// Reports a failure before the node's name is known. It is never drained; a refusal is recorded.
    fn fail_early(&self, input: &Input<'_>, failure: &Failure) -> u8 {
        let submission = scheduler::read(input, &ThisHost);
        if let Ok(submission) = &submission
            && self.is_left_to_shell(submission, failure)
        {
            return 0;
        }
        complain(NAME, &failure.to_string());
        let Ok(submission) = submission else {
            let held = self.arguments.wait != Wait::Announced;
            let system = scheduler::caller(input).filter(|system| held && system.facts().retries_at_once);
            if let (Some(system), false, BROKEN) = (system, input.terminal, failure.exit_code()) {
                let budget = self.budget(input, system, &ThisHost.name(), false);
                let end = Deadline::after(budget.work);
                while end.less(HELD_STEP).sleep(HELD_STEP) {}
            }
            return failure.exit_code();
        };
        // The mother superior makes the same refusal, so the sisters may exit 0.
        if outcome::is_left_to_tasks(&submission, failure) {
            return 0;
        }
        failure.exit_code()
    }

    /// Records a refusal and tells the user, if the configuration is usable. True: the job's own shell tells it.
    fn is_left_to_shell(&self, submission: &Submission, failure: &Failure) -> bool {
        let name = submission.node_name(&ThisHost);
        let settings = self.load(&name).map(|(_, settings)| settings);
        let (Failure::Refusal(_), Ok(settings)) = (failure, settings) else {
            return false;
        };
        let to_shell = outcome::is_told_by_shell(submission, failure, &Site::of(&settings));
        let uid = find_user(&submission.user).map_or(0, |user| user.uid);
        let mut node = RealNode::new(NAME, &settings, RECORD_LIMIT, RECORD_LIMIT / 3);
        node.count_failure(failure.kind());
        let recorded = (self.arguments.record || to_shell)
            && outcome::leave_record(&mut node, &submission.job, uid, failure);
        let told = to_shell && recorded;
        if !told {
            let place = place(submission, &settings, &name);
            outcome::tell(&mut node, &place, submission, failure, None);
        }
        told
    }
}

/// Leaves a process that takes this job down if the job does not begin after all, because no epilogue runs here then. It
/// lasts as long as the other nodes' prologues and then the mother superior's. `its`: the scheduler's limit of each.
fn watch_start(system: &dyn BatchSystem, job: &Job, its: Option<Duration>) {
    let site = Site::of(&job.settings);
    let limit = 2 * its.unwrap_or(job.settings.deadline);
    let ending = Ending {
        settings: &job.settings,
        scheduler: system.scheduler(),
        node: &job.node,
        site,
    };
    let id = &job.submission.job;
    // Without a process the next prologue here does it.
    let _ = guard::detach(|| reconcile::take_down_unbegun(&job.settings, &ending, id, limit));
}

/// Answers further questions from the scheduler's arguments.
struct Told<'a> {
    submission: &'a Submission,
    input: Input<'a>,
}

impl<'a> Told<'a> {
    fn of(mut input: Input<'a>, job: &'a Job) -> Self {
        input.site = job.site.clone();
        let submission = &job.submission;
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

/// Shows an unusable configuration in the scheduler's list of nodes, without a drain.
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

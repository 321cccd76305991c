//! `mps-prologue`: from what the scheduler says to a proved daemon ([`mpsd::job::begin`]), or to
//! one clear line and an exit code.
#![forbid(unsafe_code)]

use batch::drain::Place;
use batch::{
    self, BatchSystem, Budget, Devices, Host, Input, Location, Submission, ThisHost, Unattached,
    UserRef,
};
use clap::Parser;
use mpsd::cli;
use mpsd::cli::job_arguments::JobArguments;
use mpsd::cli::reconcile;
use mpsd::cli::words::words;
use mpsd::job::node::{Console, Severity};
use mpsd::job::outcome::{self, Failing};
use mpsd::job::{self, Ending, Job, ReturnWhen, Scheduled};
use mpsd::node::log::complain;
use mpsd::node::real::{RealNode, find_user};
use mpsd::node::{directories, unbegun};
use mpsd::plan::Asked;
use mpsd_core::Failure;
use mpsd_core::config::{DEFAULT_PATH, Settings, directories_alone};
use mpsd_core::failure::Fault;
use mpsd_core::request::Mode;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::guard;
use std::cell::OnceCell;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name in messages.
pub const NAME: &str = "mps-prologue";
const BROKEN: u8 = guard::FAULT;
const DELAY_STEP: Duration = Duration::from_millis(200);
const RECORD_LIMIT: Duration = Duration::from_secs(5);

/// Starts a job's own NVIDIA MPS before the job runs.
///
/// Run as root by Slurm's plugin, by a Torque prologue, or by the OpenPBS hook. A job
/// that did not ask for MPS is left alone: exit 0, nothing touched.
///
/// Exit status: 0 the server is proved ready, or what `--wait` names has happened, or the job gets
/// no MPS because it did not ask or 'auto' gives it none; 1 the request was refused; 2 the node
/// could not do it (requeue the job); 3 (for the OpenPBS hook alone) the node is at fault, so the
/// try does not count against the job.
#[derive(Debug, Clone, Parser)]
#[command(name = "mps-prologue", version = cli::version(), after_help = cli::examples::of("mps-prologue"))]
pub struct Arguments {
    /// The job and its request.
    #[command(flatten)]
    pub job: JobArguments,
    /// Configuration; a file of root's.
    #[arg(long, value_name = "FILE", default_value = DEFAULT_PATH)]
    pub config: PathBuf,
    /// When to return. A caller of 'announced' may stop waiting before.
    #[arg(long, value_enum, default_value = "ready")]
    pub wait: ReturnWhen,
    /// Leave a refusal or a failure on the node for the job's tasks to read.
    #[arg(long)]
    pub record: bool,
    /// Torque: first take down the jobs that the mom no longer has, also for a job that did not
    /// ask.
    #[arg(long)]
    pub gone: bool,
}

/// Returns the exit code. It must not end by a signal: Torque would take that for success.
pub fn main() -> u8 {
    if guard::begin(NAME, BROKEN).is_err() {
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
        arguments,
        settings: OnceCell::new(),
    };
    let env = |name: &str| std::env::var(name).ok();
    let job = &prologue.arguments.job;
    let input = job.input(&env, Location::default(), std::io::stdout().is_terminal());
    let submission = match job.submission(&input, &ThisHost) {
        Ok(submission) => submission,
        Err(failure) => return prologue.fail_unread(&input, &failure),
    };
    let settings = || prologue.settings(&submission.node_name(&ThisHost));
    match job.request_of(&submission, &settings) {
        Ok(None) => {
            if prologue.arguments.gone {
                prologue.clear_before(&input);
            }
            0
        }
        Ok(Some(asked)) => prologue.guarded(input, &submission, asked),
        Err(failure) => prologue.fail(&submission, failure, Deadline::after(RECORD_LIMIT)),
    }
}

struct Prologue {
    arguments: Arguments,
    /// Read at first need, and kept.
    settings: OnceCell<Settings>,
}

impl Prologue {
    fn load(&self, node: &str) -> Result<Settings, Fault> {
        if let Some(settings) = self.settings.get() {
            return Ok(settings.clone());
        }
        // A failure is not kept, because it may pass.
        let settings = Settings::load(&self.arguments.config, node)?;
        Ok(self.settings.get_or_init(|| settings).clone())
    }

    fn settings(&self, node: &str) -> Option<Settings> {
        self.load(node).ok()
    }

    /// A child does all further work, so that its crash becomes an exit code.
    fn guarded(&self, input: Input<'_>, submission: &Submission, asked: Asked) -> u8 {
        let system = batch::of(submission.scheduler);
        let node = submission.node_name(&ThisHost);
        let budget = self.budget(&input, system, &node, submission.step);
        guard::run_guarded(NAME, Deadline::after(budget.whole), || {
            let deadline = Deadline::after(budget.work);
            let by_site = asked.by_site;
            match self.prepare(submission, asked, node, deadline) {
                Err(failure) if by_site => self.run_without_mps(submission, &failure),
                Ok(job) => self.start(input, &job),
                Err(failure) => self.fail(submission, failure, deadline),
            }
        })
    }

    fn prepare(
        &self,
        submission: &Submission,
        asked: Asked,
        node: String,
        deadline: Deadline,
    ) -> Result<Job, Failure> {
        let settings = self.load(&node)?;
        directories::check_run(&settings.paths)?;
        let user = find_user(&submission.user)?;
        Ok(Job {
            submission: submission.clone(),
            asked,
            location: Location::of(&settings),
            settings,
            user,
            node,
            tells_tasks: self.arguments.record,
            deadline,
        })
    }

    fn start(&self, input: Input<'_>, job: &Job) -> u8 {
        let (submission, wait) = (&job.submission, self.arguments.wait);
        let system = batch::of(submission.scheduler);
        let may_skip_epilogue = system.facts().may_skip_epilogue;
        if may_skip_epilogue {
            let limit = job.deadline.remaining() / 2;
            reconcile::take_down_gone(&job.settings, &job.node, &submission.job, limit);
        }
        let limit = job.deadline.remaining();
        // A rollback must fit behind a start that took its whole time.
        let mut node = RealNode::new(NAME, &job.settings, limit, limit / 3);
        let location = job.location.clone();
        let scheduled = JobInput {
            submission,
            input: Input { location, ..input },
            devices: OnceCell::new(),
        };
        let begun = job::begin(&mut node, job, &scheduled, wait);
        let input = &scheduled.input;
        let again = wait == ReturnWhen::Ready && !submission.step && system.was_put_back(input);
        if again && begun.failed.is_none() {
            outcome::of_success(&mut node, job);
        }
        drop(node);
        if begun.code == 0 && submission.sister && may_skip_epilogue {
            let limit = system.time_limit(input, false, &job.location);
            watch_start(system, job, limit.unwrap_or(job.settings.deadline));
        }
        begun.code
    }

    /// Before a job that did not ask: takes down what an earlier job may have left.
    fn clear_before(&self, input: &Input<'_>) {
        let caller = batch::caller(input).filter(|system| system.facts().may_skip_epilogue);
        let (Some(system), Ok(submission)) = (caller, batch::read(input, &ThisHost)) else {
            return;
        };
        let name = submission.node_name(&ThisHost);
        if let Some(settings) = self.settings(&name) {
            let budget = self.budget(input, system, &name, submission.step);
            reconcile::take_down_gone(&settings, &name, &submission.job, budget.work);
        }
    }

    fn budget(
        &self,
        input: &Input<'_>,
        system: &dyn BatchSystem,
        node: &str,
        step: bool,
    ) -> Budget {
        let settings = self.settings(node).unwrap_or_else(Settings::usual);
        let limit = system.time_limit(input, step, &Location::of(&settings));
        Budget::new(settings.deadline, limit)
    }

    /// For a job that did not ask and could not be prepared.
    fn run_without_mps(&self, submission: &Submission, failure: &Failure) -> u8 {
        let settings = self.settings(&submission.node_name(&ThisHost));
        let mut node = to_record(settings.as_ref().unwrap_or(&Settings::usual()));
        let uid = match submission.user {
            UserRef::Uid(uid) => uid,
            UserRef::Name(_) => 0,
        };
        let why = Mode::auto_without(&failure.to_string());
        node.log(Severity::Info, &format!("job {}: {why}", submission.job));
        // A task does not start by a record that others could have written.
        let is_fit = |settings: Settings| directories::check_run(&settings.paths).is_ok();
        if settings.is_some_and(is_fit) {
            outcome::record_without_mps(&mut node, &submission.job, uid, failure);
        }
        0
    }

    /// The node has not been looked at, so it is not drained.
    fn fail(&self, submission: &Submission, failure: Failure, deadline: Deadline) -> u8 {
        let name = submission.node_name(&ThisHost);
        let settings = self.settings(&name);
        let is_recordable = settings.is_some();
        let file = &self.arguments.config;
        let mut settings = settings.unwrap_or_else(|| directories_alone(file, &name));
        let is_usual = settings.state_dir == Settings::default().state_dir;
        if file != Path::new(DEFAULT_PATH) && is_usual {
            // The counters in the usual place may be another node's of this host.
            settings.reports.keep = 0;
        }
        let user = find_user(&submission.user).ok();
        let job = Failing {
            submission,
            settings: &settings,
            place: Place {
                scheduler: submission.scheduler,
                location: Location::of(&settings),
                node: &name,
            },
            user: user.as_ref(),
            prepared: None,
            tells_tasks: self.arguments.record,
            is_recordable,
            awaited: self.arguments.wait != ReturnWhen::Announced,
            deadline,
        };
        outcome::of_failure(&mut to_record(&settings), &job, &failure.into())
    }

    /// Reports a call that names no job: nobody can be told but the caller.
    fn fail_unread(&self, input: &Input<'_>, failure: &Failure) -> u8 {
        complain(NAME, &failure.to_string());
        let is_delayed = self.arguments.wait != ReturnWhen::Announced && !input.terminal;
        let caller = batch::caller(input).filter(|system| system.facts().retries_at_once);
        if let (Some(system), true, BROKEN) = (caller, is_delayed, failure.exit_code()) {
            let budget = self.budget(input, system, &ThisHost.name(), false);
            let end = Deadline::after(budget.work);
            while end.less(DELAY_STEP).sleep(DELAY_STEP) {}
        }
        failure.exit_code()
    }
}

/// Leaves a process that takes this job down if it does not begin after all: no epilogue runs then.
/// It waits for the other nodes' prologues and then the mother superior's, each at most `limit`.
fn watch_start(system: &dyn BatchSystem, job: &Job, limit: Duration) {
    let ending = Ending {
        settings: &job.settings,
        scheduler: system.scheduler(),
        node: &job.node,
    };
    let id = &job.submission.job;
    // If no process can be made, the next prologue here does it.
    let _ = guard::detach(|| unbegun::take_down(cli::NAME, id, &ending, 2 * limit));
}

struct JobInput<'a> {
    submission: &'a Submission,
    input: Input<'a>,
    /// `auto` asks twice, and a scheduler may have to ask its server.
    devices: OnceCell<Result<Devices, Failure>>,
}

impl<'a> JobInput<'a> {
    /// With the home of the mom that runs us: a prologue starts in its `mom_priv`
    /// (docs/facts/pbs.md#environment-identity-and-descriptors).
    fn with_home(&self) -> Input<'a> {
        let here = std::env::current_dir().unwrap_or_default();
        let home = here.parent().filter(|_| here.ends_with("mom_priv"));
        let mut input = self.input.clone();
        input.location.home = input.location.home.or(home.map(PathBuf::from));
        input
    }
}

impl Scheduled for JobInput<'_> {
    fn script(&self) -> Option<String> {
        batch::of(self.submission.scheduler).script(self.submission, &self.with_home())
    }

    fn unattached(&self) -> Option<Unattached> {
        let system = batch::of(self.submission.scheduler);
        system.unattached(self.submission, &self.with_home(), &ThisHost)
    }

    fn devices(&self) -> Result<Devices, Failure> {
        let ask = || batch::devices(self.submission, &self.input, &ThisHost);
        self.devices.get_or_init(ask).clone()
    }
}

fn to_record(settings: &Settings) -> RealNode {
    RealNode::new(NAME, settings, RECORD_LIMIT, RECORD_LIMIT / 3)
}

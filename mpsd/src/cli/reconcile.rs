//! `mpsctl reconcile` and `mpsctl undrain`: takes down what jobs left that their scheduler no longer has, and delivers or
//! lifts our own drains. The timer and the boot run it. What cannot be decided is left alone.

use super::NAME;
use crate::job::ledger::{self, Ledger};
use crate::job::node::{Member, Members, Severity};
use crate::job::store::Store as _;
use crate::job::{self, Ending, Journal, claim, evidence};
use crate::node::lift_check::{LiftCheck, check_before_lift};
use crate::node::log::line;
use crate::node::real::RealNode;
use crate::node::site_directory;
use crate::scheduler::control::{Controller, JobState, KnownJobs};
use crate::scheduler::drain::{self, DrainState, Marker, Outcome, Place, markers};
use crate::scheduler::host::boot_time;
use crate::scheduler::{self, Scheduler, Site};
use crate::sys::deadline::Deadline;
use crate::sys::guard::{AskError, ask};
use crate::sys::process::Process;
use mpsd_core::config::Settings;
use mpsd_core::record::{self, RecordRead};
use mpsd_core::{Failure, JobId, Undetermined};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use ReportLine::{Did, Drained, Left, Said};

/// A job's end is waited for this much longer than it may take.
const GRACE: Duration = Duration::from_secs(3);

/// Time between two checks of a job that may not begin; it grows while the scheduler has to be asked.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const LOOK_SELDOM: Duration = Duration::from_secs(30);

/// `mpsctl reconcile`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Reconcile {
    /// Say what stands and what would be done; touch nothing
    #[arg(long)]
    pub dry_run: bool,
    /// At boot: a job that began before the boot and has no process left is gone, whatever its scheduler says
    #[arg(long)]
    pub boot: bool,
    /// The node's name in the scheduler; this host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// `mpsctl undrain`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Undrain {
    /// The node's name in the scheduler; this host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct ReconcileReport {
    /// Its lines.
    pub told: Vec<ReportLine>,
    /// Something is not as it should be.
    pub incomplete: bool,
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportLine {
    /// Nothing was done, and nothing is wrong.
    Said(String),
    /// A drain of ours stands: an administrator decides.
    Drained(String),
    /// Something was done. It is in the node's log too.
    Did(String),
    /// Something is not as it should be.
    Left(String),
}

impl ReportLine {
    fn kind(&self) -> &'static str {
        match self {
            Said(_) => "said",
            Drained(_) => "drained",
            Did(_) => "did",
            Left(_) => "left",
        }
    }

    /// The line.
    pub fn text(&self) -> &str {
        let (Said(text) | Drained(text) | Did(text) | Left(text)) = self;
        text
    }
}

impl ReconcileReport {
    /// Its lines, or one JSON object.
    pub fn print(&self, json: bool) -> String {
        if !json {
            return self
                .told
                .iter()
                .map(|told| format!("{}\n", told.text()))
                .collect();
        }
        let one = |told: &ReportLine| serde_json::json!({"kind": told.kind(), "text": told.text()});
        let told: Vec<_> = self.told.iter().map(one).collect();
        format!(
            "{}\n",
            serde_json::json!({"incomplete": self.incomplete, "told": told})
        )
    }

    fn tell(&mut self, told: ReportLine) {
        match &told {
            Said(_) | Drained(_) => {}
            Did(text) => line(NAME, Severity::Info, text),
            Left(_) => self.incomplete = true,
        }
        self.told.push(told);
    }
}

/// One run over this node.
struct Run<'a> {
    settings: &'a Settings,
    name: &'a str,
    dry: bool,
    boot: bool,
    /// An administrator asked for the drain to be lifted: one that was never delivered is not delivered now.
    undrain: bool,
    node: RealNode,
    report: ReconcileReport,
    /// The answer of each scheduler, which may cover all its jobs.
    asked: HashMap<(Scheduler, String, Option<String>), KnownJobs>,
    /// Jobs that are gone, or may be, with something left.
    unfinished: BTreeSet<String>,
}

/// A job directory as it was before the scheduler was asked.
struct Judged {
    job: JobId,
    journal: Option<Journal>,
}

impl Reconcile {
    /// Runs on the node `name` under `settings`; `usable`: they are from a usable configuration.
    ///
    /// # Errors
    /// Our own directories cannot be read at all.
    pub fn run(&self, settings: &Settings, name: &str, usable: bool) -> Result<ReconcileReport, Failure> {
        let mut run = Run::new(settings, name, self.dry_run, self.boot);
        run.suspicions();
        run.failed_starts();
        run.jobs(None)?;
        run.locks()?;
        run.gpus();
        run.trials();
        for marker in markers::all(&settings.paths) {
            run.drain(&marker, settings.drain.auto_undrain);
        }
        if usable && !self.dry_run {
            run.remarks();
        }
        Ok(run.report)
    }
}

impl Undrain {
    /// Lifts our own drain of the node `name` if nothing is wrong with it now.
    ///
    /// # Errors
    /// There is no drain of ours, or as [`Reconcile::run`].
    pub fn run(&self, settings: &Settings, name: &str) -> Result<ReconcileReport, Failure> {
        let mut run = Run {
            undrain: true,
            ..Run::new(settings, name, false, false)
        };
        run.jobs(None)?;
        let ours: Vec<Marker> = markers::all(&settings.paths)
            .into_iter()
            .filter(|m| m.node == name)
            .collect();
        if ours.is_empty() {
            let why = "no drain of ours is remembered on this node; one with another reason is lifted by whoever made it";
            return Err(Undetermined::new(format!("node '{name}'"), why).into());
        }
        ours.iter().for_each(|marker| run.drain(marker, true));
        Ok(run.report)
    }
}

/// For the prologue of `own` on the node `name`: takes down what other jobs left that their scheduler no longer has. A
/// child does it within `limit`, so that nothing that hangs delays the job longer.
pub fn take_down_gone(settings: &Settings, name: &str, own: &JobId, limit: Duration) {
    let node = RealNode::new(NAME, settings, limit, limit / 2);
    let others = |names: Vec<String>| names.iter().any(|name| *name != own.directory_name());
    if !node.job_directories().is_ok_and(others) {
        return;
    }
    let work = || {
        let mut run = Run::new(settings, name, false, false);
        // Each line is in the log. Unreadable remains are left to the timer, which reports them.
        let _ = run.jobs(Some(own));
        Vec::new()
    };
    if let Err(none) = ask(Deadline::after(limit), work) {
        let text = format!("what other jobs left here is not taken down yet: {none}");
        line(NAME, Severity::Warning, &text);
    }
}

/// For a process of its own after the prologue of `job`, on a node that may get no epilogue: takes the job down once its
/// scheduler no longer has it. It ends with the job, or after `limit`.
pub fn take_down_unbegun(settings: &Settings, ending: &Ending<'_>, job: &JobId, limit: Duration) {
    let end = Deadline::after(limit);
    let Some(journal) = enter_as_starter(settings, job) else {
        return;
    };
    let (directory, scheduler) = (
        settings.paths.job(job),
        scheduler::of(ending.scheduler).at(&Site::of(ending.settings)),
    );
    let known = scheduler.known_jobs(ending.node);
    let within = settings.deadline;
    let mut node = RealNode::new(NAME, settings, limit, within);
    let mut pause = LOOK_EVERY;
    while stays(directory.directory(), end.within(pause)) && !end.expired() {
        if node.read_journal(job).ok().flatten().as_ref() != Some(&journal) {
            return;
        }
        if scheduler.has_file_of(job) {
            pause = LOOK_EVERY;
        } else if let JobState::Gone(why) = known(job) {
            let text = format!("job {job}: did not begin here ({why}): taken down");
            line(NAME, Severity::Info, &text);
            let mut node = RealNode::new(NAME, settings, within, within / 2);
            job::end_as_judged(&mut node, job, ending, Some(&journal));
            return;
        } else {
            pause = (2 * pause).min(LOOK_SELDOM);
        }
    }
}

/// Enters this process into the journal, so that the job's end ends it. Returns the journal.
fn enter_as_starter(settings: &Settings, job: &JobId) -> Option<Journal> {
    let mut node = RealNode::new(NAME, settings, settings.deadline, settings.deadline);
    let _held = node.find_job(job).ok()??;
    let mut journal = node.read_journal(job).ok()??;
    journal.starter = Process::find(nix::unistd::getpid().as_raw()).map(|own| own.id());
    node.write_journal(&journal).ok()?;
    Some(journal)
}

/// Waits until `deadline`; false: the directory is gone.
fn stays(directory: &Path, deadline: Deadline) -> bool {
    let gone = || -> nix::Result<Inotify> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        inotify.add_watch(directory, AddWatchFlags::IN_DELETE_SELF)?;
        Ok(inotify)
    };
    match gone() {
        Ok(inotify) => {
            let mut fds = [PollFd::new(inotify.as_fd(), PollFlags::POLLIN)];
            let _ = poll(&mut fds, deadline.poll_timeout());
        }
        Err(_) => drop(deadline.sleep(LOOK_EVERY)),
    }
    directory.symlink_metadata().is_ok()
}

impl<'a> Run<'a> {
    fn new(settings: &'a Settings, name: &'a str, dry: bool, boot: bool) -> Self {
        let limit = settings.deadline;
        let node = RealNode::new(NAME, settings, limit, limit / 2);
        Self {
            settings,
            name,
            dry,
            boot,
            undrain: false,
            node,
            report: ReconcileReport::default(),
            asked: HashMap::new(),
            unfinished: BTreeSet::new(),
        }
    }

    /// Cgroups that a killed doctor made for its check.
    fn trials(&mut self) {
        let paths = &self.settings.paths;
        for cgroup in site_directory::left_by_trials(paths, &self.settings.cgroup) {
            let what = format!(
                "cgroup '{}' of an 'mpsctl doctor' that was killed",
                cgroup.path().display()
            );
            if self.dry {
                self.report.tell(Left(format!("{what}: would be removed")));
                continue;
            }
            self.report
                .tell(match site_directory::remove_cgroup(paths, &cgroup) {
                    Ok(()) => Did(format!("{what}: removed")),
                    Err(error) => Left(format!("{what}: {error}")),
                });
        }
    }

    /// Every job with a directory, except `own`. All journals are read before any scheduler is asked: its answer does not
    /// have later jobs.
    fn jobs(&mut self, own: Option<&JobId>) -> Result<(), Failure> {
        let mut judged = Vec::new();
        let own = own.map(JobId::directory_name);
        for name in self.node.job_directories()? {
            if own.as_ref() == Some(&name) {
                continue;
            }
            match self.judge(&name) {
                Ok(job) => judged.push(job),
                Err(failure) => {
                    self.unfinished.insert(name.clone());
                    let text = format!("job directory '{name}': left alone: {failure}");
                    self.report.tell(Left(text));
                }
            }
        }
        for Judged { job, journal } in judged {
            let state = self.state(&job, journal.as_ref());
            self.job(&job, journal.as_ref(), &state);
        }
        Ok(())
    }

    fn judge(&mut self, name: &str) -> Result<Judged, Failure> {
        let named = JobId::parse(name)?;
        let journal = self.node.read_journal(&named)?;
        let job = match &journal {
            Some(journal) => journal.job.clone(),
            // The directory of a long id has a shortened name; the record has the whole id.
            None => self.recorded(&named).unwrap_or(named),
        };
        Ok(Judged { job, journal })
    }

    fn recorded(&self, named: &JobId) -> Option<JobId> {
        let Ok(RecordRead::Found(record)) = record::look(&self.settings.paths.job(named).record()) else {
            return None;
        };
        (record.job.directory_name() == named.as_str()).then_some(record.job)
    }

    /// The job's state by its scheduler.
    fn state(&mut self, job: &JobId, journal: Option<&Journal>) -> JobState {
        let Some(journal) = journal else {
            return self.state_by_id(job);
        };
        if self.boot
            && boot_time().is_some_and(|boot| journal.began < boot)
            && self.living(journal).is_empty()
        {
            return JobState::Gone("it began before this boot, and no process of it is left".to_owned());
        }
        let site = Site {
            slurm_conf: journal.drain.slurm_conf.clone(),
            ..Site::of(self.settings)
        };
        self.ask(journal.scheduler, &site, &journal.node, job)
    }

    /// The same if only the job's id is known: no scheduler that may have it has it.
    fn state_by_id(&mut self, job: &JobId) -> JobState {
        let site = Site::of(self.settings);
        let node = self.name.to_owned();
        let mut gone = JobState::Undecided("no scheduler that writes such ids is installed here".to_owned());
        for system in scheduler::owners(job, &site) {
            match self.ask(system.scheduler(), &site, &node, job) {
                JobState::Gone(why) => gone = JobState::Gone(why),
                other => return other,
            }
        }
        gone
    }

    fn ask(&mut self, scheduler: Scheduler, site: &Site, node: &str, job: &JobId) -> JobState {
        let key = (scheduler, node.to_owned(), site.slurm_conf.clone());
        let asked = self.asked.entry(key);
        asked.or_insert_with(|| scheduler::of(scheduler).at(site).known_jobs(node))(job)
    }

    fn living(&mut self, journal: &Journal) -> Vec<Member> {
        self.node
            .members(journal)
            .into_iter()
            .filter(|member| !member.is_defunct())
            .collect()
    }

    fn job(&mut self, job: &JobId, journal: Option<&Journal>, state: &JobState) {
        let left = journal.is_some_and(|journal| journal.left);
        if left || !matches!(state, JobState::Here) {
            self.unfinished.insert(job.to_string());
        }
        let told = match state {
            JobState::Here if left => Left(format!(
                "job {job}: its end left something of its MPS, and its scheduler has it here still: left alone"
            )),
            JobState::Undecided(why) if left => Left(format!(
                "job {job}: its end left something of its MPS: left alone, undecided: {why}"
            )),
            JobState::Here => Said(format!("job {job}: its scheduler has it here: left alone")),
            JobState::Undecided(why) => Said(format!("job {job}: left alone, undecided: {why}")),
            JobState::Gone(why) if self.dry => {
                let living = journal.map(|journal| self.living(journal)).unwrap_or_default();
                let list: Vec<String> = living.iter().map(ToString::to_string).collect();
                let list = match list.is_empty() {
                    true => "no process".to_owned(),
                    false => list.join(", "),
                };
                Left(format!("job {job}: gone ({why}): would be taken down ({list})"))
            }
            JobState::Gone(why) => return self.take_down(job, journal, why),
        };
        self.report.tell(told);
    }

    fn take_down(&mut self, job: &JobId, journal: Option<&Journal>, why: &str) {
        let ending = Ending {
            settings: self.settings,
            scheduler: journal.map_or_else(|| self.owner(job), |journal| journal.scheduler),
            node: journal.map_or(self.name, |journal| &journal.node),
        };
        let (clean, lines) = self
            .end(job, journal, &ending)
            .unwrap_or_else(|none| (false, vec![format!("job {job}: its end was given up: {none}")]));
        self.report.tell(if clean {
            self.unfinished.remove(job.as_str());
            Did(format!("job {job}: gone ({why}): taken down"))
        } else {
            Left(format!("job {job}: gone ({why}): could not be taken down"))
        });
        self.report.told.extend(lines.into_iter().map(Said));
    }

    /// Ends one job in a child with a deadline, so that one that hangs does not delay the others. Returns whether all is as
    /// before, and the lines.
    fn end(
        &self,
        job: &JobId,
        journal: Option<&Journal>,
        ending: &Ending<'_>,
    ) -> Result<(bool, Vec<String>), AskError> {
        let limit = self.settings.deadline;
        let answer = ask(Deadline::after(limit + GRACE), || {
            let mut node = RealNode::new(NAME, self.settings, limit, limit / 2);
            let ended = job::end_as_judged(&mut node, job, ending, journal);
            serde_json::to_vec(&(ended.findings.is_clean(), ended.lines)).unwrap_or_default()
        })?;
        Ok(serde_json::from_slice(&answer).unwrap_or_default())
    }

    /// The scheduler of a job if only its id is known. Without one the job is never gone, and not taken down.
    fn owner(&self, job: &JobId) -> Scheduler {
        let site = Site::of(self.settings);
        let mut owners = scheduler::owners(job, &site);
        owners.next().unwrap_or(scheduler::ALL[0]).scheduler()
    }

    /// Starts that failed for several users. They are told because they drain nothing, unless the site wants that.
    fn failed_starts(&mut self) {
        let window = self.settings.drain.failed_starts_window;
        let several = ledger::several_failed(&mut self.node);
        if let Some(several) = several.filter(|several| several.age < window) {
            let text = format!(
                "starts of {} users failed on this node within {} s, the last one of job {}: see its log",
                several.users,
                window.as_secs(),
                several.job
            );
            self.report.tell(Left(text));
        }
    }

    /// Processes that the driver held a minute ago.
    fn suspicions(&mut self) {
        if !self.dry {
            for line in evidence::look_again(&mut self.node, self.settings) {
                self.report.tell(Did(line));
            }
        }
        for waiting in Ledger::read(&mut self.node).suspicions {
            self.report.tell(Left(format!(
                "job {}: {} hung in the driver: looked at again a minute later; until then the node takes no job with MPS",
                waiting.target.job, waiting.what
            )));
        }
    }

    /// Locks of jobs without anything else.
    fn locks(&mut self) -> Result<(), Failure> {
        for name in self.node.job_locks()? {
            let Ok(job) = JobId::parse(&name) else { continue };
            let what = format!("lock of job {job}");
            self.report.tell(if self.dry {
                Said(format!("{what}: nothing else is left: would be removed"))
            } else {
                match self.node.find_job(&job) {
                    Ok(_) => Did(format!("{what}: nothing else was left: removed")),
                    Err(failure) => Said(format!("{what}: left alone: {failure}")),
                }
            });
        }
        Ok(())
    }

    /// GPUs with jobs in their account that have no directory.
    fn gpus(&mut self) {
        let stale = match claim::stale(&mut self.node) {
            Ok(stale) => stale,
            Err(failure) => return self.report.tell(Left(format!("accounts of the GPUs: {failure}"))),
        };
        for stale in stale {
            let users: Vec<String> = stale.users.iter().map(ToString::to_string).collect();
            let what = if stale.lock_alone {
                format!("{}: a lock and no account", stale.gpu)
            } else {
                format!("{}: users without a directory: {}", stale.gpu, users.join(", "))
            };
            let (told, notes) = if self.dry {
                let text = format!("{what}: would be removed, and the compute mode found restored");
                (Left(text), Vec::new())
            } else {
                match claim::remove_stale(&mut self.node, &stale) {
                    Ok(notes) => (Did(format!("{what}: removed")), notes),
                    Err(failure) => (Left(format!("{what}: {failure}")), Vec::new()),
                }
            };
            self.report.tell(told);
            self.report.told.extend(notes.into_iter().map(Said));
        }
    }

    fn drain(&mut self, marker: &Marker, lift: bool) {
        let what = format!("drain of node '{}' ({})", marker.node, marker.reason);
        let controller = Place::of(marker, &Site::of(self.settings)).controller();
        let told = match drain::state(marker, controller.as_ref()) {
            Err(why) if marker.delivered => Drained(format!("{what}: its scheduler does not answer: {why}")),
            Err(why) => Left(format!("{what}: not delivered: {why}")),
            Ok(DrainState::Over(why)) => {
                self.forget(marker, &format!("{what}: over, {why}"), controller.as_ref())
            }
            Ok(DrainState::Undelivered) if self.undrain => self.lift(marker, &what, controller.as_ref()),
            Ok(DrainState::Undelivered) if self.dry => {
                Left(format!("{what}: not delivered: would be tried again"))
            }
            Ok(DrainState::Undelivered) => {
                let prefix = self.settings.drain.prefix.as_str();
                let (outcome, remembered) =
                    drain::hand_over(&self.settings.paths, prefix, marker, controller.as_ref());
                match outcome.and_then(|outcome| remembered.map(|()| outcome)) {
                    Ok(Outcome::Ours(_)) => Did(format!("{what}: delivered")),
                    Ok(Outcome::Others(other)) => {
                        Did(format!("{what}: forgotten, the node is drained for '{other}'"))
                    }
                    Err(why) => Left(format!("{what}: not delivered: {why}")),
                }
            }
            Ok(DrainState::Stands) if !lift => Drained(format!(
                "{what}: stands; 'mpsctl undrain' lifts it after a clean recheck"
            )),
            Ok(DrainState::Stands) => self.lift(marker, &what, controller.as_ref()),
        };
        self.report.tell(told);
    }

    /// Notes of an unusable configuration, which is usable now. They are in the usual directory.
    fn remarks(&mut self) {
        let site = Site::of(self.settings);
        let usual = Settings::usual().paths;
        for told in drain::withdraw_remarks(&usual, &site) {
            // A note that stays does no harm; the next run tries again.
            self.report.tell(told.map_or_else(Said, Did));
        }
    }

    fn forget(&self, marker: &Marker, what: &str, controller: &dyn Controller) -> ReportLine {
        if self.dry {
            return Said(format!("{what}: would be forgotten"));
        }
        // A drain that was lifted by hand leaves its reason on the node.
        if let Err(why) = controller.withdraw(&marker.reason, marker.note.as_deref()) {
            return Left(format!("{what}: its reason stays on the node: {why}"));
        }
        match markers::remove(&self.settings.paths, marker) {
            Ok(()) => Did(format!("{what}: forgotten")),
            Err(error) => Left(format!("{what}: cannot be forgotten: {error}")),
        }
    }

    fn lift(&mut self, marker: &Marker, what: &str, controller: &dyn Controller) -> ReportLine {
        if self.dry {
            return Drained(format!("{what}: stands: would be lifted after a clean recheck"));
        }
        let left: Vec<String> = self.unfinished.iter().cloned().collect();
        let check = LiftCheck {
            paths: &self.settings.paths,
            control: &self.settings.control,
            left: &left,
        };
        if let Err(why) = check_before_lift(&mut self.node, marker, &check) {
            return Left(format!("{what}: stays: {why}"));
        }
        match drain::lift(&self.settings.paths, marker, controller) {
            Ok(()) => Did(format!("{what}: lifted after a clean recheck")),
            Err(why) => Left(format!("{what}: not lifted: {why}")),
        }
    }
}

//! `mpsctl reconcile` and `mpsctl undrain`: takes down what remains of jobs that their scheduler no
//! longer has, and delivers or lifts our own drains. The timer and the boot run it. It leaves alone
//! what it cannot decide.

mod drains;

use super::{NAME, say, say_json, this_node};
use crate::job::ledger::Ledger;
use crate::job::node::{Member, Members, Severity};
use crate::job::store::Store as _;
use crate::job::{self, Ending, Journal, claim, evidence};
use crate::node::log::line;
use crate::node::real::RealNode;
use crate::node::{by_child, site_directory};
use batch::control::{JobState, KnownJobs};
use batch::drain::markers;
use batch::host::boot_time;
use batch::{Location, Scheduler};
use mpsd_core::config::Settings;
use mpsd_core::record;
use mpsd_core::text::list;
use mpsd_core::{Failure, JobId, Undetermined};
use mpsd_sys::deadline::Deadline;
use mpsd_sys::guard::ask;
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use ReportLine::{Change, Drain, Note, Problem};

/// How much longer it waits for a job's end than that may take.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Default, clap::Args)]
pub struct Reconcile {
    /// Print what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// At boot: a job that began before the boot and has no process left is gone, even if its
    /// scheduler has it
    #[arg(long)]
    pub boot: bool,
    /// The node's name in the scheduler; this host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

#[derive(Debug, Clone, Default, clap::Args)]
pub struct Undrain {
    /// The node's name in the scheduler; this host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
}

/// The object of `--json`.
#[derive(Debug, Default, Serialize)]
pub struct ReconcileReport {
    pub incomplete: bool,
    pub told: Vec<ReportLine>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, derive_more::Display)]
#[serde(tag = "kind", content = "text")]
pub enum ReportLine {
    /// Nothing was done, or a detail.
    #[serde(rename = "said")]
    Note(String),
    /// A drain of ours stands: an administrator decides.
    #[serde(rename = "drained")]
    Drain(String),
    /// It is in the node's log too.
    #[serde(rename = "did")]
    Change(String),
    #[serde(rename = "left")]
    Problem(String),
}

impl ReconcileReport {
    pub fn print(&self, json: bool) {
        match json {
            true => say_json(self),
            false => self.told.iter().for_each(|told| say(&format!("{told}\n"))),
        }
    }
}

struct Run<'a> {
    settings: &'a Settings,
    location: Location,
    name: &'a str,
    dry: bool,
    boot: bool,
    /// An undelivered drain is not delivered now.
    undrain: bool,
    node: RealNode,
    report: ReconcileReport,
    /// The answer of each scheduler, which may cover all its jobs.
    known: HashMap<(Scheduler, String, Option<String>), KnownJobs>,
    /// Jobs that are gone, or may be, with something left.
    unfinished: BTreeSet<String>,
}

impl Reconcile {
    pub fn run(
        &self,
        settings: &Settings,
        name: &str,
        usable: bool,
    ) -> Result<ReconcileReport, Failure> {
        let mut run = Run::new(settings, name);
        (run.dry, run.boot) = (self.dry_run, self.boot);
        run.suspicions();
        run.jobs(None)?;
        run.locks()?;
        run.shared();
        run.gpus();
        run.cgroups();
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
    pub fn run(&self, settings: &Settings, name: &str) -> Result<ReconcileReport, Failure> {
        let mut run = Run::new(settings, name);
        run.undrain = true;
        run.jobs(None)?;
        let mut ours = markers::all(&settings.paths);
        ours.retain(|marker| marker.node == name);
        if ours.is_empty() {
            let why = "mpsd remembers no drain of this node; a drain with another reason is lifted by its maker";
            return Err(Undetermined::new(format!("node '{name}'"), why).into());
        }
        ours.iter().for_each(|marker| run.drain(marker, true));
        Ok(run.report)
    }
}

/// For the prologue of `own`: takes down other jobs that their scheduler no longer has, in a child,
/// so that a hang delays the job no longer than `limit`.
pub fn take_down_gone(settings: &Settings, name: &str, own: &JobId, limit: Duration) {
    let node = RealNode::new(NAME, settings, limit, limit / 2);
    let others = |names: Vec<String>| names.iter().any(|name| *name != own.directory_name());
    if !node.job_directories().is_ok_and(others) {
        return;
    }
    let work = || {
        // Each line is in the log. Unreadable remains are left to the timer, which reports them.
        let _ = Run::new(settings, name).jobs(Some(own));
        Vec::new()
    };
    if let Err(none) = ask(Deadline::after(limit), work) {
        let text = format!("what other jobs left here is not taken down yet: {none}");
        line(NAME, Severity::Warning, &text);
    }
}

impl<'a> Run<'a> {
    fn new(settings: &'a Settings, name: &'a str) -> Self {
        Self {
            settings,
            location: Location::of(settings),
            name,
            dry: false,
            boot: false,
            undrain: false,
            node: this_node(settings),
            report: ReconcileReport::default(),
            known: HashMap::new(),
            unfinished: BTreeSet::new(),
        }
    }

    fn tell(&mut self, told: ReportLine) {
        match &told {
            Note(_) | Drain(_) => {}
            Change(text) => line(NAME, Severity::Info, text),
            Problem(_) => self.report.incomplete = true,
        }
        self.report.told.push(told);
    }

    fn cgroups(&mut self) {
        let settings = self.settings;
        for cgroup in site_directory::left_behind(&settings.paths, &settings.cgroup) {
            let path = cgroup.path().display();
            let what = format!("cgroup '{path}' of a program of ours that was killed");
            self.tell(match self.dry {
                true => Problem(format!("{what}: would be removed")),
                false => match site_directory::remove_cgroup(&settings.paths, &cgroup) {
                    Ok(()) => Change(format!("{what}: removed")),
                    Err(error) => Problem(format!("{what}: {error}")),
                },
            });
        }
    }

    /// Journals first: a job that began after the scheduler's answer would seem to be gone.
    fn jobs(&mut self, own: Option<&JobId>) -> Result<(), Failure> {
        let mut jobs = Vec::new();
        let own = own.map(JobId::directory_name);
        for name in self.node.job_directories()? {
            if own.as_ref() == Some(&name) {
                continue;
            }
            match self.identify(&name) {
                Ok(job) => jobs.push(job),
                Err(failure) => {
                    self.tell(Problem(format!(
                        "job directory '{name}': left alone: {failure}"
                    )));
                    self.unfinished.insert(name);
                }
            }
        }
        for (job, journal) in jobs {
            let state = self.state(&job, journal.as_ref());
            self.job(&job, journal.as_ref(), &state);
        }
        Ok(())
    }

    fn identify(&mut self, name: &str) -> Result<(JobId, Option<Journal>), Failure> {
        let named = JobId::parse(name)?;
        let journal = self.node.read_journal(&named)?;
        let job = match &journal {
            Some(journal) => journal.job().clone(),
            // A long id is shortened in the directory's name; the record has it whole.
            None => record::found(&self.settings.paths.job(&named).record())
                .map(|record| record.job)
                .filter(|job| job.directory_name() == named.as_str())
                .unwrap_or(named),
        };
        Ok((job, journal))
    }

    /// Without a journal, each scheduler that may have the job must say that it is gone.
    fn state(&mut self, job: &JobId, journal: Option<&Journal>) -> JobState {
        if let Some(journal) = journal {
            let before_boot = boot_time().is_some_and(|boot| journal.began_at < boot);
            if self.boot && before_boot && self.living(journal).is_empty() {
                let why = "it began before this boot, and no process of it is left";
                return JobState::Gone(why.to_owned());
            }
            let location = Location {
                slurm_conf: journal.slurm_conf.clone(),
                ..self.location.clone()
            };
            return self.ask(journal.scheduler, &location, &journal.node, job);
        }
        let (location, name) = (self.location.clone(), self.name);
        let mut gone =
            JobState::Undecided("no scheduler that writes such ids is installed here".to_owned());
        for system in batch::owners(job, &location) {
            match self.ask(system.scheduler(), &location, name, job) {
                JobState::Gone(why) => gone = JobState::Gone(why),
                other => return other,
            }
        }
        gone
    }

    fn ask(
        &mut self,
        scheduler: Scheduler,
        location: &Location,
        node: &str,
        job: &JobId,
    ) -> JobState {
        let known = self
            .known
            .entry((scheduler, node.to_owned(), location.slurm_conf.clone()));
        let known = known.or_insert_with(|| batch::of(scheduler).at(location).known_jobs(node));
        known(job)
    }

    fn living(&mut self, journal: &Journal) -> Vec<Member> {
        let mut members = self.node.members(journal);
        members.retain(|member| !member.is_defunct());
        members
    }

    fn job(&mut self, job: &JobId, journal: Option<&Journal>, state: &JobState) {
        let left = journal.is_some_and(|journal| journal.has_remains);
        if left || !matches!(state, JobState::Here) {
            self.unfinished.insert(job.to_string());
        }
        let remains = format!("job {job}: its end left something of its MPS");
        let told = match state {
            JobState::Here if left => Problem(format!(
                "{remains}, and its scheduler has it here still: left alone"
            )),
            JobState::Undecided(why) if left => {
                Problem(format!("{remains}: left alone, undecided: {why}"))
            }
            JobState::Here => Note(format!("job {job}: its scheduler has it here: left alone")),
            JobState::Undecided(why) => Note(format!("job {job}: left alone, undecided: {why}")),
            JobState::Gone(why) if self.dry => {
                let living = journal
                    .map(|journal| self.living(journal))
                    .unwrap_or_default();
                let mut list = list(&living);
                if list.is_empty() {
                    list.push_str("no process");
                }
                Problem(format!(
                    "job {job}: gone ({why}): would be taken down ({list})"
                ))
            }
            JobState::Gone(why) => return self.take_down(job, journal, why),
        };
        self.tell(told);
    }

    /// In a child with a deadline, so that a hang does not delay the others.
    fn take_down(&mut self, job: &JobId, journal: Option<&Journal>, why: &str) {
        let ending = Ending {
            settings: self.settings,
            scheduler: journal.map_or_else(|| self.owner(job), |journal| journal.scheduler),
            node: journal.map_or(self.name, |journal| &journal.node),
        };
        let work = || {
            let mut node = this_node(self.settings);
            let ended = job::end_if(&mut node, job, &ending, |found| found == journal);
            (ended.findings.is_clean(), ended.lines)
        };
        let given_up = |none| {
            let line = format!("job {job}: its end was given up: {none}");
            (false, vec![line])
        };
        let end = Deadline::after(self.settings.deadline + GRACE);
        let (clean, lines) = by_child(end, work).unwrap_or_else(given_up);
        if clean {
            self.unfinished.remove(job.as_str());
        }
        self.tell(match clean {
            true => Change(format!("job {job}: gone ({why}): taken down")),
            false => Problem(format!("job {job}: gone ({why}): could not be taken down")),
        });
        self.report.told.extend(lines.into_iter().map(Note));
    }

    /// The scheduler of a job known only by its id. A job without an owner is never taken down.
    fn owner(&self, job: &JobId) -> Scheduler {
        let mut owners = batch::owners(job, &self.location);
        owners.next().unwrap_or(batch::ALL[0]).scheduler()
    }

    fn suspicions(&mut self) {
        if !self.dry {
            for line in evidence::look_again(&mut self.node, self.settings) {
                self.tell(Change(line));
            }
        }
        for suspicion in Ledger::read(&mut self.node).suspicions {
            self.tell(Problem(format!(
                "{}: {} hung in the driver: a second look follows a minute later; until then the node takes no job with MPS",
                suspicion.target.jobs(),
                suspicion.what
            )));
        }
    }

    fn locks(&mut self) -> Result<(), Failure> {
        for name in self.node.job_locks()? {
            let Ok(job) = JobId::parse(&name) else {
                continue;
            };
            let what = format!("lock of job {job}");
            let told = match self.dry {
                true => Note(format!("{what}: nothing else is left: would be removed")),
                false => match self.node.find_job(&job) {
                    Ok(_) => Change(format!("{what}: nothing else was left: removed")),
                    Err(failure) => Note(format!("{what}: left alone: {failure}")),
                },
            };
            self.tell(told);
        }
        Ok(())
    }

    /// Shared MPS whose jobs are gone, after the jobs themselves.
    fn shared(&mut self) {
        let all = match self.node.all_shared() {
            Ok(all) => all,
            Err(failure) => return self.tell(Problem(format!("shared MPS: {failure}"))),
        };
        for id in all {
            if self.dry {
                continue;
            }
            let work = || {
                let found = job::end_unused(&mut this_node(self.settings), &id);
                let left = found.undetermined.iter().map(ToString::to_string);
                let faults = found.faults.iter().map(ToString::to_string);
                (found.notes, left.chain(faults).collect())
            };
            let end = Deadline::after(self.settings.deadline + GRACE);
            let (notes, left): (Vec<String>, Vec<String>) =
                by_child(end, work).unwrap_or_else(|none| (Vec::new(), vec![none.to_string()]));
            for note in notes {
                self.tell(Change(format!("shared MPS {id}: {note}")));
            }
            for why in left {
                self.unfinished.insert(id.to_string());
                self.tell(Problem(format!("shared MPS {id}: {why}")));
            }
        }
    }

    fn gpus(&mut self) {
        let all = match claim::stale(&mut self.node) {
            Ok(all) => all,
            Err(failure) => return self.tell(Problem(format!("accounts of the GPUs: {failure}"))),
        };
        for stale in all {
            let (gpu, users) = (&stale.gpu, list(&stale.users));
            let what = match stale.lock_alone {
                true => format!("{gpu}: a lock and no account"),
                false => format!("{gpu}: users without a directory: {users}"),
            };
            if self.dry {
                let text = format!("{what}: would be removed, and the compute mode found restored");
                self.tell(Problem(text));
                continue;
            }
            match claim::remove_stale(&mut self.node, &stale) {
                Ok(notes) => {
                    self.tell(Change(format!("{what}: removed")));
                    self.report.told.extend(notes.into_iter().map(Note));
                }
                Err(failure) => self.tell(Problem(format!("{what}: {failure}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! `mpsctl reconcile` and `mpsctl undrain`: what jobs left that their scheduler has let go, and our own drains after
//! the event. Run by the timer and at boot; what cannot be decided is left alone.

use super::mpsctl::NAME;
use crate::job::node::{Member, Members, Severity, Store};
use crate::job::{self, Ending, Journal, sweep};
use crate::node::log::line;
use crate::node::real::RealNode;
use crate::node::recheck::{Recheck, recheck};
use crate::scheduler::Scheduler;
use crate::scheduler::drain::spool::{self, Stand};
use crate::scheduler::drain::{Marker, Outcome, markers};
use crate::scheduler::host::boot_time;
use crate::scheduler::known_jobs::{Standing, Standings, is_slurms};
use mpsd_core::config::Settings;
use mpsd_core::record::{self, Look};
use mpsd_core::{Failure, JobId, Undetermined};
use std::collections::BTreeSet;

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

/// What was said and what is left.
#[derive(Debug, Default)]
pub struct Report {
    /// One line for each thing that was found.
    pub lines: Vec<String>,
    /// Something is not as it should be.
    pub incomplete: bool,
}

impl Report {
    fn say(&mut self, text: impl Into<String>) {
        self.lines.push(text.into());
    }

    fn did(&mut self, text: String) {
        line(NAME, Severity::Info, &text);
        self.lines.push(text);
    }

    fn left(&mut self, text: impl Into<String>) {
        self.incomplete = true;
        self.lines.push(text.into());
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
    report: Report,
    /// Jobs that are gone, or may be, and have something left.
    unfinished: BTreeSet<String>,
}

/// A job directory as it was when the scheduler was asked.
struct Judged {
    job: JobId,
    journal: Option<Journal>,
}

impl Reconcile {
    /// Goes over the node `name` under `settings`.
    ///
    /// # Errors
    /// Our own directories cannot be read at all.
    pub fn run(&self, settings: &Settings, name: &str) -> Result<Report, Failure> {
        let mut run = Run::new(settings, name, self.dry_run, self.boot);
        run.jobs()?;
        run.locks()?;
        run.gpus();
        for marker in markers::all(&settings.paths) {
            run.drain(&marker, settings.drain.auto_undrain);
        }
        Ok(run.report)
    }
}

impl Undrain {
    /// Lifts our own drain of the node `name`, once nothing is wrong with it any more.
    ///
    /// # Errors
    /// No drain of ours is remembered here, or as [`Reconcile::run`].
    pub fn run(&self, settings: &Settings, name: &str) -> Result<Report, Failure> {
        let mut run = Run {
            undrain: true,
            ..Run::new(settings, name, false, false)
        };
        run.jobs()?;
        let ours: Vec<Marker> = markers::all(&settings.paths)
            .into_iter()
            .filter(|m| m.node == name)
            .collect();
        if ours.is_empty() {
            let why = "no drain of ours is remembered on this node; another's is his to lift";
            return Err(Undetermined::new(format!("node '{name}'"), why).into());
        }
        ours.iter().for_each(|marker| run.drain(marker, true));
        Ok(run.report)
    }
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
            report: Report::default(),
            unfinished: BTreeSet::new(),
        }
    }

    /// Every job that has a directory. All journals are read before any scheduler is asked: a job that came later is
    /// not in its answer.
    fn jobs(&mut self) -> Result<(), Failure> {
        let mut judged = Vec::new();
        for name in self.node.job_directories()? {
            match self.judge(&name) {
                Ok(job) => judged.push(job),
                Err(failure) => {
                    self.unfinished.insert(name.clone());
                    self.report
                        .left(format!("job directory '{name}': left alone: {failure}"));
                }
            }
        }
        let mut standings = Standings::new(self.settings.into());
        for Judged { job, journal } in judged {
            let standing = self.standing(&mut standings, &job, journal.as_ref());
            self.job(&job, journal.as_ref(), &standing);
        }
        Ok(())
    }

    fn judge(&mut self, name: &str) -> Result<Judged, Failure> {
        let named = JobId::parse(name)?;
        let journal = self.node.read_journal(&named)?;
        let job = match &journal {
            Some(journal) => journal.job.clone(),
            // A long id's directory has a shortened name, and the record the whole one.
            None => self.recorded(&named).unwrap_or(named),
        };
        Ok(Judged { job, journal })
    }

    fn recorded(&self, named: &JobId) -> Option<JobId> {
        let Ok(Look::Found(record)) = record::look(&self.settings.paths.job(named).record()) else {
            return None;
        };
        (record.job.directory_name() == named.as_str()).then_some(record.job)
    }

    fn standing(&mut self, standings: &mut Standings, job: &JobId, journal: Option<&Journal>) -> Standing {
        let Some(journal) = journal else {
            let conf = std::env::var("SLURM_CONF").ok();
            return standings.of_unknown(self.name, conf.as_deref(), job);
        };
        if self.boot
            && boot_time().is_some_and(|boot| journal.began < boot)
            && self.living(journal).is_empty()
        {
            return Standing::Gone("it began before this boot, and no process of it is left".to_owned());
        }
        standings.of(
            journal.scheduler,
            &journal.node,
            journal.drain.slurm_conf.as_deref(),
            job,
        )
    }

    fn living(&mut self, journal: &Journal) -> Vec<Member> {
        self.node
            .members(journal)
            .into_iter()
            .filter(|member| !member.is_defunct())
            .collect()
    }

    fn job(&mut self, job: &JobId, journal: Option<&Journal>, standing: &Standing) {
        match standing {
            Standing::Here => self
                .report
                .say(format!("job {job}: its scheduler has it here: left alone")),
            Standing::Undecided(why) => {
                self.unfinished.insert(job.to_string());
                self.report
                    .say(format!("job {job}: left alone, undecided: {why}"));
            }
            Standing::Gone(why) if self.dry => {
                let living = journal.map(|journal| self.living(journal)).unwrap_or_default();
                let list: Vec<String> = living.iter().map(ToString::to_string).collect();
                let list = if list.is_empty() {
                    "no process".to_owned()
                } else {
                    list.join(", ")
                };
                self.unfinished.insert(job.to_string());
                self.report
                    .left(format!("job {job}: gone ({why}): would be taken down ({list})"));
            }
            Standing::Gone(why) => self.take_down(job, journal, why),
        }
    }

    fn take_down(&mut self, job: &JobId, journal: Option<&Journal>, why: &str) {
        let limit = self.settings.deadline;
        let mut node = RealNode::new(NAME, self.settings, limit, limit / 2);
        let ending = Ending {
            settings: self.settings,
            scheduler: journal.map_or_else(|| guess(job), |journal| journal.scheduler),
            node: journal.map_or(self.name, |journal| &journal.node),
            slurm_conf: std::env::var("SLURM_CONF").ok(),
        };
        let ended = job::end_as_judged(&mut node, job, &ending, journal);
        if ended.findings.is_clean() {
            self.report.did(format!("job {job}: gone ({why}): taken down"));
        } else {
            self.unfinished.insert(job.to_string());
            self.report
                .left(format!("job {job}: gone ({why}): could not be taken down"));
        }
        self.report.lines.extend(ended.lines);
    }

    /// Locks of jobs that have nothing else any more.
    fn locks(&mut self) -> Result<(), Failure> {
        for name in self.node.job_locks()? {
            let Ok(job) = JobId::parse(&name) else { continue };
            if self.dry {
                self.report.say(format!(
                    "lock of job {job}: nothing else is left: would be removed"
                ));
                continue;
            }
            match self.node.find_job(&job) {
                Ok(_) => self
                    .report
                    .did(format!("lock of job {job}: nothing else was left: removed")),
                Err(failure) => self
                    .report
                    .say(format!("lock of job {job}: left alone: {failure}")),
            }
        }
        Ok(())
    }

    /// GPUs in whose accounts jobs stand that have no directory.
    fn gpus(&mut self) {
        let stale = match sweep::stale(&mut self.node) {
            Ok(stale) => stale,
            Err(failure) => return self.report.left(format!("accounts of the GPUs: {failure}")),
        };
        for stale in stale {
            let users: Vec<String> = stale.users.iter().map(ToString::to_string).collect();
            let what = if stale.lock_alone {
                format!("{}: a lock and no account", stale.gpu)
            } else {
                format!("{}: users without a directory: {}", stale.gpu, users.join(", "))
            };
            if self.dry {
                self.report.left(format!(
                    "{what}: would be removed, and the compute mode found restored"
                ));
                continue;
            }
            match sweep::sweep(&mut self.node, &stale) {
                Ok(notes) => {
                    self.report.did(format!("{what}: removed"));
                    self.report.lines.extend(notes);
                }
                Err(failure) => self.report.left(format!("{what}: {failure}")),
            }
        }
    }

    fn drain(&mut self, marker: &Marker, lift: bool) {
        let what = format!("drain of node '{}' ({})", marker.node, marker.reason);
        let site = self.settings.into();
        let controller = spool::place(marker, &site).controller();
        match spool::stand(marker, controller.as_ref()) {
            Err(why) if marker.delivered => self
                .report
                .say(format!("{what}: its scheduler does not answer: {why}")),
            Err(why) => self.report.left(format!("{what}: not delivered: {why}")),
            Ok(Stand::Over(why)) => self.forget(marker, &what, &why),
            Ok(Stand::Undelivered) if self.undrain => self.lift(marker, &what, controller.as_ref()),
            Ok(Stand::Undelivered) if self.dry => self
                .report
                .left(format!("{what}: not delivered: would be tried again")),
            Ok(Stand::Undelivered) => {
                let prefix = self.settings.drain.prefix.as_str();
                match spool::deliver(&self.settings.paths, prefix, marker, controller.as_ref()) {
                    Ok(Outcome::Ours(_)) => self.report.did(format!("{what}: delivered")),
                    Ok(Outcome::Others(other)) => {
                        self.report
                            .did(format!("{what}: forgotten, the node is drained for '{other}'"));
                    }
                    Err(why) => self.report.left(format!("{what}: not delivered: {why}")),
                }
            }
            Ok(Stand::Stands) if !lift => self.report.say(format!(
                "{what}: stands; 'mpsctl undrain' lifts it after a clean recheck"
            )),
            Ok(Stand::Stands) => self.lift(marker, &what, controller.as_ref()),
        }
    }

    fn forget(&mut self, marker: &Marker, what: &str, why: &str) {
        if self.dry {
            return self
                .report
                .say(format!("{what}: over, {why}: would be forgotten"));
        }
        match markers::remove(&self.settings.paths, marker) {
            Ok(()) => self.report.did(format!("{what}: over, {why}: forgotten")),
            Err(error) => self
                .report
                .left(format!("{what}: over, {why}: cannot be forgotten: {error}")),
        }
    }

    fn lift(&mut self, marker: &Marker, what: &str, controller: &dyn crate::scheduler::drain::Controller) {
        if self.dry {
            return self
                .report
                .say(format!("{what}: stands: would be lifted after a clean recheck"));
        }
        let left: Vec<String> = self.unfinished.iter().cloned().collect();
        let check = Recheck {
            paths: &self.settings.paths,
            control: &self.settings.control,
            left: &left,
        };
        if let Err(why) = recheck(&mut self.node, marker, &check) {
            return self.report.left(format!("{what}: stays: {why}"));
        }
        match spool::lift(&self.settings.paths, marker, controller) {
            Ok(()) => self.report.did(format!("{what}: lifted after a clean recheck")),
            Err(why) => self.report.left(format!("{what}: not lifted: {why}")),
        }
    }
}

/// Whose a job is of which only the id is known; asked only where a fault without a journal is to drain.
fn guess(job: &JobId) -> Scheduler {
    if is_slurms(job) {
        Scheduler::Slurm
    } else {
        Scheduler::Torque
    }
}

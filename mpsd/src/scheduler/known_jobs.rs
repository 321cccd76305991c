//! Whether a scheduler still has a job on this node. Asked by `mpsctl reconcile` only, never on a job's own way.
//!
//! Nothing is decided by silence: a controller that does not answer, or an answer that is not understood, leaves the
//! job alone.

use super::host::run_with;
use super::pbs::{Installation, Site, same_node};
use super::{Host, Scheduler, ThisHost, pbs_status, slurm};
use mpsd_core::JobId;
use mpsd_core::text::one_line;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// A busy controller gets this for one answer.
const CALL_DEADLINE: Duration = Duration::from_secs(5);
/// Torque's and OpenPBS's exit code for a job that the server does not know (recorded).
const UNKNOWN_JOB: i32 = 153;
/// Marks of a job that is in the server's books and on no node: completed, finished, queued, held, waiting, moved,
/// expired, begun array (the array itself, not one of its jobs).
const ON_NO_NODE: [&str; 8] = ["C", "F", "Q", "H", "W", "M", "X", "B"];

/// What a scheduler says of a job on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is here, or on its way in or out.
    Here,
    /// It is not: why.
    Gone(String),
    /// Nobody knows: why.
    Undecided(String),
}

/// Asks the schedulers of this node; what Slurm answered is kept, since one answer covers all its jobs.
#[derive(Debug, Default)]
pub struct Standings {
    site: Site,
    slurm: BTreeMap<(String, Option<String>), Result<SlurmNode, String>>,
}

/// What Slurm has on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SlurmNode {
    jobs: BTreeSet<String>,
    steps: BTreeSet<String>,
}

impl Standings {
    /// Nothing asked yet; `site` says where PBS lives.
    pub fn new(site: Site) -> Self {
        Self {
            site,
            slurm: BTreeMap::new(),
        }
    }

    /// Whether `scheduler` has `job` on its node `node`; `conf` is `SLURM_CONF`.
    pub fn of(&mut self, scheduler: Scheduler, node: &str, conf: Option<&str>, job: &JobId) -> Standing {
        match scheduler {
            Scheduler::Slurm => self.slurm(node, conf, job),
            Scheduler::Torque | Scheduler::OpenPbs => self.pbs(scheduler, node, job),
        }
    }

    /// The same for a job of which only the id is known: a step's or a plain number is Slurm's, all else is a PBS's,
    /// and every PBS that is installed here must have let it go.
    pub fn of_unknown(&mut self, node: &str, conf: Option<&str>, job: &JobId) -> Standing {
        if is_slurms(job) {
            return self.of(Scheduler::Slurm, node, conf, job);
        }
        let mut gone = Standing::Undecided("no PBS is installed here".to_owned());
        for scheduler in [Scheduler::Torque, Scheduler::OpenPbs] {
            if !Installation::find(scheduler, &self.site, &ThisHost)
                .mom_priv()
                .is_dir()
            {
                continue;
            }
            match self.of(scheduler, node, conf, job) {
                Standing::Gone(why) => gone = Standing::Gone(why),
                other => return other,
            }
        }
        gone
    }

    fn slurm(&mut self, node: &str, conf: Option<&str>, job: &JobId) -> Standing {
        let key = (node.to_owned(), conf.map(str::to_owned));
        let said = self
            .slurm
            .entry(key)
            .or_insert_with(|| SlurmNode::ask(node, conf));
        match said {
            Ok(said) => said.standing(job),
            Err(why) => Standing::Undecided(why.clone()),
        }
    }

    fn pbs(&self, scheduler: Scheduler, node: &str, job: &JobId) -> Standing {
        let pbs = Installation::find(scheduler, &self.site, &ThisHost);
        // The mom's own file of a job that it has; Torque's comes only after the prologue (recorded).
        if pbs
            .mom_priv()
            .join("jobs")
            .join(format!("{job}.JB"))
            .symlink_metadata()
            .is_ok()
        {
            return Standing::Here;
        }
        let answer = pbs
            .command("qstat", &ThisHost)
            .and_then(|qstat| ThisHost.run(&qstat, &["-f", job.as_str()], CALL_DEADLINE));
        match answer {
            Ok(answer) => pbs_standing(node, answer.code, &answer.text),
            Err(why) => Standing::Undecided(why),
        }
    }
}

/// Whether the id alone says that the job, or the step, is Slurm's: every PBS's has a server's name in it.
pub fn is_slurms(job: &JobId) -> bool {
    job.as_str().bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// What `qstat -f JOB` says.
fn pbs_standing(node: &str, code: Option<i32>, text: &str) -> Standing {
    // OpenPBS says so of a job that it keeps as history only.
    if code == Some(UNKNOWN_JOB) || text.contains("has finished") {
        return Standing::Gone("the server does not know it".to_owned());
    }
    let state = pbs_status(text, "job_state").filter(|_| code == Some(0));
    let Some(state) = state else {
        return Standing::Undecided(format!("qstat said: {}", one_line(text.trim(), 120)));
    };
    if ON_NO_NODE.contains(&state.as_str()) {
        return Standing::Gone(format!("it is in state {state}"));
    }
    let Some(hosts) = pbs_status(text, "exec_host") else {
        return Standing::Undecided(format!("in state {state}, and qstat names no exec_host"));
    };
    let is_here = |word: &str| same_node(word.split('/').next().unwrap_or(word), node);
    if hosts.split('+').any(is_here) {
        Standing::Here
    } else {
        Standing::Gone(format!("it is on {}", one_line(&hosts, 60)))
    }
}

impl SlurmNode {
    fn ask(node: &str, conf: Option<&str>) -> Result<Self, String> {
        let programs = slurm::commands();
        let jobs = squeue(&programs, conf, &["-h", "-w", node, "-o", "%A|%i"])?;
        let steps = squeue(&programs, conf, &["-h", "-s", "-w", node, "-o", "%i"])?;
        Self::parse(&jobs, &steps)
    }

    /// `4711|4711` or `4713|4700_2` for each job, `4711.0` or `4700_2.batch` for each step.
    fn parse(jobs: &str, steps: &str) -> Result<Self, String> {
        let mut node = Self::default();
        let mut shown: BTreeMap<&str, &str> = BTreeMap::new();
        for line in words(jobs) {
            let (raw, display) = line.split_once('|').ok_or_else(|| not_understood(line))?;
            if raw.is_empty() || !raw.bytes().all(|b| b.is_ascii_digit()) {
                return Err(not_understood(line));
            }
            node.jobs.insert(raw.to_owned());
            shown.insert(display, raw);
        }
        for line in words(steps) {
            let (job, step) = line.rsplit_once('.').ok_or_else(|| not_understood(line))?;
            // A job that came between the two questions is not known by its display; only a plain number says it all.
            let raw = shown.get(job).copied().unwrap_or(job);
            let step = step.split('+').next().unwrap_or(step);
            node.steps.insert(format!("{raw}.{step}"));
        }
        Ok(node)
    }

    fn standing(&self, job: &JobId) -> Standing {
        let id = job.as_str();
        match id.split_once('.') {
            None if self.jobs.contains(id) => Standing::Here,
            None => Standing::Gone("slurmctld has no such job on this node".to_owned()),
            Some((whole, _)) if !self.jobs.contains(whole) => {
                Standing::Gone("slurmctld has no such job on this node".to_owned())
            }
            Some(_) if self.steps.contains(id) => Standing::Here,
            Some(_) => Standing::Gone("slurmctld has no such step on this node".to_owned()),
        }
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

fn not_understood(line: &str) -> String {
    format!("squeue said: {}", one_line(line, 120))
}

fn squeue(programs: &Path, conf: Option<&str>, arguments: &[&str]) -> Result<String, String> {
    let conf: Vec<(&str, &str)> = conf.iter().map(|conf| ("SLURM_CONF", *conf)).collect();
    let answer = run_with(&programs.join("squeue"), arguments, &conf, CALL_DEADLINE)?;
    if answer.code == Some(0) {
        Ok(answer.text)
    } else {
        Err(not_understood(answer.text.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str) -> JobId {
        JobId::parse(id).unwrap()
    }

    #[test]
    fn slurms_jobs_and_steps_are_told_by_their_own_ids() {
        let said = SlurmNode::parse(
            "4711|4711\n4713|4700_2\n52|51+1\n",
            "4711.0\n4711.extern\n4700_2.3\n51+1.0\n",
        )
        .unwrap();
        for id in ["4711", "4711.0", "4713", "4713.3", "52.0"] {
            assert_eq!(said.standing(&job(id)), Standing::Here, "{id}");
        }
        for id in ["4712", "4711.1", "4700", "4712.0", "51"] {
            assert!(matches!(said.standing(&job(id)), Standing::Gone(_)), "{id}");
        }
        assert_eq!(SlurmNode::parse("\n", "").unwrap(), SlurmNode::default());
    }

    #[test]
    fn what_squeue_never_prints_decides_nothing() {
        assert!(SlurmNode::parse("slurm_load_jobs error: x\n", "").is_err());
        assert!(SlurmNode::parse("4711|4711\n", "error\n").is_err());
    }

    #[test]
    fn a_pbs_job_is_here_only_while_it_runs_here() {
        let text = |state: &str, hosts: &str| {
            format!("Job Id: 7.srv\n    job_state = {state}\n    exec_host = {hosts}\n")
        };
        let of = |state: &str, hosts: &str| pbs_standing("n2", Some(0), &text(state, hosts));
        assert_eq!(of("R", "n1/0+n2/0*4"), Standing::Here);
        assert_eq!(of("E", "n2.cluster/0"), Standing::Here);
        assert!(matches!(of("R", "n1/0+n22/0"), Standing::Gone(_)));
        for state in ["C", "Q", "H", "F"] {
            assert!(matches!(of(state, "n2/0"), Standing::Gone(_)), "{state}");
        }
    }

    #[test]
    fn only_the_servers_own_word_lets_a_pbs_job_go() {
        let gone = |code, text: &str| matches!(pbs_standing("n2", Some(code), text), Standing::Gone(_));
        assert!(gone(153, "qstat: Unknown Job Id 7.srv"));
        assert!(gone(
            35,
            "qstat: 7.srv Job has finished, use -x or -H to obtain historical job information"
        ));
        assert!(!gone(1, "qstat: cannot connect to server srv (errno=15010)"));
        assert!(!gone(0, "Job Id: 7.srv\n    job_state = R\n"));
        assert!(!gone(0, ""));
    }
}

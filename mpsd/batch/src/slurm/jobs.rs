//! What a Slurm has on one node: by the steps' own slurmstepd, else by one answer of `squeue`.
//!
//! `squeue -w` loads every job of the cluster (squeue.c, 22.05 to 26.05), and thousands of nodes
//! have timers: it is asked only about a job without a process here.

use super::installation::Installation;
use super::slurmd;
use crate::control::{JobState, KnownJobs};
use mpsd_core::JobId;
use mpsd_core::text::{is_digits, is_word, one_line};
use mpsd_sys::process::{Process, ProcessTable};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::time::Duration;

/// The program of a step. Debian's name is longer.
const STEPD: &str = "slurmstepd";
const TITLE: usize = 256;
const CALL_DEADLINE: Duration = Duration::from_secs(5);

pub fn known_jobs(slurm: Installation, node: &str) -> KnownJobs {
    let steps = steps_here().unwrap_or_default();
    let (node, answer) = (node.to_owned(), OnceCell::new());
    Box::new(move |job| {
        if has(&steps, job) {
            return JobState::Here;
        }
        match answer.get_or_init(|| SqueueAnswer::ask(&slurm, &node)) {
            Ok(answer) => answer.state(job),
            Err(why) => JobState::Undecided(why.clone()),
        }
    })
}

fn has(steps: &BTreeSet<String>, job: &JobId) -> bool {
    let job = job.as_str();
    let is_its = |step: &String| step.split_once('.').is_some_and(|(whole, _)| whole == job);
    steps.contains(job) || steps.iter().any(is_its)
}

/// The steps with a slurmstepd here, `4711.extern`. `None`: not known, or several nodes are here.
fn steps_here() -> Option<BTreeSet<String>> {
    let table = ProcessTable::scan()?;
    (slurmd::of_nodes(&table) <= 1).then_some(())?;
    let is_one = |name: &OsStr| name.as_encoded_bytes().starts_with(STEPD.as_bytes());
    let stepds = table.iter().filter(|entry| is_one(&entry.stat.name));
    let step = |pid: i32| {
        let process = Process::find(pid)?;
        // A user's set-user-id program has root's effective id alone; with the real one too it may
        // have any title, so the file counts. A user's process is not read: it can hang its reader.
        let uids = process.uids()?;
        (uids.real == 0 && uids.effective == 0).then_some(())?;
        slurmd::program(&process, |name| name.starts_with(STEPD))?;
        step_of(&process.command_line(TITLE)?)
    };
    Some(stepds.filter_map(|entry| step(entry.stat.id.pid)).collect())
}

/// The step in a slurmstepd's title, `slurmstepd: [4711.extern]`; not a het job's, `[4711+1.0]`.
fn step_of(title: &[u8]) -> Option<String> {
    let title = std::str::from_utf8(title).ok()?;
    let (_, named) = title.split_once(": [")?;
    let (step, _) = named.split_once(']')?;
    let (job, of_job) = step.split_once('.')?;
    (is_word(of_job, b"") && is_digits(job)).then(|| step.to_owned())
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct SqueueAnswer {
    jobs: BTreeSet<String>,
    steps: BTreeSet<String>,
}

impl SqueueAnswer {
    fn ask(slurm: &Installation, node: &str) -> Result<Self, String> {
        let squeue = |arguments: &[&str]| slurm.ask("squeue", arguments, CALL_DEADLINE);
        let jobs = squeue(&["-h", "-w", node, "-o", "%A|%i"])?;
        let steps = squeue(&["-h", "-s", "-w", node, "-o", "%i"])?;
        Self::parse(&jobs, &steps)
    }

    /// `4711|4711` or `4713|4700_2` for each job, `4711.0` or `4700_2.batch` for each step.
    fn parse(jobs: &str, steps: &str) -> Result<Self, String> {
        let mut node = Self::default();
        let mut shown: BTreeMap<&str, &str> = BTreeMap::new();
        for line in words(jobs) {
            let (raw, display) = line.split_once('|').ok_or_else(|| not_understood(line))?;
            if !is_digits(raw) {
                return Err(not_understood(line));
            }
            node.jobs.insert(raw.to_owned());
            shown.insert(display, raw);
        }
        for line in words(steps) {
            let (job, step) = line.rsplit_once('.').ok_or_else(|| not_understood(line))?;
            // A job that came between the two questions is not in `shown`.
            let raw = shown.get(job).copied().unwrap_or(job);
            let step = step.split('+').next().unwrap_or(step);
            node.steps.insert(format!("{raw}.{step}"));
        }
        Ok(node)
    }

    fn state(&self, job: &JobId) -> JobState {
        let id = job.as_str();
        let whole = id.split('.').next().unwrap_or(id);
        let lost = match (self.jobs.contains(whole), self.steps.contains(id)) {
            (false, _) => "job",
            (true, false) if id != whole => "step",
            _ => return JobState::Here,
        };
        JobState::Gone(format!("slurmctld has no such {lost} on this node"))
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty())
}

fn not_understood(line: &str) -> String {
    format!("squeue said: {}", one_line(line, 120))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str) -> JobId {
        JobId::parse(id).unwrap()
    }

    #[test]
    fn jobs_and_steps_are_known_by_their_own_ids_and_other_text_decides_nothing() {
        let jobs = "4711|4711\n4713|4700_2\n52|51+1\n";
        let answer = SqueueAnswer::parse(jobs, "4711.0\n4711.extern\n4700_2.3\n51+1.0\n").unwrap();
        for id in ["4711", "4711.0", "4713", "4713.3", "52.0"] {
            assert_eq!(answer.state(&job(id)), JobState::Here, "{id}");
        }
        for id in ["4712", "4711.1", "4700", "4712.0", "51"] {
            assert!(matches!(answer.state(&job(id)), JobState::Gone(_)), "{id}");
        }
        assert_eq!(SqueueAnswer::parse("\n", ""), Ok(SqueueAnswer::default()));
        assert!(SqueueAnswer::parse("slurm_load_jobs error: x\n", "").is_err());
        assert!(SqueueAnswer::parse("4711|4711\n", "error\n").is_err());
    }

    #[test]
    fn a_slurmstepd_names_its_step() {
        for (title, step) in [
            ("slurmstepd: [4711.extern]\0", Some("4711.extern")),
            ("slurmstepd: [4711.0]", Some("4711.0")),
            ("slurmstepd: [4711+1.0]", None),
            ("slurmstepd", None),
            ("/usr/sbin/slurmstepd infinity", None),
            ("x: [1.]", None),
            ("x: [a.0]", None),
        ] {
            assert_eq!(step_of(title.as_bytes()).as_deref(), step, "{title}");
        }
        let steps = BTreeSet::from(["4711.extern".to_owned(), "4712.0".to_owned()]);
        let here = ["4711", "4712", "4712.0", "4711.0", "471"].map(|id| has(&steps, &job(id)));
        assert_eq!(here, [true, true, true, false, false]);
    }
}

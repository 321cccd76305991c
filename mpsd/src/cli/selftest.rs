//! `mpsctl selftest`: a small job through the site's own scheduler, which runs `mps-probe` under MPS.

use super::attach::Caller;
use super::selftest_job::{Runner, Stop, find, output, version};
use super::terminal::{checks_json, say, say_checks, worst};
use super::{NAME, complain};
use crate::scheduler::setup::CheckLine::{self, Fail, Pass};
use crate::scheduler::trial::{MEMORY_MIB, TrialJob};
use crate::scheduler::{ALL, BatchSystem, Scheduler, by_name};
use crate::sys::signals::Signals;
use mpsd_core::failure::{EXIT_NODE, Undetermined};
use mpsd_core::{Failure, Refusal};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::time::Duration;

/// The signals that end a selftest.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// A client's context counts against its memory limit: 120 to 320 MiB with driver 580.
const CONTEXT_MIB: u64 = 512;

/// `mpsctl selftest`.
#[derive(Debug, Clone, clap::Args)]
pub struct Selftest {
    /// The scheduler; the one whose srun or qsub is in PATH if not given
    #[arg(long, value_name = "NAME", value_parser = by_name())]
    scheduler: Option<Scheduler>,
    /// Longest that the job may take, with its time in the queue; then it is cancelled
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait: u64,
    /// One JSON object: the worst status, and the status and text of each line
    #[arg(long)]
    json: bool,
    /// Words of your site for srun or qsub: a partition, a queue, an account
    #[arg(last = true, value_name = "WORDS")]
    own: Vec<String>,
}

impl Selftest {
    /// Runs it; `programs` is the directory of our programs. Returns the exit code: 0, or 2 if something failed.
    ///
    /// # Errors
    /// The caller is root or in a job, or no signal can be waited for.
    pub fn run(&self, caller: &Caller<'_>, programs: &Path) -> Result<u8, Failure> {
        if caller.uid == 0 {
            let allowed = "an ordinary user, as by 'runuser -u NAME -- mpsctl selftest'";
            return Err(Refusal::new("selftest", "it tries what a user's job gets", allowed).into());
        }
        if let Some(job) = caller.job() {
            let why = format!("this is job {job}, whose commands and variables are its own");
            return Err(Refusal::new("selftest", why, "a shell outside of a job").into());
        }
        let signals = Signals::block(&SIGNALS);
        let signals = signals.map_err(|errno| Undetermined::new("signals", errno.to_string()))?;
        let mut lines = Lines {
            json: self.json,
            found: Vec::new(),
        };
        let stopped = match self.system() {
            Ok(system) => self.try_job(system, caller, programs, &signals, &mut lines),
            Err(finding) => {
                lines.add(finding);
                None
            }
        };
        Ok(lines.end(stopped))
    }

    /// Finds the scheduler whose command is in the user's `PATH`.
    fn system(&self) -> Result<&'static dyn BatchSystem, CheckLine> {
        let wanted =
            |system: &&&dyn BatchSystem| self.scheduler.is_none_or(|name| name == system.scheduler());
        let mut all = ALL
            .iter()
            .filter(wanted)
            .filter(|system| find(system.facts().trial.submits).is_some());
        let is_its = |system: &&&dyn BatchSystem| {
            (system.facts().trial.is_its)(&version(system.facts().trial.submits))
        };
        let found = match self.scheduler {
            Some(_) => all.next(),
            None => all.find(is_its),
        };
        found.copied().ok_or_else(|| {
            let submits = |system: &&dyn BatchSystem| system.facts().trial.submits;
            let mut commands: Vec<&str> = ALL.iter().filter(wanted).map(submits).collect();
            commands.dedup();
            Fail(format!(
                "no scheduler: {} is not in PATH, or is another's: run it where jobs are submitted",
                commands.join(" or ")
            ))
        })
    }

    /// Submits the job and adds its result. Returns the signal that interrupted it.
    fn try_job(
        &self,
        system: &'static dyn BatchSystem,
        caller: &Caller<'_>,
        programs: &Path,
        signals: &Signals,
        lines: &mut Lines,
    ) -> Option<Signal> {
        let trial = system.facts().trial;
        let file = find(trial.submits).unwrap_or_default();
        lines.add(Pass(format!(
            "scheduler: {}, by '{}'",
            system.scheduler(),
            file.display()
        )));
        let runner = Runner {
            trial,
            signals,
            limit: Duration::from_secs(self.wait),
        };
        let name = job_name();
        let output = match output((caller.env)("HOME"), &name) {
            Ok(file) => file.display().to_string(),
            // srun passes the output on, and needs no file.
            Err(_) if trial.ask.is_none() => String::new(),
            Err(why) => {
                lines.add(Fail(format!("job: none was submitted: {why}")));
                return None;
            }
        };
        let ran = runner.run(&TrialJob {
            name: &name,
            own: &self.own,
            programs,
            output: &output,
        });
        let request = trial.request;
        match ran {
            Err(Stop::Interrupted(signal)) => return Some(signal),
            Err(stop) => {
                let said = stop.to_string();
                let remedy = (trial.remedy)(&said);
                lines.add(Fail(format!(
                    "job: the one that asked with '{request}': {said}: {remedy}"
                )));
            }
            Ok(probe) => proved(&probe, request, (trial.remedy)(""))
                .into_iter()
                .for_each(|finding| lines.add(finding)),
        }
        None
    }
}

/// The lines, printed as they come.
struct Lines {
    json: bool,
    found: Vec<CheckLine>,
}

impl Lines {
    fn add(&mut self, finding: CheckLine) {
        if !self.json {
            say_checks(&finding.to_string());
        }
        self.found.push(finding);
    }

    /// Prints the last line; returns the exit code.
    fn end(self, interrupted: Option<Signal>) -> u8 {
        let worst = worst(&self.found);
        match interrupted {
            Some(signal) => {
                complain(
                    NAME,
                    &format!("selftest: ended by {signal}, and its job was cancelled"),
                );
                return EXIT_NODE;
            }
            None if self.json => say(&checks_json(&self.found, worst)),
            None => say_checks(&format!("{worst:<4}  selftest")),
        }
        if worst == "OK" { 0 } else { EXIT_NODE }
    }
}

/// A name that no other job has, on any host or in any container: a job may be ended by its name only.
fn job_name() -> String {
    // The standard library seeds this from the kernel's random numbers.
    let random = RandomState::new().hash_one(std::process::id());
    format!("mpsd-{:010x}", random & 0xff_ffff_ffff)
}

/// What the output of `mps-probe --json` proves.
fn proved(probe: &Value, request: &str, remedy: &str) -> Vec<CheckLine> {
    let host = probe["host"].as_str().unwrap_or("a node without a name");
    let mut found = vec![Pass(format!("job: it ran on {host}, asked with '{request}'"))];
    let gpus: Vec<&Value> = probe["gpus"].as_array().into_iter().flatten().collect();
    if probe["under_mps"] != true || gpus.is_empty() {
        let why = probe["error"]
            .as_str()
            .unwrap_or("its context does not go through MPS");
        found.push(Fail(format!("attached: no: mps-probe: {why}: {remedy}")));
        return found;
    }
    let uuids: Vec<&str> = gpus.iter().filter_map(|gpu| gpu["uuid"].as_str()).collect();
    let share = gpus[0]["sms"].as_u64();
    let share = share.map_or_else(String::new, |count| format!(", with {count} multiprocessors"));
    found.push(Pass(format!("attached: under MPS on {}{share}", uuids.join(" "))));
    found.push(match gpus[0]["allocatable_mib"].as_u64() {
        Some(got) if (MEMORY_MIB - CONTEXT_MIB..=MEMORY_MIB).contains(&got) => Pass(format!(
            "limits: of the {MEMORY_MIB} MiB asked for, the job could allocate {got}; its context takes the rest"
        )),
        Some(got) => Fail(format!(
            "limits: the job asked for {MEMORY_MIB} MiB and could allocate {got}: {remedy}"
        )),
        None => Fail(format!("limits: mps-probe did not say how much it could allocate: {remedy}")),
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> Value {
        serde_json::json!({"host": "gpu001", "under_mps": true, "gpus": [
            {"uuid": "GPU-1", "sms": 66, "allocatable_mib": 896}
        ]})
    }

    #[test]
    fn a_probe_under_mps_with_its_limit_is_ok_and_any_other_fails_with_a_remedy() {
        let found = |probe: &Value| proved(probe, "--mps", "do this");
        let marks = |probe: &Value| found(probe).iter().map(CheckLine::status).collect::<Vec<_>>();
        assert_eq!(marks(&probe()), ["OK", "OK", "OK"]);
        for got in [Value::Null, 2048.into(), 100.into()] {
            let mut other = probe();
            other["gpus"][0]["allocatable_mib"] = got;
            assert_eq!(marks(&other), ["OK", "OK", "FAIL"], "{other}");
        }
        let mut outside = probe();
        outside["under_mps"] = false.into();
        outside["error"] = "error 46".into();
        let found = found(&outside);
        assert!(
            found[1].is_wrong() && found[1].text().ends_with("error 46: do this"),
            "{found:?}"
        );
    }

    #[test]
    fn no_two_jobs_have_the_same_name() {
        let (one, other) = (job_name(), job_name());
        // A process id may be the same on two hosts, and is 1 in each container.
        assert_ne!(one, other);
        assert!(one.len() <= 15 && one.starts_with("mpsd-"), "{one}");
    }
}

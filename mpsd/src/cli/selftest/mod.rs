//! `mpsctl selftest`: one job of an ordinary user's through the site's own scheduler, with a line for each thing that a job with MPS
//! is promised.

mod inside;
mod run;

use super::attach::Caller;
use super::doctor::worst;
use super::{NAME, complain, say, say_findings};
use crate::scheduler::setup::Finding::{self, Better, Good, Wrong};
use crate::scheduler::trial::Order;
use crate::scheduler::{ALL, BatchSystem, Scheduler, by_name};
use crate::sys::signals::Signals;
use inside::{After, Seen};
use mpsd_core::config::DEFAULT_PATH;
use mpsd_core::failure::{EXIT_NODE, Undetermined};
use mpsd_core::gpu::ComputeMode;
use mpsd_core::text::one_line;
use mpsd_core::{Failure, Refusal};
use nix::sys::signal::Signal;
use run::{MARK, Runner, Stop, find, output, version};
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::time::Duration;

/// The part of the job that asks; the other one's begins with what the first saw.
const ASKS: &str = "asks";
/// What ends a selftest.
const SIGNALS: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// `mpsctl selftest`.
#[derive(Debug, Clone, clap::Args)]
pub struct Selftest {
    /// The scheduler; the one whose srun or qsub is in PATH if not given
    #[arg(long, value_name = "NAME", value_parser = by_name())]
    scheduler: Option<Scheduler>,
    /// Longest that a job may take, with its time in the queue; then it is cancelled
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait: u64,
    /// One JSON object: the worst status, and the status and text of each line
    #[arg(long)]
    json: bool,
    /// What a job of ours does
    #[arg(long, hide = true)]
    part: Option<String>,
    /// Words of your site for srun or qsub: a partition, a queue, an account
    #[arg(last = true, value_name = "WORDS")]
    own: Vec<String>,
}

impl Selftest {
    /// Carries it out; `programs` is the directory of ours. Returns the exit code: 0 all is well, 1 something could not be looked
    /// at, 2 something failed.
    ///
    /// # Errors
    /// It is root's or in a job, no signal can be waited for, or a part of it is called by hand.
    pub fn run(&self, caller: &Caller<'_>, programs: &Path) -> Result<u8, Failure> {
        if let Some(part) = &self.part {
            return self::part(part, caller, programs);
        }
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
        let mut steps = Steps {
            selftest: self,
            found: Vec::new(),
        };
        let stopped = match self.system() {
            Ok(system) => steps.jobs(system, caller, programs, &signals),
            Err(finding) => {
                steps.add(finding);
                None
            }
        };
        Ok(steps.end(stopped))
    }

    /// The scheduler whose command is in the user's `PATH`.
    fn system(&self) -> Result<&'static dyn BatchSystem, Finding> {
        let wanted =
            |system: &&&dyn BatchSystem| self.scheduler.is_none_or(|name| name == system.scheduler());
        let mut all = ALL
            .iter()
            .filter(wanted)
            .filter(|system| find(system.trial().submits()).is_some());
        let is_its = |system: &&&dyn BatchSystem| system.trial().is_its(&version(system.trial().submits()));
        let found = match self.scheduler {
            Some(_) => all.next(),
            None => all.find(is_its),
        };
        found.copied().ok_or_else(|| {
            let submits = |system: &&dyn BatchSystem| system.trial().submits();
            let mut commands: Vec<&str> = ALL.iter().filter(wanted).map(submits).collect();
            commands.dedup();
            Wrong(format!(
                "no scheduler: {} is not in PATH, or is another's: run it where jobs are submitted",
                commands.join(" or ")
            ))
        })
    }
}

/// The lines, as they come.
struct Steps<'a> {
    selftest: &'a Selftest,
    found: Vec<Finding>,
}

impl Steps<'_> {
    fn add(&mut self, finding: Finding) {
        if !self.selftest.json {
            say_findings(&finding.to_string());
        }
        self.found.push(finding);
    }

    /// Both jobs; the signal that came between.
    fn jobs(
        &mut self,
        system: &'static dyn BatchSystem,
        caller: &Caller<'_>,
        programs: &Path,
        signals: &Signals,
    ) -> Option<Signal> {
        let trial = system.trial();
        let file = find(trial.submits()).unwrap_or_default();
        self.add(Good(format!(
            "scheduler: {}, by '{}'",
            system.scheduler(),
            file.display()
        )));
        let runner = Runner {
            trial,
            signals,
            limit: Duration::from_secs(self.selftest.wait),
        };
        let name = job_name();
        let output = match output((caller.env)("HOME"), &name) {
            Ok(file) => file.display().to_string(),
            // srun passes it on, and needs no file.
            Err(_) if trial.ask(&name).is_none() => String::new(),
            Err(why) => {
                self.add(Wrong(format!("job: none was submitted: {why}")));
                return None;
            }
        };
        let part = |part: String| [words(caller, programs), vec![part]].concat();
        let program = part(ASKS.to_owned());
        let order = Order {
            name: &name,
            mps: true,
            node: None,
            own: &self.selftest.own,
            program: &program,
            output: &output,
        };
        let ran = runner.run(&order).and_then(|said| read::<Seen>(&said));
        let seen = match ran {
            Err(Stop::Interrupted(signal)) => return Some(signal),
            Err(stop) => {
                let said = stop.to_string();
                let (request, remedy) = (trial.request(), trial.remedy(&said));
                self.add(Wrong(format!(
                    "job: the one that asked with '{request}': {said}: {remedy}"
                )));
                return None;
            }
            Ok(seen) => seen,
        };
        let (job, node, request) = (&seen.job, &seen.node, trial.request());
        self.add(Good(format!("job: {job} ran on {node}, asked with '{request}'")));
        let remedy = trial.remedy("");
        attached(&seen, remedy)
            .into_iter()
            .for_each(|finding| self.add(finding));
        let program = part(serde_json::to_string(&seen).unwrap_or_default());
        let order = Order {
            mps: false,
            node: Some(node),
            program: &program,
            ..order
        };
        match runner.run(&order).and_then(|said| read::<After>(&said)) {
            Err(Stop::Interrupted(signal)) => return Some(signal),
            Err(stop) => self.add(Better(format!(
                "teardown: not looked at: a second job, without MPS, was to do it on {node}: {stop}"
            ))),
            Ok(after) => gone(&seen, &after)
                .into_iter()
                .for_each(|finding| self.add(finding)),
        }
        None
    }

    /// The last line; the exit code.
    fn end(self, stopped: Option<Signal>) -> u8 {
        let code = worst(&self.found);
        let word = ["OK", "WARN", "FAIL"].get(usize::from(code)).unwrap_or(&"FAIL");
        if let Some(signal) = stopped {
            complain(
                NAME,
                &format!("selftest: ended by {signal}, and its job was cancelled"),
            );
            return EXIT_NODE;
        }
        if self.selftest.json {
            let one =
                |finding: &Finding| serde_json::json!({"status": finding.status(), "text": finding.text()});
            let all: Vec<_> = self.found.iter().map(one).collect();
            say(&format!(
                "{}\n",
                serde_json::json!({"worst": word, "findings": all})
            ));
            return code;
        }
        say_findings(&match code {
            0 => "OK    selftest".to_owned(),
            1 => "WARN  selftest: nothing failed, and not all could be looked at".to_owned(),
            _ => "FAIL  selftest".to_owned(),
        });
        code
    }
}

/// How a job calls us again.
fn words(caller: &Caller<'_>, programs: &Path) -> Vec<String> {
    let mut words = vec![programs.join(NAME).display().to_string()];
    if caller.config != Path::new(DEFAULT_PATH) {
        words.extend(["--config".to_owned(), caller.config.display().to_string()]);
    }
    words.extend(["selftest", "--part"].map(str::to_owned));
    words
}

/// No other job has it, whatever host or container it was submitted from: a job may be ended by its name alone.
fn job_name() -> String {
    // The standard library's own seed comes from the kernel's random numbers.
    let random = RandomState::new().hash_one(std::process::id());
    format!("mpsd-{:010x}", random & 0xff_ffff_ffff)
}

/// In a job of ours.
fn part(part: &str, caller: &Caller<'_>, programs: &Path) -> Result<u8, Failure> {
    let told = match part {
        ASKS => serde_json::to_string(&inside::asked(caller, programs)?),
        seen => {
            let seen: Seen = serde_json::from_str(seen).map_err(|error| {
                Refusal::new(
                    "selftest --part",
                    error.to_string(),
                    "what selftest itself gives it",
                )
            })?;
            serde_json::to_string(&inside::after(caller, &seen, &programs.join("mpsd"))?)
        }
    };
    let told = told.map_err(|error| Undetermined::new("what a job saw", error.to_string()))?;
    say(&format!("{MARK}{told}\n"));
    Ok(0)
}

/// What a job of ours said, among what else it wrote.
fn read<T: serde::de::DeserializeOwned>(said: &str) -> Result<T, Stop> {
    let told = said.lines().find_map(|line| line.split_once(MARK));
    let all = || one_line(said.trim(), 400);
    let (_, told) = told.ok_or_else(|| Stop::Failed(format!("it did not run our program: {}", all())))?;
    serde_json::from_str(told).map_err(|error| Stop::Failed(format!("it said '{}': {error}", all())))
}

/// Of the job that asked: attached, and limited.
fn attached(seen: &Seen, remedy: &str) -> Vec<Finding> {
    let attached = match &seen.outside {
        Some(why) => Wrong(format!("attached: no: {why}: {remedy}")),
        None => {
            let gpus: Vec<&str> = seen.gpus.iter().map(|gpu| gpu.as_str()).collect();
            let share = seen.multiprocessors;
            let share = share.map_or_else(String::new, |count| format!(", with {count} multiprocessors"));
            Good(format!("attached: under MPS on {}{share}", gpus.join(" ")))
        }
    };
    let kind = |word: &str| seen.limits.iter().find(|limit| limit.limit.starts_with(word));
    let limits = match (&seen.silent, kind("active thread"), kind("memory limit")) {
        (Some(why), ..) => Wrong(format!(
            "limits: the job's MPS does not tell them: {why}: {remedy}"
        )),
        (None, Some(threads), Some(memory)) if threads.asked.is_some() => {
            let [threads, memory] = [threads, memory].map(|limit| {
                let said = limit.said.as_deref().unwrap_or("nothing");
                (limit.holds, format!("{}: the daemon says {said}", limit.limit))
            });
            let text = format!("limits: {}; {}", threads.1, memory.1);
            match threads.0 && memory.0 {
                true => Good(text),
                false => Wrong(format!(
                    "{text}, which was not asked: 'mpsctl status' in a job says more"
                )),
            }
        }
        _ => Wrong(format!(
            "limits: those that were asked for are not among the job's: {remedy}"
        )),
    };
    vec![attached, limits]
}

/// Of the job that came after it: nothing is left.
fn gone(seen: &Seen, after: &After) -> Vec<Finding> {
    let job = &seen.job;
    if after.node != seen.node {
        let text = format!(
            "the second job, without MPS, ran on {} and not on {}",
            after.node, seen.node
        );
        return vec![Better(format!("teardown: not looked at: {text}"))];
    }
    let remedy = "'mpsctl reconcile --dry-run' as root on the node says what is left, and mps-epilogue's lines in its log why";
    let pids: Vec<String> = after.processes.iter().map(ToString::to_string).collect();
    let mut found = vec![match &after.directory {
        Ok(true) => Wrong(format!(
            "teardown: the directory of job {job} is still there: {remedy}"
        )),
        _ if !pids.is_empty() => {
            let pids = pids.join(" ");
            Wrong(format!(
                "teardown: processes {pids} of job {job}'s MPS are still there: {remedy}"
            ))
        }
        Ok(false) => Good(format!(
            "teardown: the directory of job {job} is gone, and of the {} processes of its MPS that were seen all are",
            seen.processes.len()
        )),
        Err(why) => Better(format!("teardown: not looked at: {why}")),
    }];
    if seen.processes.is_empty() {
        let why = "/proc of the node did not show them to their user";
        found.push(Better(format!("processes: not looked at: {why}")));
    }
    found.extend(after.modes.iter().map(|(gpu, mode)| match mode {
        Ok(ComputeMode::Default) => Good(format!("compute mode of {gpu}: {}, as without jobs", ComputeMode::Default)),
        Ok(mode) => Better(format!(
            "compute mode of {gpu}: {mode}: whether it was so before the job only root can tell, by nvidia-smi on an idle node"
        )),
        Err(why) => Better(format!("compute mode of {gpu}: not looked at: the second job does not see it: {why}")),
    }));
    found
}

#[cfg(test)]
mod tests;

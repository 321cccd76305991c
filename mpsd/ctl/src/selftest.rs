//! `mpsctl selftest`: one small job through the site's own scheduler, which runs `mps-probe` under
//! MPS. It runs the scheduler's commands as the user would. Each has a deadline, and ends with the
//! selftest.

use super::attach::Caller;
use super::terminal::{checks_json, say_checks, say_json, worst};
use super::{NAME, complain};
use batch::trial::{CommandLine, MEMORY_MIB, Trial, TrialJob, unreached};
use batch::{ALL, BatchSystem, Scheduler, by_name};
use mpsd::cli::programs::least_mib;
use mpsd_core::failure::{EXIT_NODE, Undetermined};
use mpsd_core::text::one_line;
use mpsd_core::{Failure, Refusal};
use mpsd_sys::Exit;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::signals::Signals;
use mpsd_sys::spawn::{KillReason, RunError, Spawn};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, access};
use serde_json::Value;
use setup::CheckLine::{self, Fail, Pass};
use std::hash::{BuildHasher as _, RandomState};
use std::path::{Path, PathBuf};
use std::time::Duration;

const COMMAND_TIME: Duration = Duration::from_secs(30);
/// What an administrator does about a node whose jobs cannot load libcuda.
const LIBCUDA: &str =
    "install it on that node, as root; 'ldconfig -p' there lists what a job can load";
/// Longest answer that is read, bytes; and shown, characters.
const ANSWER_BYTES: usize = 1 << 20;
const SHOWN: usize = 400;

#[derive(Debug, Clone, clap::Args)]
pub struct Selftest {
    /// The scheduler; the one whose srun or qsub is in PATH if not given
    #[arg(long, value_name = "NAME", value_parser = by_name())]
    scheduler: Option<Scheduler>,
    /// Longest that the job may take, with its time in the queue; then it is canceled
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait: u64,
    /// One JSON object: the worst status, and the status and text of each line
    #[arg(long)]
    json: bool,
    /// Words of your site for srun or qsub: a partition, a queue, an account
    #[arg(last = true, value_name = "WORDS")]
    own: Vec<String>,
}

enum TrialError {
    Failed(String),
    Interrupted(Signal),
}

impl Selftest {
    /// `programs` is the directory of our programs. Returns the exit code.
    pub fn run(&self, caller: &Caller<'_>, programs: &Path) -> Result<u8, Failure> {
        if caller.uid == 0 {
            let allowed = "an ordinary user, as by 'runuser -u NAME -- mpsctl selftest'";
            let why = "it tries what a user's job gets";
            return Err(Refusal::new("selftest", why, allowed).into());
        }
        if let Some(job) = caller.job() {
            let why = format!("this is job {job}, whose commands and variables are its own");
            return Err(Refusal::new("selftest", why, "a shell outside of a job").into());
        }
        let signals = Signals::block(&[Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]);
        let signals = signals.map_err(|errno| Undetermined::new("signals", errno.to_string()))?;
        let mut lines = Vec::new();
        let mut add = |line: CheckLine| {
            if !self.json {
                say_checks(&line.to_string());
            }
            lines.push(line);
        };
        match self.try_job(caller, programs, &signals, &mut add) {
            Ok(()) => {}
            Err(TrialError::Failed(why)) => add(Fail(why)),
            Err(TrialError::Interrupted(signal)) => {
                let line = format!("selftest: ended by {signal}, and its job was canceled");
                complain(NAME, &line);
                return Ok(EXIT_NODE);
            }
        }
        let worst = worst(&lines);
        match self.json {
            true => say_json(&checks_json(&lines, worst)),
            false => say_checks(&format!("{worst:<4}  selftest")),
        }
        Ok(if worst == "OK" { 0 } else { EXIT_NODE })
    }

    fn try_job(
        &self,
        caller: &Caller<'_>,
        programs: &Path,
        signals: &Signals,
        add: &mut impl FnMut(CheckLine),
    ) -> Result<(), TrialError> {
        let system = self.system()?;
        let (scheduler, trial) = (system.scheduler(), system.facts().trial);
        let file = find(trial.submits).unwrap_or_default();
        let file = file.display();
        add(Pass(format!("scheduler: {scheduler}, by '{file}'")));
        let name = job_name();
        let output = match output((caller.env)("HOME"), &name) {
            Ok(file) => file.display().to_string(),
            // srun passes the output on, and needs no file.
            Err(_) if trial.ask.is_none() => String::new(),
            Err(why) => return Err(failed(format!("job: none was submitted: {why}"))),
        };
        let runner = Runner {
            trial,
            signals,
            limit: Duration::from_secs(self.wait),
            order: TrialJob {
                name: &name,
                own: &self.own,
                programs,
                output: &output,
            },
        };
        let request = trial.request;
        let (submits, remedy) = (trial.submits, trial.remedy);
        let probe = runner.run().map_err(|error| match error {
            TrialError::Failed(why) => failed(match unreached(&why) {
                Some(line) => format!("job: {submits} does not reach {scheduler}: {line}"),
                None => format!(
                    "job: the one that asked with '{request}': {why}: {}",
                    remedy(&why)
                ),
            }),
            interrupted => interrupted,
        })?;
        let lines = proved(&probe, request, (trial.remedy)(""));
        lines.into_iter().for_each(add);
        Ok(())
    }

    fn system(&self) -> Result<&'static dyn BatchSystem, TrialError> {
        let all = ALL.iter().copied();
        let named =
            all.filter(|system| self.scheduler.is_none_or(|name| name == system.scheduler()));
        let is_here = |system: &&dyn BatchSystem| {
            let (trial, submits) = (system.facts().trial, system.facts().trial.submits);
            find(submits).is_some()
                && (self.scheduler.is_some() || (trial.is_its)(&version(submits)))
        };
        named.clone().find(is_here).ok_or_else(|| {
            let commands = named.map(|system| system.facts().trial.submits);
            let mut commands: Vec<&str> = commands.collect();
            commands.dedup();
            let none = format!("no {} that works is in PATH", commands.join(" or "));
            failed(format!(
                "no scheduler: {none}: run it where jobs are submitted"
            ))
        })
    }
}

fn failed(why: String) -> TrialError {
    TrialError::Failed(why)
}

/// A name that no other job has, on any host: some jobs can only be ended by name.
fn job_name() -> String {
    // The standard library seeds this from the kernel's random numbers.
    let random = RandomState::new().hash_one(std::process::id());
    format!("mpsd-{:010x}", random & 0xff_ffff_ffff)
}

/// The job writes into the user's home: a node has no other directory of the user's.
fn output(home: Option<String>, job: &str) -> Result<PathBuf, String> {
    let home = home.unwrap_or_default();
    let directory = Path::new(&home);
    let writable = access(directory, AccessFlags::W_OK | AccessFlags::X_OK).is_ok();
    match directory.is_absolute() && directory.is_dir() && writable {
        true => Ok(directory.join(format!(".{job}"))),
        false => Err(format!(
            "HOME is '{home}', where its output cannot go; allowed: HOME=DIR, a directory of yours that the nodes have as well"
        )),
    }
}

fn proved(probe: &Value, request: &str, remedy: &str) -> Vec<CheckLine> {
    let host = probe["host"].as_str().unwrap_or("a node without a name");
    let ran = format!("job: it ran on {host}, asked with '{request}'");
    let mut lines = vec![Pass(ran)];
    if probe["libcuda"] == false {
        let error = probe["error"].as_str().unwrap_or_default();
        lines.push(Fail(format!("libcuda: {error}: {LIBCUDA}")));
        return lines;
    }
    let gpus: Vec<&Value> = probe["gpus"].as_array().into_iter().flatten().collect();
    if probe["under_mps"] != true || gpus.is_empty() {
        let why = probe["error"].as_str();
        let why = why.unwrap_or("its context does not go through MPS");
        lines.push(Fail(format!("attached: no: mps-probe: {why}: {remedy}")));
        return lines;
    }
    let uuids: Vec<&str> = gpus.iter().filter_map(|gpu| gpu["uuid"].as_str()).collect();
    let sms = gpus[0]["sms"].as_u64();
    let sms = sms.and_then(|count| u32::try_from(count).ok());
    let share = sms.map_or(String::new(), |count| {
        format!(", with {count} multiprocessors")
    });
    lines.push(Pass(format!(
        "attached: under MPS on {}{share}",
        uuids.join(" ")
    )));
    lines.push(match gpus[0]["allocatable_mib"].as_u64() {
        Some(got) if (least_mib(MEMORY_MIB, sms.unwrap_or(0))..=MEMORY_MIB).contains(&got) => Pass(format!(
            "limits: of the {MEMORY_MIB} MiB asked for, the job could allocate {got}; its context takes the rest"
        )),
        Some(got) => Fail(format!(
            "limits: the job asked for {MEMORY_MIB} MiB and could allocate {got}: {remedy}"
        )),
        None => Fail(format!("limits: mps-probe did not say how much it could allocate: {remedy}")),
    });
    lines
}

struct Runner<'a> {
    trial: &'static Trial,
    signals: &'a Signals,
    /// Longest time from the job's submission to its end.
    limit: Duration,
    order: TrialJob<'a>,
}

impl Runner<'_> {
    fn run(&self) -> Result<Value, TrialError> {
        let deadline = Deadline::after(self.limit);
        let mut out = self.submit()?;
        let id = out.trim().to_owned();
        if self.trial.ask.is_some() {
            let ended = self.wait(&id, deadline);
            let file = self.order.output;
            let output = std::fs::read_to_string(file);
            // The file is ours; it may not exist.
            let _ = std::fs::remove_file(file);
            ended?;
            let what = || format!("job {id} has ended, and its output did not come to '{file}'");
            out = output.map_err(|error| failed(format!("{}: {error}", what())))?;
        }
        let said = || one_line(out.trim(), SHOWN);
        probe_output(&out).ok_or_else(|| failed(format!("mps-probe did not run: {}", said())))
    }

    /// The command ends with the job, or prints its id. If it is killed, only the job's name is
    /// known.
    fn submit(&self) -> Result<String, TrialError> {
        let command = (self.trial.submit)(&self.order);
        match run(&command, Some(self.signals), self.limit) {
            Ok(answer) if answer.success => Ok(answer.out),
            // A probe that failed says why in its output.
            Ok(answer) if probe_output(&answer.out).is_some() => Ok(answer.out + &answer.err),
            Ok(answer) => Err(failed(answer.line())),
            Err(error) => Err(match error {
                RunError::Killed {
                    why: KillReason::Late { .. },
                    ..
                } => self.late(None),
                RunError::Killed {
                    why: KillReason::Interrupted,
                    ..
                } => self.interrupted(None),
                other => {
                    self.cancel(None);
                    failed(other.to_string())
                }
            }),
        }
    }

    fn wait(&self, id: &str, deadline: Deadline) -> Result<(), TrialError> {
        while !deadline.expired() {
            let answer = self.trial.ask.map(|ask| run(&ask(id), None, COMMAND_TIME));
            if let Some(Ok(Answer { out, err, .. })) = answer
                && (self.trial.is_over)(&(out + &err))
            {
                return Ok(());
            }
            let mut one = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            let turn = deadline.within(Duration::from_secs(1)).poll_timeout();
            if poll(&mut one, turn).is_ok_and(|ready| ready > 0) {
                return Err(self.interrupted(Some(id)));
            }
        }
        Err(self.late(Some(id)))
    }

    fn late(&self, id: Option<&str>) -> TrialError {
        let name = self.order.name;
        let why = match (id, self.trial.named) {
            (None, Some(_)) => format!("'{}' had not answered", self.trial.submits),
            _ => {
                let why = run(&(self.trial.why)(name, id), None, COMMAND_TIME);
                why.map(|answer| answer.line()).unwrap_or_default()
            }
        };
        self.cancel(id);
        let limit = self.limit.as_secs();
        failed(format!(
            "it had not ended after {limit} s, and was canceled: {why}"
        ))
    }

    fn interrupted(&self, id: Option<&str>) -> TrialError {
        self.cancel(id);
        let signal = self.signals.read().ok().flatten();
        TrialError::Interrupted(signal.unwrap_or(Signal::SIGTERM))
    }

    /// If this fails, the job's own time limit ends it.
    fn cancel(&self, id: Option<&str>) {
        let name = self.order.name;
        let cancel = |id| drop(run(&(self.trial.cancel)(name, id), None, COMMAND_TIME));
        match self.trial.named.filter(|_| id.is_none()) {
            None => cancel(id),
            Some(list) => {
                let ids = run(&list(name), None, COMMAND_TIME).map(|answer| answer.out);
                let ids = ids.unwrap_or_default();
                ids.lines().for_each(|id| cancel(Some(id)));
            }
        }
    }
}

struct Answer {
    success: bool,
    out: String,
    err: String,
}

impl Answer {
    fn line(&self) -> String {
        let both = self.err.lines().chain(self.out.lines());
        let all = both.map(str::trim).filter(|line| !line.is_empty());
        let all: Vec<&str> = all.collect();
        match all.is_empty() {
            true => "the scheduler's command said nothing".to_owned(),
            false => one_line(&all.join("; "), SHOWN),
        }
    }
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut all = std::env::split_paths(&path).map(|dir| dir.join(name));
    all.find(|file| file.is_absolute() && file.is_file() && access(file, AccessFlags::X_OK).is_ok())
}

fn run(typed: &CommandLine, stop: Option<&Signals>, limit: Duration) -> Result<Answer, RunError> {
    let unknown = || PathBuf::from("/nonexistent").join(typed.program);
    let mut spawn = Spawn::new(find(typed.program).unwrap_or_else(unknown));
    spawn.args = typed.arguments.iter().map(Into::into).collect();
    spawn.env = std::env::vars_os().collect();
    spawn.input(typed.input.as_bytes())?;
    let (stop, deadline) = (stop.map(Signals::as_fd), Deadline::after(limit));
    let ended = spawn.run_unless(stop, deadline, ANSWER_BYTES)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Answer {
        success: ended.exit == Exit::Code(0),
        out: text(&ended.out),
        err: text(&ended.err),
    })
}

fn version(program: &'static str) -> String {
    let command = CommandLine::new(program, &["--version"]);
    let answer = run(&command, None, COMMAND_TIME);
    answer.map_or_else(|_| String::new(), |answer| answer.out + &answer.err)
}

fn probe_output(out: &str) -> Option<Value> {
    let mut all = out
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    all.find(|value: &Value| value.get("under_mps").is_some() || value.get("error").is_some())
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
        let marks = |probe: &Value| {
            found(probe)
                .iter()
                .map(CheckLine::status)
                .collect::<Vec<_>>()
        };
        assert_eq!(marks(&probe()), ["OK", "OK", "OK"]);
        for got in [Value::Null, 2048.into(), 100.into()] {
            let mut other = probe();
            other["gpus"][0]["allocatable_mib"] = got;
            assert_eq!(marks(&other), ["OK", "OK", "FAIL"], "{other}");
        }
        let error = "no libcuda.so.1";
        let library = serde_json::json!({"host": "gpu001", "libcuda": false, "error": error});
        let job = Pass("job: it ran on gpu001, asked with '--mps'".to_owned());
        let missing = Fail(format!("libcuda: no libcuda.so.1: {LIBCUDA}"));
        assert_eq!(found(&library), [job, missing]);
        let mut outside = probe();
        outside["under_mps"] = false.into();
        outside["error"] = "error 46".into();
        let line = &found(&outside)[1];
        assert!(line.is_wrong() && line.text().ends_with("error 46: do this"));
    }

    #[test]
    fn no_two_jobs_have_the_same_name() {
        let (one, other) = (job_name(), job_name());
        // A process id may be the same on two hosts, and is 1 in each container.
        assert_ne!(one, other);
        assert!(one.len() <= 15 && one.starts_with("mpsd-"), "{one}");
    }
}

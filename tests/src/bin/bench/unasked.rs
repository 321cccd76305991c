//! What a job that did not ask pays under PBS, in processor time: Torque's scripts against one that
//! does nothing, and OpenPBS's hook against one that does nothing, in turn.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Map, Value, json};
use tests::run::{USER, as_user, chmod};
use tests::samples::{in_turn, median, quantile, rounded};

const PROLOGUE: &str = include_str!("../../../../etc/pbs/torque/prologue");
const EPILOGUE: &str = include_str!("../../../../etc/pbs/torque/epilogue");
const STARTER: &str = include_str!("../../../../etc/pbs/torque/job-starter");
const PROGRAMS: [&str; 3] = ["mpsctl", "mps-prologue", "mps-epilogue"];
const HOOK: &str = include_str!("../../../../etc/pbs/hooks/mpsd.py");
const EMPTY_HOOK: &str = "import pbs\npbs.event().accept()\n";
/// Module 'pbs' as the hook of a job that did not ask sees it, for one event. Every hook needs
/// Python's start: not counted.
const PBS: &str = "
import sys, time, types
pbs = types.ModuleType('pbs')
class Job: Account_Name, Resource_List = 'physics', {}
class Event:
    job, type = Job(), int(sys.argv[2])
    def accept(self): pass
pbs.event, pbs.EXECJOB_END = Event, 2
sys.modules['pbs'] = pbs
text = open(sys.argv[1]).read()
before = time.process_time()
exec(compile(text, 'hook', 'exec'))
print((time.process_time() - before) * 1e3)
";
/// execjob_begin, execjob_launch and execjob_end.
const EVENTS: [&str; 3] = ["0", "1", "2"];

pub fn run(rounds: usize) -> Result<Value> {
    let dir = tempfile::tempdir()?;
    chmod(dir.path(), 0o755);
    let file = |name: &str, text: &str| -> Result<String> {
        let path = dir.path().join(name);
        fs::write(&path, text)?;
        Ok(path.display().to_string())
    };
    // No job has a directory here. Each of our programs would fail if it were started.
    let run = dir.path().join("run").display().to_string();
    let here = |text: &str| {
        let mut text = text.replace("/run/mpsd", &run);
        for program in PROGRAMS {
            text = text.replace(&format!("/usr/bin/{program}"), "/bin/false");
        }
        text
    };
    let mut all = Map::new();
    let names = ["prologue", "epilogue", "job-starter"];
    for (name, text) in names.into_iter().zip([PROLOGUE, EPILOGUE, STARTER]) {
        let empty = match name {
            "job-starter" => file("empty", "#!/bin/sh\nexec \"$@\"\n")?,
            _ => file("empty", "#!/bin/sh\nexit 0\n")?,
        };
        let ours = file(name, &here(text))?;
        let words: &[&str] = match name {
            "job-starter" => &["/usr/bin/env", "true"],
            _ => &[
                "1.srv", "alice", "alice", "job1", "4242", "nodes=1", "physics",
            ],
        };
        let times = in_turn(&[empty, ours], rounds, |script, _| {
            let mut command = match name {
                "job-starter" => as_user(USER, "/bin/sh"),
                _ => Command::new("/bin/sh"),
            };
            command.arg(script).args(words).env("PBS_JOBID", "1.srv");
            spent(&mut command)
        })?;
        all.insert(format!("torque {name}"), against(&times));
    }
    let double = file("pbs.py", PBS)?;
    let hooks = [file("empty.py", EMPTY_HOOK)?, file("hook.py", &here(HOOK))?];
    let times = in_turn(&hooks, rounds, |hook, _| {
        let events = EVENTS.iter().map(|event| -> Result<f64> {
            let mut command = Command::new("python3");
            let ran = command.args(["-I", &double, hook, event]).output()?;
            let said = String::from_utf8_lossy(&ran.stdout);
            said.trim()
                .parse()
                .with_context(|| format!("{command:?}: {ran:?}"))
        });
        events.sum::<Result<f64>>()
    })?;
    all.insert("OpenPBS hook, three events".into(), against(&times));
    let report = json!({"rounds": rounds, "processor_ms": all});
    println!("{report:#}");
    Ok(report)
}

fn spent(command: &mut Command) -> Result<f64> {
    let so_far = || -> Result<f64> {
        let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
        let times = [usage.user_time(), usage.system_time()].into_iter();
        let times = times.map(|time| time.tv_sec() as f64 * 1e3 + time.tv_usec() as f64 / 1e3);
        Ok(times.sum())
    };
    let before = so_far()?;
    command
        .current_dir(Path::new("/"))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?}: {status}");
    Ok(so_far()? - before)
}

/// What ours takes beyond nothing: the median of the rounds' differences.
fn against(times: &[Vec<f64>]) -> Value {
    let both = times[1].iter().zip(&times[0]);
    let more: Vec<f64> = both.map(|(ours, nothing)| ours - nothing).collect();
    let quartiles = [0.25, 0.75].map(|part| rounded(quantile(&more, part)));
    json!({
        "nothing": rounded(median(&times[0])), "ours": rounded(median(&times[1])),
        "more": rounded(median(&more)), "more_quartiles": quartiles,
    })
}

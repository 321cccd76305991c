//! CUDA client programs.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::child::Ran;
use tests::double::look::wait_until;

use crate::bench::{Bench, PIPE, nvidia};
use crate::processes::{Running, USER, command, spawn};

pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
const PATIENCE: Duration = Duration::from_secs(40);

#[derive(Debug)]
pub struct Client {
    program: Vec<String>,
    uid: u32,
    env: Vec<(String, String)>,
    arguments: Vec<String>,
    wrapper: Vec<String>,
}

#[derive(Debug)]
pub struct Outcome {
    pub ended: Ran,
    records: Vec<Value>,
}

#[derive(Debug)]
pub struct Holding {
    pub record: Value,
    running: Running,
}

impl Client {
    pub fn new(bench: &Bench) -> Client {
        // CUDA must find no daemon in the place where it looks without the variable.
        let nowhere = bench.dir.path().join("nowhere").display().to_string();
        Client {
            program: bench.client.clone(),
            uid: USER,
            env: vec![(PIPE.to_owned(), nowhere)],
            arguments: vec!["--json".into()],
            wrapper: Vec::new(),
        }
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.retain(|(n, _)| n != name);
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn user(mut self, uid: u32) -> Self {
        self.uid = uid;
        self
    }

    pub fn allocating(mut self) -> Self {
        self.arguments.push("--alloc=16384".into());
        self
    }

    /// The double of a rank that computes with others on several GPUs.
    pub fn paired(mut self) -> Self {
        self.arguments.push("--paired".into());
        self
    }

    pub fn on_first_gpu(mut self) -> Self {
        self.arguments.extend(["--gpu".into(), "0".into()]);
        self
    }

    pub fn holding(mut self, seconds: u32) -> Self {
        let words = ["--hold".to_owned(), seconds.to_string()];
        self.arguments.extend(words);
        self
    }

    /// Root runs it through this program, which must drop to the user itself.
    pub fn through(mut self, wrapper: &[&str]) -> Self {
        self.wrapper = wrapper.iter().map(|w| (*w).to_owned()).collect();
        self
    }

    /// It launches kernels for this many seconds; `MPS_LOAD` names the program `cuda-load`.
    pub fn working(mut self, seconds: u32) -> Self {
        let options = if nvidia() {
            let load = std::env::var("MPS_LOAD").expect("MPS_LOAD names the program cuda-load");
            self.program = vec![load];
            "--after 0 --seconds"
        } else {
            "--busy --hold"
        };
        self.arguments = options.split(' ').map(str::to_owned).collect();
        self.arguments.push(seconds.to_string());
        self
    }

    pub fn spawn(&self) -> Running {
        let env = self.env.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        let env: Vec<(&str, &str)> = env.collect();
        let words = [&self.wrapper[..], &self.program, &self.arguments].concat();
        let uid = if self.wrapper.is_empty() { self.uid } else { 0 };
        let mut command = command(&words[0], uid, &env);
        command.args(&words[1..]);
        spawn(command, "")
    }

    /// The UUIDs that it sees with this `CUDA_VISIBLE_DEVICES`, or the number of its error.
    pub fn sees(self, variable: Option<&str>) -> Result<Vec<String>, u64> {
        let with = |client: Self, value| client.env(VISIBLE, value);
        let outcome = variable.into_iter().fold(self, with).run();
        if let Some(error) = outcome.error() {
            return Err(error);
        }
        let record = outcome.record();
        assert!(under_mps(record), "{record}");
        Ok(uuids(record))
    }

    pub fn run(&self) -> Outcome {
        self.run_within(PATIENCE)
    }

    pub fn run_within(&self, limit: Duration) -> Outcome {
        Outcome::of(self.spawn().finish(limit))
    }

    pub fn hold(&self) -> Holding {
        let started = self.start();
        started.unwrap_or_else(|out| panic!("the client did not come up: {out}"))
    }

    pub fn start(&self) -> Result<Holding, String> {
        let mut running = self.spawn();
        let mut line = None;
        wait_until(PATIENCE, || {
            let over = running.ended_within(Duration::ZERO).is_some();
            let out = running.stdout_so_far();
            line = out.split_once('\n').map(|(line, _)| line.to_owned());
            line.is_some() || over
        });
        let record = line.and_then(|line| serde_json::from_str(&line).ok());
        let record: Value = record.unwrap_or_default();
        if record["gpus"].is_array() {
            return Ok(Holding { record, running });
        }
        // Its last words may be in the pipe still.
        let ended = running.finish(PATIENCE);
        Err(ended.said())
    }
}

impl Outcome {
    fn of(ended: Ran) -> Outcome {
        let lines = ended.stdout.lines();
        let records = lines.filter_map(|l| serde_json::from_str(l).ok()).collect();
        Outcome { ended, records }
    }

    /// It must have started.
    pub fn record(&self) -> &Value {
        let record = self.records.first().unwrap_or(&Value::Null);
        let is_up = record["gpus"].is_array();
        assert!(is_up, "the client did not come up: {:?}", self.ended);
        record
    }

    /// The number of the CUDA error that ended it; `None` if it ended well.
    pub fn error(&self) -> Option<u64> {
        self.records.last().and_then(|r| r["cuda"]["code"].as_u64())
    }
}

impl Holding {
    pub fn pid(&self) -> u32 {
        self.record["pid"].as_u64().expect("every record has a pid") as u32
    }

    pub fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    pub fn finish(self) -> Outcome {
        Outcome::of(self.running.finish(PATIENCE))
    }
}

pub fn under_mps(record: &Value) -> bool {
    record["under_mps"] == true
}

pub fn uuids(record: &Value) -> Vec<String> {
    let gpus = record["gpus"].as_array().expect("GPUs").iter();
    let uuids = gpus.filter_map(|gpu| gpu["uuid"].as_str());
    uuids.map(str::to_owned).collect()
}

pub fn of_first_gpu(record: &Value, name: &str) -> u64 {
    let number = record["gpus"][0][name].as_u64();
    number.unwrap_or_else(|| panic!("no {name} in {record}"))
}

/// Whether a client could allocate up to a limit in MiB, less at most what its context takes.
pub fn limited_to(record: &Value, mib: u64) -> bool {
    let got = of_first_gpu(record, "allocatable_mib");
    got <= mib && got + 256 >= mib
}

pub fn unlimited(record: &Value) -> bool {
    of_first_gpu(record, "allocatable_mib") == 16_384
}

pub fn drop_to_user() -> Vec<&'static str> {
    let setpriv = "/usr/bin/setpriv";
    assert!(Path::new(setpriv).exists(), "no setpriv of util-linux");
    let ids = ["--reuid", "54321", "--regid", "54321"];
    [&[setpriv], &ids[..], &["--clear-groups"]].concat()
}

pub fn unshared<'a>(options: &[&'a str]) -> Vec<&'a str> {
    [&["/usr/bin/unshare"], options, &drop_to_user()].concat()
}

/// A mount namespace in which a script of mounts runs first, then the user.
pub fn mounted(script: &str) -> Vec<&str> {
    unshared(&["--mount", "/bin/sh", "-e", "-c", script, "sh"])
}

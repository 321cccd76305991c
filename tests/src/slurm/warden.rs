//! The test process's side of the warden, and what it orders.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::Result;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::bed::lock;
use crate::orders::Helper;

pub const WARDEN: &str = "slurm-warden";

/// Longest time for a whole teardown, with daemons that ignore SIGTERM.
const TEARDOWN: Duration = Duration::from_secs(40);

#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Answer: its pid.
    Start {
        argv: Vec<String>,
        env: BTreeMap<String, String>,
        log: PathBuf,
    },
    /// A directory to remove at the end, with everything mounted in it.
    Remove { path: PathBuf },
    /// A cgroup to remove at the end, with those below it.
    RemoveCgroup { path: PathBuf },
    /// A process of the test itself (an `srun`) to end at the end if it still runs.
    Client {
        pid: u32,
        /// In clock ticks, so that a later process with this pid is left alone.
        start: u64,
    },
}

#[derive(Debug)]
pub struct Warden {
    pid: u32,
    helper: Mutex<Helper>,
}

impl Warden {
    /// In its own process group, so that Ctrl-C at the terminal does not reach it.
    pub fn start(program: &Path) -> Result<Warden> {
        let helper = Helper::start(Command::new(program).process_group(0))?;
        Ok(Warden {
            pid: helper.pid(),
            helper: Mutex::new(helper),
        })
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub fn tell(&self, request: &Request) -> Result<()> {
        self.ask(request)
    }

    pub fn ask<A: DeserializeOwned>(&self, request: &Request) -> Result<A> {
        lock(&self.helper).ask(request)
    }

    /// Returns what it had to kill or could not remove; later calls nothing.
    pub fn end(&self) -> Result<Vec<String>> {
        Ok(lock(&self.helper).end(TEARDOWN)?.unwrap_or_default())
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("bed: {error:#}");
        }
    }
}

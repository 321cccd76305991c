//! What the controller says of nodes and jobs, and what jobs left on the machine.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use mpsd_sys::files::Dir;

use super::bed::{Bed, lock};
use super::look::Snapshot;
use crate::double::look::{Process, descendants};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// The state with its flags, for example `IDLE+DRAIN`.
    pub state: String,
    pub reason: String,
}

impl Bed {
    pub fn node_state(&self, node: &str) -> Result<NodeState> {
        let shown = self.said(&format!("scontrol -o show node {node}"))?;
        // The reason is the last item and may hold blanks: `Reason=text [user@time]`.
        let reason = shown.split_once(" Reason=");
        Ok(NodeState {
            state: item(&shown, "State").to_owned(),
            reason: reason.map_or("", |(_, text)| text.trim()).to_owned(),
        })
    }

    /// `None` after the controller has forgotten the job.
    pub fn job(&self, id: u32) -> Result<Option<BTreeMap<String, String>>> {
        let shown = self.root(&["scontrol", "-o", "show", "job", &id.to_string()])?;
        if shown.code != Some(0) {
            return Ok(None);
        }
        let words = shown.stdout.split_whitespace();
        let items = words.filter_map(|word| word.split_once('='));
        let owned = items.map(|(key, value)| (key.to_owned(), value.to_owned()));
        Ok(Some(owned.collect()))
    }

    pub fn job_state(&self, id: u32) -> Result<String> {
        let job = self.job(id)?;
        let mut job = job.with_context(|| format!("job {id} is not known"))?;
        job.remove("JobState").context("a job without a state")
    }

    pub fn wait_job(&self, id: u32, states: &[&str], limit: Duration) -> Result<String> {
        let mut last = String::new();
        self.wait_until(&format!("job {id} in {states:?}"), limit, || {
            last = self.job_state(id)?;
            if states.contains(&last.as_str()) {
                return Ok(true);
            }
            match last.as_str() {
                "COMPLETED" | "FAILED" | "CANCELLED" | "TIMEOUT" | "NODE_FAIL" => {
                    bail!("job {id} has ended")
                }
                _ => Ok(false),
            }
        })
        .with_context(|| format!("job {id} is {last}, not {states:?}"))?;
        Ok(last)
    }

    pub fn wait_idle(&self, limit: Duration) -> Result<()> {
        self.wait_until("idle nodes", limit, || {
            let queue = self.said("squeue -h -a -o %i")?;
            let nodes = self.root(&["sinfo", "-h", "-N", "-o", "%N %T"])?;
            let nodes = nodes.success()?.stdout;
            let lines = nodes.lines().map(str::trim);
            let idle: BTreeSet<_> = lines
                .filter_map(|line| line.strip_suffix(" idle"))
                .collect();
            Ok(queue.trim().is_empty() && idle.len() == self.options.nodes)
        })
        .with_context(|| self.situation())
    }

    pub fn situation(&self) -> String {
        let said = |argv: &[&str]| self.root(argv).map(|done| done.said()).unwrap_or_default();
        said(&["squeue", "-a", "-o", "%i %j %u %T %r"]) + &said(&["sinfo", "-N", "-o", "%N %T %E"])
    }

    pub fn resume(&self, node: &str) -> Result<()> {
        self.said(&format!("scontrol update nodename={node} state=resume"))?;
        Ok(())
    }

    pub fn log(&self, node: &str) -> String {
        fs::read_to_string(self.dir.join("log").join(node)).unwrap_or_default()
    }

    pub fn snapshot(&self) -> Snapshot {
        let known = lock(&self.daemons).values().copied().collect();
        let mut roots = vec![self.run.clone()];
        roots.extend(self.cgroup.clone());
        let users = self.users.0.each_ref().map(|user| user.uid);
        Snapshot::take(&roots, &users, self.warden.pid(), &known)
    }

    /// Without the directories of a node: `run/NODE`, its `jobs`, `shared`, and `gpus` with a lock
    /// for each GPU, the users' reports, and the ledger.
    pub fn left_behind(&self) -> Vec<String> {
        let Some(baseline) = lock(&self.baseline).clone() else {
            return Vec::new();
        };
        let mut left = self.snapshot().beyond(&baseline);
        // In memory alone, as a booted machine's `/run` is.
        let keeps_reports = Dir::open(&self.run).is_ok_and(|run| run.is_tmpfs());
        let is_the_nodes = |item: &String| {
            let path = Path::new(item.strip_prefix("file ")?);
            let path = path.strip_prefix(&self.run).ok()?;
            let parts = path.iter().skip(1).filter_map(|part| part.to_str());
            Some(match parts.collect::<Vec<_>>()[..] {
                [] | ["jobs" | "shared" | "gpus" | "ledger" | ".ledger.lock"] | ["gpus", _] => true,
                ["reports", ..] => keeps_reports,
                _ => false,
            })
        };
        left.retain(|item| is_the_nodes(item) != Some(true));
        left
    }

    /// slurmstepd and the epilogue end a moment after the node is idle.
    pub fn wait_clean(&self, limit: Duration) -> Result<()> {
        let mut left = Vec::new();
        self.wait_until("nothing left behind", limit, || {
            left = self.left_behind();
            Ok(left.is_empty())
        })
        .with_context(|| format!("left behind:\n  {}", left.join("\n  ")))
    }

    /// Steps, tasks, and what these left.
    pub fn job_processes(&self) -> Vec<Process> {
        let known: BTreeSet<u32> = lock(&self.daemons).values().copied().collect();
        let mut found = descendants(self.warden.pid());
        found.retain(|process| !known.contains(&process.pid) && !process.is_zombie());
        found
    }

    pub fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(5);
        loop {
            if done()? {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("waited {} s for {what}", limit.as_secs());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }
}

fn item<'a>(shown: &'a str, key: &str) -> &'a str {
    let mut words = shown.split_whitespace();
    let found = words.find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
    found.unwrap_or_default()
}

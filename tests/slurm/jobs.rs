//! What the cells do with jobs: submit, wait for the end, read the output and the records of its
//! clients.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use tests::child::Ran;
use tests::slurm::{Client, Record, User};

use crate::runner::Context;

pub const LIMIT: Duration = Duration::from_secs(60);

pub const ONE_GPU: &str = "--mps -w node1 --gres=gpu:1";

impl Context {
    pub fn client(&self, options: &str) -> String {
        self.nodes.client(options)
    }

    /// Starts a command, split at blanks, as the cell's user. A line is added as `/bin/sh -c LINE`.
    pub fn start(&self, command: &str, line: &str) -> Result<Client> {
        self.start_as(&self.user, command, line, &[])
    }

    pub fn start_as(
        &self,
        user: &User,
        command: &str,
        line: &str,
        env: &[(&str, &str)],
    ) -> Result<Client> {
        let mut words: Vec<&str> = command.split_whitespace().collect();
        if !line.is_empty() {
            words.extend(["/bin/sh", "-c", line]);
        }
        self.bed.spawn_with(user, &words, env)
    }

    pub fn run(&self, command: &str, line: &str) -> Result<Ran> {
        self.start(command, line)?.wait(LIMIT)
    }

    pub fn records(&self, command: &str, line: &str) -> Result<Vec<Record>> {
        ended(self.start(command, line)?)
    }

    /// The records of `srun WORDS`, which runs a client with these options in each task, by node
    /// and rank.
    pub fn clients(&self, words: &str, options: &str) -> Result<Vec<Record>> {
        let mut records = self.records(&format!("srun {words}"), &self.client(options))?;
        records.sort_by_key(|record| (record.node.clone(), record.local_rank));
        Ok(records)
    }

    pub fn submit(&self, words: &str, script: &str) -> Result<u32> {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.bed.sbatch(&self.user, &words, script)
    }

    pub fn output(&self, job: u32) -> String {
        self.bed.output(&self.user, job)
    }

    pub fn batch(&self, words: &str, script: &str) -> Result<(u32, String)> {
        let job = self.submit(words, script)?;
        let ended = self.bed.wait_job(job, &["COMPLETED"], LIMIT);
        let said = self.output(job);
        match ended {
            Ok(_) => Ok((job, said)),
            Err(error) => bail!("{error:#}; the job wrote\n{said}"),
        }
    }

    pub fn root(&self, command: &str) -> Result<String> {
        self.bed.said(command)
    }

    pub fn shown(&self, job: impl std::fmt::Display) -> Result<String> {
        self.root(&format!("scontrol -o show job {job}"))
    }

    pub fn wait(&self, what: &str, holds: impl FnMut() -> Result<bool>) -> Result<()> {
        self.bed.wait_until(what, LIMIT, holds)
    }

    pub fn wait_shown(&self, job: impl std::fmt::Display, words: &[&str]) -> Result<()> {
        let mut shown = String::new();
        let waited = self.wait(&format!("job {job} with {words:?}"), || {
            shown = self.shown(&job)?;
            Ok(words.iter().all(|word| shown.contains(word)))
        });
        waited.map_err(|error| error.context(shown))
    }

    pub fn idle(&self) -> Result<()> {
        self.bed.wait_idle(LIMIT)
    }

    pub fn cancel(&self, job: impl std::fmt::Display) -> Result<()> {
        self.root(&format!("scancel {job}"))?;
        self.idle()
    }

    pub fn check_in_service(&self) -> Result<()> {
        for node in self.bed.nodes() {
            let state = self.bed.node_state(&node)?;
            let drained = state.state.contains("DRAIN");
            ensure!(!drained, "{node} is drained: {state:?}");
        }
        Ok(())
    }

    pub fn check_node1_serves(&self) -> Result<()> {
        check_daemons(&self.clients(ONE_GPU, "--hold 0.1")?, self.user.uid, 1)
    }

    /// Checks a command that is refused: it fails, no task runs, and its user reads each of the
    /// words.
    pub fn check_refused(&self, command: &str, words: &[&str]) -> Result<Ran> {
        self.check_refused_with(command, &self.client(""), &[], words)
    }

    pub fn check_refused_with(
        &self,
        command: &str,
        line: &str,
        env: &[(&str, &str)],
        words: &[&str],
    ) -> Result<Ran> {
        let client = self.start_as(&self.user, command, line, env)?;
        let done = client.wait(LIMIT)?.fails()?;
        ensure!(done.stdout.is_empty(), "a task ran: {}", done.story());
        says(&done.stderr, words)?;
        Ok(done)
    }

    pub fn mpsctl(&self) -> String {
        let product = &self.nodes.product;
        let program = product.libexec.join("mpsctl");
        let config = product.config.display();
        format!("{} --config {config}", program.display())
    }

    pub fn root_mpsctl(&self, words: &str) -> Result<Ran> {
        let line = format!("{} {words}", self.mpsctl());
        self.bed.root(&line.split_whitespace().collect::<Vec<_>>())
    }

    pub fn ready(&self, node: &str) -> Vec<String> {
        let jobs = self.bed.run_dir().join(node).join("jobs");
        let entries = std::fs::read_dir(&jobs).into_iter().flatten().flatten();
        let ready = entries.filter(|entry| {
            let record = std::fs::read_to_string(entry.path().join("record"));
            record.is_ok_and(|text| text.contains("\"ready\""))
        });
        let names = ready.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    /// Waits until this many jobs and steps on the first node have their MPS. Returns their ids.
    pub fn wait_ready(&self, count: usize) -> Result<Vec<String>> {
        self.wait("ready MPS on node1", || {
            Ok(self.ready("node1").len() == count)
        })?;
        Ok(self.ready("node1"))
    }
}

pub fn says(text: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(text.contains(word), "'{word}' is not told: {text}");
    }
    Ok(())
}

pub fn holds(so: bool, found: &dyn std::fmt::Debug) -> Result<()> {
    ensure!(so, "{found:?}");
    Ok(())
}

pub fn ended(command: Client) -> Result<Vec<Record>> {
    records(&command.wait(LIMIT)?.success()?.said())
}

pub fn records(said: &str) -> Result<Vec<Record>> {
    let records = Record::all(said)?;
    ensure!(!records.is_empty(), "no client wrote a record:\n{said}");
    Ok(records)
}

pub fn gpus(records: &[Record]) -> BTreeSet<String> {
    let uuids = records.iter().flat_map(|record| record.uuids.clone());
    uuids.collect()
}

/// Checks that every client ran under MPS as `uid`, and that those of a node shared `count`
/// daemons.
pub fn check_daemons(records: &[Record], uid: u32, count: usize) -> Result<()> {
    let mut daemons: BTreeMap<&str, BTreeSet<Option<i32>>> = BTreeMap::new();
    for record in records {
        let right = record.under_mps && record.error.is_none() && record.uid == Some(uid);
        holds(right, record)?;
        let pids = daemons.entry(&record.node).or_default();
        pids.insert(record.daemon_pid);
    }
    let right = daemons.values().all(|pids| pids.len() == count);
    ensure!(right, "{count} daemons a node expected: {daemons:?}");
    Ok(())
}

pub fn check_bare(records: &[Record]) -> Result<()> {
    holds(records.iter().all(|record| !record.under_mps), &records)
}

pub fn check_during(time: Duration, mut check: impl FnMut() -> Result<()>) -> Result<()> {
    let end = Instant::now() + time;
    while Instant::now() < end {
        check()?;
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

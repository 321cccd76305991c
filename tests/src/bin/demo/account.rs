//! The short account, and whether all of it is as promised.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tests::slurm::{Process, Record, User};

use crate::onlooker::Seen;
use crate::site::{CLIENTS, MEMORY, Site, THREADS};

/// How much less than its limit a client may allocate, in MiB: its context counts too (recorded on an H200: 145 MiB with 32
/// multiprocessors, 315 with 78), and it tries in steps of 64.
const MARGIN: u64 = 315 + 64;

/// Lines to print.
#[derive(Default)]
pub struct Account {
    lines: Vec<String>,
    checks: usize,
    broken: usize,
}

impl Account {
    /// One promise; `found` says what was there instead.
    pub fn check(&mut self, kept: bool, promise: &str, found: impl FnOnce() -> String) {
        self.checks += 1;
        if kept {
            self.lines.push(format!("  ok      {promise}"));
        } else {
            self.broken += 1;
            self.lines.push(format!("  BROKEN  {promise}: {}", found()));
        }
    }

    /// A heading, or an empty line.
    pub fn line(&mut self, text: String) {
        self.lines.push(text);
    }

    /// Whether every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.broken == 0
    }

    /// Prints it.
    pub fn print(&self, took: Duration) {
        println!("{}", self.lines.join("\n"));
        println!(
            "\n{} of {} promises kept, {:.0} s in all",
            self.checks - self.broken,
            self.checks,
            took.as_secs_f64()
        );
    }

    /// What was seen on the nodes, against what was asked for.
    pub fn nodes(&mut self, site: &Site, seen: &BTreeMap<String, Seen>, records: &[Record], user: &User) {
        let expected = site.nodes() * CLIENTS;
        self.check(
            records.len() == expected,
            &format!("{expected} clients wrote their record"),
            || format!("{} did", records.len()),
        );
        for (index, (name, seen)) in seen.iter().enumerate() {
            self.lines.push(format!("\n{name}"));
            let of_node: Vec<&Record> = records
                .iter()
                .filter(|record| record.node.is_empty() || record.node == *name)
                .collect();
            self.daemon(seen, user);
            self.limits(site, &of_node);
            self.clients(seen, &of_node, user);
            if site.double(index).is_some() {
                self.mode(seen, &of_node);
            }
        }
        self.lines.push(String::new());
    }

    fn daemon(&mut self, seen: &Seen, user: &User) {
        let took = seen
            .prologue
            .zip(seen.server_up)
            .map(|(from, to)| to.saturating_duration_since(from));
        let time = took.map_or_else(|| "?".into(), |took| took.as_millis().to_string());
        // On a busy machine a prologue may begin and end between two looks.
        self.check(
            seen.server_up.is_some(),
            &format!("daemon: server up {time} ms after the prologue began"),
            || "no server was seen".to_owned(),
        );
        let all: Vec<&Process> = seen.daemons.values().chain(seen.servers.values()).collect();
        let own = seen.daemons.len() == 1 && all.iter().all(|process| process.uid == user.uid);
        let pids = |of: &BTreeMap<i32, Process>| of.keys().map(i32::to_string).collect::<Vec<_>>().join(",");
        let (control, server) = (pids(&seen.daemons), pids(&seen.servers));
        self.check(
            own,
            &format!(
                "control daemon {control} and server {server} run as '{}'",
                user.name
            ),
            || format!("{all:?}"),
        );
    }

    fn limits(&mut self, site: &Site, records: &[&Record]) {
        let sms: BTreeSet<u64> = records
            .iter()
            .filter_map(|record| Some(record.gpus.first()?.sms))
            .collect();
        let right = match site.expected_sms() {
            Some(expected) => sms == BTreeSet::from([expected]),
            None => sms.len() == 1,
        };
        self.check(
            right,
            &format!(
                "limit: {THREADS} % of the threads gives each client {} multiprocessors",
                list(&sms)
            ),
            || format!("expected {:?}", site.expected_sms()),
        );
        let got: BTreeSet<u64> = records
            .iter()
            .filter_map(|record| record.gpus.first()?.allocatable_mib)
            .collect();
        let within = !got.is_empty() && got.iter().all(|mib| (MEMORY - MARGIN..=MEMORY).contains(mib));
        self.check(
            within,
            &format!(
                "limit: of {MEMORY} MiB each client could allocate {} MiB, its context takes the rest",
                list(&got)
            ),
            || format!("expected {} to {MEMORY}", MEMORY - MARGIN),
        );
    }

    fn clients(&mut self, seen: &Seen, records: &[&Record], user: &User) {
        let attached = records.len() == CLIENTS
            && records
                .iter()
                .all(|record| record.under_mps && record.uid == Some(user.uid))
            && records
                .iter()
                .filter_map(|record| record.server_pid)
                .all(|pid| seen.servers.contains_key(&pid));
        let pids: Vec<String> = records.iter().map(|record| record.pid.to_string()).collect();
        self.check(
            attached,
            &format!("clients {} attached to that server", pids.join(", ")),
            || format!("{records:?}"),
        );
    }

    fn mode(&mut self, seen: &Seen, records: &[&Record]) {
        let used: BTreeSet<&String> = records.iter().flat_map(|record| &record.uuids).collect();
        let turned = ["default", "exclusive_process", "default"];
        let right = !used.is_empty()
            && seen.modes.iter().all(|(uuid, modes)| match used.contains(uuid) {
                true => modes == &turned,
                false => modes == &turned[..1],
            });
        let promise =
            "compute mode: default → exclusive_process → default on the job's GPU, untouched on the other";
        self.check(right, promise, || format!("{:?}", seen.modes));
    }
}

fn list(values: &BTreeSet<u64>) -> String {
    let words: Vec<String> = values.iter().map(u64::to_string).collect();
    if words.is_empty() {
        "no".into()
    } else {
        words.join(" or ")
    }
}

//! What the tests do with a job, and how they examine it without our own code.

use serde_json::Value;
use std::path::PathBuf;
use tests::double::Builder;
use tests::mom::cluster::{Cluster, Job, Product, USER, Verdict};
use tests::mom::wire::{Ended, Run};
pub use tests::run::says;

pub fn never_ready(builder: Builder) -> Builder {
    builder.fast().fault(|faults| faults.start = "never".into())
}

pub fn torque(nodes: &[&str], config: &str) -> Cluster {
    Cluster::with(Product::Torque, nodes, Builder::fast, config)
}

pub fn openpbs(nodes: &[&str], config: &str) -> Cluster {
    Cluster::with(Product::OpenPbs, nodes, Builder::fast, config)
}

pub fn on_both(nodes: &[&str], config: &str, test: impl Fn(&mut Cluster)) {
    for make in [torque, openpbs] {
        let c = &mut make(nodes, config);
        println!("under {}", c.product.name());
        test(c);
    }
}

pub fn begins(c: &mut Cluster, job: &Job) {
    let verdict = c.begin(job);
    assert_eq!(
        verdict,
        Verdict::Runs,
        "{}: {:?}",
        job.account,
        c.output(job, 0)
    );
}

pub fn begun(c: &mut Cluster, account: &str) -> Job {
    let job = c.job(account);
    begins(c, &job);
    job
}

/// The line with which OpenPBS's hook refuses the job.
pub fn is_refused(c: &mut Cluster, job: &Job) -> String {
    begins(c, job);
    c.shell(job, "true").unwrap_err()
}

pub fn ends(c: &mut Cluster, job: &Job) {
    c.end(job, 0);
    c.is_as_before();
}

/// Runs a process on the first node to its end, which must be `code`.
pub fn run_ends(c: &mut Cluster, job: &Job, run: Run, code: i32) {
    let ended = c.nodes[0].run(run);
    if ended == Ended::Running {
        panic!(
            "it does not end:\n{}",
            c.nodes[0].sh("ps -eo pid,ppid,stat,wchan:32,args")
        );
    }
    assert_eq!(ended, Ended::Code(code), "{:?}", c.output(job, 0));
}

pub fn shell(c: &mut Cluster, job: &Job, script: &str, code: i32) {
    let run = c.shell(job, script).unwrap_or_else(|why| panic!("{why}"));
    run_ends(c, job, run, code);
}

pub fn client(c: &mut Cluster, job: &Job) -> Value {
    shell(c, job, &Cluster::client(""), 0);
    c.records(0).remove(0)
}

pub fn task(c: &mut Cluster, job: &Job, at: usize, prefix: &str) -> Result<Ended, String> {
    let words = format!("{prefix}{}", Cluster::client_on(&c.nodes[at].name));
    c.task(job, at, &words.split(' ').collect::<Vec<_>>())
}

pub fn task_client(c: &mut Cluster, job: &Job, at: usize, prefix: &str) -> Value {
    let ended = task(c, job, at, prefix);
    assert_eq!(
        ended,
        Ok(Ended::Code(0)),
        "{prefix} {:?}",
        c.output(job, at)
    );
    c.records(at).remove(0)
}

/// A task that TM starts on a node ends with 1 and does not run its program. Returns what its user
/// reads.
pub fn task_is_refused(c: &mut Cluster, job: &Job, at: usize) -> String {
    assert_eq!(task(c, job, at, ""), Ok(Ended::Code(1)));
    assert!(c.records(at).is_empty(), "the program ran");
    c.output(job, at).1
}

pub fn says_once(text: &str, words: &[&str]) {
    says(text, words);
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// Runs a command of root's on the first node. It must end with `code`, and say each of `words`.
pub fn root(c: &mut Cluster, code: i32, command: &str, words: &[&str]) -> String {
    let text = c.nodes[0].sh_exits(code, command);
    says(&text, words);
    text
}

pub fn checks(c: &mut Cluster, code: i32, words: &[&str]) -> String {
    root(c, code, "mpsctl pbs check", words)
}

/// Asserts that a client ran through a daemon of this job on this node, with these limits in force.
pub fn attached(record: &Value, job: &Job, node: &str, sms: u64, limit_mib: Option<u64>) {
    let pipe = record["pipe_directory"].as_str().unwrap_or_default();
    let of_job = format!("/run/mpsd/jobs/{}/pipe", job.id);
    assert!(pipe.starts_with(&of_job), "{record}");
    let pids = [&record["daemon_pid"], &record["server_pid"]];
    assert!(pids.iter().all(|pid| pid.is_u64()), "{record}");
    let found = serde_json::json!({
        "under_mps": true, "node": node, "host": node, "uid": USER.1, "job": job.id, "sms": sms, "memory_limit_mib": limit_mib,
    });
    for (name, value) in found.as_object().into_iter().flatten() {
        assert_eq!(&record[name], value, "{name}: {record}");
    }
}

pub fn attached_without_limits(record: &Value, job: &Job) {
    attached(record, job, "nodea", 132, None);
}

pub fn bare(record: &Value) {
    assert_eq!(record["under_mps"], false, "{record}");
    assert_eq!(record["pipe_directory"], Value::Null, "{record}");
    assert_eq!(record["error"], Value::Null, "{record}");
}

pub fn free() -> (String, String) {
    ("free".into(), String::new())
}

pub struct NoControl(PathBuf);

impl NoControl {
    pub fn on(c: &Cluster, at: usize) -> Self {
        let control = c.gpus[at].control();
        std::fs::rename(&control, control.with_extension("aside")).expect("a control daemon");
        Self(control)
    }

    pub fn repair(self) {
        std::fs::rename(self.0.with_extension("aside"), self.0).expect("a control daemon");
    }
}

//! What holds after every job, found without our own code: files, processes, compute modes, shared memory.

use serde_json::Value;
use tests::mom::cluster::{Cluster, Job};
use tests::mom::wire::{Ended, Run};

/// Everything on the cluster that a job may not change.
pub struct Before(Vec<(Vec<String>, Vec<String>, Vec<String>)>);

impl Before {
    pub fn of(cluster: &mut Cluster) -> Self {
        Self(cluster.leftovers())
    }

    /// The nodes are as they were. `/run/mpsd` itself and its empty directories belong to the suite, not to a job.
    pub fn holds(&self, cluster: &mut Cluster) {
        let ours = [
            "/run/mpsd ",
            "/run/mpsd/jobs ",
            "/run/mpsd/gpus ",
            // Copies of reports for their users.
            "/run/mpsd/reports",
            "/run/mpsd/lock ",
            "/run/mpsd/failed-starts ",
            "/run/mpsd/.failed-starts.lock ",
        ];
        for (node, (before, after)) in self.0.iter().zip(cluster.leftovers()).enumerate() {
            let new: Vec<&String> = after
                .0
                .iter()
                .filter(|line| !before.0.contains(line) && !ours.iter().any(|known| line.starts_with(known)))
                .collect();
            assert!(new.is_empty(), "left on node {node}: {new:#?}");
            assert!(after.1.is_empty(), "left on node {node}: {:#?}", after.1);
            assert_eq!(before.2, after.2, "compute modes of node {node}");
        }
    }
}

/// Runs the job's main shell to its end, which must be `code`.
pub fn shell_ends(cluster: &mut Cluster, run: Run, job: &Job, code: i32) {
    let ended = cluster.nodes[0].run(run);
    assert_eq!(ended, Ended::Code(code), "{:?}", cluster.output(job, 0));
}

/// The fake client of a node as TM starts it: no shell around it, its record in `/tmp/records`.
pub fn client_words(node: &str) -> String {
    let gpu = format!("/var/srv/pbs/gpu-{node}");
    format!("{gpu}/fake-cuda-client --node {gpu} --record /tmp/records")
}

/// Runs the fake client as a task that Torque's TM starts, behind `prefix`, with variables passed along; it must end well.
pub fn torque_client(c: &mut Cluster, job: &Job, at: usize, prefix: &str, passed: &[(&str, String)]) {
    let words = format!("{prefix}{}", client_words(&c.nodes[at].name));
    let words: Vec<&str> = words.split(' ').collect();
    let ended = c.torque_task_with(job, at, &words, passed);
    assert_eq!(ended, Ended::Code(0), "{words:?} {:?}", c.output(job, at));
}

/// A record of a client that ran through a daemon of this job on this node, with these limits in force.
pub fn attached(record: &Value, job: &Job, node: &str, sms: u64, limit_mib: Option<u64>) {
    assert_eq!(record["under_mps"], true, "{record}");
    assert_eq!(record["node"], node, "{record}");
    assert_eq!(record["host"], node, "{record}");
    assert_eq!(record["uid"], 54321, "{record}");
    assert_eq!(record["job"], job.id, "{record}");
    let pipe = record["pipe_directory"].as_str().unwrap_or_default();
    assert!(
        pipe.starts_with(&format!("/run/mpsd/jobs/{}/pipe", job.id)),
        "{record}"
    );
    assert!(
        record["daemon_pid"].is_u64() && record["server_pid"].is_u64(),
        "{record}"
    );
    assert_eq!(record["sms"], sms, "{record}");
    assert_eq!(record["memory_limit_mib"].as_u64(), limit_mib, "{record}");
}

/// A record of a client that ran without MPS.
pub fn bare(record: &Value) {
    assert_eq!(record["under_mps"], false, "{record}");
    assert_eq!(record["pipe_directory"], Value::Null, "{record}");
    assert_eq!(record["error"], Value::Null, "{record}");
}

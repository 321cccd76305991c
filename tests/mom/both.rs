//! What holds under every mom alike; each product's own file runs it on its own.

use crate::assertions::{Before, attached, bare, shell_ends};
use std::collections::BTreeSet;
use std::time::Duration;
use tests::double::look::wait_until;
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::wire::{Ended, Run, Stream};

/// Starts the job's shell, which must be let through, and waits for its end.
pub fn shell(c: &mut Cluster, job: &Job, script: &str, code: i32) {
    let run = c.shell(job, script).unwrap_or_else(|why| panic!("{why}"));
    shell_ends(c, run, job, code);
}

/// Accounts that ask for nothing, one of which holds our letters.
pub fn plain_jobs_are_untouched(c: &mut Cluster, id: &str) {
    let before = Before::of(c);
    for account in ["", "proj1", "MPSLAB", "mps_physics"] {
        let job = Job::new(id, account);
        assert_eq!(c.begin(&job), Verdict::Runs, "{account}");
        before.holds(c);
        shell(c, &job, &Cluster::client(""), 0);
        bare(&c.records(0)[0]);
        assert_eq!(c.output(&job, 0).1, "", "{account}");
        c.end(&job, 0);
        let home = c.product.home();
        c.nodes[0].sh(&format!("rm -f {home}/spool/*"));
    }
    before.holds(c);
}

/// Four ranks of `MPS=per-gpu,MPS_THREADS=25:50` on two GPUs, each told its number in `rank`.
pub fn a_daemon_for_each_gpu_and_a_list_by_rank(c: &mut Cluster, id: &str, rank: &str) -> Job {
    let job = Job::new(id, "MPS=per-gpu,MPS_THREADS=25:50").on(&[&[0, 1]]);
    assert_eq!(c.begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let client = Cluster::client("--hold 0.2");
    let bare = Cluster::client("");
    let ranks =
        format!("{bare} && exit 9; for r in 0 1 2 3; do {rank}=$r mpsctl exec -- {client} & done; wait");
    shell(c, &job, &ranks, 0);
    let mut records = c.records(0);
    let outside = records.remove(0);
    assert_eq!(outside["under_mps"], false, "{outside}");
    assert!(
        outside["error"].to_string().contains("100"),
        "no device: {outside}"
    );
    let told = c.output(&job, 0).1;
    assert!(told.contains("a program without a rank sees no GPU"), "{told}");
    assert_eq!(records.len(), 4, "{:?}", c.output(&job, 0));
    let uuids = c.gpus[0].uuids();
    for record in &records {
        let rank = usize::try_from(record["local_rank"].as_u64().unwrap()).unwrap();
        attached(record, &job, "nodea", if rank % 2 == 0 { 32 } else { 66 }, None);
        assert_eq!(record["visible"], uuids[rank % 2], "{record}");
        let pipe = record["pipe_directory"].as_str().unwrap();
        assert!(pipe.ends_with(&format!("/pipe-{}", rank % 2)), "{record}");
    }
    let daemons: BTreeSet<u64> = records.iter().filter_map(|r| r["daemon_pid"].as_u64()).collect();
    assert_eq!(daemons.len(), 2);
    job
}

/// Five ranks behind one daemon: the job's shell sees both GPUs, each rank its own first, and a rank by the numbers that a
/// program reads the same.
pub fn ranks_are_bound(c: &mut Cluster, id: &str, rank: &str, size: &str) {
    let before = Before::of(c);
    let job = Job::new(id, "MPS=true,MPS_BIND=block+peers").on(&[&[0, 1]]);
    assert_eq!(c.begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let client = Cluster::client("");
    let own = format!("{size}=5 mpsctl exec -- {client}");
    let ranks = format!("for r in 0 1 2 3 4; do {rank}=$r {own}; done");
    let again = format!("{rank}=4 {size}=5 mpsctl exec -- mpsctl exec -- {client}");
    shell(c, &job, &format!("{client}; {ranks}; {again}"), 0);
    let records = c.records(0);
    let uuids = c.gpus[0].uuids();
    let order = |first: usize| serde_json::json!([uuids[first], uuids[1 - first]]);
    let seen: Vec<_> = records.iter().map(|record| record["uuids"].clone()).collect();
    let expected = [0, 0, 0, 0, 1, 1, 1].map(order);
    assert_eq!(seen, expected, "{:?}", c.output(&job, 0));
    for record in &records {
        attached(record, &job, "nodea", 132, None);
    }
    c.end(&job, 0);
    before.holds(c);
}

/// A client that `mpsctl exec` does not start has no rank: it is attached, with the lowest limit of the list.
pub fn a_rank_nobody_told_has_the_lowest_of_a_list(c: &mut Cluster, id: &str) {
    let before = Before::of(c);
    let job = Job::new(id, "MPS=true,MPS_THREADS=50:25,MPS_MEM=4G:2G");
    assert_eq!(c.begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let client = Cluster::client("");
    let told = format!("OMPI_COMM_WORLD_LOCAL_RANK=0 mpsctl exec -- {client}");
    shell(c, &job, &format!("{client}; {told}"), 0);
    let records = c.records(0);
    attached(&records[0], &job, "nodea", 32, Some(2048));
    attached(&records[1], &job, "nodea", 66, Some(4096));
    c.end(&job, 0);
    before.holds(c);
}

/// Nothing that we started keeps the terminal, or a descriptor of the prologue's: `qsub -I` would hang.
pub fn an_interactive_job_ends_with_its_user(c: &mut Cluster, job: &Job, prologue: Option<Run>) {
    let before = Before::of(c);
    let prologue = match prologue {
        Some(run) => {
            let prologue = c.nodes[0].start(run).unwrap();
            assert_eq!(c.nodes[0].wait(prologue, 20_000), Ended::Code(0));
            Some(prologue)
        }
        None => {
            assert_eq!(c.begin(job), Verdict::Runs);
            None
        }
    };
    let run = c.shell(job, &Cluster::client("")).unwrap();
    let shell = c.nodes[0]
        .start(Run {
            stdout: Stream::Terminal,
            stderr: Stream::Terminal,
            ..run
        })
        .unwrap();
    assert_eq!(c.nodes[0].wait(shell, 20_000), Ended::Code(0));
    attached(&c.records(0)[0], job, "nodea", 132, None);
    let held = c.nodes[0].is_held(prologue.unwrap_or(shell));
    assert!(!held, "a daemon holds qsub's socket or its terminal");
    c.end(job, 0);
    before.holds(c);
}

/// The mom's cgroup is killed under a job with a client before and one after.
pub fn restarting_the_mom_leaves_a_running_job_attached(c: &mut Cluster, id: &str) {
    let before = Before::of(c);
    let job = Job::new(id, "MPS=true");
    assert_eq!(c.begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let script = format!("{}; {}", Cluster::client("--busy --hold 1"), Cluster::client(""));
    let run = c.shell(&job, &script).unwrap();
    let shell = c.nodes[0].start(run).unwrap();
    let runs = || c.nodes[0].sh("ps -e -o args=").contains("--busy --hold 1");
    assert!(
        wait_until(Duration::from_secs(30), runs),
        "the job does not begin"
    );
    c.nodes[0].kill_mom();
    assert_eq!(
        c.nodes[0].wait(shell, 20_000),
        Ended::Code(0),
        "{:?}",
        c.output(&job, 0)
    );
    let records = c.records(0);
    assert_eq!(records.len(), 2);
    records
        .iter()
        .for_each(|record| attached(record, &job, "nodea", 132, None));
    assert_eq!(records[0]["daemon_pid"], records[1]["daemon_pid"]);
    c.end(&job, 0);
    before.holds(c);
}

/// Four tasks on a GPU that takes three clients: the job runs, and its error file says so once, whatever the job starts.
pub fn too_many_tasks_are_told_once(product: Product, id: &str) {
    let mut c = Cluster::with(product, &["nodea"], |builder| builder.fast(), "max_clients = 3\n");
    let before = Before::of(&mut c);
    let job = Job::new(id, "MPS=true");
    assert_eq!(c.begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let client = Cluster::client("");
    shell(
        &mut c,
        &job,
        &format!("{client}; eval \"$(mpsctl env)\"; mpsctl exec -- {client}"),
        0,
    );
    let told = c.output(&job, 0).1;
    let line = "a GPU takes 3 MPS clients, and this job has 4 tasks on each";
    assert!(told.lines().count() == 1 && told.contains(line), "{told}");
    c.end(&job, 0);
    before.holds(&mut c);
}

//! Jobs of one user that share an MPS, because PBS may give their GPU to several jobs.

use crate::jobs::{NoControl, begins, client, ends, openpbs, says, task_client, torque};
use serde_json::{Value, json};
use std::time::Duration;
use tests::double::Builder;
use tests::double::look::wait_until;
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::wire::Ended;

/// Under Torque each job says that it shares its GPU; under OpenPBS the site does. `auto` limits
/// nothing here.
fn on_both(names: &[&str], test: impl Fn(&mut Cluster)) {
    let auto = "\n[defaults]\nmem = \"auto\"\n";
    let shared = "\n[[node]]\nhosts = \"nodea,nodeb\"\nshared_gpus = true\n";
    test(&mut torque(names, auto));
    test(&mut openpbs(names, &format!("{auto}{shared}")));
}

fn sharing(c: &mut Cluster, account: &str) -> Job {
    c.job(account).shared()
}

fn begun(c: &mut Cluster, account: &str) -> Job {
    let job = sharing(c, account);
    begins(c, &job);
    job
}

/// The pid of the daemon that serves a client of the job. Asserts that it is the user's shared
/// daemon on the first GPU.
fn shared_daemon(c: &mut Cluster, job: &Job) -> u64 {
    let record = client(c, job);
    is_shared(c, job, &record);
    record["daemon_pid"].as_u64().expect("a daemon")
}

fn is_shared(c: &Cluster, job: &Job, record: &Value) {
    let at = c.nodes.iter().position(|node| record["node"] == node.name);
    let gpu = &c.gpus[at.expect("a node")].uuids()[0];
    let directory = format!("/run/mpsd/shared/{}-{gpu}/", job.user.1);
    let pipe = record["pipe_directory"].as_str().unwrap_or_default();
    assert!(pipe.starts_with(&directory), "{record}");
    let found = json!([record["under_mps"], record["job"], record["uid"]]);
    assert_eq!(found, json!([true, job.id, job.user.1]), "{record}");
}

/// Starts a client that works for so long, as the job's main shell, and waits until it does.
fn working(c: &mut Cluster, job: &Job, seconds: &str) -> i32 {
    let run = c.shell(job, &Cluster::client(&format!("--busy --hold {seconds}")));
    let pid = c.nodes[0].start(run.unwrap()).unwrap();
    let works = wait_until(Duration::from_secs(20), || {
        c.nodes[0].read("/tmp/records").is_some()
    });
    assert!(works, "{:?}", c.output(job, 0));
    c.records(0);
    pid
}

/// The job's end ends its client, which was at work until then.
fn ends_at_work(c: &mut Cluster, job: &Job) {
    c.end(job, 265);
    let told = wait_until(Duration::from_secs(10), || {
        c.nodes[0].read("/tmp/records").is_some()
    });
    assert!(told, "a client of job {} works on", job.id);
    let error = c.records(0).remove(0)["error"].to_string();
    says(&error, &["cudaErrorMpsClientTerminated"]);
}

#[test]
fn jobs_of_a_user_share_a_daemon_in_any_order() {
    on_both(&["nodea"], |c| {
        for orders in [[[0, 1], [0, 1]], [[0, 1], [1, 0]], [[1, 0], [0, 1]]] {
            let jobs = ["MPS=true,MPS_THREADS=25,MPS_MEM=2G", "MPS=true"];
            let jobs = jobs.map(|account| sharing(c, account));
            let [begin, end] = orders;
            for at in begin {
                begins(c, &jobs[at]);
            }
            assert_eq!(c.gpus[0].modes(), ["default", "default"]);
            let records = [0, 1].map(|at| client(c, &jobs[at]));
            for (job, record) in jobs.iter().zip(&records) {
                is_shared(c, job, record);
            }
            let of = |name: &str| [0, 1].map(|at| records[at][name].clone());
            assert_eq!(of("sms"), [32, 132], "{orders:?}");
            let limits = of("memory_limit_mib");
            assert_eq!(limits, [2048.into(), Value::Null], "{orders:?}");
            let [daemon, other] = of("daemon_pid");
            assert_eq!(daemon, other, "{orders:?}");
            c.end(&jobs[end[0]], 0);
            let last = &jobs[end[1]];
            assert_eq!(shared_daemon(c, last), daemon, "{orders:?}");
            assert_eq!(c.told(last), "");
            ends(c, last);
        }
    });
}

/// A restart of the mom kills the mom's cgroup, but no MPS. Later the server forgets one job, for
/// which no epilogue runs.
#[test]
fn a_mom_and_a_job_that_are_killed_take_no_other_job_along() {
    on_both(&["nodea"], |c| {
        let jobs = [begun(c, "MPS=true"), begun(c, "MPS=true")];
        let daemon = shared_daemon(c, &jobs[0]);
        let works = [0, 1].map(|at| working(c, &jobs[at], "60"));
        c.nodes[0].kill_mom();
        for (job, works) in jobs.iter().zip(works) {
            let now = c.nodes[0].wait(works, 0);
            assert_eq!(now, Ended::Running, "{:?}", c.output(job, 0));
        }
        c.nodes[0].signal(works[0], 9);
        // The job's client has lost its parent and still works. The job's end ends this client, and
        // not the other's.
        ends_at_work(c, &jobs[0]);
        let clients = c.nodes[0].sh("ps -eo args= | grep -c '^[^ ]*/cuda-client-double'");
        assert_eq!(clients.trim(), "1");
        assert_eq!(c.nodes[0].wait(works[1], 0), Ended::Running);
        assert_eq!(shared_daemon(c, &jobs[1]), daemon);
        if c.product == Product::Torque {
            let forgotten = begun(c, "MPS=true");
            c.torque_status(&forgotten, "job_state = R", "job_state = C");
            c.nodes[0].sh(&format!(
                "rm /var/spool/torque/mom_priv/jobs/{}.JB; mpsctl reconcile",
                forgotten.id
            ));
            let sharers = c.nodes[0].sh("cat /run/mpsd/shared/.*.sharers");
            let has = [&jobs[1], &forgotten].map(|job| sharers.contains(&job.id));
            assert_eq!(has, [true, false], "{sharers}");
        }
        assert_eq!(shared_daemon(c, &jobs[1]), daemon);
        ends_at_work(c, &jobs[1]);
        c.is_as_before();
    });
}

/// A user can trace a process in that cgroup and start a program there, which would outlive the
/// limits of the job.
#[test]
fn what_a_user_brings_into_its_cgroup_ends_when_a_job_leaves() {
    let c = &mut torque(&["nodea"], "");
    let jobs = [begun(c, "MPS=true"), begun(c, "MPS=true")];
    let daemon = shared_daemon(c, &jobs[0]);
    let brought = |c: &mut Cluster| {
        let sleeper = c.user_process(&jobs[0], 0, &["/bin/sleep", "60"]);
        let sleeper = c.nodes[0].start(sleeper).unwrap();
        c.nodes[0].sh(&format!(
            "cd /sys/fs/cgroup; for top in . unified systemd; do \
                 own=$(grep -E '^(0:|[0-9]*:name=systemd)' /proc/{daemon}/cgroup | cut -d: -f3 | sort | tail -n 1); \
                 echo {sleeper} >$top/$own/cgroup.procs && exit 0; done 2>/dev/null; exit 1"
        ));
        sleeper
    };
    let sleepers = [brought(c), brought(c)];
    // The daemon starts another server, which root has not proved.
    let server = |c: &mut Cluster| {
        c.nodes[0].sh("ps -C nvidia-cuda-mps-server -o pid= --sort=pid | tail -n 1")
    };
    let first = server(c);
    c.nodes[0].sh(&format!("kill -9 {first}"));
    shared_daemon(c, &jobs[1]);
    let again = server(c);
    assert_ne!(first, again);
    c.end(&jobs[0], 0);
    for sleeper in sleepers {
        assert_eq!(c.nodes[0].wait(sleeper, 2000), Ended::Signal(9));
    }
    assert_eq!(server(c), again);
    assert_eq!(shared_daemon(c, &jobs[1]), daemon);
    ends(c, &jobs[1]);
}

/// It waits longer for this lock than for any other.
#[test]
fn a_job_waits_for_the_slow_begin_of_another() {
    let slow = |node: Builder| node.fast().times(|times| times.server_ready = (7000, 7000));
    let mut c = Cluster::with(Product::Torque, &["nodea"], slow, "");
    let jobs = ["MPS=true"; 2].map(|account| sharing(&mut c, account));
    c.torque_files(&jobs[0]);
    let run = c.torque_run(&jobs[0], 0, "prologue", None);
    let prologue = c.nodes[0].start(run).unwrap();
    let begins_it = wait_until(Duration::from_secs(30), || {
        let shared = c.nodes[0].sh("ls -A /run/mpsd/shared || :");
        shared.contains(".sharers")
    });
    assert!(begins_it, "it does not begin");
    begins(&mut c, &jobs[1]);
    assert_eq!(c.nodes[0].wait(prologue, 10_000), Ended::Code(0));
    let daemons = [0, 1].map(|at| shared_daemon(&mut c, &jobs[at]));
    assert_eq!(daemons[0], daemons[1]);
    c.end(&jobs[0], 0);
    ends(&mut c, &jobs[1]);
}

/// Also on a sister, and if a job fails to begin on the first node: Torque then runs no epilogue on
/// the sister.
#[test]
fn jobs_of_two_nodes_share_a_daemon_on_each() {
    on_both(&["nodea", "nodeb"], |c| {
        let pair = |c: &mut Cluster| sharing(c, "MPS=true,MPS_THREADS=50").on(&[&[0], &[0]]);
        let (first, second, third) = (pair(c), pair(c), pair(c));
        begins(c, &first);
        begins(c, &second);
        let on_sister = |c: &mut Cluster, job: &Job| {
            let record = task_client(c, job, 1, "");
            is_shared(c, job, &record);
            record["daemon_pid"].clone()
        };
        let daemon = on_sister(c, &first);
        assert_eq!(on_sister(c, &second), daemon);
        c.end(&first, 0);
        let fault = NoControl::on(c, 0);
        assert_eq!(c.begin(&third), Verdict::Requeued);
        let left = wait_until(Duration::from_secs(20), || {
            !c.nodes[1].sh("ls /run/mpsd/jobs").contains(&third.id)
        });
        assert!(left, "{} is still there", third.id);
        fault.repair();
        assert_eq!(on_sister(c, &second), daemon);
        ends(c, &second);
    });
}

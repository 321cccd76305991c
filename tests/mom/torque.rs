//! Torque: how it numbers GPUs, what a failure does to a job and its nodes, and Torque's own
//! faults.

use crate::jobs::{
    NoControl, begins, begun, checks, client, ends, free, never_ready, says, torque,
};
use std::time::{Duration, Instant};
use tests::double::Builder;
use tests::double::look::wait_until;
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::torque::hang_up;
use tests::mom::wire::{Ended, Run};

/// A node whose mom kills a prologue and an epilogue after 8 s.
fn with_a_short_alarm(gpus: impl Fn(Builder) -> Builder, config: &str) -> Cluster {
    let mut c = Cluster::with(Product::Torque, &["nodea"], gpus, config);
    c.nodes[0].sh("echo '$prologalarm 18' >>/var/spool/torque/mom_priv/config");
    c
}

/// Runs one of the scripts on a node; it must end with `code`. An epilogue gets the job's exit
/// code.
fn script_ends(c: &mut Cluster, job: &Job, at: usize, name: &str, of_job: Option<i32>, code: i32) {
    let ended = c.torque_script(job, at, name, of_job);
    assert_eq!(ended, Ended::Code(code), "{name}: {:?}", c.output(job, at));
}

/// Torque confines no task. Its number is CUDA's index, not the number in the device file's name.
#[test]
fn a_gpu_number_is_the_index_that_cuda_counts() {
    let crossed = |node: Builder| {
        node.describe(|node| {
            for (gpu, minor) in node.gpu.iter_mut().zip([1, 0]) {
                gpu.minor = Some(minor);
            }
        })
    };
    let mut c = Cluster::with(Product::Torque, &["nodea"], crossed, "");
    let mut found = Vec::new();
    for (account, modes) in [
        ("", ["default", "default"]),
        ("MPS=true", ["default", "exclusive_process"]),
    ] {
        let job = c.job(account).on(&[&[1]]);
        begins(&mut c, &job);
        assert_eq!(c.gpus[0].modes(), modes, "{account}");
        let record = client(&mut c, &job);
        assert_eq!(record["under_mps"], !account.is_empty());
        found.push(record["uuids"].clone());
        ends(&mut c, &job);
    }
    assert_eq!(found[0], found[1]);
}

/// If no record can be left, or our starter is missing, nothing else could tell why: Torque never
/// delivers the job's output.
#[test]
fn a_refused_job_is_aborted_if_its_tasks_could_not_tell_why() {
    let mut c = torque(&["nodea"], "");
    let job = c.job("MPS=true,MPS_THREADS=101");
    c.nodes[0].sh("echo x >/run/mpsd");
    assert_eq!(c.begin(&job), Verdict::Aborted);
    c.nodes[0].sh("rm /run/mpsd; mpsctl pbs uninstall || :");
    hang_up(&mut c.nodes[0]);
    c.nodes[0].sh("mpsctl pbs uninstall; mpsctl pbs install --no-job-starter");
    c.mark();
    assert_eq!(c.begin(&job), Verdict::Aborted);
    says(&c.told(&job), &["MPS_THREADS=101"]);
    let comment = c.served(&format!("comments/{}", job.id));
    says(&comment, &["MPS refused: MPS_THREADS=101: "]);
    std::fs::remove_dir_all(c.server().join("comments")).unwrap();
    let interactive = c.job("MPS=maybe").interactive();
    assert_eq!(c.begin(&interactive), Verdict::Aborted);
    assert!(!c.server().join("comments").exists(), "its terminal has it");
    c.is_as_before();
}

#[test]
fn a_prologue_that_may_not_drain_its_node_holds_its_exit_back() {
    let mut c = with_a_short_alarm(Builder::fast, "");
    c.serve("operators", "root@elsewhere\n");
    let _fault = NoControl::on(&c, 0);
    let job = c.job("MPS=true");
    c.torque_files(&job);
    let started = Instant::now();
    script_ends(&mut c, &job, 0, "prologue", None, 2);
    assert!(started.elapsed().as_secs() >= 2, "{:?}", started.elapsed());
    assert_eq!(c.state("nodea"), free());
    says(&c.told(&job), &["operators += root@nodea"]);
    let call = format!("pbsnodes -o -N mpsd: job {}", job.id);
    says(&c.served("calls"), &[&call]);
}

/// The mom waits for the parent, whose child does the work. Torque takes an end by a signal for
/// success.
#[test]
fn a_prologue_whose_worker_dies_of_a_signal_fails() {
    let mut c = Cluster::with(Product::Torque, &["nodea"], never_ready, "");
    let job = c.job("MPS=true");
    c.torque_files(&job);
    let run = c.torque_run(&job, 0, "prologue", None);
    let prologue = c.nodes[0].start(run).unwrap();
    let mut worker: Option<i32> = None;
    let begun = wait_until(Duration::from_secs(30), || {
        let children = format!("ps --ppid {prologue} -o pid= -o comm= | grep mps-prologue || :");
        let shown = c.nodes[0].sh(&children);
        let first = shown.split_whitespace().next();
        worker = first.and_then(|pid| pid.parse().ok());
        worker.is_some() && c.nodes[0].sh("ls /run/mpsd/jobs || :").contains(&job.id)
    });
    assert!(begun, "the start does not begin");
    c.nodes[0].signal(worker.unwrap(), 9);
    let ended = c.nodes[0].wait(prologue, 30_000);
    assert_eq!(ended, Ended::Code(2), "{:?}", c.output(&job, 0));
    c.torque_script(&job, 0, "epilogue", Some(-14));
    c.is_as_before();
    // A user's own daemon that does not start proves nothing.
    assert_eq!(c.state("nodea"), free());
}

/// Otherwise the mom's SIGKILL would end them after 8 s.
#[test]
fn a_start_that_hangs_and_an_end_that_its_user_holds_up_end_below_the_moms_limit() {
    let mut c = with_a_short_alarm(never_ready, "");
    let job = c.job("MPS=true");
    c.torque_files(&job);
    script_ends(&mut c, &job, 0, "prologue", None, 2);
    c.torque_script(&job, 0, "epilogue", Some(-14));
    c.is_as_before();
    let mut c = with_a_short_alarm(Builder::fast, "deadline_s = 60\n");
    let job = begun(&mut c, "MPS=true");
    c.nodes[0].sh(
        "for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in \
         mpsd|nvidia-cuda-mps*) kill -STOP ${p#/proc/};; esac; done",
    );
    script_ends(&mut c, &job, 0, "epilogue", Some(0), 0);
    ends(&mut c, &job);
}

/// Torque takes a sister down if its prologue.parallel fails, and a user can make a start fail.
#[test]
fn a_start_that_fails_on_a_sister_is_told_by_its_tasks_and_does_not_take_it_down() {
    let (nodes, config) = (&["nodea", "nodeb"], "deadline_s = 3\n");
    let mut c = Cluster::with(Product::Torque, nodes, never_ready, config);
    let job = c.job("MPS=true").on(&[&[0], &[0]]);
    c.torque_files(&job);
    script_ends(&mut c, &job, 1, "prologue.parallel", None, 0);
    assert_eq!(c.state("nodeb"), free());
    assert_ne!(c.task(&job, 1, &["/bin/true"]), Ok(Ended::Code(0)));
    says(&c.output(&job, 1).1, &[&format!("job {}", job.id), "MPS"]);
    c.torque_script(&job, 1, "epilogue.parallel", Some(0));
    c.is_as_before();
}

/// pbs_sched deletes a job if its nodes are down, but keeps a job that waits for an offline node.
#[test]
fn a_fault_on_a_sister_requeues_the_job_and_takes_the_sister_offline_and_not_down() {
    for named in [false, true] {
        let mut c = torque(&["nodea", "nodeb"], "deadline_s = 5\n");
        let _fault = NoControl::on(&c, 1);
        let job = Job {
            named,
            ..c.job("MPS=true").on(&[&[0], &[0]])
        };
        assert_eq!(c.begin(&job), Verdict::Requeued, "{:?}", c.output(&job, 0));
        let reason = format!("mpsd: job {}: ", job.id);
        let (state, note) = c.state("nodeb");
        assert_eq!(state, "offline");
        assert!(note.starts_with(&reason), "{note}");
        assert_eq!(c.state("nodea"), free());
        says(&c.told(&job), &[&format!("node 'nodeb': {reason}")]);
        // Torque runs no epilogue on the sister. The next job's start there removes the record.
        let next = c.job("").on(&[&[], &[]]);
        c.torque_files(&next);
        script_ends(&mut c, &next, 1, "prologue.parallel", None, 0);
        c.is_as_before();
    }
}

#[test]
fn a_script_with_a_wrong_mode_requeues_and_check_says_so() {
    let mut c = torque(&["nodea"], "");
    c.nodes[0].sh("chmod 0722 /var/spool/torque/mom_priv/prologue");
    let job = c.job("proj1");
    assert_eq!(c.begin(&job), Verdict::Requeued);
    let line = "FAIL  '/var/spool/torque/mom_priv/prologue' has owner 0 and mode 0722";
    checks(&mut c, 2, &[line]);
    c.nodes[0].sh("mpsctl pbs install; mpsctl pbs check");
}

#[test]
fn a_missing_program_holds_a_job_that_asks_and_no_other() {
    let mut c = torque(&["nodea"], "[pbs]\nauto_queues = [\"gpus\"]\n");
    c.nodes[0].sh("rm /usr/bin/mps-prologue");
    begun(&mut c, "proj1");
    let of_queue = c.job("").in_queue("gpus");
    begins(&mut c, &of_queue);
    let job = c.job("MPS=true");
    let run = Run {
        limit_ms: 1500,
        ..c.torque_run(&job, 0, "prologue", None)
    };
    // It holds the job back, because Torque would try again at once.
    assert_eq!(c.nodes[0].run(run), Ended::Limit);
    let why = "'/usr/bin/mps-prologue' is not installed on this node";
    says(&c.told(&job), &[why]);
}

/// A sister whose job failed to begin and whose watching process is gone. Torque runs no epilogue
/// there.
fn leaked(c: &mut Cluster) -> (Job, NoControl) {
    let job = c.job("MPS=true").on(&[&[0], &[1]]);
    let fault = NoControl::on(c, 0);
    assert_eq!(c.torque_join(&job), Verdict::Runs);
    let watches = c.nodes[1].sh("ps -C mps-prologue -o pid=");
    for pid in watches.split_whitespace() {
        c.nodes[1].signal(pid.parse().unwrap(), 9);
    }
    assert_eq!(c.torque_start(&job), Verdict::Requeued);
    assert_eq!(c.gpus[1].modes()[1], "exclusive_process");
    (job, fault)
}

#[test]
fn a_leaked_sister_is_reconciled_once_the_server_no_longer_has_the_job() {
    let mut c = torque(&["nodea", "nodeb"], "");
    let (job, fault) = leaked(&mut c);
    c.torque_status(&job, "job_state = Q", "job_state = R");
    let (_, said) = c.nodes[1].try_sh("mpsctl reconcile");
    assert_eq!(c.gpus[1].modes()[1], "exclusive_process", "{said}");
    c.torque_status(&job, "job_state = R", "job_state = Q");
    c.nodes[1].sh("mpsctl reconcile");
    assert_eq!(c.state("nodea").0, "offline");
    fault.repair();
    c.nodes[0].sh("mpsctl undrain");
    assert_eq!(c.state("nodea"), free());
    c.is_as_before();
}

#[test]
fn a_leaked_sister_is_clean_when_the_next_job_begins_there() {
    for (account, modes) in [
        ("proj1", ["default", "default"]),
        ("MPS=true", ["exclusive_process", "default"]),
    ] {
        let mut c = torque(&["nodea", "nodeb"], "");
        let (job, _fault) = leaked(&mut c);
        let next = c.job(account).on(&[&[], &[0]]);
        c.torque_files(&next);
        script_ends(&mut c, &next, 1, "prologue.parallel", None, 0);
        assert_eq!(c.gpus[1].modes(), modes, "{account}");
        let jobs = c.nodes[1].sh("ls /run/mpsd/jobs");
        assert!(!jobs.contains(&job.id), "{account}");
        c.torque_script(&next, 1, "epilogue.parallel", Some(0));
        c.is_as_before();
    }
}

#[test]
fn a_sister_of_a_job_that_does_not_begin_ends_its_mps_by_itself() {
    let mut c = torque(&["nodea", "nodeb"], "");
    let _fault = NoControl::on(&c, 0);
    let job = c.job("MPS=true").on(&[&[0], &[1]]);
    assert_eq!(c.begin(&job), Verdict::Requeued);
    let left = "ls /run/mpsd/jobs; ps -C mps-prologue -o pid= || :";
    let is_back = wait_until(Duration::from_secs(20), || c.nodes[1].sh(left).is_empty());
    assert!(is_back, "left: {}", c.nodes[1].sh(left));
    c.is_as_before();
}

/// Torque takes a sister down if its epilogue.parallel fails, and a user can keep an epilogue from
/// ending.
#[test]
fn an_epilogue_that_cannot_end_a_job_does_not_take_its_node_down() {
    let mut c = torque(&["nodea", "nodeb"], "deadline_s = 6\n");
    let job = c.job("MPS=true").on(&[&[0], &[1]]);
    begins(&mut c, &job);
    let lock = format!("/run/mpsd/jobs/.{}.lock", job.id);
    c.nodes[1].sh(&format!(
        "setsid flock {lock} sleep 60 >/dev/null 2>&1 & echo $! >/tmp/holder; \
         for try in $(seq 300); do flock -n {lock} true || exit 0; sleep 0.1; done; exit 1"
    ));
    c.end(&job, 0);
    let kept = c.nodes[1].sh("ls /run/mpsd/jobs");
    assert_ne!(kept, "", "its end was kept from it");
    assert_eq!(c.state("nodeb"), free());
    c.nodes[1].sh("pid=$(cat /tmp/holder); kill -9 $(ps --ppid $pid -o pid=) $pid; rm /tmp/holder");
    std::fs::remove_file(c.server().join("jobs").join(&job.id)).unwrap();
    c.nodes[1].sh("mpsctl reconcile");
    c.is_as_before();
}

#[test]
fn a_job_that_does_not_ask_starts_no_program_beside_a_job_with_mps() {
    let mut c = torque(&["nodea", "nodeb"], "");
    for (id, gpu) in [("27.vm", 0), ("30[12].vm", 1)] {
        begins(&mut c, &Job::new(id, "MPS=true").on(&[&[gpu], &[gpu]]));
    }
    let plain = Job::new("28.vm", "proj1").on(&[&[], &[]]);
    for (at, scripts) in [
        (0, ["prologue", "epilogue"]),
        (1, ["prologue.parallel", "epilogue.parallel"]),
    ] {
        for program in ["/usr/bin/mps-prologue", "/usr/bin/mps-epilogue"] {
            c.nodes[at].sh(&format!("rm {program}"));
            let text = "#!/bin/sh\necho called >/root/called\n";
            c.nodes[at].write(program, text, 0o755);
        }
        for (script, code) in scripts.into_iter().zip([None, Some(0)]) {
            assert_eq!(c.torque_script(&plain, at, script, code), Ended::Code(0));
            assert_eq!(c.nodes[at].read("/root/called"), None, "{script}");
        }
    }
}

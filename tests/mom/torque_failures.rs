//! Torque: what the user typed, what the node lacks, and what Torque itself gets wrong.

use crate::assertions::{Before, attached, shell_ends};
use std::time::{Duration, Instant};
use tests::double::look::wait_until;
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::wire::{Ended, Run};

fn cluster(names: &[&str]) -> Cluster {
    Cluster::new(Product::Torque, names)
}

#[test]
fn a_refusal_is_told_in_the_jobs_own_error_file_and_its_script_never_runs() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    for (account, word) in [
        ("MPS=true,MPS_THREADS=101", "MPS_THREADS=101"),
        ("MPS=maybe", "MPS=maybe"),
        ("MPS_FOO=1", "MPS_FOO=1"),
    ] {
        let job = Job::new("10.vm", account);
        let begun = c.torque_begin(&job);
        assert_eq!(
            begun,
            Verdict::Runs,
            "aborted, its output would never be delivered: {account}"
        );
        let run = c.torque_shell(&job, "echo ran");
        shell_ends(&mut c, run, &job, 1);
        let (out, err) = c.output(&job, 0);
        assert_eq!(out, "", "{account}");
        assert!(err.contains(word) && err.contains("refused"), "{err}");
        assert_eq!(err.lines().count(), 1, "told once: {err}");
        c.torque_end(&job, 1);
        c.nodes[0].sh("rm -f /var/spool/torque/spool/*");
        before.holds(&mut c);
    }
    // Whoever waits at a terminal reads it there.
    let job = Job::new("10.vm", "MPS=maybe").interactive();
    assert_eq!(c.torque_begin(&job), Verdict::Aborted);
    before.holds(&mut c);
    assert_eq!(c.state("nodea"), ("free".into(), String::new()));
}

#[test]
fn where_nobody_would_tell_a_refused_job_it_is_aborted() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("10.vm", "MPS=true,MPS_THREADS=101");
    // No record can be left.
    c.nodes[0].sh("echo x >/run/mpsd");
    assert_eq!(c.torque_begin(&job), Verdict::Aborted);
    c.nodes[0].sh("rm /run/mpsd; mpsctl pbs uninstall || :");
    tests::mom::torque::hang_up(&mut c.nodes[0]);
    c.nodes[0].sh("mpsctl pbs uninstall; mpsctl pbs install --no-job-starter");
    assert_eq!(c.torque_begin(&job), Verdict::Aborted);
    let text = c.output(&job, 0).1;
    assert!(text.contains("MPS_THREADS=101"), "{text}");
    // That file is never delivered; `qstat -f` has the line.
    let comment = std::fs::read_to_string(c.server().join("comments/10.vm")).unwrap();
    assert!(comment.starts_with("MPS refused: MPS_THREADS=101: "), "{comment}");
    std::fs::remove_dir_all(c.server().join("comments")).unwrap();
    let interactive = Job::new("11.vm", "MPS=maybe").interactive();
    assert_eq!(c.torque_begin(&interactive), Verdict::Aborted);
    assert!(!c.server().join("comments").exists(), "its terminal has it");
    before.holds(&mut c);
}

#[test]
fn a_fault_takes_the_node_offline_before_the_job_is_requeued() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    std::fs::remove_file(c.gpus[0].control()).unwrap();
    let job = Job::new("11.vm", "MPS=true");
    let started = Instant::now();
    assert_eq!(c.torque_begin(&job), Verdict::Requeued, "{:?}", c.output(&job, 0));
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "a drained node needs no brake"
    );
    let (state, note) = c.state("nodea");
    assert_eq!(state, "offline");
    assert!(
        note.starts_with("mpsd: job 11.vm: ") && note.len() <= 79,
        "{note}"
    );
    before.holds(&mut c);
    // A job that did not ask still runs where the scheduler sends it.
    assert_eq!(c.torque_begin(&Job::new("12.vm", "proj1")), Verdict::Runs);
}

#[test]
fn where_root_is_no_operator_the_failing_prologue_holds_its_exit() {
    let mut c = cluster(&["nodea"]);
    std::fs::write(c.server().join("operators"), "root@elsewhere\n").unwrap();
    c.nodes[0].sh("echo '$prologalarm 18' >>/var/spool/torque/mom_priv/config");
    std::fs::remove_file(c.gpus[0].control()).unwrap();
    let job = Job::new("13.vm", "MPS=true");
    let started = Instant::now();
    c.torque_files(&job);
    let ended = c.torque_script(&job, 0, "prologue", None);
    assert_eq!(
        ended,
        Ended::Code(2),
        "below the mom's own limit of 8 s: {:?}",
        c.output(&job, 0)
    );
    assert!(
        started.elapsed() >= Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(c.state("nodea"), ("free".into(), String::new()));
    let text = c.output(&job, 0).1;
    assert!(text.contains("operators += root@nodea"), "{text}");
    assert!(
        std::fs::read_to_string(c.server().join("calls"))
            .unwrap()
            .contains("pbsnodes -o -N mpsd: job 13.vm")
    );
}

#[test]
fn anothers_note_is_left_as_it_is() {
    let mut c = cluster(&["nodea"]);
    std::fs::remove_file(c.gpus[0].control()).unwrap();
    std::fs::write(c.server().join("nodes/nodea"), "offline\nNHC: disk").unwrap();
    assert_eq!(c.torque_begin(&Job::new("14.vm", "MPS=true")), Verdict::Requeued);
    assert_eq!(c.state("nodea"), ("offline".into(), "NHC: disk".into()));
}

#[test]
fn a_worker_that_dies_of_a_signal_is_no_success() {
    let gpus = |builder: tests::double::Builder| builder.fast().fault(|faults| faults.start = "never".into());
    let mut c = Cluster::with(Product::Torque, &["nodea"], gpus, "");
    let before = Before::of(&mut c);
    let job = Job::new("15.vm", "MPS=true");
    c.torque_files(&job);
    let run = c.torque_run(&job, 0, "prologue", None);
    let prologue = c.nodes[0].start(run).unwrap();
    // The parent is the process that the mom waits for; its worker is its child.
    let mut worker: Option<i32> = None;
    let begun = wait_until(Duration::from_secs(30), || {
        let shown = c.nodes[0].sh(&format!(
            "ps --ppid {prologue} -o pid= -o comm= | grep mps-prologue || :"
        ));
        worker = shown.split_whitespace().next().and_then(|pid| pid.parse().ok());
        worker.is_some() && c.nodes[0].sh("ls /run/mpsd/jobs || :").contains(&job.id)
    });
    assert!(begun, "the start does not begin");
    let worker = worker.unwrap();
    c.nodes[0].signal(worker, 9);
    assert_eq!(
        c.nodes[0].wait(prologue, 30_000),
        Ended::Code(2),
        "{:?}",
        c.output(&job, 0)
    );
    c.torque_script(&job, 0, "epilogue", Some(-14));
    before.holds(&mut c);
    assert_eq!(
        c.state("nodea").0,
        "free",
        "a user's own daemon that does not start proves nothing"
    );
}

#[test]
fn a_start_that_hangs_ends_below_the_moms_limit() {
    let gpus = |builder: tests::double::Builder| builder.fast().fault(|faults| faults.start = "never".into());
    let mut c = Cluster::with(Product::Torque, &["nodea"], gpus, "");
    let before = Before::of(&mut c);
    c.nodes[0].sh("echo '$prologalarm 18' >>/var/spool/torque/mom_priv/config");
    let job = Job::new("16.vm", "MPS=true");
    c.torque_files(&job);
    let ended = c.torque_script(&job, 0, "prologue", None);
    assert_eq!(
        ended,
        Ended::Code(2),
        "not the mom's SIGKILL at 8 s: {:?}",
        c.output(&job, 0)
    );
    c.torque_script(&job, 0, "epilogue", Some(-14));
    before.holds(&mut c);
}

/// Stopped daemons take root more than half of its time, of which the site gives more than the mom.
#[test]
fn an_end_that_its_user_holds_up_ends_below_the_moms_limit() {
    let mut c = Cluster::with(
        Product::Torque,
        &["nodea"],
        tests::double::Builder::fast,
        "deadline_s = 60\n",
    );
    let before = Before::of(&mut c);
    c.nodes[0].sh("echo '$prologalarm 18' >>/var/spool/torque/mom_priv/config");
    let job = Job::new("17.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Runs);
    c.nodes[0].sh(
        "for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in mpsd|nvidia-cuda-mps*) kill -STOP ${p#/proc/};; esac; done",
    );
    let ended = c.torque_script(&job, 0, "epilogue", Some(0));
    assert_eq!(
        ended,
        Ended::Code(0),
        "not the mom's SIGKILL at 8 s: {:?}",
        c.output(&job, 0)
    );
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

/// Torque takes a sister down whose prologue.parallel fails: whoever kills their own daemon there must not do that.
#[test]
fn a_start_that_fails_on_a_sister_is_told_by_its_tasks_and_takes_it_not_down() {
    let gpus = |builder: tests::double::Builder| builder.fast().fault(|faults| faults.start = "never".into());
    let mut c = Cluster::with(Product::Torque, &["nodea", "nodeb"], gpus, "deadline_s = 3\n");
    let before = Before::of(&mut c);
    let job = Job::new("19.vm", "MPS=true").on(&[&[0], &[0]]);
    c.torque_files(&job);
    assert_eq!(
        c.torque_script(&job, 1, "prologue.parallel", None),
        Ended::Code(0)
    );
    assert_eq!(c.state("nodeb"), ("free".into(), String::new()));
    assert_ne!(c.torque_task(&job, 1, &["/bin/true"]), Ended::Code(0));
    let told = c.output(&job, 1).1;
    assert!(told.contains("job 19.vm") && told.contains("MPS"), "{told}");
    c.torque_script(&job, 1, "epilogue.parallel", Some(0));
    before.holds(&mut c);
}

/// Begins a job whose sister `nodeb` has lost the process that watches the job's start.
fn begin_unwatched(c: &mut Cluster, job: &Job) -> Verdict {
    assert_eq!(c.torque_join(job), Verdict::Runs);
    let watches = c.nodes[1].sh("ps -C mps-prologue -o pid=");
    for pid in watches.split_whitespace() {
        c.nodes[1].signal(pid.parse().unwrap(), 9);
    }
    c.torque_start(job)
}

/// pbs_sched deletes a job whose nodes are down; one that waits for an offline node it keeps.
#[test]
fn a_fault_on_a_sister_puts_the_job_back_and_takes_the_sister_offline_and_not_down() {
    let on_two = Job::new("20.vm", "MPS=true").on(&[&[0], &[0]]);
    for job in [on_two.clone(), on_two.named()] {
        let mut c = Cluster::with(
            Product::Torque,
            &["nodea", "nodeb"],
            |gpus| gpus.fast(),
            "deadline_s = 5\n",
        );
        let before = Before::of(&mut c);
        std::fs::remove_file(c.gpus[1].control()).unwrap();
        assert_eq!(c.torque_begin(&job), Verdict::Requeued, "{:?}", c.output(&job, 0));
        let (state, note) = c.state("nodeb");
        assert_eq!(state, "offline");
        assert!(note.starts_with("mpsd: job 20.vm: "), "{note}");
        assert_eq!(c.state("nodea"), ("free".into(), String::new()));
        let told = c.output(&job, 0).1;
        assert!(told.contains("node 'nodeb': mpsd: job 20.vm: "), "{told}");
        // Torque's sister has no epilogue for it; what was recorded for its tasks goes before the next job begins there.
        let next = Job::new("21.vm", "").on(&[&[], &[]]);
        c.torque_files(&next);
        assert_eq!(
            c.torque_script(&next, 1, "prologue.parallel", None),
            Ended::Code(0)
        );
        before.holds(&mut c);
    }
}

#[test]
fn epilogues_without_a_prologue_and_twice() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("17.vm", "MPS=true");
    assert_eq!(c.torque_script(&job, 0, "epilogue", Some(0)), Ended::Code(0));
    before.holds(&mut c);
    assert_eq!(c.torque_begin(&job), Verdict::Runs);
    for _ in 0..2 {
        assert_eq!(c.torque_script(&job, 0, "epilogue", Some(271)), Ended::Code(0));
        before.holds(&mut c);
    }
    assert_eq!(c.output(&job, 0).1, "");
}

#[test]
fn a_leaked_sister_is_replaced_by_the_next_try_of_its_job() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let before = Before::of(&mut c);
    let job = Job::new("18.vm", "MPS=true").on(&[&[0], &[0]]);
    let control = c.gpus[0].control();
    let aside = control.with_extension("aside");
    std::fs::rename(&control, &aside).unwrap();
    assert_eq!(begin_unwatched(&mut c, &job), Verdict::Requeued);
    let daemons = |c: &mut Cluster| {
        c.nodes[1]
            .sh("ps -eo pid=,comm= | grep -c 'nvidia-cuda-mps' || true")
            .trim()
            .to_owned()
    };
    assert_ne!(
        daemons(&mut c),
        "0",
        "Torque does not run epilogue.parallel there: a daemon is left"
    );
    std::fs::rename(&aside, &control).unwrap();
    std::fs::write(c.server().join("nodes/nodea"), "free\n").unwrap();
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 1));
    let words = "/usr/bin/mpsctl exec -- /var/srv/pbs/gpu-nodeb/fake-cuda-client --node /var/srv/pbs/gpu-nodeb --record /tmp/records";
    assert_eq!(
        c.torque_task(&job, 1, &words.split(' ').collect::<Vec<_>>()),
        Ended::Code(0),
        "{:?}",
        c.output(&job, 1)
    );
    attached(&c.records(1)[0], &job, "nodeb", 132, None);
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn a_prologue_run_twice_leaves_one_daemon() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("19.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Runs);
    assert_eq!(c.torque_begin(&job), Verdict::Runs);
    let controls = c.nodes[0].sh("ps -eo args= | grep -c '^/var/srv/pbs/gpu-nodea/nvidia-cuda-mps-control'");
    assert_eq!(controls.trim(), "1");
    let run = c.torque_shell(&job, &Cluster::client(""));
    shell_ends(&mut c, run, &job, 0);
    attached(&c.records(0)[0], &job, "nodea", 132, None);
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn a_script_with_a_wrong_owner_requeues_and_check_says_so() {
    let mut c = cluster(&["nodea"]);
    c.nodes[0].sh("chmod 0722 /var/spool/torque/mom_priv/prologue");
    assert_eq!(c.torque_begin(&Job::new("20.vm", "proj1")), Verdict::Requeued);
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(1));
    assert!(
        text.contains("FAIL  '/var/spool/torque/mom_priv/prologue' has owner 0 and mode 0722"),
        "{text}"
    );
    c.nodes[0].sh("mpsctl pbs install");
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(0), "{text}");
}

#[test]
fn a_missing_program_holds_the_job_that_asked_and_no_other() {
    let mut c = cluster(&["nodea"]);
    c.nodes[0].sh("rm /usr/bin/mps-prologue");
    assert_eq!(c.torque_begin(&Job::new("21.vm", "proj1")), Verdict::Runs);
    let job = Job::new("22.vm", "MPS=true");
    let run = c.torque_run(&job, 0, "prologue", None);
    let prologue = c.nodes[0]
        .start(Run {
            limit_ms: 1500,
            ..run
        })
        .unwrap();
    assert_eq!(
        c.nodes[0].wait(prologue, 5000),
        Ended::Limit,
        "held back from the loop"
    );
    assert!(
        c.output(&job, 0)
            .1
            .contains("'/usr/bin/mps-prologue' is not installed on this node")
    );
}

#[test]
fn what_a_sister_leaked_goes_when_the_server_has_the_job_no_more() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let before = Before::of(&mut c);
    let job = Job::new("23.vm", "MPS=true").on(&[&[0], &[1]]);
    let control = c.gpus[0].control();
    let aside = control.with_extension("aside");
    std::fs::rename(&control, &aside).unwrap();
    assert_eq!(begin_unwatched(&mut c, &job), Verdict::Requeued);
    assert_eq!(c.gpus[1].modes()[1], "exclusive_process", "leaked on the sister");
    let status = c.server().join("jobs").join(&job.id);
    let queued = std::fs::read_to_string(&status).unwrap();
    std::fs::write(&status, queued.replace("job_state = Q", "job_state = R")).unwrap();
    let (_, said) = c.nodes[1].try_sh("mpsctl reconcile");
    assert_eq!(
        c.gpus[1].modes()[1],
        "exclusive_process",
        "the server has it running there: {said}"
    );
    std::fs::write(&status, queued).unwrap();
    c.nodes[1].sh("mpsctl reconcile");
    // Our own drain of the first node is lifted by hand, once what it was for is mended.
    assert_eq!(c.state("nodea").0, "offline");
    std::fs::rename(&aside, &control).unwrap();
    c.nodes[0].sh("mpsctl undrain");
    assert_eq!(c.state("nodea"), ("free".into(), String::new()));
    before.holds(&mut c);
}

#[test]
fn what_a_sister_began_goes_by_itself_when_the_job_does_not_begin() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let before = Before::of(&mut c);
    std::fs::remove_file(c.gpus[0].control()).unwrap();
    let job = Job::new("29.vm", "MPS=true").on(&[&[0], &[1]]);
    assert_eq!(c.torque_begin(&job), Verdict::Requeued);
    let is_back = wait_until(Duration::from_secs(20), || {
        c.nodes[1]
            .sh("ls /run/mpsd/jobs; ps -C mps-prologue -o pid= || :")
            .is_empty()
    });
    assert!(is_back, "left: {}", c.nodes[1].sh("ls /run/mpsd/jobs; ps -e"));
    before.holds(&mut c);
}

/// Torque tells the sisters nothing that runs a script there: the next job's prologue does what is left to do.
#[test]
fn what_a_sister_leaked_is_gone_when_the_next_job_begins_there() {
    for (account, modes) in [
        ("proj1", ["default", "default"]),
        ("MPS=true", ["exclusive_process", "default"]),
    ] {
        let mut c = cluster(&["nodea", "nodeb"]);
        let before = Before::of(&mut c);
        std::fs::remove_file(c.gpus[0].control()).unwrap();
        let job = Job::new("25.vm", "MPS=true").on(&[&[0], &[1]]);
        assert_eq!(begin_unwatched(&mut c, &job), Verdict::Requeued);
        assert_eq!(c.gpus[1].modes()[1], "exclusive_process", "leaked on the sister");
        let next = Job::new("26.vm", account).on(&[&[], &[0]]);
        c.torque_files(&next);
        let ended = c.torque_script(&next, 1, "prologue.parallel", None);
        assert_eq!(ended, Ended::Code(0), "{account}");
        assert_eq!(c.gpus[1].modes(), modes, "{account}");
        assert!(!c.nodes[1].sh("ls /run/mpsd/jobs").contains("25.vm"), "{account}");
        c.torque_script(&next, 1, "epilogue.parallel", Some(0));
        before.holds(&mut c);
    }
}

/// Torque takes a sister down whose epilogue.parallel fails, and a user can keep an epilogue from its end.
#[test]
fn what_an_epilogue_cannot_take_down_does_not_take_its_node_down() {
    let mut c = Cluster::with(
        Product::Torque,
        &["nodea", "nodeb"],
        |gpus| gpus.fast(),
        "deadline_s = 3\n",
    );
    let before = Before::of(&mut c);
    let job = Job::new("31.vm", "MPS=true").on(&[&[0], &[1]]);
    assert_eq!(c.torque_begin(&job), Verdict::Runs);
    let lock = "/run/mpsd/jobs/.31.vm.lock";
    c.nodes[1].sh(&format!(
        "setsid flock {lock} sleep 60 >/dev/null 2>&1 & echo $! >/tmp/holder; \
         for try in $(seq 300); do flock -n {lock} true || exit 0; sleep 0.1; done; exit 1"
    ));
    c.torque_end(&job, 0);
    assert_ne!(c.nodes[1].sh("ls /run/mpsd/jobs"), "", "its end was kept from it");
    assert_eq!(c.state("nodeb"), ("free".into(), String::new()));
    c.nodes[1].sh("pid=$(cat /tmp/holder); kill -9 $(ps --ppid $pid -o pid=) $pid; rm /tmp/holder");
    std::fs::remove_file(c.server().join("jobs/31.vm")).unwrap();
    c.nodes[1].sh("mpsctl reconcile");
    before.holds(&mut c);
}

#[test]
fn a_job_that_did_not_ask_starts_no_program_beside_one_that_runs() {
    let mut c = cluster(&["nodea", "nodeb"]);
    for (id, gpu) in [("27.vm", 0), ("30[12].vm", 1)] {
        let job = Job::new(id, "MPS=true").on(&[&[gpu], &[gpu]]);
        assert_eq!(c.torque_begin(&job), Verdict::Runs, "{id}");
    }
    for (at, scripts) in [
        (0, ["prologue", "epilogue"]),
        (1, ["prologue.parallel", "epilogue.parallel"]),
    ] {
        let program = "#!/bin/sh\necho called >/root/called\n";
        c.nodes[at].write("/usr/bin/called", program, 0o755);
        c.nodes[at].sh("cd /usr/bin; cp called epilogue; mv called mps-prologue; mv epilogue mps-epilogue");
        let plain = Job::new("28.vm", "proj1").on(&[&[], &[]]);
        for (script, code) in scripts.into_iter().zip([None, Some(0)]) {
            assert_eq!(c.torque_script(&plain, at, script, code), Ended::Code(0));
            assert_eq!(c.nodes[at].read("/root/called"), None, "{script}");
        }
    }
}

#[test]
fn undrain_leaves_anothers_note() {
    let mut c = cluster(&["nodea"]);
    let control = c.gpus[0].control();
    let aside = control.with_extension("aside");
    std::fs::rename(&control, &aside).unwrap();
    assert_eq!(c.torque_begin(&Job::new("24.vm", "MPS=true")), Verdict::Requeued);
    std::fs::rename(&aside, &control).unwrap();
    std::fs::write(c.server().join("nodes/nodea"), "offline\nfans on Monday").unwrap();
    let (_, said) = c.nodes[0].try_sh("mpsctl undrain");
    assert_eq!(
        c.state("nodea"),
        ("offline".into(), "fans on Monday".into()),
        "{said}"
    );
}

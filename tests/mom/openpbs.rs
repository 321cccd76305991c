//! OpenPBS's moms and our hook.

use crate::jobs::{
    NoControl, attached, bare, begins, begun, checks, client, ends, free, is_refused, never_ready,
    openpbs, root, says, task,
};
use std::time::{Duration, Instant, UNIX_EPOCH};
use tests::double::look::wait_until;
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::openpbs::Hooked;
use tests::mom::wire::Ended;

const BREAK_CONFIG: &str =
    "cp -p /etc/mpsd/mpsd.toml /etc/mpsd/good; echo 'no_such_key = 1' >>/etc/mpsd/mpsd.toml";
const MEND_CONFIG: &str = "mv /etc/mpsd/good /etc/mpsd/mpsd.toml";

const HURRIED: &str = "deadline_s = 5\n";

/// A server that never becomes ready, and the shipped hook's patience.
fn in_vain(config: &str) -> Cluster {
    let mut c = Cluster::with(Product::OpenPbs, &["nodea"], never_ready, config);
    c.impatient_mom = true;
    c
}

fn ends_unlaunched(c: &mut Cluster, job: &Job) {
    c.end(job, -1);
    c.is_as_before();
}

#[test]
fn the_resource_asks_as_the_account_does_and_may_not_contradict_it() {
    let mut c = openpbs(&["nodea"], "");
    let with = |resource: &str, job: Job| Job {
        resource: resource.into(),
        ..job
    };
    let job = with("on+threads=25+mem=2G", c.job("proj1"));
    begins(&mut c, &job);
    attached(&client(&mut c, &job), &job, "nodea", 32, Some(2048));
    ends(&mut c, &job);
    let job = with("on+threads=25", c.job("MPS=true,MPS_THREADS=50"));
    says(&is_refused(&mut c, &job), &["MPS_THREADS=50", "threads=25"]);
    ends_unlaunched(&mut c, &job);
}

#[test]
fn a_task_on_a_node_without_the_jobs_mps_fails_with_our_line() {
    let mut c = openpbs(&["nodea"], "");
    for (account, code) in [("MPS=true", 1), ("MPS=off", 0), ("mps_physics", 0)] {
        let job = c.job(account);
        c.openpbs_files(&job);
        let ended = task(&mut c, &job, 0, "");
        assert_eq!(ended, Ok(Ended::Code(code)), "{account}");
        let records = c.records(0);
        if code == 0 {
            bare(&records[0]);
        } else {
            assert!(records.is_empty(), "the program ran");
            says(&c.told(&job), &["asked for MPS and has none on this node"]);
        }
    }
}

#[test]
fn a_fault_of_a_sister_rejects_begin_and_takes_the_sister_offline() {
    let mut c = openpbs(&["nodea", "nodeb"], "");
    let _fault = NoControl::on(&c, 1);
    let job = c.job("MPS=true").on(&[&[0], &[0]]);
    assert_eq!(c.begin(&job), Verdict::Requeued);
    let (state, note) = c.state("nodeb");
    assert_eq!(state, "offline");
    let reason = format!("mpsd: job {}: ", job.id);
    assert!(note.starts_with(&reason), "{note}");
    assert_eq!(c.state("nodea").0, "free");
    c.is_as_before();
}

fn is_put_back(c: &mut Cluster, account: &str, why: &str, tries: u32) {
    let job = c.job(account);
    c.openpbs_files(&job);
    let hooked = c.openpbs_tried(&job, 0);
    says(&hooked.message, &[why]);
    waits(c, &job, &hooked, tries);
    c.is_as_before();
    assert_eq!(c.state("nodea").0, "free");
}

/// The job was put back and is not tried again at once. PBS holds a job after 21 counted tries.
fn waits(c: &Cluster, job: &Job, hooked: &Hooked, tries: u32) {
    assert_eq!(hooked.verdict, "reject");
    let now = UNIX_EPOCH.elapsed().unwrap().as_secs();
    let next = hooked.execution_time.unwrap_or(0);
    assert!((now + 30..now + 90).contains(&next), "{now} {next}");
    assert_eq!(c.tries(job), tries, "{}", hooked.message);
}

/// An event of `job` on the first node. The mom must not wait for it.
fn at_once(c: &mut Cluster, job: &Job, event: &str) -> Hooked {
    let started = Instant::now();
    let hooked = c.hook(job, 0, event);
    let took = started.elapsed().as_secs();
    assert!(took < 3, "{event}: the mom waited {took} s");
    hooked
}

fn begins_at_once(c: &mut Cluster, job: &Job) {
    c.openpbs_files(job);
    assert!(at_once(c, job, "execjob_begin").accepted());
}

#[test]
fn a_node_that_may_not_drain_itself_puts_its_job_back() {
    let mut c = openpbs(&["nodea"], HURRIED);
    c.serve("operators", "root@elsewhere\n");
    let _fault = NoControl::on(&c, 0);
    let waits = "a drain of this node waits for its scheduler";
    is_put_back(&mut c, "MPS=true", "operators += root@nodea", 0);
    is_put_back(&mut c, "MPS=true", waits, 0);
    c.serve("failing", "run_count=");
    is_put_back(&mut c, "MPS=true", waits, 1);
}

/// A subjob in state W would break its array (docs/facts/pbs.md#tries-of-a-job), so its own process
/// waits instead.
#[test]
fn a_subjob_is_put_back_late_and_never_waits_for_a_time() {
    let mut c = openpbs(&["nodea"], HURRIED);
    c.impatient_mom = true;
    c.nodes[0].sh(BREAK_CONFIG);
    let job = Job::new("9[1].localhost", "MPS=true");
    begins_at_once(&mut c, &job);
    let started = Instant::now();
    let launched = c.hook(&job, 0, "execjob_launch");
    let is_put_back = !launched.accepted() && launched.rerun;
    assert!(is_put_back, "{}", launched.message);
    let found = (launched.execution_time, launched.run_count);
    assert_eq!(found, (None, Some(0)));
    assert!(started.elapsed().as_secs() >= 15, "21 tries in a minute");
    at_once(&mut c, &job, "execjob_abort");
    c.nodes[0].sh(MEND_CONFIG);
    c.is_as_before();
}

/// The mom does nothing else while execjob_begin or execjob_abort runs; execjob_launch runs in a
/// process of the job.
#[test]
fn a_start_that_hangs_keeps_no_other_job_waiting() {
    let mut c = in_vain(HURRIED);
    let job = c.job("MPS=true");
    begins_at_once(&mut c, &job);
    let launched = c.hook(&job, 0, "execjob_launch");
    assert!(launched.rerun, "its user is to blame: {}", launched.message);
    assert_eq!(launched.run_count, Some(0), "the node alone failed");
    waits(&c, &job, &launched, 0);
    says(&launched.message, &["MPS did not start"]);
    at_once(&mut c, &job, "execjob_abort");
    let comment = c.served(&format!("comments/{}", job.id));
    says(&comment, &["MPS did not start"]);
    let note = c.state("nodea").1;
    assert!(note.starts_with("mpsd: "), "{note}");
    says(&note, &["not ready"]);
    // The next start that works removes the note.
    c.gpus[0].change(|node| node.faults.start = String::new());
    let next = begun(&mut c, "MPS=true");
    let withdrawn = wait_until(Duration::from_secs(5), || c.state("nodea") == free());
    assert!(withdrawn, "{:?}", c.state("nodea"));
    ends(&mut c, &next);
}

#[test]
fn a_job_that_is_deleted_while_its_mps_starts_leaves_nothing() {
    let mut c = in_vain(HURRIED);
    let job = c.job("MPS=true");
    begins_at_once(&mut c, &job);
    at_once(&mut c, &job, "execjob_abort");
    let left = "ls /run/mpsd/jobs; ps -e -o comm= | grep ^mps || :";
    let gone = wait_until(Duration::from_secs(4), || c.nodes[0].sh(left).is_empty());
    assert!(gone, "before the start's deadline");
    c.is_as_before();
}

/// If a job's user makes its start fail repeatedly, PBS holds the job in the end, as it holds any
/// job.
#[test]
fn a_start_that_may_fail_by_its_users_doing_counts() {
    let mut c = in_vain(HURRIED);
    let job = c.job("MPS=true");
    let own = c.user_process(&job, 0, &["/bin/sleep", "60"]);
    let own = c.nodes[0].start(own).unwrap();
    begins_at_once(&mut c, &job);
    let launched = c.hook(&job, 0, "execjob_launch");
    assert!(launched.rerun, "{}", launched.message);
    assert_eq!(launched.run_count, None, "it counts");
    c.nodes[0].signal(own, 9);
    at_once(&mut c, &job, "execjob_abort");
}

/// A job on 4,000 vnodes has such attributes, and a word of a command line has at most 128 KiB.
#[test]
fn attributes_may_be_longer_than_a_command_line() {
    let mut c = openpbs(&["nodea"], "");
    c.nodes[0].sh("mpsctl pbs install --queuejob");
    let large = Job {
        vnodes_elsewhere: 8000,
        ..c.job("MPS=true,MPS_THREADS=25")
    };
    begins(&mut c, &large);
    attached(&client(&mut c, &large), &large, "nodea", 32, None);
    ends(&mut c, &large);
    let refused = c.job(&format!("{},MPS=true", "x".repeat(200 << 10)));
    let why = "204809 bytes long; allowed: at most 1024 bytes";
    says(&c.hook(&refused, 0, "queuejob").message, &[why]);
    says(&is_refused(&mut c, &refused), &[why]);
    ends_unlaunched(&mut c, &refused);
}

/// No file can be made anywhere on the node except in `/run`, which has a job's MPS.
#[test]
fn an_end_needs_no_directory_for_temporary_files() {
    let mut c = openpbs(&["nodea"], "");
    let job = begun(&mut c, "MPS=true");
    let places = "/tmp /var/tmp /var/spool/pbs/mom_priv/hooks/tmp";
    c.nodes[0].sh(&format!(
        "for d in {places}; do mkdir -p $d; mount -t tmpfs -o nr_inodes=12 tmpfs $d; done"
    ));
    // This makes the files that the mom itself writes for a hook.
    let plain = c.job("");
    c.hook(&plain, 0, "execjob_launch");
    let fill = "i=0; while touch $d/f$i; do i=$((i+1)); done 2>/dev/null";
    c.nodes[0].sh(&format!(
        "for d in {places}; do {fill}; done; ! touch /tmp/one"
    ));
    assert!(c.hook(&job, 0, "execjob_end").accepted());
    c.nodes[0].sh(&format!(
        "for d in {places}; do umount $d; done; rm -rf /run/mount"
    ));
    c.is_as_before();
}

#[test]
fn an_unprepared_job_is_put_back() {
    let mut c = openpbs(&["nodea"], HURRIED);
    c.nodes[0].sh("cp -p /etc/passwd /root/; sed -i /alice/d /etc/passwd");
    is_put_back(&mut c, "MPS=true", "alice", 0);
}

/// PBS ends a hook at its alarm, and the job's user reads nothing. A manager may set it below our
/// deadline.
#[test]
fn a_hook_is_ready_before_a_short_alarm() {
    let mut c = in_vain("");
    c.serve("operators", "root@nodea");
    c.nodes[0].sh("qmgr=/opt/pbs/bin/qmgr; $qmgr -c 'set hook mpsd alarm = 5'");
    let job = c.job("MPS=true");
    begins_at_once(&mut c, &job);
    let launched = c.hook(&job, 0, "execjob_launch");
    assert!(launched.rerun, "{}", launched.message);
    let words = ["mpsctl did not end within ", "the hook's alarm is 5 s"];
    says(&launched.message, &words);
    waits(&c, &job, &launched, 0);
    at_once(&mut c, &job, "execjob_abort");
}

#[test]
fn an_unusable_configuration_puts_the_job_back_and_is_shown_by_the_node_once() {
    let mut c = openpbs(&["nodea"], HURRIED);
    c.nodes[0].sh(BREAK_CONFIG);
    c.mark();
    is_put_back(&mut c, "MPS=true", "no_such_key", 0);
    let note = c.state("nodea").1;
    says(&note, &["mpsd: ", "no_such_key"]);
    assert!(note.len() <= 79, "{note}");
    is_put_back(&mut c, "MPS=maybe", "MPS=maybe", 0);
    let told = c.served("calls").matches("pbsnodes -C").count();
    assert_eq!(told, 1, "told once");
    c.nodes[0].sh(MEND_CONFIG);
    let words = ["WARN  the node shows 'mpsd: ", "pbsnodes -C '' nodea"];
    checks(&mut c, 0, &words);
    root(&mut c, 0, "mpsctl reconcile", &["withdrawn"]);
    assert_eq!(c.state("nodea"), free());
    // A note of the site stays.
    c.serve("nodes/nodea", "free\nNHC: disk");
    c.nodes[0].sh(BREAK_CONFIG);
    let prologue =
        "mps-prologue --scheduler openpbs --record --account=MPS=true -- 27.localhost alice alice";
    c.nodes[0].sh(&format!("timeout 4 {prologue} || :"));
    assert_eq!(c.state("nodea"), ("free".into(), "NHC: disk".into()));
    c.nodes[0].sh(MEND_CONFIG);
    c.is_as_before();
}

#[test]
fn queuejob_refuses_at_qsub_and_moves_our_words() {
    let mut c = openpbs(&["nodea"], "");
    let queued = |c: &mut Cluster, account: &str| c.hook(&Job::new("", account), 0, "queuejob");
    assert!(queued(&mut c, "MPS=maybe").accepted());
    c.nodes[0].sh("mpsctl pbs install --queuejob && mpsctl pbs install");
    let refused = queued(&mut c, "proj1,MPS=maybe");
    assert_eq!(refused.verdict, "reject");
    says(&refused.message, &["MPS=maybe"]);
    let moved = queued(&mut c, "proj1,MPS=true,MPS_THREADS=25");
    assert!(moved.accepted());
    assert_eq!(moved.account.as_deref(), Some("proj1"));
    let mps = moved.resources["mps"].as_deref();
    assert_eq!(mps, Some("per-node+threads=25"));
    let meant = queued(&mut c, "proj1,MPS").message;
    says(&meant, &["did you mean MPS=on?"]);
    let left = queued(&mut c, "mps_physics");
    assert!(left.accepted(), "{}", left.message);
    assert_eq!(left.account.as_deref(), Some("mps_physics"));
    assert_eq!(left.resources["mps"], None);
}

#[test]
fn an_end_that_left_something_is_logged_with_its_code_and_last_line() {
    let mut c = openpbs(&["nodea"], "");
    let job = c.job("MPS=true");
    c.openpbs_files(&job);
    let program = "/usr/bin/mps-epilogue";
    for (end, logged) in [
        (
            "echo one >&2; echo two >&2; exit 2",
            "mpsd: mps-epilogue ended with 2: two",
        ),
        ("exit 2", "mpsd: mps-epilogue ended with 2: it says nothing"),
        ("echo note >&2", "note"),
    ] {
        c.nodes[0].sh(&format!("rm {program}"));
        c.nodes[0].write(program, &format!("#!/bin/sh\n{end}\n"), 0o755);
        let hooked = c.hook(&job, 0, "execjob_end");
        let log: Vec<&str> = hooked.log.iter().map(|(_, line)| line.as_str()).collect();
        assert!(hooked.accepted(), "{}", hooked.message);
        assert_eq!(log, [logged], "{end}");
    }
}

const EVENTS: [&str; 3] = ["execjob_begin", "execjob_launch", "execjob_end"];

/// Calls and attributes of PBS, each of which raises an error here. `pbs.logmsg` does so in a
/// release built with a newer Python.
const RAISING: [&str; 14] = [
    "logmsg",
    "id",
    "euser",
    "egroup",
    "Account_Name",
    "Resource_List",
    "schedselect",
    "exec_vnode",
    "in_ms_mom",
    "env",
    "env[]",
    "progname",
    "type",
    "accept",
];

/// Python's json, subprocess and tempfile together take 25 ms, more than the rest of a hook.
#[test]
fn a_job_that_did_not_ask_imports_nothing_and_starts_no_process() {
    let mut c = openpbs(&["nodea"], "");
    let plain = c.job("proj1");
    c.openpbs_files(&plain);
    c.nodes[0].sh("rm /usr/bin/mps-prologue /usr/bin/mps-epilogue /usr/bin/mpsctl");
    for event in EVENTS.into_iter().chain(["execjob_abort"]) {
        let hooked = c.hook(&plain, 0, event);
        assert!(hooked.accepted(), "{}", hooked.message);
        assert_eq!(hooked.imported, [""; 0], "{event}");
    }
    let starts = |hooked: &Hooked| hooked.imported.contains(&"subprocess".to_owned());
    let asking = c.job("MPS=true");
    assert!(starts(&c.hook(&asking, 0, "execjob_end")));
    // The end of any job looks again at what hung in the driver. No earlier event does.
    c.nodes[0].sh("mkdir -p /run/mpsd; touch /run/mpsd/look-again");
    for event in EVENTS {
        let hooked = c.hook(&plain, 0, event);
        assert!(hooked.accepted(), "{}", hooked.message);
        assert_eq!(starts(&hooked), event == "execjob_end", "{event}");
    }
}

#[test]
fn a_call_of_pbs_that_raises_stops_no_other_job_and_leaves_nothing() {
    let mut c = openpbs(&["nodea"], "");
    let plain = c.job("proj1");
    c.openpbs_files(&plain);
    for name in RAISING {
        c.serve("failing", name);
        for event in EVENTS {
            let hooked = c.hook(&plain, 0, event);
            assert!(hooked.accepted(), "{name} in {event}: {}", hooked.message);
        }
        c.serve("failing", "");
        c.is_as_before();
        let job = c.job("MPS=true");
        c.openpbs_files(&job);
        c.serve("failing", name);
        let begun = c.hook(&job, 0, "execjob_begin");
        assert_ne!(begun.verdict, "error", "{name} in begin: {}", begun.message);
        assert!(begun.accepted() || !begun.message.is_empty(), "{name}");
        let launched = c.hook(&job, 0, "execjob_launch");
        let message = &launched.message;
        assert_ne!(launched.verdict, "error", "{name} in launch: {message}");
        let attached = launched.env.contains_key("MPSD_JOB");
        let silent = !attached && launched.accepted();
        let unreadable = name == "Account_Name" || name == "type";
        assert!(!silent || unreadable, "{name}: outside MPS, and no word");
        if begun.accepted() {
            let ended = c.hook(&job, 0, "execjob_end");
            assert!(ended.accepted(), "{name} in end: {}", ended.message);
        }
        c.serve("failing", "");
        c.is_as_before();
    }
}

/// A broken Python on the node.
#[test]
fn a_hook_that_cannot_load_stops_no_other_job_and_none_that_asked_runs_without_mps() {
    let mut c = openpbs(&["nodea"], "");
    let (plain, asks) = (c.job("mps_project"), c.job("MPS=true"));
    let resource = Job {
        resource: "true".to_owned(),
        ..c.job("proj1")
    };
    c.serve("failing", "import errno");
    for event in EVENTS {
        assert!(c.hook(&plain, 0, event).accepted(), "{event}");
        for job in [&asks, &resource] {
            let hooked = c.hook(job, 0, event);
            assert_eq!(hooked.accepted(), event == "execjob_end", "{event}");
            let told = hooked.accepted() || hooked.message.contains("the hook failed");
            assert!(told, "{event}: {}", hooked.message);
        }
    }
    c.is_as_before();
}

#[test]
fn a_log_line_that_raises_loses_no_refusal() {
    let mut c = openpbs(&["nodea"], "");
    c.serve("failing", "logmsg");
    let job = c.job("MPS=true,MPS_THREADS=101");
    says(&is_refused(&mut c, &job), &["MPS_THREADS=101"]);
    ends_unlaunched(&mut c, &job);
}

#[test]
fn qsub_takes_a_job_where_the_hook_fails() {
    let mut c = openpbs(&["nodea"], "");
    c.nodes[0].sh("mpsctl pbs install --queuejob");
    for name in ["Resource_List[]", "Account_Name=", "logmsg"] {
        c.serve("failing", name);
        let job = Job::new("", "proj1,MPS=true,MPS_THREADS=25");
        let queued = c.hook(&job, 0, "queuejob");
        assert!(queued.accepted(), "{name}: {}", queued.message);
        // The nodes read the job's present request.
        let account = queued.account.unwrap_or_default();
        let moved = queued.resources["mps"].is_some();
        assert!(moved || account == job.account, "{name}: lost: {account}");
    }
}

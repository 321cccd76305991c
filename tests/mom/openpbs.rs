//! OpenPBS's moms and our hook.

use crate::assertions::{Before, attached, bare, client_words};
use crate::both::{self, shell};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tests::double::look::wait_until;
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::openpbs::Hooked;
use tests::mom::wire::Ended;

fn cluster(names: &[&str]) -> Cluster {
    Cluster::new(Product::OpenPbs, names)
}

fn task(c: &mut Cluster, job: &Job, at: usize) -> Result<Ended, String> {
    let words = client_words(&c.nodes[at].name);
    c.openpbs_task(job, at, &words.split(' ').collect::<Vec<_>>())
}

#[test]
fn a_plain_job_is_untouched() {
    both::plain_jobs_are_untouched(&mut cluster(&["nodea"]), "0.localhost");
}

#[test]
fn the_flag_and_its_limits() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let cases = [
        ("MPS=true", 132, None),
        ("proj1,MPS=true,MPS_THREADS=25,MPS_MEM=2G", 32, Some(2048)),
    ];
    for (account, sms, limit) in cases {
        let job = Job::new("1.localhost", account);
        assert_eq!(c.openpbs_begin(&job), Verdict::Runs);
        assert_eq!(c.gpus[0].modes(), ["exclusive_process", "default"]);
        shell(&mut c, &job, &Cluster::client(""), 0);
        attached(&c.records(0)[0], &job, "nodea", sms, limit);
        // pbsdsh: no shell, no profile.
        assert_eq!(
            task(&mut c, &job, 0),
            Ok(Ended::Code(0)),
            "{:?}",
            c.output(&job, 0)
        );
        attached(&c.records(0)[0], &job, "nodea", sms, limit);
        c.openpbs_end(&job, 0);
        before.holds(&mut c);
    }
}

#[test]
fn the_resource_keeps_the_account_clean_and_may_not_contradict_it() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job {
        resource: "on+threads=25+mem=2G".into(),
        ..Job::new("2.localhost", "proj1")
    };
    assert_eq!(c.openpbs_begin(&job), Verdict::Runs);
    shell(&mut c, &job, &Cluster::client(""), 0);
    attached(&c.records(0)[0], &job, "nodea", 32, Some(2048));
    c.openpbs_end(&job, 0);
    before.holds(&mut c);
    let job = Job {
        resource: "on+threads=25".into(),
        ..Job::new("3.localhost", "MPS=true,MPS_THREADS=50")
    };
    assert_eq!(
        c.openpbs_begin(&job),
        Verdict::Runs,
        "a refusal is told in execjob_launch"
    );
    let why = c.openpbs_shell(&job, "true").unwrap_err();
    assert!(
        why.contains("MPS_THREADS=50") && why.contains("threads=25"),
        "{why}"
    );
    c.openpbs_end(&job, -1);
    before.holds(&mut c);
}

/// A stock server gives a number of GPUs and no names: where that leaves no doubt the job has its MPS, else it reads why not.
#[test]
fn a_stock_server_serves_whole_nodes_and_nodes_of_one_gpu() {
    for (here, gpus, place, mode, served) in [
        (2, &[0, 1][..], "pack", "default", true),
        (2, &[0, 1][..], "free:exclhost", "exclusive_process", true),
        (2, &[0][..], "free:excl", "exclusive_process", true),
        (1, &[0][..], "pack", "default", true),
        (2, &[0][..], "pack", "default", false),
    ] {
        let few = |builder: tests::double::Builder| builder.gpus(here, "NVIDIA H200").fast();
        let mut c = Cluster::with(Product::OpenPbs, &["nodea"], few, "");
        let before = Before::of(&mut c);
        let job = Job::new("2.localhost", "MPS=true,MPS_THREADS=50")
            .on(&[gpus])
            .stock(place);
        assert_eq!(c.openpbs_begin(&job), Verdict::Runs);
        if served {
            assert!(
                c.gpus[0].modes().iter().all(|found| found == mode),
                "{place} {gpus:?}"
            );
            shell(&mut c, &job, &Cluster::client(""), 0);
            attached(&c.records(0)[0], &job, "nodea", 66, None);
        } else {
            let why = c.openpbs_shell(&job, "true").unwrap_err();
            assert!(why.contains("pbs_cgroups is not there to name them"), "{why}");
            assert!(
                why.contains("allowed: all 2 GPUs of the node, or the node alone"),
                "{why}"
            );
        }
        c.openpbs_end(&job, 0);
        before.holds(&mut c);
    }
}

#[test]
fn ranks_are_bound() {
    let mut c = cluster(&["nodea"]);
    both::ranks_are_bound(&mut c, "14.localhost", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
}

#[test]
fn a_daemon_for_each_gpu_and_a_list_by_rank() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = both::a_daemon_for_each_gpu_and_a_list_by_rank(&mut c, "4.localhost", "PALS_LOCAL_RANKID");
    // The task itself says it: what a hook writes on a sister reaches nobody.
    assert_eq!(task(&mut c, &job, 0), Ok(Ended::Code(1)));
    let told = c.output(&job, 0).1;
    assert!(
        told.contains("PALS_LOCAL_RANKID") && told.lines().count() == 2,
        "{told}"
    );
    assert!(c.records(0).is_empty(), "the program did not run");
    // An MPI launcher's daemon has no rank either, and its children have.
    let ranks = format!(
        "#!/bin/sh\nPALS_LOCAL_RANKID=1 mpsctl exec -- {}\n",
        client_words("nodea")
    );
    c.nodes[0].write("/tmp/prted", &ranks, 0o755);
    let ended = c.openpbs_task(&job, 0, &["/tmp/prted"]);
    assert_eq!(ended, Ok(Ended::Code(0)), "{:?}", c.output(&job, 0));
    attached(&c.records(0)[0], &job, "nodea", 66, None);
    c.openpbs_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn a_job_on_two_nodes() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let before = Before::of(&mut c);
    let job = Job::new("5.localhost", "MPS=true,MPS_THREADS=50").on(&[&[0], &[1]]);
    assert_eq!(c.openpbs_begin(&job), Verdict::Runs);
    assert_eq!(c.gpus[1].modes(), ["default", "exclusive_process"]);
    shell(&mut c, &job, &Cluster::client(""), 0);
    attached(&c.records(0)[0], &job, "nodea", 66, None);
    for (at, node) in ["nodea", "nodeb"].into_iter().enumerate() {
        assert_eq!(
            task(&mut c, &job, at),
            Ok(Ended::Code(0)),
            "{:?}",
            c.output(&job, at)
        );
        attached(&c.records(at)[0], &job, node, 66, None);
    }
    c.openpbs_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn what_another_jobs_environment_left_is_replaced() {
    let mut c = cluster(&["nodea"]);
    let job = Job::new("6.localhost", "MPS=true");
    assert_eq!(c.openpbs_begin(&job), Verdict::Runs);
    let mut env = c.job_environment(&job, 0);
    for (name, value) in [
        ("MPSD_JOB", "1.localhost"),
        ("CUDA_MPS_PIPE_DIRECTORY", "/run/mpsd/jobs/1.localhost/pipe"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1M"),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "2"),
    ] {
        env.insert(name.into(), value.into());
    }
    let env = c.hook(&job, 0, "execjob_launch", &env).env;
    assert_eq!(env["MPSD_JOB"], "6.localhost");
    assert_eq!(env["CUDA_MPS_PIPE_DIRECTORY"], "/run/mpsd/jobs/6.localhost/pipe");
    assert_eq!(env["CUDA_DEVICE_MAX_CONNECTIONS"], "2", "the user's own");
    assert!(!env.contains_key("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"), "{env:?}");
    assert!(!env.contains_key("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), "{env:?}");
    c.openpbs_end(&job, 0);
}

#[test]
fn a_refusal_is_recorded_in_begin_and_told_in_launch() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("7.localhost", "MPS=true,MPS_THREADS=101");
    assert_eq!(
        c.openpbs_begin(&job),
        Verdict::Runs,
        "rejected in begin it would be tried 21 times"
    );
    let why = c.openpbs_shell(&job, "true").unwrap_err();
    assert!(why.contains("MPS_THREADS=101"), "{why}");
    let told = c.output(&job, 0).1;
    assert!(told.contains(&why) && told.lines().count() == 1, "{told}");
    c.openpbs_end(&job, -1);
    before.holds(&mut c);
    assert_eq!(c.state("nodea"), ("free".into(), String::new()));
}

#[test]
fn a_task_on_a_node_without_the_jobs_mps_fails_with_our_line() {
    let mut c = cluster(&["nodea"]);
    for (account, line) in [("MPS=true", true), ("MPS=off", false), ("mps_physics", false)] {
        let job = Job::new("13.localhost", account);
        c.openpbs_files(&job);
        match (task(&mut c, &job, 0), line) {
            (Ok(Ended::Code(1)), true) => {
                let told = c.output(&job, 0).1;
                assert!(told.contains("asked for MPS and has none on this node"), "{told}");
                assert!(c.records(0).is_empty(), "the program did not run");
            }
            (Ok(Ended::Code(0)), false) => bare(&c.records(0)[0]),
            (other, _) => panic!("{account}: {other:?}"),
        }
    }
}

#[test]
fn a_fault_rejects_begin_and_takes_the_node_offline() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let before = Before::of(&mut c);
    std::fs::remove_file(c.gpus[1].control()).unwrap();
    let job = Job::new("8.localhost", "MPS=true").on(&[&[0], &[0]]);
    assert_eq!(c.openpbs_begin(&job), Verdict::Requeued);
    let (state, note) = c.state("nodeb");
    assert_eq!(state, "offline");
    assert!(
        note.starts_with("mpsd: job 8.localhost: ") && note.len() <= 79,
        "{note}"
    );
    assert_eq!(c.state("nodea").0, "free");
    before.holds(&mut c);
}

/// The job's begin is rejected with `why`, at once, and the try does not count.
fn is_put_back(c: &mut Cluster, id: &str, account: &str, why: &str) {
    goes_back(c, &Job::new(id, account), why, 0);
}

/// The same for this job, of which PBS counts so many tries then.
fn goes_back(c: &mut Cluster, job: &Job, why: &str, tries: u32) {
    let before = Before::of(c);
    c.openpbs_files(job);
    let hooked = c.openpbs_tried(job, 0);
    assert!(hooked.message.contains(why), "{why}: {}", hooked.message);
    waits(c, job, &hooked, tries);
    c.nodes[0].sh("rm -f /var/spool/pbs/aux/*");
    before.holds(c);
    assert_eq!(c.state("nodea").0, "free");
}

/// The job was put back, is not tried again at once, and PBS counts so many tries of it.
fn waits(c: &Cluster, job: &Job, hooked: &Hooked, tries: u32) {
    assert_eq!(hooked.verdict, "reject");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let next = hooked.execution_time.unwrap_or(0);
    assert!((now + 30..now + 90).contains(&next), "{now} {next}");
    assert_eq!(
        c.tries(job),
        tries,
        "21 of them, and PBS holds the job: {}",
        hooked.message
    );
}

/// A cluster whose prologue has 5 s.
fn hurried() -> Cluster {
    Cluster::with(
        Product::OpenPbs,
        &["nodea"],
        |gpus| gpus.fast(),
        "deadline_s = 5\n",
    )
}

/// The same, whose server never gets ready, with the hook as it is shipped.
fn hurried_in_vain() -> Cluster {
    let never =
        |builder: tests::double::Builder| builder.fast().fault(|faults| faults.start = "never".into());
    let mut c = Cluster::with(Product::OpenPbs, &["nodea"], never, "deadline_s = 5\n");
    c.impatient_mom = true;
    c
}

/// The event of `job` on the first node, for which the mom did not wait.
fn at_once(c: &mut Cluster, job: &Job, event: &str) -> Hooked {
    let started = Instant::now();
    let hooked = c.hook(job, 0, event, &Default::default());
    let took = started.elapsed();
    assert!(took < Duration::from_secs(3), "{event}: the mom waited {took:?}");
    hooked
}

#[test]
fn a_node_that_may_not_drain_itself_puts_its_job_back() {
    let mut c = hurried();
    std::fs::write(c.server().join("operators"), "root@elsewhere\n").unwrap();
    std::fs::remove_file(c.gpus[0].control()).unwrap();
    is_put_back(&mut c, "9.localhost", "MPS=true", "operators += root@nodea");
    let waits = "a drain of this node waits for its scheduler";
    is_put_back(&mut c, "10.localhost", "MPS=true", waits);
    std::fs::write(c.server().join("failing"), "run_count=").unwrap();
    let counted = Job::new("31.localhost", "MPS=true");
    goes_back(&mut c, &counted, waits, 1);
}

/// In state W it would break its array (docs/facts/pbs.md#tries-of-a-job): it is held back in its own process.
#[test]
fn a_subjob_is_put_back_late_and_never_waits_for_a_time() {
    let mut c = hurried();
    c.impatient_mom = true;
    let before = Before::of(&mut c);
    let unusable = "cp -p /etc/mpsd/mpsd.toml /etc/mpsd/good; echo 'no_such_key = 1' >>/etc/mpsd/mpsd.toml";
    c.nodes[0].sh(unusable);
    let job = Job::new("9[1].localhost", "MPS=true");
    c.openpbs_files(&job);
    assert!(at_once(&mut c, &job, "execjob_begin").accepted());
    let started = Instant::now();
    let launched = c.hook(&job, 0, "execjob_launch", &c.job_environment(&job, 0));
    assert!(!launched.accepted() && launched.rerun, "{}", launched.message);
    assert_eq!((launched.execution_time, launched.run_count), (None, Some(0)));
    assert!(
        started.elapsed() > Duration::from_secs(15),
        "21 tries in a minute"
    );
    at_once(&mut c, &job, "execjob_abort");
    c.nodes[0].sh("rm -f /var/spool/pbs/aux/*; mv /etc/mpsd/good /etc/mpsd/mpsd.toml");
    before.holds(&mut c);
}

/// The mom does nothing else while execjob_begin or execjob_abort runs; execjob_launch runs in a process of the job.
#[test]
fn a_start_that_hangs_keeps_no_other_job_waiting() {
    let mut c = hurried_in_vain();
    let before = Before::of(&mut c);
    let job = Job::new("32.localhost", "MPS=true");
    c.openpbs_files(&job);
    assert!(at_once(&mut c, &job, "execjob_begin").accepted());
    let launched = c.hook(&job, 0, "execjob_launch", &c.job_environment(&job, 0));
    assert!(launched.rerun, "its user is to blame: {}", launched.message);
    assert_eq!(launched.run_count, Some(0), "the node alone failed");
    waits(&c, &job, &launched, 0);
    assert!(
        launched.message.contains("MPS did not start"),
        "{}",
        launched.message
    );
    at_once(&mut c, &job, "execjob_abort");
    let comment = std::fs::read_to_string(c.server().join("comments/32.localhost")).unwrap();
    assert!(comment.contains("MPS did not start"), "its user reads: {comment}");
    let note = c.state("nodea").1;
    assert!(note.starts_with("mpsd: ") && note.contains("not ready"), "{note}");
    // The next start that works takes the note away.
    c.gpus[0].change(|node| node.faults.start = String::new());
    let next = Job::new("30.localhost", "MPS=true");
    assert_eq!(c.openpbs_begin(&next), Verdict::Runs);
    let withdrawn = || c.state("nodea") == ("free".into(), String::new());
    assert!(
        wait_until(Duration::from_secs(5), withdrawn),
        "{:?}",
        c.state("nodea")
    );
    c.openpbs_end(&next, 0);
    c.nodes[0].sh("rm -f /var/spool/pbs/aux/*");
    before.holds(&mut c);
}

#[test]
fn a_job_that_is_deleted_while_its_mps_starts_leaves_nothing() {
    let mut c = hurried_in_vain();
    let before = Before::of(&mut c);
    let job = Job::new("33.localhost", "MPS=true");
    c.openpbs_files(&job);
    assert!(at_once(&mut c, &job, "execjob_begin").accepted());
    at_once(&mut c, &job, "execjob_abort");
    let gone = || {
        c.nodes[0]
            .sh("ls /run/mpsd/jobs; ps -e -o comm= | grep ^mps || :")
            .is_empty()
    };
    assert!(
        wait_until(Duration::from_secs(4), gone),
        "before the start's deadline"
    );
    c.nodes[0].sh("rm -f /var/spool/pbs/aux/*");
    before.holds(&mut c);
}

/// A user who breaks his own start again and again is held by PBS in the end, as with any job.
#[test]
fn a_start_that_may_fail_by_its_users_doing_counts() {
    let mut c = hurried_in_vain();
    let job = Job::new("34.localhost", "MPS=true");
    let own = c.user_process(&job, 0, &["/bin/sleep", "60"]);
    let own = c.nodes[0].start(own).unwrap();
    c.openpbs_files(&job);
    assert!(at_once(&mut c, &job, "execjob_begin").accepted());
    let launched = c.hook(&job, 0, "execjob_launch", &c.job_environment(&job, 0));
    assert!(launched.rerun, "{}", launched.message);
    assert_eq!(launched.run_count, None, "it counts");
    c.nodes[0].signal(own, 9);
    at_once(&mut c, &job, "execjob_abort");
}

/// As those of a job on 4,000 vnodes are: a word of a command line is 128 KiB at most.
#[test]
fn attributes_may_be_longer_than_a_command_line() {
    let mut c = cluster(&["nodea"]);
    c.nodes[0].sh("mpsctl pbs install --queuejob");
    let before = Before::of(&mut c);
    let large = Job {
        vnodes_elsewhere: 8000,
        ..Job::new("35.localhost", "MPS=true,MPS_THREADS=25")
    };
    assert_eq!(c.openpbs_begin(&large), Verdict::Runs);
    shell(&mut c, &large, &Cluster::client(""), 0);
    attached(&c.records(0)[0], &large, "nodea", 32, None);
    c.openpbs_end(&large, 0);
    let refused = Job::new("36.localhost", &format!("{},MPS=true", "x".repeat(200 << 10)));
    let queued = c.hook(&refused, 0, "queuejob", &Default::default());
    let why = "204809 bytes long; allowed: at most 1024 bytes";
    assert!(queued.message.contains(why), "{}", queued.message);
    assert_eq!(c.openpbs_begin(&refused), Verdict::Runs);
    let told = c.openpbs_shell(&refused, "true").unwrap_err();
    assert!(told.contains(why), "{told}");
    c.openpbs_end(&refused, -1);
    before.holds(&mut c);
}

/// No file can be made anywhere on the node but in `/run`, where a job's MPS is.
#[test]
fn an_end_needs_no_directory_for_temporary_files() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("37.localhost", "MPS=true");
    assert_eq!(c.openpbs_begin(&job), Verdict::Runs);
    let places = "/tmp /var/tmp /var/spool/pbs/mom_priv/hooks/tmp";
    let full = "mkdir -p $d; mount -t tmpfs -o nr_inodes=12 tmpfs $d";
    c.nodes[0].sh(&format!("for d in {places}; do {full}; done"));
    // What the mom itself writes for a hook stands there already.
    c.hook(
        &Job::new("38.localhost", ""),
        0,
        "execjob_launch",
        &Default::default(),
    );
    let fill = "i=0; while touch $d/f$i; do i=$((i+1)); done 2>/dev/null";
    c.nodes[0].sh(&format!("for d in {places}; do {fill}; done; ! touch /tmp/one"));
    assert!(c.hook(&job, 0, "execjob_end", &Default::default()).accepted());
    c.nodes[0].sh(&format!(
        "for d in {places}; do umount $d; done; rm -rf /var/spool/pbs/aux/* /run/mount"
    ));
    before.holds(&mut c);
}

#[test]
fn an_unprepared_job_and_a_missing_program_are_put_back() {
    let mut c = hurried();
    c.nodes[0].sh("cp -p /etc/passwd /root/; sed -i /alice/d /etc/passwd");
    is_put_back(&mut c, "23.localhost", "MPS=true", "alice");
    c.nodes[0].sh("cp -p /root/passwd /etc/passwd; mv /usr/bin/mps-prologue /root");
    is_put_back(
        &mut c,
        "24.localhost",
        "MPS=true",
        "cannot run '/usr/bin/mps-prologue'",
    );
}

#[test]
fn an_unusable_configuration_puts_the_job_back_and_is_shown_by_the_node_once() {
    let mut c = hurried();
    let before = Before::of(&mut c);
    c.nodes[0].sh("cp -p /etc/mpsd/mpsd.toml /etc/mpsd/good; echo 'no_such_key = 1' >>/etc/mpsd/mpsd.toml");
    is_put_back(&mut c, "25.localhost", "MPS=true", "no_such_key");
    let note = c.state("nodea").1;
    assert!(
        note.starts_with("mpsd: ") && note.contains("no_such_key") && note.len() <= 79,
        "{note}"
    );
    let calls = |c: &Cluster| {
        std::fs::read_to_string(c.server().join("calls"))
            .unwrap()
            .matches("pbsnodes -C")
            .count()
    };
    assert_eq!(calls(&c), 1);
    is_put_back(&mut c, "26.localhost", "MPS=maybe", "MPS=maybe");
    assert_eq!(calls(&c), 1, "told once");
    c.nodes[0].sh("mv /etc/mpsd/good /etc/mpsd/mpsd.toml");
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(0), "{text}");
    assert!(
        text.contains("WARN  the node shows 'mpsd: ") && text.contains("pbsnodes -C '' nodea"),
        "{text}"
    );
    let ran = c.nodes[0].sh("mpsctl reconcile");
    assert!(ran.contains("withdrawn"), "{ran}");
    assert_eq!(c.state("nodea"), ("free".into(), String::new()));
    // Another's note stays.
    std::fs::write(c.server().join("nodes/nodea"), "free\nNHC: disk").unwrap();
    c.nodes[0].sh("cp -p /etc/mpsd/mpsd.toml /etc/mpsd/good; echo 'no_such_key = 1' >>/etc/mpsd/mpsd.toml");
    c.nodes[0].sh("timeout 4 mps-prologue --scheduler openpbs --record --account=MPS=true -- 27.localhost alice alice || :");
    assert_eq!(c.state("nodea"), ("free".into(), "NHC: disk".into()));
    c.nodes[0].sh("mv /etc/mpsd/good /etc/mpsd/mpsd.toml");
    before.holds(&mut c);
}

#[test]
fn ends_without_a_begin_and_twice() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("10.localhost", "MPS=true");
    c.openpbs_end(&job, 0);
    before.holds(&mut c);
    assert_eq!(c.openpbs_begin(&job), Verdict::Runs);
    for event in ["execjob_abort", "execjob_end", "execjob_end"] {
        assert!(c.hook(&job, 0, event, &Default::default()).accepted());
    }
    c.nodes[0].sh("rm -f /var/spool/pbs/aux/*");
    before.holds(&mut c);
}

#[test]
fn restarting_the_mom_leaves_a_running_job_attached() {
    both::restarting_the_mom_leaves_a_running_job_attached(&mut cluster(&["nodea"]), "11.localhost");
}

#[test]
fn an_interactive_job_ends_with_its_user() {
    let job = Job::new("14.localhost", "MPS=true").interactive();
    both::an_interactive_job_ends_with_its_user(&mut cluster(&["nodea"]), &job, None);
}

#[test]
fn queuejob_refuses_at_qsub_and_moves_our_words() {
    let mut c = cluster(&["nodea"]);
    let queued =
        |c: &mut Cluster, account: &str| c.hook(&Job::new("", account), 0, "queuejob", &Default::default());
    assert!(queued(&mut c, "MPS=maybe").accepted(), "off unless asked for");
    c.nodes[0].sh("mpsctl pbs install --queuejob");
    let refused = queued(&mut c, "proj1,MPS=maybe");
    assert_eq!(refused.verdict, "reject");
    assert!(refused.message.contains("MPS=maybe"), "{}", refused.message);
    let moved = queued(&mut c, "proj1,MPS=true,MPS_THREADS=25");
    assert!(moved.accepted());
    assert_eq!(moved.account.as_deref(), Some("proj1"));
    assert_eq!(moved.resources["mps"].as_deref(), Some("per-node+threads=25"));
    for (account, lines) in [("mps_physics", 0), ("proj1,MPS", 1)] {
        let left = queued(&mut c, account);
        assert!(left.accepted(), "{}", left.message);
        assert_eq!(left.account.as_deref(), Some(account));
        assert_eq!(left.resources["mps"], None);
        // Where it is submitted, and never in the job.
        let told = |(_, line): &&(i32, String)| line.contains("asks for no MPS");
        assert_eq!(left.log.iter().filter(told).count(), lines, "{:?}", left.log);
    }
}

#[test]
fn a_rank_nobody_told_has_the_lowest_of_a_list() {
    both::a_rank_nobody_told_has_the_lowest_of_a_list(&mut cluster(&["nodea"]), "15.localhost");
}

#[test]
fn an_end_that_left_something_is_logged_with_its_code_and_last_line() {
    let mut c = cluster(&["nodea"]);
    let job = Job::new("31.localhost", "MPS=true");
    c.openpbs_files(&job);
    let program = "/usr/bin/mps-epilogue";
    c.nodes[0].sh(&format!("mkdir /root/p; mv {program} /root/p"));
    for (end, logged) in [
        (
            "echo one >&2; echo two >&2; exit 2",
            "mpsd: mps-epilogue ended with 2: two",
        ),
        ("exit 2", "mpsd: mps-epilogue ended with 2: it says nothing"),
        ("echo note >&2", "note"),
    ] {
        c.nodes[0].write(program, &format!("#!/bin/sh\n{end}\n"), 0o755);
        let hooked = c.hook(&job, 0, "execjob_end", &Default::default());
        let log: Vec<&str> = hooked.log.iter().map(|(_, line)| line.as_str()).collect();
        assert!(hooked.accepted(), "{}", hooked.message);
        assert_eq!(log, [logged], "{end}");
    }
    c.nodes[0].sh(&format!("mv /root/p/mps-epilogue {program}"));
}

/// What PBS gives to the hook and raises instead, as `pbs.logmsg` of a release that was built with a newer Python does.
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
    let mut c = cluster(&["nodea"]);
    let plain = Job::new("28.localhost", "proj1");
    c.openpbs_files(&plain);
    let programs = "/usr/bin/mps-prologue /usr/bin/mps-epilogue /usr/bin/mpsctl";
    c.nodes[0].sh(&format!("mkdir /root/p; mv {programs} /root/p"));
    for event in ["execjob_begin", "execjob_launch", "execjob_end", "execjob_abort"] {
        let hooked = c.hook(&plain, 0, event, &Default::default());
        assert!(hooked.accepted(), "{}", hooked.message);
        assert_eq!(hooked.imported, [""; 0], "{event}");
    }
    let asking = Job::new("28.localhost", "MPS=true");
    let ended = c.hook(&asking, 0, "execjob_end", &Default::default());
    let starts = |hooked: &Hooked| hooked.imported.contains(&"subprocess".to_owned());
    assert!(starts(&ended), "it is seen at all");
    // Something hung in the driver: the end of any job looks again, and nothing before it does.
    c.nodes[0].sh("mkdir -p /run/mpsd; touch /run/mpsd/look-again");
    for (event, looks) in [
        ("execjob_begin", false),
        ("execjob_launch", false),
        ("execjob_end", true),
    ] {
        let hooked = c.hook(&plain, 0, event, &Default::default());
        assert!(hooked.accepted(), "{}", hooked.message);
        assert_eq!(starts(&hooked), looks, "{event}");
    }
    c.nodes[0].sh("rm /run/mpsd/look-again");
}

#[test]
fn a_call_of_pbs_that_raises_touches_no_job_that_did_not_ask() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("20.localhost", "proj1");
    c.openpbs_files(&job);
    for name in RAISING {
        std::fs::write(c.server().join("failing"), name).unwrap();
        for event in ["execjob_begin", "execjob_launch", "execjob_end"] {
            let hooked = c.hook(&job, 0, event, &Default::default());
            assert!(hooked.accepted(), "{name} in {event}: {}", hooked.message);
        }
    }
    c.nodes[0].sh("rm -f /var/spool/pbs/aux/*");
    before.holds(&mut c);
}

#[test]
fn a_call_of_pbs_that_raises_leaves_nothing_and_ends_the_event_on_purpose() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    for name in RAISING {
        let job = Job::new("21.localhost", "MPS=true");
        c.openpbs_files(&job);
        std::fs::write(c.server().join("failing"), name).unwrap();
        let begun = c.hook(&job, 0, "execjob_begin", &Default::default());
        assert_ne!(begun.verdict, "error", "{name} in begin: {}", begun.message);
        let launched = c.hook(&job, 0, "execjob_launch", &c.job_environment(&job, 0));
        assert_ne!(
            launched.verdict, "error",
            "{name} in launch: {}",
            launched.message
        );
        let attached = launched.env.contains_key("MPSD_JOB");
        assert!(begun.accepted() || !begun.message.is_empty(), "{name}");
        assert!(
            attached || !launched.accepted() || name == "Account_Name" || name == "type",
            "{name}: outside MPS, and no word"
        );
        if begun.accepted() {
            let ended = c.hook(&job, 0, "execjob_end", &Default::default());
            assert!(ended.accepted(), "{name} in end: {}", ended.message);
        }
        std::fs::remove_file(c.server().join("failing")).unwrap();
        c.nodes[0].sh("rm -f /var/spool/pbs/aux/*");
        before.holds(&mut c);
    }
}

#[test]
fn a_log_line_that_raises_loses_no_refusal() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    std::fs::write(c.server().join("failing"), "logmsg").unwrap();
    let job = Job::new("22.localhost", "MPS=true,MPS_THREADS=101");
    assert_eq!(c.openpbs_begin(&job), Verdict::Runs);
    let why = c.openpbs_shell(&job, "true").unwrap_err();
    assert!(why.contains("MPS_THREADS=101"), "{why}");
    c.openpbs_end(&job, -1);
    before.holds(&mut c);
}

#[test]
fn qsub_takes_a_job_where_the_hook_fails() {
    let mut c = cluster(&["nodea"]);
    c.nodes[0].sh("mpsctl pbs install --queuejob");
    for name in ["Resource_List[]", "Account_Name=", "logmsg"] {
        std::fs::write(c.server().join("failing"), name).unwrap();
        let job = Job::new("", "proj1,MPS=true,MPS_THREADS=25");
        let queued = c.hook(&job, 0, "queuejob", &Default::default());
        assert!(queued.accepted(), "{name}: {}", queued.message);
        // The nodes look at what stands in it now.
        let account = queued.account.unwrap_or_default();
        let moved = queued.resources["mps"].is_some();
        assert!(
            moved || account == job.account,
            "{name}: the request is lost: {account}"
        );
    }
}

#[test]
fn too_many_tasks_are_told_once() {
    both::too_many_tasks_are_told_once(Product::OpenPbs, "19.localhost");
}

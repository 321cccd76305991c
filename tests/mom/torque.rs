//! Torque's moms and our prologue, epilogue and profile.

use crate::assertions::{Before, attached, bare, shell_ends, torque_client};
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::wire::{Ended, Run, Stream};

fn cluster(names: &[&str]) -> Cluster {
    Cluster::new(Product::Torque, names)
}

#[test]
fn a_plain_job_is_untouched() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    for account in ["", "proj1", "MPSLAB", "mps_physics"] {
        let job = Job::new("0.vm", account);
        assert_eq!(c.torque_begin(&job), Verdict::Runs, "{account}");
        before.holds(&mut c);
        let run = c.torque_shell(&job, &Cluster::client(""));
        shell_ends(&mut c, run, &job, 0);
        bare(&c.records(0)[0]);
        assert_eq!(c.output(&job, 0).1, "", "{account}");
        c.torque_end(&job, 0);
        c.nodes[0].sh("rm -f /var/spool/torque/spool/*");
    }
    before.holds(&mut c);
}

#[test]
fn the_flag_that_the_suite_is_named_after() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("1.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    assert_eq!(c.gpus[0].modes(), ["exclusive_process", "default"]);
    let run = c.torque_shell(&job, &Cluster::client(""));
    shell_ends(&mut c, run, &job, 0);
    attached(&c.records(0)[0], &job, "nodea", 132, None);
    assert_eq!(c.output(&job, 0).1, "");
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn limits_beside_the_sites_own_account() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("2.vm", "proj1,MPS=true,MPS_THREADS=25,MPS_MEM=2G");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let four = format!(
        "for i in 1 2 3 4; do {} & done; wait",
        Cluster::client("--hold 0.2")
    );
    let run = c.torque_shell(&job, &four);
    shell_ends(&mut c, run, &job, 0);
    let records = c.records(0);
    assert_eq!(records.len(), 4);
    records
        .iter()
        .for_each(|record| attached(record, &job, "nodea", 32, Some(2048)));
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn a_daemon_for_each_gpu_and_a_list_by_rank() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("3.vm", "MPS=per-gpu,MPS_THREADS=25:50").on(&[&[0, 1]]);
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let ranks = "for r in 0 1 2 3; do OMPI_COMM_WORLD_LOCAL_RANK=$r mpsctl exec -- CLIENT & done; wait";
    let run = c.torque_shell(&job, &ranks.replace("CLIENT", &Cluster::client("--hold 0.2")));
    shell_ends(&mut c, run, &job, 0);
    let records = c.records(0);
    assert_eq!(records.len(), 4, "{:?}", c.output(&job, 0));
    let uuids = c.gpus[0].uuids();
    for record in &records {
        let rank = usize::try_from(record["local_rank"].as_u64().unwrap()).unwrap();
        attached(record, &job, "nodea", if rank % 2 == 0 { 32 } else { 66 }, None);
        assert_eq!(record["visible"], uuids[rank % 2], "{record}");
        assert!(
            record["pipe_directory"]
                .as_str()
                .unwrap()
                .ends_with(&format!("/pipe-{}", rank % 2)),
            "{record}"
        );
    }
    let daemons: std::collections::BTreeSet<u64> =
        records.iter().filter_map(|r| r["daemon_pid"].as_u64()).collect();
    assert_eq!(daemons.len(), 2);
    // A rank that nobody told its number is not run beside its limits.
    let run = c.torque_shell(&job, &format!("mpsctl exec -- {}", Cluster::client("")));
    shell_ends(&mut c, run, &job, 1);
    assert!(c.records(0).is_empty());
    assert!(
        c.output(&job, 0).1.contains("OMPI_COMM_WORLD_LOCAL_RANK"),
        "{:?}",
        c.output(&job, 0)
    );
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn a_job_on_two_nodes() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let before = Before::of(&mut c);
    let job = Job::new("4.vm", "MPS=true,MPS_THREADS=50").on(&[&[0], &[1]]);
    assert_eq!(
        c.torque_begin(&job),
        Verdict::Runs,
        "{:?} {:?}",
        c.output(&job, 0),
        c.output(&job, 1)
    );
    assert_eq!(
        c.gpus[1].modes(),
        ["default", "exclusive_process"],
        "the sister took its own GPU"
    );
    let run = c.torque_shell(&job, &Cluster::client(""));
    shell_ends(&mut c, run, &job, 0);
    attached(&c.records(0)[0], &job, "nodea", 66, None);
    // TM starts tasks without a shell and without a profile: attached by the mom's $job_starter without a word of the
    // user, and by 'mpsctl exec' as well.
    for (at, node) in ["nodea", "nodeb"].into_iter().enumerate() {
        for prefix in ["", "/usr/bin/mpsctl exec -- "] {
            torque_client(&mut c, &job, at, prefix, &[]);
            attached(&c.records(at)[0], &job, node, 66, None);
        }
    }
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn an_interactive_job_ends_with_its_user() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("7.vm", "MPS=true").interactive();
    c.torque_files(&job);
    let run = c.torque_run(&job, 0, "prologue", None);
    let prologue = c.nodes[0].start(run).unwrap();
    assert_eq!(c.nodes[0].wait(prologue, 20_000), Ended::Code(0));
    let run = c.torque_shell(&job, &Cluster::client(""));
    let terminal = || Stream::Terminal;
    let shell = c.nodes[0]
        .start(Run {
            stdout: terminal(),
            stderr: terminal(),
            ..run
        })
        .unwrap();
    assert_eq!(c.nodes[0].wait(shell, 20_000), Ended::Code(0));
    attached(&c.records(0)[0], &job, "nodea", 132, None);
    assert!(
        !c.nodes[0].is_held(prologue),
        "qsub would hang: a daemon holds its socket or its terminal"
    );
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn restarting_the_mom_leaves_a_running_job_attached() {
    let mut c = cluster(&["nodea"]);
    let before = Before::of(&mut c);
    let job = Job::new("8.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let run = c.torque_shell(
        &job,
        &format!("{}; {}", Cluster::client("--busy --hold 1"), Cluster::client("")),
    );
    let shell = c.nodes[0].start(run).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(400));
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
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

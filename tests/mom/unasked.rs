//! OpenPBS's hook with a job that did not ask, and on a node without our programs.

use crate::jobs::{attached, bare, begins, client, says, says_once, task_is_refused};
use tests::double::Builder;
use tests::mom::cluster::{Cluster, Job, Product};

const NO_PACKAGE: &str = "rm /usr/bin/mps-prologue /usr/bin/mps-epilogue /usr/bin/mpsctl";

fn cluster(names: &[&str]) -> Cluster {
    Cluster::new(Product::OpenPbs, names)
}

/// `qsub -V` inside a job with MPS: the new job did not ask, and would look for the first one's
/// MPS. The node may lack our programs.
#[test]
fn a_job_that_did_not_ask_keeps_nothing_of_the_job_that_submitted_it() {
    let mut c = cluster(&["nodea"]);
    for is_installed in [true, false] {
        let job = c.job("proj1");
        c.openpbs_files(&job);
        let own = c.job_environment(&job, 0);
        let mut env = own.clone();
        for (name, value) in [
            ("MPSD_JOB", "99.localhost"),
            (
                "CUDA_MPS_PIPE_DIRECTORY",
                "/run/mpsd/jobs/99.localhost/pipe",
            ),
            ("CUDA_MPS_LOG_DIRECTORY", "/run/mpsd/jobs/99.localhost/log"),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5"),
            ("JAX_LOCAL_DEVICE_IDS", "0"),
        ] {
            env.insert(name.into(), value.into());
        }
        let hooked = c.hook_of(&job, 0, ("execjob_launch", &["/bin/sh"]), &env);
        assert!(hooked.accepted(), "{}", hooked.message);
        assert_eq!(hooked.env, own);
        c.nodes[0].sh("rm -f /usr/bin/mpsctl");
        assert!(is_installed || c.told(&job).is_empty());
    }
}

#[test]
fn a_job_keeps_its_users_own_mps() {
    let mut c = cluster(&["nodea"]);
    let job = c.job("proj1");
    c.openpbs_files(&job);
    let mut env = c.job_environment(&job, 0);
    env.insert("CUDA_MPS_PIPE_DIRECTORY".into(), "/home/alice/mps".into());
    env.insert("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".into(), "5".into());
    let launch = ("execjob_launch", &["/bin/sh"][..]);
    assert_eq!(c.hook_of(&job, 0, launch, &env).env, env);
    env.insert("MPSD_JOB".into(), "99.localhost".into());
    let kept = c.hook_of(&job, 0, launch, &env).env;
    assert_eq!(kept["CUDA_MPS_PIPE_DIRECTORY"], "/home/alice/mps");
    assert!(!kept.contains_key("MPSD_JOB"));
}

/// A script may have a variable of that name, so its job runs as it would without us.
#[test]
fn a_variable_asks_for_nothing_and_its_user_is_told() {
    let mut c = cluster(&["nodea"]);
    for (value, lines) in [("true", 1), ("per-gpu", 1), ("1", 0), ("/opt/mps", 0)] {
        let job = c.job("proj1");
        c.openpbs_files(&job);
        let mut env = c.job_environment(&job, 0);
        for (name, value) in [("PBS_TASKNUM", "1"), ("MPS", value)] {
            env.insert(name.into(), value.into());
        }
        let launched = c.hook_of(&job, 0, ("execjob_launch", &["/bin/sh"]), &env);
        assert!(launched.accepted(), "{}", launched.message);
        assert_eq!((launched.env, launched.imported), (env, vec![]));
        let told = c.told(&job);
        assert_eq!(
            told.matches("allowed: qsub -A MPS=on\n").count(),
            lines,
            "{value}: {told}"
        );
    }
}

/// The hook is on every node of the cluster, the package perhaps not. Such a node never worked, so
/// no try there ever will.
#[test]
fn a_node_without_our_package_refuses_the_job_and_names_both() {
    let config = "[pbs]\nauto_queues = [\"gpus\"]\n";
    let mut c = Cluster::with(Product::OpenPbs, &["nodea"], Builder::fast, config);
    let why = "node 'nodea' lacks '/usr/bin/mps-prologue' of the package mpsd";
    c.nodes[0].sh("mv /usr/bin/mps-prologue /root");
    for (number, lost) in ["true", NO_PACKAGE].into_iter().enumerate() {
        let subjob = format!("{number}[1].localhost");
        c.nodes[0].sh(&format!(
            "cp /root/mps-prologue /usr/bin; {lost}; rm -f /usr/bin/mps-prologue"
        ));
        for job in [c.job("proj1,MPS=true"), Job::new(&subjob, "MPS_THREADS=25")] {
            c.openpbs_files(&job);
            assert!(c.openpbs_tried(&job, 0).accepted());
            let launched = c.hook(&job, 0, "execjob_launch");
            assert_eq!(
                (launched.verdict.as_str(), launched.rerun),
                ("reject", false)
            );
            assert_eq!((launched.run_count, launched.execution_time), (None, None));
            let of_launch = why.replace(
                "mps-prologue",
                if lost == "true" {
                    "mps-prologue"
                } else {
                    "mpsctl"
                },
            );
            says(&launched.message, &[&of_launch, "allowed: "]);
            says_once(&c.told(&job), &[&of_launch]);
            c.end(&job, -1);
        }
        // These did not ask.
        for job in [c.job("mps_physics"), c.job("").in_queue("gpus")] {
            begins(&mut c, &job);
            bare(&client(&mut c, &job));
            assert_eq!(c.told(&job), "");
            c.end(&job, 0);
        }
    }
}

#[test]
fn a_task_on_a_later_node_without_our_package_reads_why() {
    let mut c = cluster(&["nodea", "nodeb"]);
    c.nodes[1].sh(NO_PACKAGE);
    let job = c.job("MPS=true").on(&[&[0], &[0]]);
    begins(&mut c, &job);
    attached(&client(&mut c, &job), &job, "nodea", 132, None);
    let why = "node 'nodeb' lacks '/usr/bin/mpsctl' of the package mpsd";
    says(&task_is_refused(&mut c, &job, 1), &[why]);
    c.end(&job, 0);
}

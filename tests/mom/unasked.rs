//! A job that did not ask: OpenPBS's hook with it, what it inherits, and a node without our
//! programs.

use crate::jobs::{
    attached_without_limits, bare, begins, begun, client, on_both, openpbs, run_ends, says,
    says_once, shell, task_is_refused, torque,
};
use std::collections::BTreeMap;
use tests::mom::cluster::{Cluster, Job, Product};
use tests::mom::openpbs::Hooked;
use tests::mom::wire::{Ended, Run, variables};

type Env = BTreeMap<String, String>;

fn with(env: &Env, more: &[(&str, &str)]) -> Env {
    let mut env = env.clone();
    env.extend(variables(more));
    env
}

const NO_PACKAGE: &str = "rm /usr/bin/mps-prologue /usr/bin/mps-epilogue /usr/bin/mpsctl";

/// `qsub -V` inside a job with MPS: the new job did not ask, and would look for the first one's
/// MPS. The node may lack our programs.
#[test]
fn a_job_that_did_not_ask_keeps_nothing_of_the_job_that_submitted_it() {
    let mut c = openpbs(&["nodea"], "");
    for is_installed in [true, false] {
        let job = c.job("proj1");
        c.openpbs_files(&job);
        let own = c.job_environment(&job, 0);
        let directory = "/run/mpsd/jobs/99.localhost";
        let variables = [
            ("MPSD_JOB", "99.localhost"),
            ("CUDA_MPS_PIPE_DIRECTORY", &*format!("{directory}/pipe")),
            ("CUDA_MPS_LOG_DIRECTORY", &format!("{directory}/log")),
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5"),
            ("JAX_LOCAL_DEVICE_IDS", "0"),
        ];
        assert_eq!(launch(&mut c, &job, &with(&own, &variables)).env, own);
        c.nodes[0].sh("rm -f /usr/bin/mpsctl");
        assert!(is_installed || c.told(&job).is_empty());
    }
}

/// The start of the job's main shell with this environment, which OpenPBS' hook lets pass.
fn launch(c: &mut Cluster, job: &Job, env: &Env) -> Hooked {
    let hooked = c.hook_of(job, 0, ("execjob_launch", &["/bin/sh"]), env);
    assert!(hooked.accepted(), "{}", hooked.message);
    hooked
}

/// What `qsub -V` in the main shell of a job with MPS carries into another job.
fn carried(c: &mut Cluster, parent: &Job, script: &str) -> Env {
    shell(c, parent, &format!("{script}\nenv\n"), 0);
    let (out, _) = c.output(parent, 0);
    let set = out.lines().filter_map(|line| line.split_once('='));
    let ours = set.filter(|(name, _)| ["CUDA_", "MPSD_"].iter().any(|own| name.starts_with(own)));
    let ours: Env = ours.map(|(n, v)| (n.into(), v.into())).collect();
    assert!(ours.contains_key("CUDA_VISIBLE_DEVICES"), "{out}");
    ours
}

fn launched(c: &mut Cluster, job: &Job, carried: &Env) -> Env {
    // The mom's list escapes commas.
    let escaped = |(n, v): (&String, &String)| (n.clone(), v.replace(',', r"\,"));
    let mut env: Env = carried.iter().map(escaped).collect();
    env.extend(c.job_environment(job, 0));
    launch(c, job, &env).env
}

/// `qsub -V` carries the list of GPUs that we gave the job that submitted it. The scheduler's own
/// list stays, and so does its user's.
#[test]
fn a_job_sees_no_gpus_that_the_mps_of_another_job_named() {
    let mut c = openpbs(&["nodea"], "");
    let parent = c.job("MPS=true").on(&[&[0, 1]]).stock("exclhost");
    begins(&mut c, &parent);
    let mps = carried(&mut c, &parent, "");
    c.openpbs_end(&parent);
    let named = c.job("proj1").on(&[&[0, 1]]);
    c.openpbs_files(&named);
    for is_installed in [true, false] {
        let job = c.job("proj1").stock("pack");
        let own = c.job_environment(&job, 0);
        assert_eq!(launched(&mut c, &job, &mps), own);
        for list in ["1", ""] {
            let visible = [("CUDA_VISIBLE_DEVICES", list)];
            let users = with(&mps, &visible);
            assert_eq!(launched(&mut c, &job, &users), with(&own, &visible));
        }
        for before in ["", ":", ":GPU-1,GPU-2"] {
            let devices = format!("0,1{before}");
            let variables = [("CUDA_VISIBLE_DEVICES", "0,1"), ("MPSD_DEVICES", &devices)];
            let found = launched(&mut c, &job, &with(&mps, &variables));
            let list = before
                .strip_prefix(':')
                .map(|list| list.replace(',', r"\,"));
            assert_eq!(found.get("CUDA_VISIBLE_DEVICES"), list.as_ref(), "{before}");
        }
        // pbs_cgroups has named the same GPUs.
        let same = with(&mps, &[("MPSD_DEVICES", &c.gpus[0].uuids().join(","))]);
        let kept = c.job_environment(&named, 0);
        assert_eq!(launched(&mut c, &named, &same), kept);
        c.nodes[0].sh("rm -f /usr/bin/mpsctl");
        assert!(is_installed || c.told(&job).is_empty());
    }
}

/// Torque's mom names the GPUs of a job that has some, after what `qsub -V` carried.
#[test]
fn a_job_of_torque_has_the_gpus_that_it_would_have_without_its_parents_mps() {
    let mut c = torque(&["nodea"], "");
    let parent = c.job("MPS=true").on(&[&[1]]);
    begins(&mut c, &parent);
    let mps = carried(&mut c, &parent, "");
    let users = carried(&mut c, &parent, "export CUDA_VISIBLE_DEVICES=0,1");
    let numbers = [("CUDA_VISIBLE_DEVICES", "0"), ("MPSD_DEVICES", "0:1")];
    let by_number = with(&mps, &numbers);
    for (carried, gpu, sees) in [
        // Without our MPS, too, 'qsub -V' carries what the mom gave the parent.
        (&mps, None, "1"),
        (&mps, Some("0"), "0"),
        (&by_number, None, "1"),
        (&by_number, Some("0"), "0"),
        (&users, None, "0,1"),
    ] {
        let job = begun(&mut c, "proj1");
        let script = "echo $CUDA_VISIBLE_DEVICES; env | grep -c MPS\n";
        let mut run = c.torque_shell(&job, script);
        run.env.remove("CUDA_VISIBLE_DEVICES");
        run.env.extend(carried.clone());
        // The mom names this file also for a job without GPUs.
        let file = format!("/var/spool/torque/aux/{}gpu", job.id);
        c.nodes[0].sh(&format!("rm -f {file}"));
        if let Some(gpu) = gpu {
            run.env.insert("CUDA_VISIBLE_DEVICES".into(), gpu.into());
            c.nodes[0].write(&file, &format!("nodea-gpu{gpu}\n"), 0o644);
        }
        run_ends(&mut c, &job, run, 1);
        let out = (format!("{sees}\n0\n"), String::new());
        assert_eq!(c.output(&job, 0), out, "{gpu:?}");
    }
}

/// A job that asks too has its own GPUs and limits, not those of the job that submitted it.
#[test]
fn a_job_with_mps_that_one_with_mps_submitted_has_its_own_gpu() {
    on_both(&["nodea"], "", |c| {
        let is_openpbs = c.product == Product::OpenPbs;
        let mut parent = c.job("MPS=true").on(&[&[1]]);
        let mut job = c.job("MPS=true");
        if is_openpbs {
            [parent, job] = [parent, job].map(|job| job.on(&[&[0, 1]]).stock("exclhost"));
        }
        begins(c, &parent);
        let limits = [
            ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5"),
            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1M"),
        ];
        let mut mps = with(&carried(c, &parent, ""), &limits);
        if is_openpbs {
            c.end(&parent, 0);
            // It ran on another node.
            let elsewhere = ["CUDA_VISIBLE_DEVICES", "MPSD_DEVICES"];
            mps = with(&mps, &elsewhere.map(|name| (name, "GPU-01234567")));
        }
        begins(c, &job);
        let words = Cluster::client_on("nodea");
        let words: Vec<&str> = words.split(' ').collect();
        let mut run = c.user_process(&job, 0, &words);
        if is_openpbs {
            let env = launched(c, &job, &mps).into_iter();
            run.env = env.map(|(n, v)| (n, v.replace(r"\,", ","))).collect();
        } else {
            run.env = mps.into_iter().chain(run.env).collect();
            let starter = "/var/spool/torque/mom_priv/mpsd-job-starter";
            run.argv.insert(0, starter.into());
        }
        run_ends(c, &job, run, 0);
        let record = c.records(0).remove(0);
        attached_without_limits(&record, &job);
        let own = &c.gpus[0].uuids()[..job.gpus[0].len()];
        assert_eq!(record["uuids"], serde_json::json!(own), "{record}");
    });
}

#[test]
fn a_job_keeps_its_users_own_mps() {
    let mut c = openpbs(&["nodea"], "");
    let job = c.job("proj1");
    c.openpbs_files(&job);
    let variables = [
        ("CUDA_MPS_PIPE_DIRECTORY", "/home/alice/mps"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "5"),
    ];
    let env = with(&c.job_environment(&job, 0), &variables);
    assert_eq!(launch(&mut c, &job, &env).env, env);
    let env = with(&env, &[("MPSD_JOB", "99.localhost")]);
    let kept = launch(&mut c, &job, &env).env;
    assert_eq!(kept["CUDA_MPS_PIPE_DIRECTORY"], "/home/alice/mps");
    assert!(!kept.contains_key("MPSD_JOB"));
}

/// A script may have a variable of that name, so its job runs as it would without us.
#[test]
fn a_variable_asks_for_nothing_and_its_user_is_told() {
    let mut c = openpbs(&["nodea"], "");
    for (value, lines) in [("true", 1), ("per-gpu", 1), ("1", 0), ("/opt/mps", 0)] {
        let job = c.job("proj1");
        c.openpbs_files(&job);
        let variables = [("PBS_TASKNUM", "1"), ("MPS", value)];
        let env = with(&c.job_environment(&job, 0), &variables);
        let launched = launch(&mut c, &job, &env);
        assert_eq!((launched.env, launched.imported), (env, vec![]));
        let told = c.told(&job);
        let count = told.matches("allowed: qsub -A MPS=on\n").count();
        assert_eq!(count, lines, "{value}: {told}");
    }
}

/// The mom's prologue does not see a job's variables. The job starter does.
#[test]
fn a_variable_asks_torque_for_nothing_and_its_user_is_told() {
    let mut c = torque(&["nodea"], "");
    let with = |mut run: Run, value: &str| {
        run.env.insert("MPS".into(), value.into());
        run
    };
    for (value, lines) in [("true", 1), ("Per-GPU", 1), ("1", 0), ("/opt/mps", 0)] {
        let job = begun(&mut c, "proj1");
        let run = with(c.torque_shell(&job, "echo $MPS $0"), value);
        run_ends(&mut c, &job, run, 0);
        assert_eq!(c.output(&job, 0).0, format!("{value} -sh\n"));
        let told = c.told(&job);
        says(&told, &["", "allowed: qsub -A MPS=on\n"][..=lines]);
        assert_eq!(told.lines().count(), lines, "{value}: {told}");
    }
    // A job that has MPS, and a task of TM.
    let job = begun(&mut c, "MPS=true");
    let run = with(c.torque_shell(&job, "true"), "true");
    run_ends(&mut c, &job, run, 0);
    assert_eq!(c.told(&job), "");
    c.end(&job, 0);
    let job = begun(&mut c, "proj1");
    let task = [("MPS", "true"), ("PBS_TASKNUM", "2")];
    assert_eq!(c.torque_task(&job, 0, &["/bin/sh"], &task), Ended::Code(0));
    assert_eq!(c.told(&job), "");
}

/// The hook is on every node of the cluster, the package perhaps not. Such a node never worked, so
/// no try there ever will.
#[test]
fn a_node_without_our_package_refuses_the_job_and_names_both() {
    let config = "[pbs]\nauto_queues = [\"gpus\"]\n";
    let mut c = openpbs(&["nodea"], config);
    c.nodes[0].sh("mv /usr/bin/mps-prologue /root");
    for (lost, subjob, of_launch) in [
        ("true", "0[1].localhost", "mps-prologue"),
        (NO_PACKAGE, "1[1].localhost", "mpsctl"),
    ] {
        c.nodes[0].sh(&format!(
            "cp /root/mps-prologue /usr/bin; {lost}; rm -f /usr/bin/mps-prologue"
        ));
        let why = format!("node 'nodea' lacks '/usr/bin/{of_launch}' of the package mpsd");
        for job in [c.job("proj1,MPS=true"), Job::new(subjob, "MPS_THREADS=25")] {
            c.openpbs_files(&job);
            assert!(c.openpbs_tried(&job, 0).accepted());
            let launched = c.hook(&job, 0, "execjob_launch");
            let found = (launched.verdict.as_str(), launched.rerun);
            assert_eq!(found, ("reject", false));
            assert_eq!((launched.run_count, launched.execution_time), (None, None));
            says(&launched.message, &[&why, "allowed: "]);
            says_once(&c.told(&job), &[&why]);
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
    let mut c = openpbs(&["nodea", "nodeb"], "");
    c.nodes[1].sh(NO_PACKAGE);
    let job = c.job("MPS=true").on(&[&[0], &[0]]);
    begins(&mut c, &job);
    attached_without_limits(&client(&mut c, &job), &job);
    let why = "node 'nodeb' lacks '/usr/bin/mpsctl' of the package mpsd";
    says(&task_is_refused(&mut c, &job, 1), &[why]);
    c.end(&job, 0);
}

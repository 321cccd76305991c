//! `MPS=auto`, asked by the job itself and for the jobs of a queue.

use crate::jobs::{
    attached, attached_without_limits, bare, begins, client, ends, on_both, openpbs, root,
    says_once, shell, task_client, torque,
};
use std::time::{Duration, Instant};
use tests::double::Builder;
use tests::mom::cluster::{Cluster, Job, Product};

const CONFIG: &str = "[pbs]\nauto_queues = [\"gpus\", \"more\"]\n";
const WHY: &str = "auto: no MPS, because 1 task on 1 GPU";

/// What the job's main shell sees, and a task of TM and a client on each node; without the job's
/// own number.
fn seen(c: &mut Cluster, job: &Job) -> Vec<String> {
    let nothing_runs = |c: &Cluster| {
        for gpus in &c.gpus {
            assert_eq!(gpus.modes(), ["default", "default"]);
            assert!(gpus.daemons().is_empty());
        }
    };
    begins(c, job);
    nothing_runs(c);
    let mut all = Vec::new();
    shell(c, job, "env | sort; ls -l /proc/self/fd | wc -l; umask", 0);
    all.push(c.output(job, 0).0);
    for at in 0..job.gpus.len() {
        let env = c.task(job, at, &["/usr/bin/env"]);
        all.push(format!("{env:?} {}", c.output(job, at).0));
    }
    all.push(c.told(job));
    let mut records = vec![client(c, job)];
    records.extend((0..job.gpus.len()).map(|at| task_client(c, job, at, "")));
    for record in &records {
        bare(record);
        let facts = ["sms", "uuids", "visible"].map(|name| record[name].to_string());
        all.push(facts.join(" "));
    }
    nothing_runs(c);
    ends(c, job);
    all.iter()
        .map(|text| text.replace(&job.id, "JOB"))
        .collect()
}

/// Each way to get `auto`, and `off` in a queue, for jobs and sites of every kind.
fn is_the_job_without_us(product: Product) {
    const SITES: [&str; 3] = [
        "",
        "compute_mode = \"keep\"\n",
        "[defaults]\nthreads = 50\n",
    ];
    const ASKED: [(&str, &str); 4] = [
        ("", "gpus"),
        ("proj1,MPS=off", "gpus"),
        ("proj1", "more"),
        ("proj1,MPS=auto", "batch"),
    ];
    const SHAPES: [&[&[u32]]; 3] = [&[&[0]], &[&[0, 1]], &[&[1], &[0]]];
    for (site, settings) in SITES.iter().enumerate() {
        let config = format!("{settings}{CONFIG}");
        let c = &mut Cluster::with(product, &["nodea", "nodeb"], Builder::fast, &config);
        for (shape, gpus) in SHAPES.iter().enumerate() {
            let tasks = u32::try_from(gpus[0].len()).unwrap();
            let plain = c.job("").on(gpus).tasks(tasks);
            let expected = seen(c, &plain);
            // Two of the four with each site and shape, so that each of them meets every site and
            // every shape.
            for (account, queue) in [0, 1].map(|more| ASKED[(site + shape + 2 * more) % 4]) {
                let tasks = if account.ends_with("=off") { 4 } else { tasks };
                let job = c.job(account).on(gpus).tasks(tasks).in_queue(queue);
                let found = seen(c, &job);
                let known = |line: &str| {
                    let told = account.ends_with("=auto") && line.contains("auto: no MPS, because");
                    told || line.starts_with("PBS_ACCOUNT=")
                };
                let without = |all: &[String]| -> Vec<String> {
                    let lines = all.iter().flat_map(|text| text.lines());
                    let others = lines.filter(|line| !known(line));
                    others.map(str::to_owned).collect()
                };
                let (found, expected) = (without(&found), without(&expected));
                assert_eq!(found, expected, "{settings} {gpus:?} '{account}'");
            }
        }
    }
}

#[test]
fn a_job_that_auto_gives_nothing_is_the_job_without_us_under_torque() {
    is_the_job_without_us(Product::Torque);
}

#[test]
fn a_job_that_auto_gives_nothing_is_the_job_without_us_under_openpbs() {
    is_the_job_without_us(Product::OpenPbs);
}

#[test]
fn a_job_of_the_queue_with_more_tasks_has_mps_unless_it_says_off() {
    on_both(&["nodea"], CONFIG, |c| {
        for (account, queue, tasks, mps) in [
            ("", "gpus", 4, true),
            ("proj1", "more", 3, true),
            ("proj1,MPS=off", "gpus", 4, false),
            ("proj1", "gpu", 4, false),
            ("proj1,MPS=true", "gpus", 1, true),
        ] {
            let job = c.job(account).on(&[&[0, 1]]).tasks(tasks).in_queue(queue);
            begins(c, &job);
            // A user who did not ask must not notice.
            let asked = account.ends_with("=true");
            let mode = ["default", "exclusive_process"][usize::from(asked)];
            assert_eq!(c.gpus[0].modes()[0], mode, "{account} {queue}");
            for record in &[client(c, &job), task_client(c, &job, 0, "")] {
                match mps {
                    true => attached_without_limits(record, &job),
                    false => bare(record),
                }
            }
            assert_eq!(c.told(&job), "", "{account} {queue}");
            ends(c, &job);
        }
    });
}

#[test]
fn a_subjob_of_torque_in_the_queue_has_mps_by_its_script() {
    let mut c = torque(&["nodea"], CONFIG);
    let id = c.job("").id.replacen('.', "[1].", 1);
    let job = Job::new(&id, "").on(&[&[0, 1]]).tasks(4).in_queue("gpus");
    begins(&mut c, &job);
    attached_without_limits(&client(&mut c, &job), &job);
    ends(&mut c, &job);
}

/// Its MPS ends with it, by its directory.
#[test]
fn a_running_job_outlives_the_entry_of_its_queue() {
    on_both(&["nodea"], CONFIG, |c| {
        let job = c.job("").on(&[&[0, 1]]).in_queue("more");
        begins(c, &job);
        attached_without_limits(&client(c, &job), &job);
        let other = "sed -i 's/\"more\"/\"most\"/' /etc/mpsd/mpsd.toml; mpsctl pbs install";
        c.nodes[0].sh(other);
        ends(c, &job);
    });
}

#[test]
fn a_job_of_the_queue_runs_where_mpsctl_fails() {
    let mut c = openpbs(&["nodea"], CONFIG);
    let job = c.job("").on(&[&[0, 1]]).in_queue("gpus");
    begins(&mut c, &job);
    let fails = "cp /usr/bin/mpsctl /root; printf '#!/bin/sh\\nexit 2\\n' >/usr/bin/mpsctl";
    c.nodes[0].sh(fails);
    let launched = c.hook(&job, 0, "execjob_launch");
    assert!(
        launched.accepted() && !launched.rerun,
        "{}",
        launched.message
    );
    c.nodes[0].sh("cp /root/mpsctl /usr/bin/mpsctl");
    ends(&mut c, &job);
}

#[test]
fn a_user_who_says_auto_reads_once_what_it_found() {
    on_both(&["nodea"], "", |c| {
        let job = c.job("proj1,MPS=auto").tasks(1);
        begins(c, &job);
        bare(&client(c, &job));
        bare(&task_client(c, &job, 0, ""));
        // In a job that auto gives no MPS, a script's own commands for MPS do no harm.
        bare(&task_client(c, &job, 0, "/usr/bin/mpsctl exec -- "));
        says_once(&c.told(&job), &[WHY]);
        root(c, 1, &format!("mpsctl status {}", job.id), &[WHY]);
        let (number, _) = job.id.split_once('.').unwrap();
        root(c, 1, &format!("mpsctl status {number}"), &[WHY]);
        ends(c, &job);
        let job = c.job("MPS=auto,MPS_THREADS=50").tasks(4);
        begins(c, &job);
        attached(&client(c, &job), &job, "nodea", 66, None);
        let why = "auto: MPS, because 4 tasks on 1 GPU";
        root(c, 0, &format!("mpsctl status {}", job.id), &[why]);
        ends(c, &job);
        root(c, 0, &format!("mpsctl report {}", job.id), &[why]);
    });
}

/// The prologue hangs before it says anything. If the job began, its processes would run beside
/// that start.
#[test]
fn a_start_that_the_hook_cannot_wait_for_is_tried_again() {
    let mut c = openpbs(&["nodea"], CONFIG);
    c.impatient_mom = true;
    c.nodes[0].sh("printf '#!/bin/sh\\nsleep 30\\n' >/usr/bin/mps-prologue");
    let job = c.job("").in_queue("gpus");
    c.openpbs_files(&job);
    let started = Instant::now();
    let hooked = c.openpbs_tried(&job, 0);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(6), "{took:?}");
    let found = (hooked.verdict.as_str(), hooked.run_count);
    assert_eq!(found, ("reject", Some(0)), "{}", hooked.message);
    assert!(hooked.execution_time.is_some());
    let running = c.nodes[0].sh("ps -eo args=");
    assert!(!running.contains("sleep 30"), "{running}");
}

#[test]
fn a_script_or_hook_with_other_queues_is_told() {
    on_both(&["nodea"], CONFIG, |c| {
        let told = "auto_queues of mpsd.toml";
        let launcher = "has MPS only if its script names an MPI launcher";
        for (change, is_told) in [
            ("true", false),
            ("sed -i 's/\"more\"/\"most\"/' /etc/mpsd/mpsd.toml", true),
            ("mpsctl pbs install", false),
        ] {
            c.nodes[0].sh(change);
            let text = c.nodes[0].try_sh("mpsctl pbs check").1;
            assert_eq!(text.contains(told), is_told, "{change}: {text}");
            assert!(text.contains(launcher), "{change}: {text}");
        }
    });
}

/// Under Torque nothing confines a job to its GPUs, and a prologue has the script before the job
/// begins.
#[test]
fn a_job_of_the_queue_that_could_notice_is_left_out_and_reads_nothing() {
    on_both(&["nodea"], CONFIG, |c| {
        let own = "nvidia-cuda-mps-control -d\nmpirun -n 4 ./prog\n";
        for (script, why) in [
            (own, "names nvidia-cuda-mps"),
            (
                "export CUDA_DEVICE_MAX_CONNECTIONS=32\nmpiexec ./prog\n",
                "CONNECTIONS",
            ),
            (
                "for i in $(seq 56); do ./prog & done; wait\n",
                "names no mpirun",
            ),
        ] {
            let job = c.job("").on(&[&[0, 1]]).in_queue("gpus");
            let job = job.with_script(script);
            begins(c, &job);
            bare(&client(c, &job));
            bare(&task_client(c, &job, 0, ""));
            assert_eq!(c.told(&job), "", "{script}");
            let words = ["auto: no MPS, because", why];
            root(c, 1, &format!("mpsctl status {}", job.id), &words);
            ends(c, &job);
        }
        let job = c.job("").on(&[&[0, 1]]).in_queue("gpus");
        let of_root = job.of(("root", 0));
        begins(c, &of_root);
        assert_eq!(c.told(&of_root), "");
        ends(c, &of_root);
    });
}

#[test]
fn a_job_of_the_queue_whose_daemon_has_ended_or_whose_user_has_a_directory_runs() {
    on_both(&["nodea"], CONFIG, |c| {
        let job = c.job("").on(&[&[0, 1]]).in_queue("gpus");
        begins(c, &job);
        let pid = "$(cat /run/mpsd/jobs/*/pipe/nvidia-cuda-mps-control.pid)";
        c.nodes[0].sh(&format!(
            "kill -9 {pid}; while kill -0 {pid} 2>/dev/null; do sleep 0.05; done"
        ));
        bare(&client(c, &job));
        assert_eq!(c.told(&job), "");
        ends(c, &job);
    });
}

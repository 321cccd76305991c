//! What holds under the moms of both products.

use crate::jobs::{
    NoControl, attached, attached_without_limits, begins, begun, client, ends, free, on_both, root,
    says, says_once, shell, task_client, task_is_refused,
};
use std::collections::BTreeSet;
use std::time::Instant;
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::wire::{Ended, Run, Stream};

#[test]
fn a_job_that_asks_has_its_mps_and_its_limits_in_its_shell_and_its_tasks() {
    on_both(&["nodea"], "", |c| {
        for (account, sms, limit) in [
            ("MPS=true", 132, None),
            ("proj1,MPS=true,MPS_THREADS=25,MPS_MEM=2G", 32, Some(2048)),
        ] {
            let job = begun(c, account);
            assert_eq!(c.gpus[0].modes(), ["exclusive_process", "default"]);
            let four = format!(
                "for i in 1 2 3 4; do {} & done; wait",
                Cluster::client("--hold 0.2")
            );
            shell(c, &job, &four, 0);
            let mut records = c.records(0);
            assert_eq!(records.len(), 4, "{account}");
            records.push(task_client(c, &job, 0, ""));
            for record in &records {
                attached(record, &job, "nodea", sms, limit);
            }
            assert_eq!(c.told(&job), "", "{account}");
            ends(c, &job);
        }
    });
}

/// Users name a job as qstat does, before its end and after.
#[test]
fn the_number_of_a_job_is_enough() {
    on_both(&["nodea"], "", |c| {
        let number = "4711";
        let id = c.job("").id.replace("1.", &format!("{number}."));
        let job = Job::new(&id, "MPS=true,MPS_THREADS=25");
        begins(c, &job);
        let by_user = format!("setpriv --reuid {} --regid {0} --clear-groups", job.user.1);
        for who in [by_user.as_str(), ""] {
            for (words, told) in [
                (
                    format!("env --job {number}"),
                    format!("MPSD_JOB='{}'", job.id),
                ),
                (
                    format!("exec --job {number} -- /usr/bin/env"),
                    format!("MPSD_JOB={}", job.id),
                ),
            ] {
                root(c, 0, &format!("{who} mpsctl {words} 2>&1"), &[&told]);
            }
        }
        let none = "job 987654: it has no MPS on this node";
        root(c, 0, "mpsctl env --job 987654 2>&1 || :", &[none]);
        // It is not taken for one of Slurm.
        let (_, text) = c.nodes[0].try_sh("mpsctl status 987654");
        says(&text, &["job 987654 has no MPS on this node"]);
        assert!(!text.contains("srun"), "{text}");
        ends(c, &job);
        for who in [by_user.as_str(), ""] {
            let report = format!("job {} of ", job.id);
            root(c, 0, &format!("{who} mpsctl report {number}"), &[&report]);
        }
    });
}

/// A program without a rank sees no GPU. An MPI launcher's daemon is an exception: its children
/// have ranks.
#[test]
fn each_gpu_has_a_daemon_and_each_rank_its_own_limit() {
    on_both(&["nodea", "nodeb"], "", |c| {
        let [rank, launcher] = match c.product {
            Product::Torque => ["OMPI_COMM_WORLD_LOCAL_RANK", "/tmp/orted"],
            Product::OpenPbs => ["PALS_LOCAL_RANKID", "/tmp/prted"],
        };
        let job = c.job("MPS=per-gpu,MPS_THREADS=25:50");
        let job = job.on(&[&[0, 1], &[0, 1]]);
        begins(c, &job);
        let (held, client) = (Cluster::client("--hold 0.2"), Cluster::client(""));
        let size = rank.replace("RANKID", "SIZE").replace("RANK", "SIZE");
        let ranks = format!(
            "{client} && exit 9; for r in 0 1 2 3; do {rank}=$r {size}=4 mpsctl exec -- {held} & done; wait"
        );
        shell(c, &job, &ranks, 0);
        let mut records = c.records(0);
        let outside = records.remove(0);
        says(&outside["error"].to_string(), &["100"]);
        let told = c.told(&job);
        let words = [
            "a program without a rank sees no GPU",
            "its script names mpirun",
            "2 thread percentages by local rank for 4 tasks on this node: the list repeats",
        ];
        says(&told, &words);
        let lines = if c.product == Product::Torque { 3 } else { 2 };
        assert_eq!(told.lines().count(), lines, "{told}");
        assert_eq!(records.len(), 4, "{:?}", c.output(&job, 0));
        let daemons = records.iter().map(|record| record["daemon_pid"].as_u64());
        assert_eq!(daemons.collect::<BTreeSet<_>>().len(), 2);
        let ranks = format!(
            "#!/bin/sh\nfor r in 0 1; do {rank}=$r mpsctl exec -- {} & done; wait\n",
            Cluster::client_on("nodeb")
        );
        c.nodes[1].write(launcher, &ranks, 0o755);
        let ended = c.task(&job, 1, &[launcher, "-mca"]);
        assert_eq!(ended, Ok(Ended::Code(0)), "{:?}", c.output(&job, 1));
        records.extend(c.records(1));
        assert_eq!(records.len(), 6, "{:?}", c.output(&job, 1));
        for record in &records {
            let rank = usize::try_from(record["local_rank"].as_u64().unwrap()).unwrap();
            let at = usize::from(record["node"] == "nodeb");
            let (node, sms) = (["nodea", "nodeb"][at], [32, 66][rank % 2]);
            attached(record, &job, node, sms, None);
            assert_eq!(record["visible"], c.gpus[at].uuids()[rank % 2], "{record}");
            let pipe = record["pipe_directory"].as_str().unwrap();
            assert!(pipe.ends_with(&format!("/pipe-{}", rank % 2)), "{record}");
        }
        says(&task_is_refused(c, &job, 1), &[rank]);
        shell(c, &job, &format!("mpsctl exec -- {client}"), 1);
        says(&c.told(&job), &["OMPI_COMM_WORLD_LOCAL_RANK"]);
        assert!(c.records(0).is_empty(), "it ran beside its limits");
        ends(c, &job);
    });
}

#[test]
fn each_node_of_a_job_serves_its_own_gpu() {
    on_both(&["nodea", "nodeb"], "", |c| {
        let job = c.job("MPS=true,MPS_THREADS=50").on(&[&[0], &[1]]);
        begins(c, &job);
        assert_eq!(c.gpus[1].modes(), ["default", "exclusive_process"]);
        attached(&client(c, &job), &job, "nodea", 66, None);
        for (at, node) in ["nodea", "nodeb"].into_iter().enumerate() {
            for prefix in ["", "/usr/bin/mpsctl exec -- "] {
                attached(&task_client(c, &job, at, prefix), &job, node, 66, None);
            }
        }
        ends(c, &job);
    });
}

/// A process that keeps its terminal: the end of the shell would hang it up.
const HOLDER: &str = "trap '' HUP; setsid sleep 30 & echo $! >/tmp/holder; exit 0";

/// `qsub -I` would hang if a daemon kept the terminal, or a descriptor of the prologue's, open.
#[test]
fn an_interactive_job_ends_with_its_user() {
    on_both(&["nodea"], "", |c| {
        let job = c.job("MPS=true").interactive();
        let prologue = match c.product {
            Product::Torque => {
                c.torque_files(&job);
                let run = c.torque_run(&job, 0, "prologue", None);
                let pid = c.nodes[0].start(run).unwrap();
                assert_eq!(c.nodes[0].wait(pid, 20_000), Ended::Code(0));
                Some(pid)
            }
            Product::OpenPbs => {
                begins(c, &job);
                None
            }
        };
        let on_terminal = |c: &mut Cluster, script: &str| {
            let run = Run {
                stdout: Stream::Terminal,
                stderr: Stream::Terminal,
                ..c.shell(&job, script).unwrap()
            };
            let shell = c.nodes[0].start(run).unwrap();
            assert_eq!(c.nodes[0].wait(shell, 20_000), Ended::Code(0));
            shell
        };
        let shell = on_terminal(c, &Cluster::client(""));
        attached_without_limits(&c.records(0)[0], &job);
        let held = c.nodes[0].is_held(prologue.unwrap_or(shell));
        assert!(!held, "a daemon holds qsub's socket or its terminal");
        // A process that does is seen.
        let shell = on_terminal(c, HOLDER);
        assert!(c.nodes[0].is_held(shell));
        c.nodes[0].sh("kill -9 $(cat /tmp/holder)");
        ends(c, &job);
    });
}

#[test]
fn more_tasks_than_a_gpu_takes_clients_are_told_once() {
    on_both(&["nodea"], "max_clients = 3\n", |c| {
        let job = begun(c, "MPS=true");
        let client = Cluster::client("");
        let script = format!("{client}; eval \"$(mpsctl env)\"; mpsctl exec -- {client}");
        shell(c, &job, &script, 0);
        let line = "a GPU takes 3 MPS clients, and this job has 4 tasks on each";
        says_once(&c.told(&job), &[line]);
        ends(c, &job);
    });
}

/// The prologue itself must not refuse: the job would be tried again, or its output never
/// delivered.
#[test]
fn a_refused_job_reads_why_once_and_its_script_does_not_run() {
    on_both(&["nodea"], "", |c| {
        for (account, word) in [
            ("MPS=true,MPS_THREADS=101", "MPS_THREADS=101"),
            ("MPS=maybe", "MPS=maybe"),
            ("MPS_FOO=1", "MPS_FOO=1"),
        ] {
            let job = begun(c, account);
            if let Ok(run) = c.shell(&job, "echo ran") {
                assert_eq!(c.nodes[0].run(run), Ended::Code(1));
            }
            assert_eq!(c.output(&job, 0).0, "", "{word}");
            says_once(&c.told(&job), &[word]);
            c.end(&job, 1);
            c.is_as_before();
        }
        assert_eq!(c.state("nodea"), free());
    });
}

#[test]
fn a_fault_takes_the_node_offline_and_the_job_is_requeued() {
    on_both(&["nodea"], "", |c| {
        let fault = NoControl::on(c, 0);
        let job = c.job("MPS=true");
        let started = Instant::now();
        assert_eq!(c.begin(&job), Verdict::Requeued, "{:?}", c.output(&job, 0));
        let took = started.elapsed().as_secs();
        assert!(took < 5, "a drained node needs no brake: {took} s");
        let (state, note) = c.state("nodea");
        says(&note, &[&format!("mpsd: job {}: ", job.id)]);
        assert!(state == "offline" && note.len() <= 79, "{state} {note}");
        c.is_as_before();
        begun(c, "proj1");
        fault.repair();
        c.nodes[0].sh("mpsctl undrain");
        assert_eq!(c.state("nodea"), free());
    });
}

#[test]
fn an_end_without_a_begin_and_a_second_end_do_nothing() {
    on_both(&["nodea"], "", |c| {
        let job: Job = c.job("MPS=true,MPS_REPORT=off");
        ends(c, &job);
        begins(c, &job);
        if c.product == Product::OpenPbs {
            assert!(c.hook(&job, 0, "execjob_abort").accepted());
        }
        ends(c, &job);
        ends(c, &job);
        assert_eq!(c.told(&job), "");
    });
}

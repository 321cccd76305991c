//! What may happen to a running MPS: the outcome, and its line in the user's log.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::double::look;
use tests::figures;
use tests::node_bed::{
    NodeBed, OWN_CHILDREN, Running, eventually, fast, kernel_tells_of_ends, kill, status_of,
};
use tests::run::{THREE, USER, skip};

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=1G";
const STAYS: [&str; 3] = ["--hold", "20", "--busy"];
const LIMIT: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";

fn served(job: &str, config: &str) -> NodeBed {
    NodeBed::with_job(fast(1), &format!("{CONFIG}{config}"), job, ACCOUNT, "0")
}

fn log_of(bed: &NodeBed, job: &str) -> String {
    bed.log(job, "mpsd.log")
}

/// Waits for a line of the log with these words, and asserts that it is the only one.
#[track_caller]
fn says(bed: &NodeBed, job: &str, words: &str) {
    eventually(words, || log_of(bed, job).contains(words));
    let log = log_of(bed, job);
    let lines = log.lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines, 1, "'{words}' once in:\n{log}");
}

#[track_caller]
fn ends_clean(bed: &NodeBed, job: &str, after: &str) {
    bed.assert_ends_clean(job, after);
    figures::tell("faults", 1);
}

fn error_of(text: &str) -> Option<u64> {
    let last: Value = serde_json::from_str(text.lines().last()?).ok()?;
    last["cuda"]["code"].as_u64()
}

#[track_caller]
fn error(mut client: Running) -> Option<u64> {
    client.wait();
    let out = client.0.stdout.take().expect("stdout");
    error_of(&std::io::read_to_string(out).expect("text"))
}

#[test]
fn an_idle_mpsd_does_not_wake_up_and_a_command_of_its_user_is_no_fault() {
    let bed = served("470.srv", "");
    let said = log_of(&bed, "470.srv");
    bed.say("470.srv", "set_default_active_thread_percentage 100");
    let mpsd = bed.pids("mpsd")[0];
    eventually("mpsd sleeps for two seconds", || {
        let before = status_of(mpsd, "voluntary_ctxt_switches");
        std::thread::sleep(Duration::from_secs(2));
        !before.is_empty() && status_of(mpsd, "voluntary_ctxt_switches") == before
    });
    assert_eq!(log_of(&bed, "470.srv"), said);
    let status = bed.mpsctl_as(USER, &["status"], &[("PBS_JOBID", "470.srv")]);
    status.prints("asked 25, the daemon says 100.0: NOT in force");
    ends_clean(&bed, "470.srv", "a limit that its owner lifted");
}

#[test]
fn a_fatal_gpu_error_of_one_client_is_told_to_the_user_and_drains_nothing() {
    let told = "new ones are refused with error 807";
    let bed = served("94.srv", "");
    let innocent = bed.attached("94.srv", &STAYS, &[]);
    let culprit = bed.attached("94.srv", &["--hold", "1", "--fault"], &[]);
    assert_eq!(error(innocent), Some(700), "the error of another");
    says(&bed, "94.srv", told);
    let refused = bed.tried("94.srv", &[]);
    assert_eq!(error_of(&refused.out), Some(807), "{refused:?}");
    assert_eq!(error(culprit), Some(700));
    eventually("with the last of them gone it serves again", || {
        bed.tried("94.srv", &[]).code == Some(0)
    });
    ends_clean(&bed, "94.srv", "a fatal GPU error");
    // An epilogue while the server still waits for its clients.
    let bed = served("95.srv", "");
    let stays = bed.attached("95.srv", &["--hold", "20", "--fault"], &[]);
    says(&bed, "95.srv", told);
    bed.end("95.srv");
    drop(stays);
    bed.assert_as_before("a server in FAULT state");
}

#[test]
fn a_client_over_its_memory_limit_is_told_or_ended_as_the_site_says() {
    for policy in ["log", "terminate"] {
        let config = format!("memory_over_limit = \"{policy}\"\ncompute_mode = \"keep\"\n");
        let bed = served("96.srv", &config);
        let told = || {
            let args = [&["--alloc", "4096"][..], &STAYS].concat();
            let client = bed.attached("96.srv", &args, &[(LIMIT, "garbage")]);
            let line = format!("client {} holds ", client.pid());
            says(&bed, "96.srv", &line);
            (client, line)
        };
        let (client, line) = told();
        assert!(log_of(&bed, "96.srv").contains("its limit is 1024 MiB"));
        if policy == "log" {
            // A line about a second client proves a second look.
            drop(told());
            says(&bed, "96.srv", &line);
            assert!(look::alive(client.pid()), "left alone");
            drop(client);
        } else {
            assert_eq!(error(client), Some(810), "{}", log_of(&bed, "96.srv"));
            says(&bed, "96.srv", "terminate_client, it gets error 810");
        }
        ends_clean(&bed, "96.srv", policy);
    }
}

fn in_cgroup(bed: &NodeBed, job: &str, mib: &str, cgroup: &Path) -> Running {
    let args = [&["--alloc", mib][..], &STAYS].concat();
    let exec = bed.exec_command(&args, &[]);
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]);
    command.arg(cgroup.join("cgroup.procs"));
    command.arg(exec.get_program()).args(exec.get_args());
    command.env_clear().env("PBS_JOBID", job);
    let client = Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()));
    eventually("the client attaches", || bed.has_context(client.pid()));
    client
}

fn remove_groups(own: &Path, groups: &[PathBuf]) {
    let above = |group| Path::ancestors(group).take_while(|above| *above != own);
    let all: BTreeSet<&Path> = groups.iter().flat_map(|group| above(group)).collect();
    for group in all.into_iter().rev() {
        eventually("the cgroup is empty", || fs::remove_dir(group).is_ok());
    }
}

#[test]
fn a_job_whose_clients_are_together_over_its_limit_loses_the_youngest_and_no_other_job_does() {
    let config = format!("{CONFIG}shared_gpus = true\nmemory_over_limit = \"terminate\"\n");
    let bed = NodeBed::new(fast(1), &config);
    let (jobs, accounts) = (["471.srv", "472.srv"], ["MPS_MEM=job=4G", "MPS_MEM=6G"]);
    let own = bed
        .cgroups
        .as_ref()
        .expect("no cgroup hierarchy to test with");
    let groups = jobs.map(|job| own.join("torque").join(job));
    for (n, job) in jobs.iter().enumerate() {
        let account = format!("MPS=true,{}", accounts[n]);
        bed.torque_on_gpu_0(job, &account).ok();
        fs::create_dir(groups[n].parent().expect("a directory")).ok();
        fs::create_dir(&groups[n]).expect("a cgroup");
    }
    let start = |n: usize, mib: &str| in_cgroup(&bed, jobs[n], mib, &groups[n]);
    // Two of the first fit: 1804 MiB each beside their contexts.
    let within = [(0, "2000"), (1, "4096"), (0, "2000")].map(|(n, mib)| start(n, mib));
    let over = start(0, "2000");
    let beside = start(1, "4096");
    let pid = over.pid();
    assert_eq!(error(over), Some(810));
    let status = bed.mpsctl_as(USER, &["status"], &[("PBS_JOBID", jobs[0])]);
    status
        .prints("all clients of this job: ")
        .prints("M of 4096M");
    let gpu = &bed.node.uuids()[0];
    let metrics = bed.mpsctl(&["metrics"]).ok();
    let name = "mpsd_job_memory_limit_bytes";
    let of = |job: &str| format!("{name}{{jobid=\"{job}\",gpu=\"0\",uuid=\"{gpu}\"}}");
    metrics.prints(format!("{} 4294967296\n", of(jobs[0])));
    metrics.lacks(of(jobs[1]));
    let living = within.iter().chain([&beside]);
    assert!(living.into_iter().all(|client| look::alive(client.pid())));
    drop((within, beside));
    remove_groups(own, &groups);
    let told = bed.end(jobs[0]);
    told.complains("the clients of job 471.srv hold ");
    let line = format!("their limit together is 4096 MiB: client {pid}, the youngest, is ended");
    assert_eq!(told.err.matches(&line).count(), 1, "{told:?}");
    let report = bed.mpsctl(&["report", jobs[0]]).ok();
    report.prints("GPU 0: its clients held at most ");
    report.prints(" of the 4096 MiB that they may together");
    bed.end(jobs[1]);
    let other = bed.mpsctl(&["report", jobs[1]]).ok();
    other.lacks("that they may together");
    bed.assert_as_before("a job over its limit together");
}

fn two_jobs() -> NodeBed {
    let bed = NodeBed::new(fast(1), "deadline_s = 20\nshared_gpus = true\n");
    for job in SHARERS {
        bed.torque_on_gpu_0(job, "MPS=true").ok();
    }
    bed
}

const SHARERS: [&str; 2] = ["861.srv", "862.srv"];

/// A `quit` of the user's in a job, which waits for the daemon's end.
fn quits(bed: &NodeBed, job: &str) -> Running {
    let exec = ["exec", "--", "/bin/sh", "-c", "echo quit | \"$0\""];
    let mut command = bed.mpsctl_of(USER);
    command.args(exec).arg(bed.node.control());
    Running::silent(command.env("PBS_JOBID", job))
}

fn in_job(bed: &NodeBed, job: &str) -> Value {
    bed.exec(&[], &[("PBS_JOBID", job)]).ok().json()
}

#[test]
fn a_shared_mps_that_a_script_tells_to_quit_comes_back_for_all_its_jobs() {
    for is_busy in [false, true] {
        let bed = two_jobs();
        let before = in_job(&bed, SHARERS[0])["daemon_pid"].clone();
        let busy = is_busy.then(|| bed.sharer(SHARERS[1]));
        let quit = quits(&bed, SHARERS[0]);
        let mut after = Value::Null;
        eventually("another daemon serves new programs", || {
            let ran = bed.exec(&[], &[("PBS_JOBID", SHARERS[1])]);
            if ran.code == Some(0) {
                after = ran.json();
            }
            after["under_mps"] == true && after["daemon_pid"] != before
        });
        assert_eq!(in_job(&bed, SHARERS[0])["daemon_pid"], after["daemon_pid"]);
        // It also serves a job that begins now.
        bed.torque_on_gpu_0("863.srv", "MPS=true").ok();
        assert_eq!(in_job(&bed, "863.srv")["daemon_pid"], after["daemon_pid"]);
        if let Some(busy) = &busy {
            assert!(bed.has_context(busy.pid()), "the busy program goes on");
        }
        drop(busy);
        drop(quit);
        let told = "told control daemon";
        for job in SHARERS {
            bed.end(job).complains(told);
        }
        bed.end("863.srv").lacks(told);
        bed.assert_as_before("a shared MPS that was told to quit");
        for job in SHARERS {
            let report = bed.mpsctl(&["report", job]);
            report.prints("told to quit; ").prints(told);
        }
        bed.assert_not_drained("a shared MPS that was told to quit");
    }
}

#[test]
fn a_killed_rank_costs_the_next_program_nothing() {
    let bed = served("96.srv", "");
    let stays = ["--hold", "20", "--paired"];
    let ranks = [(), ()].map(|()| bed.attached("96.srv", &stays, &[]));
    let [server] = bed.pids(THREE[2])[..] else {
        panic!("a server")
    };
    for rank in ranks {
        kill(rank.pid(), Signal::SIGKILL);
        drop(rank);
    }
    if !log_of(&bed, "96.srv").contains("was ended by") && !kernel_tells_of_ends() {
        return skip("suite, killed ranks", OWN_CHILDREN);
    }
    says(&bed, "96.srv", &format!("server {server} ended by mpsd"));
    assert_eq!(bed.served("96.srv", &[]).json()["sms"], 32, "limits");
    let log = log_of(&bed, "96.srv");
    assert!(!log.contains(" died "), "{log}");
    ends_clean(&bed, "96.srv", "killed ranks");
    let report = bed.mpsctl(&["report", "96.srv"]);
    report.lacks("caused a fatal").lacks("was lost");
}

/// As after a module that sets CUDA_MPS_PIPE_DIRECTORY.
#[test]
fn a_program_outside_the_mps_of_its_job_is_named_while_no_program_reaches_it() {
    let config = "compute_mode = \"keep\"\n";
    let bed = served("98.srv", config);
    let elsewhere = ("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent");
    let outside = Running::silent(bed.cuda(&["--hold", "60"]).envs([elsewhere]));
    let (pid, gpu) = (outside.pid(), &bed.node.uuids()[0]);
    let words = format!("process {pid} of its user computes on {gpu} outside it");
    says(&bed, "98.srv", &words);
    drop(outside);
    let told = "CUDA_MPS_PIPE_DIRECTORY was overwritten or lost there";
    bed.end("98.srv").complains(told);
    bed.assert_as_before("a program outside");
    let told = format!("process {pid} computed outside the job's MPS");
    bed.mpsctl(&["report", "98.srv"]).prints(told);
    // A program that reaches it ends the search.
    bed.begin("99.srv", ACCOUNT, "0");
    bed.served("99.srv", &[]);
    bed.end("99.srv").lacks("outside it");
}

//! Static partitions: each rank gets its own, or does not run. The double plays a driver as NVIDIA
//! documents it.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;
use tests::double::Builder;
use tests::place::{Place, Running, eventually, fast};
use tests::stage::{Ran, USER, finish, script};

const TWO: &str = "MPS=true,MPS_SMS=16:32";
const RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";

fn node(gpus: usize) -> Builder {
    fast(gpus).describe(|node| node.driver_version = "590.44.01".to_owned())
}

fn place(node: Builder) -> Place {
    Place::new(node, "deadline_s = 6\n")
}

fn rank(place: &Place, job: &str, rank: &str) -> Ran {
    // NVIDIA's daemon ignores the percentage then.
    let percentage = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10");
    place.exec(&[], &[("PBS_JOBID", job), (RANK, rank), percentage])
}

#[test]
fn each_rank_has_the_multiprocessors_that_were_asked_for_and_no_others() {
    let (place, job) = (place(node(1)), "590.srv");
    place.begin(job, TWO, "0");
    for (number, sms) in [("0", 16), ("1", 32)] {
        let record = rank(&place, job, number).json();
        assert_eq!(record["under_mps"], true, "{record}");
        assert_eq!(record["sms"], sms, "{record}");
    }
    let beyond = rank(&place, job, "2").exits(1);
    beyond.complains("rank 2 of this node has none");
    let none = place.exec(&[], &[("PBS_JOBID", job)]).exits(1);
    none.complains("no local rank");
    // A client without us gets no context: the vendor refuses it.
    let bare = place.tried(job, &[]).json();
    assert_eq!(bare["cuda"]["code"], 915, "{bare}");
    place.assert_ends_clean(job, "a job with partitions");
}

/// A rank by `mpsctl exec`; `nested`: within another `mpsctl exec`, as a job starter and the user's
/// own line run it.
fn started(place: &Place, job: &str, local: &str, hold: &str, nested: bool) -> Command {
    let mut command = place.mpsctl_of(USER);
    command.args(["exec", "--"]);
    if nested {
        command.arg(place.program("mpsctl")).arg("--config");
        command.arg(place.config()).args(["exec", "--"]);
    }
    command.arg(place.node.client()).arg("--node");
    command.arg(place.node.dir()).args(["--hold", hold]);
    command.envs([("PBS_JOBID", job), (RANK, local)]);
    command
}

#[test]
fn two_launchers_at_once_do_not_share_a_partition() {
    let (place, job) = (place(node(1)), "597.srv");
    place.begin(job, TWO, "0");
    let run = |local: &str, nested: bool| finish(started(&place, job, local, "0", nested));
    let mut first = started(&place, job, "0", "60", true);
    let first = Running::start(first.stdout(Stdio::null()));
    eventually("the rank has a context", || {
        let contexts = place.node.contexts();
        contexts
            .iter()
            .any(|(_, context)| context.pid == first.pid())
    });
    let why = "another process of the job has that of rank 0 on this node; allowed: one launcher at a time";
    run("0", false).exits(1).complains(why);
    assert_eq!(run("1", false).json()["sms"], 32);
    drop(first);
    assert_eq!(run("0", true).json()["sms"], 16);
    // A Slurm step has all of them; its ranks have their variable from the plugin.
    let lock = place.job(job).join("partitions/lock");
    let file = fs::File::options()
        .write(true)
        .open(lock)
        .expect("the lock");
    assert!(
        mpsd_core::partitions::take(&file, mpsd_core::partitions::Holder::All).expect("a lock")
    );
    run("1", false).exits(1).complains("that of rank 1");
    let record = fs::read_to_string(place.job(job).join("record")).expect("a record");
    let record: Value = serde_json::from_str(&record).expect("a record");
    let own = &record["daemons"][0]["partitions"][0];
    let name = ["gpu", "id"].map(|key| own[key].as_str().expect("its name"));
    let mut of_step = started(&place, job, "0", "0", false);
    of_step.envs([
        ("SLURM_STEP_ID", "0"),
        ("CUDA_MPS_SM_PARTITION", &name.join("/")),
    ]);
    assert_eq!(finish(of_step).json()["sms"], 16);
    drop(file);
    place.assert_ends_clean(job, "a job of two launchers");
}

#[test]
fn ranks_are_dealt_out_to_gpus_and_see_theirs_alone() {
    let job = "591.srv";
    for (mode, pipes) in [
        ("true", ["pipe", "pipe"]),
        ("per-gpu", ["pipe-0", "pipe-1"]),
    ] {
        let place = place(node(2));
        place.begin(job, &format!("MPS={mode},MPS_SMS=16:32:8"), "0,1");
        for (number, gpu, sms) in [("0", 0, 16), ("1", 1, 32), ("2", 0, 8)] {
            let record = rank(&place, job, number).json();
            assert_eq!(record["sms"], sms, "{mode} {number}: {record}");
            let all = record["gpus"].as_array().expect("GPUs");
            let uuids: Vec<&str> = all.iter().filter_map(|gpu| gpu["uuid"].as_str()).collect();
            assert_eq!(
                uuids,
                [&place.node.uuids()[gpu]],
                "{mode} {number}: {record}"
            );
            assert!(place.job(job).join(pipes[gpu]).join("control").exists());
        }
        place.assert_ends_clean(job, "partitions of two GPUs");
    }
}

#[test]
fn a_job_whose_partitions_do_not_fit_is_refused_and_drains_nothing() {
    let (place, job) = (place(node(1)), "592.srv");
    // 132 multiprocessors have 16 chunks of 8.
    for sizes in ["64:72:8", "136:8"] {
        let ran = place.torque(job, &format!("MPS=true,MPS_SMS={sizes}"), "0");
        ran.exits(1).complains(" multiprocessors left for rank ");
        place.assert_ends_clean(job, sizes);
    }
    place.begin(job, "MPS=true,MPS_SMS=64:64", "0");
    place.assert_ends_clean(job, "partitions that fill the GPU");
}

#[test]
fn no_job_starts_whose_partition_is_not_as_requested() {
    let job = "593.srv";
    let answers = |command: &str, text: &str| {
        node(1).fault(|faults| drop(faults.answer.insert(command.to_owned(), text.to_owned())))
    };
    let old = "knows no option -S; allowed: a node with driver 590";
    let older = "this node has driver 580.159.04, which has no static partitions; allowed: a node with driver 590";
    for (words, code, node) in [
        (older, 1, fast(1)),
        (old, 1, node(1).fault(|faults| faults.no_static = true)),
        ("", 1, node(1).fault(|faults| faults.lacking_sms = 4)),
        ("", 2, answers("lspart", "GPU Partition")),
        ("", 2, answers("sm_partition", "created")),
    ] {
        let place = place(node);
        let ran = place.torque(job, TWO, "0").exits(code);
        ran.complains(words);
        place.assert_ends_clean(job, &ran.err);
    }
}

#[test]
fn a_probe_of_the_new_daemon_has_a_partition_and_its_gpu_alone() {
    let (place, job) = (place(node(2)), "595.srv");
    let probe = place.program("mps-probe");
    let looks = "[ -n \"$CUDA_MPS_SM_PARTITION\" ] && [ \"$CUDA_VISIBLE_DEVICES\" = \"${CUDA_MPS_SM_PARTITION%%/*}\" ]";
    fs::remove_file(&probe).expect("mps-probe");
    script(&probe, looks);
    for (token, code) in [("MPS_SMS=16:16", 0), ("MPS_THREADS=25", 2)] {
        let account = format!("MPS=true,MPS_VERIFY=on,{token}");
        place.torque(job, &account, "0,1").exits(code);
        place.assert_ends_clean(job, token);
    }
}

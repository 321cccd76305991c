//! Static partitions: each rank gets its own, or does not run. Against the double of a driver with them, which is made from NVIDIA's
//! documentation.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tests::double::Builder;
use tests::double::look::wait_until;
use tests::place::{Place, fast};
use tests::stage::{Ran, USER, as_user, finish};

const WITH: &str = "590.44.01";
/// Two ranks: 16 and 32 multiprocessors.
const TWO: &str = "MPS=true,MPS_SMS=16:32";

fn node(gpus: usize, driver: &str) -> Builder {
    fast(gpus).describe(|node| node.driver_version = driver.to_owned())
}

fn place(node: Builder) -> Place {
    Place::new(node, "deadline_s = 6\n")
}

/// A client as `mpsctl exec` starts the rank of that number.
fn rank(place: &Place, job: &str, rank: Option<u32>, env: &[(&str, &str)]) -> Ran {
    let local = rank.map(|rank| rank.to_string());
    let local = local
        .as_deref()
        .map(|local| ("OMPI_COMM_WORLD_LOCAL_RANK", local));
    let job = [("PBS_JOBID", job)];
    let env: Vec<_> = job.into_iter().chain(env.iter().copied()).chain(local).collect();
    place.exec(&[], &env)
}

#[track_caller]
fn record(ran: &Ran) -> Value {
    serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran:?}"))
}

#[test]
fn each_rank_has_the_multiprocessors_that_were_asked_for_and_no_others() {
    let (place, job) = (place(node(1, WITH)), "590.srv");
    let ran = place.torque(job, TWO, "0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for (number, sms) in [(0, 16), (1, 32)] {
        // What NVIDIA's daemon ignores then does not matter.
        let ran = rank(
            &place,
            job,
            Some(number),
            &[("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "10")],
        );
        let record = record(&ran);
        assert_eq!(
            (&record["under_mps"], &record["sms"]),
            (&true.into(), &sms.into()),
            "{record}"
        );
    }
    let beyond = rank(&place, job, Some(2), &[]);
    assert_eq!(beyond.code, Some(1), "{beyond:?}");
    assert!(beyond.err.contains("rank 2 of this node has none"), "{beyond:?}");
    let none = rank(&place, job, None, &[]);
    assert!(
        none.code == Some(1) && none.err.contains("no local rank"),
        "{none:?}"
    );
    // Who goes round us gets no context: the vendor's own refusal.
    let mut bare = as_user(USER, place.stage.node.client());
    bare.arg("--node").arg(place.stage.node.dir());
    bare.env_clear().envs([place.pipe(job)]);
    let bare = record(&finish(bare));
    assert_eq!(bare["cuda"]["code"], 915, "{bare}");
    place.assert_ends_clean(job, "a job with partitions");
}

/// `mpsctl exec` twice, one inside the other, as a job starter and the user's own line are; or once.
fn started(place: &Place, job: &str, local: &str, hold: &str, nested: bool) -> std::process::Command {
    let mpsctl = place.stage.program("mpsctl");
    let mut command = as_user(USER, &mpsctl);
    command
        .arg("--config")
        .arg(place.stage.config())
        .args(["exec", "--"]);
    if nested {
        command.arg(&mpsctl).arg("--config").arg(place.stage.config());
        command.args(["exec", "--"]);
    }
    command.arg(place.stage.node.client()).arg("--node");
    command.arg(place.stage.node.dir()).args(["--hold", hold]);
    command.env_clear().env("PBS_JOBID", job);
    command.env("OMPI_COMM_WORLD_LOCAL_RANK", local);
    command
}

#[test]
fn two_launchers_at_once_do_not_share_a_partition() {
    let (place, job) = (place(node(1, WITH)), "597.srv");
    let ran = place.torque(job, TWO, "0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut first = started(&place, job, "0", "60", true);
    let mut first = first.stdout(Stdio::null()).spawn().expect("a rank");
    assert!(wait_until(Duration::from_secs(30), || {
        let contexts = place.stage.node.contexts();
        contexts.iter().any(|(_, one)| one.pid == first.id())
    }));
    let second = finish(started(&place, job, "0", "0", false));
    let why = "another process of the job has that of rank 0 on this node; allowed: one launcher at a time";
    assert!(second.code == Some(1) && second.err.contains(why), "{second:?}");
    let other = record(&finish(started(&place, job, "1", "0", false)));
    assert_eq!(other["sms"], 32, "{other}");
    first.kill().and_then(|()| first.wait()).expect("its end");
    let third = record(&finish(started(&place, job, "0", "0", true)));
    assert_eq!(third["sms"], 16, "{third}");
    // A step of Slurm has all of them; its own ranks have their variable from the plugin.
    let file = fs::File::options()
        .write(true)
        .open(place.stage.job(job).join("partitions/lock"));
    let file = file.expect("what is locked");
    assert!(mpsd_core::partitions::take(&file, mpsd_core::partitions::Holder::All).expect("a lock"));
    let beside = finish(started(&place, job, "1", "0", false));
    assert!(
        beside.code == Some(1) && beside.err.contains("that of rank 1"),
        "{beside:?}"
    );
    let record_of_job = fs::read_to_string(place.stage.job(job).join("record")).expect("a record");
    let of_job: Value = serde_json::from_str(&record_of_job).expect("a record");
    let own = &of_job["daemons"][0]["partitions"][0];
    let name = ["gpu", "id"]
        .map(|key| own[key].as_str().expect("its name"))
        .join("/");
    let mut of_step = started(&place, job, "0", "0", false);
    of_step
        .env("SLURM_STEP_ID", "0")
        .env("CUDA_MPS_SM_PARTITION", name);
    assert_eq!(record(&finish(of_step))["sms"], 16);
    drop(file);
    place.assert_ends_clean(job, "a job of two launchers");
}

#[test]
fn ranks_are_dealt_out_to_gpus_and_see_theirs_alone() {
    let job = "591.srv";
    for (mode, pipes) in [("true", ["pipe", "pipe"]), ("per-gpu", ["pipe-0", "pipe-1"])] {
        let place = place(node(2, WITH));
        let ran = place.torque(job, &format!("MPS={mode},MPS_SMS=16:32:8"), "0,1");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for (number, gpu, sms) in [(0, 0, 16), (1, 1, 32), (2, 0, 8)] {
            let ran = rank(&place, job, Some(number), &[]);
            let record = record(&ran);
            assert_eq!(record["sms"], sms, "{mode} {number}: {record}");
            let all = record["gpus"].as_array().expect("GPUs");
            let uuids: Vec<&str> = all.iter().filter_map(|gpu| gpu["uuid"].as_str()).collect();
            assert_eq!(
                uuids,
                [place.stage.node.uuids()[gpu].as_str()],
                "{mode} {number}: {record}"
            );
            assert!(place.stage.job(job).join(pipes[gpu]).join("control").exists());
        }
        place.assert_ends_clean(job, "partitions of two GPUs");
    }
}

#[test]
fn a_job_whose_partitions_do_not_fit_is_refused_and_drains_nothing() {
    let (place, job) = (place(node(1, WITH)), "592.srv");
    // 16 chunks of 8 of its 132 multiprocessors.
    for asked in ["64:72", "136"] {
        let ran = place.torque(job, &format!("MPS=true,MPS_SMS={asked}:8"), "0");
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(
            ran.err.contains("no ") && ran.err.contains(" multiprocessors left for rank "),
            "{ran:?}"
        );
        place.assert_ends_clean(job, "partitions that do not fit");
    }
    let ran = place.torque(job, "MPS=true,MPS_SMS=64:64", "0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    place.assert_ends_clean(job, "partitions that fill the GPU");
}

#[test]
fn where_a_partition_is_not_as_asked_for_no_job_starts() {
    let job = "593.srv";
    for (what, code, node) in [
        (
            "the option",
            1,
            node(1, WITH).fault(|faults| faults.no_static = true),
        ),
        (
            "smaller chunks",
            1,
            node(1, WITH).fault(|faults| faults.lacking_sms = 4),
        ),
        (
            "no listing",
            2,
            node(1, WITH).fault(|faults| {
                faults
                    .answer
                    .insert("lspart".to_owned(), "GPU Partition".to_owned());
            }),
        ),
        (
            "no id",
            2,
            node(1, WITH).fault(|faults| {
                faults
                    .answer
                    .insert("sm_partition".to_owned(), "created".to_owned());
            }),
        ),
    ] {
        let place = place(node);
        let ran = place.torque(job, TWO, "0");
        assert_eq!(ran.code, Some(code), "{what}: {ran:?}");
        if what == "the option" {
            assert!(
                ran.err
                    .contains("knows no option -S; allowed: a node with driver 590"),
                "{ran:?}"
            );
        }
        place.assert_ends_clean(job, what);
    }
}

#[test]
fn a_driver_without_them_is_named_and_nothing_is_started() {
    let (place, job) = (place(node(1, "580.159.04")), "594.srv");
    let ran = place.torque(job, TWO, "0");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let why = "this node has driver 580.159.04, which has no static partitions; allowed: a node with driver 590 or a later one";
    assert!(ran.err.contains(why), "{ran:?}");
    place.assert_as_before("a refused request");
}

#[test]
fn a_probe_of_the_new_daemon_has_a_partition_and_its_gpu_alone() {
    let (place, job) = (place(node(2, WITH)), "595.srv");
    let probe = place.stage.program("mps-probe");
    let looks = "#!/bin/sh\n[ -n \"$CUDA_MPS_SM_PARTITION\" ] && [ \"$CUDA_VISIBLE_DEVICES\" = \"${CUDA_MPS_SM_PARTITION%%/*}\" ]\n";
    let _ = fs::remove_file(&probe);
    fs::write(&probe, looks).expect("a double of mps-probe");
    fs::set_permissions(&probe, fs::Permissions::from_mode(0o755)).expect("it is ours");
    for (asked, code) in [("MPS_SMS=16:16", 0), ("MPS_THREADS=25", 2)] {
        let ran = place.torque(job, &format!("MPS=true,MPS_VERIFY=on,{asked}"), "0,1");
        assert_eq!(ran.code, Some(code), "{asked}: {ran:?}");
        place.assert_ends_clean(job, asked);
    }
}

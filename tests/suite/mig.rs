//! Jobs on MIG devices, from begin to end, on a node that behaves as NVIDIA's manuals say (docs/facts/mps-control.md#mig).

use std::fs;

use serde_json::Value;
use tests::double::mig;
use tests::place::{Place, fast};
use tests::stage::{OTHER_USER, Ran, USER, as_user, finish};

const JOB: &str = "4711";

/// The name of a MIG device.
fn name(gpu: usize, number: u32) -> String {
    mig(gpu, number).uuid
}

/// Two GPUs with three MIG devices each, and one that is whole.
fn place() -> Place {
    Place::new(fast(3).divided(0, 3).divided(1, 3), "deadline_s = 6\n")
}

fn id_of(user: &str) -> String {
    let user = nix::unistd::User::from_name(user).expect("users").expect("user");
    user.uid.to_string()
}

/// What Slurm gives the prolog of a job: places in its list of devices, and the names of MIG devices
/// (docs/facts/slurm.md#gpus-of-a-job).
fn prolog<'a>(job: &'a str, uid: &'a str, names: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("SLURM_JOB_ID", job),
        ("SLURM_JOB_UID", uid),
        ("SLURMD_NODENAME", "gpu001"),
        ("SLURM_SCRIPT_CONTEXT", "prolog_slurmd"),
        ("SLURM_JOB_GPUS", "4,5"),
        ("CUDA_VISIBLE_DEVICES", names),
    ]
}

fn begin(place: &Place, job: &str, user: &str, request: &str, names: &str) -> Ran {
    let uid = id_of(user);
    place
        .stage
        .prologue(&["--request", request], &prolog(job, &uid, names))
}

#[track_caller]
fn begun(place: &Place, job: &str, user: &str, request: &str, names: &str) {
    let ran = begin(place, job, user, request, names);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// Ends a job of Slurm, and asserts that it left nothing that was not there `before`.
#[track_caller]
fn ended(place: &Place, job: &str, user: &str) {
    let uid = id_of(user);
    let mut env = prolog(job, &uid, "");
    env.retain(|(name, _)| !name.contains("GPUS") && !name.contains("VISIBLE"));
    env.iter_mut()
        .filter(|(name, _)| *name == "SLURM_SCRIPT_CONTEXT")
        .for_each(|(_, value)| *value = "epilog_slurmd");
    let ran = place.stage.epilogue(&["--strict"], &env);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    place.assert_not_drained("a job on MIG devices");
}

/// A task of the job that Slurm gave these devices: a CUDA program behind `mpsctl exec`.
fn task(place: &Place, job: &str, names: &str, rank: u32, args: &[&str]) -> Ran {
    let rank = rank.to_string();
    let env = [
        ("SLURM_JOB_ID", job),
        ("SLURM_LOCALID", rank.as_str()),
        ("SLURM_STEP_GPUS", "4,5"),
        ("CUDA_VISIBLE_DEVICES", names),
    ];
    place.exec(args, &env)
}

#[track_caller]
fn record(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let record: Value = serde_json::from_str(ran.out.lines().next().unwrap_or("")).expect("record");
    assert_eq!(record["under_mps"], true, "{record}");
    record
}

/// What the control daemons of the job were started with.
fn devices_of_daemons(place: &Place) -> Vec<String> {
    let of = |pid: &u32| {
        let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut words = text.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        words.find_map(|word| Some(word.strip_prefix("CUDA_VISIBLE_DEVICES=")?.to_owned()))
    };
    let mut all: Vec<String> = place
        .pids("nvidia-cuda-mps-control")
        .iter()
        .filter_map(of)
        .collect();
    all.sort();
    all
}

#[test]
fn a_mig_device_has_a_daemon_of_its_own_and_its_neighbours_are_left_alone() {
    let place = place();
    let (own, neighbour) = (name(0, 1), name(0, 2));
    // Another user's MPS on another device of the same GPU.
    begun(&place, "4700", OTHER_USER, "MPS=true", &neighbour);
    let beside = place.picture();
    begun(&place, JOB, USER, "MPS=true,MPS_THREADS=50,MPS_MEM=2G", &own);
    assert_eq!(devices_of_daemons(&place), [own.clone(), neighbour.clone()]);
    let log = fs::read_to_string(place.stage.job(JOB).join("log/control.log")).unwrap_or_default();
    assert!(
        log.contains("set_default_device_pinned_mem_limit 0 2048M"),
        "{log}"
    );
    for rank in 0..2 {
        let record = record(&task(&place, JOB, &own, rank, &["--alloc=8192"]));
        let gpus = record["gpus"].as_array().expect("gpus");
        assert_eq!(gpus.len(), 1, "{record}");
        assert_eq!(gpus[0]["uuid"], own.as_str(), "{record}");
        // 2 of 7 slices of 132, and half of these.
        assert_eq!(record["sms"], 18, "{record}");
        let most = record["gpus"][0]["allocatable_mib"].as_u64().expect("a figure");
        assert!((1024..2048).contains(&most), "{record}");
    }
    let contexts = place.stage.node.contexts();
    let on = |uuid: &str| contexts.iter().filter(|(gpu, _)| gpu == uuid).count();
    assert_eq!(
        (on(&own), on(&neighbour)),
        (1, 1),
        "a server on each: {contexts:?}"
    );
    assert_eq!(place.stage.node.modes(), ["default"; 3]);
    ended(&place, JOB, USER);
    assert_eq!(place.picture(), beside, "what the neighbour has is as it was");
    ended(&place, "4700", OTHER_USER);
    place.assert_as_before("two jobs on one GPU's MIG devices");
}

/// `mpsctl set` names a MIG device as its daemon does: by its only number.
#[test]
fn other_limits_go_to_the_mig_device_that_they_are_for() {
    let place = place();
    let names = [name(0, 2), name(1, 2)].join(",");
    begun(&place, JOB, USER, "MPS=true,MPS_MEM=4G", &names);
    let mut command = as_user(USER, place.stage.program("mpsctl"));
    command.arg("--config").arg(place.stage.config());
    command.args(["set", JOB, "--threads", "50", "--mem", "1=2G"]);
    let ran = finish({
        command.env_clear();
        command
    });
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for (rank, most) in [(0, 4096), (1, 2048)] {
        let record = record(&task(&place, JOB, &names, rank, &["--alloc=16384"]));
        let may = record["gpus"][0]["allocatable_mib"].as_u64().expect("a figure");
        assert!((most / 2..most).contains(&may), "{record}");
        // 4 of 7 slices of 132, and half of these.
        assert_eq!(record["sms"], 36, "{record}");
    }
    ended(&place, JOB, USER);
    place.assert_as_before("other limits on MIG devices");
}

#[test]
fn several_mig_devices_have_a_daemon_each_and_each_rank_sees_one() {
    let place = place();
    let given = [name(0, 2), name(1, 2)];
    let names = given.join(",");
    begun(&place, JOB, USER, "MPS=true,MPS_MEM=4G:2G", &names);
    assert_eq!(devices_of_daemons(&place), given);
    for rank in 0..4u32 {
        let record = record(&task(&place, JOB, &names, rank, &["--alloc=16384"]));
        let own = &given[rank as usize % 2];
        assert_eq!(record["gpus"][0]["uuid"], own.as_str(), "rank {rank}: {record}");
        // By rank, and named by place: the name of a MIG device would take every limit away.
        let most = record["gpus"][0]["allocatable_mib"].as_u64().expect("a figure");
        let limit = [4096, 2048][rank as usize % 2];
        assert!((limit - 1024..limit).contains(&most), "rank {rank}: {record}");
    }
    // Bound by Slurm: the task has one of them.
    let bound = record(&task(&place, JOB, &given[1], 0, &[]));
    assert_eq!(bound["gpus"][0]["uuid"], given[1].as_str(), "{bound}");
    let foreign = task(&place, JOB, &name(0, 0), 0, &[]);
    assert!(
        foreign.code != Some(0) && foreign.err.contains("does not serve that GPU"),
        "{foreign:?}"
    );
    ended(&place, JOB, USER);
    place.assert_as_before("a job on two MIG devices");
}

#[test]
fn a_mig_device_beside_a_whole_gpu_is_refused_and_a_gpu_in_mig_mode_too() {
    let place = place();
    let mixed = format!("{},6", name(0, 0));
    let ran = begin(&place, JOB, USER, "MPS=true", &mixed);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.err.trim_end().lines().count(), 1, "{ran:?}");
    assert!(ran.err.contains("no process sees both"), "{ran:?}");
    let ran = place.torque(JOB, "MPS=true", "0");
    assert!(
        ran.code == Some(1) && ran.err.contains("names none of its MIG devices"),
        "{ran:?}"
    );
    place.assert_not_drained("refusals");
    // The whole GPU of the same node is as any other.
    let ran = place.torque("5.pbs", "MPS=true", "2");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        place.stage.node.modes(),
        ["default", "default", "exclusive_process"]
    );
    place.assert_ends_clean("5.pbs", "a whole GPU beside divided ones");
}

/// Whoever may divide a GPU, a user of the site's choice among them, can take a MIG device away at any time.
#[test]
fn a_mig_device_that_is_taken_away_is_no_evidence_and_keeps_no_job() {
    let mut place = place();
    let own = name(0, 0);
    begun(&place, JOB, USER, "MPS=true", &own);
    place.stage.node.change(|node| {
        node.gpu[0].mig.remove(0);
    });
    ended(&place, JOB, USER);
    place.assert_as_before("a MIG device that went away");
    let ran = begin(&place, "4712", USER, "MPS=true", &own);
    assert!(ran.code == Some(2) && ran.err.contains("divided anew"), "{ran:?}");
    place.assert_not_drained("a MIG device that is not there");
}

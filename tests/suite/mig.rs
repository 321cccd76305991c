//! Jobs on MIG devices, from begin to end, on a node as NVIDIA's manuals describe it
//! (docs/facts/mps-control.md#mig).

use std::fs;

use tests::double::mig;
use tests::place::{Place, fast};
use tests::stage::{OTHER_USER, Ran, USER, slurm_env, uid_of};

const JOB: &str = "4711";

fn name(gpu: usize, number: u32) -> String {
    mig(gpu, number).uuid
}

fn place() -> Place {
    Place::new(fast(3).divided(0, 3).divided(1, 3), "deadline_s = 6\n")
}

/// Slurm's prolog of a job: it names places in its list of devices, and MIG devices
/// (docs/facts/slurm.md#gpus-of-a-job).
fn prolog(place: &Place, job: &str, user: &str, request: &str, names: &str) -> Ran {
    let uid = uid_of(user).to_string();
    let gpus = [("SLURM_JOB_GPUS", "4,5"), ("CUDA_VISIBLE_DEVICES", names)];
    let env = [&slurm_env(job, &uid, "prolog_slurmd")[..], &gpus].concat();
    place.prologue(&["--request", request], &env)
}

#[track_caller]
fn epilog(place: &Place, job: &str, user: &str) {
    let uid = uid_of(user).to_string();
    let env = slurm_env(job, &uid, "epilog_slurmd");
    place.epilogue(&["--strict"], &env).ok();
    place.assert_not_drained("a job on MIG devices");
}

/// A task with these devices from Slurm: a CUDA program behind `mpsctl exec` that allocates as much
/// as it can.
fn task(place: &Place, names: &str, rank: u32) -> Ran {
    let rank = rank.to_string();
    let env = [
        ("SLURM_JOB_ID", JOB),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_LOCALID", rank.as_str()),
        ("SLURM_STEP_GPUS", "4,5"),
        ("CUDA_VISIBLE_DEVICES", names),
    ];
    place.exec(&["--alloc=16384"], &env)
}

/// Asserts that the task had only this device, under MPS, with this memory limit in MiB. Returns
/// its multiprocessors.
#[track_caller]
fn had(ran: Ran, device: &str, limit: u64) -> u64 {
    let record = ran.ok().json();
    assert_eq!(record["under_mps"], true, "{record}");
    let gpus = record["gpus"].as_array().expect("gpus");
    assert_eq!(gpus.len(), 1, "{record}");
    assert_eq!(gpus[0]["uuid"], device, "{record}");
    let most = gpus[0]["allocatable_mib"].as_u64().expect("a figure");
    assert!(
        (limit.saturating_sub(1024)..limit).contains(&most),
        "{record}"
    );
    record["sms"].as_u64().expect("a number")
}

fn devices_of_daemons(place: &Place) -> Vec<String> {
    let of = |pid: u32| {
        let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut words = text.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        words.find_map(|word| Some(word.strip_prefix("CUDA_VISIBLE_DEVICES=")?.to_owned()))
    };
    let pids = place.pids("nvidia-cuda-mps-control");
    let mut all: Vec<String> = pids.into_iter().filter_map(of).collect();
    all.sort();
    all
}

#[test]
fn a_mig_device_has_a_daemon_of_its_own_and_its_neighbours_are_left_alone() {
    let place = place();
    let (own, neighbour) = (name(0, 1), name(0, 2));
    // Another user's MPS on another device of the same GPU.
    prolog(&place, "4700", OTHER_USER, "MPS=true", &neighbour).ok();
    let beside = place.picture();
    prolog(
        &place,
        JOB,
        USER,
        "MPS=true,MPS_THREADS=50,MPS_MEM=2G",
        &own,
    )
    .ok();
    assert_eq!(devices_of_daemons(&place), [own.clone(), neighbour.clone()]);
    let log = place.log(JOB, "control.log");
    let by_index = "set_default_device_pinned_mem_limit 0 2048M";
    assert!(log.contains(by_index), "{log}");
    for rank in 0..2 {
        // 2 of 7 slices of 132, and half of these.
        assert_eq!(had(task(&place, &own, rank), &own, 2048), 18);
    }
    let contexts = place.node.contexts();
    let on = |uuid: &str| contexts.iter().filter(|(gpu, _)| gpu == uuid).count();
    let servers = (on(&own), on(&neighbour));
    assert_eq!(servers, (1, 1), "{contexts:?}");
    assert_eq!(place.node.modes(), ["default"; 3]);
    epilog(&place, JOB, USER);
    assert_eq!(place.picture(), beside, "the neighbour's devices");
    epilog(&place, "4700", OTHER_USER);
    place.assert_as_before("two jobs on one GPU's MIG devices");
}

#[test]
fn several_mig_devices_have_a_daemon_each_and_each_rank_sees_one() {
    let place = place();
    let given = [name(0, 2), name(1, 2)];
    let names = given.join(",");
    prolog(&place, JOB, USER, "MPS=true,MPS_MEM=4G:2G", &names).ok();
    assert_eq!(devices_of_daemons(&place), given);
    for rank in 0..4 {
        // By rank, and by place: a limit by a MIG device's name would remove every limit.
        let turn = rank as usize % 2;
        had(task(&place, &names, rank), &given[turn], [4096, 2048][turn]);
    }
    // Bound by Slurm, so the task has one of them.
    had(task(&place, &given[1], 0), &given[1], 4096);
    let foreign = task(&place, &name(0, 0), 0);
    assert_ne!(foreign.code, Some(0), "{foreign:?}");
    foreign.complains("does not serve that GPU");
    epilog(&place, JOB, USER);
    place.assert_as_before("a job on two MIG devices");
}

#[test]
fn a_mig_device_beside_a_whole_gpu_is_refused_and_a_gpu_in_mig_mode_too() {
    let place = place();
    let mixed = format!("{},6", name(0, 0));
    let ran = prolog(&place, JOB, USER, "MPS=true", &mixed).exits(1);
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    ran.complains("no process sees both");
    let ran = place.torque(JOB, "MPS=true", "0").exits(1);
    ran.complains("names none of its MIG devices");
    // A whole GPU of the same node is like any other.
    place.begin("5.pbs", "MPS=true", "2");
    assert_eq!(
        place.node.modes(),
        ["default", "default", "exclusive_process"]
    );
    place.assert_ends_clean("5.pbs", "a whole GPU beside divided GPUs");
}

/// A user whom the site lets divide GPUs can remove a MIG device at any time.
#[test]
fn a_mig_device_that_is_taken_away_is_no_evidence_and_keeps_no_job() {
    let mut place = place();
    let own = name(0, 0);
    prolog(&place, JOB, USER, "MPS=true", &own).ok();
    place.node.change(|node| drop(node.gpu[0].mig.remove(0)));
    epilog(&place, JOB, USER);
    place.assert_as_before("a MIG device that went away");
    let ran = prolog(&place, "4712", USER, "MPS=true", &own).exits(2);
    ran.complains("divided again");
    place.assert_not_drained("a MIG device that is not there");
}

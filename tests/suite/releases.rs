//! Jobs that begin under one release and end under another, as in a rolling upgrade and when it is taken back: journals and records of the
//! release before and of one to come.

use std::fs;

use serde_json::{Value, json};
use tests::double::NodeDouble;
use tests::stage::{Ran, Stage, USER, as_user, finish};

/// A job's journal as release 0.1.0 left it.
const JOURNAL_0_1_0: &str = include_str!("../../mpsd/src/job/recorded/journal-1.json");
const JOB: &str = "10.srv";

fn stage() -> Stage {
    let node = NodeDouble::builder().gpus(1, "NVIDIA H200").fast().build();
    Stage::new(node.expect("node"), "")
}

fn read(stage: &Stage, name: &str) -> Value {
    let text = fs::read_to_string(stage.job(JOB).join(name)).expect(name);
    serde_json::from_str(&text).expect("JSON")
}

fn write(stage: &Stage, name: &str, value: &Value) {
    fs::write(stage.job(JOB).join(name), value.to_string()).expect(name);
}

/// Keeps of `value` what `pattern` has too, at every depth: what a release that knew no more would have written.
fn as_in(value: &mut Value, pattern: &Value) {
    match (value, pattern) {
        (Value::Object(map), Value::Object(known)) => {
            // A tagged effect has its own keys, and these are as old as the effect.
            if !known.contains_key("effect") {
                map.retain(|key, _| known.contains_key(key));
            }
            for (key, value) in map {
                as_in(value, known.get(key).unwrap_or(&Value::Null));
            }
        }
        (Value::Array(values), Value::Array(known)) => {
            for value in values {
                as_in(value, known.first().unwrap_or(&Value::Null));
            }
        }
        _ => {}
    }
}

#[test]
fn a_running_job_of_the_release_before_is_ended_by_this_one() {
    let stage = stage();
    let began = stage.torque(JOB, "MPS=true,MPS_THREADS=25");
    assert_eq!(began.code, Some(0), "{began:?}");
    let mut journal = read(&stage, "journal");
    let keys = journal.as_object().expect("an object").len();
    as_in(&mut journal, &serde_json::from_str(JOURNAL_0_1_0).expect("JSON"));
    assert!(journal.get("programs").is_none() && journal.as_object().expect("an object").len() < keys);
    write(&stage, "journal", &journal);
    let ended = stage.torque_end(JOB);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    stage.assert_clean();
}

/// Its node went down with the old release, and comes up with this one: no process of it is left, and strangers may have its pids.
#[test]
fn what_the_release_before_left_of_a_dead_job_is_removed() {
    let stage = stage();
    let run = stage.path("run").display().to_string();
    let text = JOURNAL_0_1_0
        .replace("/run/jobs", &format!("{run}/jobs"))
        .replace("GPU-85e8a6f0-c78a-21ee-f7e3-bc967b0f0e35", &stage.node.uuids()[0])
        .replace(
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
            &stage.node.nvml().display().to_string(),
        )
        .replace(
            "/usr/bin/nvidia-cuda-mps-control",
            &stage.node.control().display().to_string(),
        )
        .replace("\"pid\": 4198", &format!("\"pid\": {}", std::process::id()));
    let began = stage.torque("9.srv", "MPS=true");
    assert_eq!(began.code, Some(0), "{began:?}");
    assert_eq!(stage.torque_end("9.srv").code, Some(0));
    for dir in ["pipe", "log"] {
        fs::create_dir_all(stage.job(JOB).join(dir)).expect("directory");
    }
    fs::write(stage.job(JOB).join("journal"), text).expect("journal");
    let ended = stage.torque_end(JOB);
    assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{ended:?}");
    stage.assert_clean();
}

#[test]
fn a_journal_of_a_release_to_come_is_left_alone_and_told_by_a_drain() {
    let stage = stage();
    assert_eq!(stage.torque(JOB, "MPS=true").code, Some(0));
    let ours = read(&stage, "journal");
    let mut newer = ours.clone();
    newer["version"] = json!(2);
    newer["plan"][0] = json!({"effect": "of-a-release-to-come"});
    write(&stage, "journal", &newer);
    let ended = stage.torque_end(JOB);
    assert!(ended.err.contains("newer release"), "{ended:?}");
    assert_eq!(read(&stage, "journal"), newer);
    // Its MPS runs on, which this release cannot end: the node takes no other job until the newer one is back.
    let drains: Vec<_> = fs::read_dir(stage.path("state/drains"))
        .expect("drains")
        .flatten()
        .collect();
    assert_eq!(drains.len(), 1, "{ended:?}");
    let told = fs::read_to_string(drains[0].path()).expect("marker");
    assert!(told.contains("written by a newer release"), "{told}");
    fs::remove_file(drains[0].path()).expect("marker");
    // A field more in a format of this number is no obstacle.
    let mut more = ours;
    more["of_a_release_to_come"] = json!({"any": ["thing"]});
    write(&stage, "journal", &more);
    let ended = stage.torque_end(JOB);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    stage.assert_clean();
}

fn env(stage: &Stage) -> Ran {
    let mut command = as_user(USER, stage.program("mpsctl"));
    command
        .arg("--config")
        .arg(stage.config())
        .args(["env", "--job", JOB])
        .env_clear();
    finish(command)
}

#[test]
fn a_task_reads_the_record_of_the_release_before_and_refuses_one_to_come_by_its_number() {
    let stage = stage();
    assert_eq!(stage.torque(JOB, "MPS=true").code, Some(0));
    let ours = read(&stage, "record");
    // What a release that knew nothing else had to write.
    let mut older = ours.clone();
    let needed = ["version", "job", "uid", "state", "gpus", "daemons"];
    older
        .as_object_mut()
        .expect("an object")
        .retain(|key, _| needed.contains(&key.as_str()));
    write(&stage, "record", &older);
    let read_it = env(&stage);
    assert!(
        read_it.code == Some(0) && read_it.out.contains("CUDA_MPS_PIPE_DIRECTORY"),
        "{read_it:?}"
    );
    let mut newer = ours;
    newer["version"] = json!(2);
    newer["of_a_release_to_come"] = json!(true);
    write(&stage, "record", &newer);
    let refused = env(&stage);
    assert!(
        refused.code != Some(0) && refused.err.contains("record of version 2"),
        "{refused:?}"
    );
    assert!(!refused.out.contains("CUDA_MPS_PIPE_DIRECTORY"), "{refused:?}");
    assert_eq!(stage.torque_end(JOB).code, Some(0));
    stage.assert_clean();
}

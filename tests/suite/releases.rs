//! Jobs that begin under a newer release and end under this one, as when an upgrade is taken back.

use std::fs;

use serde_json::{Value, json};
use tests::double::NodeDouble;
use tests::stage::{Ran, Stage, USER, as_user, finish};

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
fn a_task_refuses_the_record_of_a_release_to_come_by_its_number() {
    let stage = stage();
    assert_eq!(stage.torque(JOB, "MPS=true").code, Some(0));
    let ours = read(&stage, "record");
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

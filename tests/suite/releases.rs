//! Jobs that begin under a newer release and end under this one, as after a downgrade.

use std::fs;

use serde_json::{Value, json};
use tests::place::{Place, fast};
use tests::stage::USER;

const JOB: &str = "10.srv";

fn read(place: &Place, name: &str) -> Value {
    let text = fs::read_to_string(place.job(JOB).join(name)).expect(name);
    serde_json::from_str(&text).expect("JSON")
}

fn write(place: &Place, name: &str, value: &Value) {
    fs::write(place.job(JOB).join(name), value.to_string()).expect(name);
}

#[test]
fn a_journal_of_a_release_to_come_is_left_alone_and_told_by_a_drain() {
    let place = Place::with_job(fast(1), "", JOB, "MPS=true", "0");
    let ours = read(&place, "journal");
    let mut newer = ours.clone();
    newer["version"] = json!(2);
    newer["plan"][0] = json!({"effect": "of-a-release-to-come"});
    write(&place, "journal", &newer);
    place.torque_end(JOB).complains("newer release");
    assert_eq!(read(&place, "journal"), newer);
    // This release cannot end its MPS, so the node takes no other job until the newer release is back.
    let drains = place.take_drains();
    assert_eq!(drains.len(), 1, "{drains:?}");
    let told = drains[0].contains("written by a newer release");
    assert!(told, "{drains:?}");
    // A further field in a format of this number is allowed.
    let mut more = ours;
    more["of_a_release_to_come"] = json!({"any": ["thing"]});
    write(&place, "journal", &more);
    place.assert_ends_clean(JOB, "a further field");
}

#[test]
fn a_task_refuses_the_record_of_a_release_to_come_by_its_number() {
    let place = Place::with_job(fast(1), "", JOB, "MPS=true", "0");
    let mut newer = read(&place, "record");
    newer["version"] = json!(2);
    newer["of_a_release_to_come"] = json!(true);
    write(&place, "record", &newer);
    let refused = place.mpsctl_as(USER, &["env", "--job", JOB], &[]);
    assert_ne!(refused.code, Some(0), "{refused:?}");
    refused.complains("record of version 2");
    refused.lacks("CUDA_MPS_PIPE_DIRECTORY");
    place.assert_ends_clean(JOB, "a newer record");
}

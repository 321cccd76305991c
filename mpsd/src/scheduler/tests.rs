//! What holds for every batch system that is registered.

use super::*;

#[test]
fn every_name_is_registered_once_and_found_by_it() {
    for system in ALL {
        let name = system.scheduler();
        assert!(std::ptr::addr_eq(of(name), system), "{name} is registered twice");
        let read: Scheduler = serde_json::from_str(&format!("\"{name}\"")).unwrap();
        assert_eq!(read, name, "the name in journals is the one in --scheduler");
    }
    // The names of the enum, as serde lists them where it meets another one.
    let error = serde_json::from_str::<Scheduler>("\"nobody\"")
        .unwrap_err()
        .to_string();
    assert_eq!(error.matches('`').count(), 2 * (ALL.len() + 1), "{error}");
}

#[test]
fn no_call_is_taken_for_that_of_two() {
    let torque: Lookup<'_> = &|name| (name == "PBS_NODENUM").then(|| "0".to_owned());
    let slurm: Lookup<'_> = &|name| (name == "SLURM_JOB_ID").then(|| "4711".to_owned());
    for env in [torque, slurm, &|_| None] {
        for arguments in 0..14 {
            let calls = ALL.iter().filter(|system| system.calls(arguments, env)).count();
            assert!(calls <= 1, "{arguments} arguments are called by {calls}");
        }
    }
}

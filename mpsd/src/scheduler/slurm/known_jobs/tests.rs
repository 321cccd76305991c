//! What squeue says, and what follows of it.

use super::*;

fn job(id: &str) -> JobId {
    JobId::parse(id).unwrap()
}

#[test]
fn slurms_jobs_and_steps_are_told_by_their_own_ids() {
    let said = SlurmNode::parse(
        "4711|4711\n4713|4700_2\n52|51+1\n",
        "4711.0\n4711.extern\n4700_2.3\n51+1.0\n",
    )
    .unwrap();
    for id in ["4711", "4711.0", "4713", "4713.3", "52.0"] {
        assert_eq!(said.state(&job(id)), JobState::Here, "{id}");
    }
    for id in ["4712", "4711.1", "4700", "4712.0", "51"] {
        assert!(matches!(said.state(&job(id)), JobState::Gone(_)), "{id}");
    }
    assert_eq!(SlurmNode::parse("\n", "").unwrap(), SlurmNode::default());
}

#[test]
fn what_squeue_never_prints_decides_nothing() {
    assert!(SlurmNode::parse("slurm_load_jobs error: x\n", "").is_err());
    assert!(SlurmNode::parse("4711|4711\n", "error\n").is_err());
}

#[test]
fn a_slurmstepd_names_its_step() {
    let of = |title: &str| step_of(title.as_bytes());
    assert_eq!(of("slurmstepd: [4711.extern]\0").as_deref(), Some("4711.extern"));
    assert_eq!(of("slurmstepd: [4711.0]").as_deref(), Some("4711.0"));
    for other in [
        "slurmstepd: [4711+1.0]",
        "slurmstepd",
        "/usr/sbin/slurmstepd infinity",
        "x: [1.]",
        "x: [a.0]",
    ] {
        assert_eq!(of(other), None, "{other}");
    }
    let steps = BTreeSet::from(["4711.extern".to_owned(), "4712.0".to_owned()]);
    for (id, here) in [
        ("4711", true),
        ("4712", true),
        ("4712.0", true),
        ("4711.0", false),
        ("471", false),
    ] {
        assert_eq!(has(&steps, &job(id)), here, "{id}");
    }
}

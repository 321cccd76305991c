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

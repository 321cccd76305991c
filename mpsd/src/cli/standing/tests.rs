use super::*;
use crate::job::suspicion::{At, Suspect};
use mpsd_core::{JobId, Scheduler};

fn hung(since: u64) -> Suspicion {
    Suspicion {
        suspect: Suspect::Nvml,
        what: "NVML".to_owned(),
        since,
        at: At {
            job: JobId::parse("4711").unwrap(),
            scheduler: Scheduler::Slurm,
            node: "gpu1".to_owned(),
            uid: 1001,
            prefix: None,
            slurm_conf: None,
            gpus: Vec::new(),
        },
    }
}

#[test]
fn what_waits_for_its_second_look_is_told_and_fails_where_nobody_looks() {
    let early = suspicion(&hung(1000), 1040);
    assert!(
        early
            .to_string()
            .starts_with("WARN  job 4711: 40 s ago NVML hung in the driver"),
        "{early}"
    );
    let late = suspicion(&hung(1000), 1000 + OVERDUE_S);
    let text = late.to_string();
    assert!(
        text.starts_with("FAIL  job 4711: 5 min ago") && text.contains("run 'mpsctl reconcile' as root"),
        "{text}"
    );
}

#[test]
fn a_daemon_group_that_is_a_group_of_the_node_is_told() {
    let nogroup = users::get_group_by_name("nogroup").unwrap().gid();
    assert!(
        group(nogroup)
            .unwrap()
            .to_string()
            .contains("this node's group 'nogroup'")
    );
    assert_eq!(group(65_530), None, "this machine cannot test it");
    assert_eq!(group(0), None);
}

use super::*;

fn missing(no_way_round: bool) -> Option<Unattached> {
    Some(Unattached {
        why: "no starter".into(),
        remedy: "'mpsctl pbs install'".into(),
        no_way_round,
    })
}

#[test]
fn refused_where_the_user_reads_it_and_told_where_the_site_lets_it_run() {
    use UnattachedTasks::{Refuse, Warn};
    assert_eq!(decide(None, false, Refuse), Ok(None));
    let refused = decide(missing(false), false, Refuse).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "MPS: no starter; allowed: after 'mpsctl pbs install'"
    );
    let told = decide(missing(false), false, Warn).unwrap();
    assert!(told.unwrap().starts_with("no starter: "));
    // Where other nodes have no daemon there is nothing to attach to.
    assert_eq!(decide(missing(true), false, Warn).unwrap_err().exit_code(), 1);
}

#[test]
fn a_sister_has_nobody_to_tell_and_takes_nobody_out_of_service() {
    let failure = decide(missing(false), true, UnattachedTasks::Refuse).unwrap_err();
    assert!(
        matches!(&failure, Failure::Fault(fault) if !fault.drains()),
        "{failure}"
    );
}

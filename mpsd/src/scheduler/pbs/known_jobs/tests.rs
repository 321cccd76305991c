//! What qstat says, and what follows of it.

use super::*;

#[test]
fn a_pbs_job_is_here_only_while_it_runs_here() {
    let text = |state: &str, hosts: &str| {
        format!("Job Id: 7.srv\n    job_state = {state}\n    exec_host = {hosts}\n")
    };
    let of = |state: &str, hosts: &str| said("n2", Some(0), &text(state, hosts));
    assert_eq!(of("R", "n1/0+n2/0*4"), JobState::Here);
    assert_eq!(of("E", "n2.cluster/0"), JobState::Here);
    assert!(matches!(of("R", "n1/0+n22/0"), JobState::Gone(_)));
    for state in ["C", "Q", "H", "F"] {
        assert!(matches!(of(state, "n2/0"), JobState::Gone(_)), "{state}");
    }
}

#[test]
fn only_the_servers_own_word_lets_a_pbs_job_go() {
    let gone = |code, text: &str| matches!(said("n2", Some(code), text), JobState::Gone(_));
    assert!(gone(153, "qstat: Unknown Job Id 7.srv"));
    assert!(gone(
        35,
        "qstat: 7.srv Job has finished, use -x or -H to obtain historical job information"
    ));
    assert!(!gone(1, "qstat: cannot connect to server srv (errno=15010)"));
    assert!(!gone(0, "Job Id: 7.srv\n    job_state = R\n"));
    assert!(!gone(0, ""));
}

//! What is run, and how.

use super::*;

fn exec(starter: bool, words: &[&str]) -> Exec {
    Exec {
        job: None,
        starter,
        command: words.iter().map(OsString::from).collect(),
    }
}

#[test]
fn outside_a_job_exec_says_why() {
    let caller = Caller {
        config: Path::new("/nonexistent"),
        job: None,
        env: &|_| None,
        uid: 1000,
        main: false,
    };
    let not = exec(false, &["true"]).run(&caller).unwrap_err();
    assert!(
        not.line.contains("PBS_JOBID and SLURM_JOB_ID are not set"),
        "{not:?}"
    );
    assert_eq!(not.code, 1);
    assert_eq!(
        exec(true, &["/nonexistent/x"]).run(&caller).unwrap_err().code,
        127
    );
}

#[test]
fn the_hook_knows_the_same_launchers() {
    let hook = include_str!("../../../../etc/pbs/hooks/mpsd.py");
    let line = hook
        .lines()
        .find(|line| line.starts_with("LAUNCHERS = "))
        .unwrap();
    let theirs: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
    assert_eq!(theirs, LAUNCHERS);
}

#[test]
fn only_a_lone_shell_becomes_a_login_shell() {
    let shell = |words: &[&str]| exec(true, words).lone_shell(&|_| None);
    assert_eq!(shell(&["/bin/bash"]).as_deref(), Some("bash"));
    assert_eq!(shell(&["/bin/bash", "x"]), None);
    assert_eq!(shell(&["/usr/bin/python3"]), None);
    let own = |name: &str| (name == "SHELL").then(|| "/opt/nu".to_owned());
    assert_eq!(exec(true, &["/opt/nu"]).lone_shell(&own).as_deref(), Some("nu"));
    assert_eq!(exec(true, &["/usr/nu"]).lone_shell(&own), None);
    let main = |starter: bool, words: &[&str]| exec(starter, words).is_main(&|_| None);
    assert!(main(true, &["zsh"]) && !main(false, &["zsh"]));
    assert!(main(true, &["/opt/mpi/bin/orted", "-mca"]) && !main(true, &["./app"]));
    let task = |number: &'static str| is_of_tm(&move |_| Some(number.to_owned()));
    assert!(task("2") && !task("1") && !task("x") && !is_of_tm(&|_| None));
}

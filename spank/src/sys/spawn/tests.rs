use super::*;

fn program(path: &str, arguments: &[&str]) -> Program {
    Program {
        path: path.into(),
        arguments: arguments.iter().map(|a| (*a).to_owned()).collect(),
        environment: vec![("SLURM_JOB_ID".into(), "4711".into())],
        limit: Duration::from_secs(10),
        detached: false,
    }
}

#[test]
fn what_it_writes_and_how_it_ends_come_back() {
    let ended = run(&program("/usr/bin/env", &[]));
    assert_eq!(
        ended,
        Ended {
            code: Ok(0),
            lines: vec!["SLURM_JOB_ID=4711".into()]
        }
    );
    assert_eq!(run(&program("/bin/false", &[])).code, Ok(1));
    let missing = run(&program("/usr/libexec/mpsd/none", &[])).code.unwrap_err();
    assert!(
        missing.starts_with("cannot run '/usr/libexec/mpsd/none': No such file"),
        "{missing}"
    );
}

#[test]
fn it_has_a_session_of_its_own_and_the_signals_of_a_fresh_process() {
    let blocked = SigSet::from(Signal::SIGTERM);
    blocked.thread_block().unwrap();
    let status = run(&program("/bin/cat", &["/proc/self/status", "/proc/self/stat"]));
    blocked.thread_unblock().unwrap();
    let field = |name: &str| {
        let line = status.lines.iter().find(|l| l.starts_with(name)).unwrap();
        line.trim_start_matches(name)
            .trim_start_matches([':', '?', '\t', ' '])
            .to_owned()
    };
    assert_eq!(u64::from_str_radix(&field("SigBlk"), 16), Ok(0));
    // SIGPIPE was ignored here; 32 and 33 are glibc's own.
    assert_eq!(
        u64::from_str_radix(&field("SigIgn"), 16).unwrap() & 0x7fff_ffff,
        0
    );
    let stat: Vec<&str> = status.lines.last().unwrap().split(' ').collect();
    assert_eq!(
        (stat[4], stat[5]),
        (stat[0], stat[0]),
        "process group and session are its own pid"
    );
}

#[test]
fn no_descriptor_of_ours_goes_along() {
    let (reader, _writer) = std::io::pipe().unwrap();
    nix::fcntl::fcntl(
        &reader,
        nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::empty()),
    )
    .unwrap();
    let listed = run(&program("/bin/ls", &["/proc/self/fd"]));
    // 3 is the directory that ls reads.
    assert_eq!(listed.lines, ["0", "1", "2", "3"]);
}

#[test]
fn past_its_limit_it_is_killed() {
    for detached in [false, true] {
        let limit = Duration::from_millis(300);
        let begin = Instant::now();
        let ended = run(&Program {
            limit,
            detached,
            ..program("/bin/sleep", &["30"])
        });
        assert!(ended.code.unwrap_err().contains("was killed"));
        assert!(begin.elapsed() < Duration::from_secs(5));
    }
}

#[test]
fn detached_it_is_nobodys_child_and_is_waited_for_all_the_same() {
    let ended = run(&Program {
        detached: true,
        ..program("/bin/cat", &["/proc/self/stat"])
    });
    assert_eq!(ended.code, Ok(0));
    let stat: Vec<&str> = ended.lines[0].split(' ').collect();
    assert_ne!(
        stat[3],
        std::process::id().to_string(),
        "its parent is not this process"
    );
}

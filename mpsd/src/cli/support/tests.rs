use super::*;
use crate::scheduler::host::Answer;

/// A machine on which every file and every answer is longer than may be kept, and ends with a user's name.
struct Talkative;

impl Host for Talkative {
    fn read(&self, _: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(Some(vec![b'x'; most]))
    }

    fn executable(&self, _: &Path) -> bool {
        true
    }

    fn run(&self, _: &Path, _: &[&str], _: &[(&str, &str)], _: Duration) -> Result<Answer, String> {
        let text = "y".repeat(4 * MOST) + " refused: user 'alice': not known; user 'bob'";
        Ok(Answer { code: Some(1), text })
    }

    fn name(&self) -> String {
        "gpu001".to_owned()
    }
}

#[test]
fn the_bundle_is_bounded_and_keeps_the_end_without_names() {
    let settings = Settings::usual();
    let around = Around {
        host: &Talkative,
        config: Path::new("/etc/mpsd/mpsd.toml"),
        settings: &settings,
        mpsctl: Path::new("/usr/bin/mpsctl"),
    };
    let pieces = pieces(&around);
    assert!(pieces.len() <= 16, "{}", pieces.len());
    assert!(pieces.iter().all(|(_, bytes)| bytes.len() <= MOST));
    let (_, log) = pieces.iter().find(|(name, _)| name == "log").unwrap();
    let log = String::from_utf8_lossy(log);
    assert!(
        log.ends_with("refused: user '...': not known; user '...'\nexit status 1\n"),
        "{}",
        &log[log.len() - 80..]
    );
}

#[test]
fn a_user_as_our_lines_name_them_is_cut() {
    for name in ["alice", "o.b-c", "nobody"] {
        let line = format!("job 7: MPS ready for {}", mpsd_core::text::user(name));
        assert_eq!(without_users(&line), "job 7: MPS ready for user '...'");
    }
}

#[test]
fn a_name_that_does_not_end_takes_the_rest_with_it() {
    assert_eq!(
        without_users("a user 'b' c user 'd e"),
        "a user '...' c user '...'"
    );
    assert_eq!(without_users("no name"), "no name");
}

/// One whose log is more than is read of a command unless few lines are asked for, and whose mpsd.toml is a user's link to a secret.
struct Busy;

impl Host for Busy {
    fn read(&self, _: &Path, _: usize) -> io::Result<Option<Vec<u8>>> {
        Err(io::Error::other("it belongs to user 1000"))
    }

    fn configuration(&self, _: &Path, _: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(Some(b"a secret".to_vec()))
    }

    fn executable(&self, _: &Path) -> bool {
        false
    }

    fn run(&self, _: &Path, words: &[&str], _: &[(&str, &str)], _: Duration) -> Result<Answer, String> {
        match words.contains(&"500") {
            true => Ok(Answer {
                code: Some(0),
                text: "the last line".to_owned(),
            }),
            false => Err("said more than 1048576 bytes".to_owned()),
        }
    }

    fn name(&self) -> String {
        "gpu001".to_owned()
    }
}

#[test]
fn a_log_that_is_too_long_is_asked_for_its_last_lines() {
    let log = log(&Busy);
    assert_eq!(String::from_utf8_lossy(&log), "the last line\nexit status 0\n");
}

#[test]
fn a_configuration_that_is_not_roots_is_named_and_not_packed() {
    let settings = Settings::usual();
    let pieces = pieces(&Around {
        host: &Busy,
        config: Path::new("/home/alice/mpsd.toml"),
        settings: &settings,
        mpsctl: Path::new("/usr/bin/mpsctl"),
    });
    let (_, text) = pieces.iter().find(|(name, _)| name == "mpsd.toml").unwrap();
    let text = String::from_utf8_lossy(text);
    assert_eq!(text, "'/home/alice/mpsd.toml': it belongs to user 1000\n");
}

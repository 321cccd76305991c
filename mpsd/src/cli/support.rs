//! `mpsctl support-bundle`: what somebody far away needs to know of this node, in one file of root's. No file of a job is
//! read, and where a line of ours names a user (always as `user 'NAME'`), the name is left out.

use super::reconcile::{ReconcileReport, ReportLine};
use crate::scheduler::Host;
use mpsd_core::config::Settings;
use mpsd_core::{Failure, Undetermined};
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Most of one piece, bytes; the end is what is kept of a longer one. Sixteen of them bound the whole.
const MOST: usize = 256 << 10;
/// Longest that one command may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Lines of the log; fewer where so many are more than is read of a command, as those of jobs with long limits on many GPUs can be.
const LINES: [&str; 3] = ["2000", "500", "100"];
/// The names under which root's programs write to the node's log; the daemon's own, which users run, is none of them.
const LOGGED: [&str; 3] = ["mps-prologue", "mps-epilogue", "mpsctl"];
const UNITS: [&str; 7] = [
    "mpsd.service",
    "mpsd-boot.service",
    "mpsd-reconcile.timer",
    "mpsd-reconcile.service",
    "mpsd-look-again.path",
    "mpsd-metrics.timer",
    "mpsd-metrics.service",
];
/// What is asked of each.
const STANDS: &str = "Id,LoadState,ActiveState,SubState,UnitFileState,Result,ExecMainStatus,StateChangeTimestamp,FragmentPath,DropInPaths";
/// Files of the system's that say what it is.
const ABOUT: [(&str, &str); 4] = [
    ("os-release", "/etc/os-release"),
    ("kernel", "/proc/version"),
    ("driver", "/proc/driver/nvidia/version"),
    ("mounts-of-cgroups", "/proc/cgroups"),
];

/// `mpsctl support-bundle`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SupportBundle {
    /// The file to write, which must not be there; mpsd-support-HOST-SECONDS.tar if not given
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// What is asked, and of whom.
#[derive(derive_more::Debug)]
pub struct Around<'a> {
    /// The machine.
    #[debug(skip)]
    pub host: &'a dyn Host,
    /// The configuration's file.
    pub config: &'a Path,
    /// What is in force.
    pub settings: &'a Settings,
    /// This program's own file.
    pub mpsctl: &'a Path,
}

impl SupportBundle {
    /// Writes the file, 0600.
    ///
    /// # Errors
    /// It cannot be written, or is there.
    pub fn run(&self, around: &Around<'_>) -> Result<ReconcileReport, Failure> {
        let seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_secs();
        let usual = || PathBuf::from(format!("mpsd-support-{}-{seconds}.tar", around.host.name()));
        let path = self.out.clone().unwrap_or_else(usual);
        let failed = |error: io::Error| {
            Failure::from(Undetermined::new(
                format!("'{}'", path.display()),
                format!("cannot be written: {error}"),
            ))
        };
        let mut new = OpenOptions::new();
        // A file, or a link, that is there is left alone.
        let file = new
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        let pieces = pieces(around);
        let size = pieces.iter().map(|(_, text)| text.len()).sum::<usize>() >> 10;
        if let Err(error) = pack(file, &pieces, seconds) {
            let _ = std::fs::remove_file(&path);
            return Err(failed(error));
        }
        let text = format!(
            "'{}': {} pieces, {size} KiB; read it before you send it",
            path.display(),
            pieces.len()
        );
        Ok(ReconcileReport {
            told: vec![ReportLine::Said(text)],
            incomplete: false,
        })
    }
}

/// The pieces by name.
fn pieces(around: &Around<'_>) -> Vec<(String, Vec<u8>)> {
    let mut all = vec![(
        "version".to_owned(),
        format!("mpsd {}\n", env!("CARGO_PKG_VERSION")).into_bytes(),
    )];
    for (name, path) in ABOUT {
        let path = Path::new(path);
        all.push((
            name.to_owned(),
            text_of(path, around.host.configuration(path, MOST)),
        ));
    }
    // As our programs read it: what is not root's may lead anywhere, and none of them obeys it.
    let config = around.host.read(around.config, MOST);
    all.push(("mpsd.toml".to_owned(), text_of(around.config, config)));
    all.push(("vendor".to_owned(), vendor(around).into_bytes()));
    let config = around.config.display().to_string();
    for (name, words) in [
        ("config-show", &["config", "show"][..]),
        ("doctor", &["doctor"]),
        ("slurm-check", &["slurm", "check"]),
        ("pbs-check", &["pbs", "check"]),
        ("reconcile-dry-run", &["reconcile", "--dry-run"]),
    ] {
        let words = [words, &["--config", &config]].concat();
        all.push((name.to_owned(), command(around.host, around.mpsctl, &words)));
    }
    // Neither their log, which is below, nor the processes of mpsd.service with their arguments: jobs' own are among them.
    let properties = format!("--property={STANDS}");
    let status = [&["show", "--no-pager", &properties][..], &UNITS].concat();
    all.push((
        "units".to_owned(),
        command(around.host, Path::new("/usr/bin/systemctl"), &status),
    ));
    all.push(("log".to_owned(), log(around.host)));
    all
}

/// The last lines of root's programs, as many as are answered.
fn log(host: &dyn Host) -> Vec<u8> {
    let answers = LINES.iter().map(|lines| {
        let mut words = vec!["--no-pager", "--output=short-iso", "--lines", lines, "_UID=0"];
        words.extend(LOGGED.iter().flat_map(|name| ["--identifier", name]));
        said(host, Path::new("/usr/bin/journalctl"), &words)
    });
    let mut why = Vec::new();
    for answer in answers {
        match answer {
            Ok(text) => return text,
            Err(text) => why = text,
        }
    }
    why
}

/// What was read of a file of the system's or of ours, or why nothing was.
fn text_of(path: &Path, read: io::Result<Option<Vec<u8>>>) -> Vec<u8> {
    let text = match read {
        Ok(Some(bytes)) => return bytes,
        Ok(None) => format!("'{}': not there\n", path.display()),
        Err(error) => format!("'{}': {error}\n", path.display()),
    };
    text.into_bytes()
}

/// Whether the vendor's parts are there, and only root can have put them there.
fn vendor(around: &Around<'_>) -> String {
    let control = &around.settings.control;
    let fit = if around.host.executable(control) {
        "root's, executable"
    } else {
        "not there, not root's or not executable"
    };
    format!(
        "control '{}': {fit}\nnvml '{}'\n",
        control.display(),
        around.settings.nvml
    )
}

/// What a command said, or why it said nothing.
fn command(host: &dyn Host, program: &Path, words: &[&str]) -> Vec<u8> {
    said(host, program, words).unwrap_or_else(|why| why)
}

/// What a command said, its end where that is long, and how it ended; why it said nothing.
fn said(host: &dyn Host, program: &Path, words: &[&str]) -> Result<Vec<u8>, Vec<u8>> {
    let answer = host.run(program, words, &[], PATIENCE);
    let answer = answer.map_err(|why| format!("'{}': {why}\n", program.display()).into_bytes())?;
    let code = answer
        .code
        .map_or("a signal".to_owned(), |code| format!("exit status {code}"));
    let bytes = format!("{}\n{code}\n", without_users(&answer.text)).into_bytes();
    Ok(bytes[bytes.len().saturating_sub(MOST)..].to_vec())
}

/// The text without the names of users, as our messages have them: `user 'NAME'`.
fn without_users(text: &str) -> String {
    const NAMED: &str = "user '";
    let mut parts = text.split(NAMED);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        let rest = part.split_once('\'').map_or("", |(_, rest)| rest);
        all + NAMED + "...'" + rest
    })
}

fn pack(file: File, pieces: &[(String, Vec<u8>)], seconds: u64) -> io::Result<()> {
    let mut archive = tar::Builder::new(file);
    for (name, bytes) in pieces {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(seconds);
        archive.append_data(&mut header, format!("mpsd-support/{name}"), bytes.as_slice())?;
    }
    let mut file = archive.into_inner()?;
    file.flush()?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
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
}

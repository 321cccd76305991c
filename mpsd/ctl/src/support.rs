//! `mpsctl support-bundle`: one file of root's with what a supporter needs to know of this node. It
//! reads no file of a job, and removes users' names from our lines, which always have the form
//! `user 'NAME'`.

use super::NAME;
use mpsd::scheduler::Host;
use mpsd_core::config::Settings;
use mpsd_core::{Failure, Undetermined};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest piece, bytes. A longer one loses its beginning. Sixteen pieces bound the whole.
const PIECE_BYTES: usize = 256 << 10;
const COMMAND_TIME: Duration = Duration::from_secs(20);
/// Lines of the log. If the answer is too long, it asks for fewer.
const LOG_LINES: [&str; 3] = ["2000", "500", "100"];
/// Root's programs. The daemon `mpsd` is left out: users run it.
const LOGGED: [&str; 3] = ["mps-prologue", "mps-epilogue", NAME];
const UNITS: [&str; 7] = [
    "mpsd.service",
    "mpsd-boot.service",
    "mpsd-reconcile.timer",
    "mpsd-reconcile.service",
    "mpsd-look-again.path",
    "mpsd-metrics.timer",
    "mpsd-metrics.service",
];
const PROPERTIES: &str = "--property=Id,LoadState,ActiveState,SubState,UnitFileState,Result,ExecMainStatus,StateChangeTimestamp,FragmentPath,DropInPaths";
const FILES: [(&str, &str); 4] = [
    ("os-release", "/etc/os-release"),
    ("kernel", "/proc/version"),
    ("driver", "/proc/driver/nvidia/version"),
    ("mounts-of-cgroups", "/proc/cgroups"),
];
const COMMANDS: [(&str, &[&str]); 5] = [
    ("config-show", &["config", "show"]),
    ("doctor", &["doctor"]),
    ("slurm-check", &["slurm", "check"]),
    ("pbs-check", &["pbs", "check"]),
    ("reconcile-dry-run", &["reconcile", "--dry-run"]),
];

#[derive(Debug, Clone, Default, clap::Args)]
pub struct SupportBundle {
    /// The new file to write; mpsd-support-HOST-SECONDS.tar if not given
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub struct SupportContext<'a> {
    pub host: &'a dyn Host,
    pub config: &'a Path,
    pub settings: &'a Settings,
    pub mpsctl: &'a Path,
}

impl SupportBundle {
    /// Writes the file, 0600; returns the line to print.
    pub fn run(&self, context: &SupportContext<'_>, json: bool) -> Result<String, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let seconds = now.unwrap_or_default().as_secs();
        let usual = || {
            PathBuf::from(format!(
                "mpsd-support-{}-{seconds}.tar",
                context.host.name()
            ))
        };
        let path = self.out.clone().unwrap_or_else(usual);
        let shown = format!("'{}'", path.display());
        let failed =
            |error: io::Error| Undetermined::new(&shown, format!("cannot be written: {error}"));
        // Follows no link: the file must be new.
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path);
        let file = file.map_err(failed)?;
        let pieces = pieces(context);
        let size = pieces.iter().map(|(_, text)| text.len()).sum::<usize>() >> 10;
        if let Err(error) = pack(file, &pieces, seconds) {
            let _ = std::fs::remove_file(&path);
            return Err(failed(error).into());
        }
        let count = pieces.len();
        Ok(match json {
            true => format!("{}\n", json!({"file": path, "pieces": count, "kib": size})),
            false => format!("{shown}: {count} pieces, {size} KiB; read it before you send it\n"),
        })
    }
}

fn pieces(context: &SupportContext<'_>) -> Vec<(&'static str, Vec<u8>)> {
    let SupportContext {
        host,
        config,
        settings,
        mpsctl,
    } = *context;
    let version = format!("mpsd {}\n", env!("CARGO_PKG_VERSION"));
    let mut all = vec![("version", version.into_bytes())];
    for (name, path) in FILES {
        let path = Path::new(path);
        all.push((name, text_of(path, host.configuration(path, PIECE_BYTES))));
    }
    // As our programs read it: only if it is root's.
    all.push(("mpsd.toml", text_of(config, host.read(config, PIECE_BYTES))));
    let fit = match host.executable(&settings.control) {
        true => "root's, executable",
        false => "not there, not root's or not executable",
    };
    let (control, nvml) = (settings.control.display(), &settings.nvml);
    all.push((
        "vendor",
        format!("control '{control}': {fit}\nnvml '{nvml}'\n").into_bytes(),
    ));
    let config = config.display().to_string();
    for (name, words) in COMMANDS {
        let answer = command(host, mpsctl, &[words, &["--config", &config]].concat());
        all.push((name, answer.unwrap_or_else(|why| why)));
    }
    // Not 'status': it lists the processes of mpsd.service, jobs' own included, with their
    // arguments.
    let words = [&["show", "--no-pager", PROPERTIES][..], &UNITS].concat();
    let units = command(host, Path::new("/usr/bin/systemctl"), &words);
    all.push(("units", units.unwrap_or_else(|why| why)));
    all.push(("log", log(host)));
    all
}

fn log(host: &dyn Host) -> Vec<u8> {
    let mut why = Vec::new();
    for lines in LOG_LINES {
        let mut words = vec![
            "--no-pager",
            "--output=short-iso",
            "--lines",
            lines,
            "_UID=0",
        ];
        words.extend(LOGGED.iter().flat_map(|name| ["--identifier", name]));
        match command(host, Path::new("/usr/bin/journalctl"), &words) {
            Ok(text) => return text,
            Err(text) => why = text,
        }
    }
    why
}

fn text_of(path: &Path, read: io::Result<Option<Vec<u8>>>) -> Vec<u8> {
    let why = match read {
        Ok(Some(bytes)) => return bytes,
        Ok(None) => "not there".to_owned(),
        Err(error) => error.to_string(),
    };
    format!("'{}': {why}\n", path.display()).into_bytes()
}

/// The end of a command's output, and how it ended; or why there is none.
fn command(host: &dyn Host, program: &Path, words: &[&str]) -> Result<Vec<u8>, Vec<u8>> {
    let answer = host.run(program, words, &[], COMMAND_TIME);
    let answer = answer.map_err(|why| format!("'{}': {why}\n", program.display()).into_bytes())?;
    let code = answer
        .code
        .map_or("a signal".to_owned(), |code| format!("exit status {code}"));
    let bytes = format!("{}\n{code}\n", without_users(&answer.text)).into_bytes();
    Ok(bytes[bytes.len().saturating_sub(PIECE_BYTES)..].to_vec())
}

fn without_users(text: &str) -> String {
    const NAMED: &str = "user '";
    let mut parts = text.split(NAMED);
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        let rest = part.split_once('\'').map_or("", |(_, rest)| rest);
        all + NAMED + "...'" + rest
    })
}

fn pack(file: File, pieces: &[(&str, Vec<u8>)], seconds: u64) -> io::Result<()> {
    let mut archive = tar::Builder::new(file);
    for (name, bytes) in pieces {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(seconds);
        archive.append_data(
            &mut header,
            format!("mpsd-support/{name}"),
            bytes.as_slice(),
        )?;
    }
    let mut file = archive.into_inner()?;
    file.flush()?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd::scheduler::host::Answer;

    /// A machine with a log that is too long for 2000 lines. Its other answers are long and end
    /// with users' names. Its mpsd.toml is not root's.
    struct Machine;

    impl Host for Machine {
        fn read(&self, _: &Path, _: usize) -> io::Result<Option<Vec<u8>>> {
            Err(io::Error::other("it belongs to user 1000"))
        }

        fn configuration(&self, _: &Path, most: usize) -> io::Result<Option<Vec<u8>>> {
            Ok(Some(vec![b'x'; most]))
        }

        fn executable(&self, _: &Path) -> bool {
            true
        }

        fn run(
            &self,
            _: &Path,
            words: &[&str],
            _: &[(&str, &str)],
            _: Duration,
        ) -> Result<Answer, String> {
            let text = match words.contains(&"--lines") {
                true if !words.contains(&"500") => {
                    return Err("said more than 1048576 bytes".to_owned());
                }
                true => "the last line".to_owned(),
                false => {
                    "y".repeat(4 * PIECE_BYTES) + " refused: user 'alice': not known; user 'bob'"
                }
            };
            Ok(Answer {
                code: Some(1),
                text,
            })
        }

        fn name(&self) -> String {
            "gpu001".to_owned()
        }
    }

    #[test]
    fn the_bundle_is_bounded_and_keeps_the_end_without_names_and_foreign_files() {
        let settings = Settings::usual();
        let pieces = pieces(&SupportContext {
            host: &Machine,
            config: Path::new("/home/alice/mpsd.toml"),
            settings: &settings,
            mpsctl: Path::new("/usr/bin/mpsctl"),
        });
        assert!(pieces.len() <= 16, "{}", pieces.len());
        assert!(pieces.iter().all(|(_, bytes)| bytes.len() <= PIECE_BYTES));
        for (name, end) in [
            ("log", "the last line\nexit status 1\n"),
            (
                "doctor",
                "y refused: user '...': not known; user '...'\nexit status 1\n",
            ),
            (
                "mpsd.toml",
                "'/home/alice/mpsd.toml': it belongs to user 1000\n",
            ),
        ] {
            let (_, text) = pieces.iter().find(|(piece, _)| *piece == name).unwrap();
            assert!(text.ends_with(end.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_user_is_cut_from_lines_as_they_name_one() {
        for name in ["alice", "o.b-c", "nobody"] {
            let line = format!("job 7: MPS ready for {}", mpsd_core::text::user(name));
            assert_eq!(without_users(&line), "job 7: MPS ready for user '...'");
        }
        // A name without an end takes the rest with it.
        assert_eq!(
            without_users("a user 'b' c user 'd e"),
            "a user '...' c user '...'"
        );
    }
}

//! What `mpsctl` does for an administrator in a scheduler's configuration: its verbs, what they say, how they write files.

use super::host::Host;
use mpsd_core::config::Settings;
use mpsd_core::failure::EXIT_REFUSED;
use mpsd_core::replace::{Durability, replace};
use mpsd_core::{Failure, Inventory};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The verbs of one scheduler, or of several that share them: `mpsctl slurm …`.
pub(crate) trait SetUp: Sync {
    /// The command line below `mpsctl`.
    fn command(&self) -> clap::Command;
    /// Carries out the verb of `matches`, which [`SetUp::command`] made.
    ///
    /// # Errors
    /// What cannot be done on which object, why, what to do.
    fn run(&self, matches: &clap::ArgMatches, around: &SetupContext<'_>) -> Result<VerbReport, VerbError>;
    /// What its check finds on this host; `None`: it is not here.
    fn look(&self, node: &str, around: &SetupContext<'_>) -> Option<Vec<CheckLine>>;
}

/// What the verbs need to know of this host.
pub(crate) struct SetupContext<'a> {
    /// Our configuration, where it is not the usual file.
    pub config: Option<&'a Path>,
    /// What it says; the usual settings where it cannot be used.
    pub settings: Settings,
    /// Why it cannot be used.
    pub broken: Option<Failure>,
    /// The directory with our programs.
    pub programs: &'a Path,
    /// The machine.
    pub host: &'a dyn Host,
    /// The GPUs of this node, given its name in the scheduler, or why NVML does not tell them.
    pub inventory: &'a dyn Fn(&str) -> Result<Inventory, Failure>,
    /// What waits for the administrator here, under these settings, whoever schedules the node.
    pub standing: &'a dyn Fn(&Settings) -> Vec<CheckLine>,
}

/// What a verb did, line by line, and whether something is left to do by hand or wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerbReport {
    /// Lines.
    pub lines: Vec<String>,
    /// Something is left to do.
    pub incomplete: bool,
}

impl VerbReport {
    pub(crate) fn did(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
    }

    pub(crate) fn left(&mut self, line: impl Into<String>) {
        self.lines.push(line.into());
        self.incomplete = true;
    }

    /// One object in the form of 'mpsctl doctor --json'; a line that is no finding has no status.
    pub(crate) fn json(&self) -> serde_json::Value {
        let finding = |line: &String| {
            let status = ["OK", "WARN", "FAIL"].into_iter().find_map(|word| {
                let rest = line.strip_prefix(word)?.strip_prefix(' ')?;
                Some((word, rest.trim_start()))
            });
            let (status, text) = status.map_or((None, line.as_str()), |(word, text)| (Some(word), text));
            serde_json::json!({"status": status, "text": text})
        };
        let findings: Vec<_> = self.lines.iter().map(finding).collect();
        serde_json::json!({"incomplete": self.incomplete, "findings": findings})
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.lines.extend(other.lines);
        self.incomplete |= other.incomplete;
    }
}

impl From<Vec<CheckLine>> for VerbReport {
    fn from(found: Vec<CheckLine>) -> Self {
        Self {
            lines: found.iter().map(ToString::to_string).collect(),
            incomplete: found.iter().any(CheckLine::is_wrong),
        }
    }
}

/// Why a command of `mpsctl` did not do its work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbError {
    /// One line.
    pub line: String,
    /// The exit code.
    pub code: u8,
}

impl From<String> for VerbError {
    fn from(line: String) -> Self {
        let code = EXIT_REFUSED;
        Self { line, code }
    }
}

impl From<Failure> for VerbError {
    fn from(failure: Failure) -> Self {
        Self {
            line: failure.to_string(),
            code: failure.exit_code(),
        }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum CheckLine {
    /// As it should be.
    #[display("OK    {_0}")]
    Pass(String),
    /// It works, and could be better.
    #[display("WARN  {_0}")]
    Warn(String),
    /// It does not work, and what to do.
    #[display("FAIL  {_0}")]
    Fail(String),
}

impl CheckLine {
    /// Its word.
    pub fn status(&self) -> &'static str {
        match self {
            Self::Pass(_) => "OK",
            Self::Warn(_) => "WARN",
            Self::Fail(_) => "FAIL",
        }
    }

    /// What it says.
    pub fn text(&self) -> &str {
        let (Self::Pass(text) | Self::Warn(text) | Self::Fail(text)) = self;
        text
    }

    /// Whether something is wrong.
    pub fn is_wrong(&self) -> bool {
        matches!(self, Self::Fail(_))
    }

    /// Whether `path` is a program of ours that root may trust.
    pub(crate) fn program(path: &Path, host: &dyn Host) -> Self {
        let shown = path.display();
        match host.executable(path) {
            true => Self::Pass(format!("'{shown}' is a program of root's")),
            false => Self::Fail(format!(
                "'{shown}' is not there, not executable, or others than root may put it there"
            )),
        }
    }
}

/// Replaces, or makes, a file in one step. The directory may be reached through links: it is the administrator's.
///
/// # Errors
/// One line.
pub(crate) fn place(path: &Path, text: impl AsRef<[u8]>, mode: u32) -> Result<(), String> {
    replace(path, text.as_ref(), mode, Durability::OnDisk).map_err(|error| error.to_string())
}

/// The same, unless the file is so already; whether it was written.
///
/// # Errors
/// One line.
pub(crate) fn ensure(path: &Path, text: impl AsRef<[u8]>, mode: u32) -> Result<bool, String> {
    let is_so = |about: fs::Metadata| about.is_file() && about.uid() == 0 && about.mode() & 0o7777 == mode;
    let same = fs::read(path).is_ok_and(|old| old == text.as_ref());
    if same && fs::symlink_metadata(path).is_ok_and(is_so) {
        return Ok(false);
    }
    place(path, text, mode).map(|()| true)
}

/// Removes a file that is there.
///
/// # Errors
/// One line.
pub(crate) fn remove(path: &Path, done: &mut VerbReport) -> Result<(), String> {
    fs::remove_file(path).map_err(|e| format!("cannot remove '{}': {e}", path.display()))?;
    done.did(format!("removed '{}'", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    #[test]
    fn what_is_not_so_in_text_mode_owner_or_kind_is_written_and_what_is_so_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (file, other) = (directory.path().join("file"), directory.path().join("other"));
        let inode = || fs::symlink_metadata(&file).unwrap().ino();
        assert_eq!(ensure(&file, "text", 0o500), Ok(true));
        let before = inode();
        assert_eq!((ensure(&file, "text", 0o500), inode()), (Ok(false), before));
        let wrong: [&dyn Fn(); 4] = [
            &|| fs::write(&file, "else").unwrap(),
            &|| fs::set_permissions(&file, fs::Permissions::from_mode(0o555)).unwrap(),
            &|| chown(&file, Some(1), None).unwrap(),
            &|| {
                fs::rename(&file, &other).unwrap();
                symlink(&other, &file).unwrap();
            },
        ];
        for (index, change) in wrong.iter().enumerate() {
            change();
            assert_eq!(ensure(&file, "text", 0o500), Ok(true), "{index}");
            let now = fs::symlink_metadata(&file).unwrap();
            assert!(now.is_file() && now.uid() == 0, "{index}");
            assert_eq!(now.mode() & 0o7777, 0o500, "{index}");
            assert_eq!(fs::read_to_string(&file).unwrap(), "text", "{index}");
        }
    }
}

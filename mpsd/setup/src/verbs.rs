//! A verb of `mpsctl` that changes or checks a scheduler's configuration: what it gets, and what it
//! says.

use anyhow::{Context as _, Result, bail};
use batch::host::Host;
use mpsd_core::config::Settings;
use mpsd_core::failure::{EXIT_NODE, EXIT_REFUSED};
use mpsd_core::file::{Durability, replace};
use mpsd_core::trusted::open_trusted;
use mpsd_core::{Failure, Inventory, Paths, Refusal};
use mpsd_sys::deadline::Deadline;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::Duration;

const FAIL: &str = "FAIL";

pub struct AdminVerbs {
    pub command: fn() -> clap::Command,
    pub run: fn(&clap::ArgMatches, &SetupContext<'_>) -> Result<VerbReport, VerbError>,
    /// The scheduler's own lines for its node of this name; `None`: it is not on this host.
    pub check: fn(&str, &SetupContext<'_>) -> Option<Vec<CheckLine>>,
    /// Whether the files that it checks are the node's own, as a mom's, and not the cluster's.
    pub has_own_files: bool,
}

pub struct SetupContext<'a> {
    /// Our configuration, if it is not the usual file.
    pub config: Option<&'a Path>,
    /// If the configuration is broken, the defaults in the directories that it still names.
    pub settings: Settings,
    pub broken: Option<Failure>,
    pub programs: &'a Path,
    pub host: &'a dyn Host,
    /// The GPUs of the node of this name.
    pub inventory: &'a dyn Fn(&str) -> Result<Inventory, Failure>,
    /// What waits for the administrator here under any scheduler.
    pub standing: &'a dyn Fn(&Settings) -> Vec<CheckLine>,
}

impl SetupContext<'_> {
    pub fn config_option(&self) -> Vec<String> {
        let option = |path: &Path| vec!["--config".to_owned(), path.display().to_string()];
        self.config.map(option).unwrap_or_default()
    }
}

pub fn must_be_root(verb: &str, why: &str) -> Result<(), Failure> {
    match nix::unistd::geteuid().is_root() {
        true => Ok(()),
        false => Err(Refusal::new(verb, why, "root").into()),
    }
}

pub fn is_so(path: &Path, text: &[u8], mode: u32) -> bool {
    let is_roots =
        |about: fs::Metadata| about.is_file() && about.uid() == 0 && about.mode() & 0o7777 == mode;
    fs::read(path).is_ok_and(|old| old == text) && fs::symlink_metadata(path).is_ok_and(is_roots)
}

pub fn make_directory(directory: &Path, mode: u32) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let made = fs::create_dir_all(directory);
    let made = made.and_then(|()| fs::set_permissions(directory, fs::Permissions::from_mode(mode)));
    made.with_context(|| format!("cannot make '{}'", directory.display()))
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerbReport {
    pub lines: Vec<String>,
    /// Something is wrong, or left to do by hand.
    pub incomplete: bool,
    pub changed: bool,
}

impl VerbReport {
    pub fn did(&mut self, text: impl AsRef<str>) {
        self.lines.extend(text.as_ref().lines().map(str::to_owned));
    }

    pub fn left(&mut self, text: impl AsRef<str>) {
        self.did(text);
        self.incomplete = true;
    }

    /// Writes root's file with this text and mode, unless it is so already. Its directory is made.
    pub fn write(&mut self, path: &Path, text: &[u8], mode: u32, about: &str) -> Result<()> {
        if is_so(path, text, mode) {
            return Ok(());
        }
        make_directory(path.parent().unwrap_or(Path::new("/")), 0o755)?;
        replace(path, text, mode, Durability::OnDisk)?;
        self.did(format!("wrote '{}'{about}", path.display()));
        self.changed = true;
        Ok(())
    }

    pub fn remove(&mut self, path: &Path) -> Result<()> {
        let shown = path.display();
        fs::remove_file(path).with_context(|| format!("cannot remove '{shown}'"))?;
        self.did(format!("removed '{shown}'"));
        self.changed = true;
        Ok(())
    }

    /// In the form of 'mpsctl doctor --json'; a line that is no line of a check has no status.
    pub fn json(&self) -> serde_json::Value {
        let finding = |line: &String| {
            let (status, text) = match line.split_once(' ') {
                Some((word @ ("OK" | "WARN" | FAIL), rest)) => (Some(word), rest.trim_start()),
                _ => (None, line.as_str()),
            };
            serde_json::json!({"status": status, "text": text})
        };
        let findings: Vec<_> = self.lines.iter().map(finding).collect();
        serde_json::json!({"incomplete": self.incomplete, "findings": findings})
    }

    /// 0, 1 if something is left to do, 2 with a FAIL, as `mpsctl doctor`.
    pub fn exit_code(&self) -> u8 {
        match self.lines.iter().any(|line| line.starts_with(FAIL)) {
            true => EXIT_NODE,
            false if self.incomplete => EXIT_REFUSED,
            false => 0,
        }
    }
}

impl From<Vec<CheckLine>> for VerbReport {
    fn from(lines: Vec<CheckLine>) -> Self {
        Self {
            lines: lines.iter().map(ToString::to_string).collect(),
            incomplete: lines.iter().any(CheckLine::is_wrong),
            changed: false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbError {
    pub line: String,
    pub code: u8,
}

impl From<String> for VerbError {
    fn from(line: String) -> Self {
        let code = EXIT_REFUSED;
        Self { line, code }
    }
}

impl From<anyhow::Error> for VerbError {
    fn from(error: anyhow::Error) -> Self {
        format!("{error:#}").into()
    }
}

impl From<Failure> for VerbError {
    fn from(failure: Failure) -> Self {
        let (line, code) = (failure.to_string(), failure.exit_code());
        Self { line, code }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
pub enum CheckLine {
    #[display("OK    {_0}")]
    Pass(String),
    /// It could be better, or a user may have caused it, or it could not be checked.
    #[display("WARN  {_0}")]
    Warn(String),
    /// Root has proved it, and no user can cause it.
    #[display("FAIL  {_0}")]
    Fail(String),
}

impl CheckLine {
    pub fn status(&self) -> &'static str {
        match self {
            Self::Pass(_) => "OK",
            Self::Warn(_) => "WARN",
            Self::Fail(_) => FAIL,
        }
    }

    pub fn text(&self) -> &str {
        let (Self::Pass(text) | Self::Warn(text) | Self::Fail(text)) = self;
        text
    }

    pub fn is_wrong(&self) -> bool {
        matches!(self, Self::Fail(_))
    }

    pub fn unusable_config(why: &Failure) -> Self {
        Self::Fail(format!(
            "{why}: every job that asks for MPS is stopped; 'mpsctl config check' tells when it is good"
        ))
    }

    pub fn program(path: &Path, host: &dyn Host) -> Self {
        let shown = path.display();
        if host.executable(path) {
            return Self::Pass(format!("'{shown}' is a program of root's"));
        }
        Self::Fail(match open_trusted(path) {
            Ok(_) => {
                let mode = fs::metadata(path).map_or(0, |about| about.mode() & 0o7777);
                format!("'{shown}' is not executable (mode {mode:04o}): chmod 0755")
            }
            Err(error) if error.is_absent() => {
                format!("'{shown}' is not there: install its package again")
            }
            Err(error) => error.to_string(),
        })
    }
}

/// The end of running jobs with MPS needs the files that a verb removes.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct RunningJobs {
    /// Wait so long for the jobs with MPS that run on this node
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait: u64,
    /// Remove it although jobs with MPS run here: mpsd-reconcile.timer takes their MPS down after
    /// them
    #[arg(long)]
    force: bool,
}

impl RunningJobs {
    pub fn allow(&self, ctx: &SetupContext<'_>) -> Result<Option<String>> {
        let wait_s = if self.force { 0 } else { self.wait };
        let jobs = running_jobs(&ctx.settings.paths, wait_s)?.join(", ");
        let timer = "mpsd-reconcile.timer takes";
        let still = format!(
            "jobs with MPS still run here: {jobs}; if it stays installed, {timer} their MPS down"
        );
        match jobs.is_empty() || self.force {
            true => Ok(Some(still).filter(|_| !jobs.is_empty())),
            false => bail!(
                "nothing removed: jobs with MPS run here, and their end needs our files: {jobs}; allowed: --wait SECONDS, or \
                 --force, after which {timer} their MPS down"
            ),
        }
    }
}

/// Waits up to `wait_s` seconds until no job with MPS is left on this node. Returns those that are.
pub fn running_jobs(paths: &Paths, wait_s: u64) -> Result<Vec<String>> {
    let end = Deadline::after(Duration::from_secs(wait_s));
    loop {
        let jobs = jobs_here(&paths.jobs())?;
        if jobs.is_empty() || !end.sleep(Duration::from_millis(500)) {
            return Ok(jobs);
        }
    }
}

fn jobs_here(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read '{}'", directory.display()))?,
    };
    let begun = entries
        .flatten()
        .filter(|entry| entry.path().join("journal").exists());
    let names = begun.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut jobs: Vec<String> = names.collect();
    jobs.sort();
    Ok(jobs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn a_file_is_written_only_if_its_text_mode_owner_or_kind_is_wrong() {
        let directory = tempfile::tempdir().unwrap();
        let [file, other] = ["file", "other"].map(|name| directory.path().join(name));
        let changed = || {
            let mut report = VerbReport::default();
            report.write(&file, b"text", 0o500, "").unwrap();
            report.changed
        };
        let inode = || fs::symlink_metadata(&file).unwrap().ino();
        assert!(changed());
        let before = inode();
        assert_eq!((changed(), inode()), (false, before));
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
            assert!(changed() && is_so(&file, b"text", 0o500), "{index}");
        }
    }
    #[test]
    fn a_program_is_wrong_for_one_cause_and_its_remedy_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("mps-prologue");
        let line = || CheckLine::program(&file, &batch::host::ThisHost).to_string();
        let mode = |mode| fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let shown = file.display();
        let expect = |words: &str| assert_eq!(line(), format!("FAIL  '{shown}' {words}"));
        expect("is not there: install its package again");
        fs::write(&file, "").unwrap();
        mode(0o644);
        expect("is not executable (mode 0644): chmod 0755");
        mode(0o775);
        expect("may be written by group or others (mode 0775): chmod go-w");
        mode(0o755);
        assert!(line().starts_with("OK"), "{}", line());
        chown(&file, Some(1), None).unwrap();
        expect("belongs to user 1, not to root: chown root");
    }

    #[test]
    fn a_job_with_a_journal_still_runs_here() {
        let directory = tempfile::tempdir().unwrap();
        let paths = Paths::new(directory.path(), directory.path());
        let running = || running_jobs(&paths, 0).unwrap();
        assert!(running().is_empty());
        let job = directory.path().join("jobs/7");
        fs::create_dir_all(&job).unwrap();
        assert!(running().is_empty());
        fs::write(job.join("journal"), "").unwrap();
        assert_eq!(running(), ["7"]);
    }
}

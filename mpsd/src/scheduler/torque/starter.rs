//! What a Torque mom's configuration says of `$job_starter`, which alone reaches the tasks that TM starts (`pbsdsh`, an MPI
//! launcher): they read no profile (docs/facts/pbs.md#environment-into-the-job).

use super::product::PRODUCT;
use super::reread;
use crate::scheduler::batch_system::Unattached;
use crate::scheduler::host::Host;
use crate::scheduler::pbs::installation::{Installation, MOST_CONF};
use crate::scheduler::site::Site;
use std::path::{Path, PathBuf};

/// What makes a starter one of ours, or a site's own that attaches tasks.
const OURS: &str = "mpsctl exec";
/// The line of a mom's configuration that names its starter.
const STARTER: &str = "$job_starter";
/// A starter is a script of some lines. Bytes.
const MOST_STARTER: usize = 64 << 10;

/// What a Torque mom's `$job_starter` is; the last line of its configuration counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Starter {
    /// There is none: the mom executes tasks itself.
    Absent,
    /// Tasks go through `mpsctl exec`.
    Ours(PathBuf),
    /// It is the site's own and does not call us, or is not there.
    Foreign(PathBuf),
    /// `$job_starter_run_privileged` is not surely off: a starter would run every task as root.
    Privileged {
        /// The one that stands is ours, which then runs nothing.
        ours: bool,
    },
    /// The mom's configuration cannot be read, which is why.
    Unread(String),
}

impl Starter {
    /// The starter of the mom of `pbs`.
    pub fn of(pbs: &Installation, host: &dyn Host) -> Self {
        let text = match host.read(&pbs.mom_config(), MOST_CONF) {
            Ok(bytes) => bytes.unwrap_or_default(),
            Err(error) => return Self::Unread(error.to_string()),
        };
        let text = String::from_utf8_lossy(&text);
        let path = values(&text, STARTER)
            .filter_map(first_word)
            .last()
            .map(PathBuf::from);
        let ours = path.as_deref().is_some_and(|path| is_ours(path, host));
        match path {
            _ if may_be_privileged(&text) => Self::Privileged { ours },
            None => Self::Absent,
            Some(path) if ours => Self::Ours(path),
            Some(path) => Self::Foreign(path),
        }
    }
}

/// The configuration of Torque's mom here, where it may run its starter as root: in doubt, and where it cannot be read.
pub fn may_run_as_root(site: &Site, host: &dyn Host) -> Option<PathBuf> {
    let config = Installation::find(&PRODUCT, site, host).mom_config();
    let safe = match host.read(&config, MOST_CONF) {
        Ok(Some(text)) => !may_be_privileged(&String::from_utf8_lossy(&text)),
        _ => false,
    };
    (!safe).then_some(config)
}

/// Whether a line of this configuration makes `starter` the mom's, however it is written.
pub fn names(config: &str, starter: &Path) -> bool {
    let starter = starter.to_string_lossy();
    let is_it = |value: &str| {
        let rest = value.strip_prefix(starter.as_ref());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
    };
    values(config, STARTER).any(is_it)
}

/// The line by which the mom starts a job's shell in a way that is lost with any starter: as no login shell, or with
/// words before its script. A starter is not told of either.
pub fn own_way_with_shells(pbs: &Installation, host: &dyn Host) -> Option<&'static str> {
    let text = host.read(&pbs.mom_config(), MOST_CONF).ok().flatten()?;
    let text = String::from_utf8_lossy(&text);
    let off = |name: &&str| values(&text, name).filter_map(boolean).last() == Some(false);
    let logins = ["$source_login_batch", "$source_login_interactive"];
    let wrapped = values(&text, "$preexec")
        .last()
        .is_some_and(|value| !value.is_empty());
    logins.into_iter().find(off).or(wrapped.then_some("$preexec"))
}

/// The last line counts, and one that the mom does not understand is no "no".
fn may_be_privileged(config: &str) -> bool {
    values(config, "$job_starter_run_privileged")
        .last()
        .is_some_and(|value| boolean(value) != Some(false))
}

/// What the lines of a mom's configuration say of `name`, in order. The mom's own reading (Torque 6.1, parse_config.c):
/// the name in any case, '#' ends the line, and the value is all of its rest.
fn values<'t>(config: &'t str, name: &str) -> impl Iterator<Item = &'t str> {
    config.lines().filter_map(move |line| {
        let line = line.split('#').next()?.trim();
        let in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '_' | '$');
        let end = line.find(|c| !in_name(c)).unwrap_or(line.len());
        let (found, value) = line.split_at_checked(end)?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

fn first_word(value: &str) -> Option<&str> {
    value.split_whitespace().next()
}

/// How the mom reads a boolean (`setbool` of the same file); `None`: it does not, and all stays as it was.
fn boolean(value: &str) -> Option<bool> {
    match value.as_bytes().first()?.to_ascii_lowercase() {
        b't' | b'y' | b'1' => Some(true),
        b'f' | b'n' | b'0' => Some(false),
        b'o' if value.eq_ignore_ascii_case("on") => Some(true),
        b'o' if value.eq_ignore_ascii_case("off") => Some(false),
        _ => None,
    }
}

fn is_ours(path: &Path, host: &dyn Host) -> bool {
    let text = host.read(path, MOST_STARTER).ok().flatten().unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    host.executable(path) && text.contains(OURS)
}

/// Why tasks of a job of this mom that TM starts cannot be attached; `None`: they are.
pub fn unattached(pbs: &Installation, host: &dyn Host) -> Option<Unattached> {
    // Somebody runs the prologue by hand: only a mom starts tasks for TM.
    if !pbs.is_here() {
        return None;
    }
    let config = pbs.mom_config();
    let (config, install) = (config.display(), "'mpsctl pbs install' on the node");
    let starter = Starter::of(pbs, host);
    let no_way_round = starter == Starter::Privileged { ours: true };
    let (why, remedy) = match starter {
        Starter::Ours(path) => (
            format!(
                "the mom has not read the $job_starter of '{config}', which attaches tasks started by TM"
            ),
            reread::needed(pbs, &path)?,
        ),
        Starter::Absent => (
            format!("'{config}' has no $job_starter that attaches tasks started by TM"),
            install.to_owned(),
        ),
        Starter::Foreign(path) => (
            format!(
                "the $job_starter '{}' of '{config}' does not attach tasks started by TM",
                path.display()
            ),
            format!("{install}, which says how to add ours"),
        ),
        Starter::Privileged { .. } => (
            format!(
                "'{config}' has $job_starter_run_privileged, and our starter runs as the job's user only"
            ),
            "that line says false".to_owned(),
        ),
        Starter::Unread(why) => (
            format!("'{config}' cannot be read ({why}), so tasks started by TM may not be attached"),
            "that file to be readable".to_owned(),
        ),
    };
    Some(Unattached {
        why,
        remedy,
        no_way_round,
    })
}

#[cfg(test)]
mod tests {
    //! What is read of a mom's configuration.

    use super::*;

    #[test]
    fn a_configuration_is_read_as_the_mom_reads_it() {
        let config = "$job_starter /a\n# $job_starter /b\n\t$Job_Starter\t/c d # e\n$job_starter_x /f\n";
        let all: Vec<&str> = values(config, STARTER).collect();
        assert_eq!(all, ["/a", "/c d"]);
        assert!(names(config, Path::new("/a")) && names(config, Path::new("/c")));
        assert!(!names(config, Path::new("/b")) && !names("$job_starter /ab", Path::new("/a")));
        for (word, privileged) in [
            ("True", true),
            ("", true),
            ("maybe", true),
            ("off", false),
            ("0", false),
        ] {
            let line = format!("$job_starter_run_privileged {word}\n");
            assert_eq!(may_be_privileged(&line), privileged, "{word}");
        }
        assert!(!may_be_privileged(""));
        assert!(may_be_privileged(
            "$job_starter_run_privileged no\n$job_starter_run_privileged"
        ));
    }
}

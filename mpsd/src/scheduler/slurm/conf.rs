//! As much of slurm.conf and plugstack.conf as our line in the stack depends on.

use super::line;
use super::lines::{Line, last, read};
use crate::scheduler::call::Program;
use crate::scheduler::host::Host;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where packages and builds keep slurm.conf, most usual first.
const USUAL: [&str; 5] = [
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    FETCHED,
];
/// The copy that slurmd or sackd fetched from the controller (configless).
pub(super) const FETCHED: &str = "/run/slurm/conf/slurm.conf";

/// `UnkillableStepTimeout` where slurm.conf does not set it (docs/facts/slurm.md#the-end-of-a-step).
pub(super) const UNKILLABLE: Duration = Duration::from_secs(60);

/// Whether a daemon fetched this slurm.conf, and will write it anew: in `/run`, or in slurmd's spool directory.
pub(super) fn is_fetched(file: &Path) -> bool {
    file.starts_with("/run") && file.ends_with("conf/slurm.conf")
        || file.parent().is_some_and(|dir| dir.ends_with("conf-cache"))
}

/// A slurm.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conf {
    /// The file.
    pub file: PathBuf,
    /// Its lines, those of included files too, in order.
    lines: Vec<Line>,
}

impl Conf {
    /// The file that is named, else the first usual one.
    ///
    /// # Errors
    /// One line: there is none, or it cannot be read.
    pub fn find(named: Option<&Path>, host: &dyn Host) -> Result<Self, String> {
        let usual = || USUAL.iter().map(Path::new).find(|path| path.exists());
        let file = named.or_else(usual).ok_or_else(|| {
            format!(
                "no slurm.conf in any usual place ({}); name it with --slurm-conf",
                USUAL.join(", ")
            )
        })?;
        let lines = read(file, host)?.ok_or_else(|| format!("no '{}'", file.display()))?;
        Ok(Self {
            file: file.to_owned(),
            lines,
        })
    }

    /// The controller sends plugstack.conf to the nodes, and nothing that it includes: our line stands in it itself.
    pub fn is_sent(&self) -> bool {
        self.lists("SlurmctldParameters", "enable_configless") && self.value("PlugStackConfig").is_none()
    }

    /// plugstack.conf is a copy that a daemon writes anew.
    pub fn stack_is_fetched(&self) -> bool {
        is_fetched(&self.file) && self.value("PlugStackConfig").is_none()
    }

    /// The file for our line: our own, or where no other is sent plugstack.conf.
    pub fn home(&self) -> PathBuf {
        match self.is_sent() || self.stack_is_fetched() {
            true => self.stack(),
            false => self.snippet(),
        }
    }

    /// The last value of a key, which Slurm reads in any case.
    pub fn value(&self, key: &str) -> Option<&str> {
        last(&self.lines, key)
    }

    /// Whether the list with commas under `key` has `item`, in any case.
    pub fn lists(&self, key: &str, item: &str) -> bool {
        self.value(key)
            .is_some_and(|list| list.split(',').any(|one| one.trim().eq_ignore_ascii_case(item)))
    }

    /// How long slurmstepd waits for the end of a step that was told to end before it drains the node.
    pub fn unkillable_step_timeout(&self) -> Duration {
        let set = self
            .value("UnkillableStepTimeout")
            .and_then(|text| text.parse().ok());
        set.map_or(UNKILLABLE, Duration::from_secs)
    }

    /// After how long slurmd kills a prolog or an epilog and drains the node, and the key that says so; `None`: never. The keys for
    /// one of both came with 25.05 (docs/facts/slurm.md#failures).
    pub fn timeout(&self, program: Program) -> Option<(&'static str, Duration)> {
        let own = match program {
            Program::Prologue => "PrologTimeout",
            Program::Epilogue => "EpilogTimeout",
        };
        let mut keys = [own, "PrologEpilogTimeout"].into_iter();
        let (key, text) = keys.find_map(|key| Some((key, self.value(key)?)))?;
        // 0 and what stands for no value are no limit.
        let seconds: u16 = text.parse().ok()?;
        (1..u16::MAX - 1)
            .contains(&seconds)
            .then(|| (key, Duration::from_secs(seconds.into())))
    }

    fn directory(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }

    /// plugstack.conf.
    pub fn stack(&self) -> PathBuf {
        self.value("PlugStackConfig")
            .map_or_else(|| self.directory().join("plugstack.conf"), PathBuf::from)
    }

    /// Our line's file, beside it.
    pub fn snippet(&self) -> PathBuf {
        self.stack().with_file_name("plugstack.conf.d").join("mpsd.conf")
    }

    /// The line with which plugstack.conf takes it in.
    pub fn include(&self) -> String {
        format!(
            "include {}/*.conf",
            self.stack().with_file_name("plugstack.conf.d").display()
        )
    }

    /// The lines of the stack in the order in which Slurm takes them: an `include` has its files in the order of their names.
    pub fn stack_lines(&self) -> Vec<String> {
        let stack = self.stack();
        let base = stack.with_file_name("");
        let text = fs::read_to_string(&stack).unwrap_or_default();
        let lines = |text: String| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let taken_in = |pattern: &str| {
            let mut files = matching(&base.join(pattern));
            files.sort();
            files
                .iter()
                .flat_map(|file| lines(fs::read_to_string(file).unwrap_or_default()))
                .collect()
        };
        let one = |line: &str| pattern(line).map_or_else(|| vec![line.to_owned()], taken_in);
        text.lines().flat_map(one).collect()
    }

    /// The file in which Slurm finds our line.
    pub fn found(&self) -> Option<PathBuf> {
        let (stack, snippet) = (self.stack(), self.snippet());
        let included = || self.would_take_in() && line::of(&snippet).is_some();
        match line::of(&stack) {
            Some(_) => Some(stack),
            None => included().then_some(snippet),
        }
    }

    /// Whether plugstack.conf includes our line's file, which may not be there yet.
    pub fn would_take_in(&self) -> bool {
        let stack = self.stack();
        let text = fs::read_to_string(&stack).unwrap_or_default();
        !self.is_sent() && includes(&text, &stack.with_file_name(""), &self.snippet())
    }
}

/// Whether an `include` of the stack in `base` names `snippet`: by itself, or by a pattern for the last component,
/// which is all that anybody writes.
fn includes(text: &str, base: &Path, snippet: &Path) -> bool {
    text.lines().filter_map(pattern).any(|pattern| {
        let path = base.join(pattern);
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        let file = snippet
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        path.parent() == snippet.parent() && fits(name, file)
    })
}

/// What an `include` of the stack names.
fn pattern(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let rest = line.strip_prefix("include")?;
    rest.starts_with([' ', '\t']).then(|| rest.trim())
}

/// The files that fit a pattern in the last component.
fn matching(path: &Path) -> Vec<PathBuf> {
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let entries = path.parent().map(fs::read_dir).into_iter().flatten().flatten();
    let fitting = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(|file| fits(name, file));
    entries
        .flatten()
        .filter(fitting)
        .map(|entry| entry.path())
        .collect()
}

/// Whether a pattern with at most one `*` fits `name`.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => {
            name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail)
        }
    }
}

#[cfg(test)]
mod tests {
    //! What is read of slurm.conf and plugstack.conf.

    use super::*;
    use crate::scheduler::testing::Paper;

    #[test]
    fn keys_in_any_case_and_the_last_one_counts() {
        let text = "PrologFlags=Alloc # PrologFlags=X\nNodeName=n Gres=gpu:1\nprologflags=Contain,NoHold\n";
        let host = Paper::default().file("/x/slurm.conf", text);
        let conf = Conf::find(Some(Path::new("/x/slurm.conf")), &host).unwrap();
        assert!(conf.lists("PrologFlags", "contain") && !conf.lists("PrologFlags", "Alloc"));
        assert_eq!(conf.snippet(), Path::new("/x/plugstack.conf.d/mpsd.conf"));
        assert_eq!(conf.include(), "include /x/plugstack.conf.d/*.conf");
    }

    #[test]
    fn an_include_is_found_as_slurm_would() {
        let (base, snippet) = (
            Path::new("/etc/slurm/"),
            Path::new("/etc/slurm/plugstack.conf.d/mpsd.conf"),
        );
        for text in [
            "include /etc/slurm/plugstack.conf.d/*.conf",
            "include plugstack.conf.d/*.conf # ours too",
            "optional x.so\ninclude\t/etc/slurm/plugstack.conf.d/*\n",
            "include /etc/slurm/plugstack.conf.d/mpsd.conf",
        ] {
            assert!(includes(text, base, snippet), "{text}");
        }
        for text in [
            "",
            "#include plugstack.conf.d/*.conf",
            "include /etc/other.d/*.conf",
            "include plugstack.conf.d/pyxis.conf",
        ] {
            assert!(!includes(text, base, snippet), "{text}");
        }
    }
}

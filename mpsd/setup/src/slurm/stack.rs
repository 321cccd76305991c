//! Slurm's plugin stack, plugstack.conf: our line in it, and beside a plugin that puts tasks into
//! containers our second line behind that plugin's (docs/containers.md#enroot-and-pyxis).

use crate::verbs::CheckLine::{self, Pass, Warn};
use batch::slurm::conf::{Conf, is_fetched};
use mpsd_core::text::list;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where the plugin finds its programs and its configuration by itself (spank: `arguments`).
pub const PLUGIN: &str = "spank_mps.so";
/// Plugins that put a task into a container in its task_init
/// (docs/facts/programs.md#read-and-not-run).
const CONTAINERS: [(&str, &str); 3] = [
    ("pyxis", "spank_pyxis.so"),
    ("skybox", "libskybox.so"),
    ("skybox", "skybox.so"),
];
pub const TAG: &str = "# mpsd: written by 'mpsctl slurm enable', removed by 'mpsctl slurm disable'";
pub const WORDS: [&str; 2] = ["optional", "required"];
/// The word that makes our line the second one (spank: `container`).
const LOOK: &str = "look=container";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Local,
    /// The controller here sends it to the nodes, and nothing that it includes: our line stands in
    /// it itself.
    Sent,
    /// It is a copy that a daemon rewrites.
    Fetched,
}

pub struct Stack {
    pub file: PathBuf,
    pub delivery: Delivery,
}

impl Stack {
    pub fn of(conf: &Conf) -> Self {
        let named = conf.value("PlugStackConfig");
        Self {
            file: named.map_or_else(|| conf.file.with_file_name("plugstack.conf"), PathBuf::from),
            delivery: match named {
                None if is_fetched(&conf.file) => Delivery::Fetched,
                None if conf.lists("SlurmctldParameters", "enable_configless") => Delivery::Sent,
                _ => Delivery::Local,
            },
        }
    }

    fn directory(&self) -> PathBuf {
        self.file.with_file_name("plugstack.conf.d")
    }

    pub fn snippet(&self) -> PathBuf {
        self.directory().join("mpsd.conf")
    }

    /// The last of its directory.
    pub fn second_snippet(&self) -> PathBuf {
        self.directory().join("zz-mpsd.conf")
    }

    pub fn home(&self) -> PathBuf {
        match self.delivery {
            Delivery::Local => self.snippet(),
            Delivery::Sent | Delivery::Fetched => self.file.clone(),
        }
    }

    pub fn include(&self) -> String {
        format!("include {}/*.conf", self.directory().display())
    }

    /// The lines in Slurm's order, each with its file: an `include` stands for its files in the
    /// order of their names.
    fn lines(&self) -> Vec<(PathBuf, String)> {
        let own = read_lines(&self.file).into_iter();
        own.flat_map(|line| self.expand(line)).collect()
    }

    fn expand(&self, line: String) -> Vec<(PathBuf, String)> {
        let Some(pattern) = self.pattern(&line) else {
            return vec![(self.file.clone(), line)];
        };
        let entries = pattern
            .parent()
            .and_then(|directory| fs::read_dir(directory).ok());
        let files = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path());
        let mut files: Vec<PathBuf> = files.filter(|file| fits(&pattern, file)).collect();
        files.sort();
        let lines = |file: PathBuf| {
            let lines = read_lines(&file).into_iter();
            lines.map(move |line| (file.clone(), line))
        };
        files.into_iter().flat_map(lines).collect()
    }

    /// What an `include` names: a file, or a pattern in the last component.
    fn pattern(&self, line: &str) -> Option<PathBuf> {
        let rest = line.split('#').next()?.trim().strip_prefix("include")?;
        let named = rest.starts_with([' ', '\t']).then(|| rest.trim())?;
        Some(self.file.with_file_name("").join(named))
    }

    pub fn found(&self) -> Option<PathBuf> {
        let mut lines = self.lines().into_iter();
        let is_seen = |file: &PathBuf| *file == self.file || self.delivery == Delivery::Local;
        let found = lines.find(|(file, line)| is_first(line) && is_seen(file));
        found.map(|(file, _)| file)
    }

    /// Whether plugstack.conf includes our snippet, which may not be there yet.
    pub fn includes_snippet(&self) -> bool {
        let lines = read_lines(&self.file);
        let mut patterns = lines.iter().filter_map(|line| self.pattern(line));
        self.delivery == Delivery::Local && patterns.any(|pattern| fits(&pattern, &self.snippet()))
    }

    /// Whether such a plugin is in the stack, or will be once our include is in it.
    pub fn has_containers(&self) -> bool {
        let mut lines = self.lines();
        if !is_foreign(&self.file) {
            lines.extend(self.expand(self.include()));
        }
        let is_its = |line: &str| CONTAINERS.iter().any(|(_, file)| names(line, file));
        lines.iter().any(|(_, line)| is_its(line))
    }

    /// The line that the stack itself, without what it includes, lacks behind such a plugin.
    pub fn missing_second(&self, plugin: &Path) -> Option<String> {
        let (lines, shown) = (read_lines(&self.file), plugin.display().to_string());
        let is_container = |line: &String| CONTAINERS.iter().any(|(_, file)| names(line, file));
        let is_second = |line: &String| is_ours(line) && !is_first(line) && line.contains(&shown);
        let is_missing = lines.iter().any(is_container) && !lines.iter().any(is_second);
        is_missing.then(|| second_line(plugin))
    }

    /// What the site has added to a stack that we wrote.
    pub fn of_site(&self) -> Vec<String> {
        let (mut lines, include) = (read_lines(&self.file), self.include());
        let own = [TAG, &include, ""];
        lines.retain(|line| !own.contains(&line.trim()) && !is_ours(line));
        lines
    }

    /// We wrote it, and may replace it.
    pub fn is_ours(&self) -> bool {
        !is_foreign(&self.file) && self.of_site().is_empty()
    }

    /// Slurm loads a plugin once for each line, and each registers the same flags.
    pub fn check_repeats(&self) -> Option<CheckLine> {
        let mut lines = self.lines();
        lines.retain(|(_, line)| is_first(line));
        let files = lines
            .iter()
            .map(|(file, _)| format!("'{}'", file.display()));
        let (times, files) = (lines.len(), list(files));
        let text = format!("our line stands {times} times, in {files}; keep one");
        (times > 1).then_some(Warn(text))
    }

    /// Whether the order of the lines keeps tasks from their MPS, or from reading that they have
    /// none.
    pub fn check_containers(&self, plugin: &Path) -> Vec<CheckLine> {
        let check = |(name, file): &(&str, &str)| self.check_container(name, file, plugin);
        CONTAINERS.iter().filter_map(check).collect()
    }

    fn check_container(&self, name: &str, file: &str, plugin: &Path) -> Option<CheckLine> {
        let (lines, stack) = (self.lines(), self.file.display());
        let other = lines.iter().position(|(_, line)| names(line, file))?;
        let ours = lines.iter().position(|(_, line)| is_first(line))?;
        let is_second = |(_, line): &(PathBuf, String)| is_ours(line) && !is_first(line);
        Some(if other < ours {
            Warn(format!(
                "'{stack}': the line of {name} comes before ours, and tasks are in their containers before they have their MPS; \
                 move it behind: files are taken in the order of their names"
            ))
        } else if lines[other..].iter().any(is_second) {
            Pass(format!(
                "'{stack}': {name} stands behind our line, and a task whose container hides its MPS does not start"
            ))
        } else {
            Warn(format!(
                "'{stack}': a task whose container hides its MPS runs outside of it without a word: run 'mpsctl slurm enable' again, \
                 or let this line stand behind that of {name}: {}",
                second_line(plugin)
            ))
        })
    }
}

fn read_lines(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn names(line: &str, plugin: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_plugin = |file: &str| Path::new(file).file_name() == Some(plugin.as_ref());
    words.next().is_some_and(|word| WORDS.contains(&word)) && words.next().is_some_and(is_plugin)
}

pub fn is_ours(line: &str) -> bool {
    names(line, PLUGIN)
}

/// It attaches the tasks.
fn is_first(line: &str) -> bool {
    is_ours(line) && !line.split_whitespace().any(|word| word == LOOK)
}

pub fn second_line(plugin: &Path) -> String {
    format!("{} {} {LOOK}", WORDS[0], plugin.display())
}

pub fn our_line(file: &Path) -> Option<String> {
    read_lines(file).into_iter().find(|line| is_first(line))
}

pub fn has_ours(file: &Path) -> bool {
    read_lines(file).iter().any(|line| is_ours(line))
}

pub fn is_foreign(file: &Path) -> bool {
    match fs::read_to_string(file) {
        Ok(text) => !text.starts_with(TAG),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// Whether a pattern with at most one `*` in the last component fits `file`.
fn fits(pattern: &Path, file: &Path) -> bool {
    let [wanted, name] = [pattern, file].map(|path| path.file_name().unwrap_or_default());
    let [wanted, name] = [wanted, name].map(|name| name.to_string_lossy());
    let named = match wanted.split_once('*') {
        None => wanted == name,
        Some((head, tail)) => name
            .strip_prefix(head)
            .is_some_and(|rest| rest.ends_with(tail)),
    };
    named && pattern.parent() == file.parent()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_include_is_found_as_slurm_would() {
        let stack = Stack {
            file: "/etc/slurm/plugstack.conf".into(),
            delivery: Delivery::Local,
        };
        for (line, found) in [
            ("include /etc/slurm/plugstack.conf.d/*.conf", true),
            ("include plugstack.conf.d/*.conf # ours too", true),
            ("include\t/etc/slurm/plugstack.conf.d/*", true),
            ("include /etc/slurm/plugstack.conf.d/mpsd.conf", true),
            ("", false),
            ("#include plugstack.conf.d/*.conf", false),
            ("include /etc/other.d/*.conf", false),
            ("include plugstack.conf.d/pyxis.conf", false),
        ] {
            let pattern = stack.pattern(line);
            let fits = pattern.is_some_and(|pattern| fits(&pattern, &stack.snippet()));
            assert_eq!(fits, found, "{line}");
        }
    }
}

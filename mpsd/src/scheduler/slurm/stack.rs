//! Slurm's plugin stack, plugstack.conf: our line in it, and beside pyxis our second line behind that of pyxis
//! (docs/containers.md#enroot-and-pyxis).

use super::conf::{Conf, is_fetched};
use crate::scheduler::setup::CheckLine::{self, Pass, Warn};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where the plugin finds its programs and its configuration by itself (spank: `arguments`).
pub(super) const USUAL_PROGRAMS: &str = "/usr/libexec/mpsd";
pub(super) const PLUGIN: &str = "spank_mps.so";
const PYXIS: &str = "spank_pyxis.so";
pub(super) const TAG: &str = "# mpsd: written by 'mpsctl slurm enable', removed by 'mpsctl slurm disable'";
pub(super) const WORDS: [&str; 2] = ["optional", "required"];
/// Makes a line of ours the second one (spank: `container`).
const LOOK: &str = "look=container";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    Local,
    /// The controller here sends it to the nodes, and nothing that it includes: our line stands in it itself.
    Sent,
    /// It is a copy that a daemon rewrites.
    Fetched,
}

pub(super) struct Stack {
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

    /// The file of our line, if plugstack.conf can include it.
    pub fn snippet(&self) -> PathBuf {
        self.directory().join("mpsd.conf")
    }

    /// The file of our second line, which is the last of its directory.
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

    /// The lines in Slurm's order: an `include` stands for its files in the order of their names.
    fn lines(&self) -> Vec<String> {
        let lines = read_lines(&self.file).into_iter();
        lines.flat_map(|line| self.expand(line)).collect()
    }

    fn expand(&self, line: String) -> Vec<String> {
        let files = pattern(&line).map(|pattern| matching(&self.file.with_file_name("").join(pattern)));
        files.map_or_else(
            || vec![line],
            |files| files.iter().flat_map(|file| read_lines(file)).collect(),
        )
    }

    /// The file in which Slurm finds our line.
    pub fn found(&self) -> Option<PathBuf> {
        if our_line(&self.file).is_some() {
            return Some(self.file.clone());
        }
        let snippet = self.snippet();
        (self.includes_snippet() && our_line(&snippet).is_some()).then_some(snippet)
    }

    /// Whether plugstack.conf includes our snippet, which may not be there yet.
    pub fn includes_snippet(&self) -> bool {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        self.delivery == Delivery::Local && includes(&text, &self.file.with_file_name(""), &self.snippet())
    }

    /// Whether pyxis is in the stack, or will be once our include is in it.
    pub fn has_pyxis(&self) -> bool {
        let mut lines = self.lines();
        if !is_foreign(&self.file) {
            lines.extend(self.expand(self.include()));
        }
        lines.iter().any(|line| names(line, PYXIS))
    }

    /// Whether the order of the lines keeps tasks from their MPS, or from reading that they have none.
    pub fn check_pyxis(&self, plugin: &Path) -> Option<CheckLine> {
        let lines = self.lines();
        let pyxis = lines.iter().position(|line| names(line, PYXIS))?;
        let ours = lines.iter().position(|line| is_first(line))?;
        let stack = self.file.display();
        Some(if pyxis < ours {
            Warn(format!(
                "'{stack}': the line of pyxis comes before ours, and tasks are in their containers before they have their MPS; \
                 move it behind: files are taken in the order of their names"
            ))
        } else if lines[pyxis..].iter().any(|line| is_ours(line) && !is_first(line)) {
            Pass(format!(
                "'{stack}': pyxis stands behind our line, and a task whose container hides its MPS does not start"
            ))
        } else {
            Warn(format!(
                "'{stack}': a task whose container hides its MPS runs outside of it without a word: run 'mpsctl slurm enable' again, \
                 or let this line stand behind that of pyxis: {}",
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
    let is_plugin = |file: &str| Path::new(file).file_name().is_some_and(|name| name == plugin);
    words.next().is_some_and(|word| WORDS.contains(&word)) && words.next().is_some_and(is_plugin)
}

pub(super) fn is_ours(line: &str) -> bool {
    names(line, PLUGIN)
}

/// Whether it is our first line, which attaches the tasks.
fn is_first(line: &str) -> bool {
    is_ours(line) && !line.split_whitespace().any(|word| word == LOOK)
}

pub(super) fn second_line(plugin: &Path) -> String {
    format!("{} {} {LOOK}", WORDS[0], plugin.display())
}

pub(super) fn our_line(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find(|line| is_first(line)).map(str::to_owned)
}

/// Whether a file is there that we did not write.
pub(super) fn is_foreign(file: &Path) -> bool {
    match fs::read_to_string(file) {
        Ok(text) => !text.starts_with(TAG),
        Err(error) => error.kind() != ErrorKind::NotFound,
    }
}

/// Whether an `include` of the stack in `base` names `snippet`: by itself, or by a pattern for the last component.
fn includes(text: &str, base: &Path, snippet: &Path) -> bool {
    text.lines().filter_map(pattern).any(|pattern| {
        let path = base.join(pattern);
        path.parent() == snippet.parent() && fits(name_of(&path), name_of(snippet))
    })
}

fn pattern(line: &str) -> Option<&str> {
    let line = line.split('#').next().unwrap_or_default().trim();
    let rest = line.strip_prefix("include")?;
    rest.starts_with([' ', '\t']).then(|| rest.trim())
}

/// The files that fit a pattern in the last component, in the order of their names.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let entries = pattern.parent().map(fs::read_dir).into_iter().flatten().flatten();
    let files = entries.flatten().map(|entry| entry.path());
    let mut fitting: Vec<PathBuf> = files
        .filter(|file| fits(name_of(pattern), name_of(file)))
        .collect();
    fitting.sort();
    fitting
}

fn name_of(path: &Path) -> &str {
    path.file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default()
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
    use super::*;

    #[test]
    fn an_include_is_found_as_slurm_would() {
        let base = Path::new("/etc/slurm/");
        for (text, found) in [
            ("include /etc/slurm/plugstack.conf.d/*.conf", true),
            ("include plugstack.conf.d/*.conf # ours too", true),
            ("optional x.so\ninclude\t/etc/slurm/plugstack.conf.d/*\n", true),
            ("include /etc/slurm/plugstack.conf.d/mpsd.conf", true),
            ("", false),
            ("#include plugstack.conf.d/*.conf", false),
            ("include /etc/other.d/*.conf", false),
            ("include plugstack.conf.d/pyxis.conf", false),
        ] {
            let snippet = base.join("plugstack.conf.d/mpsd.conf");
            assert_eq!(includes(text, base, &snippet), found, "{text}");
        }
    }
}

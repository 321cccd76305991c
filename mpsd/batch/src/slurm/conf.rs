//! Slurm's configuration files: lines of words `Key=value`, and what slurm.conf says of us.

use crate::call::Program;
use crate::host::Host;
use mpsd_core::config::HostList;
use std::path::{Path, PathBuf};
use std::time::Duration;

const MOST: usize = 1 << 20;
const DEEPEST: usize = 4;
const USUAL: [&str; 5] = [
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    FETCHED,
];
/// The copy that slurmd or sackd fetched from the controller (configless).
pub const FETCHED: &str = "/run/slurm/conf/slurm.conf";
/// The default of `UnkillableStepTimeout` (docs/facts/slurm.md#the-end-of-a-step).
pub const UNKILLABLE: Duration = Duration::from_secs(60);

/// Whether a daemon fetched this slurm.conf, and will rewrite it.
pub fn is_fetched(file: &Path) -> bool {
    file.starts_with("/run") && file.ends_with("conf/slurm.conf")
        || file.parent().is_some_and(|dir| dir.ends_with("conf-cache"))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conf {
    pub file: PathBuf,
    pub(super) lines: Vec<Line>,
}

impl Conf {
    pub fn find(named: Option<&Path>, host: &dyn Host) -> Result<Self, String> {
        let usual = || USUAL.iter().map(Path::new).find(|path| path.exists());
        let file = named.or_else(usual).ok_or_else(|| {
            let places = USUAL.join(", ");
            format!("no slurm.conf in any usual place ({places}); name it with --slurm-conf")
        })?;
        let file = file.to_owned();
        let lines = read(&file, host)?.ok_or_else(|| format!("no '{}'", file.display()))?;
        Ok(Self { file, lines })
    }

    pub fn beside(&self, name: &str, host: &dyn Host) -> Result<Vec<Line>, String> {
        read(&self.file.with_file_name(name), host).map(Option::unwrap_or_default)
    }

    pub fn value(&self, key: &str) -> Option<&str> {
        last(&self.lines, key)
    }

    /// Whether the list with commas under `key` has `item`, in any case.
    pub fn lists(&self, key: &str, item: &str) -> bool {
        let mut items = self.value(key).unwrap_or_default().split(',');
        items.any(|one| one.trim().eq_ignore_ascii_case(item))
    }

    pub fn unkillable_step_timeout(&self) -> Duration {
        let set = self.value("UnkillableStepTimeout");
        let set = set.and_then(|text| text.parse().ok());
        set.map_or(UNKILLABLE, Duration::from_secs)
    }

    /// After how long slurmd kills a prolog or an epilog and drains the node, and the key that says
    /// so; `None`: never. The keys for one of both are new in 25.05 (docs/facts/slurm.md#failures).
    pub fn timeout(&self, program: Program) -> Option<(&'static str, Duration)> {
        let own = match program {
            Program::Prologue => "PrologTimeout",
            Program::Epilogue => "EpilogTimeout",
        };
        let mut keys = [own, "PrologEpilogTimeout"].into_iter();
        let (key, text) = keys.find_map(|key| Some((key, self.value(key)?)))?;
        // 0 and the two largest numbers stand for no limit.
        let seconds: u16 = text.parse().ok()?;
        let limit = Duration::from_secs(seconds.into());
        (1..u16::MAX - 1).contains(&seconds).then_some((key, limit))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    file: PathBuf,
    number: usize,
    /// Keys in any case.
    words: Vec<(String, String)>,
}

impl Line {
    /// The line that slurm.conf would have for a node with these words.
    pub fn of_node(conf: &Path, node: &str, of_node: &str) -> Self {
        Self {
            file: conf.to_owned(),
            number: 0,
            words: words(&format!("NodeName={node} {of_node}")),
        }
    }

    pub fn value(&self, key: &str) -> Option<&str> {
        let mut words = self.words.iter();
        words.find_map(|(name, value)| name.eq_ignore_ascii_case(key).then_some(value.as_str()))
    }

    pub fn is(&self, key: &str, value: &str) -> bool {
        let own = self.value(key);
        own.is_some_and(|own| own.eq_ignore_ascii_case(value))
    }

    pub fn is_about(&self, key: &str) -> bool {
        let first = self.words.first();
        first.is_some_and(|(name, _)| name.eq_ignore_ascii_case(key))
    }

    /// Whether it names `node`, or no node at all.
    pub fn is_for(&self, node: &str) -> bool {
        let names = self.value("NodeName");
        names.is_none_or(|list| HostList::has(list, node))
    }

    pub fn place(&self) -> String {
        format!("'{}' line {}", self.file.display(), self.number)
    }
}

pub fn is_on(value: &str) -> bool {
    let words = ["yes", "true", "on", "1", "up"];
    words.iter().any(|word| value.eq_ignore_ascii_case(word))
}

pub fn last<'l>(lines: &'l [Line], key: &str) -> Option<&'l str> {
    lines.iter().rev().find_map(|line| line.value(key))
}

fn read(file: &Path, host: &dyn Host) -> Result<Option<Vec<Line>>, String> {
    collect(file, file.parent().unwrap_or(Path::new("/")), host, DEEPEST)
}

fn collect(
    file: &Path,
    directory: &Path,
    host: &dyn Host,
    depth: usize,
) -> Result<Option<Vec<Line>>, String> {
    let failed = |why: String| format!("cannot read '{}': {why}", file.display());
    let read = host.configuration(file, MOST);
    let Some(bytes) = read.map_err(|e| failed(e.to_string()))? else {
        return Ok(None);
    };
    let mut all = Vec::new();
    for (number, text) in joined(&String::from_utf8_lossy(&bytes)) {
        let (file, words) = (file.to_owned(), words(&text));
        if let Some(path) = included(&text).map(|path| directory.join(path)) {
            let lines = match depth.checked_sub(1) {
                Some(depth) => collect(&path, directory, host, depth)?,
                None => None,
            };
            all.extend(lines.ok_or_else(|| failed(format!("it includes '{}'", path.display())))?);
        } else if !words.is_empty() {
            all.push(Line {
                file,
                number,
                words,
            });
        }
    }
    Ok(Some(all))
}

/// Lines without comments, joined behind a backslash, with their numbers.
fn joined(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        let part = line.strip_suffix('\\').unwrap_or(line);
        match all.last_mut().filter(|_| continues) {
            Some((_, before)) => before.push_str(part),
            None => all.push((number, part.to_owned())),
        }
        continues = part.len() < line.len();
    }
    all
}

fn included(line: &str) -> Option<&str> {
    let (word, path) = line.trim().split_once([' ', '\t'])?;
    let is_one = word.eq_ignore_ascii_case("include") && !path.trim_start().starts_with('=');
    is_one.then(|| path.trim())
}

/// `Key=value Key = "some value"`.
fn words(line: &str) -> Vec<(String, String)> {
    let mut words = Vec::new();
    let mut rest = line;
    while let Some((key, value)) = rest.split_once('=') {
        let key = key.split_whitespace().last().unwrap_or_default();
        let value = value.trim_start();
        let (value, after) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => value.split_at(value.find(char::is_whitespace).unwrap_or(value.len())),
        };
        words.push((key.to_owned(), value.to_owned()));
        rest = after;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TextHost;

    #[test]
    fn keys_in_any_case_and_the_last_one_counts() {
        let text = "PrologFlags=Alloc # PrologFlags=X\nNodeName=n Gres=gpu:1\nprologflags=Contain,NoHold\n";
        let host = TextHost::default().file("/x/slurm.conf", text);
        let conf = Conf::find(Some(Path::new("/x/slurm.conf")), &host).unwrap();
        assert!(conf.lists("PrologFlags", "contain") && !conf.lists("PrologFlags", "Alloc"));
    }

    #[test]
    fn words_and_lines_as_slurm_reads_them() {
        let line = "NodeName=n[1-2] name = gpu File=\"/dev/nvidia[0-1]\" Flags=a=b";
        let read = words(line);
        let read = read.iter().map(|(key, value)| format!("{key}|{value}"));
        let expected = "NodeName|n[1-2] name|gpu File|/dev/nvidia[0-1] Flags|a=b";
        assert_eq!(read.collect::<Vec<_>>().join(" "), expected);
        assert!(words("no words").is_empty());
        let lines = joined("A=1 # B=2\n\nC=3 \\\n D=4\nE=5");
        let expected = [(1, "A=1"), (2, ""), (3, "C=3  D=4"), (5, "E=5")];
        let expected = expected.map(|(number, line)| (number, line.to_owned()));
        assert_eq!(lines, expected);
        assert_eq!(included(" Include  more.conf "), Some("more.conf"));
        assert_eq!(included("Included=x"), None);
    }
}

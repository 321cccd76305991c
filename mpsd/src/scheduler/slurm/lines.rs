//! Slurm's configuration files, as lines of words `Key=value`.

use crate::scheduler::host::Host;
use std::path::{Path, PathBuf};

/// Most that one file is read. Bytes.
const MOST: usize = 1 << 20;
/// Files that include one another at most this deep.
const DEEPEST: usize = 4;

/// One line with words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    file: PathBuf,
    number: usize,
    /// Key and value of each word; keys in any case.
    pub words: Vec<(String, String)>,
}

impl Line {
    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&str> {
        let mut words = self.words.iter();
        let found = words.find(|(name, _)| name.eq_ignore_ascii_case(key));
        found.map(|(_, value)| value.as_str())
    }

    /// Whether the value of a key is this one, in any case.
    pub fn is(&self, key: &str, value: &str) -> bool {
        self.value(key).is_some_and(|own| own.eq_ignore_ascii_case(value))
    }

    /// Whether this is the key of the first word, which says what the line is about.
    pub fn is_about(&self, key: &str) -> bool {
        self.words
            .first()
            .is_some_and(|(name, _)| name.eq_ignore_ascii_case(key))
    }

    /// Where it stands.
    pub fn place(&self) -> String {
        format!("'{}' line {}", self.file.display(), self.number)
    }
}

/// The last value of a key in a file.
pub(super) fn last<'l>(lines: &'l [Line], key: &str) -> Option<&'l str> {
    lines.iter().rev().find_map(|line| line.value(key))
}

/// The lines of a file and of those that it includes; `None`: there is no such file.
///
/// # Errors
/// One line: a file cannot be read, or includes what is not there.
pub(super) fn read(file: &Path, host: &dyn Host) -> Result<Option<Vec<Line>>, String> {
    let directory = file.parent().unwrap_or(Path::new("/"));
    let mut all = Vec::new();
    Ok(collect(file, directory, host, DEEPEST, &mut all)?.then_some(all))
}

fn collect(
    file: &Path,
    directory: &Path,
    host: &dyn Host,
    depth: usize,
    all: &mut Vec<Line>,
) -> Result<bool, String> {
    let failed = |why: String| format!("cannot read '{}': {why}", file.display());
    let Some(bytes) = host
        .configuration(file, MOST)
        .map_err(|e| failed(e.to_string()))?
    else {
        return Ok(false);
    };
    let text = String::from_utf8_lossy(&bytes);
    for (number, text) in joined(&text) {
        if let Some(path) = included(&text) {
            let path = directory.join(path);
            if depth == 0 || !collect(&path, directory, host, depth - 1, all)? {
                return Err(failed(format!("it includes '{}'", path.display())));
            }
            continue;
        }
        let words = words(&text);
        if !words.is_empty() {
            let file = file.to_owned();
            all.push(Line { file, number, words });
        }
    }
    Ok(true)
}

/// Lines without comments, those that end with a backslash put together; each with its first number.
fn joined(text: &str) -> Vec<(usize, String)> {
    let mut all: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        let (part, more) = line.strip_suffix('\\').map_or((line, false), |part| (part, true));
        match all.last_mut().filter(|_| goes_on) {
            Some((_, before)) => before.push_str(part),
            None => all.push((number, part.to_owned())),
        }
        goes_on = more;
    }
    all
}

fn included(line: &str) -> Option<&str> {
    let (word, path) = line.trim().split_once([' ', '\t'])?;
    (word.eq_ignore_ascii_case("include") && !path.trim_start().starts_with('=')).then(|| path.trim())
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
    //! The forms of a line.

    use super::*;

    #[test]
    fn words_as_slurm_reads_them() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            words("NodeName=n[1-2] name = gpu File=\"/dev/nvidia[0-1]\" Flags=a=b"),
            [
                pair("NodeName", "n[1-2]"),
                pair("name", "gpu"),
                pair("File", "/dev/nvidia[0-1]"),
                pair("Flags", "a=b")
            ]
        );
        assert!(words("no words").is_empty());
    }

    #[test]
    fn a_line_that_goes_on_counts_from_its_beginning() {
        let text = "A=1 # B=2\n\nC=3 \\\n D=4\nE=5";
        let lines: Vec<_> = joined(text)
            .into_iter()
            .filter(|(_, line)| !line.is_empty())
            .collect();
        assert_eq!(
            lines,
            [
                (1, "A=1".to_owned()),
                (3, "C=3  D=4".to_owned()),
                (5, "E=5".to_owned())
            ]
        );
        assert_eq!(included(" Include  more.conf "), Some("more.conf"));
        assert_eq!(included("Included=x"), None);
    }
}

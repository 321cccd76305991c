//! As much of slurm.conf and plugstack.conf as our line in the stack depends on.

use std::fs;
use std::path::{Path, PathBuf};

/// Where packages and builds keep slurm.conf, most usual first; the last is a copy that slurmd fetched (configless).
const USUAL: [&str; 5] = [
    "/etc/slurm/slurm.conf",
    "/etc/slurm-llnl/slurm.conf",
    "/usr/local/etc/slurm.conf",
    "/opt/slurm/etc/slurm.conf",
    CACHED,
];
const CACHED: &str = "/run/slurm/conf/slurm.conf";
/// Files that include one another at most this deep.
const DEEPEST: usize = 4;

/// A slurm.conf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Conf {
    /// The file.
    pub file: PathBuf,
    /// Its words `key=value`, those of included files too, in order.
    words: Vec<(String, String)>,
}

impl Conf {
    /// The file that is named, else the first usual one.
    ///
    /// # Errors
    /// One line: there is none, or it cannot be read.
    pub fn find(named: Option<&Path>) -> Result<Self, String> {
        let usual = || USUAL.iter().map(Path::new).find(|path| path.exists());
        let file = named.or_else(usual).ok_or_else(|| {
            format!(
                "no slurm.conf in any usual place ({}); name it with --slurm-conf",
                USUAL.join(", ")
            )
        })?;
        let text = fs::read_to_string(file).map_err(|e| format!("cannot read '{}': {e}", file.display()))?;
        let mut words = Vec::new();
        collect(&text, file, DEEPEST, &mut words);
        Ok(Self {
            file: file.to_owned(),
            words,
        })
    }

    /// slurmd writes this copy anew.
    pub fn is_cached(&self) -> bool {
        self.file == Path::new(CACHED)
    }

    /// The last value of a key, which Slurm reads in any case.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.words
            .iter()
            .rev()
            .find(|(name, _)| name.eq_ignore_ascii_case(key))
            .map(|(_, value)| value.as_str())
    }

    /// Whether the list with commas under `key` has `item`, in any case.
    pub fn lists(&self, key: &str, item: &str) -> bool {
        self.value(key)
            .is_some_and(|list| list.split(',').any(|one| one.trim().eq_ignore_ascii_case(item)))
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

    /// Whether plugstack.conf takes our line in.
    pub fn includes_snippet(&self) -> bool {
        let text = fs::read_to_string(self.stack()).unwrap_or_default();
        let base = self.stack().with_file_name("");
        includes(&text, &base, &self.snippet())
    }
}

/// Whether an `include` of the stack in `base` names `snippet`: by itself, or by a pattern for the last component,
/// which is all that anybody writes.
fn includes(text: &str, base: &Path, snippet: &Path) -> bool {
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim());
    let patterns = lines
        .filter_map(|line| line.strip_prefix("include"))
        .filter(|rest| rest.starts_with([' ', '\t']));
    patterns.map(str::trim).any(|pattern| {
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

/// Whether a pattern with at most one `*` fits `name`.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((head, tail)) => {
            name.len() >= head.len() + tail.len() && name.starts_with(head) && name.ends_with(tail)
        }
    }
}

fn collect(text: &str, file: &Path, depth: usize, words: &mut Vec<(String, String)>) {
    let directory = file.parent().unwrap_or(Path::new("/"));
    for line in text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default().trim())
    {
        let mut parts = line.split_whitespace();
        if let (Some(first), Some(path)) = (parts.next(), parts.next())
            && first.eq_ignore_ascii_case("include")
            && depth > 0
        {
            let path = directory.join(path);
            let text = fs::read_to_string(&path).unwrap_or_default();
            collect(&text, &path, depth - 1, words);
            continue;
        }
        let pairs = line.split_whitespace().filter_map(|word| word.split_once('='));
        words.extend(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_any_case_and_the_last_one_counts() {
        let mut words = Vec::new();
        let text = "PrologFlags=Alloc # PrologFlags=X\nNodeName=n Gres=gpu:1\nprologflags=Contain,NoHold\n";
        collect(text, Path::new("/x/slurm.conf"), 1, &mut words);
        let conf = Conf {
            file: "/x/slurm.conf".into(),
            words,
        };
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

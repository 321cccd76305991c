//! The words after the plugin's path in plugstack.conf: `key=value`, strict.

use mpsd_core::text::one_line;
use std::path::PathBuf;

/// Who may have a daemon of his own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// Jobs that ask when they are submitted, and steps that ask in a job that did not.
    #[default]
    Both,
    /// Jobs only.
    Job,
    /// Steps only. With the variant of the plugin that has no job_prolog, Slurm starts no process for us.
    Step,
}

/// What the line in plugstack.conf says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments {
    /// `config=`: `mpsd.toml`.
    pub config: PathBuf,
    /// `prologue=`: `mps-prologue`.
    pub prologue: PathBuf,
    /// `epilogue=`: `mps-epilogue`.
    pub epilogue: PathBuf,
    /// `scope=`: `both`, `job` or `step`.
    pub scope: Scope,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            config: "/etc/mpsd/mpsd.toml".into(),
            prologue: "/usr/libexec/mpsd/mps-prologue".into(),
            epilogue: "/usr/libexec/mpsd/mps-epilogue".into(),
            scope: Scope::Both,
        }
    }
}

impl Arguments {
    /// Reads the words.
    ///
    /// # Errors
    /// One line that names the word, the reason and what is allowed.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut arguments = Self::default();
        let mut seen: Vec<&str> = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            if seen.contains(&key) {
                return Err(wrong(word, "the key is there twice"));
            }
            seen.push(key);
            arguments.take(word, key, value)?;
        }
        Ok(arguments)
    }

    fn take(&mut self, word: &str, key: &str, value: &str) -> Result<(), String> {
        let file = || {
            let path = PathBuf::from(value);
            if path.is_absolute() {
                Ok(path)
            } else {
                Err(wrong(word, "the path is not absolute"))
            }
        };
        match key {
            "config" => self.config = file()?,
            "prologue" => self.prologue = file()?,
            "epilogue" => self.epilogue = file()?,
            "scope" => {
                self.scope = match value {
                    "both" => Scope::Both,
                    "job" => Scope::Job,
                    "step" => Scope::Step,
                    _ => return Err(wrong(word, "unknown scope")),
                }
            }
            _ => return Err(wrong(word, "unknown key")),
        }
        Ok(())
    }
}

fn wrong(word: &str, why: &str) -> String {
    let word = one_line(word, 80);
    format!(
        "plugstack.conf: '{word}': {why}; allowed: config=FILE prologue=FILE epilogue=FILE scope=both|job|step"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        Arguments::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn an_empty_line_means_the_installed_paths() {
        assert_eq!(parse("").unwrap(), Arguments::default());
    }

    #[test]
    fn each_key_is_taken() {
        let arguments = parse("scope=step config=/c prologue=/p epilogue=/e").unwrap();
        assert_eq!(
            arguments,
            Arguments {
                config: "/c".into(),
                prologue: "/p".into(),
                epilogue: "/e".into(),
                scope: Scope::Step
            }
        );
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for line in [
            "conf=/c",
            "scope=all",
            "config=etc/x",
            "config",
            "scope=job scope=step",
            "/etc/mpsd.toml",
        ] {
            let error = parse(line).unwrap_err();
            let word = line.rsplit(' ').next().unwrap();
            assert!(error.contains(&format!("'{word}'")), "{error}");
            assert!(error.contains("scope=both|job|step"), "{error}");
        }
    }
}

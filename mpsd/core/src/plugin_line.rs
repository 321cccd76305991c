//! The words after the plugin's path in plugstack.conf: `key=value`, strict.

use crate::config::DEFAULT_PATH;
use crate::text::one_line;
use std::path::{Path, PathBuf};

pub const PROGRAMS: &str = "/usr/libexec/mpsd";

const ALLOWED: &str = "config=FILE prologue=FILE epilogue=FILE";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arguments {
    pub config: PathBuf,
    pub prologue: PathBuf,
    pub epilogue: PathBuf,
}

impl Default for Arguments {
    fn default() -> Self {
        Self {
            config: DEFAULT_PATH.into(),
            prologue: Path::new(PROGRAMS).join("mps-prologue"),
            epilogue: Path::new(PROGRAMS).join("mps-epilogue"),
        }
    }
}

impl Arguments {
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let mut arguments = Self::default();
        let mut keys: Vec<&str> = Vec::new();
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            let path = match key {
                "config" => Some(&mut arguments.config),
                "prologue" => Some(&mut arguments.prologue),
                "epilogue" => Some(&mut arguments.epilogue),
                _ => None,
            };
            let why = match path {
                _ if keys.contains(&key) => "the key is there twice",
                None => "unknown key",
                Some(_) if !value.starts_with('/') => "the path is not absolute",
                Some(path) => {
                    *path = value.into();
                    keys.push(key);
                    continue;
                }
            };
            let word = one_line(word, 80);
            return Err(format!(
                "plugstack.conf: '{word}': {why}; allowed: {ALLOWED}"
            ));
        }
        Ok(arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, String> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        Arguments::parse(&words)
    }

    #[test]
    fn each_key_is_taken_and_what_is_not_understood_is_named() {
        assert_eq!(parse("").unwrap(), Arguments::default());
        let arguments = parse("config=/c prologue=/p epilogue=/e").unwrap();
        let expected = Arguments {
            config: "/c".into(),
            prologue: "/p".into(),
            epilogue: "/e".into(),
        };
        assert_eq!(arguments, expected);
        let lines = "conf=/c scope=job config=etc/x config epilogue=/a,epilogue=/b /etc/mpsd.toml";
        for line in lines.split(' ').map(|line| line.replace(',', " ")) {
            let error = parse(&line).unwrap_err();
            let word = line.rsplit(' ').next().unwrap();
            assert!(error.contains(&format!("'{word}'")), "{error}");
            assert!(error.contains("epilogue=FILE"), "{error}");
        }
    }
}

//! Programs under MPS: what each does there, what it needs, and what we do.

use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct KnownProgram {
    pub name: String,
    #[serde(skip_serializing)]
    pub words: Vec<String>,
    pub version: String,
    pub under: Verdict,
    pub seen: String,
    pub needs: String,
    pub ours: String,
    /// The variable that a task's launcher sets.
    pub variable: Option<String>,
    pub source: String,
    pub ran: String,
    /// Its run, a file of `tests/hardware/results`.
    pub result: Option<String>,
}

/// How a program fares with several ranks on a GPU under MPS, against the same without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
pub enum Verdict {
    Works,
    Gains,
    Loses,
    Refused,
    Limited,
    /// Only read of.
    Untried,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Programs {
    /// The runs with the figures of `docs/programs.md`, files of `tests/hardware/results`.
    pub results: Vec<String>,
    pub program: Vec<KnownProgram>,
}

pub static PROGRAMS: LazyLock<Programs> =
    LazyLock::new(|| toml::from_str(include_str!("programs.toml")).unwrap_or_default());

impl Programs {
    pub fn named(&self, word: &str) -> Option<&KnownProgram> {
        let word = word.to_ascii_lowercase();
        let is_it = |program: &&KnownProgram| {
            program.words.contains(&word) || program.name.eq_ignore_ascii_case(&word)
        };
        self.program.iter().find(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::JAX_DEVICES;

    #[test]
    fn each_row_has_its_source_and_its_run() {
        let all = &PROGRAMS.program;
        assert!(all.len() > 20, "the table cannot be read");
        let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        for program in all {
            let name = &program.name;
            let (file, section) = program.source.split_once('#').unwrap();
            let text = std::fs::read_to_string(format!("{repository}/docs/facts/{file}")).unwrap();
            let mut titles = text.lines().filter_map(|line| line.strip_prefix("## "));
            let is_there = titles.any(|title| title.to_lowercase().replace(' ', "-") == section);
            assert!(is_there, "{name}: {section}");
            if let Some(result) = &program.result {
                let file = format!("{repository}/tests/hardware/results/{result}");
                assert!(std::fs::exists(&file).unwrap(), "{name}: {file}");
                assert!(!program.ran.is_empty(), "{name}: a result, and no run");
            }
            assert!(program.ran.is_empty() || program.under != Verdict::Untried);
            for word in &program.words {
                // No word is two programs.
                assert_eq!(PROGRAMS.named(word).unwrap().name, *name, "{word}");
            }
        }
    }

    #[test]
    fn a_variable_is_set_only_if_its_program_ran_on_a_gpu() {
        let mut ran = PROGRAMS.program.iter().filter(|row| row.result.is_some());
        assert!(ran.any(|row| row.variable.as_deref() == Some(JAX_DEVICES)));
    }
}

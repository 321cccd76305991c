//! pyxis in the same plugin stack: our line before it, and our second one behind it (docs/containers.md#enroot-and-pyxis).

use super::conf::Conf;
use super::line::{LOOK, TAG, WORDS, is_look, is_ours};
use crate::scheduler::setup::CheckLine::{self, Pass, Warn};
use std::path::{Path, PathBuf};

/// Its plugin's file.
const PYXIS: &str = "spank_pyxis.so";

/// The file of our second line: beside the first one's, and the last of its directory.
pub(super) fn snippet(conf: &Conf) -> PathBuf {
    conf.snippet().with_file_name("zz-mpsd.conf")
}

/// What stands in it.
pub(super) fn text(plugin: &Path) -> String {
    format!("{TAG}\n{}\n", line(plugin))
}

fn line(plugin: &Path) -> String {
    format!("{} {} {LOOK}", WORDS[0], plugin.display())
}

/// Whether the stack has it.
pub(super) fn is_there(conf: &Conf) -> bool {
    conf.stack_lines().iter().any(|line| is_pyxis(line))
}

fn is_pyxis(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let names = |file: &str| Path::new(file).file_name().is_some_and(|name| name == PYXIS);
    words.next().is_some_and(|word| WORDS.contains(&word)) && words.next().is_some_and(names)
}

/// What of the order of the lines keeps tasks from their MPS, or from reading that they have none.
pub(super) fn order(conf: &Conf, plugin: &Path) -> Option<CheckLine> {
    let lines = conf.stack_lines();
    let pyxis = lines.iter().position(|line| is_pyxis(line))?;
    let ours = lines.iter().position(|line| is_ours(line) && !is_look(line))?;
    let stack = conf.stack();
    let stack = stack.display();
    Some(if pyxis < ours {
        Warn(format!(
            "'{stack}': the line of pyxis comes before ours, and tasks are in their containers before they have their MPS; \
             move it behind: files are taken in the order of their names"
        ))
    } else if lines[pyxis..].iter().any(|line| is_look(line)) {
        Pass(format!(
            "'{stack}': pyxis stands behind our line, and a task whose container hides its MPS does not start"
        ))
    } else {
        Warn(format!(
            "'{stack}': a task whose container hides its MPS runs outside of it without a word: run 'mpsctl slurm enable' again, \
             or let this line stand behind that of pyxis: {}",
            line(plugin)
        ))
    })
}

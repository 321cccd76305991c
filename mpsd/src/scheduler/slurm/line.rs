//! Our files in a Slurm's plugin stack, and how they are known.

use std::fs;
use std::path::Path;

/// Where the plugin looks for its programs and its configuration by itself (spank: `arguments`).
pub(super) const USUAL_PROGRAMS: &str = "/usr/libexec/mpsd";
/// The plugin's file.
pub(super) const PLUGIN: &str = "spank_mps.so";
/// The first line of our files.
pub(super) const TAG: &str = "# mpsd: written by 'mpsctl slurm enable', removed by 'mpsctl slurm disable'";
/// The first word of a line of the stack.
pub(super) const WORDS: [&str; 2] = ["optional", "required"];

/// Whether a line of a stack names our plugin.
pub(super) fn is_ours(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let names = |file: &str| Path::new(file).file_name().is_some_and(|name| name == PLUGIN);
    words.next().is_some_and(|word| WORDS.contains(&word)) && words.next().is_some_and(names)
}

/// The word that makes a line of ours the second one, behind pyxis' (spank: `container`).
pub(super) const LOOK: &str = "look=container";

/// Whether it is the second one.
pub(super) fn is_look(line: &str) -> bool {
    is_ours(line) && line.split_whitespace().any(|word| word == LOOK)
}

/// Our line in `file`, if there is one: the first, which attaches the tasks.
pub(super) fn of(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let mut lines = text.lines();
    lines
        .find(|line| is_ours(line) && !is_look(line))
        .map(str::to_owned)
}

/// Whether a file is there that we did not write.
pub(super) fn is_foreign(file: &Path) -> bool {
    match fs::read_to_string(file) {
        Ok(text) => !text.starts_with(TAG),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

//! The packages, as an administrator meets them: what is in them, whether they install, what they change, what they leave.
//!
//! They are made once for all tests by `cargo xtask dist`. Installing happens in a copy of this machine's system that is gone
//! with the test: an overlay in a mount namespace of its own.

mod contents;
mod install;
mod root;
mod slurm;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The packages' names.
const NAMES: [&str; 3] = ["mpsd", "mpsd-pbs", "mpsd-slurm"];

/// The directory with the packages, made by the first who asks.
fn packages() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
        let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
        command.arg("dist").arg("--out").arg(&out);
        let output = command.output().unwrap();
        assert!(output.status.success(), "cargo xtask dist: {}", said(&output));
        out
    })
}

/// The file of package `name` that ends in `extension`.
fn package(name: &str, extension: &str) -> PathBuf {
    let listed = std::fs::read_dir(packages())
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut found = listed.filter(|path| {
        let file = path.file_name().unwrap().to_str().unwrap();
        let rest = file.strip_prefix(name).unwrap_or("?");
        file.ends_with(extension)
            && rest.starts_with(['_', '-'])
            && rest[1..].starts_with(|c: char| c.is_ascii_digit())
    });
    let one = found
        .next()
        .unwrap_or_else(|| panic!("no package {name}*{extension}"));
    assert!(found.next().is_none(), "two packages {name}*{extension}");
    one
}

/// What a command wrote to both of its streams, and how it ended.
fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!(
        "{}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    )
}

/// Runs a command that must succeed; its standard output.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

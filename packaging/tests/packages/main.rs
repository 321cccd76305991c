//! The packages, as an administrator meets them: what is in them, whether they install, what they change, what they leave.
//!
//! They are made once for all tests by `cargo xtask dist`. Installing happens in a copy of this machine's system, or of a
//! Debian made from nothing, that is gone with the test: an overlay in a mount namespace of its own.

mod admin;
mod ansible;
mod arm64;
mod cluster;
mod containers;
mod contents;
mod debian;
mod guide;
mod install;
mod machine;
mod monitoring;
mod repository;
mod root;
mod slurm;
mod stopwatch;
mod units;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The packages' names.
const NAMES: [&str; 3] = ["mpsd", "mpsd-pbs", "mpsd-slurm"];

/// The directory with the packages, made by the first who asks.
fn packages() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| dist("packages", &[]))
}

/// `cargo xtask dist WORDS` into a directory of this name.
fn dist(name: &str, words: &[&str]) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("dist").arg("--out").arg(&out).args(words);
    let output = command.output().unwrap();
    assert!(output.status.success(), "cargo xtask dist: {}", said(&output));
    out
}

/// The file of package `name` that ends in `extension`.
fn package(name: &str, extension: &str) -> PathBuf {
    find(packages(), name, extension)
}

/// The release before, by its number: what is in the packages is this one's.
const BEFORE: &str = "0.1.0";

/// The same package under that number.
fn older(name: &str, extension: &str) -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    packages();
    find(
        MADE.get_or_init(|| dist("older", &["--as", BEFORE])),
        name,
        extension,
    )
}

fn find(dir: &Path, name: &str, extension: &str) -> PathBuf {
    let listed = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
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

/// Says so that the runner counts it: past the test program's capture, which shows nothing of a test that passes.
fn skip(what: &str, why: &str) {
    let line = format!("\nskipped: {what}: {}\n", why.replace('\n', " "));
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

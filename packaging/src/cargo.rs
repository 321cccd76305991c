//! Cargo itself, and the programs it built.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::command::{self, works, wrote};
use crate::files::is_a;

/// The workspace's root.
pub fn root() -> Result<PathBuf> {
    // Asks cargo at run time: several checkouts may share the target directory, and so this
    // program.
    let own = std::env::var_os("CARGO_MANIFEST_DIR");
    let own = own.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = Path::new(&own).parent();
    let root = root.context("the xtask crate has no parent directory")?;
    Ok(root.to_owned())
}

/// A cargo command with nothing to read.
pub fn words(line: &str) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

pub fn rustc(words: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.args(words).stdin(Stdio::null());
    command
}

/// A cargo command of another toolchain; `None`: rustup does not have it.
pub fn by_toolchain(name: &str, words: &str) -> Option<Command> {
    let which = format!("which --toolchain {name} cargo");
    let there = works(&mut command::command("rustup", &which));
    there.then(|| command::command("rustup", &format!("run {name} cargo {words}")))
}

pub fn has_target(target: &str) -> bool {
    let words = ["--print", "target-libdir", "--target", target];
    let library = wrote(&mut rustc(&words));
    library.is_ok_and(|path| Path::new(path.trim()).is_dir())
}

pub fn build(line: &str) -> Result<()> {
    let status = words(line).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("'cargo {line}' failed ({status})");
    }
    Ok(())
}

pub fn target_directory() -> Result<PathBuf> {
    let text = wrote(&mut words("metadata --no-deps --format-version=1"))?;
    let metadata: Value = serde_json::from_str(&text).context("'cargo metadata' gave no JSON")?;
    let target = metadata["target_directory"].as_str();
    Ok(target.context("no target directory")?.into())
}

/// Runs cargo. Returns the programs, tests and shared libraries that it built, by target and, for
/// libraries, file name.
pub fn built(line: &str) -> Result<BTreeMap<String, PathBuf>> {
    let mut command = words(line);
    command.arg("--message-format=json-render-diagnostics");
    command.stderr(Stdio::inherit());
    let mut built = BTreeMap::new();
    for line in wrote(&mut command)?.lines() {
        let message: Value = serde_json::from_str(line).context("cargo's message")?;
        let files = message["filenames"].as_array().into_iter().flatten();
        let files = files.filter_map(|file| Path::new(file.as_str()?).into());
        for library in files.filter(|file| is_a(file, "so")) {
            let name = library.file_name().unwrap_or_default();
            built.insert(name.to_string_lossy().into_owned(), library.to_owned());
        }
        if let Some(program) = message["executable"].as_str() {
            let name = message["target"]["name"].as_str().unwrap_or_default();
            built.insert(name.to_owned(), program.into());
        }
    }
    Ok(built)
}

/// Turns this process into a program of the build, so that signals reach it directly.
pub fn become_program(path: &str, arguments: &[String]) -> Result<ExitCode> {
    let program = target_directory()?.join(path);
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run '{}'", program.display()))
}

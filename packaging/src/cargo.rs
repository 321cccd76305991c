//! Cargo itself, and the programs it built.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// The workspace's root.
pub fn root() -> Result<PathBuf> {
    // As cargo says now: the program may stand in a target directory that several checkouts share.
    let own = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    Ok(own
        .parent()
        .context("the xtask crate has no parent directory")?
        .to_owned())
}

/// A cargo command with nothing to read.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// The same by another toolchain; none where rustup does not have it.
pub fn by_toolchain(name: &str, arguments: &[&str]) -> Option<Command> {
    let rustup = |words: &[&str]| {
        let mut command = Command::new("rustup");
        command.args(words).stdin(Stdio::null());
        command
    };
    let there = rustup(&["which", "--toolchain", name, "cargo"]).output();
    there.is_ok_and(|output| output.status.success()).then(|| {
        let mut command = rustup(&["run", name, "cargo"]);
        command.args(arguments);
        command
    })
}

/// The oldest Rust that Cargo.toml promises to build with.
pub fn oldest_rust() -> Result<String> {
    let metadata = metadata()?;
    let own = metadata["packages"]
        .as_array()
        .and_then(|all| all.first()?["rust_version"].as_str());
    Ok(own.context("Cargo.toml names no rust-version")?.to_owned())
}

/// Whether the standard library for `target` is installed.
pub fn has_target(target: &str) -> bool {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let output = command
        .args(["--print", "target-libdir", "--target", target])
        .stdin(Stdio::null())
        .output();
    output.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// Whether this command of cargo's works.
pub fn is_there(arguments: &[&str]) -> bool {
    command(arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Builds with cargo's own progress on the terminal.
pub fn build(arguments: &[&str]) -> Result<()> {
    let status = command(arguments).status().context("cannot start cargo")?;
    if !status.success() {
        bail!("'cargo {}' failed ({status})", arguments.join(" "));
    }
    Ok(())
}

/// `cargo metadata` of the workspace, dependencies left out.
pub fn metadata() -> Result<Value> {
    let output = command(&["metadata", "--no-deps", "--format-version=1"])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("'cargo metadata' failed ({})", output.status);
    }
    serde_json::from_slice(&output.stdout).context("'cargo metadata' gave no JSON")
}

/// Cargo's target directory.
pub fn target_directory() -> Result<PathBuf> {
    let metadata = metadata()?;
    let target = metadata["target_directory"]
        .as_str()
        .context("no target directory")?;
    Ok(target.into())
}

/// Turns this process into a program of the build, so that a signal reaches it and nothing stands between. It lies in the
/// profile's directory: `release` for the benchmark, `debug` else.
pub fn become_program(name: &str, arguments: &[&str]) -> Result<ExitCode> {
    let target = target_directory()?;
    let profile = if name.starts_with("bench") {
        "release"
    } else {
        "debug"
    };
    let program = target.join(profile).join(name);
    let error = Command::new(&program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run '{}'", program.display()))
}

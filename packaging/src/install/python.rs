//! Programs from Python's package index, each set in a virtual environment of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::packages;
use crate::cargo::target_directory;
use crate::command::quietly;
use crate::progress::Progress;

/// The directory with the programs of `wanted`, in the environment `name` below the target directory; made when it is not there,
/// or was made of others. They are lines as pip's requirements files have them: names with versions and the hashes of their wheels, without
/// which pip takes nothing.
pub fn environment(name: &str, wanted: &[&str]) -> Result<PathBuf> {
    let home = target_directory()?.join("tools").join(name);
    let (bin, note, list) = (home.join("bin"), home.join("installed"), home.join("wanted"));
    let all = wanted.join("\n");
    if std::fs::read_to_string(&note).is_ok_and(|text| text == all) {
        return Ok(bin);
    }
    let progress = Progress::start(&format!("installing {name}"));
    venv()?;
    quietly(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
    let write = |file: &Path| {
        std::fs::write(file, &all).with_context(|| format!("cannot write '{}'", file.display()))
    };
    write(&list)?;
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--only-binary=:all:",
        "--require-hashes",
        "--requirement",
    ];
    quietly(Command::new(bin.join("python")).args(pip).arg(&list))?;
    // Last: an environment that was not finished is made again.
    write(&note)?;
    progress.end("done");
    Ok(bin)
}

/// `PATH` with `bin` before all: cargo finds its verbs there.
pub fn path(bin: PathBuf) -> Result<OsString> {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(bin).chain(std::env::split_paths(&rest));
    std::env::join_paths(all).context("PATH cannot be extended")
}

/// Python with `venv`, which Debian packs by itself.
fn venv() -> Result<()> {
    let there = Command::new("python3")
        .args(["-c", "import ensurepip, venv"])
        .output();
    if there.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    packages(&["python3-venv"], &["python3"])
}

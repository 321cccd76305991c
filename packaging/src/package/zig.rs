//! Zig, as the linker against an old C library; installed when it is missing.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cargo::target_directory;
use crate::command::quietly;
use crate::install;
use crate::progress::Progress;

/// From Python's package index, where Zig is a package.
const ZIG: [&str; 2] = ["cargo-zigbuild==0.24.0", "ziglang==0.17.0"];

/// Where cargo-zigbuild and Zig are.
#[derive(Debug)]
pub struct Zig {
    bin: PathBuf,
}

impl Zig {
    /// The two in a virtual environment of our own in the target directory; made when it is not there.
    pub fn find_or_install() -> Result<Zig> {
        let home = target_directory()?.join("tools").join("zig");
        let zig = Zig {
            bin: home.join("bin"),
        };
        if zig.works() {
            return Ok(zig);
        }
        let progress = Progress::start("installing cargo-zigbuild and Zig");
        python()?;
        quietly(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        quietly(Command::new(zig.bin.join("python")).args(pip).args(ZIG))?;
        if !zig.works() {
            bail!(
                "cargo-zigbuild was installed into '{}' and does not start",
                home.display()
            );
        }
        progress.end("done");
        Ok(zig)
    }

    fn works(&self) -> bool {
        let version = Command::new(self.bin.join("cargo-zigbuild"))
            .arg("--version")
            .output();
        version.is_ok_and(|output| output.status.success())
    }

    /// `PATH` with the two in it: cargo finds its verbs there.
    pub fn path(&self) -> Result<OsString> {
        let rest = std::env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(self.bin.clone()).chain(std::env::split_paths(&rest));
        std::env::join_paths(all).context("PATH cannot be extended")
    }
}

/// Python with `venv`, which Debian packs by itself.
fn python() -> Result<()> {
    let there = Command::new("python3")
        .args(["-c", "import ensurepip, venv"])
        .output();
    if there.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    install::packages(&["python3-venv"], &["python3"])
}

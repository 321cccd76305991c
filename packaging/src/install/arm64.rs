//! A Debian for arm64 and Debian's qemu, which runs its programs here: files below the target directory. Nothing is installed but
//! mmdebstrap, and nothing of the other machine runs while the files are laid out.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::{packages, program};
use crate::cargo::target_directory;
use crate::command::quietly;
use crate::progress::Progress;

/// What installs the packages, what a maintainer's script calls, perl to load the plugin, and the emulator, which is for this machine
/// and needs no library.
const INCLUDED: &str =
    "dpkg,rpm,perl-base,coreutils,dash,sed,grep,findutils,diffutils,tar,gzip,libc-bin,qemu-user-static:amd64";
/// The release, and the machines that its packages are for: the first one is its own.
const SUITE: [&str; 2] = ["--architectures=arm64,amd64", "bookworm"];
/// The emulator in it.
pub const EMULATOR: &str = "usr/bin/qemu-aarch64-static";

/// The directory with the system; made when it is not there.
///
/// # Errors
/// No such tool, or no such package, for this machine; no network.
pub fn system() -> Result<PathBuf> {
    let place = target_directory()?.join("tmp/debian-arm64");
    let (root, note) = (place.join("root"), place.join("included"));
    if fs::read_to_string(&note).is_ok_and(|text| text == INCLUDED) {
        return Ok(root);
    }
    if !cfg!(target_arch = "x86_64") {
        bail!("the emulator is taken for x86_64 machines, which this is not");
    }
    let progress = Progress::start("making a Debian for arm64");
    program("/usr/bin/mmdebstrap", "mmdebstrap", "mmdebstrap")?;
    if fs::exists("/usr/bin/apt-get")? && !fs::exists("/usr/share/keyrings/debian-archive-keyring.gpg")? {
        packages(&["debian-archive-keyring"], &[])?;
    }
    if place.exists() {
        fs::remove_dir_all(&place).with_context(|| format!("cannot remove '{}'", place.display()))?;
    }
    fs::create_dir_all(&place)?;
    let mut make = Command::new("/usr/bin/mmdebstrap");
    make.args([
        "--quiet",
        "--variant=extract",
        "--mode=root",
        "--format=directory",
    ]);
    make.args(
        ["share/doc", "share/man", "share/locale"]
            .map(|part| format!("--dpkgopt=path-exclude=/usr/{part}/*")),
    );
    make.arg(format!("--include={INCLUDED}")).args(SUITE).arg(&root);
    quietly(make.env("LC_ALL", "C"))?;
    for dir in ["proc", "root", "run"] {
        fs::create_dir_all(root.join(dir))?;
    }
    // Last: a system that was not finished is made again.
    fs::write(note, INCLUDED)?;
    progress.end("done");
    Ok(root)
}

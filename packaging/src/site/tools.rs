//! mkdocs and mandoc, installed when they are missing.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::install::{self, python};

/// It, whose version has the site's looks with it, and what it needs.
const MKDOCS: &str = include_str!("../../python/mkdocs.txt");

/// The program mkdocs, in a virtual environment of its own in the target directory.
pub fn mkdocs() -> Result<PathBuf> {
    Ok(python::environment("mkdocs", &[MKDOCS])?.join("mkdocs"))
}

/// mandoc, from the system's package manager.
pub fn mandoc() -> Result<()> {
    install::program("/usr/bin/mandoc", "mandoc", "mandoc")
}

/// The command that turns a man page into a piece of HTML.
pub fn to_html() -> Command {
    let mut command = Command::new("/usr/bin/mandoc");
    command.args(["-T", "html", "-O", "fragment"]);
    command
}

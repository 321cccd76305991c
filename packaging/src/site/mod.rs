//! `cargo xtask docs`: a site of the repository's pages and of the man pages; a link of it that leads nowhere is an error.
//!
//! The pages are laid out as in the repository, so that their links hold in both places. mkdocs makes the site, because it comes from
//! Python's package index within seconds, as Zig does; mandoc turns the man pages into HTML.

mod links;
mod pages;
mod tools;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cargo;
use crate::command::quietly;

/// `docs`'s options.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where the site goes; emptied first
    #[arg(long, value_name = "DIR", default_value = "target/site")]
    pub out: PathBuf,
}

impl Options {
    /// The site in `dir`.
    pub fn into_dir(dir: &str) -> Options {
        Options { out: dir.into() }
    }
}

/// Installs what makes the site, where it is missing.
pub fn prepare() -> Result<()> {
    tools::mkdocs().map(|_| ())?;
    tools::mandoc()
}

/// Makes the site and follows its links.
pub fn run(options: &Options) -> Result<()> {
    let mkdocs = tools::mkdocs()?;
    tools::mandoc()?;
    let root = cargo::root()?;
    let work = cargo::target_directory()?.join("docs");
    if work.exists() {
        fs::remove_dir_all(&work).with_context(|| format!("cannot empty '{}'", work.display()))?;
    }
    let manual = work.join("manual");
    fs::create_dir_all(&manual).with_context(|| format!("cannot make '{}'", manual.display()))?;
    cargo::build(&[
        "run",
        "--locked",
        "--package",
        "manual",
        "--",
        &manual.display().to_string(),
    ])?;
    pages::lay_out(&root, &manual.join("man"), &work.join("pages"))?;
    let settings = work.join("mkdocs.yml");
    fs::copy(root.join("docs/mkdocs.yml"), &settings).context("cannot copy 'docs/mkdocs.yml'")?;
    let out = std::path::absolute(&options.out)?;
    let mut command = Command::new(mkdocs);
    // Without --quiet, with which --strict counts no warning.
    command.args(["build", "--strict", "--config-file"]);
    quietly(command.arg(settings).arg("--site-dir").arg(&out))?;
    let followed = links::follow(&out)?;
    println!(
        "{}: {followed} links lead somewhere",
        out.join("index.html").display()
    );
    Ok(())
}

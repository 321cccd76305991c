//! Writes the man pages and the completions: OPTIONS from the same definitions as `--help`, the keys of mpsd.toml from the
//! shipped file's own comments, the prose from `packaging/man`.
//!
//! `manual DIR` makes `DIR/man/NAME.SECTION` and `DIR/completions/{bash,zsh,fish}/…`. A crate of its own, so that `cargo
//! xtask` itself is built without the suite.

mod pages;
mod programs;
mod settings;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap_complete::Shell;

fn main() -> Result<()> {
    let dir = std::env::args_os().nth(1).context("usage: manual DIR")?;
    let dir = Path::new(&dir);
    let man = dir.join("man");
    fs::create_dir_all(&man).with_context(|| format!("cannot make '{}'", man.display()))?;
    for (name, text) in pages::all()? {
        let path = man.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write '{}'", path.display()))?;
    }
    completions(&dir.join("completions"))
}

fn completions(dir: &Path) -> Result<()> {
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let into = dir.join(shell.to_string());
        fs::create_dir_all(&into).with_context(|| format!("cannot make '{}'", into.display()))?;
        for program in programs::all() {
            let path = into.join(programs::completion_name(shell, program.name));
            fs::write(&path, programs::completion(shell, &program))
                .with_context(|| format!("cannot write '{}'", path.display()))?;
        }
    }
    Ok(())
}

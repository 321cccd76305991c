//! Writes the man pages and the completions: OPTIONS from the same definitions as `--help`, the keys of mpsd.toml from the
//! shipped file's own comments, the prose from `packaging/man`.
//!
//! `manual --texts REPOSITORY` writes what the tables of options and keys say into the repository's own texts.
//!
//! `manual DIR` makes `DIR/man/NAME.SECTION` and `DIR/completions/{bash,zsh,fish}/…`. A crate of its own, so that `cargo
//! xtask` itself is built without the suite.

mod errors;
mod options;
mod pages;
mod programs;
mod settings;

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use clap_complete::Shell;

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let dir = arguments
        .next()
        .context("usage: manual DIR, or manual --texts REPOSITORY")?;
    if dir == "--texts" {
        return texts(Path::new(
            &arguments.next().context("usage: manual --texts REPOSITORY")?,
        ));
    }
    let dir = Path::new(&dir);
    let man = dir.join("man");
    fs::create_dir_all(&man).with_context(|| format!("cannot make '{}'", man.display()))?;
    for (name, text) in pages::all()? {
        let path = man.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write '{}'", path.display()))?;
    }
    completions(&dir.join("completions"))
}

/// Writes the generated parts of the repository's texts.
fn texts(repository: &Path) -> Result<()> {
    let page = repository.join("docs/quick-start.md");
    let text = fs::read_to_string(&page).with_context(|| format!("cannot read '{}'", page.display()))?;
    let errors = repository.join("docs/troubleshooting.md");
    let told = fs::read_to_string(&errors).with_context(|| format!("cannot read '{}'", errors.display()))?;
    let keys = repository.join("etc/mpsd/mpsd.toml");
    for (path, text) in [
        (page, options::in_page(&text)?),
        (errors, errors::in_page(&told)?),
        (keys, settings::to_toml()),
    ] {
        fs::write(&path, text).with_context(|| format!("cannot write '{}'", path.display()))?;
    }
    Ok(())
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

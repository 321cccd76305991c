//! `manual DIR` writes man pages and completions into `DIR/man` and `DIR/completions`. `manual
//! --texts REPOSITORY` writes the tables of options and keys into the repository's texts. A crate
//! of its own, so that no installed program needs it.

mod pages;
mod programs;
mod settings;
mod tables;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use clap_complete::Shell;
use mpsd_core::programs::PROGRAMS;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let files = match words[..] {
        ["--texts", repository] => texts(Path::new(repository))?,
        [dir] if !dir.starts_with('-') => manual(Path::new(dir))?,
        _ => bail!("usage: manual DIR, or manual --texts REPOSITORY"),
    };
    for (path, text) in files {
        let dir = path.parent().context("a file without a directory")?;
        fs::create_dir_all(dir).with_context(|| format!("cannot make '{}'", dir.display()))?;
        fs::write(&path, text).with_context(|| format!("cannot write '{}'", path.display()))?;
    }
    Ok(())
}

type Files = Vec<(PathBuf, Vec<u8>)>;

/// The generated parts of the repository's texts.
fn texts(repository: &Path) -> Result<Files> {
    let (start, troubles) = ("docs/quick-start.md", "docs/troubleshooting.md");
    let (programs, report) = ("docs/programs.md", "docs/report.md");
    let read = |name: &str| {
        fs::read_to_string(repository.join(name)).with_context(|| format!("cannot read '{name}'"))
    };
    let runs = PROGRAMS.results.iter();
    let runs = runs.map(|name| Ok((name, read(&format!("{}/{name}", tables::RESULTS))?)));
    let runs = runs.collect::<Result<Vec<_>>>()?;
    let files = [
        (programs, tables::in_programs(&read(programs)?, &runs)?),
        (start, tables::in_quick_start(&read(start)?)?),
        (troubles, tables::in_troubleshooting(&read(troubles)?)?),
        (report, tables::in_report(&read(report)?)?),
        ("etc/mpsd/mpsd.toml", settings::to_toml()),
    ];
    let file = |(name, text): (&str, String)| (repository.join(name), text.into_bytes());
    Ok(files.map(file).into())
}

/// The man pages and the completions.
fn manual(dir: &Path) -> Result<Files> {
    let page = |(name, text): (String, String)| (dir.join("man").join(name), text.into_bytes());
    let mut files: Files = pages::all()?.into_iter().map(page).collect();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        let into = dir.join("completions").join(shell.to_string());
        for program in programs::all() {
            let name = programs::completion_name(shell, program.name);
            files.push((into.join(name), programs::completion(shell, &program)));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repositorys_texts_are_what_the_tables_say() {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for (path, text) in texts(&repository).unwrap() {
            let is_so = fs::read(&path).unwrap() == text;
            assert!(is_so, "'{}': run 'cargo xtask texts'", path.display());
        }
    }
}

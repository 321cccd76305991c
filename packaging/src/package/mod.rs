//! `cargo xtask dist`: makes the packages from one staged tree with dpkg-deb and rpmbuild.
//! (cargo-generate-rpm has neither links nor file triggers, and Slurm's upgrade needs a trigger.)

mod deb;
mod layout;
mod plugin;
pub mod programs;
mod release;
mod repository;
mod rpm;
mod stage;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::{Args as _, FromArgMatches as _};
use fs_err as fs;

use crate::cargo;
use crate::command::{command, wrote};
use crate::files::{emptied, is_a, list};
use programs::Machine;
pub use release::VERSION;
use release::{Release, date};
use repository::Repository;

#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where the packages go; emptied first
    #[arg(long, value_name = "DIR", default_value = "target/packages")]
    pub out: PathBuf,
    /// For which machines, with a comma between; this one's without it
    #[arg(long, value_name = "ARCH", value_delimiter = ',', default_value = Machine::OWN.name())]
    pub target: Vec<Machine>,
    /// Build quickly, not optimized: to try on another machine, not to ship
    #[arg(long)]
    pub quick: bool,
    /// Number the packages as those of this version: of what is built now, for a test of upgrades
    #[arg(long = "as", value_name = "VERSION", conflicts_with = "repository")]
    pub number: Option<String>,
    /// Add the packages to the apt and dnf repositories in this directory, and sign these
    #[arg(long, value_name = "DIR", requires = "key")]
    pub repository: Option<PathBuf>,
    /// Build and pack nothing: take the packages that 'dist' left in --out before, so that no build
    /// runs beside the key
    #[arg(long, requires = "repository")]
    pub packed: bool,
    /// The secret key that signs, as gpg knows it
    #[arg(long, value_name = "KEY", requires = "repository")]
    pub key: Option<String>,
}

impl Options {
    /// Everything built for machines with these names, the packages in `dir`.
    pub fn into_dir(machines: &str, dir: &str) -> Result<Options> {
        let words = ["dist", "--target", machines, "--out", dir];
        let command = Options::augment_args(clap::Command::new("dist"));
        let given = command.try_get_matches_from(words)?;
        Ok(Options::from_arg_matches(&given)?)
    }
}

pub fn run(options: &Options) -> Result<()> {
    let repository = options.repository.as_deref().zip(options.key.as_deref());
    let repository = repository.map(|(dir, key)| Repository { dir, key });
    if let Some(repository) = &repository {
        repository.prepare()?;
    }
    let packages = match options.packed {
        true => packed(&options.out)?,
        false => pack(options)?,
    };
    for package in &packages {
        println!("{}", package.display());
    }
    repository.map_or(Ok(()), |repository| repository.add(&packages))
}

fn packed(out: &Path) -> Result<Vec<PathBuf>> {
    let mut packages = list(out)?;
    packages.retain(|file| is_a(file, "deb") || is_a(file, "rpm"));
    if packages.is_empty() {
        let out = out.display();
        bail!("--packed: '{out}' has no package; run 'cargo xtask dist' first");
    }
    Ok(packages)
}

fn pack(options: &Options) -> Result<Vec<PathBuf>> {
    let machines = options.target.iter();
    let built = machines.map(|machine| programs::everything(*machine, options.quick));
    let built = built.collect::<Result<Vec<_>>>()?;
    emptied(&options.out)?;
    let out = &fs::canonicalize(&options.out)?;
    let work = out.join("work");
    let version = options.number.as_deref().unwrap_or(VERSION);
    // What is not to ship need not be small: for a quick build this is most of the work.
    let compression = match options.quick || options.number.is_some() {
        true => 0,
        false => 6,
    };
    let epoch = epoch()?;
    let date = date(epoch, "+%F")?;
    let mut packages = BTreeSet::new();
    for built in &built {
        let work = work.join(built.machine.name());
        let tree = work.join("tree");
        let release = Release {
            version: version.to_owned(),
            epoch,
            machine: built.machine,
            compression,
            files: stage::stage(&tree, built, date.trim())?,
            tree,
        };
        packages.extend(deb::pack(&release, &work, out)?);
        packages.extend(rpm::pack(&release, &work, out)?);
    }
    let packages: Vec<PathBuf> = packages.into_iter().collect();
    let names = packages.iter().filter_map(|package| package.file_name());
    let sums = wrote(Command::new("sha256sum").current_dir(out).args(names))?;
    fs::write(out.join("SHA256SUMS"), sums)?;
    let compiler = wrote(&mut cargo::rustc(&["--version"]))?;
    let (notes, compiler) = (notes()?, compiler.trim());
    let notes = format!("{notes}\nBuilt with {compiler}.\n");
    fs::write(out.join("notes.md"), notes)?;
    fs::remove_dir_all(&work)?;
    Ok(packages)
}

fn notes() -> Result<String> {
    let text = fs::read_to_string("CHANGELOG.md")?;
    let heading = format!("## [{VERSION}]");
    let after = text.split_once(&heading);
    let (_, after) = after.with_context(|| format!("'CHANGELOG.md' has no '{heading}'"))?;
    let body = after.split_once('\n').map_or("", |(_, body)| body);
    let body = body.split("\n## [").next().unwrap_or(body);
    Ok(format!("{}\n", body.trim()))
}

/// `SOURCE_DATE_EPOCH`, else the time of the commit, else (a source without a repository) the first
/// moment of 2026.
fn epoch() -> Result<u64> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        let wrong = || format!("SOURCE_DATE_EPOCH '{given}' is no number of seconds");
        return given.parse().with_context(wrong);
    }
    let commit = wrote(&mut command("git", "log -1 --format=%ct")).ok();
    let time = commit.and_then(|time| time.trim().parse().ok());
    Ok(time.unwrap_or(1_767_225_600))
}

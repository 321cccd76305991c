//! `cargo xtask dist`: the packages, out of one staged tree.
//!
//! dpkg-deb and rpmbuild make them, each from the files as they lie: both run on Debian and on RPM systems. (cargo-generate-rpm
//! knows neither links nor file triggers, and Slurm's upgrade needs a trigger.)

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{build, cargo, deb, rpm, stage};

/// `dist`'s options.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where the packages go; emptied first
    #[arg(long, value_name = "DIR", default_value = "target/packages")]
    pub out: PathBuf,
    /// Pack the programs of this directory, which 'dist' left there before, instead of building them
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
    /// Number of the packages among those of this version: higher where the same version is packed again
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub revision: u32,
}

impl Options {
    /// Everything built, the packages in `dir`.
    pub fn into_dir(dir: &str) -> Options {
        Options {
            out: dir.into(),
            programs: None,
            revision: 1,
        }
    }
}

/// What both formats need to know.
#[derive(Debug)]
pub struct Release {
    /// The workspace's version.
    pub version: String,
    /// Number of the packages among those of the version.
    pub revision: u32,
    /// Seconds since 1970 that every file and package carries.
    pub epoch: u64,
    /// The staged tree.
    pub tree: PathBuf,
    /// Its files.
    pub files: Vec<stage::Staged>,
}

/// Builds and packs.
pub fn run(options: &Options) -> Result<()> {
    let built = match &options.programs {
        Some(programs) => build::around(programs)?,
        None => build::everything(build::Profile::Portable)?,
    };
    for package in pack(&built, &options.out, options.revision)? {
        println!("{}", package.display());
    }
    Ok(())
}

/// Packs what was built into `out`, which is emptied first; the packages in order.
pub fn pack(built: &build::Built, out: &Path, revision: u32) -> Result<Vec<PathBuf>> {
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| format!("cannot empty '{}'", out.display()))?;
    }
    fs::create_dir_all(out).with_context(|| format!("cannot make '{}'", out.display()))?;
    let out = &fs::canonicalize(out)?;
    let work = out.join("work");
    let tree = work.join("tree");
    let files = stage::stage(&tree, built)?;
    let release = Release {
        version: version()?,
        revision,
        epoch: epoch()?,
        tree,
        files,
    };
    let mut packages = deb::pack(&release, &work, out)?;
    packages.extend(rpm::pack(&release, &work, out)?);
    packages.sort();
    sums(out, &packages)?;
    fs::write(out.join("notes.md"), notes(&release.version)?)?;
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove '{}'", work.display()))?;
    Ok(packages)
}

/// The workspace's version: it stands in `Cargo.toml` alone.
pub fn version() -> Result<String> {
    let text = fs::read_to_string(cargo::root()?.join("Cargo.toml")).context("cannot read 'Cargo.toml'")?;
    let manifest: toml::Value = toml::from_str(&text)?;
    let version = manifest["workspace"]["package"]["version"].as_str();
    Ok(version.context("'Cargo.toml' has no version")?.to_owned())
}

/// `SOURCE_DATE_EPOCH`, or the time of the commit, or of a source without a repository the first moment of 2026.
fn epoch() -> Result<u64> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        return given
            .parse()
            .with_context(|| format!("SOURCE_DATE_EPOCH '{given}' is no number of seconds"));
    }
    let output = Command::new("git").args(["log", "-1", "--format=%ct"]).output();
    let commit = output.ok().filter(|output| output.status.success());
    let time = commit.and_then(|output| String::from_utf8(output.stdout).ok()?.trim().parse().ok());
    Ok(time.unwrap_or(1_767_225_600))
}

fn sums(out: &Path, packages: &[PathBuf]) -> Result<()> {
    let names = packages.iter().filter_map(|package| package.file_name());
    let output = Command::new("sha256sum")
        .current_dir(out)
        .args(names)
        .output()
        .context("cannot start sha256sum")?;
    fs::write(out.join("SHA256SUMS"), output.stdout)?;
    Ok(())
}

/// The entry of `version` in CHANGELOG.md.
pub fn notes(version: &str) -> Result<String> {
    let text =
        fs::read_to_string(cargo::root()?.join("CHANGELOG.md")).context("cannot read 'CHANGELOG.md'")?;
    let heading = format!("## [{version}]");
    let (_, after) = text
        .split_once(&heading)
        .with_context(|| format!("'CHANGELOG.md' has no '{heading}'"))?;
    let body = after.split_once('\n').map_or("", |(_, body)| body);
    let end = body.find("\n## [").unwrap_or(body.len());
    Ok(format!("{}\n", body[..end].trim()))
}

//! `cargo xtask dist`: the packages, out of one staged tree.
//!
//! dpkg-deb and rpmbuild make them, each from the files as they lie: both run on Debian and on RPM systems. (cargo-generate-rpm
//! knows neither links nor file triggers, and Slurm's upgrade needs a trigger.)

mod commit;
mod deb;
mod elf;
mod layout;
pub mod machine;
pub mod plugin;
pub mod programs;
pub mod release;
mod repository;
mod rpm;
pub mod stage;
mod zig;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use machine::Machine;
use programs::Profile;
use release::{Release, epoch, notes, version};
use repository::Repository;

/// `dist`'s options.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where the packages go; emptied first
    #[arg(long, value_name = "DIR", default_value = "target/packages")]
    pub out: PathBuf,
    /// For which machines, with a comma between; this one's without it
    #[arg(long, value_name = "ARCH", value_delimiter = ',', default_value = Machine::OWN.name())]
    pub target: Vec<Machine>,
    /// Build the programs for these of the machines quickly, not optimized: to try, not to ship
    #[arg(long, value_name = "ARCH", value_delimiter = ',')]
    pub quick: Vec<Machine>,
    /// Pack the programs of this directory, which 'dist' left there before, instead of building them
    #[arg(long, value_name = "DIR")]
    pub programs: Option<PathBuf>,
    /// Number of the packages among those of this version: higher where the same version is packed again
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub revision: u32,
    /// Number the packages as those of this version: of what is built now, for a test of upgrades
    #[arg(long = "as", value_name = "VERSION", conflicts_with = "repository")]
    pub number: Option<String>,
    /// Add the packages to the apt and dnf repositories in this directory, and sign these
    #[arg(long, value_name = "DIR", requires = "key")]
    pub repository: Option<PathBuf>,
    /// Build and pack nothing: take the packages that 'dist' left in --out before, so that no build runs beside the key
    #[arg(long, requires = "repository", conflicts_with = "programs")]
    pub packed: bool,
    /// The secret key that signs, as gpg knows it
    #[arg(long, value_name = "KEY", requires = "repository")]
    pub key: Option<String>,
}

impl Options {
    /// Everything built for every machine, the packages in `dir`.
    pub fn into_dir(dir: &str) -> Options {
        Options {
            out: dir.into(),
            target: vec![Machine::X86, Machine::Arm],
            quick: Vec::new(),
            programs: None,
            revision: 1,
            number: None,
            packed: false,
            repository: None,
            key: None,
        }
    }
}

/// Builds and packs.
pub fn run(options: &Options) -> Result<()> {
    let repository = options.repository.as_deref().zip(options.key.as_deref());
    let repository = repository.map(|(dir, key)| Repository { dir, key });
    if let Some(repository) = &repository {
        repository.prepare()?;
    }
    let packages = match options.packed {
        true => packed(&options.out)?,
        false => pack(&built(options)?, options)?,
    };
    for package in &packages {
        println!("{}", package.display());
    }
    repository.map_or(Ok(()), |repository| repository.add(&packages))
}

/// What is to be packed, for each machine.
fn built(options: &Options) -> Result<Vec<programs::Built>> {
    let built = |machine: &Machine| match &options.programs {
        Some(programs) => programs::around(programs, *machine),
        None if options.quick.contains(machine) => programs::everything(Profile::Quick, *machine),
        None => programs::everything(Profile::Portable, *machine),
    };
    if options.programs.is_some() && options.target.len() > 1 {
        bail!("--programs: a directory has the programs of one machine; give one --target");
    }
    options.target.iter().map(built).collect()
}

/// The packages in `out`, in order.
fn packed(out: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(out).with_context(|| format!("cannot list '{}'", out.display()))?;
    let files: Vec<PathBuf> = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<_>>()?;
    let is_package = |file: &PathBuf| file.extension().is_some_and(|end| end == "deb" || end == "rpm");
    let mut packages: Vec<PathBuf> = files.into_iter().filter(is_package).collect();
    packages.sort();
    if packages.is_empty() {
        bail!(
            "--packed: '{}' has no package; run 'cargo xtask dist' first",
            out.display()
        );
    }
    Ok(packages)
}

/// Packs what was built into `--out`, which is emptied first; the packages in order.
fn pack(built: &[programs::Built], options: &Options) -> Result<Vec<PathBuf>> {
    let out = &options.out;
    if out.exists() {
        fs::remove_dir_all(out).with_context(|| format!("cannot empty '{}'", out.display()))?;
    }
    fs::create_dir_all(out).with_context(|| format!("cannot make '{}'", out.display()))?;
    let out = &fs::canonicalize(out)?;
    let work = out.join("work");
    let version = options.number.clone().map_or_else(version, Ok)?;
    let mut packages = BTreeSet::new();
    for built in built {
        let work = work.join(built.machine.name());
        let tree = work.join("tree");
        let files = stage::stage(&tree, built)?;
        let release = Release {
            version: version.clone(),
            revision: options.revision,
            epoch: epoch()?,
            machine: built.machine,
            tree,
            files,
        };
        // What is for every machine has the same name each time, and must be the same.
        packages.extend(deb::pack(&release, &work, out)?);
        packages.extend(rpm::pack(&release, &work, out)?);
    }
    let packages: Vec<PathBuf> = packages.into_iter().collect();
    sums(out, &packages)?;
    fs::write(out.join("notes.md"), notes(&version)?)?;
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove '{}'", work.display()))?;
    Ok(packages)
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

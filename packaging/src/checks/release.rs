//! `cargo xtask release-check`: what must hold before a version gets its tag, beyond what every CI run checks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::cargo;
use crate::command::{quietly, quietly_within};
use crate::install::{self, deny};
use crate::package::{self, release};

/// `release-check`'s options.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The tag that is to be: must be 'v' and the version
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// Leave out what takes minutes: the packages built twice and looked into
    #[arg(long)]
    quick: bool,
}

/// Longest that the packages for all machines may take: from nothing, optimized, on two cores that others use as well.
const BUILD: Duration = Duration::from_secs(3600);

/// Where the second build goes.
const AGAIN: &str = "target/again";

/// Runs all checks, whatever fails; an error names the failed ones.
pub fn run(options: &Options) -> Result<()> {
    let mut failed = Vec::new();
    let mut check = |name: &str, outcome: Result<()>| match outcome {
        Ok(()) => println!("{name}: ok"),
        Err(error) => {
            println!("{name}: FAILED: {error:#}");
            failed.push(name.to_owned());
        }
    };
    check("version", version(options.tag.as_deref()));
    check("changelog", changelog(options.tag.is_some()));
    check("licences and dependencies", dependencies());
    check("man pages and completions", manual());
    if !options.quick {
        let packages = package::run(&package::Options::into_dir("target/packages"));
        let made = packages.is_ok();
        check("packages", packages);
        if made {
            check("lintian", lintian());
            check("rpmlint", rpmlint());
            check("reproducible", reproducible());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("not ready for a release: {}", failed.join(", "))
}

/// The version stands in one place, and the tag says it.
fn version(tag: Option<&str>) -> Result<()> {
    let version = release::version()?;
    let metadata = cargo::metadata()?;
    for package in metadata["packages"].as_array().context("no packages")? {
        if package["version"] != version.as_str() {
            bail!(
                "{} has {}, the workspace {version}",
                package["name"],
                package["version"]
            );
        }
        let manifest = package["manifest_path"].as_str().context("no manifest")?;
        if !fs::read_to_string(manifest)?.contains("version.workspace = true") {
            bail!("'{manifest}' has a version of its own");
        }
    }
    match tag {
        Some(tag) if tag != format!("v{version}") => bail!("tag '{tag}' is not 'v{version}'"),
        _ => Ok(()),
    }
}

/// The newest entry is this version's, and says something; under a tag nothing stands above it, which would be in the packages and not in their
/// notes.
fn changelog(tagged: bool) -> Result<()> {
    let version = release::version()?;
    let text =
        fs::read_to_string(cargo::root()?.join("CHANGELOG.md")).context("cannot read 'CHANGELOG.md'")?;
    newest_entry(&text, &version)?;
    if release::notes(&version)?.trim().is_empty() {
        bail!("the entry of {version} is empty");
    }
    if tagged && !unreleased(&text).is_empty() {
        bail!("something stands under [Unreleased]: it belongs into the entry of {version}");
    }
    Ok(())
}

/// What stands under the heading for what has no version yet.
fn unreleased(text: &str) -> &str {
    let below = text
        .split_once("## [Unreleased]\n")
        .map_or("", |(_, below)| below);
    below.split("\n## [").next().unwrap_or("").trim()
}

fn newest_entry(text: &str, version: &str) -> Result<()> {
    let headings = text
        .lines()
        .filter_map(|line| line.strip_prefix("## [")?.split(']').next());
    let newest = headings.into_iter().find(|name| *name != "Unreleased");
    match newest {
        Some(newest) if newest == version => Ok(()),
        Some(newest) => bail!("the newest entry is {newest}, the workspace's version {version}"),
        None => bail!("there is no entry"),
    }
}

/// `deny.toml`; the advisories' database is asked for over the network, and without one they are not judged.
fn dependencies() -> Result<()> {
    quietly(&mut deny::command(&["check", "licenses", "bans", "sources"])?)?;
    if let Err(error) = quietly(&mut deny::command(&["check", "advisories"])?) {
        let why = format!("{error:#}");
        if !why.contains("failed to fetch advisory database") {
            return Err(error);
        }
        println!("skipped: advisories: their database could not be fetched");
    }
    Ok(())
}

fn manual() -> Result<()> {
    quietly(&mut cargo::command(&["test", "--locked", "-p", "manual"]))
}

fn made(extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("target/packages")? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == extension) {
            found.push(path);
        }
    }
    Ok(found)
}

fn lintian() -> Result<()> {
    install::program("/usr/bin/lintian", "lintian", "lintian")?;
    for package in made("deb")? {
        quietly(
            Command::new("/usr/bin/lintian")
                .args(["--fail-on", "error,warning"])
                .arg(package),
        )?;
    }
    Ok(())
}

fn rpmlint() -> Result<()> {
    install::program("/usr/bin/rpmlint", "rpmlint", "rpmlint")?;
    let config = "packaging/rpm/rpmlint.toml";
    let mut command = Command::new("/usr/bin/rpmlint");
    command.args(["-c", config]).args(made("rpm")?);
    let output = command.output().context("cannot start rpmlint")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && said.contains(" 0 errors, 0 warnings") {
        return Ok(());
    }
    bail!("{said}")
}

/// Built again from nothing, in another directory: the same bytes.
fn reproducible() -> Result<()> {
    let again = Path::new(AGAIN);
    if again.exists() {
        fs::remove_dir_all(again)?;
    }
    let own = std::env::current_exe().context("cannot tell this program's file")?;
    let target = cargo::root()?.join(AGAIN);
    // Zig is no part of what is compared: the second build takes the first one's.
    let tools = cargo::target_directory()?.join("tools");
    fs::create_dir_all(&target)?;
    std::os::unix::fs::symlink(&tools, target.join("tools"))?;
    let out = target.join("packages");
    let mut dist = Command::new(own);
    dist.arg("dist").arg("--out").arg(&out);
    dist.args(["--target", "x86_64,aarch64"])
        .env("CARGO_TARGET_DIR", &target);
    quietly_within(&mut dist, BUILD)?;
    let (first, second) = (
        fs::read_to_string("target/packages/SHA256SUMS")?,
        fs::read_to_string(out.join("SHA256SUMS"))?,
    );
    let differing: Vec<&str> = first.lines().filter(|line| !second.contains(line)).collect();
    if differing.is_empty() && !first.is_empty() {
        fs::remove_dir_all(again)?;
        return Ok(());
    }
    bail!(
        "built twice, these differ ('target/packages', '{}'): {}",
        out.display(),
        differing.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_entry_is_the_version() {
        let text = "# Changelog\n## [Unreleased]\n- x\n## [0.2.0]\n## [0.1.0]\n";
        assert!(newest_entry(text, "0.2.0").is_ok());
        assert!(newest_entry(text, "0.1.0").is_err());
        assert!(newest_entry("# Changelog\n## [Unreleased]\n", "0.1.0").is_err());
        assert_eq!(unreleased(text), "- x");
        assert_eq!(unreleased("## [Unreleased]\n\n## [0.2.0]\n- y\n"), "");
    }
}

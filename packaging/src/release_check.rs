//! `cargo xtask release-check`: what must hold before a version gets its tag, beyond what every CI
//! run checks.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;

use crate::command::{command, quietly, quietly_within};
use crate::files::{emptied, is_a, list};
use crate::package::{self, VERSION};
use crate::{cargo, install};

#[derive(Debug, clap::Args)]
pub struct Options {
    /// The tag that is to be: must be 'v' and the version
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// Leave out what takes minutes: the packages built twice and looked into
    #[arg(long)]
    quick: bool,
}

/// Longest time for the packages of all machines: from nothing, optimized, on two cores that others
/// use as well.
const BUILD: Duration = Duration::from_secs(3600);
const PACKAGES: &str = "target/packages";
const AGAIN: &str = "target/again";

/// Runs all checks, also after a failure; an error names those that failed.
pub fn run(options: &Options) -> Result<()> {
    let mut failed = Vec::new();
    let mut check = |name: &'static str, outcome: Result<()>| {
        match &outcome {
            Ok(()) => println!("{name}: ok"),
            Err(error) => {
                println!("{name}: FAILED: {error:#}");
                failed.push(name);
            }
        }
        outcome.is_ok()
    };
    check("version", version(options.tag.as_deref()));
    let text = fs::read_to_string("CHANGELOG.md")?;
    let is_tagged = options.tag.is_some();
    check("changelog", changelog(&text, VERSION, is_tagged));
    let pack = || package::run(&package::Options::into_dir("x86_64,aarch64", PACKAGES)?);
    if !options.quick && check("packages", pack()) {
        check("lintian", lintian());
        check("rpmlint", rpmlint());
        check("reproducible", reproducible());
    }
    match failed[..] {
        [] => Ok(()),
        _ => bail!("not ready for a release: {}", failed.join(", ")),
    }
}

fn version(tag: Option<&str>) -> Result<()> {
    match tag {
        Some(tag) if tag != format!("v{VERSION}") => bail!("tag '{tag}' is not 'v{VERSION}'"),
        _ => Ok(()),
    }
}

/// The newest entry is this version's and is not empty. A release may have no entry above it: its
/// changes would be in the packages, but not in their notes.
fn changelog(text: &str, version: &str, is_tagged: bool) -> Result<()> {
    let entries = text.split("\n## [").skip(1).filter_map(|entry| {
        let (name, rest) = entry.split_once(']')?;
        let changes = rest.split_once('\n').map_or("", |(_, changes)| changes);
        Some((name, changes.trim()))
    });
    let mut entries = entries.peekable();
    if let Some((_, changes)) = entries.next_if(|(name, _)| *name == "Unreleased") {
        ensure!(
            !is_tagged || changes.is_empty(),
            "something stands under [Unreleased]: it belongs into the entry of {version}"
        );
    }
    let (newest, changes) = entries.next().context("there is no entry")?;
    ensure!(
        newest == version,
        "the newest entry is {newest}, the workspace's version {version}"
    );
    ensure!(!changes.is_empty(), "the entry of {version} is empty");
    Ok(())
}

fn made(extension: &str) -> Result<Vec<PathBuf>> {
    let mut all = list(Path::new(PACKAGES))?;
    all.retain(|path| is_a(path, extension));
    Ok(all)
}

fn lintian() -> Result<()> {
    install::program("/usr/bin/lintian", "lintian")?;
    let mut lintian = command("/usr/bin/lintian", "--fail-on error,warning");
    quietly(lintian.args(made("deb")?))
}

fn rpmlint() -> Result<()> {
    install::program("/usr/bin/rpmlint", "rpmlint")?;
    let mut rpmlint = command("/usr/bin/rpmlint", "-c packaging/rpm/rpmlint.toml");
    let output = rpmlint.args(made("rpm")?).output();
    let output = output.context("cannot start rpmlint")?;
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.success() && said.contains(" 0 errors, 0 warnings") {
        true => Ok(()),
        false => bail!("{said}"),
    }
}

/// Builds the packages again from nothing in another directory; the bytes must be the same.
fn reproducible() -> Result<()> {
    let own = std::env::current_exe().context("cannot tell this program's file")?;
    let target = cargo::root()?.join(AGAIN);
    emptied(&target)?;
    // Zig is not compared, so the second build uses the first one's.
    let tools = cargo::target_directory()?.join("tools");
    std::os::unix::fs::symlink(tools, target.join("tools"))?;
    let out = target.join("packages");
    let mut dist = Command::new(own);
    dist.args(["dist", "--target", "x86_64,aarch64", "--out"])
        .arg(&out);
    quietly_within(dist.env("CARGO_TARGET_DIR", &target), BUILD)?;
    let sums = |dir: &Path| fs::read_to_string(dir.join("SHA256SUMS"));
    let (first, second) = (sums(Path::new(PACKAGES))?, sums(&out)?);
    let differing = first.lines().filter(|line| !second.contains(line));
    let differing: Vec<&str> = differing.collect();
    if differing.is_empty() && !first.is_empty() {
        return Ok(fs::remove_dir_all(target)?);
    }
    bail!(
        "built twice, these differ ('{PACKAGES}', '{}'): {}",
        out.display(),
        differing.join("; ")
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_newest_entry_is_the_version() {
        let is_ready = |entries: &str, is_tagged| {
            let text = format!("# Changelog\n\n{entries}\n## [0.1.0]\n\n- z\n");
            super::changelog(&text, "0.2.0", is_tagged).is_ok()
        };
        let full = "## [0.2.0] - 2026-11-01\n\n- y\n";
        assert!(is_ready(&format!("## [Unreleased]\n\n{full}"), true));
        let open = format!("## [Unreleased]\n\n- x\n\n{full}");
        assert!(is_ready(&open, false) && !is_ready(&open, true));
        assert!(is_ready(full, true) && !is_ready("", true));
        assert!(!is_ready("## [0.2.0]\n", true));
    }
}

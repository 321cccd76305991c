//! What the packages are made of: programs, plugin, man pages, completions, the list of crates.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::commit::commit;
use super::machine::Machine;
use super::zig::Zig;
use crate::cargo::{self, target_directory};

/// The shipped crates.
const SHIPPED: [&str; 8] = ["-p", "mpsd", "-p", "prologue", "-p", "epilogue", "-p", "spank"];

/// Newest version of the C library that a program may ask for: RHEL 8's, older than Debian 11's and Ubuntu 20.04's.
pub const GLIBC: (u32, u32) = (2, 28);

/// How the programs are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// The dev profile, for this machine.
    Debug,
    /// As released, but not optimized: quick, to try on another machine.
    Quick,
    /// Released: stripped, linked against the oldest C library that is supported.
    Portable,
}

/// What was built, and where.
#[derive(Debug)]
pub struct Built {
    /// How.
    pub profile: Profile,
    /// What they run on.
    pub machine: Machine,
    /// Directory of the programs and the plugin.
    pub programs: PathBuf,
    /// What `manual` wrote.
    pub manual: PathBuf,
    /// The crates in the programs, one a line: name, version, licence.
    pub crates: String,
}

/// Builds everything.
pub fn everything(profile: Profile, machine: Machine) -> Result<Built> {
    let target = target_directory()?;
    let programs = match profile {
        Profile::Debug => {
            cargo::build(&[["build", "--locked"].as_slice(), &SHIPPED].concat())?;
            target.join("debug")
        }
        Profile::Quick | Profile::Portable => {
            let status = build(profile, machine)?.status().context("cannot start cargo")?;
            if !status.success() {
                bail!("'cargo zigbuild' for {} failed ({status})", machine.name());
            }
            let directory = if profile == Profile::Quick {
                "debug"
            } else {
                "release"
            };
            target.join(machine.triple()).join(directory)
        }
    };
    around_programs(profile, machine, programs)
}

/// Everything but the programs, which lie in `programs`, of the portable build.
pub fn around(programs: &Path, machine: Machine) -> Result<Built> {
    around_programs(Profile::Portable, machine, programs.to_owned())
}

fn around_programs(profile: Profile, machine: Machine, programs: PathBuf) -> Result<Built> {
    let manual = target_directory()?.join("manual");
    let text = manual.to_str().context("the target directory is not text")?;
    cargo::build(&["run", "--quiet", "--locked", "-p", "manual", "--", text])?;
    Ok(Built {
        profile,
        machine,
        programs,
        manual,
        crates: crates(machine)?,
    })
}

/// The command that builds what is shipped; and, to try it, the simulated NVML of that machine.
///
/// # Errors
/// As [`portable`].
pub fn build(profile: Profile, machine: Machine) -> Result<Command> {
    let mut command = portable(profile, machine, "zigbuild")?;
    command.args(SHIPPED);
    if profile == Profile::Quick {
        command.args(["-p", "nvml-stub"]);
    }
    Ok(command)
}

/// cargo-zigbuild's command for programs, or tests, that another machine runs.
///
/// # Errors
/// No standard library for that machine; no Zig.
pub fn portable(profile: Profile, machine: Machine, verb: &str) -> Result<Command> {
    let triple = machine.triple();
    if !cargo::has_target(&triple) {
        bail!("the standard library for {triple} is missing; run 'rustup target add {triple}'");
    }
    let zig = Zig::find_or_install()?;
    let mut command = Command::new(zig.program());
    command
        .args([verb, "--locked", "--target"])
        .arg(format!("{triple}.{}.{}", GLIBC.0, GLIBC.1))
        .env("PATH", zig.path()?)
        .env("RUSTFLAGS", remapped()?)
        .stdin(Stdio::null());
    if profile == Profile::Portable {
        command.arg("--release");
    } else {
        command.envs([
            ("CARGO_PROFILE_DEV_DEBUG", "0"),
            ("CARGO_PROFILE_DEV_STRIP", "symbols"),
        ]);
    }
    if let Some(commit) = commit() {
        command.env("MPSD_COMMIT", commit);
    }
    Ok(command)
}

/// No path of this machine in the programs: they are the same bytes wherever they are built.
fn remapped() -> Result<String> {
    let root = cargo::root()?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home = home.context("neither CARGO_HOME nor HOME is set")?;
    Ok(format!(
        "--remap-path-prefix={}=/mpsd --remap-path-prefix={}=/cargo",
        root.display(),
        home.display()
    ))
}

/// One line for each crate that is linked into what we ship.
fn crates(machine: Machine) -> Result<String> {
    let tree = [
        "tree",
        "--locked",
        "-e",
        "normal",
        "--prefix",
        "none",
        "--no-dedupe",
        "--format",
        "{p}\t{l}",
    ];
    let output = cargo::command(&tree)
        .args(["--target", &machine.triple()])
        .args(SHIPPED)
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    if !output.status.success() {
        bail!("'cargo tree' failed ({})", output.status);
    }
    let text = String::from_utf8(output.stdout).context("'cargo tree' wrote no text")?;
    let lines: BTreeSet<String> = text.lines().filter_map(crate_line).collect();
    if lines.len() < 10 {
        bail!("'cargo tree' named {} crates only", lines.len());
    }
    Ok(lines.iter().map(|line| format!("{line}\n")).collect())
}

/// `name v1.2.3 (proc-macro)<TAB>licence` as `name 1.2.3 licence`; our own crates, which have a path, are left out.
fn crate_line(line: &str) -> Option<String> {
    let (package, licence) = line.split_once('\t')?;
    if package.contains("(/") {
        return None;
    }
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some(format!("{name} {version} {licence}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_a_line_and_ours_is_none() {
        let line = crate_line("serde_derive v1.0.2 (proc-macro)\tMIT OR Apache-2.0");
        assert_eq!(line.as_deref(), Some("serde_derive 1.0.2 MIT OR Apache-2.0"));
        assert_eq!(crate_line("mpsd v0.1.0 (/src/mpsd)\tMIT OR Apache-2.0"), None);
    }
}

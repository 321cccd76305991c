//! What is packed: programs, plugin, man pages, completions, the list of crates.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use object::Architecture;

use crate::cargo::{self, target_directory};
use crate::command::{command, wrote};
use crate::install;

pub const PROGRAMS: [&str; 5] = [
    "mpsd",
    "mpsctl",
    "mps-probe",
    "mps-prologue",
    "mps-epilogue",
];
const SHIPPED: &str = "-p mpsd -p mpsd-ctl -p runner -p prologue -p epilogue -p spank";

/// Newest version of the C library that a program may need: RHEL 8's, older than Debian 11's and
/// Ubuntu 20.04's.
pub const GLIBC: (u32, u32) = (2, 28);

/// An architecture that packages are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Machine {
    #[value(name = "x86_64")]
    X86,
    #[value(name = "aarch64")]
    Arm,
}

impl Machine {
    /// This machine's.
    pub const OWN: Machine = if cfg!(target_arch = "aarch64") {
        Machine::Arm
    } else {
        Machine::X86
    };

    /// As the kernel and RPM name it.
    pub fn name(self) -> &'static str {
        match self {
            Machine::X86 => "x86_64",
            Machine::Arm => "aarch64",
        }
    }

    pub fn debian(self) -> &'static str {
        match self {
            Machine::X86 => "amd64",
            Machine::Arm => "arm64",
        }
    }

    pub fn triple(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    pub fn elf(self) -> Architecture {
        match self {
            Machine::X86 => Architecture::X86_64,
            Machine::Arm => Architecture::Aarch64,
        }
    }
}

#[derive(Debug)]
pub struct Built {
    pub machine: Machine,
    pub programs: PathBuf,
    pub manual: PathBuf,
    pub crates: String,
}

pub fn everything(machine: Machine, quick: bool) -> Result<Built> {
    let status = build(machine, quick)?
        .status()
        .context("cannot start cargo")?;
    let (name, target) = (machine.name(), target_directory()?);
    let is_good = status.success();
    ensure!(is_good, "'cargo zigbuild' for {name} failed ({status})");
    let profile = if quick { "debug" } else { "release" };
    let manual = target.join("manual");
    let to = manual.display();
    cargo::build(&format!("run --quiet --locked -p manual -- {to}"))?;
    Ok(Built {
        machine,
        programs: target.join(machine.triple()).join(profile),
        manual,
        crates: crates(machine)?,
    })
}

/// Builds what is shipped; if `quick`, not optimized, and also the simulated NVML of that machine,
/// to try it.
pub fn build(machine: Machine, quick: bool) -> Result<Command> {
    let mut command = portable(machine, quick, "zigbuild")?;
    command.args(SHIPPED.split(' '));
    if quick {
        command.args(["-p", "nvml-double"]);
    }
    Ok(command)
}

/// cargo-zigbuild's command for programs, or tests, that another machine runs.
pub fn portable(machine: Machine, quick: bool, verb: &str) -> Result<Command> {
    let triple = machine.triple();
    if !cargo::has_target(&triple) {
        bail!("the standard library for {triple} is missing; run 'rustup target add {triple}'");
    }
    let zig = install::zig()?;
    let mut command = Command::new(zig.join("cargo-zigbuild"));
    command.args([verb, "--locked", "--target"]);
    command.arg(format!("{triple}.{}.{}", GLIBC.0, GLIBC.1));
    command.env("PATH", install::path(&zig)?);
    command.env("RUSTFLAGS", remapped()?).stdin(Stdio::null());
    match quick {
        true => command.env("CARGO_PROFILE_DEV_STRIP", "symbols"),
        false => command.arg("--release"),
    };
    command.envs(commit().map(|commit| ("MPSD_COMMIT", commit)));
    Ok(command)
}

const ARCHIVED: &str = include_str!("../../commit");

/// The short name of the commit for `--version`: `MPSD_COMMIT`, or git's, or what `git archive`
/// wrote into the source.
fn commit() -> Option<String> {
    let of_git = || wrote(&mut command("git", "rev-parse --short=12 HEAD")).ok();
    let given = std::env::var("MPSD_COMMIT").ok().or_else(of_git);
    let name = given.unwrap_or_else(|| ARCHIVED.to_owned());
    let name = name.trim();
    let is_name = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_name.then(|| name.chars().take(12).collect())
}

fn remapped() -> Result<String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let home = home.context("neither CARGO_HOME nor HOME is set")?;
    let (root, home) = (cargo::root()?, home.display());
    Ok(format!(
        "--remap-path-prefix={}=/mpsd --remap-path-prefix={home}=/cargo",
        root.display()
    ))
}

fn crates(machine: Machine) -> Result<String> {
    let of = format!("--target {} {SHIPPED}", machine.triple());
    let words = format!("tree --locked -e normal --prefix none --no-dedupe {of}");
    let mut tree = cargo::words(&words);
    tree.args(["--format", "{p}\t{l}"]).stderr(Stdio::inherit());
    let text = wrote(&mut tree)?;
    let lines: BTreeSet<String> = text.lines().filter_map(crate_line).collect();
    match lines.len() {
        few @ 0..10 => bail!("'cargo tree' named {few} crates only"),
        _ => Ok(lines.into_iter().collect()),
    }
}

/// `name v1.2.3 (proc-macro)<TAB>licence` as `name 1.2.3 licence`; our own crates, which have a
/// path, are left out.
fn crate_line(line: &str) -> Option<String> {
    let (package, licence) = line.split_once('\t')?;
    if package.contains("(/") {
        return None;
    }
    let mut words = package.split(' ');
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    Some(format!("{name} {version} {licence}\n"))
}

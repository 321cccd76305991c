//! `cargo xtask hardware`: the project against the GPU of this machine, or a package for a machine
//! without cargo.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::cargo;
use crate::command::{command, quietly};
use crate::files::{is_a, list};

/// Packages of Debian 12 that carry a Slurm to a machine without one. They are unpacked there,
/// never installed.
const SLURM: &str = "slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libmunge2 libhwloc15 libjson-c5 liblua5.1-0 \
                     libnuma1 libyaml-0-2 libdbus-1-3";

const PROGRAMS: &str = "hardware slurm-warden cuda-load mpsd mpsctl mps-runner mps-probe mps-prologue mps-epilogue spank_mps.so";
const CONTRACT: &str = "contract";
const BUILD: &str = "build --release --lib --bins -p mpsd -p mpsd-ctl -p runner -p prologue -p epilogue -p spank -p tests";
const TEST: &str = "test --release --no-run -p tests --test contract";

/// OpenMM and its CUDA plugin, and programs for the part 'programs', for a machine with Python 3.12,
/// numpy and CUDA 13's libraries of the Python packages.
const WHEELS: &str = "-m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp \
                      --platform manylinux_2_34_x86_64 --platform manylinux_2_28_x86_64 \
                      --platform manylinux_2_17_x86_64 OpenMM==8.6.1 OpenMM-CUDA-13==8.6.1 nvshmem4py-cu13==0.4.1 \
                      pyopencl==2026.1.4 pytools==2026.1.1 platformdirs==4.14.8 siphash24==1.9 tinygrad==0.14.0 --dest";
/// What runs OpenMM, PyTorch and others; and the script that the plugin expects beside the
/// prologue.
const SCRIPTS: [&str; 7] = [
    "tests/hardware/dynamics.py",
    "tests/hardware/inference.py",
    "tests/hardware/recipes.py",
    "tests/hardware/programs.py",
    "tests/hardware/programs_driver.py",
    "tests/hardware/programs.cu",
    "etc/slurm/mps-task-prolog",
];

/// Runs the contract suite, one whole job, the times and a real Slurm against the GPU of this
/// machine.
///
/// No setting of the GPU is changed (`compute_mode = "keep"`). The result is in `.hardware/out`;
/// pages name those that are kept in `tests/hardware/results`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Build everything into DIR instead, for a machine without cargo: there run 'DIR/hardware all
    /// --out RESULTS'
    #[arg(long, value_name = "DIR")]
    pack: Option<PathBuf>,
    /// Pack no Slurm packages
    #[arg(long, requires = "pack")]
    no_slurm: bool,
    /// Also pack an earlier build's mps-prologue, mps-epilogue and mpsd from DIR: 'pairs' measures
    /// them in turn with these
    #[arg(long, value_name = "DIR")]
    before: Option<PathBuf>,
    /// Pack OpenMM and other Python packages as well, for the parts 'gain', 'several', 'shared' and
    /// 'programs'
    #[arg(long)]
    wheels: bool,
    /// Arguments for the 'hardware' program, 'all' if there are none
    #[arg(last = true, default_values_t = ["all".to_owned()])]
    arguments: Vec<String>,
}

pub fn run(options: &Options) -> Result<()> {
    if let Some(directory) = &options.pack {
        return pack(directory, options, !options.no_slurm);
    }
    if !Path::new("/dev/nvidiactl").exists() {
        bail!(
            "this machine has no NVIDIA GPU ('/dev/nvidiactl' is missing): pack with 'cargo xtask hardware --pack DIR' and \
             run 'DIR/hardware' on one that has"
        );
    }
    let package = std::path::absolute(".hardware")?;
    pack(&package, options, false)?;
    let out = package.join("out");
    let mut command = Command::new(package.join("hardware"));
    command.args(&options.arguments).arg("--out").arg(&out);
    let status = command.status().context("cannot start 'hardware'")?;
    println!("result: {}", out.join("hardware.toml").display());
    match status.success() {
        true => Ok(()),
        false => bail!("'hardware' ended with {status}"),
    }
}

fn pack(directory: &Path, options: &Options, slurm: bool) -> Result<()> {
    fs::create_dir_all(directory)?;
    let mut built = cargo::built(BUILD)?;
    built.extend(cargo::built(TEST)?);
    for name in PROGRAMS.split(' ').chain([CONTRACT]) {
        put(&built, name, directory)?;
    }
    if let Some(before) = &options.before {
        let to = directory.join("before");
        fs::create_dir_all(&to)?;
        for name in ["mps-prologue", "mps-epilogue", "mpsd"] {
            fs::copy(before.join(name), to.join(name))?;
        }
    }
    for script in SCRIPTS {
        let name = Path::new(script).file_name().unwrap_or_default();
        fs::copy(script, directory.join(name))?;
    }
    if options.wheels {
        quietly(command("python3", WHEELS).arg(directory.join("wheels")))?;
    }
    if slurm {
        slurm_packages(&directory.join("debs"))?;
    }
    let directory = directory.display();
    println!("packed '{directory}': run '{directory}/hardware all --out RESULTS' as root");
    Ok(())
}

/// Puts what was `built` under the file name `name`, with or without `lib`, into `directory`.
fn put(built: &BTreeMap<String, PathBuf>, name: &str, directory: &Path) -> Result<()> {
    let file = built.get(name).or_else(|| built.get(&format!("lib{name}")));
    let file = file.with_context(|| format!("cargo built no '{name}'"))?;
    let to = directory.join(name);
    // A running program's file cannot be overwritten, but it can be replaced.
    let _ = fs::remove_file(&to);
    fs::copy(file, &to)?;
    // The package travels without the debug information.
    quietly(Command::new("strip").arg("--strip-unneeded").arg(&to))
}

fn slurm_packages(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    let there = list(directory)?;
    let there = there.iter().filter(|file| is_a(file, "deb")).count();
    if there >= SLURM.split(' ').count() {
        return Ok(());
    }
    let mut download = command("apt-get", &format!("-qq download {SLURM}"));
    quietly(download.current_dir(directory)).context("pack with --no-slurm to leave Slurm out")
}

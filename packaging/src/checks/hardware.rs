//! `cargo xtask hardware`: the project against the GPU of this machine, or a package for a machine without cargo.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// Packages of Debian 12 that carry a Slurm to a machine without one; unpacked there, never installed.
const SLURM: [&str; 12] = [
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "munge",
    "libmunge2",
    "libhwloc15",
    "libjson-c5",
    "liblua5.1-0",
    "libnuma1",
    "libyaml-0-2",
    "libdbus-1-3",
];

/// Programs of the package: name there, crate, kind of its target, name of the target.
const PROGRAMS: [(&str, &str, &str); 9] = [
    ("hardware", "bin", "hardware"),
    ("slurm-warden", "bin", "slurm-warden"),
    ("cuda-load", "bin", "cuda-load"),
    ("mpsd", "bin", "mpsd"),
    ("mpsctl", "bin", "mpsctl"),
    ("mps-probe", "bin", "mps-probe"),
    ("mps-prologue", "bin", "mps-prologue"),
    ("mps-epilogue", "bin", "mps-epilogue"),
    ("spank_mps.so", "cdylib", "spank_mps"),
];

/// What measures the plugin on simulated nodes, under cargo's own names in the folder `bench`: name, kind of its target, its name.
const BENCH: [(&str, &str, &str); 10] = [
    ("bench-srun", "bin", "bench-srun"),
    ("slurm-warden", "bin", "slurm-warden"),
    ("fake-mps-control", "bin", "fake-mps-control"),
    ("fake-cuda-client", "bin", "fake-cuda-client"),
    ("libnvml_stub.so", "cdylib", "nvml_stub"),
    ("libcontainer_stub.so", "cdylib", "container_stub"),
    ("libspank_mps.so", "cdylib", "spank_mps"),
    ("mpsd", "bin", "mpsd"),
    ("mps-prologue", "bin", "mps-prologue"),
    ("mps-epilogue", "bin", "mps-epilogue"),
];

/// The crates of all these.
const CRATES: [&str; 7] = [
    "mpsd",
    "prologue",
    "epilogue",
    "spank",
    "tests",
    "nvml-stub",
    "container-stub",
];

/// OpenMM and its CUDA plugin, for a machine with Python 3.12, numpy and CUDA 13's libraries of the Python packages.
const OPENMM: [&str; 2] = ["OpenMM==8.6.1", "OpenMM-CUDA-13==8.6.1"];
const OPENMM_FOR: [&str; 8] = [
    "--no-deps",
    "--only-binary=:all:",
    "--python-version",
    "3.12",
    "--implementation",
    "cp",
    "--platform",
    "manylinux_2_34_x86_64",
];
/// What runs it, and PyTorch and others.
const WORKLOADS: [&str; 3] = [
    "tests/hardware/dynamics.py",
    "tests/hardware/inference.py",
    "tests/hardware/recipes.py",
];
/// The contract suite, a test program.
const CONTRACT: &str = "contract";
/// The script that the plugin looks for beside the prologue.
const SCRIPT: &str = "etc/slurm/mps-task-prolog";

/// Runs the contract suite, one whole job, the times and a real Slurm against the GPU of this machine.
///
/// No setting of the GPU is changed (`compute_mode = "keep"`). The result is written to `tests/hardware/results`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Build everything into DIR instead, for a machine without cargo: there run 'DIR/hardware all --out RESULTS'
    #[arg(long, value_name = "DIR")]
    pack: Option<PathBuf>,
    /// Build with the dev profile: faster to build, slower to start
    #[arg(long)]
    dev: bool,
    /// Pack no Slurm packages
    #[arg(long, requires = "pack")]
    no_slurm: bool,
    /// Pack OpenMM as well, for the parts 'gain' and 'several'
    #[arg(long)]
    openmm: bool,
    /// Arguments for the 'hardware' program, 'all' if there are none
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Carries the subcommand out in the workspace at `root`.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    if let Some(directory) = &options.pack {
        return pack(root, directory, options, !options.no_slurm);
    }
    if !Path::new("/dev/nvidiactl").exists() {
        bail!(
            "this machine has no NVIDIA GPU ('/dev/nvidiactl' is missing): pack with 'cargo xtask hardware --pack DIR' and \
             run 'DIR/hardware' on one that has"
        );
    }
    let package = root.join(".hardware");
    pack(root, &package, options, false)?;
    let out = package.join("out");
    let mut command = Command::new(package.join("hardware"));
    let part = if options.arguments.is_empty() {
        vec!["all".to_owned()]
    } else {
        options.arguments.clone()
    };
    let status = command
        .args(part)
        .arg("--out")
        .arg(&out)
        .status()
        .context("cannot start 'hardware'")?;
    let kept = keep(root, &out)?;
    tell(&format!("result: {}", kept.display()))?;
    if !status.success() {
        bail!("'hardware' ended with {status}");
    }
    Ok(())
}

/// Copies the result to its dated place.
fn keep(root: &Path, out: &Path) -> Result<PathBuf> {
    let file = out.join("hardware.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("no result '{}'", file.display()))?;
    let result: toml::Table = toml::from_str(&text).with_context(|| format!("'{}'", file.display()))?;
    let date = result
        .get("date")
        .and_then(|date| date.as_str())
        .unwrap_or("undated");
    let gpu = result
        .get("machine")
        .and_then(|machine| machine.get("gpu_0"))
        .and_then(|gpu| gpu.as_str());
    let results = root.join("tests/hardware/results");
    fs::create_dir_all(&results)?;
    let kept = results.join(file_name(date, gpu.unwrap_or("gpu")));
    fs::copy(&file, &kept).with_context(|| format!("cannot write '{}'", kept.display()))?;
    Ok(kept)
}

/// `2026-11-21-nvidia-h200.toml`
fn file_name(date: &str, gpu: &str) -> String {
    let day = date.split('T').next().unwrap_or(date);
    let words: Vec<String> = gpu
        .split_whitespace()
        .take_while(|word| !word.starts_with(|c: char| c.is_ascii_digit()))
        .map(str::to_lowercase)
        .collect();
    format!("{day}-{}.toml", words.join("-"))
}

fn pack(root: &Path, directory: &Path, options: &Options, slurm: bool) -> Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot make '{}'", directory.display()))?;
    let profile: &[&str] = if options.dev { &[] } else { &["--release"] };
    let packed = || PROGRAMS.into_iter().chain(BENCH);
    let bins: BTreeSet<&str> = packed()
        .filter(|program| program.1 == "bin")
        .map(|program| program.2)
        .collect();
    let mut wanted = vec!["build", "--lib"];
    wanted.extend(CRATES.iter().flat_map(|name| ["-p", name]));
    wanted.extend(bins.iter().flat_map(|name| ["--bin", name]));
    let mut built = build(root, &[&wanted[..], profile].concat())?;
    built.extend(build(
        root,
        &[&["test", "--no-run", "-p", "tests", "--test", CONTRACT], profile].concat(),
    )?);
    let contract = (CONTRACT, "test", CONTRACT);
    for program in PROGRAMS.into_iter().chain([contract]) {
        put(&built, program, directory)?;
    }
    let bench = directory.join("bench");
    fs::create_dir_all(&bench).with_context(|| format!("cannot make '{}'", bench.display()))?;
    for program in BENCH {
        put(&built, program, &bench)?;
    }
    for script in WORKLOADS.into_iter().chain([SCRIPT]) {
        let name = script.rsplit('/').next().unwrap_or(script);
        fs::copy(root.join(script), directory.join(name))
            .with_context(|| format!("cannot copy '{script}'"))?;
    }
    if options.openmm {
        openmm(&directory.join("wheels"))?;
    }
    if slurm {
        slurm_packages(&directory.join("debs"))?;
    }
    tell(&format!(
        "packed '{}': run '{}/hardware all --out RESULTS' as root",
        directory.display(),
        directory.display()
    ))
}

/// Puts one of the things that were `built` into `directory`.
fn put(
    built: &BTreeMap<(String, String), PathBuf>,
    (name, kind, target): (&str, &str, &str),
    directory: &Path,
) -> Result<()> {
    let file = built
        .get(&(kind.to_owned(), target.to_owned()))
        .with_context(|| format!("cargo built no {kind} '{target}'"))?;
    let to = directory.join(name);
    // A running copy cannot be written over, but it can be replaced.
    let _ = fs::remove_file(&to);
    fs::copy(file, &to).with_context(|| format!("cannot copy '{}' to '{}'", file.display(), to.display()))?;
    strip(&to)
}

/// Runs cargo; what it built, by kind and name of the target.
fn build(root: &Path, arguments: &[&str]) -> Result<BTreeMap<(String, String), PathBuf>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut child = Command::new(cargo)
        .args(arguments)
        .arg("--message-format=json-render-diagnostics")
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start cargo")?;
    let mut built = BTreeMap::new();
    let stdout = child.stdout.take().context("cargo has no standard output")?;
    for line in BufReader::new(stdout).lines() {
        let message: Value = serde_json::from_str(&line?).context("cargo's message")?;
        if message["reason"] == "compiler-artifact" {
            artifact(&message, &mut built);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("'cargo {}' failed: {status}", arguments.join(" "));
    }
    Ok(built)
}

fn artifact(message: &Value, built: &mut BTreeMap<(String, String), PathBuf>) {
    let target = &message["target"];
    let name = target["name"].as_str().unwrap_or("").to_owned();
    for kind in target["kind"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
    {
        let shared = message["filenames"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let file = match kind {
            "cdylib" => shared.into_iter().find(|file| file.ends_with(".so")),
            _ => message["executable"].as_str(),
        };
        if let Some(file) = file {
            built.insert((kind.to_owned(), name.clone()), file.into());
        }
    }
}

/// Takes the debug information out: the package travels.
fn strip(file: &Path) -> Result<()> {
    let status = Command::new("strip")
        .arg("--strip-unneeded")
        .arg(file)
        .status()
        .context("cannot start 'strip' (binutils)")?;
    if !status.success() {
        bail!("'strip {}' failed: {status}", file.display());
    }
    Ok(())
}

fn slurm_packages(directory: &Path) -> Result<()> {
    fs::create_dir_all(directory)?;
    let there = fs::read_dir(directory)?
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "deb"));
    if there.count() >= SLURM.len() {
        return Ok(());
    }
    let status = Command::new("apt-get")
        .args(["-qq", "download"])
        .args(SLURM)
        .current_dir(directory)
        .status()
        .context("cannot start 'apt-get': pack with --no-slurm on a machine without it")?;
    if !status.success() {
        bail!("'apt-get download' failed: {status}; pack with --no-slurm to leave Slurm out");
    }
    Ok(())
}

fn openmm(directory: &Path) -> Result<()> {
    let status = Command::new("python3")
        .args(["-m", "pip", "download", "-q", "--dest"])
        .arg(directory)
        .args(OPENMM_FOR)
        .args(OPENMM)
        .status()
        .context("cannot start 'python3'")?;
    if !status.success() {
        bail!("'pip download' failed: {status}");
    }
    Ok(())
}

fn tell(line: &str) -> Result<()> {
    use std::io::Write as _;
    Ok(writeln!(std::io::stdout().lock(), "{line}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_named_by_day_and_gpu() {
        let name = file_name(
            "2026-11-21T04:40:00Z",
            "NVIDIA H200 143771 MiB, compute mode Default",
        );
        assert_eq!(name, "2026-11-21-nvidia-h200.toml");
    }

    #[test]
    fn artifacts_are_found_by_kind_and_name() {
        let mut built = BTreeMap::new();
        let bin = serde_json::json!({"target": {"kind": ["bin"], "name": "mpsd"}, "executable": "/t/mpsd", "filenames": ["/t/mpsd"]});
        let plugin = serde_json::json!({"target": {"kind": ["cdylib"], "name": "spank_mps"}, "executable": null,
            "filenames": ["/t/libspank_mps.so"]});
        artifact(&bin, &mut built);
        artifact(&plugin, &mut built);
        assert_eq!(built[&("bin".into(), "mpsd".into())], PathBuf::from("/t/mpsd"));
        assert_eq!(
            built[&("cdylib".into(), "spank_mps".into())],
            PathBuf::from("/t/libspank_mps.so")
        );
    }
}

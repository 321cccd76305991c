//! `cargo xtask fuzz`: every fuzz target under libFuzzer, by cargo-fuzz.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use toml::Table;

use crate::{cargo, command};

/// Time to build all targets.
const BUILD: Duration = Duration::from_secs(1200);
/// What one target may take beyond its time: its corpus is read first.
const MARGIN: Duration = Duration::from_secs(120);
/// How libFuzzer names its count in the statistics at its end.
const EXECUTIONS: &str = "stat::number_of_executed_units:";

/// Fuzzes the request grammar, the configuration, the control daemon's answers, the server's log, what the schedulers hand
/// over, and our own files. What breaks something is kept in 'fuzz/artifacts'.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// This target alone; more than once: these
    #[arg(long)]
    target: Vec<String>,
}

/// Builds and runs them one after another.
pub fn run(options: &Options) -> Result<()> {
    let root = cargo::root()?;
    let targets = chosen(&options.target, targets(&root)?)?;
    build()?;
    let built = Built::found(&root)?;
    let mut all = 0;
    for target in &targets {
        let count = one(&root, &built, target, options.seconds)?;
        println!(
            "{target}: {count} executions in {} s, nothing broke",
            options.seconds
        );
        all += count;
    }
    println!("{all} executions, nothing broke");
    Ok(())
}

/// The programs of the fuzz crate.
fn targets(root: &Path) -> Result<Vec<String>> {
    let file = root.join("fuzz/Cargo.toml");
    let text = fs::read_to_string(&file).with_context(|| format!("'{}'", file.display()))?;
    let manifest: Table = toml::from_str(&text).with_context(|| format!("'{}'", file.display()))?;
    let bins = manifest.get("bin").and_then(|bins| bins.as_array());
    let names = bins
        .into_iter()
        .flatten()
        .filter_map(|bin| bin.get("name")?.as_str());
    Ok(names.map(str::to_owned).collect())
}

fn chosen(wanted: &[String], all: Vec<String>) -> Result<Vec<String>> {
    if let Some(unknown) = wanted.iter().find(|name| !all.contains(name)) {
        bail!("no fuzz target '{unknown}'; there are: {}", all.join(", "));
    }
    Ok(if wanted.is_empty() { all } else { wanted.to_vec() })
}

/// Cargo-fuzz with the compiler of this workspace, whose unstable options it needs. No sanitizer: what is fuzzed has no
/// unsafe code (the suite's architecture tests hold it), and without one it is many times faster.
fn build() -> Result<()> {
    let mut command = cargo::command(&["fuzz", "build", "--sanitizer", "none"]);
    command.env("RUSTC_BOOTSTRAP", "1");
    let status = command::lines(&mut command, BUILD, |line| println!("{line}"))?;
    if !status.success() {
        bail!(
            "the fuzz targets cannot be built ({status}); 'cargo install cargo-fuzz' if cargo knows no command 'fuzz'"
        );
    }
    Ok(())
}

/// Where cargo-fuzz builds.
struct Built {
    target: PathBuf,
    programs: PathBuf,
}

impl Built {
    fn found(root: &Path) -> Result<Self> {
        let manifest = root.join("fuzz/Cargo.toml").display().to_string();
        let arguments = [
            "metadata",
            "--no-deps",
            "--format-version=1",
            "--manifest-path",
            &manifest,
        ];
        let output = cargo::command(&arguments)
            .output()
            .context("cannot start cargo")?;
        let metadata: serde_json::Value =
            serde_json::from_slice(&output.stdout).context("'cargo metadata' gave no JSON")?;
        let target = metadata["target_directory"]
            .as_str()
            .context("no target directory")?;
        let target = PathBuf::from(target);
        Ok(Self {
            programs: target.join(host()?).join("release"),
            target,
        })
    }
}

/// The platform that rustc builds for.
fn host() -> Result<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .arg("-vV")
        .output()
        .context("cannot start rustc")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("'rustc -vV' names no host")?.to_owned())
}

/// Runs one target; how often it ran. New inputs go to a directory beside the builds, what breaks it to 'fuzz/artifacts'.
fn one(root: &Path, built: &Built, target: &str, seconds: u64) -> Result<u64> {
    let found = built.target.join("corpus").join(target);
    let artifacts = root.join("fuzz/artifacts").join(target);
    for directory in [&found, &artifacts] {
        fs::create_dir_all(directory)?;
    }
    let mut command = Command::new(built.programs.join(target));
    command
        .arg(&found)
        .arg(root.join("fuzz/corpus").join(target))
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .arg(format!("-max_total_time={seconds}"))
        .args(["-timeout=10", "-max_len=4096", "-rss_limit_mb=2048"])
        .args(["-print_final_stats=1", "-verbosity=0"]);
    let mut count = None;
    let mut said = Vec::new();
    let status = command::lines(&mut command, Duration::from_secs(seconds) + MARGIN, |line| {
        count = executions(line).or(count);
        said.push(line.to_owned());
    })?;
    match count {
        Some(count) if status.success() => Ok(count),
        _ => bail!(
            "{target}: {status}; what broke it is kept in '{}'\n{}",
            artifacts.display(),
            said.join("\n")
        ),
    }
}

fn executions(line: &str) -> Option<u64> {
    line.strip_prefix(EXECUTIONS)?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_targets_and_refuses_an_unknown_one() {
        let all = targets(&cargo::root().unwrap()).unwrap();
        assert!(all.iter().any(|name| name == "request"), "{all:?}");
        assert_eq!(chosen(&[], all.clone()).unwrap(), all);
        assert_eq!(chosen(&["request".to_owned()], all.clone()).unwrap(), ["request"]);
        let error = chosen(&["requests".to_owned()], all).unwrap_err().to_string();
        assert!(
            error.contains("'requests'") && error.contains("server_log"),
            "{error}"
        );
    }

    #[test]
    fn reads_libfuzzers_count() {
        assert_eq!(
            executions("stat::number_of_executed_units: 337305"),
            Some(337_305)
        );
        assert_eq!(executions("stat::average_exec_per_sec:     5529"), None);
        assert_eq!(executions("Done 337305 runs in 61 second(s)"), None);
    }
}

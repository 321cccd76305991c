//! `cargo xtask matrices`: the crash, kill and fault matrices alone, and how much they tried. `cargo xtask matrix slurm`: the
//! site matrix alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::{cargo, command};

/// Longest that all of them may take.
const LONGEST: Duration = Duration::from_secs(1500);
/// The suite's modules with figures.
const MODULES: [&str; 7] = [
    "crash::",
    "evidence::",
    "hostile::",
    "kills::",
    "faults::",
    "scarce::",
    "supervision::",
];

/// Runs them, and adds up how much they tried: their lines `figure: NAME = COUNT`.
pub fn run() -> Result<()> {
    cargo::build(&["build", "--workspace", "--lib", "--bins"])?;
    let mut arguments = vec!["test", "--package", "tests", "--test", "suite", "--"];
    arguments.extend(MODULES);
    arguments.push("--nocapture");
    let mut tried = BTreeMap::<String, u64>::new();
    let status = command::lines(&mut cargo::command(&arguments), LONGEST, |line| {
        println!("{line}");
        // Libtest puts a test's name before the first line that it prints.
        let figure = line
            .split_once("figure: ")
            .and_then(|(_, rest)| rest.split_once(" = "));
        if let Some((name, count)) = figure {
            *tried.entry(name.to_owned()).or_default() += count.trim().parse().unwrap_or(0);
        }
    })?;
    for (name, count) in tried {
        println!("{name:<24} {count}");
    }
    if !status.success() {
        bail!("a matrix failed ({status})");
    }
    Ok(())
}

/// A matrix of its own.
#[derive(Debug, clap::Subcommand)]
pub enum Matrix {
    /// Jobs of every kind on clusters of every kind, with MPS, without, and without the plugin.
    Slurm {
        /// The Slurm to run, configured with --enable-multiple-slurmd, as 'make install' laid it out [default: the machine's own]
        #[arg(long)]
        prefix: Option<PathBuf>,
        /// A system with the Slurm to run, as debootstrap makes it; nothing is written into it
        #[arg(long, conflicts_with = "prefix")]
        root: Option<PathBuf>,
        /// Name the cells and run none
        #[arg(long)]
        list: bool,
        /// Run the cells whose names hold one of these words
        #[arg(default_values_t = ["site_matrix::".to_owned()])]
        cells: Vec<String>,
    },
}

impl Matrix {
    /// Whether it needs the machine's own Slurm.
    pub fn needs_slurm(&self) -> bool {
        let Matrix::Slurm {
            prefix, root, list, ..
        } = self;
        prefix.is_none() && root.is_none() && !list
    }
}

/// Runs one.
pub fn run_one(matrix: &Matrix) -> Result<()> {
    let Matrix::Slurm {
        prefix,
        root,
        list,
        cells,
    } = matrix;
    cargo::build(&["build", "--workspace", "--lib", "--bins"])?;
    let mut run = match root {
        Some(root) => in_system(root)?,
        None => cargo::command(TESTS),
    };
    run.arg("--").args(cells);
    if let Some(prefix) = prefix {
        run.arg("--prefix").arg(prefix);
    }
    if *list {
        run.arg("--list");
    }
    let status = command::lines(&mut run, LONGEST, |line| println!("{line}"))?;
    if !status.success() {
        bail!("the matrix failed ({status})");
    }
    Ok(())
}

/// The cells on a real Slurm; their words follow.
const TESTS: &[&str] = &["test", "--locked", "--package", "tests", "--test", "slurm"];

/// Starts a test program in a system: a file system in memory over it, with this machine's processes, devices, cgroups,
/// repository and build.
/// On one line, because it stands in a value of cargo's configuration.
const IN_SYSTEM: &str = "root=$1 repository=$2 build=$3; shift 3; place=$build/tmp/matrix-root; mkdir -p $place; \
    mount -t tmpfs -o mode=755 none $place; mkdir -m 755 $place/upper $place/work $place/root; \
    mount -t overlay -o lowerdir=$root,upperdir=$place/upper,workdir=$place/work overlay $place/root; \
    for one in proc sys dev; do mount --rbind /$one $place/root/$one; done; \
    for one in $repository $build; do mkdir -p $place/root$one; mount --bind $one $place/root$one; done; \
    echo 127.0.0.1 localhost $(uname -n) > $place/root/etc/hosts; \
    exec chroot $place/root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin $*";

/// `cargo test` of the cells in the system in `root`, whose Slurm they run.
pub fn in_system(root: &Path) -> Result<Command> {
    let root = root
        .canonicalize()
        .with_context(|| format!("no system in '{}'", root.display()))?;
    let build = cargo::target_directory()?;
    let before = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-ec",
        IN_SYSTEM,
        "sh",
    ];
    let places = [root, cargo::root()?, build].map(|dir| dir.display().to_string());
    let words = before.into_iter().chain(places.iter().map(String::as_str));
    let quoted: Vec<String> = words.map(|word| format!("'{word}'")).collect();
    let mut run = cargo::command(TESTS);
    run.arg("--config")
        .arg(format!("target.'cfg(all())'.runner = [{}]", quoted.join(", ")));
    Ok(run)
}

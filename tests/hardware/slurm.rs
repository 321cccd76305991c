//! A real Slurm beside the real GPU. What the machine lacks of Slurm is copied in, and removed
//! again.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ::tests::child;
use ::tests::double::remove_cgroup;
use ::tests::samples::milliseconds;
use ::tests::slurm::{Bed, Gpus, Options, unified};
use anyhow::{Context, Result, ensure};

use crate::job;
use crate::result::Section;
use crate::runner::Scene;
use crate::site::{self, PACK, Run};

pub fn start(section: &mut Section, run: &Run, options: Options) -> Result<Bed> {
    let config = job::configure(&run.place, "")?;
    let mut bed = Bed::create(options)?;
    let plugin = run.place.staged("spank_mps.so")?;
    bed.options_mut().load(&plugin, &config, &run.place.bin(""));
    let begin = Instant::now();
    let up = bed.start();
    if up.is_err() {
        section.fact("slurmd_log", tail(&bed.log("node1")));
        section.fact("slurmd_output", tail(&bed.log("node1.out")));
    }
    up.with_context(|| format!("Slurm did not come up:\n{}", bed.situation()))?;
    section.fact("slurm_up_ms", milliseconds(begin.elapsed()));
    let version = bed.root(&["scontrol", "--version"])?.stdout;
    section.fact("version", version.trim());
    Ok(bed)
}

pub fn one_gpu(run: &Run) -> Options {
    Options {
        nodes: 1,
        cpus: 16,
        gpus: Gpus::Real(vec![run.number as u32]),
        ..Options::default()
    }
}

pub fn two_gpus(run: &Run) -> Options {
    Options {
        gpus: Gpus::Real((0..run.gpus.len().min(2) as u32).collect()),
        ..one_gpu(run)
    }
}

/// One node with all GPUs and cores of the machine.
pub fn all_gpus(run: &Run) -> Options {
    Options {
        cpus: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
        gpus: Gpus::Real((0..run.gpus.len() as u32).collect()),
        ..one_gpu(run)
    }
}

pub fn nothing_left(scene: &mut Scene<'_>) -> Result<()> {
    let (bed, _) = scene.bed()?;
    bed.wait_idle(COMMAND)?;
    let state = bed.node_state("node1")?.state;
    let name = "the node is idle and not drained";
    scene.check(name, state == "IDLE", state);
    let left = bed.wait_clean(COMMAND).err().map(|left| left.to_string());
    let none = left.is_none();
    scene.check("nothing left of the jobs", none, left.unwrap_or_default());
    Ok(())
}

pub fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Made and removed again if systemd has made none.
const SLICE: &str = "/sys/fs/cgroup/system.slice";

const COMMAND: Duration = Duration::from_secs(60);

const PLAIN: [&str; 3] = ["slurmctld", "slurmd", "slurmstepd"];

#[derive(Debug, Default)]
pub struct Debs {
    /// Files and directories, each behind its directory.
    made: Vec<PathBuf>,
    hosts: Option<Vec<u8>>,
    slice: bool,
}

impl Debs {
    /// Unpacks every `.deb` of `from`, unless the machine has a Slurm of its own.
    pub fn install(from: &Path) -> Result<Self> {
        let mut brought = Self::default();
        brought.name_this_host()?;
        brought.slice = unified() && fs::create_dir(SLICE).is_ok();
        if site::program("slurmctld").is_ok() && site::program("munged").is_ok() {
            return Ok(brought);
        }
        let dpkg = site::program("dpkg")?;
        let scratch = tempfile::tempdir().context("no directory for the packages")?;
        let entries = fs::read_dir(from).into_iter().flatten().flatten();
        let debs = entries.map(|entry| entry.path());
        let debs = debs.filter(|file| file.extension().is_some_and(|kind| kind == "deb"));
        let debs: Vec<PathBuf> = debs.collect();
        ensure!(
            !debs.is_empty(),
            "no packages in '{}': {PACK}",
            from.display()
        );
        for file in &debs {
            let mut unpack = Command::new(&dpkg);
            unpack.arg("-x").arg(file).arg(scratch.path());
            child::run(&mut unpack, "", COMMAND)?.success()?;
        }
        brought.copy_missing(scratch.path(), Path::new("/"))?;
        for name in PLAIN {
            let plain = Path::new("/usr/sbin").join(name);
            if plain.symlink_metadata().is_err() {
                symlink(format!("{name}-wlm"), &plain)?;
                brought.made.push(plain);
            }
        }
        brought.refresh_loader()?;
        Ok(brought)
    }

    fn copy_missing(&mut self, from: &Path, to: &Path) -> Result<()> {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            let target = to.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !target.exists() {
                    fs::create_dir(&target)?;
                    self.made.push(target.clone());
                }
                self.copy_missing(&entry.path(), &target)?;
            } else if target.symlink_metadata().is_err() {
                self.made.push(target.clone());
                if kind.is_symlink() {
                    symlink(fs::read_link(entry.path())?, &target)?;
                } else {
                    fs::copy(entry.path(), &target)?;
                    let mode = entry.metadata()?.permissions().mode() & 0o755;
                    fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
                }
            }
        }
        Ok(())
    }

    fn name_this_host(&mut self) -> Result<()> {
        use std::net::ToSocketAddrs as _;
        let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
        if (host.as_str(), 0).to_socket_addrs().is_ok() {
            return Ok(());
        }
        let file = "/etc/hosts";
        self.hosts = Some(fs::read(file).unwrap_or_default());
        let mut hosts = fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file)?;
        writeln!(hosts, "\n127.0.0.1 {host}").with_context(|| format!("cannot write '{file}'"))
    }

    fn refresh_loader(&self) -> Result<()> {
        child::run(&mut Command::new(site::program("ldconfig")?), "", COMMAND)?.success()?;
        Ok(())
    }
}

impl Drop for Debs {
    fn drop(&mut self) {
        if let Some(hosts) = &self.hosts {
            let _ = fs::write("/etc/hosts", hosts);
        }
        for path in self.made.iter().rev() {
            let _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path));
        }
        if !self.made.is_empty() {
            let _ = self.refresh_loader();
        }
        if self.slice {
            // Slurm leaves its empty groups behind.
            let _ = remove_cgroup(Path::new(SLICE));
        }
    }
}

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
use ::tests::slurm::{Bed, Gpus, Options, User, unified};
use anyhow::{Context, Result, bail};

use crate::clients::{self, CLIENTS};
use crate::result::Section;
use crate::site::Run;
use crate::{job, site};

const SRUN: Duration = Duration::from_secs(90);

/// How often the job runs: the first run also brings the programs into the page cache.
const RUNS: usize = 3;

pub fn run(section: &mut Section, run: &Run) -> Result<()> {
    let options = options(vec![run.number as u32]);
    on_bed(section, run, options, |section, bed, user| {
        (0..RUNS).try_for_each(|number| one(section, run, bed, user, number))?;
        // srun returns before the epilog has run; until then the node is COMPLETING.
        let state = || Ok::<_, anyhow::Error>(bed.node_state("node1")?.state);
        let is_idle = || state().is_ok_and(|state| state == "IDLE");
        child::until(Duration::from_secs(20), Duration::from_millis(100), is_idle)?;
        let state = state()?;
        section.check("the node is idle and not drained", state == "IDLE", state);
        let left = bed.left_behind();
        section.none("nothing left of the jobs", &left);
        Ok(())
    })
}

pub fn on_bed<T>(
    section: &mut Section,
    run: &Run,
    options: Options,
    act: impl FnOnce(&mut Section, &Bed, &User) -> Result<T>,
) -> Result<T> {
    let _slurm = Debs::install(&run.package.join("debs"))?;
    let place = &run.place;
    let config = job::config(place)?;
    let mut bed = Bed::create(options)?;
    let plugin = place.staged("spank_mps.so")?;
    bed.options_mut().load(&plugin, &config, &place.bin(""));
    start(section, &bed)?;
    let user = User::named(&run.place.user.name)?;
    let outcome = act(section, &bed, &user);
    if outcome.is_err() {
        section.fact("slurmd_log", tail(&bed.log("node1")));
    }
    let outcome = outcome?;
    let forced = bed.end()?;
    section.none("Slurm ended by itself", &forced);
    Ok(outcome)
}

fn start(section: &mut Section, bed: &Bed) -> Result<()> {
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
    Ok(())
}

pub fn options(minors: Vec<u32>) -> Options {
    Options {
        nodes: 1,
        cpus: CLIENTS as u32,
        gpus: Gpus::Real(minors),
        ..Options::default()
    }
}

fn one(section: &mut Section, run: &Run, bed: &Bed, user: &User, number: usize) -> Result<()> {
    let (place, limits) = (&run.place, &run.limits);
    let probe = place.staged("mps-probe")?.display().to_string();
    let tasks = format!("-n{CLIENTS}");
    let mut words = vec!["--gres=gpu:1", "--mps", "--mps-threads=25", "--mps-mem=4G"];
    words.extend([&*tasks, &probe]);
    let options = limits.probe_options();
    words.extend(options.iter().map(String::as_str));
    let finished = bed.srun(user, &words, SRUN)?;
    section.fact(&format!("srun_{number}_ms"), finished.ms());
    let good = finished.code == Some(0);
    let story = match good {
        true => finished.what.clone(),
        false => format!("{}\n{}{}", finished.what, finished.stdout, finished.stderr),
    };
    section.check(format!("srun {number}"), good, story);
    let clients = clients::from_lines(&finished.stdout, finished.code);
    section.equal(
        format!("srun {number}: a report of each task"),
        &clients.len(),
        &CLIENTS,
    );
    clients::judge(section, &clients, limits);
    Ok(())
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Made and removed again if systemd has made none.
const SLICE: &str = "/sys/fs/cgroup/system.slice";

const COMMAND: Duration = Duration::from_secs(60);

const PLAIN: [&str; 3] = ["slurmctld", "slurmd", "slurmstepd"];

#[derive(Debug, Default)]
struct Debs {
    files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    hosts: Option<Vec<u8>>,
    slice: bool,
}

impl Debs {
    /// Unpacks every `.deb` of `from`, unless the machine has a Slurm of its own.
    fn install(from: &Path) -> Result<Self> {
        let mut brought = Self::default();
        brought.name_this_host()?;
        brought.slice = unified() && fs::create_dir(SLICE).is_ok();
        if site::program("slurmctld").is_ok() && site::program("munged").is_ok() {
            return Ok(brought);
        }
        let dpkg = site::program("dpkg")?;
        let scratch = tempfile::tempdir().context("no directory for the packages")?;
        let mut count = 0;
        for entry in
            fs::read_dir(from).with_context(|| format!("no packages in '{}'", from.display()))?
        {
            let file = entry?.path();
            if file.extension().is_some_and(|kind| kind == "deb") {
                let mut unpack = Command::new(&dpkg);
                unpack.arg("-x").args([&file, scratch.path()]);
                child::run(&mut unpack, "", COMMAND)?.success()?;
                count += 1;
            }
        }
        if count == 0 {
            bail!(
                "no packages in '{}': pack it again with 'cargo xtask hardware --pack DIR'",
                from.display()
            );
        }
        brought.copy_missing(scratch.path(), Path::new("/"))?;
        for name in PLAIN {
            let plain = Path::new("/usr/sbin").join(name);
            if plain.symlink_metadata().is_err() {
                symlink(format!("{name}-wlm"), &plain)?;
                brought.files.push(plain);
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
                    self.directories.push(target.clone());
                }
                self.copy_missing(&entry.path(), &target)?;
            } else if target.symlink_metadata().is_err() {
                self.files.push(target.clone());
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
        for file in self.files.iter().rev() {
            let _ = fs::remove_file(file);
        }
        for directory in self.directories.iter().rev() {
            let _ = fs::remove_dir(directory);
        }
        if !self.files.is_empty() {
            let _ = self.refresh_loader();
        }
        if self.slice {
            // Slurm leaves its empty groups behind.
            let _ = remove_cgroup(Path::new(SLICE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_brought_and_all_of_it_is_taken_away() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::create_dir_all(from.path().join("usr/lib")).unwrap();
        fs::write(from.path().join("usr/lib/new"), "deb").unwrap();
        fs::write(from.path().join("usr/there"), "deb").unwrap();
        fs::create_dir(to.path().join("usr")).unwrap();
        fs::write(to.path().join("usr/there"), "machine").unwrap();
        let mut brought = Debs::default();
        brought.copy_missing(from.path(), to.path()).unwrap();
        assert_eq!(
            fs::read_to_string(to.path().join("usr/lib/new")).unwrap(),
            "deb"
        );
        assert_eq!(
            fs::read_to_string(to.path().join("usr/there")).unwrap(),
            "machine"
        );
        assert_eq!(brought.files.len(), 1);
        // Without this machine's loader cache: the test brought no library.
        for file in brought.files.drain(..) {
            fs::remove_file(file).unwrap();
        }
        drop(brought);
        assert!(!to.path().join("usr/lib").exists());
        assert!(to.path().join("usr/there").exists());
    }
}

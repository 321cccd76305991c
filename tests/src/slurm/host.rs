//! What the bed takes from its host: directories, programs, ports, the host's name.

use std::fs;
use std::net::{TcpListener, ToSocketAddrs as _};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};

/// Everybody may pass.
pub fn fresh_directory(base: &str, prefix: &str) -> Result<PathBuf> {
    let dir = tempfile::TempDir::with_prefix_in(prefix, base);
    let dir = dir.with_context(|| format!("cannot make a directory in '{base}'"))?;
    let path = dir.keep();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Those that the slurmds will make and leave, in each hierarchy of cgroup v1.
pub(super) fn cgroups_of_slurmd(nodes: &[String]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let hierarchies = fs::read_dir("/sys/fs/cgroup").into_iter().flatten();
    for entry in hierarchies.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let own = |node: &String| entry.path().join(format!("slurm_{node}"));
            found.extend(nodes.iter().map(own).filter(|path| !path.exists()));
        }
    }
    found
}

/// One for each node, in the hierarchy without controllers. `None` if there is none for us.
pub(super) fn fresh_cgroup(run: &Path, nodes: &[String]) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let of_kind = |kind: &str| {
        let line = mounts.lines().find(|line| line.contains(kind))?;
        line.split(' ').nth(4).map(PathBuf::from)
    };
    let mount = of_kind(" - cgroup2 ").or_else(|| of_kind("name=systemd"))?;
    let cgroup = mount.join(run.file_name()?);
    fs::create_dir(&cgroup).ok()?;
    for node in nodes {
        fs::create_dir(cgroup.join(node)).ok()?;
    }
    Some(cgroup)
}

/// A program of this build: in the directory of the running one, or one above if that is a test.
pub fn program_beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let dirs = own.ancestors().skip(1).take(2);
    dirs.map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("program '{name}' is not built beside '{}'", own.display()))
}

static PREFIX: OnceLock<PathBuf> = OnceLock::new();

/// Slurm's programs in `PREFIX/sbin` and `PREFIX/bin`, not munged. Only the first call counts.
pub fn use_slurm_of(prefix: &Path) {
    let _ = PREFIX.set(prefix.to_owned());
}

pub(super) fn search_path() -> String {
    let own = PREFIX.get().map(|prefix| prefix.display());
    let own = own.map(|prefix| format!("{prefix}/sbin:{prefix}/bin:"));
    own.unwrap_or_default() + "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
}

pub(super) fn program(names: &[&str]) -> Result<String> {
    let dirs = search_path();
    let in_dir = |dir| names.iter().map(move |name| format!("{dir}/{name}"));
    let mut all = dirs.split(':').flat_map(in_dir);
    all.find(|path| Path::new(path).exists())
        .with_context(|| format!("'{}' is not installed: run 'cargo xtask setup'", names[0]))
}

/// The kernel gives none of these ports to a program that asks for any port, as `srun` does. So no
/// program takes one between our check and a daemon's start.
const PORTS: Range<u16> = 20_000..30_000;

pub(super) fn free_ports(count: usize) -> Result<Vec<u16>> {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    // Another process begins at another port.
    let begin = std::process::id().wrapping_mul(31);
    let length = u32::from(PORTS.end - PORTS.start);
    let next = || {
        let number = begin.wrapping_add(ASKED.fetch_add(1, Ordering::Relaxed)) % length;
        u16::try_from(number).map(|number| PORTS.start + number)
    };
    let mut found = Vec::new();
    for _ in 0..length {
        let port = next()?;
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            found.push(port);
        }
        if found.len() == count {
            return Ok(found);
        }
    }
    bail!("{count} free ports of {PORTS:?} are not to be had");
}

pub(super) fn resolves_to_loopback(host: &str) -> Result<bool> {
    let mut addresses = (host, 0)
        .to_socket_addrs()
        .with_context(|| format!("host name '{host}' does not resolve: add it to /etc/hosts"))?;
    Ok(addresses.all(|address| address.ip().is_loopback()))
}

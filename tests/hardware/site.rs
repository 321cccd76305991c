//! The machine: the places of NVIDIA's files, the account for the ordinary user, and a private
//! place to work in.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::{Pid, User};
use tests::child;
use tests::double::look::processes;
use tests::slurm::fresh_directory;

use crate::programs::ProgramOptions;
use crate::result::Section;

const PROGRAM_DIRS: &str = "/usr/bin:/usr/local/nvidia/bin:/usr/local/bin:/opt/nvidia/bin:/bin:/usr/sbin:/sbin:/usr/local/sbin";
const LIBRARY_DIRS: &str = "/usr/lib/x86_64-linux-gnu:/usr/lib64:/usr/local/nvidia/lib64:/usr/local/nvidia/lib:\
                            /usr/lib/aarch64-linux-gnu:/usr/lib:/lib/x86_64-linux-gnu";

pub const PACK: &str = "pack it again with 'cargo xtask hardware --pack DIR'";

/// The folder with an earlier build's programs, in the package and in the staged place.
pub const BEFORE: &str = "before";

pub fn program(name: &str) -> Result<PathBuf> {
    find(name, PROGRAM_DIRS, "PATH")
}

/// NVIDIA's management library by its absolute path, which needs no loader path.
pub fn nvml() -> Result<PathBuf> {
    find("libnvidia-ml.so.1", LIBRARY_DIRS, "LD_LIBRARY_PATH")
}

pub fn python() -> Result<PathBuf> {
    find("python3", "", "PATH")
}

fn find(name: &str, dirs: &str, variable: &str) -> Result<PathBuf> {
    let more = std::env::var_os(variable).unwrap_or_default();
    let all = std::env::split_paths(dirs).chain(std::env::split_paths(&more));
    let mut files = all
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name));
    let found = files.find(|file| file.is_file());
    found.with_context(|| {
        format!("'{name}' is not on this machine (searched '{dirs}' and {variable})")
    })
}

/// The ordinary user of the run. The account must exist; nothing is created.
pub fn user(name: &str) -> Result<User> {
    let user = User::from_name(name)?.with_context(|| format!("there is no account '{name}'"))?;
    if user.uid.is_root() {
        bail!("'{name}' is root: the job of the test is an ordinary user's");
    }
    Ok(user)
}

/// One GPU as `nvidia-smi` reports it: a witness independent of our code.
#[derive(Debug, Default, Clone)]
pub struct Gpu {
    pub uuid: String,
    pub name: String,
    pub driver: String,
    pub total_mib: u64,
    pub mode: String,
}

pub fn gpus() -> Result<Vec<Gpu>> {
    let fields = "--query-gpu=uuid,name,driver_version,memory.total,compute_mode";
    let text = smi(&[fields, "--format=csv,noheader,nounits"])?;
    let gpu = |line: &str| match line.split(", ").collect::<Vec<_>>()[..] {
        [uuid, name, driver, total, mode] => Some(Gpu {
            uuid: uuid.into(),
            name: name.into(),
            driver: driver.into(),
            total_mib: total.parse().ok()?,
            mode: mode.into(),
        }),
        _ => None,
    };
    let whole = |line| gpu(line).with_context(|| format!("nvidia-smi wrote '{line}'"));
    text.lines().map(whole).collect()
}

pub fn smi(arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(program("nvidia-smi")?);
    let ran = child::run(command.args(arguments), "", Duration::from_secs(30))?;
    Ok(ran.success()?.stdout)
}

pub struct Run {
    pub place: Place,
    pub gpus: Vec<Gpu>,
    pub number: usize,
    pub device_sms: u64,
    pub package: PathBuf,
    pub out: Option<PathBuf>,
    pub pairs: usize,
    pub programs: ProgramOptions,
}

impl Run {
    pub fn gpu(&self) -> &Gpu {
        &self.gpus[self.number]
    }

    pub fn keep(&self, name: &str, text: &str) -> Result<()> {
        let Some(out) = &self.out else { return Ok(()) };
        fs::create_dir_all(out)?;
        let file = out.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write '{}'", file.display()))
    }
}

/// A private place. When dropped it is removed, with every process that still names it.
#[derive(Debug)]
pub struct Place {
    /// Programs and configuration: root owns all directories above, and everybody may pass.
    pub dir: PathBuf,
    pub run: PathBuf,
    mounted: bool,
    pub user: User,
}

impl Place {
    pub fn make(user: User) -> Result<Self> {
        if !nix::unistd::geteuid().is_root() {
            bail!("run it as root: it plays the scheduler of an ordinary user's jobs");
        }
        let mut place = Self {
            dir: fresh_directory("/var/lib", "mpsd-hw.")?,
            run: fresh_directory("/run", "mpsd-hw.")?,
            mounted: false,
            user,
        };
        if statfs(&place.run)?.filesystem_type() != TMPFS_MAGIC {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
            let (name, kind, options) = (Some("mpsd-hw"), Some("tmpfs"), Some("mode=0755"));
            mount(name, &place.run, kind, flags, options)
                .with_context(|| format!("no tmpfs on '{}'", place.run.display()))?;
            place.mounted = true;
        }
        for name in ["bin", "etc", "state"] {
            fs::create_dir(place.dir.join(name))?;
        }
        Ok(place)
    }

    /// Copies the programs of `from` here, because an ordinary user may not reach the checkout.
    pub fn stage(&self, from: &Path) -> Result<()> {
        copy_programs(from, &self.bin(""))?;
        let before = from.join(BEFORE);
        if before.is_dir() {
            fs::create_dir(self.bin(BEFORE))?;
            copy_programs(&before, &self.bin(BEFORE))?;
        }
        Ok(())
    }

    pub fn bin(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.dir.join("bin").join(name.as_ref())
    }

    pub fn staged(&self, name: &str) -> Result<PathBuf> {
        let path = self.bin(name);
        if !path.is_file() {
            bail!("program '{name}' is not in this package: {PACK}");
        }
        Ok(path)
    }

    pub fn python_packages(&self) -> PathBuf {
        self.dir.join("python")
    }

    pub fn user_dir(&self, name: &str) -> Result<PathBuf> {
        let dir = self.run.join(name);
        fs::create_dir(&dir)?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700))?;
        let (uid, gid) = (self.user.uid.as_raw(), self.user.gid.as_raw());
        chown(&dir, Some(uid), Some(gid))?;
        Ok(dir)
    }

    pub fn as_user(&self, program: &Path, env: &BTreeMap<String, String>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .envs(env)
            .current_dir("/")
            .uid(self.user.uid.as_raw())
            .gid(self.user.gid.as_raw())
            .process_group(0);
        command
    }
}

fn copy_programs(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("cannot read '{}'", from.display()))? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            let to = to.join(entry.file_name());
            fs::copy(entry.path(), &to)
                .with_context(|| format!("cannot copy to '{}'", to.display()))?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
        }
    }
    Ok(())
}

impl Drop for Place {
    fn drop(&mut self) {
        kill_the_rest(&self.run, &self.dir);
        if self.mounted {
            let _ = umount2(&self.run, MntFlags::MNT_DETACH);
        }
        let _ = fs::remove_dir_all(&self.run);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The smallest environment for a program that uses CUDA, with the loader path that this machine
/// needs.
pub fn base_env() -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]);
    if let Ok(path) = std::env::var("LD_LIBRARY_PATH") {
        env.insert("LD_LIBRARY_PATH".into(), path);
    }
    env
}

/// The last resort: kills, by pid, every process that runs a staged program or has the run
/// directory in its environment.
fn kill_the_rest(run: &Path, dir: &Path) {
    let needle = run.as_os_str().as_encoded_bytes();
    for process in processes() {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        let named = environment.windows(needle.len()).any(|part| part == needle);
        if (named || process.exe.starts_with(dir)) && process.pid != std::process::id() {
            let _ = kill(Pid::from_raw(process.pid.cast_signed()), Signal::SIGKILL);
        }
    }
}

pub fn describe(section: &mut Section) -> Result<Vec<Gpu>> {
    let gpus = gpus()?;
    for (index, gpu) in gpus.iter().enumerate() {
        let (name, total, mode) = (&gpu.name, gpu.total_mib, &gpu.mode);
        let told = format!("{name} {total} MiB, compute mode {mode}");
        section.fact(&format!("gpu_{index}"), told);
    }
    if let Some(gpu) = gpus.first() {
        section.fact("driver", gpu.driver.as_str());
    }
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let mut lines = release.lines();
    let name = lines.find_map(|line| line.strip_prefix("PRETTY_NAME="));
    section.fact("os", name.unwrap_or("unknown").trim_matches('"'));
    let kernel = nix::sys::utsname::uname()?;
    section.fact("kernel", kernel.release().to_string_lossy().into_owned());
    section.fact("cpus", std::thread::available_parallelism()?.get() as i64);
    let control = program("nvidia-cuda-mps-control")?;
    section.fact("control", control.display().to_string());
    section.fact("nvml", nvml()?.display().to_string());
    Ok(gpus)
}

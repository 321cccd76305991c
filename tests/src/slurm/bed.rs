//! Making, starting and ending a throw-away Slurm.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::conf;
use super::host::{
    cgroups_of_slurmd, free_ports, fresh_cgroup, fresh_directory, program, program_beside,
    resolves_to_loopback, search_path,
};
use super::look::Snapshot;
use super::options::Options;
use super::users::{Pair, User};
use super::warden::{Request, WARDEN, Warden};
use crate::child::Ran;

/// The parent of the bed's directory: everybody may pass, and only root owns it and all above. Not
/// `/tmp` (a job may have its own) and not `/run` (often mounted `noexec,nodev`).
const BASE: &str = "/var/lib";

/// A memory file system on most machines, as in production.
const RUN_BASE: &str = "/run";

const STACK: &str = "PlugStackConfig";

type Environment = BTreeMap<String, String>;

const START: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Bed {
    pub(super) warden: Warden,
    pub(super) dir: PathBuf,
    pub(super) run: PathBuf,
    pub(super) cgroup: Option<PathBuf>,
    host: String,
    pub(super) options: Options,
    pub(super) daemons: Mutex<BTreeMap<String, u32>>,
    pub(super) baseline: Mutex<Option<Snapshot>>,
    /// The controller's.
    port: Mutex<Option<u16>>,
    /// Dropped last, when no process of theirs is left.
    pub(super) users: Pair,
}

impl Bed {
    /// No daemon runs yet, so the caller can put files below [`Bed::dir`].
    pub fn create(options: Options) -> Result<Bed> {
        if !nix::unistd::geteuid().is_root() {
            bail!("a throw-away Slurm needs root: its nodes start jobs for other users");
        }
        let users = Pair::take()?;
        let warden = Warden::start(&program_beside(WARDEN)?)?;
        let dir = fresh_directory(BASE, "mpsd-bed.")?;
        warden.tell(&Request::Remove { path: dir.clone() })?;
        let run = fresh_directory(RUN_BASE, "mpsd-bed.")?;
        warden.tell(&Request::Remove { path: run.clone() })?;
        let nodes: Vec<String> = options.each_node().collect();
        let cgroup = fresh_cgroup(&run, &nodes);
        if let Some(path) = &cgroup {
            warden.tell(&Request::RemoveCgroup { path: path.clone() })?;
        }
        if options.is_in_cgroups() {
            for path in cgroups_of_slurmd(&nodes) {
                warden.tell(&Request::RemoveCgroup { path })?;
            }
        }
        let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
        let bed = Bed {
            warden,
            dir,
            run,
            cgroup,
            host,
            options,
            daemons: Mutex::default(),
            baseline: Mutex::default(),
            port: Mutex::default(),
            users,
        };
        for name in "etc log pid munge state spool dev home".split(' ') {
            fs::create_dir(bed.dir.join(name))?;
        }
        bed.make_devices()?;
        for user in &bed.users.0 {
            let home = bed.home(user);
            fs::create_dir(&home)?;
            chown(&home, Some(user.uid), Some(user.gid))?;
        }
        Ok(bed)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn run_dir(&self) -> &Path {
        &self.run
    }

    /// One path for all nodes with their own places, as on a real cluster; else `%n`.
    pub fn run_dir_of_nodes(&self) -> PathBuf {
        let is_shared = self.options.minors.is_empty();
        self.run.join(if is_shared { "%n" } else { HERE })
    }

    /// Otherwise nodes of one host would share the cgroup of a job on both. `None`: none can be
    /// made.
    pub fn cgroup(&self) -> Option<&Path> {
        self.cgroup.as_deref()
    }

    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    pub fn nodes(&self) -> Vec<String> {
        self.options.each_node().collect()
    }

    /// No other bed of this process has them meanwhile.
    pub fn users(&self) -> [User; 2] {
        self.users.0.clone()
    }

    /// Jobs start here, and `sbatch` leaves its output here.
    pub fn home(&self, user: &User) -> PathBuf {
        match user.uid {
            0 => self.dir.clone(),
            _ => self.dir.join("home").join(&user.name),
        }
    }

    /// Returns when all nodes are idle.
    pub fn start(&self) -> Result<()> {
        let ports = free_ports(self.options.nodes + 1)?;
        *lock(&self.port) = ports.first().copied();
        let etc = self.dir.join("etc");
        let write =
            |name: &str, lines: &[String]| fs::write(etc.join(name), lines.join("\n") + "\n");
        let mut slurm = conf::slurm_conf(&self.dir, &self.host, &ports, &self.options);
        if !resolves_to_loopback(&self.host)? {
            // Otherwise the daemons would listen only on the machine's address, but the nodes are
            // reached on loopback.
            slurm = slurm.replace("CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n", "");
        }
        if self.options.configless {
            // The nodes look for plugstack.conf beside the slurm.conf that they receive.
            slurm = without_stack(&slurm);
            self.make_mount_points()?;
        }
        fs::write(etc.join("slurm.conf"), &slurm)?;
        if !self.options.plain_nodes.is_empty() {
            let none = format!("{STACK}={}/no-plugstack.conf\n", etc.display());
            fs::write(self.plain_conf(), none + &without_stack(&slurm))?;
            write("no-plugstack.conf", &self.options.plain_stack_lines)?;
        }
        let gres = conf::gres_conf(&self.dir, &self.options);
        fs::write(etc.join("gres.conf"), gres)?;
        let plugstack = conf::plugstack_conf(&self.options);
        fs::write(etc.join("plugstack.conf"), plugstack)?;
        write("cgroup.conf", &self.options.cgroup_lines)?;
        if !self.options.job_container_lines.is_empty() {
            write("job_container.conf", &self.options.job_container_lines)?;
        }
        self.start_munge()?;
        self.start_controller()?;
        for node in self.nodes() {
            self.start_node(&node)?;
        }
        self.wait_idle(START)?;
        self.mark();
        Ok(())
    }

    pub fn mark(&self) {
        *lock(&self.baseline) = Some(self.snapshot());
    }

    fn start_munge(&self) -> Result<()> {
        let munge = self.dir.join("munge");
        let mut key = [0; 256];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut key)?;
        let key_file = munge.join("key");
        fs::write(&key_file, key)?;
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o400))?;
        let socket = munge.join("socket");
        let mut argv = vec![program(&["munged"])?];
        argv.extend(["--foreground", "--force", "--num-threads=4"].map(str::to_owned));
        for (option, path) in [
            ("socket", &socket),
            ("key-file", &key_file),
            ("seed-file", &munge.join("seed")),
            ("pid-file", &self.dir.join("pid/munged")),
        ] {
            argv.push(format!("--{option}={}", path.display()));
        }
        self.start_daemon("munged", argv, BTreeMap::new())?;
        self.wait_until("munged's socket", START, || Ok(socket.exists()))
    }

    fn start_controller(&self) -> Result<()> {
        let slurmctld = program(&["slurmctld", "slurmctld-wlm"])?;
        let argv = vec![slurmctld, "-D".into(), "-f".into(), self.slurm_conf()];
        self.start_daemon("slurmctld", argv, self.environment(&User::root()))?;
        self.wait_until("the controller's answer", START, || {
            Ok(self.root(&["scontrol", "ping"])?.stdout.contains("is UP"))
        })
    }

    fn start_node(&self, node: &str) -> Result<()> {
        fs::create_dir_all(self.dir.join("spool").join(node))?;
        let plain = self.options.plain_nodes.iter().any(|name| name == node);
        let conf = match plain {
            true => self.plain_conf(),
            false => self.slurm_conf(),
        };
        let mut env = self.environment(&User::root());
        let source = match self.options.configless && !plain {
            true => {
                env.remove("SLURM_CONF");
                let port = lock(&self.port).context("no port of the controller")?;
                ["--conf-server".into(), format!("127.0.0.1:{port}")]
            }
            false => {
                env.insert("SLURM_CONF".into(), conf.clone());
                ["-f".into(), conf]
            }
        };
        let slurmd = program(&["slurmd", "slurmd-wlm"])?;
        let argv = [slurmd, "-D".into(), "-N".into(), node.into()];
        let argv = [&self.with_own_mounts(node)?[..], &argv, &source].concat();
        self.start_daemon(node, argv, env)
    }

    /// As root among the mounts of its `slurmd`, without a variable that names a configuration.
    pub fn on_node(&self, node: &str, argv: &[&str]) -> Result<Ran> {
        let pid = self.daemon(node).context("no slurmd")?;
        let before = format!("env --unset=SLURM_CONF nsenter --mount --root --target {pid}");
        let words = before.split(' ').chain(argv.iter().copied());
        self.root(&words.collect::<Vec<_>>())
    }

    pub fn daemon(&self, name: &str) -> Option<u32> {
        lock(&self.daemons).get(name).copied()
    }

    fn start_daemon(&self, name: &str, argv: Vec<String>, env: Environment) -> Result<()> {
        let log = self.dir.join("log").join(format!("{name}.out"));
        let pid = self.warden.ask(&Request::Start { argv, env, log })?;
        lock(&self.daemons).insert(name.to_owned(), pid);
        Ok(())
    }

    fn make_devices(&self) -> Result<()> {
        for (index, node) in (1..).zip(self.nodes()) {
            let dev = conf::private_dev(&self.dir, &node);
            fs::create_dir(&dev)?;
            for device in conf::devices(&self.dir, &self.options, index) {
                let name = device.file.file_name().context("no name")?;
                make_device(&dev.join(name), conf::SIMULATED_MAJOR, device.minor.into())?;
            }
            if self.options.minors.is_empty() {
                continue;
            }
            for (name, major, minor) in USUAL_DEVICES {
                make_device(&dev.join(name), major, minor)?;
            }
            for name in ["pts", "shm"] {
                fs::create_dir(dev.join(name))?;
            }
            for (link, to) in [("fd", "/proc/self/fd"), ("ptmx", "pts/ptmx")] {
                std::os::unix::fs::symlink(to, dev.join(link))?;
            }
        }
        Ok(())
    }

    /// A slurmd without a configuration uses munge's usual socket, and leaves a link in
    /// `/run/slurm`. Each node gets its own of both, mounted over these directories.
    fn make_mount_points(&self) -> Result<()> {
        for path in USUAL_PLACES.map(PathBuf::from) {
            if !path.exists() {
                self.warden.tell(&Request::Remove { path: path.clone() })?;
                fs::create_dir(&path)?;
            }
        }
        let link = self.dir.join("munge/munge.socket.2");
        Ok(std::os::unix::fs::symlink("socket", link)?)
    }

    /// The words before its slurmd that give it its own `/dev` and users.
    fn with_own_mounts(&self, node: &str) -> Result<Vec<String>> {
        let mut mounts = Vec::new();
        if self.options.login_shells {
            let passwd = self.passwd()?;
            let passwd = passwd.display();
            mounts.push(format!("/bin/mount --bind {passwd} /etc/passwd"));
        }
        if !self.options.minors.is_empty() {
            mounts.push(self.mount_private_dev(node)?);
        }
        if mounts.is_empty() {
            return Ok(Vec::new());
        }
        let script = mounts.join(" && ") + " && exec \"$@\"";
        let unshare = program(&["unshare"])?;
        let before = format!("{unshare} --mount --propagation private /bin/sh -c");
        let words = before.split(' ').chain([script.as_str(), "sh"]);
        Ok(words.map(str::to_owned).collect())
    }

    /// The submitting users have a shell, and a profile with the path to this Slurm.
    fn passwd(&self) -> Result<PathBuf> {
        let mut all = fs::read_to_string("/etc/passwd")?;
        for user in &self.users.0 {
            let (name, home) = (&user.name, self.home(user));
            let is_other = |line: &&str| line.split(':').next() != Some(name);
            let others = all.lines().filter(is_other);
            let others: String = others.map(|line| format!("{line}\n")).collect();
            let (uid, gid) = (user.uid, user.gid);
            all = format!("{others}{name}:x:{uid}:{gid}::{}:/bin/sh\n", home.display());
            let profile = format!("export PATH={}\n", search_path());
            fs::write(home.join(".profile"), profile)?;
        }
        let path = self.dir.join("etc/passwd");
        fs::write(&path, all)?;
        Ok(path)
    }

    fn mount_private_dev(&self, node: &str) -> Result<String> {
        let dev = conf::private_dev(&self.dir, node);
        let dev = dev.display();
        let here = [self.run.join(node), self.run.join(HERE)];
        for dir in &here {
            fs::create_dir_all(dir)?;
        }
        let [own, here] = here.map(|dir| dir.display().to_string());
        let munge = self.dir.join("munge");
        let usual = format!(
            "/bin/mount -t tmpfs none /run/slurm && /bin/mount --bind {} /run/munge && ",
            munge.display()
        );
        let usual = if self.options.configless { &*usual } else { "" };
        Ok(format!(
            "{usual}/bin/mount --bind {own} {here} && /bin/mount --bind /dev/pts {dev}/pts && /bin/mount --bind /dev/shm {dev}/shm && \
             /bin/mount --rbind {dev} /dev"
        ))
    }

    /// Returns what had to be forced.
    pub fn end(&self) -> Result<Vec<String>> {
        self.warden.end()
    }
}

/// The name under which each node with places of its own finds its run directory.
const HERE: &str = "here";

const USUAL_PLACES: [&str; 2] = ["/run/slurm", "/run/munge"];

const USUAL_DEVICES: [(&str, u64, u64); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

fn without_stack(slurm_conf: &str) -> String {
    let lines = slurm_conf.lines().filter(|line| !line.starts_with(STACK));
    lines.fold(String::new(), |all, line| all + line + "\n")
}

fn make_device(file: &Path, major: u64, minor: u64) -> Result<()> {
    mknod(file, SFlag::S_IFCHR, Mode::empty(), makedev(major, minor))
        .with_context(|| format!("cannot make device '{}'", file.display()))?;
    let mode = fs::Permissions::from_mode(0o666);
    Ok(fs::set_permissions(file, mode)?)
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    let locked = mutex.lock();
    locked.unwrap_or_else(std::sync::PoisonError::into_inner)
}

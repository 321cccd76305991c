//! Building, starting and watching a throw-away Slurm.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{TcpListener, ToSocketAddrs as _};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use super::client::{Client, Finished, User};
use super::conf::{self, Gpus, Word};
use super::look::{Process, Snapshot};
use super::warden::{Reply, Request, WARDEN, Warden};

/// Where the bed's directory is made: passable for everybody, owned by root all the way up, neither `/tmp` (a job may get
/// another one) nor `/run` (often mounted `noexec,nodev`).
const BASE: &str = "/var/lib";

/// Where the nodes' run directories are made: a memory file system on most machines, as in production.
const RUN_BASE: &str = "/run";

/// Longest that a daemon may take to come up.
const START: Duration = Duration::from_secs(30);

/// Longest that one of Slurm's administrative commands may take.
const COMMAND: Duration = Duration::from_secs(30);

/// What the bed is to be like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of nodes, `node1` and up, all on this host.
    pub nodes: usize,
    /// CPUs that each node claims.
    pub cpus: u32,
    /// The nodes' GPUs.
    pub gpus: Gpus,
    /// Further kinds of gres beside `gpu` (`mps`, `shard`), `gres_count` of each on every node.
    pub gres_types: Vec<String>,
    /// See `gres_types`.
    pub gres_count: u32,
    /// Words added to every `NodeName=` line, for example `Feature=mps`.
    pub node_words: Option<String>,
    /// The word before the plugin.
    pub word: Word,
    /// The plugin to load, if any.
    pub plugin: Option<PathBuf>,
    /// Arguments on the plugin's line.
    pub plugin_arguments: Vec<String>,
    /// Lines of `slurm.conf`; one that sets `PrologFlags` or `ProctrackType` replaces ours.
    pub slurm_lines: Vec<String>,
    /// Further partition lines.
    pub partition_lines: Vec<String>,
    /// `cgroup.conf`.
    pub cgroup_lines: Vec<String>,
    /// `job_container.conf`, if there is to be one.
    pub job_container_lines: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            nodes: 2,
            cpus: 8,
            gpus: Gpus::Simulated(2),
            gres_types: Vec::new(),
            gres_count: 0,
            node_words: None,
            word: Word::Optional,
            plugin: None,
            plugin_arguments: Vec::new(),
            slurm_lines: Vec::new(),
            partition_lines: Vec::new(),
            cgroup_lines: vec!["CgroupAutomount=no".into()],
            job_container_lines: Vec::new(),
        }
    }
}

impl Options {
    pub(super) fn names_key(&self, key: &str) -> bool {
        self.slurm_lines.iter().any(|line| {
            line.split_once('=')
                .is_some_and(|(name, _)| name.trim().eq_ignore_ascii_case(key))
        })
    }
}

/// A node as the controller sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// The state with its flags, for example `IDLE+DRAIN`.
    pub state: String,
    /// The reason of a drain, or nothing.
    pub reason: String,
}

/// A throw-away Slurm. Dropping it ends every process of it and removes its directories.
#[derive(Debug)]
pub struct Bed {
    warden: Warden,
    dir: PathBuf,
    run: PathBuf,
    host: String,
    options: Options,
    daemons: Mutex<BTreeMap<String, i32>>,
    baseline: Mutex<Option<Snapshot>>,
}

impl Bed {
    /// Makes the directory, the devices and the key, and starts the warden; no daemon runs yet, so that the caller may put
    /// the plugin, the programs and their configuration below [`Bed::dir`] first.
    pub fn create(options: Options) -> Result<Bed> {
        if !nix::unistd::geteuid().is_root() {
            bail!("a throw-away Slurm needs root: its nodes start jobs for other users");
        }
        let warden = Warden::start(&program_beside(WARDEN)?)?;
        let dir = fresh_directory(BASE)?;
        warden.ask(&Request::Remove { path: dir.clone() })?;
        let run = fresh_directory(RUN_BASE)?;
        warden.ask(&Request::Remove { path: run.clone() })?;
        let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
        let bed = Bed {
            warden,
            dir,
            run,
            host,
            options,
            daemons: Mutex::default(),
            baseline: Mutex::default(),
        };
        for name in ["etc", "log", "pid", "munge", "state", "spool", "dev", "home"] {
            fs::create_dir(bed.dir.join(name))?;
        }
        bed.make_devices()?;
        for user in User::pair()? {
            let home = bed.home(&user);
            fs::create_dir(&home)?;
            chown(&home, Some(user.uid), Some(user.gid))?;
        }
        Ok(bed)
    }

    /// The bed's directory: root-owned, passable for everybody.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A directory for the nodes' run directories, root-owned, passable for everybody.
    pub fn run_dir(&self) -> &Path {
        &self.run
    }

    /// The options; what is changed before [`Bed::start`] takes effect.
    pub fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    /// Names of the nodes.
    pub fn nodes(&self) -> Vec<String> {
        (1..=self.options.nodes).map(conf::node_name).collect()
    }

    /// A directory of the user's own: where the jobs start and `sbatch` leaves its output.
    pub fn home(&self, user: &User) -> PathBuf {
        if user.uid == 0 {
            self.dir.clone()
        } else {
            self.dir.join("home").join(&user.name)
        }
    }

    /// Pid of the bed's supervisor: the root of all its processes, a job's daemons included.
    pub fn warden(&self) -> i32 {
        self.warden.pid()
    }

    /// Writes the configuration and starts munged, the controller and the nodes; returns when all nodes are idle.
    pub fn start(&self) -> Result<()> {
        let ports = free_ports(self.options.nodes + 1)?;
        let etc = self.dir.join("etc");
        let mut slurm = conf::slurm_conf(&self.dir, &self.host, &ports, &self.options);
        if !resolves_to_loopback(&self.host)? {
            // The daemons would listen on the machine's address only, and the nodes are reached on loopback.
            slurm = slurm.replace("CommunicationParameters=NoInAddrAny,NoCtldInAddrAny\n", "");
        }
        fs::write(etc.join("slurm.conf"), slurm)?;
        fs::write(etc.join("gres.conf"), conf::gres_conf(&self.dir, &self.options))?;
        fs::write(etc.join("plugstack.conf"), conf::plugstack_conf(&self.options))?;
        fs::write(
            etc.join("cgroup.conf"),
            self.options.cgroup_lines.join("\n") + "\n",
        )?;
        if !self.options.job_container_lines.is_empty() {
            fs::write(
                etc.join("job_container.conf"),
                self.options.job_container_lines.join("\n") + "\n",
            )?;
        }
        self.start_munge()?;
        self.start_controller()?;
        for node in self.nodes() {
            self.start_node(&node)?;
        }
        self.wait_idle(START)?;
        *lock(&self.baseline) = Some(self.snapshot());
        Ok(())
    }

    fn start_munge(&self) -> Result<()> {
        let munge = self.dir.join("munge");
        let mut key = [0; 256];
        std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut key)?;
        let key_file = munge.join("key");
        fs::write(&key_file, key)?;
        fs::set_permissions(&key_file, fs::Permissions::from_mode(0o400))?;
        let socket = munge.join("socket");
        let argv = vec![
            program(&["munged"])?,
            "--foreground".into(),
            "--force".into(),
            "--num-threads=4".into(),
            format!("--socket={}", socket.display()),
            format!("--key-file={}", key_file.display()),
            format!("--seed-file={}", munge.join("seed").display()),
            format!("--pid-file={}", self.dir.join("pid/munged").display()),
        ];
        self.start_daemon("munged", argv, BTreeMap::new())?;
        self.wait_until("munged's socket", START, || Ok(socket.exists()))
    }

    fn start_controller(&self) -> Result<()> {
        let conf = self.slurm_conf();
        let argv = vec![
            program(&["slurmctld", "slurmctld-wlm"])?,
            "-D".into(),
            "-f".into(),
            conf,
        ];
        self.start_daemon("slurmctld", argv, self.environment(&User::root()))?;
        self.wait_until("the controller's answer", START, || {
            Ok(self.root(&["scontrol", "ping"])?.stdout.contains("is UP"))
        })
    }

    /// Starts the `slurmd` of a node; does not wait.
    pub fn start_node(&self, node: &str) -> Result<()> {
        fs::create_dir_all(self.dir.join("spool").join(node))?;
        let argv = ["-D", "-N", node, "-f", &self.slurm_conf()].map(str::to_owned);
        let argv = [vec![program(&["slurmd", "slurmd-wlm"])?], argv.to_vec()].concat();
        self.start_daemon(node, argv, self.environment(&User::root()))
    }

    /// Ends the `slurmd` of a node and waits for it. Running steps stay.
    pub fn stop_node(&self, node: &str) -> Result<()> {
        let pid = lock(&self.daemons)
            .remove(node)
            .with_context(|| format!("slurmd of '{node}' does not run"))?;
        self.warden.ask(&Request::Stop { pid, wait_ms: 10_000 })?;
        Ok(())
    }

    /// Pid of a daemon: `munged`, `slurmctld` or a node's name.
    pub fn daemon(&self, name: &str) -> Option<i32> {
        lock(&self.daemons).get(name).copied()
    }

    fn start_daemon(&self, name: &str, argv: Vec<String>, env: BTreeMap<String, String>) -> Result<()> {
        let log = self.dir.join("log").join(format!("{name}.out"));
        match self.warden.ask(&Request::Start { argv, env, log })? {
            Reply::Started(pid) => {
                lock(&self.daemons).insert(name.to_owned(), pid);
                Ok(())
            }
            other => bail!("the warden answered {other:?}"),
        }
    }

    fn make_devices(&self) -> Result<()> {
        let Gpus::Simulated(count) = self.options.gpus else {
            return Ok(());
        };
        for (index, node) in self.nodes().iter().enumerate() {
            fs::create_dir(self.dir.join("dev").join(node))?;
            for gpu in 0..count {
                let file = conf::simulated_gpu(&self.dir, node, gpu);
                let minor = index as u64 * 16 + u64::from(gpu);
                mknod(
                    &file,
                    SFlag::S_IFCHR,
                    Mode::empty(),
                    makedev(conf::SIMULATED_MAJOR, minor),
                )
                .with_context(|| format!("cannot make device '{}'", file.display()))?;
                fs::set_permissions(&file, fs::Permissions::from_mode(0o666))?;
            }
        }
        Ok(())
    }

    fn slurm_conf(&self) -> String {
        self.dir.join("etc/slurm.conf").display().to_string()
    }

    /// The environment of a user's shell on this cluster.
    pub fn environment(&self, user: &User) -> BTreeMap<String, String> {
        let home = self.home(user).display().to_string();
        [
            ("SLURM_CONF", self.slurm_conf().as_str()),
            ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
            ("HOME", &home),
            ("USER", &user.name),
            ("LC_ALL", "C"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    /// Starts a command as `user`, in the user's directory.
    pub fn spawn(&self, user: &User, argv: &[&str]) -> Result<Client> {
        self.spawn_with(user, argv, &[])
    }

    /// The same with further variables in its environment.
    pub fn spawn_with(&self, user: &User, argv: &[&str], extra: &[(&str, &str)]) -> Result<Client> {
        let mut env = self.environment(user);
        env.extend(
            extra
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
        );
        let found;
        let mut argv = argv.to_vec();
        if let Some(name) = argv.first_mut()
            && !name.contains('/')
        {
            found = program(&[name])?;
            *name = &found;
        }
        Client::start(&self.warden, user, &argv, &env, &self.home(user))
    }

    /// `srun` as `user`, to its end.
    pub fn srun(&self, user: &User, arguments: &[&str], limit: Duration) -> Result<Finished> {
        self.spawn(user, &[&["srun"], arguments].concat())?.wait(limit)
    }

    /// Hands a batch script in and returns the job's id. The script's output goes to `job-ID.out` in the user's directory.
    pub fn sbatch(&self, user: &User, arguments: &[&str], script: &str) -> Result<u32> {
        let file = tempfile::Builder::new()
            .prefix("script")
            .tempfile_in(self.home(user))?;
        fs::write(file.path(), format!("#!/bin/sh\n{script}\n"))?;
        chown(file.path(), Some(user.uid), Some(user.gid))?;
        let path = file.path().display().to_string();
        let argv = [
            &["sbatch", "--parsable", "--output=job-%j.out"],
            arguments,
            &[path.as_str()],
        ]
        .concat();
        let finished = self.spawn(user, &argv)?.wait(COMMAND)?.success()?;
        let id = finished.stdout.trim();
        id.parse().with_context(|| format!("sbatch said '{id}'"))
    }

    /// What a batch job wrote so far.
    pub fn output(&self, user: &User, job: u32) -> String {
        fs::read_to_string(self.home(user).join(format!("job-{job}.out"))).unwrap_or_default()
    }

    /// An administrator's command, to its end.
    pub fn root(&self, argv: &[&str]) -> Result<Finished> {
        self.spawn(&User::root(), argv)?.wait(COMMAND)
    }

    /// A node's state and reason.
    pub fn node_state(&self, node: &str) -> Result<NodeState> {
        let shown = self
            .root(&["scontrol", "-o", "show", "node", node])?
            .success()?
            .stdout;
        // The reason is the last item and may hold blanks: `Reason=text [user@time]`.
        let reason = shown
            .split_once(" Reason=")
            .map(|(_, text)| text.trim().to_owned())
            .unwrap_or_default();
        Ok(NodeState {
            state: item(&shown, "State").to_owned(),
            reason,
        })
    }

    /// The items of `scontrol show job`; nothing once the controller has forgotten the job.
    pub fn job(&self, id: u32) -> Result<Option<BTreeMap<String, String>>> {
        let shown = self.root(&["scontrol", "-o", "show", "job", &id.to_string()])?;
        if !shown.status.success() {
            return Ok(None);
        }
        let items = shown
            .stdout
            .split_whitespace()
            .filter_map(|word| word.split_once('='));
        Ok(Some(
            items
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        ))
    }

    /// The state of a job, for example `RUNNING`.
    pub fn job_state(&self, id: u32) -> Result<String> {
        let job = self.job(id)?.with_context(|| format!("job {id} is not known"))?;
        job.get("JobState").cloned().context("a job without a state")
    }

    /// Waits until a job is in one of `states`.
    pub fn wait_job(&self, id: u32, states: &[&str], limit: Duration) -> Result<String> {
        let mut last = String::new();
        self.wait_until(&format!("job {id} in {states:?}"), limit, || {
            last = self.job_state(id)?;
            Ok(states.contains(&last.as_str()))
        })
        .with_context(|| format!("job {id} is {last}"))?;
        Ok(last)
    }

    /// Waits until no job is left in the queue and every node is idle.
    pub fn wait_idle(&self, limit: Duration) -> Result<()> {
        self.wait_until("idle nodes", limit, || {
            let queue = self
                .root(&["squeue", "-h", "-a", "-o", "%i %T"])?
                .success()?
                .stdout;
            let nodes = self
                .root(&["sinfo", "-h", "-N", "-o", "%N %T"])?
                .success()?
                .stdout;
            let idle: BTreeSet<&str> = nodes
                .lines()
                .filter_map(|line| line.trim().strip_suffix(" idle"))
                .collect();
            Ok(queue.trim().is_empty() && idle.len() == self.options.nodes)
        })
        .with_context(|| self.situation())
    }

    /// Jobs and nodes in words, for messages.
    pub fn situation(&self) -> String {
        let said = |argv: &[&str]| {
            self.root(argv)
                .map(|done| done.stdout + &done.stderr)
                .unwrap_or_default()
        };
        said(&["squeue", "-a", "-o", "%i %j %u %T %r"]) + &said(&["sinfo", "-N", "-o", "%N %T %E"])
    }

    /// Makes a drained node usable again.
    pub fn resume(&self, node: &str) -> Result<()> {
        self.root(&["scontrol", "update", &format!("nodename={node}"), "state=resume"])?
            .success()?;
        Ok(())
    }

    /// What slurmd of `node` has logged.
    pub fn log(&self, node: &str) -> String {
        fs::read_to_string(self.dir.join("log").join(node)).unwrap_or_default()
    }

    /// What a job could leave behind, now.
    pub fn snapshot(&self) -> Snapshot {
        let known = lock(&self.daemons).values().copied().collect();
        Snapshot::take(
            &[self.run.clone(), self.dir.join("spool")],
            self.warden.pid(),
            &known,
        )
    }

    /// What is on the machine that was not there when the bed came up: empty when every job left nothing.
    pub fn left_behind(&self) -> Vec<String> {
        match &*lock(&self.baseline) {
            Some(baseline) => self.snapshot().beyond(baseline),
            None => Vec::new(),
        }
    }

    /// The processes below the warden that are not its daemons: steps, tasks, and what they left.
    pub fn job_processes(&self) -> Vec<Process> {
        let known: BTreeSet<i32> = lock(&self.daemons).values().copied().collect();
        let mut found = Process::descendants(self.warden.pid());
        found.retain(|process| !known.contains(&process.pid) && !process.is_zombie());
        found
    }

    /// Polls until `done`; an error names `what` and the time.
    pub fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(5);
        loop {
            if done()? {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("waited {} s for {what}", limit.as_secs());
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    /// Ends it now and says what had to be forced: nothing, when all went well.
    pub fn end(&self) -> Result<Vec<String>> {
        self.warden.end()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn item<'a>(shown: &'a str, key: &str) -> &'a str {
    shown
        .split_whitespace()
        .find_map(|word| word.split_once('=').filter(|(name, _)| *name == key))
        .map_or("", |(_, value)| value)
}

fn fresh_directory(base: &str) -> Result<PathBuf> {
    let dir = tempfile::Builder::new()
        .prefix("mpsd-bed.")
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(base)
        .with_context(|| format!("cannot make a directory in '{base}'"))?;
    let path = dir.keep();
    // The umask may have taken bits away.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// A program of this build: beside the running one, or one directory up when that is a test.
pub fn program_beside(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let dirs = own.ancestors().skip(1).take(2);
    dirs.map(|dir| dir.join(name))
        .find(|path| path.is_file())
        .with_context(|| format!("program '{name}' is not built beside '{}'", own.display()))
}

/// The first of `names` that is installed.
fn program(names: &[&str]) -> Result<String> {
    let dirs = [
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
        "/usr/local/sbin",
        "/usr/local/bin",
    ];
    names
        .iter()
        .flat_map(|name| dirs.map(|dir| format!("{dir}/{name}")))
        .find(|path| Path::new(path).exists())
        .with_context(|| format!("'{}' is not installed: run 'cargo xtask setup'", names[0]))
}

fn free_ports(count: usize) -> Result<Vec<u16>> {
    let taken: Vec<_> = (0..count)
        .map(|_| TcpListener::bind("127.0.0.1:0"))
        .collect::<std::io::Result<_>>()?;
    taken
        .iter()
        .map(|listener| Ok(listener.local_addr()?.port()))
        .collect()
}

fn resolves_to_loopback(host: &str) -> Result<bool> {
    let mut addresses = (host, 0)
        .to_socket_addrs()
        .with_context(|| format!("host name '{host}' does not resolve: add it to /etc/hosts"))?;
    Ok(addresses.all(|address| address.ip().is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_scontrol() {
        let shown = "NodeName=node1 State=IDLE+DRAIN ThreadsPerCore=1 Reason=mpsd: job 4711: x [root@now]";
        assert_eq!(item(shown, "State"), "IDLE+DRAIN");
        assert_eq!(item(shown, "Absent"), "");
    }

    #[test]
    fn keys_of_lines_are_found_in_any_case() {
        let options = Options {
            slurm_lines: vec!["proctracktype = proctrack/cgroup".into()],
            ..Options::default()
        };
        assert!(options.names_key("ProctrackType"));
        assert!(!options.names_key("PrologFlags"));
    }
}

//! A bed of one node without a scheduler: doubles of NVIDIA's programs, and ours. Each end is
//! compared with a picture of it before any job.

use std::borrow::BorrowMut;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mpsd::node::worker::{NvmlWorker, Question};
use mpsd_core::Inventory;
use tempfile::TempDir;

use crate::beside::{self, Work};
use crate::double::look::{self, wait_until};
use crate::double::node::NvmlFaults;
use crate::double::{Builder, NodeDouble, copy_program};
use crate::fuse::Hung;
use crate::run::{
    PROGRAMS, Ran, USER, as_user, built, chmod, epilogue_args, finish, openpbs_args, prologue_args,
    prologue_on_gpu_0, skip, strict_epilogue_args, uid_of,
};

const MOMENT: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(40);
const STANDING: [&str; 7] = [
    "run/jobs",
    "run/gpus",
    "state/drains",
    "state/reports",
    "run/shared",
    "run/ledger",
    "run/.ledger.lock",
];

/// The users' copies are only in a tmpfs.
const REPORTS: [&str; 2] = ["state/reports/", "run/reports"];
const NODE: &str = "gpu001";
pub type Picture = BTreeMap<String, String>;

#[derive(Debug)]
pub struct NodeBed {
    pub node: NodeDouble,
    /// `None` if this machine has no writable hierarchy.
    pub cgroups: Option<PathBuf>,
    root: TempDir,
    before: Picture,
}

pub fn fast(gpus: usize) -> Builder {
    NodeDouble::builder().gpus(gpus, "NVIDIA H200").fast()
}

impl NodeBed {
    pub fn new(node: Builder, extra: &str) -> Self {
        Self::of(node, extra, own_cgroup())
    }

    pub fn without_cgroup(node: Builder, extra: &str) -> Self {
        Self::of(node, extra, None)
    }

    #[track_caller]
    pub fn with_job(node: Builder, extra: &str, job: &str, account: &str, gpus: &str) -> Self {
        let bed = Self::new(node, extra);
        bed.begin(job, account, gpus);
        bed
    }

    fn of(node: Builder, extra: &str, cgroups: Option<PathBuf>) -> Self {
        let mut bed = Self {
            node: node.build().expect("node"),
            cgroups,
            root: TempDir::with_prefix("stage-").expect("no temporary directory"),
            before: Picture::new(),
        };
        chmod(bed.root.path(), 0o755);
        for dir in ["bin", "run", "state"] {
            bed.directory(dir);
        }
        for program in PROGRAMS {
            let to = bed.program(program);
            copy_program(&built(program), &to)
                .unwrap_or_else(|e| panic!("build {program} first: {e}"));
            chmod(&to, 0o755);
        }
        bed.configure(extra);
        bed.remember_gpus();
        bed.before = bed.picture();
        bed
    }

    /// Most starts of a real node find a ledger.
    fn remember_gpus(&mut self) {
        let (mut faults, mut takes) = (NvmlFaults::default(), 0);
        let mut swap = |node: &mut NodeDouble| {
            node.change(|node| {
                std::mem::swap(&mut node.nvml, &mut faults);
                std::mem::swap(&mut node.times.nvml, &mut takes);
            });
        };
        swap(&mut self.node);
        let library = self.node.nvml().display().to_string();
        let mut worker =
            NvmlWorker::start(&self.program("mpsd"), &library, PATIENCE).expect("a worker");
        let told = worker.ask::<Inventory>(&Question::Inventory);
        swap(&mut self.node);
        // A node that has lost a GPU may not tell the others.
        let Ok(gpus) = told else { return };
        let ledger = serde_json::json!({"version": 1, "gpus": gpus});
        fs::write(self.path("run/ledger"), ledger.to_string()).expect("a ledger");
    }

    pub fn configure(&self, extra: &str) {
        let choice = self.cgroups.as_deref().unwrap_or(Path::new("none"));
        let cgroup = format!("cgroup = \"{}\"", choice.display());
        self.configure_whole(&format!("{cgroup}\n{extra}"));
    }

    /// Without the bed's cgroup. A PBS of this machine is none of this node's.
    pub fn configure_whole(&self, extra: &str) {
        let no_pbs = match extra.contains("[pbs]") {
            true => String::new(),
            false => format!("pbs.home = \"{}\"", self.path("no-pbs").display()),
        };
        let text = format!(
            "run_dir = \"{}\"\nstate_dir = \"{}\"\ncontrol = \"{}\"\nnvml = \"{}\"\n{no_pbs}\n{extra}\n",
            self.path("run").display(),
            self.path("state").display(),
            self.node.control().display(),
            self.node.nvml().display(),
        );
        fs::write(self.config(), text).expect("configuration");
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// Everybody may list it and only root may change it.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(&path).unwrap_or_else(|why| panic!("{name}: {why}"));
        chmod(&path, 0o755);
        path
    }

    pub fn config(&self) -> PathBuf {
        self.path("mpsd.toml")
    }

    pub fn program(&self, name: &str) -> PathBuf {
        self.path("bin").join(name)
    }

    pub fn job(&self, job: &str) -> PathBuf {
        self.path("run/jobs").join(job)
    }

    pub fn prologue<S: AsRef<OsStr>>(&self, args: &[S], env: &[(&str, &str)]) -> Ran {
        self.run("mps-prologue", args, env)
    }

    pub fn openpbs(&self, job: &str, user: &str, account: &str) -> Ran {
        self.prologue(&openpbs_args(job, user, account), &[])
    }

    pub fn epilogue<S: AsRef<OsStr>>(&self, args: &[S], env: &[(&str, &str)]) -> Ran {
        self.run("mps-epilogue", args, env)
    }

    /// With a record for its tasks.
    pub fn refused(&self, job: &str, account: &str) -> Ran {
        let words = ["--record", "--gpus", "0"];
        let args = [&words, &prologue_args(job, account)[..]].concat();
        self.prologue(&args, &[]).exits(1)
    }

    pub fn torque_end(&self, job: &str) -> Ran {
        self.epilogue(&epilogue_args(job), &[])
    }

    pub fn mpsctl(&self, args: &[&str]) -> Ran {
        self.run("mpsctl", args, &[])
    }

    pub fn mpsctl_as(&self, user: &str, args: &[&str], env: &[(&str, &str)]) -> Ran {
        finish(self.mpsctl_of(user).args(args).envs(env.iter().copied()))
    }

    pub fn mpsctl_of(&self, user: &str) -> Command {
        let mut command = as_user(user, self.program("mpsctl"));
        command.arg("--config").arg(self.config()).env_clear();
        command
    }

    pub fn command(&self, program: &str) -> Command {
        self.command_by(&[], program)
    }

    /// Run by another program with these words.
    pub fn command_by(&self, words: &[&str], program: &str) -> Command {
        let program = self.program(program).into_os_string();
        let mut words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        words.push(&program);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg("--config").arg(self.config());
        command.env_clear();
        command
    }

    pub fn run<S: AsRef<OsStr>>(&self, program: &str, args: &[S], env: &[(&str, &str)]) -> Ran {
        finish(self.command(program).args(args).envs(env.iter().copied()))
    }

    pub fn mounts(&self) -> Vec<PathBuf> {
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
        let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
        let above = ["run/jobs", "run/shared"].map(|name| self.path(name));
        let is_below = |at: &PathBuf| above.iter().any(|above| at.starts_with(above));
        points.map(PathBuf::from).filter(is_below).collect()
    }

    pub fn torque_on_gpu_0(&self, job: &str, account: &str) -> Ran {
        self.prologue(&prologue_on_gpu_0(job, account), &[])
    }

    /// A job of [`USER`] has these GPUs alone (numbers with commas).
    pub fn torque(&self, job: &str, account: &str, gpus: &str) -> Ran {
        finish(self.torque_command(job, account, gpus))
    }

    #[track_caller]
    pub fn begin(&self, job: &str, account: &str, gpus: &str) -> Ran {
        self.torque(job, account, gpus).ok()
    }

    /// A Torque job that its site brings in, with a script, under this configuration.
    pub fn begin_by_site(&self, job: &str, gpus: &str, config: &str) {
        let script = self
            .directory("pbs/mom_priv/jobs")
            .join(format!("{job}.SC"));
        fs::write(script, "mpirun -n 4 ./solver\n").expect("a script");
        let home = self.path("pbs");
        self.configure(&format!("{config}[pbs]\nhome = \"{}\"\n", home.display()));
        let by_site = ["--by-site", "--request", "MPS=on", "--gpus", gpus];
        let args = [&by_site[..], &prologue_args(job, "")[..]].concat();
        self.prologue(&args, &[]).ok();
    }

    /// As [`NodeBed::torque`], and does not wait for it.
    pub fn start_torque(&self, job: &str, account: &str, gpus: &str) -> Running {
        Running::silent(self.torque_command(job, account, gpus))
    }

    pub fn start_end(&self, job: &str) -> Running {
        Running::silent(self.command("mps-epilogue").args(epilogue_args(job)))
    }

    fn torque_command(&self, job: &str, account: &str, gpus: &str) -> Command {
        let nodes = self.path("nodes");
        fs::create_dir_all(&nodes).expect("directory");
        let lines = gpus.split(',').map(|gpu| format!("{NODE}-gpu{gpu}\n"));
        let lines: String = lines.collect();
        fs::write(nodes.join(format!("{job}gpu")), lines).expect("GPU file");
        let mut command = self.command("mps-prologue");
        command.args(prologue_args(job, account));
        command
            .env("PBS_NODEFILE", nodes.join(job))
            .env("PBS_MSHOST", NODE);
        command
    }

    pub fn picture(&self) -> Picture {
        let mut picture = Picture::new();
        let root = self.path("");
        let mut take = |path: &Path, about: &fs::Metadata| {
            let kind = about.file_type();
            let text = match (kind.is_dir(), kind.is_file(), kind.is_fifo()) {
                (true, ..) => "directory".to_owned(),
                (_, true, _) => format!("{} bytes", about.len()),
                (.., true) => "fifo".to_owned(),
                _ => format!("{kind:?}"),
            };
            let name = path.strip_prefix(&root).unwrap_or(path).display();
            let (mode, uid) = (about.mode() & 0o7777, about.uid());
            picture.insert(name.to_string(), format!("{text} {mode:o} {uid}"));
            true
        };
        for top in ["run", "state"] {
            look::walk(&self.path(top), &mut take);
        }
        for name in STANDING {
            picture.remove(name);
        }
        picture.retain(|name, _| !REPORTS.iter().any(|top| name.starts_with(top)));
        for (name, value) in self.node.uuids().iter().zip(self.node.modes()) {
            picture.insert(format!("mode of {name}"), value);
        }
        for (gpu, context) in self.node.contexts() {
            picture.insert(format!("context of {} on {gpu}", context.pid), context.kind);
        }
        for at in self.mounts() {
            picture.insert(format!("mount {}", at.display()), String::new());
        }
        for process in self.processes() {
            let (name, exe) = (format!("process {}", process.pid), process.exe.display());
            picture.insert(name, format!("{exe} {:?}", process.args));
        }
        let cgroups = self
            .cgroups
            .iter()
            .flat_map(fs::read_dir)
            .flatten()
            .flatten();
        for path in cgroups
            .map(|entry| entry.path())
            .filter(|path| path.is_dir())
        {
            picture.insert(format!("cgroup {}", path.display()), String::new());
        }
        picture
    }

    pub fn processes(&self) -> Vec<look::Process> {
        let mut all = self.node.processes();
        all.extend(look::processes_from(&self.path("bin")));
        all
    }

    /// Of an ordinary user, who can signal them.
    pub fn pids(&self, name: &str) -> Vec<u32> {
        let mut all = self.processes();
        all.retain(|p| p.uid != 0 && p.exe.file_name().is_some_and(|file| file == name));
        all.iter().map(|p| p.pid).collect()
    }

    /// Root's. A job's own `mpsd` asks NVML too.
    pub fn nvml_worker(&self) -> Option<u32> {
        let has_nvml = |process: &look::Process| {
            let maps = fs::read_to_string(format!("/proc/{}/maps", process.pid));
            process.uid == 0
                && process.exe.ends_with("bin/mpsd")
                && maps.is_ok_and(|maps| maps.contains("libnvidia-ml"))
        };
        let all = self.processes();
        all.iter()
            .find(|process| has_nvml(process))
            .map(|process| process.pid)
    }

    #[track_caller]
    pub fn nvml_worker_comes(&self) -> u32 {
        let mut worker = None;
        eventually("a process asks NVML", || {
            worker = self.nvml_worker();
            worker.is_some()
        });
        worker.expect("a process")
    }

    /// The node is as before the first job, and not drained. Ended processes have a moment to
    /// vanish.
    #[track_caller]
    pub fn assert_as_before(&self, after: &str) {
        let different = self.difference();
        assert!(different.is_empty(), "after {after}: {different:#?}");
    }

    /// What is new, and what is gone.
    pub fn difference(&self) -> Vec<String> {
        wait_until(MOMENT, || self.picture() == self.before);
        let now = self.picture();
        let new = now.iter().filter(|(k, v)| self.before.get(*k) != Some(*v));
        let gone = self.before.iter().filter(|(k, _)| !now.contains_key(*k));
        new.map(|(k, v)| format!("{k}: {v}"))
            .chain(gone.map(|(k, v)| format!("gone: {k}: {v}")))
            .collect()
    }

    #[track_caller]
    pub fn assert_not_drained(&self, after: &str) {
        let drains = self.drains();
        assert!(drains.is_empty(), "drained after {after}: {drains:?}");
    }

    /// Returns the reasons of the drains, delivered or not, and forgets them.
    pub fn take_drains(&self) -> Vec<String> {
        let forget = |(path, text): (PathBuf, String)| {
            let _ = fs::remove_file(path);
            text
        };
        self.drains().into_iter().map(forget).collect()
    }

    fn drains(&self) -> Vec<(PathBuf, String)> {
        let entries = fs::read_dir(self.path("state/drains"));
        let read = |path: PathBuf| (path.clone(), fs::read_to_string(path).unwrap_or_default());
        let entries = entries.into_iter().flatten().flatten();
        entries.map(|entry| read(entry.path())).collect()
    }

    pub fn strict_end(&self, job: &str) -> Ran {
        self.epilogue(&strict_epilogue_args(job), &[])
    }

    #[track_caller]
    pub fn assert_ends_clean(&self, job: &str, after: &str) {
        let end = self.strict_end(job);
        self.assert_not_drained(after);
        assert_eq!(end.code, Some(0), "{after}: {end:?}");
        self.assert_as_before(after);
    }

    #[track_caller]
    pub fn end(&self, job: &str) -> Ran {
        self.strict_end(job).ok()
    }

    pub fn client(&self, job: &str, args: &[&str], env: &[(&str, &str)]) -> Running {
        let mut command = self.cuda(args);
        command.envs([self.pipe(job)]).envs(env.iter().copied());
        Running::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))
    }

    /// Waits until it has its context.
    #[track_caller]
    pub fn attached(&self, job: &str, args: &[&str], env: &[(&str, &str)]) -> Running {
        let client = self.client(job, args, env);
        eventually("the client attaches", || self.has_context(client.pid()));
        client
    }

    pub fn has_context(&self, pid: u32) -> bool {
        let contexts = self.node.contexts();
        contexts.iter().any(|(_, it)| it.pid == pid && it.bytes > 0)
    }

    /// A CUDA program that ends by itself, and ran under MPS.
    pub fn served(&self, job: &str, args: &[&str]) -> Ran {
        let ran = self.tried(job, args).ok();
        assert_eq!(ran.json()["under_mps"], true, "{ran:?}");
        ran
    }

    pub fn tried(&self, job: &str, args: &[&str]) -> Ran {
        finish(self.cuda(args).envs([self.pipe(job)]))
    }

    /// With only this environment.
    pub fn exec(&self, args: &[&str], env: &[(&str, &str)]) -> Ran {
        finish(&mut self.exec_command(args, env))
    }

    pub fn exec_command(&self, args: &[&str], env: &[(&str, &str)]) -> Command {
        let mut command = self.mpsctl_of(USER);
        command.args(["exec", "--"]).arg(self.node.client());
        command.arg("--node").arg(self.node.dir()).args(args);
        command.envs(env.iter().copied());
        command
    }

    /// In a job that shares its MPS; waits until it has its context.
    #[track_caller]
    pub fn sharer(&self, job: &str) -> Running {
        let mut command = self.exec_command(&["--hold", "60", "--busy"], &[("PBS_JOBID", job)]);
        let client = Running::silent(&mut command);
        eventually("the client attaches", || self.has_context(client.pid()));
        client
    }

    pub fn cuda(&self, args: &[&str]) -> Command {
        let mut command = as_user(USER, self.node.client());
        command.arg("--node").arg(self.node.dir()).args(args);
        command.env_clear();
        command
    }

    #[track_caller]
    pub fn say(&self, job: &str, lines: &str) {
        let mut command = as_user(USER, self.node.control());
        command.env_clear().envs([self.pipe(job)]);
        let mut session = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::null()));
        let mut to = session.0.stdin.take().expect("stdin");
        writeln!(to, "{lines}").expect("the session reads");
        drop(to);
        assert_eq!(session.wait(), Some(0), "{lines}");
    }

    pub fn log(&self, job: &str, name: &str) -> String {
        fs::read_to_string(self.job(job).join("log").join(name)).unwrap_or_default()
    }

    pub fn pipe(&self, job: &str) -> (String, String) {
        let pipe = self.job(job).join("pipe").display().to_string();
        ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), pipe)
    }

    /// A directory of the user's, visible to this thread and its children. `None` without FUSE.
    pub fn hung(
        &self,
        name: &str,
        mount: impl Fn(&Path, u32) -> std::io::Result<Hung>,
    ) -> Option<(PathBuf, Hung)> {
        let at = self.path(name);
        fs::create_dir_all(&at).expect("directory");
        match mount(&at, uid_of(USER)) {
            Ok(hung) => return Some((at, hung)),
            Err(why) => skip(name, &format!("no FUSE: {why}")),
        }
        None
    }
}

impl Drop for NodeBed {
    fn drop(&mut self) {
        look::end_all(|| self.processes());
        if let Some(cgroups) = &self.cgroups {
            wait_until(Duration::from_secs(2), || {
                for entry in fs::read_dir(cgroups).into_iter().flatten().flatten() {
                    let _ = fs::remove_dir(entry.path());
                }
                fs::remove_dir(cgroups).is_ok() || !cgroups.exists()
            });
        }
        // Left by a job of a failed test: its directory could not be removed otherwise.
        for at in self.mounts().iter().rev().chain([&self.path("run")]) {
            let _ = nix::mount::umount2(at, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

/// This many at once, because most of it waits.
pub fn side_by_side<T: Send>(items: Vec<T>, at_once: usize, work: impl Fn(T) + Sync) {
    let work = &work;
    let all = items.into_iter().map(|item| Work {
        claims: Vec::new(),
        run: Box::new(move || work(item)),
    });
    beside::run(all.collect(), at_once);
}

#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    #[track_caller]
    pub fn start(mut command: impl BorrowMut<Command>) -> Self {
        let command = command.borrow_mut();
        let child = command.spawn();
        Self(child.unwrap_or_else(|why| panic!("{command:?}: {why}")))
    }

    /// Without input and output.
    #[track_caller]
    pub fn silent(mut command: impl BorrowMut<Command>) -> Self {
        let command = command.borrow_mut();
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Self::start(command.stderr(Stdio::null()))
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Its exit code after its end; `None` if a signal ended it.
    #[track_caller]
    pub fn wait(&mut self) -> Option<i32> {
        eventually("the child ends", || self.has_ended());
        self.0.wait().expect("wait").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[track_caller]
pub fn eventually(what: impl Display, so: impl FnMut() -> bool) {
    assert!(wait_until(PATIENCE, so), "it does not happen: {what}");
}

pub fn status_of(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let found = lines.find(|(of, _)| *of == name);
    found.map_or("", |(_, value)| value.trim()).to_owned()
}

pub fn resident_kb(pid: u32) -> i64 {
    let text = status_of(pid, "VmRSS");
    let number = text.split_whitespace().next();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Whether the kernel tells how another process's child ended (Linux 6.15).
/// Why a test is skipped where [`kernel_tells_of_ends`] says no.
pub const OWN_CHILDREN: &str = "this kernel tells of its own children only";

pub fn kernel_tells_of_ends() -> bool {
    let kernel = nix::sys::utsname::uname().expect("uname");
    let release = kernel.release().to_string_lossy();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|word| word.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(15))
}

/// An ended process needs no signal.
pub fn kill(pid: u32, signal: nix::sys::signal::Signal) {
    let _ = send(pid, signal);
}

pub fn send(pid: u32, signal: nix::sys::signal::Signal) -> nix::Result<()> {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), signal)
}

/// `None` if this machine has no writable hierarchy.
pub fn own_cgroup() -> Option<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("mpsd-test-{}-{number}", std::process::id());
    let mounts = ["", "unified", "systemd"].map(|name| Path::new("/sys/fs/cgroup").join(name));
    let mut mounts = mounts
        .iter()
        .filter(|mount| mount.join("cgroup.procs").exists());
    mounts.find_map(|mount| {
        remove_stale(mount);
        let path = mount.join(&name);
        fs::create_dir(&path).ok().map(|()| path)
    })
}

/// Of killed test programs.
fn remove_stale(mount: &Path) {
    for entry in fs::read_dir(mount).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name
            .strip_prefix("mpsd-test-")
            .and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

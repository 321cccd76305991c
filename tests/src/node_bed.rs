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
    prologue_on_gpu_0, strict_epilogue_args, uid_of,
};

const MOMENT: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(40);
/// What the suite keeps between jobs by design: its directories and the ledger.
const STANDING: [&str; 7] = [
    "run/jobs",
    "run/gpus",
    "state/drains",
    "state/reports",
    "run/shared",
    "run/ledger",
    "run/.ledger.lock",
];

/// The reports of ended jobs, and their users' copies, which are only in a tmpfs.
const REPORTS: [&str; 2] = ["state/reports/", "run/reports"];
const NODE: &str = "gpu001";
pub type Picture = BTreeMap<String, String>;

/// A bed of one node. Its jobs' cgroups are in a directory of its own.
#[derive(Debug)]
pub struct NodeBed {
    pub node: NodeDouble,
    /// Where its jobs' cgroups are; `None` if this machine has no writable hierarchy.
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

    /// Writes what a job before a node's trouble has left in the ledger. On a real node almost
    /// every start finds that.
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

    /// Writes the configuration with these lines and the bed's own cgroup.
    pub fn configure(&self, extra: &str) {
        let path = self.cgroups.as_ref().map(|path| path.display().to_string());
        let choice = path.unwrap_or("none".to_owned());
        self.configure_whole(&format!("cgroup = \"{choice}\"\n{extra}"));
    }

    /// Writes the configuration with these lines. A PBS of this machine is none of this node's.
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

    /// A new directory below it that everybody may list and only root may change.
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

    /// Runs the prologue with a scheduler's arguments and environment, and nothing else.
    pub fn prologue<S: AsRef<OsStr>>(&self, args: &[S], env: &[(&str, &str)]) -> Ran {
        self.run("mps-prologue", args, env)
    }

    /// OpenPBS' prologue of a job on GPU 0.
    pub fn openpbs(&self, job: &str, user: &str, account: &str) -> Ran {
        self.prologue(&openpbs_args(job, user, account), &[])
    }

    pub fn epilogue<S: AsRef<OsStr>>(&self, args: &[S], env: &[(&str, &str)]) -> Ran {
        self.run("mps-epilogue", args, env)
    }

    /// The same for a request that is refused, with a record for its tasks.
    pub fn refused(&self, job: &str, account: &str) -> Ran {
        let args = [
            &["--record", "--gpus", "0"],
            &prologue_args(job, account)[..],
        ]
        .concat();
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

    /// The same, run by another program with these words.
    pub fn command_by(&self, words: &[&str], program: &str) -> Command {
        let program = self.program(program);
        let mut command = match words {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command.arg("--config").arg(self.config()).env_clear();
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

    /// A Torque prologue with an option that gives the job GPU 0.
    pub fn torque_on_gpu_0(&self, job: &str, account: &str) -> Ran {
        let args = prologue_on_gpu_0(job, account);
        self.prologue(&args, &[])
    }

    /// A Torque prologue for `job` of [`crate::run::USER`], which has these GPUs alone (numbers
    /// with commas).
    pub fn torque(&self, job: &str, account: &str, gpus: &str) -> Ran {
        let env = self.gpu_file(job, gpus);
        let env: Vec<(&str, &str)> = env.iter().map(|(k, v)| (*k, v.as_str())).collect();
        self.prologue(&prologue_args(job, account), &env)
    }

    #[track_caller]
    pub fn begin(&self, job: &str, account: &str, gpus: &str) -> Ran {
        self.torque(job, account, gpus).ok()
    }

    /// The same; does not wait for it.
    pub fn start_torque(&self, job: &str, account: &str, gpus: &str) -> Running {
        let env = self.gpu_file(job, gpus);
        self.start("mps-prologue", &prologue_args(job, account), &env)
    }

    pub fn start_end(&self, job: &str) -> Running {
        self.start("mps-epilogue", &epilogue_args(job), &[])
    }

    fn gpu_file(&self, job: &str, gpus: &str) -> Vec<(&'static str, String)> {
        let nodes = self.path("nodes");
        fs::create_dir_all(&nodes).expect("directory");
        let file = nodes.join(job);
        let lines = gpus.split(',').map(|gpu| format!("{NODE}-gpu{gpu}\n"));
        let lines: String = lines.collect();
        fs::write(nodes.join(format!("{job}gpu")), lines).expect("GPU file");
        vec![
            ("PBS_NODEFILE", file.display().to_string()),
            ("PBS_MSHOST", NODE.to_owned()),
        ]
    }

    fn start(&self, program: &str, args: &[&str], env: &[(&str, String)]) -> Running {
        let mut command = self.command(program);
        command.args(args).envs(env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Running::start(command.stderr(Stdio::null()))
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
            picture.insert(
                format!("process {}", process.pid),
                format!("{} {:?}", process.exe.display(), process.args),
            );
        }
        if let Some(cgroups) = &self.cgroups {
            for entry in fs::read_dir(cgroups).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    picture.insert(format!("cgroup {}", entry.path().display()), String::new());
                }
            }
        }
        picture
    }

    pub fn processes(&self) -> Vec<look::Process> {
        let mut all = self.node.processes();
        all.extend(look::processes_from(&self.path("bin")));
        all
    }

    /// Its processes that run the file `name` as an ordinary user, and so can be signaled by their
    /// owner.
    pub fn pids(&self, name: &str) -> Vec<u32> {
        let named =
            |p: &look::Process| p.uid != 0 && p.exe.file_name().is_some_and(|file| file == name);
        let all = self.processes().into_iter().filter(named);
        all.map(|p| p.pid).collect()
    }

    /// Root's. A job's own `mpsd` asks NVML too.
    pub fn nvml_worker(&self) -> Option<u32> {
        let has_nvml = |process: &look::Process| {
            let maps = fs::read_to_string(format!("/proc/{}/maps", process.pid));
            process.uid == 0
                && process.exe.ends_with("bin/mpsd")
                && maps.is_ok_and(|maps| maps.contains("libnvidia-ml"))
        };
        self.processes()
            .into_iter()
            .find(has_nvml)
            .map(|process| process.pid)
    }

    /// The same, as soon as it is there.
    #[track_caller]
    pub fn nvml_worker_comes(&self) -> u32 {
        let mut worker = None;
        eventually("a process asks NVML", || {
            worker = self.nvml_worker();
            worker.is_some()
        });
        worker.expect("a process")
    }

    /// Asserts that the node is exactly as before the first job, and not drained. Ended processes
    /// have a moment to vanish.
    #[track_caller]
    pub fn assert_as_before(&self, after: &str) {
        let different = self.difference();
        assert!(different.is_empty(), "after {after}: {different:#?}");
    }

    /// What is there now and was not before the first job, and the reverse. Ended processes have a
    /// moment to vanish.
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

    /// Returns the reasons of this node's drains, delivered or not, and forgets the drains.
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

    /// The same; waits until it has its context.
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

    /// A CUDA program of the user's in this job that ends by itself. Asserts that it ran under MPS.
    pub fn served(&self, job: &str, args: &[&str]) -> Ran {
        let ran = finish(self.cuda(args).envs([self.pipe(job)])).ok();
        assert_eq!(ran.json()["under_mps"], true, "{ran:?}");
        ran
    }

    pub fn tried(&self, job: &str, args: &[&str]) -> Ran {
        finish(self.cuda(args).envs([self.pipe(job)]))
    }

    /// Runs a CUDA program that the user starts by `mpsctl exec` with only this environment.
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

    /// A CUDA program in a job that shares its MPS; waits until it has its context.
    #[track_caller]
    pub fn sharer(&self, job: &str) -> Running {
        let mut command = self.exec_command(&["--hold", "60", "--busy"], &[("PBS_JOBID", job)]);
        let client = Running::start(command.stdin(Stdio::null()).stdout(Stdio::null()));
        eventually("the client attaches", || self.has_context(client.pid()));
        client
    }

    pub fn cuda(&self, args: &[&str]) -> Command {
        let mut command = as_user(USER, self.node.client());
        command
            .arg("--node")
            .arg(self.node.dir())
            .args(args)
            .env_clear();
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

    /// A directory of the user's with FUSE over it, visible to this thread and its children.
    /// `None`, with a message, without FUSE.
    pub fn hung(
        &self,
        name: &str,
        mount: impl Fn(&Path, u32) -> std::io::Result<Hung>,
    ) -> Option<(PathBuf, Hung)> {
        let at = self.path(name);
        fs::create_dir_all(&at).expect("directory");
        let hung = mount(&at, uid_of(USER));
        let told =
            hung.inspect_err(|why| println!("not tried here, this machine has no FUSE: {why}"));
        told.ok().map(|hung| (at, hung))
    }
}

impl Drop for NodeBed {
    fn drop(&mut self) {
        for _ in 0..3 {
            for process in self.processes() {
                kill(process.pid, nix::sys::signal::Signal::SIGCONT);
                kill(process.pid, nix::sys::signal::Signal::SIGKILL);
            }
            if wait_until(Duration::from_secs(1), || self.processes().is_empty()) {
                break;
            }
        }
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

/// Runs `work` on every item, this many at once, because most of it waits.
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
    let named = |line: &str| {
        Some(
            line.strip_prefix(name)?
                .strip_prefix(':')?
                .trim()
                .to_owned(),
        )
    };
    text.lines().find_map(named).unwrap_or_default()
}

pub fn resident_kb(pid: u32) -> i64 {
    let text = status_of(pid, "VmRSS");
    let number = text.split_whitespace().next();
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Whether the kernel tells how another process's child ended (Linux 6.15).
pub fn kernel_tells_of_ends() -> bool {
    let kernel = nix::sys::utsname::uname().expect("uname");
    let release = kernel.release().to_string_lossy().into_owned();
    let words = release.split(['.', '-']);
    let mut numbers = words.map_while(|word| word.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(15))
}

/// An ended process needs no signal.
pub fn kill(pid: u32, signal: nix::sys::signal::Signal) {
    let _ = send(pid, signal);
}

pub fn send(pid: u32, signal: nix::sys::signal::Signal) -> nix::Result<()> {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid.cast_signed()), signal)
}

/// A new empty cgroup; `None` if this machine has no writable hierarchy.
pub fn own_cgroup() -> Option<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("mpsd-test-{}-{number}", std::process::id());
    [
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/systemd",
    ]
    .iter()
    .map(Path::new)
    .filter(|mount| mount.join("cgroup.procs").exists())
    .inspect(|mount| remove_stale(mount))
    .map(|mount| mount.join(&name))
    .find(|path| fs::create_dir(path).is_ok())
}

/// Removes the cgroups of killed test programs.
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

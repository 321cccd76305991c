//! A stage with a cgroup of its own, and the picture of the node before any job: what the end is compared with.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::double::look::{self, wait_until};
use crate::double::{Builder, NodeDouble};
use crate::stage::{Ran, Stage, USER, as_user, epilogue_args, finish, prologue_args};

/// How long what was ended may take to vanish.
const MOMENT: Duration = Duration::from_secs(4);
/// What the suite keeps between jobs on purpose: its directories, and the users whose starts failed of late.
const STANDING: [&str; 6] = [
    "run/jobs",
    "run/gpus",
    "state/drains",
    "state/reports",
    "run/failed-starts",
    "run/.failed-starts.lock",
];

/// The reports of jobs that have ended, and their users' copies, which lie in a tmpfs alone.
const REPORTS: [&str; 2] = ["state/reports/", "run/reports"];
/// The node's name in the scheduler.
const NODE: &str = "gpu001";

/// Everything that a job could change, by name.
pub type Picture = BTreeMap<String, String>;

/// A stage whose jobs have their cgroups in a directory of its own.
#[derive(Debug)]
pub struct Place {
    /// The stage.
    pub stage: Stage,
    /// Where its jobs' cgroups are made; none where this machine has no hierarchy to write.
    pub cgroups: Option<PathBuf>,
    before: Picture,
}

/// A node that wastes no time.
pub fn fast(gpus: usize) -> Builder {
    NodeDouble::builder().gpus(gpus, "NVIDIA H200").fast()
}

impl Place {
    /// The suite on `node`, with `extra` lines in its configuration.
    pub fn new(node: Builder, extra: &str) -> Self {
        Self::of(node, extra, own_cgroup())
    }

    /// The same without any cgroup.
    pub fn without_cgroup(node: Builder, extra: &str) -> Self {
        Self::of(node, extra, None)
    }

    fn of(node: Builder, extra: &str, cgroups: Option<PathBuf>) -> Self {
        let choice = cgroups
            .as_ref()
            .map_or("none".to_owned(), |path| path.display().to_string());
        let stage = Stage::new(
            node.build().expect("node"),
            &format!("cgroup = \"{choice}\"\n{extra}"),
        );
        let mut place = Self {
            stage,
            cgroups,
            before: Picture::new(),
        };
        place.before = place.picture();
        place
    }

    /// The configuration's own lines and these.
    pub fn configure(&self, extra: &str) {
        let choice = self
            .cgroups
            .as_ref()
            .map_or("none".to_owned(), |path| path.display().to_string());
        self.stage.configure(&format!("cgroup = \"{choice}\"\n{extra}"));
    }

    /// A Torque prologue for `job` of [`crate::stage::USER`], which alone holds these GPUs (numbers with commas).
    pub fn torque(&self, job: &str, account: &str, gpus: &str) -> Ran {
        let env = self.gpu_file(job, gpus);
        let env: Vec<(&str, &str)> = env.iter().map(|(k, v)| (*k, v.as_str())).collect();
        self.stage.prologue(&prologue_args(job, account), &env)
    }

    /// The same, not waited for.
    pub fn start_torque(&self, job: &str, account: &str, gpus: &str) -> Running {
        let env = self.gpu_file(job, gpus);
        self.start("mps-prologue", &prologue_args(job, account), &env)
    }

    /// Torque's epilogue, not waited for.
    pub fn start_end(&self, job: &str) -> Running {
        self.start("mps-epilogue", &epilogue_args(job), &[])
    }

    /// The job's GPU file as pbs_mom writes it, and the variables that lead to it.
    fn gpu_file(&self, job: &str, gpus: &str) -> Vec<(&'static str, String)> {
        let nodes = self.stage.path("nodes");
        fs::create_dir_all(&nodes).expect("directory");
        let file = nodes.join(job);
        let lines: String = gpus.split(',').map(|gpu| format!("{NODE}-gpu{gpu}\n")).collect();
        fs::write(nodes.join(format!("{job}gpu")), lines).expect("GPU file");
        vec![
            ("PBS_NODEFILE", file.display().to_string()),
            ("PBS_MSHOST", NODE.to_owned()),
        ]
    }

    fn start(&self, program: &str, args: &[&str], env: &[(&str, String)]) -> Running {
        let child = Command::new(self.stage.program(program))
            .arg("--config")
            .arg(self.stage.config())
            .args(args)
            .env_clear()
            .envs(env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{program}: {e}"));
        Running(child)
    }

    /// Everything that a job could change, by an independent look.
    pub fn picture(&self) -> Picture {
        let mut picture = Picture::new();
        let root = self.stage.path("");
        for top in ["run", "state"] {
            tree(&self.stage.path(top), &root, &mut picture);
        }
        for name in STANDING {
            picture.remove(name);
        }
        picture.retain(|name, _| !REPORTS.iter().any(|top| name.starts_with(top)));
        for (name, value) in self.stage.node.uuids().iter().zip(self.stage.node.modes()) {
            picture.insert(format!("mode of {name}"), value);
        }
        for (gpu, context) in self.stage.node.contexts() {
            picture.insert(format!("context of {} on {gpu}", context.pid), context.kind);
        }
        for at in self.stage.mounts() {
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

    /// The processes that run the suite's or the node's files, by `/proc`.
    pub fn processes(&self) -> Vec<look::Process> {
        let mut all = self.stage.node.processes();
        all.extend(look::processes_from(&self.stage.path("bin")));
        all
    }

    /// Those of them that run the file `name` as an ordinary user: what their owner can signal.
    pub fn pids(&self, name: &str) -> Vec<u32> {
        let named = |p: &look::Process| p.uid != 0 && p.exe.file_name().is_some_and(|file| file == name);
        self.processes()
            .into_iter()
            .filter(named)
            .map(|p| p.pid)
            .collect()
    }

    /// Asserts that the node is exactly as it was before the first job; what was ended has a moment to vanish.
    #[track_caller]
    pub fn assert_as_before(&self, after: &str) {
        wait_until(MOMENT, || self.picture() == self.before);
        assert_eq!(self.picture(), self.before, "after {after}");
    }

    /// What is there now and was not before the first job, or the other way round; what was ended has a moment to
    /// vanish.
    pub fn difference(&self) -> Vec<String> {
        wait_until(MOMENT, || self.picture() == self.before);
        let now = self.picture();
        let new = now.iter().filter(|(k, v)| self.before.get(*k) != Some(*v));
        let gone = self.before.iter().filter(|(k, _)| !now.contains_key(*k));
        new.map(|(k, v)| format!("{k}: {v}"))
            .chain(gone.map(|(k, v)| format!("gone: {k}: {v}")))
            .collect()
    }

    /// Asserts that this node was never drained, nor is to be.
    #[track_caller]
    pub fn assert_not_drained(&self, after: &str) {
        let drains: Vec<String> = fs::read_dir(self.stage.path("state/drains"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| fs::read_to_string(entry.path()).unwrap_or_default())
            .collect();
        assert!(drains.is_empty(), "drained after {after}: {drains:?}");
    }

    /// The reasons of this node's drains, delivered or not; they are forgotten with this.
    pub fn take_drains(&self) -> Vec<String> {
        let entries = fs::read_dir(self.stage.path("state/drains"));
        let entries = entries.into_iter().flatten().flatten();
        let take = |entry: fs::DirEntry| {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let _ = fs::remove_file(entry.path());
            text
        };
        entries.map(take).collect()
    }

    /// What our epilogue says of `job` under `--strict`.
    pub fn strict_end(&self, job: &str) -> Ran {
        let mut args = vec!["--strict"];
        args.extend(epilogue_args(job));
        self.stage.epilogue(&args, &[])
    }

    /// One epilogue, strict, and an independent look: nothing is left, nothing was drained.
    #[track_caller]
    pub fn assert_ends_clean(&self, job: &str, after: &str) {
        let end = self.strict_end(job);
        self.assert_not_drained(after);
        assert_eq!(end.code, Some(0), "{after}: {end:?}");
        self.assert_as_before(after);
    }

    /// A CUDA program of the user's in this job, with `env` beside the job's pipe directory.
    pub fn client(&self, job: &str, args: &[&str], env: &[(&str, &str)]) -> Running {
        let mut command = as_user(USER, self.stage.node.client());
        command.arg("--node").arg(self.stage.node.dir()).args(args);
        command
            .env_clear()
            .envs([self.pipe(job)])
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Running(command.spawn().expect("client"))
    }

    /// The same, once it has its context.
    pub fn attached(&self, job: &str, args: &[&str], env: &[(&str, &str)]) -> Running {
        let client = self.client(job, args, env);
        let has_context = || {
            let contexts = self.stage.node.contexts();
            contexts
                .iter()
                .any(|(_, context)| context.pid == client.0.id() && context.bytes > 0)
        };
        assert!(
            wait_until(Duration::from_secs(30), has_context),
            "the client does not attach"
        );
        client
    }

    /// What a CUDA program writes that the user starts by `mpsctl exec` with this environment alone.
    pub fn exec(&self, args: &[&str], env: &[(&str, &str)]) -> Ran {
        let mut command = as_user(USER, self.stage.program("mpsctl"));
        command.arg("--config").arg(self.stage.config());
        command.args(["exec", "--"]).arg(self.stage.node.client());
        command.arg("--node").arg(self.stage.node.dir()).args(args);
        finish({
            command.env_clear().envs(env.iter().copied());
            command
        })
    }

    /// What a client of `job` finds its daemon by.
    pub fn pipe(&self, job: &str) -> (String, String) {
        let pipe = self.stage.job(job).join("pipe").display().to_string();
        ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), pipe)
    }
}

impl Drop for Place {
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
    }
}

/// Runs `work` on every item, so many at once: most of what is tested waits.
pub fn side_by_side<T: Send>(items: Vec<T>, at_once: usize, work: impl Fn(T) + Sync) {
    let queue = std::sync::Mutex::new(items);
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let Some(item) = queue.lock().unwrap_or_else(|e| e.into_inner()).pop() else {
                        return;
                    };
                    work(item);
                }
            });
        }
    });
}

/// A child that does not outlive its test.
#[derive(Debug)]
pub struct Running(pub Child);

impl Running {
    /// Its exit code, once it has ended by itself; none when a signal ended it.
    pub fn wait(&mut self) -> Option<i32> {
        let ended = wait_until(Duration::from_secs(40), || {
            self.0.try_wait().is_ok_and(|s| s.is_some())
        });
        assert!(ended, "{:?} does not end", self.0);
        self.0.wait().expect("wait").code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A signal to one process.
pub fn kill(pid: u32, signal: nix::sys::signal::Signal) {
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), signal);
}

/// A cgroup for one test, in the hierarchy that the suite itself would choose.
fn own_cgroup() -> Option<PathBuf> {
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
    .inspect(|mount| sweep(mount))
    .map(|mount| mount.join(&name))
    .find(|path| fs::create_dir(path).is_ok())
}

/// Removes what test programs that were killed left: an empty cgroup is all that a guard could not take along.
fn sweep(mount: &Path) {
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

fn tree(at: &Path, root: &Path, picture: &mut Picture) {
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        let path = entry.path();
        let Ok(about) = path.symlink_metadata() else {
            continue;
        };
        let kind = about.file_type();
        let text = match (kind.is_dir(), kind.is_file(), kind.is_fifo()) {
            (true, ..) => "directory".to_owned(),
            (_, true, _) => format!("{} bytes", about.len()),
            (.., true) => "fifo".to_owned(),
            _ => format!("{kind:?}"),
        };
        let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        picture.insert(
            name,
            format!("{text} {:o} {}", about.mode() & 0o7777, about.uid()),
        );
        if kind.is_dir() {
            tree(&path, root, picture);
        }
    }
}

//! A small file system over a directory: with few pages or few inodes.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

use crate::node_bed::{Running, eventually, status_of};
use crate::run::as_user;

const PAGE: usize = 4096;
const NOTHING: Option<&str> = None;
const BALLAST: &str = ".ballast";

#[derive(Debug)]
pub struct Small {
    at: PathBuf,
}

impl Small {
    /// `at` keeps its mode. The thread gets its own mount namespace, so call it in a thread that
    /// ends with the test ([`alone`]).
    pub fn over(at: &Path, pages: usize, mode: u32) -> Self {
        own_namespace();
        Self::mounted(at, &format!("size={},mode={mode:o}", pages * PAGE))
    }

    /// With `files` inodes and no limit of pages.
    pub fn of_files(at: &Path, files: usize, mode: u32) -> Self {
        own_namespace();
        Self::seen_by_all(at, files, mode)
    }

    /// The same in the caller's namespace, for daemons that already run.
    pub fn seen_by_all(at: &Path, files: usize, mode: u32) -> Self {
        Self::mounted(at, &format!("nr_inodes={files},mode={mode:o}"))
    }

    fn mounted(at: &Path, options: &str) -> Self {
        let none = MsFlags::empty();
        mount(Some("small"), at, Some("tmpfs"), none, Some(options)).expect("a tmpfs");
        Self { at: at.to_owned() }
    }

    /// Takes all inodes but `files`.
    pub fn leave_files(&self, files: usize) {
        self.free();
        let ballast = self.at.join(BALLAST);
        fs::create_dir(&ballast).expect("ballast");
        let file = |number: usize| ballast.join(number.to_string());
        let takes = |number: &usize| fs::File::create_new(file(*number)).is_ok();
        let taken = (0..).take_while(takes).count();
        assert!(taken >= files, "only {taken} inodes are free, not {files}");
        (taken - files..taken).for_each(|number| fs::remove_file(file(number)).expect("ballast"));
    }

    /// Takes all room but `pages`.
    pub fn leave(&self, pages: usize) {
        self.free();
        let mut file = fs::File::create(self.at.join(BALLAST)).expect("ballast");
        let mut taken = 0;
        while file.write_all(&[0; PAGE]).is_ok() {
            taken += 1;
        }
        assert!(taken >= pages, "only {taken} pages are free, not {pages}");
        file.set_len(((taken - pages) * PAGE) as u64).expect("room");
    }

    pub fn free(&self) {
        let ballast = self.at.join(BALLAST);
        let _ = fs::remove_file(&ballast);
        let _ = fs::remove_dir_all(ballast);
    }
}

/// Makes a mount of `at` itself whose mounts below reach all namespaces, as systemd makes `/run`.
/// The thread gets its own mount namespace.
#[derive(Debug)]
pub struct Shared {
    at: PathBuf,
}

impl Shared {
    pub fn at(at: &Path) -> Self {
        own_namespace();
        mount(Some(at), at, NOTHING, MsFlags::MS_BIND, NOTHING).expect("a mount");
        mount(NOTHING, at, NOTHING, MsFlags::MS_SHARED, NOTHING).expect("a shared mount");
        Self { at: at.to_owned() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// A mount namespace of an ordinary user's that takes no further mount (`fs.mount-max`).
#[derive(Debug)]
pub struct Full {
    _keeper: Running,
}

impl Full {
    /// Copies a tree of mounts into itself until it has no room, then smaller and smaller trees.
    const FILLS: &str = "\
        mount -t tmpfs t /mnt && mount --make-private /mnt && mkdir /mnt/a /mnt/l0 || exit 1\n\
        grow() { mkdir -p /mnt/l$2 && mount -t tmpfs l /mnt/l$2 && mkdir /mnt/l$2/x /mnt/l$2/y &&\n\
          { [ $1 = none ] || { mount --rbind /mnt/l$1 /mnt/l$2/x && mount --rbind /mnt/l$1 /mnt/l$2/y; }; }; }\n\
        grow none 0 || exit 1; k=0; n=0\n\
        while grow $k $((k+1)); do k=$((k+1)); done\n\
        while [ $k -ge 0 ]; do\n\
          mkdir -p /mnt/a/$n; mount --rbind /mnt/l$k /mnt/a/$n || k=$((k-1)); n=$((n+1))\n\
        done\n\
        exec /bin/sleep 600";

    pub fn of(user: &str) -> Self {
        let mut command = as_user(user, "/usr/bin/unshare");
        command.args(["-Urm", "--propagation", "unchanged"]);
        let full = Running::silent(command.args(["/bin/sh", "-c", Self::FILLS]));
        let is_full = || status_of(full.pid(), "Name") == "sleep";
        eventually("the namespace is full", is_full);
        Self { _keeper: full }
    }
}

fn own_namespace() {
    unshare(CloneFlags::CLONE_FS | CloneFlags::CLONE_NEWNS).expect("a mount namespace");
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(NOTHING, "/", NOTHING, private, NOTHING).expect("private mounts");
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = umount2(&self.at, MntFlags::MNT_DETACH);
    }
}

/// It sees no later mount from outside: a container's, or a job's under Slurm's
/// job_container/tmpfs.
#[derive(Debug)]
pub struct Older {
    keeper: Running,
    kept: Option<PathBuf>,
}

impl Older {
    /// Call it in a thread of [`alone`], whose mounts are private.
    pub fn start() -> Self {
        own_namespace();
        let (keeper, kept) = (keeper(), None);
        Self { keeper, kept }
    }

    pub fn keep_for(&mut self, base: &Path, job: &str) {
        let point = base.join(job).join(".ns");
        fs::create_dir_all(base.join(job)).expect("directory");
        fs::write(&point, "").expect("file");
        let keep = |file: &Path| mount(Some(file), &point, NOTHING, MsFlags::MS_BIND, NOTHING);
        let mut kept = keep(&self.file());
        // A namespace can be kept only in one with a lower number. Linux 6.18 numbers them by
        // processor, so a new one may have a lower number.
        for _ in 0..200 {
            if kept != Err(Errno::EINVAL) {
                break;
            }
            self.keeper = keeper();
            kept = keep(&self.file());
        }
        kept.expect("the namespace cannot be kept");
        self.kept = Some(point);
    }

    pub fn within(&self, command: &Command) -> Command {
        let mut within = Command::new("/usr/bin/nsenter");
        within.arg(format!("--mount={}", self.file().display()));
        within.arg(command.get_program()).args(command.get_args());
        let env = command.get_envs();
        within.env_clear();
        within.envs(env.filter_map(|(name, value)| Some((name, value?))));
        within
    }

    fn file(&self) -> PathBuf {
        format!("/proc/{}/ns/mnt", self.keeper.pid()).into()
    }
}

fn keeper() -> Running {
    let mut command = Command::new("/usr/bin/unshare");
    command.args(["--mount", "--propagation", "private", "/bin/sleep", "600"]);
    let keeper = Running::start(command.stdin(Stdio::null()));
    let own = fs::read_link("/proc/thread-self/ns/mnt").expect("our namespace");
    let theirs = format!("/proc/{}/ns/mnt", keeper.pid());
    let is_made = || fs::read_link(&theirs).is_ok_and(|theirs| theirs != own);
    eventually("the namespace is made", is_made);
    keeper
}

impl Drop for Older {
    fn drop(&mut self) {
        if let Some(point) = &self.kept {
            let _ = umount2(point, MntFlags::MNT_DETACH);
        }
    }
}

/// Runs `test` in its own thread, because a mount namespace belongs to a thread.
pub fn alone(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let done = scope.spawn(test).join();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

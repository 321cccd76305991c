//! A control group for each job: the only list of its processes that they cannot leave, and a file
//! that ends them (cgroups(7), `Documentation/admin-guide/cgroup-v2.rst`).
//!
//! It lies in cgroup v2, or else in systemd's named v1 hierarchy. That one cannot kill, and a user
//! with a delegated cgroup can leave it.

use super::deadline::Deadline;
use super::descriptors::{read_at, write_at};
use super::files::mounts::{self, Mount};
use super::files::{Dir, FileError};
use super::process::Process;
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::statfs::{CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, fstatfs};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

const UNIT: &str = "mpsd.service";
const PLAIN: &str = "mpsd";
/// Bounds of a job's daemons: far more than 48 clients on each of 16 GPUs need (a server alone
/// takes 64 MiB, docs/facts/mps-control.md#starting). Four CPUs are for many clients that start.
const CEILINGS: [(&str, &str); 3] = [
    ("pids.max", "4096"),
    ("memory.max", "17179869184"),
    ("cpu.max", "400000 100000"),
];
/// Only root may list these: who opens a directory can hold its lock, and root would hang.
const CLOSED: u32 = 0o700;
const MOST: usize = 1 << 20;
const PAUSE: Duration = Duration::from_millis(2);

/// Prefix of a cgroup of no job, before its maker's pid. A job's id begins with a digit.
const PASSING: &str = "of-";
const MOST_NAMES: usize = 10_000;

const MOST_HIERARCHIES: usize = 64;
const NOT_OURS: [Errno; 3] = [Errno::EROFS, Errno::EACCES, Errno::EPERM];
const USUAL: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/systemd",
];

#[derive(Debug)]
pub struct Cgroup {
    dir: Dir,
}

impl Cgroup {
    /// Makes or takes a job's cgroup. `None`: this node has no hierarchy that we may write.
    pub fn create(job: &str) -> Result<Option<Self>, FileError> {
        let mut failed = None;
        for mount in hierarchies()? {
            let (top, base) = match Dir::open(&mount.join("system.slice")) {
                Ok(slice) => (slice, UNIT),
                Err(_) => (Dir::open(&mount)?, PLAIN),
            };
            match Self::make(&top, Some(base), job) {
                Ok(cgroup) => return Ok(Some(cgroup)),
                // Read-only or not ours, as in a container: try the next one.
                Err(error) if error.errno().is_some_and(|errno| NOT_OURS.contains(&errno)) => {}
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(None), Err)
    }

    pub fn create_under(base: &Path, job: &str) -> Result<Option<Self>, FileError> {
        let top = Dir::open(base)?;
        if !is_cgroup(&top) {
            return Err(FileError::unfit(base, "is not in a cgroup hierarchy"));
        }
        Self::make(&top, None, job).map(Some)
    }

    /// What [`Cgroup::create`] made for a job whose start ended before it could journal the path.
    pub fn find(job: &str) -> Option<Self> {
        let mut bases = Self::usual_bases().into_iter();
        bases.find_map(|base| Self::open(&base.join(job)).ok().flatten())
    }

    /// The name of a cgroup that this program makes for something of no job, and removes.
    pub fn passing() -> String {
        format!("{PASSING}{}", std::process::id())
    }

    pub fn usual_bases() -> Vec<PathBuf> {
        let both = |mount: PathBuf| [mount.join("system.slice").join(UNIT), mount.join(PLAIN)];
        let mounts = hierarchies().unwrap_or_default();
        mounts.into_iter().flat_map(both).collect()
    }

    pub fn left_behind(base: &Path) -> Vec<PathBuf> {
        let names = Dir::open(base).and_then(|dir| dir.names(MOST_NAMES));
        let left = |name: &OsString| {
            let maker = name.to_str()?.strip_prefix(PASSING)?.parse().ok()?;
            Process::find(maker).is_none().then(|| base.join(name))
        };
        names.unwrap_or_default().iter().filter_map(left).collect()
    }

    /// Takes the cgroup at `path`; `None`: it is gone. Refuses a root, and one that holds us.
    pub fn open(path: &Path) -> Result<Option<Self>, FileError> {
        let Some(dir) = Dir::find(path)? else {
            return Ok(None);
        };
        if !is_cgroup(&dir) {
            return Err(FileError::unfit(path, "is not in a cgroup hierarchy"));
        }
        let parent = path.parent().and_then(|parent| Dir::open(parent).ok());
        if !parent.as_ref().is_some_and(is_cgroup) {
            return Err(FileError::unfit(path, "is the root of a cgroup hierarchy"));
        }
        let cgroup = Self { dir };
        if cgroup.procs()?.contains(&nix::unistd::getpid().as_raw()) {
            return Err(FileError::unfit(path, "holds this very process"));
        }
        Ok(Some(cgroup))
    }

    /// Whether the cgroup at `path`, there or gone, is of version 2: no user can leave root's.
    pub fn is_unified(path: &Path) -> bool {
        let held = path.ancestors().find_map(|above| Dir::open(above).ok());
        held.is_some_and(|dir| is_unified(&dir))
    }

    fn make(top: &Dir, base: Option<&str>, job: &str) -> Result<Self, FileError> {
        // The end of another job may remove the base between the two steps.
        const TRIES: usize = 10;
        let mut outcome = Err(FileError::unfit(top.path().join(job), "cannot be made"));
        for _ in 0..TRIES {
            let made = |parent: &Dir| parent.create_dir(job, CLOSED, (0, 0)).map(|(dir, _)| dir);
            let base = base.map(|base| top.create_dir(base, CLOSED, (0, 0)));
            outcome = match base {
                Some(base) => base.and_then(|(dir, _)| made(&dir)),
                None => made(top),
            };
            match &outcome {
                Err(error) if matches!(error.errno(), Some(Errno::ENOENT | Errno::ENODEV)) => {}
                _ => break,
            }
        }
        let cgroup = Self { dir: outcome? };
        cgroup.bound(base.is_some());
        Ok(cgroup)
    }

    /// Sets [`CEILINGS`] where it can. A directory above that is `ours` hands the controllers on.
    fn bound(&self, ours: bool) {
        let above = self.path().parent().filter(|_| ours);
        let above = above.and_then(|above| Dir::open(above).ok());
        for (file, most) in CEILINGS {
            if let (Some(dir), Some((controller, _))) = (&above, file.split_once('.')) {
                // In version 2 a cgroup has the controllers that the one above it hands on.
                let _ = write_at(dir, "cgroup.subtree_control", &format!("+{controller}"));
            }
            let _ = write_at(&self.dir, file, most);
        }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn directory(&self) -> Result<OwnedFd, FileError> {
        self.dir.listing()
    }

    /// The processes in it, without defunct ones; none when it is gone.
    pub fn procs(&self) -> Result<Vec<i32>, FileError> {
        let text = match read_at(&self.dir, "cgroup.procs", MOST) {
            Err(Errno::ENOENT | Errno::ENODEV) => return Ok(Vec::new()),
            other => other.map_err(self.fail("read cgroup"))?,
        };
        let text = String::from_utf8_lossy(&text);
        // A list that was cut may end within a number.
        let (text, _) = text.rsplit_once('\n').unwrap_or_default();
        let pids = text.lines().filter_map(|line| line.trim().parse().ok());
        Ok(pids.filter(|pid| *pid > 0).collect())
    }

    pub fn wait_until_empty(&self, deadline: Deadline) {
        while self.procs().is_ok_and(|all| !all.is_empty()) && deadline.sleep(PAUSE) {}
    }

    /// Does not wait for their end, except before Linux 5.14 and on v1: half of the time at most.
    pub fn kill(&self, deadline: Deadline) -> Result<(), FileError> {
        match write_at(&self.dir, "cgroup.kill", "1") {
            // Before Linux 5.14, and on v1.
            Err(Errno::ENOENT) => self.kill_each(deadline),
            Ok(()) | Err(Errno::ENODEV) => Ok(()),
            Err(errno) => Err(self.fail("kill cgroup")(errno)),
        }
    }

    /// Again until none is left or half of the time is over: what is killed while it forks leaves
    /// its child.
    fn kill_each(&self, deadline: Deadline) -> Result<(), FileError> {
        let half = Deadline::after(deadline.remaining() / 2);
        loop {
            self.stop_each(half)?;
            let mut all = self.procs()?.into_iter();
            all.try_for_each(|pid| self.signal(pid, Signal::SIGKILL))?;
            if self.procs()?.is_empty() || !half.sleep(PAUSE) {
                return Ok(());
            }
        }
    }

    /// In rounds until no new one appears: a stopped process does not fork.
    fn stop_each(&self, deadline: Deadline) -> Result<(), FileError> {
        let mut stopped = BTreeSet::new();
        loop {
            let mut new = self.procs()?;
            new.retain(|pid| !stopped.contains(pid));
            if new.is_empty() || deadline.expired() {
                return Ok(());
            }
            for pid in new {
                self.signal(pid, Signal::SIGSTOP)?;
                stopped.insert(pid);
            }
        }
    }

    /// Signals `pid` if it is in this cgroup. A descriptor holds it meanwhile, so the signal
    /// reaches no other process.
    fn signal(&self, pid: i32, signal: Signal) -> Result<(), FileError> {
        if let Some(process) = Process::find(pid)
            && self.procs()?.contains(&pid)
        {
            process.signal(signal);
        }
        Ok(())
    }

    /// Removes it; false: it was gone already. EBUSY: processes are still in it.
    pub fn remove(&self) -> Result<bool, FileError> {
        let (Some(parent), Some(name)) = (self.path().parent(), self.path().file_name()) else {
            return Ok(false);
        };
        let Some(parent) = Dir::find(parent)? else {
            return Ok(false);
        };
        // A killed process still counts for a moment.
        let patience = Deadline::after_ms(300);
        loop {
            match parent.remove_empty_dir(name) {
                Err(error)
                    if error.errno() == Some(Errno::EBUSY)
                        && patience.sleep(Duration::from_millis(5)) => {}
                removed => return removed,
            }
        }
    }

    /// Removes our own directory after the last job; the kernel keeps one in use. It may hang: any
    /// user can hold the lock of the directory above it.
    pub fn remove_base(base: &Path) {
        if let (Some(above), Some(name)) = (base.parent(), base.file_name()) {
            let _ = Dir::open(above).and_then(|above| above.remove_empty_dir(name));
        }
    }

    fn fail(&self, act: &'static str) -> impl FnOnce(Errno) -> FileError {
        FileError::io(act, self.path())
    }
}

/// Where a job's cgroup can be, v2 before systemd's v1 hierarchy without controllers.
fn hierarchies() -> Result<Vec<PathBuf>, FileError> {
    match mounts::all() {
        Ok(mounts) => Ok(better_first(mounts)),
        Err(Errno::ENOENT) => Ok(Vec::new()),
        Err(errno) => Err(FileError::io("read", "/proc/self/mountinfo")(errno)),
    }
}

/// If a hierarchy has several mounts, the mount at a usual place counts.
fn better_first(mut all: Vec<Mount>) -> Vec<PathBuf> {
    let is_named = |mount: &Mount| mount.kind == "cgroup" && mount.has("name=systemd");
    let is_usual = |path: &Path| USUAL.iter().any(|usual| path.as_os_str() == *usual);
    all.retain(|mount| mount.kind == "cgroup2" || is_named(mount));
    all.sort_by_key(|mount| (is_named(mount), !is_usual(&mount.path)));
    all.dedup_by_key(|mount| is_named(mount));
    all.into_iter().map(|mount| mount.path).collect()
}

fn is_cgroup(dir: &Dir) -> bool {
    is_unified(dir) || fstatfs(dir).is_ok_and(|found| found.filesystem_type() == CGROUP_SUPER_MAGIC)
}

fn is_unified(dir: &Dir) -> bool {
    fstatfs(dir).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
}

/// Moves our process, which a user made hang, to the root of each hierarchy: in the job's cgroup it
/// would drain the node (Slurm's "Kill task failed"). A move takes 10 ms (Linux 6.18).
pub fn leave(pid: i32) {
    let (top, text) = (Path::new("/sys/fs/cgroup"), pid.to_string());
    let Ok(dir) = Dir::open(top) else { return };
    if is_cgroup(&dir) {
        let _ = write_at(&dir, "cgroup.procs", &text);
        return;
    }
    // Version 1: each hierarchy is a directory in it.
    for name in dir.names(MOST_HIERARCHIES).unwrap_or_default() {
        let hierarchy = dir.open_dir(&name).ok().filter(is_cgroup);
        let _ = hierarchy.map(|hierarchy| write_at(&hierarchy, "cgroup.procs", &text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spawn::Child;
    use crate::testing::{alone, as_stranger, soon, wait_until};

    fn base() -> String {
        format!("mpsd-unit-test-{}", std::process::id())
    }

    struct TestCgroup(Cgroup);

    impl Drop for TestCgroup {
        fn drop(&mut self) {
            let _ = self.0.kill(soon());
            self.0.wait_until_empty(soon());
            let _ = self.0.remove();
            // Their base, after the last test.
            let base_of_it = self.0.path().parent().unwrap();
            if base_of_it.ends_with(base()) || is_usual(base_of_it) {
                let _ = std::fs::remove_dir(base_of_it);
            }
        }
    }

    fn is_usual(base: &Path) -> bool {
        Cgroup::usual_bases().iter().any(|usual| usual == base)
    }

    /// The job's cgroup in every hierarchy of this machine; at least one, or nothing is tested.
    fn everywhere(job: &str) -> Vec<TestCgroup> {
        let make = |mount: PathBuf| {
            let top = Dir::open(&mount).unwrap();
            TestCgroup(Cgroup::make(&top, Some(&base()), job).unwrap())
        };
        let all: Vec<_> = hierarchies().unwrap().into_iter().map(make).collect();
        assert!(!all.is_empty(), "there is no cgroup hierarchy to test with");
        all
    }

    fn start(cgroup: &Cgroup, line: &str) -> Child {
        let mut spawn = as_stranger("/bin/sh", &["-c", line]);
        spawn.cgroup = Some(cgroup.directory().unwrap());
        spawn.start(soon()).unwrap()
    }

    fn empties(cgroup: &Cgroup, deadline: Deadline) -> bool {
        cgroup.wait_until_empty(deadline);
        cgroup.procs().unwrap().is_empty()
    }

    #[test]
    fn a_program_is_born_in_it_and_its_end_is_seen() {
        let _alone = alone();
        for TestCgroup(cgroup) in &everywhere("4711") {
            assert!(empties(cgroup, Deadline::after_ms(0)));
            let mut child = start(cgroup, "sleep 1");
            assert!(cgroup.procs().unwrap().contains(&child.pid()));
            assert!(!empties(cgroup, Deadline::after_ms(20)));
            let in_use = cgroup.remove().unwrap_err().errno();
            assert_eq!(in_use, Some(Errno::EBUSY));
            assert!(empties(cgroup, soon()));
            child.wait(soon()).unwrap();
            assert!(cgroup.remove().unwrap());
            assert!(!cgroup.remove().unwrap());
            assert!(cgroup.procs().unwrap().is_empty());
            assert!(Cgroup::open(cgroup.path()).unwrap().is_none());
        }
    }

    /// Fifty processes that ignore SIGTERM and start new ones as fast as they can, and end by
    /// themselves if the test fails.
    const BOMB: &str = "trap '' TERM; i=0; while [ $i -lt 50 ]; do \
        (n=0; while [ $((n+=1)) -lt 3000 ]; do sleep 0.01; done) & i=$((i+1)); done; wait";

    #[test]
    fn a_fork_bomb_and_a_stopped_process_end_by_the_file_and_one_by_one() {
        let _alone = alone();
        for TestCgroup(cgroup) in &everywhere("bomb") {
            for (by_file, line, count) in [
                (true, BOMB, 51),
                (false, BOMB, 51),
                (true, "kill -STOP $$", 1),
                (false, "kill -STOP $$", 1),
            ] {
                let mut child = start(cgroup, line);
                wait_until(|| cgroup.procs().unwrap().len() >= count);
                match by_file {
                    true => cgroup.kill(soon()).unwrap(),
                    false => cgroup.kill_each(soon()).unwrap(),
                }
                assert!(empties(cgroup, soon()), "{:?}", cgroup.path());
                assert_eq!(child.wait(soon()), Some(crate::Exit::Signal(9)));
            }
            assert!(cgroup.remove().unwrap());
        }
    }

    /// A pid from the list may be another process's by now.
    #[test]
    fn a_process_that_is_not_in_it_is_not_signaled() {
        let _alone = alone();
        for TestCgroup(cgroup) in &everywhere("outside") {
            let mut child = as_stranger("/bin/sleep", &["60"]).start(soon()).unwrap();
            cgroup.signal(child.pid(), Signal::SIGKILL).unwrap();
            assert_eq!(child.wait(Deadline::after_ms(50)), None);
            child.kill(soon()).unwrap();
        }
    }

    #[test]
    fn only_a_cgroup_below_a_root_is_opened() {
        let _alone = alone();
        for TestCgroup(cgroup) in &everywhere("opened") {
            let again = Cgroup::open(cgroup.path()).unwrap().unwrap();
            assert_eq!(again.path(), cgroup.path());
            let base = cgroup.path().parent().unwrap();
            let root = Cgroup::open(base.parent().unwrap()).unwrap_err();
            let root = root.to_string();
            assert!(
                root.ends_with("is the root of a cgroup hierarchy"),
                "{root}"
            );
            let under = Cgroup::create_under(base, "site").unwrap().unwrap();
            assert_eq!(under.path(), base.join("site"));
            assert!(under.remove().unwrap());
            assert!(base.exists(), "a directory of the site's stays");
            assert!(cgroup.remove().unwrap());
        }
        let place = tempfile::tempdir().unwrap();
        for outcome in [
            Cgroup::open(place.path()),
            Cgroup::create_under(place.path(), "x"),
        ] {
            let why = outcome.unwrap_err().to_string();
            assert!(why.ends_with("is not in a cgroup hierarchy"), "{why}");
        }
        assert!(!place.path().join("x").exists());
    }

    /// Several processes make and remove our directory above the jobs' at once.
    #[test]
    fn the_base_is_made_and_removed_concurrently() {
        let _alone = alone();
        let homes = everywhere("home");
        let top = homes[0].0.path();
        let work = |hand: usize| {
            let top = Dir::open(top).unwrap();
            move || {
                for round in 0..40 {
                    let cgroup =
                        Cgroup::make(&top, Some(PLAIN), &format!("{hand}-{round}")).unwrap();
                    assert!(cgroup.path().exists());
                    assert!(cgroup.remove().unwrap());
                    assert!(!cgroup.path().exists());
                    Cgroup::remove_base(cgroup.path().parent().unwrap());
                }
            }
        };
        let hands: Vec<_> = (0..4).map(|hand| std::thread::spawn(work(hand))).collect();
        for hand in hands {
            hand.join().unwrap();
        }
        assert!(!top.join(PLAIN).exists(), "removed with the last of them");
    }

    #[test]
    fn the_products_own_place_is_found() {
        let _alone = alone();
        let TestCgroup(cgroup) = &TestCgroup(Cgroup::create("unit-test-place").unwrap().unwrap());
        let base = cgroup.path().parent().unwrap();
        assert!(is_usual(base) && cgroup.path().exists(), "{base:?}");
    }

    /// Machines differ in which hierarchy has the controllers.
    #[test]
    fn what_can_be_bounded_is() {
        let _alone = alone();
        let pids = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        let has = |base: &&&str| Path::new(base).join("cgroup.procs").exists();
        let top = Path::new(pids.iter().find(has).expect("a hierarchy for pids"));
        let cgroup =
            TestCgroup(Cgroup::make(&Dir::open(top).unwrap(), Some(&base()), "bounded").unwrap());
        assert_eq!(read_at(&cgroup.0.dir, "pids.max", 64).unwrap(), b"4096\n");
        // In a hierarchy of its own on version 1.
        let memory = Path::new("/sys/fs/cgroup/memory");
        if cgroup.0.path().join("memory.max").exists() {
            let most = read_at(&cgroup.0.dir, "memory.max", 64).unwrap();
            assert_eq!(most, b"17179869184\n");
        } else {
            let controllers = std::fs::read_to_string(top.join("cgroup.controllers"));
            let lacks = !controllers.unwrap_or_default().contains("memory");
            assert!(memory.exists() || lacks);
        }
    }

    #[test]
    fn a_directory_of_the_sites_hands_on_what_it_did_before() {
        let _alone = alone();
        for TestCgroup(site) in &everywhere("handed") {
            let handed = || read_at(&site.dir, "cgroup.subtree_control", MOST).ok();
            let before = handed();
            let job = TestCgroup(Cgroup::create_under(site.path(), "job").unwrap().unwrap());
            assert_eq!(handed(), before, "{:?}", site.path());
            drop(job);
            assert_eq!(handed(), before, "{:?}", site.path());
        }
    }

    #[test]
    fn a_process_leaves_the_cgroups_it_was_started_in() {
        let _alone = alone();
        let answer = crate::guard::ask(soon(), || {
            let here = everywhere("left");
            for cgroup in &here {
                write_at(&cgroup.0.dir, "cgroup.procs", "0").unwrap();
            }
            let is_used = |cgroup: &&TestCgroup| !cgroup.0.procs().unwrap().is_empty();
            let inside = || here.iter().filter(is_used).count();
            let before = inside();
            // An end that kills its own cgroup does not finish.
            let is_refused = |cgroup: &TestCgroup| Cgroup::open(cgroup.0.path()).is_err();
            let refused = here.iter().all(is_refused);
            leave(nix::unistd::getpid().as_raw());
            let all = [before == here.len(), refused, inside() == 0];
            all.map(u8::from).to_vec()
        });
        assert_eq!(answer.unwrap(), [1, 1, 1]);
    }

    #[test]
    fn the_layouts_of_systems() {
        let unified =
            "29 22 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let hybrid = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
        42 31 0:38 / /mnt/again rw,relatime - cgroup2 cgroup2 rw\n";
        let both = "/sys/fs/cgroup/unified /sys/fs/cgroup/systemd";
        let v1 = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let odd = "29 22 0:26 / /mnt/a\\040b\\ rw - cgroup2 none rw\n";
        for (mountinfo, paths) in [
            (unified, "/sys/fs/cgroup"),
            (hybrid, both),
            (v1, ""),
            ("garbage\n\n1 2 3\n", ""),
            (odd, "/mnt/a b\\"),
        ] {
            let found = better_first(mounts::parse(mountinfo.as_bytes()));
            let found: Vec<_> = found.iter().map(|path| path.to_string_lossy()).collect();
            assert_eq!(found.join(" "), paths);
        }
    }
}

//! A machine in namespaces and a cgroup of its own that boots a system under its own systemd. It is
//! gone when dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tests::double::remove_cgroup;

use crate::root::Root;
use crate::{debian, said};

pub const HOST: &str = "gpu001";
const LIMIT: &str = "120";
/// Longest time for a boot or its end, and until a job begins or is gone.
const BOOT: Duration = Duration::from_secs(120);
const PREFIX: &str = "mpsd-packages.";

/// Enters the cgroup first, because the new cgroup namespace begins there. The devices are those of
/// every container.
const START: &str = r#"
echo $$ > "$CGROUP/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --net --uts --ipc --cgroup --propagation private /bin/sh -ec '
    cd "$ROOT"
    mount -t proc proc proc
    mount -t sysfs -o ro sysfs sys
    mount -t cgroup2 cgroup2 sys/fs/cgroup
    mount -t tmpfs -o mode=755 tmpfs run
    mount -t tmpfs -o mode=755 tmpfs dev
    mkdir dev/pts dev/shm
    mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
    mount -t tmpfs -o mode=1777 tmpfs dev/shm
    for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0 nvidia0:240:0 nvidia1:240:1; do
        IFS=: read -r name major minor <<END
$node
END
        mknod -m 666 "dev/$name" c "$major" "$minor"
    done
    ln -s pts/ptmx dev/ptmx
    ln -s /proc/self/fd dev/fd
    hostname "$HOST"
    # If 127.0.0.1 is the only address, getaddrinfo(3) with AI_ADDRCONFIG finds no name for Slurm.
    chroot . ip address add 127.0.1.1/8 dev lo
    exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . /lib/systemd/systemd
'
"#;

#[derive(Debug)]
pub struct Machine {
    outer: Child,
    init: u32,
    // Dropped last, when everything in it has ended.
    _cgroup: Cgroup,
}

/// The error says why the system cannot boot.
pub fn bootable(suite: &str, name: &str) -> Result<(PathBuf, Cgroup), String> {
    Ok((debian::base(suite)?, Cgroup::create(name)?))
}

#[derive(Debug)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes it; the error says why no machine can boot here.
    pub fn create(name: &str) -> Result<Cgroup, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
        let mount = mount.and_then(|line| line.split(' ').nth(4));
        let mount = mount.ok_or("this machine has no cgroup v2 for a systemd of its own")?;
        remove_stale(Path::new(mount));
        let path = Path::new(mount).join(format!("{PREFIX}{}.{name}", std::process::id()));
        let made = fs::create_dir(&path);
        made.map_err(|error| format!("no cgroup for a systemd: '{}': {error}", path.display()))?;
        Ok(Cgroup(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let deadline = Instant::now() + BOOT;
        while remove_cgroup(&self.0).is_err() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        if self.0.exists() {
            eprintln!("a machine left '{}'", self.0.display());
        }
    }
}

/// Removes those of killed tests.
fn remove_stale(mount: &Path) {
    for entry in fs::read_dir(mount).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let rest = name.strip_prefix(PREFIX);
        let pid = rest.and_then(|rest| rest.split('.').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = remove_cgroup(&entry.path());
        }
    }
}

impl Machine {
    /// Boots `root` in `cgroup`; returns when the start has finished.
    pub fn boot(root: &Root, cgroup: Cgroup) -> Machine {
        Machine::boot_as(HOST, root, cgroup)
    }

    pub fn boot_as(name: &str, root: &Root, cgroup: Cgroup) -> Machine {
        root.write("/etc/hostname", &format!("{name}\n"));
        let outer = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "/bin/sh", "-ec", START])
            .env("CGROUP", &cgroup.0)
            .env("ROOT", root.at("/"))
            .env("HOST", name)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut machine = Machine {
            outer,
            init: 0,
            _cgroup: cgroup,
        };
        let outer = machine.outer.id();
        machine.until("its first process", |machine| {
            let mut all = tests::double::look::processes().into_iter();
            let init = all.find(|process| process.parent == outer && process.name == "systemd");
            machine.init = init.map_or(0, |process| process.pid);
            machine.init != 0
        });
        machine.until("its boot", |machine| {
            let state = machine.output("systemctl is-system-running");
            ["running", "degraded"].contains(&String::from_utf8_lossy(&state.stdout).trim())
        });
        machine
    }

    #[track_caller]
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Machine) -> bool) {
        let deadline = Instant::now() + BOOT;
        while !done(self) {
            let is_late = Instant::now() >= deadline;
            assert!(!is_late, "{what}: not within {BOOT:?}\n{}", self.journal());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn at(&self, path: &str) -> PathBuf {
        Path::new(&format!("/proc/{}/root", self.init)).join(path.trim_start_matches('/'))
    }

    pub fn network(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.init))
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &self.init.to_string()])
            .args(["-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w"])
            .args(["timeout", "--kill-after=5", LIMIT])
            .args(words)
            .stdin(Stdio::null())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", "/root")
            .env("LC_ALL", "C.UTF-8")
            .env("DEBIAN_FRONTEND", "noninteractive");
        command
    }

    pub fn output(&self, line: &str) -> Output {
        self.command(&["sh", "-ec", line]).output().unwrap()
    }

    #[track_caller]
    pub fn run(&self, line: &str) -> String {
        self.expect(&["sh", "-ec", line])
    }

    /// What a command says that must fail.
    #[track_caller]
    pub fn fails(&self, line: &str) -> String {
        let output = self.output(line);
        let said = said(&output);
        assert!(!output.status.success(), "{line}: {said}");
        said
    }

    #[track_caller]
    pub fn expect(&self, words: &[&str]) -> String {
        self.wrote(&mut self.command(words))
    }

    #[track_caller]
    pub fn wrote(&self, command: &mut Command) -> String {
        let output = command.output().unwrap();
        let (is_good, said) = (output.status.success(), said(&output));
        assert!(is_good, "{command:?}: {said}\n{}", self.journal());
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn journal(&self) -> String {
        let output = self.output("journalctl --no-pager --lines=80 --output=short-monotonic");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.outer.kill();
        let _ = self.outer.wait();
    }
}

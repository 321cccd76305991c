//! A site's node as it boots: cgroup v2 alone, systemd, Debian's Slurm as services, the packages
//! installed by apt. `cargo xtask test vm` runs this in a virtual machine of its own; anywhere else
//! each test says that it was left out.

mod cut;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tests::child::{self, Ran, Running};
use tests::double::look::{Process, processes};
use tests::double::{NodeDouble, look};
use tests::slurm::{Record, SIMULATED_MAJOR, SITE};

/// Where the machine has the packages.
const PACKAGES: &str = "/disk/packages";
const VENDOR: &str = "/var/opt/vendor";
const CLIENT: &str = "/var/opt/vendor/cuda-client-double --node /var/opt/vendor";
const USER: &str = "games";
const HOME: &str = "/home/games";
/// The home of the daemons' cgroups.
const CGROUPS: &str = "/sys/fs/cgroup/system.slice/mpsd.service";
/// An emulated machine is slow, and the one that emulates it may be busy.
const LIMIT: Duration = Duration::from_secs(40);

/// Behind [`SITE`].
const SLURM: &str = "\
SlurmctldHost=gpu001(127.0.1.1)
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectTypeParameters=CR_Core_Memory
PrologFlags=Alloc,Contain
KillWait=3
NodeName=gpu001 NodeAddr=127.0.1.1 CPUs=4 RealMemory=1500 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES DefMemPerNode=300
";
const GRES: &str = "AutoDetect=off\nName=gpu File=/dev/nvidia[0-1]\n";
const CGROUP: &str = "CgroupPlugin=cgroup/v2\nConstrainDevices=yes\nConstrainRAMSpace=yes\n";
const KEYS: &str = "control = \"/var/opt/vendor/nvidia-cuda-mps-control\"\nnvml = \"/var/opt/vendor/libnvidia-ml.so.1\"\n";

struct Site {
    vendor: NodeDouble,
}

/// Hands the node to a test, one test after the other, and looks at it afterwards. The first
/// installs it.
fn on_site(test: impl FnOnce(&Site)) {
    static SITE: Mutex<Option<Site>> = Mutex::new(None);
    if !Path::new(PACKAGES).is_dir() {
        return println!("not tried here: 'cargo xtask test vm' has a machine for it");
    }
    // After a failed test the next one tries what is left.
    let mut site: MutexGuard<'_, _> = SITE.lock().unwrap_or_else(PoisonError::into_inner);
    let site = site.get_or_insert_with(Site::install);
    shell(&format!("scancel --user={USER}"));
    site.idle();
    test(site);
    site.nothing_is_left();
}

fn said(line: &str) -> String {
    shell(line).success().expect("a command of root's").stdout
}

fn shell(line: &str) -> Ran {
    let mut command = Command::new("/bin/sh");
    child::run(command.args(["-ec", line]), "", LIMIT).expect("a shell")
}

#[track_caller]
fn until(what: &str, so: impl FnMut() -> bool) {
    if !look::wait_until(LIMIT, so) {
        let journal = shell("journalctl --no-pager --lines=60 --output=short-monotonic");
        panic!("not within {LIMIT:?}: {what}\n{}", journal.stdout);
    }
}

/// A command of the user's.
fn user(words: &str, line: &str) -> Command {
    let mut command = Command::new("/usr/sbin/runuser");
    command.args(["-u", USER, "--"]).args(words.split(' '));
    if !line.is_empty() {
        command.args(["/bin/sh", "-c", line]);
    }
    command.current_dir(HOME);
    command
}

fn srun(words: &str, line: &str) -> Ran {
    child::run(&mut user(&format!("srun {words}"), line), "", LIMIT).expect("srun")
}

#[track_caller]
fn record(text: &str) -> Record {
    let mut all = Record::all(text).expect("records");
    assert_eq!(all.len(), 1, "{text}");
    all.remove(0)
}

/// A job whose client stays.
struct Job {
    srun: Running,
    record: Record,
}

impl Job {
    fn start(words: &str) -> Job {
        let client = format!("exec {CLIENT} --hold 600");
        let mut command = user(&format!("srun {words}"), &client);
        let srun = Running::start(&mut command, "").expect("srun");
        until("a client's record", || srun.stdout_so_far().contains('\n'));
        let record = record(&srun.stdout_so_far());
        Job { srun, record }
    }

    fn id(&self) -> &str {
        self.record.job.as_deref().expect("a job's client")
    }

    fn cancel(self) -> Ran {
        said(&format!("scancel {}", self.id()));
        self.srun.finish(LIMIT).expect("the job ends")
    }
}

fn cgroup_of(pid: i32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    assert_eq!(text.lines().count(), 1, "more than cgroup v2: {text}");
    text.trim().trim_start_matches("0::").to_owned()
}

impl Site {
    fn install() -> Site {
        let packages = ["mpsd_*.deb", "mpsd-slurm_*.deb"].map(|name| format!("{PACKAGES}/{name}"));
        said(&format!("apt-get install -q -y {}", packages.join(" ")));
        let site = Site::boot();
        fs::create_dir_all(HOME).expect("a home");
        let account = users::get_user_by_name(USER).expect("a user");
        let owner = (Some(account.uid()), Some(account.primary_group_id()));
        chown(HOME, owner.0, owner.1).expect("a home");
        let slurm = format!("{SITE}{SLURM}");
        for (name, text) in [("slurm", &*slurm), ("gres", GRES), ("cgroup", CGROUP)] {
            fs::write(format!("/etc/slurm/{name}.conf"), text).expect("a file");
        }
        said("install -d -o slurm /var/lib/slurm/slurmctld");
        fs::write("/etc/mpsd/mpsd.toml", KEYS).expect("our configuration");
        said("mpsctl slurm enable");
        said("systemctl enable --quiet --now mpsd.service mpsd-reconcile.timer");
        site.start()
    }

    /// What a driver does when a node boots: its devices, and GPUs in the default mode.
    fn boot() -> Site {
        for (minor, file) in ["/dev/nvidia0", "/dev/nvidia1"].iter().enumerate() {
            let device = makedev(SIMULATED_MAJOR, minor as u64);
            mknod(*file, SFlag::S_IFCHR, Mode::empty(), device).expect("a device");
            fs::set_permissions(file, fs::Permissions::from_mode(0o666)).expect("a device");
        }
        let vendor = NodeDouble::builder().name("gpu001").gpus(2, "NVIDIA H200");
        let _ = fs::remove_dir_all(VENDOR);
        let vendor = vendor.at(VENDOR).build().expect("the doubles");
        Site { vendor }
    }

    fn start(self) -> Site {
        said("systemctl start munge slurmctld slurmd");
        self.idle();
        self
    }

    fn idle(&self) {
        let is_idle = || {
            let shown = shell("squeue -h; scontrol -o show node gpu001").stdout;
            shown.lines().count() == 1 && shown.contains(" State=IDLE ")
        };
        until("an idle node", is_idle);
    }

    fn client(&self, words: &str) -> Record {
        let ran = srun(words, &format!("exec {CLIENT} --hold 0.1"));
        record(&ran.success().expect("a job").stdout)
    }

    fn ours(&self) -> Vec<Process> {
        let mut all = processes();
        all.retain(|process| {
            let exe = process.exe.to_string_lossy();
            // The repository's own directory may have our name, too.
            let packaged = exe.starts_with("/usr/") && exe.contains("/mpsd/");
            packaged || exe.starts_with(VENDOR)
        });
        all
    }

    #[track_caller]
    fn nothing_is_left(&self) {
        self.idle();
        let names = |dir: &str| {
            let entries = fs::read_dir(dir).into_iter().flatten().flatten();
            let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            let paths = dirs.map(|entry| entry.path().display().to_string());
            paths.collect::<Vec<_>>()
        };
        let left = || {
            let places = [
                "/run/mpsd/jobs",
                "/run/mpsd/shared",
                "/var/lib/mpsd/drains",
                CGROUPS,
            ];
            let mut left: Vec<String> = places.iter().flat_map(|dir| names(dir)).collect();
            left.extend(self.ours().iter().map(Process::to_string));
            let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the mounts");
            let ours = mounts
                .lines()
                .filter(|line| line.contains("/run/mpsd/jobs"));
            left.extend(ours.map(str::to_owned));
            left
        };
        // The epilogue ends a moment after the node is idle.
        look::wait_until(Duration::from_secs(20), || left().is_empty());
        assert_eq!(left(), [""; 0]);
        assert_eq!(self.vendor.modes(), ["default", "default"]);
        let failed = said("systemctl --failed --plain --no-legend");
        let is_ours = failed.contains("mps") || failed.contains("slurm");
        assert!(!is_ours, "{failed}");
    }
}

#[test]
fn apt_installs_the_packages_on_a_node_with_cgroup_v2_alone_and_a_job_has_its_mps() {
    on_site(|site| {
        assert_eq!(said("stat -f -c %T /sys/fs/cgroup"), "cgroup2fs\n");
        said("systemctl is-active munge slurmctld slurmd mpsd mpsd-reconcile.timer");
        said("mpsctl slurm check && mpsctl doctor");
        let record = site.client("--gres=gpu:1 --mps --mps-threads=25 --mps-mem=1G");
        let has = (record.under_mps, record.sms, record.memory_limit_mib);
        assert_eq!(has, (true, Some(32), Some(1024)), "{record:?}");
    });
}

/// Slurm's task is in the job's cgroup and reaches its own GPU alone, by eBPF. Its daemons are in a
/// cgroup of ours, and are shown that GPU alone.
#[test]
fn a_job_and_its_daemons_reach_its_own_gpu_alone_from_their_own_cgroups() {
    on_site(|_| {
        let look = "for gpu in 0 1; do (: </dev/nvidia$gpu) 2>&1; done || true";
        for mps in ["", "--mps "] {
            let told = srun(&format!("{mps}--gres=gpu:1"), look);
            let told = told.success().expect("a job").stdout;
            // Nothing drives the devices: one that may be opened is not there.
            let count = |words: &str| told.matches(words).count();
            let is_alone = count("No such device") == 1 && count("not permitted") == 1;
            assert!(is_alone, "{mps}: {told}");
        }
        let job = Job::start("--gres=gpu:1 --mps");
        let scope = format!("slurmstepd.scope/job_{}/", job.id());
        let cgroup = cgroup_of(job.record.pid);
        assert!(cgroup.contains(&scope), "{cgroup}");
        for pid in [job.record.daemon_pid, job.record.server_pid] {
            let pid = pid.expect("a daemon");
            let own = format!("/system.slice/mpsd.service/{}", job.id());
            let cgroup = cgroup_of(pid);
            assert!(cgroup.starts_with(&own), "{cgroup}");
            let stat = "sh -c \"stat -c %a /dev/nvidia[01] | sort\"";
            let modes = said(&format!("nsenter --mount --target {pid} {stat}"));
            assert_eq!(modes, "0\n666\n");
        }
        job.cancel();
    });
}

#[test]
fn a_job_that_the_kernel_ends_for_its_memory_is_told_and_leaves_nothing() {
    on_site(|_| {
        let line = format!(
            "({CLIENT} --hold 60) & sleep 2; head -c 400M /dev/zero | tail | (read -r all && echo survived); exit 9"
        );
        let ran = srun("--gres=gpu:1 --mem=60M --mps", &line);
        let ran = ran.fails().expect("a job without memory");
        assert!(ran.stderr.contains("oom-kill"), "{}", ran.story());
        assert!(!ran.stdout.contains("survived"), "{}", ran.story());
        // A step with an MPS of its own. The allocation stays, and its next step runs.
        let steps = format!("srun --mps --mem=60M /bin/sh -c '{line}'; srun /bin/echo next");
        let mut salloc = user("salloc --mem=500M --gres=gpu:1", &steps);
        let ran = child::run(&mut salloc, "", LIMIT).expect("salloc");
        let ran = ran.success().expect("an allocation");
        assert!(ran.stderr.contains("oom-kill"), "{}", ran.story());
        let is_told = ran.stdout.ends_with("next\n") && !ran.stdout.contains("survived");
        assert!(is_told, "{}", ran.story());
    });
}

#[test]
fn restarts_of_slurmd_and_of_our_home_take_no_mps_from_a_job() {
    on_site(|_| {
        let job = Job::start("--gres=gpu:1 --mps");
        said("systemctl restart slurmd && systemctl restart mpsd");
        let id = job.id().to_owned();
        let line = format!("exec {CLIENT} --hold 0.1");
        let step = srun(&format!("--jobid={id} --overlap"), &line);
        let step = record(&step.success().expect("a step").stdout);
        assert_eq!(step.daemon_pid, job.record.daemon_pid, "{step:?}");
        let cgroup = cgroup_of(job.record.daemon_pid.expect("a daemon"));
        let home = "/system.slice/mpsd.service/";
        assert!(cgroup.starts_with(home), "{cgroup}");
        job.cancel();
    });
}

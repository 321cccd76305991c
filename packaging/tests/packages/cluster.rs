//! A site's cluster without us, of one node or three: Debian's Slurm, two simulated GPUs on each
//! node, one user.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use tests::double::NodeDouble;
use tests::slurm::{Record, SITE};

use crate::machine::{HOST, Machine};
use crate::root::Root;
use crate::{open_to_all, run};

pub const USER: &str = "worker";
pub const VENDOR: &str = "/var/opt/vendor";
pub const CLIENT: [&str; 3] = ["/var/opt/vendor/cuda-client-double", "--node", VENDOR];
/// The vendor's parts in the configuration: the only difference from a node with GPUs.
pub const KEYS: &str = "control = \"/var/opt/vendor/nvidia-cuda-mps-control\"\nnvml = \"/var/opt/vendor/libnvidia-ml.so.1\"\n";
pub const QUARTER: [&str; 3] = ["--gres=gpu:1", "--mps", "--mps-threads=25"];

/// Behind [`SITE`]. No cgroups for jobs: a systemd in a container gives none.
const SLURM: &str = "\
SlurmctldHost=gpu001
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectTypeParameters=CR_Core
PrologFlags=Alloc
NodeName=gpu001 CPUs=4 RealMemory=1000 Gres=gpu:2
PartitionName=main Nodes=ALL Default=YES
";

pub fn configure(root: &Root) -> NodeDouble {
    slurm(root, SLURM);
    vendor(root)
}

/// Nodes of one cluster; the first also has the controller.
pub const NODES: [&str; 3] = ["gpu001", "gpu002", "gpu003"];

/// Node `at` of the three, with these lines in Slurm's configuration.
pub fn configure_of_three(root: &Root, at: usize, lines: &str) -> NodeDouble {
    let three = SLURM.replace("NodeName=gpu001 CPUs=4", "NodeName=gpu[001-003] CPUs=16");
    slurm(root, &(three + lines));
    let mut hosts = "127.0.0.1 localhost\n".to_owned();
    for (number, name) in (1..).zip(NODES) {
        hosts += &format!("10.77.0.{number} {name}\n");
    }
    root.write("/etc/hosts", &hosts);
    if at > 0 {
        root.run("systemctl disable slurmctld");
    }
    gpus(root, NODES[at])
}

/// A network of the three within their namespaces: a bridge on the first.
pub fn connect(machines: &[Machine]) {
    let ip = |of: &Machine, line: &str| {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", of.network().display()));
        run(command.arg("ip").args(line.split(' ')));
    };
    let first = &machines[0];
    ip(first, "link add net0 type bridge");
    ip(first, "address add 10.77.0.1/24 dev net0");
    ip(first, "link set net0 up");
    for (number, other) in (2..).zip(&machines[1..]) {
        let network = other.network();
        let process = network.iter().nth(2).unwrap().to_str().unwrap();
        let pair = format!("link add to{number} type veth peer name eth0 netns {process}");
        ip(first, &pair);
        ip(first, &format!("link set to{number} master net0 up"));
        ip(other, &format!("address add 10.77.0.{number}/24 dev eth0"));
        ip(other, "link set eth0 up");
    }
}

fn slurm(root: &Root, conf: &str) {
    root.write("/etc/slurm/slurm.conf", &[SITE, conf].concat());
    let gres = "AutoDetect=off\nName=gpu File=/dev/nvidia[0-1]\n";
    root.write("/etc/slurm/gres.conf", gres);
    // Slurm's plugin for v2 does not load if the machine below also has v1; nothing here uses
    // either.
    root.write("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n");
    root.run(&format!("useradd --create-home {USER}"));
    root.run("install -d -o slurm /var/lib/slurm/slurmctld");
}

/// The simulated GPUs alone, on a node with a name.
pub fn vendor(root: &Root) -> NodeDouble {
    let hosts = format!("127.0.0.1 localhost\n127.0.1.1 {HOST}\n");
    root.write("/etc/hosts", &hosts);
    gpus(root, HOST)
}

fn gpus(root: &Root, name: &str) -> NodeDouble {
    build_doubles();
    let vendor = NodeDouble::builder().name(name).gpus(2, "NVIDIA H200");
    let vendor = vendor.at(root.at(VENDOR)).build().unwrap();
    open_to_all(&root.at("/opt"));
    vendor
}

pub fn build_doubles() {
    let program = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("mps-control-double");
    if !program.exists() {
        run(Command::new(env!("CARGO")).args(["build", "--workspace", "--lib", "--bins"]));
    }
}

impl Machine {
    #[track_caller]
    pub fn idle(&mut self) {
        self.until("an idle node", |machine| {
            let shown = machine.output(&format!("scontrol -o show node {HOST}"));
            String::from_utf8_lossy(&shown.stdout).contains(" State=IDLE ")
        });
    }

    pub fn srun(&self, words: &[&str]) -> Command {
        let as_user = &["runuser", "-u", USER, "--", "srun", "--chdir=/tmp"][..];
        self.command(&[as_user, words].concat())
    }

    #[track_caller]
    pub fn user(&self, line: &str) -> String {
        let line = format!("cd /home/{USER}\n{line}");
        self.expect(&["runuser", "-u", USER, "--", "sh", "-ec", &line])
    }

    #[track_caller]
    pub fn clients(&self, words: &[&str]) -> Vec<Record> {
        let wrote = self.wrote(&mut self.srun(&[words, &CLIENT].concat()));
        Record::all(&wrote).unwrap()
    }

    /// Starts a client with a quarter of a GPU that stays until the job is ended. Returns the
    /// command and the client's record.
    pub fn holding(&mut self, note: &Path) -> (Child, Record) {
        let file = File::create(note).unwrap();
        let words = [&QUARTER[..], &CLIENT, &["--hold", "240"]].concat();
        let child = self.srun(&words).stdout(file).spawn().unwrap();
        let mut records = Vec::new();
        self.until("a client's record", |_| {
            records = Record::all(&fs::read_to_string(note).unwrap()).unwrap_or_default();
            !records.is_empty()
        });
        (child, records.remove(0))
    }

    pub fn cancel(&self, job: &str, mut srun: Child) {
        self.run(&format!("scancel {job}"));
        srun.wait().unwrap();
    }

    /// Our drain of the node by this job, as root's file has it.
    pub fn mark_drained(&self, reason: &str, job: &str, delivered: bool) -> PathBuf {
        let drains = self.at("/var/lib/mpsd/drains");
        fs::create_dir_all(&drains).unwrap();
        let marker = drains.join(format!("slurm-{HOST}"));
        let text = serde_json::json!({
            "version": 1, "scheduler": "slurm", "node": HOST, "reason": reason, "job": job,
            "gpus": [], "delivered": delivered, "when": 1,
        });
        fs::write(&marker, text.to_string()).unwrap();
        marker
    }

    /// Runs an administrator's command from the guide, in the directory with the packages.
    #[track_caller]
    pub fn administrator(&self, line: &str) -> String {
        self.run(&format!("cd /root/packages\n{line}"))
    }

    #[track_caller]
    pub fn has_versions(&self, version: &str) {
        let versions = self.run("dpkg-query -W -f '${Version}\n' mpsd mpsd-slurm");
        assert_eq!(versions.matches(version).count(), 2, "{versions}");
    }

    /// Whether srun knows our options, which means that Slurm has loaded the plugin.
    pub fn knows_the_flag(&self) -> bool {
        self.run("srun --help").contains("--mps-threads")
    }

    fn programs(&self) -> Vec<String> {
        // From the package manager that installed them.
        let list = "rpm --query --list mpsd mpsd-slurm 2>/dev/null || dpkg-query --listfiles mpsd mpsd-slurm";
        let installed = self.run(list);
        let files = installed.lines().filter(|path| self.at(path).is_file());
        let vendors = listed(&self.at(VENDOR)).into_iter();
        let vendors = vendors.map(|name| format!("{VENDOR}/{name}"));
        let files: Vec<String> = files.map(str::to_owned).chain(vendors).collect();
        let has_ours = files.iter().any(|file| file.ends_with("/mpsd"));
        assert!(has_ours, "{files:?}");
        files
    }

    /// The node has no process, directory, cgroup or drain of a job's MPS, and the GPUs have their
    /// former mode.
    #[track_caller]
    pub fn nothing_is_left(&mut self) {
        self.idle();
        let running = self.run("readlink /proc/[0-9]*/exe || :");
        assert_eq!(running_of(&self.programs(), &running), [""; 0], "processes");
        for dir in [
            "/run/mpsd/jobs",
            "/run/mpsd/gpus",
            "/run/mpsd/shared",
            "/var/lib/mpsd/drains",
        ] {
            assert_eq!(listed(&self.at(dir)), [""; 0], "{dir}");
        }
        let home = self.at("/sys/fs/cgroup/system.slice/mpsd.service");
        let cgroups = listed(&home).into_iter();
        let cgroups: Vec<String> = cgroups.filter(|name| home.join(name).is_dir()).collect();
        assert!(cgroups.is_empty(), "{cgroups:?}");
        for mode in listed(&self.at(&format!("{VENDOR}/modes"))) {
            let text = fs::read_to_string(self.at(&format!("{VENDOR}/modes/{mode}"))).unwrap();
            assert_eq!(text, "default\n", "{mode}");
        }
        let failed = self.run("systemctl --failed --plain --no-legend");
        let is_ours = failed.contains("mps") || failed.contains("slurm");
        assert!(!is_ours, "{failed}");
    }
}

/// The running files, a path a line, that are among `programs`. For a process with mounts of its
/// own the kernel may show anything before the path; after an upgrade ` (deleted)` follows it.
fn running_of<'a>(programs: &[String], running: &'a str) -> Vec<&'a str> {
    let is_one = |file: &&str| {
        let file = file.strip_suffix(" (deleted)").unwrap_or(file);
        programs.iter().any(|program| file.ends_with(&**program))
    };
    running.lines().filter(is_one).collect()
}

pub fn listed(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

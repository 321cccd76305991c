//! A job's daemons open the device files of the job's GPUs alone; its tasks see what they saw.

use std::path::Path;
use std::process::Command;

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use tempfile::TempDir;
use tests::node_bed::{NodeBed, fast};
use tests::run::{THREE, USER, as_user, finish};
use tests::scarcity::{Shared, Small, alone};
use tests::syslog::Syslog;

const CONFIG: &str = "deadline_s = 12\n";
const GPUS: u64 = 4;
/// NVIDIA's (`Documentation/admin-guide/devices.txt`). Without a driver, who may open its files
/// gets ENXIO.
const MAJOR: u64 = 195;

struct Node {
    bed: NodeBed,
    log: Syslog,
    _room: TempDir,
}

impl Node {
    fn new() -> Self {
        let room = TempDir::new().expect("a directory");
        let log = Syslog::hear(room.path());
        let all = (0..GPUS).map(|gpu| (format!("/dev/nvidia{gpu}"), gpu));
        for (file, minor) in all.chain([("/dev/second-name".to_owned(), 1)]) {
            let _ = std::fs::remove_file(&file);
            let device = makedev(MAJOR, minor);
            mknod(file.as_str(), SFlag::S_IFCHR, Mode::empty(), device).expect("a device file");
            tests::run::chmod(Path::new(&file), 0o666);
        }
        let node = fast(4).describe(|node| {
            for (number, gpu) in node.gpu.iter_mut().enumerate() {
                gpu.device = Some(format!("/dev/nvidia{number}").into());
            }
        });
        let bed = NodeBed::new(node, CONFIG);
        Self {
            bed,
            log,
            _room: room,
        }
    }
}

/// Says which it opens, and what it does against the others.
const TAKES: &str = "\
    tries() { case $( (exec 3<>$1) 2>&1 ) in *'Permission denied'*) ;; *) echo opens $1;; esac; }\n\
    for n in 0 1 2 3; do tries /dev/nvidia$n; done; tries /dev/second-name\n\
    exec 2>&-\n\
    umount /dev/nvidia0 && echo uncovers\n\
    unshare -Urm umount /dev/nvidia0 && echo uncovers in a namespace\n\
    chmod 666 /dev/nvidia0 && echo changes the mode\n\
    mknod /tmp/other-name c 195 0 && echo makes a name\n\
    ls /proc/1/root/dev && echo by another process\n\
    true";

const ALL: &str = "opens /dev/nvidia0\nopens /dev/nvidia1\nopens /dev/nvidia2\nopens /dev/nvidia3\nopens /dev/second-name\n";

/// A program in the place of the job's process `pid`: only its ids and its mounts hold it back.
fn taken_over(pid: u32) -> Command {
    let mut command = Command::new("/usr/bin/nsenter");
    command.arg(format!("--mount=/proc/{pid}/ns/mnt"));
    command.args(["/usr/bin/setpriv", "--reuid", USER]);
    command.args(["--regid", "65530", "--clear-groups"]);
    command.args(["/bin/sh", "-c", TAKES]);
    command
}

#[test]
fn a_daemon_that_its_user_took_over_opens_no_other_gpu() {
    alone(|| {
        let node = Node::new();
        let bed = &node.bed;
        let _run = Shared::at(&bed.path(""));
        bed.begin("80.srv", "MPS=true,MPS_THREADS=25", "2");
        for name in THREE {
            let pid = bed.pids(name)[0];
            let ran = finish(taken_over(pid)).ok();
            assert_eq!(ran.out, "opens /dev/nvidia2\n", "{name}");
            let later = bed.directory(&format!("later-{name}"));
            let _later = Small::seen_by_all(&later, 8, 0o755);
            let mounts = std::fs::read_to_string(format!("/proc/{pid}/mounts"));
            let is_seen = mounts.is_ok_and(|all| all.contains(&later.display().to_string()));
            assert!(is_seen, "{name}");
        }
        let own = std::fs::read_to_string("/proc/thread-self/mounts").expect("our mounts");
        assert!(!own.contains("/dev/nvidia"), "{own}");
        let ran = finish(as_user(USER, "/bin/sh").args(["-c", TAKES])).ok();
        ran.prints(ALL);
        bed.served("80.srv", &[]);
        bed.assert_ends_clean("80.srv", "hidden device files");
    });
}

/// As in a container.
#[test]
fn where_no_namespace_can_be_made_a_job_starts_as_on_a_node_without_that_and_the_log_says_so() {
    alone(|| {
        let node = Node::new();
        let words = ["/usr/bin/setpriv", "--bounding-set", "-sys_admin", "--"];
        let mut prologue = node.bed.command_by(&words, "mps-prologue");
        finish(prologue.args(tests::run::openpbs_args("83.srv", USER, "MPS=true"))).ok();
        let pid = node.bed.pids(THREE[0])[0];
        finish(taken_over(pid)).ok().prints(ALL);
        let lines = node.log.lines();
        let told = "job 83.srv: its daemons see every GPU of the node";
        assert!(lines.iter().any(|line| line.contains(told)), "{lines:?}");
        let after = "a start without a namespace";
        node.bed.assert_ends_clean("83.srv", after);
    });
}

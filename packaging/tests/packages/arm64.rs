//! The packages for arm64 under emulation: they install, run, and say the same as x86_64's. qemu
//! has no seccomp and no Landlock.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::mpsc::channel;

use tests::double::NodeDouble;

use crate::cluster::build_doubles;
use crate::contents::{PLUGINS, stamp};
use crate::install::{
    distribution, foreign_is_as_it_was, gone, nothing_is_active, programs_run, put_foreign, take,
};
use crate::root::Root;
use crate::{NAMES, dist, find, open_to_all, packages, run, said, says, skip, target};

const EMULATOR: &str = "usr/bin/qemu-aarch64-static";
const TRIPLE: &str = "aarch64-unknown-linux-gnu";
/// What Slurm calls, and reads before that.
const EXPORTED: &str = "plugin_name plugin_type slurm_spank_init slurm_spank_init_post_opt slurm_spank_job_prolog \
                        slurm_spank_job_epilog slurm_spank_task_init slurm_spank_task_exit slurm_spank_exit";
/// The C library, which has no dpkg records there and which packages need.
const INSTALLED: &str = "Package: libc6\nStatus: install ok installed\nPriority: optional\nSection: libs\nMaintainer: none\n\
                         Architecture: arm64\nMulti-Arch: same\nVersion: 2.36-9\nDescription: none\n\n";

pub const NO_LIBRARY: &str = "Rust's library for it is not installed";

/// The directory with arm64's packages, made by the first caller; `None` if the machine lacks
/// Rust's library for it.
pub fn made() -> Option<&'static Path> {
    static MADE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let made = MADE.get_or_init(|| {
        packages();
        let mut rustc = Command::new("rustc");
        let rustc = rustc.args(["--print", "target-libdir", "--target", TRIPLE]);
        let library = String::from_utf8(rustc.output().ok()?.stdout).ok()?;
        let is_there = Path::new(library.trim()).is_dir();
        is_there.then(|| dist("packages-arm64", &["--target", "aarch64", "--quick"]))
    });
    made.as_deref()
}

pub fn package(name: &str, extension: &str) -> PathBuf {
    find(made().unwrap(), name, extension)
}

/// Hands a copy of the system to `body`, or says why there is none.
fn with_system(name: &'static str, body: impl FnOnce(&Root) + Send + 'static) {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let what = format!("packages for arm64, {name}");
    if made().is_none() {
        return skip(&what, NO_LIBRARY);
    }
    let system = MADE.get_or_init(|| {
        let mut setup = Command::new(env!("CARGO_BIN_EXE_xtask"));
        let output = setup.args(["setup", "--arm64"]);
        let output = output.output().map_err(|error| error.to_string())?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).trim().into()),
            false => Err(said(&output)),
        }
    });
    let lower = match system {
        Ok(lower) => lower.clone(),
        Err(why) => return skip(&what, why),
    };
    Root::emulated(&lower, EMULATOR, &format!("arm64-{name}"), move |root| {
        let uname = root.output("uname -m");
        if uname.stdout != b"aarch64\n" {
            let why = "the kernel starts no emulator for one user namespace alone (Linux 6.7)";
            return skip(&what, &format!("{why}: {}", said(&uname)));
        }
        body(root);
    });
}

/// The place of the simulated node in both systems, from which its NVML answers.
const VENDOR: &str = "/opt/vendor";

/// What x86_64's programs and arm64's must answer alike, each with its exit code. None of it leaves
/// anything.
const SAID: [&str; 18] = [
    "mpsctl --version",
    "/usr/libexec/mpsd/mpsd --help",
    "mpsctl config check",
    "mpsctl config show",
    "mpsctl advertise slurm --node n1",
    "mpsctl no-such-verb",
    "mpsctl exec -- /bin/true",
    "mpsctl status --json",
    "mpsctl explain oom",
    "mps-probe --help",
    "/usr/libexec/mpsd/mps-prologue --scheduler torque 1.srv alice alice job walltime=1 batch proj42",
    "/usr/libexec/mpsd/mps-prologue --scheduler torque 1.srv alice alice job walltime=1 batch MPS=maybe",
    "/usr/libexec/mpsd/mps-prologue --no-such-word",
    "/usr/libexec/mpsd/mps-epilogue --scheduler torque 1.srv alice alice job 7 walltime=1 '' batch MPS=on",
    "mpsctl plan --user alice --job 77 --node n1 --request MPS=on,MPS_THREADS=25,MPS_MEM=25% --gpus 0,1",
    "mpsctl plan --user alice --job 77 --node n1 --request MPS=per-gpu --gpus 1 --json",
    "mpsctl plan --user alice --job 77 --node n1 --request MPS=on,MPS_THREADS=0 --gpus 0",
    "mpsctl plan --user alice --job 77 --node n1 --request MPS=on --gpus 7",
];

fn said_by(root: &Root) -> Vec<String> {
    let doctor = String::from_utf8(root.output("mpsctl doctor --node n1").stdout).unwrap();
    for line in ["mpsd.toml can be used", "NVML answers", "driver 580"] {
        says(&format!("\n{doctor}"), &[&format!("\nOK    {line}")]);
    }
    let answer = |line: &&str| format!("{line}: {}", said(&root.output(line)));
    SAID.iter().map(answer).collect()
}

/// The simulated node's NVML, built for this machine or the other.
fn vendor(root: &Root, library: Option<&Path>) -> NodeDouble {
    build_doubles();
    let node = NodeDouble::builder().name("n1").gpus(2, "NVIDIA H200");
    let node = node.at(root.at(VENDOR)).build().unwrap();
    if let Some(library) = library {
        let place = root.at(&format!("{VENDOR}/libnvidia-ml.so.1"));
        fs::remove_file(&place).unwrap();
        fs::copy(library, place).unwrap();
    }
    open_to_all(&root.at("/opt"));
    let lines = format!(
        "nvml = \"{VENDOR}/libnvidia-ml.so.1\"\ncontrol = \"{VENDOR}/nvidia-cuda-mps-control\"\n"
    );
    root.write("/etc/mpsd/mpsd.toml", &lines);
    let users = "root:x:0:0::/root:/bin/sh\nalice:x:4711:4711::/home/alice:/bin/sh\n";
    root.write("/etc/passwd", users);
    root.write("/etc/group", "root:x:0:\nalice:x:4711:\n");
    node
}

fn nvml_for_arm64() -> PathBuf {
    target("..").join(TRIPLE).join("debug/libnvml_double.so")
}

/// In a copy of this machine's system, with the package's files and nothing else of the package.
fn said_by_x86() -> Vec<String> {
    let (sender, receiver) = channel();
    Root::with("x86-twin", move |root| {
        for name in ["mpsd", "mpsd-slurm"] {
            let deb = crate::package(name, ".deb");
            run(Command::new("dpkg-deb").arg("-x").args([deb, root.at("/")]));
        }
        let _node = vendor(root, None);
        sender.send(said_by(root)).unwrap();
    });
    receiver.recv().unwrap()
}

fn programs_say_what_x86_says(root: &Root, library: &Path, x86: &[String]) {
    let _node = vendor(root, Some(library));
    for (arm, x86) in said_by(root).iter().zip(x86) {
        assert_eq!(arm, x86);
    }
}

/// What a Slurm program exports to the plugin, which binds all of it when it is loaded.
const SLURM: &str = "spank_setenv spank_unsetenv spank_context spank_job_control_setenv spank_job_control_unsetenv \
                     spank_get_item spank_option_getopt spank_getenv spank_option_register slurm_error slurm_spank_log \
                     slurm_info";

fn slurm_for_arm64() -> PathBuf {
    let (text, library) = (target("slurm.c"), target("libslurm-names.so"));
    let names = SLURM.split(' ');
    let functions = names.map(|name| format!("int {name}(void) {{ return 0; }}\n"));
    fs::write(&text, functions.collect::<String>()).unwrap();
    let tools = target("../tools/zig/bin");
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let words = "zig cc -- -target aarch64-linux-gnu.2.28 -shared -fPIC -o".split(' ');
    let mut link = Command::new(tools.join("cargo-zigbuild"));
    run(link.args(words).args([&library, &text]).env("PATH", path));
    library
}

/// Loads it as Slurm does, by dlopen(3): the stamp is the release's, and each function that Slurm
/// calls is there.
const LOAD: &str = r#"
    use DynaLoader;
    my ($slurm, $file, $stamp, @names) = @ARGV;
    DynaLoader::dl_load_file($slurm, 1) or die DynaLoader::dl_error();
    my $plugin = DynaLoader::dl_load_file($file, 0) or die DynaLoader::dl_error();
    for my $name (@names) { DynaLoader::dl_find_symbol($plugin, $name) or die "no $name in $file"; }
    my $at = DynaLoader::dl_find_symbol($plugin, "plugin_version");
    my $found = unpack("L", unpack("P4", pack("J", $at)));
    $found == $stamp or die "$file has the stamp $found, not $stamp";
"#;

fn the_plugin_of_each_release_loads(root: &Root) {
    let slurm = root.take(&slurm_for_arm64());
    let mut loaded = 0;
    for release in fs::read_dir(root.at("/usr/lib/mpsd/spank")).unwrap() {
        let release = release.unwrap().file_name().into_string().unwrap();
        let file = format!("/usr/lib/mpsd/spank/{release}/spank_mps.so");
        let stamp = stamp(&release).to_string();
        let words = ["perl", "-e", LOAD, &slurm, &file, &stamp].into_iter();
        let words = words.chain(EXPORTED.split(' '));
        let output = root.try_words(&Vec::from_iter(words));
        assert!(output.status.success(), "{release}: {}", said(&output));
        loaded += 1;
    }
    assert_eq!(loaded, PLUGINS);
}

#[test]
fn the_debian_packages_install_run_and_leave() {
    let others = made().map(|_| (nvml_for_arm64(), said_by_x86()));
    with_system("DEB", move |root| {
        let (library, x86) = others.unwrap();
        root.write("/var/lib/dpkg/status", INSTALLED);
        root.write("/var/lib/dpkg/available", "");
        put_foreign(root);
        let debs = NAMES.map(|name| package(name, ".deb"));
        take(root, "dpkg --install", &debs);
        programs_run(root);
        nothing_is_active(root);
        programs_say_what_x86_says(root, &library, &x86);
        the_plugin_of_each_release_loads(root);
        root.run("dpkg --purge mpsd-slurm mpsd-pbs mpsd");
        gone(root, &["/etc/mpsd"]);
        foreign_is_as_it_was(root);
    });
}

#[test]
fn the_rpm_packages_install_run_and_leave() {
    with_system("RPM", |root| {
        put_foreign(root);
        distribution(root);
        let rpms = NAMES.map(|name| package(name, ".rpm"));
        take(root, "rpm --install", &rpms);
        programs_run(root);
        nothing_is_active(root);
        root.run("rpm --verify mpsd mpsd-slurm mpsd-pbs");
        let arch = root.run("rpm --query --qf '%{ARCH}\n' mpsd mpsd-slurm mpsd-pbs");
        assert!(arch.contains("aarch64\naarch64\nnoarch\n"), "{arch}");
        root.run("rpm --erase mpsd-slurm mpsd-pbs mpsd");
        foreign_is_as_it_was(root);
    });
}

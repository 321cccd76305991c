//! A virtual machine under QEMU's own translation (/dev/kvm is not needed). It boots a Debian with
//! cgroup v2 alone under its systemd, and runs cells of this build there. Nothing that it writes is
//! kept.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::num::NonZero;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::cargo::{self, target_directory};
use crate::command::{command, lines, quietly, wrote};
use crate::files::{emptied, is_a, list, make_dir, rename, write};
use crate::{install, package};

/// The release that boots: Linux 6.1, systemd 252, Slurm 22.05.
const RELEASE: &str = "bookworm";
const INCLUDED: &str = "systemd,systemd-sysv,dbus,iproute2,procps,munge,slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,\
                        linux-image-cloud-amd64";
const QEMU: &str = "/usr/bin/qemu-system-x86_64";
/// Longest time for a boot and all that runs then.
const LONGEST: Duration = Duration::from_secs(1200);
/// What the machine says last, before its program's exit code.
const ENDED: &str = "machine: ended with ";
/// `loglevel=1` leaves a panic alone on the console.
const KERNEL: &str = "console=ttyS0 root=/dev/vda rw panic=-1 nohpet quiet loglevel=1 mitigations=off systemd.show_status=0";

/// The packages, and the programs in them: optimized, which counts here.
const PACKAGES: &str = "tmp/packages";
const BUILT: &str = "x86_64-unknown-linux-gnu/release";
const SHIPPED: [&str; 7] = [
    "mpsd",
    "mpsctl",
    "mps-probe",
    "mps-runner",
    "mps-prologue",
    "mps-epilogue",
    "libspank_mps.so",
];

/// Runs 'sh /disk/run' from the second disk on the serial console, then turns the machine off.
const UNIT: &str = "\
[Service]
Type=oneshot
StandardOutput=tty
StandardError=inherit
TTYPath=/dev/ttyS0
Environment=PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
ExecStart=/bin/sh -c 'mount /dev/vdb /disk && sh /disk/run'
ExecStopPost=/bin/systemctl poweroff --force --no-wall
[Install]
WantedBy=multi-user.target
";
/// Debian's services of Slurm wait for the test that starts them. No login takes the console.
const IDLE: &str = "slurmctld slurmd munge serial-getty@ttyS0 getty@tty1";

/// What each machine runs: a test program, and words of which a cell's name has one. Machines run
/// side by side, so each has about as much to do.
///
/// On the host stay: cells that no cgroup, mount, unit or kernel can change, and those of nodes that
/// a booted one is not, where nobody looks again (`second_look`) or another log than journald hears
/// (`confined::a_user`).
const MACHINES: [(&str, &str); 4] = [
    ("slurm", "shared:: leftovers:: seen::"),
    (
        "slurm",
        "shared_cgroups:: shared_sluids:: memory_cgroup:: auto_shards_confined:: devices_reversed::",
    ),
    (
        "suite",
        "confined::the_ bounded:: hidden:: evidence:: survivors:: second_look::the_end",
    ),
    ("vm", ""),
];

/// Boots the machines and runs their cells.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Names of cells, instead of all
    #[arg(last = true)]
    words: Vec<String>,
}

/// Makes the packages first. The stage 'build' may have replaced this program.
pub fn stage() -> Result<Command> {
    let target = target_directory()?;
    let packages = target.join(PACKAGES).display().to_string();
    package::run(&package::Options::into_dir("x86_64", &packages)?)?;
    Ok(command(
        &target.join("debug/xtask").display().to_string(),
        "machine",
    ))
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let system = system()?;
    let programs = programs()?;
    let next = Mutex::new(MACHINES.iter().enumerate());
    let right = Mutex::new(true);
    let work = || {
        let take = || next.lock().ok().and_then(|mut next| next.next());
        while let Some((number, (name, words))) = take() {
            let words = match options.words.is_empty() {
                true => words.split_whitespace().map(str::to_owned).collect(),
                false => options.words.clone(),
            };
            let place = format!("tmp/machine-{number}");
            let begin = Instant::now();
            let (said, code) = in_machine(&system, &place, &programs[*name], &words);
            // In one piece.
            let Ok(mut right) = right.lock() else { return };
            let took = begin.elapsed().as_secs();
            println!("\n--- {name} {} ({took} s)\n{said}", words.join(" "));
            match code {
                Ok(0) => {}
                Ok(_) => *right = false,
                Err(error) => {
                    println!("{error:#}");
                    *right = false;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, NonZero::get) {
            scope.spawn(work);
        }
    });
    match right.into_inner() {
        Ok(true) => Ok(ExitCode::SUCCESS),
        _ => Ok(ExitCode::FAILURE),
    }
}

/// The test programs of [`MACHINES`] by name.
fn programs() -> Result<BTreeMap<String, PathBuf>> {
    let names = BTreeSet::from(MACHINES.map(|(name, _)| name));
    let mut build = cargo::words("test --locked --no-run --message-format=json -p tests");
    for name in names {
        build.args(["--test", name]);
    }
    let said = wrote(build.stderr(Stdio::inherit()))?;
    let messages = said
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = |message: Value| {
        let path = message["executable"].as_str()?;
        let name = message["target"]["name"].as_str()?;
        Some((name.to_owned(), PathBuf::from(path)))
    };
    Ok(messages.filter_map(program).collect())
}

/// What a program said in a machine, and its exit code.
fn in_machine(
    system: &Path,
    place: &str,
    program: &Path,
    words: &[String],
) -> (String, Result<u8>) {
    let (mut said, mut code) = (String::new(), None);
    let ended = target_directory().and_then(|target| {
        let place = target.join(place);
        emptied(&place)?;
        let disk = disk(&place, program, words)?;
        let status = lines(&mut boot(system, &disk), LONGEST, |line| {
            said += &format!("{line}\n");
            code = line
                .strip_prefix(ENDED)
                .and_then(|code| code.parse().ok())
                .or(code);
        });
        fs::remove_dir_all(&place).with_context(|| format!("'{}'", place.display()))?;
        status
    });
    let code = ended.and_then(|status| {
        code.with_context(|| format!("the machine ended before its program ({status})"))
    });
    (said, code)
}

/// The directory with kernel, initrd and the first disk.
pub fn system() -> Result<PathBuf> {
    if !cfg!(target_arch = "x86_64") {
        bail!("the machine's programs are x86_64's, which this is not");
    }
    install::program(QEMU, "qemu-system-x86", "qemu-kvm")?;
    install::program("/usr/sbin/mke2fs", "e2fsprogs", "e2fsprogs")?;
    let wanted = [INCLUDED, UNIT, IDLE].concat();
    install::kept("tmp", "debian-machine", &wanted, |home| {
        let root = home.join("root");
        let words = format!("--variant=minbase --include={INCLUDED}");
        install::mmdebstrap(&root, &words, RELEASE)?;
        write(&root.join("etc/systemd/system/cells.service"), UNIT)?;
        let name = "gpu001";
        write(&root.join("etc/hostname"), name)?;
        write(
            &root.join("etc/hosts"),
            format!("127.0.0.1 localhost {name}\n"),
        )?;
        make_dir(&root.join("disk"))?;
        for words in [
            "enable cells".to_owned(),
            format!("disable --quiet {IDLE}"),
            "mask systemd-logind serial-getty@ttyS0".to_owned(),
        ] {
            let systemctl = format!("{} systemctl {words}", root.display());
            quietly(&mut command("chroot", &systemctl))?;
        }
        for file in list(&root.join("boot"))? {
            let name = file.file_name().and_then(OsStr::to_str).unwrap_or_default();
            for kept in ["vmlinuz", "initrd.img"] {
                if name.starts_with(kept) {
                    rename(&file, &home.join(kept))?;
                }
            }
        }
        image(&home.join("disk"), &root, "2G")?;
        fs::remove_dir_all(&root).context("cannot remove what is on the disk now")
    })
}

/// An ext4 file system with the files of a directory; it takes no more room than these.
fn image(file: &Path, of: &Path, size: &str) -> Result<()> {
    let words = format!(
        "-q -F -t ext4 -d {} {} {size}",
        of.display(),
        file.display()
    );
    quietly(&mut command("/usr/sbin/mke2fs", &words))
}

/// The second disk: the repository's files that tests read, and what was built, each at its own
/// path; the packages; the test program's command line.
fn disk(place: &Path, program: &Path, words: &[String]) -> Result<PathBuf> {
    let (repository, build) = (cargo::root()?, target_directory()?);
    let content = place.join("content");
    for dir in [
        "repository/fuzz",
        "build/debug/deps",
        "build/tmp",
        "packages",
    ] {
        make_dir(&content.join(dir))?;
    }
    for (from, to) in [
        ("etc", ""),
        ("docs", ""),
        ("tests", ""),
        ("fuzz/corpus", "fuzz"),
    ] {
        let to = content.join("repository").join(to);
        quietly(command("cp", "-r").args([&repository.join(from), &to]))?;
    }
    let debug = content.join("build/debug");
    for file in list(&build.join("debug"))?
        .iter()
        .filter(|file| is_program(file))
    {
        link(file, &debug)?;
    }
    for name in SHIPPED {
        let to = debug.join(name);
        fs::remove_file(&to).with_context(|| format!("'{}'", to.display()))?;
        link(&build.join(BUILT).join(name), &debug)?;
    }
    link(program, &debug.join("deps"))?;
    for package in list(&build.join(PACKAGES))?
        .iter()
        .filter(|file| is_a(file, "deb"))
    {
        link(package, &content.join("packages"))?;
    }
    write(
        &content.join("run"),
        script(program, words, &repository, &build)?,
    )?;
    let disk = place.join("disk");
    image(&disk, &content, "1G")?;
    Ok(disk)
}

fn is_program(file: &Path) -> bool {
    let mode = file.metadata().map(|found| found.permissions().mode());
    file.is_file() && mode.is_ok_and(|mode| mode & 0o111 != 0)
}

fn link(file: &Path, into: &Path) -> Result<()> {
    let name = file.file_name().context("a file has a name")?;
    fs::hard_link(file, into.join(name)).with_context(|| format!("no link to '{}'", file.display()))
}

/// A second address of the machine's own, because getaddrinfo(3) with AI_ADDRCONFIG finds no name
/// for Slurm if 127.0.0.1 is the only one.
fn script(program: &Path, words: &[String], repository: &Path, build: &Path) -> Result<String> {
    let (repository, build) = (repository.display(), build.display());
    let name = program.file_name().and_then(OsStr::to_str);
    let name = name.context("the program has no name")?;
    let words: String = words.iter().map(|word| format!(" '{word}'")).collect();
    Ok(format!(
        "set -e\n\
         mkdir -p '{repository}'; mount --bind /disk/repository '{repository}'\n\
         mkdir -p '{build}'; mount --bind /disk/build '{build}'\n\
         ip address add 127.0.1.1/8 dev lo\n\
         cd '{repository}/tests'\n\
         '{build}/debug/deps/{name}'{words} && code=0 || code=$?\n\
         echo {ENDED}$code\n"
    ))
}

/// Its clock counts instructions (`-icount`: one processor, two nanoseconds each) and jumps where
/// all wait. So no bound on time falls on a slow or busy host, and waiting costs nothing. Both disks
/// are as before afterwards. It needs no network.
fn boot(system: &Path, disk: &Path) -> Command {
    let mut command = command(
        "setpriv",
        &format!(
            "--pdeathsig KILL {QEMU} -accel tcg -icount shift=1,sleep=off -cpu Nehalem -m 2560 -display none -vga none -monitor none \
             -serial stdio -nic none -no-reboot -snapshot"
        ),
    );
    for disk in [&system.join("disk"), disk] {
        let drive = format!("file={},format=raw,if=virtio,cache=unsafe", disk.display());
        command.args(["-drive", &drive]);
    }
    command.arg("-kernel").arg(system.join("vmlinuz"));
    command.arg("-initrd").arg(system.join("initrd.img"));
    command.args(["-append", KERNEL]);
    command
}

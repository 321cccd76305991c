//! A virtual machine under QEMU's own translation (/dev/kvm is not needed). It boots a Debian with
//! cgroup v2 alone under its systemd, and runs cells of this build there.

use std::collections::BTreeMap;
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

/// What each machine runs, one after the other: a test program, or a crate's unit tests, and words
/// of which a cell's name has one. Machines run side by side, so each has about as much to do.
///
/// On the host stay: cells that no cgroup, mount, unit or kernel can change, and those of nodes that
/// a booted one is not: where nobody looks again (`second_look`), with two processors
/// (`a_child_that_its_user_stops`), or where another log than journald hears (`confined::a_user`).
const MACHINES: [&[(&str, &str)]; 3] = [
    &[(
        "slurm",
        "shared:: leftovers:: auto_shards_confined:: devices_reversed::",
    )],
    &[("slurm", "shared_cgroups:: shared_sluids:: memory_cgroup::")],
    &[
        (
            "mpsd_sys",
            "cgroup:: confine:: spawn:: guard:: remove:: --skip a_child_that_its_user_stops",
        ),
        (
            "suite",
            "confined::the_ bounded:: hidden:: evidence:: survivors:: second_look::the_end",
        ),
        ("mpsd", "as_user:: launch:: members::"),
        ("vm", ""),
    ],
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
    packages()?;
    Ok(command(
        &target.join("debug/xtask").display().to_string(),
        "machine",
    ))
}

/// Makes the packages that machines install.
pub fn packages() -> Result<()> {
    let packages = target_directory()?.join(PACKAGES).display().to_string();
    package::run(&package::Options::into_dir("x86_64", &packages)?)
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let system = system()?;
    let programs = programs()?;
    let next = Mutex::new(MACHINES.iter().enumerate());
    let right = Mutex::new(true);
    let work = || {
        let take = || next.lock().ok().and_then(|mut next| next.next());
        while let Some((number, runs)) = take() {
            let run = |(name, words): &(&str, &str)| {
                let words = match options.words.is_empty() {
                    true => words.split_whitespace().map(str::to_owned).collect(),
                    false => options.words.clone(),
                };
                (programs[*name].clone(), words)
            };
            let cells: Vec<_> = runs.iter().map(run).collect();
            let place = format!("tmp/machine-{number}");
            let begin = Instant::now();
            let (said, code) = match target_directory() {
                Ok(target) => Machine::of(&system, &target.join(place)).run(&cells, None),
                Err(error) => (String::new(), Err(error)),
            };
            // In one piece.
            let Ok(mut right) = right.lock() else { return };
            let took = begin.elapsed().as_secs();
            let names: Vec<_> = runs.iter().map(|(name, _)| *name).collect();
            println!("\n--- {} ({took} s)\n{said}", names.join(" "));
            match code {
                Ok(0) => {}
                Ok(_) => *right = false,
                Err(error) => {
                    println!("{error:#}");
                    *right = false;
                }
            }
            // A second try has words of one program.
            let words = runs.iter().map(|(_, words)| *words);
            for word in words
                .filter(|_| options.words.is_empty())
                .flat_map(without_cells(&said))
            {
                println!("no cell of the name '{word}'");
                *right = false;
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

/// The words of a line of [`MACHINES`] that are in no name of a cell that was run.
fn without_cells<'w>(said: &str) -> impl Fn(&'w str) -> Vec<&'w str> {
    let ran: Vec<String> = said
        .lines()
        .filter(|line| line.starts_with("test ") && line.contains(" ... "))
        .map(str::to_owned)
        .collect();
    move |words| {
        let words = words.split(' ').take_while(|word| !word.starts_with("--"));
        let has_none = |word: &&str| !ran.iter().any(|line| line.contains(*word));
        words.filter(has_none).collect()
    }
}

/// The test programs of [`MACHINES`] by name.
pub fn programs() -> Result<BTreeMap<String, PathBuf>> {
    let mut build = cargo::words(
        "test --locked --no-run --message-format=json --workspace --lib --test slurm --test suite --test vm",
    );
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

/// A test program, and words of which a cell's name has one.
pub type Cells = (PathBuf, Vec<String>);

/// A machine, and where the files of its runs are.
pub struct Machine {
    system: PathBuf,
    place: PathBuf,
    keeps: bool,
}

impl Machine {
    /// Its first disk is as before after each run.
    fn of(system: &Path, place: &Path) -> Machine {
        Machine {
            system: system.to_owned(),
            place: place.to_owned(),
            keeps: false,
        }
    }

    /// A copy of a system, below `place`, that keeps what each run writes.
    pub fn kept(system: &Path, place: &Path) -> Result<Machine> {
        let own = place.join("system");
        make_dir(&own)?;
        let copy = "-r --sparse=always --no-target-directory";
        quietly(command("cp", copy).args([system, &own]))?;
        Ok(Machine {
            system: own,
            place: place.join("run"),
            keeps: true,
        })
    }

    pub fn system(&self) -> &Path {
        &self.system
    }

    /// What programs said in it, and the exit code of the last that failed. `cut` tells a test when
    /// its power goes.
    pub fn run(&self, cells: &[Cells], cut: Option<&str>) -> (String, Result<u8>) {
        let (mut said, mut code) = (String::new(), None);
        let mut run = || {
            emptied(&self.place)?;
            let disk = disk(&self.place, cells, cut)?;
            let status = lines(&mut self.boot(&disk), LONGEST, |line| {
                said += &format!("{line}\n");
                code = line
                    .strip_prefix(ENDED)
                    .and_then(|code| code.parse().ok())
                    .or(code);
            });
            fs::remove_dir_all(&self.place)
                .with_context(|| format!("'{}'", self.place.display()))?;
            status
        };
        let ended = run();
        let code = ended.and_then(|status| {
            code.with_context(|| format!("the machine ended before its program ({status})"))
        });
        (said, code)
    }

    /// Its clock counts instructions (`-icount`: one processor, two nanoseconds each) and jumps
    /// where all wait. So no bound on time falls on a slow or busy host, and waiting costs nothing.
    /// It needs no network.
    fn boot(&self, disk: &Path) -> Command {
        let mut command = command(
            "setpriv",
            &format!(
                "--pdeathsig KILL {QEMU} -accel tcg -icount shift=1,sleep=off -cpu Nehalem -m 2560 -display none -vga none \
                 -monitor none -serial stdio -nic none -no-reboot"
            ),
        );
        for (disk, keeps) in [(&*self.system.join("disk"), self.keeps), (disk, false)] {
            let snapshot = if keeps { "off" } else { "on" };
            let file = disk.display();
            let drive =
                format!("file={file},format=raw,if=virtio,cache=unsafe,snapshot={snapshot}");
            command.args(["-drive", &drive]);
        }
        command.arg("-kernel").arg(self.system.join("vmlinuz"));
        command.arg("-initrd").arg(self.system.join("initrd.img"));
        command.args(["-append", KERNEL]);
        command
    }
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
/// path; the packages; the test programs' command lines; when the power is cut.
fn disk(place: &Path, cells: &[Cells], cut: Option<&str>) -> Result<PathBuf> {
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
    for (program, _) in cells {
        link(program, &debug.join("deps"))?;
    }
    for package in list(&build.join(PACKAGES))?
        .iter()
        .filter(|file| is_a(file, "deb"))
    {
        link(package, &content.join("packages"))?;
    }
    write(&content.join("run"), script(cells, &repository, &build)?)?;
    if let Some(cut) = cut {
        write(&content.join("cut"), cut)?;
    }
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
fn script(cells: &[Cells], repository: &Path, build: &Path) -> Result<String> {
    let (repository, build) = (repository.display(), build.display());
    let line = |(program, words): &Cells| {
        let name = program.file_name().and_then(OsStr::to_str);
        let name = name.context("the program has no name")?;
        let words: String = words.iter().map(|word| format!(" '{word}'")).collect();
        Ok(format!("'{build}/debug/deps/{name}'{words} || code=$?\n"))
    };
    let lines = cells.iter().map(line).collect::<Result<String>>()?;
    Ok(format!(
        "set -e\n\
         mkdir -p '{repository}'; mount --bind /disk/repository '{repository}'\n\
         mkdir -p '{build}'; mount --bind /disk/build '{build}'\n\
         ip address add 127.0.1.1/8 dev lo\n\
         cd '{repository}/tests'\n\
         code=0\n{lines}echo {ENDED}$code\n"
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_word_without_a_cell_is_told() {
        let said =
            "running 2 tests\ntest seen::one ... ok (1.0 s)\ntest a::b ... FAILED\nnot held::\n";
        let missing = super::without_cells(said);
        assert_eq!(missing("seen:: a:: --skip held::"), [""; 0]);
        assert_eq!(missing("seen:: held::"), ["held::"]);
        assert_eq!(missing(""), [""; 0]);
    }
}

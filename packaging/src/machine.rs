//! A virtual machine under QEMU's own translation (/dev/kvm is not needed). It boots a Debian with
//! cgroup v2 alone under its systemd, and runs cells of this build there. Or it loses its power after
//! each tenth of a second of a job's life, and boots again from the disk that is left.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::num::NonZero;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::cargo::{self, target_directory};
use crate::command::{command, lines, quietly, wrote};
use crate::files::{emptied, is_a, list};
use crate::{install, package};

/// The release that boots: Linux 6.1, systemd 252, Slurm 22.05.
const RELEASE: &str = "bookworm";
const INCLUDED: &str = "systemd,systemd-sysv,dbus,iproute2,procps,munge,slurmctld,slurmd,slurm-client,slurm-wlm-basic-plugins,\
                        linux-image-cloud-amd64";
const QEMU: &str = "/usr/bin/qemu-system-x86_64";
/// Longest time for a boot and all that runs then.
const LONGEST: Duration = Duration::from_secs(3600);
/// What the machine says last, before its program's exit code.
const ENDED: &str = "machine: ended with ";
/// `loglevel=1` leaves a panic alone on the console.
const KERNEL: &str = "console=ttyS0 root=/dev/vda rw panic=-1 nohpet quiet loglevel=1 mitigations=off systemd.show_status=0";

/// The packages, and the programs in them: optimized, which counts here.
const PACKAGES: &str = "tmp/machine-packages";
const BUILT: &str = "x86_64-unknown-linux-gnu/release";
const SHIPPED: &str = "mpsd mpsctl mps-probe mps-runner mps-prologue mps-epilogue libspank_mps.so";

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
const MACHINES: [&[(&str, &str)]; 2] = [
    &[(
        "slurm",
        "shared:: leftovers:: auto_shards_confined:: devices_reversed:: shared_cgroups:: shared_sluids::",
    )],
    &[
        (
            "mpsd_sys",
            "cgroup:: confine:: spawn:: guard:: remove:: --skip a_child_that_its_user_stops",
        ),
        (
            "suite",
            "confined::the_ bounded:: hidden:: survivors:: second_look::the_end",
        ),
        ("mpsd", "as_user:: launch:: members::"),
        ("vm", ""),
    ],
];

/// The test of a job's life in `tests/vm/cut.rs`: what it says before the power is cut, with what the
/// job was doing, and what it says then if the job's life was over.
const CUT: &str = "the power is cut: ";
const AFTER: &str = "after the job";
/// Cuts, if the job lives so long, and milliseconds between two of them.
const CUTS: u64 = 100;
const STEP_MS: u64 = 100;

/// Boots the machines and runs their cells.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Cut the power after each tenth of a second of a job's life instead
    #[arg(long)]
    power_cuts: bool,
    /// The job finds no control daemon, which drains the node
    #[arg(long, requires = "power_cuts")]
    drains: bool,
    /// Names of cells, instead of all
    #[arg(last = true)]
    words: Vec<String>,
}

/// Makes the packages that machines install: with the version given, they are packed quickly.
pub fn packages() -> Result<()> {
    let packages = target_directory()?.join(PACKAGES).display().to_string();
    package::run(&package::Options {
        number: Some(package::VERSION.to_owned()),
        ..package::Options::into_dir("x86_64", &packages)?
    })
}

pub fn run(options: &Options) -> Result<()> {
    match options.power_cuts {
        true => power_cuts(if options.drains { "drains" } else { "" }),
        false => cells(options),
    }
}

fn cells(options: &Options) -> Result<()> {
    let (system, programs, target) = (system()?, programs()?, target_directory()?);
    let mut machines = Vec::new();
    for runs in MACHINES {
        let mut cells = Vec::new();
        for (name, words) in runs {
            let program = &programs[*name];
            if options.words.is_empty() {
                let words = words.split_whitespace().map(str::to_owned).collect();
                cells.push((program.clone(), words));
            } else if has_cell(program, &options.words)? {
                cells.push((program.clone(), options.words.clone()));
            }
        }
        machines.push((runs, cells));
    }
    machines.retain(|(_, cells)| !cells.is_empty());
    let asked = options.words.join(" ");
    ensure!(!machines.is_empty(), "no machine has a cell for '{asked}'");
    let wrong = Mutex::new(0);
    side_by_side(machines.iter().enumerate(), |(number, (runs, cells))| {
        let begin = Instant::now();
        let place = target.join(format!("tmp/machine-{number}"));
        let machine = Machine {
            system: system.clone(),
            place,
            keeps: false,
        };
        let (said, is_right) = machine.run(cells, None);
        // In one piece.
        let mut wrong = wrong.lock().expect("no thread panics");
        let took = begin.elapsed().as_secs();
        let names: Vec<_> = runs.iter().map(|(name, _)| *name).collect();
        println!("\n--- {} ({took} s)\n{said}", names.join(" "));
        // A second try has words of one program.
        let words = runs.iter().filter(|_| options.words.is_empty());
        let missing: Vec<_> = words
            .flat_map(|(_, words)| without_cells(&said, words))
            .collect();
        for word in &missing {
            println!("no cell of the name '{word}'");
        }
        *wrong += usize::from(!is_right) + missing.len();
        Ok(())
    })?;
    let wrong = wrong.into_inner().expect("no thread panics");
    ensure!(wrong == 0, "cells failed on a machine");
    Ok(())
}

/// Whether a test program has a cell for one of the words: another would refuse them, or run
/// nothing. A program lists the cells of its beds, but not a bed's own.
fn has_cell(program: &Path, words: &[String]) -> Result<bool> {
    let listed = wrote(Command::new(program).arg("--list"))?;
    let is_in = |word: &String| {
        let bed = word.split_once("::the_bed_");
        let bed = bed.or_else(|| word.split_once("::the_nodes_"));
        listed.contains(bed.map_or(&**word, |(bed, _)| bed))
    };
    let names = words.iter().filter(|word| !word.starts_with('-'));
    let mut names = names.peekable();
    Ok(names.peek().is_none() || names.any(is_in))
}

/// Cuts until a job has ended before its cut; `then`: what becomes of the job.
fn power_cuts(then: &str) -> Result<()> {
    cargo::build("build --workspace --lib --bins")?;
    packages()?;
    let place = target_directory()?.join("tmp/cuts");
    emptied(&place)?;
    let programs = programs()?;
    let cell = |test: &str| {
        let words = vec![format!("cut::{test}"), "--nocapture".to_owned()];
        [(programs["vm"].clone(), words)]
    };
    let base = Machine::kept(&system()?, &place.join("base"))?;
    let (said, is_installed) = base.run(&cell("a_node_is_installed"), None);
    ensure!(is_installed, "no node to cut: {said}");
    let ended = Mutex::new(Vec::new());
    let all = || ended.lock().expect("no thread panics");
    let is_over = || all().iter().any(|(doing, _)| doing == AFTER);
    let times = (0..CUTS).map(|at| at * STEP_MS);
    side_by_side(times.take_while(|_| !is_over()), |after_ms| {
        let own = place.join(after_ms.to_string());
        let machine = Machine::kept(&base.system, &own)?;
        let cut = format!("{after_ms} {then}");
        let (said, _) = machine.run(&cell("a_node_loses_its_power"), Some(&cut));
        let doing = said.lines().find_map(|line| line.split_once(CUT));
        let (_, doing) = doing.with_context(|| format!("its power stayed: {said}"))?;
        let boots = "a_node_that_lost_its_power_boots_without_a_trace_of_the_job";
        let (again, is_right) = machine.run(&cell(boots), None);
        fs::remove_dir_all(own)?;
        // A test that is not there fails nothing.
        let is_right = is_right && again.contains(" 1 passed;");
        let shown = if is_right { "nothing left" } else { &*again };
        println!("{after_ms:>6} ms  {doing:<20} {shown}");
        all().push((doing.to_owned(), is_right));
        Ok(())
    })?;
    let bad = all().iter().filter(|(_, is_right)| !is_right).count();
    println!("{} cuts, {bad} left something", all().len());
    ensure!(bad == 0, "a cut left something");
    Ok(())
}

/// Does it for each, for as many at once as there are processors.
fn side_by_side<T>(
    items: impl Iterator<Item = T> + Send,
    act: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let items = Mutex::new(items);
    let next = || items.lock().ok().and_then(|mut items| items.next());
    let work = || std::iter::from_fn(next).try_for_each(&act);
    std::thread::scope(|scope| {
        let count = std::thread::available_parallelism().map_or(2, NonZero::get);
        let workers: Vec<_> = (0..count).map(|_| scope.spawn(work)).collect();
        let mut ended = workers.into_iter();
        ended.try_for_each(|worker| worker.join().expect("no thread panics"))
    })
}

/// The words of a line of [`MACHINES`] that are in no name of a cell that was run.
fn without_cells<'w>(said: &str, words: &'w str) -> Vec<&'w str> {
    let is_test = |line: &&str| line.starts_with("test ") && line.contains(" ... ");
    let ran: Vec<&str> = said.lines().filter(is_test).collect();
    let has_run = |word: &&str| ran.iter().any(|line| line.contains(word));
    let words = words.split(' ').take_while(|word| !word.starts_with("--"));
    words.filter(|word| !has_run(word)).collect()
}

/// The test programs of [`MACHINES`] by name.
fn programs() -> Result<BTreeMap<String, PathBuf>> {
    cargo::built("test --locked --no-run --workspace --lib --test slurm --test suite --test vm")
}

/// A test program, and words of which a cell's name has one.
type Cells = (PathBuf, Vec<String>);

/// A machine, and where the files of its runs are.
struct Machine {
    system: PathBuf,
    place: PathBuf,
    /// Its first disk keeps what a run writes.
    keeps: bool,
}

impl Machine {
    /// A copy of a system, below `place`, that keeps what each run writes.
    fn kept(system: &Path, place: &Path) -> Result<Machine> {
        let own = place.join("system");
        fs::create_dir_all(&own)?;
        let copy = "-r --sparse=always --no-target-directory";
        quietly(command("cp", copy).args([system, &own]))?;
        Ok(Machine {
            system: own,
            place: place.join("run"),
            keeps: true,
        })
    }

    /// What programs said in it, and whether all succeeded. `cut` tells a test when its power goes.
    fn run(&self, cells: &[Cells], cut: Option<&str>) -> (String, bool) {
        let mut said = String::new();
        let ran = self.run_once(cells, cut, &mut said);
        let ended = said.lines().rev().find_map(|line| line.strip_prefix(ENDED));
        let is_right = ran.is_ok() && ended == Some("0");
        match (ran, ended) {
            (Err(error), _) => said += &format!("{error:#}\n"),
            (Ok(status), None) => {
                said += &format!("the machine ended before its program ({status})\n");
            }
            _ => {}
        }
        (said, is_right)
    }

    fn run_once(
        &self,
        cells: &[Cells],
        cut: Option<&str>,
        said: &mut String,
    ) -> Result<ExitStatus> {
        emptied(&self.place)?;
        let disk = disk(&self.place, cells, cut)?;
        let status = lines(&mut self.boot(&disk), LONGEST, |line| {
            *said += &format!("{line}\n");
        })?;
        fs::remove_dir_all(&self.place)?;
        Ok(status)
    }

    /// Its clock counts instructions (`-icount`: one processor, two nanoseconds each) and jumps
    /// where all wait. So no bound on time falls on a slow or busy host, waiting costs nothing, and
    /// it takes the time that others leave. It needs no network.
    fn boot(&self, disk: &Path) -> Command {
        let words = format!(
            "--pdeathsig KILL nice {QEMU} -accel tcg -icount shift=1,sleep=off -cpu Nehalem -m 2560 -display none -vga none \
             -monitor none -serial stdio -nic none -no-reboot"
        );
        let mut command = command("setpriv", &words);
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
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the machine's programs are x86_64's, which this is not"
    );
    install::program(QEMU, "qemu-system-x86")?;
    install::program("/usr/sbin/mke2fs", "e2fsprogs")?;
    let wanted = [INCLUDED, UNIT, IDLE].concat();
    install::kept("tmp", "debian-machine", &wanted, |home| {
        let root = home.join("root");
        let words = format!("--variant=minbase --include={INCLUDED}");
        install::mmdebstrap(&root, &words, RELEASE)?;
        fs::write(root.join("etc/systemd/system/cells.service"), UNIT)?;
        let name = "gpu001";
        fs::write(root.join("etc/hostname"), name)?;
        let hosts = format!("127.0.0.1 localhost {name}\n");
        fs::write(root.join("etc/hosts"), hosts)?;
        fs::create_dir_all(root.join("disk"))?;
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
                    fs::rename(&file, home.join(kept))?;
                }
            }
        }
        image(&home.join("disk"), &root, "2G")?;
        Ok(fs::remove_dir_all(&root)?)
    })
}

/// An ext4 file system with the files of a directory; it takes no more room than these.
fn image(file: &Path, of: &Path, size: &str) -> Result<()> {
    let (file, of) = (file.display(), of.display());
    let words = format!("-q -F -t ext4 -d {of} {file} {size}");
    quietly(&mut command("/usr/sbin/mke2fs", &words))
}

/// The second disk: the repository's files that tests read, and what was built, each at its own
/// path; the packages; the test programs' command lines; when the power is cut.
fn disk(place: &Path, cells: &[Cells], cut: Option<&str>) -> Result<PathBuf> {
    let build = target_directory()?;
    let content = place.join("content");
    for dir in ["repository", "build/debug/deps", "build/tmp", "packages"] {
        fs::create_dir_all(content.join(dir))?;
    }
    let repository = content.join("repository");
    quietly(command("cp", "-r --parents etc docs tests fuzz/corpus").arg(&repository))?;
    let debug = content.join("build/debug");
    let built = list(&build.join("debug"))?;
    for file in built.iter().filter(|file| is_program(file)) {
        link(file, &debug)?;
    }
    for name in SHIPPED.split(' ') {
        fs::remove_file(debug.join(name))?;
        link(&build.join(BUILT).join(name), &debug)?;
    }
    for (program, _) in cells {
        link(program, &debug.join("deps"))?;
    }
    let packages = list(&build.join(PACKAGES))?;
    for package in packages.iter().filter(|file| is_a(file, "deb")) {
        link(package, &content.join("packages"))?;
    }
    fs::write(content.join("run"), script(cells, &cargo::root()?, &build)?)?;
    if let Some(cut) = cut {
        fs::write(content.join("cut"), cut)?;
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
    Ok(fs::hard_link(file, into.join(name))?)
}

/// A second address of the machine's own, because getaddrinfo(3) with AI_ADDRCONFIG finds no name
/// for Slurm if 127.0.0.1 is the only one.
///
/// While all wait for a disk, the machine's clock jumps to the next bound on time. So programs are
/// read before they run, and `/tmp`, where beds are, is in memory.
fn script(cells: &[Cells], repository: &Path, build: &Path) -> Result<String> {
    let (repository, build) = (repository.display(), build.display());
    let line = |(program, words): &Cells| {
        let name = program.file_name().and_then(OsStr::to_str);
        let name = name.context("the program has no name")?;
        let words: String = words.iter().map(|word| format!(" '{word}'")).collect();
        let program = format!("'{build}/debug/deps/{name}'");
        Ok(format!(
            "cat {program} >/dev/null; {program}{words} || code=$?\n"
        ))
    };
    let lines = cells.iter().map(line).collect::<Result<String>>()?;
    Ok(format!(
        "set -e\n\
         mkdir -p '{repository}'; mount --bind /disk/repository '{repository}'\n\
         mkdir -p '{build}'; mount --bind /disk/build '{build}'\n\
         ip address add 127.0.1.1/8 dev lo\n\
         cd '{repository}/tests'\n\
         cat '{build}'/debug/* /usr/bin/* /usr/sbin/* >/dev/null 2>&1 || true\n\
         mount -t tmpfs -o mode=1777 none /tmp\n\
         code=0\n{lines}echo {ENDED}$code\n"
    ))
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_word_without_a_cell_is_told() {
        let said = "test seen::one ... ok (1.0 s)\ntest a::b ... FAILED\nnot held::\n";
        let missing = |words| super::without_cells(said, words);
        assert_eq!(missing("seen:: a:: --skip held::"), [""; 0]);
        assert_eq!(missing("seen:: held::"), ["held::"]);
        assert_eq!(missing(""), [""; 0]);
    }
}

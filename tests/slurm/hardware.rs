//! Parts of `cargo xtask hardware` on doubles, so that they work before a machine with a GPU is at
//! hand.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use tests::beside::Work;
use tests::child;
use tests::double::{NodeDouble, copy_program};
use tests::slurm::program_beside;
use tests::stage::PROGRAMS;

use crate::runner::Tally;
use ::tests::slurm::is_chosen;

pub const NAME: &str = "hardware::the_part_auto_finds_no_difference_on_doubles";
const ENDS: Duration = Duration::from_secs(240);

/// A `/dev` with `/dev/nvidia0` for the rest of its words, and a `/tmp`: a script starts a daemon
/// in NVIDIA's usual place, which programs of other beds without MPS would find.
const WITH_A_GPU: &str = r#"set -e
d=$1/dev; t=$1/tmp; shift
mkdir -m 1777 $t
mount --bind $t /tmp
mkdir $d $d/pts $d/shm
for file in null zero full random urandom tty fd ptmx; do cp -a /dev/$file $d/; done
mknod -m 666 $d/nvidia0 c 240 0
mount --bind /dev/pts $d/pts
mount --bind /dev/shm $d/shm
mount --rbind $d /dev
exec "$@""#;

/// The words of 'mps-probe' for its double.
const PROBE: &str = r#"#!/bin/sh
case "$*" in
    *--require-mps*) echo '{}'; exit 1 ;;
    "--json --deadline-s "*) shift 3 ;;
esac
exec NODE/fake-cuda-client --node NODE "$@"
"#;

const SMI: &str = r#"#!/bin/sh
case "$*" in
    *--query-gpu*) echo "OWN, NVIDIA H200, 580.159.04, 143771, Default" ;;
esac
"#;

pub fn beds<'a>(words: &[String], tally: &'a Tally) -> Vec<Work<'a>> {
    tally.there_are(1);
    let work = Work {
        claims: Vec::new(),
        run: Box::new(|| {
            let started = Instant::now();
            tally.note(NAME, started, auto(), "");
        }),
    };
    is_chosen(words, NAME).then_some(work).into_iter().collect()
}

fn auto() -> Result<()> {
    let dir = tempfile::Builder::new()
        .prefix("mpsd-hardware.")
        .tempdir_in("/var/lib")?;
    let dir = dir.path();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    let node = NodeDouble::builder()
        .gpus(1, "NVIDIA H200")
        .fast()
        .at(dir.join("node"))
        .build()
        .map_err(|why| anyhow!(why))?;
    package(dir, &node)?;
    let package = dir.join("package");
    let path = format!("{}:{}", node.dir().display(), std::env::var("PATH")?);
    let mut command = Command::new("/usr/bin/unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "/bin/sh",
            "-c",
            WITH_A_GPU,
            "sh",
        ])
        .arg(dir)
        .arg(package.join("hardware"))
        .args(["auto", "--out"])
        .arg(dir.join("out"))
        .env("PATH", path)
        .env("LD_LIBRARY_PATH", node.dir());
    let ran = child::run(&mut command, "", ENDS)?;
    let told = fs::read_to_string(dir.join("out/hardware.toml")).with_context(|| ran.story())?;
    let told: toml::Table = toml::from_str(&told)?;
    let checks = told["auto"]["checks"].as_array().context("no checks")?;
    // Others use this machine, so it does not look as before.
    let own = checks.iter().filter(|check| {
        let name = check["name"].as_str().unwrap_or_default();
        !name.starts_with("independent look")
    });
    let (held, failed): (Vec<_>, Vec<_>) =
        own.partition(|check| check["ok"].as_bool() == Some(true));
    ensure!(failed.is_empty() && held.len() == 11, "{}", ran.story());
    Ok(())
}

/// What `cargo xtask hardware --pack` puts into a folder, with doubles for NVIDIA's programs and
/// the probe.
fn package(dir: &Path, node: &NodeDouble) -> Result<()> {
    let package = dir.join("package");
    fs::create_dir(&package)?;
    for name in PROGRAMS.iter().copied().chain(["hardware", "slurm-warden"]) {
        copy_program(&program_beside(name)?, &package.join(name))?;
    }
    copy_program(
        &program_beside("libspank_mps.so")?,
        &package.join("spank_mps.so"),
    )?;
    let prolog = concat!(env!("CARGO_MANIFEST_DIR"), "/../etc/slurm/mps-task-prolog");
    copy_program(Path::new(prolog), &package.join("mps-task-prolog"))?;
    let home = node.dir().display().to_string();
    let scripts = [
        (package.join("mps-probe"), PROBE.replace("NODE", &home)),
        (
            node.dir().join("nvidia-smi"),
            SMI.replace("OWN", &node.uuids()[0]),
        ),
    ];
    for (file, text) in scripts {
        fs::write(&file, text)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

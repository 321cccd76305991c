//! The packages as an administrator meets them. `cargo xtask dist` makes them once for all tests. A
//! test installs into a copy of a system, an overlay in a mount namespace that ends with the test.

mod admin;
mod ansible;
mod arm64;
mod cluster;
mod containers;
mod contents;
mod debian;
mod guide;
mod install;
mod machine;
mod monitoring;
mod repository;
mod root;
mod stopwatch;
mod units;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use assert_cmd::assert::OutputAssertExt as _;
use tests::run::{says, skip};

fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

const NAMES: [&str; 3] = ["mpsd", "mpsd-pbs", "mpsd-slurm"];

/// The directory with the packages, made by the first caller.
fn packages() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| dist("packages", &[]))
}

fn dist(name: &str, words: &[&str]) -> PathBuf {
    let out = target(name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("dist").arg("--out").arg(&out).args(words);
    run(&mut command);
    out
}

fn package(name: &str, extension: &str) -> PathBuf {
    find(packages(), name, extension)
}

/// The earlier release, by its number only: the packages have this release's content.
const BEFORE: &str = "0.1.0";

fn older(name: &str, extension: &str) -> PathBuf {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    packages();
    let made = MADE.get_or_init(|| dist("older", &["--as", BEFORE]));
    find(made, name, extension)
}

fn find(dir: &Path, name: &str, extension: &str) -> PathBuf {
    let is_it = |path: &PathBuf| {
        let file = path.file_name().unwrap().to_str().unwrap();
        let rest = file.strip_prefix(name);
        let rest = rest.and_then(|rest| rest.strip_prefix(['_', '-']));
        file.ends_with(extension)
            && rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let found: Vec<PathBuf> = paths(dir).into_iter().filter(is_it).collect();
    assert_eq!(found.len(), 1, "{name}*{extension}: {found:?}");
    found[0].clone()
}

fn paths(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn emptied(name: &str) -> PathBuf {
    let path = target(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    format!("{}\n{out}{err}", output.status)
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let ran = command.assert().success();
    String::from_utf8(ran.get_output().stdout.clone()).unwrap()
}

/// The directory that `make` fills. It is made again if `wanted` changes or the last attempt did
/// not finish.
fn kept(
    name: &str,
    wanted: &str,
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let (place, note) = (target(name), target(name).join("included"));
    if !fs::read_to_string(&note).is_ok_and(|text| text == wanted) {
        make(&emptied(name))?;
        fs::write(note, wanted).unwrap();
    }
    Ok(place)
}

fn try_run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    match command.env("DEBIAN_FRONTEND", "noninteractive").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{name}: {}", said(&output))),
        Err(error) => Err(format!("no {name}: {error}")),
    }
}

/// Unpacks Debian's packages into the folder `root` of `place`, without installing them.
fn unpack(place: &Path, packages: &str) -> Result<(), String> {
    let apt = |words: &str| {
        let mut apt = Command::new("apt-get");
        try_run(apt.args(words.split(' ')).current_dir(place))
    };
    let download = format!("download -q -o APT::Sandbox::User=root {packages}");
    // The list may be old, or missing.
    apt(&download).or_else(|_| apt("update -q").and_then(|()| apt(&download)))?;
    for file in paths(place) {
        let root = place.join("root");
        run(Command::new("dpkg-deb").arg("-x").args([file, root]));
    }
    Ok(())
}

/// A program or a script: replaced by a rename, because the former one may be running.
fn put_program(path: &Path, bytes: impl AsRef<[u8]>) {
    let new = path.with_extension("new");
    fs::write(&new, bytes).unwrap();
    open_to_all(&new);
    fs::rename(new, path).unwrap();
}

/// Mode 0755: what everyone may read and run.
fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

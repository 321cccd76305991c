//! What is in the packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{NAMES, arm64, package, packages, run, skip, target};

/// Queries of `rpm -qp`.
const FILES: &str = "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES} %{FILELINKTOS} (%{FILEFLAGS:fflags})\n]";
const RELATIONS: &str = "[%{REQUIRES}\n]%{VERSION}-%{RELEASE}";

fn rpm(package: &Path, query: &str) -> String {
    run(Command::new("rpm")
        .args(["-qp", "--qf", query, "--"])
        .arg(package))
}

fn deb_files(package: &Path) -> Vec<String> {
    let listed = run(Command::new("dpkg-deb").arg("-c").arg(package));
    let line = |line: &str| {
        // mode owner/group size date time path
        let words: Vec<&str> = line.split_whitespace().collect();
        format!("{} {} {}", words[0], words[1], words[5..].join(" "))
    };
    let mut lines: Vec<String> = listed.lines().map(line).collect();
    lines.sort_by(|a, b| a[11..].cmp(&b[11..]));
    lines
}

/// The list without the guide, which is all of docs/: a new page is no change of the packages'
/// shape.
fn without_guide(list: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let files = |folder: &str| {
        let files = fs::read_dir(docs.join(folder)).unwrap().map(Result::unwrap);
        let files = files.filter(|file| file.file_type().unwrap().is_file());
        let name = |file: fs::DirEntry| file.file_name().into_string().unwrap();
        Vec::from_iter(files.map(|file| format!("/usr/share/doc/mpsd/{folder}{}", name(file))))
    };
    let mut missing = BTreeSet::from_iter([files(""), files("facts/")].concat());
    let mut is_other = |line: &&str| {
        let path = line.split_once("root/root ").map_or("", |(_, path)| path);
        let path = path.trim_start_matches('.').trim_end_matches("  (d)");
        !(line.starts_with("-rw-r--r-- ") && missing.remove(path))
    };
    let others = Vec::from_iter(list.lines().filter(&mut is_other)).join("\n");
    assert!(
        missing.is_empty(),
        "pages that are not in the package: {missing:?}"
    );
    others
}

/// Compares with the recorded list. If they differ, the new list is left beside it as `.snap.new`.
fn compare(name: &str, text: &str) -> Option<String> {
    let lists = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages/lists");
    let path = lists.join(format!("{name}.snap"));
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let new = path.with_extension("snap.new");
    let _ = fs::remove_file(&new);
    if recorded.trim_end() == text.trim_end() {
        return None;
    }
    fs::write(&new, text).unwrap();
    let (old, now): (BTreeSet<&str>, BTreeSet<&str>) =
        (recorded.lines().collect(), text.lines().collect());
    let (gone, more): (Vec<_>, Vec<_>) = (
        old.difference(&now).collect(),
        now.difference(&old).collect(),
    );
    let file = new.display();
    Some(format!(
        "the files of {name} changed; if meant so, rename '{file}'\ngone: {gone:#?}\nnew: {more:#?}"
    ))
}

#[test]
fn the_files_of_the_packages_are_the_recorded_ones() {
    let mut changed = Vec::new();
    for name in NAMES {
        let deb = package(name, ".deb");
        let dir = emptied(&format!("control-{name}"));
        run(Command::new("dpkg-deb").arg("-e").args([&deb, &dir]));
        let control = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let control: BTreeSet<String> = control.collect();
        let control = Vec::from_iter(control).join(" ");
        let kept = fs::read_to_string(dir.join("conffiles")).unwrap_or_default();
        let lists = [
            deb_files(&deb).join("\n"),
            rpm(&package(name, ".rpm"), FILES),
        ];
        let [files, of_rpm] = match name {
            "mpsd" => lists.map(|list| without_guide(&list)),
            _ => lists,
        };
        let text = format!("{files}\ncontrol: {control}\nconfiguration:\n{kept}");
        changed.extend(compare(&format!("{name}.deb"), &text));
        changed.extend(compare(&format!("{name}.rpm"), &of_rpm));
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}

/// A site's Slurm may lie below /opt: apt and dnf must not bring and start another one.
#[test]
fn no_package_brings_a_scheduler() {
    for name in NAMES {
        let mut fields = Command::new("dpkg-deb");
        let fields = fields.arg("-f").arg(package(name, ".deb"));
        let deb = run(fields.args(["Depends", "Pre-Depends", "Recommends"]));
        let rpm = rpm(&package(name, ".rpm"), "[%{REQUIRES}\n][%{RECOMMENDS}\n]");
        let words = [deb, rpm].join(" ");
        let mut words = words.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let is_brought = |word: &str| {
            let stems = ["slurm", "munge", "torque", "openpbs", "pbs"];
            stems.iter().any(|stem| word.starts_with(stem))
        };
        assert_eq!(words.find(|word| is_brought(word)), None, "{name}");
    }
}

/// The same files in both machines' packages, the same dependencies, and the same bytes in what is
/// for every machine.
#[test]
fn arm64_has_the_same_files() {
    if arm64::made().is_none() {
        return skip(
            "packages for arm64",
            "Rust's library for it is not installed",
        );
    }
    for name in NAMES {
        let deb = |path: PathBuf| {
            let mut depends = Command::new("dpkg-deb");
            depends
                .arg("-f")
                .arg(&path)
                .args(["Depends", "Suggests", "Version"]);
            (deb_files(&path), run(&mut depends))
        };
        assert_eq!(
            deb(arm64::package(name, ".deb")),
            deb(package(name, ".deb")),
            "{name}"
        );
        let rpm = |path: PathBuf| (rpm(&path, FILES), rpm(&path, RELATIONS));
        assert_eq!(
            rpm(arm64::package(name, ".rpm")),
            rpm(package(name, ".rpm")),
            "{name}"
        );
    }
    let debs =
        [arm64::package, package].map(|package| fs::read(package("mpsd-pbs", ".deb")).unwrap());
    assert!(
        debs[0] == debs[1],
        "mpsd-pbs.deb is not the same for both machines"
    );
    // An RPM names in its header the machine on which, or for which, it was made, and a quick build
    // is packed less tightly. This is the sum of its files.
    let sums = [arm64::package, package]
        .map(|package| rpm(&package("mpsd-pbs", ".rpm"), "%{PAYLOADDIGESTALT}"));
    assert!(sums[0].len() == 64 && sums[0] == sums[1], "{sums:?}");
}

#[test]
fn the_sums_are_the_packages() {
    let mut check = Command::new("sha256sum");
    let said = run(check
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(packages()));
    assert_eq!(said.matches(": OK\n").count(), 6, "{said}");
}

fn machines() -> Vec<Vec<PathBuf>> {
    let arm = arm64::made().map(|_| unpacked(arm64::package));
    [Some(unpacked(package)), arm]
        .into_iter()
        .flatten()
        .collect()
}

/// One for each release of Slurm.
pub const PLUGINS: usize = 9;

/// Checked by another program than at staging.
#[test]
fn no_program_needs_a_newer_c_library_or_names_this_machine() {
    let cargo = format!("{}/.cargo/", std::env::var("HOME").unwrap());
    for programs in machines() {
        assert_eq!(programs.len(), 6 + PLUGINS);
        for path in programs {
            let symbols = run(Command::new("readelf")
                .args(["--dyn-syms", "--wide"])
                .arg(&path));
            let versions = symbols.split(['@', ' ', '\n']);
            let versions = versions.filter_map(|word| word.strip_prefix("GLIBC_2."));
            let newest = versions
                .filter_map(|minor| minor.split('.').next()?.parse::<u32>().ok())
                .max();
            assert!(
                newest.is_some_and(|newest| newest <= 28),
                "'{}': {newest:?}",
                path.display()
            );
            let bytes = fs::read(&path).unwrap();
            for trace in [concat!(env!("CARGO_MANIFEST_DIR"), "/"), &cargo] {
                let there = bytes
                    .windows(trace.len())
                    .any(|window| window == trace.as_bytes());
                assert!(!there, "'{}' holds '{trace}'", path.display());
            }
        }
    }
}

#[test]
fn the_plugins_differ_in_their_stamp_alone() {
    for mut plugins in machines() {
        plugins.retain(|path| path.ends_with("spank_mps.so"));
        let first = fs::read(&plugins[0]).unwrap();
        let mut stamps = BTreeSet::new();
        for path in &plugins {
            let release = path
                .parent()
                .unwrap()
                .file_name()
                .unwrap()
                .to_str()
                .unwrap();
            let stamp = stamp(release);
            let bytes = fs::read(path).unwrap();
            assert_eq!(bytes.len(), first.len());
            let differing: Vec<usize> = (0..first.len())
                .filter(|at| first[*at] != bytes[*at])
                .collect();
            if let (Some(start), Some(end)) = (differing.first(), differing.last()) {
                assert!(end - start < 4, "{release}: {differing:?}");
            }
            let found = bytes.windows(4).any(|window| window == stamp.to_le_bytes());
            assert!(found, "{release}: no stamp {stamp:#x}");
            stamps.insert(bytes);
        }
        assert_eq!(stamps.len(), PLUGINS, "two releases have the same plugin");
    }
}

/// `SLURM_VERSION_NUM(major, minor, 0)` of a release as `YY.MM` (slurm.h).
pub fn stamp(release: &str) -> u32 {
    let (major, minor) = release.split_once('.').unwrap();
    major.parse::<u32>().unwrap() << 16 | minor.parse::<u32>().unwrap() << 8
}

fn unpacked(package: fn(&str, &str) -> PathBuf) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in ["mpsd", "mpsd-slurm"] {
        let deb = package(name, ".deb");
        let file = deb.file_stem().unwrap().to_str().unwrap();
        let dir = emptied(&format!("files-{file}-{:?}", std::thread::current().id()));
        run(Command::new("dpkg-deb").arg("-x").args([&deb, &dir]));
        let files = run(Command::new("find").arg(dir).args(["-type", "f"]));
        found.extend(files.lines().map(PathBuf::from));
    }
    found.retain(|path| fs::read(path).unwrap().starts_with(b"\x7fELF"));
    found.sort();
    found
}

fn emptied(name: &str) -> PathBuf {
    let path = target(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

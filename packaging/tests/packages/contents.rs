//! What is in the packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::listed;
use crate::{NAMES, arm64, emptied, package, packages, paths, run, skip};

/// Queries of `rpm -qp`.
const FILES: &str = "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES} %{FILELINKTOS} (%{FILEFLAGS:fflags})\n]";
const RELATIONS: &str = "[%{REQUIRES}\n]%{VERSION}-%{RELEASE}";

fn rpm(package: &Path, query: &str) -> String {
    let mut rpm = Command::new("rpm");
    run(rpm.args(["-qp", "--qf", query, "--"]).arg(package))
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
        let files = paths(&docs.join(folder)).into_iter();
        let files = files.filter(|file| file.is_file());
        let installed = |file: PathBuf| {
            let name = file.file_name().unwrap().to_str().unwrap();
            format!("/usr/share/doc/mpsd/{folder}{name}")
        };
        files.map(installed).collect::<Vec<_>>()
    };
    let mut missing = BTreeSet::from_iter([files(""), files("facts/")].concat());
    let mut is_other = |line: &&str| {
        let path = line.split_once("root/root ").map_or("", |(_, path)| path);
        let path = path.trim_start_matches('.').trim_end_matches("  (d)");
        !(line.starts_with("-rw-r--r-- ") && missing.remove(path))
    };
    let others = Vec::from_iter(list.lines().filter(&mut is_other)).join("\n");
    assert!(missing.is_empty(), "not in the package: {missing:?}");
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
    let [old, now] = [&*recorded, text].map(|list| BTreeSet::from_iter(list.lines()));
    let (gone, more) = (&old - &now, &now - &old);
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
        let control = listed(&dir).join(" ");
        let kept = fs::read_to_string(dir.join("conffiles")).unwrap_or_default();
        let of_rpm = rpm(&package(name, ".rpm"), FILES);
        let lists = [deb_files(&deb).join("\n"), of_rpm];
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
        return skip("packages for arm64", arm64::NO_LIBRARY);
    }
    let both = [arm64::package, package];
    for name in NAMES {
        let [arm, own] = both.map(|package| {
            let (deb, file) = (package(name, ".deb"), package(name, ".rpm"));
            let mut fields = Command::new("dpkg-deb");
            let fields = fields.arg("-f").arg(&deb);
            let depends = run(fields.args(["Depends", "Suggests", "Version"]));
            let lists = [FILES, RELATIONS].map(|query| rpm(&file, query));
            (deb_files(&deb), depends, lists)
        });
        assert_eq!(arm, own, "{name}");
    }
    let [arm, own] = both.map(|package| fs::read(package("mpsd-pbs", ".deb")).unwrap());
    assert!(arm == own, "mpsd-pbs.deb is not the same for both machines");
    // An RPM names in its header the machine on which, or for which, it was made, and a quick build
    // is packed less tightly. This is the sum of its files.
    let sums = both.map(|package| rpm(&package("mpsd-pbs", ".rpm"), "%{PAYLOADDIGESTALT}"));
    assert!(sums[0].len() == 64 && sums[0] == sums[1], "{sums:?}");
}

#[test]
fn the_sums_are_the_packages() {
    let mut check = Command::new("sha256sum");
    let check = check.args(["--check", "--strict", "SHA256SUMS"]);
    let said = run(check.current_dir(packages()));
    assert_eq!(said.matches(": OK\n").count(), 6, "{said}");
}

fn machines() -> Vec<Vec<PathBuf>> {
    let arm = arm64::made().map(|_| unpacked(arm64::package));
    [unpacked(package)].into_iter().chain(arm).collect()
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
            let mut readelf = Command::new("readelf");
            let symbols = run(readelf.args(["--dyn-syms", "--wide"]).arg(&path));
            let versions = symbols.split(['@', ' ', '\n']);
            let minors = versions.filter_map(|word| word.strip_prefix("GLIBC_2."));
            let minors = minors.filter_map(|minor| minor.split('.').next()?.parse::<u32>().ok());
            let (newest, file) = (minors.max(), path.display());
            let runs_there = newest.is_some_and(|newest| newest <= 28);
            assert!(runs_there, "'{file}': {newest:?}");
            let bytes = fs::read(&path).unwrap();
            for trace in [concat!(env!("CARGO_MANIFEST_DIR"), "/"), &cargo] {
                assert!(!holds(&bytes, trace.as_bytes()), "'{file}' holds '{trace}'");
            }
        }
    }
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn the_plugins_differ_in_their_stamp_alone() {
    for mut plugins in machines() {
        plugins.retain(|path| path.ends_with("spank_mps.so"));
        let first = fs::read(&plugins[0]).unwrap();
        let mut stamps = BTreeSet::new();
        for path in &plugins {
            let release = path.iter().nth_back(1).unwrap().to_str().unwrap();
            let stamp = stamp(release);
            let bytes = fs::read(path).unwrap();
            assert_eq!(bytes.len(), first.len());
            let differing = (0..first.len()).filter(|at| first[*at] != bytes[*at]);
            let differing: Vec<usize> = differing.collect();
            if let (Some(start), Some(end)) = (differing.first(), differing.last()) {
                assert!(end - start < 4, "{release}: {differing:?}");
            }
            let is_stamped = holds(&bytes, &stamp.to_le_bytes());
            assert!(is_stamped, "{release}: no stamp {stamp:#x}");
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

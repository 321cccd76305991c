//! What is in the packages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{NAMES, arm64, package, packages, run, skip};

/// Compares with the recorded list; where they differ, the new one is left beside it as `.snap.new`, and said how.
fn compare(name: &str, text: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/packages/lists")
        .join(format!("{name}.snap"));
    let recorded = fs::read_to_string(&path).unwrap_or_default();
    let new = path.with_extension("snap.new");
    if recorded == text {
        let _ = fs::remove_file(new);
        return None;
    }
    fs::write(&new, text).unwrap();
    let (old, now): (BTreeSet<&str>, BTreeSet<&str>) = (recorded.lines().collect(), text.lines().collect());
    Some(format!(
        "the files of {name} changed; if meant so, rename '{}'\ngone: {:#?}\nnew: {:#?}",
        new.display(),
        old.difference(&now).collect::<Vec<_>>(),
        now.difference(&old).collect::<Vec<_>>()
    ))
}

/// Where `dpkg-deb -c` has what may differ.
const SIZE_AND_DATE: std::ops::RangeInclusive<usize> = 2..=4;

/// The same files in both machines' packages, the same dependencies, and the same bytes in what is for every machine.
#[test]
fn arm64_has_the_same_files() {
    if arm64::made().is_none() {
        return skip("packages for arm64", "Rust's library for it is not installed");
    }
    for name in NAMES {
        let deb = |path: PathBuf| {
            let listed = run(Command::new("dpkg-deb").arg("-c").arg(&path));
            let files: BTreeSet<String> = listed
                .lines()
                .map(|line| {
                    line.split_whitespace()
                        .enumerate()
                        .filter(|(column, _)| !SIZE_AND_DATE.contains(column))
                        .map(|(_, word)| format!("{word} "))
                        .collect()
                })
                .collect();
            let depends = run(Command::new("dpkg-deb")
                .arg("-f")
                .arg(&path)
                .args(["Depends", "Suggests", "Version"]));
            (files, depends)
        };
        assert_eq!(
            deb(arm64::package(name, ".deb")),
            deb(package(name, ".deb")),
            "{name}"
        );
        let rpm = |path: PathBuf| {
            run(Command::new("rpm")
                .args([
                    "-qp",
                    "--qf",
                    "[%{FILEMODES:perms} %{FILENAMES} %{FILELINKTOS}\n][%{REQUIRES}\n]%{VERSION}-%{RELEASE}",
                ])
                .arg(path))
        };
        assert_eq!(
            rpm(arm64::package(name, ".rpm")),
            rpm(package(name, ".rpm")),
            "{name}"
        );
    }
    let debs = [arm64::package, package].map(|package| fs::read(package("mpsd-pbs", ".deb")).unwrap());
    assert!(
        debs[0] == debs[1],
        "mpsd-pbs.deb is not the same for both machines"
    );
    // An RPM has the name of the machine that it was made on, or for, in its header. This sum is of its files.
    let sums = [arm64::package, package].map(|package| {
        let query = ["-qp", "--qf", "%{PAYLOADDIGEST}", "--"];
        run(Command::new("rpm").args(query).arg(package("mpsd-pbs", ".rpm")))
    });
    assert!(sums[0].len() == 64 && sums[0] == sums[1], "{sums:?}");
}

#[test]
fn the_files_of_the_debian_packages_are_the_recorded_ones() {
    let mut changed = Vec::new();
    for name in NAMES {
        let listed = run(Command::new("dpkg-deb")
            .arg("-c")
            .arg(package(name, ".deb"))
            .env("TZ", "UTC"));
        let mut lines: Vec<String> = listed
            .lines()
            .map(|line| {
                // mode owner/group size date time path
                let words: Vec<&str> = line.split_whitespace().collect();
                format!("{} {} {}", words[0], words[1], words[5..].join(" "))
            })
            .collect();
        lines.retain(|line| !is_unit(line));
        lines.sort_by(|a, b| a[11..].cmp(&b[11..]));
        let dir = tempdir(&format!("control-{name}"));
        run(Command::new("dpkg-deb")
            .arg("-e")
            .arg(package(name, ".deb"))
            .arg(&dir));
        let mut control: Vec<String> = fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        control.sort();
        let kept = fs::read_to_string(dir.join("conffiles")).unwrap_or_default();
        let text = format!(
            "{}\ncontrol: {}\nconfiguration:\n{kept}",
            lines.join("\n"),
            control.join(" ")
        );
        changed.extend(compare(&format!("{name}.deb"), &text));
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}

#[test]
fn the_files_of_the_rpm_packages_are_the_recorded_ones() {
    let format = "[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES} %{FILELINKTOS} (%{FILEFLAGS:fflags})\n]";
    let mut changed = Vec::new();
    for name in NAMES {
        let listed = run(Command::new("rpm")
            .args(["-qp", "--qf", format])
            .arg(package(name, ".rpm")));
        let lines: Vec<&str> = listed.lines().filter(|line| !is_unit(line)).collect();
        changed.extend(compare(
            &format!("{name}.rpm"),
            &format!("{}\n", lines.join("\n")),
        ));
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}

/// A file, or its directory, that comes out of a directory of the repository taken whole.
fn is_unit(line: &str) -> bool {
    line.contains("/usr/lib/systemd/") || line.contains("/usr/lib/tmpfiles.d/")
}

#[test]
fn every_unit_of_the_repository_is_in_both_packages() {
    let deb = run(Command::new("dpkg-deb").arg("-c").arg(package("mpsd", ".deb")));
    let rpm = run(Command::new("rpm").arg("-qlp").arg(package("mpsd", ".rpm")));
    let etc = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc");
    for (from, to) in [
        ("systemd/system", "/usr/lib/systemd/system"),
        ("tmpfiles.d", "/usr/lib/tmpfiles.d"),
    ] {
        let Ok(listed) = fs::read_dir(etc.join(from)) else {
            continue;
        };
        for entry in listed {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let path = format!("{to}/{name}");
            assert!(
                deb.lines().any(|line| line.ends_with(&format!(".{path}"))),
                "{path}"
            );
            assert!(rpm.lines().any(|line| line == path), "{path}");
        }
    }
}

#[test]
fn the_sums_are_the_packages() {
    let said = run(Command::new("sha256sum")
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(packages()));
    assert_eq!(
        said.lines().filter(|line| line.ends_with(": OK")).count(),
        6,
        "{said}"
    );
}

/// Read by another's program than the one that checked it when it was staged.
#[test]
fn no_program_needs_a_newer_c_library_or_names_this_machine() {
    let mut programs = 0;
    let all = unpacked(package).into_iter().chain(
        arm64::made()
            .map(|_| unpacked(arm64::package))
            .unwrap_or_default(),
    );
    for path in all {
        let symbols = run(Command::new("readelf").args(["--dyn-syms", "--wide"]).arg(&path));
        let newest = symbols
            .split(['@', ' ', '\n'])
            .filter_map(|word| word.strip_prefix("GLIBC_2."))
            .filter_map(|minor| minor.split('.').next()?.parse::<u32>().ok())
            .max();
        let newest = newest.unwrap_or_else(|| panic!("'{}' names no version", path.display()));
        assert!(newest <= 28, "'{}' needs GLIBC_2.{newest}", path.display());
        let bytes = fs::read(&path).unwrap();
        let home = std::env::var("HOME").unwrap();
        for trace in [
            concat!(env!("CARGO_MANIFEST_DIR"), "/"),
            &format!("{home}/.cargo/"),
        ] {
            let there = bytes
                .windows(trace.len())
                .any(|window| window == trace.as_bytes());
            assert!(!there, "'{}' holds '{trace}'", path.display());
        }
        programs += 1;
    }
    let machines = 1 + usize::from(arm64::made().is_some());
    assert_eq!(programs, machines * (5 + 8));
}

#[test]
fn the_plugins_differ_in_their_stamp_alone() {
    stamps_alone_differ(package);
    if arm64::made().is_some() {
        stamps_alone_differ(arm64::package);
    }
}

fn stamps_alone_differ(package: fn(&str, &str) -> PathBuf) {
    let plugins: Vec<PathBuf> = unpacked(package)
        .into_iter()
        .filter(|path| path.ends_with("spank_mps.so"))
        .collect();
    let first = fs::read(&plugins[0]).unwrap();
    let mut stamps = BTreeSet::new();
    for path in &plugins {
        let release = path.parent().unwrap().file_name().unwrap().to_str().unwrap();
        let (major, minor) = release.split_once('.').unwrap();
        let stamp = major.parse::<u32>().unwrap() << 16 | minor.parse::<u32>().unwrap() << 8;
        let bytes = fs::read(path).unwrap();
        let differing: Vec<usize> = (0..first.len()).filter(|at| first[*at] != bytes[*at]).collect();
        assert_eq!(bytes.len(), first.len());
        if let (Some(start), Some(end)) = (differing.first(), differing.last()) {
            assert!(end - start < 4, "{release}: {differing:?}");
        }
        let found = bytes.windows(4).any(|window| window == stamp.to_le_bytes());
        assert!(found, "{release}: no stamp {stamp:#x}");
        stamps.insert(bytes);
    }
    assert_eq!(stamps.len(), 8, "two releases have the same plugin");
}

/// The programs and plugins of one machine's packages.
fn unpacked(package: fn(&str, &str) -> PathBuf) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in ["mpsd", "mpsd-slurm"] {
        let deb = package(name, ".deb");
        let file = deb.file_stem().unwrap().to_str().unwrap();
        let dir = tempdir(&format!("files-{file}-{:?}", std::thread::current().id()));
        run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&dir));
        walk(&dir, &mut found);
    }
    found.retain(|path| !path.is_symlink() && fs::read(path).unwrap().starts_with(b"\x7fELF"));
    found.sort();
    found
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// An empty directory of cargo's, emptied again by the next run.
fn tempdir(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).unwrap();
    path
}

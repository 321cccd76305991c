//! Installing, upgrading and removing with the package managers without a systemd, as in an image;
//! the plugin follows Slurm.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use assert_cmd::assert::OutputAssertExt as _;

use crate::root::Root;
use crate::{NAMES, emptied, older, package, put_program, run, says, skip};

const SLURM_CONF: &str = "ClusterName=site\nSlurmctldHost=localhost\nNodeName=localhost\n";
const STACK: &str = "include /etc/slurm/plugstack.conf.d/*.conf\n";
const FOREIGN: [(&str, &str); 5] = [
    ("/var/spool/torque/mom_priv/prologue", "#!/bin/sh\n# own\n"),
    ("/etc/slurm/slurm.conf", SLURM_CONF),
    ("/etc/slurm/plugstack.conf", STACK),
    ("/etc/slurm/plugstack.conf.d/site.conf", "# another's\n"),
    ("/etc/mpsd/site-notes", "kept\n"),
];
const CONFIG: &str = "/etc/mpsd/mpsd.toml";
/// The administrator's change.
const CHANGED: &str = "deadline_s = 25\n";
const DRAIN: &str = "/var/lib/mpsd/drains/gpu001";
const SNIPPET: &str = "/etc/slurm/plugstack.conf.d/mpsd.conf";
/// A release that differs from this machine's Slurm.
const WRONG: &str = "26.05";

pub fn put_foreign(root: &Root) {
    for (path, text) in FOREIGN {
        root.write(path, text);
    }
}

#[track_caller]
pub fn foreign_is_as_it_was(root: &Root) {
    for (path, text) in FOREIGN {
        assert_eq!(root.read(path), text, "{path}");
    }
}

pub fn programs_run(root: &Root) {
    let own = "mpsd mpsctl mps-probe mps-prologue mps-epilogue".split(' ');
    let own = own.map(|name| format!("/usr/libexec/mpsd/{name}"));
    let linked = ["mpsctl", "mps-probe"].map(|name| format!("/usr/bin/{name}"));
    for program in own.chain(linked) {
        let said = root.run(&format!("{program} --version"));
        says(&said, &[env!("CARGO_PKG_VERSION")]);
    }
    root.run("mpsctl config show");
}

/// No scheduler reads anything of ours, and no unit is enabled.
pub fn nothing_is_active(root: &Root) {
    foreign_is_as_it_was(root);
    let places = "/etc/slurm /var/spool/torque /var/spool/pbs /etc/systemd/system";
    let found = root.output(&format!("find {places} -name '*mps*' 2>/dev/null"));
    assert_eq!(String::from_utf8_lossy(&found.stdout), "");
}

pub fn gone(root: &Root, but: &[&str]) {
    let places = "/usr/bin /usr/libexec /usr/lib/mpsd /usr/share /etc";
    let names = "-name 'mpsd*' -o -name 'mpsctl*' -o -name '*-mpsd.sh'";
    let found = root.output(&format!("find {places} {names} 2>/dev/null"));
    let text = String::from_utf8(found.stdout).unwrap();
    let left: Vec<&str> = text.lines().filter(|line| !but.contains(line)).collect();
    assert!(left.is_empty(), "{left:?}");
}

pub fn take(root: &Root, command: &str, packages: &[PathBuf]) {
    let files: Vec<String> = packages.iter().map(|package| root.take(package)).collect();
    root.run(&format!("{command} {}", files.join(" ")));
}

/// What RPM's records on Debian lack: another package manager installed the shell and the C
/// library.
pub fn distribution(root: &Root) {
    let spec = "Name: distribution\nVersion: 1\nRelease: 1\nSummary: none\nLicense: none\nBuildArch: noarch\n\
                Provides: /bin/sh, libc.so.6(GLIBC_2.28)(64bit)\n%description\nnone\n%files\n";
    root.write("/root/distribution.spec", spec);
    root.run("rpmbuild -bb --define '_topdir /root/rpm' /root/distribution.spec");
    root.run("rpm --install /root/rpm/RPMS/noarch/distribution-1-1.noarch.rpm");
}

/// Whether srun knows the flag, which means that Slurm has loaded the plugin.
fn is_loaded(root: &Root) -> bool {
    root.run("srun --help").contains("--mps-threads")
}

/// The plugin is enabled; an upgrade of Slurm makes it the wrong one; `trigger` repairs that.
fn follows_slurm(root: &Root, trigger: impl FnOnce()) {
    let is_enabled = root.at(SNIPPET).exists() || is_loaded(root);
    assert!(!is_enabled, "installing was enough");
    let said = root.run("srun -V");
    let mut lines = said.lines();
    let version = lines.find_map(|line| line.strip_prefix("slurm")?.split(' ').nth(1));
    let release = &version.unwrap_or_else(|| panic!("{said}"))[..5];
    let line = format!("optional /usr/lib/mpsd/spank/{release}/spank_mps.so");
    let is_right = || root.read(SNIPPET).lines().any(|found| found == line) && is_loaded(root);
    root.run("mpsctl slurm enable");
    assert!(is_right(), "{}", root.read(SNIPPET));
    root.write(SNIPPET, &root.read(SNIPPET).replace(release, WRONG));
    assert!(!is_loaded(root), "{release} took a plugin for {WRONG}");
    trigger();
    let found = root.read(SNIPPET);
    assert!(is_right(), "the trigger did not fire: {found}");
}

#[test]
fn the_debian_packages_install_follow_slurm_upgrade_and_leave() {
    if !Path::new("/var/lib/dpkg/status").exists() {
        return skip("Debian packages", "this system is not Debian's");
    }
    let debs = NAMES.map(|name| older(name, ".deb"));
    let newer = NAMES.map(|name| package(name, ".deb"));
    let slurmd = slurm_of_tomorrow();
    Root::with("deb", move |root| {
        put_foreign(root);
        take(root, "dpkg --install", &debs);
        programs_run(root);
        nothing_is_active(root);
        root.write(CONFIG, CHANGED);
        follows_slurm(root, || take(root, "dpkg --install", &[slurmd]));

        take(root, "dpkg --install", &newer);
        assert_eq!(root.read(CONFIG), CHANGED, "the upgrade took the file");
        programs_run(root);
        assert!(is_loaded(root), "the upgrade lost the line");

        root.run("dpkg --remove mpsd-slurm mpsd-pbs mpsd");
        assert_eq!(root.read(CONFIG), CHANGED, "removal took the configuration");
        assert!(!is_loaded(root));
        nothing_is_active(root);
        let kept = [
            "/etc/mpsd",
            CONFIG,
            "/etc/enroot/hooks.d/50-mpsd.sh",
            "/etc/profile.d/mpsd.sh",
            "/etc/profile.d/mpsd.csh",
            "/etc/profile.d/mpsd-slurm.sh",
        ];
        gone(root, &kept);

        root.write(DRAIN, "ours\n");
        root.run("dpkg --purge mpsd-slurm mpsd-pbs mpsd");
        gone(root, &["/etc/mpsd"]);
        assert!(!root.at("/var/lib/mpsd").exists());
        foreign_is_as_it_was(root);
    });
}

#[test]
fn the_rpm_packages_install_follow_slurm_upgrade_and_leave() {
    let rpms = NAMES.map(|name| older(name, ".rpm"));
    let newer = NAMES.map(|name| package(name, ".rpm"));
    Root::with("rpm", move |root| {
        put_foreign(root);
        distribution(root);
        take(root, "rpm --install", &rpms);
        programs_run(root);
        nothing_is_active(root);
        root.run("rpm --verify mpsd mpsd-slurm mpsd-pbs");
        root.write(CONFIG, CHANGED);
        root.write(DRAIN, "ours\n");
        // The same trigger as for slurmd's own file: a new file below one of its paths.
        follows_slurm(root, || take(root, "rpm --upgrade", &newer));

        let have = root.run("rpm --query --qf '%{VERSION}\n' mpsd mpsd-slurm mpsd-pbs");
        assert_eq!(have.matches(env!("CARGO_PKG_VERSION")).count(), 3, "{have}");
        assert_eq!(root.read(CONFIG), CHANGED, "the upgrade took the file");
        programs_run(root);
        // All but the changed file.
        root.run("rpm --verify --noconfig mpsd mpsd-slurm mpsd-pbs");

        root.run("rpm --erase mpsd-slurm mpsd-pbs mpsd");
        assert!(!is_loaded(root));
        nothing_is_active(root);
        let kept = format!("{CONFIG}.rpmsave");
        assert_eq!(root.read(&kept), CHANGED);
        assert_eq!(root.read(DRAIN), "ours\n", "a drain of ours was forgotten");
        gone(root, &["/etc/mpsd", &kept]);
    });
}

fn slurm_of_tomorrow() -> PathBuf {
    let dir = emptied("slurm-of-tomorrow");
    for part in ["DEBIAN", "usr/sbin"] {
        fs::create_dir_all(dir.join(part)).unwrap();
    }
    let control = "Package: slurm-of-tomorrow\nVersion: 1\nArchitecture: all\nMaintainer: nobody <nobody@invalid>\n\
                   Description: a slurmd\n";
    fs::write(dir.join("DEBIAN/control"), control).unwrap();
    let program = "#!/bin/sh\nexec /usr/sbin/slurmd-wlm \"$@\"\n";
    put_program(&dir.join("usr/sbin/slurmd"), program);
    let file = dir.with_extension("deb");
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "--build"]);
    run(build.args([&dir, &file]));
    file
}

/// A site may mount a file system of its own there, or keep files of its own.
#[test]
fn a_purge_takes_no_mount_point_and_no_other_files() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/deb/mpsd.postrm");
    let notes = "/var/lib/mpsd\n/var/lib/mpsd/notes\n";
    for (state, left) in [
        ("mount -t tmpfs none /var/lib/mpsd", "/var/lib/mpsd\n"),
        ("touch /var/lib/mpsd/notes", notes),
        ("true", ""),
    ] {
        let commands = format!(
            "for dir in /run /etc /var/lib; do mount -t tmpfs none $dir; done; mkdir /var/lib/mpsd; {state}; \
             mkdir -p /var/lib/mpsd/drains /var/lib/mpsd/reports; touch /var/lib/mpsd/drains/gpu001; \
             sh {script} purge && find /var/lib -mindepth 1"
        );
        let mut purge = Command::new("unshare");
        let ran = purge.args(["--mount", "sh", "-c", &commands]).assert();
        ran.success().stdout(left).stderr("");
    }
}

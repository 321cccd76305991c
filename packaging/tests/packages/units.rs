//! The units as systemd rates them, as they bind what they run, and as they act in a machine that has booted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cluster::{Cluster, VENDOR, listed};
use crate::machine::{HOST, Machine};
use crate::{said, skip};

/// Where the packages put them.
const PLACE: &str = "/usr/lib/systemd/system";
/// What is made for one that is due sooner: see mpsd-look-again.path.
const LOOK_AGAIN: &str = "/run/mpsd/look-again";
/// The units of 0.1.0, in which mpsd.service took down at boot what jobs had left, and nothing was confined.
const EARLIER: [(&str, &str); 3] = [
    ("mpsd.service", include_str!("units-0.1.0/mpsd.service")),
    (
        "mpsd-reconcile.service",
        include_str!("units-0.1.0/mpsd-reconcile.service"),
    ),
    (
        "mpsd-reconcile.timer",
        include_str!("units-0.1.0/mpsd-reconcile.timer"),
    ),
];
/// Worst exposure that systemd-analyze(1) may see in a unit of ours, in tenths: 4.0.
const WORST: &str = "40";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/systemd/system")
}

/// The names of the units that run a command.
fn services() -> Vec<String> {
    let mut names = listed(&directory());
    names.retain(|name| name.ends_with(".service"));
    names
}

fn text(name: &str) -> String {
    fs::read_to_string(directory().join(name)).unwrap()
}

#[test]
fn every_unit_that_runs_a_command_is_confined() {
    assert_eq!(
        services(),
        [
            "mpsd-boot.service",
            "mpsd-metrics.service",
            "mpsd-reconcile.service",
            "mpsd.service"
        ]
    );
    for name in services() {
        let mut command = Command::new("systemd-analyze");
        command.args(["security", "--no-pager", "--offline=true", "--threshold", WORST]);
        let Ok(rated) = command.arg(directory().join(&name)).output() else {
            return skip("the units' exposure", "no systemd-analyze on this machine");
        };
        assert!(rated.status.success(), "{name}: {}", said(&rated));
    }
}

/// As docs/fleets.md and docs/metrics.md say it.
#[test]
fn the_looks_are_as_far_apart_as_the_guide_says() {
    for (name, lines) in [
        (
            "mpsd-reconcile.timer",
            ["OnUnitInactiveSec=10min", "RandomizedDelaySec=2min"].as_slice(),
        ),
        ("mpsd-metrics.timer", &["OnUnitInactiveSec=1min"]),
    ] {
        let text = text(name);
        for line in lines {
            assert!(text.lines().any(|one| one == *line), "{name}: no '{line}'");
        }
    }
}

/// What stands below the line that begins the sandbox.
fn sandbox(name: &str) -> String {
    let text = text(name);
    let (_, sandbox) = text
        .split_once("\n# The sandbox of all units that run mpsctl;")
        .unwrap();
    sandbox.to_owned()
}

#[test]
fn all_units_that_run_mpsctl_have_the_same_sandbox() {
    for name in ["mpsd-boot.service", "mpsd-metrics.service"] {
        assert_eq!(sandbox(name), sandbox("mpsd-reconcile.service"), "{name}");
    }
}

/// A setting that systemd applies to the unit's cgroup holds for every job's daemon below it.
#[test]
fn nothing_in_the_home_binds_the_daemons_in_it() {
    const OF_THE_CGROUP: [&str; 15] = [
        "Allowed",
        "BPFProgram",
        "CPU",
        "Device",
        "Disable",
        "IO",
        "IP",
        "ManagedOOM",
        "Memory",
        "NFTSet",
        "PrivateDevices",
        "ProtectClock",
        "RestrictNetworkInterfaces",
        "Slice",
        "SocketBind",
    ];
    for line in text("mpsd.service").lines().filter(|line| !line.starts_with('#')) {
        let name = line.split('=').next().unwrap();
        let binds = OF_THE_CGROUP.iter().any(|of| name.starts_with(of)) && name != "MemoryDenyWriteExecute";
        assert!(!binds, "{line}");
    }
}

/// The units as a node has them that was set up with 0.1.0.
pub fn have_been_those_of_0_1_0(machine: &Machine) {
    machine.run(&["systemctl", "stop", "mpsd-reconcile.timer"]);
    for name in listed(&directory()) {
        fs::remove_file(machine.at(&format!("{PLACE}/{name}"))).unwrap();
    }
    for (name, text) in EARLIER {
        fs::write(machine.at(&format!("{PLACE}/{name}")), text).unwrap();
    }
    machine.run(&["systemctl", "daemon-reload"]);
    machine.run(&["systemctl", "restart", "mpsd.service", "mpsd-reconcile.timer"]);
}

/// The simulated GPUs keep their modes in files, where real ones have a driver.
pub fn reach_the_simulated_gpus(machine: &Machine) {
    for unit in ["mpsd-reconcile", "mpsd-boot", "mpsd-metrics"] {
        let dir = machine.at(&format!("/run/systemd/system/{unit}.service.d"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(
            dir.join("vendor.conf"),
            format!("[Service]\nReadWritePaths={VENDOR}\n"),
        )
        .unwrap();
    }
    machine.run(&["systemctl", "daemon-reload"]);
}

/// After an upgrade from them nobody has to enable anything.
pub fn are_complete_after_the_upgrade(machine: &Machine) {
    machine.run(&["systemctl", "is-active", "mpsd-look-again.path"]);
    let wanted = machine.run(&["systemctl", "show", "--value", "-p", "Wants", "mpsd.service"]);
    assert!(wanted.contains("mpsd-boot.service"), "{wanted}");
    assert_eq!(
        invocation(machine, "mpsd-boot.service"),
        "",
        "it ran at the upgrade"
    );
    machine.run(&["systemctl", "restart", "mpsd.service"]);
    assert_ne!(invocation(machine, "mpsd-boot.service"), "");
}

/// Of its last run; empty before the first.
fn invocation(machine: &Machine, unit: &str) -> String {
    let shown = machine.run(&["systemctl", "show", "--value", "-p", "InvocationID", unit]);
    shown.trim().to_owned()
}

/// By this system's own systemd.
pub fn are_rated(machine: &Machine) {
    for name in services() {
        let mut words = vec!["systemd-analyze", "security", "--no-pager", "--offline=true"];
        let path = format!("{PLACE}/{name}");
        words.extend(["--threshold", WORST, &path]);
        machine.run(&words);
    }
}

/// From within its sandbox, a job that its scheduler no longer has is taken down, and a drain of ours is delivered.
pub fn reconcile_in_their_sandbox(cluster: &mut Cluster, note: &Path) {
    const EPILOGUE: &str = "/usr/libexec/mpsd/mps-epilogue";
    let (mut srun, record) = cluster.holding(&["--gres=gpu:1", "--mps", "--mps-threads=25"], note);
    let (job, daemon) = (record.job.clone().unwrap(), record.daemon_pid.unwrap());
    cluster.machine.run(&["mv", EPILOGUE, "/root/epilogue"]);
    cluster.machine.run(&["scancel", &job]);
    srun.wait().unwrap();
    cluster.idle();
    cluster.machine.run(&["mv", "/root/epilogue", EPILOGUE]);
    let alive = cluster.machine.at(&format!("/proc/{daemon}"));
    assert!(alive.exists(), "nothing was left over");
    let marker = format!(
        r#"{{"version":1,"scheduler":"slurm","node":"{HOST}","reason":"mpsd: gone wrong","job":"{job}",
            "delivered":false,"when":1}}"#
    );
    let drains = cluster.machine.at("/var/lib/mpsd/drains");
    fs::create_dir_all(&drains).unwrap();
    fs::write(drains.join(format!("slurm-{HOST}")), marker).unwrap();
    probe(&cluster.machine);

    let run = cluster
        .machine
        .output(&["systemctl", "start", "mpsd-reconcile.service"]);
    assert!(
        run.status.success(),
        "{}\n{}",
        said(&run),
        cluster.machine.journal()
    );
    assert!(!alive.exists(), "{}", cluster.machine.journal());
    is_confined(&cluster.machine);
    let shown = cluster.machine.run(&["scontrol", "-o", "show", "node", HOST]);
    assert!(
        shown.contains("DRAIN") && shown.contains("Reason=mpsd: gone wrong"),
        "{shown}\n{}",
        cluster.machine.journal()
    );
    cluster.machine.run(&["mpsctl", "undrain"]);
    cluster.nothing_is_left();
}

/// A drop-in for what the sandbox lets a command do, written down by that command.
fn probe(machine: &Machine) {
    const PROBE: &str = "[Service]\nExecStartPost=/bin/sh -c '\
        { grep -E \"^(CapBnd|Seccomp|NoNewPrivs):\" /proc/self/status; cut -d\" \" -f19 /proc/$$$$/stat; \
        for file in /etc/hole /usr/hole /var/hole /sys/fs/cgroup/hole /proc/sys/kernel/core_pattern; do \
        if ( : >>$$file ) 2>/dev/null; then echo wrote $$file; fi; done; \
        if test -e /tmp/trqauthd-unix; then echo torque; fi; if test -e /tmp/other; then echo other; fi; \
        } >/run/mpsd/probe'\n";
    let dir = machine.at("/run/systemd/system/mpsd-reconcile.service.d");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("probe.conf"), PROBE).unwrap();
    for file in ["/tmp/trqauthd-unix", "/tmp/other"] {
        fs::write(machine.at(file), "").unwrap();
    }
    machine.run(&["systemctl", "daemon-reload"]);
}

fn is_confined(machine: &Machine) {
    let probed = machine.at("/run/mpsd/probe");
    let found = fs::read_to_string(&probed).unwrap();
    let lines: Vec<&str> = found.lines().collect();
    assert!(lines.contains(&"Seccomp:\t2"), "{found}");
    assert!(lines.contains(&"NoNewPrivs:\t1"), "{found}");
    assert!(lines.contains(&"-15") && lines.contains(&"torque"), "{found}");
    // DAC_OVERRIDE 1, FOWNER 3, KILL 5, SETGID 6, SETUID 7, SETPCAP 8, NET_BIND_SERVICE 10, SYS_CHROOT 18, SYS_PTRACE 19,
    // SYS_ADMIN 21, SYS_NICE 23: linux/capability.h.
    let bits = [1, 3, 5, 6, 7, 8, 10, 18, 19, 21, 23_u64];
    let bounding: u64 = bits.iter().map(|bit| 1 << bit).sum();
    assert!(
        lines.contains(&format!("CapBnd:\t{bounding:016x}").as_str()),
        "{found}"
    );
    assert!(
        !found.contains("wrote") && !lines.contains(&"other"),
        "the sandbox has a hole: {found}"
    );
    fs::remove_file(probed).unwrap();
    fs::remove_file(machine.at("/run/systemd/system/mpsd-reconcile.service.d/probe.conf")).unwrap();
    machine.run(&["systemctl", "daemon-reload"]);
}

/// A look that is due sooner happens once, a minute later; here after three seconds.
pub fn look_again_once(machine: &mut Machine) {
    let show = |machine: &Machine, what: &str| {
        machine
            .run(&[
                "systemctl",
                "show",
                "--value",
                "-p",
                what,
                "mpsd-look-again.timer",
            ])
            .trim()
            .to_owned()
    };
    let shipped = show(machine, "TimersMonotonic");
    assert!(shipped.contains("OnActiveUSec=1min"), "{shipped}");
    let dir = machine.at("/run/systemd/system/mpsd-look-again.timer.d");
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("soon.conf"), "[Timer]\nOnActiveSec=\nOnActiveSec=3s\n").unwrap();
    machine.run(&["systemctl", "daemon-reload"]);

    let marker = machine.at(LOOK_AGAIN);
    for round in 0..2 {
        let before = invocation(machine, "mpsd-reconcile.service");
        fs::write(&marker, "").unwrap();
        machine.until("the wait for a look", |machine| {
            show(machine, "ActiveState") == "active"
        });
        assert_eq!(
            invocation(machine, "mpsd-reconcile.service"),
            before,
            "round {round}: it did not wait"
        );
        machine.until("a look", |machine| {
            invocation(machine, "mpsd-reconcile.service") != before
        });
        machine.until("its end", |machine| show(machine, "ActiveState") == "inactive");
        assert!(!marker.exists());
        let after = invocation(machine, "mpsd-reconcile.service");
        std::thread::sleep(std::time::Duration::from_secs(4));
        assert_eq!(
            invocation(machine, "mpsd-reconcile.service"),
            after,
            "round {round}: a second look"
        );
    }
    fs::remove_dir_all(dir).unwrap();
    machine.run(&["systemctl", "daemon-reload"]);
}

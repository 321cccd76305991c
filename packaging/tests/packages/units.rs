//! The units: systemd's rating, the sandbox of what they run, and their work in a booted machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cluster::{VENDOR, listed};
use crate::machine::{HOST, Machine};

const PLACE: &str = "/usr/lib/systemd/system";
const DROP_INS: &str = "/run/systemd/system";
const LOOK_AGAIN: &str = "/run/mpsd/look-again";
/// Prefixes of settings that systemd applies to the unit's cgroup.
const OF_THE_CGROUP: &str = "Allowed BPFProgram CPU Device Disable IO IP ManagedOOM Memory NFTSet PrivateDevices ProtectClock \
                             RestrictNetworkInterfaces Slice SocketBind";

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/systemd/system")
}

fn text(name: &str) -> String {
    fs::read_to_string(directory().join(name)).unwrap()
}

#[test]
fn all_units_that_run_mpsctl_have_the_same_sandbox() {
    let sandbox = |name| {
        let text = text(name);
        let parts = text.split_once("\n# The sandbox of all units that run mpsctl;");
        parts.unwrap().1.to_owned()
    };
    for name in ["mpsd-boot.service", "mpsd-metrics.service"] {
        assert_eq!(sandbox(name), sandbox("mpsd-reconcile.service"), "{name}");
    }
}

/// A setting there would hold for every job's daemon below it.
#[test]
fn nothing_in_the_home_binds_the_daemons_in_it() {
    let text = text("mpsd.service");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split('=').next().unwrap();
        let binds = OF_THE_CGROUP.split(' ').any(|of| name.starts_with(of));
        assert!(!binds || name == "MemoryDenyWriteExecute", "{line}");
    }
}

/// Else a stop of the unit, a client that runs out of memory, or many processes would end jobs.
#[test]
fn the_home_ends_no_job() {
    let home = text("mpsd.service");
    for promise in [
        "Delegate=yes",
        "KillMode=process",
        "SendSIGKILL=no",
        "OOMPolicy=continue",
        "TasksMax=infinity",
        "RemainAfterExit=yes",
    ] {
        assert!(home.lines().any(|line| line == promise), "{promise}");
    }
}

fn drop_in(machine: &Machine, unit: &str, text: &str) -> PathBuf {
    let dir = machine.at(&format!("{DROP_INS}/{unit}.d"));
    let number = listed(&dir).len();
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join(format!("{number}.conf"));
    fs::write(&file, text).unwrap();
    machine.run("systemctl daemon-reload");
    file
}

pub fn reach_the_simulated_gpus(machine: &Machine) {
    let text = format!("[Service]\nReadWritePaths={VENDOR}\n");
    for unit in ["mpsd-reconcile", "mpsd-boot", "mpsd-metrics"] {
        drop_in(machine, &format!("{unit}.service"), &text);
    }
}

fn shown(machine: &Machine, unit: &str, property: &str) -> String {
    let shown = machine.run(&format!("systemctl show --value -p {property} {unit}"));
    shown.trim().to_owned()
}

/// The unit's last run; empty before the first.
fn invocation(machine: &Machine, unit: &str) -> String {
    shown(machine, unit, "InvocationID")
}

/// This system's systemd rates each unit that runs a command at an exposure of 4.0 at most.
pub fn are_rated(machine: &Machine) {
    let services = listed(&directory()).into_iter();
    let services = services.filter(|name| name.ends_with(".service"));
    let services: Vec<String> = services.map(|name| format!("{PLACE}/{name}")).collect();
    assert_eq!(services.len(), 4, "{services:?}");
    let rate = "systemd-analyze security --no-pager --offline=true --threshold 40";
    for path in services {
        machine.run(&format!("{rate} {path}"));
    }
}

/// Within its sandbox it takes down a job that its scheduler no longer has, and delivers our drain.
pub fn reconcile_in_their_sandbox(cluster: &mut Machine, note: &Path) {
    const EPILOGUE: &str = "/usr/libexec/mpsd/mps-epilogue";
    let (srun, record) = cluster.holding(note);
    let (job, daemon) = (record.job.unwrap(), record.daemon_pid.unwrap());
    cluster.run(&format!("mv {EPILOGUE} /root/epilogue"));
    cluster.cancel(&job, srun);
    cluster.idle();
    cluster.run(&format!("mv /root/epilogue {EPILOGUE}"));
    let alive = cluster.at(&format!("/proc/{daemon}"));
    assert!(alive.exists(), "nothing was left over");
    cluster.mark_drained("mpsd: gone wrong", &job, false);
    let probe = probe(cluster);

    cluster.run("systemctl start mpsd-reconcile.service");
    assert!(!alive.exists(), "{}", cluster.journal());
    is_confined(cluster);
    fs::remove_file(probe).unwrap();
    cluster.run("systemctl daemon-reload");
    let shown = cluster.run(&format!("scontrol -o show node {HOST}"));
    let drained = shown.contains("DRAIN") && shown.contains("Reason=mpsd: gone wrong");
    assert!(drained, "{shown}\n{}", cluster.journal());
    cluster.run("mpsctl undrain");
    cluster.nothing_is_left();
}

fn probe(machine: &Machine) -> PathBuf {
    const PROBE: &str = "[Service]\nExecStartPost=/bin/sh -c '\
        { grep -E \"^(CapBnd|Seccomp|NoNewPrivs):\" /proc/self/status; cut -d\" \" -f19 /proc/$$$$/stat; \
        for file in /etc/hole /usr/hole /var/hole /sys/fs/cgroup/hole /proc/sys/kernel/core_pattern; do \
        if ( : >>$$file ) 2>/dev/null; then echo wrote $$file; fi; done; \
        if test -e /tmp/trqauthd-unix; then echo torque; fi; if test -e /tmp/other; then echo other; fi; \
        } >/run/mpsd/probe'\n";
    for file in ["/tmp/trqauthd-unix", "/tmp/other"] {
        fs::write(machine.at(file), "").unwrap();
    }
    drop_in(machine, "mpsd-reconcile.service", PROBE)
}

fn is_confined(machine: &Machine) {
    let probed = machine.at("/run/mpsd/probe");
    let found = fs::read_to_string(&probed).unwrap();
    let lines: Vec<&str> = found.lines().collect();
    // DAC_OVERRIDE 1, FOWNER 3, KILL 5, SETGID 6, SETUID 7, SETPCAP 8, NET_BIND_SERVICE 10,
    // SYS_CHROOT 18, SYS_PTRACE 19, SYS_ADMIN 21, SYS_NICE 23: linux/capability.h.
    let bits = [1, 3, 5, 6, 7, 8, 10, 18, 19, 21, 23_u64];
    let bits: u64 = bits.iter().map(|bit| 1 << bit).sum();
    let bounding = format!("CapBnd:\t{bits:016x}");
    for expected in ["Seccomp:\t2", "NoNewPrivs:\t1", "-15", "torque", &bounding] {
        assert!(lines.contains(&expected), "no '{expected}': {found}");
    }
    let has_hole = found.contains("wrote") || lines.contains(&"other");
    assert!(!has_hole, "{found}");
    fs::remove_file(probed).unwrap();
}

/// A second look happens once: normally a minute later, here after three seconds.
pub fn look_again_once(machine: &mut Machine) {
    const TIMER: &str = "mpsd-look-again.timer";
    const SERVICE: &str = "mpsd-reconcile.service";
    let shipped = shown(machine, TIMER, "TimersMonotonic");
    assert!(shipped.contains("OnActiveUSec=1min"), "{shipped}");
    let soon = drop_in(machine, TIMER, "[Timer]\nOnActiveSec=\nOnActiveSec=3s\n");
    let marker = machine.at(LOOK_AGAIN);
    for round in 0..2 {
        let before = invocation(machine, SERVICE);
        fs::write(&marker, "").unwrap();
        machine.until("the wait for a look", |machine| {
            shown(machine, TIMER, "ActiveState") == "active"
        });
        assert_eq!(invocation(machine, SERVICE), before, "{round}: no wait");
        machine.until("a look", |machine| invocation(machine, SERVICE) != before);
        machine.until("its end", |machine| {
            shown(machine, TIMER, "ActiveState") == "inactive"
        });
        assert!(!marker.exists());
        let after = invocation(machine, SERVICE);
        std::thread::sleep(std::time::Duration::from_secs(4));
        assert_eq!(invocation(machine, SERVICE), after, "{round}: twice");
    }
    fs::remove_file(soon).unwrap();
    machine.run("systemctl daemon-reload");
}

//! What runs as the job's user, and NVML's worker, give nobody who takes them over anything.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tests::double::look::wait_until;
use tests::place::{Place, fast};
use tests::scarcity::alone;
use tests::stage::{USER, as_user};
use tests::syslog::Syslog;

const CONFIG: &str = "deadline_s = 6\n";
const SOON: Duration = Duration::from_secs(20);

/// The value of one line of `/proc/PID/status`.
fn status(pid: u32, name: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or("none").trim().to_owned()
}

/// What the job's user is told who opens the memory of `pid`: the kernel asks what it asks of a debugger.
fn debugged(pid: u32) -> String {
    let mut command = as_user(USER, "/usr/bin/head");
    let output = command
        .args(["-c1", &format!("/proc/{pid}/mem")])
        .output()
        .expect("head");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_jobs_daemons_have_no_way_to_more_privilege_and_are_nobodys_to_debug() {
    let place = Place::new(fast(1), CONFIG);
    let ran = place.torque("1.pbs", "MPS=true,MPS_THREADS=25", "0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for name in ["mpsd", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        let pids = place.pids(name);
        assert_eq!(pids.len(), 1, "{name}: {pids:?}");
        let found = ["CapBnd", "CapEff", "NoNewPrivs", "Seccomp"].map(|line| status(pids[0], line));
        let none = "0000000000000000";
        assert_eq!(found, [none, none, "1", "2"], "{name}");
    }
    for name in ["mpsd", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        let said = debugged(place.pids(name)[0]);
        assert!(said.contains("Permission denied"), "{name}: {said}");
    }
    // What is the user's own is theirs to look into, so the answers above say something.
    let mut own = as_user(USER, "/bin/sleep").arg("60").spawn().expect("sleep");
    wait_until(SOON, || status(own.id(), "Name") == "sleep");
    let said = debugged(own.id());
    own.kill().and_then(|()| own.wait()).expect("sleep");
    assert!(!said.contains("Permission denied"), "{said}");
    place.assert_ends_clean("1.pbs", "confined");
}

/// The kernel lets the members of the daemons' group debug them, and root says whom.
#[test]
fn a_user_in_the_daemons_own_group_is_told_to_the_administrator() {
    alone(|| {
        let group = nix::unistd::Group::from_name("nogroup")
            .expect("groups")
            .expect("group")
            .gid;
        let place = Place::new(fast(1), CONFIG);
        let room = place.stage.path("room");
        fs::create_dir(&room).expect("directory");
        let log = Syslog::hear(&room);
        for (daemon_group, told) in [(65_530, 0), (group.as_raw(), 1), (0, 0)] {
            place.configure(&format!("{CONFIG}daemon_group = {daemon_group}\n"));
            let ran = place.torque("4.pbs", "MPS=true", "0");
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let lines = log.lines();
            let what = format!(
                "job 4.pbs: user '{USER}' is in group {daemon_group}, the daemons' own (daemon_group)"
            );
            let found = lines.iter().filter(|line| line.contains(&what)).count();
            assert_eq!(found, told, "{daemon_group}: {lines:?}");
            assert!(
                lines
                    .iter()
                    .any(|line| line.contains(&format!("job 4.pbs: MPS ready for user '{USER}'"))),
                "{lines:?}"
            );
            place.assert_ends_clean("4.pbs", "the daemons' group");
        }
    });
}

#[test]
fn the_probe_is_confined_and_in_the_jobs_cgroup() {
    let place = Place::new(fast(1), CONFIG);
    let script = "#!/bin/sh\nc=$(cat /proc/self/cgroup | grep -c '/2[.]pbs$')\n\
        echo $(grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status) cgroup $c\nexit 1\n";
    let probe = place.stage.program("mps-probe");
    fs::remove_file(&probe).expect("probe");
    fs::write(&probe, script).expect("probe");
    fs::set_permissions(&probe, fs::Permissions::from_mode(0o755)).expect("probe");
    let ran = place.torque("2.pbs", "MPS=true,MPS_VERIFY=true", "0");
    let want = "CapBnd: 0000000000000000 NoNewPrivs: 1 Seccomp: 2 cgroup 1";
    assert!(ran.err.contains(want), "{ran:?}");
    place.assert_ends_clean("2.pbs", "a confined probe");
}

#[test]
fn the_worker_is_confined_before_it_loads_nvml() {
    let place = Place::new(fast(1).nvml(|f| f.init_hangs = true), CONFIG);
    let mut prologue = place.start_torque("3.pbs", "MPS=true", "0");
    let worker = || {
        let processes = place.processes();
        let mut mpsd = processes.iter().filter(|p| p.exe.ends_with("bin/mpsd"));
        mpsd.find(|p| {
            fs::read_to_string(format!("/proc/{}/maps", p.pid))
                .is_ok_and(|maps| maps.contains("libnvidia-ml"))
        })
        .map(|p| p.pid)
    };
    wait_until(SOON, || worker().is_some());
    let pid = worker().expect("a worker with NVML in it");
    assert_eq!(
        ["NoNewPrivs", "Seccomp"].map(|line| status(pid, line)),
        ["1", "2"]
    );
    assert_eq!(prologue.wait(), Some(2));
}

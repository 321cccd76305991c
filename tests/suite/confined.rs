//! A user who takes over a job's daemons, or the worker that asks NVML, gains nothing.

use std::fs;

use tests::node_bed::{NodeBed, Running, eventually, fast, status_of};
use tests::run::{THREE, USER, as_user, finish};
use tests::scarcity::alone;
use tests::syslog::Syslog;

const CONFIG: &str = "deadline_s = 6\n";

/// Whether the user may open its memory: the kernel checks that as it checks a debugger.
fn can_debug(pid: u32) -> bool {
    let mut command = as_user(USER, "/usr/bin/head");
    let ran = finish(command.args(["-c1", &format!("/proc/{pid}/mem")]));
    !ran.err.contains("Permission denied")
}

#[test]
fn the_jobs_daemons_have_no_way_to_more_privilege_and_are_nobodys_to_debug() {
    let bed = NodeBed::with_job(fast(1), CONFIG, "1.pbs", "MPS=true,MPS_THREADS=25", "0");
    for name in THREE {
        let pids = bed.pids(name);
        assert_eq!(pids.len(), 1, "{name}: {pids:?}");
        let lines = ["CapBnd", "CapEff", "NoNewPrivs", "Seccomp"];
        let found = lines.map(|line| status_of(pids[0], line));
        let none = "0000000000000000";
        assert_eq!(found, [none, none, "1", "2"], "{name}");
        assert!(!can_debug(pids[0]), "{name}");
    }
    // A user may look into their own processes. This shows that the check above can succeed.
    let own = Running::start(as_user(USER, "/bin/sleep").arg("60"));
    let is_sleep = || status_of(own.pid(), "Name") == "sleep";
    eventually("setpriv becomes sleep", is_sleep);
    assert!(can_debug(own.pid()));
    bed.assert_ends_clean("1.pbs", "confined");
}

/// The kernel lets members of the daemons' group debug the daemons, and root names the members.
#[test]
fn a_user_in_the_daemons_own_group_is_told_to_the_administrator() {
    alone(|| {
        let group = users::get_group_by_name("nogroup").expect("group").gid();
        let bed = NodeBed::new(fast(1), CONFIG);
        let log = Syslog::hear(&bed.directory("room"));
        for (daemon_group, told) in [(65_530, 0), (group, 1), (0, 0)] {
            bed.configure(&format!("{CONFIG}daemon_group = {daemon_group}\n"));
            bed.begin("4.pbs", "MPS=true", "0");
            let lines = log.lines();
            let count = |words: &str| lines.iter().filter(|line| line.contains(words)).count();
            let what = format!(
                "job 4.pbs: user '{USER}' is in group {daemon_group}, the daemons' own (daemon_group)"
            );
            assert_eq!(count(&what), told, "{daemon_group}: {lines:?}");
            let ready = format!("job 4.pbs: MPS ready for user '{USER}'");
            assert!(count(&ready) > 0, "{lines:?}");
            bed.assert_ends_clean("4.pbs", "the daemons' group");
        }
    });
}

#[test]
fn the_worker_is_confined_and_first_before_it_loads_nvml() {
    let bed = NodeBed::new(fast(1).nvml(|f| f.init_hangs = true), CONFIG);
    let mut prologue = bed.start_torque("3.pbs", "MPS=true", "0");
    let pid = bed.nvml_worker_comes();
    let found = ["NoNewPrivs", "Seccomp"].map(|line| status_of(pid, line));
    assert_eq!(found, ["1", "2"]);
    // Both run before a flood of users' processes (proc_pid_stat(5), field 18).
    for pid in [prologue.pid(), pid] {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
        let (_, fields) = stat.rsplit_once(") ").expect("fields");
        let priority = fields.split(' ').nth(15).expect("a priority");
        let is_raised = priority.parse::<i32>().is_ok_and(|priority| priority <= 0);
        assert!(is_raised, "{stat}");
    }
    assert_eq!(prologue.wait(), Some(2));
}

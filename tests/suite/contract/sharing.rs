//! One daemon and server for several jobs of a user, each with a cgroup and a session, and with
//! limits in its environment.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::child::Ran;
use tests::double::look::wait_until;
use tests::double::visible::multiprocessors;
use tests::node_bed::own_cgroup;

use crate::bench::{Bench, Daemon, PATIENCE, not_verified};
use crate::client::{Client, drop_to_user, limited_to, of_first_gpu, under_mps, unlimited};
use crate::limits::{MEMORY, THREADS};
use crate::processes::{Running, USER};

/// Removed when dropped, as soon as they are empty.
struct Cgroups([PathBuf; 3]);

impl Cgroups {
    fn make() -> Option<Cgroups> {
        let [a, b, c] = [(); 3].map(|()| own_cgroup());
        a.zip(b).zip(c).map(|((a, b), c)| Cgroups([a, b, c]))
    }

    /// As root, enters one of them, then does `then` with the words that follow.
    fn enter(&self, index: usize, then: &str) -> [String; 4] {
        let script = format!("echo $$ >\"$0/cgroup.procs\"; {then}");
        let group = self.0[index].display().to_string();
        ["/bin/sh".into(), "-ec".into(), script, group]
    }

    fn holds(&self, index: usize, pid: u32) -> bool {
        let members = fs::read_to_string(self.0[index].join("cgroup.procs"));
        let pid = pid.to_string();
        members.is_ok_and(|members| members.lines().any(|line| line == pid))
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        let is_gone = |group: &PathBuf| fs::remove_dir(group).is_ok() || !group.exists();
        wait_until(PATIENCE, || self.0.iter().all(is_gone));
    }
}

fn words<'a>(first: &'a [String], then: &[&'a str]) -> Vec<&'a str> {
    let first: Vec<&str> = first.iter().map(String::as_str).collect();
    [&first, then, &drop_to_user()].concat()
}

#[test]
fn one_server_serves_its_users_cgroups_and_sessions_though_the_daemons_starter_is_dead() {
    let Some(cgroups) = Cgroups::make() else {
        return not_verified("a cgroup hierarchy that can be written");
    };
    let mut daemon = Bench::new().directories();
    daemon.start_through(&words(&cgroups.enter(0, "\"$@\" & wait"), &[]));
    daemon.process().signal(Signal::SIGKILL);
    assert!(daemon.process().ended_within(PATIENCE).is_some());
    let server = daemon.start_server();
    assert!(cgroups.holds(0, server));
    let clients = [1, 2].map(|job| {
        let enter = cgroups.enter(job, "exec \"$@\"");
        let wrapper = words(&enter, &["/usr/bin/setsid", "--wait"]);
        let client = daemon.client().through(&wrapper).on_first_gpu();
        let client = client.holding(3).hold();
        assert!(under_mps(&client.record) && cgroups.holds(job, client.pid()));
        client
    });
    let pids = clients.each_ref().map(|client| client.pid().to_string());
    let listed = daemon.say(&format!("get_client_list {server}")).stdout;
    assert_eq!(listed.lines().collect::<Vec<_>>(), pids);
    let ps = daemon.say("ps").stdout;
    let rows = ps.lines().skip(1).map(|row| row.split_whitespace().next());
    let rows: Vec<&str> = rows.flatten().collect();
    assert_eq!(rows, pids);
    for client in clients {
        assert_eq!(client.finish().error(), None);
    }
    assert_eq!(daemon.server(), Some(server));
}

fn limited(daemon: &Daemon, threads: &str, memory: &str) -> Client {
    let client = daemon.client().allocating();
    client.env(THREADS, threads).env(MEMORY, memory)
}

#[track_caller]
fn assert_has(bench: &Bench, record: &Value, percent: f64, mib: u64) {
    assert!(under_mps(record) && limited_to(record, mib), "{record}");
    let share = multiprocessors(bench.gpus[0].sms, percent);
    assert_eq!(of_first_gpu(record, "sms"), u64::from(share), "{record}");
}

#[test]
fn under_open_server_limits_clients_at_once_have_their_own_and_the_next_one_has_the_whole_gpu() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    daemon.start_server();
    let by_uuid = format!("{}=2G", bench.gpus[0].uuid);
    let one = limited(&daemon, "25", "0=4G").holding(3).hold();
    let other = limited(&daemon, "12.5", &by_uuid).holding(3).hold();
    assert_has(&bench, &one.record, 25.0, 4096);
    assert_has(&bench, &other.record, 12.5, 2048);
    let outcome = daemon.client().allocating().run();
    let record = outcome.record();
    assert!(under_mps(record) && unlimited(record), "{record}");
    assert_eq!(of_first_gpu(record, "sms"), u64::from(bench.gpus[0].sms));
    assert_eq!((one.finish().error(), other.finish().error()), (None, None));
}

/// Two clients that launch kernels for three seconds, both connected.
fn two_working(daemon: &Daemon, server: u32) -> [Running; 2] {
    let both = [(); 2].map(|()| daemon.client().working(3).spawn());
    let pids = both.each_ref().map(|client| client.pid());
    let list = format!("get_client_list {server}");
    let is_listed = |pid: &u32| {
        let listed = daemon.say(&list).stdout;
        listed.lines().any(|line| line == pid.to_string())
    };
    assert!(wait_until(PATIENCE, || pids.iter().all(is_listed)));
    // Both have launched.
    std::thread::sleep(Duration::from_secs(1));
    both
}

/// Launches a second, which only `cuda-load` reports.
fn pace(ended: &Ran) -> Option<f64> {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let record: Value = serde_json::from_str(ended.stdout.lines().last()?).ok()?;
    record["per_second"].as_f64()
}

#[test]
fn a_working_client_that_is_terminated_fails_with_810_and_its_neighbour_keeps_its_pace() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    let [one, other] = two_working(&daemon, server);
    let usual = pace(&other.finish(PATIENCE));
    assert_eq!(one.finish(PATIENCE).code, Some(0));
    let [one, other] = two_working(&daemon, server);
    let ended = daemon.say(&format!("terminate_client {server} {}", one.pid()));
    ended.answers("0\n");
    let one = one.finish(Duration::from_secs(1));
    let mut names = ["810", "MPS_CLIENT_TERMINATED"].iter();
    assert!(names.any(|name| one.said().contains(name)), "{one:?}");
    let paces = pace(&other.finish(PATIENCE)).zip(usual);
    assert!(
        paces.is_none_or(|(kept, usual)| kept > usual * 0.95),
        "{paces:?}"
    );
    daemon.assert_active(server);
    let next = limited(&daemon, "25", "0=4G").run();
    assert_has(&bench, next.record(), 25.0, 4096);
}

/// A report relies on this to say which job a client belonged to.
#[test]
fn the_log_names_the_pid_of_a_client_that_connects_ends_or_is_terminated() {
    let daemon = Daemon::new();
    let server = daemon.start_server();
    let [ends, terminated] = [(); 2].map(|()| daemon.client().on_first_gpu().holding(2).hold());
    let pids = [ends.pid(), terminated.pid()];
    for pid in pids {
        daemon.logs(&format!(
            "NEW CLIENT {pid} from user {USER}: Server already exists"
        ));
        daemon.logs(&format!("Client {{PID: {pid}, Context ID: 1}} connected"));
    }
    let terminate = format!("terminate_client {server} {}", pids[1]);
    daemon.say(&terminate).answers("0\n");
    daemon.logs(&format!("Cmd:{terminate}"));
    assert_eq!(terminated.finish().error(), Some(810));
    assert_eq!(ends.finish().error(), None);
    for pid in pids {
        daemon.logs(&format!("Client {{PID: {pid}, Context ID: 1}} exiting."));
        daemon.logs(&format!("Client process {pid} disconnected"));
    }
    let requested = |pid| format!("requesting client {{PID: {pid}, Context ID: 1}} to exit");
    let is_logged = |pid| daemon.log_text().contains(&requested(pid));
    assert_eq!(pids.map(is_logged), [false, true], "{}", daemon.log_text());
}

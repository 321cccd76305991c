//! Clients in namespaces of their own, as in a container or behind a job's private /tmp.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tests::double::visible::multiprocessors;

use crate::bench::{Bench, Daemon, HANGS, PATIENCE, PIPE};
use crate::client::{drop_to_user, mounted, of_first_gpu, under_mps, unshared};
use crate::processes::{USER, command, run};

/// The default of `daemon_group`.
const OWN_GROUP: u32 = 65_530;

/// A daemon with a server and a limit.
fn limited() -> (Arc<Bench>, Daemon) {
    let bench = Bench::new();
    let daemon = bench.daemon();
    daemon.say("set_default_active_thread_percentage 25");
    daemon.start_server();
    (bench, daemon)
}

/// The record of a client that root starts through this program.
fn through(daemon: &Daemon, wrapper: &[&str]) -> Value {
    daemon.client().through(wrapper).run().record().clone()
}

fn attached(bench: &Bench, record: &Value) {
    assert!(under_mps(record), "{record}");
    let share = multiprocessors(bench.gpus[0].sms, 25.0);
    assert_eq!(of_first_gpu(record, "sms"), u64::from(share), "{record}");
}

#[test]
fn a_private_tmp_and_shm_do_not_matter() {
    let (bench, daemon) = limited();
    let private = "mount -t tmpfs none /tmp; mount -t tmpfs -o size=64m none /dev/shm; exec \"$@\"";
    attached(&bench, &through(&daemon, &mounted(private)));
    let unwritable = "mount -t tmpfs -o ro none /dev/shm; exec \"$@\"";
    attached(&bench, &through(&daemon, &mounted(unwritable)));
}

#[test]
fn a_pid_namespace_with_its_own_proc_attaches_and_is_listed_by_its_outer_pid() {
    let (bench, daemon) = limited();
    let wrapper = unshared(&["--pid", "--fork", "--kill-child", "--mount-proc"]);
    let client = daemon.client().through(&wrapper).holding(20).hold();
    attached(&bench, &client.record);
    assert_eq!(client.pid(), 1, "its own pid namespace");
    let ps = daemon.say("ps").stdout;
    let row = ps.lines().nth(1).unwrap();
    let outer: u32 = row.split_whitespace().next().unwrap().parse().unwrap();
    assert!(outer > 1);
    let about = tests::double::look::process(outer).expect("the client");
    assert!(about.args.contains(&"--json".to_owned()), "{about:?}");
}

#[test]
fn a_pid_namespace_with_the_old_proc_fails_with_an_error_of_the_operating_system() {
    let (_bench, daemon) = limited();
    let wrapper = unshared(&["--pid", "--fork", "--kill-child"]);
    let outcome = daemon.client().through(&wrapper).run();
    assert_eq!(outcome.error(), Some(304), "{:?}", outcome.ended);
}

#[test]
fn ipc_and_network_namespaces_do_not_matter() {
    let (bench, daemon) = limited();
    for option in ["--ipc", "--net"] {
        attached(&bench, &through(&daemon, &unshared(&[option])));
    }
}

#[test]
fn a_user_namespace_that_maps_the_user_to_root_attaches() {
    let (bench, daemon) = limited();
    let unshare = ["/usr/bin/unshare", "--user", "--map-root-user"];
    let wrapper = [&drop_to_user()[..], &unshare].concat();
    attached(&bench, &through(&daemon, &wrapper));
}

#[test]
fn a_user_namespace_without_a_mapping_hangs_and_the_daemon_answers_once_it_is_killed() {
    let (_bench, daemon) = limited();
    let wrapper = [&drop_to_user()[..], &["/usr/bin/unshare", "--user"]].concat();
    let outcome = daemon.client().through(&wrapper).run_within(HANGS * 2);
    assert!(outcome.ended.hung(), "{:?}", outcome.ended);
    daemon.logs("Unable to read new connection type information");
    assert!(daemon.answers());
}

#[test]
fn a_pipe_directory_bound_elsewhere_works_by_its_new_name() {
    let (bench, daemon) = limited();
    let elsewhere = bench.dir.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    let (pipe, elsewhere) = (daemon.pipe.display(), elsewhere.to_str().unwrap());
    let script = format!("mount --bind {pipe} {elsewhere}; exec \"$@\"");
    let client = daemon.client().env(PIPE, elsewhere);
    attached(&bench, client.through(&mounted(&script)).run().record());
}

#[test]
fn a_pipe_directory_that_cannot_be_seen_means_the_whole_gpu_without_a_word() {
    let (bench, daemon) = limited();
    let parent: &Path = daemon.pipe.parent().unwrap();
    let script = format!("mount -t tmpfs none {}; exec \"$@\"", parent.display());
    let record = through(&daemon, &mounted(&script));
    assert!(!under_mps(&record), "{record}");
    assert_eq!(of_first_gpu(&record, "sms"), u64::from(bench.gpus[0].sms));
}

/// As `mpsd` starts one. Clients are in their user's own group (docs/facts/mps-control.md#clients).
#[test]
fn a_daemon_in_a_group_of_its_own_serves_its_user_who_cannot_debug_it() {
    let bench = Bench::new();
    let mut daemon = bench.directories();
    daemon.start_so(&[], |command| command.gid(OWN_GROUP));
    daemon.say("set_default_active_thread_percentage 25");
    let server = daemon.start_server();
    attached(&bench, daemon.client().run().record());
    let client = daemon.client().holding(2).hold();
    let ended = daemon.say(&format!("terminate_client {server} {}", client.pid()));
    ended.answers("0\n");
    for pid in [daemon.pid(), server] {
        let mut look = command("/usr/bin/head", USER, &[]);
        look.args(["-c1", &format!("/proc/{pid}/mem")]);
        let ended = run(look, "", PATIENCE);
        assert!(ended.stderr.contains("Permission denied"), "{ended:?}");
    }
}

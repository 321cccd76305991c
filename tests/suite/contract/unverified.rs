//! What no test may try on a GPU, because it would need a GPU fault or another compute mode. Only
//! the double is tried.

use std::sync::Arc;

use nix::sys::signal::Signal;
use tests::double::look::wait_until;

use crate::bench::{Bench, Daemon, PATIENCE, nvidia};
use crate::client::{Client, VISIBLE, of_first_gpu, under_mps};
use crate::processes::USER;
use tests::double::mig;

#[test]
fn a_daemon_of_a_mig_device_serves_it_alone_and_takes_limits_by_index() {
    if nvidia() {
        return;
    }
    let bench = Bench::of_double(|b| b.gpus(2, "NVIDIA H200").divided(0, 2));
    let (own, other) = (mig(0, 1).uuid, mig(0, 0).uuid);
    for second in [&other, &bench.gpus[1].uuid] {
        let client = Client::new(&bench).env(VISIBLE, &format!("{own},{second}"));
        let seen = client.run().record()["uuids"].clone();
        assert_eq!(seen, serde_json::json!([own]), "{second}");
    }
    for (name, holds) in [("0", true), (own.as_str(), false)] {
        let daemon = bench.daemon_with(&[(VISIBLE, &own)]);
        daemon.say(&format!("set_default_device_pinned_mem_limit {name} 5G"));
        for visible in [own.as_str(), "0"] {
            let outcome = daemon.client().env(VISIBLE, visible).run();
            let record = outcome.record();
            assert!(under_mps(record), "{record}");
            assert_eq!(record["uuids"], serde_json::json!([own]), "{visible}");
            let limited = of_first_gpu(record, "free_mib") <= 5120;
            assert_eq!(limited, holds, "limit by {name}");
        }
        let foreign = daemon.client().env(VISIBLE, &other).run();
        assert_eq!(foreign.error(), Some(100));
    }
    // One of 7 slices has this part of 48 clients.
    let small = bench.daemon_with(&[(VISIBLE, &other)]);
    let holding: Vec<_> = (0..6).map(|_| small.client().holding(20).hold()).collect();
    assert_eq!(small.client().run().error(), Some(808));
    drop(holding);
}

#[test]
fn after_a_killed_rank_the_next_client_fails_once_with_719_and_the_log_names_it() {
    if nvidia() {
        return;
    }
    let daemon = Daemon::new();
    let server = daemon.start_server();
    let ranks = [(); 2].map(|()| daemon.client().paired().holding(20).hold());
    for rank in &ranks {
        rank.signal(Signal::SIGKILL);
    }
    drop(ranks);
    assert!(wait_until(PATIENCE, || daemon.say("ps").stdout.is_empty()));
    let next = daemon.client().spawn();
    let victim = next.pid();
    let said = next.finish(PATIENCE).stdout;
    assert!(said.contains("719"), "{said}");
    daemon.logs(&format!(
        "Client {{PID: {victim}, Context: 1}} encountered a fatal GPU error."
    ));
    daemon.logs("Server is handling a fatal GPU error.");
    daemon.assert_active(server);
    assert_eq!(daemon.client().run().error(), None);
    // Ranks that end by themselves leave nothing.
    assert_eq!(daemon.client().paired().run().error(), None);
    assert_eq!(daemon.client().run().error(), None);
}

fn in_mode(mode: &str) -> Option<Arc<Bench>> {
    if nvidia() {
        return None;
    }
    let bench = Bench::new();
    let node = bench.node.as_ref().unwrap();
    node.set_mode(&bench.gpus[0].uuid, mode);
    Some(bench)
}

#[test]
fn in_exclusive_mode_one_context_without_mps_fits_or_a_server_and_its_clients() {
    let Some(bench) = in_mode("exclusive_process") else {
        return;
    };
    let first = Client::new(&bench).holding(20).hold();
    assert_eq!(Client::new(&bench).run().error(), Some(46));
    let daemon = bench.daemon();
    daemon.say(&format!("start_server -uid {USER}"));
    daemon.logs("exited with status 1");
    assert_eq!(daemon.client().run().error(), Some(805));
    drop(first);
    assert_eq!(Client::new(&bench).run().error(), None);
    daemon.start_server();
    let holding = [(); 2].map(|()| daemon.client().holding(20).hold());
    assert!(holding.iter().all(|c| under_mps(&c.record)));
    assert_eq!(Client::new(&bench).run().error(), Some(46));
}

#[test]
fn in_prohibited_mode_no_process_gets_a_context() {
    let Some(bench) = in_mode("prohibited") else {
        return;
    };
    assert_eq!(Client::new(&bench).run().error(), Some(46));
}

//! What the documentation says and nobody here may try: it would need a fault of a GPU or another compute mode. The
//! double behaves so; that NVIDIA's does is not verified.

use crate::bench::{Bench, nvidia, say};
use crate::client::Client;

/// One line each, printed by every run.
const DOCUMENTED: [&str; 10] = [
    "EXCLUSIVE_PROCESS: a client without MPS fails while another context is on the GPU",
    "EXCLUSIVE_PROCESS: clients under MPS share the GPU, which the server alone holds",
    "EXCLUSIVE_PROCESS: a server cannot start while a foreign context holds the GPU",
    "PROHIBITED: neither a server nor a client gets a context",
    "after a fatal fault of a client get_server_status answers FAULT until all clients have gone",
    "get_server_status answers INITIALIZING while a server comes up",
    "before Volta a server takes 16 clients, and one fault ends them all",
    "from driver 590 on a GPU takes 60 clients",
    "CUDA_DEVICE_MAX_CONNECTIONS above 2 makes a GPU take fewer clients",
    "a server shows no MIG devices of several GPUs at once",
];

#[test]
fn documented_and_not_verified() {
    for belief in DOCUMENTED {
        say(&format!("documented, not verified: {belief}"));
    }
    if nvidia() {
        say("the tests of namespaces, users and limits above ran against NVIDIA's program");
    }
}

fn double(mode: &str) -> Option<Bench> {
    if nvidia() {
        return None;
    }
    let bench = Bench::new();
    let node = bench.node.as_ref().unwrap();
    node.set_mode(&bench.gpus[0].uuid, mode);
    Some(bench)
}

#[test]
fn in_exclusive_mode_only_one_context_without_mps_fits() {
    let Some(bench) = double("exclusive_process") else {
        return;
    };
    let first = Client::new(&bench).holding(20).hold();
    assert_eq!(Client::new(&bench).run().error(), Some(46));
    drop(first);
    assert_eq!(Client::new(&bench).run().error(), None);
}

#[test]
fn in_exclusive_mode_clients_share_a_server_and_nobody_else_comes_in() {
    let Some(bench) = double("exclusive_process") else {
        return;
    };
    let daemon = bench.daemon();
    let holding = [
        daemon.client().holding(20).hold(),
        daemon.client().holding(20).hold(),
    ];
    assert!(holding.iter().all(|c| crate::client::under_mps(&c.record)));
    assert_eq!(Client::new(&bench).run().error(), Some(46));
}

#[test]
fn in_exclusive_mode_a_foreign_context_keeps_the_server_from_starting() {
    let Some(bench) = double("exclusive_process") else {
        return;
    };
    let foreign = Client::new(&bench).holding(20).hold();
    let daemon = bench.daemon();
    daemon.say(&format!("start_server -uid {}", crate::processes::USER));
    assert!(daemon.logs("exited with status 1"), "{}", daemon.log_text());
    assert_eq!(daemon.client().run().error(), Some(805));
    drop(foreign);
    daemon.start_server();
}

#[test]
fn in_prohibited_mode_nobody_gets_a_context() {
    let Some(bench) = double("prohibited") else { return };
    assert_eq!(Client::new(&bench).run().error(), Some(46));
}

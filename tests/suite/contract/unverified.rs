//! What the documentation says and no test here may try on a GPU: it would need a GPU fault or another compute mode. The double behaves
//! so; that NVIDIA's program does is not verified.

use crate::bench::{Bench, nvidia, say};
use crate::client::{Client, of_first_gpu, under_mps};
use crate::processes::USER;
use tests::double::mig;

const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

const DOCUMENTED: [&str; 20] = [
    "EXCLUSIVE_PROCESS: a client without MPS fails while another context is on the GPU",
    "EXCLUSIVE_PROCESS: clients under MPS share the GPU, which the server alone holds",
    "EXCLUSIVE_PROCESS: a server cannot start while a foreign context holds the GPU",
    "PROHIBITED: neither a server nor a client gets a context",
    "after a fatal fault of a client get_server_status answers FAULT until all clients have gone",
    "get_server_status answers INITIALIZING while a server comes up",
    "before Volta a server takes 16 clients, and one fault ends them all",
    "from driver 590 on a GPU takes 60 clients",
    "CUDA_DEVICE_MAX_CONNECTIONS above 2 makes a GPU take fewer clients",
    "MIG: a control daemon whose CUDA_VISIBLE_DEVICES is a MIG device's UUID serves that device alone",
    "MIG: a process sees one MIG device, the first of several, and no whole GPU beside it",
    "MIG: a memory limit of that daemon holds by index 0; by UUID it may not",
    "MIG: a server takes its device's part of the clients",
    "MIG: EXCLUSIVE_PROCESS is not supported, and only a MIG device's handle tells a compute mode",
    "MIG: NVML lists a device's own server and clients through the handle of its UUID",
    "MIG: a program needs the files of its device's two capabilities beside its GPU's",
    "static partitions: -S, sm_partition add and rm, lspart, chunks of 8 multiprocessors from Hopper on and of 4 before",
    "static partitions: a client has those of its CUDA_MPS_SM_PARTITION, and no context without one",
    "static partitions: no more chunks are given than a GPU has",
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
    // 48 clients by 1 of 7 slices.
    let small = bench.daemon_with(&[(VISIBLE, &other)]);
    let holding: Vec<_> = (0..6).map(|_| small.client().holding(20).hold()).collect();
    assert_eq!(small.client().run().error(), Some(808));
    drop(holding);
}

fn in_mode(mode: &str) -> Option<Bench> {
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
    let Some(bench) = in_mode("exclusive_process") else {
        return;
    };
    let first = Client::new(&bench).holding(20).hold();
    assert_eq!(Client::new(&bench).run().error(), Some(46));
    drop(first);
    assert_eq!(Client::new(&bench).run().error(), None);
}

#[test]
fn in_exclusive_mode_clients_share_a_server_and_no_other_process_gets_a_context() {
    let Some(bench) = in_mode("exclusive_process") else {
        return;
    };
    let daemon = bench.daemon();
    let holding = [(); 2].map(|()| daemon.client().holding(20).hold());
    assert!(holding.iter().all(|c| under_mps(&c.record)));
    assert_eq!(Client::new(&bench).run().error(), Some(46));
}

#[test]
fn in_exclusive_mode_a_foreign_context_keeps_the_server_from_starting() {
    let Some(bench) = in_mode("exclusive_process") else {
        return;
    };
    let foreign = Client::new(&bench).holding(20).hold();
    let daemon = bench.daemon();
    daemon.say(&format!("start_server -uid {USER}"));
    daemon.logs("exited with status 1");
    assert_eq!(daemon.client().run().error(), Some(805));
    drop(foreign);
    daemon.start_server();
}

#[test]
fn in_prohibited_mode_no_process_gets_a_context() {
    let Some(bench) = in_mode("prohibited") else {
        return;
    };
    assert_eq!(Client::new(&bench).run().error(), Some(46));
}

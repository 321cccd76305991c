//! The doubles' NVML, and faults that the fault matrix could not tell from no fault. Not tried with
//! NVIDIA's program.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use tests::double::look::{alive, process, wait_until};
use tests::double::node::Faults;
use tests::double::{Builder, Frozen, NodeDouble};
use tests::node_bed::kill;

use crate::bench::{Bench, PATIENCE, nvidia};
use crate::processes::USER;

/// A time in which nothing must happen.
const MOMENT: Duration = Duration::from_millis(300);

fn double(change: impl FnOnce(Builder) -> Builder) -> Option<Arc<Bench>> {
    (!nvidia()).then(|| Bench::of_double(change))
}

fn faulty(set: impl FnOnce(&mut Faults)) -> Option<Arc<Bench>> {
    double(|b| b.fault(set))
}

fn open(node: &NodeDouble) -> Result<Nvml, NvmlError> {
    Nvml::builder().lib_path(node.nvml().as_os_str()).init()
}

#[test]
fn a_server_can_be_in_a_state() {
    let states = [
        ("initializing", "INITIALIZING\n"),
        ("fault-state", "FAULT\n"),
    ];
    for (server, status) in states {
        let Some(bench) = faulty(|f| f.server = server.into()) else {
            return;
        };
        let daemon = bench.daemon();
        daemon.say(&format!("start_server -uid {USER}"));
        assert!(wait_until(PATIENCE, || daemon.server().is_some()));
        let get = format!("get_server_status {}", daemon.server().unwrap());
        assert!(wait_until(PATIENCE, || daemon.say(&get).stdout == status));
    }
}

#[test]
fn answers_can_lie_be_cut_off_or_not_come() {
    let [get, set] = ["get", "set"].map(|verb| format!("{verb}_default_active_thread_percentage"));
    let faults = |f: &mut Faults| {
        f.answer.insert(get.clone(), "100.0".into());
        f.truncate = vec![set.clone()];
        f.hang_on = vec!["ps".into()];
        f.refuse_quit = true;
    };
    let Some(bench) = faulty(faults) else { return };
    let daemon = bench.daemon();
    assert_eq!(daemon.say(&format!("{set} 25")).stdout, "25");
    assert_eq!(daemon.say(&get).stdout, "100.0\n");
    let refused = "Not enough privilege to execute quit command\n";
    assert_eq!(daemon.say("quit").stdout, refused);
    assert!(daemon.hangs("ps"));
}

#[test]
fn processes_can_survive_signals() {
    let faults = |f: &mut Faults| {
        f.ignore_sigterm = true;
        f.server_survives_sigterm = true;
        f.server_survives_control = true;
    };
    let Some(bench) = faulty(faults) else { return };
    let mut daemon = bench.daemon();
    let server = daemon.start_server();
    daemon.process().signal(Signal::SIGTERM);
    kill(server, Signal::SIGTERM);
    assert!(daemon.process().ended_within(MOMENT).is_none() && alive(server));
    daemon.process().signal(Signal::SIGKILL);
    daemon.ends();
    std::thread::sleep(MOMENT);
    assert!(alive(server));
    let frozen = Frozen::new(&[server]).unwrap();
    kill(server, Signal::SIGKILL);
    std::thread::sleep(MOMENT);
    assert_eq!(process(server).map(|p| p.state), Some('D'));
    drop(frozen);
    assert!(wait_until(PATIENCE, || !alive(server)));
}

#[test]
fn nvml_lists_servers_and_clients_as_recorded() {
    let Some(bench) = double(|b| b.gpus(2, "NVIDIA H200")) else {
        return;
    };
    let node = bench.node.as_ref().unwrap();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    let client = daemon.client().env("CUDA_VISIBLE_DEVICES", "0");
    let client = client.holding(20).hold();
    let nvml = open(node).unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let mib = |used: &UsedGpuMemory| match used {
        UsedGpuMemory::Used(bytes) => bytes >> 20,
        UsedGpuMemory::Unavailable => 0,
    };
    let all = gpu.running_compute_processes().unwrap();
    let found = all.iter().map(|p| (p.pid, mib(&p.used_gpu_memory)));
    let expected = [(server, 66), (client.pid(), 514)];
    assert_eq!(BTreeSet::from_iter(found), BTreeSet::from(expected));
    let clients = gpu.mps_running_compute_processes().unwrap();
    let clients = clients.iter().map(|p| p.pid);
    assert_eq!(Vec::from_iter(clients), [client.pid()]);
    drop(client);
    let only_servers = || node.contexts().iter().all(|(_, c)| c.kind == "server");
    assert!(wait_until(PATIENCE, only_servers));
    assert_eq!(node.contexts().len(), 2);
    drop(daemon);
    assert!(node.contexts().is_empty() && node.processes().is_empty());
}

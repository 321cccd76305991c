//! The faults that the doubles can have, and their NVML: only of the double, on any subject.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use tests::double::Frozen;
use tests::double::look::{alive, process, wait_until};

use crate::bench::{Bench, HANGS, PATIENCE, nvidia};
use crate::client::under_mps;
use crate::processes::{USER, command, spawn};

fn faulty(set: impl FnOnce(&mut tests::double::node::Faults)) -> Bench {
    Bench::of_double(|b| b.fault(set))
}

#[test]
fn starts_that_fail() {
    if nvidia() {
        return;
    }
    for (start, code) in [("exits", Some(1)), ("never", None), ("hangs", None)] {
        let bench = faulty(|f| f.start = start.into());
        let daemon = bench.directories();
        let mut command = command(&bench.control, USER, &daemon.env());
        command.arg("-f");
        let mut running = spawn(command, "", bench.dir.path());
        let ended = running.ended_within(Duration::from_millis(300));
        assert_eq!(ended.and_then(|s| s.code()), code, "{start}");
        assert_eq!(daemon.pipe.join("control").exists(), start == "hangs", "{start}");
        if start == "hangs" {
            assert!(daemon.say_within("get_server_list", HANGS).hung());
        }
    }
}

#[test]
fn servers_that_fail() {
    if nvidia() {
        return;
    }
    let say = |daemon: &crate::bench::Daemon| daemon.say(&format!("start_server -uid {USER}"));
    let bench = faulty(|f| f.server = "exits".into());
    let daemon = bench.daemon();
    say(&daemon);
    assert!(daemon.logs("exited with status 1"));
    assert_eq!(daemon.client().run().error(), Some(805));

    let bench = faulty(|f| f.server = "never-ready".into());
    let daemon = bench.daemon();
    say(&daemon);
    assert!(daemon.logs("Creating server context"));
    assert!(daemon.say_within("get_server_list", HANGS).hung());

    for (server, status) in [("initializing", "INITIALIZING\n"), ("fault-state", "FAULT\n")] {
        let bench = faulty(|f| f.server = server.into());
        let daemon = bench.daemon();
        say(&daemon);
        assert!(wait_until(PATIENCE, || daemon.server().is_some()));
        let pid = daemon.server().unwrap();
        assert!(wait_until(PATIENCE, || daemon
            .say(&format!("get_server_status {pid}"))
            .out
            == status));
    }
}

#[test]
fn answers_that_lie() {
    if nvidia() {
        return;
    }
    let bench = faulty(|f| {
        f.answer
            .insert("get_default_active_thread_percentage".into(), "100.0".into());
        f.truncate = vec!["set_default_active_thread_percentage".into()];
        f.hang_on = vec!["ps".into()];
        f.refuse_quit = true;
    });
    let daemon = bench.daemon();
    assert_eq!(daemon.say("set_default_active_thread_percentage 25").out, "25");
    assert_eq!(daemon.say("get_default_active_thread_percentage").out, "100.0\n");
    assert_eq!(
        daemon.say("quit").out,
        "Not enough privilege to execute quit command\n"
    );
    assert!(daemon.say_within("ps", HANGS).hung());
}

#[test]
fn limits_that_are_dropped() {
    if nvidia() {
        return;
    }
    let bench = faulty(|f| f.drop_limits = true);
    let daemon = bench.daemon();
    assert_eq!(
        daemon.say("set_default_active_thread_percentage 25").out,
        "25.0\n"
    );
    let outcome = daemon.client().run();
    assert!(under_mps(outcome.record()));
    assert_eq!(crate::client::of_first_gpu(outcome.record(), "sms"), 132);
    assert!(
        daemon
            .log_text()
            .contains("Active Threads Percentage set to 100.0")
    );
}

#[test]
fn processes_that_do_not_die() {
    if nvidia() {
        return;
    }
    let bench = faulty(|f| {
        f.ignore_sigterm = true;
        f.server_survives_sigterm = true;
        f.server_survives_control = true;
    });
    let mut daemon = bench.daemon();
    let server = daemon.start_server();
    daemon.process().signal(Signal::SIGTERM);
    kill(Pid::from_raw(server as i32), Signal::SIGTERM).unwrap();
    assert!(
        daemon
            .process()
            .ended_within(Duration::from_millis(300))
            .is_none()
            && alive(server)
    );
    daemon.process().signal(Signal::SIGKILL);
    assert!(daemon.process().ended_within(PATIENCE).is_some());
    std::thread::sleep(Duration::from_millis(200));
    assert!(alive(server));
    let frozen = Frozen::new(&[server]).unwrap();
    kill(Pid::from_raw(server as i32), Signal::SIGKILL).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(process(server).map(|p| p.state), Some('D'));
    drop(frozen);
    assert!(wait_until(PATIENCE, || !alive(server)));
}

#[test]
fn nvml_shows_the_node_and_keeps_a_compute_mode() {
    if nvidia() {
        return;
    }
    let bench = Bench::of_double(|b| b.gpus(2, "NVIDIA H200"));
    let node = bench.node.as_ref().unwrap();
    let open = || Nvml::builder().lib_path(node.nvml().as_os_str()).init().unwrap();
    {
        let nvml = open();
        assert_eq!(nvml.device_count().unwrap(), 2);
        assert_eq!(nvml.sys_driver_version().unwrap(), "580.159.04");
        let gpu = nvml.device_by_uuid(bench.gpus[1].uuid.as_str()).unwrap();
        assert_eq!(
            (gpu.index().unwrap(), gpu.name().unwrap().as_str()),
            (1, "NVIDIA H200")
        );
        assert_eq!(gpu.memory_info().unwrap().total >> 20, 143_771);
        assert_eq!(gpu.pci_info().unwrap().bus_id, "00000000:00:07.0");
        assert_eq!(gpu.minor_number().unwrap(), 1);
        assert_eq!(gpu.mig_mode().unwrap().current, 0);
        let capability = gpu.cuda_compute_capability().unwrap();
        assert_eq!((capability.major, capability.minor), (9, 0));
        assert_eq!(gpu.compute_mode().unwrap(), ComputeMode::Default);
        let mut gpu = gpu;
        gpu.set_compute_mode(ComputeMode::ExclusiveProcess).unwrap();
    }
    let again = open();
    let gpu = again.device_by_index(1).unwrap();
    assert_eq!(gpu.compute_mode().unwrap(), ComputeMode::ExclusiveProcess);
    assert_eq!(node.modes(), ["default", "exclusive_process"]);
    assert!(matches!(again.device_by_index(2), Err(NvmlError::InvalidArg)));
    assert!(matches!(again.device_by_uuid("GPU-x"), Err(NvmlError::NotFound)));
}

#[test]
fn nvml_lists_servers_and_clients_as_recorded() {
    if nvidia() {
        return;
    }
    let bench = Bench::of_double(|b| b.gpus(2, "NVIDIA H200"));
    let node = bench.node.as_ref().unwrap();
    let daemon = bench.daemon();
    let server = daemon.start_server();
    let client = daemon
        .client()
        .env("CUDA_VISIBLE_DEVICES", "0")
        .holding(20)
        .hold();
    let nvml = Nvml::builder().lib_path(node.nvml().as_os_str()).init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    let mib = |used: &UsedGpuMemory| match used {
        UsedGpuMemory::Used(bytes) => bytes >> 20,
        UsedGpuMemory::Unavailable => 0,
    };
    let mut plain: Vec<(u32, u64)> = gpu
        .running_compute_processes()
        .unwrap()
        .iter()
        .map(|p| (p.pid, mib(&p.used_gpu_memory)))
        .collect();
    plain.sort();
    let mut expected = vec![(server, 66), (client.pid(), 514)];
    expected.sort();
    assert_eq!(plain, expected);
    let clients = gpu.mps_running_compute_processes().unwrap();
    assert_eq!(clients.iter().map(|p| p.pid).collect::<Vec<_>>(), [client.pid()]);
    drop(client);
    assert!(wait_until(PATIENCE, || node
        .contexts()
        .iter()
        .all(|(_, c)| c.kind == "server")));
    assert_eq!(node.contexts().len(), 2);
    drop(daemon);
    assert!(node.contexts().is_empty() && node.processes().is_empty());
}

#[test]
fn nvml_has_mig_devices_as_its_header_says() {
    if nvidia() {
        return;
    }
    let bench = Bench::of_double(|b| b.gpus(1, "NVIDIA H200").divided(0, 2));
    let node = bench.node.as_ref().unwrap();
    let names = [0, 1].map(|number| tests::double::mig(0, number).uuid);
    let daemon = bench.daemon_with(&[("CUDA_VISIBLE_DEVICES", &names[1])]);
    let server = daemon.start_server();
    let nvml = Nvml::builder().lib_path(node.nvml().as_os_str()).init().unwrap();
    let gpu = nvml.device_by_index(0).unwrap();
    assert_eq!(
        (gpu.mig_mode().unwrap().current, gpu.mig_device_count().unwrap()),
        (1, 7)
    );
    assert!(matches!(gpu.mig_device_by_index(2), Err(NvmlError::NotFound)));
    assert!(matches!(gpu.compute_mode(), Err(NvmlError::NotSupported)));
    let devices = names
        .clone()
        .map(|name| nvml.device_by_uuid(name.as_str()).unwrap());
    let pids = |device: &nvml_wrapper::Device<'_>| -> Vec<u32> {
        let all = device.running_compute_processes().unwrap();
        all.iter().map(|process| process.pid).collect()
    };
    assert_eq!(devices.each_ref().map(pids), [vec![], vec![server]]);
    assert_eq!(pids(&gpu), [server]);
    for (number, device) in devices.iter().enumerate() {
        assert_eq!(device.uuid().unwrap(), names[number]);
        assert_eq!(
            device.attributes().unwrap().compute_instance_slice_count,
            1 << number
        );
        assert_eq!(
            device.memory_info().unwrap().total >> 20,
            143_771 * (1 << number) / 8
        );
        assert_eq!(
            device.mig_parent_device().unwrap().uuid().unwrap(),
            gpu.uuid().unwrap()
        );
        assert_eq!(device.compute_mode().unwrap(), ComputeMode::Default);
    }
    let mut one = nvml.device_by_uuid(names[0].as_str()).unwrap();
    let refused = one.set_compute_mode(ComputeMode::ExclusiveProcess);
    assert!(matches!(refused, Err(NvmlError::NotSupported)));
}

#[test]
fn nvml_faults() {
    if nvidia() {
        return;
    }
    let mut bench = Bench::of_double(|b| b.gpus(3, "NVIDIA H200").nvml(|n| n.set_refused = true));
    let node = bench.node.as_mut().unwrap();
    let (lib, uuids) = (node.nvml(), node.uuids());
    node.change(|d| {
        d.gpu[1].fault = "lost".into();
        d.gpu[2].mig = vec![tests::double::mig(2, 0)];
        d.nvml.stale_pid = Some(4_000_000);
    });
    let nvml = Nvml::builder().lib_path(lib.as_os_str()).init().unwrap();
    assert!(matches!(
        nvml.device_by_uuid(uuids[1].as_str()),
        Err(NvmlError::GpuLost)
    ));
    let mut first = nvml.device_by_index(0).unwrap();
    assert!(matches!(
        first.set_compute_mode(ComputeMode::Prohibited),
        Err(NvmlError::NoPermission)
    ));
    assert_eq!(first.running_compute_processes().unwrap()[0].pid, 4_000_000);
    let third = nvml.device_by_index(2).unwrap();
    assert_eq!(third.mig_mode().unwrap().current, 1);
    let mig = third.mig_device_by_index(0).unwrap();
    assert_eq!(mig.uuid().unwrap(), tests::double::mig(2, 0).uuid);
    drop(nvml);
    node.change(|d| d.nvml.init_fails = true);
    let refused = Nvml::builder().lib_path(lib.as_os_str()).init();
    assert!(matches!(refused, Err(NvmlError::DriverNotLoaded)));
}

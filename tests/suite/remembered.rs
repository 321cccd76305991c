//! A start by what an earlier one knew of the GPUs: NVML is asked while the control daemon comes up, and what it says counts.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use mpsd::job::node::Role;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{ComputeMode, Gpu};
use nix::sys::signal::Signal;
use tests::double::look::wait_until;
use tests::place::{Place, eventually, fast, kill};
use tests::sim::scenario::Scenario;
use tests::sim::{Sim, World, paths};

fn world(scenario: &Scenario) -> Rc<RefCell<World>> {
    let mut world = World::new(scenario.inventory.clone());
    if let Some(ledger) = scenario.ledger() {
        world.put(paths().run().join("ledger"), ledger);
    }
    Rc::new(RefCell::new(world))
}

fn record(world: &Rc<RefCell<World>>, scenario: &Scenario) -> Record {
    let text = world.borrow().text(&paths().job(&scenario.id()).record());
    Record::parse(&text.expect("a record")).expect("a record")
}

#[test]
fn limits_are_those_of_the_gpus_that_are_there_now() {
    type Otherwise = fn(&mut Gpu);
    let exclusive: Otherwise = |gpu| gpu.mode = ComputeMode::ExclusiveProcess;
    let other: Otherwise = |gpu| gpu.memory_mib = Some(80_000);
    let cases = [
        ("as before", (|_| {}) as Otherwise, false),
        ("other GPUs", other, true),
        ("another mode, which other jobs set", exclusive, false),
    ];
    for (name, otherwise, again) in cases {
        let scenario = Scenario::new("second", "MPS=true,MPS_MEM=25%", 1).remembered(otherwise);
        let world = world(&scenario);
        Sim::well(&world).begin(&scenario).expect(name);
        let daemons = record(&world, &scenario).daemons;
        assert_eq!(daemons[0].memory[0].1, 143_771 / 4, "{name}");
        assert_eq!(
            world.borrow().inventory.gpus[0].mode,
            ComputeMode::ExclusiveProcess,
            "{name}"
        );
        let log = world.borrow().log.concat();
        assert_eq!(log.contains("its MPS is begun again"), again, "{name}: {log}");
        let own = |p: &&tests::sim::Living| p.role == Role::Supervisor;
        assert_eq!(world.borrow().processes.values().filter(own).count(), 1, "{name}");
        Sim::well(&world).end(&scenario);
        assert_eq!(
            world.borrow().picture(),
            World::new(scenario.inventory.clone()).picture(),
            "{name}"
        );
        // The next start knows them.
        Sim::well(&world).begin(&scenario).expect(name);
        let log = world.borrow().log.concat();
        assert_eq!(
            log.matches("its MPS is begun again").count(),
            usize::from(again),
            "{name}: {log}"
        );
    }
}

#[test]
fn what_nvml_refuses_later_is_refused_or_left_out_as_if_it_had_been_asked_first() {
    for (account, state) in [
        ("MPS=true", RecordState::Refused),
        ("MPS=auto", RecordState::Unneeded),
    ] {
        let scenario = Scenario::new("second", account, 1)
            .config("too_many_tasks = \"refuse\"")
            .devices(|devices| devices.tasks_on_node = Some(20))
            .gpus(|gpus| gpus[0].capability = (6, 1))
            .recorded()
            .remembered(|gpu| gpu.capability = (9, 0));
        let world = world(&scenario);
        let job = scenario.job().expect("a job");
        let code = mpsd::job::begin(&mut Sim::well(&world), &job, &scenario, scenario.when).code;
        assert_eq!(code, u8::from(state == RecordState::Refused), "{account}");
        assert_eq!(record(&world, &scenario).state, state, "{account}");
        let world = world.borrow();
        assert!(
            world.processes.is_empty() && world.cgroups.is_empty(),
            "{account}"
        );
        assert!(world.accounts().values().all(Option::is_none), "{account}");
        assert!(world.drains.is_empty(), "{account}");
    }
}

/// On the double: the control daemon comes up beside NVML, and no server before root has looked at the GPUs.
#[test]
fn no_server_starts_without_root() {
    const SLOW_MS: u64 = 2_000;
    /// Some times what a server takes to appear.
    const A_SERVERS: Duration = Duration::from_millis(600);
    let place = Place::new(fast(1).times(|times| times.nvml = SLOW_MS), "");
    place.begin("1.srv", "MPS=true", "0");
    place.torque_end("1.srv").ok();
    let mut prologue = place.start_torque("2.srv", "MPS=true", "0");
    let socket = place.job("2.srv").join("pipe/control");
    eventually("the control daemon is up before NVML is", || socket.exists());
    let server = || !place.pids("nvidia-cuda-mps-server").is_empty();
    assert!(!wait_until(A_SERVERS, server), "a server before its mode is set");
    assert_eq!(place.node.modes(), ["default"], "NVML has not answered");
    kill(prologue.pid(), Signal::SIGKILL);
    prologue.wait();
    let gone = || {
        ["mpsd", "nvidia-cuda-mps-control"]
            .iter()
            .all(|name| place.pids(name).is_empty())
    };
    eventually("mpsd ends with the prologue, and its control daemon", gone);
    place.torque_end("2.srv").ok();
    place.assert_as_before("a prologue killed before the server may start");
}

/// On the double: its memory is other than at the job before.
#[test]
fn what_is_begun_again_is_whole() {
    let place = Place::new(fast(1), "");
    place.begin("1.srv", "MPS=true", "0");
    place.torque_end("1.srv").ok();
    let ledger = place.path("run/ledger");
    let mut told: serde_json::Value =
        serde_json::from_slice(&fs::read(&ledger).expect("a ledger")).expect("JSON");
    told["gpus"]["gpus"][0]["memory_mib"] = 80_000.into();
    fs::write(&ledger, told.to_string()).expect("write");
    place.begin("2.srv", "MPS=true,MPS_MEM=25%", "0");
    for file in ["observations", "killed", "told"] {
        assert!(place.job("2.srv").join(file).exists(), "{file}");
    }
    let named = |name| place.pids(name).len();
    assert_eq!(
        ["mpsd", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"].map(named),
        [1, 1, 1]
    );
    let again = fs::read(&ledger).expect("a ledger");
    assert!(
        !String::from_utf8_lossy(&again).contains("80000"),
        "NVML's answer is kept"
    );
    place.torque_end("2.srv").ok();
    place.assert_as_before("a start that began again");
}

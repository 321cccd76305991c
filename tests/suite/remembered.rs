//! What an earlier start knew of the GPUs spares NVML the look at those of other jobs. A job that
//! joins an MPS asks nothing.

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;
use std::time::Duration;

use mpsd::node::worker::{NvmlWorker, Question};
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{ComputeMode, Gpu, Inventory};
use nix::sys::signal::Signal;
use tests::double::Builder;
use tests::double::node::Description;
use tests::node_bed::{NodeBed, eventually, fast, kill};
use tests::run::{USER, uid_of};
use tests::sim::scenario::Scenario;
use tests::sim::{SharedWorld, Sim, Trouble, paths};

const EXCLUSIVE: ComputeMode = ComputeMode::ExclusiveProcess;
/// Of a node's GPUs.
const SECOND: &str = "GPU-00000001-0000-4000-8000-000000000000";

fn record(world: &SharedWorld, scenario: &Scenario) -> Record {
    world.borrow().record(&scenario.id()).expect("a record")
}

/// Under each way to wait for the start.
#[test]
fn limits_are_those_of_the_gpus_that_are_there_now() {
    type Otherwise = fn(&mut Gpu);
    for (name, otherwise) in [
        ("as before", (|_| {}) as Otherwise),
        ("other GPUs", |gpu| gpu.memory_mib = Some(80_000)),
        ("other minors", |gpu| gpu.minor = Some(7)),
    ] {
        for caller in ["", "detached", "announced"] {
            let words = format!("1 MPS=true,MPS_MEM=25% {caller}");
            let scenario = Scenario::new("second", &words).remembered(otherwise);
            goes_by_the_gpus_that_are_there(name, &scenario);
        }
    }
}

fn goes_by_the_gpus_that_are_there(name: &str, scenario: &Scenario) {
    let name = format!("{name}, {:?}", scenario.when);
    let world = scenario.node();
    Sim::well(&world).begin(scenario).expect(&name);
    let limits = record(&world, scenario).daemons[0].memory.clone();
    assert_eq!(limits[0].1, 143_771 / 4, "{name}");
    let up = world.borrow().clone();
    let ledger = up.text(&paths().run().join("ledger")).expect(&name);
    let ledger: serde_json::Value = serde_json::from_str(&ledger).expect("JSON");
    assert_eq!(ledger["gpus"], serde_json::json!(up.inventory), "{name}");
    assert_eq!((up.processes.len(), up.cgroups.len()), (3, 1), "{name}");
    assert!(up.modes.values().eq([&EXCLUSIVE]), "{name}");
    Sim::well(&world).end(scenario);
    let before = scenario.world().picture();
    assert_eq!(world.borrow().picture(), before, "{name}");
}

/// The journal names the process, from the announcement on: nothing else can end a start that its
/// user has stopped.
#[test]
fn an_announced_start_that_goes_on_is_ended_by_its_jobs_end() {
    const STARTER: i32 = 7;
    let scenario = Scenario::new("announced", "1 MPS=true announced");
    let world = scenario.node();
    world.borrow_mut().starter = Some(STARTER);
    Sim::well(&world).begin(&scenario).expect("it begins");
    assert_eq!(world.borrow().starter, Some(STARTER));
    assert!(Sim::well(&world).end(&scenario).is_clean());
    assert_eq!(world.borrow().starter, None, "it goes on");
}

/// NVML takes its time for the first look at each GPU of a node.
#[test]
fn a_later_start_has_nvml_look_at_its_own_gpu_alone() {
    const LOOK: u64 = 700;
    let mut bed = NodeBed::new(fast(4).times(|times| times.nvml_look = LOOK), "");
    let begin = |bed: &NodeBed, job: &str| {
        let took = bed.begin(job, "MPS=true", "0").took;
        bed.end(job);
        u64::try_from(took.as_millis()).expect("a time")
    };
    // Each place has had a job.
    let later = begin(&bed, "1.srv");
    fs::remove_file(bed.path("run/ledger")).expect("a ledger");
    let first = begin(&bed, "2.srv");
    assert!(first >= 4 * LOOK && later >= LOOK, "{first}, {later}");
    assert!(later + 2 * LOOK < first, "{first}, {later} ms");
    // Another GPU stands in the place of one of them.
    bed.node.change(|node| node.gpu.swap(0, 1));
    assert!(begin(&bed, "3.srv") >= 4 * LOOK, "what was known held");
    bed.assert_as_before("all ends");
}

/// It joins one MPS, and must begin the other.
#[test]
fn a_job_that_joins_one_mps_of_two_plans_the_other_by_what_nvml_says() {
    let job = |number, gpus| {
        let config = "config=[ceilings]; mem = '25%'";
        let words = format!("2 MPS=true shared listed={gpus} number={number} {config}");
        Scenario::new("shared", &words)
    };
    let (first, second) = (job(1, "0"), job(2, "0,1"));
    let world = first.node();
    Sim::well(&world).begin(&first).expect("the first");
    let other = job(2, "0,1").remembered(|gpu| {
        gpu.memory_mib = [gpu.memory_mib, Some(80_000)][gpu.index as usize];
    });
    let ledger = other.ledger().expect("a ledger");
    world.borrow_mut().put(paths().run().join("ledger"), ledger);
    Sim::well(&world).begin(&second).expect("the second");
    for job in [&second, &first] {
        assert!(Sim::well(&world).end(job).is_clean());
    }
}

#[test]
fn what_nvml_refuses_is_refused_or_left_out_whatever_an_earlier_start_knew() {
    for (account, capability, state) in [
        ("MPS=true,MPS_MEM=20G", (9, 0), RecordState::Refused),
        ("MPS=auto", (6, 1), RecordState::Unneeded),
    ] {
        let words = format!("1 {account} tasks=20 recorded");
        let mut scenario = Scenario::new("second", &words)
            .remembered(|gpu| (gpu.capability, gpu.memory_mib) = ((9, 0), Some(80_000)));
        let gpu = &mut scenario.inventory.gpus[0];
        (gpu.capability, gpu.memory_mib) = (capability, Some(16_000));
        let world = scenario.node();
        let code = Sim::well(&world).begun(&scenario).code;
        assert_eq!(code, u8::from(state == RecordState::Refused), "{account}");
        assert_eq!(record(&world, &scenario).state, state, "{account}");
        let world = world.borrow();
        let none = world.processes.is_empty() && world.cgroups.is_empty();
        assert!(none && world.drains.is_empty(), "{account}");
        assert!(world.accounts().values().all(Option::is_none), "{account}");
    }
}

/// As NVML tells a step that has the second of two GPUs.
fn own_gpu_alone(world: &SharedWorld) {
    let gpus = &mut world.borrow_mut().inventory.gpus;
    gpus.remove(0);
    gpus[0].index = 0;
}

/// slurmstepd is inside the device limits of its job (cgroup/v2), so that NVML tells a step its
/// job's GPUs alone, counted from 0.
#[test]
fn what_nvml_tells_a_step_is_kept_for_no_other_start() {
    let on_the_second = |name, words| {
        let words = format!("2 MPS=true shared listed={SECOND} {words}");
        Scenario::new(name, &words)
    };
    let step = on_the_second("step", "step number=1");
    let job = on_the_second("job", "number=2");
    for known in [false, true] {
        let world = job.node();
        if known {
            let ledger = job.clone().remembered(|_| {}).ledger();
            let (path, ledger) = (paths().run().join("ledger"), ledger.expect("a ledger"));
            world.borrow_mut().put(path, ledger);
        }
        let all = world.borrow().inventory.clone();
        own_gpu_alone(&world);
        Sim::well(&world).begin(&step).expect("the step");
        world.borrow_mut().inventory = all;
        Sim::well(&world).begin(&job).expect("the job");
        assert_eq!(record(&world, &job).gpus[0].index, 1, "{known}");
    }
    // The step is to join the MPS of the job, which ends before.
    let up = job.clone().remembered(|_| {}).node();
    Sim::well(&up).begin(&job).expect("the job");
    for at in 0.. {
        let world = Rc::new(RefCell::new(up.borrow().clone()));
        let all = world.borrow().inventory.clone();
        own_gpu_alone(&world);
        let ends = job.clone();
        let mut node = Sim::new(&world, Trouble::MeetsAt(at)).meeting(move |world| {
            let own = std::mem::replace(&mut world.borrow_mut().inventory, all);
            Sim::well(world).end(&ends);
            world.borrow_mut().inventory = own;
        });
        node.begin(&step)
            .unwrap_or_else(|why| panic!("{at}: {why:?}"));
        if at >= node.points() {
            break;
        }
    }
}

/// The same step with a daemon of its own.
#[test]
fn a_step_counts_its_gpus_as_nvml_tells_them_to_it() {
    let words = format!("2 MPS=true,MPS_MEM=25% step remembered listed={SECOND}");
    let step = Scenario::new("step", &words);
    let world = step.node();
    own_gpu_alone(&world);
    Sim::well(&world).begin(&step).expect("the step");
    assert_eq!(record(&world, &step).gpus[0].index, 0, "its tasks count so");
}

/// It stops `mpsd` while the control daemon starts.
#[test]
fn a_server_that_its_user_starts_too_early_harms_that_job_alone() {
    for (number, account, code) in [(2, "MPS=true", 0), (3, "MPS=true,MPS_THREADS=25", 2)] {
        let job = format!("{number}.srv");
        // A failed prologue of Torque uses its whole time.
        let bed = NodeBed::new(fast(1).times(|times| times.start = 1_500), "deadline_s = 8");
        let mut prologue = bed.start_torque(&job, account, "0");
        eventually("the control daemon", || {
            !bed.pids("nvidia-cuda-mps-control").is_empty()
        });
        let stopped = bed.pids("mpsd");
        stopped.iter().for_each(|mpsd| kill(*mpsd, Signal::SIGSTOP));
        let socket = bed.job(&job).join("pipe/control");
        eventually("its socket", || socket.exists());
        bed.say(&job, &format!("start_server -uid {}", uid_of(USER)));
        stopped.iter().for_each(|mpsd| kill(*mpsd, Signal::SIGCONT));
        assert_eq!(prologue.wait(), Some(code), "{account}");
        bed.torque_end(&job).ok();
        bed.assert_as_before(account);
    }
}

/// A GPU was lost, or divided otherwise, since.
#[test]
fn what_was_known_holds_only_for_as_many_whole_gpus() {
    let since = |gpus: Builder, change: fn(&mut Description)| {
        let mut bed = NodeBed::new(gpus, "");
        let library = bed.node.nvml().display().to_string();
        let ask = |bed: &NodeBed, question: &Question| {
            let limit = Duration::from_secs(40);
            let worker = NvmlWorker::start(&bed.program("mpsd"), &library, limit);
            worker.and_then(|mut worker| worker.ask::<Inventory>(question))
        };
        let known = ask(&bed, &Question::Inventory).expect("NVML");
        let own = vec![known.gpus[0].uuid.clone()];
        bed.node.change(change);
        let now = ask(&bed, &Question::InventoryAgain(known, own)).expect("NVML");
        (now.gpus.len(), now.migs.len())
    };
    assert_eq!(since(fast(2), |_| ()), (2, 0));
    assert_eq!(since(fast(2), |node| drop(node.gpu.pop())), (1, 0));
    let less = |node: &mut Description| drop(node.gpu[1].mig.remove(0));
    assert_eq!(since(fast(2).divided(1, 3), less), (2, 2));
}

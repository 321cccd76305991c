//! A job that its site's `auto` brought in did not ask: nothing of MPS keeps it from running, and
//! nothing tells it.

use batch::{GpuName, GpuSource, Scheduler};
use mpsd_core::record::{Record, RecordState};
use tests::sim::scenario::{Scenario, h200};
use tests::sim::{SharedWorld, Sim, Trouble};

const RANKS: &str = "mpirun -n 4 ./prog";

fn of_site(tasks: u32, gpus: u32) -> Scenario {
    Scenario::new("by_site", "MPS=auto", gpus)
        .tasks(tasks)
        .recorded()
        .by_site()
}

/// Its record after its begin with this trouble. The job runs, and reads nothing.
#[track_caller]
fn begun(scenario: &Scenario, trouble: Trouble) -> (Option<Record>, SharedWorld) {
    let world = scenario.node();
    let name = format!("{}, {trouble:?}", scenario.name);
    let code = Sim::new(&world, trouble).begun(scenario).code;
    let seen = world.borrow();
    assert!(
        code == 0 && seen.complaints.is_empty(),
        "{name}: {:?}",
        seen
    );
    let silent = seen.reports.is_empty() && seen.requeued.is_empty();
    assert!(silent, "{name}");
    let record = seen.record(&scenario.id());
    drop(seen);
    (record, world)
}

#[test]
fn whatever_fails_the_job_runs_and_reads_nothing() {
    for scenario in [
        of_site(2, 1),
        of_site(2, 1).detached(),
        of_site(2, 1).announced(),
        of_site(2, 1).of(Scheduler::Torque, true),
    ] {
        let world = scenario.node();
        let mut well = Sim::well(&world);
        well.begin(&scenario).expect("it begins");
        let mut left_out = 0;
        for at in 0..well.calls() {
            for trouble in [Trouble::FaultAt(at), Trouble::UndeterminedAt(at)] {
                let (record, world) = begun(&scenario, trouble);
                let Some(record) = record else { continue };
                let unneeded = record.state == RecordState::Unneeded;
                assert!(unneeded || record.state == RecordState::Ready, "{record:?}");
                // Without a request no step of it tries again.
                assert!(!unneeded || record.request.is_none() && record.by_site.is_some());
                left_out += usize::from(unneeded);
                let told = |line: &String| line.contains("4711");
                assert!(!unneeded || world.borrow().log.iter().any(told));
            }
        }
        assert!(left_out > 0, "{}", scenario.name);
    }
}

#[test]
fn a_job_that_could_notice_its_mps_has_none() {
    let with = |script| Scenario {
        script: Some(script),
        ..of_site(4, 2)
    };
    let listed = |names: Vec<GpuName>| of_site(4, 4).devices(|d| d.gpus = GpuSource::Listed(names));
    let uuids = (0..2).map(|index| GpuName::Uuid(h200(index).uuid.to_string()));
    let unattached = |no_way_round| Scenario {
        unattached: Some(no_way_round),
        ..of_site(2, 1).of(Scheduler::Torque, false)
    };
    let unlike = of_site(4, 2).gpus(|gpus| gpus[1].name = "NVIDIA H100 PCIe".into());
    for (scenario, why) in [
        (of_site(4, 2), ""),
        (with(RANKS), ""),
        (
            with("nvidia-cuda-mps-control -d; mpirun ./prog"),
            "nvidia-cuda-mps",
        ),
        (
            with("for i in $(seq 56); do ./prog & done"),
            "names no mpirun",
        ),
        (with(""), "names no mpirun"),
        (of_site(49, 1), "a GPU takes 48 of its 49 tasks"),
        (of_site(49, 2), "a GPU takes 48 of its 49 tasks"),
        (unlike, "not alike"),
        (of_site(4, 2).config("[defaults]\nmode = \"per-gpu\""), ""),
        (
            Scenario {
                account: "MPS=per-gpu",
                ..of_site(4, 2)
            },
            "a daemon for each GPU",
        ),
        (
            listed((0..2).map(GpuName::Index).collect()),
            "the numbers of its own would change",
        ),
        (listed(uuids.collect()), ""),
        (of_site(4, 2).divided(1, &[(0, 1)]), ""),
        (of_site(2, 2), "2 tasks on 2 GPUs"),
        (unattached(true), "no starter"),
        (unattached(false), ""),
    ] {
        let (record, world) = begun(&scenario, Trouble::None);
        let record = record.expect("a record");
        let reason = record.reason.clone().unwrap_or_default();
        let state = if why.is_empty() {
            RecordState::Ready
        } else {
            RecordState::Unneeded
        };
        assert_eq!(record.state, state, "{why}: {reason}");
        assert!(reason.contains(why), "{why}: {reason}");
        let plain = record.warnings.is_empty() && !record.exclusive;
        assert!(plain, "{record:?}");
        assert!(record.by_site.is_some(), "{why}");
        assert!(world.borrow().modes.is_empty(), "{why}");
    }
}

/// A single task is left out later, if nothing else uses its GPU.
#[test]
fn its_record_says_whether_its_steps_tasks_must_meet() {
    let shares = |scenario: Scenario| scenario.shared();
    let on = Scenario {
        account: "MPS=on",
        ..of_site(4, 1)
    };
    for (scenario, meet) in [
        (of_site(4, 1), true),
        (on, false),
        (shares(of_site(4, 1)), false),
    ] {
        let world = scenario.node();
        let mut well = Sim::well(&world);
        well.begin(&scenario).expect("it begins");
        // Nobody would read of programs outside its MPS.
        assert!(!well.outside, "{meet}");
        let (record, _) = begun(&scenario, Trouble::None);
        let by_site = record.and_then(|record| record.by_site).expect("by_site");
        assert_eq!((by_site.tasks, by_site.if_tasks_meet), (4, meet));
    }
}

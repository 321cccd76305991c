//! `MPS=auto` on the sim: without MPS a job is like one that did not ask, even if
//! something fails or is killed.

use batch::{GpuSource, Scheduler};
use mpsd_core::failure::Evidence;
use mpsd_core::record::RecordState::{self, Ready, Refused, Unneeded};
use tests::sim::scenario::Scenario;
use tests::sim::{SharedWorld, Sim, Trouble, living, silence_kills};

fn auto(tasks: u32) -> Scenario {
    Scenario::new("auto", "MPS=auto", 1).tasks(tasks).recorded()
}

/// The job's record after its begin, if there is one, and the prologue's answer to its caller.
fn begun(scenario: &Scenario, world: &SharedWorld, trouble: Trouble) -> (u8, Option<RecordState>) {
    let code = Sim::new(world, trouble).begun(scenario).code;
    (code, world.borrow().state(&scenario.id()))
}

#[track_caller]
fn is_alone(world: &SharedWorld, scenario: &Scenario, after: &str) {
    let world = world.borrow();
    let before = scenario.world();
    assert_eq!(world.inventory, before.inventory, "{after}: compute modes");
    let none = world.processes.is_empty() && world.cgroups.is_empty();
    assert!(none, "{after}");
    assert_eq!(world.accounts(), before.accounts(), "{after}");
    let none = world.drains.is_empty() && world.requeued.is_empty();
    assert!(none, "{after}");
}

#[track_caller]
fn ends_as_before(world: &SharedWorld, scenario: &Scenario, after: &str) {
    let found = Sim::well(world).end(scenario);
    assert!(found.is_clean(), "{after}: {found:?}");
    let before = scenario.world().picture();
    assert_eq!(world.borrow().picture(), before, "{after}");
}

#[test]
fn what_auto_finds_decides_what_becomes_of_the_job() {
    let with_limits = |tasks| Scenario {
        account: "MPS=auto,MPS_THREADS=25",
        ..auto(tasks)
    };
    for (name, scenario, state) in [
        ("one task", auto(1), Unneeded),
        ("two tasks", auto(2), Ready),
        ("a shared GPU", auto(1).shared(), Ready),
        (
            "no GPU",
            auto(4).devices(|d| d.gpus = GpuSource::None),
            Unneeded,
        ),
        (
            "unknown GPUs",
            auto(4).devices(|d| d.gpus = GpuSource::Unknown("no file".to_owned())),
            Unneeded,
        ),
        // Each of these runs without MPS.
        ("more tasks than a GPU takes clients", auto(49), Unneeded),
        ("the same, with a limit", with_limits(49), Refused),
        ("one task with a limit", with_limits(1), Unneeded),
        (
            "one task, for which a process of its own begins",
            auto(1).detached(),
            Unneeded,
        ),
        ("one task, announced", auto(1).announced(), Unneeded),
        ("too many tasks, announced", auto(49).announced(), Unneeded),
        ("a step of one task", auto(1).step(), Unneeded),
    ] {
        let world = scenario.node();
        let (code, found) = begun(&scenario, &world, Trouble::None);
        assert_eq!(
            (code == 0, found),
            (state != Refused, Some(state)),
            "{name}"
        );
        if state == Unneeded {
            is_alone(&world, &scenario, name);
            assert!(world.borrow().journal(&scenario.id()).is_none(), "{name}");
            let told = |line: &String| line.contains("auto: no MPS, because ");
            assert!(world.borrow().log.iter().any(told), "{name}: its log");
        }
        ends_as_before(&world, &scenario, name);
    }
}

/// A job that gets no MPS never fails through us. Its end leaves nothing, wherever its begin was
/// killed.
#[test]
fn nothing_that_fails_keeps_a_job_from_running_that_needs_nothing() {
    silence_kills();
    for scenario in [
        auto(1),
        auto(1).detached(),
        auto(1).announced(),
        auto(1).of(Scheduler::Torque, true),
    ] {
        let world = scenario.node();
        let mut well = Sim::well(&world);
        well.begin(&scenario).expect("it begins");
        let (points, calls) = (well.points(), well.calls());
        assert!(points > 2 && calls > 2, "{points} {calls}");
        for at in 0..calls {
            for trouble in [Trouble::FaultAt(at), Trouble::UndeterminedAt(at)] {
                let world = scenario.node();
                let (code, state) = begun(&scenario, &world, trouble);
                let name = format!("{trouble:?}");
                assert_eq!(code, 0, "{name}: {:?}", world.borrow().log);
                assert!(matches!(state, None | Some(Unneeded)), "{name}: {state:?}");
                is_alone(&world, &scenario, &name);
                ends_as_before(&world, &scenario, &name);
            }
        }
        for at in 0..points {
            let world = scenario.node();
            let mut node = Sim::new(&world, Trouble::KillAt(at));
            assert!(living(|| drop(node.begin(&scenario))).is_none(), "{at}");
            is_alone(&world, &scenario, &format!("killed at {at}"));
            ends_as_before(&world, &scenario, &format!("killed at {at}"));
        }
    }
}

#[test]
fn a_node_that_takes_no_job_with_mps_takes_one_that_needs_none() {
    let undelivered = |world: &SharedWorld| {
        world.borrow_mut().undelivered = Some(format!("mpsd: {:?}", Evidence::GpuLost));
    };
    for (tasks, code) in [(1, 0), (2, 2)] {
        let scenario = auto(tasks);
        let world = scenario.node();
        undelivered(&world);
        assert_eq!(begun(&scenario, &world, Trouble::None).0, code, "{tasks}");
    }
}

/// Torque runs a job's prologue again without an epilogue in between.
#[test]
fn what_an_earlier_start_of_the_job_left_is_taken_down() {
    let (first, again) = (auto(2), auto(1));
    let world = first.node();
    assert_eq!(begun(&first, &world, Trouble::None), (0, Some(Ready)));
    assert_eq!(begun(&again, &world, Trouble::None), (0, Some(Unneeded)));
    is_alone(&world, &again, "begun again");
    ends_as_before(&world, &again, "begun again");
    // If that cannot be taken down, it still holds the GPU, so the job does not run.
    let mut kept = 0;
    for at in 0..40 {
        let world = first.node();
        begun(&first, &world, Trouble::None);
        let (code, _) = begun(&again, &world, Trouble::UndeterminedAt(at));
        match code {
            0 => is_alone(&world, &again, &format!("trouble at {at}")),
            _ => kept += 1,
        }
    }
    assert!(kept > 0);
}

#[test]
fn only_a_user_who_asked_is_told_by_the_prologue() {
    for (scenario, told) in [(auto(1), 1), (auto(1).by_site(), 0)] {
        let world = scenario.node();
        begun(&scenario, &world, Trouble::None);
        let complaints = world.borrow().complaints.clone();
        assert_eq!(complaints.len(), told, "{complaints:?}");
        assert!(
            complaints
                .iter()
                .all(|line| line.ends_with("auto: no MPS, because 1 task on 1 GPU"))
        );
    }
}

/// Slurm's plugin shows what the record asks for.
#[test]
fn a_job_that_its_site_brought_in_has_no_line_in_its_output() {
    for (config, told) in [
        ("", (false, true)),
        ("[defaults]\nreport = true", (true, false)),
    ] {
        for (scenario, told) in [(auto(2), told), (auto(2).by_site(), (false, false))] {
            let scenario = scenario.config(config);
            let world = scenario.node();
            assert_eq!(
                begun(&scenario, &world, Trouble::None).1,
                Some(Ready),
                "{config}"
            );
            let record = world.borrow().record(&scenario.id()).expect("a record");
            assert_eq!((record.report, record.summary), told, "{config}");
        }
    }
}

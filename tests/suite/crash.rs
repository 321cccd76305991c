//! The crash matrix, generated from plans: a prologue and an epilogue are killed at every point between two smallest
//! changes, or a call of theirs fails; then an epilogue runs, and the node must be exactly as it was before.

use std::cell::RefCell;
use std::rc::Rc;

use mpsd::job::carry_out::{self, NotDone};
use mpsd::job::ladder::Rung;
use mpsd::job::undo::{self, Findings};
use mpsd::job::{Account, Journal};
use mpsd::node::{Node, Role};
use mpsd::scheduler::Exclusive;
use mpsd_core::failure::Evidence;
use mpsd_core::record::{Record, State};
use mpsd_core::{ComputeMode, Failure, JobId};
use tests::figures;
use tests::sim::scenario::{Scenario, UID, journal, spec};
use tests::sim::{Living, Sim, Trouble, World, living, silence_kills};

/// The scenarios whose every crash is tried. More GPUs or daemons add points, not kinds of them.
fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario::new("exclusive", "MPS=true,MPS_THREADS=25,MPS_MEM=4G", 2),
        Scenario::new("shared", "MPS=true", 1).devices(|d| d.exclusive = Exclusive::Shared),
        Scenario::new("per-gpu", "MPS=per-gpu", 2),
        Scenario::new("keep", "MPS=true", 1).config("compute_mode = \"keep\""),
        Scenario::new("no cgroup", "MPS=true", 1).config("cgroup = \"none\""),
        Scenario::new("step", "MPS=true", 1).step(),
        Scenario::new("exclusive found", "MPS=true", 1)
            .gpus(|gpus| gpus[0].mode = ComputeMode::ExclusiveProcess),
    ]
}

/// A node before the job: another job shares the first GPU where the scheduler lets it.
fn before(scenario: &Scenario) -> World {
    let mut world = World::new(scenario.inventory.clone());
    if scenario.devices.exclusive == Exclusive::Shared {
        let gpu = scenario.inventory.gpus[0].uuid.clone();
        let other = JobId::parse("1234").expect("job id");
        world.gpu_locks.insert(gpu.clone());
        world
            .accounts
            .insert(gpu.clone(), Account::join(None, &other, ComputeMode::Default));
        world.spawn(Living {
            role: Role::Server,
            job: other,
            uid: UID + 1,
            gpus: vec![gpu],
            survives: None,
            state: 'S',
        });
    }
    world
}

fn shared(world: &World) -> Rc<RefCell<World>> {
    Rc::new(RefCell::new(world.clone()))
}

/// The prologue's own order of calls.
fn prologue(node: &mut Sim, scenario: &Scenario) -> Result<(), Box<NotDone>> {
    let plan = scenario.plan().expect("plan");
    let _held = node.open_job(&plan.job).map_err(|failure| {
        Box::new(NotDone {
            failure,
            findings: Findings::default(),
        })
    })?;
    let mut journal = journal(&plan);
    let spec = spec(&plan, &journal);
    let record = Record::closed(plan.job.clone(), UID, State::Starting, String::new());
    written(node, &record, &journal)?;
    carry_out::begin(node, &mut journal, &spec)?;
    carry_out::prove(node, &journal, &spec)?;
    written(node, &record, &journal)
}

/// The record, or all that was begun is undone.
fn written(node: &mut Sim, record: &Record, journal: &Journal) -> Result<(), Box<NotDone>> {
    node.write_record(record).map_err(|failure| {
        let findings = undo::undo(node, journal);
        Box::new(NotDone { failure, findings })
    })
}

/// The epilogue's own order of calls.
fn epilogue(node: &mut Sim, job: &JobId) -> Result<Findings, Failure> {
    let Some(_held) = node.find_job(job)? else {
        return Ok(Findings::default());
    };
    let Some(journal) = node.read_journal(job)? else {
        node.remove_job(job)?;
        return Ok(Findings::default());
    };
    Ok(undo::undo(node, &journal))
}

/// An epilogue without trouble leaves the node as `before`, and says so; so does one more.
#[track_caller]
fn restored(world: &Rc<RefCell<World>>, before: &World, job: &JobId, after: &str) {
    for turn in ["first", "second"] {
        let found =
            epilogue(&mut Sim::new(world, Trouble::None), job).unwrap_or_else(|e| panic!("{after}: {e}"));
        assert!(found.is_clean(), "{after}, {turn} epilogue: {found:?}");
        world.borrow_mut().settle();
        assert_eq!(
            world.borrow().picture(),
            before.picture(),
            "{after}, {turn} epilogue"
        );
    }
}

/// A node on which the job's MPS runs, and how many points and calls that took.
fn running(scenario: &Scenario) -> (World, usize, usize) {
    let world = shared(&before(scenario));
    let mut node = Sim::new(&world, Trouble::None);
    prologue(&mut node, scenario).unwrap_or_else(|e| panic!("{}: {e:?}", scenario.name));
    let (points, calls) = (node.points(), node.calls());
    drop(node);
    let world = world.borrow().clone();
    (world, points, calls)
}

/// The worlds that a prologue killed at each point leaves: at once, and after what it started went on by itself.
fn killed_prologues(scenario: &Scenario) -> Vec<(String, World)> {
    let (_, points, _) = running(scenario);
    let mut worlds = Vec::new();
    for at in 0..points {
        for settled in [false, true] {
            let world = shared(&before(scenario));
            let mut node = Sim::new(&world, Trouble::KillAt(at));
            let ended = living(|| prologue(&mut node, scenario).map_err(|e| format!("{e:?}")));
            assert_eq!(ended, None, "{}: it was not killed at {at}", scenario.name);
            if settled {
                world.borrow_mut().settle();
            }
            let name = format!(
                "{}, prologue killed at {at}{}",
                scenario.name,
                if settled { ", later" } else { "" }
            );
            let left = world.borrow().clone();
            assert!(left.held.is_empty(), "{name}: locks are held by the dead");
            worlds.push((name, left));
        }
    }
    worlds
}

#[test]
fn a_prologue_killed_anywhere_is_undone_whole() {
    silence_kills();
    let mut tried = 0;
    for scenario in scenarios() {
        for (name, left) in killed_prologues(&scenario) {
            restored(&shared(&left), &before(&scenario), &scenario.job(), &name);
            tried += 1;
        }
    }
    assert!(tried > 300, "only {tried} crash points");
    figures::tell("crash_points", tried);
}

#[test]
fn an_epilogue_killed_anywhere_is_finished_by_the_next() {
    silence_kills();
    let mut tried = 0;
    for scenario in scenarios() {
        let mut starts = killed_prologues(&scenario);
        starts.push((scenario.name.to_owned(), running(&scenario).0));
        for (name, left) in starts {
            for at in 0.. {
                let world = shared(&left);
                let mut node = Sim::new(&world, Trouble::KillAt(at));
                if living(|| epilogue(&mut node, &scenario.job()).map(drop)).is_some() {
                    break;
                }
                restored(
                    &world,
                    &before(&scenario),
                    &scenario.job(),
                    &format!("{name}, epilogue killed at {at}"),
                );
                tried += 1;
            }
        }
    }
    assert!(tried > 10_000, "only {tried} pairs");
    figures::tell("crash_point_pairs", tried);
}

#[test]
fn a_prologue_whose_call_fails_undoes_itself_whole() {
    let mut tried = 0;
    for scenario in scenarios() {
        let (_, _, calls) = running(&scenario);
        for at in 0..calls {
            for trouble in [Trouble::FaultAt(at), Trouble::UndeterminedAt(at)] {
                let world = shared(&before(&scenario));
                let name = format!("{}, {trouble:?}", scenario.name);
                let failed = prologue(&mut Sim::new(&world, trouble), &scenario).expect_err(&name);
                let injected = match trouble {
                    Trouble::FaultAt(_) => matches!(&failed.failure, Failure::Fault(_)),
                    _ => matches!(&failed.failure, Failure::Undetermined(_)),
                };
                assert!(injected, "{name}: its kind was changed: {failed:?}");
                assert!(failed.findings.is_clean(), "{name}: {failed:?}");
                world.borrow_mut().settle();
                assert_eq!(
                    world.borrow().picture(),
                    before(&scenario).picture(),
                    "{name}: a failed start leaves something to the epilogue"
                );
                restored(&world, &before(&scenario), &scenario.job(), &name);
                tried += 1;
            }
        }
    }
    figures::tell("failed_calls", tried);
}

#[test]
fn an_epilogue_whose_call_fails_says_so_and_the_next_one_finishes() {
    let mut tried = 0;
    for scenario in scenarios() {
        let (left, ..) = running(&scenario);
        let mut node = Sim::new(&shared(&left), Trouble::None);
        epilogue(&mut node, &scenario.job()).expect("epilogue");
        for at in 0..node.calls() {
            for trouble in [Trouble::FaultAt(at), Trouble::UndeterminedAt(at)] {
                let world = shared(&left);
                let name = format!("{}, {trouble:?} in the epilogue", scenario.name);
                let said = epilogue(&mut Sim::new(&world, trouble), &scenario.job());
                assert!(
                    !said.is_ok_and(|found| found.is_clean()),
                    "{name}: it says that all is well"
                );
                restored(&world, &before(&scenario), &scenario.job(), &name);
                tried += 1;
            }
        }
    }
    figures::tell("failed_calls", tried);
}

#[test]
fn the_ladder_climbs_as_far_as_it_must_and_says_who_survives() {
    for (upto, clean) in [
        (None, true),
        (Some(Rung::Polite), true),
        (Some(Rung::Terminate), true),
        (Some(Rung::Kill), false),
    ] {
        let scenario = Scenario::new("ladder", "MPS=true", 1);
        let world = shared(&before(&scenario));
        world.borrow_mut().stubborn = upto;
        prologue(&mut Sim::new(&world, Trouble::None), &scenario).expect("prologue");
        let found = epilogue(&mut Sim::new(&world, Trouble::None), &scenario.job()).expect("epilogue");
        assert_eq!(found.is_clean(), clean, "{upto:?}: {found:?}");
        if !clean {
            let survivors = found.faults.iter().filter(|f| f.evidence == Evidence::Survivor);
            assert_eq!(survivors.count(), 3, "mpsd, control daemon, server: {found:?}");
            the_next_look_finishes(&world, &scenario);
        }
    }
}

/// The journal stays while processes survive, and is replayed when they have ended.
#[track_caller]
fn the_next_look_finishes(world: &Rc<RefCell<World>>, scenario: &Scenario) {
    assert!(
        world.borrow().jobs.contains_key(&scenario.job()),
        "the journal stays for the next look"
    );
    world.borrow_mut().processes.clear();
    restored(
        world,
        &before(scenario),
        &scenario.job(),
        "the survivors ended at last",
    );
}

#[test]
fn a_survivor_that_a_user_holds_is_no_evidence_and_stays_in_the_journal() {
    let scenario = Scenario::new("held", "MPS=true", 1);
    let world = shared(&before(&scenario));
    world.borrow_mut().stubborn = Some(Rung::Kill);
    world.borrow_mut().held_by_user = Some("a tracer holds it");
    prologue(&mut Sim::new(&world, Trouble::None), &scenario).expect("prologue");
    let found = epilogue(&mut Sim::new(&world, Trouble::None), &scenario.job()).expect("epilogue");
    assert!(found.faults.is_empty(), "{found:?}");
    let told = found
        .undetermined
        .iter()
        .filter(|u| u.why.contains("a tracer holds it"));
    assert_eq!(told.count(), 3, "mpsd, control daemon, server: {found:?}");
    the_next_look_finishes(&world, &scenario);
}

#[test]
fn a_start_that_fails_for_two_users_is_evidence_and_for_one_is_not() {
    let scenario = Scenario::new("stillborn", "MPS=true", 1);
    let world = shared(&before(&scenario));
    world.borrow_mut().stillborn = true;
    for _ in 0..3 {
        let failed = prologue(&mut Sim::new(&world, Trouble::None), &scenario).expect_err("stillborn");
        assert!(matches!(failed.failure, Failure::Undetermined(_)), "{failed:?}");
    }
    world.borrow_mut().failed_starts.insert(UID + 7);
    let failed = prologue(&mut Sim::new(&world, Trouble::None), &scenario).expect_err("stillborn");
    assert!(
        matches!(&failed.failure, Failure::Fault(f) if f.evidence == Evidence::RepeatedStarts),
        "{failed:?}"
    );
    restored(&world, &before(&scenario), &scenario.job(), "failed starts");
}

#[test]
fn a_mode_that_somebody_changed_during_the_job_stays_theirs() {
    let scenario = Scenario::new("changed", "MPS=true", 1);
    let gpu = scenario.inventory.gpus[0].uuid.clone();
    let world = shared(&before(&scenario));
    prologue(&mut Sim::new(&world, Trouble::None), &scenario).expect("prologue");
    world.borrow_mut().set_mode(&gpu, ComputeMode::Prohibited);
    let found = epilogue(&mut Sim::new(&world, Trouble::None), &scenario.job()).expect("epilogue");
    assert!(found.is_clean(), "{found:?}");
    assert!(found.notes.iter().any(|n| n.contains("PROHIBITED")), "{found:?}");
    let mut expected = before(&scenario);
    expected.set_mode(&gpu, ComputeMode::Prohibited);
    assert_eq!(world.borrow().picture(), expected.picture());
}

#[test]
fn a_foreign_context_keeps_the_mode_as_it_is() {
    let scenario = Scenario::new("foreign", "MPS=true", 1);
    let gpu = scenario.inventory.gpus[0].uuid.clone();
    let world = shared(&before(&scenario));
    world.borrow_mut().foreign.push((gpu, 77));
    prologue(&mut Sim::new(&world, Trouble::None), &scenario).expect("prologue");
    assert_eq!(world.borrow().inventory.gpus[0].mode, ComputeMode::Default);
    assert!(
        world.borrow().log.iter().any(|l| l.contains("process 77")),
        "{:?}",
        world.borrow().log
    );
}

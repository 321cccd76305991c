//! The crash matrix, generated from plans: at every point a prologue and an epilogue are killed, or
//! a call fails. After one more epilogue the node must be exactly as before.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;

use batch::Exclusive;
use mpsd::job::node::Role;
use mpsd::job::{self, Account, Journal, ReturnWhen, claim};
use mpsd_core::record::RecordState;
use mpsd_core::{ComputeMode, Failure, JobId};
use tests::figures;
use tests::sim::scenario::{Scenario, UID};
use tests::sim::{Living, SharedWorld, Sim, Trouble, World, Worlds, living, paths, silence_kills};

/// More GPUs or daemons would add points, not kinds of them.
const SCENARIOS: &str = "
exclusive: 2 MPS=true,MPS_THREADS=25,MPS_MEM=4G
shared: 1 MPS=true shared
own on a shared GPU: 1 MPS=own shared
shared by Slurm's task: 1 MPS=true detached shared
shared on two GPUs: 2 MPS=true shared
second job: 1 MPS=true,MPS_MEM=25% remembered
per-gpu: 2 MPS=per-gpu
keep: 1 MPS=true config=compute_mode = 'keep'
no cgroup: 1 MPS=true config=cgroup = 'none'
step: 1 MPS=true step
recorded: 1 MPS=true recorded
detached: 1 MPS=true detached
announced: 1 MPS=true announced
MIG: 1 MPS=true,MPS_MEM=4G divided=1:0/0,0/2
exclusive found: 1 MPS=true found-exclusive
";

fn scenarios() -> impl Iterator<Item = Scenario> {
    let rows = SCENARIOS.lines().filter_map(|row| row.split_once(": "));
    rows.map(|(name, words)| Scenario::new(name, words))
}

/// If the scheduler allows it, another job uses the first GPU too.
pub(crate) fn before(scenario: &Scenario) -> World {
    let mut world = scenario.world();
    if matches!(scenario.devices.exclusive, Exclusive::Shared(_)) {
        let gpu = scenario.inventory.gpus[0].uuid.clone();
        let other = JobId::parse("1234").expect("job id");
        world.enter(&gpu, &Account::enter(None, &other, ComputeMode::Default));
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

pub(crate) fn shared(world: &World) -> SharedWorld {
    Rc::new(RefCell::new(world.clone()))
}

#[track_caller]
fn is_as_before(world: &SharedWorld, scenario: &Scenario, after: &str) {
    let before = before(scenario).picture();
    assert_eq!(world.borrow().picture(), before, "{after}");
}

/// An epilogue without trouble leaves the node as `before`, and says so. So does the next one.
#[track_caller]
pub(crate) fn restored(world: &SharedWorld, scenario: &Scenario, after: &str) {
    for turn in ["first", "second"] {
        let found = Sim::well(world).end(scenario);
        assert!(found.is_clean(), "{after}, {turn} epilogue: {found:?}");
        world.borrow_mut().settle();
        is_as_before(world, scenario, &format!("{after}, {turn} epilogue"));
    }
}

fn running(scenario: &Scenario) -> (World, usize, usize) {
    let world = shared(&before(scenario));
    let mut node = Sim::well(&world);
    node.begin(scenario)
        .unwrap_or_else(|e| panic!("{}: {e:?}", scenario.name));
    let (points, calls) = (node.points(), node.calls());
    drop(node);
    let world = world.borrow().clone();
    (world, points, calls)
}

/// Worlds after a kill at each point: at once, and after what was started went on.
fn killed_prologues(scenario: &Scenario) -> Worlds {
    let (_, points, _) = running(scenario);
    let mut worlds = Worlds::default();
    for at in 0..points {
        for settled in [false, true] {
            let world = shared(&before(scenario));
            let mut node = Sim::new(&world, Trouble::KillAt(at));
            let ended = living(|| node.begin(scenario).map_err(|e| format!("{e:?}")));
            assert_eq!(ended, None, "{}: it was not killed at {at}", scenario.name);
            if settled {
                world.borrow_mut().settle();
            }
            let later = if settled { ", later" } else { "" };
            let name = format!("{}, prologue killed at {at}{later}", scenario.name);
            let left = world.borrow().clone();
            assert!(left.held.is_empty(), "{name}: locks are held by the dead");
            worlds.add(&name, &left);
        }
    }
    worlds
}

/// A prologue killed anywhere is undone whole. Accounts and modes are as before when the first
/// directory is removed.
#[test]
fn an_epilogue_killed_anywhere_is_finished_by_the_next() {
    silence_kills();
    let (mut tried, mut prologues) = (0, 0);
    for scenario in scenarios() {
        let (before, id) = (before(&scenario), scenario.mps_id());
        let mut starts = killed_prologues(&scenario);
        starts.add(scenario.name, &running(&scenario).0);
        let mut removes = false;
        for (name, left, points) in starts.iter() {
            let mut ends = Worlds::default();
            for at in 0.. {
                let world = shared(left);
                let mut node = Sim::new(&world, Trouble::KillAt(at));
                if living(|| node.end(&scenario)).is_some() {
                    restored(&shared(left), &scenario, name);
                    prologues += points;
                    break;
                }
                drop(node);
                let name = format!("{name}, epilogue killed at {at}");
                let now = world.borrow();
                if now.has_job(&id) && now.users_directories(&id) < left.users_directories(&id) {
                    removes = true;
                    assert_eq!(now.accounts(), before.accounts(), "{name}");
                    assert_eq!(now.inventory, before.inventory, "{name}");
                }
                drop(now);
                let is_new = ends.add(&name, &world.borrow());
                if is_new {
                    restored(&world, &scenario, &name);
                }
                tried += points;
            }
        }
        assert!(removes, "{}: no such point", scenario.name);
    }
    let told = format!("only {tried} pairs, {prologues} points");
    assert!(tried > 10_000 && prologues > 300, "{told}");
    figures::tell("crash_point_pairs", tried);
    figures::tell("crash_points", prologues);
}

#[test]
fn a_report_is_the_last_act_of_the_epilogue_that_leaves_the_node_as_before() {
    silence_kills();
    for scenario in scenarios() {
        let (left, ..) = running(&scenario);
        let world = shared(&left);
        let mut node = Sim::well(&world);
        node.end(&scenario);
        let last = node.points();
        let reports = world.borrow().reports.clone();
        assert_eq!(reports.len(), 1, "{}", scenario.name);
        let is_whole = reports[0].as_before && reports[0].ready_ms.is_some();
        assert!(is_whole, "{reports:?}");
        let mut without = 0;
        for at in 0..last {
            let world = shared(&left);
            let killed = living(|| Sim::new(&world, Trouble::KillAt(at)).end(&scenario)).is_none();
            assert!(killed, "{}, {at}", scenario.name);
            if !world.borrow().reports.is_empty() {
                is_as_before(&world, &scenario, &format!("{}, {at}", scenario.name));
            }
            Sim::well(&world).end(&scenario);
            let reports = world.borrow().reports.len();
            assert!(reports <= 1, "{}, {at}: {reports}", scenario.name);
            without += usize::from(reports == 0);
        }
        // It was killed after the journal was gone and before the report: the node is as before,
        // and nobody has the report.
        let told = format!(
            "{}: {without} of {last} ends without a report",
            scenario.name
        );
        assert!(without < last / 2, "{told}");
    }
}

#[test]
fn a_prologue_called_again_takes_down_what_one_killed_anywhere_left() {
    silence_kills();
    let mut tried = 0;
    for scenario in scenarios() {
        for (name, left, points) in killed_prologues(&scenario).iter() {
            let world = shared(left);
            Sim::well(&world)
                .begin(&scenario)
                .unwrap_or_else(|e| panic!("{name}: {e:?}"));
            let own = |p: &&Living| p.job == scenario.mps_id() && p.role == Role::Control;
            let daemons = world.borrow().processes.values().filter(own).count();
            assert_eq!(daemons, 1, "{name}: control daemons");
            let state = world.borrow().state(&scenario.id());
            assert_eq!(state, Some(RecordState::Ready), "{name}");
            restored(&world, &scenario, name);
            tried += points;
        }
    }
    figures::tell("crash_points", tried);
}

/// The world after a prologue and an epilogue, how the prologue ended, whether the job was there,
/// whether its lock kept the epilogue out, and whether the prologue had started anything.
type Meeting = (SharedWorld, Option<Result<(), String>>, [bool; 3]);

fn met(scenario: &Scenario, world: &World, at: usize) -> Meeting {
    let world = shared(world);
    let meeting = Rc::new(Cell::new([false; 3]));
    let (said, ending) = (Rc::clone(&meeting), scenario.clone());
    let first = world.borrow().spawned;
    let mut node = Sim::new(&world, Trouble::MeetsAt(at)).meeting(move |world| {
        let id = ending.id();
        let lock = paths().job(&id).lock();
        let there = world.borrow().has_job(&id) || world.borrow().files.contains_key(&lock);
        let begun = world.borrow().spawned > first;
        let found = Sim::well(world).end(&ending);
        let mut undetermined = found.undetermined.iter();
        let locked_out = undetermined.any(|u| u.why.contains("still locked"));
        said.set([there, locked_out, begun]);
    });
    let ended = living(|| node.begin(scenario).map_err(|e| format!("{e:?}")));
    drop(node);
    (world, ended, meeting.get())
}

#[test]
fn a_start_under_way_is_given_up_wherever_the_epilogue_meets_it() {
    silence_kills();
    let mut tried = 0;
    for scenario in scenarios() {
        let (_, points, _) = running(&scenario);
        let (mut late, mut after) = (0, 0);
        for at in 0..points {
            let name = format!("{}, an epilogue at {at} of {points}", scenario.name);
            let (world, ended, [there, locked_out, begun]) = met(&scenario, &before(&scenario), at);
            if !there {
                continue;
            }
            tried += 1;
            // One that has started nothing yet leaves the GPUs to the next job.
            let begins = world.borrow().spawned > before(&scenario).spawned;
            let begins = begins && !begun && scenario.mps_id() == scenario.id();
            after += usize::from(locked_out && begins);
            let up = matches!(ended, Some(Ok(()))) && world.borrow().has_job(&scenario.id());
            if up && locked_out {
                // The start had asked for the last time before the epilogue came, and is about to
                // release the lock.
                late += 1;
                restored(&world, &scenario, &name);
                continue;
            }
            world.borrow_mut().settle();
            is_as_before(&world, &scenario, &format!("{name}: {ended:?}"));
            assert!(world.borrow().requeued.is_empty(), "{name}: it has ended");
        }
        let name = scenario.name;
        assert!(late <= 4, "{name}: {late} points after the last question");
        assert!(after <= 4, "{name}: {after} points started what had ended");
    }
    assert!(tried > 300, "only {tried} meetings");
    figures::tell("crash_points", tried);
}

/// Its failure is told to nobody, and nothing is left for its tasks.
#[test]
fn a_start_that_fails_after_its_job_has_ended_leaves_nothing() {
    silence_kills();
    let scenario = Scenario::new("announced", "1 MPS=true announced");
    let mut silent = before(&scenario);
    silent.silent = true;
    let mut tried = 0;
    for at in 0..10 {
        let (world, ended, [there, ..]) = met(&scenario, &silent, at);
        if there && matches!(ended, Some(Err(_))) && !world.borrow().has_job(&scenario.id()) {
            tried += 1;
            assert!(world.borrow().requeued.is_empty(), "{at}: it has ended");
        }
    }
    assert!(tried > 0);
}

fn is_bare(world: &World, job: &JobId) -> bool {
    let directory = paths().job(job).directory().to_owned();
    let is_below = |path: &PathBuf| path.parent() == Some(&directory);
    world.has_job(job) && !world.files.keys().any(is_below)
}

#[test]
fn a_prologue_whose_call_fails_undoes_itself_whole() {
    let mut tried = 0;
    for scenario in scenarios() {
        let (_, _, calls) = running(&scenario);
        for at in 0..calls {
            for trouble in [Trouble::FaultAt(at), Trouble::UndeterminedAt(at)] {
                a_failed_call(&scenario, trouble);
                tried += 1;
            }
        }
    }
    figures::tell("failed_calls", tried);
}

/// Whether a file for the user of a shared MPS could not be written. No job fails for that.
fn told_nothing(world: &World) -> bool {
    let mut lines = world.log.iter();
    lines.any(|line| line.contains(" is not told of it: "))
}

fn a_failed_call(scenario: &Scenario, trouble: Trouble) {
    let world = shared(&before(scenario));
    let name = format!("{}, {trouble:?}", scenario.name);
    let fault = matches!(trouble, Trouble::FaultAt(_));
    let (mut drains, mut is_left) = (usize::from(fault), false);
    match Sim::new(&world, trouble).begin(scenario) {
        // What was begun for other GPUs could not be undone: the findings say why, and the job's
        // end goes on.
        Err(failed) if failed.failure.to_string().contains("cannot be taken down") => {
            assert!(!failed.findings.is_clean(), "{name}: {failed:?}");
            (drains, is_left) = (failed.findings.faults.len(), true);
        }
        Err(failed) => {
            let kept = match &failed.failure {
                Failure::Fault(_) => fault,
                Failure::Undetermined(_) => !fault,
                Failure::Refusal(_) => false,
            };
            assert!(kept, "{name}: its kind was changed: {failed:?}");
            assert!(failed.findings.is_clean(), "{name}: {failed:?}");
        }
        Ok(()) if told_nothing(&world.borrow()) => return restored(&world, scenario, &name),
        // The prologue had returned, so the other process reports it.
        Ok(()) => assert_eq!(scenario.when, ReturnWhen::Started, "{name}"),
    }
    assert!(!world.borrow().complaints.is_empty(), "{name}: untold");
    assert_eq!(world.borrow().drains.len(), drains, "{name}: drains");
    assert_eq!(world.borrow().failed.len(), 1, "{name}: counted");
    world.borrow_mut().settle();
    if is_left {
        return restored(&world, scenario, &name);
    }
    let mut left = world.borrow().picture();
    let id = scenario.id();
    if scenario.record {
        assert_eq!(left.state(&id), Some(RecordState::Failed), "{name}");
        left.files.remove(&paths().job(&id).record());
    }
    // The unreadable journal may be an earlier prologue's, so its directory stays.
    if is_bare(&left, &id) {
        left.files.remove(paths().job(&id).directory());
        left.files.remove(&paths().job(&id).lock());
    }
    assert_eq!(left, before(scenario).picture(), "{name}: left");
    restored(&world, scenario, &name);
}

#[test]
fn an_epilogue_whose_call_fails_says_so_and_the_next_one_finishes() {
    let mut tried = 0;
    for scenario in scenarios() {
        let (left, ..) = running(&scenario);
        let mut node = Sim::new(&shared(&left), Trouble::None);
        node.end(&scenario);
        for at in 0..node.calls() {
            for trouble in [Trouble::FaultAt(at), Trouble::UndeterminedAt(at)] {
                let world = shared(&left);
                let name = format!("{}, {trouble:?} in the epilogue", scenario.name);
                let said = Sim::new(&world, trouble).end(&scenario);
                assert!(!said.is_clean(), "{name}: it says that all is well");
                restored(&world, &scenario, &name);
                tried += 1;
            }
        }
    }
    figures::tell("failed_calls", tried);
}

#[test]
fn a_foreign_context_keeps_the_mode_as_it_is() {
    let scenario = Scenario::new("foreign", "1 MPS=true");
    let gpu = scenario.inventory.gpus[0].uuid.clone();
    let world = shared(&before(&scenario));
    world.borrow_mut().foreign.push((gpu, 77));
    Sim::well(&world).begin(&scenario).expect("prologue");
    assert!(world.borrow().modes.is_empty());
    let log = world.borrow().log.clone();
    let is_named = log.iter().any(|line| line.contains("process 77"));
    assert!(is_named, "{log:?}");
}

/// Its server would get error 46 there, and the job no reason.
#[test]
fn a_process_that_holds_an_exclusive_gpu_is_named() {
    let scenario = Scenario::new("held", "1 MPS=true found-exclusive");
    let gpu = scenario.inventory.gpus[0].uuid.clone();
    let world = shared(&before(&scenario));
    world.borrow_mut().foreign.push((gpu.clone(), 77));
    let failed = Sim::well(&world).begin(&scenario).expect_err("a held GPU");
    let told = failed.failure.to_string();
    let is_named = told.contains(gpu.as_str()) && told.contains("process 77 holds it");
    assert!(is_named, "{told}");
    world.borrow_mut().foreign.clear();
    restored(&world, &scenario, "a held GPU");
    Sim::well(&world).begin(&scenario).expect("nobody holds it");
}

#[test]
fn a_start_that_cannot_be_divided_is_finished_by_the_prologue_itself() {
    let scenario = Scenario::new("undivided", "1 MPS=true detached");
    let world = shared(&before(&scenario));
    world.borrow_mut().undivided = true;
    Sim::well(&world).begin(&scenario).expect("prologue");
    let state = world.borrow().state(&scenario.id());
    assert_eq!(state, Some(RecordState::Ready));
    restored(&world, &scenario, "an undivided start");
}

/// A step's number comes again after a requeue. What the earlier step left may be another user's.
#[test]
fn a_step_of_the_same_number_and_another_user_gets_a_daemon_of_its_own() {
    let scenario = Scenario::new("step", "1 MPS=true step");
    let world = shared(&before(&scenario));
    let begin = |uid: u32| {
        let mut job = scenario.job().expect("job");
        job.user.uid = uid;
        let begun = job::begin(&mut Sim::well(&world), &job, &scenario, scenario.when);
        assert_eq!(begun.code, 0, "{begun:?}");
        let world = world.borrow();
        let journal = world.journal(&scenario.id()).expect("a journal");
        (journal.uid(), journal.supervisor)
    };
    let first = scenario.job().expect("job").user.uid;
    let (uid, supervisor) = begin(first);
    assert_eq!(uid, first);
    assert_eq!(begin(first), (first, supervisor), "the same start stays");
    let (uid, other) = begin(first + 1);
    assert_eq!(uid, first + 1, "it has the daemon of another user");
    assert_ne!(other, supervisor);
}

/// `reconcile` decides by a journal that it read without the job's lock.
#[test]
fn a_job_that_began_again_under_its_id_is_not_ended_by_a_verdict_on_the_old_one() {
    silence_kills();
    let scenario = Scenario::new("begun again", "1 MPS=true");
    let (old, ..) = running(&scenario);
    let judged = old.journal(&scenario.id());
    let settings = scenario.settings();
    let mut tried = 0;
    for at in 0.. {
        let (world, again) = (shared(&old), Rc::new(Cell::new(None)));
        let (told, requeued) = (Rc::clone(&again), scenario.clone());
        let mut node = Sim::new(&world, Trouble::MeetsAt(at)).meeting(move |world| {
            Sim::well(world).end(&requeued);
            let begun = Sim::well(world).begin(&requeued);
            told.set(Some(begun.is_ok()));
        });
        let ending = scenario.ending(&settings);
        let is_judged = |found: Option<&Journal>| found == judged.as_ref();
        job::end_if(&mut node, &scenario.id(), &ending, is_judged);
        match again.get() {
            None => break,
            // This end held the job's lock.
            Some(false) => continue,
            Some(true) => tried += 1,
        }
        let world = world.borrow();
        let state = world.state(&scenario.id());
        assert_eq!(state, Some(RecordState::Ready), "begun again at point {at}");
        assert_eq!(world.processes.len(), 3, "begun again at point {at}");
    }
    assert!(tried > 1, "only {tried} points");
}

/// The start under way is that of another job with the same id.
#[test]
fn a_start_is_not_given_up_by_a_verdict_on_an_earlier_job() {
    silence_kills();
    let earlier = Scenario::new("earlier", "1 MPS=true,MPS_THREADS=25");
    let judged = running(&earlier).0.journal(&earlier.id());
    let scenario = Scenario::new("later", "1 MPS=true");
    let (_, points, _) = running(&scenario);
    for at in 0..points {
        let world = shared(&before(&scenario));
        let (judged, settings, late) = (judged.clone(), scenario.settings(), scenario.clone());
        let mut node = Sim::new(&world, Trouble::MeetsAt(at)).meeting(move |world| {
            let ending = late.ending(&settings);
            let is_judged = |found: Option<&Journal>| found == judged.as_ref();
            job::end_if(&mut Sim::well(world), &late.id(), &ending, is_judged);
        });
        node.begin(&scenario)
            .unwrap_or_else(|e| panic!("{at}: {e:?}"));
        drop(node);
        let state = world.borrow().state(&scenario.id());
        assert_eq!(state, Some(RecordState::Ready), "{at}");
    }
}

/// A job that a GPU's account names, but that has no directory, may begin again between the look
/// and the cleanup.
#[test]
fn a_job_that_begins_again_keeps_the_gpu_that_an_earlier_start_of_it_left() {
    let scenario = Scenario::new("begun again", "1 MPS=true");
    let gpu = scenario.inventory.gpus[0].uuid.clone();
    let mut left = World::new(scenario.inventory.clone());
    let account = Account::enter(None, &scenario.id(), ComputeMode::Default);
    left.enter(&gpu, &account);
    let world = shared(&left);
    let cleanup = || Sim::well(&world);
    let stale = claim::stale(&mut cleanup()).expect("a look");
    assert_eq!(stale.len(), 1);
    cleanup().begin(&scenario).expect("it begins again");
    let up = world.borrow().picture();
    claim::remove_stale(&mut cleanup(), &stale[0]).expect("a cleanup");
    assert_eq!(world.borrow().picture(), up);
}

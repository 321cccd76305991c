//! Two jobs of one user that share an MPS: every point of what one does, against every point of
//! what the other does. The node is as before at the end. A job keeps the MPS that was promised to
//! its tasks until its own end.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;

use mpsd::job;
use mpsd::job::node::Role;
use mpsd_core::paths::JOURNAL;
use mpsd_core::record::RecordState;
use mpsd_core::{ComputeMode, JobId};
use tests::figures;
use tests::sim::scenario::{Scenario, UID, h200};
use tests::sim::{Living, SharedWorld, Sim, Trouble, World, Worlds, living, paths, silence_kills};

#[derive(Debug, Clone, Copy)]
enum Act {
    Begin,
    End,
}

use Act::{Begin, End};

/// Which jobs are up, what the first does, and what the second does.
const CASES: [([bool; 2], Act, Act); 4] = [
    ([false, false], Begin, Begin),
    ([true, false], End, Begin),
    ([false, true], Begin, End),
    ([true, true], End, End),
];

fn job(words: &str) -> Scenario {
    let config = "config=[ceilings]; mem = '25%'";
    let words = format!("1 MPS=true,MPS_THREADS=25 shared {words} {config}");
    Scenario::new("shared", &words)
}

fn jobs() -> [Scenario; 2] {
    [job("number=4711"), job("number=4712")]
}

fn before() -> World {
    World::new(jobs()[0].inventory.clone())
}

fn with(up: [bool; 2]) -> World {
    let world = Rc::new(RefCell::new(before()));
    for (job, _) in jobs().iter().zip(up).filter(|(_, up)| *up) {
        Sim::well(&world).begin(job).expect("it begins");
    }
    Rc::unwrap_or_clone(world).into_inner()
}

fn act(node: &mut Sim, act: Act, job: &Scenario) -> bool {
    match act {
        Begin => node.begin(job).is_ok(),
        End => node.end(job).is_clean(),
    }
}

/// A job whose tasks may run is served, and the next job that leaves sees it in the list.
#[track_caller]
fn assert_served(world: &SharedWorld, job: &Scenario, name: &str) {
    let world = world.borrow();
    let (id, mps) = (job.id(), job.mps_id());
    if world.state(&id) != Some(RecordState::Ready) {
        return;
    }
    let runs = world.has_process(&mps, |process| process.role == Role::Control);
    assert!(runs, "{name}: job {id} has lost its MPS");
    let sharers = world.text(&paths().job(&mps).sharers()).unwrap_or_default();
    assert!(sharers.contains(id.as_str()), "{name}: {id} in {sharers}");
    let journal = world.journal(&mps).expect("a journal");
    let limit = journal.record().daemons[0].memory[0].1;
    assert_eq!(limit, 143_771 / 4, "{name}");
}

fn has_control(world: &SharedWorld, mps: &JobId) -> bool {
    let is_control = |process: &Living| process.role == Role::Control;
    world.borrow().has_process(mps, is_control)
}

fn reconcile(world: &SharedWorld) {
    let mut node = Sim::well(world);
    for job in jobs() {
        let found = job::end_unused(&mut node, &job.mps_id());
        assert!(found.is_clean(), "{found:?}");
    }
}

#[track_caller]
fn restored(world: &SharedWorld, name: &str) {
    for job in jobs() {
        let found = Sim::well(world).end(&job);
        assert!(found.is_clean(), "{name}: {found:?}");
    }
    world.borrow_mut().settle();
    assert_eq!(world.borrow().picture(), before().picture(), "{name}");
}

fn copy(world: &SharedWorld) -> SharedWorld {
    Rc::new(RefCell::new(world.borrow().clone()))
}

/// The first job is killed at each of its points, and then the second at each of its own.
/// `reconcile` sometimes runs in between and after, as a timer does.
#[test]
fn two_jobs_that_share_are_undone_whole_wherever_both_are_killed() {
    silence_kills();
    let mut tried = 0;
    for (up, first, second) in CASES {
        let [one, two] = jobs();
        for (at, settled) in (0..).flat_map(|at| [(at, false), (at, true)]) {
            let world = Rc::new(RefCell::new(with(up)));
            let mut node = Sim::new(&world, Trouble::KillAt(at));
            if living(|| act(&mut node, first, &one)).is_some() {
                break;
            }
            drop(node);
            if settled {
                world.borrow_mut().settle();
            }
            let name = format!("{up:?}, {first:?} killed at {at}, settled {settled}");
            if matches!(second, End) {
                assert_served(&world, &two, &name);
            }
            let mut whole = Sim::new(&copy(&world), Trouble::None);
            act(&mut whole, second, &two);
            let last = whole.points();
            let mut ends = Worlds::default();
            for again in 0..=last {
                // Each pair only once: for every second one, what the first had started has gone
                // on.
                if again < last && (again % 2 == 0) == settled {
                    continue;
                }
                let world = copy(&world);
                let mut node = Sim::new(&world, Trouble::KillAt(again));
                let done = living(|| act(&mut node, second, &two));
                drop(node);
                assert_eq!(done.is_some(), again == last, "{name}, {again}");
                let name = format!("{name}, {second:?} killed at {again}");
                assert!(done != Some(false), "{name}: it failed");
                if (at + again) % 3 == 0 {
                    reconcile(&world);
                }
                if done.is_some() {
                    assert_served(&world, &two, &name);
                }
                let is_new = ends.add(&name, &world.borrow());
                if is_new {
                    restored(&world, &name);
                }
                tried += 1;
            }
        }
    }
    assert!(tried > 10_000, "only {tried} pairs");
    figures::tell("crash_point_pairs", tried);
}

/// At each point of the first job, the second does all of its own.
#[test]
fn two_jobs_that_share_meet_at_every_point() {
    silence_kills();
    let mut tried = 0;
    for (up, first, second) in CASES {
        let [one, two] = jobs();
        for at in 0.. {
            let world = Rc::new(RefCell::new(with(up)));
            let (met, other) = (Rc::new(Cell::new(None)), two.clone());
            let said = Rc::clone(&met);
            let mut node = Sim::new(&world, Trouble::MeetsAt(at)).meeting(move |world| {
                said.set(Some(act(&mut Sim::well(world), second, &other)));
            });
            let done = living(|| act(&mut node, first, &one));
            drop(node);
            let Some(met) = met.get() else { break };
            let name = format!("{up:?}, at {at} of {first:?} {second:?}: {met}, then {done:?}");
            // A job that meets the other's lock gives up here. On a node it waits.
            assert!(met || done == Some(true), "{name}: both failed");
            for job in [&one, &two] {
                assert_served(&world, job, &name);
            }
            reconcile(&world);
            for job in [&one, &two] {
                assert_served(&world, job, &name);
            }
            restored(&world, &name);
            tried += 1;
        }
    }
    assert!(tried > 100, "only {tried} meetings");
    figures::tell("crash_points", tried);
}

/// The jobs' directories are gone, as after a loss of their state.
#[test]
fn an_mps_whose_jobs_are_gone_is_ended_by_reconcile() {
    let world = Rc::new(RefCell::new(with([true, true])));
    let mps = jobs()[0].mps_id();
    for (job, runs) in jobs().iter().zip([true, false]) {
        let directory = paths().job(&job.id()).directory().to_owned();
        let lock = paths().job(&job.id()).lock();
        let is_kept = |path: &Path| !path.starts_with(&directory) && path != lock;
        world.borrow_mut().files.retain(|path, _| is_kept(path));
        reconcile(&world);
        assert_eq!(has_control(&world, &mps), runs, "after {}", job.id());
    }
    assert_eq!(world.borrow().picture(), before().picture());
}

/// The list could not be written when the job left (a full file system). Then the job was requeued
/// to this node.
#[test]
fn a_job_that_runs_again_keeps_no_mps_that_it_does_not_use() {
    let [one, two] = jobs();
    let auto = Scenario::new("auto", "2 MPS=auto tasks=1");
    let elsewhere = job("listed=1");
    for (again, name) in [(&elsewhere, "elsewhere"), (&auto, "without")] {
        let world = Rc::new(RefCell::new(World::new(auto.inventory.clone())));
        for job in [&one, &two] {
            Sim::well(&world).begin(job).expect("it begins");
        }
        let (mps, list) = (one.mps_id(), paths().job(&one.mps_id()).sharers());
        let listed = world.borrow().files[&list].clone();
        assert!(Sim::well(&world).end(&one).is_clean());
        world.borrow_mut().files.insert(list, listed);
        Sim::well(&world).begin(again).expect("it runs again");
        assert!(Sim::well(&world).end(&two).is_clean());
        assert!(!has_control(&world, &mps), "{name}");
        assert!(Sim::well(&world).end(again).is_clean());
    }
}

#[test]
fn a_job_finds_an_ended_mps_begun_again_and_keeps_the_others_in_the_list() {
    let [one, two] = jobs();
    let stop = |world: &mut World| world.processes.values_mut().for_each(|one| one.state = 'T');
    // The killed end of a last job may have told the daemon to quit.
    let leave = |world: &mut World| {
        let list = paths().job(&jobs()[0].mps_id()).sharers();
        world.files.remove(&list);
    };
    for (end, is_left) in [
        ((|world| world.processes.clear()) as fn(&mut World), false),
        (stop, false),
        (leave, true),
    ] {
        let world = Rc::new(RefCell::new(with([true, false])));
        end(&mut world.borrow_mut());
        let earlier: Vec<i32> = world.borrow().processes.keys().copied().collect();
        Sim::well(&world).begin(&two).expect("it begins");
        let is_gone = |pid: &i32| !world.borrow().processes.contains_key(pid);
        assert!(earlier.iter().all(is_gone));
        if is_left {
            restored(&world, "begun after an end");
            continue;
        }
        for job in [&one, &two] {
            assert_served(&world, job, "begun again");
        }
        let runs = |world: &World| world.processes.values().all(|one| one.state != 'T');
        assert!(runs(&world.borrow()), "{:?}", world.borrow().processes);
        assert!(Sim::well(&world).end(&two).is_clean());
        assert_served(&world, &one, "after the other's end");
        restored(&world, "begun again");
    }
    let other = JobId::parse("1").expect("an id");
    assert!(!other.is_shared() && one.mps_id().is_shared());
}

/// Its user can stop that begin, which holds the lock of the MPS for as long as it may take.
#[test]
fn a_job_ends_at_every_point_of_anothers_begin_of_an_mps_that_had_ended() {
    let [one, two] = jobs();
    let mut tried = 0;
    for at in 0.. {
        let world = Rc::new(RefCell::new(with([true, false])));
        world.borrow_mut().processes.clear();
        let (met, ends, begins) = (Rc::new(Cell::new(None)), one.clone(), two.id());
        let said = Rc::clone(&met);
        let mut node = Sim::new(&world, Trouble::MeetsAt(at)).meeting(move |world| {
            let list = world.borrow().text(&paths().job(&ends.mps_id()).sharers());
            let is_listed = list.is_some_and(|list| list.contains(begins.as_str()));
            said.set(Some((is_listed, act(&mut Sim::well(world), End, &ends))));
        });
        let begun = node.begin(&two).is_ok();
        drop(node);
        let Some((is_listed, ended)) = met.get() else {
            break;
        };
        let name = format!("at {at}: listed {is_listed}, ended {ended}, begun {begun}");
        // Until it is in the list it holds the lock for a moment only, for which an end on a node
        // waits.
        assert!(ended || !is_listed, "{name}");
        assert_served(&world, &two, &name);
        for job in [&one, &two].into_iter().skip(usize::from(ended)) {
            assert!(Sim::well(&world).end(job).is_clean(), "{name}");
        }
        world.borrow_mut().settle();
        assert_eq!(world.borrow().picture(), before().picture(), "{name}");
        tried += usize::from(is_listed);
    }
    assert!(tried > 20, "only {tried} points");
}

/// NVML takes longer to load than a join may take. Only a begin needs it.
#[test]
fn a_job_that_joins_asks_no_nvml() {
    let [one, two] = jobs();
    let world = Rc::new(RefCell::new(with([true, false])));
    world.borrow_mut().silent = true;
    Sim::well(&world).begin(&two).expect("it joins");
    assert_served(&world, &two, "joined");
    assert!(Sim::well(&world).end(&two).is_clean());
    world.borrow_mut().processes.clear();
    let failed = Sim::well(&world).begin(&two);
    let failed = failed.expect_err("a begin needs NVML");
    assert_eq!(failed.gpus, Vec::<String>::new(), "its plan as well");
    world.borrow_mut().silent = false;
    Sim::well(&world).begin(&two).expect("it begins");
    assert_served(&world, &one, "begun again");
    restored(&world, "joined without NVML");
}

/// It is planned by what the ledger says, and NVML is not asked again.
#[test]
fn a_job_that_joins_reads_its_warnings() {
    let many = |number| job(&format!("tasks=49 number={number}"));
    let world = Rc::new(RefCell::new(World::new(many(1).inventory)));
    for number in [1, 2] {
        Sim::well(&world).begin(&many(number)).expect("it begins");
        let told = world.borrow().complaints.clone();
        assert_eq!(told.len(), number as usize, "{told:?}");
    }
}

/// A shared MPS is proved as soon as it is begun, which takes longer than srun's prolog is to wait.
#[test]
fn a_prologue_that_does_not_wait_leaves_a_shared_mps_to_the_process_that_goes_on() {
    silence_kills();
    let detached = job("detached");
    for at in 0.. {
        let world = Rc::new(RefCell::new(before()));
        let mut node = Sim::new(&world, Trouble::KillAt(at));
        let done = living(|| node.begin(&detached).is_ok());
        assert_eq!(done, None, "it never divided");
        if world.borrow().starter.is_some() {
            let none = world.borrow().processes.is_empty();
            assert!(none, "begun before the prologue returned");
            break;
        }
    }
}

/// NVIDIA's daemon has started its server again, which the journal does not know.
#[test]
fn a_job_that_leaves_ends_no_server_of_the_others() {
    let [one, two] = jobs();
    let world = Rc::new(RefCell::new(with([true, true])));
    let is_server = |process: &Living| process.role == Role::Server;
    let again = {
        let mut world = world.borrow_mut();
        let found = world
            .processes
            .iter()
            .find(|(_, process)| is_server(process));
        let pid = *found.expect("a server").0;
        let server = world.processes.remove(&pid).expect("a server");
        world.spawn(server)
    };
    assert!(Sim::well(&world).end(&one).is_clean());
    assert!(world.borrow().processes.contains_key(&again));
    assert_served(&world, &two, "after the other's end");
    restored(&world, "a server that was started again");
}

/// It may say that the job shares the MPS.
#[test]
fn a_job_whose_journal_cannot_be_read_keeps_its_mps() {
    let [one, two] = jobs();
    let world = Rc::new(RefCell::new(with([true, true])));
    let journal = paths().job(&two.id()).file(JOURNAL);
    world.borrow_mut().put(journal, "{");
    assert!(Sim::well(&world).end(&one).is_clean());
    reconcile(&world);
    assert_served(&world, &two, "after the other's end");
}

/// The indices there are another driver's.
#[test]
fn a_job_does_not_believe_the_gpus_of_an_mps_that_has_ended() {
    let job = |number, index| {
        let words = format!("2 MPS=true shared listed={index} number={number}");
        Scenario::new("shared", &words)
    };
    let world = Rc::new(RefCell::new(World::new(job(1, 0).inventory)));
    let mps_of = |index| JobId::shared(UID, &h200(index).uuid);
    let has_control = |index| has_control(&world, &mps_of(index));
    let begin = |number, index| Sim::well(&world).begin(&job(number, index));
    begin(1, 0).expect("the first begins");
    world.borrow_mut().processes.clear();
    for gpu in &mut world.borrow_mut().inventory.gpus {
        gpu.index = 1 - gpu.index;
    }
    begin(2, 0).expect("the second begins");
    assert!(has_control(1) && !has_control(0));
    begin(3, 1).expect("the third begins");
    assert!(has_control(0), "on its own GPU");
}

/// Otherwise its next client would get no context. None of its processes has one now, as before its
/// first client.
#[test]
fn no_other_job_makes_the_gpu_of_a_shared_mps_exclusive() {
    let world = Rc::new(RefCell::new(with([true, false])));
    let idle = |process: &mut Living| process.gpus.clear();
    world.borrow_mut().processes.values_mut().for_each(idle);
    let alone = Scenario::new("alone", "1 MPS=true number=4713");
    Sim::well(&world).begin(&alone).expect("it begins");
    assert!(world.borrow().modes.is_empty());
    assert!(Sim::well(&world).end(&alone).is_clean());
    restored(&world, "beside one that wanted its GPU alone");
    Sim::well(&world).begin(&alone).expect("it begins");
    let modes = world.borrow().modes.clone();
    let exclusive = [&ComputeMode::ExclusiveProcess];
    assert!(modes.values().eq(exclusive), "without a shared MPS");
}

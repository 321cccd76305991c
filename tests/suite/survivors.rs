//! What survives SIGKILL, and a silent NVML. A node is drained only for what root started or
//! proved, if the vendor's driver holds it in every look, and still a minute later.

use std::cell::RefCell;
use std::rc::Rc;

use mpsd::job::node::{Rung, Thread, Waiting};
use mpsd::job::{FailedStart, Findings, evidence};
use mpsd_core::failure::FailureKind;
use mpsd_core::paths::JOURNAL;
use tests::sim::scenario::{Scenario, UID};
use tests::sim::{SharedWorld, Sim, World, paths};

const IN_DRIVER: &str =
    "[<0>] os_acquire_semaphore+0x1/0x2 [nvidia]\n[<0>] nvidia_close+0x1/0x2 [nvidia]\n";
const LOOKUP: &str = "[<0>] d_alloc_parallel+0x3c/0x120\n[<0>] path_openat+0x8f4/0x920\n";
const BELOW: &str = "[<0>] request_wait_answer+0x11e/0x220\n[<0>] filemap_fault+0x1/0x2\n[<0>] nvidia_ioctl+0x1/0x2 [nvidia]\n";

fn thread(state: char, stack: &str) -> Vec<Thread> {
    let stack = stack.to_owned();
    vec![Thread { state, stack }]
}

/// A node with a job whose processes survive everything, in these states.
fn stuck(looks: Vec<Vec<Thread>>) -> (SharedWorld, Scenario) {
    let scenario = Scenario::new("stuck", "1 MPS=true");
    let mut world = World::new(scenario.inventory.clone());
    world.stubborn = Some(Rung::Kill);
    world.looks = looks;
    let world = Rc::new(RefCell::new(world));
    begin(&world, &scenario).expect("prologue");
    (world, scenario)
}

fn suspicions(world: &SharedWorld) -> Option<String> {
    let ledger = world.borrow().text(&paths().run().join("ledger"))?;
    ledger.contains("\"suspect\"").then_some(ledger)
}

fn begin(world: &SharedWorld, scenario: &Scenario) -> Result<(), FailedStart> {
    Sim::well(world).begin(scenario)
}

fn end(world: &SharedWorld, scenario: &Scenario) -> Findings {
    Sim::well(world).end(scenario)
}

fn later(world: &SharedWorld, scenario: &Scenario, seconds: u64) -> Vec<String> {
    world.borrow_mut().now += seconds;
    evidence::look_again(&mut Sim::well(world), &scenario.settings())
}

fn drains(world: &SharedWorld) -> Vec<String> {
    world.borrow().drains.clone()
}

#[track_caller]
fn is_undetermined(failed: &FailedStart) {
    let kind = failed.failure.kind();
    assert_eq!(kind, FailureKind::Undetermined, "{failed:?}");
}

fn is_refused(world: &SharedWorld) -> bool {
    let next = Scenario::new("next", "1 MPS=true step");
    let failed = begin(world, &next).expect_err("no job with MPS until the second look");
    is_undetermined(&failed);
    failed.failure.to_string().contains("hangs in the driver")
}

#[test]
fn what_the_driver_holds_drains_at_the_second_look_within_two_minutes() {
    let (world, scenario) = stuck(vec![thread('D', IN_DRIVER)]);
    let began = std::time::Instant::now();
    let found = end(&world, &scenario);
    let took = began.elapsed().as_secs_f32();
    assert!(found.faults.is_empty(), "one look: {found:?}");
    let survivors = found.undetermined.iter();
    for survivor in survivors.filter(|u| u.why.starts_with("state ")) {
        let seconds = survivor.why.split_whitespace().nth(3);
        let seconds: f32 = seconds.and_then(|word| word.parse().ok()).expect("seconds");
        assert!(seconds <= took + 0.1, "the end took {took} s: {survivor}");
    }
    let mut suspected = found.undetermined.clone();
    suspected.retain(|u| u.why.contains("looked at again"));
    assert_eq!(suspected.len(), 3, "all three: {found:?}");
    assert!(drains(&world).is_empty());
    assert!(is_refused(&world));
    let asks_the_timer = || world.borrow().files.contains_key(&paths().look_again());
    assert!(asks_the_timer());
    assert!(later(&world, &scenario, 30).is_empty(), "too early");
    assert!(is_refused(&world));
    later(&world, &scenario, 33);
    let drains = drains(&world);
    assert_eq!(drains.len(), 3, "{drains:?}");
    for (drain, role) in drains.iter().zip(["mpsd", "mps-control", "mps-server"]) {
        let begin = format!("mpsd: job 4711: {role} ");
        assert!(drain.starts_with(&begin), "{drain}");
        assert!(drain.ends_with(": state D after 63 s"), "{drain}");
    }
    assert_eq!(world.borrow().drained, 1, "counted once, for one job");
    assert!(suspicions(&world).is_none());
    assert!(!asks_the_timer());
}

#[test]
fn another_end_does_not_put_the_second_look_off() {
    let (world, scenario) = stuck(vec![thread('D', IN_DRIVER)]);
    end(&world, &scenario);
    world.borrow_mut().now += 30;
    end(&world, &scenario);
    later(&world, &scenario, 33);
    let drains = drains(&world);
    let ends = |drain: &String| drain.ends_with(": state D after 63 s");
    assert!(!drains.is_empty() && drains.iter().all(ends), "{drains:?}");
}

#[test]
fn what_the_driver_has_let_go_of_is_forgotten_and_the_node_takes_jobs_again() {
    let (world, scenario) = stuck(vec![thread('D', IN_DRIVER)]);
    end(&world, &scenario);
    world.borrow_mut().processes.clear();
    later(&world, &scenario, 61);
    assert!(drains(&world).is_empty());
    assert!(end(&world, &scenario).is_clean());
    world.borrow_mut().stubborn = None;
    begin(&world, &Scenario::new("next", "1 MPS=true step")).expect("the node takes jobs again");
}

#[test]
fn a_node_without_a_timer_looks_again_at_its_next_job() {
    let (world, scenario) = stuck(vec![thread('D', IN_DRIVER)]);
    end(&world, &scenario);
    world.borrow_mut().now += 61;
    world.borrow_mut().deaf = true;
    let _ = begin(&world, &Scenario::new("next", "1 MPS=true step"));
    assert_eq!(drains(&world).len(), 3, "{:?}", drains(&world));
}

#[test]
fn what_a_user_can_bring_about_drains_nothing_however_long_it_lasts() {
    let once = |n: usize| {
        let mut looks = vec![thread('D', IN_DRIVER); n];
        looks.push(thread('R', ""));
        looks
    };
    for (what, looks) in [
        ("starved", vec![thread('R', "")]),
        ("stopped", vec![thread('T', "")]),
        ("asleep", vec![thread('S', IN_DRIVER)]),
        ("a hung file system", vec![thread('D', LOOKUP)]),
        ("memory behind a file system", vec![thread('D', BELOW)]),
        ("a kernel that shows no stacks", vec![thread('D', "")]),
        ("in the driver now and then", once(4)),
    ] {
        let (world, scenario) = stuck(looks);
        for _ in 0..3 {
            let found = end(&world, &scenario);
            let stays = found.faults.is_empty() && !found.is_clean();
            assert!(stays, "{what}: {found:?}");
            later(&world, &scenario, 61);
        }
        assert!(drains(&world).is_empty(), "{what}");
        assert!(suspicions(&world).is_none(), "{what}");
    }
}

#[test]
fn a_process_that_root_did_not_prove_is_no_evidence_whatever_holds_it() {
    // The mpsd that root started proves nothing of the others.
    for is_started in [false, true] {
        let (world, scenario) = stuck(vec![thread('D', IN_DRIVER)]);
        // The user's own process with the vendor's file and the job's pipe directory looks the same
        // from outside.
        let mut journal = world.borrow().journal(&scenario.id()).expect("journal");
        journal.proved.clear();
        journal.supervisor = journal.supervisor.filter(|_| is_started);
        let text = journal.to_text().expect("text");
        let path = paths().job(&scenario.id()).file(JOURNAL);
        world.borrow_mut().put(path, text);
        end(&world, &scenario);
        later(&world, &scenario, 61);
        let drains = drains(&world);
        assert_eq!(drains.len(), usize::from(is_started), "{drains:?}");
    }
}

#[test]
fn a_lock_of_the_drivers_that_a_users_process_may_hold_is_no_evidence() {
    let stranger = UID + 9;
    for (what, uid, state, stack, count) in [
        ("a stranger: withheld memory", stranger, 'D', BELOW, 0),
        ("the same, not yet woken", stranger, 'S', BELOW, 0),
        ("the user's own: shared memory", UID, 'D', LOOKUP, 0),
        ("a stranger: its own disk", stranger, 'D', LOOKUP, 3),
        ("another victim of the driver", UID, 'D', IN_DRIVER, 3),
        ("the user's own in the driver", UID, 'S', IN_DRIVER, 3),
    ] {
        let (world, scenario) = stuck(vec![thread('D', IN_DRIVER)]);
        let threads = thread(state, stack);
        world.borrow_mut().waiting = Some(vec![Waiting { uid, threads }]);
        end(&world, &scenario);
        later(&world, &scenario, 61);
        let drains = drains(&world);
        assert_eq!(drains.len(), count, "{what}: {drains:?}");
    }
    let (world, scenario) = stuck(vec![thread('D', IN_DRIVER)]);
    world.borrow_mut().waiting = None;
    end(&world, &scenario);
    later(&world, &scenario, 61);
    assert!(drains(&world).is_empty(), "processes not read in time");
}

#[test]
fn a_silent_nvml_drains_only_where_the_driver_holds_it_twice() {
    for (what, look, count) in [
        ("in the driver", thread('D', IN_DRIVER), 1),
        ("starved", thread('R', ""), 0),
        ("stopped", thread('T', ""), 0),
        ("asleep", thread('S', ""), 0),
    ] {
        let scenario = Scenario::new("silent", "1 MPS=true");
        let mut world = World::new(scenario.inventory.clone());
        (world.silent, world.looks) = (true, vec![look]);
        let world = Rc::new(RefCell::new(world));
        let failed = begin(&world, &scenario).expect_err("NVML is silent");
        is_undetermined(&failed);
        assert!(drains(&world).is_empty(), "{what}");
        later(&world, &scenario, 61);
        let found = drains(&world);
        assert_eq!(found.len(), count, "{what}: {found:?}");
        let line = "NVML: no answer for 61 s, in the driver";
        assert!(found.iter().all(|drain| drain.contains(line)));
    }
}

/// The survivors hold the directories and the GPUs that a second start would use.
#[test]
fn a_prologue_called_again_starts_nothing_beside_what_it_cannot_take_down() {
    let (world, scenario) = stuck(Vec::new());
    let before = world.borrow().processes.clone();
    let failed = begin(&world, &scenario).expect_err("the earlier processes are there");
    is_undetermined(&failed);
    let world = world.borrow();
    assert_eq!(world.processes, before);
    let journal = world.journal(&scenario.id());
    assert!(journal.is_some(), "the end that finishes needs it");
}

fn sharing<const N: usize>(numbers: [u32; N]) -> (SharedWorld, [Scenario; N]) {
    let words = |number| format!("1 MPS=true shared number={number}");
    let jobs = numbers.map(|number| Scenario::new("shared", &words(number)));
    let mut world = World::new(jobs[0].inventory.clone());
    world.stubborn = Some(Rung::Kill);
    let world = Rc::new(RefCell::new(world));
    for job in &jobs {
        begin(&world, job).expect("prologue");
    }
    (world, jobs)
}

/// Only the last job's end can find the MPS in the driver. The reason names the jobs that shared it
/// when it was seen to hang.
#[test]
fn an_mps_that_jobs_share_and_the_driver_holds_drains_once_for_all_of_them() {
    let (world, jobs) = sharing([4711, 4712, 4713, 4714]);
    let looks = |look| world.borrow_mut().looks = vec![look];
    assert!(end(&world, &jobs[0]).is_clean());
    looks(thread('D', IN_DRIVER));
    assert!(end(&world, &jobs[1]).is_clean());
    assert!(end(&world, &jobs[2]).is_clean());
    assert!(suspicions(&world).is_none());
    assert!(end(&world, &jobs[3]).faults.is_empty(), "one look");
    later(&world, &jobs[3], 61);
    let drains = drains(&world);
    let mps = jobs[0].mps_id();
    let is_its = |found: &str| {
        found.starts_with("mpsd: jobs 4712, 4713, 4714: mpsd ")
            && found.contains(&format!(" of shared MPS {mps}: state D"))
    };
    assert!(is_its(&drains[0]), "{drains:?}");
    world.borrow_mut().processes.clear();
    assert!(end(&world, &jobs[3]).is_clean());
    later(&world, &jobs[3], 61);
    assert_eq!(world.borrow().drains, drains);
}

/// The driver held it for a while, and released it before the last job ended or before it hung for
/// good.
#[test]
fn a_job_that_ended_before_a_shared_mps_hung_for_good_is_not_named() {
    let (world, jobs) = sharing([4711, 4712, 4713]);
    let looks = |look| world.borrow_mut().looks = vec![look];
    for (job, look) in jobs.iter().zip([thread('D', IN_DRIVER), thread('S', "")]) {
        looks(look);
        assert!(end(&world, job).is_clean());
    }
    looks(thread('D', IN_DRIVER));
    end(&world, &jobs[2]);
    later(&world, &jobs[2], 61);
    let drains = drains(&world);
    assert!(drains[0].starts_with("mpsd: job 4713: mpsd "), "{drains:?}");
}

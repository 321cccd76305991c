//! What becomes of a job whose start failed, and of its node.

use batch::Scheduler;
use mpsd::job;
use mpsd::job::outcome::{Failing, UNCOUNTED, exit_code, of_failure, record_failure};
use mpsd_core::failure::{Evidence, FailureKind, Fault, Undetermined};
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{Failure, JobId};
use tests::sim::scenario::{Scenario, UID};
use tests::sim::{Sim, Trouble, paths};

use crate::crash::{before, restored, shared};

/// It may have brought the start down, even if it has ended since.
#[test]
fn a_start_that_fails_may_be_its_users_doing_if_a_process_of_theirs_was_there() {
    let plain = Scenario::new("told", "MPS=true", 1);
    for is_seen in [false, true] {
        let world = shared(&before(&plain));
        world.borrow_mut().stillborn = true;
        world.borrow_mut().user_is_seen = u32::from(is_seen);
        let failed = Sim::well(&world).begin(&plain).expect_err("stillborn");
        assert!(
            matches!(&failed.failure, Failure::Undetermined(why) if why.by_user == is_seen),
            "{failed:?}"
        );
        restored(&world, &plain, "stillborn");
    }
}

#[test]
fn a_torque_prologue_holds_its_exit_back_unless_the_node_is_drained() {
    for (trouble, deaf, sister, code, waits) in [
        (Trouble::UndeterminedAt(0), false, false, 2, 1),
        (Trouble::FaultAt(0), false, false, 2, 0),
        (Trouble::FaultAt(0), true, false, 2, 1),
        // A failing sister takes its node down, and a job may be deleted with it. So the tasks are
        // told instead, unless a broken node stays in service.
        (Trouble::UndeterminedAt(0), false, true, 0, 0),
        (Trouble::FaultAt(0), false, true, 0, 0),
        (Trouble::FaultAt(0), true, true, 2, 1),
    ] {
        let scenario = Scenario::new("torque", "MPS=true", 1).of(Scheduler::Torque, sister);
        let world = shared(&before(&scenario));
        world.borrow_mut().deaf = deaf;
        let begun = Sim::new(&world, trouble).begun(&scenario);
        let case = format!("{trouble:?}, deaf {deaf}, sister {sister}");
        assert_eq!(begun.code, code, "{case}");
        assert_eq!(world.borrow().waits, waits, "{case}");
        let told = world.borrow().state(&scenario.id()).is_some();
        assert_eq!(told, code == 0, "{case}: a record for the tasks");
        assert!(world.borrow().requeued.is_empty(), "{case}");
        let is_drained = trouble == Trouble::FaultAt(0) && !deaf;
        assert_eq!(world.borrow().drained, usize::from(is_drained), "{case}");
    }
}

#[test]
fn a_lost_record_on_pbs_is_no_matter_of_its_script_which_the_exit_code_ends() {
    // OpenPBS's hook does not let this try count: the user had nothing there.
    for (scheduler, code) in [(Scheduler::Torque, 2), (Scheduler::OpenPbs, 3)] {
        let mut scenario = Scenario::new("pbs", "MPS=true", 1).of(scheduler, false);
        scenario.record = true;
        let world = shared(&before(&scenario));
        world.borrow_mut().no_room = true;
        let begun = Sim::new(&world, Trouble::UndeterminedAt(0)).begun(&scenario);
        assert_eq!(begun.code, code, "{scheduler}");
        let log = world.borrow().log.clone();
        let has = |words| log.iter().any(|line| line.contains(words));
        assert!(
            has("record for the job's tasks") && !has("script"),
            "{log:?}"
        );
    }
}

/// OpenPBS tries it again, and its administrator would not hear of it.
#[test]
fn a_node_that_fails_a_start_shows_why_unless_the_site_drains_nothing() {
    for (config, shown) in [("", 1), ("[drain]\nenabled = false", 0)] {
        let scenario = Scenario::new("shown", "MPS=true", 1).config(config);
        let scenario = scenario.of(Scheduler::OpenPbs, false).recorded();
        let world = shared(&before(&scenario));
        let begun = Sim::new(&world, Trouble::UndeterminedAt(0)).begun(&scenario);
        assert_eq!(begun.code, UNCOUNTED);
        assert_eq!(world.borrow().remarks.len(), shown, "{config}");
    }
}

/// Its file may name no directory, or another node's.
#[test]
fn an_unusable_configuration_is_shown_drains_nothing_and_leaves_no_record_in_a_place_not_known() {
    for (is_recordable, scheduler) in [
        (false, Scheduler::Torque),
        (true, Scheduler::Torque),
        (false, Scheduler::OpenPbs),
    ] {
        let scenario = Scenario::new("unusable", "MPS=true", 1)
            .of(scheduler, false)
            .recorded();
        let job = scenario.job().expect("job");
        let known = Failing {
            prepared: None,
            is_recordable,
            ..Failing::of(&job, true)
        };
        let failure = Failure::from(Fault::new(Evidence::Configuration, "mpsd.toml", "no"));
        let world = shared(&before(&scenario));
        let code = of_failure(&mut Sim::well(&world), &known, &failure.into());
        let expected = match scheduler {
            Scheduler::OpenPbs => UNCOUNTED,
            _ => 2,
        };
        let world = world.borrow();
        let done = (code, world.remarks.len(), world.drained);
        assert_eq!(done, (expected, 1, 0), "{scheduler}");
        assert_eq!(world.record(&scenario.id()).is_some(), is_recordable);
    }
}

/// Slurm's plugin fails the prolog by it, which drains. OpenPBS's hook does not count a try that
/// only the node can have failed.
#[test]
fn a_record_says_whether_the_node_drains_and_whether_the_user_can_be_the_cause() {
    let fault = |evidence| Failure::from(Fault::new(evidence, "node", "broken"));
    let unknown = |by_user| {
        let mut unknown = Undetermined::new("start", "slow");
        unknown.by_user = by_user;
        Failure::from(unknown)
    };
    let scenario = Scenario::new("recorded", "MPS=true", 1);
    for (failure, kind, of_node) in [
        (fault(Evidence::Storage), FailureKind::Fault, true),
        (
            fault(Evidence::Configuration),
            FailureKind::Undetermined,
            true,
        ),
        (unknown(false), FailureKind::Undetermined, true),
        (unknown(true), FailureKind::Undetermined, false),
    ] {
        let world = shared(&before(&scenario));
        let mut node = Sim::well(&world);
        assert!(record_failure(&mut node, &scenario.id(), UID, &failure));
        let record = world.borrow().record(&scenario.id()).expect("a record");
        let said = (record.kind, record.of_node);
        assert_eq!(said, (Some(kind), of_node), "{failure}");
        let pbs = scenario
            .clone()
            .of(Scheduler::OpenPbs, false)
            .job()
            .expect("job");
        let code = exit_code(&pbs.submission, true, &failure);
        assert_eq!(code, if of_node { UNCOUNTED } else { 2 }, "{failure}");
    }
}

/// Jobs without MPS run well there.
#[test]
fn a_node_that_is_not_set_up_for_a_job_is_not_drained() {
    let mut scenario = Scenario::new("unattached", "MPS=true", 1).of(Scheduler::Torque, true);
    scenario.unattached = Some(true);
    let world = shared(&before(&scenario));
    let failed = Sim::well(&world)
        .begun(&scenario)
        .failed
        .expect("no starter")
        .failure;
    assert_eq!(failed.kind(), FailureKind::Fault, "{failed}");
    assert_eq!(world.borrow().drains, Vec::<String>::new());
}

/// Its user reads nothing on a sister, and it may do without.
#[test]
fn a_job_of_auto_whose_tasks_could_run_outside_its_mps_runs_without() {
    for sister in [false, true] {
        let mut scenario = Scenario::new("unattached", "MPS=auto", 1).of(Scheduler::Torque, sister);
        scenario.unattached = Some(true);
        let scenario = scenario.tasks(4);
        let world = shared(&before(&scenario));
        let begun = Sim::well(&world).begun(&scenario);
        assert!(begun.failed.is_none() && begun.code == 0, "{begun:?}");
        let state = world.borrow().state(&scenario.id());
        assert_eq!(state, Some(RecordState::Unneeded), "sister {sister}");
        assert!(world.borrow().processes.is_empty(), "sister {sister}");
    }
}

/// Its user knows best whether TM starts its tasks.
#[test]
fn a_job_whose_tasks_can_be_attached_by_hand_begins_and_its_user_is_told_how() {
    let mut scenario = Scenario::new("unattached", "MPS=true", 1).of(Scheduler::Torque, false);
    scenario.unattached = Some(false);
    let world = shared(&before(&scenario));
    let begun = Sim::well(&world).begun(&scenario);
    assert!(begun.failed.is_none() && begun.code == 0, "{begun:?}");
    let world = world.borrow();
    for told in [&world.complaints, &world.log] {
        let of_tasks = told.iter().filter(|line| line.contains("mpsctl exec"));
        assert_eq!(of_tasks.count(), 1, "{told:?}");
    }
}

/// It would be refused again.
#[test]
fn a_refused_job_is_neither_put_back_nor_held() {
    for scheduler in [Scheduler::Slurm, Scheduler::Torque, Scheduler::OpenPbs] {
        let refused = Scenario::new("refused", "MPS=true,MPS_MEM=8G", 1);
        let scenario = refused
            .config("[ceilings]\nmem = \"4G\"")
            .of(scheduler, false);
        let world = shared(&before(&scenario));
        let begun = Sim::well(&world).begun(&scenario);
        let failed = begun.failed.expect("more than the site allows").failure;
        assert_eq!(failed.kind(), FailureKind::Refusal, "{failed}");
        let world = world.borrow();
        assert_eq!((world.requeued.len(), world.waits), (0, 0), "{scheduler}");
        let told = world.reports.iter().map(|report| &report.not_started);
        let told: Vec<_> = told.flatten().collect();
        assert_eq!(told, [&failed.to_string()], "{scheduler}");
    }
}

/// The plugin fails the prolog of a job on a broken node by its record.
#[test]
fn a_job_on_a_broken_node_whose_record_is_lost_goes_back_into_slurms_queue() {
    let scenario = Scenario::new("lost", "MPS=true", 1).recorded();
    for (no_room, requeued) in [(false, 0), (true, 1)] {
        let world = shared(&before(&scenario));
        world.borrow_mut().no_room = no_room;
        let begun = Sim::new(&world, Trouble::FaultAt(0)).begun(&scenario);
        let world = world.borrow();
        let orders = (world.drains.len(), world.requeued.len());
        assert_eq!(orders, (1, requeued), "{begun:?}");
        assert!(!world.log.concat().contains("script"), "{:?}", world.log);
    }
}

/// The daemons of steps are outside the limits of their job.
#[test]
fn a_job_and_a_user_have_a_bounded_number_of_steps_with_an_mps_of_their_own_on_a_node() {
    let scenario = Scenario::new("step", "MPS=true", 1).step();
    let world = shared(&before(&scenario));
    let begin = |uid: u32, whole: u32, number: u32| {
        let mut job = scenario.job().expect("job");
        job.user.uid = uid;
        job.submission.job = JobId::parse(&format!("{whole}.{number}")).expect("a step");
        let begun = job::begin(&mut Sim::well(&world), &job, &scenario, scenario.when);
        let is_there = world.borrow().journal(&job.submission.job).is_some();
        assert_eq!(is_there, begun.code == 0, "{whole}.{number}: {begun:?}");
        begun
            .failed
            .map(|failed| failed.failure.to_string())
            .unwrap_or_default()
    };
    // Steps that have none do not count.
    for number in 0..40 {
        let step = JobId::parse(&format!("1.9{number}")).expect("a step");
        let why = "no need".to_owned();
        let left_out = Record::without_mps(step.clone(), 1001, RecordState::Unneeded, why);
        let text = serde_json::to_string(&left_out).expect("JSON");
        let (files, mut world) = (paths().job(&step), world.borrow_mut());
        world.files.insert(files.directory().to_owned(), None);
        world.put(files.record(), text);
    }
    for (whole, number) in (1..=4).flat_map(|whole| (0..16).map(move |number| (whole, number))) {
        assert_eq!(begin(1001, whole, number), "");
    }
    for (uid, whole, told) in [
        (1001, 1, "16 of its steps have one on this node already"),
        (
            1001,
            5,
            "64 steps of your jobs have one on this node already",
        ),
        (1002, 6, ""),
    ] {
        assert!(begin(uid, whole, 16).contains(told), "{uid} {whole}");
    }
    assert_eq!(begin(1002, 6, 17), "");
    assert!(world.borrow().drains.is_empty());
}

//! What becomes of a job whose start failed, and of its node.

use mpsd::job;
use mpsd::job::outcome::{Failing, UNCOUNTED, exit_code, of_failure, record_failure};
use mpsd_core::failure::{Evidence, FailureKind, Fault, Undetermined};
use mpsd_core::record::{Record, RecordState};
use mpsd_core::{Failure, JobId};
use tests::sim::scenario::{Scenario, UID};
use tests::sim::{Sim, paths};

use crate::crash::{before, restored, shared};

/// It may have brought the start down, even if it has ended since.
#[test]
fn a_start_that_fails_may_be_its_users_doing_if_a_process_of_theirs_was_there() {
    let plain = Scenario::new("told", "1 MPS=true");
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

/// Its file may name no directory, or another node's.
#[test]
fn an_unusable_configuration_is_shown_drains_nothing_and_leaves_no_record_in_a_place_not_known() {
    for (is_recordable, scheduler, expected) in [
        (false, "torque", 2),
        (true, "torque", 2),
        (false, "openpbs", UNCOUNTED),
    ] {
        let words = format!("1 MPS=true {scheduler} recorded");
        let scenario = Scenario::new("unusable", &words);
        let job = scenario.job().expect("job");
        let known = Failing {
            prepared: None,
            is_recordable,
            ..Failing::of(&job, true)
        };
        let failure = Failure::from(Fault::new(Evidence::Configuration, "mpsd.toml", "no"));
        let world = shared(&before(&scenario));
        let code = of_failure(&mut Sim::well(&world), &known, &failure.into());
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
    const UNKNOWN: FailureKind = FailureKind::Undetermined;
    let fault = |evidence| Failure::from(Fault::new(evidence, "node", "broken"));
    let unknown = |by_user| {
        let mut unknown = Undetermined::new("start", "slow");
        unknown.by_user = by_user;
        Failure::from(unknown)
    };
    let scenario = Scenario::new("recorded", "1 MPS=true");
    for (failure, kind, of_node) in [
        (fault(Evidence::Storage), FailureKind::Fault, true),
        (fault(Evidence::Configuration), UNKNOWN, true),
        (unknown(false), UNKNOWN, true),
        (unknown(true), UNKNOWN, false),
    ] {
        let world = shared(&before(&scenario));
        let mut node = Sim::well(&world);
        assert!(record_failure(&mut node, &scenario.id(), UID, &failure));
        let record = world.borrow().record(&scenario.id()).expect("a record");
        let said = (record.kind, record.of_node);
        assert_eq!(said, (Some(kind), of_node), "{failure}");
        let pbs = Scenario::new("openpbs", "1 MPS=true openpbs");
        let pbs = pbs.job().expect("job");
        let code = exit_code(&pbs.submission, true, &failure);
        assert_eq!(code, if of_node { UNCOUNTED } else { 2 }, "{failure}");
    }
}

/// The daemons of steps are outside the limits of their job.
#[test]
fn a_job_and_a_user_have_a_bounded_number_of_steps_with_an_mps_of_their_own_on_a_node() {
    let scenario = Scenario::new("step", "1 MPS=true step");
    let world = shared(&before(&scenario));
    let begin = |uid: u32, whole: u32, number: u32| {
        let mut job = scenario.job().expect("job");
        job.user.uid = uid;
        job.submission.job = JobId::parse(&format!("{whole}.{number}")).expect("a step");
        let begun = job::begin(&mut Sim::well(&world), &job, &scenario, scenario.when);
        let is_there = world.borrow().journal(&job.submission.job).is_some();
        assert_eq!(is_there, begun.code == 0, "{whole}.{number}: {begun:?}");
        let failed = begun.failed.map(|failed| failed.failure.to_string());
        failed.unwrap_or_default()
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
    let already = "have one on this node already";
    for (uid, whole, told) in [
        (1001, 1, "16 of its steps"),
        (1001, 5, "64 steps of your jobs"),
    ] {
        let told = format!("{told} {already}");
        assert!(begin(uid, whole, 16).contains(&told), "{uid} {whole}");
    }
    assert_eq!(begin(1002, 6, 16), "");
    assert_eq!(begin(1002, 6, 17), "");
    assert!(world.borrow().drains.is_empty());
}

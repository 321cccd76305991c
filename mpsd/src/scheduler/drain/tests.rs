//! The order of a drain, against a controller that keeps what it is told or refuses it.

use super::*;
use crate::scheduler::control::Shown;
use mpsd_core::failure::Evidence;
use std::cell::RefCell;
use std::os::unix::fs::PermissionsExt;

const OURS: &str = "mpsd: job 1: x";

/// A controller that may take orders without obeying, as Torque's pbsnodes does.
struct Fake {
    shown: RefCell<Shown>,
    obeys: bool,
}

impl Fake {
    fn new(drained: bool, reason: Option<&str>, obeys: bool) -> Self {
        let reason = reason.map(str::to_owned);
        Self {
            shown: RefCell::new(Shown { drained, reason }),
            obeys,
        }
    }

    fn shows(&self) -> (bool, Option<String>) {
        let shown = self.shown.borrow().clone();
        (shown.drained, shown.reason)
    }
}

impl Controller for Fake {
    fn shown(&self) -> Result<Shown, String> {
        Ok(self.shown.borrow().clone())
    }
    fn take_out(&self, reason: Option<&str>) -> Result<String, String> {
        if self.obeys {
            let mut shown = self.shown.borrow_mut();
            shown.drained = true;
            shown.reason = reason.map(str::to_owned).or(shown.reason.take());
        }
        Ok(String::new())
    }
    fn put_back(&self, clear: bool) -> Result<String, String> {
        if self.obeys {
            let mut shown = self.shown.borrow_mut();
            shown.drained = false;
            shown.reason = shown.reason.take().filter(|_| !clear);
        }
        Ok(String::new())
    }
}

fn marker(reason: &str) -> Marker {
    Marker {
        version: markers::VERSION,
        scheduler: Scheduler::Torque,
        node: "n1".to_owned(),
        reason: reason.to_owned(),
        note: None,
        job: "1".to_owned(),
        gpus: Vec::new(),
        delivered: false,
        slurm_conf: None,
        when: 1,
    }
}

#[test]
fn anothers_reason_is_never_written_over() {
    let node = Fake::new(true, Some("bad disk"), true);
    let others = Outcome::Others("bad disk".into());
    assert_eq!(drain(&node, "mpsd:", &marker(OURS)), Ok(others));
    assert!(undrain(&node, &marker(OURS)).is_err());
    assert_eq!(node.shows(), (true, Some("bad disk".to_owned())));
    let bare = Fake::new(true, None, true);
    let nobody = Outcome::Others(String::new());
    assert_eq!(drain(&bare, "mpsd:", &marker(OURS)), Ok(nobody));
}

#[test]
fn an_order_that_was_not_obeyed_is_seen() {
    let node = Fake::new(false, None, false);
    assert!(drain(&node, "mpsd:", &marker(OURS)).is_err());
    let node = Fake::new(true, Some(OURS), false);
    assert!(undrain(&node, &marker(OURS)).is_err());
}

#[test]
fn our_own_goes_on_and_off() {
    let node = Fake::new(false, None, true);
    let ours = Outcome::Ours(OURS.to_owned());
    assert_eq!(drain(&node, "mpsd:", &marker(OURS)), Ok(ours.clone()));
    assert_eq!(drain(&node, "mpsd:", &marker("mpsd: job 2: y")), Ok(ours));
    assert_eq!(undrain(&node, &marker(OURS)), Ok(()));
    assert_eq!(node.shows(), (false, None));
}

#[test]
fn a_drain_under_an_administrators_note_is_remembered_and_leaves_the_note() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths::new(dir.path().join("run"), dir.path());
    let memo = "new fans on Monday";
    let node = Fake::new(false, Some(memo), true);
    // Twice: the second fault of a node finds the drain of the first.
    for reason in [OURS, "mpsd: job 2: y"] {
        let earlier = markers::delivered(&paths, "n1").and_then(|earlier| earlier.note);
        let new = Marker {
            note: earlier,
            ..marker(reason)
        };
        markers::write(&paths, &new).unwrap();
        let done = hand_over(&paths, "mpsd:", &new, &node);
        assert_eq!(done, (Ok(Outcome::Ours(memo.to_owned())), Ok(())));
        assert_eq!(node.shows(), (true, Some(memo.to_owned())));
        let kept = markers::delivered(&paths, "n1").expect("a marker");
        assert_eq!(state(&kept, &node), Ok(DrainState::Stands));
    }
    let kept = markers::delivered(&paths, "n1").expect("a marker");
    lift(&paths, &kept, &node).unwrap();
    assert_eq!(node.shows(), (false, Some(memo.to_owned())));
    assert_eq!(markers::all(&paths), []);
}

#[test]
fn the_drains_of_an_earlier_release_are_listed_by_root_alone() {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths::new(dir.path().join("run"), dir.path());
    let mode = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::create_dir(paths.drains()).unwrap();
    std::fs::set_permissions(paths.drains(), mode(0o755)).unwrap();
    markers::write(&paths, &marker(OURS)).unwrap();
    let now = std::fs::metadata(paths.drains()).unwrap().permissions();
    assert_eq!(now.mode() & 0o7777, 0o711);
}

#[test]
fn reasons_fit_the_schedulers_field() {
    let job = JobId::parse("4711").unwrap();
    let fault = Fault::new(Evidence::Survivor, "mps-server 691", "state D after 20 s");
    assert_eq!(
        reason(400, "mpsd:", &job, &fault),
        "mpsd: job 4711: mps-server 691: state D after 20 s"
    );
    let path = "'/opt/cluster/software/nvidia/mps/580.95.05/bin/nvidia-cuda-mps-control'";
    let deep = [
        Fault::new(Evidence::VendorProgram, path, "not there"),
        Fault::new(
            Evidence::VendorProgram,
            "NVIDIA's control daemon",
            format!("cannot open {path}: not there"),
        ),
    ];
    for fault in deep {
        let text = reason(
            79,
            "mpsd:",
            &JobId::parse("4711.pbs.cluster.example.org").unwrap(),
            &fault,
        );
        assert!(text.len() <= 79 && text.ends_with(": not there"), "{text}");
        assert!(
            text.starts_with("mpsd: job 4711.") && text.contains("..."),
            "{text}"
        );
    }
    let long = Fault::new(Evidence::Nvml, "NVML", "\"é\n".repeat(800));
    for most in [400, 79] {
        let text = reason(most, "mpsd:", &job, &long);
        assert!(text.len() <= most && text.len() > most - 8, "{text}");
        assert!(text.is_ascii() && !text.contains('\n'), "{text}");
    }
}

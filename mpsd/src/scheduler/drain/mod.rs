//! Drains and undrains: with our own prefix, on proof, never over another's reason, read back, and remembered until
//! delivered. The one order of questions and orders for every scheduler; what they are is its [`Controller`]'s.

pub mod markers;

use super::batch_system::Located;
use super::control::{Controller, NodeStatus};
use super::of;
use super::site::Site;
pub use markers::Marker;
use mpsd_core::text::one_line;
use mpsd_core::{Fault, JobId, Paths, Scheduler};
use std::fmt::Display;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest reason of somebody else's that a message repeats. Characters.
const SHOWN: usize = 80;
/// Stands for what was cut out of a reason.
const CUT: &str = "...";

/// What became of a drain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The node is out of service, read back, and for us to put back. It shows this reason of ours, or of an earlier drain
    /// of ours.
    Ours(String),
    /// Somebody drained it before us: left as it was.
    Others(String),
}

/// How a marker and the scheduler's view of its node go together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainState {
    /// The scheduler has not got it yet.
    Undelivered,
    /// It stands, ours to the byte.
    Stands,
    /// Somebody lifted it, or put a reason of their own in its place: the marker is of no use any more.
    Over(String),
}

/// A node in its scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place<'a> {
    /// Who schedules it.
    pub scheduler: Scheduler,
    /// Where that lives.
    pub site: Site,
    /// The node's name there.
    pub node: &'a str,
}

impl<'a> Place<'a> {
    /// The place that `marker` names.
    pub fn of(marker: &'a Marker, site: &Site) -> Self {
        Self {
            scheduler: marker.scheduler,
            site: Site {
                slurm_conf: marker.slurm_conf.clone(),
                ..site.clone()
            },
            node: &marker.node,
        }
    }

    fn system(&self) -> Box<dyn Located> {
        of(self.scheduler).at(&self.site)
    }

    /// The way to take it out of service.
    pub fn controller(&self) -> Box<dyn Controller> {
        self.system().controller(self.node)
    }
}

/// The reason for `fault`, at most `longest` bytes: `mpsd: job 4711: mps-server 691: state D after 20 s`.
fn reason(longest: usize, prefix: &str, job: &JobId, fault: &Fault) -> String {
    fitted(longest, &format!("{prefix} job {job}: {fault}"))
}

/// `text` as a scheduler keeps it, at most `longest` bytes. Where that is too long, its paths lose their directories, the
/// longest first, and then it loses what stands before its last clause: the cause comes last.
fn fitted(longest: usize, text: &str) -> String {
    // Quotes at the ends are eaten by Slurm, and no scheduler wants anything but ASCII.
    let plain: String = text
        .chars()
        .map(|c| if c.is_ascii() && c != '"' { c } else { '?' })
        .collect();
    let mut line = one_line(&plain, plain.len());
    while let Some(shorter) = (line.len() > longest).then(|| without_directory(&line)).flatten() {
        line = shorter;
    }
    if line.len() > longest {
        let cause = line.rfind(": ").map_or("", |at| &line[at..]);
        let cause = if cause.len() > longest / 2 { "" } else { cause };
        line = format!("{}{CUT}{cause}", &line[..longest - CUT.len() - cause.len()]);
    }
    line.trim_end().to_owned()
}

/// `text` with its longest path as `.../NAME`; `None`: it has none that could be shorter.
fn without_directory(text: &str) -> Option<String> {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '\'' | ':' | ',' | ';' | ')');
    let directory = |word: &str| {
        word.rfind('/')
            .filter(|at| word.starts_with('/') && *at > CUT.len())
    };
    let words = text.split(is_end).filter(|word| directory(word).is_some());
    let path = words.max_by_key(|word| word.len())?;
    let name = &path[directory(path)?..];
    Some(text.replacen(path, &format!("{CUT}{name}"), 1))
}

/// Shows the administrator `failure`, which does not drain, as the note of the node of `place`; once, and never over another's
/// note. It is remembered, so that it can be withdrawn. A line for the log, where something was tried.
pub fn remark(paths: &Paths, place: &Place<'_>, prefix: &str, failure: &impl Display) -> Option<String> {
    let controller = place.controller();
    let note = fitted(place.system().longest_reason(), &format!("{prefix} {failure}"));
    let shown = match controller.status() {
        Ok(shown) => shown,
        Err(why) => return Some(format!("node '{}' is not told ({why}): {note}", place.node)),
    };
    let stands = shown.reason.unwrap_or_default();
    let free = stands.is_empty() || stands.starts_with(prefix);
    if shown.drained || stands == note || !free {
        return None;
    }
    let marker = Marker {
        version: markers::VERSION,
        scheduler: place.scheduler,
        node: place.node.to_owned(),
        reason: note.clone(),
        note: None,
        job: String::new(),
        gpus: Vec::new(),
        delivered: true,
        slurm_conf: place.site.slurm_conf.clone(),
        when: now(),
        remark: true,
    };
    // The marker first: a note that nobody remembers stays after the repair.
    let told = markers::write(paths, &marker).and_then(|()| controller.remark(&note));
    Some(match told {
        Ok(_) => format!("node '{}' shows: {note}", place.node),
        Err(why) => format!("node '{}' is not told ({why}): {note}", place.node),
    })
}

/// Takes the notes off the node that [`remark`] left there, once they are over; a line for each.
pub fn withdraw_remarks(paths: &Paths, site: &Site) -> Vec<Result<String, String>> {
    let withdraw = |marker: Marker| {
        let what = format!("note of node '{}' ({})", marker.node, marker.reason);
        let controller = Place::of(&marker, site).controller();
        let gone = controller.withdraw(&marker.reason, None);
        match gone.and_then(|()| markers::remove(paths, &marker)) {
            Ok(()) => Ok(format!("{what}: withdrawn")),
            Err(why) => Err(format!("{what}: not withdrawn: {why}")),
        }
    };
    markers::remarks(paths).into_iter().map(withdraw).collect()
}

/// Takes the node of `marker` out of service, unless it is already, and reads it back. `before` is how it stood.
///
/// # Errors
/// One line: it is in service still.
fn drain(
    controller: &dyn Controller,
    prefix: &str,
    marker: &Marker,
    before: NodeStatus,
) -> Result<Outcome, String> {
    let outcome = |reason: String, is_ours: bool| match is_ours {
        true => Outcome::Ours(reason),
        false => Outcome::Others(reason),
    };
    if before.drained {
        let reason = before.reason.unwrap_or_default();
        let is_ours = reason.starts_with(prefix);
        return Ok(outcome(reason, is_ours));
    }
    let said = controller.take_out(&marker.reason, marker.note.as_deref())?;
    let after = controller.status()?;
    let found = after.reason.unwrap_or_default();
    let is_ours = found == marker.reason;
    match after.drained {
        true => Ok(outcome(found, is_ours)),
        false => Err(controller.not_obeyed(&said)),
    }
}

/// Drains the node for `fault` of `job` and remembers it; a drain that cannot be delivered waits for the timer. Returns a
/// line for the log, and whether the scheduler has it.
pub fn deliver(
    paths: &Paths,
    place: &Place<'_>,
    prefix: &str,
    job: &JobId,
    fault: &Fault,
    gpus: Vec<String>,
) -> (String, bool) {
    let marker = Marker {
        version: markers::VERSION,
        scheduler: place.scheduler,
        node: place.node.to_owned(),
        reason: reason(place.system().longest_reason(), prefix, job, fault),
        note: markers::delivered(paths, place.node).and_then(|earlier| earlier.note),
        job: job.as_str().to_owned(),
        gpus,
        delivered: false,
        slurm_conf: place.site.slurm_conf.clone(),
        when: now(),
        remark: false,
    };
    // The marker first: a drain that nobody remembers could never be lifted.
    let waiting = markers::write(paths, &marker);
    let (outcome, remembered) = hand_over(paths, prefix, &marker, place.controller().as_ref());
    let (node, reason) = (place.node, &marker.reason);
    let (line, delivered) = match outcome {
        Ok(Outcome::Ours(_)) => (format!("node '{node}' drained: {reason}"), true),
        Ok(Outcome::Others(other)) => {
            let other = one_line(&other, SHOWN);
            let line = format!("node '{node}' was drained already ('{other}'), left so: {reason}");
            (line, true)
        }
        Err(why) => {
            let line = format!("node '{node}' cannot be drained now ({why}), tried again later: {reason}");
            (line, false)
        }
    };
    match waiting.and(remembered) {
        Ok(()) => (line, delivered),
        Err(why) => (format!("{line} (not remembered: {why})"), delivered),
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs()
}

/// The note that an administrator left on a node in service. A note of ours is left from a drain that was lifted by hand.
fn memo(shown: &NodeStatus, prefix: &str) -> Option<String> {
    let note = shown.reason.clone().filter(|_| !shown.drained)?;
    (!note.is_empty() && !note.starts_with(prefix)).then_some(note)
}

/// Tries to deliver the drain of `marker`; returns what became of it, and whether that is remembered.
pub fn hand_over(
    paths: &Paths,
    prefix: &str,
    marker: &Marker,
    controller: &dyn Controller,
) -> (Result<Outcome, String>, Result<(), String>) {
    let before = match controller.status() {
        Ok(before) => before,
        Err(why) => return (Err(why), Ok(())),
    };
    let mut marker = marker.clone();
    if let Some(memo) = memo(&before, prefix) {
        marker.note = Some(memo);
        // First: the order writes over it.
        if let Err(why) = markers::write(paths, &marker) {
            return (Err(why.clone()), Err(why));
        }
    }
    let outcome = drain(controller, prefix, &marker, before);
    let remembered = match &outcome {
        Ok(Outcome::Ours(shown)) => {
            // What is to be lifted later is what stands now, to the byte.
            marker.delivered = true;
            marker.reason.clone_from(shown);
            markers::write(paths, &marker)
        }
        Ok(Outcome::Others(_)) => markers::remove(paths, &marker),
        Err(_) => Ok(()),
    };
    (outcome, remembered)
}

/// How the drain of `marker` stands.
///
/// # Errors
/// One line: the controller does not answer.
pub fn state(marker: &Marker, controller: &dyn Controller) -> Result<DrainState, String> {
    let shown = controller.status()?;
    let reason = shown.reason.unwrap_or_default();
    Ok(match (marker.delivered, shown.drained) {
        (_, true) if reason == marker.reason => DrainState::Stands,
        (false, false) => DrainState::Undelivered,
        (true, false) => DrainState::Over("it was lifted".to_owned()),
        (_, true) => {
            let reason = one_line(&reason, SHOWN);
            DrainState::Over(format!("the node is drained for another reason ('{reason}')"))
        }
    })
}

/// Lifts the drain of `marker` and forgets it. The recheck of the node comes first.
///
/// # Errors
/// One line: it is another's, or the node stays out of service.
pub fn lift(paths: &Paths, marker: &Marker, controller: &dyn Controller) -> Result<(), String> {
    undrain(controller, marker)?;
    markers::remove(paths, marker)
}

fn undrain(controller: &dyn Controller, marker: &Marker) -> Result<(), String> {
    let before = controller.status()?;
    if !before.drained {
        return Ok(());
    }
    let reason = before.reason.unwrap_or_default();
    if reason != marker.reason {
        let reason = one_line(&reason, SHOWN);
        return Err(format!(
            "the reason shown is '{reason}', which is not ours: left as it is"
        ));
    }
    let said = controller.put_back(marker.note.as_deref())?;
    match controller.status()?.drained {
        true => Err(controller.not_obeyed(&said)),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    //! The order of a drain, against a controller that keeps what it is told or refuses it.

    use super::*;
    use crate::scheduler::control::NodeStatus;
    use mpsd_core::failure::Evidence;
    use std::cell::RefCell;
    use std::os::unix::fs::PermissionsExt;

    const OURS: &str = "mpsd: job 1: x";

    /// A controller that may take orders without obeying, as Torque's pbsnodes does.
    struct Fake {
        shown: RefCell<NodeStatus>,
        obeys: bool,
    }

    impl Fake {
        fn new(drained: bool, reason: Option<&str>, obeys: bool) -> Self {
            let reason = reason.map(str::to_owned);
            Self {
                shown: RefCell::new(NodeStatus { drained, reason }),
                obeys,
            }
        }

        fn shows(&self) -> (bool, Option<String>) {
            let shown = self.shown.borrow().clone();
            (shown.drained, shown.reason)
        }
    }

    impl Controller for Fake {
        fn status(&self) -> Result<NodeStatus, String> {
            Ok(self.shown.borrow().clone())
        }
        fn take_out(&self, reason: &str, _: Option<&str>) -> Result<String, String> {
            if self.obeys {
                *self.shown.borrow_mut() = NodeStatus {
                    drained: true,
                    reason: Some(reason.to_owned()),
                };
            }
            Ok(String::new())
        }
        fn put_back(&self, memo: Option<&str>) -> Result<String, String> {
            if self.obeys {
                *self.shown.borrow_mut() = NodeStatus {
                    drained: false,
                    reason: memo.map(str::to_owned),
                };
            }
            Ok(String::new())
        }
        fn withdraw(&self, _: &str, _: Option<&str>) -> Result<(), String> {
            Ok(())
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
            remark: false,
        }
    }

    /// A drain as [`hand_over`] begins it.
    fn drained(node: &Fake, reason: &str) -> Result<Outcome, String> {
        drain(node, "mpsd:", &marker(reason), node.status()?)
    }

    #[test]
    fn anothers_reason_is_never_written_over() {
        let node = Fake::new(true, Some("bad disk"), true);
        let others = Outcome::Others("bad disk".into());
        assert_eq!(drained(&node, OURS), Ok(others));
        assert!(undrain(&node, &marker(OURS)).is_err());
        assert_eq!(node.shows(), (true, Some("bad disk".to_owned())));
        let bare = Fake::new(true, None, true);
        let nobody = Outcome::Others(String::new());
        assert_eq!(drained(&bare, OURS), Ok(nobody));
    }

    #[test]
    fn an_order_that_was_not_obeyed_is_seen() {
        let node = Fake::new(false, None, false);
        assert!(drained(&node, OURS).is_err());
        let node = Fake::new(true, Some(OURS), false);
        assert!(undrain(&node, &marker(OURS)).is_err());
    }

    #[test]
    fn our_own_goes_on_and_off() {
        let node = Fake::new(false, None, true);
        let ours = Outcome::Ours(OURS.to_owned());
        assert_eq!(drained(&node, OURS), Ok(ours.clone()));
        assert_eq!(drained(&node, "mpsd: job 2: y"), Ok(ours));
        assert_eq!(undrain(&node, &marker(OURS)), Ok(()));
        assert_eq!(node.shows(), (false, None));
    }

    #[test]
    fn a_drain_shows_our_reason_and_brings_an_administrators_note_back() {
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
            assert_eq!(done, (Ok(Outcome::Ours(OURS.to_owned())), Ok(())));
            assert_eq!(node.shows(), (true, Some(OURS.to_owned())));
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
}

//! Drains and undrains: with our own prefix, on proof, never over another's reason, read back, and
//! remembered until delivered. A scheduler's [`Controller`] carries out the orders.

pub mod markers;

use super::call::Location;
use super::control::{Controller, NodeStatus};
use super::of;
pub use markers::Marker;
use mpsd_core::text::one_line;
use mpsd_core::{Fault, Paths, Scheduler};
use std::fmt::Display;

/// How much of a foreign reason a message repeats. Characters.
const SHOWN: usize = 80;
const CUT: &str = "...";
/// The beginning of our drain reasons. mpsd only lifts drains with this beginning.
pub const PREFIX: &str = "mpsd:";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// We drained the node, now or earlier, and may put it back. Its scheduler shows this reason.
    Ours(String),
    /// It was drained before for this other reason, and left so.
    Others(String),
}

/// What the scheduler's view of a node means for our marker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainState {
    Undelivered,
    /// It stands, ours to the byte.
    Stands,
    /// It was lifted, or another reason replaced ours: the marker is of no more use.
    Over(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place<'a> {
    pub scheduler: Scheduler,
    pub location: Location,
    pub node: &'a str,
}

impl<'a> Place<'a> {
    pub fn of(marker: &'a Marker, location: &Location) -> Self {
        Self {
            scheduler: marker.scheduler,
            location: Location {
                slurm_conf: marker.slurm_conf.clone(),
                ..location.clone()
            },
            node: &marker.node,
        }
    }

    pub fn controller(&self) -> Box<dyn Controller> {
        of(self.scheduler).at(&self.location).controller(self.node)
    }

    fn marker(&self, reason: &str) -> Marker {
        Marker {
            version: markers::VERSION,
            scheduler: self.scheduler,
            node: self.node.to_owned(),
            reason: fitted(of(self.scheduler).facts().longest_reason, reason),
            note: None,
            gpus: Vec::new(),
            of: None,
            delivered: false,
            slurm_conf: self.location.slurm_conf.clone(),
            when: mpsd_sys::now(),
            remark: false,
        }
    }
}

/// `text` in at most `longest` bytes. To fit, its paths lose their directories, the longest first.
/// Then it is cut before its last clause, which is the cause.
fn fitted(longest: usize, text: &str) -> String {
    // Slurm removes quotes at the ends, and no scheduler wants anything but ASCII.
    let plain = |c: char| if c.is_ascii() && c != '"' { c } else { '?' };
    let plain: String = text.chars().map(plain).collect();
    let mut line = one_line(&plain, plain.len());
    while line.len() > longest
        && let Some(shorter) = without_directory(&line)
    {
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
    let paths = text.split(is_end).filter_map(|word| {
        let at = word.rfind('/').filter(|_| word.starts_with('/'));
        at.filter(|at| *at > CUT.len()).map(|at| word.split_at(at))
    });
    let (above, name) = paths.max_by_key(|(above, name)| above.len() + name.len())?;
    Some(text.replacen(&format!("{above}{name}"), &format!("{CUT}{name}"), 1))
}

/// Shows the administrator `failure`, which does not drain, as a note on the node: once, and never
/// over another's. Returns a line for the log if something was tried.
pub fn remark(paths: &Paths, place: &Place<'_>, failure: &impl Display) -> Option<String> {
    let marker = Marker {
        delivered: true,
        remark: true,
        ..place.marker(&format!("{PREFIX} {failure}"))
    };
    let note = &marker.reason;
    match show(paths, &marker, place.controller().as_ref()) {
        Ok(false) => None,
        Ok(true) => Some(format!("node '{}' shows: {note}", place.node)),
        Err(why) => Some(format!("node '{}' is not told ({why}): {note}", place.node)),
    }
}

/// Shows the note of `marker`; false: it stands already, or the place is taken.
fn show(paths: &Paths, marker: &Marker, controller: &dyn Controller) -> Result<bool, String> {
    let shown = controller.status()?;
    let stands = shown.reason.unwrap_or_default();
    let free = stands.is_empty() || stands.starts_with(PREFIX);
    if shown.drained || stands == marker.reason || !free {
        return Ok(false);
    }
    // The marker first: a forgotten note would stay after the repair.
    markers::write(paths, marker)?;
    controller.remark(&marker.reason).map(|_| true)
}

/// Takes the notes of [`remark`] off the node, once they are over; a line for each.
pub fn withdraw_remarks(paths: &Paths, location: &Location) -> Vec<Result<String, String>> {
    let withdraw = |marker: Marker| {
        let what = format!("note of node '{}' ({})", marker.node, marker.reason);
        let controller = Place::of(&marker, location).controller();
        let gone = controller.withdraw(&marker.reason, None);
        match gone.and_then(|()| markers::remove(paths, &marker)) {
            Ok(()) => Ok(format!("{what}: withdrawn")),
            Err(why) => Err(format!("{what}: not withdrawn: {why}")),
        }
    };
    markers::remarks(paths).into_iter().map(withdraw).collect()
}

#[derive(Debug)]
pub struct Cause<'a> {
    /// As in `job 12`.
    pub jobs: &'a str,
    pub fault: &'a Fault,
    pub gpus: Vec<String>,
    /// How many GPUs the node has.
    pub of: Option<usize>,
}

/// Drains the node for `cause`, now or by the timer. Returns a line for the log, and whether the
/// scheduler has it.
pub fn deliver(
    paths: &Paths,
    place: &Place<'_>,
    controller: &dyn Controller,
    cause: Cause<'_>,
) -> (String, bool) {
    let marker = Marker {
        note: markers::delivered(paths, place.node).and_then(|earlier| earlier.note),
        gpus: cause.gpus,
        of: cause.of,
        ..place.marker(&format!("{PREFIX} {}: {}", cause.jobs, cause.fault))
    };
    // The marker first: a forgotten drain could never be lifted.
    let waiting = markers::write(paths, &marker);
    let (outcome, remembered) = hand_over(paths, &marker, controller);
    let (node, reason, delivered) = (place.node, &marker.reason, outcome.is_ok());
    let how = match outcome {
        Ok(Outcome::Ours(_)) => "drained".to_owned(),
        Ok(Outcome::Others(other)) => {
            let other = one_line(&other, SHOWN);
            format!("was drained already ('{other}'), left so")
        }
        Err(why) => format!("cannot be drained now ({why}), tried again later"),
    };
    let mut line = format!("node '{node}' {how}: {reason}");
    if let Err(why) = waiting.and(remembered) {
        line += &format!(" (not remembered: {why})");
    }
    (line, delivered)
}

/// Tries to deliver the drain of `marker`. Returns what became of it, and whether it is remembered.
pub fn hand_over(
    paths: &Paths,
    marker: &Marker,
    controller: &dyn Controller,
) -> (Result<Outcome, String>, Result<(), String>) {
    let before = match controller.status() {
        Ok(before) => before,
        Err(why) => return (Err(why), Ok(())),
    };
    let mut marker = marker.clone();
    // Of a node in service, an administrator's note is kept, and a remark of ours is not.
    let is_memo = |note: &String| !before.drained && !note.is_empty() && !note.starts_with(PREFIX);
    if let Some(memo) = before.reason.clone().filter(is_memo) {
        marker.note = Some(memo);
        // Before the order, which overwrites the note.
        if let Err(why) = markers::write(paths, &marker) {
            return (Err(why.clone()), Err(why));
        }
    }
    let outcome = drain(controller, &marker, before);
    let remembered = match &outcome {
        Ok(Outcome::Ours(shown)) => {
            // A later lift needs the reason that stands now, to the byte.
            marker.delivered = true;
            marker.reason.clone_from(shown);
            markers::write(paths, &marker)
        }
        Ok(Outcome::Others(_)) => markers::remove(paths, &marker),
        Err(_) => Ok(()),
    };
    (outcome, remembered)
}

fn drain(
    controller: &dyn Controller,
    marker: &Marker,
    before: NodeStatus,
) -> Result<Outcome, String> {
    let was_drained = before.drained;
    let mut shown = before;
    if !was_drained {
        let said = controller.take_out(&marker.reason, marker.note.as_deref())?;
        shown = controller.status()?;
        if !shown.drained {
            return Err(controller.not_obeyed(&said));
        }
    }
    let reason = shown.reason.unwrap_or_default();
    let is_ours = match was_drained {
        true => reason.starts_with(PREFIX),
        false => reason == marker.reason,
    };
    Ok(match is_ours {
        true => Outcome::Ours(reason),
        false => Outcome::Others(reason),
    })
}

/// Whether the drain of `marker` has this reason. Until it is delivered, that may be the reason of
/// an earlier drain of ours: [`hand_over`] keeps it.
fn is_of(marker: &Marker, reason: &str) -> bool {
    reason == marker.reason || !marker.delivered && reason.starts_with(PREFIX)
}

pub fn state(marker: &Marker, controller: &dyn Controller) -> Result<DrainState, String> {
    let shown = controller.status()?;
    let reason = shown.reason.unwrap_or_default();
    Ok(match (marker.delivered, shown.drained) {
        (_, true) if reason == marker.reason => DrainState::Stands,
        (_, true) if is_of(marker, &reason) => DrainState::Undelivered,
        (_, true) => {
            let other = format!("another reason ('{}')", one_line(&reason, SHOWN));
            DrainState::Over(format!(
                "the node is drained for {other}, which mpsd does not lift"
            ))
        }
        (true, false) => DrainState::Over("it was lifted".to_owned()),
        (false, false) => DrainState::Undelivered,
    })
}

/// Lifts the drain of `marker`, unless it is another's. The caller has checked the node.
pub fn lift(paths: &Paths, marker: &Marker, controller: &dyn Controller) -> Result<(), String> {
    let before = controller.status()?;
    if before.drained {
        let reason = before.reason.unwrap_or_default();
        if !is_of(marker, &reason) {
            let shown = format!("the reason shown is '{}'", one_line(&reason, SHOWN));
            return Err(format!("{shown}, which is not ours: left as it is"));
        }
        let said = controller.put_back(marker.note.as_deref())?;
        if controller.status()?.drained {
            return Err(controller.not_obeyed(&said));
        }
    }
    markers::remove(paths, marker)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::failure::Evidence;
    use std::cell::RefCell;
    use std::fs::metadata;
    use std::os::unix::fs::PermissionsExt;

    const OURS: &str = "mpsd: job 1: x";

    /// A controller that may take orders without obeying, as Torque's pbsnodes does.
    struct Double {
        node: RefCell<NodeStatus>,
        obeys: bool,
        /// For what an administrator drains it at the same time.
        drained_for: Option<&'static str>,
    }

    fn status(drained: bool, reason: Option<&str>) -> NodeStatus {
        let reason = reason.map(str::to_owned);
        NodeStatus { drained, reason }
    }

    impl Double {
        fn new(drained: bool, reason: Option<&str>, obeys: bool) -> Self {
            Self {
                node: RefCell::new(status(drained, reason)),
                obeys,
                drained_for: None,
            }
        }

        fn order(&self, drained: bool, reason: Option<&str>) -> Result<String, String> {
            if self.obeys {
                self.node.replace(status(drained, reason));
            }
            Ok(String::new())
        }

        /// Drains the node as [`hand_over`] begins it.
        fn drain(&self, reason: &str) -> Result<Outcome, String> {
            drain(self, &our_marker(reason), self.status()?)
        }
    }

    impl Controller for Double {
        fn status(&self) -> Result<NodeStatus, String> {
            Ok(self.node.borrow().clone())
        }
        fn take_out(&self, reason: &str, _: Option<&str>) -> Result<String, String> {
            self.order(true, Some(self.drained_for.unwrap_or(reason)))
        }
        fn put_back(&self, memo: Option<&str>) -> Result<String, String> {
            self.order(false, memo)
        }
        fn remark(&self, note: &str) -> Result<String, String> {
            self.order(false, Some(note))
        }
        fn withdraw(&self, _: &str, _: Option<&str>) -> Result<(), String> {
            Ok(())
        }
    }

    fn place() -> Place<'static> {
        Place {
            scheduler: Scheduler::Torque,
            location: Location::default(),
            node: "n1",
        }
    }

    fn our_marker(reason: &str) -> Marker {
        place().marker(reason)
    }

    fn paths() -> (tempfile::TempDir, Paths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(dir.path().join("run"), dir.path());
        (dir, paths)
    }

    #[test]
    fn only_our_own_reason_is_set_and_lifted_and_an_order_is_read_back() {
        let (_dir, paths) = paths();
        let node = Double::new(true, Some("bad disk"), true);
        assert_eq!(node.drain(OURS), Ok(Outcome::Others("bad disk".into())));
        let lifts = |node: &Double| lift(&paths, &our_marker(OURS), node);
        assert!(lifts(&node).is_err());
        assert_eq!(node.status(), Ok(status(true, Some("bad disk"))));
        // An earlier drain of ours is lifted for one that was not delivered.
        let earlier = Double::new(true, Some("mpsd: job 0: y"), true);
        lifts(&earlier).unwrap();
        assert!(!earlier.status().unwrap().drained);
        let bare = Double::new(true, None, true);
        assert_eq!(bare.drain(OURS), Ok(Outcome::Others(String::new())));
        let mut meanwhile = Double::new(false, None, true);
        meanwhile.drained_for = Some("bad disk");
        let outcome = meanwhile.drain(OURS);
        assert_eq!(outcome, Ok(Outcome::Others("bad disk".into())));

        let node = Double::new(false, None, true);
        for reason in [OURS, "mpsd: job 2: y"] {
            assert_eq!(node.drain(reason), Ok(Outcome::Ours(OURS.to_owned())));
        }
        assert_eq!(lifts(&node), Ok(()));
        assert_eq!(node.status(), Ok(status(false, None)));

        assert!(Double::new(false, None, false).drain(OURS).is_err());
        assert!(lifts(&Double::new(true, Some(OURS), false)).is_err());
    }

    #[test]
    fn a_drain_shows_our_reason_and_brings_an_administrators_note_back() {
        let (_dir, paths) = paths();
        let memo = "new fans on Monday";
        let node = Double::new(false, Some(memo), true);
        // Twice: the second fault of a node finds the drain of the first.
        let fault = Fault::new(Evidence::GpuLost, "x", "y");
        for jobs in ["job 1", "job 2"] {
            let cause = Cause {
                jobs,
                fault: &fault,
                gpus: Vec::new(),
                of: Some(2),
            };
            let (line, is_delivered) = deliver(&paths, &place(), &node, cause);
            assert!(is_delivered, "{line}");
            assert_eq!(node.status(), Ok(status(true, Some("mpsd: job 1: x: y"))));
            let kept = markers::delivered(&paths, "n1").expect("a marker");
            assert_eq!(state(&kept, &node), Ok(DrainState::Stands));
            assert_eq!(kept.of, Some(2));
        }
        let mode = metadata(paths.drains()).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o711);
        let kept = markers::delivered(&paths, "n1").expect("a marker");
        lift(&paths, &kept, &node).unwrap();
        assert_eq!(node.status(), Ok(status(false, Some(memo))));
        assert_eq!(markers::all(&paths), []);
    }

    #[test]
    fn a_drain_that_comes_too_late_is_forgotten_and_a_note_of_ours_is_no_administrators() {
        let (_dir, paths) = paths();
        let ours = our_marker(OURS);
        markers::write(&paths, &ours).unwrap();
        let late = Double::new(true, Some("bad disk"), true);
        let (outcome, _) = hand_over(&paths, &ours, &late);
        assert_eq!(outcome, Ok(Outcome::Others("bad disk".into())));
        // Else the node takes no job until it is delivered.
        assert_eq!(markers::all(&paths), []);

        let left = Double::new(false, Some("mpsd: job 0: y"), true);
        hand_over(&paths, &ours, &left).0.unwrap();
        assert_eq!(markers::delivered(&paths, "n1").unwrap().note, None);
        assert_eq!(markers::delivered(&paths, "n2"), None, "another node's");
        assert_eq!(markers::remarks(&paths), [], "no remark");
    }

    #[test]
    fn a_drain_stands_only_while_the_node_shows_our_reason() {
        let over = |why: &str| DrainState::Over(why.to_owned());
        let others =
            "the node is drained for another reason ('bad disk'), which mpsd does not lift";
        let lifted = [DrainState::Undelivered, over("it was lifted")];
        let stands = [DrainState::Stands, DrainState::Stands];
        let earlier =
            "the node is drained for another reason ('mpsd: job 0: y'), which mpsd does not lift";
        for (drained, reason, meanings) in [
            (true, OURS, stands),
            (true, "bad disk", [over(others), over(others)]),
            (
                true,
                "mpsd: job 0: y",
                [DrainState::Undelivered, over(earlier)],
            ),
            (false, "", lifted),
        ] {
            for (delivered, meaning) in [false, true].into_iter().zip(meanings) {
                let mut marker = our_marker(OURS);
                marker.delivered = delivered;
                let found = state(&marker, &Double::new(drained, Some(reason), true));
                assert_eq!(found, Ok(meaning), "{delivered} {drained} {reason}");
            }
        }
    }

    #[test]
    fn a_note_takes_the_place_of_nobodys_and_is_shown_once() {
        for (drained, before, is_shown) in [
            (false, None, true),
            (false, Some("mpsd: job 0: y"), true),
            (false, Some(OURS), false),
            (false, Some("new fans on Monday"), false),
            (true, Some("mpsd: job 0: y"), false),
            (true, None, false),
        ] {
            let (_dir, paths) = paths();
            let node = Double::new(drained, before, true);
            let mut note = our_marker(OURS);
            note.remark = true;
            let after = if is_shown { Some(OURS) } else { before };
            let shown = show(&paths, &note, &node);
            assert_eq!(shown, Ok(is_shown), "{before:?}");
            assert_eq!(node.status(), Ok(status(drained, after)));
            assert_eq!(markers::all(&paths), [], "it is no drain");
            let expected = Vec::from_iter(is_shown.then_some(note));
            assert_eq!(markers::remarks(&paths), expected, "{before:?}");
        }
    }

    #[test]
    fn reasons_fit_the_schedulers_field() {
        let whole = "mpsd: job 4711: mps-server 691: state D after 20 s";
        assert_eq!(fitted(400, whole), whole);
        let path = "'/opt/cluster/software/nvidia/mps/580.95.05/bin/nvidia-cuda-mps-control'";
        for before in ["", "NVIDIA's control daemon: cannot open "] {
            let job = "mpsd: job 4711.pbs.cluster.example.org";
            let text = fitted(79, &format!("{job}: {before}{path}: not there"));
            assert!(text.len() <= 79 && text.ends_with(": not there"), "{text}");
            let is_cut = text.starts_with("mpsd: job 4711.") && text.contains("...");
            assert!(is_cut, "{text}");
        }
        let long = format!("mpsd: job 4711: NVML: {}", "\"é\n".repeat(800));
        for most in [400, 79] {
            let text = fitted(most, &long);
            assert!(text.len() <= most && text.len() > most - 8, "{text}");
            assert!(text.is_ascii() && !text.contains('\n'), "{text}");
        }
    }
}

//! Reads a daemon's limits back after its user gave it a command that may change one: ceilings bind programs that cooperate, and
//! the owner of a control daemon may lift them (THREAT-MODEL.md). The daemon's log names each command, so nothing is asked, and no
//! timer runs, where nobody gave one.

use super::dialogue::{self, InForce};
use super::session;
use super::sight::Sight;
use super::start::Running;
use super::user_log::UserLog;
use crate::job::spec::Spec;
use mpsd_core::observations::LimitChanged;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Shortest time between two readings of one daemon, so that its owner cannot keep us busy.
const PERIOD: Duration = Duration::from_secs(10);
/// Longest wait for its answer: nothing else is watched meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// What is known of one daemon.
#[derive(Debug, Default)]
struct Known {
    /// A command came that has not been looked after.
    due: bool,
    /// The last reading.
    read: Option<Instant>,
    /// The limits that did not hold then.
    changed: Vec<InForce>,
}

impl Known {
    /// How long until it is to be read.
    fn left(&self) -> Option<Duration> {
        let passed = self.read.map_or(PERIOD, |read| read.elapsed());
        self.due.then(|| PERIOD.saturating_sub(passed))
    }
}

/// The watch of one job's limits, by the pids of its control daemons.
#[derive(Debug, Default)]
pub struct LimitWatch(BTreeMap<i32, Known>);

impl LimitWatch {
    /// Somebody gave `daemon` a command that sets something.
    pub fn wake(&mut self, daemon: &Running) {
        self.0.entry(daemon.child.pid()).or_default().due = true;
    }

    /// How long to sleep; `None`: until something happens.
    pub fn period(&self) -> Option<Duration> {
        self.0.values().filter_map(Known::left).min()
    }

    /// Reads the limits of the daemons for which it is time, and says which no longer hold.
    pub fn look(&mut self, spec: &Spec, running: &[Running], log: &mut UserLog, sight: &mut Sight) {
        self.0
            .retain(|pid, _| running.iter().any(|daemon| daemon.child.pid() == *pid));
        for daemon in running {
            let known = self.0.get_mut(&daemon.child.pid());
            if let Some(known) = known.filter(|known| known.left().is_some_and(|left| left.is_zero())) {
                read(spec, daemon, known, log, sight);
                (known.due, known.read) = (false, Some(Instant::now()));
            }
        }
    }
}

fn read(spec: &Spec, running: &Running, known: &mut Known, log: &mut UserLog, sight: &mut Sight) {
    let pid = running.child.pid();
    let commands = dialogue::read(&running.daemon);
    let limit = spec.command_time().min(PATIENCE);
    let text = match session::say(&spec.control, &running.daemon, &commands, limit) {
        // It is ending.
        Ok(answer) if answer.nobody_listens() || answer.text.trim().is_empty() => return,
        Ok(answer) => answer.text,
        Err(why) => {
            let sentence = format!(
                "control daemon {pid} was told to set something, and its limits cannot be read back: {why}"
            );
            log.line(&sentence);
            sight.say(&sentence);
            return;
        }
    };
    let all = dialogue::in_force(&running.daemon, &running.daemon, &text);
    let changed: Vec<InForce> = all.into_iter().filter(|limit| !limit.holds).collect();
    for limit in changed.iter().filter(|limit| !known.changed.contains(limit)) {
        let change = LimitChanged {
            limit: limit.limit.clone(),
            asked: limit.asked.clone(),
            said: limit.said.clone(),
        };
        let sentence = format!("control daemon {pid} was told to change a limit: {change}");
        log.line(&sentence);
        sight.say(&sentence);
        sight.change(change);
    }
    known.changed = changed;
}

//! Watches over ready daemons: what happens to them goes into the user's log.

use super::change;
use super::dialogue::Event;
use super::door;
use super::ends::Ends;
use super::events::Events;
use super::limits::LimitWatch;
use super::memory::MemoryWatch;
use super::sight::Sight;
use super::start::{self, Running};
use super::user_log::UserLog;
use crate::job::spec::Spec;
use crate::sys::Exit;
use mpsd_core::killed::SignalName;
use mpsd_core::record::ClientLimits;

/// Watches over ready daemons until a signal ends us or the last of them has ended.
pub fn until_the_end(
    spec: &Spec,
    mut running: Vec<Running>,
    events: &mut Events,
    log: &mut UserLog,
    sight: &mut Sight,
) {
    let mut memory = MemoryWatch::new(spec);
    let mut limits = LimitWatch::default();
    let mut ends = Ends::default();
    while !running.is_empty() {
        let period = memory.period().into_iter().chain(limits.period()).min();
        let Ok(terminate) = events.wait(period, &ends) else {
            return;
        };
        for daemon in &mut running {
            let (pid, mut told_to_set) = (daemon.child.pid(), false);
            for line in daemon.tail.lines() {
                let Some(event) = Event::parse(&line) else {
                    continue;
                };
                match event {
                    Event::NewClient(_) | Event::Active(_) => memory.wake(),
                    Event::Setting => told_to_set = true,
                    _ => {}
                }
                ends.take(&event);
                sight.take(pid, &event);
                tell(log, sight, pid, event);
            }
            if told_to_set {
                limits.wake(daemon);
            }
            if sight.is_ending(pid) {
                events.forget_log(&mut daemon.watches);
            }
        }
        for killed in ends.killed() {
            let (pid, signal) = (killed.pid, SignalName(killed.signal));
            log.line(&format!("client {pid} was ended by {signal}"));
            sight.kill(killed);
        }
        running.retain_mut(|daemon| !has_ended(daemon, log, sight));
        memory.look(spec, &running, log, sight);
        if !terminate {
            serve(spec, &mut running, events, (&mut memory, log, sight));
            limits.look(spec, &running, log, sight);
        }
        sight.write();
        if terminate {
            log.line(&format!("job {}: ending MPS on a signal", spec.job));
            running.iter_mut().for_each(start::end);
            return;
        }
    }
}

/// Does what the job's owner asks for, if anything.
fn serve(
    spec: &Spec,
    running: &mut [Running],
    events: &Events,
    (memory, log, sight): (&mut MemoryWatch, &mut UserLog, &mut Sight),
) {
    let Some((stream, wanted)) = events.door().and_then(door::Door::take) else {
        return;
    };
    let mut answer = change::limits(spec, running);
    if wanted != ClientLimits::default() {
        match change::set(spec, running, &wanted) {
            Ok(changes) => {
                memory.set(running);
                for change in changes {
                    log.line(&format!("set while the job runs (mpsctl set): {change}"));
                    sight.set(change);
                }
                answer = change::limits(spec, running);
            }
            Err(why) => {
                log.line(&format!("not set: {why}"));
                answer = Err(why);
            }
        }
    }
    // Written down before it is told.
    sight.write();
    // Who has gone meanwhile reads it in the log.
    let _ = door::send(&stream, &answer);
}

fn has_ended(daemon: &mut Running, log: &mut UserLog, sight: &mut Sight) -> bool {
    let Some(end) = daemon.child.try_wait() else {
        return false;
    };
    let what = match end {
        Exit::Code(0 | 1) => "was told to quit",
        _ => "died",
    };
    let pid = daemon.child.pid();
    let sentence = format!(
        "control daemon {pid} {what} ({end}); from now on new steps and 'mpsctl exec' are refused, and other programs run \
         without MPS"
    );
    log.line(&sentence);
    sight.say(&sentence);
    sight.lose(pid, end.to_string());
    true
}

/// Says a line of the vendor's log in the user's words. `daemon`: the pid of the control daemon whose log it is.
fn tell(log: &mut UserLog, sight: &mut Sight, daemon: i32, event: Event) {
    let told_to_end = match &event {
        Event::ServerExited(pid, 0) => sight.was_told_to_end(daemon, *pid),
        _ => false,
    };
    let mut grave = |sentence: &str| {
        log.line(sentence);
        sight.say(sentence);
    };
    match event {
        Event::ServerExited(pid, 0) if told_to_end => {
            log.line(&format!("server {pid} ended"));
        }
        Event::ServerExited(pid, status) => grave(&format!(
            "server {pid} died (status {status}): its clients got error 806 (cudaErrorMpsRpcFailure); \
             the next client starts a new server with the same limits"
        )),
        Event::Ready(pid) => log.line(&format!("server {pid} is ready")),
        Event::Fatal(text) => grave(&format!(
            "the vendor's log says: {text}; a client's fatal error (an illegal address, for one) reaches every client on its \
             GPU, and new ones are refused with error 807 (cudaErrorMpsServerNotReady) until all of these have ended"
        )),
        Event::Trouble(text) => log.line(&format!("the vendor's log says: {text}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpsd_core::config::MemoryOverLimit;

    /// What becomes of these events, each with its control daemon: the sentences that the user is to read at the end.
    fn said(events: &[(i32, Event)]) -> String {
        let spec = Spec {
            job: "1".to_owned(),
            uid: 0,
            control: "/".into(),
            nvml: String::new(),
            daemons: Vec::new(),
            servers: Vec::new(),
            start_ms: 1,
            command_ms: 1,
            over_limit: MemoryOverLimit::Ignore,
            most: ClientLimits::default(),
        };
        let (mut log, mut sight) = (UserLog::open(&spec), Sight::default());
        for (daemon, event) in events {
            sight.take(*daemon, event);
            tell(&mut log, &mut sight, *daemon, event.clone());
        }
        format!("{sight:?}")
    }

    #[test]
    fn servers_of_two_daemons_that_are_told_to_end_at_once_have_not_died() {
        let (first, second) = (Event::ServerToEnd(691), Event::ServerToEnd(692));
        let told = [(1, first), (2, second), (1, Event::ServerExited(691, 0))];
        assert!(!said(&told).contains("died"), "{}", said(&told));
        let of_another = [(1, Event::ServerToEnd(691)), (2, Event::ServerExited(691, 0))];
        assert!(said(&of_another).contains("server 691 died (status 0)"));
    }
}

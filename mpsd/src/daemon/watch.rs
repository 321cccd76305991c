//! Watches over ready daemons: what happens to them goes into the user's log.

use super::dialogue::Event;
use super::events::Events;
use super::memory::MemoryWatch;
use super::start::{self, Running};
use super::user_log::UserLog;
use crate::job::spec::Spec;
use crate::sys::Exit;

/// Watches over ready daemons until a signal ends us or the last of them has ended.
pub fn until_the_end(spec: &Spec, mut running: Vec<Running>, events: &mut Events, log: &mut UserLog) {
    let mut memory = MemoryWatch::new(spec);
    let mut to_end = None;
    while !running.is_empty() {
        let Ok(terminate) = events.wait(memory.period()) else {
            return;
        };
        for daemon in &mut running {
            for line in daemon.tail.lines() {
                if matches!(Event::parse(&line), Some(Event::NewClient(_))) {
                    memory.wake();
                }
                tell(log, &line, &mut to_end);
            }
        }
        running.retain_mut(|daemon| !has_ended(daemon, log));
        memory.look(spec, &running, log);
        if terminate {
            log.line(&format!("job {}: ending MPS on a signal", spec.job));
            running.iter_mut().for_each(start::end);
            return;
        }
    }
}

fn has_ended(daemon: &mut Running, log: &mut UserLog) -> bool {
    let Some(end) = daemon.child.try_wait() else {
        return false;
    };
    let what = match end {
        Exit::Code(0 | 1) => "was told to quit",
        _ => "died",
    };
    log.line(&format!(
        "control daemon {} {what} ({end}); clients that start from now on run without MPS",
        daemon.child.pid()
    ));
    true
}

/// Says a line of the vendor's log in the user's words. `to_end`: the server that was told to end.
fn tell(log: &mut UserLog, line: &str, to_end: &mut Option<i32>) {
    match Event::parse(line) {
        Some(Event::ServerToEnd(pid)) => *to_end = Some(pid),
        Some(Event::ServerExited(pid, 0)) if *to_end == Some(pid) => {
            log.line(&format!("server {pid} ended"));
        }
        Some(Event::ServerExited(pid, status)) => log.line(&format!(
            "server {pid} died (status {status}): its clients got error 806 (cudaErrorMpsRpcFailure); \
             the next client starts a new server with the same limits"
        )),
        Some(Event::Ready(pid)) => log.line(&format!("server {pid} is ready")),
        Some(Event::Fatal(text)) => log.line(&format!(
            "the vendor's log says: {text}; a client's fatal error (an illegal address, for one) reaches every client on its \
             GPU, and new ones are refused with error 807 (cudaErrorMpsServerNotReady) until all of these have ended"
        )),
        Some(Event::Trouble(text)) => log.line(&format!("the vendor's log says: {text}")),
        _ => {}
    }
}

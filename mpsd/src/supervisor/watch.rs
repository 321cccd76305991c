//! Watches over ready daemons, for the user's log and the observations.

use super::comeback::Comeback;
use super::dialogue::Event;
use super::events::Events;
use super::memory::MemoryWatch;
use super::observer::{ClientWatch, Observer};
use super::outside::OutsideWatch;
use super::start::{self, Running};
use super::usage::UsageWatch;
use crate::job::spec::Spec;
use crate::node::nvml::Nvml;
use mpsd_core::observations::{DaemonLost, keep};
use mpsd_sys::Exit;
use mpsd_sys::process::ProcessTable;
use nix::sys::signal::Signal;
use std::cell::Cell;

pub fn until_the_end(
    spec: &Spec,
    mut running: Vec<Running>,
    events: &mut Events,
    observer: &mut Observer,
) {
    let mut memory = MemoryWatch::new(spec);
    let mut clients = ClientWatch::default();
    let mut usage = UsageWatch::new(spec);
    let mut comeback = Comeback::default();
    let mut outside = OutsideWatch::new(spec);
    let loaded: Cell<Option<Nvml>> = Cell::new(None);
    // Kept: loading costs more than the questions.
    let nvml = || {
        loaded.set(loaded.get().or_else(|| Nvml::load(&spec.nvml).ok()));
        loaded.get()
    };
    while !running.is_empty() || comeback.is_busy() {
        let periods = [
            memory.period(),
            usage.period(),
            comeback.period(),
            outside.period(),
        ];
        let period = periods.into_iter().flatten().min();
        let Ok(terminate) = events.wait(period, &clients) else {
            return;
        };
        let mut told = Vec::new();
        for daemon in running.iter_mut().chain(comeback.leaving()) {
            let pid = daemon.child.pid();
            for event in daemon.lines().iter().filter_map(|line| Event::parse(line)) {
                match event {
                    Event::NewClient(_) | Event::Active(_) => memory.wake(),
                    Event::Quit => told.push(pid),
                    _ => {}
                }
                clients.take(&event);
                observer.take(pid, &event);
                tell(observer, pid, event);
            }
            if observer.is_ending(pid) {
                events.forget(&mut daemon.watches.log);
            }
        }
        for killed in clients.killed() {
            observer.take_killed(killed);
        }
        for daemon in running.iter().filter(|_| !terminate) {
            replace_server(daemon, observer);
        }
        for told in told.into_iter().filter(|_| !terminate) {
            comeback.begin(told, spec, &mut running, events, observer);
        }
        comeback.go_on(spec, &mut running, events, observer);
        running.retain_mut(|daemon| !has_ended(daemon, observer));
        usage.clients(observer.clients());
        memory.check(spec, nvml, &running, observer);
        outside.check(spec, nvml, &running, observer);
        if let Some(usage) = usage.check(nvml) {
            observer.all.usage = Some(usage);
        }
        observer.write();
        if terminate {
            let line = format!("job {}: ending MPS on a signal", spec.job);
            observer.log.line(&line);
            running.iter_mut().for_each(start::end);
            comeback.end();
            return;
        }
    }
}

/// Ends the server of `daemon` if its next client could get the error of one that a signal ended
/// (719). The daemon starts a new server for that client, with the same limits.
fn replace_server(daemon: &Running, observer: &mut Observer) {
    let control = daemon.child.pid();
    if !observer.needs_new_server(control) {
        return;
    }
    let server = observer.server(control).or(daemon.server);
    let table = ProcessTable::scan().unwrap_or_default();
    let own = table.descendants(control).into_iter();
    let own = own.map(|entry| entry.stat.id);
    for server in own.filter(|id| Some(id.pid) == server) {
        if server.open().is_some_and(|one| one.signal(Signal::SIGKILL)) {
            let why = "a signal has ended one of its clients, whose error the next client could get (719)";
            observer.log.line(&format!(
                "server {} ended by mpsd: {why}; the next client starts a new one",
                server.pid
            ));
            observer.ended(control, server.pid);
        }
    }
}

fn has_ended(daemon: &mut Running, observer: &mut Observer) -> bool {
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
    observer.say(&sentence);
    observer.forget(pid);
    let how = end.to_string();
    keep(&mut observer.all.daemons_lost, DaemonLost { pid, how });
    true
}

fn tell(observer: &mut Observer, daemon: i32, event: Event) {
    let (grave, line) = match event {
        Event::ServerExited(pid, 0) if observer.was_told_to_end(daemon, pid) => {
            (false, format!("server {pid} ended"))
        }
        Event::ServerExited(pid, status) => {
            let clients = "its clients got error 806 (cudaErrorMpsRpcFailure)";
            let next = "the next client starts a new server with the same limits";
            (
                true,
                format!("server {pid} died (status {status}): {clients}; {next}"),
            )
        }
        Event::Ready(pid) => (false, format!("server {pid} is ready")),
        Event::Fatal(text) if observer.victim(daemon, &text).is_some() => {
            let who = observer.victim(daemon, &text).unwrap_or_default();
            let cause = "the error (719) of an earlier client that was killed";
            (
                true,
                format!(
                    "{who} got {cause}, and did not cause it: start it again (the vendor's log says: {text})"
                ),
            )
        }
        Event::Fatal(text) => (
            true,
            format!(
                "{}the vendor's log says: {text}; a client's fatal error (an illegal address, for one) reaches every client on its \
                 GPU, and new ones are refused with error 807 (cudaErrorMpsServerNotReady) until all of these have ended",
                observer
                    .culprit(&text)
                    .map_or_else(String::new, |who| format!("by {who}: "))
            ),
        ),
        Event::Trouble(text) => (false, format!("the vendor's log says: {text}")),
        _ => return,
    };
    match grave {
        true => observer.say(&line),
        false => observer.log.line(&line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the user is to read at the end.
    fn last_words(events: &[(i32, Event)]) -> String {
        let mut observer = Observer::default();
        for (daemon, event) in events {
            observer.take(*daemon, event);
            tell(&mut observer, *daemon, event.clone());
        }
        observer.all.last_words.join("\n")
    }

    #[test]
    fn servers_of_two_daemons_that_are_told_to_end_at_once_have_not_died() {
        let (first, second) = (Event::ServerToEnd(691), Event::ServerToEnd(692));
        let told = [(1, first), (2, second), (1, Event::ServerExited(691, 0))];
        assert_eq!(last_words(&told), "");
        let of_another = [
            (1, Event::ServerToEnd(691)),
            (2, Event::ServerExited(691, 0)),
        ];
        assert!(last_words(&of_another).contains("server 691 died (status 0)"));
    }
}

//! Lines of the log, as recorded, and what is made of them.

use super::*;

fn seen(lines: &[&str]) -> Seen {
    let mut sight = Sight::default();
    for line in lines {
        let line = format!("[2026-11-22 04:21:29.604 Server  4590] {line}");
        if let Some(event) = Event::parse(&line) {
            sight.take(1, &event);
        }
    }
    sight.seen
}

fn active(pid: i32) -> String {
    format!("Status of client {{PID: {pid}, Context ID: 1}} is ACTIVE")
}

#[test]
fn clients_are_counted_once_and_the_most_at_a_time() {
    let (first, second) = (active(4605), active(4616));
    let gone = "Client process 4605 disconnected";
    let account = seen(&[
        &first,
        &first,
        &second,
        gone,
        "Client process 4616 disconnected",
        &first,
    ]);
    assert_eq!((account.clients, account.most_clients), (3, 2));
    assert_eq!(account.refused, []);
}

#[test]
fn a_client_that_goes_without_a_context_is_named_with_how_many_had_one() {
    let some: Vec<String> = (100..148).map(active).collect();
    let mut lines: Vec<&str> = some.iter().map(String::as_str).collect();
    lines.extend(["Client process 999 disconnected"; 2]);
    assert_eq!(seen(&lines).refused, [Refused { pid: 999, beside: 48 }]);
}

#[test]
fn a_server_that_ended_unasked_is_named_and_one_that_was_told_to_is_not() {
    let lost = |clients, status| {
        [ServerLost {
            pid: 691,
            status,
            clients,
        }]
    };
    assert_eq!(
        seen(&[&active(5), "Server 691 exited with status 0"]).servers_lost,
        lost(1, 0)
    );
    let told = "Try shutting down server 691, backoff is enabled";
    assert_eq!(seen(&[told, "Server 691 exited with status 0"]).servers_lost, []);
    assert_eq!(
        seen(&[told, "Server 691 exited with status 1"]).servers_lost,
        lost(0, 1)
    );
}

#[test]
fn a_fatal_error_names_its_client_where_the_line_does() {
    assert_eq!(
        seen(&["Client 8349 caused a fatal error on its device"]).fatal,
        [8349]
    );
    assert_eq!(
        seen(&["client {PID: 8349, Context ID: 1} had a fatal exception"]).fatal,
        [8349]
    );
    assert_eq!(seen(&["fatal: 3 things"]).fatal, Vec::<i32>::new());
}

/// Takes these lines of the logs of control daemons 1 and 2 in.
fn of_two(lines: &[(i32, &str)]) -> Sight {
    let mut sight = Sight::default();
    for (daemon, line) in lines {
        let event = Event::parse(&format!("[2026-11-22 04:21:29.604 Server  4590] {line}"));
        sight.take(*daemon, &event.expect(line));
    }
    sight
}

#[test]
fn a_lost_server_takes_its_own_daemons_clients_alone() {
    let (first, second) = (active(5), active(6));
    let lost = "Server 691 exited with status 0";
    let sight = of_two(&[
        (1, &first),
        (2, &second),
        (1, lost),
        (2, "Client process 6 disconnected"),
    ]);
    assert_eq!((sight.seen.clients, sight.seen.most_clients), (2, 2));
    assert_eq!(sight.seen.servers_lost[0].clients, 1);
    assert_eq!(sight.seen.refused, []);
}

#[test]
fn servers_of_two_daemons_that_are_told_to_end_at_once_are_both_told() {
    let sight = of_two(&[
        (1, "Try shutting down server 691, backoff is enabled"),
        (2, "Try shutting down server 692, backoff is enabled"),
        (1, "Server 691 exited with status 0"),
        (2, "Server 692 exited with status 0"),
    ]);
    assert_eq!(sight.seen.servers_lost, []);
}

#[test]
fn a_log_with_clients_without_end_is_remembered_to_a_bound() {
    let mut sight = Sight::default();
    for pid in 1..100_000 {
        sight.take(1, &Event::Active(pid));
    }
    assert_eq!(sight.daemons[&1].clients.len(), MOST_CLIENTS);
    assert_eq!(sight.seen.most_clients, MOST_CLIENTS as u64);
    // It knows no longer whose clients there are.
    assert!(!sight.is_stranger(99_999));
}

#[test]
fn a_client_that_no_log_names_is_a_stranger_once_one_names_any() {
    assert!(!Sight::default().is_stranger(7));
    let (first, second) = (active(5), active(6));
    let sight = of_two(&[(1, &first), (2, &second)]);
    assert_eq!([5, 6, 7].map(|pid| sight.is_stranger(pid)), [false, false, true]);
}

#[test]
fn a_daemon_is_ending_once_it_was_told_to_quit_and_nobody_is_left() {
    let mut sight = Sight::default();
    let mut ending = |message: &str| {
        let line = format!("[2026-11-22 04:21:29.604 Control  4590] {message}");
        if let Some(event) = Event::parse(&line) {
            sight.take(1, &event);
        }
        sight.is_ending(1)
    };
    assert!(!ending(&active(5)));
    assert!(!ending("Cmd:quit -t 1"));
    assert!(
        !ending("Try shutting down server 691, backoff is disabled"),
        "a client is there"
    );
    assert!(ending("Client process 5 disconnected"));

    let mut other = Sight::default();
    let told = "[x Control 1] Try shutting down server 691, backoff is enabled";
    other.take(2, &Event::parse(told).unwrap());
    assert!(!other.is_ending(2), "the daemon itself stays");
}

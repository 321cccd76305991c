//! Lines of the log, as recorded, and what is made of them.

use super::*;

fn seen(lines: &[&str]) -> Seen {
    let mut sight = Sight::default();
    for line in lines {
        let line = format!("[2026-11-22 04:21:29.604 Server  4590] {line}");
        if let Some(event) = Event::parse(&line) {
            sight.take(&event);
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
    lines.push("Client process 999 disconnected");
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

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

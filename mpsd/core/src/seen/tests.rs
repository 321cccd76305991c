use super::*;

#[test]
fn an_account_comes_back_as_it_was_written() {
    let mut seen = Seen::default();
    let gpu = GpuUuid::parse("GPU-01").unwrap();
    seen.look(&gpu, 2, 600);
    seen.look(&gpu, 1, 900);
    seen.last_words.push("server 7 died".to_owned());
    keep(&mut seen.refused, Refused { pid: 9, beside: 48 });
    assert_eq!(Seen::parse(seen.line().as_bytes()), Some(seen.clone()));
    assert_eq!(
        (seen.gpus[0].most_clients, seen.gpus[0].most_memory_mib),
        (2, 900)
    );
    // What stood there before a shorter one was written over it.
    let text = seen.line() + "old\": 1}";
    assert_eq!(Seen::parse(text.as_bytes()), Some(seen));
}

#[test]
fn what_a_user_may_write_is_bounded_and_printable() {
    let many = (0..1000).map(|n| format!("{n}\u{1b}[2J\n{}", "x".repeat(5000)));
    let hostile = Seen {
        last_words: many.collect(),
        fatal: vec![1; 1000],
        pids: vec![1; 10_000],
        killed: vec![Killed { pid: 1, signal: 9 }; 1000],
        limits_changed: vec![
            LimitChanged {
                limit: "\u{1b}[2J".repeat(1000),
                asked: None,
                said: Some("\u{7}\n".repeat(1000)),
            };
            1000
        ],
        ..Seen::default()
    };
    let seen = Seen::parse(hostile.line().as_bytes()).unwrap();
    assert!(seen.last_words.len() == MOST && seen.fatal.len() == MOST);
    assert!(seen.pids.len() == MOST_PIDS && seen.killed.len() == MOST);
    let clean = |text: &String| !text.contains(char::is_control) && text.chars().count() <= SENTENCE + 3;
    assert!(seen.last_words.iter().all(clean));
    assert_eq!(seen.limits_changed.len(), MOST);
    assert!(
        seen.limits_changed
            .iter()
            .all(|change| clean(&change.to_string()))
    );
    for none in [
        "",
        "{",
        "null",
        "7",
        "\u{0}",
        "{\"clients\": -1}",
        "{\"gpus\": [{\"uuid\": \"/etc\"}]}",
    ] {
        assert_eq!(Seen::parse(none.as_bytes()), None, "{none:?}");
    }
}

#[test]
fn of_the_clients_the_youngest_are_known() {
    let mut seen = Seen::default();
    for pid in 1..=600 {
        seen.enter(pid, 3);
    }
    assert_eq!(
        (seen.clients, seen.most_clients, seen.pids.len()),
        (600, 3, MOST_PIDS)
    );
    assert!(seen.is_client(600) && !seen.is_client(1) && !seen.is_client(601));
    assert!(seen.line().len() < LONGEST / 2, "{}", seen.line().len());
}

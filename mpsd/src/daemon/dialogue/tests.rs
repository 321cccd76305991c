use super::*;
use mpsd_core::GpuUuid;

const GPU: &str = "GPU-200b4359-5562-4e0e-ed46-88b581af6524";

fn daemon(threads: Option<&str>, memory: Option<u64>) -> Daemon {
    let gpu = GpuUuid::parse(GPU).unwrap();
    Daemon {
        gpus: vec![gpu.clone()],
        pipe: "/p".into(),
        log: "/l".into(),
        threads: threads.map(|t| t.parse().unwrap()),
        memory: memory.map(|m| vec![(gpu, m)]).unwrap_or_default(),
        priority: None,
        partitions: Vec::new(),
    }
}

#[test]
fn the_session_sets_reads_back_and_starts() {
    let text = configure(&daemon(Some("25"), Some(4096)), 1001);
    assert_eq!(
        text,
        format!(
            "set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit {GPU} 4096M\n\
             get_default_active_thread_percentage\nget_default_device_pinned_mem_limit {GPU}\n\
             get_default_active_thread_percentage\nstart_server -uid 1001\n"
        )
    );
}

#[test]
fn answers_of_the_recorded_daemon_pass() {
    assert_eq!(
        check(
            Of::NextServers,
            &daemon(Some("25"), Some(4096)),
            "25.0\n25.0\n4096M\n25.0\n"
        ),
        Ok(())
    );
    assert_eq!(
        check(
            Of::NextServers,
            &daemon(Some("25"), Some(4096)),
            "25.0\n25.0\n4G\n25.0\n"
        ),
        Ok(())
    );
    assert_eq!(
        check(Of::NextServers, &daemon(Some("12.5"), None), "12.5\n12.5\n"),
        Ok(())
    );
    assert_eq!(check(Of::NextServers, &daemon(None, None), "100.0\n"), Ok(()));
}

#[test]
fn a_limit_that_was_silently_dropped_is_seen() {
    let want = daemon(Some("25"), Some(4096));
    for (answers, word) in [
        ("100.0\n100.0\n4096M\n100.0\n", "percentage 25.0"),
        ("25.0\n25.0\n25.0\n", "memory limit"),
        ("25.0\n25.0\n3G\n25.0\n", "'3G'"),
        ("25.0\n25.0\n4096M\n", "percentage"),
        ("25.0\n25.0\n4096M\n25.0\nNot enough privilege\n", "Not enough"),
        ("", "nothing"),
    ] {
        let error = check(Of::NextServers, &want, answers).unwrap_err();
        assert!(error.contains(word), "{answers:?}: {error}");
    }
}

#[test]
fn the_servers_own_log_is_the_last_word() {
    let mut proof = Proof::default();
    for line in [
        "[2026-11-21 02:38:37.001 Control   621] NEW SERVER 645: Ready",
        "[2026-11-21 01:32:37.858 Server   691] Active Threads Percentage set to 25.0",
        &format!(
            "[2026-11-21 01:32:37.858 Server   691] Device pinned memory limit for device {GPU} set to 0x100000000 bytes"
        ),
        "[2026-11-21 01:32:37.858 Server   691] Server has started",
    ] {
        proof.take(line);
    }
    assert_eq!(proof.ready, Some(645));
    assert!(proof.started);
    assert_eq!(proof.confirms(&daemon(Some("25"), Some(4096))), Ok(()));
    assert!(proof.confirms(&daemon(Some("50"), Some(4096))).is_err());
    assert!(proof.confirms(&daemon(Some("25"), Some(2048))).is_err());
}

#[test]
fn whatever_the_log_calls_fatal_is_for_the_user() {
    let line = "[x Control   459] Server encountered a fatal exception. Shutting down";
    assert!(matches!(Event::parse(line), Some(Event::Fatal(text)) if text.starts_with("Server encountered")));
}

#[test]
fn a_server_that_was_told_to_end_is_known() {
    let line = "[x Control   459] Try shutting down server 578, backoff is enabled";
    assert_eq!(Event::parse(line), Some(Event::ServerToEnd(578)));
}

#[test]
fn lines_that_mean_nothing_or_are_hostile_mean_nothing() {
    for line in [
        "",
        "[",
        "[] ",
        "NEW SERVER 1: Ready",
        "[x] NEW SERVER x: Ready",
        "[x] Device pinned memory limit for device",
    ] {
        assert_eq!(Event::parse(line), None, "{line:?}");
    }
    assert_eq!(
        Event::parse("[x] Server 551 exited with status 1"),
        Some(Event::ServerExited(551, 1))
    );
}

/// Recorded forms (docs/facts/mps-580-transcript.txt, tests/hardware/results): the daemon logs each command of a session.
#[test]
fn a_command_that_sets_something_is_known_and_none_is_a_fault() {
    for line in [
        "[2026-11-22 04:21:26.163 Control  4582] Cmd:set_default_active_thread_percentage 25",
        "[2026-11-22 04:21:26.163 Control  4582] Cmd:set_default_device_pinned_mem_limit GPU-c7ad435f-7fa3-8d23-29fd-57b9c6e1047b 4096M",
    ] {
        assert_eq!(Event::parse(line), Some(Event::Setting), "{line:?}");
    }
    for line in [
        "[2026-11-21 02:38:36.736 Control   621] Cmd:get_server_list",
        "[x Control   621] Cmd:get_default_active_thread_percentage",
        "[2026-11-22 04:21:26.163 Control  4582] set_default_device_pinned_mem_limit GPU-c7ad435f-7fa3-8d23-29fd-57b9c6e1047b 4096M.",
    ] {
        assert_eq!(Event::parse(line), None, "{line:?}");
    }
    let fault = "[x Server   621] a fault by default";
    assert!(matches!(Event::parse(fault), Some(Event::Trouble(_))));
}

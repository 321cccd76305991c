//! The command session: what is answered, and that the exit status says nothing.

use crate::bench::Bench;
use crate::processes::{STRANGER, USER};

/// Each command in a session of its own: its answer; the exit status must be 0.
fn answers(bench: &Bench, pairs: &[(&str, &str)]) {
    let daemon = bench.daemon();
    for (command, answer) in pairs {
        let ended = daemon.say(command);
        assert_eq!((ended.out.as_str(), ended.code()), (*answer, 0), "to '{command}'");
    }
}

#[test]
fn an_unknown_command_is_told_and_exits_0() {
    let unknown = |command: &str| format!("Unknown command \"{command}\"\n");
    let words = ["help", "?", "bogus_command", "", "QUIT", "lspart"];
    let texts: Vec<String> = words.iter().map(|w| unknown(w)).collect();
    let pairs: Vec<(&str, &str)> = words
        .iter()
        .copied()
        .zip(texts.iter().map(String::as_str))
        .collect();
    answers(&Bench::new(), &pairs);
}

#[test]
fn without_a_daemon_every_command_fails_with_1() {
    let bench = Bench::new();
    let nothing = bench.directories();
    for command in ["get_server_list", "quit", "help"] {
        let ended = nothing.say(command);
        assert_eq!(ended.code(), 1, "{command}");
        assert_eq!(
            (ended.out.as_str(), ended.err.as_str()),
            ("", "Cannot find MPS control daemon process\n")
        );
    }
}

#[test]
fn queries_before_there_is_a_server() {
    answers(
        &Bench::new(),
        &[
            ("get_server_list", ""),
            (" get_server_list", ""),
            ("get_server_list\r", ""),
            ("get_server_list x", ""),
            ("get_default_active_thread_percentage", "100.0\n"),
            ("get_default_device_pinned_mem_limit 0", ""),
            ("get_default_client_priority", "0\n"),
            ("ps", "Server not found\n"),
            ("ps foo", "Server not found\n"),
            ("ps -p 7", "Server 7 not found\nServer 7 not found\n\n"),
            ("get_client_list 1", "Server 1 not found\n"),
            ("get_client_list", "Server 0 not found\n"),
            ("get_server_status 1", "Server 1 not found\n"),
            ("get_server_status", "A server PID is required\n"),
            ("get_server_status abc", "A server PID is required\n"),
            ("get_device_client_list", ""),
            ("set_active_thread_percentage 1 50", "Server 1 not found\n"),
            ("get_active_thread_percentage 1", "Server 1 not found\n"),
            ("device_query 1", "Server 1 not found\n"),
            (
                "terminate_client 1 2",
                "Server 1 not found\nServer 1 not found!\n1\n",
            ),
        ],
    );
}

#[test]
fn a_refused_percentage_answers_the_unchanged_value() {
    let set = "set_default_active_thread_percentage";
    let lines = ["25", "0", "101", "abc", "NaN", "", "12.5", "33.333", "100"].map(|v| format!("{set} {v}"));
    let replies = [
        "25.0\n", "25.0\n", "25.0\n", "25.0\n", "25.0\n", "25.0\n", "12.5\n", "33.3\n", "100.0\n",
    ];
    let pairs: Vec<(&str, &str)> = lines.iter().map(String::as_str).zip(replies).collect();
    answers(&Bench::new(), &pairs);
}

#[test]
fn a_memory_limit_of_an_unknown_unit_counts_in_mib_and_whole_gib_are_read_back_as_such() {
    let bench = Bench::new();
    let uuid = bench.gpus[0].uuid.clone();
    let (set, get) = (
        format!("set_default_device_pinned_mem_limit {uuid} 4G"),
        format!("get_default_device_pinned_mem_limit {uuid}"),
    );
    answers(
        &bench,
        &[
            ("set_default_device_pinned_mem_limit 0 3G", ""),
            ("get_default_device_pinned_mem_limit 0", "3G\n"),
            ("set_default_device_pinned_mem_limit 0 900M", ""),
            ("get_default_device_pinned_mem_limit 0", "900M\n"),
            ("set_default_device_pinned_mem_limit 0 3X", ""),
            ("get_default_device_pinned_mem_limit 0", "3M\n"),
            ("set_default_device_pinned_mem_limit 0 1024", ""),
            ("get_default_device_pinned_mem_limit 0", "1G\n"),
            ("set_default_device_pinned_mem_limit 0 2GB", ""),
            ("get_default_device_pinned_mem_limit 0", "2G\n"),
            ("set_default_device_pinned_mem_limit 0 junk", ""),
            ("get_default_device_pinned_mem_limit 0", ""),
            ("set_default_device_pinned_mem_limit 7 3G", ""),
            ("set_default_device_pinned_mem_limit 0 3G", ""),
            (&get, ""),
            (&set, ""),
            (&get, "4G\n"),
            ("get_default_device_pinned_mem_limit 0", "3G\n"),
            ("set_default_device_pinned_mem_limit", ""),
            ("get_default_device_pinned_mem_limit 3", ""),
        ],
    );
}

#[test]
fn priority_is_0_or_1() {
    answers(
        &Bench::new(),
        &[
            ("set_default_client_priority 1", ""),
            (
                "set_default_client_priority 5",
                "Invalid priority value - must be 0 or 1!\n",
            ),
            ("get_default_client_priority", "1\n"),
            (
                "set_default_client_priority -1",
                "Invalid priority value - must be 0 or 1!\n",
            ),
            ("get_default_client_priority", "1\n"),
            ("set_default_client_priority", ""),
            ("get_default_client_priority", "0\n"),
        ],
    );
}

#[test]
fn many_commands_in_one_session_answer_in_order_without_a_delimiter() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let lines = "set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit 0 3G\n\
                 get_default_device_pinned_mem_limit 0\nget_server_list\nget_default_active_thread_percentage";
    let ended = daemon.say(lines);
    assert_eq!((ended.out.as_str(), ended.code()), ("25.0\n3G\n25.0\n", 0));
}

#[test]
fn start_server_wants_a_uid() {
    let required = "A user id (UID) is required to start a new server\n";
    answers(
        &Bench::new(),
        &[
            ("start_server", required),
            ("start_server -uid", required),
            ("start_server -uid abc", required),
            (
                "start_server 54321",
                "Invalid start_server cmd. Expected cmd: start_server -uid <user id>\n",
            ),
            ("get_server_list", ""),
        ],
    );
}

#[test]
fn a_stranger_may_ask_but_not_set_and_not_quit_and_is_told_with_exit_0() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let refusal = format!(
        "Insufficient privileges for UID {STRANGER}. Control deamon settings can only be modified by the user who \
         started it or by the root user.\n"
    );
    for (command, answer) in [
        ("get_server_list", ""),
        ("get_default_active_thread_percentage", "100.0\n"),
        ("set_default_active_thread_percentage 40", refusal.as_str()),
        ("set_default_client_priority 1", refusal.as_str()),
        ("quit", "Not enough privilege to execute quit command\n"),
    ] {
        let ended = daemon.say_as(STRANGER, command);
        assert_eq!((ended.out.as_str(), ended.code()), (answer, 0), "to '{command}'");
    }
    assert_eq!(daemon.say("get_default_active_thread_percentage").out, "100.0\n");
}

#[test]
fn root_may_set_and_quit() {
    let bench = Bench::new();
    let mut daemon = bench.daemon();
    assert_eq!(
        daemon.say_as(0, "set_default_active_thread_percentage 40").out,
        "40.0\n"
    );
    assert_eq!(daemon.say_as(0, "quit").code(), 0);
    assert!(daemon.process().ended_within(crate::bench::PATIENCE).is_some());
}

#[test]
fn device_query_is_a_table_of_the_gpus() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let ended = daemon.say("device_query --csv");
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(
        lines[..2],
        ["Default", "Device Ordinal,PCI IDs,UUID,Name,Attributes"]
    );
    for (index, gpu) in bench.gpus.iter().enumerate() {
        let cells: Vec<&str> = lines[index + 2].split(',').collect();
        assert_eq!(
            (cells[0], cells[2]),
            (index.to_string().as_str(), gpu.uuid.as_str())
        );
    }
    let server = daemon.start_server();
    let both = daemon.say("device_query").out;
    assert!(
        both.contains(&format!("\n\nServer {server}\nDevice Ordinal")),
        "{both}"
    );
    assert_eq!(daemon.say_as(USER, "get_server_list").out, format!("{server}\n"));
}

#[test]
fn the_log_has_each_command_of_a_session_as_it_was_said() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let commands = ["set_default_active_thread_percentage 25", "get_server_list"];
    daemon.say(&commands.join("\n"));
    for command in commands {
        let line = format!("] Cmd:{command}\n");
        assert!(daemon.logs(&line), "{line}: {}", daemon.log_text());
        let text = daemon.log_text();
        let said = text
            .lines()
            .find(|said| said.contains("Cmd:") && said.ends_with(command));
        let by = said.and_then(|said| said.split(']').next()).unwrap_or_default();
        assert!(
            by.ends_with(&daemon.pid().to_string()) && by.contains(" Control "),
            "{text}"
        );
    }
}

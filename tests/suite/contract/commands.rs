//! The command session: what is answered, and that the exit status says nothing.

use crate::bench::{Bench, Daemon};
use crate::processes::STRANGER;

#[track_caller]
fn answers(pairs: &[(&str, &str)]) {
    let daemon = Daemon::new();
    for (command, answer) in pairs {
        println!("{command}");
        daemon.say(command).answers(answer);
    }
}

#[test]
fn without_a_daemon_every_command_fails_with_1() {
    let nothing = Bench::new().directories();
    for command in ["get_server_list", "quit", "help"] {
        let ended = nothing.say(command);
        let told = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
        let expected = (Some(1), "", "Cannot find MPS control daemon process\n");
        assert_eq!(told, expected, "{command}");
    }
}

#[test]
fn queries_before_there_is_a_server() {
    answers(&[
        ("get_server_list", ""),
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
        (
            "terminate_client 1 2",
            "Server 1 not found\nServer 1 not found!\n1\n",
        ),
    ]);
}

#[test]
fn a_refused_percentage_answers_the_unchanged_value() {
    let set = "set_default_active_thread_percentage";
    let refused = ["0", "101", "abc", "NaN", ""].map(|value| (value, "25.0\n"));
    let taken = [("12.5", "12.5\n"), ("33.333", "33.3\n"), ("100", "100.0\n")];
    let all = [("25", "25.0\n")].into_iter().chain(refused).chain(taken);
    let daemon = Daemon::new();
    for (value, answer) in all {
        daemon.say(&format!("{set} {value}")).answers(answer);
    }
}

#[test]
fn a_memory_limit_of_an_unknown_unit_counts_in_mib_and_whole_gib_are_read_back_as_such() {
    let bench = Bench::new();
    let daemon = bench.daemon();
    let uuid = bench.gpus[0].uuid.as_str();
    // The name, what is set by it, and what is read back.
    for (name, set, read) in [
        ("0", "3G", "3G\n"),
        ("0", "900M", "900M\n"),
        ("0", "3X", "3M\n"),
        ("0", "1024", "1G\n"),
        ("0", "2GB", "2G\n"),
        ("0", "junk", ""),
        ("7", "3G", ""),
        ("0", "3G", "3G\n"),
        (uuid, "4G", "4G\n"),
    ] {
        let get = format!("get_default_device_pinned_mem_limit {name}");
        if name == uuid {
            daemon.say(&get).answers("");
        }
        let set = format!("set_default_device_pinned_mem_limit {name} {set}");
        daemon.say(&set).answers("");
        if name != "7" {
            daemon.say(&get).answers(read);
        }
    }
    for (command, answer) in [
        ("get_default_device_pinned_mem_limit 0", "3G\n"),
        ("set_default_device_pinned_mem_limit", ""),
        ("get_default_device_pinned_mem_limit 3", ""),
    ] {
        daemon.say(command).answers(answer);
    }
}

#[test]
fn priority_is_0_or_1() {
    let refused = "Invalid priority value - must be 0 or 1!\n";
    answers(&[
        ("set_default_client_priority 1", ""),
        ("set_default_client_priority 5", refused),
        ("get_default_client_priority", "1\n"),
        ("set_default_client_priority -1", refused),
        ("get_default_client_priority", "1\n"),
        ("set_default_client_priority", ""),
        ("get_default_client_priority", "0\n"),
    ]);
}

#[test]
fn many_commands_in_one_session_answer_in_order_without_a_delimiter() {
    let daemon = Daemon::new();
    let lines = "set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit 0 3G\n\
                 get_default_device_pinned_mem_limit 0\nget_server_list\nget_default_active_thread_percentage";
    daemon.say(lines).answers("25.0\n3G\n25.0\n");
}

#[test]
fn start_server_wants_a_uid() {
    let required = "A user id (UID) is required to start a new server\n";
    answers(&[
        ("start_server", required),
        ("start_server -uid", required),
        ("start_server -uid abc", required),
        (
            "start_server 54321",
            "Invalid start_server cmd. Expected cmd: start_server -uid <user id>\n",
        ),
        ("get_server_list", ""),
    ]);
}

#[test]
fn a_stranger_may_ask_but_not_set_and_not_quit_and_is_told_with_exit_0() {
    let daemon = Daemon::new();
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
        daemon.say_as(STRANGER, command).answers(answer);
    }
    let get = "get_default_active_thread_percentage";
    daemon.say(get).answers("100.0\n");
}

#[test]
fn root_may_set_and_quit() {
    let mut daemon = Daemon::new();
    let set = "set_default_active_thread_percentage 40";
    daemon.say_as(0, set).answers("40.0\n");
    assert_eq!(daemon.say_as(0, "quit").code, Some(0));
    daemon.ends();
}

#[test]
fn the_log_has_each_command_of_a_session_as_it_was_said() {
    let daemon = Daemon::new();
    let commands = ["set_default_active_thread_percentage 25", "get_server_list"];
    daemon.say(&commands.join("\n"));
    for command in commands {
        let end = format!("] Cmd:{command}");
        daemon.logs(&format!("{end}\n"));
        let text = daemon.log_text();
        let mut lines = text.lines();
        let by = lines
            .find_map(|line| line.strip_suffix(&end))
            .expect("the line");
        assert!(by.contains(" Control "), "{text}");
        assert!(by.ends_with(&daemon.pid().to_string()), "{text}");
    }
}

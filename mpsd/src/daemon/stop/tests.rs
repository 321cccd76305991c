use super::*;
use mpsd_core::config::MemoryOverLimit;
use mpsd_core::record::ClientLimits;

/// What a control daemon is told at an end, a line a session, that answers `clients` to the first question; server 691 was proved.
fn told(clients: &str, known: &[i32]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let (control, said) = (directory.path().join("control"), directory.path().join("said"));
    let script = format!(
        "#!/bin/sh\nwords=$(cat | tr '\\n' ' ')\necho \"$words\" >> '{}'\ncase \"$words\" in\n\
         'get_client_list 691 get_server_list ') printf '{clients}' ;;\n\
         'get_client_list 691 ') echo 877 ;;\n'get_server_list ') echo 691 ;;\nesac\n",
        said.display()
    );
    std::fs::write(&control, script).unwrap();
    std::fs::set_permissions(&control, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let spec = Spec {
        job: "1".to_owned(),
        uid: 0,
        control,
        nvml: String::new(),
        daemons: vec![Daemon {
            pipe: directory.path().join("pipe"),
            log: directory.path().join("log"),
            gpus: Vec::new(),
            threads: None,
            memory: Vec::new(),
            priority: None,
            partitions: Vec::new(),
        }],
        servers: known.to_vec(),
        most: ClientLimits::default(),
        start_ms: 1,
        command_ms: 20_000,
        over_limit: MemoryOverLimit::Ignore,
    };
    all(&spec).unwrap();
    let said = std::fs::read_to_string(said).unwrap();
    said.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[test]
fn an_end_without_clients_costs_two_sessions_and_any_other_asks_each_thing_alone() {
    let usual = "get_client_list 691 get_server_list";
    let asked = [
        "get_server_list",
        "get_client_list 691",
        "terminate_client 691 877",
        "quit",
    ];
    assert_eq!(told("691\\n", &[691]), [usual, "quit"]);
    assert_eq!(told("691\\n", &[]), asked);
    // A client; another server beside it, or in its place; and nothing at all.
    for other in ["877\\n691\\n", "691\\n692\\n", "692\\n", "", "6917\\n"] {
        let said = told(other, &[691]);
        assert_eq!(said.first().map(String::as_str), Some(usual), "{other}");
        assert_eq!(said[1..], asked, "{other}");
    }
}

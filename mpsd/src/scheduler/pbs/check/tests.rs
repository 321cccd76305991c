use super::*;

#[test]
fn operators_and_managers_by_host_and_wildcard() {
    let server = "Server vm\n    server_state = Active\n    operators = root@nodea,\n\troot@nodeb.example.org\n    managers = pbs@vm\n";
    assert!(may_drain(server, "nodea") && may_drain(server, "nodeb"));
    assert!(!may_drain(server, "nodec") && !may_drain("", "nodea"));
    assert!(may_drain("    managers = root@*\n", "nodec"));
    assert!(!may_drain("    operators = alice@nodea\n", "nodea"));
    assert!(
        may_drain("Server nodea\n    server_state = Active\n", "nodea"),
        "the server's own host"
    );
    assert!(may_drain("Server pbs\n    server_host = nodea\n", "nodea"));
    assert!(!may_drain("Server nodea\n    server_host = nodeb\n", "nodea"));
}

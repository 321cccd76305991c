use super::*;

#[test]
fn the_moms_own_lines_tell_and_no_others() {
    let line = |name: &str, rest: &str| format!("11/22/2026 00:10:12.123;02;   {name};Svr;{rest}");
    let told = |name: &str, rest: &str| taken(line(name, rest).as_bytes(), 7);
    assert_eq!(told("pbs_mom.7", "jobstarter;/a b;c").as_deref(), Some("/a b;c"));
    assert_eq!(told("pbs_mom", "jobstarter;/a").as_deref(), Some("/a"));
    assert_eq!(told("pbs_mom.7", "process_hup;reset").as_deref(), Some(""));
    for (name, rest) in [
        ("pbs_mom.77", "jobstarter;/a"),
        ("pbs_mom.7", "prologalarm;15"),
        ("x", "jobstarter;/a"),
    ] {
        assert_eq!(told(name, rest), None, "{name} {rest}");
    }
    assert_eq!(taken(b"\xff;", 7), None);
}

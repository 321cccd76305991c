use super::*;

#[test]
fn the_oldest_go_by_number_and_by_age() {
    let named = |of: &[u64]| {
        of.iter()
            .map(|began| (*began, format!("7.{began}.json")))
            .collect()
    };
    let gone = |keep, oldest| too_many(named(&[50, 40, 30, 20]), keep, oldest);
    assert_eq!(gone(4, 0), Vec::<String>::new());
    assert_eq!(gone(2, 0), ["7.30.json", "7.20.json"]);
    assert_eq!(gone(4, 40), ["7.30.json", "7.20.json"]);
}

#[test]
fn the_name_of_a_report_says_when_its_job_began() {
    assert_eq!(began("4711.3.1700000000.json"), Some(1_700_000_000));
    for other in ["4711.json", ".4711.9.json.new", "x.1", "a.-1.json"] {
        assert_eq!(began(other), None, "{other}");
    }
}

#[test]
fn what_a_killed_writer_left_goes_once_nobody_can_be_writing_it() {
    let top = tempfile::tempdir().unwrap();
    let left = [".7.40.json.new", ".8.50.json.new", ".other.new", "7.30.json"];
    for name in left {
        std::fs::write(top.path().join(name), "{").unwrap();
    }
    let long_ago = SystemTime::now() - Duration::from_secs(2 * ABANDONED);
    let old = std::fs::File::options()
        .write(true)
        .open(top.path().join(left[0]))
        .unwrap();
    old.set_modified(long_ago).unwrap();
    let reports = Dir::open(top.path()).unwrap();
    let all = listed(&reports).unwrap();
    assert_eq!(unfinished(&reports, &all, now() - ABANDONED), [left[0]]);
}

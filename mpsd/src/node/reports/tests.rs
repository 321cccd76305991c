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

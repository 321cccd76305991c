use super::*;

#[test]
fn the_exit_status_is_that_of_the_worst_and_json_says_the_same() {
    let good = || Good("a".to_owned());
    let better = || Better("b".to_owned());
    let wrong = || Wrong("c".to_owned());
    assert_eq!(worst(&[good(), good()]), 0);
    assert_eq!(worst(&[better(), good()]), 1);
    assert_eq!(worst(&[good(), wrong(), better()]), 2);
    let all = [good(), better()];
    let plain = Doctor::default();
    assert_eq!(plain.text(&all), "OK    a\nWARN  b\n");
    let problems = Doctor {
        problems: true,
        ..Doctor::default()
    };
    assert_eq!(problems.text(&all), "WARN  b\n");
    let json = Doctor {
        json: true,
        ..Doctor::default()
    }
    .text(&all);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let wanted = serde_json::json!({"worst": "WARN", "findings": [
        {"status": "OK", "text": "a"}, {"status": "WARN", "text": "b"},
    ]});
    assert_eq!(json, wanted);
}

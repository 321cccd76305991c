use super::*;

#[test]
fn every_rung_has_time_and_all_fit() {
    let total = Duration::from_secs(10);
    let times = Rung::all(true).iter().map(|rung| rung.time(total));
    assert_eq!(times.len(), 3);
    assert!(times.clone().all(|time| time >= Duration::from_secs(2)));
    assert!(times.sum::<Duration>() <= total);
}

#[test]
fn nobody_is_asked_politely_who_is_not_there() {
    assert_eq!(Rung::all(false).first(), Some(&Rung::Terminate));
}

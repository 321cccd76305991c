use super::*;

#[test]
fn every_rung_has_time_and_all_fit() {
    let total = Duration::from_secs(10);
    let ladder = Ladder::within(total);
    let mut rung = Some(Ladder::first(true));
    let mut sum = Duration::ZERO;
    while let Some(r) = rung {
        assert!(ladder.time(r) >= Duration::from_secs(2));
        sum += ladder.time(r);
        rung = Ladder::next(r);
    }
    assert!(sum <= total);
}

#[test]
fn nobody_is_asked_politely_who_is_not_there() {
    assert_eq!(Ladder::first(false), Rung::Terminate);
}

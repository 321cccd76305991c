use super::*;

#[test]
fn remaining_is_never_negative_and_poll_rounds_up() {
    let past = Deadline::after(Duration::ZERO);
    assert!(past.expired());
    assert_eq!(past.poll_timeout().as_millis(), Some(0));
    assert!(!past.sleep(Duration::from_secs(5)));
    let soon = Deadline::after(Duration::from_micros(300));
    assert!(soon.poll_timeout().as_millis() <= Some(1));
    assert!(Deadline::after(Duration::MAX).remaining() > Duration::from_secs(86_400));
    assert_eq!(
        Deadline::after(Duration::from_secs(1 << 40)).poll_timeout(),
        PollTimeout::MAX
    );
}

#[test]
fn within_only_narrows() {
    let whole = Deadline::after_ms(200);
    assert_eq!(whole.within(Duration::from_secs(9)), whole);
    assert!(whole.within(Duration::from_millis(10)) < whole);
    assert!(whole.less(Duration::from_millis(150)).remaining() <= Duration::from_millis(50));
}

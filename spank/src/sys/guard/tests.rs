use super::*;

#[test]
fn a_panic_fails_its_own_callback_and_no_later_one() {
    let taken = contain(|state| {
        state.own_daemon = true;
        // As in a task's child that was forked while another thread had the state.
        contain(|_| Verdict::Continue)
    });
    assert_eq!(taken, Verdict::Fail);
    let kept = |state: &mut State| match state.own_daemon {
        true => Verdict::Continue,
        false => Verdict::Leave,
    };
    assert_eq!(contain(kept), Verdict::Continue);
    assert_eq!(contain(|_| panic!("on purpose")), Verdict::Fail);
    assert_eq!(contain(kept), Verdict::Continue);
}

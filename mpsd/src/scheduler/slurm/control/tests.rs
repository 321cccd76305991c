use super::*;

#[test]
fn a_comment_of_the_users_is_kept() {
    let two = queued("4711            2               by hand; mpsd: n1: x", "4711").unwrap();
    assert_eq!((two.restarts, two.comment.as_str()), (2, "by hand; mpsd: n1: x"));
    assert_eq!(with_ours(&two.comment, "mpsd: n2: y"), "by hand; mpsd: n2: y");
    let none = queued("4711            0               (null)", "4711").unwrap();
    assert_eq!(
        (none.restarts, with_ours(&none.comment, "mpsd: z")),
        (0, "mpsd: z".into())
    );
    assert_eq!(queued("4711            0", "4711").unwrap().comment, "");
    assert_eq!(queued("4712            0", "4711"), None);
}

#[test]
fn states_of_sinfo() {
    let shown = parse("draining|mpsd: job 7: x\ndraining|mpsd: job 7: x\n").unwrap();
    assert!(shown.drained);
    assert_eq!(shown.reason.as_deref(), Some("mpsd: job 7: x"));
    assert_eq!(parse("idle|none\n"), Some(Shown::default()));
    assert_eq!(parse("down*|Not responding\n"), Some(Shown::default()));
    assert_eq!(parse("drained|none\n").unwrap().reason, None);
    assert_eq!(parse(""), None);
}

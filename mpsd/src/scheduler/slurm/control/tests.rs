use super::*;
use crate::scheduler::Site;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A line as squeue pads it.
fn shown(restarts: u32, comment: &str) -> String {
    format!("{:16}{restarts:<16}{comment:1024.1024}{:16}", "4711", "4711")
}

fn comment(text: &str) -> Option<String> {
    let line = shown(2, text);
    let first = line.lines().next().unwrap_or_default();
    let queued = queued(first.trim(), "4711").expect("the job");
    assert_eq!(queued.restarts, 2);
    queued.comment
}

#[test]
fn a_comment_of_the_users_is_kept() {
    let two = comment("by hand; mpsd: n1: x").expect("whole");
    assert_eq!(two, "by hand; mpsd: n1: x");
    for (users, all) in [
        (two.as_str(), "by hand; mpsd: n2: y"),
        ("", "mpsd: n2: y"),
        ("mpsd: n1: x", "mpsd: n2: y"),
        ("see mpsd: it works", "see mpsd: it works; mpsd: n2: y"),
        (
            "see mpsd: it works; mpsd: n1: x",
            "see mpsd: it works; mpsd: n2: y",
        ),
        ("a; ", "a; ; mpsd: n2: y"),
    ] {
        assert_eq!(with_ours(users, "mpsd: n2: y").as_deref(), Some(all));
    }
    assert_eq!(comment("(null)").as_deref(), Some(""));
    assert_eq!(comment("").as_deref(), Some(""));
    assert_eq!(comment("job 4711").as_deref(), Some("job 4711"));
    assert_eq!(queued(shown(0, "").trim(), "4712"), None);
}

#[test]
fn a_comment_that_is_not_seen_whole_is_not_written() {
    assert_eq!(comment("a line\nand another"), None);
    assert_eq!(comment(&"x".repeat(1024)), None);
    assert_eq!(comment(&"x".repeat(1100)), None);
    let most = comment(&"x".repeat(1023)).expect("whole");
    assert_eq!(with_ours(&most, "mpsd: n2: y"), None, "no room");
}

/// A node of a Slurm whose squeue and scontrol are these scripts; what scontrol was told stands in `told`.
fn with_scripts(squeue: &str, scontrol: &str) -> (tempfile::TempDir, Node) {
    // Only what root alone can have put there is run, and /tmp is everybody's.
    let dir = tempfile::tempdir_in("/run").expect("a directory");
    let told = dir.path().join("told");
    let told = format!("echo \"$@\" >>{}\n{scontrol}", told.display());
    for (name, body) in [
        ("squeue", squeue),
        ("scontrol", &told),
        ("sinfo", "echo '(null)'"),
    ] {
        let file = dir.path().join(name);
        fs::write(&file, format!("#!/bin/sh\n{body}\n")).expect("a script");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("its mode");
    }
    let site = Site {
        slurm_exec: Some(dir.path().to_owned()),
        ..Site::default()
    };
    let slurm = Installation::find(&site, "n1");
    let name = "n1".to_owned();
    (dir, Node { slurm, name })
}

#[test]
fn a_job_is_requeued_whatever_fails_around_it() {
    let id = JobId::parse("4711").expect("an id");
    let line = format!("echo '{}'", shown(7, "by hand; mpsd: n2: failed start 3: why"));
    let trouble = |word: &str| Some(word.to_owned());
    for (squeue, scontrol, held, word) in [
        (line.as_str(), "", true, None),
        ("exit 1", "", false, trouble("squeue said")),
        (
            &line,
            "[ $1 != uhold ]",
            false,
            trouble("not held after 4 failed starts"),
        ),
        (&line, "[ $1 != update ]", true, trouble("the node's comment")),
    ] {
        let (dir, node) = with_scripts(squeue, scontrol);
        let done = node.requeue(&id, 3).expect("requeued");
        let told = fs::read_to_string(dir.path().join("told")).expect("orders");
        assert!(told.starts_with("requeue 4711\n"), "{told}");
        assert_eq!(done.held, held, "{done:?}");
        let said = done.trouble.as_deref().unwrap_or_default();
        assert_eq!(said.is_empty(), word.is_none(), "{said}");
        assert!(said.contains(word.as_deref().unwrap_or_default()), "{said}");
    }
    // Slurm's own restarts do not count, unless nothing else is seen.
    for (restarts, comment, most, failed, held) in [
        (7, "by hand; mpsd: n2: failed start 3: why", 4, 4, false),
        (7, "by hand", 1, 1, false),
        (7, "by hand", 0, 1, false),
        (7, "mpsd: n2: failed start 3: why", 0, 4, false),
        (7, "mpsd: n2: --mps-threads=90: why", 3, 1, false),
        (2, "two\nlines", 2, 0, true),
        (2, "two\nlines", 3, 0, false),
    ] {
        let (_dir, node) = with_scripts(&format!("echo '{}'", shown(restarts, comment)), "");
        let done = node.requeue(&id, most).expect("requeued");
        let number = (failed > 0).then(|| format!("failed start {failed}"));
        assert_eq!((&done.number, done.held), (&number, held), "{comment}: {done:?}");
    }
    let (_dir, node) = with_scripts(&line, "exit 1");
    node.requeue(&id, 3).expect_err("it is not back in the queue");
}

#[test]
fn who_waits_is_told_where_the_comment_cannot_be() {
    let id = JobId::parse("4711").expect("an id");
    let (dir, node) = with_scripts(&format!("echo '{}'", shown(0, "two\nlines")), "");
    let why = node.tell(&id, "why", true).expect_err("not in the comment");
    assert!(why.contains("several lines"), "{why}");
    let told = fs::read_to_string(dir.path().join("told")).expect("orders");
    assert_eq!(told, "notify 4711 mpsd: n1: why\n");
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

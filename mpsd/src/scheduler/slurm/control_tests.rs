use super::*;
use crate::scheduler::Site;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A line as squeue pads it.
fn shown(restarts: u32, comment: &str) -> String {
    shown_as("RUNNING", restarts, comment)
}

fn shown_as(state: &str, restarts: u32, comment: &str) -> String {
    format!(
        "{:16}{state:16}{restarts:<16}{comment:1024.1024}{:16}",
        "4711", "4711"
    )
}

/// A squeue that shows the names of `names`, and does `body` when asked for more.
fn squeue(names: &str, body: &str) -> String {
    format!("case \"$*\" in *'%A %i') printf '{names}\\n' ;; *) {body} ;; esac")
}

fn squeue_of(line: &str) -> String {
    squeue("4711 4711", &format!("echo '{line}'"))
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
fn with_scripts(squeue: &str, scontrol: &str) -> (tempfile::TempDir, SlurmNode) {
    // Only what root alone can have put there is run, and /tmp is everybody's.
    let dir = tempfile::tempdir_in("/run").expect("a directory");
    let told = dir.path().join("told");
    let cancelled = format!("echo scancel \"$@\" >>{}", told.display());
    let told = format!("echo \"$@\" >>{}\n{scontrol}", told.display());
    for (name, body) in [
        ("squeue", squeue),
        ("scontrol", &told),
        ("scancel", &cancelled),
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
    (dir, SlurmNode { slurm, name })
}

#[test]
fn a_job_is_requeued_whatever_fails_around_it() {
    let id = JobId::parse("4711").expect("an id");
    let line = squeue_of(&shown(7, "by hand; mpsd: n2: failed start 3: why"));
    let unseen = squeue("4711 4711", "exit 1");
    let trouble = |word: &str| Some(word.to_owned());
    for (squeue, scontrol, held, word) in [
        (line.as_str(), "", true, None),
        (&unseen, "", false, trouble("squeue said")),
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
        let (_dir, node) = with_scripts(&squeue_of(&shown(restarts, comment)), "");
        let done = node.requeue(&id, most).expect("requeued");
        let number = (failed > 0).then(|| format!("failed start {failed}"));
        assert_eq!((&done.number, done.held), (&number, held), "{comment}: {done:?}");
    }
    let (_dir, node) = with_scripts(&line, "exit 1");
    let done = node.requeue(&id, 3).expect("an answer");
    assert!(done.failed.is_some(), "it is not back in the queue: {done:?}");
}

/// The first of its nodes put it back; the next one's order is turned down.
#[test]
fn the_next_node_of_a_job_keeps_the_count() {
    let id = JobId::parse("4711").expect("an id");
    for (state, comment, number, all) in [
        // The first node's comment is on its way.
        ("RUNNING", "by hand; mpsd: n2: failed start 1: x", Some(2), 2),
        ("CONFIGURING", "by hand; mpsd: n2: failed start 1: x", Some(2), 2),
        ("COMPLETING", "by hand; mpsd: n2: failed start 2: x", None, 2),
        ("PENDING", "by hand; mpsd: n2: failed start 2: x", None, 2),
    ] {
        let line = shown_as(state, 7, comment);
        let (dir, node) = with_scripts(&squeue_of(&line), "[ $1 != requeue ]");
        let done = node.requeue(&id, 3).expect("an answer");
        assert!(done.failed.is_some() && !done.held, "{state}: {done:?}");
        let number = number.map(|number| format!("failed start {number}"));
        assert_eq!(done.number, number, "{state}");
        let line = number.map(|number| format!("{number}: why"));
        node.tell(&id, line.as_deref().unwrap_or("why"), false)
            .expect("told");
        let told = fs::read_to_string(dir.path().join("told")).expect("orders");
        let last = format!("comment=by hand; mpsd: n1: failed start {all}: why\n");
        assert!(told.ends_with(&last), "{state}: {told}");
    }
}

/// The array's own id is that of one of its elements, and all of them to Slurm.
#[test]
fn an_element_of_an_array_is_dealt_with_alone() {
    let id = JobId::parse("4711").expect("an id");
    let line = shown(7, "by hand; mpsd: n2: failed start 3: why");
    let names = squeue("4712 4711_1\\n4711 4711_2", &format!("echo '{line}'"));
    let (dir, node) = with_scripts(&names, "echo BatchFlag=1");
    assert!(node.requeue(&id, 3).expect("requeued").held);
    node.tell(&id, "failed start 4: why", true).expect("told");
    assert!(node.end_script(&id).expect("ended"));
    let told = fs::read_to_string(dir.path().join("told")).expect("orders");
    let told: Vec<&str> = told.lines().filter(|line| !line.contains("nodename=")).collect();
    let expected = [
        "requeue 4711_2",
        "uhold 4711_2",
        "update jobid=4711_2 comment=by hand; mpsd: n1: failed start 4: why",
        // Its notice goes by the number, which it takes for one job's.
        "notify 4711 mpsd: n1: failed start 4: why",
        "--oneliner show job 4711_2",
        "scancel 4711_2",
    ];
    assert_eq!(told, expected);
    // A name that nobody tells, of others alone, and of elements that wait.
    for names in ["", "4712 4711_1", "4711 4711_[2-3]", "4711 x"] {
        let (dir, node) = with_scripts(&squeue(names, &format!("echo '{line}'")), "");
        let why = node.requeue(&id, 3).expect_err("whose name is not known");
        assert!(why.contains("4711"), "{why}");
        node.end_script(&id).expect_err("whose name is not known");
        node.tell(&id, "why", false).expect_err("whose name is not known");
        assert!(!dir.path().join("told").exists(), "nothing was done to it");
    }
    // A het job is one job to Slurm.
    let (dir, node) = with_scripts(&squeue("4711 4711+0", &format!("echo '{line}'")), "");
    node.requeue(&id, 0).expect("requeued");
    let told = fs::read_to_string(dir.path().join("told")).expect("orders");
    assert_eq!(told, "requeue 4711\n");
}

#[test]
fn who_waits_is_told_where_the_comment_cannot_be() {
    let id = JobId::parse("4711").expect("an id");
    let (dir, node) = with_scripts(&squeue_of(&shown(0, "two\nlines")), "");
    let why = node.tell(&id, "why", true).expect_err("not in the comment");
    assert!(why.contains("several lines"), "{why}");
    let told = fs::read_to_string(dir.path().join("told")).expect("orders");
    assert_eq!(told, "notify 4711 mpsd: n1: why\n");
}

/// Of a job of several nodes the words of another one stay: its start may fail just now, and counts on.
#[test]
fn a_start_that_worked_takes_the_words_of_failed_ones_away() {
    let id = JobId::parse("4711").expect("an id");
    for (comment, nodes, left) in [
        ("by hand; mpsd: n1: failed start 4: why", 2, Some("by hand")),
        ("mpsd: n1: failed start 4: why", 1, Some("")),
        ("by hand; mpsd: n2: failed start 4: why", 1, Some("by hand")),
        ("by hand; mpsd: n2: failed start 4: why", 2, None),
        ("by hand; mpsd: n1: another word", 1, None),
        ("by hand", 1, None),
    ] {
        let body = format!(
            "case \"$*\" in *%D) echo {nodes} ;; *) echo '{}' ;; esac",
            shown(4, comment)
        );
        let (dir, node) = with_scripts(&squeue("4711 4711", &body), "");
        node.started(&id).expect("looked at");
        let told = fs::read_to_string(dir.path().join("told")).ok();
        let expected = left.map(|left| format!("update jobid=4711 comment={left}\n"));
        assert_eq!(told, expected, "{comment} on {nodes}");
    }
}

#[test]
fn the_output_is_a_scripts_and_is_named_whole() {
    let id = JobId::parse("4711").expect("an id");
    let of = |shown: &str| {
        let (_dir, node) = with_scripts(&squeue_of(""), &format!("printf '{shown}'"));
        node.output(&id).expect("looked at")
    };
    let shown = "JobId=4711 JobName=a\n   StdErr=/home/u/two words.out\n   StdIn=/dev/null\n";
    assert_eq!(of(shown), Some(PathBuf::from("/home/u/two words.out")));
    let shown = "JobId=4711 JobName=a\n   StdErr=\n   StdIn=/dev/null\n   StdOut=/home/u/7.out\n";
    assert_eq!(of(shown), Some(PathBuf::from("/home/u/7.out")));
    assert_eq!(of("JobId=4711 JobName=a\n   StdErr=\n"), None);
    assert_eq!(of("JobId=4711 JobName=a\n"), None);
}

#[test]
fn states_of_sinfo() {
    let shown = parse("draining|mpsd: job 7: x\ndraining|mpsd: job 7: x\n").unwrap();
    assert!(shown.drained);
    assert_eq!(shown.reason.as_deref(), Some("mpsd: job 7: x"));
    assert_eq!(parse("idle|none\n"), Some(NodeStatus::default()));
    assert_eq!(parse("down*|Not responding\n"), Some(NodeStatus::default()));
    assert_eq!(parse("drained|none\n").unwrap().reason, None);
    assert_eq!(parse(""), None);
}

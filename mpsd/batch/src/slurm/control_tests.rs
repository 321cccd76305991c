//! The orders to scontrol against scripts in place of Slurm's commands.

use super::*;
use crate::Location;
use std::fs;
use std::os::unix::fs::PermissionsExt;

const BY_HAND: &str = "by hand; mpsd: n2: failed start 3: why";

fn id() -> JobId {
    JobId::parse("4711").expect("an id")
}

fn shown(restarts: u32, comment: &str) -> String {
    shown_as("RUNNING", restarts, comment)
}

/// A line as squeue pads it.
fn shown_as(state: &str, restarts: u32, comment: &str) -> String {
    let id = "4711";
    format!("{id:16}{state:16}{restarts:<16}{comment:1024.1024}{id:16}")
}

/// A squeue that shows the names of `names`, and does `body` when asked for more.
fn squeue(names: &str, body: &str) -> String {
    format!("case \"$*\" in *'%A %i') printf '{names}\\n' ;; *) {body} ;; esac")
}

fn squeue_of(line: &str) -> String {
    squeue("4711 4711", &format!("echo '{line}'"))
}

/// A node of a Slurm with these scripts as squeue and scontrol.
struct Scripted {
    dir: tempfile::TempDir,
    node: SlurmNode,
}

impl Scripted {
    fn new(squeue: &str, scontrol: &str) -> Self {
        // Only what root alone can have put there is run; everybody can write to /tmp.
        let dir = tempfile::tempdir_in("/run").expect("a directory");
        let orders = dir.path().join("orders");
        let orders = orders.display();
        let cancelled = format!("echo scancel \"$@\" >>{orders}");
        let scontrol = format!("echo \"$@\" >>{orders}\n{scontrol}");
        for (name, body) in [
            ("squeue", squeue),
            ("scontrol", &scontrol),
            ("scancel", &cancelled),
            ("sinfo", "echo '(null)'"),
        ] {
            let file = dir.path().join(name);
            fs::write(&file, format!("#!/bin/sh\n{body}\n")).expect("a script");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("its mode");
        }
        // Else a slurmd that runs on this machine may count.
        let conf = dir.path().join("slurm.conf").display().to_string();
        let location = Location {
            slurm_exec: Some(dir.path().to_owned()),
            slurm_conf: Some(conf),
            ..Location::default()
        };
        let slurm = Installation::find(&location, "n1");
        let name = "n1".to_owned();
        let node = SlurmNode { slurm, name };
        Self { dir, node }
    }

    /// What scontrol and scancel were told.
    fn orders(&self) -> String {
        fs::read_to_string(self.dir.path().join("orders")).unwrap_or_default()
    }

    fn requeue(&self, most: u32) -> Requeued {
        self.node.requeue(&id(), most).expect("an answer")
    }
}

fn comment(text: &str) -> Option<String> {
    let line = shown(2, text);
    let first = line.lines().next().unwrap_or_default();
    queued(first.trim(), "4711").expect("the job").comment
}

#[test]
fn a_users_comment_is_kept_and_never_written_unless_it_is_seen_whole() {
    for (users, all) in [
        ("by hand; mpsd: n1: x", "by hand; mpsd: n2: y"),
        ("", "mpsd: n2: y"),
        ("(null)", "mpsd: n2: y"),
        ("job 4711", "job 4711; mpsd: n2: y"),
        ("mpsd: n1: x", "mpsd: n2: y"),
        ("see mpsd: it works", "see mpsd: it works; mpsd: n2: y"),
        ("see mpsd: x; mpsd: n1: x", "see mpsd: x; mpsd: n2: y"),
    ] {
        let read = comment(users).expect("whole");
        assert_eq!(with_ours(&read, "mpsd: n2: y").as_deref(), Some(all));
    }
    let all = with_ours("a; ", "mpsd: n2: y");
    assert_eq!(all.as_deref(), Some("a; ; mpsd: n2: y"));
    assert_eq!(queued(shown(0, "").trim(), "4712"), None);
    for cut in ["a line\nand another", &"x".repeat(1024), &"x".repeat(1100)] {
        assert_eq!(comment(cut), None);
    }
    let most = comment(&"x".repeat(1023)).expect("whole");
    assert_eq!(with_ours(&most, "mpsd: n2: y"), None, "no room");
}

#[test]
fn a_job_is_requeued_whatever_fails_around_it() {
    let line = squeue_of(&shown(7, BY_HAND));
    let unseen = squeue("4711 4711", "exit 1");
    for (squeue, scontrol, held, trouble) in [
        (&line, "", true, ""),
        (&unseen, "", false, "squeue said"),
        (&line, "[ $1 != uhold ]", false, "not held after 4 failed"),
        (&line, "[ $1 != update ]", true, "the node's comment"),
    ] {
        let slurm = Scripted::new(squeue, scontrol);
        let done = slurm.requeue(3);
        let orders = slurm.orders();
        assert!(orders.starts_with("requeue 4711\n"), "{orders}");
        let said = done.trouble.as_deref().unwrap_or_default();
        let is_told = said.contains(trouble) && said.is_empty() == trouble.is_empty();
        assert!(is_told && done.held == held, "{said}");
    }
    // An administrator's comment on the node stays.
    let slurm = Scripted::new(&line, "");
    let theirs = "#!/bin/sh\necho by hand\n";
    fs::write(slurm.dir.path().join("sinfo"), theirs).expect("a script");
    let done = slurm.requeue(3);
    let trouble = done.trouble.expect("no note");
    assert!(
        done.held && trouble.ends_with("its comment is not ours"),
        "{trouble}"
    );
    assert!(!slurm.orders().contains("nodename"), "{}", slurm.orders());
    // Slurm's own restarts do not count, unless nothing else is seen.
    for (restarts, comment, most, failed, held) in [
        (7, BY_HAND, 4, 4, false),
        (7, "by hand", 1, 1, false),
        (7, "by hand", 0, 1, false),
        (7, "mpsd: n2: failed start 3: why", 0, 4, false),
        (7, "mpsd: n2: --mps-threads=90: why", 3, 1, false),
        (2, "two\nlines", 2, 0, true),
        (2, "two\nlines", 3, 0, false),
    ] {
        let done = Scripted::new(&squeue_of(&shown(restarts, comment)), "").requeue(most);
        let number = (failed > 0).then(|| format!("failed start {failed}"));
        assert_eq!((done.number, done.held), (number, held), "{comment}");
    }
    let done = Scripted::new(&line, "exit 1").requeue(3);
    assert!(done.failed.is_some(), "it is not back: {done:?}");
}

/// The job's first node put it back; the next node's order is refused.
#[test]
fn the_next_node_of_a_job_keeps_the_count() {
    for (state, before, number, all) in [
        // The first node's comment is on its way.
        ("RUNNING", 1, Some(2), 2),
        ("CONFIGURING", 1, Some(2), 2),
        ("COMPLETING", 2, None, 2),
        ("PENDING", 2, None, 2),
    ] {
        let comment = format!("by hand; mpsd: n2: failed start {before}: x");
        let line = shown_as(state, 7, &comment);
        let slurm = Scripted::new(&squeue_of(&line), "[ $1 != requeue ]");
        let done = slurm.requeue(3);
        assert!(done.failed.is_some() && !done.held, "{state}: {done:?}");
        let number = number.map(|number| format!("failed start {number}"));
        assert_eq!(done.number, number, "{state}");
        let line = number.map_or_else(|| "why".to_owned(), |number| format!("{number}: why"));
        slurm.node.tell(&id(), &line, false, false).expect("told");
        let last = format!("comment=by hand; mpsd: n1: failed start {all}: why\n");
        let orders = slurm.orders();
        assert!(orders.ends_with(&last), "{state}: {orders}");
    }
}

/// Slurm takes the id of an array for all its elements. One element has that id too.
#[test]
fn an_element_of_an_array_is_dealt_with_alone() {
    let body = format!("echo '{}'", shown(7, BY_HAND));
    let names = "4712 4711_1\\n4711 4711_2";
    let slurm = Scripted::new(&squeue(names, &body), "echo BatchFlag=1");
    assert!(slurm.requeue(3).held);
    let told = slurm.node.tell(&id(), "failed start 4: why", true, false);
    told.expect("told");
    assert!(slurm.node.end_script(&id()).expect("ended"));
    let orders = slurm.orders();
    let orders = orders.lines().filter(|line| !line.contains("nodename="));
    let orders: Vec<&str> = orders.collect();
    let expected = [
        "requeue 4711_2",
        "uhold 4711_2",
        "update jobid=4711_2 comment=by hand; mpsd: n1: failed start 4: why",
        // Its notice takes the number, which means one job there.
        "notify 4711 mpsd: n1: failed start 4: why",
        "--oneliner show job 4711_2",
        "scancel 4711_2",
    ];
    assert_eq!(orders, expected);
    // No name, names of others alone, and of elements that wait.
    for names in ["", "4712 4711_1", "4711 4711_[2-3]", "4711 x"] {
        let slurm = Scripted::new(&squeue(names, &body), "");
        assert!(slurm.node.requeue(&id(), 3).is_err() && slurm.node.end_script(&id()).is_err());
        assert!(slurm.node.tell(&id(), "why", false, false).is_err());
        assert_eq!(slurm.orders(), "");
    }
    // A het job is one job to Slurm.
    let slurm = Scripted::new(&squeue("4711 4711+0", &body), "");
    slurm.requeue(0);
    assert_eq!(slurm.orders(), "requeue 4711\n");
}

#[test]
fn a_waiting_user_is_told_even_if_the_comment_cannot_be_written() {
    let slurm = Scripted::new(&squeue_of(&shown(0, "two\nlines")), "");
    let told = slurm.node.tell(&id(), "why", true, false);
    let why = told.expect_err("not in the comment");
    assert!(why.contains("several lines"), "{why}");
    assert_eq!(slurm.orders(), "notify 4711 mpsd: n1: why\n");
}

#[test]
fn a_start_that_worked_removes_the_words_of_failed_ones() {
    // Another node's words stay: its start may fail now, and continues the count.
    for (comment, nodes, left) in [
        ("by hand; mpsd: n1: failed start 4: why", 2, Some("by hand")),
        ("mpsd: n1: failed start 4: why", 1, Some("")),
        (BY_HAND, 1, Some("by hand")),
        (BY_HAND, 2, None),
        ("by hand; mpsd: n1: another word", 1, None),
        ("by hand", 1, None),
    ] {
        let shown = shown(4, comment);
        let body = format!("case \"$*\" in *%D) echo {nodes} ;; *) echo '{shown}' ;; esac");
        let slurm = Scripted::new(&squeue("4711 4711", &body), "");
        slurm.node.started(&id()).expect("an answer");
        let expected = left.map(|left| format!("update jobid=4711 comment={left}\n"));
        let orders = slurm.orders();
        assert_eq!(orders, expected.unwrap_or_default(), "{comment} on {nodes}");
    }
}

#[test]
fn the_output_is_a_scripts_and_is_named_whole() {
    for (files, output) in [
        ("StdErr=/u/two words.out", Some("/u/two words.out")),
        ("StdErr=|StdIn=/dev/null|StdOut=/u/7.out", Some("/u/7.out")),
        ("StdErr=", None),
        ("", None),
    ] {
        let files = files.replace('|', "\n   ");
        let shown = format!("printf 'JobId=4711 JobName=a\n   {files}\n'");
        let found = Scripted::new(&squeue_of(""), &shown).node.output(&id());
        assert_eq!(found, Ok(output.map(PathBuf::from)), "{files}");
    }
}

#[test]
fn states_of_sinfo() {
    let status = |text| parse(text).map(|node| (node.drained, node.reason));
    let twice = "draining|mpsd: job 7: x\ndraining|mpsd: job 7: x\n";
    assert_eq!(status(twice), Some((true, Some("mpsd: job 7: x".into()))));
    assert_eq!(status("drained|none\n"), Some((true, None)));
    for in_service in ["idle|none\n", "down*|Not responding\n"] {
        assert_eq!(status(in_service), Some((false, None)));
    }
    assert_eq!(status(""), None);
}

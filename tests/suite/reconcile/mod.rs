//! `mpsctl reconcile` and `mpsctl undrain` against a simulated node under a server that knows, forgets, or is away.

mod site;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use site::{NODE, Site};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;
use tests::double::look::{self, wait_until};
use tests::place::{fast, kill};
use tests::scarcity::{Small, alone};
use tests::stage::{USER, as_user, epilogue_args, finish};

#[test]
fn only_a_job_that_its_scheduler_has_let_go_is_taken_down() {
    let site = Site::new("");
    site.start("1.srv");
    assert_eq!(site.stage.node.modes(), ["exclusive_process"]);
    site.job("1.srv", "R", NODE);
    let ran = site.reconcile();
    assert!(
        ran.code == Some(0)
            && ran
                .out
                .contains("job 1.srv: its scheduler has it here: left alone"),
        "{ran:?}"
    );
    site.away(true);
    let ran = site.reconcile();
    assert!(
        ran.code == Some(0)
            && ran
                .out
                .contains("left alone, undecided: qstat said: qstat: cannot connect"),
        "{ran:?}"
    );
    site.away(false);
    fs::write(site.stage.path("pbs/mom_priv/jobs/1.srv.JB"), "").expect("the mom's file");
    site.job("1.srv", "C", NODE);
    let ran = site.reconcile();
    assert!(
        ran.code == Some(0) && site.directory("1.srv").exists(),
        "the mom has it still: {ran:?}"
    );
    fs::remove_file(site.stage.path("pbs/mom_priv/jobs/1.srv.JB")).expect("the mom's file");

    let before = (site.stage.node.processes().len(), site.stage.node.modes());
    let ran = site.mpsctl(&["reconcile", "--dry-run"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.out
            .contains("job 1.srv: gone (it is in state C): would be taken down (mpsd "),
        "{ran:?}"
    );
    assert!(ran.out.contains("mps-server "), "{ran:?}");
    assert_eq!(
        (site.stage.node.processes().len(), site.stage.node.modes()),
        before
    );
    assert!(site.directory("1.srv").join("journal").exists());

    let ran = site.reconcile();
    assert!(
        ran.code == Some(0) && ran.out.contains("job 1.srv: gone (it is in state C): taken down"),
        "{ran:?}"
    );
    site.stage.assert_clean();
    let ran = site.reconcile();
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), ""), "{ran:?}");
}

/// The scheduler has the job still, or cannot be asked: it is left alone, and that is no good end.
#[test]
fn what_the_end_of_a_job_left_is_told_as_long_as_its_scheduler_has_it() {
    let mut site = Site::new("");
    site.start("1.srv");
    site.job("1.srv", "R", NODE);
    // NVML_ERROR_MEMORY.
    site.stage.node.change(|node| node.nvml.init_answers = 20);
    let strict = [&["--strict"], &epilogue_args("1.srv")[..]].concat();
    assert_eq!(site.stage.epilogue(&strict, &[]).code, Some(2));
    site.stage.node.change(|node| node.nvml.init_answers = 0);
    for away in [false, true] {
        if away {
            site.away(true);
        }
        let ran = site.reconcile();
        let told = ran.out.contains("job 1.srv: its end left something of its MPS");
        assert!(told && ran.code == Some(2), "{away}: {ran:?}");
    }
    site.away(false);
    assert_eq!(site.stage.epilogue(&strict, &[]).code, Some(0));
    site.stage.assert_clean();
}

#[test]
fn a_job_on_other_nodes_or_unknown_to_the_server_is_gone_here() {
    let site = Site::new("");
    for (job, on) in [("2.srv", Some("gpu002")), ("3.srv", None)] {
        site.start(job);
        if let Some(node) = on {
            site.job(job, "R", node);
        }
        let ran = site.reconcile();
        assert!(
            ran.code == Some(0) && ran.out.contains("taken down"),
            "{job}: {ran:?}"
        );
        site.stage.assert_clean();
    }
}

/// What many jobs left, of which no epilogue came: none of it may hide the rest.
#[test]
fn more_directories_and_locks_than_a_node_ever_has_jobs_are_all_seen_and_removed() {
    const MANY: usize = 10_100;
    let site = Site::new("");
    site.start("7.srv");
    let jobs = site.stage.path("run/jobs");
    for n in 0..MANY {
        match n % 100 {
            0 => fs::create_dir(jobs.join(format!("{}.srv", 1000 + n))).expect("directory"),
            _ => fs::write(jobs.join(format!(".{}.srv.lock", 1000 + n)), "").expect("lock"),
        }
    }
    let ran = site.stage.run("mpsctl", &["status"], &[]);
    assert!(ran.code == Some(0) && ran.out.contains("7.srv"), "{}", ran.err);
    let ran = site.stage.run("mpsctl", &["metrics"], &[]);
    assert!(ran.code == Some(0) && ran.out.contains("mps"), "{}", ran.err);
    let ran = site.mpsctl(&["reconcile"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("job 7.srv: gone") && ran.out.contains("taken down"));
    site.stage.assert_clean();
}

/// An epilogue that was killed, or never came.
#[test]
fn what_other_exporters_were_told_of_a_job_goes_with_it() {
    let site = Site::new("");
    let stat = site.stage.path("gpustat");
    fs::create_dir(&stat).expect("directory");
    let told = || fs::read_dir(&stat).expect("listed").count();
    site.configure(&format!("[metrics]\ngpustat = \"{}\"\n", stat.display()));
    site.start("5.srv");
    assert_eq!(told(), 1);
    site.job("5.srv", "C", NODE);
    let ran = site.reconcile();
    assert!(ran.code == Some(0) && ran.out.contains("taken down"), "{ran:?}");
    assert_eq!(told(), 0);
    site.stage.assert_clean();
}

#[test]
fn a_refusals_record_goes_with_its_job() {
    let site = Site::new("");
    let args = [
        "--scheduler",
        "torque",
        "--record",
        "--gpus",
        "0",
        "4.srv",
        USER,
        "nogroup",
        "j",
        "r",
        "q",
        "MPS=maybe",
    ];
    assert_eq!(site.stage.prologue(&args, &[]).code, Some(1));
    site.job("4.srv", "R", NODE);
    let ran = site.reconcile();
    assert!(ran.code == Some(0) && site.directory("4.srv").exists(), "{ran:?}");
    fs::remove_file(site.stage.path("server/jobs/4.srv")).expect("the job's end");
    let ran = site.reconcile();
    assert!(ran.code == Some(0), "{ran:?}");
    site.stage.assert_clean();
}

/// The timer's unit has a mount namespace of its own, out of which no unmounting comes. The kernel takes a mount away, in every
/// namespace, with the directory that it lies on.
#[test]
fn a_mount_of_the_users_goes_on_the_host_when_a_confined_reconcile_removes_its_directory() {
    alone(|| {
        let site = Site::new("");
        let _hidden = Small::over(&site.stage.path("run"), 256, 0o755);
        site.start("6.srv");
        let pipe = site.directory("6.srv").join("pipe");
        let inner = pipe.join("deep/mount");
        fs::create_dir_all(&inner).expect("directory");
        let none = None::<&str>;
        for at in [&inner, &pipe] {
            let flags = nix::mount::MsFlags::empty();
            nix::mount::mount(Some("theirs"), at, Some("tmpfs"), flags, none).expect("a mount");
        }
        let mounts = || fs::read_to_string("/proc/thread-self/mounts").expect("mounts");
        assert_eq!(mounts().matches("theirs").count(), 2);
        let mut command = Command::new("/usr/bin/unshare");
        command.args(["--mount", "--propagation", "slave"]);
        command
            .arg(site.stage.program("mpsctl"))
            .arg("--config")
            .arg(site.stage.config());
        let ran = finish({
            command.args(["reconcile", "--node", NODE]);
            command
        });
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(!mounts().contains("theirs"), "{}", mounts());
        assert!(!site.directory("6.srv").exists(), "{ran:?}");
    });
}

#[test]
fn an_account_without_its_job_is_closed_and_the_mode_restored() {
    let site = Site::new("");
    site.start("5.srv");
    site.kill_all();
    for at in site.stage.mounts() {
        nix::mount::umount(&at).expect("somebody cleaned up by hand");
    }
    fs::remove_dir_all(site.directory("5.srv")).expect("somebody cleaned up by hand");
    assert_eq!(site.stage.node.modes(), ["exclusive_process"]);
    let ran = site.mpsctl(&["reconcile", "--dry-run"]);
    assert!(
        ran.code == Some(2)
            && ran
                .out
                .contains("users without a directory: 5.srv: would be removed"),
        "{ran:?}"
    );
    let ran = site.reconcile();
    assert!(
        ran.code == Some(0) && ran.out.contains("users without a directory: 5.srv: removed"),
        "{ran:?}"
    );
    site.stage.assert_clean();
}

#[test]
fn before_a_boot_means_gone_only_at_boot_and_only_without_a_process() {
    let site = Site::new("");
    site.start("6.srv");
    site.away(true);
    let journal = site.directory("6.srv").join("journal");
    let mut text: Value =
        serde_json::from_str(&fs::read_to_string(&journal).expect("journal")).expect("JSON");
    text["began"] = json!(1);
    fs::write(&journal, text.to_string()).expect("journal");
    let ran = site.mpsctl(&["reconcile", "--boot"]);
    assert!(
        ran.out.contains("left alone, undecided") && site.directory("6.srv").exists(),
        "its MPS runs: {ran:?}"
    );
    site.kill_all();
    let ran = site.reconcile();
    assert!(
        ran.out.contains("left alone, undecided") && site.directory("6.srv").exists(),
        "no boot: {ran:?}"
    );
    let ran = site.mpsctl(&["reconcile", "--boot"]);
    assert!(
        ran.code == Some(0) && ran.out.contains("began before this boot"),
        "{ran:?}"
    );
    site.stage.assert_clean();
}

#[test]
fn a_drain_is_delivered_late_and_lifted_only_when_it_is_ours() {
    let site = Site::new("");
    let reason = "mpsd: job 1.srv: mps-server 691: state D after 4 s";
    site.marker(reason, false);
    site.away(true);
    let ran = site.reconcile();
    assert!(
        ran.code == Some(2) && ran.out.contains("not delivered"),
        "{ran:?}"
    );
    assert_eq!(site.marked().expect("marker")["delivered"], false);
    site.away(false);
    let ran = site.reconcile();
    assert!(ran.code == Some(0) && ran.out.contains(": delivered"), "{ran:?}");
    assert_eq!(site.note(), ("offline".to_owned(), reason.to_owned()));
    assert_eq!(site.marked().expect("marker")["delivered"], true);
    let ran = site.reconcile();
    assert!(
        ran.code == Some(0) && ran.out.contains("'mpsctl undrain' lifts it"),
        "not by itself: {ran:?}"
    );
    assert_eq!(site.note().0, "offline");
    // The administrator reads of it wherever he looks.
    for verb in [
        &["doctor", "--problems", "--node", NODE][..],
        &["status"],
        &["status", "--json"],
    ] {
        let ran = site.stage.run("mpsctl", verb, &[]);
        assert!(
            ran.out.contains(reason) && ran.out.contains("'mpsctl undrain' lifts it"),
            "{ran:?}"
        );
    }
    let ran = site.mpsctl(&["undrain"]);
    assert!(
        ran.code == Some(0) && ran.out.contains("lifted after a clean recheck"),
        "{ran:?}"
    );
    assert_eq!(site.note(), ("free".to_owned(), String::new()));
    assert_eq!(
        site.mpsctl(&["undrain"]).code,
        Some(2),
        "nothing of ours is left to lift"
    );

    site.marker(reason, true);
    site.server("state", "offline");
    site.server("note", "bad disk, ask anna");
    let ran = site.mpsctl(&["undrain"]);
    assert!(
        ran.out
            .contains("drained for another reason ('bad disk, ask anna')"),
        "{ran:?}"
    );
    assert_eq!(
        site.note(),
        ("offline".to_owned(), "bad disk, ask anna".to_owned())
    );
    assert_eq!(site.marked(), None);
}

#[test]
fn a_node_with_an_administrators_note_shows_our_reason_and_comes_back_with_the_note() {
    let site = Site::new("");
    let memo = "new fans on Monday";
    let reason = "mpsd: job 1.srv: NVML: no answer within 5 s";
    site.server("note", memo);
    site.marker(reason, false);
    let ran = site.reconcile();
    assert!(ran.code == Some(0) && ran.out.contains(": delivered"), "{ran:?}");
    assert_eq!(site.note(), ("offline".to_owned(), reason.to_owned()));
    let ran = site.reconcile();
    assert!(ran.out.contains("'mpsctl undrain' lifts it"), "{ran:?}");
    let ran = site.mpsctl(&["undrain"]);
    assert!(
        ran.code == Some(0) && ran.out.contains("lifted after a clean recheck"),
        "{ran:?}"
    );
    assert_eq!(site.note(), ("free".to_owned(), memo.to_owned()));
    assert_eq!(site.marked(), None);

    // Lifted by hand: the next run brings the note back.
    site.marker(reason, false);
    site.reconcile();
    assert_eq!(site.note(), ("offline".to_owned(), reason.to_owned()));
    site.server("state", "free");
    let ran = site.reconcile();
    assert!(ran.out.contains("over, it was lifted: forgotten"), "{ran:?}");
    assert_eq!(site.note(), ("free".to_owned(), memo.to_owned()));
}

#[test]
fn the_timer_lifts_only_where_the_site_wants_it_and_nothing_is_wrong() {
    let mut site = Site::new("[drain]\nauto_undrain = true\n");
    let reason = "mpsd: job 1.srv: NVML: no answer within 5 s";
    site.marker(reason, true);
    site.server("state", "offline");
    site.server("note", reason);
    site.stage.node.change(|node| node.nvml.init_fails = true);
    let ran = site.reconcile();
    assert!(ran.code == Some(2) && ran.out.contains(": stays: "), "{ran:?}");
    assert_eq!(site.note().0, "offline");
    site.stage.node.change(|node| node.nvml.init_fails = false);
    let ran = site.reconcile();
    assert!(
        ran.code == Some(0) && ran.out.contains("lifted after a clean recheck"),
        "{ran:?}"
    );
    assert_eq!(site.note(), ("free".to_owned(), String::new()));
}

#[test]
fn a_job_whose_end_hangs_does_not_keep_the_others_from_theirs() {
    // An end that takes its time, so that the child is stopped within it.
    let site = Site::of(
        fast(1).fault(|faults| faults.hang_on = vec!["quit".to_owned()]),
        "",
    );
    site.start("6.srv");
    let other = [
        "--scheduler",
        "torque",
        "--record",
        "--gpus",
        "0",
        "7.srv",
        USER,
        "g",
        "j",
        "r",
        "q",
        "MPS=maybe",
    ];
    assert_eq!(site.stage.prologue(&other, &[]).code, Some(1));
    let mut command = Command::new(site.stage.program("mpsctl"));
    command.arg("--config").arg(site.stage.config());
    command
        .args(["reconcile", "--node", NODE])
        .env_clear()
        .stdout(Stdio::piped());
    let mut reconcile = command.spawn().expect("mpsctl");
    let parent = reconcile.id();
    // The child that ends the first job.
    let own = |p: &look::Process| p.parent == parent && p.args.iter().any(|arg| arg == "reconcile");
    let mut child = None;
    assert!(wait_until(Duration::from_secs(30), || {
        child = look::processes().into_iter().find(own).map(|p| p.pid);
        child.is_some()
    }));
    kill(child.expect("child"), Signal::SIGSTOP);
    let ended = wait_until(Duration::from_secs(30), || {
        reconcile.try_wait().is_ok_and(|s| s.is_some())
    });
    assert!(ended, "it waits for a job that hangs");
    let said = reconcile.wait_with_output().expect("output");
    let out = String::from_utf8_lossy(&said.stdout).into_owned();
    assert_eq!(said.status.code(), Some(2), "{out}");
    assert!(out.contains("job 6.srv: its end was given up"), "{out}");
    assert!(!site.directory("7.srv").exists(), "{out}");
    let ran = site.reconcile();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    site.stage.assert_clean();
}

#[test]
fn only_root_changes_the_node() {
    let site = Site::new("");
    for verb in ["reconcile", "undrain"] {
        let mut command = as_user(USER, site.stage.program("mpsctl"));
        command
            .arg("--config")
            .arg(site.stage.config())
            .arg(verb)
            .env_clear();
        let ran = finish(command);
        assert!(
            ran.code == Some(1) && ran.err.contains("allowed: root"),
            "{ran:?}"
        );
    }
}

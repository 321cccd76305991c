//! `mpsctl reconcile` and `mpsctl undrain` on a bed of one node. Its Torque server knows a job,
//! forgets it, or is away.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use nix::mount::{MsFlags, mount, umount};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::double::{Builder, look};
use tests::node_bed::{NodeBed, Running, eventually, fast, kill};
use tests::run::{Ran, USER, chmod, finish, script};
use tests::scarcity::{Small, alone};
const NODE: &str = "gpu001";

struct Site {
    bed: NodeBed,
}

impl Site {
    fn new(extra: &str) -> Self {
        Self::of(fast(1), extra)
    }

    fn of(node: Builder, extra: &str) -> Self {
        let bed = NodeBed::without_cgroup(node, "");
        let site = Self { bed };
        for dir in ["pbs/mom_priv/jobs", "pbs/bin", "server/jobs"] {
            site.bed.directory(dir);
        }
        site.configure(extra);
        let server = site.path("server").display().to_string();
        let command = |name: &str, body: &str| {
            let told = format!("echo '{name}: cannot connect to server' >&2");
            let away = format!("[ -e {server}/away ] && {{ {told}; exit 1; }}");
            script(&site.path("pbs/bin").join(name), &format!("{away}\n{body}"));
        };
        let qstat =
            "cat @/jobs/$2 2>/dev/null || { echo \"qstat: Unknown Job Id $2\" >&2; exit 153; }";
        command("qstat", &qstat.replace('@', &server));
        let pbsnodes = "case $1 in\n\
             -o|-c) case $1 in -o) echo offline ;; *) echo free ;; esac >@/state\n\
             case $2,$3 in -N,n) echo >@/note ;; -N,*) echo \"$3\" >@/note ;; esac ;;\n\
             -N) case $2 in n) echo >@/note ;; *) echo \"$2\" >@/note ;; esac ;;\n\
             *) echo \"$1\"; echo \"     state = $(cat @/state)\"; echo \"     note = $(cat @/note)\" ;;\n\
             esac";
        command("pbsnodes", &pbsnodes.replace('@', &server));
        site.server("state", "free");
        site.server("note", "");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.bed.path(name)
    }

    fn configure(&self, extra: &str) {
        let (home, bin) = (self.path("pbs"), self.path("pbs/bin"));
        let (home, bin) = (home.display(), bin.display());
        let pbs = format!("[pbs]\nhome = \"{home}\"\nexec = \"{bin}\"");
        let pbs = format!("{pbs}\nunattached_tasks = \"warn\"\n");
        self.bed.configure(&format!("deadline_s = 8\n{pbs}{extra}"));
    }

    fn server(&self, name: &str, text: &str) {
        fs::write(self.path("server").join(name), text).expect("server");
    }

    fn away(&self, is_away: bool) {
        match is_away {
            true => self.server("away", ""),
            false => fs::remove_file(self.path("server/away")).expect("back"),
        }
    }

    fn note(&self) -> [String; 2] {
        let read = |name| fs::read_to_string(self.path("server").join(name)).expect("server");
        ["state", "note"].map(|name| read(name).trim().to_owned())
    }

    fn job(&self, job: &str, state: &str, host: &str) {
        let text = format!("Job Id: {job}\n    job_state = {state}\n    exec_host = {host}/0\n");
        self.server(&format!("jobs/{job}"), &text);
    }

    #[track_caller]
    fn start(&self, job: &str) {
        self.bed.begin(job, "MPS=true", "0");
    }

    fn mpsctl(&self, args: &[&str]) -> Ran {
        self.bed.mpsctl(&[args, &["--node", NODE]].concat())
    }

    fn reconcile(&self) -> Ran {
        self.mpsctl(&["reconcile"])
    }

    #[track_caller]
    fn reconciles(&self, words: &str) {
        self.reconcile().ok().prints(words);
    }

    fn directory(&self, job: &str) -> PathBuf {
        self.bed.job(job)
    }

    #[track_caller]
    fn assert_clean(&self) {
        self.bed.assert_as_before("a run of reconcile");
    }

    fn kill_all(&self) {
        let all = self.bed.processes();
        for process in &all {
            kill(process.pid, Signal::SIGKILL);
        }
        let are_gone = || all.iter().all(|process| !look::alive(process.pid));
        eventually("all processes end", are_gone);
    }

    fn marker(&self, reason: &str, delivered: bool) {
        let drains = self.bed.directory("state/drains");
        let text = json!({
            "version": 1, "scheduler": "torque", "node": NODE, "reason": reason, "job": "1.srv",
            "gpus": self.bed.node.uuids(), "delivered": delivered, "when": 1,
        });
        let file = drains.join(format!("torque-{NODE}"));
        fs::write(file, text.to_string()).expect("marker");
    }

    fn marked(&self) -> Option<Value> {
        let text = fs::read_to_string(self.path("state/drains").join(format!("torque-{NODE}")));
        serde_json::from_str(&text.ok()?).ok()
    }
}

#[test]
fn only_a_job_that_its_scheduler_has_let_go_is_taken_down() {
    let site = Site::new("");
    let node = &site.bed.node;
    site.start("1.srv");
    assert_eq!(node.modes(), ["exclusive_process"]);
    site.job("1.srv", "R", NODE);
    site.reconciles("job 1.srv: its scheduler has it here: left alone");
    site.away(true);
    site.reconciles("left alone, undecided: qstat said: qstat: cannot connect");
    site.away(false);
    let of_mom = site.path("pbs/mom_priv/jobs/1.srv.JB");
    fs::write(&of_mom, "").expect("the mom's file");
    site.job("1.srv", "C", NODE);
    site.reconcile().ok();
    assert!(site.directory("1.srv").exists(), "the mom has it still");
    fs::remove_file(of_mom).expect("the mom's file");

    let before = (node.processes().len(), node.modes());
    let ran = site.mpsctl(&["reconcile", "--dry-run"]).exits(2);
    ran.prints("job 1.srv: gone (it is in state C): would be taken down (mpsd ");
    ran.prints("mps-server ");
    assert_eq!((node.processes().len(), node.modes()), before);
    assert!(site.directory("1.srv").join("journal").exists());

    site.reconciles("job 1.srv: gone (it is in state C): taken down");
    site.assert_clean();
    // Notes are in the usual directory, which is this machine's.
    let after = site.reconcile().ok();
    let mut lines = after.out.lines();
    let are_notes = lines.all(|line| line.starts_with("note of node '"));
    assert!(are_notes && after.err.is_empty(), "{after:?}");
}

/// The scheduler still has the job, or cannot be asked: the job is left alone, and the exit status
/// says so.
#[test]
fn what_the_end_of_a_job_left_is_told_as_long_as_its_scheduler_has_it() {
    let mut site = Site::new("");
    site.start("1.srv");
    site.job("1.srv", "R", NODE);
    // NVML_ERROR_MEMORY.
    site.bed.node.change(|node| node.nvml.init_answers = 20);
    site.bed.strict_end("1.srv").exits(2);
    site.bed.node.change(|node| node.nvml.init_answers = 0);
    let told = "job 1.srv: its end left something of its MPS";
    site.reconcile().exits(2).prints(told);
    site.away(true);
    site.reconcile().exits(2).prints(told);
    site.away(false);
    site.bed.end("1.srv");
    site.assert_clean();
}

/// Left by many jobs without an epilogue: none of it may hide the rest.
#[test]
fn more_directories_and_locks_than_a_node_ever_has_jobs_are_all_seen_and_removed() {
    const MANY: usize = 10_100;
    let site = Site::new("");
    site.start("7.srv");
    let jobs = site.path("run/jobs");
    for n in 0..MANY {
        match n % 100 {
            0 => fs::create_dir(jobs.join(format!("{}.srv", 1000 + n))).expect("directory"),
            _ => fs::write(jobs.join(format!(".{}.srv.lock", 1000 + n)), "").expect("lock"),
        }
    }
    site.bed.mpsctl(&["status"]).ok().prints("7.srv");
    site.bed.mpsctl(&["metrics"]).ok().prints("mps");
    let ran = site.reconcile().ok();
    ran.prints("job 7.srv: gone").prints("taken down");
    site.assert_clean();
}

#[test]
fn a_refusals_record_is_removed_with_its_job() {
    let site = Site::new("");
    site.bed.refused("4.srv", "MPS=maybe");
    site.job("4.srv", "R", NODE);
    site.reconcile().ok();
    assert!(site.directory("4.srv").exists());
    fs::remove_file(site.path("server/jobs/4.srv")).expect("the job's end");
    site.reconcile().ok();
    site.assert_clean();
}

/// The timer's unit has its own mount namespace, and an unmount has no effect outside it. But the
/// kernel removes a mount in every namespace with the directory below it.
#[test]
fn a_mount_of_the_users_goes_on_the_host_when_a_confined_reconcile_removes_its_directory() {
    alone(|| {
        let site = Site::new("");
        let _hidden = Small::over(&site.path("run"), 256, 0o755);
        site.start("6.srv");
        let pipe = site.directory("6.srv").join("pipe");
        let inner = pipe.join("deep/mount");
        fs::create_dir_all(&inner).expect("directory");
        for at in [&inner, &pipe] {
            let none = None::<&str>;
            mount(Some("theirs"), at, Some("tmpfs"), MsFlags::empty(), none).expect("a mount");
        }
        let mounts = || fs::read_to_string("/proc/thread-self/mounts").expect("mounts");
        assert_eq!(mounts().matches("theirs").count(), 2);
        let apart = ["/usr/bin/unshare", "--mount", "--propagation", "slave"];
        let mut command = site.bed.command_by(&apart, "mpsctl");
        finish(command.args(["reconcile", "--node", NODE])).ok();
        assert!(!mounts().contains("theirs"), "{}", mounts());
        assert!(!site.directory("6.srv").exists());
    });
}

#[test]
fn an_account_without_its_job_is_closed_and_the_mode_restored() {
    let site = Site::new("");
    site.start("5.srv");
    site.kill_all();
    // An administrator has cleaned up by hand.
    for at in site.bed.mounts() {
        umount(&at).expect("unmounted");
    }
    fs::remove_dir_all(site.directory("5.srv")).expect("removed");
    assert_eq!(site.bed.node.modes(), ["exclusive_process"]);
    let ran = site.mpsctl(&["reconcile", "--dry-run"]).exits(2);
    ran.prints("users without a directory: 5.srv: would be removed");
    site.reconciles("users without a directory: 5.srv: removed");
    site.assert_clean();
}

#[test]
fn before_a_boot_means_gone_only_at_boot_and_only_without_a_process() {
    let site = Site::new("");
    site.start("6.srv");
    site.away(true);
    let journal = site.directory("6.srv").join("journal");
    let text = fs::read_to_string(&journal).expect("journal");
    let mut text: Value = serde_json::from_str(&text).expect("JSON");
    text["began"] = json!(1);
    fs::write(&journal, text.to_string()).expect("journal");
    let undecided = "left alone, undecided";
    let boot = || site.mpsctl(&["reconcile", "--boot"]);
    // Its MPS runs.
    boot().prints(undecided);
    assert!(site.directory("6.srv").exists());
    site.kill_all();
    // Without a boot.
    site.reconcile().prints(undecided);
    assert!(site.directory("6.srv").exists());
    boot().ok().prints("began before this boot");
    site.assert_clean();
}

#[test]
fn a_drain_is_delivered_late_and_lifted_only_when_it_is_ours() {
    let site = Site::new("");
    let reason = "mpsd: job 1.srv: mps-server 691: state D after 4 s";
    site.marker(reason, false);
    site.away(true);
    site.reconcile().exits(2).prints("not delivered");
    assert_eq!(site.marked().expect("marker")["delivered"], false);
    site.away(false);
    site.reconciles(": delivered");
    assert_eq!(site.note(), ["offline", reason]);
    assert_eq!(site.marked().expect("marker")["delivered"], true);
    // It is not lifted automatically.
    let remedy = "'mpsctl undrain' lifts it";
    site.reconciles(remedy);
    assert_eq!(site.note(), ["offline", reason]);
    // The administrator reads of it in each of these.
    for verb in [
        &["doctor", "--problems", "--node", NODE][..],
        &["status"],
        &["status", "--json"],
    ] {
        site.bed.mpsctl(verb).prints(reason).prints(remedy);
    }
    let undrain = || site.mpsctl(&["undrain"]);
    site.away(true);
    let ran = site.mpsctl(&["undrain", "--json"]).exits(2);
    ran.prints("its scheduler does not answer").json();
    site.away(false);
    assert_eq!(site.note(), ["offline", reason]);
    undrain().ok().prints("lifted after a clean recheck");
    assert_eq!(site.note(), ["free", ""]);
    // Nothing of ours is left to lift.
    let ran = undrain().exits(2);
    ran.complains("mpsd remembers no drain of this node");

    site.marker(reason, true);
    let foreign = ["offline", "bad disk, ask anna"];
    site.server("state", foreign[0]);
    site.server("note", foreign[1]);
    undrain().prints("drained for another reason ('bad disk, ask anna'), which mpsd does not lift");
    assert_eq!(site.note(), foreign);
    assert_eq!(site.marked(), None);
}

/// A GPU is lost during a job, and after the repair the node has as many as before.
#[test]
fn a_gpu_that_was_replaced_keeps_no_drain() {
    let mut site = Site::of(fast(2), "");
    site.job("1.srv", "R", NODE);
    site.start("1.srv");
    let node = &mut site.bed.node;
    node.change(|node| node.gpu[0].fault = "lost".to_owned());
    site.bed.torque_end("1.srv").ok();
    assert_eq!(site.note()[0], "offline");
    // The boot.
    for name in ["jobs", "gpus", "shared"] {
        let _ = fs::remove_dir_all(site.path("run").join(name));
    }
    fs::remove_file(site.path("run/ledger")).expect("a ledger");
    let mut lost = None;
    site.bed.node.change(|node| lost = Some(node.gpu.remove(0)));
    let undrain = |site: &Site| site.mpsctl(&["undrain"]);
    undrain(&site).exits(2).prints("if it was replaced, lift");
    site.bed.node.change(|node| {
        let mut other = lost.expect("the first GPU");
        (other.uuid, other.fault) = ("GPU-0123".to_owned(), String::new());
        node.gpu.insert(0, other);
    });
    undrain(&site).ok().prints("lifted after a clean recheck");
    assert_eq!(site.note(), ["free", ""]);
}

#[test]
fn a_job_whose_end_hangs_does_not_keep_the_others_from_theirs() {
    // A slow end, so that its child can be stopped.
    let slow = fast(1).fault(|faults| faults.hang_on = vec!["quit".to_owned()]);
    let site = Site::of(slow, "");
    site.start("6.srv");
    site.bed.refused("7.srv", "MPS=maybe");
    let mut command = site.bed.command("mpsctl");
    command.args(["reconcile", "--node", NODE]);
    let mut reconcile = Running::start(command.stdout(Stdio::piped()));
    let parent = reconcile.pid();
    // The child that ends the first job.
    let is_child = |p: &look::Process| p.parent == parent && p.args.contains(&"reconcile".into());
    let mut found = None;
    eventually("a child ends the job", || {
        found = look::processes().into_iter().find(is_child);
        found.is_some()
    });
    kill(found.expect("a child").pid, Signal::SIGSTOP);
    assert_eq!(reconcile.wait(), Some(2));
    let out = reconcile.0.stdout.take().expect("output");
    let out = std::io::read_to_string(out).expect("output");
    assert!(out.contains("job 6.srv: its end was given up"), "{out}");
    assert!(!site.directory("7.srv").exists(), "{out}");
    site.reconcile().ok();
    site.assert_clean();
}

#[test]
fn only_root_changes_the_node() {
    let site = Site::new("");
    let of_root = "reconcile|reconcile --dry-run|undrain|pbs install|pbs uninstall|slurm enable|slurm disable";
    for verb in of_root.split('|') {
        let args: Vec<&str> = verb.split(' ').collect();
        let ran = site.bed.mpsctl_as(USER, &args, &[]).exits(1);
        ran.complains("allowed: root").prints_nothing();
    }
}

/// By hand, and by the timer if the site asks for that.
#[test]
fn a_drain_stays_while_something_is_wrong() {
    type Change = fn(&mut Site);
    let list = |site: &Site, text: &str| {
        let id = format!("1001-{}", site.bed.node.uuids()[0]);
        let list = format!(".{id}.sharers");
        fs::write(site.bed.directory("run/shared").join(list), text).expect("a list");
    };
    let reason = "mpsd: job 1.srv: NVML: no answer within 5 s";
    for (why, harm, remedy) in [
        (
            "NVML",
            (|site| site.bed.node.change(|node| node.nvml.init_fails = true)) as Change,
            Some((|site| site.bed.node.change(|node| node.nvml.init_fails = false)) as Change),
        ),
        (
            "does not let users pass",
            |site| chmod(&site.path("run"), 0o700),
            Some(|site| chmod(&site.path("run"), 0o755)),
        ),
        (
            "if it was replaced, lift the drain by scontrol or pbsnodes",
            |site| site.bed.node.change(|node| drop(node.gpu.remove(0))),
            None,
        ),
    ] {
        let mut site = Site::new("[drain]\nauto_undrain = true\n");
        site.marker(reason, true);
        site.server("state", "offline");
        site.server("note", reason);
        harm(&mut site);
        for verb in ["reconcile", "undrain"] {
            let ran = site.mpsctl(&[verb]).exits(2);
            ran.prints(": stays: ").prints(why);
            assert_eq!(site.note(), ["offline", reason], "{verb}");
        }
        let Some(remedy) = remedy else { continue };
        remedy(&mut site);
        // A shared MPS that cannot be ended.
        list(&site, "no list");
        let ran = site.reconcile().exits(2);
        ran.prints("have left something: 1001-");
        assert_eq!(site.note(), ["offline", reason]);
        list(&site, "[]");
        site.reconciles("lifted after a clean recheck");
        assert_eq!(site.note(), ["free", ""]);
    }
}

//! `mpsctl reconcile` and `mpsctl undrain` against a simulated node under a server that knows, forgets, or is away.

use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tests::double::NodeDouble;
use tests::stage::{Ran, Stage, USER, as_user, finish};

/// The node's name in the scheduler.
const NODE: &str = "gpu001";

/// A node of a Torque whose server is a directory.
struct Site {
    stage: Stage,
}

impl Site {
    fn new(extra: &str) -> Self {
        let node = NodeDouble::builder()
            .gpus(1, "NVIDIA H200")
            .fast()
            .build()
            .expect("node");
        let site = Self {
            stage: Stage::new(node, ""),
        };
        for dir in ["pbs/mom_priv/jobs", "pbs/bin", "server/jobs"] {
            fs::create_dir_all(site.stage.path(dir)).expect("directory");
        }
        site.configure(extra);
        let server = site.stage.path("server").display().to_string();
        site.command(
            "qstat",
            &format!(
                "[ -e {server}/away ] && {{ echo 'qstat: cannot connect to server' >&2; exit 1; }}\n\
             cat {server}/jobs/$2 2>/dev/null || {{ echo \"qstat: Unknown Job Id $2\" >&2; exit 153; }}\n",
            ),
        );
        site.command("pbsnodes", &format!(
            "[ -e {server}/away ] && {{ echo 'pbsnodes: cannot connect to server' >&2; exit 1; }}\n\
             case $1 in\n\
             -o) echo offline >{server}/state; echo \"$3\" >{server}/note ;;\n\
             -c) echo free >{server}/state; echo '' >{server}/note ;;\n\
             *) echo \"$1\"; echo \"     state = $(cat {server}/state)\"; echo \"     note = $(cat {server}/note)\" ;;\n\
             esac\n",
        ));
        site.server("state", "free");
        site.server("note", "");
        site
    }

    fn configure(&self, extra: &str) {
        let (home, bin) = (self.stage.path("pbs"), self.stage.path("pbs/bin"));
        let pbs = format!(
            "[pbs]\nhome = \"{}\"\nexec = \"{}\"\n",
            home.display(),
            bin.display()
        );
        self.stage
            .configure(&format!("cgroup = \"none\"\ndeadline_s = 8\n{pbs}{extra}"));
    }

    fn command(&self, name: &str, body: &str) {
        let path = self.stage.path("pbs/bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}")).expect("command");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
    }

    fn server(&self, name: &str, text: &str) {
        fs::write(self.stage.path("server").join(name), text).expect("server");
    }

    fn away(&self, away: bool) {
        let path = self.stage.path("server/away");
        if away {
            fs::write(path, "").expect("away")
        } else {
            fs::remove_file(path).expect("back")
        }
    }

    fn note(&self) -> (String, String) {
        let read = |name: &str| fs::read_to_string(self.stage.path("server").join(name)).expect("server");
        (read("state").trim().to_owned(), read("note").trim().to_owned())
    }

    /// The server's word on a job.
    fn job(&self, job: &str, state: &str, host: &str) {
        self.server(
            &format!("jobs/{job}"),
            &format!("Job Id: {job}\n    job_state = {state}\n    exec_host = {host}/0\n"),
        );
    }

    /// A job that alone holds the GPU.
    #[track_caller]
    fn start(&self, job: &str) {
        let nodes = self.stage.path("nodes");
        fs::create_dir_all(&nodes).expect("directory");
        fs::write(nodes.join(format!("{job}gpu")), format!("{NODE}-gpu0\n")).expect("GPU file");
        let file = nodes.join(job).display().to_string();
        let args = [
            "--scheduler",
            "torque",
            job,
            USER,
            "nogroup",
            "j",
            "nodes=1:gpus=1",
            "batch",
            "MPS=true",
        ];
        let ran = self
            .stage
            .prologue(&args, &[("PBS_NODEFILE", &file), ("PBS_MSHOST", NODE)]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }

    fn mpsctl(&self, args: &[&str]) -> Ran {
        let args: Vec<&str> = args.iter().copied().chain(["--node", NODE]).collect();
        self.stage.run("mpsctl", &args, &[])
    }

    fn reconcile(&self) -> Ran {
        self.mpsctl(&["reconcile"])
    }

    fn directory(&self, job: &str) -> PathBuf {
        self.stage.job(job)
    }

    /// Ends everything of the simulated node by force.
    fn kill_all(&self) {
        let all = self
            .stage
            .node
            .processes()
            .into_iter()
            .chain(tests::double::look::processes_from(&self.stage.path("bin")));
        for process in all {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(process.pid).expect("pid"));
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }

    fn marker(&self, reason: &str, delivered: bool) {
        let drains = self.stage.path("state/drains");
        fs::create_dir_all(&drains).expect("drains");
        let text = json!({
            "version": 1, "scheduler": "torque", "node": NODE, "reason": reason, "job": "1.srv",
            "gpus": self.stage.node.uuids(), "delivered": delivered, "when": 1,
        });
        fs::write(drains.join(format!("torque-{NODE}")), text.to_string()).expect("marker");
    }

    fn marked(&self) -> Option<Value> {
        let text = fs::read_to_string(self.stage.path("state/drains").join(format!("torque-{NODE}"))).ok()?;
        serde_json::from_str(&text).ok()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill_all();
    }
}

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

#[test]
fn an_account_without_its_job_is_closed_and_the_mode_restored() {
    let site = Site::new("");
    site.start("5.srv");
    site.kill_all();
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

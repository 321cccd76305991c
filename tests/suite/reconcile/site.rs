//! A simulated node under a Torque whose server is a directory: it knows a job, forgets it, or is away.

use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use tests::double::Builder;
use tests::place::fast;
use tests::stage::{Ran, Stage, prologue_args};

/// The node's name in the scheduler.
pub const NODE: &str = "gpu001";

/// The node and its server.
pub struct Site {
    /// The node with the suite.
    pub stage: Stage,
}

impl Site {
    pub fn new(extra: &str) -> Self {
        Self::of(fast(1), extra)
    }

    pub fn of(node: Builder, extra: &str) -> Self {
        let site = Self {
            stage: Stage::new(node.build().expect("node"), ""),
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
             -o|-c) case $1 in -o) echo offline ;; *) echo free ;; esac >{server}/state\n\
             case $2,$3 in -N,n) echo >{server}/note ;; -N,*) echo \"$3\" >{server}/note ;; esac ;;\n\
             -N) case $2 in n) echo >{server}/note ;; *) echo \"$2\" >{server}/note ;; esac ;;\n\
             *) echo \"$1\"; echo \"     state = $(cat {server}/state)\"; echo \"     note = $(cat {server}/note)\" ;;\n\
             esac\n",
        ));
        site.server("state", "free");
        site.server("note", "");
        site
    }

    pub fn configure(&self, extra: &str) {
        let (home, bin) = (self.stage.path("pbs"), self.stage.path("pbs/bin"));
        let pbs = format!(
            "[pbs]\nhome = \"{}\"\nexec = \"{}\"\nunattached_tasks = \"warn\"\n",
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

    pub fn server(&self, name: &str, text: &str) {
        fs::write(self.stage.path("server").join(name), text).expect("server");
    }

    pub fn away(&self, away: bool) {
        let path = self.stage.path("server/away");
        if away {
            fs::write(path, "").expect("away")
        } else {
            fs::remove_file(path).expect("back")
        }
    }

    pub fn note(&self) -> (String, String) {
        let read = |name: &str| fs::read_to_string(self.stage.path("server").join(name)).expect("server");
        (read("state").trim().to_owned(), read("note").trim().to_owned())
    }

    /// The server's word on a job.
    pub fn job(&self, job: &str, state: &str, host: &str) {
        self.server(
            &format!("jobs/{job}"),
            &format!("Job Id: {job}\n    job_state = {state}\n    exec_host = {host}/0\n"),
        );
    }

    /// A job that alone holds the GPU.
    #[track_caller]
    pub fn start(&self, job: &str) {
        let nodes = self.stage.path("nodes");
        fs::create_dir_all(&nodes).expect("directory");
        fs::write(nodes.join(format!("{job}gpu")), format!("{NODE}-gpu0\n")).expect("GPU file");
        let file = nodes.join(job).display().to_string();
        let ran = self.stage.prologue(
            &prologue_args(job, "MPS=true"),
            &[("PBS_NODEFILE", &file), ("PBS_MSHOST", NODE)],
        );
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }

    pub fn mpsctl(&self, args: &[&str]) -> Ran {
        let args: Vec<&str> = args.iter().copied().chain(["--node", NODE]).collect();
        self.stage.run("mpsctl", &args, &[])
    }

    pub fn reconcile(&self) -> Ran {
        self.mpsctl(&["reconcile"])
    }

    pub fn directory(&self, job: &str) -> PathBuf {
        self.stage.job(job)
    }

    /// Ends everything of the simulated node by force.
    pub fn kill_all(&self) {
        let all = self
            .stage
            .node
            .processes()
            .into_iter()
            .chain(tests::double::look::processes_from(&self.stage.path("bin")));
        let all: Vec<_> = all.collect();
        for process in &all {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(process.pid).expect("pid"));
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        let gone = || all.iter().all(|process| !tests::double::look::alive(process.pid));
        let ended = tests::double::look::wait_until(std::time::Duration::from_secs(5), gone);
        assert!(ended, "survivors of SIGKILL among {all:?}");
    }

    pub fn marker(&self, reason: &str, delivered: bool) {
        let drains = self.stage.path("state/drains");
        fs::create_dir_all(&drains).expect("drains");
        let text = json!({
            "version": 1, "scheduler": "torque", "node": NODE, "reason": reason, "job": "1.srv",
            "gpus": self.stage.node.uuids(), "delivered": delivered, "when": 1,
        });
        fs::write(drains.join(format!("torque-{NODE}")), text.to_string()).expect("marker");
    }

    pub fn marked(&self) -> Option<Value> {
        let text = fs::read_to_string(self.stage.path("state/drains").join(format!("torque-{NODE}"))).ok()?;
        serde_json::from_str(&text).ok()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill_all();
    }
}

//! The test's side of a node of the bed.

use super::wire::{Ended, Order, Run, Snapshot, variables};
use crate::orders::Helper;
use crate::slurm::program_beside;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

#[derive(Debug)]
pub struct MomNode {
    pub name: String,
    agent: Helper,
    dir: PathBuf,
}

impl MomNode {
    /// `place/server`, if it exists, is the node's `/var/srv/pbs`.
    pub fn new(place: &Path, name: &str) -> Self {
        let dir = place.join(name);
        std::fs::create_dir(&dir).expect("a directory for the node");
        let program = program_beside("mom-node").expect("a built workspace");
        let mut command = Command::new(program);
        command.args(["node".as_ref(), dir.as_os_str(), name.as_ref()]);
        Self {
            name: name.to_owned(),
            agent: Helper::start(&mut command).expect("the node's process"),
            dir,
        }
    }

    fn order<A: DeserializeOwned>(&mut self, order: Order) -> A {
        let answer = self.agent.ask(&order);
        answer.unwrap_or_else(|why| panic!("node '{}': {why:#}\norder: {order:?}", self.name))
    }

    pub fn run(&mut self, run: Run) -> Ended {
        self.order(Order::Run(Box::new(run)))
    }

    /// `Err` if the mom would not start it.
    pub fn start(&mut self, run: Run) -> Result<i32, Ended> {
        self.order(Order::Start(Box::new(run)))
    }

    pub fn wait(&mut self, pid: i32, limit_ms: u64) -> Ended {
        self.order(Order::Wait { pid, limit_ms })
    }

    pub fn signal(&mut self, pid: i32, signal: i32) {
        self.order(Order::Signal { pid, signal })
    }

    pub fn kill_mom(&mut self) {
        self.order(Order::KillMom)
    }

    /// Whether a process still holds the terminal, or a descriptor that the mom passed to `pid`.
    pub fn is_held(&mut self, pid: i32) -> bool {
        self.order(Order::Held { pid })
    }

    pub fn read(&mut self, path: &str) -> Option<String> {
        let path = path.to_owned();
        self.order(Order::Read { path })
    }

    pub fn write(&mut self, path: &str, text: &str, mode: u32) {
        let (path, text) = (path.to_owned(), text.to_owned());
        self.order(Order::Write { path, text, mode })
    }

    pub fn snapshot(&mut self) -> Snapshot {
        self.order(Order::Snapshot)
    }

    pub fn sh(&mut self, command: &str) -> String {
        self.sh_exits(0, command)
    }

    pub fn sh_exits(&mut self, code: i32, command: &str) -> String {
        let (ended, text) = self.try_sh(command);
        let told = format!("on {}: {command}\n{text}", self.name);
        assert_eq!(ended, Ended::Code(code), "{told}");
        text
    }

    pub fn try_sh(&mut self, command: &str) -> (Ended, String) {
        let script = format!("exec >/.layer/sh.out 2>&1 </dev/null; {command}");
        let ended = self.run(Run {
            argv: ["/bin/sh", "-c", &script].map(str::to_owned).to_vec(),
            env: variables(&[("PATH", "/usr/bin:/bin:/usr/sbin:/sbin")]),
            cwd: "/".to_owned(),
            umask: 0o022,
            ..Run::default()
        });
        (ended, self.read("/.layer/sh.out").unwrap_or_default())
    }
}

impl Drop for MomNode {
    fn drop(&mut self) {
        let _ = self.agent.end::<()>(Duration::from_secs(10));
        self.agent.kill();
        let _ = std::fs::remove_dir(&self.dir);
    }
}

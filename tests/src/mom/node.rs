//! The test's side of a simulated node.

use super::wire::{Answer, Ended, Order, Run, Snapshot, variables};
use crate::double::look::wait_until;
use crate::slurm::program_beside;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

#[derive(Debug)]
pub struct MomNode {
    pub name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    dir: PathBuf,
}

impl MomNode {
    /// Makes a node in a new directory of `place`. `place/server`, if it exists, is the node's
    /// `/var/srv/pbs`.
    pub fn new(place: &Path, name: &str) -> Self {
        let dir = place.join(name);
        std::fs::create_dir(&dir).expect("a directory for the node");
        let program = program_beside("mom-node").expect("a built workspace");
        let mut child = Command::new(program)
            .args(["node".as_ref(), dir.as_os_str(), name.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the node's process");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self {
            name: name.to_owned(),
            child,
            input,
            output,
            dir,
        }
    }

    fn order(&mut self, order: &Order) -> Answer {
        let mut line = serde_json::to_vec(order).expect("an order");
        line.push(b'\n');
        let input = self.input.as_mut().expect("a running node");
        input.write_all(&line).expect("the node takes orders");
        let mut answer = String::new();
        self.output
            .read_line(&mut answer)
            .expect("the node answers");
        match serde_json::from_str(&answer) {
            Ok(Answer::Failed(why)) => panic!("node '{}': {why}\norder: {order:?}", self.name),
            Ok(answer) => answer,
            Err(e) => panic!("node '{}' answers '{answer}': {e}", self.name),
        }
    }

    pub fn run(&mut self, run: Run) -> Ended {
        match self.order(&Order::Run(Box::new(run))) {
            Answer::Ended(ended) => ended,
            other => panic!("{other:?}"),
        }
    }

    /// Starts a process and leaves it running; `Err` if the mom would not start it.
    pub fn start(&mut self, run: Run) -> Result<i32, Ended> {
        let background = Run {
            background: true,
            ..run
        };
        match self.order(&Order::Run(Box::new(background))) {
            Answer::Started(pid) => Ok(pid),
            Answer::Ended(ended) => Err(ended),
            other => panic!("{other:?}"),
        }
    }

    /// Waits at most `limit_ms` for a process that [`MomNode::start`] started.
    pub fn wait(&mut self, pid: i32, limit_ms: u64) -> Ended {
        match self.order(&Order::Wait { pid, limit_ms }) {
            Answer::Ended(ended) => ended,
            other => panic!("{other:?}"),
        }
    }

    pub fn signal(&mut self, pid: i32, signal: i32) {
        self.order(&Order::Signal { pid, signal });
    }

    pub fn kill_mom(&mut self) {
        self.order(&Order::KillMom);
    }

    /// Whether a process still holds the terminal, or a descriptor that the mom passed to `pid`.
    pub fn is_held(&mut self, pid: i32) -> bool {
        matches!(self.order(&Order::Held { pid }), Answer::Bool(true))
    }

    pub fn read(&mut self, path: &str) -> Option<String> {
        let path = path.to_owned();
        match self.order(&Order::Read { path }) {
            Answer::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    pub fn write(&mut self, path: &str, text: &str, mode: u32) {
        let (path, text) = (path.to_owned(), text.to_owned());
        self.order(&Order::Write { path, text, mode });
    }

    pub fn snapshot(&mut self) -> Snapshot {
        match self.order(&Order::Snapshot) {
            Answer::Snapshot(snapshot) => snapshot,
            other => panic!("{other:?}"),
        }
    }

    pub fn sh(&mut self, command: &str) -> String {
        self.sh_exits(0, command)
    }

    pub fn sh_exits(&mut self, code: i32, command: &str) -> String {
        let (ended, text) = self.try_sh(command);
        assert_eq!(
            ended,
            Ended::Code(code),
            "on {}: {command}\n{text}",
            self.name
        );
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
        // The node ends with its input.
        drop(self.input.take());
        wait_until(Duration::from_secs(10), || {
            matches!(self.child.try_wait(), Ok(Some(_)))
        });
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir(&self.dir);
    }
}

//! The test's side of a simulated node.

use super::wire::{Answer, Ended, Order, Run, Snapshot};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A node; it ends, with everything in it, when this is dropped.
#[derive(Debug)]
pub struct MomNode {
    /// Its host name.
    pub name: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    dir: PathBuf,
}

/// The directory of the built programs.
pub fn built() -> PathBuf {
    let exe = std::env::current_exe().expect("the test's own path");
    let deps = exe.parent().expect("a directory");
    if deps.ends_with("deps") {
        deps.parent().expect("a directory").to_owned()
    } else {
        deps.to_owned()
    }
}

impl MomNode {
    /// A node called `name`, in an empty directory of `place`; `place/server`, where there is one, is shared with it as `/var/srv/pbs`.
    pub fn new(place: &Path, name: &str) -> Self {
        let dir = place.join(name);
        std::fs::create_dir(&dir).expect("a directory for the node");
        let program = built().join("mom-node");
        let mut child = Command::new(&program)
            .args(["node".as_ref(), dir.as_os_str(), name.as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("'{}': {e}; build the workspace first", program.display()));
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

    fn ask(&mut self, order: &Order) -> Answer {
        let mut line = serde_json::to_vec(order).expect("an order");
        line.push(b'\n');
        let input = self.input.as_mut().expect("a running node");
        input.write_all(&line).expect("the node takes orders");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("the node answers");
        match serde_json::from_str(&answer) {
            Ok(Answer::Failed(why)) => panic!("node '{}': {why}\norder: {order:?}", self.name),
            Ok(answer) => answer,
            Err(e) => panic!("node '{}' answers '{answer}': {e}", self.name),
        }
    }

    /// Runs a process to its end.
    pub fn run(&mut self, run: Run) -> Ended {
        match self.ask(&Order::Run(Box::new(Run {
            background: false,
            ..run
        }))) {
            Answer::Ended(ended) => ended,
            other => panic!("{other:?}"),
        }
    }

    /// Starts a process and leaves it running; `Err` when the mom would not start it.
    pub fn start(&mut self, run: Run) -> Result<i32, Ended> {
        match self.ask(&Order::Run(Box::new(Run {
            background: true,
            ..run
        }))) {
            Answer::Started(pid) => Ok(pid),
            Answer::Ended(ended) => Err(ended),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for a process that [`MomNode::start`] started, ms.
    pub fn wait(&mut self, pid: i32, limit_ms: u64) -> Ended {
        match self.ask(&Order::Wait { pid, limit_ms }) {
            Answer::Ended(ended) => ended,
            other => panic!("{other:?}"),
        }
    }

    /// Sends a signal.
    pub fn signal(&mut self, pid: i32, signal: i32) {
        self.ask(&Order::Signal { pid, signal });
    }

    /// Kills the mom's cgroup.
    pub fn kill_mom(&mut self) {
        self.ask(&Order::KillMom);
    }

    /// Whether a descriptor that the mom passed to `pid`, or the terminal, is still held by anybody.
    pub fn is_held(&mut self, pid: i32) -> bool {
        matches!(self.ask(&Order::Held { pid }), Answer::Bool(true))
    }

    /// The text of a file, if it is there.
    pub fn read(&mut self, path: &str) -> Option<String> {
        match self.ask(&Order::Read {
            path: path.to_owned(),
        }) {
            Answer::Text(text) => text,
            other => panic!("{other:?}"),
        }
    }

    /// Writes a file.
    pub fn write(&mut self, path: &str, text: &str, mode: u32) {
        self.ask(&Order::Write {
            path: path.to_owned(),
            text: text.to_owned(),
            mode,
        });
    }

    /// What is there besides this machine's own files.
    pub fn snapshot(&mut self) -> Snapshot {
        match self.ask(&Order::Snapshot) {
            Answer::Snapshot(snapshot) => snapshot,
            other => panic!("{other:?}"),
        }
    }

    /// Runs a shell command as root; its output, which must come with exit code 0.
    pub fn sh(&mut self, command: &str) -> String {
        let (code, text) = self.try_sh(command);
        assert_eq!(code, Ended::Code(0), "on {}: {command}\n{text}", self.name);
        text
    }

    /// Runs a shell command as root; how it ended and its output.
    pub fn try_sh(&mut self, command: &str) -> (Ended, String) {
        let path = "PATH=/usr/bin:/bin:/usr/sbin:/sbin"
            .split_once('=')
            .map(|(k, v)| (k.to_owned(), v.to_owned()));
        let script = format!("exec >/.layer/sh.out 2>&1 </dev/null; {command}");
        let ended = self.run(Run {
            argv: ["/bin/sh", "-c", &script].map(str::to_owned).to_vec(),
            env: path.into_iter().collect(),
            cwd: "/".to_owned(),
            umask: 0o022,
            ..Run::default()
        });
        let text = self.read("/.layer/sh.out").unwrap_or_default();
        self.run(Run {
            argv: vec!["/bin/rm".into(), "/.layer/sh.out".into()],
            cwd: "/".into(),
            ..Run::default()
        });
        (ended, text)
    }
}

impl Drop for MomNode {
    fn drop(&mut self) {
        // Its end of input is the node's end.
        drop(self.input.take());
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while std::time::Instant::now() < end {
            if let Ok(Some(_)) = self.child.try_wait() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir(&self.dir);
    }
}

//! The test process's side of the warden, and their messages: one line of JSON each way.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// File name of the supervisor's program, beside the other programs of the build.
pub const WARDEN: &str = "slurm-warden";

/// Longest time for a whole teardown, with daemons that ignore SIGTERM.
const TEARDOWN: Duration = Duration::from_secs(40);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Start a daemon: program, arguments, whole environment, file for its output. Answer:
    /// `Started`.
    Start {
        argv: Vec<String>,
        env: BTreeMap<String, String>,
        log: PathBuf,
    },
    /// End a daemon: SIGTERM, SIGKILL after `wait_ms`, reap. Answer: `Stopped`.
    Stop { pid: i32, wait_ms: u64 },
    /// A directory to remove at the end, with everything mounted in it. Answer: `Done`.
    Remove { path: PathBuf },
    /// A cgroup to remove at the end, with those below it. Answer: `Done`.
    RemoveCgroup { path: PathBuf },
    /// A process of the test itself (an `srun`) to end at the end if it still runs. Answer: `Done`.
    Client {
        pid: i32,
        /// Its start time in clock ticks, as in `/proc/PID/stat`, so that a later process with this
        /// pid is left alone.
        start: u64,
    },
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Started(i32),
    Stopped {
        /// SIGTERM was not enough.
        killed: bool,
    },
    Done,
    Failed(String),
    /// The last line, after the teardown: what it had to kill or could not remove.
    Ended(Vec<String>),
}

#[derive(Debug)]
pub struct Warden {
    pid: i32,
    channel: Mutex<Option<Channel>>,
}

#[derive(Debug)]
struct Channel {
    child: Child,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Warden {
    /// Starts the supervisor in its own process group, so that Ctrl-C at the terminal does not
    /// reach it.
    pub fn start(program: &Path) -> Result<Warden> {
        use std::os::unix::process::CommandExt as _;
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start '{}'", program.display()))?;
        let requests = child.stdin.take().context("warden without stdin")?;
        let replies = BufReader::new(child.stdout.take().context("warden without stdout")?);
        let pid = child.id().cast_signed();
        Ok(Warden {
            pid,
            channel: Mutex::new(Some(Channel {
                child,
                requests,
                replies,
            })),
        })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    pub fn ask(&self, request: &Request) -> Result<Reply> {
        let mut guard = self
            .channel
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let channel = guard.as_mut().context("the bed is already torn down")?;
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        channel
            .requests
            .write_all(line.as_bytes())
            .context("the warden is gone")?;
        match read_reply(&mut channel.replies)? {
            Reply::Failed(why) => bail!("{why}"),
            reply => Ok(reply),
        }
    }

    /// Closes the pipe, waits for the teardown and returns what it had to force. Later calls return
    /// nothing.
    pub fn end(&self) -> Result<Vec<String>> {
        let Some(channel) = self
            .channel
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .take()
        else {
            return Ok(Vec::new());
        };
        let Channel {
            mut child,
            requests,
            mut replies,
        } = channel;
        drop(requests);
        let reply = read_reply(&mut replies);
        let deadline = Instant::now() + TEARDOWN;
        while child
            .try_wait()
            .context("cannot wait for the warden")?
            .is_none()
        {
            if Instant::now() > deadline {
                bail!(
                    "the warden (pid {}) did not end within {} s",
                    self.pid,
                    TEARDOWN.as_secs()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        match reply? {
            Reply::Ended(forced) => Ok(forced),
            other => bail!("the warden ended with {other:?}"),
        }
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("bed: {error:#}");
        }
    }
}

fn read_reply(replies: &mut BufReader<ChildStdout>) -> Result<Reply> {
    let mut line = String::new();
    if replies
        .read_line(&mut line)
        .context("cannot read from the warden")?
        == 0
    {
        bail!("the warden ended without an answer");
    }
    serde_json::from_str(&line).with_context(|| format!("the warden said '{}'", line.trim_end()))
}

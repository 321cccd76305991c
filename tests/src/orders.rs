//! A helper process of a test: an order a line on its standard input, an answer a line on its
//! standard output, in JSON. It ends with its input, so a test that dies leaves nothing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, ensure};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::double::look::wait_until;

const TURN_MS: u16 = 10;

#[derive(Debug)]
pub struct Helper {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Helper {
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("cannot start {command:?}"))?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("no standard output")?);
        Ok(Self {
            child,
            orders,
            answers,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn ask<A: DeserializeOwned>(&mut self, order: &impl Serialize) -> Result<A> {
        let orders = self.orders.as_mut().context("it has been ended")?;
        let line = serde_json::to_string(order)? + "\n";
        orders.write_all(line.as_bytes()).context("it is gone")?;
        let answer: Result<A, String> = self.answer()?;
        answer.map_err(Error::msg)
    }

    fn answer<A: DeserializeOwned>(&mut self) -> Result<A> {
        let mut line = String::new();
        let length = self.answers.read_line(&mut line)?;
        ensure!(length > 0, "it ended without an answer");
        serde_json::from_str(&line).with_context(|| format!("it said '{}'", line.trim_end()))
    }

    /// Closes its input. Returns its last words; `None` after the first call.
    pub fn end<A: DeserializeOwned>(&mut self, limit: Duration) -> Result<Option<A>> {
        if self.orders.take().is_none() {
            return Ok(None);
        }
        let last = self.answer();
        let ended = wait_until(limit, || matches!(self.child.try_wait(), Ok(Some(_))));
        let (pid, limit) = (self.pid(), limit.as_secs());
        ensure!(ended, "pid {pid} did not end within {limit} s");
        last.map(Some)
    }

    /// The last resort.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The helper's side, until its input ends or `turn`, which is called between the orders, says no.
pub fn obey<S, O: DeserializeOwned>(
    state: &mut S,
    turn: impl Fn(&mut S) -> bool,
    obey: impl Fn(&mut S, O) -> Result<Value>,
) -> Result<()> {
    let mut input = std::io::stdin().lock();
    let (mut text, mut block) = (Vec::new(), [0; 65536]);
    loop {
        let mut ends = [PollFd::new(input.as_fd(), PollFlags::POLLIN)];
        let is_ready = poll(&mut ends, PollTimeout::from(TURN_MS)).unwrap_or(0) > 0;
        if !turn(state) {
            return Ok(());
        }
        if !is_ready {
            continue;
        }
        let count = input.read(&mut block)?;
        if count == 0 {
            return Ok(());
        }
        text.extend_from_slice(&block[..count]);
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let answer = obey(state, serde_json::from_slice(&line)?);
            say(&answer.map_err(|why| format!("{why:#}")))?;
        }
    }
}

pub fn say(answer: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(answer)? + "\n";
    let mut output = std::io::stdout().lock();
    output.write_all(line.as_bytes())?;
    Ok(output.flush()?)
}

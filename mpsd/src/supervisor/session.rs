//! One session with a control daemon: the vendor's own program, with commands on its input.

use mpsd_core::environment::{LOG_DIRECTORY, PIPE_DIRECTORY, VISIBLE_DEVICES};
use mpsd_core::record::Daemon;
use mpsd_sys::Exit;
use mpsd_sys::deadline::Deadline;
use mpsd_sys::spawn::{KillReason, RunError, Spawn};
use std::path::Path;
use std::time::Duration;

const LONGEST_ANSWER: usize = 256 * 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub exit: Exit,
    pub text: String,
    pub trouble: String,
}

impl Answer {
    pub fn numbers(&self) -> Vec<i32> {
        numbers(&self.text)
    }

    pub fn nobody_listens(&self) -> bool {
        let says = |text: &str| text.contains("Cannot find MPS control daemon");
        self.exit == Exit::Code(1) && (says(&self.text) || says(&self.trouble))
    }
}

pub fn numbers(text: &str) -> Vec<i32> {
    let pids = text.lines().filter_map(|line| line.trim().parse().ok());
    pids.filter(|pid| *pid > 1).collect()
}

/// The vendor's program for `daemon`. It looks for the server's program beside itself.
pub fn program(control: &Path, daemon: &Daemon) -> Spawn {
    let beside = control.parent().unwrap_or(Path::new("/usr/bin")).display();
    let gpus: Vec<&str> = daemon.gpus.iter().map(mpsd_core::GpuUuid::as_str).collect();
    let mut program = Spawn::new(control);
    program.env = vec![
        ("PATH".into(), format!("{beside}:/usr/bin:/bin").into()),
        (PIPE_DIRECTORY.into(), daemon.pipe.clone().into()),
        (LOG_DIRECTORY.into(), daemon.log.clone().into()),
        (VISIBLE_DEVICES.into(), gpus.join(",").into()),
        // From r615 on there is a second protocol; this program speaks the text protocol.
        ("CUDA_MPS_PROTOCOL_VERSION".into(), "2".into()),
    ];
    program
}

/// A program that does not end within `limit` is killed: the daemon or its server hangs.
pub fn say(
    control: &Path,
    daemon: &Daemon,
    commands: &str,
    limit: Duration,
) -> Result<Answer, String> {
    let first = commands.lines().next().unwrap_or("");
    if limit.is_zero() {
        return Err(format!("there was no time left to ask '{first}'"));
    }
    let mut program = program(control, daemon);
    program
        .input(commands.as_bytes())
        .map_err(|e| e.to_string())?;
    let ended = program.run(Deadline::after(limit), LONGEST_ANSWER);
    let ended = ended.map_err(|error| match error {
        RunError::Start(error) => error.to_string(),
        RunError::Killed { why, .. } => match why {
            KillReason::TooMuch(most) => {
                format!("no end of the answer to '{first}': more than {most} bytes")
            }
            KillReason::Late { waited, .. } => format!(
                "no answer to '{first}' within {} ms: the control daemon or its server hangs",
                waited.as_millis()
            ),
            _ => format!("no answer to '{first}': the vendor's program {why}"),
        },
    })?;
    Ok(Answer {
        exit: ended.exit,
        text: String::from_utf8_lossy(&ended.out).into_owned(),
        trouble: String::from_utf8_lossy(&ended.err).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_not_said_to_hang_if_it_was_not_waited_for() {
        let hangs = |limit| {
            let dir = tempfile::tempdir().unwrap();
            let program = dir.path().join("control");
            // A fork of another test would keep a file that we wrote open, and it could not be run.
            let write = "printf '#!/bin/sh\nexec sleep 60\n' >\"$0\" && chmod 755 \"$0\"";
            let mut shell = std::process::Command::new("/bin/sh");
            let written = shell.args(["-c", write]).arg(&program).status();
            assert!(written.unwrap().success());
            say(&program, &Daemon::default(), "get_server_list\n", limit).unwrap_err()
        };
        let line = "there was no time left to ask 'get_server_list'";
        assert_eq!(hangs(Duration::ZERO), line);
        let told = hangs(Duration::from_millis(300));
        let (_, rest) = told.split_once("within ").expect(&told);
        let (ms, _) = rest.split_once(" ms: ").expect(&told);
        let ms: u64 = ms.parse().unwrap();
        assert!((200..5_000).contains(&ms), "{told}");
    }
}

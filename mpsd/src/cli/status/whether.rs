//! Whether the calling task is under its job's MPS, and why (not).

use super::view::{Subject, View};
use mpsd_core::environment::PIPE_DIRECTORY;
use mpsd_core::record::RecordState;
use mpsd_core::text::one_line;
use serde::Serialize;
use std::io::{Error, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Attached {
    /// A CUDA program started here is a client of the job's MPS.
    Yes,
    /// It is not.
    No,
    /// That cannot be told now.
    Unknown,
}

/// The verdict, and what it rests on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Whether {
    /// The verdict.
    pub attached: Attached,
    /// One line.
    pub because: String,
}

impl Whether {
    /// It is not, because of this.
    pub fn no(because: impl Into<String>) -> Self {
        let (attached, because) = (Attached::No, because.into());
        Self { attached, because }
    }

    /// The exit code of `mpsctl status`: 0 under MPS, 1 not, 2 not known.
    pub fn code(&self) -> u8 {
        match self.attached {
            Attached::Yes => 0,
            Attached::No => 1,
            Attached::Unknown => 2,
        }
    }
}

/// Of a process with this value of `CUDA_MPS_PIPE_DIRECTORY`, in the job `subject`, of which `view` was seen.
pub fn whether(subject: &Subject, view: &View, pipe: Option<&str>) -> Whether {
    let job = &subject.job;
    let reason = subject.reason.as_deref().unwrap_or("no reason is recorded");
    match subject.state {
        RecordState::Ready => {}
        RecordState::Starting => return Whether::no(format!("the MPS of job {job} is still being started")),
        RecordState::Refused => return Whether::no(format!("the MPS of job {job} was refused: {reason}")),
        RecordState::Failed => return Whether::no(format!("the MPS of job {job} did not start: {reason}")),
    }
    let how = "attach with 'mpsctl exec -- COMMAND' or eval \"$(mpsctl env)\"";
    let Some(pipe) = pipe else {
        return Whether::no(format!("{PIPE_DIRECTORY} is not set here: {how}"));
    };
    let own: Vec<&Path> = subject
        .daemons
        .iter()
        .map(|daemon| daemon.pipe.as_path())
        .collect();
    let place = match place(&own, Path::new(pipe)) {
        Ok(Some(place)) => place,
        Ok(None) => {
            let pipe = one_line(pipe, 120);
            return Whether::no(format!(
                "{PIPE_DIRECTORY} is '{pipe}', which is no daemon's of job {job}: {how}"
            ));
        }
        Err(why) => {
            return Whether {
                attached: Attached::Unknown,
                because: one_line(&format!("{PIPE_DIRECTORY} is '{pipe}': {why}"), 300),
            };
        }
    };
    let daemon = view.daemons.get(place);
    match daemon.and_then(|daemon| daemon.silent.clone()) {
        None => Whether {
            attached: Attached::Yes,
            because: format!("{PIPE_DIRECTORY} is that of job {job}, and its control daemon answers"),
        },
        Some(_) if daemon.is_some_and(|daemon| daemon.ended) => Whether::no(format!(
            "the control daemon of job {job} has ended: a client that starts now runs outside MPS, or not at all"
        )),
        Some(because) => Whether {
            attached: Attached::Unknown,
            because,
        },
    }
}

/// Which of the directories `own` this is, by its name or, through a link or a bind mount, by itself.
///
/// # Errors
/// One line: that cannot be looked at.
fn place(own: &[&Path], pipe: &Path) -> Result<Option<usize>, String> {
    if let Some(place) = own.iter().position(|own| *own == pipe) {
        return Ok(Some(place));
    }
    let look = |path: &Path| {
        let about = path.metadata();
        about.map(|about| (about.dev(), about.ino()))
    };
    let unseen = |path: &Path, why: Error| format!("'{}' cannot be looked at: {why}", path.display());
    let here = match look(pipe) {
        Ok(here) => here,
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(unseen(pipe, why)),
    };
    let mut hidden = None;
    for (place, own) in own.iter().enumerate() {
        match look(own) {
            Ok(own) if own == here => return Ok(Some(place)),
            Ok(_) => {}
            Err(why) => hidden = Some(unseen(own, why)),
        }
    }
    hidden.map_or(Ok(None), Err)
}

#[cfg(test)]
mod tests {
    //! Each reason, and its exit code.

    use super::*;
    use crate::cli::status::view::{Learnt, view};
    use crate::daemon::inquiry::{Said, Silence};
    use mpsd_core::JobId;
    use mpsd_core::record::Daemon;

    fn subject(state: RecordState) -> Subject {
        Subject {
            job: JobId::parse("7").unwrap(),
            uid: 1000,
            user: None,
            began: None,
            state,
            left: false,
            reason: Some("a reason".to_owned()),
            gpus: Vec::new(),
            daemons: vec![Daemon {
                gpus: Vec::new(),
                pipe: "/p".into(),
                log: "/l".into(),
                threads: None,
                memory: Vec::new(),
                priority: None,
                partitions: Vec::new(),
            }],
        }
    }

    fn said(state: RecordState, said: Result<Said, Silence>, pipe: Option<&str>) -> (u8, String) {
        let subject = subject(state);
        let learnt = Learnt {
            said: vec![said],
            ..Learnt::default()
        };
        let found = whether(&subject, &view(&subject, &learnt), pipe);
        (found.code(), found.because)
    }

    #[test]
    fn each_state_of_a_task_has_its_reason_and_code() {
        let hangs = Silence::NoAnswer("no answer within 2000 ms".to_owned());
        for (state, daemon, pipe, code, words) in [
            (RecordState::Ready, Ok(Said::default()), Some("/p"), 0, "answers"),
            (
                RecordState::Ready,
                Ok(Said::default()),
                None,
                1,
                "is not set here",
            ),
            (
                RecordState::Ready,
                Ok(Said::default()),
                Some("/q\u{1b}"),
                1,
                "'/q?'",
            ),
            (
                RecordState::Ready,
                Err(Silence::Ended),
                Some("/p"),
                1,
                "outside MPS",
            ),
            (RecordState::Ready, Err(hangs), Some("/p"), 2, "no answer within"),
            (
                RecordState::Starting,
                Ok(Said::default()),
                Some("/p"),
                1,
                "being started",
            ),
            (
                RecordState::Refused,
                Ok(Said::default()),
                None,
                1,
                "refused: a reason",
            ),
            (
                RecordState::Failed,
                Ok(Said::default()),
                None,
                1,
                "did not start: a reason",
            ),
        ] {
            let (is, because) = said(state, daemon, pipe);
            assert!(
                is == code && because.contains(words),
                "{state:?} {pipe:?}: {is} {because}"
            );
        }
    }

    #[test]
    fn a_link_to_the_jobs_own_directory_is_that_directory() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path();
        let (own, other, link) = (dir.join("own"), dir.join("other"), dir.join("link"));
        for dir in [&own, &other] {
            std::fs::create_dir_all(dir).unwrap();
        }
        std::os::unix::fs::symlink(&own, &link).unwrap();
        std::fs::write(dir.join("file"), "").unwrap();
        let mut subject = subject(RecordState::Ready);
        subject.daemons[0].pipe.clone_from(&own);
        let learnt = Learnt {
            said: vec![Ok(Said::default())],
            ..Learnt::default()
        };
        let view = view(&subject, &learnt);
        let code = |subject: &Subject, pipe: &Path| whether(subject, &view, pipe.to_str()).code();
        assert_eq!(code(&subject, &link), 0, "a link");
        assert_eq!(code(&subject, &other), 1, "another directory");
        assert_eq!(code(&subject, &dir.join("none")), 1, "no directory");
        assert_eq!(
            code(&subject, &dir.join("file/below")),
            2,
            "one that cannot be looked at"
        );
        // As in a container that has it under another name.
        subject.daemons[0].pipe = dir.join("gone");
        assert_eq!(code(&subject, &link), 2, "the job's own cannot be looked at");
    }
}

//! Whether the calling task is attached to its job's MPS, and why (not).

use super::model::{DaemonStatus, JobStatus};
use batch::Lookup;
use mpsd_core::environment::{MEMORY, PIPE_DIRECTORY, THREADS};
use mpsd_core::text::one_line;
use serde::Serialize;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Whether a CUDA program started here is a client of the job's MPS. The order is that of the exit
/// codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
pub enum Attached {
    Yes,
    No,
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, derive_more::Display)]
#[display("under MPS: {attached}, because {because}")]
pub struct Verdict {
    pub attached: Attached,
    pub because: String,
}

impl Verdict {
    fn new(attached: Attached, because: impl Into<String>) -> Self {
        let because = because.into();
        Self { attached, because }
    }

    pub fn no(because: impl Into<String>) -> Self {
        Self::new(Attached::No, because)
    }

    /// The same for a task with these limits of its own, which may be below the daemon's.
    pub fn limited(mut self, env: Lookup<'_>) -> Self {
        let own = |name| env(name).filter(|value| !value.is_empty());
        let threads = own(THREADS).map(|percent| format!("{percent} % of the threads"));
        let memory = own(MEMORY).map(|limit| format!("memory {limit}"));
        let limits: Vec<String> = threads.into_iter().chain(memory).collect();
        if self.attached == Attached::Yes && !limits.is_empty() {
            let limits = one_line(&limits.join(", "), 120);
            self.because = format!("{}; this task has at most {limits}", self.because);
        }
        self
    }

    /// The verdict for a process with this value of `CUDA_MPS_PIPE_DIRECTORY` in the job `status`.
    pub fn of(status: &JobStatus, pipe: Option<&str>) -> Self {
        let job = &status.job;
        if !status.phase.began() {
            return Self::no(format!("job {job}: {}", status.phase_line()));
        }
        let how = "attach with 'mpsctl exec -- COMMAND' or eval \"$(mpsctl env)\"";
        let Some(pipe) = pipe else {
            return Self::no(format!("{PIPE_DIRECTORY} is not set here: {how}"));
        };
        let daemon = match behind(Path::new(pipe), &status.daemons) {
            Ok(Some(daemon)) => daemon,
            Ok(None) => {
                let pipe = one_line(pipe, 120);
                let other = format!("'{pipe}', which is no daemon's of job {job}");
                return Self::no(format!("{PIPE_DIRECTORY} is {other}: {how}"));
            }
            Err(why) => {
                let because = one_line(&format!("{PIPE_DIRECTORY} is '{pipe}': {why}"), 300);
                return Self::new(Attached::Unknown, because);
            }
        };
        match &daemon.silent {
            None => Self::new(
                Attached::Yes,
                format!("{PIPE_DIRECTORY} is that of job {job}, and its control daemon answers"),
            ),
            Some(_) if daemon.ended => Self::no(format!(
                "the control daemon of job {job} has ended: a client that starts now runs outside MPS, or not at all"
            )),
            Some(why) if daemon.out_of_reach => Self::no(format!(
                "the control daemon of job {job} is out of reach: {why}"
            )),
            Some(because) => Self::new(Attached::Unknown, because),
        }
    }
}

/// The daemon of the directory `pipe`: by name, or by inode if a link or a bind mount leads there.
fn behind<'a>(pipe: &Path, own: &'a [DaemonStatus]) -> Result<Option<&'a DaemonStatus>, String> {
    if let Some(daemon) = own.iter().find(|daemon| daemon.pipe == pipe) {
        return Ok(Some(daemon));
    }
    let inode = |path: &Path| match path.metadata() {
        Ok(about) => Ok(Some((about.dev(), about.ino()))),
        Err(why) if why.kind() == ErrorKind::NotFound && path == pipe => Ok(None),
        Err(why) => Err(format!("'{}' cannot be read: {why}", path.display())),
    };
    let Some(here) = inode(pipe)? else {
        return Ok(None);
    };
    let inodes: Vec<_> = own.iter().map(|daemon| inode(&daemon.pipe)).collect();
    match inodes.iter().position(|inode| *inode == Ok(Some(here))) {
        Some(place) => Ok(Some(&own[place])),
        None => inodes
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map(|_| None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::NvmlLists;
    use super::super::model::tests::status;
    use super::*;
    use mpsd::supervisor::queries::{AnswerError, DaemonAnswer};
    use mpsd_core::record::RecordState;

    #[test]
    fn each_state_of_a_task_has_its_reason_and_code() {
        let hangs = || Err(AnswerError::Failed("no answer within 2000 ms".to_owned()));
        let answers = || Ok(DaemonAnswer::default());
        use AnswerError::{Ended, Hidden, Replaced};
        use RecordState::{Failed, Ready, Refused, Starting};
        let replaced = "process 7, which mpsd did not start";
        let hidden = "its sockets were removed";
        for (state, answer, pipe, code, words) in [
            (Ready, answers(), Some("/p"), 0, "answers"),
            (Ready, answers(), None, 1, "is not set here"),
            (Ready, answers(), Some("/q\u{1b}"), 1, "'/q?'"),
            (Ready, Err(Ended), Some("/p"), 1, "outside MPS"),
            (Ready, Err(Replaced(7)), Some("/p"), 1, replaced),
            (Ready, Err(Hidden), Some("/p"), 1, hidden),
            (Ready, hangs(), Some("/p"), 2, "no answer within"),
            (Starting, answers(), Some("/p"), 1, "being started"),
            (Refused, answers(), None, 1, "refused: a reason"),
            (Failed, answers(), None, 1, "did not start: a reason"),
        ] {
            let mut status = status();
            status.phase = state.into();
            status.add_answers(&[answer], &NvmlLists::new(), &[]);
            let found = Verdict::of(&status, pipe);
            let is_so = found.attached as u8 == code && found.because.contains(words);
            assert!(is_so, "{state:?} {pipe:?}: {found:?}");
        }
    }

    /// A step may lower its own.
    #[test]
    fn an_attached_tasks_own_limits_are_told() {
        let mut status = status();
        status.add_answers(&[Ok(DaemonAnswer::default())], &NvmlLists::new(), &[]);
        let env = |name: &str| match name {
            THREADS => Some("20".to_owned()),
            MEMORY => Some("0=512M".to_owned()),
            _ => None,
        };
        let told = |pipe| Verdict::of(&status, pipe).limited(&env).because;
        let own = "; this task has at most 20 % of the threads, memory 0=512M";
        assert!(told(Some("/p")).ends_with(own), "{}", told(Some("/p")));
        assert!(!told(None).contains(own), "it is not attached");
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
        let mut status = status();
        status.daemons[0].pipe.clone_from(&own);
        let code =
            |status: &JobStatus, pipe: &Path| Verdict::of(status, pipe.to_str()).attached as u8;
        assert_eq!(code(&status, &link), 0, "a link");
        assert_eq!(code(&status, &other), 1, "another directory");
        assert_eq!(code(&status, &dir.join("none")), 1, "no directory");
        assert_eq!(code(&status, &dir.join("file/below")), 2, "unreadable");
        // As in a container that mounts it under another name.
        status.daemons[0].pipe = dir.join("gone");
        assert_eq!(code(&status, &link), 2, "the job's own is unreadable");
    }
}

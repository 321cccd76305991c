//! The fuzz targets, run by `fuzz/` (cargo-fuzz) and by the suite: every parser of foreign text
//! must accept any bytes.

use batch::host::{Answer, Host};
use batch::{CallOptions, GpuName, Input, Location, Program};
use mpsd::job::Journal;
use mpsd::supervisor::dialogue::{Event, Proof, check};
use mpsd_core::config::Settings;
use mpsd_core::record::{Daemon, Record};
use mpsd_core::{GpuUuid, JobId, Request};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::time::Duration;

/// Name, which is also its corpus's directory, and what it does with bytes.
type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 7] = [
    ("request", request),
    ("job_id", job_id),
    ("configuration", configuration),
    ("daemon_answers", daemon_answers),
    ("server_log", server_log),
    ("scheduler_input", scheduler_input),
    ("files_of_ours", files_of_ours),
];

/// A message for a user or a log has one line and nothing that a terminal obeys.
fn harmless(message: &str) {
    assert!(!message.chars().any(char::is_control), "{message:?}");
    assert!(message.len() < 2000, "{} bytes", message.len());
}

/// An accepted request must be accepted again as it is printed.
pub fn request(bytes: &[u8]) {
    match Request::from_account(bytes) {
        Err(refusal) => harmless(&refusal.to_string()),
        Ok(None) => {}
        Ok(Some(request)) => {
            let text = request.to_string();
            let again = Request::from_account(&text).expect("its own words");
            assert_eq!(again, Some(request), "{text}");
        }
    }
    let text = String::from_utf8_lossy(bytes);
    if let Err(refusal) = Request::from_resource(&text) {
        harmless(&refusal.to_string());
    }
}

/// A job id: its directory's name is one short safe component.
pub fn job_id(bytes: &[u8]) {
    match JobId::parse(&String::from_utf8_lossy(bytes)) {
        Err(refusal) => harmless(&refusal.to_string()),
        Ok(job) => {
            let name = job.directory_name();
            assert!((1..=40).contains(&name.len()), "{name:?}");
            assert!(!name.starts_with('.'), "{name:?}");
            assert!(
                !name.contains(|c: char| c == '/' || c.is_control()),
                "{name:?}"
            );
        }
    }
}

pub fn configuration(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Err(error) = Settings::parse(&text, "gpu001") {
        harmless(&error.to_string());
    }
}

fn daemon() -> Daemon {
    let gpu = GpuUuid::parse("GPU-200b4359-5562-4e0e-ed46-88b581af6524").expect("uuid");
    Daemon {
        gpus: vec![gpu.clone()],
        pipe: "/p".into(),
        log: "/l".into(),
        threads: Some("25".parse().expect("percent")),
        memory: vec![(gpu, 4096)],
        priority: None,
    }
}

/// Only the right answers pass, whatever text is around them.
pub fn daemon_answers(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    match check(&daemon(), &text) {
        Err(why) => harmless(&why),
        Ok(()) => {
            let said = text.lines().filter(|line| !line.trim().is_empty());
            assert_eq!(said.count(), 4, "{text:?}");
        }
    }
}

/// The vendor's log, which its user may write.
pub fn server_log(bytes: &[u8]) {
    let mut proof = Proof::default();
    for line in String::from_utf8_lossy(bytes).lines() {
        if let Some(Event::Trouble(text)) = Event::parse(line) {
            harmless(&text);
        }
        proof.take(line);
    }
    if let Err(why) = proof.confirms(&daemon()) {
        harmless(&why);
    }
}

#[derive(Debug)]
struct Nothing;

impl Host for Nothing {
    fn read(&self, _: &Path, _: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }
    fn executable(&self, _: &Path) -> bool {
        false
    }
    fn run(&self, _: &Path, _: &[&str], _: &[(&str, &str)], _: Duration) -> Result<Answer, String> {
        Err("there is nothing to run".to_owned())
    }
    fn name(&self) -> String {
        "gpu001".to_owned()
    }
}

/// The bytes are cut at NUL into arguments of all three schedulers, then variables.
pub fn scheduler_input(bytes: &[u8]) {
    let mut parts = bytes.split(|b| *b == 0);
    let kind = parts.next().and_then(|p| p.first().copied()).unwrap_or(0);
    let words = parts.map(|part| OsString::from_vec(part.to_vec()));
    let words: Vec<OsString> = words.take(40).collect();
    let count = [8, 11, 3, 10, 0, 7][usize::from(kind) % 6].min(words.len());
    let (arguments, variables) = words.split_at(count);
    let env = |name: &str| {
        let number = name.bytes().map(usize::from).sum::<usize>();
        let value = variables.get(number.checked_rem(variables.len())?)?;
        value.to_str().map(str::to_owned)
    };
    for program in [Program::Prologue, Program::Epilogue] {
        let named = batch::ALL.map(|system| Some(system.scheduler()));
        for scheduler in named.into_iter().chain([None]) {
            let input = Input {
                program,
                scheduler,
                arguments,
                env: &env,
                given: CallOptions::default(),
                location: Location::default(),
                terminal: false,
            };
            match batch::read(&input, &Nothing) {
                Err(failure) => harmless(&failure.to_string()),
                Ok(submission) => {
                    job_id(submission.job.as_str().as_bytes());
                    if let Err(failure) = batch::devices(&submission, &input, &Nothing) {
                        harmless(&failure.to_string());
                    }
                }
            }
        }
    }
    if let Err(why) = GpuName::parse_list(&String::from_utf8_lossy(bytes)) {
        harmless(&why);
    }
}

/// Journals and records, as another release or a broken disk may leave them.
pub fn files_of_ours(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(journal) = Journal::parse(&text) {
        let again = Journal::parse(&journal.to_text().expect("text")).expect("its own text");
        assert_eq!(again, journal);
        assert!(journal.to_undo().count() <= journal.plan.effects.len());
    }
    let _ = Record::parse(&text);
}

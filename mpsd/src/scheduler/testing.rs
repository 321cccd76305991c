//! A node and a call of ours on paper, for the golden tests.

use super::call::{CallOptions, Input, Program, Submission};
use super::devices::Devices;
use super::host::{Answer, Host};
use super::site::Site;
use super::{devices, read};
use mpsd_core::failure::Failure;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

/// A node made of text: files by path, commands by their whole line.
#[derive(Default)]
pub(super) struct Paper {
    files: BTreeMap<String, String>,
    answers: BTreeMap<String, Answer>,
    pub(super) ran: RefCell<Vec<String>>,
}

impl Paper {
    pub(super) fn file(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.to_owned(), text.to_owned());
        self
    }

    pub(super) fn command(mut self, line: &str, code: i32, text: &str) -> Self {
        let answer = Answer {
            code: Some(code),
            text: text.to_owned(),
        };
        self.answers.insert(line.to_owned(), answer);
        self
    }
}

impl Host for Paper {
    fn read(&self, path: &Path, _most: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(self
            .files
            .get(&path.display().to_string())
            .map(|text| text.clone().into_bytes()))
    }
    fn minor(&self, path: &Path) -> io::Result<u32> {
        let name = path.to_str().unwrap_or_default();
        let digits = name
            .rsplit(|c: char| !c.is_ascii_digit())
            .next()
            .unwrap_or_default();
        digits
            .parse()
            .map_err(|_| io::Error::from(io::ErrorKind::NotFound))
    }
    fn executable(&self, path: &Path) -> bool {
        self.answers
            .keys()
            .any(|line| line.split(' ').next() == path.to_str())
    }
    fn run(
        &self,
        program: &Path,
        arguments: &[&str],
        _: &[(&str, &str)],
        _: Duration,
    ) -> Result<Answer, String> {
        let line = format!("{} {}", program.display(), arguments.join(" "));
        self.ran.borrow_mut().push(line.clone());
        self.answers
            .get(&line)
            .cloned()
            .ok_or(format!("no answer to '{line}'"))
    }
    fn name(&self) -> String {
        "nodeb".to_owned()
    }
}

/// One call of one of our programs.
pub(super) struct Call<'c> {
    program: Program,
    arguments: &'c [&'c str],
    env: &'c [(&'c str, &'c str)],
    pub(super) given: CallOptions,
    pub(super) host: Paper,
}

impl<'c> Call<'c> {
    pub(super) fn new(program: Program, arguments: &'c [&'c str], env: &'c [(&'c str, &'c str)]) -> Self {
        Self {
            program,
            arguments,
            env,
            given: CallOptions::default(),
            host: Paper::default(),
        }
    }

    fn with<T>(&self, look: impl FnOnce(&Input<'_>, &Paper) -> T) -> T {
        let arguments: Vec<OsString> = self.arguments.iter().map(OsString::from).collect();
        let env = |name: &str| {
            self.env
                .iter()
                .find(|(n, _)| *n == name)
                .map(|(_, v)| (*v).to_owned())
        };
        let site = Site {
            home: Some("/var/spool/x".into()),
            exec: Some("/opt/x".into()),
            ..Site::default()
        };
        let given = self.given.clone();
        let input = Input {
            program: self.program,
            scheduler: None,
            arguments: &arguments,
            env: &env,
            given,
            site,
            terminal: false,
        };
        look(&input, &self.host)
    }

    pub(super) fn read(&self) -> Result<Submission, Failure> {
        self.with(|input, host| read(input, host))
    }

    pub(super) fn devices(&self) -> Devices {
        self.with(|input, host| devices(&read(input, host).unwrap(), input, host).unwrap())
    }
}

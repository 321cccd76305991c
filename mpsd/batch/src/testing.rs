//! A node and a call of ours made of text, for the tests.
#![allow(clippy::unwrap_used)]

use super::call::{CallOptions, Input, Location, Program, Submission};
use super::devices::Devices;
use super::host::{Answer, Host};
use super::{devices, read};
use mpsd_core::Gpu;
use mpsd_core::failure::Failure;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

/// GPU `index` of the bus, with the UUID `GPU-0000000INDEX`.
pub fn gpu(index: u32, minor: u32) -> Gpu {
    Gpu {
        name: "NVIDIA H200".to_owned(),
        minor: Some(minor),
        ..mpsd_core::testing::gpu(index, 143_771)
    }
}

/// A node made of text: files by path, commands by their whole line.
#[derive(Default)]
pub struct TextHost {
    files: BTreeMap<String, String>,
    answers: BTreeMap<String, Answer>,
    pub ran: RefCell<Vec<String>>,
    pub shared: bool,
}

impl TextHost {
    pub fn file(mut self, path: &str, text: &str) -> Self {
        self.files.insert(path.to_owned(), text.to_owned());
        self
    }

    pub fn command(mut self, line: &str, code: i32, text: &str) -> Self {
        let (code, text) = (Some(code), text.to_owned());
        self.answers.insert(line.to_owned(), Answer { code, text });
        self
    }
}

impl Host for TextHost {
    fn read(&self, path: &Path, _most: usize) -> io::Result<Option<Vec<u8>>> {
        let text = self.files.get(&path.display().to_string());
        Ok(text.map(|text| text.clone().into_bytes()))
    }
    fn minor(&self, path: &Path) -> io::Result<u32> {
        let name = path.to_str().unwrap_or_default();
        let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        digits.parse().map_err(|_| io::ErrorKind::NotFound.into())
    }
    fn names(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let paths = self.files.keys().map(Path::new);
        let inside = paths.filter(|path| path.parent() == Some(dir));
        let name = |path: &Path| Some(path.file_name()?.to_owned());
        Ok(inside.filter_map(name).collect())
    }
    fn may_be_shared(&self, _: &Path) -> bool {
        self.shared
    }
    fn executable(&self, path: &Path) -> bool {
        let mut lines = self.answers.keys();
        lines.any(|line| line.split(' ').next() == path.to_str())
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
        let answer = self.answers.get(&line).cloned();
        answer.ok_or(format!("no answer to '{line}'"))
    }
    fn name(&self) -> String {
        "nodeb".to_owned()
    }
}

/// One call of one of our programs.
pub struct Call<'c> {
    program: Program,
    arguments: &'c [&'c str],
    env: &'c [(&'c str, &'c str)],
    pub given: CallOptions,
    pub host: TextHost,
}

impl<'c> Call<'c> {
    pub fn new(program: Program, arguments: &'c [&'c str], env: &'c [(&'c str, &'c str)]) -> Self {
        Self {
            program,
            arguments,
            env,
            given: CallOptions::default(),
            host: TextHost::default(),
        }
    }

    fn with<T>(&self, use_of: impl FnOnce(&Input<'_>, &TextHost) -> T) -> T {
        let arguments: Vec<OsString> = self.arguments.iter().map(OsString::from).collect();
        let env = |name: &str| {
            let found = self.env.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let location = Location {
            home: Some("/var/spool/x".into()),
            exec: Some("/opt/x".into()),
            ..Location::default()
        };
        let input = Input {
            program: self.program,
            scheduler: None,
            arguments: &arguments,
            env: &env,
            given: self.given.clone(),
            location,
            terminal: false,
        };
        use_of(&input, &self.host)
    }

    pub fn read(&self) -> Result<Submission, Failure> {
        self.with(|input, host| read(input, host))
    }

    pub fn devices(&self) -> Devices {
        self.with(|input, host| devices(&read(input, host).unwrap(), input, host).unwrap())
    }
}

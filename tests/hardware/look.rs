//! The independent look: what `ps`, `ls` and `nvidia-smi` see, before and after. It uses none of
//! the project's code.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use tests::child;

use crate::result::Section;
use crate::site::{self, Run};
use crate::{Act, mig};

const OURS: [&str; 5] = [
    "nvidia-cuda-mps",
    "mpsd",
    "mps-prologue",
    "mps-epilogue",
    "mps-probe",
];

#[derive(Default)]
struct Look {
    lines: BTreeSet<String>,
    /// Processes that ended and were not collected: PID 1's duty if their parent is gone.
    defunct: Vec<String>,
}

impl Look {
    fn take(run: &Path) -> Result<Self> {
        let mut look = Self::default();
        look.processes()?;
        for directory in ["/dev/shm", "/run", "/tmp"] {
            look.list("-A1", Path::new(directory))?;
        }
        look.list("-A1", Path::new("/run/mpsd"))?;
        look.list("-A1R", run)?;
        look.groups(Path::new("/sys/fs/cgroup"), 4);
        for app in site::smi(&[
            "--query-compute-apps=pid,process_name",
            "--format=csv,noheader",
        ])?
        .lines()
        {
            look.lines.insert(format!("gpu process {app}"));
        }
        for gpu in site::gpus()? {
            let (uuid, mode) = (gpu.uuid, gpu.mode);
            look.lines
                .insert(format!("compute mode of {uuid} is {mode}"));
        }
        for mount in std::fs::read_to_string("/proc/self/mountinfo")?.lines() {
            let at = mount.split(' ').nth(4).unwrap_or(mount);
            look.lines.insert(format!("mount {at}"));
        }
        Ok(look)
    }

    fn processes(&mut self) -> Result<()> {
        let arguments = ["-e", "-o", "pid=,ppid=,user=,stat=,args="];
        let own = std::process::id().to_string();
        for line in run("ps", &arguments)?.lines().map(str::trim) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [pid, _, _, state, program, ..] = words[..] else {
                continue;
            };
            // The harness and the shell that called it have the same words in their paths.
            let named = program.rsplit('/').next().unwrap_or("");
            if pid == own || !OURS.iter().any(|word| named.contains(word)) {
                continue;
            }
            if state.starts_with('Z') {
                self.defunct.push(line.to_owned());
            } else {
                self.lines.insert(format!("process {line}"));
            }
        }
        Ok(())
    }

    fn list(&mut self, how: &str, directory: &Path) -> Result<()> {
        if !directory.exists() {
            return Ok(());
        }
        let at = directory.display().to_string();
        let mut within = at.clone();
        for line in run("ls", &[how, &at])?
            .lines()
            .filter(|line| !line.is_empty())
        {
            match line.strip_suffix(':') {
                Some(deeper) if deeper.starts_with(&at) => within = deeper.to_owned(),
                _ => drop(self.lines.insert(format!("file {within}/{line}"))),
            }
        }
        Ok(())
    }

    fn groups(&mut self, directory: &Path, depth: usize) {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            self.lines
                .insert(format!("cgroup {}", entry.path().display()));
            if depth > 0 {
                self.groups(&entry.path(), depth - 1);
            }
        }
    }

    /// What is here now and was not `before`, and what is gone.
    fn against(&self, before: &Self) -> Vec<String> {
        let new = self.lines.difference(&before.lines);
        let gone = before.lines.difference(&self.lines);
        let new = new.map(|line| format!("new: {line}"));
        new.chain(gone.map(|line| format!("gone: {line}")))
            .collect()
    }
}

const SETTLED: Duration = Duration::from_secs(5);

/// Runs `act`, waits until the machine looks as before, and records the result. What the run
/// directory keeps between jobs by design does not count.
pub fn unchanged(section: &mut Section, all: &Run, act: Act) -> Result<()> {
    let run = &all.place.run;
    let before = Look::take(run)?;
    act(section, all)?;
    let gpus = all.gpus.iter().map(|gpu| gpu.uuid.clone());
    let gpus = gpus.chain(mig::devices(&site::smi(&["-L"])?));
    let allowed: Vec<PathBuf> = gpus.flat_map(|gpu| kept(run, &gpu)).collect();
    // A user's copies of reports are limited, and the oldest are removed.
    let pruned = format!("gone: file {}/", run.join("mpsd/reports").display());
    let keeps = |line: &String| {
        let is = |path: &PathBuf| line.ends_with(&format!(" {}", path.display()));
        line.starts_with(&pruned) || allowed.iter().any(is)
    };
    let (mut left, mut defunct) = (Vec::new(), Vec::new());
    child::until(SETTLED, Duration::from_millis(100), || {
        match Look::take(run) {
            Ok(look) => {
                left = look.against(&before);
                left.retain(|line| !keeps(line));
                defunct = look.defunct;
                left.is_empty()
            }
            Err(e) => {
                left = vec![format!("could not look: {e:#}")];
                false
            }
        }
    })?;
    let seen = if left.is_empty() {
        "nothing left, nothing gone, compute mode as before".into()
    } else {
        left.join("; ")
    };
    section.check(
        "independent look (ps, ls, nvidia-smi)",
        left.is_empty(),
        seen,
    );
    if !defunct.is_empty() {
        section.fact("ended_but_not_collected_by_pid_1", defunct.join("\n"));
    }
    Ok(())
}

/// What the run directory keeps until the next boot: its directories, the GPU's lock file, users'
/// reports.
fn kept(run: &Path, gpu: &str) -> Vec<PathBuf> {
    let own = [
        "mpsd",
        "mpsd/jobs",
        "mpsd/shared",
        "mpsd/gpus",
        "mpsd/ledger",
        "mpsd/.ledger.lock",
        &format!("mpsd/gpus/{gpu}"),
    ]
    .map(|path| run.join(path));
    let mut all = own.to_vec();
    let mut reports = vec![run.join("mpsd/reports")];
    while let Some(path) = reports.pop() {
        let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
        reports.extend(entries.map(|entry| entry.path()));
        all.push(path);
    }
    all
}

fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(site::program(program)?);
    Ok(child::run(command.args(arguments), "", Duration::from_secs(20))?.stdout)
}

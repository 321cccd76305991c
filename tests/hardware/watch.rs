//! Watches a begin or an end from outside: when the processes start and end, when root writes which
//! file, and what NVIDIA's log says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ::tests::child::alive;
use ::tests::double::look::walk;
use ::tests::samples::milliseconds;
use anyhow::{Result, bail};

const EVERY: Duration = Duration::from_millis(1);
/// A process whose command line is still unknown after this is ignored.
const UNNAMED: Duration = Duration::from_millis(100);
const PROGRAMS: [&str; 8] = [
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "mpsd",
    "mps-prologue",
    "mps-epilogue",
    "slurmstepd",
    "cuda-load",
    "srun",
];

#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Milliseconds since the watch began.
    pub at: f64,
    pub who: String,
    pub what: String,
}

impl Mark {
    pub fn new(at: f64, who: &str, what: impl Into<String>) -> Self {
        let (who, what) = (who.to_owned(), what.into());
        Self { at, who, what }
    }
}

pub struct Watch {
    pub began: Instant,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Vec<Mark>>>,
}

impl Watch {
    /// Begins now; `run` is the run directory of mpsd.
    pub fn start(run: &Path) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut watcher = Watcher {
            run: run.to_owned(),
            began: Instant::now(),
            marks: Vec::new(),
            processes: BTreeMap::new(),
            files: BTreeMap::new(),
            logs: BTreeMap::new(),
        };
        // What is there already: its end is a mark, its start is not.
        watcher.look()?;
        watcher.marks.clear();
        watcher.began = Instant::now();
        let (began, stopped) = (watcher.began, Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                watcher.look()?;
                thread::sleep(EVERY);
            }
            watcher.look()?;
            Ok(watcher.marks)
        });
        Ok(Self {
            began,
            stop,
            thread,
        })
    }

    pub fn stop(self) -> Result<Vec<Mark>> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(marks) => marks,
            Err(_) => bail!("the watch panicked"),
        }
    }
}

struct Watcher {
    run: PathBuf,
    began: Instant,
    marks: Vec<Mark>,
    /// When each was first seen, and its name from when it has one until it ends.
    processes: BTreeMap<u32, (Instant, Option<String>)>,
    /// With their inodes: a file that is written anew has another.
    files: BTreeMap<PathBuf, u64>,
    logs: BTreeMap<PathBuf, (File, String)>,
}

impl Watcher {
    fn mark(&mut self, who: &str, what: String) {
        let at = milliseconds(self.began.elapsed());
        self.marks.push(Mark::new(at, who, what));
    }

    fn look(&mut self) -> Result<()> {
        self.look_at_processes();
        self.look_at_files();
        self.read_logs()
    }

    fn look_at_processes(&mut self) {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let pids: BTreeSet<u32> = pids.collect();
        let mut changes = Vec::new();
        for pid in &pids {
            let known = self.processes.entry(*pid).or_insert((Instant::now(), None));
            if known.1.is_none() && known.0.elapsed() <= UNNAMED {
                known.1 = name(*pid);
                changes.extend(
                    known
                        .1
                        .clone()
                        .map(|name| (name, format!("starts ({pid})"))),
                );
            }
        }
        for (pid, (_, name)) in &mut self.processes {
            if name.is_some() && !alive(*pid) {
                changes.extend(name.take().map(|name| (name, format!("has ended ({pid})"))));
            }
        }
        self.processes.retain(|pid, _| pids.contains(pid));
        for (name, what) in changes {
            self.mark(&name, what);
        }
    }

    fn look_at_files(&mut self) {
        let mut files = BTreeMap::new();
        walk(&self.run, &mut |path, about| {
            files.insert(path.to_owned(), about.ino());
            !path.ends_with("reports")
        });
        let before = std::mem::replace(&mut self.files, files.clone());
        let mut changes = Vec::new();
        for (path, inode) in &files {
            match before.get(path) {
                None => changes.push((path, "is made")),
                Some(before) if before != inode => changes.push((path, "is written")),
                Some(_) => {}
            }
        }
        let gone = before.keys().filter(|path| !files.contains_key(*path));
        changes.extend(gone.map(|path| (path, "is removed")));
        for (path, how) in changes {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.ends_with(".log") && !self.logs.contains_key(path) {
                let log = File::open(path).map(|file| (path.clone(), (file, String::new())));
                self.logs.extend(log);
            }
            if !name.starts_with('.') {
                self.mark("files", format!("'{name}' {how}"));
            }
        }
    }

    fn read_logs(&mut self) -> Result<()> {
        let mut lines = Vec::new();
        for (file, rest) in self.logs.values_mut() {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            *rest += &String::from_utf8_lossy(&bytes);
            while let Some(end) = rest.find('\n') {
                let line: String = rest.drain(..=end).collect();
                // Without its stamp, which has milliseconds of the wall clock.
                let said = line.split_once("] ").map_or(&*line, |(_, said)| said);
                lines.push(said.trim().to_owned());
            }
        }
        for line in lines {
            self.mark("NVIDIA's log", line);
        }
        Ok(())
    }
}

/// A process of one of [`PROGRAMS`]: its name and its first argument.
fn name(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut words = line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next()?;
    // slurmstepd names its step after a colon.
    let program = program.split(':').next()?.rsplit('/').next()?.to_owned();
    PROGRAMS.contains(&&*program).then_some(())?;
    let option = words.next().filter(|word| word.starts_with('-'));
    Some(option.map_or_else(|| program.clone(), |option| format!("{program} {option}")))
}

//! Watches a begin or an end from outside: when the processes start and end, when root writes which
//! file, and what NVIDIA's log says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ::tests::child::alive;
use ::tests::samples::milliseconds;
use anyhow::{Result, bail};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};

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
            began: Instant::now(),
            marks: Vec::new(),
            processes: BTreeMap::new(),
            files: Inotify::init(InitFlags::IN_NONBLOCK)?,
            directories: Vec::new(),
            logs: BTreeMap::new(),
        };
        // What is there already: its end is a mark, its start is not.
        watcher.look_at_processes();
        watcher.watch(run);
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
    began: Instant,
    marks: Vec<Mark>,
    /// When each was first seen, and its name from when it has one until it ends.
    processes: BTreeMap<u32, (Instant, Option<String>)>,
    files: Inotify,
    directories: Vec<(WatchDescriptor, PathBuf)>,
    logs: BTreeMap<PathBuf, (File, String)>,
}

impl Watcher {
    fn mark(&mut self, who: &str, what: String) {
        let at = milliseconds(self.began.elapsed());
        self.marks.push(Mark::new(at, who, what));
    }

    fn look(&mut self) -> Result<()> {
        self.look_at_processes();
        self.read_files();
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

    /// Watches a directory and its directories of jobs.
    fn watch(&mut self, directory: &Path) {
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ONLYDIR;
        let Ok(watched) = self.files.add_watch(directory, flags) else {
            return;
        };
        self.directories.push((watched, directory.to_owned()));
        // What existed before the watch.
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            self.made(&entry.path(), "is there");
        }
    }

    fn made(&mut self, path: &Path, how: &str) {
        let name = path.file_name().unwrap_or_default();
        let name = name.to_string_lossy().into_owned();
        if name.ends_with(".log") && !self.logs.contains_key(path) {
            let file = File::open(path).ok();
            self.logs
                .extend(file.map(|file| (path.to_owned(), (file, String::new()))));
        }
        if !name.starts_with('.') {
            self.mark("files", format!("'{name}' {how}"));
        }
        if path.is_dir() && name != "reports" {
            self.watch(path);
        }
    }

    fn read_files(&mut self) {
        for event in self.files.read_events().unwrap_or_default() {
            let mut watched = self.directories.iter();
            let directory = watched.find(|(watched, _)| *watched == event.wd);
            let (Some((_, directory)), Some(name)) = (directory, &event.name) else {
                continue;
            };
            let path = directory.join(name);
            if event.mask.contains(AddWatchFlags::IN_DELETE) {
                let name = name.to_string_lossy().into_owned();
                if !name.starts_with('.') {
                    self.mark("files", format!("'{name}' is removed"));
                }
            } else if event.mask.contains(AddWatchFlags::IN_MOVED_TO) {
                self.made(&path, "is written");
            } else {
                self.made(&path, "is made");
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

//! A Slurm and a node that remember what was asked of them.

use crate::handle::{Context, Ended, Item, Level, Node, Program, Slurm};
use mpsd_core::config::{Config, Settings};
use mpsd_core::environment::{self, Change};
use mpsd_core::killed::KilledTask;
use mpsd_core::listener;
use mpsd_core::observations::Observations;
use mpsd_core::record::{Daemon, Record, RecordGpu, RecordState};
use mpsd_core::request::Key;
use mpsd_core::{GpuUuid, JobId, JobPaths, Paths};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub type Env = BTreeMap<String, String>;

/// Slurm in one context.
pub struct FakeSlurm {
    pub context: Context,
    pub items: Vec<(Item, u32)>,
    pub job_env: Env,
    pub process_env: Env,
    pub script_env: Env,
    pub command_line: Vec<String>,
    /// srun's option.
    pub task_prolog: Option<String>,
    pub registered: Vec<Key>,
    pub options: Vec<(Key, Option<String>)>,
    pub lines: RefCell<Vec<(Level, String)>>,
}

impl FakeSlurm {
    pub fn new(context: Context) -> Self {
        Self {
            context,
            items: vec![(Item::JobId, 4711), (Item::JobUid, 1000), (Item::JobGid, 100)],
            job_env: Env::new(),
            process_env: Env::from([
                ("SLURMD_NODENAME".into(), "n1".into()),
                ("PATH".into(), "/bin".into()),
            ]),
            script_env: Env::new(),
            command_line: Vec::new(),
            task_prolog: None,
            registered: Vec::new(),
            options: Vec::new(),
            lines: RefCell::default(),
        }
    }

    /// A step or task of step `step`.
    pub fn step(step: u32) -> Self {
        let mut slurm = Self::new(Context::Remote);
        slurm
            .items
            .extend([(Item::StepId, step), (Item::LocalTasks, 4), (Item::TaskId, 1)]);
        slurm.job_env.insert("SLURM_STEP_GPUS".into(), "2".into());
        slurm.job_env.insert("CUDA_VISIBLE_DEVICES".into(), "0".into());
        slurm
    }

    pub fn with_option(mut self, name: &str, value: Option<&str>) -> Self {
        self.options.push((key(name), value.map(str::to_owned)));
        self
    }

    pub fn with_process_env(mut self, name: &str, value: &str) -> Self {
        self.process_env.insert(name.into(), value.into());
        self
    }

    pub fn with_job_env(mut self, name: &str, value: &str) -> Self {
        self.job_env.insert(name.into(), value.into());
        self
    }

    /// The lines at level error.
    pub fn errors(&self) -> Vec<String> {
        let lines = self.lines.borrow();
        lines
            .iter()
            .filter(|(level, _)| *level == Level::Error)
            .map(|(_, line)| line.clone())
            .collect()
    }

    pub fn is_silent(&self) -> bool {
        self.lines.borrow().is_empty()
    }
}

/// The option of a flag.
pub fn key(flag: &str) -> Key {
    let ours = |key: &Key| key.row().flag() == flag;
    Key::ALL.into_iter().find(ours).expect("a flag of ours")
}

impl Slurm for FakeSlurm {
    fn context(&self) -> Context {
        self.context
    }
    fn item(&self, item: Item) -> Option<u32> {
        self.items
            .iter()
            .find(|(i, _)| *i == item)
            .map(|(_, value)| *value)
    }
    fn job_env(&self, name: &str) -> Option<String> {
        self.job_env.get(name).cloned()
    }
    fn process_env(&self, name: &str) -> Option<String> {
        self.process_env.get(name).cloned()
    }
    fn all_process_env(&self) -> Vec<(String, String)> {
        self.process_env.clone().into_iter().collect()
    }
    fn set_job_env(&mut self, name: &str, value: &str) -> bool {
        self.job_env.insert(name.into(), value.into());
        true
    }
    fn unset_job_env(&mut self, name: &str) -> bool {
        self.job_env.remove(name).is_some()
    }
    fn set_script_env(&mut self, name: &str, value: &str) -> bool {
        // What crashes a real Slurm must not pass here.
        assert!(
            matches!(self.context, Context::Local | Context::Allocator),
            "job_control in {:?}",
            self.context
        );
        self.script_env.insert(name.into(), value.into());
        true
    }
    fn unset_script_env(&mut self, name: &str) {
        // What crashes a real Slurm must not pass here.
        assert!(
            matches!(self.context, Context::Local | Context::Allocator),
            "job_control in {:?}",
            self.context
        );
        self.script_env.remove(name);
    }
    fn command_line(&self) -> Vec<String> {
        self.command_line.clone()
    }
    fn set_process_env(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => self.process_env.insert(name.into(), value.into()),
            None => self.process_env.remove(name),
        };
    }
    fn task_prolog(&self) -> Option<String> {
        self.task_prolog.clone()
    }
    fn set_task_prolog(&mut self, path: &str) {
        assert_eq!(self.context, Context::Local, "srun's option");
        self.task_prolog = Some(path.into());
    }
    fn is_batch(&self) -> bool {
        self.context == Context::Allocator
    }
    fn register(&mut self, key: Key) -> bool {
        self.registered.push(key);
        true
    }
    fn option(&self, key: Key) -> Option<Option<String>> {
        assert_eq!(self.context, Context::JobScript, "getopt answers N/A elsewhere");
        self.options
            .iter()
            .find(|(k, _)| *k == key)
            .map(|(_, argument)| argument.clone())
    }
    fn log(&self, level: Level, line: &str) {
        assert!(!line.contains('\n'), "one line: {line:?}");
        self.lines.borrow_mut().push((level, line.to_owned()));
    }
}

/// A node with records by path, and one answer for every program.
pub struct FakeNode {
    pub settings: Result<Settings, String>,
    pub records: RefCell<BTreeMap<PathBuf, Record>>,
    /// Why a task cannot read them.
    pub unreadable: Option<String>,
    pub answer: Ended,
    /// What `mps-prologue` leaves.
    pub leaves: Option<Record>,
    pub ran: RefCell<Vec<Program>>,
    pub directories: Vec<&'static str>,
    /// Something waits for its second look.
    pub look_again: bool,
    /// What the job's `mpsd` says, from the second look on where it is `late`.
    pub words: RefCell<Vec<&'static str>>,
    pub late: Cell<bool>,
    /// What it has seen.
    pub observations: Option<Observations>,
    /// What was noted of its tasks, and what the out-of-memory killer has done.
    pub killed: RefCell<Vec<KilledTask>>,
    pub oom_kills: u64,
    /// How often somebody looked for a record.
    pub looks: Cell<u32>,
    /// What the job's steps lock.
    pub ranks: PathBuf,
    /// The job's directory is not in the task's container.
    pub hides: bool,
    /// Control daemons that have ended, by their pipe directories.
    pub ended: Vec<&'static str>,
}

impl FakeNode {
    pub fn new() -> Self {
        Self {
            settings: Ok(Settings::usual()),
            records: RefCell::default(),
            unreadable: None,
            answer: ended(0, ""),
            leaves: None,
            ran: RefCell::default(),
            directories: Vec::new(),
            look_again: false,
            words: RefCell::default(),
            late: Cell::default(),
            observations: None,
            killed: RefCell::default(),
            oom_kills: 0,
            looks: Cell::default(),
            ranks: PathBuf::new(),
            hides: false,
            ended: Vec::new(),
        }
    }

    pub fn with_record(self, record: Record) -> Self {
        self.records.borrow_mut().insert(path_of(&record), record);
        self
    }

    pub fn answering(mut self, answer: Ended, leaves: Option<Record>) -> Self {
        self.answer = answer;
        self.leaves = leaves;
        self
    }

    /// A node whose configuration holds `keys` of `[slurm]`.
    pub fn under(keys: &str) -> Self {
        let config = Config::parse(&format!("[slurm]\n{keys}")).unwrap();
        Self {
            settings: Ok(config.for_node("n1", &[]).unwrap()),
            ..Self::new()
        }
    }

    /// The words of the only program that ran.
    pub fn words(&self) -> String {
        let ran = self.ran.borrow();
        assert_eq!(ran.len(), 1, "{ran:?}");
        ran[0].arguments.join(" ")
    }

    pub fn nothing_ran(&self) -> bool {
        self.ran.borrow().is_empty()
    }
}

/// A program that ended with `code` and wrote `line`.
pub fn ended(code: i32, line: &str) -> Ended {
    Ended {
        code: Ok(code),
        lines: line.lines().map(str::to_owned).collect(),
    }
}

pub fn path_of(record: &Record) -> PathBuf {
    Paths::new("/run/mpsd", "/var/lib/mpsd").job(&record.job).record()
}

/// The record of job or step `job` of user 1000 with the node's GPUs 2 and 3.
pub fn record(job: &str, state: RecordState) -> Record {
    let uuid = |n: u32| GpuUuid::parse(&format!("GPU-0000000{n}")).unwrap();
    let mut record = Record::closed(JobId::parse(job).unwrap(), 1000, state, "the reason".into());
    record.request = "MPS=on,MPS_THREADS=50".parse().ok();
    record.named = true;
    record.gpus = [2, 3]
        .map(|n| RecordGpu {
            index: n,
            uuid: uuid(n),
            cpus: None,
        })
        .to_vec();
    let pipe = format!("/run/mpsd/jobs/{job}/pipe").into();
    record.daemons = vec![Daemon {
        gpus: vec![uuid(2), uuid(3)],
        pipe,
        log: format!("/run/mpsd/jobs/{job}/log").into(),
        threads: "50".parse().ok(),
        memory: Vec::new(),
        priority: None,
        partitions: Vec::new(),
    }];
    record
}

impl Node for FakeNode {
    fn settings(&self, _: &Path, name: Option<&str>) -> Result<Settings, String> {
        assert_eq!(name, Some("n1"));
        self.settings.clone()
    }
    fn run(&self, program: &Program) -> Ended {
        self.ran.borrow_mut().push(program.clone());
        if let Some(record) = &self.leaves {
            self.records.borrow_mut().insert(path_of(record), record.clone());
        }
        self.answer.clone()
    }
    fn has_directories(&self, _: &Path, job: &JobId) -> bool {
        self.directories
            .iter()
            .any(|name| JobId::parse(name).unwrap().belongs_to(job))
    }
    fn has_mark(&self, mark: &Path) -> bool {
        self.look_again && mark.ends_with("look-again") || !self.hides && mark.ends_with("pipe")
    }
    fn observations(&self, job: &JobPaths) -> Option<Observations> {
        assert!(self.records.borrow().contains_key(&job.record()), "{job:?}");
        self.observations.clone()
    }
    fn untold(&self, job: &JobPaths) -> Vec<String> {
        assert!(self.records.borrow().contains_key(&job.record()), "{job:?}");
        match self.late.take() {
            true => Vec::new(),
            false => self.words.take().into_iter().map(str::to_owned).collect(),
        }
    }
    fn note_killed(&self, job: &JobPaths, task: &KilledTask) {
        assert!(self.records.borrow().contains_key(&job.record()), "{job:?}");
        self.killed.borrow_mut().push(task.clone());
    }
    fn oom_kills(&self) -> u64 {
        self.oom_kills
    }
    fn expect_listener(&self, changes: &[Change]) -> Result<(), String> {
        let is_ended = |change: &&Change| {
            let pipe = change.value.as_deref().unwrap_or_default();
            change.name == environment::PIPE_DIRECTORY && self.ended.contains(&pipe)
        };
        match changes.iter().find(is_ended) {
            Some(_) => Err(listener::ended("recorded").to_string()),
            None => Ok(()),
        }
    }
    fn record(&self, path: &Path) -> Result<Option<Record>, String> {
        self.looks.set(self.looks.get() + 1);
        Ok(self.records.borrow().get(path).cloned())
    }
    fn leave_record(&self, path: &Path, record: &Record) -> Result<(), String> {
        self.records.borrow_mut().insert(path.to_owned(), record.clone());
        Ok(())
    }
    fn ranks(&self, _: &JobPaths) -> Result<File, String> {
        let opened = File::options().read(true).write(true).open(&self.ranks);
        opened.map_err(|e| e.to_string())
    }
    fn settled_record(&self, path: &Path, _: Duration) -> Result<Option<Record>, String> {
        self.unreadable.clone().map_or_else(|| self.record(path), Err)
    }
}

//! A Slurm and a node that remember what was requested of them, and a process with the plugin in
//! it.

use crate::handle::{Context, Item, Level, Node, Program, ProgramResult, Slurm, Verdict};
use crate::plugin::{self, Callback};
use crate::state::PluginState;
use mpsd_core::config::Settings;
use mpsd_core::environment::{self, Change};
use mpsd_core::killed::KilledTask;
use mpsd_core::listener;
use mpsd_core::observations::Observations;
use mpsd_core::paths::SeenPaths;
use mpsd_core::record::{Daemon, Record, RecordState};
use mpsd_core::request::Key;
use mpsd_core::testing::{record_gpu, uuid};
use mpsd_core::{JobId, JobPaths, Paths};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const BATCH: u32 = 0xffff_fffb;
pub const INTERACTIVE: u32 = 0xffff_fffa;

pub type Env = BTreeMap<String, String>;

#[derive(Default)]
pub struct SlurmDouble {
    pub context: Context,
    pub items: BTreeMap<Item, u32>,
    pub job_env: Env,
    pub process_env: Env,
    pub script_env: Env,
    pub command_line: Vec<String>,
    pub step_command: Vec<String>,
    pub task_prolog: Option<String>,
    /// Slurm's own options that were given; at first a GPU. `None`: Slurm does not say.
    pub given: Option<Env>,
    pub registered: Vec<Key>,
    pub options: Vec<(Key, Option<String>)>,
    pub lines: RefCell<Vec<(Level, String)>>,
}

impl SlurmDouble {
    pub fn new(context: Context) -> Self {
        let slurm = Self {
            context,
            given: Some(Env::from([("gres".into(), "gpu:1".into())])),
            ..Self::default()
        };
        let slurm = slurm.with(Item::JobId, 4711).with(Item::JobUid, 1000);
        let slurm = slurm.with(Item::JobGid, 100).process("PATH", "/bin");
        slurm.process("SLURMD_NODENAME", "n1")
    }

    /// The second of four tasks of step `step`, or its slurmstepd.
    pub fn step(step: u32) -> Self {
        let slurm = Self::new(Context::Remote).with(Item::StepId, step);
        let slurm = slurm.with(Item::LocalTasks, 4).with(Item::TaskId, 1);
        let slurm = slurm.job("SLURM_STEP_GPUS", "2");
        slurm.job("CUDA_VISIBLE_DEVICES", "0")
    }

    pub fn with(mut self, item: Item, value: u32) -> Self {
        self.items.insert(item, value);
        self
    }

    /// Sets a variable of the job, or removes it if `value` is empty.
    pub fn job(mut self, name: &str, value: &str) -> Self {
        self.set_job_env(name, Some(value).filter(|value| !value.is_empty()));
        self
    }

    pub fn process(mut self, name: &str, value: &str) -> Self {
        self.set_process_env(name, Some(value));
        self
    }

    pub fn given(mut self, options: &[(&str, &str)]) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).into(), (*value).into());
        self.given = Some(options.iter().map(owned).collect());
        self
    }

    pub fn asking(mut self, flags: &str) -> Self {
        self.options = parse_flags(flags);
        self
    }

    pub fn at_level(&self, level: Level) -> Vec<String> {
        let lines = self.lines.borrow();
        let lines = lines.iter().filter(|(at, _)| *at == level);
        lines.map(|(_, line)| line.clone()).collect()
    }

    pub fn errors(&self) -> Vec<String> {
        self.at_level(Level::Error)
    }

    pub fn is_silent(&self) -> bool {
        self.lines.borrow().is_empty()
    }
}

/// Flags as on a command line without the dashes: `mps mps-threads=25`.
fn parse_flags(flags: &str) -> Vec<(Key, Option<String>)> {
    let flag = |word: &str| {
        let (name, value) = word.split_once('=').unzip();
        let is_it = |key: &Key| key.row().flag() == name.unwrap_or(word);
        let key = Key::ALL.into_iter().find(is_it);
        (key.expect("a flag of ours"), value.map(str::to_owned))
    };
    flags.split_whitespace().map(flag).collect()
}

pub struct Process<'a> {
    pub slurm: SlurmDouble,
    pub node: &'a NodeDouble,
    pub state: PluginState,
    pub line: Vec<String>,
}

impl<'a> Process<'a> {
    pub fn new(slurm: SlurmDouble, node: &'a NodeDouble, line: &str) -> Self {
        Self {
            slurm,
            node,
            state: PluginState::new(&[]),
            line: line.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// After the options; `flags` as in [`SlurmDouble::asking`]. With it the verdict of the last
    /// callback.
    pub fn begin(
        slurm: SlurmDouble,
        node: &'a NodeDouble,
        line: &str,
        flags: &str,
    ) -> (Self, Verdict) {
        let mut process = Self::new(slurm, node, line);
        let remote = process.slurm.context == Context::Remote;
        assert_eq!(process.call(Callback::Init), Verdict::Continue);
        // Before Slurm 24.05 an option's callback runs twice on a node.
        for (key, value) in parse_flags(flags).into_iter().chain(parse_flags(flags)) {
            let refusal = process.state.take(key, value.as_deref(), remote);
            assert_eq!(refusal, None);
        }
        let verdict = process.call(Callback::InitPostOpt);
        (process, verdict)
    }

    pub fn call(&mut self, callback: Callback) -> Verdict {
        plugin::call(
            callback,
            &mut self.slurm,
            self.node,
            &mut self.state,
            &self.line,
        )
    }
}

impl Slurm for SlurmDouble {
    fn context(&self) -> Context {
        self.context
    }
    fn item(&self, item: Item) -> Option<u32> {
        self.items.get(&item).copied()
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
    fn set_job_env(&mut self, name: &str, value: Option<&str>) -> bool {
        let before = set(&mut self.job_env, name, value);
        value.is_some() || before.is_some()
    }
    fn set_job_control_env(&mut self, name: &str, value: Option<&str>) {
        // What crashes a real Slurm must not pass here.
        let here = matches!(self.context, Context::Local | Context::Allocator);
        assert!(here, "job_control in {:?}", self.context);
        set(&mut self.script_env, name, value);
    }
    fn step_command(&self) -> Vec<String> {
        self.step_command.clone()
    }
    fn command_line(&self) -> Vec<String> {
        self.command_line.clone()
    }
    fn set_process_env(&mut self, name: &str, value: Option<&str>) {
        set(&mut self.process_env, name, value);
    }
    fn submit_option(&self, option: &CStr) -> Option<Option<String>> {
        let given = self.given.as_ref()?;
        Some(given.get(option.to_str().expect("a name")).cloned())
    }
    fn task_prolog(&self) -> Option<String> {
        self.task_prolog.clone()
    }
    fn set_task_prolog(&mut self, path: &str) {
        assert_eq!(self.context, Context::Local, "srun's option");
        self.task_prolog = Some(path.into());
    }
    fn is_batch(&self) -> bool {
        self.context == Context::Allocator && self.command_line != ["salloc"]
    }
    fn register(&mut self, key: Key) {
        self.registered.push(key);
    }
    fn option(&self, key: Key) -> Option<Option<String>> {
        let is_here = self.context == Context::JobScript;
        assert!(is_here, "getopt answers N/A elsewhere");
        let found = self.options.iter().find(|(k, _)| *k == key);
        found.map(|(_, argument)| argument.clone())
    }
    fn log(&self, level: Level, line: &str) {
        assert!(!line.contains('\n'), "one line: {line:?}");
        self.lines.borrow_mut().push((level, line.to_owned()));
    }
}

fn set(env: &mut Env, name: &str, value: Option<&str>) -> Option<String> {
    match value {
        Some(value) => env.insert(name.into(), value.into()),
        None => env.remove(name),
    }
}

/// A node with records by path, and one answer for every program.
#[derive(Default)]
pub struct NodeDouble {
    /// `None`: they are unusable.
    pub settings: Option<Settings>,
    pub records: RefCell<BTreeMap<PathBuf, Record>>,
    /// Why a task cannot read them.
    pub unreadable: Option<String>,
    pub answer: Option<ProgramResult>,
    pub leaves: Option<Record>,
    pub ran: RefCell<Vec<Program>>,
    pub directories: Vec<&'static str>,
    pub look_again: bool,
    /// The last words of the job's `mpsd`; if `late`, only from the second attempt on.
    pub words: RefCell<Vec<&'static str>>,
    pub late: Cell<bool>,
    pub observations: Option<Observations>,
    pub killed: RefCell<Vec<KilledTask>>,
    pub oom_kills: u64,
    pub reads: Cell<u32>,
    pub hides: bool,
    pub texts: BTreeMap<&'static str, &'static str>,
    /// Control daemons that have ended, by their pipe directories.
    pub ended: Vec<&'static str>,
}

impl NodeDouble {
    pub fn new() -> Self {
        Self {
            settings: Some(Settings::usual()),
            ..Self::default()
        }
    }

    pub fn ready() -> Self {
        Self::new().with_record(record("4711", RecordState::Ready))
    }

    pub fn broken() -> Self {
        Self::default()
    }

    pub fn with_record(self, record: Record) -> Self {
        self.records.borrow_mut().insert(path_of(&record), record);
        self
    }

    pub fn answering(mut self, answer: ProgramResult, leaves: Option<Record>) -> Self {
        (self.answer, self.leaves) = (Some(answer), leaves);
        self
    }

    pub fn under(keys: &str) -> Self {
        let mut node = Self::new();
        node.settings = Settings::parse(&format!("[slurm]\n{keys}"), "n1").ok();
        assert!(node.settings.is_some(), "{keys}");
        node
    }

    pub fn words(&self) -> String {
        let ran = self.ran.borrow();
        assert_eq!(ran.len(), 1, "{ran:?}");
        ran[0].arguments.join(" ")
    }

    pub fn nothing_ran(&self) -> bool {
        self.ran.borrow().is_empty()
    }
}

pub fn ended(code: i32, lines: &str) -> ProgramResult {
    ProgramResult {
        code: Ok(code),
        lines: lines.lines().map(str::to_owned).collect(),
    }
}

pub fn path_of(record: &Record) -> PathBuf {
    Paths::new("/run/mpsd", "/none").job(&record.job).record()
}

/// The record of job or step `job` of user 1000 with the node's GPUs 2 and 3.
pub fn record(job: &str, state: RecordState) -> Record {
    let mut record =
        Record::without_mps(JobId::parse(job).unwrap(), 1000, state, "the reason".into());
    record.request = "MPS=on,MPS_THREADS=50".parse().ok();
    record.named = true;
    record.gpus = [2, 3].map(record_gpu).to_vec();
    record.daemons = vec![Daemon {
        gpus: vec![uuid(2), uuid(3)],
        pipe: format!("/run/mpsd/jobs/{job}/pipe").into(),
        log: format!("/run/mpsd/jobs/{job}/log").into(),
        threads: "50".parse().ok(),
        ..Daemon::default()
    }];
    record
}

impl Node for NodeDouble {
    fn settings(&self, _: &Path, name: Option<&str>) -> Result<Settings, String> {
        assert_eq!(name, Some("n1"));
        self.settings.clone().ok_or_else(|| "no such file".into())
    }
    fn run(&self, program: &Program) -> ProgramResult {
        self.ran.borrow_mut().push(program.clone());
        let leaves = self.leaves.iter();
        let leaves = leaves.map(|record| (path_of(record), record.clone()));
        self.records.borrow_mut().extend(leaves);
        self.answer.clone().unwrap_or_else(|| ended(0, ""))
    }
    fn has_directories(&self, _: &Path, job: &JobId) -> bool {
        let belongs = |name: &&str| JobId::parse(name).unwrap().belongs_to(job);
        self.directories.iter().any(belongs)
    }
    fn exists(&self, path: &Path) -> bool {
        self.look_again && path.ends_with("look-again") || !self.hides && path.ends_with("pipe")
    }
    fn observations(&self, seen: &SeenPaths) -> Option<Observations> {
        let record = seen.told.with_file_name("record");
        assert!(self.records.borrow().contains_key(&record), "{seen:?}");
        self.observations.clone()
    }
    fn take_last_words(&self, seen: &SeenPaths) -> Option<Vec<String>> {
        let record = seen.told.with_file_name("record");
        assert!(self.records.borrow().contains_key(&record), "{seen:?}");
        let words = || self.words.take().into_iter().map(str::to_owned).collect();
        (!self.late.take()).then(words)
    }
    fn note_killed(&self, job: &JobPaths, task: &KilledTask) -> Option<()> {
        assert!(self.records.borrow().contains_key(&job.record()), "{job:?}");
        self.killed.borrow_mut().push(task.clone());
        Some(())
    }
    fn oom_kills(&self) -> Option<u64> {
        Some(self.oom_kills)
    }
    fn sluid(&self) -> Option<String> {
        Some("sEKNKTV3WPV500".into())
    }
    fn expect_listener(&self, changes: &[Change]) -> Result<(), String> {
        let is_ended = |change: &Change| {
            let pipe = change.value.as_deref().unwrap_or_default();
            change.name == environment::PIPE_DIRECTORY && self.ended.contains(&pipe)
        };
        let ended = changes.iter().find(|change| is_ended(change));
        ended.map_or(Ok(()), |_| Err(listener::ended("recorded").to_string()))
    }
    fn record(&self, path: &Path) -> Result<Option<Record>, String> {
        self.reads.set(self.reads.get() + 1);
        Ok(self.records.borrow().get(path).cloned())
    }
    fn settled_record(&self, path: &Path, _: Duration) -> Result<Option<Record>, String> {
        let why = self.unreadable.clone();
        why.map_or_else(|| self.record(path), Err)
    }
    fn text_of(&self, path: &Path) -> Option<String> {
        let text = self.texts.get(path.to_str()?)?;
        Some((*text).to_owned())
    }
    fn write_record(&self, path: &Path, record: &Record) -> Result<(), String> {
        let (path, record) = (path.to_owned(), record.clone());
        self.records.borrow_mut().insert(path, record);
        Ok(())
    }
}

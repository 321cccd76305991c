//! `task_init`: the forked child of a task, as the job's user, just before exec.
//!
//! Root's record on this node counts before the flags, which can get lost (`sbatch
//! --export=NONE`). A refusal is reported here, because this line reaches the user's terminal. The
//! child then calls `_exit(1)`: under `optional` Slurm ignores the return value, and a failing init
//! or user_init would end the job COMPLETED without having run (docs/facts/slurm.md#failures).

use crate::handle::{Item, Level, Node, Slurm, Verdict};
use crate::oci;
use crate::state::PluginState;
use crate::step::{self, StepKind};
use crate::unplugged;
use mpsd_core::by_site;
use mpsd_core::config::Settings;
use mpsd_core::environment::{self, Change, Task};
use mpsd_core::ranks::Rank;
use mpsd_core::record::{Record, RecordState};
use mpsd_core::request::Mode;
use mpsd_core::script;
use mpsd_core::step::{of_step, of_tasks};
use mpsd_core::{JobId, Request};
use std::path::Path;

/// How many words of a step's command are looked at.
const WORDS: usize = 8;
const MORE_TASKS: &str = "; ask for more tasks than GPUs (-n), or for --mps";
const NO_GPU: &str =
    "the job has GPUs and this step none, so it runs without MPS; add --gres=gpu:N to srun";

pub fn begin(slurm: &mut dyn Slurm, node: &dyn Node, state: &PluginState) -> Verdict {
    let (Some(kind), Some(job)) = (step::kind(slurm), slurm.job()) else {
        return Verdict::Continue;
    };
    unplugged::restore(slurm);
    let task = NewTask {
        slurm,
        node,
        state,
        kind,
        job: &job,
    };
    match task.changes() {
        Ok(changes) => apply(slurm, &job, &changes),
        Err(refusal) => {
            if matches!(refusal, TaskRefusal::Task(_)) || slurm.is_first_task() {
                let what = match (&refusal, kind) {
                    (TaskRefusal::Step(_), StepKind::Step(number)) => {
                        format!("step {job}.{number}")
                    }
                    _ => format!("job {job}"),
                };
                refuse(slurm, &what, &refusal.into_why());
            }
            Verdict::EndProcess
        }
    }
}

enum TaskRefusal {
    /// Another task of the node may fare better.
    Task(String),
    /// The job's other steps can run. One task reports it for all.
    Step(String),
    /// One task reports it for all.
    Node(String),
}

impl TaskRefusal {
    fn into_why(self) -> String {
        match self {
            Self::Task(why) | Self::Step(why) | Self::Node(why) => why,
        }
    }
}

/// With the node's name: not every release of Slurm puts it before our line.
fn refuse(slurm: &dyn Slurm, what: &str, why: &str) {
    let node = slurm.node_name();
    let line = format!("{what}: not started on {node}: {why}");
    slurm.log(Level::Error, &line);
}

/// The words of a second line in plugstack.conf, behind pyxis' line: pyxis enters a container in
/// its own `task_init`, and Slurm calls plugins in the order of their lines
/// (docs/containers.md#enroot-and-pyxis). Both lines share one state, so this line leaves it alone.
pub fn is_second_line(words: &[String]) -> bool {
    words.iter().any(|word| word == "look=container")
}

/// If the container hides the job's MPS, CUDA would silently run outside it.
pub fn check_container(slurm: &dyn Slurm, node: &dyn Node) -> Verdict {
    let [of_ours, pipe] =
        [environment::JOB, environment::PIPE_DIRECTORY].map(|name| slurm.job_env(name));
    let (Some(job), Some(of_ours), Some(pipe)) = (slurm.job(), of_ours, pipe) else {
        return Verdict::Continue;
    };
    let is_own = environment::is_of_job(&pipe, &of_ours);
    if is_own && node.exists(Path::new(&pipe)) {
        return Verdict::Continue;
    }
    // The tasks of a node share one container.
    if slurm.is_first_task() {
        let why = match is_own {
            true => format!(
                "its container does not show '{pipe}', where its MPS is, and it would run outside of that; allowed: a container \
                 that has it, by enroot's hook 50-mpsd.sh (the administrator's) or as docs/containers.md says"
            ),
            false => format!(
                "its container has set {} to '{pipe}', which is not the job's, and it would run outside its MPS; allowed: an image \
                 and a CDI file without that variable",
                environment::PIPE_DIRECTORY
            ),
        };
        refuse(slurm, &format!("job {job}"), &why);
    }
    Verdict::EndProcess
}

fn apply(slurm: &mut dyn Slurm, job: &JobId, changes: &[Change]) -> Verdict {
    for Change { name, value } in changes {
        // Slurm also refuses to remove a variable that is not there.
        let is_absent = |slurm: &dyn Slurm| value.is_none() && slurm.job_env(name).is_none();
        if !slurm.set_job_env(name, value.as_deref()) && !is_absent(slurm) {
            refuse(slurm, &format!("job {job}"), &format!("cannot set {name}"));
            return Verdict::EndProcess;
        }
    }
    Verdict::Continue
}

struct NewTask<'a> {
    slurm: &'a dyn Slurm,
    node: &'a dyn Node,
    state: &'a PluginState,
    kind: StepKind,
    job: &'a JobId,
}

impl NewTask<'_> {
    /// srun passes the last component's flags to the steps of all (22.05, seen), so a component's
    /// record decides.
    fn flags_are_own(&self) -> bool {
        !step::is_component(self.slurm)
    }

    fn changes(&self) -> Result<Vec<Change>, TaskRefusal> {
        let state = self.state;
        let settings = match (&state.line, &state.step.settings) {
            (Ok(_), Some(Ok(settings))) => settings,
            // A plugin in trouble stops only users who asked for MPS.
            (Err(why), _) | (_, Some(Err(why))) if state.asks() => {
                return Err(TaskRefusal::Node(why.clone()));
            }
            _ => return Ok(Vec::new()),
        };
        let asks = self.flags_are_own() && state.asks();
        // A task may fare worse than the others: no descriptor left, no memory.
        let record = self.record(settings).map_err(TaskRefusal::Task)?;
        match record {
            Some(record) if self.flags_are_own() && state.opts_out() => self.opt_out(&record),
            Some(record) if record.state == RecordState::Unneeded => {
                if self.flags_are_own() && self.is_first_of(&record) {
                    self.say_unneeded(record.reason.as_deref().unwrap_or_default());
                }
                let mut changes = self.without_mps();
                let is_script = step::is_script(self.slurm);
                changes.extend(unplugged::handed_back(self.slurm, is_script));
                match record.warnings.is_empty() || changes.iter().any(unplugged::is_mark) {
                    true => Ok(changes),
                    false => Ok(self.marked(changes)),
                }
            }
            Some(record) if record.by_site.is_some() && !asks => Ok(self.by_site(&record)),
            Some(record) if self.has_no_gpu(&record) => {
                // For `srun --exclusive` Slurm gives the job its node's GPUs, and the step none of
                // them.
                if asks && self.is_first_of(&record) {
                    let node = self.slurm.node_name();
                    self.notice(self.job, &format!("on {node}: {NO_GPU}"));
                }
                Ok(self.marked(self.strip(None)))
            }
            Some(record) if record.state == RecordState::Ready && oci::is_of_task(self.slurm) => {
                self.in_container(&record)
            }
            Some(record) => {
                let request = state.request_on().filter(|_| self.flags_are_own());
                let changes = self.attach(&record, request)?;
                let listens = self.node.expect_listener(&changes);
                listens.map_err(match record.daemons.len() {
                    0 | 1 => TaskRefusal::Node,
                    _ => TaskRefusal::Task,
                })?;
                self.warn(&record);
                Ok(self.marked(changes))
            }
            None if asks => match &state.step.unneeded {
                None => Err(TaskRefusal::Node(self.no_daemon())),
                Some(why) => {
                    if self.slurm.is_first_task() {
                        self.say_unneeded(&Mode::auto_without(why));
                    }
                    Ok(self.without_mps())
                }
            },
            None => Ok(self.without_mps()),
        }
    }

    fn in_container(&self, record: &Record) -> Result<Vec<Change>, TaskRefusal> {
        let of_auto = |request: &Request| request.mode == Mode::Auto;
        let may_do_without = record.request.as_ref().is_some_and(of_auto) && !record.exclusive;
        if !may_do_without {
            return Err(TaskRefusal::Step(oci::REFUSED.to_owned()));
        }
        if self.slurm.is_first_task() {
            self.say_unneeded(oci::WITHOUT);
        }
        Ok(self.marked(self.strip(None)))
    }

    /// Of a job that its site brought in: attaches the task if nobody notices.
    fn by_site(&self, record: &Record) -> Vec<Change> {
        let left_out = self.state.step.left_out.clone();
        let attached = match left_out.or_else(|| self.by_command()) {
            Some(why) => Err(why),
            None => self.attach_unnoticed(record),
        };
        attached.unwrap_or_else(|why| {
            if self.slurm.is_first_task() && self.state.step.left_out.is_none() {
                let line = format!("job {}: {}", self.job, Mode::auto_without(&why));
                self.slurm.log(Level::Info, &line);
            }
            self.without_mps()
        })
    }

    fn attach_unnoticed(&self, record: &Record) -> Result<Vec<Change>, String> {
        if self.has_no_gpu(record) {
            return Err("the step has no GPU".to_owned());
        }
        if oci::is_of_task(self.slurm) {
            return Err("Slurm runs the step in a container that does not show it".to_owned());
        }
        if let Some(why) = by_site::by_numbers(record, environment::counted(record).as_deref()) {
            return Err(why);
        }
        let changes = self.attach(record, None).map_err(TaskRefusal::into_why)?;
        self.node.expect_listener(&changes)?;
        Ok(changes)
    }

    /// A file in the command may handle MPS itself: a wrapper that starts a daemon, for one.
    fn by_command(&self) -> Option<String> {
        let command = self.slurm.step_command().into_iter().take(WORDS);
        let mut texts = command.filter_map(|word| self.node.text_of(Path::new(&word)));
        texts.find_map(|text| by_site::by_words(&text))
    }

    fn without_mps(&self) -> Vec<Change> {
        let changes = self.strip(Some(self.job));
        // Only the component whose flags srun used runs mpsd's task prolog. An allocation that
        // asked hands that prolog to its steps on all components.
        let has_prolog = self.flags_are_own() || unplugged::is_handed_on(self.slurm);
        match self.state.request_on() {
            Some(_) if has_prolog => self.marked(changes),
            _ => changes,
        }
    }

    /// Only a user who asks reads it: if the site said `auto`, all is as without us.
    fn say_unneeded(&self, why: &str) {
        if self.state.asks() {
            let node = self.slurm.node_name();
            // What `Mode::counted` says.
            let is_count =
                !why.contains("allowed:") && (why.ends_with(" GPU") || why.ends_with(" GPUs"));
            let more = if is_count { MORE_TASKS } else { "" };
            self.notice(self.job, &format!("on {node}: {why}{more}"));
        }
    }

    fn lookup(&self, name: &str) -> Option<String> {
        self.slurm.job_env(name)
    }

    fn record(&self, settings: &Settings) -> Result<Option<Record>, String> {
        let of = |job: &JobId| {
            let path = settings.paths.job(job).record();
            self.node.settled_record(&path, settings.deadline)
        };
        let of_job = of(self.job)?;
        let state = of_job.as_ref().map(|record| record.state);
        let needed = state.is_some_and(|state| state != RecordState::Unneeded);
        match self.kind {
            StepKind::Step(number) if !needed => {
                let step = self.job.step(&number.to_string());
                let step = step.map_err(|refusal| refusal.to_string())?;
                Ok(of(&step)?.or(of_job))
            }
            _ => Ok(of_job),
        }
    }

    fn opt_out(&self, record: &Record) -> Result<Vec<Change>, TaskRefusal> {
        if record.exclusive {
            return Err(TaskRefusal::Step(format!(
                "--mps=off: the MPS of job {} holds its GPUs in mode EXCLUSIVE_PROCESS, and no process outside it can use \
                 them; allowed: leave --mps=off out, or submit the job without --mps (with --mps=off if the site gives MPS to all)",
                record.job
            )));
        }
        Ok(self.strip(None))
    }

    /// Removes what other jobs left; with `None` what this one set, too.
    fn strip(&self, job: Option<&JobId>) -> Vec<Change> {
        environment::strip_inherited(job.map(JobId::as_str), &|name| self.lookup(name))
    }

    fn marked(&self, mut changes: Vec<Change>) -> Vec<Change> {
        changes.extend((!step::is_script(self.slurm)).then(|| unplugged::mark(self.slurm)));
        changes
    }

    /// A step without GPUs (`--gres=none`) in a job whose GPUs Slurm named gets no MPS of theirs.
    /// Slurm sets neither of the two variables below for it, and removes the script's (22.05).
    fn has_no_gpu(&self, record: &Record) -> bool {
        let is_empty = |name: &str| self.lookup(name).is_none_or(|value| value.is_empty());
        // The step has GPUs that Slurm does not name: `--gpu-bind=none`, or
        // `--gpus-per-task=TYPE:N`, for which it still counts them. srun passes either word to the
        // tasks (22.05, seen; docs/facts/slurm.md#gpus-of-a-job).
        let is_unnamed = || {
            let bind = self.lookup("SLURMD_TRES_BIND").unwrap_or_default();
            bind.contains("gpu:none")
                || bind.contains("gpu:per_task:") && !is_empty("SLURM_GPUS_ON_NODE")
        };
        let is_named_job =
            record.state == RecordState::Ready && record.named && self.kind != StepKind::Job;
        is_named_job
            && is_empty("SLURM_STEP_GPUS")
            && is_empty(environment::VISIBLE_DEVICES)
            && !is_unnamed()
    }

    fn notice(&self, job: &JobId, text: &str) {
        self.slurm.log(Level::Notice, &format!("job {job}: {text}"));
    }

    fn no_daemon(&self) -> String {
        self.state.step.failure.clone().unwrap_or_else(|| {
            let node = self.slurm.node_name();
            format!(
                "--mps was asked for, and slurmd of {node} has run no prologue of mpsd; tell the administrator: 'mpsctl slurm \
                 check' on {node} says what is in the way (a slurmd that began before the plugin was enabled, for one)"
            )
        })
    }

    /// The first task of the script, the first step, or a step's own MPS reports for its node.
    fn is_first_of(&self, record: &Record) -> bool {
        let is_first = match self.kind {
            StepKind::Job => true,
            StepKind::Step(number) => {
                *self.job != record.job || number == 0 && !step::is_of_script(self.slurm)
            }
        };
        is_first && self.slurm.is_first_task()
    }

    fn warn(&self, record: &Record) {
        if self.kind == StepKind::Job && step::is_script(self.slurm) && self.state.asks() {
            let script = step::script(self.slurm, self.node);
            for line in script::advice(&script.unwrap_or_default(), record) {
                self.notice(&record.job, &format!("warning: {line}"));
            }
        }
        if self.is_first_of(record) {
            for warning in &record.warnings {
                self.notice(&record.job, warning);
            }
        }
    }

    fn attach(
        &self,
        record: &Record,
        request: Option<&Request>,
    ) -> Result<Vec<Change>, TaskRefusal> {
        let (slurm, job) = (self.slurm, &record.job);
        match record.state {
            RecordState::Ready | RecordState::Unneeded => {}
            RecordState::Refused | RecordState::Failed => {
                let reason = record.reason.as_deref();
                let reason = reason.unwrap_or("no reason is recorded");
                return Err(TaskRefusal::Node(reason.to_owned()));
            }
            RecordState::Starting => {
                return Err(TaskRefusal::Task(format!(
                    "its MPS was still being started when the wait for it ended; the node's log has what mps-prologue says of job {job}"
                )));
            }
        }
        let uid = slurm.item(Item::JobUid);
        if uid.is_some_and(|uid| uid != record.uid) {
            let why = format!(
                "what is left of another user's job {job} stands in its place on this node"
            );
            return Err(TaskRefusal::Node(why));
        }
        let own = match request {
            Some(request) => {
                // The step's user asks, maybe in a job that its site brought in.
                let mut asked = record.clone();
                asked.by_site = None;
                of_step(&asked, request)
                    .map_err(|refusal| TaskRefusal::Step(refusal.to_string()))?
            }
            // No readable flags of its own: what root recorded counts.
            None => record.clone(),
        };
        let (tasks, rank) = (slurm.item(Item::LocalTasks), slurm.item(Item::TaskId));
        if own.by_site.is_some() {
            return self.attached(&own);
        }
        if self.state.asks() {
            let room = environment::expect_connections(&own, tasks, &|name| self.lookup(name));
            room.map_err(|refusal| TaskRefusal::Step(refusal.to_string()))?;
        }
        for warning in environment::warnings(&own, tasks, rank, &|name| self.lookup(name)) {
            // Slurm shows the user only errors.
            slurm.log(Level::Error, &warning);
        }
        let is_first = slurm.item(Item::TaskGlobalId) == Some(0);
        if let Some(tasks) = tasks.filter(|_| is_first)
            && let Some(repeats) = environment::repeats(&own, tasks)
        {
            self.notice(job, &repeats);
        }
        match (tasks, self.state.step.gpus) {
            (Some(tasks), Some(gpus)) => self.attached(&of_tasks(&own, tasks, gpus)),
            _ => self.attached(&own),
        }
    }

    fn attached(&self, record: &Record) -> Result<Vec<Change>, TaskRefusal> {
        environment::task_environment(record, &self.task(record))
            .map_err(|refusal| TaskRefusal::Task(refusal.to_string()))
    }

    /// The task's GPUs are those that `CUDA_VISIBLE_DEVICES` names among those that it may open,
    /// because slurmstepd confines each task and rewrites the variable before task_init. Under
    /// ConstrainDevices `SLURM_STEP_GPUS` has the step's first GPUs for every task with GPUs of its
    /// own (common_gres_set_env, 22.05 to 26.05).
    fn task(&self, record: &Record) -> Task {
        let lookup = |name: &str| self.lookup(name);
        let counted = environment::counted(record);
        let is_script = self.kind == StepKind::Job;
        // If the record names no files, the node's numbers count. Slurm's numbers of MIG devices
        // are not NVML's.
        let gpus = match is_script {
            _ if counted.is_some() || record.is_mig() => environment::VISIBLE_DEVICES,
            true => "SLURM_JOB_GPUS",
            false => "SLURM_STEP_GPUS",
        };
        // A script is the only task of its step; the job's ranks come later.
        let of = match is_script {
            true => Some(1),
            false => self.slurm.item(Item::LocalTasks),
        };
        let rank = self.slurm.item(Item::TaskId);
        let rank = rank.map(|local| Rank { local, of });
        Task {
            rank: rank.or_else(|| Some(environment::rank(&lookup)?.0)),
            // A script and a shell see all GPUs.
            bound: is_script || environment::is_bound_by_slurm(record, &lookup),
            cpus: None,
            visible: lookup(gpus),
            counted,
            inherited_job: lookup(environment::JOB),
            without_mps: None,
            jax_devices: lookup(environment::JAX_DEVICES),
        }
    }
}

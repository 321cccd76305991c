//! What must hold of a job with MPS, compared with the same job without, and on a cluster without
//! the plugin.

use std::collections::{BTreeMap, BTreeSet};

use tests::double::visible::multiprocessors;
use tests::slurm::{Bystander, SMS, Witness};

use super::factors::{Choice, is, is_any};
use super::request::{
    LESS, Step, StepRequest, Variant, gpus, is_batch, is_bound_by_us, is_by_partition, is_shared,
    is_unneeded, is_unplugged, steps, tasks,
};
use super::same::{same_run, same_task, same_words, unnoticed};

const MEMORY: u64 = 143_771;

pub const NO_FLAG: &str = "unrecognized option '--mps";

#[derive(Debug)]
pub struct Run {
    pub nodes: [String; 2],
    /// Whether the command or its script has a flag that begins with `--mps`.
    pub has_flags: bool,
    /// The command's exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub said: String,
    pub tasks: Vec<Witness>,
}

#[derive(Debug)]
pub struct Beside {
    /// The compute modes that each GPU had, by node and device file.
    pub modes: BTreeMap<(String, String), BTreeSet<String>>,
    /// The other user's tasks by node; empty if the job has its nodes alone.
    pub bystanders: BTreeMap<String, Bystander>,
}

/// A task's place in its job, the same in all three runs: label, array index, number of the node in
/// the job, rank there.
pub type Place = (String, String, usize, usize);

impl Run {
    fn place(&self, task: &Witness) -> Place {
        let index = task.variable("SLURM_ARRAY_TASK_ID").unwrap_or_default();
        let node = self.nodes.iter().position(|name| *name == task.node);
        let rank = if task.label == "batch" {
            0
        } else {
            task.local_rank()
        };
        (
            task.label.clone(),
            index.to_owned(),
            node.unwrap_or(9),
            rank,
        )
    }

    pub fn by_place(&self) -> BTreeMap<Place, &Witness> {
        self.tasks
            .iter()
            .map(|task| (self.place(task), task))
            .collect()
    }

    fn failed(&self, label: &str) -> bool {
        let code = format!("code {label} ");
        let lines = self.said.lines();
        let mut codes = lines.filter_map(|line| line.strip_prefix(&code)).peekable();
        match codes.peek() {
            Some(_) => codes.all(|code| code != "0"),
            None => self.code != Some(0),
        }
    }

    /// The lines in which the product speaks.
    fn told(&self) -> Vec<&str> {
        let words = [NO_FLAG, "mps: ", "mpsd: "];
        let ours = |line: &&str| words.iter().any(|word| line.contains(word));
        self.said.lines().filter(ours).collect()
    }
}

/// The troubles of a cell, a line each; none if everything held.
pub fn judge(site: &Choice, request: &Choice, runs: &[Run; 3], beside: &Beside) -> Vec<String> {
    let [with, without, plain] = runs;
    let mut troubles = Vec::new();
    baseline(request, plain, &mut troubles);
    same_run("did not ask", without, plain, &mut troubles);
    let expected = plain.by_place();
    let found = with.by_place();
    let exclusive = |place: &Place, task: &Witness| {
        let node = &with.nodes[place.2.min(1)];
        let modes = |device: &String| beside.modes.get(&(node.clone(), device.clone()));
        let seen = |device| modes(device).is_some_and(|modes| modes.contains("exclusive_process"));
        task.devices.iter().any(seen)
    };
    // gres.conf lacks the node's first GPU, but CUDA counts it: for the job with the first GPU of
    // the list, and for every job that can open unlisted GPUs.
    let unknown = is(site, "gres", "partial")
        && (is(site, "devices", "constrained") || is(request, "node", "alone-on-node"));
    let uncertain = unknown && !is_unneeded(request);
    // The partition asked, not the user. If it gives no MPS, the job is like one without the
    // plugin.
    let is_untouched = |node| {
        is_by_partition(request)
            && (is_unneeded(request) || uncertain || is_unplugged(request, node))
    };
    if is_untouched(0) && is_untouched(1) && !with.has_flags {
        same_run("auto gives it nothing", with, plain, &mut troubles);
    }
    if is_by_partition(request) && !with.has_flags {
        same_words("its partition asks", with, plain, &mut troubles);
    }
    let batch = steps(request)
        .first()
        .is_some_and(|step| step.label == "batch" && step.request == StepRequest::AsItsJob);
    // A script that asked does not begin on a node without the plugin.
    let stopped = is_batch(request)
        && is_unplugged(request, 0)
        && steps(request)[0].request == StepRequest::AsItsJob
        && !is_by_partition(request);
    // Slurm's own message: the srun there has none of our flags.
    let has_no_flag = |step: &Step| {
        let has_own = !matches!(step.request, StepRequest::AsItsJob | StepRequest::Nothing);
        !stopped && has_own && is_batch(request) && is_unplugged(request, 0)
    };
    for step in steps(request) {
        let wants_mps = step.wants_mps();
        // This step has its own flags, so it is told even if its partition gave nothing.
        let asks = step.request == StepRequest::Less && is_by_partition(request);
        let is_untouched = |node| is_untouched(node) && !asks;
        let places = expected.iter().filter(|(place, _)| place.0 == step.label);
        for (place, model) in places {
            let said = match (step.request, found.get(place)) {
                (_, None) if has_no_flag(&step) => refused(with, &step, NO_FLAG),
                (_, Some(task)) if is_by_partition(request) && !asks => {
                    let is_missed = can_have(site, request, &step) && !task.cuda.under_mps;
                    let missed = is_missed
                        .then(|| "nothing speaks against its MPS, and it has none".to_owned());
                    let noticed = unnoticed(task, model, with, plain);
                    noticed.into_iter().chain(missed).collect()
                }
                (_, None) if is_by_partition(request) && !asks => missing(with, &step),
                (_, None) if is_untouched(place.2) => missing(with, &step),
                (_, Some(task)) if is_untouched(place.2) => same_task(task, model, with, plain),
                (_, task) if stopped || wants_mps && is_unplugged(request, place.2) => {
                    let ran = task.map(|_| "ran where Slurm does not load the plugin".to_owned());
                    let word = if has_no_flag(&step) {
                        NO_FLAG
                    } else {
                        "did not load"
                    };
                    ran.into_iter().chain(refused(with, &step, word)).collect()
                }
                (_, Some(task)) if wants_mps && is_unneeded(request) && !asks => {
                    same_task(task, model, with, plain)
                }
                _ if unknown && asks || uncertain && (wants_mps || batch) => {
                    refused(with, &step, "is not certain")
                }
                (StepRequest::Nothing | StepRequest::OffOfComponent, Some(task)) => {
                    same_task(task, model, with, plain)
                }
                (StepRequest::Nothing | StepRequest::OffOfComponent, None) => missing(with, &step),
                (StepRequest::Off, Some(task)) if !exclusive(place, model) => {
                    same_task(task, model, with, plain)
                }
                (StepRequest::Off, Some(_)) => vec!["ran beside the MPS that has its GPU".into()],
                (StepRequest::Off, None) if exclusive(place, model) => {
                    refused(with, &step, "--mps=off")
                }
                (StepRequest::Off, None) => missing(with, &step),
                _ if is_shared(request) && is(request, "ask", "per-gpu") => {
                    refused(with, &step, "--mps=own")
                }
                (_, Some(task)) => attached(site, request, &step, place.3, task, model),
                (_, None) => missing(with, &step),
            };
            let name = format!("{} n{} r{}{}", place.0, place.2, place.3, array(&place.1));
            troubles.extend(said.into_iter().map(|said| format!("{name}: {said}")));
        }
    }
    for place in found.keys().filter(|place| !expected.contains_key(*place)) {
        troubles.push(format!(
            "a task that the plain job does not have: {place:?}"
        ));
    }
    spread(request, with, plain, &mut troubles);
    even(request, with, plain, &mut troubles);
    own_daemons(request, with, &mut troubles);
    modes(site, request, with, plain, beside, &mut troubles);
    for (node, bystander) in &beside.bystanders {
        for trouble in &bystander.troubles {
            troubles.push(format!("bystander on {node}: {trouble}"));
        }
    }
    troubles
}

fn array(index: &str) -> String {
    match index {
        "" => String::new(),
        index => format!(" [{index}]"),
    }
}

fn baseline(request: &Choice, plain: &Run, troubles: &mut Vec<String>) {
    let nodes = if is(request, "nodes", "n2") { 2 } else { 1 };
    let elements = if is(request, "launch", "array") { 2 } else { 1 };
    let all: usize = steps(request)
        .iter()
        .map(|step| match step.label {
            "batch" => elements,
            _ if is(request, "launch", "het") => tasks(request),
            _ => tasks(request) * nodes * elements,
        })
        .sum();
    if plain.code != Some(0) || plain.by_place().len() != all {
        let (code, count) = (plain.code, plain.by_place().len());
        troubles.push(format!(
            "the plain job itself: exit {code:?}, {count} of {all} tasks: {}",
            plain.said
        ));
    }
}

/// Whether the partition surely gives the tasks of this step their MPS: they meet on GPUs of which
/// Slurm takes none from the step, and only these can be opened.
fn can_have(site: &Choice, request: &Choice, step: &Step) -> bool {
    let meets = tasks(request) > gpus(request) || is_shared(request);
    meets
        && step.wants_mps()
        && step.label != "batch"
        && is(site, "devices", "constrained")
        && is_any(site, "gres", &["complete", "cores", "minors"])
        && is(request, "bind", "unbound")
        && is_any(request, "gpus", &["gpu1", "gpu2", "gpu3", "shard1"])
        && is(request, "plug", "plugged")
}

/// A task that should have run and did not: refused in words, or silently.
fn missing(run: &Run, step: &Step) -> Vec<String> {
    let told = run.told();
    match (run.failed(step.label), told.first()) {
        (true, Some(line)) => vec![format!("refused: {line}")],
        (true, None) => vec![format!(
            "did not run; its user reads only '{}'",
            run.said.trim()
        )],
        (false, _) => vec!["did not run, and its command exits with 0".into()],
    }
}

fn refused(run: &Run, step: &Step, word: &str) -> Vec<String> {
    match run.failed(step.label) && run.told().iter().any(|line| line.contains(word)) {
        true => Vec::new(),
        false => vec![format!(
            "refused without '{word}' or an exit code: '{}'",
            run.said.trim()
        )],
    }
}

/// A task with MPS: on its GPU, under its own daemon, with its limits.
fn attached(
    site: &Choice,
    request: &Choice,
    step: &Step,
    rank: usize,
    task: &Witness,
    model: &Witness,
) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(error) = &task.cuda.error {
        said.push(format!("attached to nothing: {error}"));
        return said;
    }
    if !task.cuda.under_mps {
        said.push("runs outside MPS without a word".into());
        return said;
    }
    if task.daemon_uid != task.cuda.uid {
        said.push(format!("its daemon is user {:?}'s", task.daemon_uid));
    }
    // A batch script is no rank.
    let alone = is_bound_by_us(request) && step.label != "batch";
    let one = is(request, "ask", "per-gpu");
    let right = match one || alone {
        // It sees whatever is there. Under MPS that is what Slurm gave its job, and with
        // --exclusive the node's GPUs.
        _ if is(request, "bind", "bind-none") => {
            let count = if one || alone { 1 } else { gpus(request) };
            let whole = !one && !alone && is(request, "node", "alone-on-node");
            let enough = task.devices.len() == count || whole && task.devices.len() > count;
            task.devices == model.devices || enough && task.devices.is_subset(&model.devices)
        }
        true => task.devices.len() == 1 && task.devices.is_subset(&model.devices),
        false => task.devices == model.devices,
    };
    let (own, others) = (&task.devices, &model.devices);
    let (may_open, model_may_open) = (&task.may_open, &model.may_open);
    if !right {
        said.push(format!("its GPUs are {own:?}, not {others:?}"));
    }
    if may_open != model_may_open {
        said.push(format!("it may open {may_open:?}, not {model_may_open:?}"));
    }
    if !own.is_subset(may_open) {
        said.push(format!("its GPUs are {own:?} and it may open {may_open:?}"));
    }
    said.extend(limits(request, step, rank, task));
    said.extend(names(site, request, task));
    said
}

/// A program that reads `CUDA_VISIBLE_DEVICES` as numbers, like vLLM, finds numbers if they were
/// asked for. Otherwise it finds them only if they mean the same GPUs without the daemon.
fn names(site: &Choice, request: &Choice, task: &Witness) -> Option<String> {
    let list = task.variable("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let numbers: Option<Vec<usize>> = list.split(',').map(|number| number.parse().ok()).collect();
    let asked = |value| is(request, "names", value);
    // The task can open exactly what its job's daemon has.
    let confined = is(site, "devices", "constrained")
        && !is(site, "gres", "partial")
        && !is(request, "ask", "per-gpu")
        && !is(request, "node", "alone-on-node")
        && is_any(request, "bind", &["unbound", "bind-none"])
        && !is_any(request, "gpus", &["gpus-per-task", "tasks-per-gpu"]);
    let may_open = super::site::devices(site).filter(|device| task.may_open.contains(device));
    let may_open: Vec<String> = may_open.collect();
    match numbers {
        None if asked("ordinal") || asked("by-itself") && confined => {
            Some(format!("a program that reads numbers dies of '{list}'"))
        }
        Some(_) if asked("uuid") => Some(format!("numbers in '{list}'")),
        Some(numbers) if asked("by-itself") => {
            let without: BTreeSet<String> = numbers
                .iter()
                .filter_map(|at| may_open.get(*at).cloned())
                .collect();
            (without != task.devices).then(|| {
                let own = &task.devices;
                format!(
                    "'{list}' leads a program that misses the daemon to {without:?}, not {own:?}"
                )
            })
        }
        _ => None,
    }
}

fn limits(request: &Choice, step: &Step, rank: usize, task: &Witness) -> Vec<String> {
    let ask = |value| is(request, "ask", value);
    // With two GPUs and six tasks no order is even for all habits: four tasks may meet.
    let meeting = match (gpus(request), tasks(request)) {
        (2, 6) if !is(request, "ask", "per-gpu") => 4,
        (gpus, tasks) => tasks.div_ceil(gpus),
    };
    // A job has one of its GPU's four shards.
    let meeting = if is_shared(request) {
        4 * meeting
    } else {
        meeting
    };
    let percent = match () {
        () if step.request == StepRequest::Less => LESS.parse().unwrap_or(0.0),
        () if is_by_partition(request) => 100.0,
        () if ask("on") || ask("per-gpu") || ask("own") => 50.0,
        () if ask("list") => [30.0, 70.0][rank % 2],
        () if ask("auto") => (200.0 / meeting as f64).min(100.0),
        () => 100.0,
    };
    let mut said = Vec::new();
    let sms = u64::from(multiprocessors(SMS as u32, percent));
    if task.cuda.sms != Some(sms) {
        said.push(format!("{:?} multiprocessors, not {sms}", task.cuda.sms));
    }
    let allowed: &[Option<u64>] = match () {
        () if is_by_partition(request) => &[None],
        () if ask("on") || ask("own") => &[Some(4096)],
        () if ask("memory-by-gpu") && gpus(request) > 1 => &[Some(4096), Some(2048)],
        () if ask("memory-by-gpu") => &[Some(4096)],
        () if ask("auto") => &[Some(MEMORY / meeting as u64)],
        () => &[None],
    };
    if !allowed.contains(&task.cuda.memory_limit_mib) {
        said.push(format!(
            "{:?} MiB, not one of {allowed:?}",
            task.cuda.memory_limit_mib
        ));
    }
    said
}

/// With a daemon for each GPU and each task bound, the tasks of a node use all the job's GPUs
/// there.
fn spread(request: &Choice, with: &Run, plain: &Run, troubles: &mut Vec<String>) {
    if is_by_partition(request) || (!is(request, "ask", "per-gpu") && !is_bound_by_us(request)) {
        return;
    }
    let used = |run: &Run, mps: bool| {
        let mut used: BTreeMap<(String, String, usize), BTreeSet<String>> = BTreeMap::new();
        for (place, task) in run.by_place() {
            if place.0 != "batch" && (!mps || task.cuda.under_mps) {
                let devices = used.entry((place.0, place.1, place.2)).or_default();
                match task.cuda.uuids.first().filter(|_| mps) {
                    // What a program takes that uses the first GPU.
                    Some(first) => devices.extend([first.clone()]),
                    None => devices.extend(task.devices.iter().cloned()),
                }
            }
        }
        used
    };
    let all = used(plain, false);
    for (place, devices) in used(with, true) {
        let all = &all[&place];
        // Unbound by Slurm, a task without MPS sees whatever is there.
        if devices.len() < all.len().min(gpus(request)) {
            troubles.push(format!("{place:?}: all tasks on {devices:?} of {all:?}"));
        }
    }
}

/// How a program chooses its GPU: the habit's name, and the place in its list by its rank, the
/// tasks and the GPUs.
type Habit = (&'static str, fn(usize, usize, usize) -> usize);

const FIRST: Habit = ("the first GPU", |_, _, _| 0);
const BY_RANK: [Habit; 3] = [
    ("the GPU at its rank", |rank, _, gpus| rank % gpus),
    ("the GPU of its block", |rank, tasks, gpus| {
        rank * gpus / tasks
    }),
    ("the GPU of its block, rounded up", |rank, tasks, gpus| {
        rank / tasks.div_ceil(gpus)
    }),
];

/// More tasks than GPUs, and no binding. A program that chooses by rank uses the GPUs as evenly as
/// without MPS. A program that takes the first GPU it sees is as even as that allows.
fn even(request: &Choice, with: &Run, plain: &Run, troubles: &mut Vec<String>) {
    let (tasks, gpus) = (tasks(request), gpus(request));
    if tasks <= gpus
        || is_by_partition(request)
        || !is(request, "bind", "unbound")
        || is_bound_by_us(request)
        || is(request, "ask", "per-gpu")
    {
        return;
    }
    // With two GPUs and twice an odd number of tasks no order is even for all habits.
    let apart = if gpus == 2 && tasks % 4 == 2 { 2 } else { 1 };
    for (place, crowds) in crowds(with, true, FIRST) {
        if crowds[0] - crowds[crowds.len() - 1] > apart {
            troubles.push(format!(
                "{place:?}: each task takes {}: {crowds:?}",
                FIRST.0
            ));
        }
    }
    for habit in BY_RANK {
        let without = crowds(plain, false, habit);
        for (place, crowds) in crowds(with, true, habit) {
            if without.get(&place).is_some_and(|without| crowds > *without) {
                let (name, without) = (habit.0, &without[&place]);
                troubles.push(format!(
                    "{place:?}: each task takes {name}: {crowds:?}, not {without:?}"
                ));
            }
        }
    }
}

/// How many tasks take each GPU under a habit, most first, by command, array element and node:
/// tasks with MPS, or all.
fn crowds(
    run: &Run,
    under_mps: bool,
    (_, place_of): Habit,
) -> BTreeMap<(String, String, usize), Vec<usize>> {
    let mut steps: BTreeMap<_, Vec<(usize, &[String])>> = BTreeMap::new();
    for ((label, index, node, rank), task) in run.by_place() {
        if label != "batch" && (task.cuda.under_mps || !under_mps) {
            let list = steps.entry((label, index, node)).or_default();
            list.push((rank, &task.cuda.uuids));
        }
    }
    let of_step = |ranks: Vec<(usize, &[String])>| {
        let seen = ranks.iter().flat_map(|(_, list)| *list);
        let mut taken: BTreeMap<&String, usize> = seen.map(|gpu| (gpu, 0)).collect();
        for (rank, list) in ranks.iter().filter(|(_, list)| !list.is_empty()) {
            *taken
                .entry(&list[place_of(*rank, ranks.len(), list.len())])
                .or_default() += 1;
        }
        let mut crowds: Vec<usize> = taken.into_values().collect();
        crowds.sort_unstable_by_key(|crowd| std::cmp::Reverse(*crowd));
        crowds
    };
    let all = steps
        .into_iter()
        .map(|(place, ranks)| (place, of_step(ranks)));
    all.filter(|(_, crowds)| !crowds.is_empty()).collect()
}

/// A node's tasks share their job's daemon or each GPU's, which may be their user's. A step that
/// asked itself has its own.
fn own_daemons(request: &Choice, with: &Run, troubles: &mut Vec<String>) {
    let mut daemons: BTreeMap<_, BTreeSet<Option<i32>>> = BTreeMap::new();
    let shared = is_shared(request);
    let per_gpu = is(request, "ask", "per-gpu") || shared;
    for (place, task) in with.by_place() {
        if !task.cuda.under_mps {
            continue;
        }
        let gpus = if per_gpu {
            task.devices.clone()
        } else {
            BTreeSet::new()
        };
        let key = (place.1, place.2, gpus);
        daemons.entry(key).or_default().insert(task.cuda.daemon_pid);
    }
    for (place, pids) in &daemons {
        if pids.len() > 1 {
            troubles.push(format!("{} daemons, not one: {place:?}", pids.len()));
        }
    }
    let all: BTreeSet<_> = daemons.values().flatten().collect();
    // Array elements that run at the same time share their user's MPS.
    let places = daemons
        .keys()
        .map(|(job, node, gpus)| (job.as_str(), node, gpus));
    let places: BTreeSet<_> = places
        .map(|(job, node, gpus)| (if shared { "" } else { job }, node, gpus))
        .collect();
    if all.len() < places.len() {
        troubles.push(format!(
            "one daemon for several jobs, nodes or GPUs: {daemons:?}"
        ));
    }
}

/// Only GPUs of a job that asked change their compute mode, and only if the site says so and shares
/// no GPU.
fn modes(
    site: &Choice,
    request: &Choice,
    with: &Run,
    plain: &Run,
    beside: &Beside,
    troubles: &mut Vec<String>,
) {
    let of_job = !is(request, "step", "one-asks") || is(request, "launch", "het");
    let of_job = of_job && !is_unneeded(request) && !is_by_partition(request);
    let may = is(site, "mode", "exclusive") && of_job && is(site, "shards", "no-shards");
    // Such a job may have more GPUs than its tasks were given.
    let bound = is_any(request, "bind", &["bind-map", "bind-single"]);
    let more = bound || is(request, "node", "alone-on-node");
    let nodes = Variant::With.nodes(request);
    let mut own: BTreeSet<(String, String)> = BTreeSet::new();
    for (place, task) in plain.by_place() {
        let steps = steps(request);
        let step = steps.iter().find(|step| step.label == place.0);
        if !is(request, "launch", "het") || step.is_some_and(Step::wants_mps) {
            let node = nodes[place.2.min(1)].clone();
            own.extend(
                task.devices
                    .iter()
                    .map(|device| (node.clone(), device.clone())),
            );
        }
    }
    for (gpu, seen) in &beside.modes {
        let others: Vec<&String> = seen.iter().filter(|mode| *mode != "default").collect();
        let bystander = beside.bystanders.get(&gpu.0);
        let foreign = bystander.is_some_and(|bystander| bystander.device == gpu.1);
        let node = (nodes.iter().position(|name| *name == gpu.0))
            .filter(|node| !is_unplugged(request, *node));
        let allowed = may && !foreign && node.is_some() && (own.contains(gpu) || more);
        if !others.is_empty() && !allowed {
            troubles.push(format!("compute mode of {} {}: {others:?}", gpu.0, gpu.1));
        }
    }
    let own = with
        .tasks
        .iter()
        .filter(|task| task.cuda.under_mps && task.label != "second");
    for task in own.filter(|_| may) {
        for device in &task.devices {
            let seen = beside.modes.get(&(task.node.clone(), device.clone()));
            if !seen.is_some_and(|seen| seen.contains("exclusive_process")) {
                troubles.push(format!("compute mode of {} {device} stays", task.node));
            }
        }
    }
}

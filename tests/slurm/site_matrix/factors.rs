//! The factors of a site and a request, and which values cannot occur together.

/// A factor and its values. No two factors have a value of the same name, so that a cell's name is
/// clear.
pub struct Factor {
    name: &'static str,
    values: &'static [&'static str],
}

const fn factor(name: &'static str, values: &'static [&'static str]) -> Factor {
    Factor { name, values }
}

pub const FACTORS: &[Factor] = &[
    // PrologFlags.
    factor("prolog", &["no-flags", "alloc", "contain", "defer"]),
    // ConstrainDevices.
    factor("devices", &["open", "constrained"]),
    // gres.conf: every GPU in order; the same with minor numbers unlike the bus order; without the
    // first GPU; two types, the later GPUs first; with Cores=.
    factor(
        "gres",
        &["complete", "minors", "partial", "reversed", "cores"],
    ),
    factor("task", &["task-none", "task-affinity", "task-cgroup"]),
    factor("word", &["optional", "required"]),
    factor("wait", &["wait-task", "wait-prolog"]),
    factor("mode", &["exclusive", "keep"]),
    factor("shards", &["no-shards", "shards"]),
    factor("conf", &["files", "configless"]),
    // slurm.conf and gres.conf: KEY=VALUE or KEY = VALUE.
    factor("spelling", &["tight", "blanks"]),
    factor("launch", &["srun", "sbatch", "salloc", "het", "array"]),
    factor(
        "gpus",
        &[
            "gpu1",
            "gpu2",
            "gpu3",
            "gpus-per-task",
            "tasks-per-gpu",
            "shard1",
        ],
    ),
    factor("bind", &["unbound", "bind-none", "bind-single", "bind-map"]),
    factor("node", &["shared", "alone-on-node"]),
    // The job and its steps: all ask; one step of a job that does not; one step lowers its job's
    // limits; one says off.
    factor("step", &["same", "one-asks", "one-lowers", "one-off"]),
    factor(
        "ask",
        &["on", "per-gpu", "list", "memory-by-gpu", "auto", "own"],
    ),
    factor("nodes", &["n1", "n2"]),
    // --mps-bind and --mps-visible.
    factor("ranks", &["as-the-site", "cyclic", "block", "closest"]),
    factor("names", &["by-itself", "ordinal", "uuid"]),
    // Tasks on a node: one for each GPU of a job with several, or more.
    factor("tasks", &["two-tasks", "four-tasks", "six-tasks"]),
    // --mps; --mps=auto, which gives MPS if two tasks share a GPU; the same for a partition,
    // without a word of the user.
    factor("need", &["always", "if-needed", "by-partition"]),
    // Which nodes of the job that asks load the plugin: all, the first of two, none.
    factor(PLUG, &["plugged", "half-plugged", "unplugged"]),
];

/// The factor whose later values keep a job from its MPS.
const PLUG: &str = "plug";

/// Whether a row, with the values chosen so far, shows nothing of these factors together: a job
/// that is refused for another cause has no limits to examine. Such a row counts only for that
/// cause.
pub fn is_masked(choice: &Choice, factors: &[usize]) -> bool {
    let names_plug = factors.iter().any(|factor| FACTORS[*factor].name == PLUG);
    is_not(choice, PLUG, "plugged") && !names_plug
}

/// Whether the values of a factor are tried in their own order. A masking factor's values must come
/// last.
pub fn in_order(factor: usize) -> bool {
    FACTORS[factor].name == PLUG
}

pub const SITE: usize = 10;

/// Values of the first factors, by their number in [`FACTORS`]; `None`: not chosen yet.
pub type Choice = [Option<usize>];

/// Whether `factor` is set to `value`.
///
/// # Panics
/// There is no such factor or value.
pub fn is(choice: &Choice, factor: &str, value: &str) -> bool {
    let at = FACTORS.iter().position(|known| known.name == factor);
    let at = at.unwrap_or_else(|| panic!("no factor '{factor}'"));
    let known = FACTORS[at].values.iter().position(|known| *known == value);
    let value = known.unwrap_or_else(|| panic!("factor '{factor}' has no value '{value}'"));
    choice.get(at).copied().flatten() == Some(value)
}

pub fn is_any(choice: &Choice, factor: &str, values: &[&str]) -> bool {
    values.iter().any(|value| is(choice, factor, value))
}

fn is_not(choice: &Choice, factor: &str, value: &str) -> bool {
    let at = FACTORS.iter().position(|known| known.name == factor);
    let set = at
        .and_then(|at| choice.get(at).copied().flatten())
        .is_some();
    set && !is(choice, factor, value)
}

pub fn possible(choice: &Choice) -> bool {
    let is = |factor, value| is(choice, factor, value);
    let is_not = |factor, value| is_not(choice, factor, value);
    let impossible = [
        // Only task/cgroup confines devices.
        is("devices", "constrained") && is_not("task", "task-cgroup"),
        is("gpus", "shard1") && is_not("shards", "shards"),
        // A bound task needs its own GPU, and a shard is none.
        is("gpus", "shard1") && is_not("bind", "unbound"),
        is("gpus", "gpu1") && is("bind", "bind-map"),
        // It has an MPS of its own anyway.
        is("ask", "own") && is_not("gpus", "shard1"),
        // One mode at a time; auto binds no task; and Slurm counts the job's other GPUs on such a
        // node.
        is_not("need", "always")
            && (is("ask", "own")
                || is("ask", "per-gpu")
                || is_not("ranks", "as-the-site")
                || is("node", "alone-on-node")),
        // Then the user writes no limits or names, and the job has asked.
        is("need", "by-partition")
            && (is_not("ask", "on") || is_not("names", "by-itself") || is("step", "one-asks")),
        // A component that asks always has MPS.
        is("need", "by-partition") && is("launch", "het") && is("step", "one-lowers"),
        // Slurm 22.05 itself: such a job stays "PENDING Resources" on idle nodes.
        is("gpus", "shard1") && is("node", "alone-on-node"),
        // Whatever keeps a task from its MPS would hide its limits: a list without the node's first
        // GPU, two types of GPUs, a lost binding.
        is("gres", "partial") && is("node", "alone-on-node") && is("ask", "auto"),
        is("gres", "reversed") && is("node", "alone-on-node") && is("ask", "auto"),
        is("bind", "bind-none") && is("node", "alone-on-node") && is("ask", "auto"),
        // Slurm chooses the step's GPUs, and so the limit that applies.
        (is("gres", "reversed") || is("gres", "minors"))
            && is("node", "alone-on-node")
            && is("ask", "memory-by-gpu"),
        is("ask", "memory-by-gpu")
            && is("node", "alone-on-node")
            && is("bind", "bind-none")
            && is_not("ranks", "as-the-site"),
        is("prolog", "no-flags") && is("step", "one-asks") && is("bind", "bind-none"),
        // Slurm 22.05 itself: a step on two nodes finds "Insufficient GRES available in
        // allocation".
        is("gpus", "tasks-per-gpu") && is("nodes", "n2") && is_not("launch", "het"),
        // One srun is the job and its only step.
        is("launch", "srun") && is_not("step", "same"),
        // Its two components have one node each.
        is("launch", "het") && is_not("nodes", "n2"),
        is(PLUG, "half-plugged") && is_not("nodes", "n2"),
        // More tasks than GPUs, without a binding.
        is_not("tasks", "two-tasks")
            && (is_not("bind", "unbound") || is_not("ranks", "as-the-site"))
            || is_not("tasks", "two-tasks") && is_not("gpus", "gpu2") && is_not("gpus", "gpu3"),
        // Slurm 22.05 itself: with two types and a whole node it makes a job of two GPUs, and
        // refuses the job's step of three.
        is("gpus", "gpu3") && is("gres", "reversed") && is("node", "alone-on-node"),
        // Three GPUs are for more tasks. If a node has only three, the bystander uses one of them.
        is("gpus", "gpu3")
            && (is("tasks", "two-tasks")
                || is("gres", "partial")
                || is("ask", "memory-by-gpu")
                || is_not("bind", "unbound")
                || is_not("ranks", "as-the-site")),
    ];
    !impossible.contains(&true)
}

/// Every combination of the values of such a triple is tried, because the meaning of each depends
/// on the other two.
const THREE: &[[&str; 3]] = &[
    ["prolog", "launch", "step"],
    ["prolog", "step", "nodes"],
    ["devices", "gpus", "bind"],
    ["devices", "gres", "gpus"],
    ["gpus", "bind", "ask"],
    ["gpus", "node", "ask"],
    ["gpus", "tasks", "need"],
    ["launch", "step", "need"],
];

/// The wanted groups of factors below `size`: all pairs, and [`THREE`], but no group that is
/// entirely below `given`.
pub fn interactions(given: usize, size: usize) -> Vec<Vec<usize>> {
    let at = |name: &&str| FACTORS.iter().position(|factor| factor.name == *name);
    let three = THREE
        .iter()
        .map(|names| names.iter().filter_map(at).collect());
    let two = (0..size).flat_map(|second| (0..second).map(move |first| vec![first, second]));
    let mut all: Vec<Vec<usize>> = three.chain(two).collect();
    all.iter_mut().for_each(|factors| factors.sort_unstable());
    all.retain(|factors| {
        factors
            .last()
            .is_some_and(|last| *last >= given && *last < size)
    });
    all
}

pub fn levels() -> Vec<usize> {
    FACTORS.iter().map(|factor| factor.values.len()).collect()
}

pub fn all_values() -> impl Iterator<Item = &'static str> {
    FACTORS.iter().flat_map(|factor| factor.values).copied()
}

/// Whether the name of a site may end with this.
pub fn ends_a_site(end: &str) -> bool {
    let mut last = FACTORS[SITE - 1].values.iter();
    last.any(|value| value.ends_with(end))
}

pub fn values(choice: &[usize], first: usize) -> String {
    let values = choice.iter().zip(&FACTORS[first..]);
    let names: Vec<&str> = values
        .map(|(value, factor)| factor.values[*value])
        .collect();
    names.join(",")
}

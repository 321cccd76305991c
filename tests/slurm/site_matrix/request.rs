//! A job by its factors: its command, with MPS and without, and what each of its steps should get.

use super::factors::{Choice, is, is_any};
use super::site::{AUTO, NODE};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    With,
    Without,
    /// The job does not ask, and neither its client nor its nodes have the plugin.
    Plain,
}

impl Variant {
    pub const ALL: [Variant; 3] = [Variant::With, Variant::Without, Variant::Plain];

    pub fn nodes(self, request: &Choice) -> [String; 2] {
        let numbers = match self {
            Variant::With => [0, 1].map(|at| at + if is_unplugged(request, at) { 7 } else { 1 }),
            Variant::Without => [3, 4],
            Variant::Plain => [5, 6],
        };
        numbers.map(|number| format!("{NODE}{number}"))
    }

    pub fn name(self) -> &'static str {
        match self {
            Variant::With => "with",
            Variant::Without => "without",
            Variant::Plain => "plain",
        }
    }
}

/// Whether a node of the job that asks, the first or the second, does not load the plugin.
pub fn is_unplugged(request: &Choice, node: usize) -> bool {
    is(request, "plug", "unplugged") || is(request, "plug", "half-plugged") && node == 1
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepRequest {
    AsItsJob,
    /// Nothing, and neither did its job.
    Nothing,
    /// MPS, in a job that did not ask.
    Own,
    /// Less than its job.
    Less,
    /// No MPS, in a job with.
    Off,
    /// No MPS, as a job of its own: a component of a het job.
    OffOfComponent,
}

#[derive(Clone, Debug)]
pub struct Step {
    pub label: &'static str,
    pub request: StepRequest,
}

impl Step {
    pub fn wants_mps(&self) -> bool {
        matches!(
            self.request,
            StepRequest::AsItsJob | StepRequest::Own | StepRequest::Less
        )
    }
}

/// One per cent less would not change the multiprocessors, so this is far below every other limit.
pub const LESS: &str = "10";

/// The commands of a request, in order. A batch script is the first.
pub fn steps(request: &Choice) -> Vec<Step> {
    let step = |label, request| Step { label, request };
    let is = |value| is(request, "step", value);
    let (all, last) = match () {
        () if is("one-asks") => (StepRequest::Nothing, Some(StepRequest::Own)),
        () if is("one-lowers") => (StepRequest::AsItsJob, Some(StepRequest::Less)),
        () if is("one-off") => (StepRequest::AsItsJob, Some(StepRequest::Off)),
        () => (StepRequest::AsItsJob, None),
    };
    let het = super::factors::is(request, "launch", "het");
    let last = match last {
        Some(StepRequest::Off) if het => Some(StepRequest::OffOfComponent),
        other => other,
    };
    if super::factors::is(request, "launch", "srun") {
        return vec![step("first", all)];
    }
    if het {
        return vec![step("first", all), step("second", last.unwrap_or(all))];
    }
    let script = !super::factors::is(request, "launch", "salloc");
    let mut steps = Vec::new();
    if script {
        steps.push(step("batch", all));
    }
    steps.push(step("first", all));
    steps.push(step("second", last.unwrap_or(all)));
    // A step's own request says nothing of the job's.
    if last.is_some() {
        steps.push(step("third", all));
    }
    steps
}

/// The words of the first fitting row. A row has a factor, its value and the words.
fn words(
    request: &Choice,
    rows: &[(&str, &str, &'static str)],
    otherwise: &'static str,
) -> &'static str {
    let mut fitting = rows
        .iter()
        .filter(|(factor, value, _)| is(request, factor, value));
    fitting.next().map_or(otherwise, |(.., words)| words)
}

fn own_flags(request: &Choice) -> String {
    let memory = match gpus(request) {
        1 => "--mps --mps-mem=0=4G",
        _ => "--mps --mps-mem=0=4G:1=2G",
    };
    let limits = [
        ("ask", "per-gpu", "--mps=per-gpu --mps-threads=50"),
        ("ask", "own", "--mps=own --mps-threads=50 --mps-mem=4G"),
        ("ask", "list", "--mps --mps-threads=30:70"),
        ("ask", "memory-by-gpu", memory),
        ("ask", "auto", "--mps --mps-threads=auto --mps-mem=auto"),
    ];
    let ranks = [
        ("ranks", "cyclic", "--mps-bind=cyclic"),
        ("ranks", "block", "--mps-bind=block"),
        ("ranks", "closest", "--mps-bind=closest"),
    ];
    let names = [
        ("names", "ordinal", "--mps-visible=ordinal"),
        ("names", "uuid", "--mps-visible=uuid"),
    ];
    let limits = words(request, &limits, "--mps --mps-threads=50 --mps-mem=4G");
    let limits = match is(request, "need", "if-needed") {
        true => limits.replacen("--mps ", "--mps=auto ", 1),
        false => limits.to_owned(),
    };
    format!(
        "{limits} {} {}",
        words(request, &ranks, ""),
        words(request, &names, "")
    )
}

/// Whether `--mps=auto` gives nothing: no two tasks share a GPU, and no other job has it.
pub fn is_unneeded(request: &Choice) -> bool {
    !is(request, "need", "always") && tasks(request) <= gpus(request) && !is_shared(request)
}

/// Whether the site asks for the job, and not its user.
pub fn is_by_partition(request: &Choice) -> bool {
    is(request, "need", "by-partition")
}

/// Whether the user's jobs on the GPU have one MPS.
pub fn is_shared(request: &Choice) -> bool {
    is(request, "gpus", "shard1") && !is(request, "ask", "own")
}

/// Whether each rank has its own GPU by our binding, in the order of the ranks: it was asked for,
/// and Slurm does not bind.
pub fn is_bound_by_us(request: &Choice) -> bool {
    let is = |factor, value| is(request, factor, value);
    let by_slurm = is_any(request, "bind", &["bind-single", "bind-map"]);
    let implied =
        is("bind", "unbound") && is_any(request, "gpus", &["gpus-per-task", "tasks-per-gpu"]);
    !is("ranks", "as-the-site") && !by_slurm && !implied
}

pub fn gpus(request: &Choice) -> usize {
    match () {
        () if is(request, "gpus", "gpu1") || is(request, "gpus", "shard1") => 1,
        () if is(request, "gpus", "gpu3") => 3,
        () => 2,
    }
}

pub fn tasks(request: &Choice) -> usize {
    match () {
        () if is(request, "tasks", "four-tasks") => 4,
        () if is(request, "tasks", "six-tasks") => 6,
        () => 2,
    }
}

/// What the job asks Slurm for on its nodes, with and without MPS.
fn shape(request: &Choice, nodes: &str) -> String {
    let is = |factor, value| is(request, factor, value);
    let (count, tasks) = (nodes.split(',').count(), tasks(request));
    let mut shape = format!("-N{count} -n{} -w {nodes}", count * tasks);
    if !is("gpus", "tasks-per-gpu") {
        shape += &format!(" --ntasks-per-node={tasks}");
    }
    let gpus = [
        ("gpus", "gpu2", "--gres=gpu:2"),
        ("gpus", "gpu3", "--gres=gpu:3"),
        ("gpus", "gpus-per-task", "--gpus-per-task=1"),
        ("gpus", "tasks-per-gpu", "--ntasks-per-gpu=1"),
        ("gpus", "shard1", "--gres=shard:1"),
    ];
    let bind = [
        ("bind", "bind-none", "--gpu-bind=none"),
        ("bind", "bind-single", "--gpu-bind=single:1"),
        ("bind", "bind-map", "--gpu-bind=map_gpu:1,0"),
    ];
    let node = [("node", "alone-on-node", "--exclusive")];
    for (rows, otherwise) in [(&gpus[..], "--gres=gpu:1"), (&bind, ""), (&node, "")] {
        shape = format!("{shape} {}", words(request, rows, otherwise));
    }
    shape
}

pub fn is_batch(request: &Choice) -> bool {
    is(request, "launch", "sbatch") || is(request, "launch", "array")
}

pub fn has_flags(request: &Choice, variant: Variant) -> bool {
    let (words, script) = command(request, variant, "");
    words.contains("--mps") || script.contains("--mps")
}

/// The job's command, and the script of a batch job or of an allocation's shell. `witness` is the
/// program with its directory.
pub fn command(request: &Choice, variant: Variant, witness: &str) -> (String, String) {
    let is = |factor, value| is(request, factor, value);
    let steps = steps(request);
    let typed = |flags: String| {
        if variant == Variant::With {
            flags
        } else {
            String::new()
        }
    };
    let of_job = match steps[0].request {
        // All three are in the partition; the job without MPS opts out.
        _ if is_by_partition(request) && variant == Variant::Without => {
            format!("-p {AUTO} --mps=off")
        }
        _ if is_by_partition(request) => format!("-p {AUTO}"),
        StepRequest::AsItsJob => typed(own_flags(request)),
        _ => String::new(),
    };
    let of_step = |step: &Step| match step.request {
        StepRequest::AsItsJob | StepRequest::Nothing => String::new(),
        StepRequest::Own => typed(own_flags(request)),
        // Its srun does not know its job's request.
        StepRequest::Less if is_by_partition(request) => {
            typed(format!("--mps --mps-threads={LESS}"))
        }
        StepRequest::Less => typed(format!("--mps-threads={LESS}")),
        StepRequest::Off | StepRequest::OffOfComponent => typed("--mps=off".to_owned()),
    };
    let look = |label: &str| format!("{witness} {label} 0.1");
    let [first, second] = variant.nodes(request);
    if is("launch", "het") {
        let own = match steps[1].request {
            _ if is_by_partition(request) => format!("{of_job} {}", of_step(&steps[1])),
            StepRequest::AsItsJob | StepRequest::Less => format!("{of_job} {}", of_step(&steps[1])),
            _ => of_step(&steps[1]),
        };
        let part = |flags: &str, node: &str, label| {
            format!("{flags} {} {}", shape(request, node), look(label))
        };
        let words = format!(
            "srun {} : {}",
            part(&of_job, &first, "first"),
            part(&own, &second, "second")
        );
        return (words, String::new());
    }
    let nodes = if is("nodes", "n2") {
        format!("{first},{second}")
    } else {
        first
    };
    let shape = format!("{of_job} {}", shape(request, &nodes));
    if is("launch", "srun") {
        return (format!("srun {shape} {}", look("first")), String::new());
    }
    let line = |step: &Step| {
        let (label, flags) = (step.label, of_step(step));
        let srun = if label == "batch" {
            String::new()
        } else {
            format!("srun {flags} ")
        };
        let code =
            "code=$?; echo \"code LABEL $code\"; [ $code = 0 ] || worst=1".replace("LABEL", label);
        format!("{srun}{}; {code}", look(label))
    };
    let lines: Vec<String> = steps.iter().map(line).collect();
    let script = format!("worst=0\n{}\nexit $worst", lines.join("\n"));
    match () {
        () if is("launch", "salloc") => (format!("salloc {shape}"), script),
        () if is("launch", "array") => (format!("sbatch --parsable --array=1-2%1 {shape}"), script),
        () => (format!("sbatch --parsable {shape}"), script),
    }
}

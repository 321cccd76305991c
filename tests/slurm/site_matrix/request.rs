//! A job as its factors say: its command, with MPS and without, and what is expected of each of its steps.

use super::factors::{Choice, is};
use super::site::NODE;

/// The same job three times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// It asks for MPS.
    With,
    /// It does not.
    Without,
    /// It does not, and neither its client nor its nodes have the plugin.
    Plain,
}

impl Variant {
    /// All of them.
    pub const ALL: [Variant; 3] = [Variant::With, Variant::Without, Variant::Plain];

    /// Its two nodes.
    pub fn nodes(self, request: &Choice) -> [String; 2] {
        let numbers = match self {
            Variant::With => [0, 1].map(|at| at + if is_unplugged(request, at) { 7 } else { 1 }),
            Variant::Without => [3, 4],
            Variant::Plain => [5, 6],
        };
        numbers.map(|number| format!("{NODE}{number}"))
    }

    /// Its name, for its directory.
    pub fn name(self) -> &'static str {
        match self {
            Variant::With => "with",
            Variant::Without => "without",
            Variant::Plain => "plain",
        }
    }
}

/// Whether a node of the job that asks, its first or its second, does not load the plugin.
pub fn is_unplugged(request: &Choice, node: usize) -> bool {
    is(request, "plug", "unplugged") || is(request, "plug", "half-plugged") && node == 1
}

/// What a step asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// What its job did.
    AsItsJob,
    /// Nothing, and neither did its job.
    Nothing,
    /// MPS, in a job that did not.
    Itself,
    /// Less than its job.
    Less,
    /// No MPS, in a job with.
    Off,
    /// No MPS, as a job of its own: a component of a het job.
    OffItself,
}

/// A command that starts tasks.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its name in the tasks' records.
    pub label: &'static str,
    /// What it asked for.
    pub asks: Asks,
}

/// One per cent less would not change the multiprocessors: far below every other limit.
pub const LESS: &str = "10";

/// The commands of a request, in order. A batch script is the first of its own.
pub fn steps(request: &Choice) -> Vec<Step> {
    let step = |label, asks| Step { label, asks };
    let is = |value| is(request, "step", value);
    let (all, last) = match () {
        () if is("one-asks") => (Asks::Nothing, Some(Asks::Itself)),
        () if is("one-lowers") => (Asks::AsItsJob, Some(Asks::Less)),
        () if is("one-off") => (Asks::AsItsJob, Some(Asks::Off)),
        () => (Asks::AsItsJob, None),
    };
    let het = super::factors::is(request, "launch", "het");
    let last = match last {
        Some(Asks::Off) if het => Some(Asks::OffItself),
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
    // What a step asked for is its own affair.
    if last.is_some() {
        steps.push(step("third", all));
    }
    steps
}

/// The flags of the request itself.
fn asked(request: &Choice) -> Vec<&'static str> {
    let is = |factor, value| is(request, factor, value);
    let mut flags = limits(request);
    flags.extend(match () {
        () if is("ranks", "cyclic") => Some("--mps-bind=cyclic"),
        () if is("ranks", "block+peers") => Some("--mps-bind=block+peers"),
        () if is("ranks", "closest") => Some("--mps-bind=closest"),
        () => None,
    });
    flags.extend(match () {
        () if is("names", "ordinal") => Some("--mps-visible=ordinal"),
        () if is("names", "uuid") => Some("--mps-visible=uuid"),
        () => None,
    });
    flags
}

fn limits(request: &Choice) -> Vec<&'static str> {
    let is = |factor, value| is(request, factor, value);
    match () {
        () if is("ask", "per-gpu") => vec!["--mps=per-gpu", "--mps-threads=50"],
        () if is("ask", "list") => vec!["--mps", "--mps-threads=30:70"],
        () if is("ask", "memory-by-gpu") && gpus(request) > 1 => vec!["--mps", "--mps-mem=0=4G:1=2G"],
        () if is("ask", "memory-by-gpu") => vec!["--mps", "--mps-mem=0=4G"],
        () if is("ask", "auto") => vec!["--mps", "--mps-threads=auto", "--mps-mem=auto"],
        () => vec!["--mps", "--mps-threads=50", "--mps-mem=4G"],
    }
}

/// Whether each rank has a GPU of its own by our binding, in the order of its ranks: asked for, and not Slurm's already.
pub fn is_bound_by_us(request: &Choice) -> bool {
    let is = |factor, value| is(request, factor, value);
    let by_slurm = ["bind-single", "bind-map"].iter().any(|bind| is("bind", bind));
    let implied = is("bind", "unbound")
        && ["gpus-per-task", "tasks-per-gpu"]
            .iter()
            .any(|gpus| is("gpus", gpus));
    !is("ranks", "as-the-site") && !by_slurm && !implied
}

/// How many GPUs the job has on each node.
pub fn gpus(request: &Choice) -> usize {
    match () {
        () if is(request, "gpus", "gpu1") || is(request, "gpus", "shard1") => 1,
        () if is(request, "gpus", "gpu3") => 3,
        () => 2,
    }
}

/// The job's tasks on each of its nodes.
pub fn tasks(request: &Choice) -> usize {
    match () {
        () if is(request, "tasks", "four-tasks") => 4,
        () if is(request, "tasks", "six-tasks") => 6,
        () => 2,
    }
}

fn flags(request: &Choice, asks: Asks) -> Vec<String> {
    let own = match asks {
        Asks::AsItsJob | Asks::Nothing => Vec::new(),
        Asks::Itself => asked(request),
        Asks::Less => vec!["--mps-threads=10"],
        Asks::Off | Asks::OffItself => vec!["--mps=off"],
    };
    own.into_iter().map(str::to_owned).collect()
}

/// What the job asks Slurm for, whether it wants MPS or not.
fn shape(request: &Choice, variant: Variant) -> Vec<String> {
    let is = |factor, value| is(request, factor, value);
    let [first, second] = variant.nodes(request);
    let (nodes, list) = match is("nodes", "n2") && !is("launch", "het") {
        true => (2, format!("{first},{second}")),
        false => (1, first),
    };
    let tasks = tasks(request);
    let mut shape = vec![
        format!("-N{nodes}"),
        format!("-n{}", nodes * tasks),
        "-w".into(),
        list,
    ];
    if !is("gpus", "tasks-per-gpu") {
        shape.push(format!("--ntasks-per-node={tasks}"));
    }
    let mut words: Vec<&str> = Vec::new();
    words.extend(match () {
        () if is("gpus", "gpu2") => ["--gres=gpu:2"].as_slice(),
        () if is("gpus", "gpu3") => &["--gres=gpu:3"],
        () if is("gpus", "gpus-per-task") => &["--gpus-per-task=1"],
        () if is("gpus", "tasks-per-gpu") => &["--ntasks-per-gpu=1"],
        () if is("gpus", "shard1") => &["--gres=shard:1"],
        () => &["--gres=gpu:1"],
    });
    words.extend(match () {
        () if is("bind", "bind-none") => ["--gpu-bind=none"].as_slice(),
        () if is("bind", "bind-single") => &["--gpu-bind=single:1"],
        () if is("bind", "bind-map") => &["--gpu-bind=map_gpu:1,0"],
        () => &[],
    });
    if is("node", "alone-on-node") {
        words.push("--exclusive");
    }
    shape.extend(words.into_iter().map(str::to_owned));
    shape
}

/// What is typed: the words, and the script of a batch job.
#[derive(Debug)]
pub struct Command {
    /// Program and arguments. A batch script's file is added to them.
    pub argv: Vec<String>,
    /// The script.
    pub script: Option<String>,
}

/// Whether its command hands a script in and does not wait.
pub fn is_batch(request: &Choice) -> bool {
    is(request, "launch", "sbatch") || is(request, "launch", "array")
}

/// The job's command. `witness` is the program and its directory.
pub fn command(request: &Choice, variant: Variant, witness: &str) -> Command {
    let is = |value| is(request, "launch", value);
    let steps = steps(request);
    let with = |asks| match variant {
        Variant::With => flags(request, asks),
        _ => Vec::new(),
    };
    let of_job = match steps[0].asks {
        Asks::AsItsJob if variant == Variant::With => asked(request),
        _ => Vec::new(),
    };
    let of_job = || of_job.iter().map(|flag| (*flag).to_owned());
    let look = |label: &str| format!("{witness} {label} 0.1");
    let shape = shape(request, variant);
    if is("srun") {
        let mut argv = vec!["srun".to_owned()];
        argv.extend(of_job());
        argv.extend(shape);
        argv.extend(look("first").split(' ').map(str::to_owned));
        return Command { argv, script: None };
    }
    if is("het") {
        let [_, second] = variant.nodes(request);
        let mut other = shape.clone();
        let at = other.iter().position(|word| word == "-w").map_or(0, |at| at + 1);
        other[at] = second;
        let own = match steps[1].asks {
            Asks::AsItsJob => of_job().collect(),
            Asks::Less => of_job().chain(with(Asks::Less)).collect(),
            asks => with(asks),
        };
        let mut argv = vec!["srun".to_owned()];
        argv.extend(of_job());
        argv.extend(shape);
        argv.extend(look("first").split(' ').map(str::to_owned));
        argv.push(":".into());
        argv.extend(own);
        argv.extend(other);
        argv.extend(look("second").split(' ').map(str::to_owned));
        return Command { argv, script: None };
    }
    let lines: Vec<String> = steps
        .iter()
        .map(|step| match step.label {
            "batch" => look("batch"),
            label => format!("srun {} {}", with(step.asks).join(" "), look(label)),
        })
        .zip(&steps)
        .map(|(line, step)| {
            format!(
                "{line}; code=$?; echo \"code {} $code\"; [ $code = 0 ] || worst=1",
                step.label
            )
        })
        .collect();
    let script = format!("worst=0\n{}\nexit $worst", lines.join("\n"));
    let program: &[&str] = match () {
        () if is("salloc") => &["salloc"],
        () if is("array") => &["sbatch", "--parsable", "--array=1-2%1"],
        () => &["sbatch", "--parsable"],
    };
    let mut argv: Vec<String> = program.iter().map(|word| (*word).to_owned()).collect();
    argv.extend(of_job());
    argv.extend(shape);
    if is("salloc") {
        argv.extend(["/bin/sh".into(), "-c".into(), script]);
        return Command { argv, script: None };
    }
    Command {
        argv,
        // Where nobody loads the plugin, another shell's script would run outside MPS, as the manual says.
        script: Some(format!("#!/bin/bash\n{script}\n")),
    }
}

//! The table of cases.

use std::time::Duration;

use crate::job::{ACCOUNT, Order, PLAIN};
use crate::load::{self, BY_BLOCK, BY_RANK, Dynamics, FIRST, Load, Program, Sweep};
use crate::runner::Step::{Begin, Do, End, Loads, Only, Sides, Slurm, Sweeps};
use crate::runner::{Case, Step};
use crate::scenes::{self, MOST};
use crate::slurm::{all_gpus, nothing_left, one_gpu, two_gpus};
use crate::times::{self, BEGIN, By, END, Ratio, Side, ratio};
use crate::{auto, clients, programs, recipes, report, shared, site::Run, timeline};

/// A GPU without a context for one to two seconds falls asleep, and a server without a client takes
/// longer to end after half a second.
const SLEEP: Duration = Duration::from_millis(2500);

/// GPUs that a case needs, and whether a whole run has it.
const UNLOOKED: (usize, bool) = (0, true);
const WHOLE: (usize, bool) = (1, true);
const ONE: (usize, bool) = (1, false);
const TWO: (usize, bool) = (2, false);

const fn case(
    name: &'static str,
    (gpus, in_whole): (usize, bool),
    shows: &'static str,
    steps: &'static [Step],
) -> Case {
    Case {
        name,
        shows,
        gpus,
        in_whole,
        steps,
    }
}

pub const CASES: &[Case] = &[
    case(
        "job",
        WHOLE,
        "One whole job: prologue, eight clients, epilogue",
        &[
            Begin(Order::new("4711.srv", ACCOUNT)),
            Do(clients::at_once),
            End("4711.srv"),
        ],
    ),
    case(
        "pairs",
        UNLOOKED,
        "Begin and end of NVIDIA's own programs, and of a job (1 minute)",
        &[Do(times::not_asked), Sides(PAIRS, PAIRS_RATIOS)],
    ),
    case(
        "slurm",
        WHOLE,
        "The same job through a real Slurm: srun --mps",
        &[Slurm(one_gpu), Do(scenes::by_srun), Do(nothing_left)],
    ),
    case(
        "contract",
        UNLOOKED,
        "The contract suite with MPS_SUBJECT=nvidia",
        &[Do(scenes::contract)],
    ),
    case(
        "auto",
        ONE,
        "Job scripts in a partition of 'auto' beside the same without us (3 minutes)",
        &[Slurm(auto::two_nodes), Do(auto::scripts)],
    ),
    case(
        "first-kernel",
        ONE,
        "From srun to the first kernel's end, with --mps and without (4 minutes)",
        &[Slurm(two_gpus), Do(times::first_kernels)],
    ),
    case(
        "sight",
        ONE,
        "A start from sleep, with all GPUs seen and with the job's alone (3 minutes with --pairs 9)",
        &[
            Sides(SIGHT, SIGHT_RATIOS),
            Slurm(one_gpu),
            Sides(SIGHT_KERNEL, SIGHT_KERNEL_RATIOS),
        ],
    ),
    case(
        "timeline",
        ONE,
        "What takes each millisecond of a begin and an end, also under Slurm (40 seconds)",
        &[
            Do(timeline::alone),
            Slurm(one_gpu),
            Do(timeline::beside_slurm),
        ],
    ),
    case(
        "many",
        TWO,
        "All GPUs: jobs that begin and end at once, load (2 minutes)",
        &[
            Sides(AT_ONCE, AT_ONCE_RATIOS),
            Slurm(all_gpus),
            Loads(Program::Kernels, under_load, "many"),
        ],
    ),
    case(
        "gain",
        ONE,
        "What MPS brings to OpenMM and to small kernels: 'mpsctl sweep' (8 minutes)",
        &[
            Begin(Order::new("7001.srv", PLAIN)),
            Sweeps("7001.srv", KERNELS),
            Only(Dynamics::has),
            Sweeps("7001.srv", OPENMM),
            Sweeps("7001.srv", OPENMM_ALONE),
            End("7001.srv"),
        ],
    ),
    case(
        "inference",
        ONE,
        "What MPS brings to requests of PyTorch: 'mpsctl sweep' (3 minutes)",
        &[
            Begin(Order::new("7003.srv", PLAIN)),
            Sweeps("7003.srv", CONVOLUTION),
            Sweeps("7003.srv", STREAM),
            End("7003.srv"),
        ],
    ),
    case(
        "recipes",
        ONE,
        "The recipes for PyTorch, JAX, CuPy, NCCL and MPI, four ranks each (3 minutes)",
        &[Only(recipes::has_python), Do(recipes::recipes)],
    ),
    case(
        "programs",
        ONE,
        "Real programs without and with MPS: answers and throughput (8 minutes, or --budget)",
        &[
            Begin(of_ranks("7400.srv", PLAIN)),
            Begin(of_ranks("7401.srv", "MPS=true,MPS_THREADS=auto")),
            Do(programs::programs),
            End("7400.srv"),
            End("7401.srv"),
        ],
    ),
    case(
        "several",
        TWO,
        "OpenMM on one, two and all GPUs, bound, unbound and as by default (5 minutes)",
        &[
            Only(Dynamics::has),
            Slurm(all_gpus),
            Loads(Program::OpenMm, several, "several"),
        ],
    ),
    case(
        "shared",
        ONE,
        "Jobs on shards of one GPU, with an MPS each and one for all; joins, leaves (5 minutes)",
        &[
            Do(shared::times),
            Only(Dynamics::has),
            Slurm(shared::shards),
            Do(shared::gain),
            Do(shared::bystander),
            Do(nothing_left),
        ],
    ),
    case(
        "pack",
        ONE,
        "'mpsctl pack' of 64 OpenMM commands, -n auto against fixed numbers (5 minutes)",
        &[
            Only(Dynamics::has),
            Begin(ON_ALL_GPUS),
            Do(load::pack),
            End("7004.srv"),
        ],
    ),
    case(
        "report",
        ONE,
        "Reports of wasteful jobs, what their advice brings, what measuring costs (4 minutes)",
        &[Do(report::wastes), Do(report::cost)],
    ),
];

const ON_ALL_GPUS: Order = Order {
    all_gpus: true,
    ..Order::new("7004.srv", PLAIN)
};

const fn of_ranks(id: &'static str, account: &'static str) -> Order {
    Order {
        tasks: programs::RANKS,
        ..Order::new(id, account)
    }
}

const PAIRS: &[Side] = &[
    Side::new("floor", By::Hand),
    Side::new("job", By::Job(ACCOUNT)),
    Side::new("job_before", By::Before),
];
const PAIRS_RATIOS: &[Ratio] = &[
    Ratio {
        most: &[(0, 1.15)],
        ..ratio("prologue_times_the_floor", (1, BEGIN), (0, BEGIN))
    },
    ratio("epilogue_times_the_floor", (1, END), (0, END)),
    ratio("prologue_before_times_the_floor", (2, BEGIN), (0, BEGIN)),
    ratio("epilogue_before_times_the_floor", (2, END), (0, END)),
];

const AT_ONCE: &[Side] = &[
    Side::new("alone", By::Job(PLAIN)).on(times::another),
    Side::new("floor_alone", By::Hand).on(times::another),
    Side::new("last_of_all", By::Job(PLAIN)).on(times::all),
    Side::new("floor_last_of_all", By::Hand).on(times::all),
];
const AT_ONCE_RATIOS: &[Ratio] = &[
    ratio("begin_floor_last_by_one_alone", (3, BEGIN), (1, BEGIN)),
    ratio("end_floor_last_by_one_alone", (3, END), (1, END)),
    Ratio {
        most: &[(0, 1.5)],
        or: Some(((3, BEGIN), (1, BEGIN))),
        ..ratio("begin_last_of_all_by_one_alone", (2, BEGIN), (0, BEGIN))
    },
    Ratio {
        most: &[(0, 1.5)],
        or: Some(((3, END), (1, END))),
        ..ratio("end_last_of_all_by_one_alone", (2, END), (0, END))
    },
];

const SIGHT: &[Side] = &[
    Side::new("nvidia_all_seen", By::Hand).after(SLEEP),
    Side::new("nvidia_others_hidden", By::Hidden).after(SLEEP),
    Side::new("ours", By::Job(PLAIN)).after(SLEEP),
];
const SIGHT_RATIOS: &[Ratio] = &[
    Ratio {
        most: &[(1, 1.04), (2, 0.92), (4, 0.72)],
        ..ratio("prologue_by_nvidia_all_seen", (2, BEGIN), (0, BEGIN))
    },
    ratio("prologue_by_nvidia_others_hidden", (2, BEGIN), (1, BEGIN)),
    Ratio {
        most: &[(1, 1.15), (2, 1.15), (4, 1.15)],
        ..ratio("epilogue_by_nvidia_all_seen", (2, END), (0, END))
    },
];
const SIGHT_KERNEL: &[Side] = &[
    Side::new("srun", By::Srun("--gres=gpu:1", 1)).after(SLEEP),
    Side::new("srun_mps", By::Srun("--gres=gpu:1 --mps", 1)).after(SLEEP),
];
const SIGHT_KERNEL_RATIOS: &[Ratio] = &[Ratio {
    most: &[(1, 1.0), (2, 1.0), (4, 0.95)],
    ..ratio("first_kernel_by_without_mps", (1, BEGIN), (0, BEGIN))
}];

const COUNTS: &str = "--clients 1,2,4,8,16";
const KERNELS: Sweep = Sweep {
    name: "kernels",
    what: "small kernels",
    options: COUNTS,
    program: Program::Kernels,
};
const OPENMM: Sweep = Sweep {
    name: "openmm",
    what: "OpenMM",
    options: COUNTS,
    program: Program::OpenMm,
};
const OPENMM_ALONE: Sweep = Sweep {
    name: "openmm-alone",
    options: "--clients 1 --only-mps --threads none,25,12.5",
    ..OPENMM
};
const CONVOLUTION: Sweep = Sweep {
    name: "convolution",
    what: "a small network, one picture at a time",
    options: "--clients 1,4,8 --threads none",
    program: Program::Inference("convolution"),
};
const STREAM: Sweep = Sweep {
    name: "stream",
    what: "a kernel bound by memory",
    program: Program::Inference("stream"),
    ..CONVOLUTION
};

const EACH: usize = 8;

fn load(gpus: usize, clients: usize, flags: &str) -> Load {
    Load {
        gpus,
        clients,
        choice: FIRST,
        flags: flags.to_owned(),
        must: None,
    }
}

fn under_load(run: &Run) -> Vec<Load> {
    let gpus = run.gpus.len();
    vec![
        load(1, EACH, "--mps-bind=none"),
        Load {
            must: Some((EACH, 0.9)),
            ..load(gpus, EACH * gpus, "--mps-bind=block")
        },
        load(gpus, (EACH * gpus).min(MOST), "--mps-bind=none"),
    ]
}

/// Simulations on one, two and all GPUs. With the default binding they must reach as many times one
/// GPU.
fn several(run: &Run) -> Vec<Load> {
    const SHARES: &str = "--mps-threads=auto";
    let on = |gpus: usize, flag: &str| load(gpus, EACH * gpus, format!("{SHARES} {flag}").trim());
    let by_default = |gpus: usize| Load {
        must: Some((EACH, 0.97)),
        ..on(gpus, "")
    };
    let choosing = |choice| Load {
        choice,
        ..by_default(2)
    };
    let mut loads = vec![
        on(1, ""),
        by_default(2),
        on(2, "--mps-bind=none"),
        choosing(BY_RANK),
        choosing(BY_BLOCK),
        on(2, "--mps-bind=block"),
        on(2, "--mps=per-gpu"),
    ];
    let most = run.gpus.len();
    if most > 2 {
        loads.extend([by_default(most), on(most, "--mps-bind=none")]);
    }
    loads.push(on(1, ""));
    loads
}

//! The project against a real GPU. Nothing here changes a GPU's setting (`compute_mode = "keep"`),
//! provokes a fault or resets it. It runs without cargo: `cargo xtask hardware --pack DIR` puts
//! everything it needs into one folder.

mod auto;
mod bench;
mod clients;
mod first;
mod floor;
mod job;
mod load;
mod look;
mod many;
mod memory;
mod mig;
mod pack;
mod programs;
mod recipes;
mod report;
mod result;
mod seen;
mod shared;
mod site;
mod slurm;
mod timeline;
mod watch;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use ::tests::child;
use anyhow::{Context, Result, ensure};
use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};
use clients::Limits;
use result::{Outcome, Section};
use site::{Place, Run};

/// Runs the project against the GPU of this machine. Needs root and NVIDIA's driver; changes no
/// setting of the GPU. Exit codes: 0 every check held, 1 a check failed, 2 the run could not be
/// made.
#[derive(Debug, Parser)]
#[command(name = "hardware", version)]
struct Options {
    /// What runs
    #[arg(default_value = ALL, value_parser = names())]
    part: String,
    /// Directory for the result (hardware.toml and what belongs to it); without it the text goes to
    /// standard output only
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Directory of the programs; the default is this program's own
    #[arg(long, value_name = "DIR")]
    bin: Option<PathBuf>,
    /// An existing account that stands for the ordinary user
    #[arg(long, value_name = "NAME", default_value = "nobody")]
    user: String,
    /// Interleaved pairs of each measurement of times
    #[arg(long, value_name = "N", default_value_t = 20)]
    pairs: usize,
    /// Index of the GPU, as nvidia-smi counts
    #[arg(long, value_name = "N", default_value_t = 0)]
    gpu: usize,
    #[command(flatten)]
    programs: programs::ProgramOptions,
}

/// A part a line: its name, its section of the result, the GPUs that it needs and whether a whole
/// run has it, what it does. With fewer GPUs a part is left out. With one or more, the machine must
/// look afterwards as before.
const PARTS: &str = "\
job          | job          | 1 whole | One whole job: prologue, eight clients, epilogue
pairs        | times        | 0 whole | Times of pairs: NVIDIA's programs by the shortest means, alone and beside NVML, a job, and \
                                  an earlier build's if packed (1 minute)
slurm        | slurm        | 1 whole | The same job through a real Slurm: srun --mps
waits        | waits        | 0 whole | 'srun --mps true' against 'srun true' on the real GPU, in turn (1 minute)
mig          | mig          | 1 whole | MPS on MIG devices, where the machine has some: what is documented and not verified
seen         | seen         | 1 whole | What status, report and explain show of clients, a killed one, one too many and an ended server
contract     | contract     | 0 whole | The contract suite with MPS_SUBJECT=nvidia
auto         | auto         | 1       | Job scripts in a partition of 'auto' beside the same without us: an MPS of their own, 8 ranks \
                                  with 32 connections, 56 programs (3 minutes)
first-kernel | first_kernel | 1       | From srun to the first kernel's end, with --mps and without, 1 to 16 ranks (4 minutes with 20 \
                                  pairs)
sight        | sight        | 1       | A start from sleep: NVIDIA's own with all GPUs seen and with the job's alone, and ours; one \
                                  rank's first kernel (3 minutes with 9 pairs)
timeline     | timeline     | 1       | Who takes each millisecond of a begin and an end, alone and under Slurm (40 seconds)
many         | many         | 2       | All GPUs of the machine: jobs that start and end at once, load, a full GPU beside busy ones \
                                  (3 minutes)
gain         | gain         | 1       | What MPS brings: 'mpsctl sweep' with OpenMM and with small kernels, 1 to 16 clients (8 minutes)
inference    | inference    | 1       | What MPS brings to PyTorch, where the machine has it: 'mpsctl sweep' with requests and their \
                                  times, 1, 4 and 8 clients (3 minutes)
recipes      | recipes      | 1       | The recipes for PyTorch, JAX, CuPy, NCCL and MPI, where the machine has them: four ranks on \
                                  one GPU (90 seconds at most)
programs     | programs     | 1       | Real programs without and with MPS, one rank and four on a GPU: answers and throughput \
                                  (8 minutes, or --budget)
several      | several      | 2       | OpenMM on one, two and all GPUs of the machine, bound, unbound and as the default has it \
                                  (5 minutes)
shared       | shared       | 1       | Jobs of a user on one GPU with shards: OpenMM without MPS, with one each, with one for all; \
                                  joins and leaves (5 minutes)
pack         | pack         | 1       | 'mpsctl pack': 64 OpenMM commands of unlike length on all GPUs of the machine, -n auto \
                                  against fixed numbers (5 minutes)
report       | report       | 1       | Reports of wasteful jobs and of a good one, what their advice brings, and what measuring \
                                  costs (4 minutes)
memory       | memory       | 1       | A job of three clients over its memory together, in an MPS that another job shares (1 minute)";
const ALL: &str = "all";

type Act = fn(&mut Section, &Run) -> Result<()>;

fn act(part: &str) -> Option<Act> {
    Some(match part {
        "job" => job::run,
        "pairs" => bench::pairs,
        "slurm" => slurm::run,
        "waits" => bench::waits,
        "mig" => mig::run,
        "seen" => seen::run,
        "contract" => contract,
        "auto" => auto::run,
        "first-kernel" => first::run,
        "sight" => bench::sight,
        "timeline" => timeline::run,
        "many" => many::run,
        "gain" => load::gain,
        "inference" => load::inference,
        "recipes" => recipes::run,
        "programs" => programs::run,
        "several" => load::several,
        "shared" => shared::run,
        "pack" => pack::run,
        "report" => report::run,
        "memory" => memory::run,
        _ => return None,
    })
}

struct Part {
    name: &'static str,
    section: &'static str,
    gpus: usize,
    in_whole: bool,
    what: &'static str,
}

fn parts() -> impl Iterator<Item = Part> {
    PARTS.lines().map(|line| {
        let mut cells = line.split(" | ").map(str::trim);
        let mut next = || cells.next().unwrap_or_default();
        let (name, section, needs, what) = (next(), next(), next(), next());
        Part {
            name,
            section,
            gpus: needs[..1].parse().unwrap_or(0),
            in_whole: needs.ends_with("whole"),
            what,
        }
    })
}

fn names() -> PossibleValuesParser {
    let all = PossibleValue::new(ALL).help("A whole run: the next seven (the default)");
    let named = parts().map(|part| PossibleValue::new(part.name).help(part.what));
    [all].into_iter().chain(named).into()
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("hardware: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn run(options: Options) -> Result<bool> {
    child::catch_interrupts()?;
    let mut outcome = Outcome::default();
    let mut machine = Section::new("machine");
    let gpus = site::describe(&mut machine)?;
    ensure!(options.gpu < gpus.len(), "there is no GPU {}", options.gpu);
    let user = site::user(&options.user)?;
    machine.fact("user", format!("{} (uid {})", user.name, user.uid));
    outcome.sections.push(machine);
    let package = match options.bin {
        Some(folder) => folder,
        None => {
            let own = std::env::current_exe()?;
            own.parent()
                .context("this program has no directory")?
                .to_owned()
        }
    };
    let mut run = Run {
        place: Place::make(user)?,
        gpus,
        number: options.gpu,
        limits: Limits {
            percent: job::PERCENT,
            memory_mib: job::MEMORY_MIB,
            device_sms: 0,
        },
        package,
        out: options.out,
        pairs: options.pairs,
        programs: options.programs,
    };
    run.place.stage(&run.package)?;
    // The bare client also reports the number of multiprocessors, from which the shares are
    // computed.
    let mut device_sms = 0;
    carry_out(&mut outcome, "outside_mps", |section| {
        device_sms = clients::bare(section, &run)?;
        Ok(())
    })?;
    run.limits.device_sms = device_sms;
    let is_chosen = |part: &Part| match options.part.as_str() {
        ALL => part.in_whole,
        name => part.name == name,
    };
    for part in parts().filter(is_chosen) {
        let act = act(part.name).with_context(|| format!("no part '{}'", part.name))?;
        carry_out(&mut outcome, part.section, |section| match part.gpus {
            0 => act(section, &run),
            least if run.gpus.len() < least => {
                section.fact("left_out", "this machine has one GPU");
                Ok(())
            }
            _ => look::unchanged(section, &run, act),
        })?;
    }
    run.keep("hardware.toml", &outcome.toml()?)?;
    println!("{}", outcome.text());
    Ok(outcome.counts().1 == 0)
}

/// A part that cannot run is a failed check, and the next one begins.
fn carry_out(
    outcome: &mut Outcome,
    name: &'static str,
    act: impl FnOnce(&mut Section) -> Result<()>,
) -> Result<()> {
    child::go_on()?;
    eprintln!("hardware: {name}");
    let mut section = Section::new(name);
    if let Err(e) = act(&mut section) {
        section.check("carried out", false, format!("{e:#}"));
    }
    outcome.sections.push(section);
    child::go_on()
}

/// The contract suite against NVIDIA's control daemon, with the same tests as against the double:
/// the result of each belief.
fn contract(section: &mut Section, run: &Run) -> Result<()> {
    let place = &run.place;
    let mut command = Command::new(place.staged("contract")?);
    command.current_dir("/").env("MPS_SUBJECT", "nvidia");
    command.args(["--test-threads=1", "--nocapture"]);
    if let Ok(control) = site::program("nvidia-cuda-mps-control") {
        command.env("MPS_CONTROL", control);
    }
    command.env("MPS_PROBE", place.bin("mps-probe"));
    command.env("MPS_LOAD", place.bin("cuda-load"));
    command.env("MPS_USER", &place.user.name);
    let ran = child::run(&mut command, "", Duration::from_secs(420))?;
    let mut lines = ran.stdout.lines();
    let summary = lines.rfind(|line| line.starts_with("test result:"));
    let summary = summary.unwrap_or("no summary");
    section.fact("summary", summary);
    section.fact("seconds", (ran.wall.as_secs_f64() * 10.0).round() / 10.0);
    section.fact("output", format!("{}{}", ran.stdout, ran.stderr));
    section.check(
        "contract suite with MPS_SUBJECT=nvidia",
        ran.code == Some(0) && summary.contains(": ok."),
        summary,
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound_and_each_part_does_something() {
        <Options as clap::CommandFactory>::command().debug_assert();
        for part in parts() {
            assert!(
                act(part.name).is_some() && !part.what.is_empty(),
                "{}",
                part.name
            );
        }
    }
}

//! The project against a real GPU. Nothing here changes a GPU's setting (`compute_mode = "keep"`),
//! provokes a fault or resets it. It runs without cargo: `cargo xtask hardware --pack DIR` puts
//! everything it needs into one folder.

mod auto;
mod bench;
mod clients;
mod first;
mod job;
mod load;
mod look;
mod many;
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

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use ::tests::child;
use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use clients::Limits;
use result::{Outcome, Section};
use runner::sweep::plot;
use site::{Place, Run};

/// Runs the project against the GPU of this machine. Needs root and NVIDIA's driver; changes no
/// setting of the GPU. Exit codes: 0 every check held, 1 a check failed, 2 the run could not be
/// made.
#[derive(Debug, Parser)]
#[command(name = "hardware", version)]
struct Options {
    #[command(subcommand)]
    part: Option<Part>,
    /// Directory for the result (hardware.toml and what belongs to it); without it the text goes to
    /// standard output only
    #[arg(long, global = true, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Directory of the programs; the default is this program's own
    #[arg(long, global = true, value_name = "DIR")]
    bin: Option<PathBuf>,
    /// An existing account that stands for the ordinary user
    #[arg(long, global = true, value_name = "NAME", default_value = "nobody")]
    user: String,
    /// Interleaved pairs of each measurement of times
    #[arg(long, global = true, value_name = "N", default_value_t = 20)]
    pairs: usize,
    /// Index of the GPU, as nvidia-smi counts
    #[arg(long, global = true, value_name = "N", default_value_t = 0)]
    gpu: usize,
    #[command(flatten)]
    programs: programs::ProgramOptions,
    /// Draw the picture of this result into --out; nothing is measured
    #[arg(long, value_name = "FILE", requires = "out")]
    draw: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
enum Part {
    /// Everything but 'auto', 'first-kernel', 'sight', 'timeline', 'many', 'gain', 'inference',
    /// 'recipes', 'programs', 'several', 'shared', 'pack', 'report' (the default)
    All,
    /// The contract suite with MPS_SUBJECT=nvidia
    Contract,
    /// One whole job: prologue, eight clients, epilogue
    Job,
    /// Times of pairs: NVIDIA's programs by the shortest means, alone and beside NVML, a job, and
    /// an earlier build's if packed (1 minute)
    Pairs,
    /// From srun to the first kernel's end, with --mps and without, 1 to 16 ranks (4 minutes with
    /// 20 pairs)
    FirstKernel,
    /// A start from sleep: NVIDIA's own with all GPUs seen and with the job's alone, and ours; one
    /// rank's first kernel (3 minutes with 9 pairs)
    Sight,
    /// Who takes each millisecond of a begin and an end, alone and under Slurm (40 seconds)
    Timeline,
    /// The same job through a real Slurm: srun --mps
    Slurm,
    /// Job scripts in a partition of 'auto' beside the same without us: an MPS of their own, 8
    /// ranks with 32 connections, 56 programs (3 minutes)
    Auto,
    /// 'srun --mps true' against 'srun true' on the real GPU, in turn (1 minute)
    Waits,
    /// MPS on MIG devices, where the machine has some: what is documented and not verified
    Mig,
    /// All GPUs of the machine: jobs that start and end at once, load, a full GPU beside busy ones
    /// (3 minutes)
    Many,
    /// What MPS brings: 'mpsctl sweep' with OpenMM and with small kernels, 1 to 16 clients (8
    /// minutes)
    Gain,
    /// What MPS brings to PyTorch, where the machine has it: 'mpsctl sweep' with requests and their
    /// times, 1, 4 and 8 clients (3 minutes)
    Inference,
    /// The recipes for PyTorch, JAX, CuPy, NCCL and MPI, where the machine has them: four ranks on
    /// one GPU (90 seconds at most)
    Recipes,
    /// Real programs without and with MPS, one rank and four on a GPU: answers and throughput (8
    /// minutes, or --budget)
    Programs,
    /// OpenMM on one, two and all GPUs of the machine, bound, unbound and as the default has it (5
    /// minutes)
    Several,
    /// Jobs of a user on one GPU with shards: OpenMM without MPS, with one each, with one for all;
    /// joins and leaves (5 minutes)
    Shared,
    /// 'mpsctl pack': 64 OpenMM commands of unlike length on all GPUs of the machine, -n auto
    /// against fixed numbers (5 minutes)
    Pack,
    /// Reports of wasteful jobs and of a good one, what their advice brings, and what measuring
    /// costs (200 seconds)
    Report,
    /// What status, report and explain show of clients, a killed one, one too many and an ended
    /// server
    Seen,
}

/// A part of the run, its section in the result, and what fills the section.
struct Step {
    part: Part,
    name: &'static str,
    /// With fewer GPUs it is left out. With one or more, the machine must look afterwards as
    /// before.
    gpus: usize,
    act: Act,
}

type Act = fn(&mut Section, &Run) -> Result<()>;

const fn step(part: Part, name: &'static str, gpus: usize, act: Act) -> Step {
    Step {
        part,
        name,
        gpus,
        act,
    }
}

/// The first [`WHOLE`] are a whole run.
const STEPS: [Step; 20] = [
    step(Part::Job, "job", 1, job::run),
    step(Part::Pairs, "times", 0, bench::pairs),
    step(Part::Slurm, "slurm", 1, slurm::run),
    step(Part::Waits, "waits", 0, bench::waits),
    step(Part::Mig, "mig", 1, mig::run),
    step(Part::Seen, "seen", 1, seen::run),
    step(Part::Contract, "contract", 0, contract),
    step(Part::Auto, "auto", 1, auto::run),
    step(Part::FirstKernel, "first_kernel", 1, first::run),
    step(Part::Sight, "sight", 1, bench::sight),
    step(Part::Timeline, "timeline", 1, timeline::run),
    step(Part::Many, "many", 2, many::run),
    step(Part::Gain, "gain", 1, load::gain),
    step(Part::Inference, "inference", 1, load::inference),
    step(Part::Recipes, "recipes", 1, recipes::run),
    step(Part::Programs, "programs", 1, programs::run),
    step(Part::Several, "several", 2, load::several),
    step(Part::Shared, "shared", 1, shared::run),
    step(Part::Pack, "pack", 1, pack::run),
    step(Part::Report, "report", 1, report::run),
];
const WHOLE: usize = 8;

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
    if let (Some(result), Some(out)) = (&options.draw, &options.out) {
        draw(result, out)?;
        return Ok(true);
    }
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
    let part = options.part.unwrap_or(Part::All);
    let chosen = STEPS
        .iter()
        .enumerate()
        .filter(|(number, step)| match part {
            Part::All => *number < WHOLE,
            part => step.part == part,
        });
    for (_, step) in chosen {
        carry_out(&mut outcome, step.name, |section| match step.gpus {
            0 => (step.act)(section, &run),
            least if run.gpus.len() < least => {
                section.fact("left_out", "this machine has one GPU");
                Ok(())
            }
            _ => look::unchanged(section, &run, step.act),
        })?;
    }
    run.keep("hardware.toml", &outcome.toml()?)?;
    println!("{}", outcome.text());
    Ok(outcome.counts().1 == 0)
}

/// `first-kernel.svg` of a `hardware.toml`; of a sweep's JSON a file of its name.
fn draw(result: &Path, out: &Path) -> Result<()> {
    let text = fs::read_to_string(result).with_context(|| format!("'{}'", result.display()))?;
    let name = result
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    let (name, picture) = match result.extension().is_some_and(|end| end == "json") {
        true => {
            let told: serde_json::Value = serde_json::from_str(&text)?;
            let title = told["title"].as_str().context("the result has no title")?;
            let outcome = serde_json::from_value(told.clone())?;
            let name = name.rsplit('-').next().unwrap_or_default();
            (name, plot::svg(&shared::named(outcome), title))
        }
        false => {
            let result: toml::Table = toml::from_str(&text)?;
            let section = result
                .get("first_kernel")
                .and_then(|section| section.as_table());
            let section = section.context("the result has no section 'first_kernel'")?;
            ("first-kernel", first::picture(section)?)
        }
    };
    fs::create_dir_all(out)?;
    Ok(fs::write(out.join(format!("{name}.svg")), picture)?)
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
    fn the_command_line_is_sound() {
        <Options as clap::CommandFactory>::command().debug_assert();
    }
}

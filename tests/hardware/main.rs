//! The project against a real GPU: contract suite, one whole job, times, and a real Slurm, with `compute_mode = "keep"`.
//! Nothing here changes a setting of a GPU, provokes a fault of it or resets it.
//!
//! It runs without cargo: `cargo xtask hardware --pack DIR` puts it and everything it needs into one folder.

mod anatomy;
mod bind;
mod child;
mod clients;
mod contract;
mod debs;
mod devices;
mod gain;
mod job;
mod look;
mod many;
mod mig;
mod openmm;
mod partitions;
mod probe;
mod recipes;
mod result;
mod seen;
mod several;
mod site;
mod slurm;
mod timing;
mod vendor;
mod waits;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use clients::Limits;
use result::{Outcome, Section};
use site::{Gpu, Place};

/// Runs the project against the GPU of this machine. Needs root and NVIDIA's driver; changes no setting of the GPU.
/// Exit codes: 0 every check held, 1 a check failed, 2 the run could not be made.
#[derive(Debug, Parser)]
#[command(name = "hardware", version)]
struct Options {
    #[command(subcommand)]
    part: Option<Part>,
    /// Directory for the result (hardware.toml and hardware.txt); without it the text goes to standard output only
    #[arg(long, global = true, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Directory of the programs; the default is this program's own
    #[arg(long, global = true, value_name = "DIR")]
    bin: Option<PathBuf>,
    /// An existing account that stands for the ordinary user
    #[arg(long, global = true, value_name = "NAME", default_value = "nobody")]
    user: String,
    /// Interleaved pairs of floor and prologue
    #[arg(long, global = true, value_name = "N", default_value_t = 20)]
    pairs: usize,
    /// Index of the GPU, as nvidia-smi counts
    #[arg(long, global = true, value_name = "N", default_value_t = 0)]
    gpu: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Subcommand)]
enum Part {
    /// Everything but 'bind', 'many', 'gain', 'inference', 'recipes' and 'several' (the default)
    All,
    /// The contract suite with MPS_SUBJECT=nvidia
    Contract,
    /// The probe outside MPS and under a daemon started by hand
    Probe,
    /// How long daemon and server take by the shortest possible means
    Floor,
    /// One whole job: prologue, eight clients, epilogue
    Job,
    /// A job with static partitions, or its refusal where the driver has none
    Partitions,
    /// Pairs of floor and prologue
    Pairs,
    /// The same job through a real Slurm: srun --mps
    Slurm,
    /// 'srun --mps true' against 'srun true' on the real GPU, in turn (1 minute)
    Waits,
    /// What the plugin costs a job that did not ask, on simulated nodes of this machine's own Slurm (2 minutes)
    Plugin,
    /// Two GPUs, listed partly and against the order of the bus: MPS on the GPU that the job has without it
    Devices,
    /// MPS on MIG devices, where the machine has some: what is documented and not verified
    Mig,
    /// Ranks on two GPUs under every --mps-bind: launches of small kernels, 1 to 16 clients (7 minutes)
    Bind,
    /// All GPUs of the machine: jobs that start and end at once, one job of all, load, a full GPU beside busy ones (3 minutes)
    Many,
    /// What MPS brings: 'mpsctl sweep' with OpenMM and with small kernels, 1 to 16 clients (8 minutes)
    Gain,
    /// What MPS brings to PyTorch, where the machine has it: 'mpsctl sweep' with inference, 1 and 8 clients (2 minutes)
    Inference,
    /// The recipes for PyTorch, JAX, CuPy, NCCL and MPI, where the machine has them: four ranks on one GPU (90 seconds at most)
    Recipes,
    /// OpenMM on one, two and all GPUs of the machine, bound, unbound and as the default has it (5 minutes)
    Several,
    /// What status, report and explain show of clients, a killed one, one too many and an ended server
    Seen,
    /// Whether a real Slurm comes up on this machine, without the plugin
    SlurmAlone,
}

impl Part {
    /// Whether a run of `self` takes `other` in. The floor is part of the pairs, the plain Slurm of the other one, and
    /// the ways to bind and the gain take long.
    fn takes(self, other: Self) -> bool {
        self == other
            || (self == Self::All
                && !matches!(
                    other,
                    Self::Floor
                        | Self::SlurmAlone
                        | Self::Bind
                        | Self::Many
                        | Self::Gain
                        | Self::Inference
                        | Self::Recipes
                        | Self::Several
                ))
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("hardware: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<bool> {
    child::catch_interrupts()?;
    let mut outcome = Outcome::default();
    let mut machine = Section::new("machine");
    let gpus = site::describe(&mut machine)?;
    let gpu = gpus
        .get(options.gpu)
        .with_context(|| format!("there is no GPU {}", options.gpu))?;
    let place = Place::make(site::user(&options.user)?)?;
    machine.fact("user", format!("{} (uid {})", place.user.name, place.user.uid));
    outcome.sections.push(machine);
    place.stage(&package(options)?)?;
    parts(options, &place, gpu, &mut outcome)?;
    drop(place);
    if let Some(out) = &options.out {
        fs::create_dir_all(out)?;
        fs::write(out.join("hardware.toml"), outcome.toml())?;
        fs::write(out.join("hardware.txt"), outcome.text())?;
    }
    println!("{}", outcome.text());
    Ok(outcome.counts().1 == 0)
}

/// Runs the parts; one that cannot be carried out is a failed check, and the next goes on.
fn parts(options: &Options, place: &Place, gpu: &Gpu, outcome: &mut Outcome) -> Result<()> {
    let part = options.part.unwrap_or(Part::All);
    let mut device_sms = 0;
    // The bare client also tells how many multiprocessors there are: the shares are computed from that.
    step(outcome, "outside_mps", |section| {
        device_sms = probe::bare(section, place, gpu)?;
        Ok(())
    })?;
    let limits = Limits {
        percent: job::PERCENT,
        memory_mib: job::MEMORY_MIB,
        device_sms,
    };
    if part.takes(Part::Probe) {
        step(outcome, "daemon_by_hand", |section| {
            probe::under_daemon(section, place, gpu, &limits)
        })?;
    }
    if part.takes(Part::Floor) {
        step(outcome, "floor", |section| {
            timing::floor(section, place, gpu, options.pairs)
        })?;
    }
    if part.takes(Part::Job) {
        step(outcome, "job", |section| job::whole(section, place, gpu, &limits))?;
    }
    if part.takes(Part::Partitions) {
        step(outcome, "partitions", |section| {
            partitions::run(section, place, gpu)
        })?;
    }
    if part.takes(Part::Pairs) {
        step(outcome, "times", |section| {
            timing::others(section, place, gpu, options.pairs)?;
            timing::pairs(section, place, gpu, options.pairs)
        })?;
    }
    if part == Part::SlurmAlone {
        let debs = package(options)?.join("debs");
        step(outcome, "slurm_alone", |section| {
            slurm::alone(section, place, u32::try_from(options.gpu)?, &debs)
        })?;
    }
    if part.takes(Part::Slurm) {
        let minor = u32::try_from(options.gpu)?;
        let debs = package(options)?.join("debs");
        step(outcome, "slurm", |section| {
            slurm::run(section, place, gpu, minor, &limits, &debs)
        })?;
    }
    if part.takes(Part::Waits) {
        let minor = u32::try_from(options.gpu)?;
        let debs = package(options)?.join("debs");
        step(outcome, "waits", |section| {
            waits::run(section, place, gpu, minor, options.pairs, &debs)
        })?;
    }
    if part.takes(Part::Plugin) {
        let package = package(options)?;
        let (debs, out) = (package.join("debs"), options.out.as_deref());
        step(outcome, "plugin", |section| {
            waits::plugin(section, &package, &debs, out, 2 * options.pairs)
        })?;
    }
    if part.takes(Part::Devices) {
        let debs = package(options)?.join("debs");
        step(outcome, "devices", |section| devices::run(section, place, &debs))?;
    }
    if part.takes(Part::Mig) {
        step(outcome, "mig", |section| mig::run(section, place, gpu))?;
    }
    if part.takes(Part::Bind) {
        let debs = package(options)?.join("debs");
        step(outcome, "bind", |section| bind::run(section, place, &debs))?;
    }
    if part.takes(Part::Many) {
        let debs = package(options)?.join("debs");
        step(outcome, "many", |section| many::run(section, place, &debs))?;
    }
    if part.takes(Part::Gain) {
        let (package, out) = (package(options)?, options.out.as_deref());
        step(outcome, "gain", |section| {
            gain::run(section, place, gpu, &package, out)
        })?;
    }
    let out = options.out.as_deref();
    if part.takes(Part::Inference) {
        step(outcome, "inference", |section| {
            gain::inference(section, place, gpu, out)
        })?;
    }
    if part.takes(Part::Recipes) {
        step(outcome, "recipes", |section| recipes::run(section, place, gpu))?;
    }
    if part.takes(Part::Several) {
        let package = package(options)?;
        step(outcome, "several", |section| {
            several::run(section, place, &package, out, &package.join("debs"))
        })?;
    }
    if part.takes(Part::Seen) {
        step(outcome, "seen", |section| seen::run(section, place, gpu, out))?;
    }
    if part.takes(Part::Contract) {
        step(outcome, "contract", |section| contract::run(section, place))?;
    }
    Ok(())
}

fn step(
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

/// The folder of the programs.
fn package(options: &Options) -> Result<PathBuf> {
    if let Some(folder) = &options.bin {
        return Ok(folder.clone());
    }
    let own = std::env::current_exe()?;
    Ok(own.parent().context("this program has no directory")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_help_names_what_a_whole_run_leaves_out() {
        let command = Options::command();
        let about = |name: &str| {
            let found = command.get_subcommands().find(|one| one.get_name() == name);
            found.and_then(|one| one.get_about()).unwrap().to_string()
        };
        for name in command.get_subcommands().map(clap::Command::get_name) {
            let part = Options::parse_from(["hardware", name]).part.unwrap();
            let is_part_of_another = matches!(part, Part::Floor | Part::SlurmAlone);
            let is_named = about("all").contains(&format!("'{name}'"));
            let is_left_out = !Part::All.takes(part);
            assert_eq!(is_named || is_part_of_another, is_left_out, "{name}");
        }
    }
}

//! The project against a real GPU. Nothing here changes a GPU's setting (`compute_mode = "keep"`),
//! provokes a fault or resets it. It runs without cargo: `cargo xtask hardware --pack DIR` puts
//! everything it needs into one folder.

mod auto;
mod cases;
mod clients;
mod floor;
mod job;
mod load;
mod look;
mod plot;
mod programs;
mod recipes;
mod report;
mod result;
mod runner;
mod scenes;
mod shared;
mod site;
mod slurm;
mod timeline;
mod times;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use ::tests::child;
use anyhow::{Context, Result, ensure};
use cases::CASES;
use clap::Parser;
use clap::builder::{PossibleValue, PossibleValuesParser};
use result::{Outcome, Section};
use runner::Case;
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

const ALL: &str = "all";

fn names() -> PossibleValuesParser {
    let all = PossibleValue::new(ALL).help("A whole run: the first four (the default)");
    let named = CASES.iter();
    let named = named.map(|case| PossibleValue::new(case.name).help(case.shows));
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
    let program = std::env::current_exe()?;
    let package = program.parent();
    let package = package.context("this program has no directory")?;
    let mut run = Run {
        place: Place::make(user)?,
        gpus,
        number: options.gpu,
        device_sms: 0,
        package: package.to_owned(),
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
    run.device_sms = device_sms;
    let is_chosen = |case: &&Case| match options.part.as_str() {
        ALL => case.in_whole,
        name => case.name == name,
    };
    for case in CASES.iter().filter(is_chosen) {
        carry_out(&mut outcome, case.name, |section| {
            runner::carry_out(case, section, &run)
        })?;
    }
    let result = outcome.toml()?;
    run.keep("hardware.toml", &result)?;
    println!("{result}\n{}", outcome.failures());
    Ok(outcome.counts().1 == 0)
}

/// A case that cannot run is a failed check, and the next one begins.
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

//! `mps-runner`: runs a user's commands on a job's GPUs under its MPS. Root calls `mpsctl`, which
//! must not need progress bars. So `mpsctl sweep` and `mpsctl pack` become this program.
//!
//! [`engine`] runs one command, [`places`] says on which GPU, [`gpus`] asks NVML what it takes.
//! [`sweep`] and [`pack`] are the two verbs.
#![deny(unsafe_code)]

mod engine;
mod gpus;
mod pack;
mod places;
mod progress;
mod regular;
mod setting;
mod share;
mod sweep;

use clap::{FromArgMatches as _, Subcommand};
use ctl::{Caller, mpsctl};
use mpsd_core::failure::EXIT_NODE;
use setting::{Setting, told};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run 1, 2, 4, 8 copies of a program with the job's MPS and without, and say what does best
    ///
    /// Each copy sees one of the job's GPUs, in turn, and has its share of the threads from its
    /// start. Ask for the job with --mps alone: a client can only lower a share that the job has.
    /// Each run ends all processes that its copies have started, also if the sweep is interrupted
    /// or killed. On a GPU that the job made exclusive nothing runs outside its MPS: the comparison
    /// is then with one copy at a time, which has the GPU to itself, under that MPS.
    Sweep(sweep::Sweep),
    /// Run the commands of a file on the job's GPUs under its MPS, as many at once as do best
    ///
    /// FILE has a shell command on each line, as GNU parallel and TACC's launcher read it. Blank
    /// lines and lines that begin with # are left out. Each command sees one of the job's GPUs.
    /// Exit status: 0 all commands succeeded; 1 to 100 so many failed; 101 more did; 255 pack
    /// failed; 128 and its number if a signal ended pack.
    Pack(pack::Pack),
}

/// The whole command line of `mpsctl`, with our verbs.
pub fn command() -> clap::Command {
    let own = Verb::augment_subcommands(clap::Command::default());
    // The usage names the command that the user typed, not this program.
    let mpsctl = mpsctl::command().bin_name("mpsctl");
    own.get_subcommands().fold(mpsctl, |command, verb| {
        let name = verb.get_name();
        let examples = ctl::examples::of(&format!("mpsctl {name}"));
        let verb = verb.clone().after_help(examples);
        command.mut_subcommand(name, |_| verb)
    })
}

/// Runs the program; returns its exit code.
pub fn main() -> u8 {
    let parsed = command().try_get_matches().and_then(|matches| {
        let config: PathBuf = matches.get_one("config").cloned().unwrap_or_default();
        Ok((config, Verb::from_arg_matches(&matches)?))
    });
    let (config, verb) = match parsed {
        Ok(both) => both,
        Err(error) => return usage(&error),
    };
    let (job, json) = match &verb {
        Verb::Sweep(verb) => (&verb.job, verb.json),
        Verb::Pack(verb) => (&verb.job, verb.json),
    };
    let caller = Caller::this(&config, job.as_deref());
    let done = Setting::new().and_then(|setting| match &verb {
        Verb::Sweep(verb) => verb.run(&caller, &setting),
        Verb::Pack(verb) => verb.run(&caller, &setting),
    });
    done.unwrap_or_else(|error| {
        let mut failure = told(&error);
        if let Verb::Pack(_) = verb {
            // As GNU parallel's: the other codes are numbers of failed commands.
            failure.code = pack::EXIT_NOTHING_RUN;
        }
        mpsctl::tell(&failure, json);
        failure.code
    })
}

fn usage(error: &clap::Error) -> u8 {
    let _ = error.print();
    if !error.use_stderr() {
        return 0;
    }
    let verb = std::env::args_os().find(|word| word == "sweep" || word == "pack");
    let is_pack = verb.is_some_and(|verb| verb == "pack");
    let code = if is_pack {
        pack::EXIT_NOTHING_RUN
    } else {
        EXIT_NODE
    };
    mpsctl::say_usage_error(error, i32::from(code));
    code
}

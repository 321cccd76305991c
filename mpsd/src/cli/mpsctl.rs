//! The command line of `mpsctl`.

use super::common::CONFIG;
use super::environment::{Env, Exec};
use super::pbs::{self, Surroundings};
use super::site::{Advertise, ConfigVerb};
use super::{complain, say};
use crate::config::{Config, Settings};
use crate::model::Failure;
use crate::model::failure::{EXIT_NODE, EXIT_REFUSED};
use crate::scheduler::{Host, Site, ThisHost};
use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};

const NAME: &str = "mpsctl";

/// The user's and the administrator's tool for jobs with an NVIDIA MPS of their own.
#[derive(Debug, Parser)]
#[command(name = "mpsctl", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Print the variables that attach a shell to its job's MPS: eval "$(mpsctl env)"
    Env(Env),
    /// Run a program attached to the job's MPS, with its rank's limits
    Exec(Exec),
    /// The configuration
    #[command(subcommand)]
    Config(ConfigVerb),
    /// Print the lines that make this node offer shares of its GPUs
    Advertise(Advertise),
    /// Torque and OpenPBS
    Pbs(Pbs),
}

#[derive(Debug, clap::Args)]
struct Pbs {
    /// The configuration
    #[arg(long, global = true, value_name = "FILE", default_value = CONFIG)]
    config: PathBuf,
    #[command(subcommand)]
    verb: pbs::Pbs,
}

/// Runs the program; returns its exit code.
pub fn main() -> u8 {
    let env = |name: &str| std::env::var(name).ok();
    let refused = |refusal: crate::model::Refusal| Failure::from(refusal);
    let text = match Arguments::parse().verb {
        Verb::Env(verb) => verb.run(&env).map_err(refused),
        Verb::Exec(verb) => match verb.run(&env) {
            Ok(never) => match never {},
            Err(refusal) => Err(refused(refusal)),
        },
        Verb::Config(ConfigVerb::Show(verb)) => verb.run(&ThisHost.name()),
        Verb::Advertise(verb) => programs().and_then(|dir| verb.run(&ThisHost.name(), &dir.join("mpsd"))),
        Verb::Pbs(verb) => return pbs(&verb),
    };
    match text {
        Ok(text) => {
            say(&text);
            0
        }
        Err(failure) => {
            complain(NAME, &failure.to_string());
            failure.exit_code()
        }
    }
}

/// The directory of our programs: all of them lie in one.
fn programs() -> Result<PathBuf, Failure> {
    let unknown = |why: String| crate::model::Undetermined::new("the directory of this program", why);
    let exe = std::env::current_exe().map_err(|e| unknown(e.to_string()))?;
    Ok(exe.parent().map(Path::to_path_buf).ok_or_else(|| unknown("it has none".to_owned()))?)
}

fn pbs(arguments: &Pbs) -> u8 {
    let around = match surroundings(&arguments.config) {
        Ok(around) => around,
        Err(failure) => {
            complain(NAME, &failure.to_string());
            return EXIT_NODE;
        }
    };
    let mut out = std::io::stdout().lock();
    match pbs::run(&arguments.verb, &around, &ThisHost, &mut out) {
        Ok(code) => code,
        Err(why) => {
            complain(NAME, &why);
            EXIT_REFUSED
        }
    }
}

/// Where PBS is and where we are. No configuration at all is fine: it has defaults for everything.
fn surroundings(config: &Path) -> Result<Surroundings, Failure> {
    let host = ThisHost.name();
    let settings = if config == Path::new(CONFIG) && !config.exists() {
        Settings::usual(&host)
    } else {
        let read = Config::load(config).and_then(|file| file.for_node(&host, &[]));
        read.map_err(crate::model::Fault::from)?
    };
    let site = Site { home: settings.pbs.home, exec: settings.pbs.exec, node: settings.pbs.node };
    Ok(Surroundings {
        site,
        programs: programs()?,
        config: (config != Path::new(CONFIG)).then(|| config.to_path_buf()),
        state: settings.paths.state().to_path_buf(),
        deadline: settings.deadline,
    })
}

//! `mpsctl slurm enable | disable | check`: our line in a Slurm's plugin stack, and nobody else's file touched.

use super::check::check;
use super::conf::Conf;
use super::line::{PLUGIN, TAG, USUAL_PROGRAMS, is_foreign};
use super::release::{Release, installed, stamp_of};
use crate::scheduler::setup::{self, Done, SetUp, Stopped, Surroundings};
use crate::scheduler::site::Site;
use clap::{FromArgMatches, Subcommand};
use mpsd_core::{Failure, Refusal};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where the package puts the plugin for each release.
const PLUGINS: &str = "/usr/lib/mpsd/spank";
/// The verbs of `mpsctl slurm`.
#[derive(Debug, Clone, clap::Subcommand)]
enum Slurm {
    /// Write our line for the plugin that fits the installed Slurm (root)
    ///
    /// On every host where users submit or jobs run. Only plugstack.conf.d/mpsd.conf beside slurm.conf is written, and
    /// plugstack.conf itself where there is none. slurmd must be restarted afterwards: it reads the stack when it starts.
    Enable(Enable),
    /// Remove what enable wrote (root)
    Disable(Place),
    /// Say what works, what could be better, and what is wrong, one line each
    Check(Place),
}

/// Which Slurm.
#[derive(Debug, Clone, Default, clap::Args)]
struct Place {
    /// slurm.conf; from SLURM_CONF or the usual places if not given
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
    /// This node's name in Slurm; the host's if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// The directory with a plugin for each release
    #[arg(long, value_name = "DIR", default_value = PLUGINS)]
    pub plugins: PathBuf,
}

/// `mpsctl slurm enable`.
#[derive(Debug, Clone, Default, clap::Args)]
struct Enable {
    /// Which Slurm
    #[command(flatten)]
    pub place: Place,
    /// The release, as in 23.11; what the installed Slurm says if not given
    #[arg(long, value_name = "YY.MM", value_parser = Release::parse)]
    pub release: Option<Release>,
    /// Write 'required' instead of 'optional': where the plugin cannot be loaded, every srun fails
    #[arg(long)]
    pub required: bool,
    /// What the plugin does: job (jobs only), step (steps only), both
    #[arg(long, value_name = "SCOPE", value_parser = ["both", "job", "step"])]
    pub scope: Option<String>,
    /// Only where enable wrote a line before: name the plugin for the Slurm that is here now (run by the packages)
    #[arg(long, conflicts_with_all = ["required", "scope"])]
    pub refresh: bool,
}

/// The verbs, as `mpsctl` offers them.
pub(crate) struct Verbs;

impl SetUp for Verbs {
    fn command(&self) -> clap::Command {
        Slurm::augment_subcommands(clap::Command::new("slurm").about("Our plugin in a Slurm"))
            .subcommand_required(true)
            .arg_required_else_help(true)
    }

    fn run(&self, matches: &clap::ArgMatches, around: &Surroundings<'_>) -> Result<Done, Stopped> {
        let verb = Slurm::from_arg_matches(matches).map_err(|error| error.to_string())?;
        if !matches!(verb, Slurm::Check(_)) && !nix::unistd::geteuid().is_root() {
            let refused = Refusal::new("this verb", "it changes Slurm's configuration", "root");
            return Err(Failure::from(refused).into());
        }
        Ok(match &verb {
            Slurm::Enable(options) if options.refresh => refresh(options, around),
            Slurm::Enable(options) => enable(options, around),
            Slurm::Disable(place) => disable(&find(place, around)?),
            Slurm::Check(place) => {
                let node = place.node.clone().unwrap_or_else(|| around.host.name());
                Ok(check(&place.plugins, &find(place, around)?, &node, around).into())
            }
        }?)
    }
}

fn find(place: &Place, around: &Surroundings<'_>) -> Result<Conf, String> {
    let of_environment = Site::of(&around.settings).slurm_conf.map(PathBuf::from);
    let named = place.slurm_conf.as_deref().or(of_environment.as_deref());
    Conf::find(named, around.host)
}

fn enable(options: &Enable, around: &Surroundings<'_>) -> Result<Done, String> {
    let conf = find(&options.place, around)?;
    if conf.is_cached() {
        return Err(format!(
            "'{}': slurmd fetched it from the controller and will again; do this on the controller's host, in the \
             directory of its slurm.conf",
            conf.file.display()
        ));
    }
    let release = match options.release {
        Some(release) => release,
        None => installed(around.host)
            .ok_or("no slurmd, sinfo or srun here says its version; name it with --release")?,
    };
    let plugin = plugin(&options.place.plugins, release)?;
    let snippet = conf.snippet();
    if is_foreign(&snippet) {
        return Err(format!(
            "'{}': there is one that we did not write; remove it first",
            snippet.display()
        ));
    }
    let mut done = Done::default();
    write(&snippet, &line(options, &plugin, around))?;
    done.did(format!("wrote '{}' for Slurm {release}", snippet.display()));
    let stack = conf.stack();
    if !stack.exists() {
        write(&stack, &format!("{TAG}\n{}\n", conf.include()))?;
        done.did(format!("wrote '{}', which includes it", stack.display()));
    } else if !conf.includes_snippet() {
        let (stack, line) = (stack.display(), conf.include());
        done.left(format!("add this line to '{stack}': {line}"));
    }
    done.did(
        "restart slurmd on the nodes: it reads the plugin stack when it starts, and no 'reconfigure' helps",
    );
    Ok(done)
}

/// The plugin for `release`, with its stamp looked at.
fn plugin(plugins: &Path, release: Release) -> Result<PathBuf, String> {
    let file = plugins.join(release.to_string()).join(PLUGIN);
    if !file.exists() {
        let names = fs::read_dir(plugins).into_iter().flatten().flatten();
        let mut have: Vec<String> = names
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        have.sort();
        let have = if have.is_empty() {
            "none".to_owned()
        } else {
            have.join(", ")
        };
        return Err(format!(
            "no '{}': no plugin for Slurm {release}; there are: {have}",
            file.display()
        ));
    }
    match stamp_of(&file)? {
        stamp if stamp == release => Ok(file),
        other => Err(format!(
            "'{}' is stamped for Slurm {other}, not {release}",
            file.display()
        )),
    }
}

fn line(options: &Enable, plugin: &Path, around: &Surroundings<'_>) -> String {
    let word = if options.required { "required" } else { "optional" };
    let mut line = format!("{word} {}", plugin.display());
    if let Some(config) = around.config {
        line += &format!(" config={}", config.display());
    }
    if around.programs != Path::new(USUAL_PROGRAMS) {
        let programs = around.programs.display();
        line += &format!(" prologue={programs}/mps-prologue epilogue={programs}/mps-epilogue");
    }
    if let Some(scope) = &options.scope {
        line += &format!(" scope={scope}");
    }
    format!("{TAG}\n{line}\n")
}

/// After an upgrade of Slurm our line names the plugin for the release that is here now. The packages run it, so a host
/// without our line is left as it is, without a word.
fn refresh(options: &Enable, around: &Surroundings<'_>) -> Result<Done, String> {
    let mut done = Done::default();
    let Ok(conf) = find(&options.place, around) else {
        return Ok(done);
    };
    let snippet = conf.snippet();
    if conf.is_cached() || !snippet.exists() || is_foreign(&snippet) {
        return Ok(done);
    }
    let release = options.release.or_else(|| installed(around.host));
    let release = release.ok_or("no slurmd, sinfo or srun here says its version; name it with --release")?;
    let plugin = plugin(&options.place.plugins, release)?;
    let old =
        fs::read_to_string(&snippet).map_err(|e| format!("cannot read '{}': {e}", snippet.display()))?;
    let new = renamed(&old, &plugin);
    if new != old {
        write(&snippet, &new)?;
        done.did(format!(
            "'{}' now names the plugin for Slurm {release}",
            snippet.display()
        ));
        done.did("restart slurmd on the nodes: it reads the plugin stack when it starts");
    }
    Ok(done)
}

/// The text with `plugin` in the place of ours; the words before and after it are the administrator's choice.
fn renamed(text: &str, plugin: &Path) -> String {
    let line = |line: &str| {
        let mut words: Vec<&str> = line.split(' ').collect();
        let ours = |word: &&str| Path::new(word).file_name().is_some_and(|name| name == PLUGIN);
        let plugin = plugin.display().to_string();
        if matches!(words[0], "optional" | "required") && words.get(1).is_some_and(ours) {
            words[1] = &plugin;
        }
        words.join(" ") + "\n"
    };
    text.lines().map(line).collect()
}

fn disable(conf: &Conf) -> Result<Done, String> {
    let mut done = Done::default();
    let (snippet, stack) = (conf.snippet(), conf.stack());
    for file in [&snippet, &stack] {
        if file.exists() && !is_foreign(file) {
            setup::remove(file, &mut done)?;
        }
    }
    if snippet.exists() {
        done.left(format!("'{}' is not ours: left as it is", snippet.display()));
    } else if done.lines.is_empty() {
        done.did("nothing of ours is there");
    } else {
        done.did("restart slurmd on the nodes: it keeps the plugin until then");
    }
    Ok(done)
}

/// Writes a file that all may read, making its directory if need be.
fn write(file: &Path, text: &str) -> Result<(), String> {
    let failed = |e: std::io::Error| format!("cannot write '{}': {e}", file.display());
    let directory = file.parent().unwrap_or(Path::new("/"));
    if !directory.exists() {
        fs::create_dir(directory).map_err(failed)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    setup::place(file, text, 0o644).map_err(failed)
}

#[cfg(test)]
mod tests;

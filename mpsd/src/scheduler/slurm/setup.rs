//! `mpsctl slurm enable | disable | check`: our line in a Slurm's plugin stack, and nobody else's file touched.

use super::check::check;
use super::commands::{Installation, several};
use super::conf::Conf;
use super::line::{self, PLUGIN, TAG, USUAL_PROGRAMS, is_foreign, is_ours};
use super::pyxis;
use super::release::{Release, installed, stamp_of};
use crate::scheduler::running::Running;
use crate::scheduler::setup::{self, CheckLine, SetUp, SetupContext, VerbError, VerbReport};
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
    /// On every host where users submit or jobs run; on a configless cluster on the controller's. Only plugstack.conf.d/mpsd.conf
    /// beside slurm.conf is written, and plugstack.conf itself where there is none or where the controller sends it. slurmd must
    /// be restarted afterwards: it reads the stack when it starts.
    Enable(Enable),
    /// Remove what enable wrote, once no job with MPS runs on this node (root)
    Disable(Disable),
    /// Say what works, what could be better, and what is wrong, one line each
    Check(Place),
}

/// Which Slurm.
#[derive(Debug, Clone, Default, clap::Args)]
struct Place {
    /// slurm.conf; if not given, from mpsd.toml, from SLURM_CONF, or that of the Slurm that runs here
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
    /// Slurm's directory with bin and sbin; from mpsd.toml, or that of the Slurm that runs here if not given
    #[arg(long, value_name = "DIR")]
    pub exec: Option<PathBuf>,
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

/// `mpsctl slurm disable`.
#[derive(Debug, Clone, Default, clap::Args)]
struct Disable {
    /// Which Slurm
    #[command(flatten)]
    pub place: Place,
    /// What becomes of the jobs that run
    #[command(flatten)]
    pub running: Running,
}

/// The verbs, as `mpsctl` offers them.
pub(crate) struct Verbs;

impl SetUp for Verbs {
    fn command(&self) -> clap::Command {
        Slurm::augment_subcommands(clap::Command::new("slurm").about("Our plugin in a Slurm"))
            .subcommand_required(true)
            .arg_required_else_help(true)
    }

    fn run(&self, matches: &clap::ArgMatches, around: &SetupContext<'_>) -> Result<VerbReport, VerbError> {
        let verb = Slurm::from_arg_matches(matches).map_err(|error| error.to_string())?;
        if !matches!(verb, Slurm::Check(_)) && !nix::unistd::geteuid().is_root() {
            let refused = Refusal::new("this verb", "it changes Slurm's configuration", "root");
            return Err(Failure::from(refused).into());
        }
        Ok(match &verb {
            Slurm::Enable(options) if options.refresh => refresh(options, around),
            Slurm::Enable(options) => enable(options, around),
            Slurm::Disable(options) => {
                let (_, conf) = options.place.find(around)?;
                let still = options.running.allow(&around.settings.paths)?;
                disable(&conf).map(|mut done| {
                    done.lines.extend(still);
                    done
                })
            }
            Slurm::Check(place) => {
                let (slurm, conf) = place.find(around)?;
                let node = place.node(around);
                Ok(check(&place.plugins, &slurm, &conf, &node, around).into())
            }
        }?)
    }

    /// One that is named and not there is wrong.
    fn look(&self, node: &str, around: &SetupContext<'_>) -> Option<Vec<CheckLine>> {
        let place = Place::usual(node);
        let named = around.settings.slurm.conf.is_some() || around.settings.slurm.exec.is_some();
        match place.find(around) {
            Ok((slurm, conf)) => Some(check(&place.plugins, &slurm, &conf, node, around)),
            Err(why) => named.then(|| vec![CheckLine::Fail(why)]),
        }
    }
}

impl Place {
    /// Without any option.
    fn usual(node: &str) -> Self {
        Self {
            node: Some(node.to_owned()),
            plugins: PLUGINS.into(),
            ..Self::default()
        }
    }

    fn node(&self, around: &SetupContext<'_>) -> String {
        self.node.clone().unwrap_or_else(|| around.host.name())
    }

    /// The Slurm, and its configuration.
    fn find(&self, around: &SetupContext<'_>) -> Result<(Installation, Conf), String> {
        let mut site = Site::of(&around.settings);
        if let Some(named) = &self.slurm_conf {
            site.slurm_conf = Some(named.display().to_string());
        }
        site.slurm_exec = self.exec.clone().or(site.slurm_exec);
        let slurm = Installation::find(&site, &self.node(around));
        slurm.untrusted().map_or(Ok(()), Err)?;
        let conf = Conf::find(slurm.conf(around.host).as_deref(), around.host)?;
        Ok((slurm, conf))
    }
}

/// The release that is named, else the installed one.
fn release(options: &Enable, slurm: &Installation, around: &SetupContext<'_>) -> Result<Release, String> {
    let none = "no slurmd, sinfo or srun here says its version; name it with --release";
    let said = || installed(slurm, around.host).ok_or_else(|| none.to_owned());
    options.release.map_or_else(said, Ok)
}

fn enable(options: &Enable, around: &SetupContext<'_>) -> Result<VerbReport, String> {
    let (slurm, conf) = options.place.find(around)?;
    if conf.stack_is_fetched() {
        return Err(format!(
            "'{}': it was fetched from the controller and will be again; do this on the controller's host, in the \
             directory of its slurm.conf",
            conf.file.display()
        ));
    }
    if options.release.is_none() && slurm.is_a_guess() {
        let dirs: Vec<String> = several().iter().map(|dir| dir.display().to_string()).collect();
        return Err(format!(
            "several Slurms are here ({}) and none runs: name one with --exec",
            dirs.join(", ")
        ));
    }
    let release = release(options, &slurm, around)?;
    let plugin = plugin(&options.place.plugins, release)?;
    let (stack, snippet, line) = (conf.stack(), conf.snippet(), line(options, &plugin, around));
    let mut done = VerbReport::default();
    if conf.is_sent() {
        if !is_foreign(&stack) {
            write(
                &stack,
                &line,
                &format!("for Slurm {release}; the controller sends it to the nodes"),
                &mut done,
            )?;
        } else if line::of(&stack).as_deref() != line.lines().last() {
            let (stack, line) = (stack.display(), line.lines().last().unwrap_or_default());
            done.left(format!(
                "the controller sends '{stack}' to the nodes, and nothing that it includes: let this be its line for \
                 {PLUGIN}: {line}"
            ));
        }
    } else {
        if is_foreign(&snippet) {
            return Err(format!(
                "'{}': there is one that we did not write; remove it first",
                snippet.display()
            ));
        }
        write(&snippet, &line, &format!("for Slurm {release}"), &mut done)?;
        if !is_foreign(&stack) {
            let include = format!("{TAG}\n{}\n", conf.include());
            write(&stack, &include, "to include it", &mut done)?;
        } else if conf.found().is_none() {
            let (stack, line) = (stack.display(), conf.include());
            done.left(format!("add this line to '{stack}': {line}"));
        }
        let look = pyxis::snippet(&conf);
        if pyxis::is_there(&conf) && !is_foreign(&look) {
            write(&look, &pyxis::text(&plugin), "to look behind pyxis", &mut done)?;
        }
    }
    if done.lines.is_empty() {
        done.did(format!(
            "'{}' has our line for Slurm {release}",
            conf.home().display()
        ));
    } else {
        done.did(
            "restart slurmd on the nodes: it reads the plugin stack when it starts, and no 'reconfigure' helps",
        );
    }
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

fn line(options: &Enable, plugin: &Path, around: &SetupContext<'_>) -> String {
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
fn refresh(options: &Enable, around: &SetupContext<'_>) -> Result<VerbReport, String> {
    let mut done = VerbReport::default();
    let Ok((slurm, conf)) = options.place.find(around) else {
        return Ok(done);
    };
    let home = conf.home();
    if conf.stack_is_fetched() || line::of(&home).is_none() {
        return Ok(done);
    }
    let release = release(options, &slurm, around)?;
    let plugin = plugin(&options.place.plugins, release)?;
    let look = pyxis::snippet(&conf);
    if look.exists() && !is_foreign(&look) {
        let what = format!("to name the plugin for Slurm {release}");
        write(&look, &pyxis::text(&plugin), &what, &mut done)?;
    }
    let old = fs::read_to_string(&home).map_err(|e| format!("cannot read '{}': {e}", home.display()))?;
    let new = renamed(&old, &plugin);
    if new == old {
        return Ok(done);
    }
    if is_foreign(&home) {
        let (home, plugin) = (home.display(), plugin.display());
        done.left(format!("let the line for {PLUGIN} in '{home}' name '{plugin}'"));
        return Ok(done);
    }
    write(
        &home,
        &new,
        &format!("to name the plugin for Slurm {release}"),
        &mut done,
    )?;
    done.did("restart slurmd on the nodes: it reads the plugin stack when it starts");
    Ok(done)
}

/// The text with `plugin` in the place of ours; the words before and after it are the administrator's choice.
fn renamed(text: &str, plugin: &Path) -> String {
    let line = |line: &str| {
        let new = match line.split_whitespace().nth(1) {
            Some(old) if is_ours(line) => line.replacen(old, &plugin.display().to_string(), 1),
            _ => line.to_owned(),
        };
        new + "\n"
    };
    text.lines().map(line).collect()
}

fn disable(conf: &Conf) -> Result<VerbReport, String> {
    let mut done = VerbReport::default();
    let (snippet, stack) = (conf.snippet(), conf.stack());
    for file in [&snippet, &pyxis::snippet(conf), &stack] {
        if file.exists() && !is_foreign(file) {
            setup::remove(file, &mut done)?;
        }
    }
    if snippet.exists() {
        done.left(format!("'{}' is not ours: left as it is", snippet.display()));
    } else if line::of(&stack).is_some() {
        done.left(format!("remove the line for {PLUGIN} from '{}'", stack.display()));
    } else if done.lines.is_empty() {
        done.did("nothing of ours is there");
    } else {
        done.did("restart slurmd on the nodes: it keeps the plugin until then");
    }
    Ok(done)
}

/// Writes a file that all may read, making its directory if need be, and says so with a word of what it is. One that says it
/// already stays: its time tells when slurmd must have begun.
fn write(file: &Path, text: &str, what: &str, done: &mut VerbReport) -> Result<(), String> {
    if fs::read_to_string(file).is_ok_and(|old| old == text) {
        return Ok(());
    }
    let failed = |e: std::io::Error| format!("cannot write '{}': {e}", file.display());
    let directory = file.parent().unwrap_or(Path::new("/"));
    if !directory.exists() {
        fs::create_dir(directory).map_err(failed)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    setup::place(file, text, 0o644)?;
    done.did(format!("wrote '{}' {what}", file.display()));
    Ok(())
}

#[cfg(test)]
mod tests {
    //! The line in the plugin stack.

    use super::*;

    #[test]
    fn only_what_is_unusual_stands_in_the_line() {
        let around = |config, programs| SetupContext {
            config,
            settings: mpsd_core::config::Settings::usual(),
            broken: None,
            programs: Path::new(programs),
            host: &crate::scheduler::host::ThisHost,
            inventory: &|_| Err(mpsd_core::Undetermined::new("NVML", "not asked").into()),
            standing: &|_| Vec::new(),
        };
        let plugin = Path::new("/usr/lib/mpsd/spank/22.05/spank_mps.so");
        let usual = line(&Enable::default(), plugin, &around(None, USUAL_PROGRAMS));
        assert_eq!(
            usual,
            format!("{TAG}\noptional /usr/lib/mpsd/spank/22.05/spank_mps.so\n")
        );
        let options = Enable {
            required: true,
            scope: Some("step".into()),
            ..Enable::default()
        };
        let text = line(&options, plugin, &around(Some(Path::new("/c")), "/opt/m"));
        assert!(
            text.ends_with(
                "required /usr/lib/mpsd/spank/22.05/spank_mps.so config=/c prologue=/opt/m/mps-prologue \
                        epilogue=/opt/m/mps-epilogue scope=step\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn only_the_plugins_place_changes() {
        let old = "# ours\nrequired /usr/lib/mpsd/spank/22.05/spank_mps.so config=/x scope=job\n";
        let new = renamed(old, Path::new("/usr/lib/mpsd/spank/23.11/spank_mps.so"));
        assert_eq!(new, old.replace("22.05", "23.11"));
    }

    #[test]
    fn blanks_and_tabs_of_a_line_stay() {
        let new = Path::new("/usr/lib/mpsd/spank/23.11/spank_mps.so");
        for old in [
            "optional\t/usr/lib/mpsd/spank/22.05/spank_mps.so\n",
            "required  /usr/lib/mpsd/spank/22.05/spank_mps.so  config=/x \n",
            " \toptional /usr/lib/mpsd/spank/22.05/spank_mps.so\tscope=job\n",
        ] {
            assert_eq!(renamed(old, new), old.replace("22.05", "23.11"));
        }
    }

    #[test]
    fn another_plugins_line_stays() {
        let old = "optional /usr/lib/slurm/spank_pyxis.so\n";
        assert_eq!(renamed(old, Path::new("/p/spank_mps.so")), old);
    }
}

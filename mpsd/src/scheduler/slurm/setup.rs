//! `mpsctl slurm enable | disable | check`: our line in a Slurm's plugin stack, and nobody else's file touched.

use super::conf::Conf;
use super::{check, commands, refresh, stamp};
use crate::scheduler::Host;
use crate::scheduler::finding::Finding;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the package puts the plugin for each release.
pub(super) const PLUGINS: &str = "/usr/lib/mpsd/spank";
/// Where the plugin looks for its programs and its configuration by itself (spank: `arguments`).
pub(super) const USUAL_PROGRAMS: &str = "/usr/libexec/mpsd";
/// The plugin's file.
pub(super) const PLUGIN: &str = "spank_mps.so";
/// The first line of our files.
pub(super) const TAG: &str = "# mpsd: written by 'mpsctl slurm enable', removed by 'mpsctl slurm disable'";
/// A local program that prints its version.
pub(super) const VERSION_DEADLINE: Duration = Duration::from_secs(5);
/// Where slurmd is, and then the commands that every host of a cluster has.
pub(super) const VERSION_PROGRAMS: [&str; 4] = ["../sbin/slurmd", "slurmd", "sinfo", "srun"];

/// The verbs of `mpsctl slurm`.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Slurm {
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
pub struct Place {
    /// slurm.conf; from SLURM_CONF or the usual places if not given
    #[arg(long, value_name = "FILE")]
    pub slurm_conf: Option<PathBuf>,
    /// The directory with a plugin for each release
    #[arg(long, value_name = "DIR", default_value = PLUGINS)]
    pub plugins: PathBuf,
}

/// `mpsctl slurm enable`.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Enable {
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

/// A release of Slurm as far as a plugin depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    pub(super) major: u8,
    pub(super) minor: u8,
}

impl Release {
    /// Reads `23.11`, `23.11.5` or `23.11.0-1rc1`.
    ///
    /// # Errors
    /// One line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no release; allowed: 22.05 and the like");
        let mut parts = text.split('.');
        let mut number = || parts.next().filter(|part| part.len() == 2)?.parse().ok();
        let release = Self {
            major: number().ok_or_else(wrong)?,
            minor: number().ok_or_else(wrong)?,
        };
        if (20..100).contains(&release.major) && (1..=12).contains(&release.minor) {
            Ok(release)
        } else {
            Err(wrong())
        }
    }

    /// The release that `slurm-wlm 22.05.8` names.
    fn said(text: &str) -> Option<Self> {
        text.split_whitespace()
            .nth(1)
            .and_then(|word| Self::parse(word).ok())
    }
}

impl std::fmt::Display for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:02}.{:02}", self.major, self.minor)
    }
}

/// What the verbs need to know of this host.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Our configuration, where it is not the usual file.
    pub config: Option<&'a Path>,
    /// The directory with our programs.
    pub programs: &'a Path,
    /// `SLURM_CONF`.
    pub slurm_conf: Option<&'a Path>,
    /// The volatile root of our directories.
    pub run: &'a Path,
    /// The machine.
    pub host: &'a dyn Host,
}

impl std::fmt::Debug for Surroundings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Surroundings")
            .field("programs", &self.programs)
            .finish_non_exhaustive()
    }
}

/// What a verb printed, and whether nothing is left to do or wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Lines.
    pub lines: Vec<String>,
    /// Nothing is left to do by hand.
    pub complete: bool,
}

/// Carries out a verb.
///
/// # Errors
/// One line: what cannot be done on which object, why, what to do.
pub fn run(verb: &Slurm, around: &Surroundings<'_>) -> Result<Done, String> {
    match verb {
        Slurm::Enable(options) if options.refresh => refresh::refresh(options, around),
        Slurm::Enable(options) => enable(options, around),
        Slurm::Disable(place) => disable(&find(place, around)?),
        Slurm::Check(place) => {
            let found = check::check(place, &find(place, around)?, around);
            let complete = !found.iter().any(Finding::is_wrong);
            Ok(Done {
                lines: found.iter().map(ToString::to_string).collect(),
                complete,
            })
        }
    }
}

pub(super) fn find(place: &Place, around: &Surroundings<'_>) -> Result<Conf, String> {
    Conf::find(place.slurm_conf.as_deref().or(around.slurm_conf))
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
        None => installed(around)
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
    let mut done = Done {
        lines: Vec::new(),
        complete: true,
    };
    write(&snippet, &line(options, &plugin, around))?;
    done.lines
        .push(format!("wrote '{}' for Slurm {release}", snippet.display()));
    let stack = conf.stack();
    if !stack.exists() {
        write(&stack, &format!("{TAG}\n{}\n", conf.include()))?;
        done.lines
            .push(format!("wrote '{}', which includes it", stack.display()));
    } else if !conf.includes_snippet() {
        done.complete = false;
        done.lines.push(format!(
            "add this line to '{}': {}",
            stack.display(),
            conf.include()
        ));
    }
    done.lines.push(
        "restart slurmd on the nodes: it reads the plugin stack when it starts, and no 'reconfigure' helps"
            .to_owned(),
    );
    Ok(done)
}

/// The installed release, from the first program that says one.
pub(super) fn installed(around: &Surroundings<'_>) -> Option<Release> {
    VERSION_PROGRAMS.iter().find_map(|name| version(name, around))
}

pub(super) fn version(name: &str, around: &Surroundings<'_>) -> Option<Release> {
    let program = commands().join(name);
    let answer = program
        .exists()
        .then(|| around.host.run(&program, &["-V"], VERSION_DEADLINE).ok())??;
    Release::said(&answer.text)
}

/// The plugin for `release`, with its stamp looked at.
pub(super) fn plugin(plugins: &Path, release: Release) -> Result<PathBuf, String> {
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
    match stamp::of(&file)? {
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

fn disable(conf: &Conf) -> Result<Done, String> {
    let mut done = Done {
        lines: Vec::new(),
        complete: true,
    };
    let (snippet, stack) = (conf.snippet(), conf.stack());
    for file in [&snippet, &stack] {
        if file.exists() && !is_foreign(file) {
            fs::remove_file(file).map_err(|e| format!("cannot remove '{}': {e}", file.display()))?;
            done.lines.push(format!("removed '{}'", file.display()));
        }
    }
    if snippet.exists() {
        done.complete = false;
        done.lines
            .push(format!("'{}' is not ours: left as it is", snippet.display()));
    } else if done.lines.is_empty() {
        done.lines.push("nothing of ours is there".to_owned());
    } else {
        done.lines
            .push("restart slurmd on the nodes: it keeps the plugin until then".to_owned());
    }
    Ok(done)
}

/// Whether a file is there that we did not write.
pub(super) fn is_foreign(file: &Path) -> bool {
    match fs::read_to_string(file) {
        Ok(text) => !text.starts_with(TAG),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

/// Writes `text` whole, readable by all, making the directory if need be.
pub(super) fn write(file: &Path, text: &str) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let failed = |e: std::io::Error| format!("cannot write '{}': {e}", file.display());
    let directory = file.parent().unwrap_or(Path::new("/"));
    if !directory.exists() {
        fs::create_dir(directory).map_err(failed)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    }
    let new = file.with_extension("mpsd-new");
    let written = fs::write(&new, text)
        .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(0o644)))
        .and_then(|()| fs::rename(&new, file));
    written.map_err(|error| {
        let _ = fs::remove_file(&new);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_slurm_writes_them() {
        for (text, release) in [
            ("slurm-wlm 22.05.8\n", "22.05"),
            ("slurm 23.11.10-1", "23.11"),
            ("slurm 25.05.0-0rc1", "25.05"),
        ] {
            assert_eq!(Release::said(text).unwrap().to_string(), release);
        }
        for text in ["2205", "22.5", "22.13", "19.05", "a.b", ""] {
            assert!(Release::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_what_is_unusual_stands_in_the_line() {
        let around = |config, programs| Surroundings {
            config,
            programs: Path::new(programs),
            slurm_conf: None,
            run: Path::new("/run/mpsd"),
            host: &crate::scheduler::ThisHost,
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
}

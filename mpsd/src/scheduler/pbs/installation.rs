//! Where a PBS lives on this node, and how long its mom waits.

use crate::scheduler::{Host, Scheduler};
use mpsd_core::config::Settings;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most that a PBS configuration file is read. Bytes.
pub(crate) const MOST_CONF: usize = 256 << 10;
/// Where Torque's and OpenPBS's packages and builds keep the mom's files, most usual first.
const TORQUE_HOMES: [&str; 2] = ["/var/spool/torque", "/var/lib/torque"];
const OPENPBS_HOMES: [&str; 2] = ["/var/spool/pbs", "/var/spool/PBS"];
/// Where their commands are.
const TORQUE_COMMANDS: [&str; 5] = [
    "/usr/local/bin",
    "/usr/bin",
    "/opt/torque/bin",
    "/usr/local/sbin",
    "/usr/sbin",
];
const OPENPBS_COMMANDS: [&str; 3] = ["/opt/pbs/bin", "/usr/bin", "/opt/pbs/sbin"];

/// Where PBS lives, as the administrator says; empty: found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Site {
    /// `PBS_HOME` or Torque's server home, the directory with `mom_priv`.
    pub home: Option<PathBuf>,
    /// The directory with `bin` and `sbin`, or the one with the commands themselves.
    pub exec: Option<PathBuf>,
    /// This node's name in PBS, where it is not the host's.
    pub node: Option<String>,
}

impl From<&Settings> for Site {
    fn from(settings: &Settings) -> Self {
        Self {
            home: settings.pbs.home.clone(),
            exec: settings.pbs.exec.clone(),
            node: settings.pbs.node.clone(),
        }
    }
}

/// A PBS on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    /// Torque or OpenPBS.
    pub scheduler: Scheduler,
    /// The directory with `mom_priv` and `aux`.
    pub home: PathBuf,
    /// Directories with commands, in order.
    pub commands: Vec<PathBuf>,
}

impl Installation {
    /// The installation of `scheduler`, from `site`, else `/etc/pbs.conf` (OpenPBS), else the usual places.
    pub fn find(scheduler: Scheduler, site: &Site, host: &dyn Host) -> Self {
        let conf = if scheduler == Scheduler::OpenPbs {
            Conf::load(host)
        } else {
            Conf::default()
        };
        let usual = if scheduler == Scheduler::OpenPbs {
            OPENPBS_HOMES
        } else {
            TORQUE_HOMES
        };
        let home = site
            .home
            .clone()
            .or(conf.home)
            .unwrap_or_else(|| first_mom(&usual));
        let exec = site.exec.clone().or(conf.exec);
        let mut commands: Vec<PathBuf> = Vec::new();
        if let Some(exec) = exec {
            commands.extend([exec.join("bin"), exec.join("sbin"), exec]);
        }
        if site.exec.is_none() {
            let more: &[&str] = if scheduler == Scheduler::OpenPbs {
                &OPENPBS_COMMANDS
            } else {
                &TORQUE_COMMANDS
            };
            commands.extend(more.iter().map(PathBuf::from));
        }
        Self {
            scheduler,
            home,
            commands,
        }
    }

    /// A command of the scheduler: root's, not writable by others.
    ///
    /// # Errors
    /// Where it was looked for.
    pub fn command(&self, name: &str, host: &dyn Host) -> Result<PathBuf, String> {
        let candidates = self.commands.iter().map(|dir| dir.join(name));
        candidates
            .into_iter()
            .find(|path| host.executable(path))
            .ok_or_else(|| {
                let places: Vec<String> = self
                    .commands
                    .iter()
                    .map(|dir| dir.display().to_string())
                    .collect();
                format!(
                    "no '{name}' in {} that is root's; set exec under [pbs]",
                    places.join(", ")
                )
            })
    }

    /// `mom_priv`.
    pub fn mom_priv(&self) -> PathBuf {
        self.home.join("mom_priv")
    }

    /// The mom's own configuration.
    pub fn mom_config(&self) -> PathBuf {
        self.mom_priv().join("config")
    }

    /// How long the mom lets a prologue or an epilogue run before it kills it: `$prologalarm`. Torque fires 10 s
    /// early when the value is above 10 (recorded: 15 kills at 5 s, the default of 300 at 290).
    pub fn mom_limit(&self, host: &dyn Host) -> Duration {
        let text = host
            .read(&self.mom_config(), MOST_CONF)
            .ok()
            .flatten()
            .unwrap_or_default();
        let set = prolog_alarm(&String::from_utf8_lossy(&text));
        let seconds = match self.scheduler {
            Scheduler::Torque => match set.unwrap_or(300) {
                long if long > 10 => long - 10,
                short => short,
            },
            _ => set.unwrap_or(30),
        };
        Duration::from_secs(seconds)
    }
}

/// The last `$prologalarm N` of a mom's configuration.
fn prolog_alarm(config: &str) -> Option<u64> {
    let mut values = config.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("$prologalarm"))
            .then(|| words.next()?.parse().ok())
            .flatten()
    });
    values.rfind(|seconds| *seconds > 0)
}

fn first_mom(usual: &[&str; 2]) -> PathBuf {
    let found = usual
        .iter()
        .map(Path::new)
        .find(|home| home.join("mom_priv").is_dir());
    found.unwrap_or(Path::new(usual[0])).to_owned()
}

/// What we need of `/etc/pbs.conf`.
#[derive(Debug, Default)]
struct Conf {
    home: Option<PathBuf>,
    exec: Option<PathBuf>,
}

impl Conf {
    fn load(host: &dyn Host) -> Self {
        let bytes = host
            .read(Path::new("/etc/pbs.conf"), MOST_CONF)
            .ok()
            .flatten()
            .unwrap_or_default();
        Self::parse(&String::from_utf8_lossy(&bytes))
    }

    /// `KEY=VALUE` lines; `PBS_MOM_HOME` goes before `PBS_HOME`.
    fn parse(text: &str) -> Self {
        let value = |key: &str| {
            let line = text
                .lines()
                .map(str::trim)
                .filter_map(|line| line.strip_prefix(key))
                .find_map(|l| l.strip_prefix('='));
            line.map(|v| PathBuf::from(v.trim().trim_matches('"')))
                .filter(|path| path.is_absolute())
        };
        Self {
            home: value("PBS_MOM_HOME").or_else(|| value("PBS_HOME")),
            exec: value("PBS_EXEC"),
        }
    }
}

/// Whether two names of a node mean the same one: equal, or equal up to the first dot where one has no domain.
pub fn same_node(a: &str, b: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let one_bare = !a.contains('.') || !b.contains('.');
    !short(a).is_empty() && short(a) == short(b) && (one_bare || a.eq_ignore_ascii_case(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_alarm_of_the_config_counts() {
        assert_eq!(
            prolog_alarm("$logevent 255\n$prologalarm 15\n# $prologalarm 3\n$prologalarm 60\n"),
            Some(60)
        );
        assert_eq!(prolog_alarm("$prologalarm x\n"), None);
    }

    #[test]
    fn the_moms_own_home_goes_first() {
        let conf = Conf::parse(
            "PBS_SERVER=vm\nPBS_HOME=/var/spool/pbs\nPBS_MOM_HOME=/local/pbs\nPBS_EXEC=/opt/pbs\n",
        );
        assert_eq!(conf.home, Some(PathBuf::from("/local/pbs")));
        assert_eq!(conf.exec, Some(PathBuf::from("/opt/pbs")));
        assert_eq!(Conf::parse("PBS_HOME=relative").home, None);
    }

    #[test]
    fn names_of_a_node_with_and_without_domain() {
        assert!(same_node("vm", "vm.example.org") && same_node("VM", "vm"));
        assert!(!same_node("vm.a", "vm.b") && !same_node("vm1", "vm") && !same_node("", ""));
    }
}

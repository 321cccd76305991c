//! Where a PBS lives on this node, how long its mom waits, and its commands.

use crate::scheduler::host::{Answer, Host};
use crate::scheduler::site::Site;
use mpsd_core::job::{JobId, Scheduler};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most that a PBS configuration file is read. Bytes.
pub(crate) const MOST_CONF: usize = 256 << 10;

/// What differs between the products of the PBS family, as far as it is a value.
#[derive(Debug)]
pub struct Product {
    /// Its name.
    pub scheduler: Scheduler,
    /// Its name as people write it.
    pub title: &'static str,
    /// Where its packages and builds keep the mom's files, most usual first.
    pub homes: [&'static str; 2],
    /// Where its commands are.
    pub commands: &'static [&'static str],
    /// The file that says both, where it has one.
    pub conf: Option<&'static str>,
    /// `$prologalarm` where the mom's configuration does not say. Seconds.
    pub alarm_s: u64,
    /// How much earlier the mom kills where the alarm is above this. Seconds.
    pub early_s: u64,
    /// pbsnodes: the option before a note.
    pub note_option: &'static str,
    /// pbsnodes: the note that removes one.
    pub no_note: &'static str,
    /// pbsnodes: back into service.
    pub online_option: &'static str,
    /// Whether a refused job's comment tells its user, because nothing else does.
    pub comments: bool,
}

/// A PBS on this node.
#[derive(Debug, Clone)]
pub struct Installation {
    /// Which one.
    pub product: &'static Product,
    /// The directory with `mom_priv` and `aux`.
    pub home: PathBuf,
    /// Directories with commands, in order.
    pub commands: Vec<PathBuf>,
}

impl Installation {
    /// The installation of `product`, from `site`, else its configuration, else the usual places.
    pub fn find(product: &'static Product, site: &Site, host: &dyn Host) -> Self {
        let conf = product.conf.map(|file| Conf::load(Path::new(file), host));
        let conf = conf.unwrap_or_default();
        let has_mom = |home: &&&str| Path::new(home).join("mom_priv").is_dir();
        let usual = || {
            product
                .homes
                .iter()
                .find(has_mom)
                .unwrap_or(&product.homes[0])
                .into()
        };
        let mut commands: Vec<PathBuf> = Vec::new();
        if let Some(exec) = site.exec.clone().or(conf.exec) {
            commands.extend([exec.join("bin"), exec.join("sbin"), exec]);
        }
        if site.exec.is_none() {
            commands.extend(product.commands.iter().map(PathBuf::from));
        }
        Self {
            product,
            home: site.home.clone().or(conf.home).unwrap_or_else(usual),
            commands,
        }
    }

    /// Runs a command of the PBS.
    ///
    /// # Errors
    /// Where it was looked for, or what kept it from running or ending.
    pub fn run(
        &self,
        name: &str,
        arguments: &[&str],
        deadline: Duration,
        host: &dyn Host,
    ) -> Result<Answer, String> {
        let mut candidates = self.commands.iter().map(|dir| dir.join(name));
        let Some(program) = candidates.find(|path| host.executable(path)) else {
            let places: Vec<_> = self.commands.iter().map(|dir| dir.to_string_lossy()).collect();
            let places = places.join(", ");
            return Err(format!(
                "no '{name}' in {places} that is root's; set exec under [pbs]"
            ));
        };
        host.run(&program, arguments, &[], deadline)
    }

    /// `mom_priv`.
    pub fn mom_priv(&self) -> PathBuf {
        self.home.join("mom_priv")
    }

    /// Whether a mom is installed here.
    pub fn is_here(&self) -> bool {
        self.mom_priv().is_dir()
    }

    /// The mom's own configuration.
    pub fn mom_config(&self) -> PathBuf {
        self.mom_priv().join("config")
    }

    /// The mom's own file of a job.
    pub fn job_file(&self, job: &JobId) -> PathBuf {
        self.mom_priv().join("jobs").join(format!("{job}.JB"))
    }

    /// How long the mom lets a prologue or an epilogue run before it kills it.
    pub fn time_limit(&self, host: &dyn Host) -> Duration {
        let text = host.read(&self.mom_config(), MOST_CONF).ok().flatten();
        let set = prolog_alarm(&String::from_utf8_lossy(&text.unwrap_or_default()));
        let early = self.product.early_s;
        Duration::from_secs(match set.unwrap_or(self.product.alarm_s) {
            long if long > early => long - early,
            short => short,
        })
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

/// What we need of OpenPBS's `/etc/pbs.conf`.
#[derive(Debug, Default)]
struct Conf {
    home: Option<PathBuf>,
    exec: Option<PathBuf>,
}

impl Conf {
    fn load(file: &Path, host: &dyn Host) -> Self {
        let bytes = host.read(file, MOST_CONF).ok().flatten().unwrap_or_default();
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
    //! What is read of a mom's configuration and of /etc/pbs.conf.

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

//! Where a Slurm is on this host, and its own commands.

use super::slurmd::Slurmd;
use crate::scheduler::host::{Host, ThisHost};
use crate::scheduler::site::Site;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where a Slurm's commands are, most usual first.
const COMMANDS: [&str; 4] = [
    "/usr/bin",
    "/usr/local/bin",
    "/opt/slurm/bin",
    "/usr/local/slurm/bin",
];
/// Where directories of several releases stand side by side.
const SIDE_BY_SIDE: [&str; 3] = ["/opt", "/opt/slurm", "/opt/aws/pcs/scheduler"];

/// A Slurm of this host.
#[derive(Debug, Clone)]
pub(super) struct Installation {
    /// The directory with its commands.
    pub commands: PathBuf,
    /// Its running daemon.
    pub daemon: Option<Slurmd>,
    /// `SLURM_CONF` for its commands, where it is not what they find by themselves.
    conf: Option<PathBuf>,
    is_named: bool,
}

impl Installation {
    /// The Slurm of `node`: the one that the site names, else the running slurmd's, else one in a usual place.
    pub fn find(site: &Site, node: &str) -> Self {
        let conf = site.slurm_conf.as_deref().map(Path::new);
        let daemon = Slurmd::find(node, conf);
        let of_daemon = || {
            let program = daemon.as_ref()?.program.as_ref()?;
            beside(program.parent()?)
        };
        // PREFIX/etc/slurm.conf or PREFIX/etc/slurm/slurm.conf.
        let of_conf = || {
            let above = conf?.ancestors().skip(2).take(2);
            above
                .filter(|dir| dir.parent().is_some())
                .find_map(|dir| with_commands(dir.join("bin")))
        };
        let named = site.slurm_exec.as_ref();
        let named = named.map(|dir| with_commands(dir.join("bin")).unwrap_or_else(|| dir.clone()));
        let usual = || several().into_iter().next();
        let named_to_daemon = || daemon.as_ref()?.named();
        Self {
            commands: named
                .or_else(of_daemon)
                .or_else(of_conf)
                .or_else(usual)
                .unwrap_or_else(|| COMMANDS[0].into()),
            conf: conf.map(PathBuf::from).or_else(named_to_daemon),
            is_named: site.slurm_exec.is_some(),
            daemon,
        }
    }

    /// Nobody names it, nothing of it runs, and there are others.
    pub fn is_a_guess(&self) -> bool {
        !self.is_named && self.daemon.is_none() && several().len() > 1
    }

    /// Why this Slurm cannot be asked before the site names its slurm.conf.
    pub fn untrusted(&self) -> Option<String> {
        let daemon = self.daemon.as_ref().filter(|_| self.conf.is_none());
        daemon?.untrusted(&ThisHost)
    }

    /// What a command of Slurm's answers, where it ends with 0.
    ///
    /// # Errors
    /// One line.
    pub fn ask(&self, program: &str, arguments: &[&str], deadline: Duration) -> Result<String, String> {
        self.untrusted().map_or(Ok(()), Err)?;
        let conf = self
            .conf
            .as_ref()
            .and_then(|conf| Some(("SLURM_CONF", conf.to_str()?)));
        let conf: Vec<(&str, &str)> = conf.into_iter().collect();
        let answer = ThisHost.run(&self.commands.join(program), arguments, &conf, deadline)?;
        answer.accepted(program)
    }

    /// The slurm.conf that it takes, where nobody names one.
    pub fn conf(&self, host: &dyn Host) -> Option<PathBuf> {
        let of_daemon = || self.daemon.as_ref()?.conf(host);
        let beside = |name: &str| Some(self.commands.parent()?.join(name)).filter(|path| path.exists());
        (self.conf.clone()).or_else(of_daemon).or_else(|| {
            ["etc/slurm.conf", "etc/slurm/slurm.conf"]
                .iter()
                .find_map(|name| beside(name))
        })
    }
}

fn with_commands(dir: PathBuf) -> Option<PathBuf> {
    dir.join("scontrol").exists().then_some(dir)
}

/// The commands that belong to the daemons in `dir`.
fn beside(dir: &Path) -> Option<PathBuf> {
    with_commands(dir.parent()?.join("bin")).or_else(|| with_commands(dir.to_owned()))
}

/// The directories with commands of a Slurm in the usual places, each once.
pub(super) fn several() -> Vec<PathBuf> {
    let side_by_side = SIDE_BY_SIDE.iter().flat_map(|dir| {
        let entries = fs::read_dir(dir).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path().join("bin")).collect();
        // The newest release first.
        found.sort_by(|one, other| other.cmp(one));
        found
    });
    let mut found: Vec<PathBuf> = Vec::new();
    for dir in COMMANDS.iter().map(PathBuf::from).chain(side_by_side) {
        let same = |other: &PathBuf| other.canonicalize().ok() == dir.canonicalize().ok();
        if dir.join("scontrol").exists() && !found.iter().any(same) {
            found.push(dir);
        }
    }
    found
}

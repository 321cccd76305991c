//! What Torque and OpenPBS share: where a PBS lives, its mom's files, `pbsnodes`, `qstat`, and the
//! verbs of `mpsctl pbs`.

pub mod control;
pub mod trial;

use crate::call::{Location, Submission};
use crate::host::{Answer, Host};
use mpsd_core::by_site;
use mpsd_core::job::{JobId, Scheduler};
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const MOST_CONF: usize = 256 << 10;
const PRINTJOB_DEADLINE: Duration = Duration::from_secs(4);
/// From this substate on a job has no process left (`JOB_SUBSTATE_EXITING` of both job.h).
const EXITING: u32 = 50;
const QMGR_DEADLINE: Duration = Duration::from_secs(10);

pub struct Product {
    pub scheduler: Scheduler,
    pub title: &'static str,
    /// Where its packages and builds keep the mom's files, most usual first.
    pub homes: [&'static str; 2],
    pub commands: &'static [&'static str],
    pub conf: Option<&'static str>,
    /// pbsnodes: the option before a note, the note that removes one, the option of a return.
    pub note_option: &'static str,
    pub no_note: &'static str,
    pub online_option: &'static str,
    /// Whether a refused job's comment tells its user, because nothing else does.
    pub comments: bool,
}

#[derive(Clone)]
pub struct Installation {
    pub product: &'static Product,
    /// The directory with `mom_priv` and `aux`.
    pub home: PathBuf,
    pub commands: Vec<PathBuf>,
}

impl Installation {
    /// The installation of `product`: from `site`, else its configuration, else the usual places.
    pub fn find(product: &'static Product, location: &Location, host: &dyn Host) -> Self {
        let read = |file| host.text(Path::new(file), MOST_CONF).ok()?;
        let conf = product.conf.and_then(read).unwrap_or_default();
        let conf_path = |key| conf_path(&conf, key);
        let has_mom = |home: &&str| Path::new(home).join("mom_priv").is_dir();
        let [first, _] = product.homes;
        let usual = || product.homes.into_iter().find(has_mom).unwrap_or(first);
        let home = location.home.clone().or_else(|| conf_path("PBS_MOM_HOME"));
        let home = home.or_else(|| conf_path("PBS_HOME"));
        let exec = location.exec.clone().or_else(|| conf_path("PBS_EXEC"));
        let mut commands = exec.map_or(Vec::new(), |exec| {
            vec![exec.join("bin"), exec.join("sbin"), exec]
        });
        if location.exec.is_none() {
            commands.extend(product.commands.iter().map(PathBuf::from));
        }
        Self {
            product,
            home: home.unwrap_or_else(|| usual().into()),
            commands,
        }
    }

    pub fn run(
        &self,
        name: &str,
        arguments: &[&str],
        deadline: Duration,
        host: &dyn Host,
    ) -> Result<Answer, String> {
        host.run(&self.program(name, host)?, arguments, &[], deadline)
    }

    pub fn program(&self, name: &str, host: &dyn Host) -> Result<PathBuf, String> {
        let mut candidates = self.commands.iter().map(|dir| dir.join(name));
        let found = candidates.find(|path| host.executable(path));
        found.ok_or_else(|| {
            let places = self.commands.iter().map(|dir| dir.to_string_lossy());
            let places = places.collect::<Vec<_>>().join(", ");
            format!("no '{name}' in {places} that is root's; set exec under [pbs]")
        })
    }

    /// Gives qmgr one command: of several `-c` only the last counts (recorded).
    pub fn qmgr(&self, command: &str, host: &dyn Host) -> Result<String, String> {
        let answer = self.run("qmgr", &["-c", command], QMGR_DEADLINE, host)?;
        answer.accepted("qmgr")
    }

    /// The names of its server that ids of jobs may end with: with its domain, and without.
    pub fn servers(&self, host: &dyn Host) -> Vec<String> {
        let read = |file: &Path| host.text(file, MOST_CONF).ok()?;
        let conf = self.product.conf.and_then(|file| read(Path::new(file)));
        let name = conf.and_then(|conf| conf_value(&conf, "PBS_SERVER").map(str::to_owned));
        let name = name.or_else(|| read(&self.home.join("server_name")));
        let name = name.unwrap_or_default();
        // A port, or a second server, may follow.
        let whole = name.trim().split([':', ',']).next().unwrap_or_default();
        let short = whole.split('.').next().unwrap_or_default();
        let mut names = vec![whole.to_owned(), short.to_owned()];
        names.dedup();
        names.retain(|name| !name.is_empty());
        names
    }

    pub fn mom_priv(&self) -> PathBuf {
        self.home.join("mom_priv")
    }

    fn jobs(&self) -> PathBuf {
        self.mom_priv().join("jobs")
    }

    /// The batch script of a job that begins on this node; `None`: another node has it.
    pub fn script(&self, submission: &Submission) -> Option<String> {
        (!submission.sister).then(|| self.script_of(&submission.job))
    }

    pub fn script_of(&self, job: &JobId) -> String {
        let mut files = self.files(job, "SC").into_iter();
        let text = files.find_map(|file| by_site::text_of(&file));
        text.unwrap_or_default()
    }

    pub fn is_here(&self) -> bool {
        self.mom_priv().is_dir()
    }

    pub fn mom_config(&self) -> PathBuf {
        self.mom_priv().join("config")
    }

    /// The mom's file of a job; Torque's of the subjob `57[1].srv` is `57-1.srv.JB`.
    fn job_files(&self, job: &JobId) -> [PathBuf; 2] {
        self.files(job, "JB")
    }

    fn files(&self, job: &JobId, kind: &str) -> [PathBuf; 2] {
        let torques = job.as_str().replace('[', "-").replace(']', "");
        [&torques, job.as_str()].map(|name| self.jobs().join(format!("{name}.{kind}")))
    }

    pub fn other_job(&self, job: &JobId, host: &dyn Host) -> Result<Option<String>, String> {
        let (own, dir) = (self.job_files(job), self.jobs());
        let unread = |why| format!("cannot read '{}': {why}", dir.display());
        let names = host.names(&dir).map_err(unread)?;
        let mut files = names.iter().map(|name| dir.join(name));
        let other = files.find(|file| {
            let is_job = file.extension() == Some("JB".as_ref());
            is_job && !own.contains(file) && !self.has_ended(file, host)
        });
        let id = |file: PathBuf| Some(file.file_stem()?.to_string_lossy().into_owned());
        Ok(other.and_then(id))
    }

    /// Whether the job's processes have ended. Its file stays until the server has let it go.
    fn has_ended(&self, file: &Path, host: &dyn Host) -> bool {
        let shown = file.to_string_lossy();
        let printed = self.run("printjob", &[&shown], PRINTJOB_DEADLINE, host);
        match printed.ok().and_then(|answer| substate(&answer.text)) {
            Some(number) => number >= EXITING,
            None => file.symlink_metadata().is_err(),
        }
    }
}

/// From the line `substate: 0x2a (42)`, which printjob prints before anything that a user wrote.
fn substate(printed: &str) -> Option<u32> {
    let mut lines = printed.lines();
    let line = lines.find_map(|line| line.strip_prefix("substate:"))?;
    line.split_once('(')?.1.split_once(')')?.0.parse().ok()
}

fn conf_value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = text.lines().map(str::trim);
    let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='))?;
    Some(value.trim().trim_matches('"'))
}

fn conf_path(text: &str, key: &str) -> Option<PathBuf> {
    let path = PathBuf::from(conf_value(text, key)?);
    path.is_absolute().then_some(path)
}

/// Whether two names mean the same node: equal, or equal up to the first dot if one has no domain.
pub fn same_node(a: &str, b: &str) -> bool {
    let (a, b) = (a.to_ascii_lowercase(), b.to_ascii_lowercase());
    let [short, other] = [&a, &b].map(|name| name.split('.').next().unwrap_or_default());
    !short.is_empty() && short == other && (a == b || a == short || b == short)
}

/// The value of `NAME = VALUE` in what `qstat -f` and `printjob` print. Torque's qstat folds after
/// 80 columns: such a line begins with a tab and holds no name. A name that stands there twice is
/// no answer: a user can write a newline and a false line into the job's variables.
pub fn attribute(text: &str, name: &str) -> Option<String> {
    let named = |line: &str| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    };
    let mut lines = text.lines();
    let mut value = lines.by_ref().find_map(named)?;
    if lines.clone().any(|line| named(line).is_some()) {
        return None;
    }
    let is_folded = |line: &&str| line.starts_with('\t') && !line.contains(" = ");
    value.extend(lines.take_while(is_folded).map(str::trim));
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openpbs::PRODUCT as OPENPBS;
    use crate::testing::TextHost;
    use crate::torque::PRODUCT as TORQUE;

    fn at_home(product: &'static Product, host: &TextHost) -> Installation {
        let location = Location {
            home: Some("/home".into()),
            ..Location::default()
        };
        Installation::find(product, &location, host)
    }

    #[test]
    fn the_moms_own_home_goes_first() {
        let conf = "PBS_HOME=/var/spool/pbs\nPBS_MOM_HOME=\"/local/pbs\"\nPBS_EXEC=opt/pbs\n";
        assert_eq!(conf_path(conf, "PBS_MOM_HOME"), Some("/local/pbs".into()));
        assert_eq!(conf_path(conf, "PBS_EXEC"), None);
    }

    #[test]
    fn ids_end_with_the_servers_name_with_its_domain_or_without() {
        let conf = "/etc/pbs.conf";
        for (product, file, text, names) in [
            (&OPENPBS, conf, "PBS_SERVER=b.org:15001\n", "b.org b"),
            (&OPENPBS, conf, "PBS_SERVER=one,two\n", "one"),
            (&OPENPBS, conf, "PBS_SERVER=\n", ""),
            (&TORQUE, "/home/server_name", "vm.a.org\n", "vm.a.org vm"),
            (&TORQUE, "/home/other", "", ""),
        ] {
            let host = TextHost::default().file(file, text);
            let servers = at_home(product, &host).servers(&host);
            assert_eq!(servers, Vec::from_iter(names.split_whitespace()), "{text}");
        }
    }

    #[test]
    fn a_jobs_own_file_is_none_of_another_job() {
        let file = "/home/mom_priv/jobs/57-1.srv.JB";
        let runs = format!("/usr/local/bin/printjob {file}");
        let host = TextHost::default().file(file, "");
        let host = host.command(&runs, 0, "substate: 0x2a (42)\n");
        let pbs = at_home(&TORQUE, &host);
        let beside = |job| pbs.other_job(&JobId::parse(job).unwrap(), &host);
        assert_eq!(beside("57[1].srv"), Ok(None));
        assert_eq!(beside("57-1.srv"), Ok(None));
        assert_eq!(beside("57[2].srv"), Ok(Some("57-1.srv".to_owned())));
    }

    #[test]
    fn names_of_a_node_with_and_without_domain() {
        assert!(same_node("vm", "vm.example.org") && same_node("VM", "vm"));
        assert!(!same_node("vm.a", "vm.b") && !same_node("vm1", "vm") && !same_node("", ""));
    }
}

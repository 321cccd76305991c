//! The Slurm daemon that runs on this host: its program, its configuration, when it began.

use super::conf::FETCHED;
use crate::host::{self, Host, ThisHost};
use mpsd_core::trusted::{TrustedFile, open_trusted};
use mpsd_sys::process::{Executable, Process, ProcessId, ProcessTable, Stat, State};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The daemons of a node (Debian's has a name of its own), of a controller and of a login host.
const DAEMONS: [&str; 4] = ["slurmd", "slurmd-wlm", "slurmctld", "sackd"];
/// The cgroup of a controller that systemd started. It has a user of its own, and no other process
/// gets into this cgroup.
const CONTROLLER: &str = "/system.slice/slurmctld.service";
const LARGEST: usize = 64 << 20;

#[derive(Debug, Clone)]
pub struct Slurmd {
    id: ProcessId,
    name: String,
    /// Its program; `None`: only root may know.
    pub program: Option<PathBuf>,
    pub replaced: bool,
    /// The slurm.conf of `-f` or `SLURM_CONF`. Untrusted: others than root may write it.
    named_conf: Option<PathBuf>,
    /// `-N`.
    node: Option<String>,
    /// The words of a dynamic node's line, which slurm.conf does not have.
    pub dynamic: Option<String>,
}

pub fn of_nodes(table: &ProcessTable) -> usize {
    Slurmd::all(table, &DAEMONS[..2]).len()
}

impl Slurmd {
    /// The one that started this program, else the one with `conf` that was started for `node`,
    /// else the only one; a node's slurmd before other daemons.
    pub fn find(node: &str, conf: Option<&Path>) -> Option<Self> {
        if let Some(ours) = ancestor() {
            return Some(ours);
        }
        let table = ProcessTable::scan()?;
        let mut found = Self::all(&table, &DAEMONS);
        found.retain(|one| conf.is_none_or(|conf| one.may_have(conf)));
        let several = found.iter().filter(|one| one.is_of_node()).count() > 1;
        found.retain(|one| !several || one.node.as_deref().is_none_or(|name| name == node));
        found.sort_by_key(|one| (!one.is_of_node(), one.node.is_none()));
        found.into_iter().next()
    }

    fn all(table: &ProcessTable, names: &[&str]) -> Vec<Self> {
        let is_one = |stat: &&Stat| names.iter().any(|name| stat.name == *name);
        let all = table.iter().map(|entry| &entry.stat);
        let daemons: Vec<&Stat> = all.filter(is_one).collect();
        let is_child = |stat: &Stat| daemons.iter().any(|one| one.id.pid == stat.parent);
        let own = daemons.iter().filter(|stat| !is_child(stat));
        own.filter_map(|stat| Self::read(stat)).collect()
    }

    /// `None`: it has ended, is not root's, is in a container, or runs another program.
    fn read(stat: &Stat) -> Option<Self> {
        let id = stat.id;
        let process = id.open()?;
        let of_controller = || {
            let cgroups = process.cgroups().unwrap_or_default();
            cgroups.iter().any(|path| path == Path::new(CONTROLLER))
        };
        // A user's set-user-id program has root's effective id alone.
        let uids = process.uids()?;
        let is_roots = uids.real == 0 && uids.effective == 0;
        if stat.state == State::Defunct || !is_roots && !of_controller() {
            return None;
        }
        let place = |name: &str| PathBuf::from(format!("/proc/{}/{name}", id.pid));
        let file = |path: &Path| fs::metadata(path).map(|at| (at.dev(), at.ino())).ok();
        if file(&place("root")).is_some_and(|own| Some(own) != file(Path::new("/"))) {
            return None;
        }
        let program = program(&process, |name| DAEMONS.contains(&name));
        // Only root may know the program of root's process.
        if program.is_none() && nix::unistd::geteuid().is_root() {
            return None;
        }
        let arguments = fs::read(place("cmdline")).ok()?;
        let text = |argument: &[u8]| String::from_utf8_lossy(argument).into_owned();
        let arguments: Vec<String> = arguments.split(|byte| *byte == 0).map(text).collect();
        let named = option(&arguments, "f").map(OsString::from);
        let environment = || process.environment_variable("SLURM_CONF", 1 << 20);
        let (program, replaced) = program.unzip();
        let name = program.as_deref().and_then(Path::file_name);
        let found = Self {
            id,
            name: name.unwrap_or(&stat.name).to_string_lossy().into_owned(),
            replaced: replaced == Some(true),
            program,
            named_conf: named.or_else(environment).map(PathBuf::from),
            node: option(&arguments, "N"),
            dynamic: dynamic(&arguments),
        };
        // All of this was read of the same process.
        id.open().map(|_| found)
    }

    pub fn pid(&self) -> i32 {
        self.id.pid
    }

    pub fn is_of_node(&self) -> bool {
        self.name.starts_with("slurmd")
    }

    pub fn began(&self) -> Option<SystemTime> {
        host::started(self.id.start_time)
    }

    fn may_have(&self, conf: &Path) -> bool {
        let file = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let own = self.named_conf.clone().or_else(|| self.conf(&ThisHost));
        own.is_none_or(|own| file(&own) == file(conf))
    }

    pub fn named(&self) -> Option<PathBuf> {
        let conf = self.named_conf.clone();
        conf.filter(|path| open_trusted(path).is_ok())
    }

    /// Why we do not read its slurm.conf; `None` too if the commands read that file anyway.
    pub fn untrusted(&self, host: &dyn Host) -> Option<String> {
        let named = self.named_conf.as_ref()?;
        let error = open_trusted(named).err()?;
        let (name, pid, shown) = (&self.name, self.id.pid, named.display());
        let why = format!("{name} (pid {pid}) reads '{shown}', and {error}");
        let is_built_in = self.built_in(host).as_ref() == Some(named);
        (!is_built_in).then(|| format!("{why}: name the slurm.conf in mpsd.toml ([slurm] conf)"))
    }

    /// The slurm.conf that it uses (Slurm's order, 22.05 to 26.05: `_establish_configuration`).
    pub fn conf(&self, host: &dyn Host) -> Option<PathBuf> {
        let built_in = || self.built_in(host).filter(|path| path.exists());
        let fetched = || Some(PathBuf::from(FETCHED)).filter(|path| path.exists());
        self.named().or_else(built_in).or_else(fetched)
    }

    /// The path of slurm.conf in its library or its program, a string of its own there.
    fn built_in(&self, host: &dyn Host) -> Option<PathBuf> {
        let is_library = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("libslurm"))
        };
        let library = self
            .mapped()
            .unwrap_or_default()
            .into_iter()
            .find(is_library);
        let mut files = library.iter().chain(&self.program);
        files.find_map(|file| path_in(&host.read(file, LARGEST).ok()??))
    }

    /// Whether it has loaded the plugin in `file`; `None`: only root may know.
    pub fn has_loaded(&self, file: &Path) -> Option<bool> {
        let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
        let replaced = PathBuf::from(format!("{} (deleted)", file.display()));
        let mapped = self.mapped()?;
        Some(mapped.iter().any(|path| [&file, &replaced].contains(&path)))
    }

    fn mapped(&self) -> Option<Vec<PathBuf>> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.id.pid)).ok()?;
        let file = |line: &str| line.find('/').map(|at| PathBuf::from(&line[at..]));
        Some(maps.lines().filter_map(file).collect())
    }
}

/// The slurmd that this program descends from, through its prolog or epilog.
fn ancestor() -> Option<Slurmd> {
    let mut found = None;
    let mut pid = std::process::id().cast_signed();
    while pid > 1 {
        let process = Process::find(pid)?;
        let stat = process.stat()?;
        if stat.name == DAEMONS[0] || stat.name == DAEMONS[1] {
            // A child that slurmd forked for the prolog has its name too.
            found = Slurmd::read(&stat).or(found);
        }
        pid = stat.parent;
    }
    found
}

/// The file of a program of Slurm's with such a name, and whether it was replaced since. Untrusted:
/// any user can run a program through a link of that name. So only a file in root's place counts.
pub fn program(process: &Process, is_it: impl Fn(&str) -> bool) -> Option<(PathBuf, bool)> {
    let Executable { file, path } = process.executable()?;
    let old = path.to_str()?.strip_suffix(" (deleted)").map(PathBuf::from);
    let replaced = old.is_some();
    let path = old.unwrap_or(path);
    let name = path.file_name()?.to_str()?;
    // The process may have mounts of its own, and so a different file at the same path.
    let is_there = |found: TrustedFile| found.device == file.device && found.inode == file.inode;
    let is_trusted = replaced || open_trusted(&path).is_ok_and(is_there);
    (is_it(name) && is_roots_place(&path) && is_trusted).then_some((path, replaced))
}

/// Whether only root can have put a file there; in `/tmp` a user can put a hard link.
fn is_roots_place(path: &Path) -> bool {
    let mut above = path.ancestors().skip(1).map(fs::symlink_metadata);
    let is = |about: std::io::Result<fs::Metadata>, allowed: u32| {
        about.is_ok_and(|about| {
            let mode = about.mode();
            about.is_dir() && about.uid() == 0 && (mode & 0o022 == 0 || mode & allowed != 0)
        })
    };
    above.next().is_some_and(|parent| is(parent, 0)) && above.all(|about| is(about, 0o1000))
}

/// As getopt_long(3) reads them. Of the long ones, all but two have a value.
fn options(arguments: &[String]) -> Vec<(&str, Option<&str>)> {
    let mut rest = arguments.iter().skip(1).map(String::as_str);
    let mut found = Vec::new();
    while let Some(argument) = rest.next() {
        if let Some(long) = argument.strip_prefix("--") {
            let (name, value) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None if ["systemd", "version"].contains(&long) => (long, None),
                None => (long, rest.next()),
            };
            found.push((name, value));
        } else if let Some(letters) = argument.strip_prefix('-') {
            let with_value = letters.find(|letter| "dfFLnN".contains(letter));
            let flags = with_value.unwrap_or(letters.len());
            found.extend((0..flags).filter_map(|at| Some((letters.get(at..=at)?, None))));
            if let Some(at) = with_value {
                let (own, value) = (&letters[at..=at], &letters[at + 1..]);
                let value = match value.is_empty() && own != "F" {
                    true => rest.next(),
                    false => Some(value),
                };
                found.push((own, value));
            }
        }
    }
    found
}

fn option(arguments: &[String], name: &str) -> Option<String> {
    let mut values = options(arguments).into_iter();
    let of_it = values.rfind(|(own, value)| *own == name && value.is_some());
    of_it?.1.map(str::to_owned)
}

/// What a dynamic node (`-Z`) told the controller in place of a line in slurm.conf.
fn dynamic(arguments: &[String]) -> Option<String> {
    let is_dynamic = options(arguments).iter().any(|(name, _)| *name == "Z");
    is_dynamic.then(|| option(arguments, "conf").unwrap_or_default())
}

fn path_in(bytes: &[u8]) -> Option<PathBuf> {
    let texts = bytes.split(|byte| *byte == 0);
    let mut paths = texts.filter(|text| text.starts_with(b"/") && text.ends_with(b"/slurm.conf"));
    let other = |text: &&[u8]| *text != FETCHED.as_bytes();
    let path = std::str::from_utf8(paths.find(other)?).ok()?;
    Some(path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_as_getopt_reads_them() {
        for line in [
            "slurmd -D -N n1 -f /x/slurm.conf",
            "slurmd -DNn1 -vvf /x/slurm.conf",
            "slurmd --systemd -Nn1 -f/x/slurm.conf",
            "slurmd --conf-server h:6817 -N n1 -f /x/slurm.conf",
            "slurmd --conf -f -N n0 -N n1 --instance-id=a -f /x/slurm.conf",
            "slurmd -F -N n1 -f /x/slurm.conf",
        ] {
            let both = ["N", "f"].map(|name| option(&words(line), name).unwrap());
            assert_eq!(both, ["n1", "/x/slurm.conf"], "{line}");
        }
        for line in ["slurmd --systemd", "slurmd -d /N/f -L -f", "slurmd -N"] {
            let none = ["N", "f"].map(|name| option(&words(line), name));
            assert_eq!(none, [None, None], "{line}");
        }
        for (line, expected) in [
            ("slurmd -N n1", None),
            ("slurmd -NZ", None),
            ("slurmd --conf Gres=gpu:2", None),
            ("slurmd -DZN n1", Some("")),
            ("slurmd -Z --conf Gres=gpu:2", Some("Gres=gpu:2")),
            ("slurmd --conf=Gres=gpu:2 -vZ -N n1", Some("Gres=gpu:2")),
        ] {
            assert_eq!(dynamic(&words(line)).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn the_path_that_a_program_is_built_with() {
        let text = b"\x7fELF\0can't find address, check slurm.conf\0/run/slurm/conf/slurm.conf\0/opt/s/etc/slurm.conf\0x";
        assert_eq!(path_in(text), Some("/opt/s/etc/slurm.conf".into()));
        let other = b"/run/slurm/conf/slurm.conf\0%s/slurm.conf\0";
        assert_eq!(path_in(other), None);
    }
}

//! `mpsctl slurm check`: what Slurm demands of our line and our plugin, and what of its configuration MPS depends on.

use super::conf::Conf;
use super::gres::Gres;
use super::line::{TAG, USUAL_PROGRAMS, is_foreign};
use super::release::{Release, all_installed, stamp_of};
use super::slurmd;
use crate::scheduler::numbers::{List, Number, Numbers};
use crate::scheduler::setup::Finding::{self, Better, Good, Wrong};
use crate::scheduler::setup::Surroundings;
use mpsd_core::config::Config;
use mpsd_core::trusted::open_trusted;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What the plugin's line may say, apart from paths of ours.
const WORDS: [&str; 2] = ["optional", "required"];

pub(super) fn check(plugins: &Path, conf: &Conf, node: &str, around: &Surroundings<'_>) -> Vec<Finding> {
    let mut all = vec![Good(format!(
        "Slurm's configuration is '{}'",
        conf.file.display()
    ))];
    let installed = releases(around, &mut all);
    all.push(stack(conf));
    let snippet = conf.snippet();
    match line(&snippet) {
        Ok((word, rest)) => {
            all.push(Good(format!("'{}' is ours, '{word}'", snippet.display())));
            plugin(&rest, installed, &mut all);
            all.extend(files(&rest, around));
        }
        Err(why) => all.push(Wrong(format!("'{}': {why}", snippet.display()))),
    }
    all.push(started(conf, &snippet, node));
    all.extend(settings(conf, around));
    all.extend(gpus(conf, node, around));
    if !plugins.is_dir() {
        let plugins = plugins.display();
        all.push(Wrong(format!(
            "no '{plugins}': install the package with the plugins"
        )));
    }
    all
}

/// The installed release; programs that differ are two installations.
fn releases(around: &Surroundings<'_>, all: &mut Vec<Finding>) -> Option<Release> {
    let said = all_installed(around.host);
    all.push(match said.as_slice() {
        [] => Better("no slurmd, sinfo or srun here says its version".to_owned()),
        [one] => Good(format!("Slurm {one} is installed")),
        several => {
            let list: Vec<String> = several.iter().map(ToString::to_string).collect();
            let list = list.join(", ");
            Wrong(format!(
                "slurmd and the commands are of different releases: {list}"
            ))
        }
    });
    said.first().copied()
}

fn stack(conf: &Conf) -> Finding {
    let stack = conf.stack();
    if !stack.exists() {
        return Wrong(format!("no '{}': run 'mpsctl slurm enable'", stack.display()));
    }
    if let Err(error) = open_trusted(&stack) {
        return Better(format!(
            "{error}: whoever may write it decides what slurmd loads as root"
        ));
    }
    if conf.includes_snippet() {
        Good(format!("'{}' includes our line", stack.display()))
    } else {
        Wrong(format!(
            "'{}' does not include our line; add: {}",
            stack.display(),
            conf.include()
        ))
    }
}

/// Our line: its first word and the rest.
fn line(snippet: &Path) -> Result<(String, Vec<String>), String> {
    if !snippet.exists() {
        return Err("not there; run 'mpsctl slurm enable'".to_owned());
    }
    if is_foreign(snippet) {
        return Err(format!("not ours: it does not begin with \"{TAG}\""));
    }
    open_trusted(snippet).map_err(|e| format!("{e}; allowed: root's, not writable by others"))?;
    let text = fs::read_to_string(snippet).map_err(|e| e.to_string())?;
    let mut words = text
        .lines()
        .find(|line| !line.trim().is_empty() && !line.starts_with('#'))
        .unwrap_or_default()
        .split_whitespace()
        .map(str::to_owned);
    match words.next() {
        Some(word) if WORDS.contains(&word.as_str()) => Ok((word, words.collect())),
        _ => Err(format!("no line that begins with {}", WORDS.join(" or "))),
    }
}

fn plugin(rest: &[String], installed: Option<Release>, all: &mut Vec<Finding>) {
    let Some(file) = rest.first().map(Path::new) else {
        return all.push(Wrong("our line names no plugin".to_owned()));
    };
    all.push(match (stamp_of(file), installed) {
        (Err(why), _) => Wrong(why),
        (Ok(stamp), Some(release)) if stamp != release => Wrong(format!(
            "'{}' is for Slurm {stamp}, and {release} is installed: run 'mpsctl slurm enable' again",
            file.display()
        )),
        (Ok(stamp), _) => Good(format!("'{}' is root's and for Slurm {stamp}", file.display())),
    });
}

/// The files that the plugin will use.
fn files(rest: &[String], around: &Surroundings<'_>) -> Vec<Finding> {
    let given = |key: &str| {
        rest.iter()
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
            .map(PathBuf::from)
    };
    let mut all = Vec::new();
    for (key, name) in [("prologue", "mps-prologue"), ("epilogue", "mps-epilogue")] {
        let file = given(key).unwrap_or_else(|| Path::new(USUAL_PROGRAMS).join(name));
        all.push(Finding::program(&file, around.host));
    }
    let config = given("config").unwrap_or_else(|| PathBuf::from(mpsd_core::config::DEFAULT_PATH));
    all.push(match Config::load(&config) {
        Ok(_) => Good(format!("'{}' can be used", config.display())),
        Err(error) => Wrong(error.to_string()),
    });
    all
}

/// Whether slurmd began after our line was written.
fn started(conf: &Conf, snippet: &Path, node: &str) -> Finding {
    let Some((pid, began)) = slurmd::running(conf.value("SlurmdPidFile"), node) else {
        return Good("no slurmd runs here: nothing to restart".to_owned());
    };
    let written = fs::metadata(snippet).map_or(0, |about| about.mtime());
    if began < written {
        return Wrong(format!(
            "slurmd (pid {pid}) runs since before our line was written and does not know it: restart slurmd"
        ));
    }
    Good(format!("slurmd (pid {pid}) began after our line was written"))
}

fn settings(conf: &Conf, around: &Surroundings<'_>) -> Vec<Finding> {
    let mut all = Vec::new();
    let flags = conf.value("PrologFlags").unwrap_or("not set");
    let at_allocation = ["Alloc", "Contain", "RunInJob"]
        .iter()
        .any(|flag| conf.lists("PrologFlags", flag));
    all.push(if at_allocation {
        Good(format!("PrologFlags is {flags}: the prolog runs on each node at the allocation"))
    } else {
        Better(format!(
            "PrologFlags is {flags}: the prolog runs at a node's first step only; PrologFlags=Alloc (or Contain) runs it \
             on each node at the allocation"
        ))
    });
    if conf.lists("PrologFlags", "RunInJob") {
        all.push(Better(
            "PrologFlags has RunInJob: the prolog runs in the job's own cgroup and sees only its devices"
                .to_owned(),
        ));
    }
    all.push(if conf.lists("GresTypes", "gpu") {
        Good("GresTypes has gpu: Slurm tells a job's GPUs".to_owned())
    } else {
        Wrong(
            "GresTypes has no gpu: Slurm tells no job's GPUs, and every request for MPS is refused"
                .to_owned(),
        )
    });
    for share in ["mps", "shard"]
        .into_iter()
        .filter(|share| conf.lists("GresTypes", share))
    {
        all.push(Better(format!(
            "GresTypes has {share}: jobs may share a GPU, so its compute mode stays as it is"
        )));
    }
    if conf
        .value("JobContainerType")
        .is_some_and(|kind| kind.ends_with("tmpfs"))
    {
        all.push(container(around.settings.paths.run()));
    }
    all
}

/// Under job_container/tmpfs the tasks have a /tmp and, unless job_container.conf says Dirs=/tmp, a /dev/shm of their
/// own. Client and server share nothing there (driver 580; the contract suite's `namespaces`), but the job's pipe must
/// be in sight.
fn container(run: &Path) -> Finding {
    if ["/tmp", "/dev/shm", "/var/tmp"]
        .iter()
        .any(|hidden| run.starts_with(hidden))
    {
        return Wrong(format!(
            "run_dir '{}' is hidden from tasks by job_container/tmpfs; allowed: /run/mpsd",
            run.display()
        ));
    }
    Good("job_container/tmpfs: MPS needs no shared /tmp or /dev/shm (driver 580)".to_owned())
}

/// Whether Slurm's number of each GPU leads a job to that GPU; the lines of gres.conf where it does not.
fn gpus(conf: &Conf, node: &str, around: &Surroundings<'_>) -> Vec<Finding> {
    let gres = Gres::read(&conf.file, node, around.host);
    if !gres.grants {
        return Vec::new();
    }
    let Some(inventory) = (around.inventory)(node) else {
        return vec![Better(
            "NVML does not answer: which GPUs gres.conf lists is not known".to_owned(),
        )];
    };
    let outdated = gres
        .outdated
        .map(|why| Better(format!("{why}; until it is restarted no compute mode is changed")));
    let mut all: Vec<Finding> = outdated.into_iter().collect();
    let listed = match gres.list.resolve(&inventory) {
        Ok(listed) => listed,
        Err(why) => {
            let why = format!("which GPU each number of Slurm means is not known: {why}");
            all.push(match gres.confined {
                Some(false) => Better(why),
                _ => Wrong(format!("{why}; jobs are refused MPS")),
            });
            return all;
        }
    };
    let before = all.len();
    for (place, (file, gpu)) in (0..).zip(&listed) {
        let numbers = Numbers {
            numbers: vec![Number { place, uuid: None }],
            list: List::Files(listed.iter().map(|(file, _)| file.clone()).collect()),
            confined: gres.confined,
            by_uuid: gres.by_uuid,
        };
        let (path, said) = (file.path.display(), &file.said);
        match numbers.gpus(&inventory) {
            Err(why) => all.push(Wrong(format!("a job with '{path}' is refused MPS: {why}"))),
            Ok(found) if found.first().copied() != *gpu => all.push(Better(format!(
                "{said}: '{path}' is number {place} of Slurm, and a job with it computes on another GPU; with \
                 ConstrainDevices=yes, or files in the order of the bus, it is the same one"
            ))),
            Ok(_) => {}
        }
    }
    if all.len() == before {
        let count = listed.len();
        all.push(Good(format!(
            "each of the {count} GPUs of gres.conf is the one that a job with it computes on"
        )));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_private_tmp_and_shm_hide_nothing_but_a_run_dir_in_them() {
        assert!(matches!(container(Path::new("/run/mpsd")), Good(_)));
        for hidden in ["/tmp/mpsd", "/dev/shm/mpsd", "/var/tmp/mpsd"] {
            assert!(container(Path::new(hidden)).is_wrong(), "{hidden}");
        }
    }
}

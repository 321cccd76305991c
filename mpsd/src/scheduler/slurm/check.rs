//! `mpsctl slurm check`: what Slurm demands of our line and our plugin, and what of its configuration MPS depends on.

use super::commands::Installation;
use super::conf::Conf;
use super::gres::Gres;
use super::line::{self, PLUGIN, USUAL_PROGRAMS, WORDS};
use super::pyxis;
use super::release::{Release, all_installed, stamp_of};
use crate::scheduler::budget::{Budget, MARGIN, within};
use crate::scheduler::call::Program;
use crate::scheduler::ground::ground;
use crate::scheduler::numbers::{List, Number, Numbers};
use crate::scheduler::setup::CheckLine::{self, Fail, Pass, Warn};
use crate::scheduler::setup::SetupContext;
use mpsd_core::config::Config;
use mpsd_core::trusted::open_trusted;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Less is too little for the start of a control daemon and its servers on a node with many GPUs.
const LEAST: Duration = Duration::from_secs(5);

pub(super) fn check(
    plugins: &Path,
    slurm: &Installation,
    conf: &Conf,
    node: &str,
    around: &SetupContext<'_>,
) -> Vec<CheckLine> {
    let mut all = vec![Pass(format!(
        "Slurm's configuration is '{}'",
        conf.file.display()
    ))];
    let installed = releases(slurm, around, &mut all);
    let found = conf.found();
    all.push(stack(conf, found.as_deref()));
    let home = found.unwrap_or_else(|| conf.home());
    let mut loaded = None;
    match line(&home) {
        Ok((word, rest)) => {
            all.push(Pass(format!("'{}' has our line, '{word}'", home.display())));
            plugin(&rest, installed, &mut all);
            all.extend(files(&rest, around));
            all.extend(
                rest.first()
                    .and_then(|plugin| pyxis::order(conf, Path::new(plugin))),
            );
            loaded = rest.into_iter().next().map(PathBuf::from);
        }
        Err(why) => all.push(Fail(format!("'{}': {why}", home.display()))),
    }
    all.extend(started(slurm, conf, &home, loaded.as_deref()));
    all.extend(settings(conf, around));
    all.extend(ground(node, around));
    all.extend(gpus(conf, node, around));
    all.extend((around.standing)(&around.settings));
    if !plugins.is_dir() {
        let plugins = plugins.display();
        all.push(Fail(format!(
            "no '{plugins}': install the package with the plugins"
        )));
    }
    all
}

/// The installed release; programs that differ are two installations.
fn releases(slurm: &Installation, around: &SetupContext<'_>, all: &mut Vec<CheckLine>) -> Option<Release> {
    let said = all_installed(slurm, around.host);
    let dir = slurm.commands.display();
    all.push(match said.as_slice() {
        [] => Warn("no slurmd, sinfo or srun here says its version".to_owned()),
        [one] => Pass(format!("Slurm {one} is installed, its commands in '{dir}'")),
        several => {
            let list: Vec<String> = several.iter().map(ToString::to_string).collect();
            let list = list.join(", ");
            Fail(format!(
                "slurmd and the commands in '{dir}' are of different releases: {list}"
            ))
        }
    });
    said.first().copied()
}

fn stack(conf: &Conf, found: Option<&Path>) -> CheckLine {
    let stack = conf.stack();
    let what = match conf.stack_is_fetched() {
        true => "'mpsctl slurm enable' on the controller's host",
        false => "'mpsctl slurm enable'",
    };
    if !stack.exists() {
        return Fail(format!("no '{}': run {what}", stack.display()));
    }
    if let Err(error) = open_trusted(&stack) {
        return Warn(format!(
            "{error}: whoever may write it decides what slurmd loads as root"
        ));
    }
    let shown = stack.display();
    match found {
        Some(file) if file == stack => Pass(format!("'{shown}' has our line")),
        Some(_) => Pass(format!("'{shown}' includes our line")),
        None if conf.is_sent() || conf.stack_is_fetched() => Fail(format!(
            "'{shown}' has no line of ours in it, and the controller sends nothing that it includes: run {what}"
        )),
        None if conf.would_take_in() => Pass(format!("'{shown}' includes the file of our line")),
        None => Fail(format!(
            "'{shown}' does not include our line; add: {}",
            conf.include()
        )),
    }
}

/// Our line: its first word and the rest.
fn line(home: &Path) -> Result<(String, Vec<String>), String> {
    if !home.exists() {
        return Err("not there; run 'mpsctl slurm enable'".to_owned());
    }
    open_trusted(home).map_err(|e| format!("{e}; allowed: root's, not writable by others"))?;
    let line = line::of(home).ok_or_else(|| {
        format!(
            "no line that begins with {} and names {PLUGIN}",
            WORDS.join(" or ")
        )
    })?;
    let mut words = line.split_whitespace().map(str::to_owned);
    Ok((words.next().unwrap_or_default(), words.collect()))
}

fn plugin(rest: &[String], installed: Option<Release>, all: &mut Vec<CheckLine>) {
    let Some(file) = rest.first().map(Path::new) else {
        return all.push(Fail("our line names no plugin".to_owned()));
    };
    all.push(match (stamp_of(file), installed) {
        (Err(why), _) => Fail(why),
        (Ok(stamp), Some(release)) if stamp != release => Fail(format!(
            "'{}' is for Slurm {stamp}, and {release} is installed: run 'mpsctl slurm enable' again",
            file.display()
        )),
        (Ok(stamp), _) => Pass(format!("'{}' is root's and for Slurm {stamp}", file.display())),
    });
}

/// The files that the plugin will use.
fn files(rest: &[String], around: &SetupContext<'_>) -> Vec<CheckLine> {
    let given = |key: &str| {
        rest.iter()
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
            .map(PathBuf::from)
    };
    let mut all = Vec::new();
    for (key, name) in [("prologue", "mps-prologue"), ("epilogue", "mps-epilogue")] {
        let file = given(key).unwrap_or_else(|| Path::new(USUAL_PROGRAMS).join(name));
        all.push(CheckLine::program(&file, around.host));
    }
    let config = given("config").unwrap_or_else(|| PathBuf::from(mpsd_core::config::DEFAULT_PATH));
    all.push(match Config::load(&config) {
        Ok(_) => Pass(format!("'{}' can be used", config.display())),
        Err(error) => Fail(error.to_string()),
    });
    all
}

/// Whether slurmd has our plugin: loaded, as root can see, or else because it began after our line was written. A copy that it
/// fetched is younger than slurmd itself. `None`: no line names a plugin, which is told already.
fn started(slurm: &Installation, conf: &Conf, home: &Path, plugin: Option<&Path>) -> Option<CheckLine> {
    let Some(slurmd) = slurm.daemon.as_ref().filter(|daemon| daemon.is_of_node()) else {
        return Some(Pass("no slurmd runs here: nothing to restart".to_owned()));
    };
    let pid = slurmd.pid();
    if slurmd.replaced {
        return Some(Fail(format!(
            "slurmd (pid {pid}) runs a program that was replaced since: restart slurmd"
        )));
    }
    let loaded = slurmd.has_loaded(plugin?);
    match loaded {
        Some(true) => return Some(Pass("slurmd has loaded our plugin".to_owned())),
        Some(false) if conf.stack_is_fetched() => {
            return Some(Fail(format!(
                "slurmd (pid {pid}) has not loaded our plugin: restart slurmd"
            )));
        }
        _ => {}
    }
    let written = fs::metadata(home).and_then(|about| about.modified()).ok();
    if !conf.stack_is_fetched()
        && written.is_some_and(|written| slurmd.began().is_some_and(|began| began < written))
    {
        return Some(Fail(format!(
            "slurmd (pid {pid}) runs since before our line was written and does not know it: restart slurmd"
        )));
    }
    Some(match loaded {
        Some(false) => Warn(format!(
            "slurmd (pid {pid}) began after our line was written, and has not loaded our plugin: its log says why"
        )),
        _ => Pass("slurmd began after our line was written".to_owned()),
    })
}

fn settings(conf: &Conf, around: &SetupContext<'_>) -> Vec<CheckLine> {
    let mut all = Vec::new();
    let flags = conf.value("PrologFlags").unwrap_or("not set");
    let at_allocation = ["Alloc", "Contain", "RunInJob"]
        .iter()
        .any(|flag| conf.lists("PrologFlags", flag));
    all.push(if at_allocation {
        Pass(format!("PrologFlags is {flags}: the prolog runs on each node at the allocation"))
    } else {
        Warn(format!(
            "PrologFlags is {flags}: the prolog runs at a node's first step only; PrologFlags=Alloc (or Contain) runs it \
             on each node at the allocation"
        ))
    });
    if conf.lists("PrologFlags", "RunInJob") {
        all.push(Warn(
            "PrologFlags has RunInJob: the prolog runs in the job's own cgroup and sees only its devices"
                .to_owned(),
        ));
    }
    all.extend(timeouts(conf, around.settings.deadline));
    all.push(patience(conf, around.settings.deadline));
    all.push(if conf.lists("GresTypes", "gpu") {
        Pass("GresTypes has gpu: Slurm tells a job's GPUs".to_owned())
    } else {
        Fail(
            "GresTypes has no gpu: Slurm tells no job's GPUs, and every request for MPS is refused"
                .to_owned(),
        )
    });
    for share in ["mps", "shard"]
        .into_iter()
        .filter(|share| conf.lists("GresTypes", share))
    {
        all.push(Warn(format!(
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

/// slurmd kills a prolog and an epilog after a time, and drains the node then (docs/facts/slurm.md#failures).
fn timeouts(conf: &Conf, ours: Duration) -> Vec<CheckLine> {
    let both = [
        (Program::Prologue, "start", "Prolog error"),
        (Program::Epilogue, "end", "Epilog error"),
    ];
    let all = both.into_iter().filter_map(|(program, what, reason)| {
        let (key, its) = conf.timeout(program)?;
        let work = Budget::new(ours, Some(its)).work;
        let (its, needed) = (its.as_secs(), (ours + MARGIN).as_secs());
        let text = format!("{key} is {its} s");
        if work >= ours {
            return Some(Pass(format!("{text}: more than the {what} of a job's MPS takes")));
        }
        let text = format!(
            "{text}: the {what} of a job's MPS gets {:.1} s of our {} (deadline_s), or Slurm would drain the node \
             (\"{reason}\"); {needed} s leave it all",
            work.as_secs_f64(),
            ours.as_secs(),
        );
        Some(match work < LEAST {
            true => Fail(text),
            false => Warn(text),
        })
    });
    all.collect()
}

/// slurmstepd ends a step's own daemon in its last callback, and drains the node when its time is over
/// (docs/facts/slurm.md#the-end-of-a-step).
fn patience(conf: &Conf, ours: Duration) -> CheckLine {
    let its = conf.unkillable_step_timeout();
    let left = within(its);
    let text = format!("UnkillableStepTimeout is {} s", its.as_secs());
    if left >= ours {
        return Pass(format!("{text}: more than a step's own daemon takes to end"));
    }
    Warn(format!(
        "{text}: a step's own daemon gets {} s of our {} (deadline_s) to start and to end, or Slurm would drain the node \
         (\"Kill task failed\"); {} s leave it all",
        left.as_secs(),
        ours.as_secs(),
        (ours + MARGIN).as_secs()
    ))
}

/// Under job_container/tmpfs the tasks have a /tmp and, unless job_container.conf says Dirs=/tmp, a /dev/shm of their
/// own. Client and server share nothing there (driver 580; the contract suite's `namespaces`), but the job's pipe must
/// be in sight.
fn container(run: &Path) -> CheckLine {
    if ["/tmp", "/dev/shm", "/var/tmp"]
        .iter()
        .any(|hidden| run.starts_with(hidden))
    {
        return Fail(format!(
            "run_dir '{}' is hidden from tasks by job_container/tmpfs; allowed: /run/mpsd",
            run.display()
        ));
    }
    Pass("job_container/tmpfs: MPS needs no shared /tmp or /dev/shm (driver 580)".to_owned())
}

/// Whether Slurm's number of each GPU leads a job to that GPU; the lines of gres.conf where it does not.
fn gpus(conf: &Conf, node: &str, around: &SetupContext<'_>) -> Vec<CheckLine> {
    let gres = Gres::read(&conf.file, node, around.host);
    if !gres.grants {
        return Vec::new();
    }
    let Ok(inventory) = (around.inventory)(node) else {
        return vec![Warn(
            "NVML does not answer: which GPUs gres.conf lists is not known".to_owned(),
        )];
    };
    let outdated = gres
        .outdated
        .map(|why| Warn(format!("{why}; until it is restarted no compute mode is changed")));
    let mut all: Vec<CheckLine> = outdated.into_iter().collect();
    let listed = match gres.list.resolve(&inventory) {
        Ok(listed) => listed,
        Err(why) => {
            let why = format!("which GPU each number of Slurm means is not known: {why}");
            all.push(match gres.confined {
                Some(false) => Warn(why),
                _ => Fail(format!("{why}; jobs are refused MPS")),
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
            Err(why) => all.push(Fail(format!("a job with '{path}' is refused MPS: {why}"))),
            Ok(found) if found.first().copied() != *gpu => all.push(Warn(format!(
                "{said}: '{path}' is number {place} of Slurm, and a job with it computes on another GPU; with \
                 ConstrainDevices=yes, or files in the order of the bus, it is the same one"
            ))),
            Ok(_) => {}
        }
    }
    if all.len() == before {
        let count = listed.len();
        all.push(Pass(format!(
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
        assert!(matches!(container(Path::new("/run/mpsd")), Pass(_)));
        for hidden in ["/tmp/mpsd", "/dev/shm/mpsd", "/var/tmp/mpsd"] {
            assert!(container(Path::new(hidden)).is_wrong(), "{hidden}");
        }
    }

    #[test]
    fn a_timeout_of_slurms_that_shortens_our_own_is_told() {
        let findings = |lines: &str| {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("slurm.conf");
            fs::write(&file, lines).unwrap();
            let conf = Conf::find(Some(&file), &crate::scheduler::host::ThisHost).unwrap();
            timeouts(&conf, Duration::from_secs(20))
        };
        assert!(findings("").is_empty());
        assert!(findings("PrologEpilogTimeout=0\n").is_empty());
        assert!(findings("PrologTimeout=65534\n").is_empty());
        // Its own key goes before that of both.
        let both = findings("PrologTimeout=26\nPrologEpilogTimeout=9\n");
        assert!(matches!(&both[..], [Pass(_), Fail(_)]), "{both:?}");
        let both = findings("prologepilogtimeout=300\nEpilogTimeout=25\n");
        assert!(matches!(&both[..], [Pass(_), Warn(_)]), "{both:?}");
        let one = findings("EpilogTimeout=25\n");
        assert!(
            matches!(&one[..], [Warn(text)] if text.contains("EpilogTimeout is 25 s") && text.contains("26 s leave it all")),
            "{one:?}"
        );
    }
}

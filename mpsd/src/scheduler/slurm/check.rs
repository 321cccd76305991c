//! `mpsctl slurm check`: what Slurm demands of our line and our plugin, and what MPS needs of Slurm's configuration.

use super::conf::Conf;
use super::gres::Gres;
use super::installation::{Installation, Release, stamp_of};
use super::stack::{Delivery, PLUGIN, Stack, USUAL_PROGRAMS, WORDS, our_line};
use crate::scheduler::call::{Budget, MARGIN, Program, within};
use crate::scheduler::node_check::node_check;
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
    ctx: &SetupContext<'_>,
) -> Vec<CheckLine> {
    let mut all = vec![Pass(format!(
        "Slurm's configuration is '{}'",
        conf.file.display()
    ))];
    let releases = slurm.releases(ctx.host);
    all.push(one_release(slurm, &releases));
    let stack = Stack::of(conf);
    let found = stack.found();
    all.push(check_stack(&stack, found.as_deref()));
    let home = found.unwrap_or_else(|| stack.home());
    let mut loaded = None;
    match line(&home) {
        Ok(line) => {
            let mut words = line.split_whitespace();
            let word = words.next().unwrap_or_default();
            all.push(Pass(format!("'{}' has our line, '{word}'", home.display())));
            let words: Vec<&str> = words.collect();
            loaded = words.first().map(PathBuf::from);
            if let Some(plugin) = &loaded {
                all.push(check_plugin(plugin, releases.first().copied()));
            }
            all.extend(check_files(&words, ctx));
            all.extend(loaded.as_deref().and_then(|plugin| stack.check_pyxis(plugin)));
        }
        Err(why) => all.push(Fail(format!("'{}': {why}", home.display()))),
    }
    all.extend(check_slurmd(slurm, &stack, &home, loaded.as_deref()));
    all.extend(check_settings(conf, ctx));
    all.extend(node_check(node, ctx));
    all.extend(check_gpus(conf, node, ctx));
    all.extend((ctx.standing)(&ctx.settings));
    if !plugins.is_dir() {
        let plugins = plugins.display();
        all.push(Fail(format!(
            "no '{plugins}': install the package with the plugins"
        )));
    }
    all
}

/// Programs of different releases are two installations.
fn one_release(slurm: &Installation, releases: &[Release]) -> CheckLine {
    let dir = slurm.commands.display();
    match releases {
        [] => Warn("no slurmd, sinfo or srun here says its version".to_owned()),
        [one] => Pass(format!("Slurm {one} is installed, its commands in '{dir}'")),
        several => {
            let list: Vec<String> = several.iter().map(ToString::to_string).collect();
            let list = list.join(", ");
            Fail(format!(
                "slurmd and the commands in '{dir}' are of different releases: {list}"
            ))
        }
    }
}

fn check_stack(stack: &Stack, found: Option<&Path>) -> CheckLine {
    let shown = stack.file.display();
    let command = match stack.delivery {
        Delivery::Fetched => "'mpsctl slurm enable' on the controller's host",
        Delivery::Local | Delivery::Sent => "'mpsctl slurm enable'",
    };
    if !stack.file.exists() {
        return Fail(format!("no '{shown}': run {command}"));
    }
    if let Err(error) = open_trusted(&stack.file) {
        return Warn(format!(
            "{error}: its owner and writers decide what slurmd loads as root"
        ));
    }
    match found {
        Some(file) if file == stack.file => Pass(format!("'{shown}' has our line")),
        Some(_) => Pass(format!("'{shown}' includes our line")),
        None if stack.delivery != Delivery::Local => Fail(format!(
            "'{shown}' has no line of ours in it, and the controller sends nothing that it includes: run {command}"
        )),
        None if stack.includes_snippet() => Pass(format!("'{shown}' includes the file of our line")),
        None => Fail(format!(
            "'{shown}' does not include our line; add: {}",
            stack.include()
        )),
    }
}

fn line(home: &Path) -> Result<String, String> {
    if !home.exists() {
        return Err("not there; run 'mpsctl slurm enable'".to_owned());
    }
    open_trusted(home).map_err(|e| format!("{e}; allowed: root's, not writable by others"))?;
    let words = WORDS.join(" or ");
    our_line(home).ok_or_else(|| format!("no line that begins with {words} and names {PLUGIN}"))
}

fn check_plugin(file: &Path, installed: Option<Release>) -> CheckLine {
    let shown = file.display();
    match (stamp_of(file), installed) {
        (Err(why), _) => Fail(why),
        (Ok(stamp), Some(release)) if stamp != release => Fail(format!(
            "'{shown}' is for Slurm {stamp}, and {release} is installed: run 'mpsctl slurm enable' again"
        )),
        (Ok(stamp), _) => Pass(format!("'{shown}' is root's and for Slurm {stamp}")),
    }
}

fn check_files(words: &[&str], ctx: &SetupContext<'_>) -> Vec<CheckLine> {
    let given = |key: &str| {
        let value = |word: &&str| Some(PathBuf::from(word.strip_prefix(key)?.strip_prefix('=')?));
        words.iter().find_map(value)
    };
    let programs = [("prologue", "mps-prologue"), ("epilogue", "mps-epilogue")].map(|(key, name)| {
        let file = given(key).unwrap_or_else(|| Path::new(USUAL_PROGRAMS).join(name));
        CheckLine::program(&file, ctx.host)
    });
    let config = given("config").unwrap_or_else(|| PathBuf::from(mpsd_core::config::DEFAULT_PATH));
    let config = match Config::load(&config) {
        Ok(_) => Pass(format!("'{}' can be used", config.display())),
        Err(error) => Fail(error.to_string()),
    };
    programs.into_iter().chain([config]).collect()
}

/// Whether slurmd has our plugin: loaded, as root can see, or else because it began after our line was written. A copy that
/// slurmd fetched is younger than slurmd itself. `None`: no line names a plugin.
fn check_slurmd(
    slurm: &Installation,
    stack: &Stack,
    home: &Path,
    plugin: Option<&Path>,
) -> Option<CheckLine> {
    let Some(slurmd) = slurm.daemon.as_ref().filter(|daemon| daemon.is_of_node()) else {
        return Some(Pass("no slurmd runs here: nothing to restart".to_owned()));
    };
    let of = format!("slurmd (pid {})", slurmd.pid());
    if slurmd.replaced {
        let why = "runs a program that was replaced since: restart slurmd";
        return Some(Fail(format!("{of} {why}")));
    }
    let (loaded, fetched) = (slurmd.has_loaded(plugin?), stack.delivery == Delivery::Fetched);
    let written = fs::metadata(home).and_then(|about| about.modified()).ok();
    let times = || slurmd.began().zip(written);
    let is_older = || times().is_some_and(|(began, written)| began < written);
    Some(match loaded {
        Some(true) => Pass("slurmd has loaded our plugin".to_owned()),
        Some(false) if fetched => Fail(format!("{of} has not loaded our plugin: restart slurmd")),
        _ if !fetched && is_older() => Fail(format!(
            "{of} runs since before our line was written and does not know it: restart slurmd"
        )),
        Some(false) => Warn(format!(
            "{of} began after our line was written, and has not loaded our plugin: its log says why"
        )),
        None => Pass("slurmd began after our line was written".to_owned()),
    })
}

fn check_settings(conf: &Conf, ctx: &SetupContext<'_>) -> Vec<CheckLine> {
    let flags = conf.value("PrologFlags").unwrap_or("not set");
    let has_flag = |flag: &&str| conf.lists("PrologFlags", flag);
    let mut all = vec![match ["Alloc", "Contain", "RunInJob"].iter().any(has_flag) {
        true => Pass(format!(
            "PrologFlags is {flags}: the prolog runs on each node at the allocation"
        )),
        false => Warn(format!(
            "PrologFlags is {flags}: the prolog runs at a node's first step only; PrologFlags=Alloc (or Contain) runs it \
             on each node at the allocation"
        )),
    }];
    if has_flag(&"RunInJob") {
        let text =
            "PrologFlags has RunInJob: the prolog runs in the job's own cgroup and sees only its devices";
        all.push(Warn(text.to_owned()));
    }
    all.extend(timeouts(conf, ctx.settings.deadline));
    all.push(unkillable_timeout(conf, ctx.settings.deadline));
    all.push(match conf.lists("GresTypes", "gpu") {
        true => Pass("GresTypes has gpu: Slurm tells a job's GPUs".to_owned()),
        false => {
            let text =
                "GresTypes has no gpu: Slurm tells no job's GPUs, and every request for MPS is refused";
            Fail(text.to_owned())
        }
    });
    let is_type = |share: &&str| conf.lists("GresTypes", share);
    all.extend(["mps", "shard"].into_iter().filter(is_type).map(|share| {
        Warn(format!(
            "GresTypes has {share}: jobs may share a GPU, so its compute mode stays as it is"
        ))
    }));
    let containers = conf.value("JobContainerType").unwrap_or_default();
    all.extend(
        containers
            .ends_with("tmpfs")
            .then(|| container(ctx.settings.paths.run())),
    );
    all
}

/// slurmd kills a prolog and an epilog after a time, and drains the node then (docs/facts/slurm.md#failures).
fn timeouts(conf: &Conf, ours: Duration) -> Vec<CheckLine> {
    let both = [
        (Program::Prologue, "start", "Prolog error"),
        (Program::Epilogue, "end", "Epilog error"),
    ];
    let all = both.into_iter().filter_map(|(program, what, reason)| {
        let (key, limit) = conf.timeout(program)?;
        let work = Budget::new(ours, Some(limit)).work;
        let (limit_s, needed) = (limit.as_secs(), (ours + MARGIN).as_secs());
        let text = format!("{key} is {limit_s} s");
        if work >= ours {
            return Some(Pass(format!("{text}: more than the {what} of a job's MPS takes")));
        }
        let text = format!(
            "{text}: the {what} of a job's MPS gets {:.1} s of our {} (deadline_s), or Slurm would drain the node \
             (\"{reason}\"); {needed} s leave it all",
            work.as_secs_f64(),
            ours.as_secs(),
        );
        Some(if work < LEAST { Fail(text) } else { Warn(text) })
    });
    all.collect()
}

/// slurmstepd ends a step's own daemon in its last callback, and drains the node at this timeout
/// (docs/facts/slurm.md#the-end-of-a-step).
fn unkillable_timeout(conf: &Conf, ours: Duration) -> CheckLine {
    let limit = conf.unkillable_step_timeout();
    let (left, limit_s, needed) = (within(limit), limit.as_secs(), (ours + MARGIN).as_secs());
    let text = format!("UnkillableStepTimeout is {limit_s} s");
    if left >= ours {
        return Pass(format!("{text}: more than a step's own daemon takes to end"));
    }
    let (left, ours) = (left.as_secs(), ours.as_secs());
    Warn(format!(
        "{text}: a step's own daemon gets {left} s of our {ours} (deadline_s) to start and to end, or Slurm would drain the node \
         (\"Kill task failed\"); {needed} s leave it all"
    ))
}

/// Under job_container/tmpfs the tasks have their own /tmp, and their own /dev/shm unless job_container.conf says Dirs=/tmp.
/// Client and server share nothing there (driver 580; the contract suite's `namespaces`), but tasks must see the job's pipe.
fn container(run: &Path) -> CheckLine {
    let hidden = ["/tmp", "/dev/shm", "/var/tmp"];
    if hidden.iter().any(|hidden| run.starts_with(hidden)) {
        let run = run.display();
        return Fail(format!(
            "run_dir '{run}' is hidden from tasks by job_container/tmpfs; allowed: /run/mpsd"
        ));
    }
    Pass("job_container/tmpfs: MPS needs no shared /tmp or /dev/shm (driver 580)".to_owned())
}

/// Whether Slurm's number of each GPU leads a job to that GPU; the lines of gres.conf if not.
fn check_gpus(conf: &Conf, node: &str, ctx: &SetupContext<'_>) -> Vec<CheckLine> {
    let gres = Gres::read(&conf.file, node, ctx.host);
    if !gres.grants {
        return Vec::new();
    }
    let Ok(inventory) = (ctx.inventory)(node) else {
        let text = "NVML does not answer: which GPUs gres.conf lists is not known";
        return vec![Warn(text.to_owned())];
    };
    let outdated = gres.outdated.as_ref();
    let outdated =
        outdated.map(|why| Warn(format!("{why}; until it is restarted no compute mode is changed")));
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
    let files: Vec<_> = listed.iter().map(|(file, _)| file.clone()).collect();
    let wrong = (0..).zip(&listed).filter_map(|(place, (file, gpu))| {
        let numbers = Numbers {
            numbers: vec![Number { place, uuid: None }],
            list: List::Files(files.clone()),
            confined: gres.confined,
            by_uuid: gres.by_uuid,
        };
        let (path, entry) = (file.path.display(), &file.entry);
        match numbers.gpus(&inventory) {
            Err(why) => Some(Fail(format!("a job with '{path}' is refused MPS: {why}"))),
            Ok(found) if found.first().copied() != *gpu => Some(Warn(format!(
                "{entry}: '{path}' is number {place} of Slurm, and a job with it computes on another GPU; with \
                 ConstrainDevices=yes, or files in the order of the bus, it is the same one"
            ))),
            Ok(_) => None,
        }
    });
    let wrong: Vec<CheckLine> = wrong.collect();
    if wrong.is_empty() {
        let count = listed.len();
        let text = format!("each of the {count} GPUs of gres.conf is the one that a job with it computes on");
        all.push(Pass(text));
    }
    all.extend(wrong);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::testing::TextHost;

    #[test]
    fn a_private_tmp_and_shm_hide_nothing_but_a_run_dir_in_them() {
        assert!(matches!(container(Path::new("/run/mpsd")), Pass(_)));
        for hidden in ["/tmp/mpsd", "/dev/shm/mpsd", "/var/tmp/mpsd"] {
            assert!(container(Path::new(hidden)).is_wrong(), "{hidden}");
        }
    }

    #[test]
    fn a_timeout_of_slurm_that_shortens_our_own_is_told() {
        for (lines, expected) in [
            ("", &[][..]),
            ("PrologEpilogTimeout=0\n", &[]),
            ("PrologTimeout=65534\n", &[]),
            // A key for one of both comes first.
            (
                "PrologTimeout=26\nPrologEpilogTimeout=9\n",
                &["OK    PrologTimeout is 26 s", "FAIL  PrologEpilogTimeout is 9 s"],
            ),
            (
                "prologepilogtimeout=300\nEpilogTimeout=25\n",
                &[
                    "OK    PrologEpilogTimeout is 300 s",
                    "WARN  EpilogTimeout is 25 s",
                ],
            ),
            ("EpilogTimeout=25\n", &["WARN  EpilogTimeout is 25 s"]),
        ] {
            let host = TextHost::default().file("/x/slurm.conf", lines);
            let conf = Conf::find(Some(Path::new("/x/slurm.conf")), &host).unwrap();
            let found = timeouts(&conf, Duration::from_secs(20));
            let found: Vec<String> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), expected.len(), "{found:?}");
            let alike = |(line, begin): (&String, &&str)| line.starts_with(*begin);
            assert!(found.iter().zip(expected).all(alike), "{found:?}");
        }
    }
}

//! `mpsctl slurm check`: what Slurm demands of our line and our plugin, and what MPS needs of
//! Slurm's configuration.

use super::stack::{Delivery, PLUGIN, Stack, WORDS, our_line};
use crate::node_check::{has_gpu, offered_without_gpu};
use crate::verbs::CheckLine::{self, Fail, Pass, Warn};
use crate::verbs::SetupContext;
use anyhow::{Context as _, Result, anyhow, ensure};
use batch::call::{MARGIN, Program, within};
use batch::host::Host;
use batch::slurm::conf::{self, Conf};
use batch::slurm::gres::Gres;
use batch::slurm::installation::{Installation, Release, stamp_of};
use batch::slurm::numbers::{List, Number, Numbers};
use mpsd_core::config::Settings;
use mpsd_core::plugin_line::Arguments;
use mpsd_core::text::list;
use mpsd_core::trusted::open_trusted;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Less is too little for the start of a control daemon and its servers on a node with many GPUs.
const LEAST: Duration = Duration::from_secs(5);

pub fn check(
    plugins: &Path,
    slurm: &Installation,
    conf: &Conf,
    node: &str,
    ctx: &SetupContext<'_>,
) -> Vec<CheckLine> {
    let (releases, stack) = (slurm.releases(ctx.host), Stack::of(conf));
    let found = stack.found();
    let file = conf.file.display();
    let mut all = vec![
        Pass(format!("Slurm's configuration is '{file}'")),
        one_release(slurm, &releases),
        check_stack(&stack, found.as_deref()),
    ];
    let home = found.unwrap_or_else(|| stack.home());
    let mut plugin = None;
    match line(&home) {
        Ok(line) => {
            let words: Vec<&str> = line.split_whitespace().collect();
            let file = plugin.insert(PathBuf::from(words[1]));
            let (home, word) = (home.display(), words[0]);
            all.push(Pass(format!("'{home}' has our line, '{word}'")));
            all.push(check_plugin(file, plugins, releases.first().copied()));
            all.extend(check_words(&words[2..], ctx));
            all.extend(stack.check_repeats());
            all.extend(stack.check_containers(file));
        }
        Err(why) => all.push(Fail(format!("'{}': {why}", home.display()))),
    }
    all.extend(check_slurmd(slurm, &stack, &home, plugin.as_deref(), ctx));
    let release = releases.first().copied();
    all.push(check_prolog(conf, release));
    all.extend(check_settings(conf, ctx));
    all.extend(check_sluids(conf, release, ctx));
    all.extend(check_gpus(conf, node, ctx));
    if !plugins.is_dir() {
        let none = format!("no '{}'", plugins.display());
        all.push(Fail(format!(
            "{none}: install the package with the plugins"
        )));
    }
    all
}

/// Programs of different releases are two installations.
fn one_release(slurm: &Installation, releases: &[Release]) -> CheckLine {
    let dir = slurm.commands.display();
    if slurm.is_named_wrong() {
        return Fail(format!(
            "no scontrol in '{dir}': no drain is delivered and no remains are taken down; allowed: the directory with Slurm's bin and sbin, \
             for exec below [slurm] in mpsd.toml or for --exec"
        ));
    }
    match releases {
        [] => Warn("no slurmd, sinfo or srun here says its version".to_owned()),
        [one] => Pass(format!("Slurm {one} is installed, its commands in '{dir}'")),
        several => Fail(format!(
            "slurmd and the commands in '{dir}' are of different releases: {}",
            list(several)
        )),
    }
}

fn check_stack(stack: &Stack, found: Option<&Path>) -> CheckLine {
    let (shown, include) = (stack.file.display(), stack.include());
    let command = match stack.delivery {
        Delivery::Fetched => "'mpsctl slurm enable' on the controller's host",
        Delivery::Local | Delivery::Sent => "'mpsctl slurm enable'",
    };
    if !stack.file.exists() {
        return Fail(format!("no '{shown}': run {command}"));
    }
    if let Err(error) = open_trusted(&stack.file) {
        let then = "its owner and writers decide what slurmd loads as root";
        return Warn(format!("{error}: {then}"));
    }
    match found {
        Some(file) if file == stack.file => Pass(format!("'{shown}' has our line")),
        Some(_) => Pass(format!("'{shown}' includes our line")),
        None if stack.delivery != Delivery::Local => Fail(format!(
            "'{shown}' does not have our line, and the controller sends nothing that it includes: run {command}"
        )),
        None if stack.includes_snippet() => {
            Pass(format!("'{shown}' includes the file of our line"))
        }
        None => Fail(format!(
            "'{shown}' does not include our line; add: {include}"
        )),
    }
}

fn line(home: &Path) -> Result<String> {
    ensure!(home.exists(), "not there; run 'mpsctl slurm enable'");
    open_trusted(home).map_err(|e| anyhow!("{e}; allowed: root's, not writable by others"))?;
    let words = WORDS.join(" or ");
    our_line(home).with_context(|| {
        format!("no line that begins with {words} and names {PLUGIN}; run 'mpsctl slurm enable'")
    })
}

fn check_plugin(file: &Path, plugins: &Path, installed: Option<Release>) -> CheckLine {
    let shown = file.display();
    match (stamp_of(file), installed) {
        (Err(why), Some(release)) if !plugins.join(release.to_string()).join(PLUGIN).exists() => {
            Fail(format!("{why}; install the package with the plugins again"))
        }
        (Err(why), _) => Fail(format!("{why}; run 'mpsctl slurm enable'")),
        (Ok(stamp), Some(release)) if stamp != release => Fail(format!(
            "'{shown}' is for Slurm {stamp}, and {release} is installed: run 'mpsctl slurm enable' again"
        )),
        (Ok(stamp), _) => Pass(format!("'{shown}' is root's and for Slurm {stamp}")),
    }
}

fn check_words(words: &[&str], ctx: &SetupContext<'_>) -> Vec<CheckLine> {
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    let then = "until then every request for MPS is refused";
    let arguments = match Arguments::parse(&words) {
        Ok(arguments) => arguments,
        Err(why) => return vec![Fail(format!("{why}; {then}"))],
    };
    let config = match Settings::load(&arguments.config, &ctx.host.name()) {
        Ok(_) => Pass(format!("'{}' can be used", arguments.config.display())),
        Err(error) => CheckLine::unusable_config(&error.into()),
    };
    let programs = [arguments.prologue, arguments.epilogue];
    let programs = programs.map(|program| CheckLine::program(&program, ctx.host));
    programs.into_iter().chain([config]).collect()
}

/// Only root can see what slurmd has loaded; for others slurmd must be newer than
/// our line. A copy that slurmd fetched is younger than slurmd and tells nothing. `None`: no line
/// names a plugin.
fn check_slurmd(
    slurm: &Installation,
    stack: &Stack,
    home: &Path,
    plugin: Option<&Path>,
    ctx: &SetupContext<'_>,
) -> Option<CheckLine> {
    let Some(slurmd) = slurm.daemon.as_ref().filter(|daemon| daemon.is_of_node()) else {
        return Some(match has_gpu(ctx) {
            true => Warn("no slurmd runs here: if this is a node, start it".to_owned()),
            false => Pass("no slurmd runs here: nothing to restart".to_owned()),
        });
    };
    let of = format!("slurmd (pid {})", slurmd.pid());
    let restart = |why: &str| Some(Fail(format!("{of} {why}: restart slurmd")));
    if slurmd.replaced {
        return restart("runs a program that was replaced since");
    }
    let loaded = slurmd.has_loaded(plugin?);
    let fetched = stack.delivery == Delivery::Fetched;
    let written = fs::metadata(home).and_then(|about| about.modified()).ok();
    let is_older = || Some(slurmd.began()? < written?);
    match loaded {
        Some(true) => Some(Pass("slurmd has loaded our plugin".to_owned())),
        Some(false) if fetched => restart("has not loaded our plugin"),
        _ if !fetched && is_older() == Some(true) => {
            restart("runs since before our line was written and does not know it")
        }
        Some(false) => Some(Warn(format!(
            "{of} began after our line was written, and has not loaded our plugin: its log says why"
        ))),
        None if fetched || is_older().is_none() => Some(Warn(
            "only root can see whether slurmd has loaded our plugin".to_owned(),
        )),
        None => Some(Pass("slurmd began after our line was written".to_owned())),
    }
}

/// When the prolog of plugins runs (docs/facts/slurm.md#prologflags).
fn check_prolog(conf: &Conf, release: Option<Release>) -> CheckLine {
    let set = conf.value("PrologFlags").unwrap_or("not set");
    let has_flag = |flag: &str| conf.lists("PrologFlags", flag);
    let is_new = release.is_some_and(|release| release >= Release::SLUIDS);
    let defers = is_new && has_flag("DeferBatch");
    let mut allocating = ["Alloc", "Contain", "X11", "ForceRequeueOnFail"].into_iter();
    let allocates = allocating.any(has_flag);
    if has_flag("RunInJob") {
        let text = "PrologFlags has RunInJob: Slurm then runs no plugin's prolog, so a batch script's --mps is \
                    refused, and no partition's auto gives MPS; allowed: PrologFlags=Alloc or Contain";
        return Fail(text.to_owned());
    }
    match allocates || defers {
        true => Pass(format!(
            "PrologFlags is {set}: the prolog runs on each node at the allocation"
        )),
        false => Warn(format!(
            "PrologFlags is {set}: the prolog runs at a node's first step only; PrologFlags=Alloc (or Contain) runs it on each \
             node at the allocation"
        )),
    }
}

/// What our knowledge of a process's job rests on where cgroups have SLUIDs for names.
fn check_sluids(
    conf: &Conf,
    release: Option<Release>,
    ctx: &SetupContext<'_>,
) -> Option<CheckLine> {
    let release = release.filter(|release| *release >= Release::SLUIDS)?;
    let has_cgroups = conf.value("ProctrackType")?.ends_with("cgroup");
    let own = conf.beside("cgroup.conf", ctx.host).unwrap_or_default();
    let by_id = conf::last(&own, "CgroupJobIdPaths").is_some_and(conf::is_on);
    (has_cgroups && !by_id).then(|| {
        Pass(format!(
            "Slurm {release} names the cgroup of a job by its SLUID: mpsd knows a process' job by the SLUID that slurmd tells the \
             prolog (SLURM_JOB_SLUID)"
        ))
    })
}

fn check_settings(conf: &Conf, ctx: &SetupContext<'_>) -> Vec<CheckLine> {
    let lists = |gres: &&str| conf.lists("GresTypes", gres);
    let mut all = timeouts(conf, ctx.settings.deadline);
    let no_gpu =
        "GresTypes has no gpu: Slurm tells no job's GPUs, and every request for MPS is refused";
    all.push(match lists(&"gpu") {
        true => Pass("GresTypes has gpu: Slurm tells a job's GPUs".to_owned()),
        false => Fail(no_gpu.to_owned()),
    });
    let shared = "jobs may share a GPU, so its compute mode stays as it is";
    let shares = ["mps", "shard"].into_iter().filter(lists);
    all.extend(shares.map(|share| Pass(format!("GresTypes has {share}: {shared}"))));
    // The second key is of 25.11.
    let kinds = ["JobContainerType", "NamespaceType"].map(|key| conf.value(key));
    let hide = |kind: &&str| kind.ends_with("/tmpfs") || kind.ends_with("/linux");
    let kinds = kinds.into_iter().flatten().filter(hide);
    all.extend(kinds.map(|kind| {
        let private = private_directories(kind, conf, ctx.host);
        container(kind, &private, ctx.settings.paths.run())
    }));
    if conf.lists("LaunchParameters", "enable_nss_slurm") {
        let text = "LaunchParameters has enable_nss_slurm, which tells users to steps alone: a job with MPS of \
                    a user whom 'getent passwd' does not find on this node does not start";
        all.push(Warn(text.to_owned()));
    }
    all
}

/// The private directories of a job, of all nodes together, by the plugin's file (read to 26.11:
/// read_jcconf.c, read_nsconf.c).
fn private_directories(kind: &str, conf: &Conf, host: &dyn Host) -> Vec<String> {
    let found = match kind.ends_with("/linux") {
        true => {
            let file = conf.file.with_file_name("namespace.yaml");
            let most_bytes = 1 << 20;
            let bytes = host.configuration(&file, most_bytes).ok().flatten();
            let text = String::from_utf8(bytes.unwrap_or_default());
            yaml_values(&text.unwrap_or_default(), &["dirs", "path"])
        }
        false => {
            let lines = conf.beside("job_container.conf", host).unwrap_or_default();
            let lists = lines.iter().filter_map(|line| line.value("Dirs"));
            lists.map(str::to_owned).collect()
        }
    };
    let lists = match found.is_empty() {
        true => vec!["/tmp,/dev/shm".to_owned()],
        false => found,
    };
    let paths = lists.iter().flat_map(|list| list.split(','));
    paths.map(|path| path.trim().to_owned()).collect()
}

/// The values of these keys at any depth, one a line.
fn yaml_values(text: &str, keys: &[&str]) -> Vec<String> {
    let value = |line: &str| {
        let line = line.split('#').next()?.trim_start_matches([' ', '-']);
        let (key, value) = line.split_once(':')?;
        let value = value.trim().trim_matches(['"', '\'']);
        keys.contains(&key).then(|| value.to_owned())
    };
    text.lines().filter_map(value).collect()
}

/// slurmd kills a prolog and an epilog after a time, and drains the node then
/// (docs/facts/slurm.md#failures). slurmstepd ends a step's own daemon in its last callback, and
/// drains the node at its timeout (docs/facts/slurm.md#the-end-of-a-step).
fn timeouts(conf: &Conf, ours: Duration) -> Vec<CheckLine> {
    let [start, end] = [Program::Prologue, Program::Epilogue].map(|program| conf.timeout(program));
    let step = Some(("UnkillableStepTimeout", conf.unkillable_step_timeout()));
    let none = Duration::ZERO;
    let limits = [
        (start, "the start of a job's MPS", "Prolog error", LEAST),
        (end, "the end of a job's MPS", "Epilog error", LEAST),
        (step, "a step's own daemon", "Kill task failed", none),
    ];
    let line = |(limit, what, reason, least): (Option<(&str, Duration)>, _, _, _)| {
        let (key, limit) = limit?;
        let (left, needed) = (within(limit), (ours + MARGIN).as_secs());
        let text = format!("{key} is {} s", limit.as_secs());
        if left >= ours {
            return Some(Pass(format!("{text}: more than {what} takes")));
        }
        let (gets, ours) = (left.as_secs_f64(), ours.as_secs());
        let text = format!(
            "{text}: {what} gets {gets} s of our {ours} (deadline_s), or Slurm would drain the node (\"{reason}\"); {needed} s \
             leave it all"
        );
        Some(if left < least { Fail(text) } else { Warn(text) })
    };
    limits.into_iter().filter_map(line).collect()
}

/// Client and server share nothing in the tasks' private directories (driver 580; the contract
/// suite's `namespaces`), but tasks must see the job's pipe.
fn container(kind: &str, private: &[String], run: &Path) -> CheckLine {
    let shown = run.display();
    match private.iter().any(|private| run.starts_with(private)) {
        true => Fail(format!(
            "run_dir '{shown}' is hidden from tasks by {kind}; allowed: /run/mpsd"
        )),
        false => Pass(format!(
            "{kind}: MPS needs no shared /tmp or /dev/shm (driver 580)"
        )),
    }
}

fn check_shards(gres: &Gres) -> Option<CheckLine> {
    match gres.shards_of_each {
        Some(each) => Some(Pass(format!(
            "each GPU has {each} shards: a user's jobs with --gres=shard:N --mps share one MPS on it"
        ))),
        None if gres.shards > 0 => Some(Warn(format!(
            "the {} shards of this node are not the same number on each GPU, so which part of a GPU a job has is not known: \
             --mps-mem=auto and --mps-threads=auto are refused to jobs with shards",
            gres.shards
        ))),
        None if gres.unshared => None,
        None => Some(Pass(
            "this cluster has gres/shard or gres/mps, and this node has no shards: no compute mode is changed here".to_owned(),
        )),
    }
}

/// The jobs of `auto_...` that the site gives no MPS, because their programs could notice it.
fn left_out(confined: Option<bool>, gpus: usize, settings: &Settings) -> Option<CheckLine> {
    let slurm = &settings.slurm;
    let by_user = slurm.auto_gres || slurm.auto_constraint.is_some();
    let is_on = by_user || !slurm.auto_partitions.is_empty();
    (is_on && gpus > 1 && confined != Some(true)).then(|| {
        Warn(format!(
            "without ConstrainDevices=yes the jobs of auto_partitions, auto_constraint and auto_gres have MPS only with all {gpus} GPUs \
             of this node: the numbers of fewer would change"
        ))
    })
}

/// Whether Slurm's number of each GPU leads a job to that GPU; else the lines of gres.conf. Another
/// line covers NVML.
fn check_gpus(conf: &Conf, node: &str, ctx: &SetupContext<'_>) -> Vec<CheckLine> {
    let gres = Gres::read(conf, node, ctx.host).ok();
    let Some(gres) = gres.filter(|gres| gres.grants) else {
        return Vec::new();
    };
    if !has_gpu(ctx) {
        return vec![offered_without_gpu()];
    }
    let Ok(inventory) = (ctx.inventory)(node) else {
        return Vec::new();
    };
    let then = "until it is restarted no compute mode is changed";
    let outdated = gres
        .outdated
        .iter()
        .map(|why| Warn(format!("{why}; {then}")));
    let mut all: Vec<CheckLine> = outdated.chain(check_shards(&gres)).collect();
    all.extend(left_out(gres.confined, inventory.gpus.len(), &ctx.settings));
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
        all.push(Pass(format!(
            "each of the {count} GPUs of gres.conf is the one that a job with it computes on"
        )));
    }
    all.extend(wrong);
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use batch::testing::TextHost;

    #[test]
    fn a_site_whose_auto_would_change_the_numbers_of_gpus_is_told() {
        let auto = "auto_partitions = [\"gpu\"]";
        for (lines, confined, gpus, told) in [
            (auto, Some(false), 4, true),
            (auto, None, 4, true),
            ("auto_gres = true", Some(false), 2, true),
            ("auto_constraint = \"mps\"", Some(false), 2, true),
            (auto, Some(true), 4, false),
            (auto, Some(false), 1, false),
            ("", Some(false), 4, false),
        ] {
            let settings = Settings::parse(&format!("[slurm]\n{lines}\n"), "n1").unwrap();
            let line = left_out(confined, gpus, &settings).map(|line| line.to_string());
            let words = format!("only with all {gpus} GPUs of this node");
            let is_told = line.is_some_and(|line| line.contains(&words));
            assert_eq!(is_told, told, "{lines} {confined:?} {gpus}");
        }
    }

    #[test]
    fn a_run_dir_in_a_jobs_private_directory_is_found() {
        // With ';' for a line's end. The last row has the other plugin's file.
        let rows = r#"
namespace/tmpfs | | | /dev/shm/mpsd | hidden
namespace/tmpfs | | | /run/mpsd | open
job_container/tmpfs | job_container.conf | BasePath=/x Dirs=/run,/tmp; | /run/mpsd | hidden
namespace/tmpfs | job_container.conf | BasePath=/run;Dirs=/var/tmp; | /run/mpsd | open
namespace/linux | | | /tmp/mpsd | hidden
namespace/linux | namespace.yaml | defaults:;  base_path: /x # /run;  dirs: "/tmp,/run";node_confs:;  - nodes: [n1]; | /run/mpsd | hidden
namespace/linux | namespace.yaml | BY_PATH | /run/mpsd | hidden
namespace/linux | namespace.yaml | BY_PATH | /x/mpsd | open
namespace/linux | job_container.conf | Dirs=/run; | /run/mpsd | open"#;
        let by_path =
            "defaults:;  dir_confs:;    - path: /run;      tmpfs: true;    - path: '/tmp';";
        for row in rows.trim().lines() {
            let row = row.replace("BY_PATH", by_path).replace(';', "\n");
            let cells: Vec<&str> = row.split('|').map(str::trim_start).collect();
            let [kind, file, run] = [0, 1, 3].map(|at: usize| cells[at].trim());
            let (text, found) = (cells[2], cells[4]);
            let host = TextHost::default().file("/x/slurm.conf", "");
            let host = host.file(&format!("/x/{file}"), text);
            let conf = Conf::find(Some(Path::new("/x/slurm.conf")), &host).unwrap();
            let private = private_directories(kind, &conf, &host);
            let line = container(kind, &private, Path::new(run)).to_string();
            assert_eq!(line.starts_with("FAIL"), found == "hidden", "{row}: {line}");
        }
    }

    #[test]
    fn a_timeout_of_slurm_that_shortens_our_own_is_told() {
        // A key for one of both comes first.
        let rows = "\
PrologEpilogTimeout=0 ->
PrologTimeout=65534 ->
PrologTimeout=26;PrologEpilogTimeout=9 ->OK    PrologTimeout is 26;FAIL  PrologEpilogTimeout is 9;
prologepilogtimeout=300;EpilogTimeout=25 ->OK    PrologEpilogTimeout is 300;WARN  EpilogTimeout is 25;
EpilogTimeout=25 ->WARN  EpilogTimeout is 25;";
        for row in rows.lines() {
            let (lines, expected) = row.split_once(" ->").unwrap();
            let host = TextHost::default().file("/x/slurm.conf", &lines.replace(';', "\n"));
            let conf = Conf::find(Some(Path::new("/x/slurm.conf")), &host).unwrap();
            let found = timeouts(&conf, Duration::from_secs(20));
            // Compare each line up to its number of seconds.
            let begin = |line: &CheckLine| line.to_string().split(" s:").next().unwrap().to_owned();
            let found: Vec<String> = found.iter().map(begin).collect();
            let step = "OK    UnkillableStepTimeout is 60";
            assert_eq!(found.join(";"), format!("{expected}{step}"), "{lines}");
        }
    }
}

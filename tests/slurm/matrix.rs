//! Jobs of every kind on sites of every kind, each job three times at once: without the plugin,
//! with it, and with the row's flags. The plain job is the measure: a job or a step that did not
//! ask differs in nothing, and one that asked has the same GPUs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use tests::slurm::{Client, Gpus, Options, WITNESS, Witness, Word, program_beside};

use crate::jobs::{LIMIT, holds, says};
use crate::runner::{Cell, Context, Group, KEEP, cells};
use crate::sites::{no_cgroups, older_than};

const EXCLUSIVE: &str = "compute_mode = \"exclusive\"\n";
const ALL: &[Cell] = cells![
    each_launch_and_each_of_its_steps,
    each_binding_and_each_limit
];

/// A list unlike the bus order, `KEY = VALUE`, and no PrologFlags: the prolog runs at a node's first
/// step, and has that step's options in its environment.
pub const BARE: Group = Group {
    options: || Options {
        minors: vec![2, 3, 0, 1],
        prolog_flags: String::new(),
        blanks: true,
        ..options("gpu:4", &[("[0-3]", "")])
    },
    ..Group::fast(
        "matrix_bare",
        KEEP,
        cells![
            each_launch_and_each_of_its_steps,
            a_first_step_that_asks_does_not_ask_for_its_job,
        ],
    )
};

pub const DEFERRED: Group = Group {
    options: || Options {
        word: Word::Required,
        prolog_flags: match older_than(23, 2, "ForceRequeueOnFail") {
            Some(_) => "Alloc,DeferBatch".into(),
            None => "DeferBatch,ForceRequeueOnFail".into(),
        },
        slurm_lines: vec!["TaskPlugin=task/affinity".into()],
        ..options("gpu:4", &[("[0-3]", "")])
    },
    ..Group::fast("matrix_deferred", EXCLUSIVE, ALL)
};

pub const CONFINED: Group = Group {
    options: || {
        let options = Options {
            // Slurm 25.11 accepts only Cores= that are whole sockets.
            node_words: Some("Sockets=2 CoresPerSocket=4 ThreadsPerCore=1".into()),
            ..options("gpu:4", &[("[0-1]", " Cores=0-3"), ("[2-3]", " Cores=4-7")])
        };
        options.with_cgroups(&["ConstrainDevices=yes"])
    },
    needs: || no_cgroups(&["devices", "freezer", "cpuset"]),
    ..Group::fast("matrix_confined", EXCLUSIVE, ALL)
};

/// Two types of GPUs, the later ones first, and no files on the nodes.
pub const CONFIGLESS: Group = Group {
    options: || {
        let types = [("[2-3]", " Type=b"), ("[0-1]", " Type=a")];
        let options = Options {
            configless: true,
            ..options("gpu:b:2,gpu:a:2", &types)
        };
        options.with_cgroups(&["ConstrainDevices=no"])
    },
    needs: CONFINED.needs,
    ..Group::fast(
        "matrix_configless",
        KEEP,
        cells![each_launch_and_each_of_its_steps],
    )
};

const NODE: &str = "site";

/// Two nodes for each of the three jobs. The last two load no plugin.
fn options(gres: &str, files: &[(&str, &str)]) -> Options {
    let line = |(files, words): &(&str, &str)| format!("Name=gpu File=/dev/nvidia{files}{words}\n");
    Options {
        nodes: 6,
        node_name: NODE,
        gpus: Gpus::Simulated(4),
        minors: vec![0, 1, 2, 3],
        gres: Some(gres.to_owned()),
        gres_conf: Some(format!(
            "AutoDetect=off\n{}",
            files.iter().map(line).collect::<String>()
        )),
        plain_nodes: [5, 6].map(|number| format!("{NODE}{number}")).to_vec(),
        ..Options::default()
    }
}

/// The launch, the job's shape, its flags, those of the second step or component, and what each
/// step has then: `-` is no MPS, `off` is none on the GPUs of its job's MPS, or numbers of
/// multiprocessors by local rank. `M` is before the memory limits of which a task has one, `sees`
/// before the number of GPUs that it sees, if it sees others than without us, and `on` before the
/// number of GPUs that the tasks of a node see first. (50 % of 132 multiprocessors are 66, 30 and
/// 70 % are 38 and 92, 10 % are 12: recorded.)
const EACH_LAUNCH: &str = "
srun | -N2 --ntasks-per-node=2 --gres=gpu:2 | --mps --mps-threads=50 --mps-mem=4G | | one 66 M4096
sbatch | --gres=gpu:1 | --mps --mps-threads=30:70 --mps-mem=4G | --mps-threads=10 --mps-mem=2G | batch 38 M4096, one 38:92 M4096, two 12 M2048
sbatch --array=1-2%1 | --gres=gpu:1 | | --mps --mps-threads=50 | batch -, one -, two 66
salloc | --gres=gpu:2 | --mps=per-gpu --mps-threads=50 | --mps=off | one 66 sees1 on2, two off
het | --gres=gpu:1 | --mps --mps-threads=50 | --mps=off | one 66, two -
";

/// The last: two tasks meet on each GPU, also if each takes the first that it sees.
const EACH_BINDING: &str = "
srun | --gres=gpu:2 --gpu-bind=none | --mps | | one 132 sees2
srun | --gres=gpu:2 --gpu-bind=single:1 | --mps | | one 132
srun | --gres=gpu:2 --gpu-bind=map_gpu:1,0 | --mps | | one 132
srun | --gpus-per-task=1 | --mps | | one 132
srun | --ntasks-per-gpu=1 | --mps | | one 132
srun | --gres=gpu:2 | --mps --mps-bind=cyclic | | one 132 sees1 on2
srun | --gres=gpu:2 | --mps --mps-bind=block | | one 132 sees1 on2
srun | --gres=gpu:2 | --mps --mps-bind=closest | | one 132 sees1 on2
srun | --gres=gpu:2 | --mps --mps-visible=ordinal | | one 132
srun | --gres=gpu:2 | --mps --mps-visible=uuid | | one 132
srun | -N1 -n6 --gres=gpu:3 | --mps --mps-threads=auto --mps-mem=auto | | one 132 M71885 on3
";

struct Row<'a> {
    launch: &'a str,
    shape: &'a str,
    flags: &'a str,
    second: &'a str,
    /// Label and words.
    steps: Vec<(&'a str, Vec<&'a str>)>,
}

impl<'a> Row<'a> {
    fn read(line: &'a str) -> Result<Row<'a>> {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        let [launch, shape, flags, second, steps] = parts[..] else {
            bail!("not five parts: {line}");
        };
        let steps = steps.split(", ").map(|step| {
            let mut words = step.split(' ');
            (words.next().unwrap_or_default(), words.collect())
        });
        Ok(Row {
            launch,
            shape,
            flags,
            second,
            steps: steps.collect(),
        })
    }
}

/// The numbers behind `name` among the words of a step.
fn numbers(words: &[&str], name: &str) -> Option<Vec<u64>> {
    let list = words.iter().find_map(|word| word.strip_prefix(name))?;
    list.split(':').map(|number| number.parse().ok()).collect()
}

fn each_launch_and_each_of_its_steps(cell: &Context) -> Result<()> {
    each(cell, EACH_LAUNCH)
}

fn each_binding_and_each_limit(cell: &Context) -> Result<()> {
    each(cell, EACH_BINDING)
}

fn each(cell: &Context, table: &str) -> Result<()> {
    let witness = cell.nodes.dir().join(WITNESS);
    if !witness.exists() {
        tests::double::copy_program(&program_beside(WITNESS)?, &witness)?;
    }
    for line in table.trim().lines() {
        let row = Row::read(line)?;
        let judged = run(cell, &row).and_then(|runs| judge(cell, &row, &runs));
        judged.and_then(|()| cell.idle()).context(line.to_owned())?;
        cell.check_in_service()?;
    }
    Ok(())
}

const WITH: usize = 0;
const PLAIN: usize = 2;

struct Run {
    nodes: [String; 2],
    said: String,
    tasks: Vec<Witness>,
}

/// The job with the flags, without them, and without the plugin.
fn run(cell: &Context, row: &Row<'_>) -> Result<[Run; 3]> {
    let started = [0, 1, 2].map(|variant| start(cell, row, variant));
    let mut runs = Vec::new();
    for (variant, started) in started.into_iter().enumerate() {
        let (dir, client) = started?;
        let done = client.wait(LIMIT)?;
        let mut said = done.said();
        if row.launch.starts_with("sbatch") {
            let job = done.success()?.stdout;
            cell.wait("the job's end", || {
                let queue = cell.root(&format!("squeue -h -a -o %i -j {}", job.trim()))?;
                Ok(queue.trim().is_empty())
            })?;
            said.clear();
        } else if variant == PLAIN {
            done.success()?;
        }
        for file in fs::read_dir(&dir)?.flatten().map(|entry| entry.path()) {
            if file.extension().is_some_and(|end| end == "out") {
                said += &fs::read_to_string(file)?;
            }
        }
        runs.push(Run {
            nodes: nodes(variant),
            said,
            tasks: Witness::all(&dir)?,
        });
    }
    runs.try_into().map_err(|_| anyhow::anyhow!("three runs"))
}

fn nodes(variant: usize) -> [String; 2] {
    [1, 2].map(|number| format!("{NODE}{}", number + 2 * variant))
}

fn start(cell: &Context, row: &Row<'_>, variant: usize) -> Result<(PathBuf, Client)> {
    let count = fs::read_dir(cell.bed.home(&cell.user))?.count();
    let dir = cell.bed.home(&cell.user).join(format!("row{count}"));
    fs::create_dir(&dir)?;
    chown(&dir, Some(cell.user.uid), Some(cell.user.gid))?;
    let look = |label: &str| {
        let program = cell.nodes.dir().join(WITNESS);
        format!("{} {} {label} 0.1", program.display(), dir.display())
    };
    let (flags, second) = match variant {
        WITH => (row.flags, row.second),
        _ => ("", ""),
    };
    let [one, other] = nodes(variant);
    let both = match row.shape.contains("-N2") {
        true => format!("{one},{other}"),
        false => one.clone(),
    };
    let size = match row.shape.starts_with("-N") {
        true => "",
        false => "-N1 -n2",
    };
    let shape = format!("{size} {} {flags}", row.shape);
    let step = |label: &str, flags: &str| {
        format!("srun {flags} {}; echo \"code {label} $?\"", look(label))
    };
    let steps = [step("one", ""), step("two", second)].join("\n");
    let command = match row.launch {
        "srun" => format!("srun {shape} -w {both} {}", look("one")),
        "het" => {
            let part = format!("{size} {} {second} -w {other} {}", row.shape, look("two"));
            format!("srun {shape} -w {one} {} : {part}", look("one"))
        }
        "salloc" => format!("salloc {shape} -w {both}"),
        sbatch => {
            let file = dir.join("job.sh");
            fs::write(&file, format!("#!/bin/bash\n{}\n{steps}\n", look("batch")))?;
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
            let (dir, file) = (dir.display(), file.display());
            format!("{sbatch} --parsable {shape} -w {both} --output={dir}/%j.out {file}")
        }
    };
    let line = if row.launch == "salloc" { &steps } else { "" };
    let conf = cell.bed.plain_conf();
    let env: &[(&str, &str)] = match variant {
        PLAIN => &[("SLURM_CONF", &conf)],
        _ => &[],
    };
    let client = cell.start_as(&cell.user, &command, line, env)?;
    Ok((dir, client))
}

/// The place of a step's task, the same in all three runs: element of the array, node, local rank.
type Place = (String, usize, usize);

impl Run {
    fn of_step(&self, label: &str) -> BTreeMap<Place, &Witness> {
        let place = |task: &Witness| {
            let index = task.variable("SLURM_ARRAY_TASK_ID").unwrap_or_default();
            let node = self.nodes.iter().position(|name| *name == task.node);
            let rank = match task.label.as_str() {
                "batch" => 0,
                _ => task.local_rank(),
            };
            (index.to_owned(), node.unwrap_or(9), rank)
        };
        let tasks = self.tasks.iter().filter(|task| task.label == label);
        tasks.map(|task| (place(task), task)).collect()
    }
}

fn judge(cell: &Context, row: &Row<'_>, [with, without, plain]: &[Run; 3]) -> Result<()> {
    let same_lines = lines(without) == lines(plain);
    ensure!(same_lines, "{}\n{}", without.said, plain.said);
    let keeps = fs::read_to_string(&cell.nodes.product.config)?.contains("= \"keep\"");
    for (label, words) in &row.steps {
        let (expected, found) = (plain.of_step(label), with.of_step(label));
        ensure!(!expected.is_empty(), "no plain {label}: {}", plain.said);
        same(&expected, plain, &without.of_step(label), without)?;
        match words[0] {
            "-" => same(&expected, plain, &found, with)?,
            "off" if keeps => same(&expected, plain, &found, with)?,
            "off" => {
                says(&with.said, &["--mps=off"])?;
                let ran = with.said.contains(&format!("code {label} 0"));
                holds(found.is_empty() && !ran, &with.said)?;
            }
            _ => attached(cell, row, words, &expected, &found)
                .with_context(|| format!("{label}: {}", with.said))?,
        }
    }
    Ok(())
}

/// Each task is on its GPUs, under a daemon of its user's that it has in common with the node's
/// other tasks, with its limits.
fn attached(
    cell: &Context,
    row: &Row<'_>,
    words: &[&str],
    expected: &BTreeMap<Place, &Witness>,
    found: &BTreeMap<Place, &Witness>,
) -> Result<()> {
    let of_ranks = numbers(words, "").context("no multiprocessors")?;
    let (memory, sees) = (numbers(words, "M"), numbers(words, "sees"));
    let mut daemons: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    let mut firsts: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for (place, model) in expected {
        let task = *found.get(place).with_context(|| format!("no {place:?}"))?;
        let cuda = &task.cuda;
        holds(cuda.under_mps && cuda.error.is_none(), cuda)?;
        holds(task.daemon_uid == Some(cell.user.uid), &task.daemon_uid)?;
        let right = match &sees {
            None => task.devices == model.devices,
            Some(count) => {
                let own = task.devices.len() as u64;
                own == count[0] && task.devices.is_subset(&model.devices)
            }
        };
        let may = task.may_open == model.may_open && task.devices.is_subset(&task.may_open);
        let seen = (&task.devices, &task.may_open);
        ensure!(right && may, "{place:?}: {seen:?}, not {:?}", model.devices);
        let has = (cuda.sms, cuda.memory_limit_mib);
        let is_one = match (&memory, has.1) {
            (Some(memory), Some(mib)) => memory.contains(&mib),
            (memory, limit) => memory.is_none() && limit.is_none(),
        };
        let sms = of_ranks[place.2 % of_ranks.len()];
        ensure!(is_one && has.0 == Some(sms), "{place:?}: {has:?}");
        named(cell, row, task)?;
        let own = row.flags.contains("per-gpu").then_some(&task.devices);
        let node = (&place.0, place.1);
        let pids = daemons.entry((node, own)).or_default();
        pids.insert(cuda.daemon_pid);
        let seen_first = firsts.entry(node).or_default();
        seen_first.insert(cuda.uuids.first());
    }
    holds(daemons.values().all(|pids| pids.len() == 1), &daemons)?;
    let wanted = numbers(words, "on");
    let enough = |seen: &BTreeSet<_>| wanted.as_ref().is_none_or(|of| seen.len() as u64 == of[0]);
    holds(firsts.values().all(enough), &firsts)
}

/// A program that reads `CUDA_VISIBLE_DEVICES` finds numbers if they were asked for. Otherwise it
/// finds them only if they mean the same GPUs without the daemon.
fn named(cell: &Context, row: &Row<'_>, task: &Witness) -> Result<()> {
    let list = task.variable("CUDA_VISIBLE_DEVICES").unwrap_or_default();
    let numbers: Option<Vec<usize>> = list.split(',').map(|number| number.parse().ok()).collect();
    let asked = row.flags.split_once("--mps-visible=").map(|(_, word)| word);
    let mut may_open = cell.nodes.nodes[0].device_names();
    may_open.retain(|device| task.may_open.contains(device));
    let right = match (asked, numbers) {
        (Some("ordinal"), numbers) => numbers.is_some(),
        (Some(_), numbers) => numbers.is_none(),
        (None, None) => true,
        (None, Some(numbers)) => {
            let meant = numbers.iter().filter_map(|at| may_open.get(*at).cloned());
            meant.collect::<BTreeSet<_>>() == task.devices
        }
    };
    ensure!(right, "'{list}' of {may_open:?} for {:?}", task.devices);
    Ok(())
}

/// Slurm prints these depending on how long something took.
const BY_CHANCE: &[&str] = &["salloc: ", "srun: Job ", "srun: Step created", "srun: job "];

fn lines(run: &Run) -> BTreeSet<String> {
    let lines = run.said.lines();
    let lines = lines.filter(|line| !BY_CHANCE.iter().any(|chance| line.starts_with(chance)));
    let digits = |c: char| c.is_ascii_digit();
    lines.map(|line| line.replace(digits, "")).collect()
}

/// Parts of the names of variables of one job, its processes or the cluster's file, and not of its
/// resources. (The last three: Slurm 26.05's id among all clusters, src/common/env.c; and srun
/// launches each component in a thread, srun.c `_launch_one_app`, while the others still set
/// theirs.)
const OF_THE_JOB: &[&str] = &[
    "SLURM_CONF",
    "JOBID",
    "JOB_ID",
    "SLURM_TASK_PID",
    "SLURM_JOB_START_TIME",
    "SLURM_JOB_END_TIME",
    "SLURM_STEP_LAUNCHER_PORT",
    "SLURM_SRUN_COMM_PORT",
    "SLURM_RESV_PORTS",
    "SLURM_JOB_SLUID",
    "_HET_GROUP_",
    "_PACK_GROUP_",
];

/// What a program can read of itself, with the nodes' numbers in the run.
fn facts(task: &Witness, run: &Run, with_flags: bool) -> BTreeMap<String, String> {
    let [one, other] = &run.nodes;
    let (first, last) = (one.trim_start_matches(NODE), other.trim_start_matches(NODE));
    let place = task.variable("PWD").unwrap_or_default();
    let plain = |value: &str| {
        let value = value.replace(&format!("{NODE}[{first}-{last}]"), "both");
        let value = value.replace(one, "one").replace(other, "other");
        match value.starts_with(place) && !place.is_empty() {
            true => "a place".to_owned(),
            false => value,
        }
    };
    // The variables of these names carry the options of another step or component.
    let skipped = |name: &str| {
        OF_THE_JOB.iter().any(|part| name.contains(part)) || with_flags && name.contains("_SPANK_")
    };
    let variables = task.environment.iter().filter(|(name, _)| !skipped(name));
    let variables = variables.map(|(name, value)| (name.clone(), plain(value)));
    let cuda = (task.cuda.under_mps, &task.cuda.error);
    let seen = (cuda, &task.devices, &task.may_open, &task.limits);
    let seen = ("what it sees".to_owned(), format!("{seen:?}"));
    variables.chain([seen]).collect()
}

fn same(
    expected: &BTreeMap<Place, &Witness>,
    plain: &Run,
    found: &BTreeMap<Place, &Witness>,
    run: &Run,
) -> Result<()> {
    let with_flags = run.nodes == nodes(WITH);
    for (place, model) in expected {
        let none = || format!("no {place:?}: {}", run.said);
        let own = facts(found.get(place).with_context(none)?, run, with_flags);
        let other = facts(model, plain, with_flags);
        let names: BTreeSet<&String> = own.keys().chain(other.keys()).collect();
        for name in names {
            let values = (own.get(name), other.get(name));
            ensure!(values.0 == values.1, "{place:?}: {name}: {values:?}");
        }
    }
    Ok(())
}

/// The next step is like its job, and another step may ask differently.
fn a_first_step_that_asks_does_not_ask_for_its_job(cell: &Context) -> Result<()> {
    let client = cell.client("--hold 0.1");
    let steps = [
        "--mps --mps-threads=30",
        "",
        "--mps --mps-threads=20",
        "--mps=off",
    ];
    let steps = steps.map(|words| format!("srun {words} /bin/sh -c '{client}'"));
    let records = cell.records("salloc -w site[1-2] --gres=gpu:1", &steps.join(" && "))?;
    let under: Vec<bool> = records.iter().map(|record| record.under_mps).collect();
    let asked = [true, true, false, false, true, true, false, false];
    ensure!(under == asked, "under MPS: {under:?}, not {asked:?}");
    holds(records[0].sms > records[4].sms, &records)
}

//! A job that did not ask, beside the same job on a cluster without the plugin: nothing differs.

use std::collections::{BTreeMap, BTreeSet};

use tests::slurm::Witness;

use super::oracle::{NO_FLAG, Run};

/// A job that did not ask is the same as on a cluster without the plugin, in every task and every
/// word.
pub fn same_run(who: &str, run: &Run, plain: &Run, troubles: &mut Vec<String>) {
    same_words(who, run, plain, troubles);
    let found = run.by_place();
    for (place, model) in plain.by_place() {
        let said = match found.get(&place) {
            Some(task) => same_task(task, model, run, plain),
            None => vec!["is not there".into()],
        };
        let named = |said| format!("{who}: {} r{}: {said}", place.0, place.3);
        troubles.extend(said.into_iter().map(named));
    }
}

/// The same exit code, and the same lines.
pub fn same_words(who: &str, run: &Run, plain: &Run, troubles: &mut Vec<String>) {
    let codes = (run.code, plain.code);
    if codes.0 != codes.1 {
        troubles.push(format!("{who}: exit codes {codes:?}"));
    }
    let (ours, theirs) = (lines(run), lines(plain));
    for line in ours.symmetric_difference(&theirs) {
        troubles.push(format!("{who}: only one job reads '{line}'"));
    }
}

/// A task whose site gave it MPS, or did not: its program finds what it would have found.
pub fn unnoticed(task: &Witness, model: &Witness, run: &Run, plain: &Run) -> Vec<String> {
    let mut own = task.clone();
    if own.cuda.under_mps {
        own.cuda.under_mps = model.cuda.under_mps;
        own.limits = model.limits.clone();
        let is_ours = |name: &str| name.starts_with("CUDA_MPS_") || name.starts_with("MPSD_");
        own.environment.retain(|name, _| !is_ours(name));
    }
    same_task(&own, model, run, plain)
}

/// Slurm prints these depending on how long something took.
const BY_CHANCE: &[&str] = &["salloc: ", "srun: Job ", "srun: Step created", "srun: job "];

fn lines(run: &Run) -> BTreeSet<String> {
    let said = plain_text(&run.said, &run.nodes);
    let told = said
        .lines()
        .filter(|line| !BY_CHANCE.iter().any(|chance| line.starts_with(chance)));
    told.map(str::to_owned).collect()
}

/// Replaces numbers and node names, which differ between the three jobs.
fn plain_text(text: &str, nodes: &[String]) -> String {
    let mut text = text.to_owned();
    for (at, node) in nodes.iter().enumerate() {
        text = text.replace(node.as_str(), &format!("node {at}"));
    }
    let mut plain = String::new();
    for character in text.chars() {
        match character {
            digit if digit.is_ascii_digit() => {
                if !plain.ends_with('#') {
                    plain.push('#');
                }
            }
            other => plain.push(other),
        }
    }
    plain
}

/// Variables that name the job, its nodes, its processes or the cluster's file, and not its
/// resources.
const OF_THE_JOB: &[&str] = &[
    "SLURM_CONF",
    "SLURM_JOBID",
    "SLURM_JOB_ID",
    "SLURM_ARRAY_JOB_ID",
    "SLURM_TASK_PID",
    "SLURM_JOB_START_TIME",
    "SLURM_JOB_END_TIME",
    "SLURM_STEP_LAUNCHER_PORT",
    "SLURM_SRUN_COMM_PORT",
    "SLURM_TASKS_PER_NODE_PID",
    "SLURM_RESV_PORTS",
    // Slurm 26.05: the job's id among all clusters (src/common/env.c, `sluid`).
    "SLURM_JOB_SLUID",
];

/// Parts of the names of variables about one component of a het job. srun launches each component
/// in a thread (srun.c, `_launch_one_app`) while the others still set theirs. So a task may or may
/// not see those of a later component.
const BY_THREADS: &[&str] = &["_HET_GROUP_", "_PACK_GROUP_"];

fn environment<'a>(task: &'a Witness, run: &Run) -> BTreeMap<&'a str, String> {
    let [first, second] = &run.nodes;
    let numbers = |node: &str| node.trim_start_matches(super::site::NODE).to_owned();
    let between = if is_next(&numbers(first), &numbers(second)) {
        '-'
    } else {
        ','
    };
    let both = format!(
        "{}[{}{between}{}]",
        super::site::NODE,
        numbers(first),
        numbers(second)
    );
    let named = |value: &str| {
        value
            .replace(&both, "both nodes")
            .replace(first, "node 0")
            .replace(second, "node 1")
    };
    let kept = task.environment.iter().filter(|(name, _)| {
        let job = OF_THE_JOB.contains(&name.as_str())
            || name.starts_with("SLURM_JOB_ID")
            || name.starts_with("SLURM_JOB_NODELIST_HET");
        !job && !name.starts_with("SLURM_HET_JOB_ID")
    });
    kept.map(|(name, value)| (name.as_str(), named(value)))
        .collect()
}

fn is_next(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<u32>().ok();
    number(one).map(|one| one + 1) == number(other)
}

pub fn same_task(task: &Witness, model: &Witness, run: &Run, plain: &Run) -> Vec<String> {
    let mut said = Vec::new();
    let mut differs = |what: &str, own: String, other: String| {
        if own != other {
            said.push(format!("not asked for: {what} is {own}, not {other}"));
        }
    };
    let facts = |task: &Witness| {
        [
            ("it", format!("under MPS {}", task.cuda.under_mps)),
            ("its GPUs", format!("{:?}", task.devices)),
            ("what it may open", format!("{:?}", task.may_open)),
            ("its error", format!("{:?}", task.cuda.error)),
            ("its limits", format!("{:?}", task.limits)),
        ]
    };
    for ((what, own), (_, other)) in facts(task).into_iter().zip(facts(model)) {
        differs(what, own, other);
    }
    let (ours, theirs) = (environment(task, run), environment(model, plain));
    let names: BTreeSet<&str> = ours.keys().chain(theirs.keys()).copied().collect();
    for name in names {
        // Variables of these names carry the options of another step or component.
        if run.has_flags && name.contains("_SPANK_") {
            continue;
        }
        // An srun that does not know our flag makes no step, so the next one gets its number.
        if run.said.contains(NO_FLAG) && ["SLURM_STEP_ID", "SLURM_STEPID"].contains(&name) {
            continue;
        }
        let (own, other) = (ours.get(name), theirs.get(name));
        if own.is_none() != other.is_none() && BY_THREADS.iter().any(|part| name.contains(part)) {
            continue;
        }
        let text =
            |value: Option<&String>| value.map_or("not set".into(), |value| format!("'{value}'"));
        differs(name, text(own), text(other));
    }
    said
}

//! A cluster by its factors: two nodes for the job with MPS, two for the same job without, and four
//! without the plugin. The last two of those are for jobs that ask even so.

use anyhow::Result;
use tests::slurm::{Bed, Gpus, Options, Simulated, WITNESS, Word, program_beside};

use super::factors::{Choice, is};
use crate::sites::{no_cgroups, older_than};

const GPUS: u32 = 4;

pub const NODE: &str = "site";

/// The partition in `auto_partitions`: its jobs have `--mps=auto` without a flag.
pub const AUTO: &str = "auto";

/// Minor numbers in the order of the bus: in the expected order, and as a site's public document
/// shows them.
const MINORS: [[u32; GPUS as usize]; 2] = [[0, 1, 2, 3], [2, 3, 0, 1]];

/// The GPUs' device files in the order of the bus.
pub fn devices(site: &Choice) -> impl Iterator<Item = String> {
    let minors = MINORS[usize::from(is(site, "gres", "minors"))];
    minors.into_iter().map(|minor| format!("nvidia{minor}"))
}

pub fn needs(site: &Choice) -> Option<String> {
    let controllers: &[&str] = match is(site, "task", "task-cgroup") {
        true => &["devices", "freezer", "cpuset"],
        false => &[],
    };
    no_cgroups(controllers)
}

pub fn create(site: &Choice) -> Result<(Bed, Simulated)> {
    let mut bed = Bed::create(options(site))?;
    let extra = format!(
        "compute_mode = \"{}\"\n[slurm]\nauto_partitions = [\"{AUTO}\"]\nwait = \"{}\"\n",
        if is(site, "mode", "keep") {
            "keep"
        } else {
            "exclusive"
        },
        if is(site, "wait", "wait-task") {
            "task"
        } else {
            "prolog"
        },
    );
    let simulated = Simulated::install(&mut bed, &extra, tests::double::Builder::fast)?;
    tests::double::copy_program(&program_beside(WITNESS)?, &simulated.dir().join(WITNESS))?;
    Ok((bed, simulated))
}

pub fn options(site: &Choice) -> Options {
    let is = |factor, value| is(site, factor, value);
    let shards = is("shards", "shards");
    let lines = gres_lines(site);
    let mut gres_conf = String::from("AutoDetect=off\n") + &lines.join("\n") + "\n";
    let count = if shards { 4 * lines.len() } else { 0 };
    if shards {
        gres_conf += &format!("Name=shard Count={count}\n");
    }
    if is("spelling", "blanks") {
        gres_conf = gres_conf.replace('=', " = ");
    }
    let mut options = Options {
        nodes: 8,
        node_name: NODE,
        gpus: Gpus::Simulated(GPUS),
        minors: MINORS[usize::from(is("gres", "minors"))].to_vec(),
        gres: Some(match () {
            () if is("gres", "reversed") => "gpu:b:2,gpu:a:2".into(),
            () => format!("gpu:{}", lines.len()),
        }),
        gres_conf: Some(gres_conf),
        gres_count: count as u32,
        gres_types: if shards {
            vec!["shard".into()]
        } else {
            Vec::new()
        },
        word: if is("word", "required") {
            Word::Required
        } else {
            Word::Optional
        },
        blanks: is("spelling", "blanks"),
        configless: is("conf", "configless"),
        // Slurm 25.11 accepts only Cores= that are whole sockets.
        node_words: is("gres", "cores")
            .then(|| "Sockets=2 CoresPerSocket=4 ThreadsPerCore=1".into()),
        plain_nodes: [5, 6, 7, 8]
            .map(|number| format!("{NODE}{number}"))
            .to_vec(),
        partition_lines: vec![format!("PartitionName={AUTO} Nodes=ALL State=UP")],
        prolog_flags: match () {
            () if is("prolog", "alloc") => "Alloc".into(),
            () if is("prolog", "contain") => "Alloc,Contain".into(),
            () if is("prolog", "defer") => match older_than(23, 2, "ForceRequeueOnFail") {
                Some(_) => "Alloc,DeferBatch".into(),
                None => "DeferBatch,ForceRequeueOnFail".into(),
            },
            () => String::new(),
        },
        ..Options::default()
    };
    if is("task", "task-affinity") {
        options.slurm_lines.push("TaskPlugin=task/affinity".into());
    }
    if is("task", "task-cgroup") {
        let constrain = if is("devices", "constrained") {
            "yes"
        } else {
            "no"
        };
        options = options.with_cgroups(&[&format!("ConstrainDevices={constrain}")]);
    }
    options
}

fn gres_lines(site: &Choice) -> Vec<String> {
    let line = |(number, words): (u32, &str)| format!("Name=gpu File=/dev/nvidia{number}{words}");
    let is = |value| is(site, "gres", value);
    let lines: &[(u32, &str)] = match () {
        () if is("partial") => &[(1, ""), (2, ""), (3, "")],
        () if is("reversed") => &[
            (2, " Type=b"),
            (3, " Type=b"),
            (0, " Type=a"),
            (1, " Type=a"),
        ],
        () if is("cores") => &[
            (0, " Cores=0-3"),
            (1, " Cores=0-3"),
            (2, " Cores=4-7"),
            (3, " Cores=4-7"),
        ],
        () => &[(0, ""), (1, ""), (2, ""), (3, "")],
    };
    lines.iter().copied().map(line).collect()
}

//! The job scripts of `tests/scripts/`, each on three nodes at once: without us, in an `auto`
//! partition, with `--mps` and without the line about it.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;
use tests::beside::Work;
use tests::scripts::batch::Place;
use tests::scripts::{self, STAND_INS, Script, Three};
use tests::slurm::{Bed, Gpus, Options, Simulated, User, private_dev};

use crate::runner::{self, Context, Tally};
use crate::sites::no_cgroups;
use ::tests::slurm::is_chosen;

/// Scripts that run at once. Each has GPUs of a type of its own, so that all three runs of a script
/// get the same ones.
const LANES: usize = 4;

const ENDS: Duration = Duration::from_secs(40);

const GPUS_OF_LANE: usize = 2;

/// Of each run its partition, and what is added to its submission. The node of the first has no
/// plugin.
const RUNS: [(&str, &str); 3] = [
    ("main", ""),
    ("auto", ""),
    ("main", " --mps --mps-report=off"),
];

struct Site {
    name: &'static str,
    node: &'static str,
    cgroup_line: &'static str,
    /// The second GPU of each lane is the faster one, so that CUDA counts it first.
    unlike: bool,
    first_lane: usize,
    is_for: fn(&Script) -> bool,
}

impl Site {
    fn cell(&self, name: &str) -> String {
        format!("{}::{name}", self.name)
    }
}

const SITES: [Site; 3] = [
    Site {
        name: "scripts",
        node: "way",
        cgroup_line: "ConstrainDevices=yes",
        unlike: false,
        first_lane: 0,
        is_for: Script::is_for_slurm,
    },
    Site {
        name: "scripts_unconfined",
        node: "free",
        cgroup_line: "ConstrainDevices=no",
        unlike: false,
        // A job sees all GPUs, and numbers are the node's. So no job has its first GPUs.
        first_lane: 1,
        is_for: |script| script.is_for_slurm() && script.counts_gpus(),
    },
    Site {
        name: "scripts_unlike",
        node: "odd",
        cgroup_line: "ConstrainDevices=yes",
        unlike: true,
        first_lane: 0,
        is_for: |script| ["numbers-by-turn", "numbers-read"].contains(&script.name.as_str()),
    },
];

pub fn names() -> Vec<String> {
    let all = scripts::all().expect("the corpus");
    let of = |site: &Site| {
        let own = all.iter().filter(|script| (site.is_for)(script));
        own.map(|script| site.cell(&script.name))
            .collect::<Vec<_>>()
    };
    SITES.iter().flat_map(of).collect()
}

pub fn beds<'a>(words: &[String], tally: &'a Tally) -> Vec<Work<'a>> {
    let all = scripts::all().expect("the corpus");
    let mut beds = Vec::new();
    for site in &SITES {
        let mut all = all.clone();
        all.retain(site.is_for);
        tally.there_are(all.len());
        all.retain(|script| is_chosen(words, &site.cell(&script.name)));
        match no_cgroups(&["freezer", "cpuset", "memory", "devices"]) {
            _ if all.is_empty() => {}
            Some(why) => println!("skipped: slurm {}: {why}", site.name),
            None => beds.push(Work {
                claims: options(site).claims(),
                run: Box::new(move || tally.of_bed(site.name, || run_all(site, all, tally))),
            }),
        }
    }
    beds
}

/// A daemon that a script leaves ends with its job, as on most sites, and each job has its own
/// `/tmp`.
fn options(site: &Site) -> Options {
    let options = Options {
        nodes: RUNS.len(),
        node_name: site.node,
        cpus: 64,
        gpus: Gpus::Simulated((LANES * GPUS_OF_LANE) as u32),
        plain_nodes: vec![node(site, 0)],
        partition_lines: vec![format!(
            "PartitionName=auto Nodes={} MaxTime=10 State=UP",
            node(site, 1)
        )],
        slurm_lines: vec![
            "JobContainerType=job_container/tmpfs".into(),
            // No number of a job is part of another number that a script writes.
            "FirstJobId=410000".into(),
        ],
        ..Options::default()
    };
    options.with_cgroups(&[site.cgroup_line])
}

fn node(site: &Site, run: usize) -> String {
    format!("{}{}", site.node, run + 1)
}

fn prepare(site: &Site, bed: &mut Bed) -> Result<Simulated> {
    let base = format!("BasePath={}/containers", bed.dir().display());
    let mut gres = "AutoDetect=off\n".to_owned();
    for node in bed.nodes() {
        let dev = private_dev(bed.dir(), &node);
        for gpu in 0..LANES * GPUS_OF_LANE {
            let (lane, dev) = (gpu / GPUS_OF_LANE, dev.display());
            gres += &format!("NodeName={node} Name=gpu Type=lane{lane} File={dev}/gpu{gpu}\n");
        }
    }
    let types = (0..LANES).map(|lane| format!("gpu:lane{lane}:{GPUS_OF_LANE}"));
    let types: Vec<String> = types.collect();
    let options = bed.options_mut();
    options.job_container_lines = vec!["AutoBasePath=true".into(), base];
    (options.gres, options.gres_conf) = (Some(types.join(",")), Some(gres));
    let nodes = Simulated::install(bed, "[slurm]\nauto_partitions = [\"auto\"]\n", |node| {
        node.describe(|node| {
            let faster = node.gpu.iter_mut().skip(1).step_by(GPUS_OF_LANE);
            faster.filter(|_| site.unlike).for_each(|gpu| {
                gpu.name = "NVIDIA B200".into();
                gpu.sms += 16;
            });
        })
    })?;
    for node in &nodes.nodes {
        programs(node.dir())?;
    }
    Ok(nodes)
}

fn programs(node: &Path) -> Result<()> {
    let bin = node.join("bin");
    fs::create_dir(&bin)?;
    let control = "nvidia-cuda-mps-control";
    symlink(node.join(control), bin.join(control))?;
    let client = format!(
        "#!/bin/sh\nexec {0}/cuda-client-double --node {0} \"$@\"\n",
        node.display()
    );
    fs::write(bin.join("cuda-app"), client)?;
    fs::set_permissions(bin.join("cuda-app"), fs::Permissions::from_mode(0o755))?;
    for name in STAND_INS {
        tests::double::copy_program(&scripts::folder().join("bin").join(name), &bin.join(name))?;
    }
    Ok(())
}

fn run_all(site: &Site, all: Vec<Script>, tally: &Tally) -> Result<()> {
    let mut bed = Bed::create(options(site))?;
    let nodes = prepare(site, &mut bed)?;
    let cell = Context::start_bed(bed, nodes)?;
    let waiting = Mutex::new(all.into_iter());
    std::thread::scope(|scope| {
        for lane in site.first_lane..LANES {
            let (cell, waiting) = (&cell, &waiting);
            scope.spawn(move || {
                let next = || waiting.lock().expect("no lane panics with it").next();
                while let Some(script) = next() {
                    let started = Instant::now();
                    let three = three(cell, site, &script, lane);
                    let found = three.and_then(|three| script.check(&three));
                    tally.note(&site.cell(&script.name), started, found, "");
                }
            });
        }
    });
    let started = Instant::now();
    let left = runner::quiet(&cell).and_then(|()| cell.check_in_service());
    tally.note(&site.cell("the_nodes_are_as_before"), started, left, "");
    runner::teardown(cell)
}

fn three(cell: &Context, site: &Site, script: &Script, lane: usize) -> Result<Three> {
    let submit = |run: usize| {
        let node = node(site, run);
        let double = cell.nodes.node(&node)?;
        let (partition, asked) = RUNS[run];
        let place = Place {
            bed: &cell.bed,
            user: match script.by_root {
                true => User::root(),
                false => cell.user.clone(),
            },
            bin: double.dir().join("bin"),
            gpus: double.uuids(),
            plain: run == 0,
            words: format!(
                "-p {partition} --gres=gpu:lane{lane}:{}{asked}",
                script.gpus
            ),
            node,
        };
        place.submit(script)
    };
    let [without, auto, asked] = [0, 1, 2].map(submit);
    Ok(Three {
        without: without?.outcome(ENDS)?,
        auto: auto?.outcome(ENDS)?,
        asked: asked?.outcome(ENDS)?,
    })
}

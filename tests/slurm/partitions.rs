//! Static partitions through a real Slurm, on the double of a driver that has them.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::child::Ran;
use tests::slurm::{Record, Simulated};

use crate::jobs::{LIMIT, check_daemons, records, says};
use crate::runner::{Context, Group, cells};

pub const GROUP: Group = Group {
    prepare: |bed| {
        Simulated::install(bed, "", |node| {
            node.fast()
                .describe(|node| node.driver_version = "590.44.01".into())
        })
    },
    ..Group::new(
        "partitions",
        cells![
            each_rank_has_its_own,
            an_older_driver_is_named,
            impossible_requests_are_refused,
            one_step_has_them_at_a_time,
            a_second_step_finds_the_only_ranks_partition_taken,
        ],
    )
};

/// Checks that each rank of a node has the multiprocessors that it was given.
fn check(cell: &Context, mut records: Vec<Record>, sms: &[u64]) -> Result<()> {
    check_daemons(&records, cell.user.uid, 1)?;
    records.sort_by_key(|record| (record.node.clone(), record.local_rank));
    for node in records.chunk_by(|one, other| one.node == other.node) {
        let given: Vec<_> = node.iter().filter_map(|record| record.sms).collect();
        let one_gpu = node.iter().all(|record| record.uuids.len() == 1);
        ensure!(given == sms && one_gpu, "{sms:?} expected: {records:?}");
    }
    Ok(())
}

/// The next step has what the last one had. The script is no rank and gets no context.
fn each_rank_has_its_own(cell: &Context) -> Result<()> {
    let words = "--mps --mps-sms=16:32 -N2 --ntasks-per-node=2 --gres=gpu:2";
    let found = cell.clients(words, "--hold 0.2")?;
    ensure!(found.len() == 4, "{found:?}");
    check(cell, found, &[16, 32])?;
    let line = cell.client("--hold 0.1");
    let script = format!(
        "{{ ({line}); }} | sed s/^/script/\nfor n in 1 2 3; do srun /bin/sh -c '{line}' || exit 1; done"
    );
    let (_, said) = cell.batch("--mps --mps-sms=8 -N1 -n2 --gres=gpu:1", &script)?;
    says(&said, &["script{", "915"])?;
    let steps = records(&said)?;
    ensure!(steps.len() == 6, "{said}");
    let mut steps = steps.chunks(2);
    steps.try_for_each(|step| check(cell, step.to_vec(), &[8, 8]))
}

fn refused(cell: &Context, words: &str, why: &str) -> Result<()> {
    cell.check_refused(&format!("srun --gres=gpu:1 --mps {words}"), &[why])?;
    cell.check_in_service()
}

fn an_older_driver_is_named(cell: &Context) -> Result<()> {
    let _old = cell
        .nodes
        .change(|node| node.driver_version = "580.159.04".into())?;
    let why = "this node has driver 580.159.04, which has no static partitions; allowed: a node with driver 590 or a later one";
    refused(cell, "--mps-sms=16", why)
}

fn impossible_requests_are_refused(cell: &Context) -> Result<()> {
    for (words, why) in [
        ("--mps-sms=16 --mps-threads=50", "--mps-sms"),
        ("--mps-sms=16 --mps-replicas=2", "--mps-sms"),
        // srun then has one task, and its job's prolog is told none.
        ("--mps-sms=16", "allowed: -n with the number of tasks"),
        ("-n1 --mps-sms=12", "a multiple of 8"),
    ] {
        refused(cell, words, why)?;
    }
    Ok(())
}

/// Three steps in one allocation: one in the background with this many tasks, the second when the
/// first has its contexts, the third when the first has ended.
fn at_once(cell: &Context, tasks: usize) -> Result<Ran> {
    let [long, short] = ["--hold 30", "--hold 0.1"].map(|hold| cell.client(hold));
    let go = cell.bed.home(&cell.user).join(format!("go{tasks}"));
    let srun = format!("srun --overlap -n{tasks} /bin/sh -c");
    let script = format!(
        "{srun} '{long}' & first=$!; until [ -e {go} ]; do sleep 0.1; done; \
         {srun} '{short}'; echo second $?; kill $first; wait $first; {srun} '{short}'; echo third $?",
        go = go.display()
    );
    let command = format!("salloc --mps --mps-sms=16 -N1 -n{tasks} --gres=gpu:1");
    let running = cell.start(&command, &script)?;
    let ranks = || {
        cell.nodes
            .nodes
            .iter()
            .flat_map(|node| node.contexts())
            .count()
    };
    let began = cell.wait("the first step's contexts", || Ok(ranks() >= tasks));
    std::fs::write(&go, "")?;
    let done = running.wait(LIMIT + Duration::from_secs(30))?;
    began.map(|()| done)
}

fn one_step_has_them_at_a_time(cell: &Context) -> Result<()> {
    let done = at_once(cell, 2)?;
    let why = "another step of the job has them on this node; allowed: one step at a time";
    says(&done.said(), &["second 1", why, "third 0"])
}

fn a_second_step_finds_the_only_ranks_partition_taken(cell: &Context) -> Result<()> {
    let done = at_once(cell, 1)?;
    let why = "another step has the static partition of its rank";
    says(&done.said(), &[why, "915", "third 0"])
}

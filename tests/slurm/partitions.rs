//! Static partitions through a real Slurm, on the double of a driver that has them.

use std::time::Duration;

use anyhow::{Result, ensure};
use tests::slurm::{Finished, Options, Record, Simulated};

use crate::mps::{LIMIT, check_daemons, clients, nodes, records, start};
use crate::runner::{Context, Group};

/// The group.
pub const GROUP: Group = Group {
    name: "partitions",
    options: Options::default,
    prepare: |bed| {
        Simulated::install(bed, "", |node| {
            node.fast()
                .describe(|node| node.driver_version = "590.44.01".into())
        })
        .map(Some)
    },
    needs: || None,
    cells: &[
        ("each_rank_has_its_own", each_rank_has_its_own),
        ("an_older_driver_is_named", an_older_driver_is_named),
        ("not_beside_percentages", not_beside_percentages),
        ("one_step_at_a_time", one_step_at_a_time),
        ("somebody_looks_at_the_only_rank", somebody_looks_at_the_only_rank),
    ],
};

/// Each rank of a node by its number: the multiprocessors that it was given.
fn check(cell: &Context, mut records: Vec<Record>, sms: &[u64]) -> Result<()> {
    check_daemons(&records, cell.user.uid, 1)?;
    records.sort_by_key(|record| (record.node.clone(), record.local_rank));
    for node in records.chunk_by(|one, other| one.node == other.node) {
        let given: Vec<_> = node.iter().filter_map(|record| record.sms).collect();
        ensure!(
            given == sms && node.iter().all(|record| record.uuids.len() == 1),
            "{sms:?} expected: {records:?}"
        );
    }
    Ok(())
}

fn each_rank_has_its_own(cell: &Context) -> Result<()> {
    let two_nodes = ["-N2", "--ntasks-per-node=2", "--gres=gpu:2"];
    let asked = ["--mps", "--mps-sms=16:32"];
    let seen = clients(cell, &[&two_nodes[..], &asked].concat(), "--hold 0.2")?;
    ensure!(seen.len() == 4, "{seen:?}");
    check(cell, seen, &[16, 32])?;
    // One after the other, a step has what the one before had; the script is no rank, and gets no context.
    let line = nodes(cell)?.client("--hold 0.1");
    let script = format!(
        "{{ ({line}); }} | sed s/^/script/\nfor n in 1 2 3; do srun /bin/sh -c '{line}' || exit 1; done"
    );
    let words = ["--mps", "--mps-sms=8", "-N1", "-n2", "--gres=gpu:1"];
    let job = cell.bed.sbatch(&cell.user, &words, &script)?;
    let ended = cell.bed.wait_job(job, &["COMPLETED", "FAILED"], LIMIT);
    let said = cell.bed.output(&cell.user, job);
    ensure!(
        ended.is_ok() && said.contains("script{") && said.contains("915"),
        "{ended:?}: {said}"
    );
    let steps = records(&said, "")?;
    ensure!(steps.len() == 6, "{said}");
    steps
        .chunks(2)
        .try_for_each(|step| check(cell, step.to_vec(), &[8, 8]))
}

/// `srun WORDS` is refused on the node, or before, with `why`; no node is drained.
fn refused(cell: &Context, words: &[&str], why: &str) -> Result<()> {
    let line = nodes(cell)?.client("");
    let done = start(
        cell,
        &cell.user,
        &[&["srun", "--gres=gpu:1"], words].concat(),
        &line,
    )?
    .wait(LIMIT)?;
    ensure!(
        !done.status.success() && done.stdout.is_empty() && done.stderr.contains(why),
        "not refused with '{why}': {done:?}"
    );
    let state = cell.bed.node_state("node1")?;
    ensure!(!state.state.contains("DRAIN"), "a refusal drains: {state:?}");
    Ok(())
}

fn an_older_driver_is_named(cell: &Context) -> Result<()> {
    let _old = nodes(cell)?.change(|node| node.driver_version = "580.159.04".into())?;
    let why = "this node has driver 580.159.04, which has no static partitions; allowed: a node with driver 590 or a later one";
    refused(cell, &["--mps", "--mps-sms=16"], why)
}

fn not_beside_percentages(cell: &Context) -> Result<()> {
    for other in ["--mps-threads=50", "--mps-replicas=2"] {
        refused(cell, &["--mps", "--mps-sms=16", other], "--mps-sms")?;
    }
    // srun has one task then, and its job's prolog is told of none.
    refused(
        cell,
        &["--mps", "--mps-sms=16"],
        "allowed: -n with the number of tasks",
    )?;
    refused(cell, &["-n1", "--mps", "--mps-sms=12"], "a multiple of 8")
}

/// In one allocation `first` in the background, and `second` when it holds its contexts; the commands' own ends.
fn at_once(cell: &Context, tasks: &str, first: &str, second: &str) -> Result<Finished> {
    let words = ["salloc", "--mps", "--mps-sms=16", "-N1", tasks, "--gres=gpu:1"];
    let simulated = nodes(cell)?;
    let long = simulated.client("--hold 30");
    let short = simulated.client("--hold 0.1");
    let go = cell.bed.home(&cell.user).join(format!("go{tasks}"));
    let script = format!(
        "srun --overlap {first} /bin/sh -c '{long}' & first=$!; until [ -e {go} ]; do sleep 0.1; done; \
         srun --overlap {second} /bin/sh -c '{short}'; echo second $?; \
         kill $first; wait $first; srun --overlap {first} /bin/sh -c '{short}'; echo third $?",
        go = go.display()
    );
    let running = start(cell, &cell.user, &words, &script)?;
    let ranks = || simulated.nodes.iter().flat_map(|node| node.contexts()).count();
    let wanted = tasks.trim_start_matches("-n").parse()?;
    let began = cell
        .bed
        .wait_until("the first step's contexts", LIMIT, || Ok(ranks() >= wanted));
    std::fs::write(&go, "")?;
    let done = running.wait(LIMIT + Duration::from_secs(30))?;
    began.map(|()| done)
}

fn one_step_at_a_time(cell: &Context) -> Result<()> {
    let done = at_once(cell, "-n2", "-n2", "-n2")?;
    let why = "another step of the job has them on this node; allowed: one step at a time";
    ensure!(
        done.stdout.contains("second 1") && done.stderr.contains(why) && done.stdout.contains("third 0"),
        "{done:?}"
    );
    Ok(())
}

fn somebody_looks_at_the_only_rank(cell: &Context) -> Result<()> {
    let done = at_once(cell, "-n1", "-n1", "-n1")?;
    let why = "another step has the static partition of its rank";
    ensure!(
        done.stderr.contains(why) && done.stdout.contains("915") && done.stdout.contains("third 0"),
        "{done:?}"
    );
    Ok(())
}

//! `--mps=auto`, by its flag and for the jobs of a partition: which jobs and steps have MPS.

use anyhow::{Result, ensure};
use tests::slurm::{Gpus, Options, Record};

use crate::jobs::{check_daemons, holds, records, says};
use crate::runner::{Context, Group, cells};
use crate::shared::a_percentage_is_the_jobs_part;
use crate::sites::no_cgroups;

pub const GROUP: Group = Group {
    options: || Options {
        partition_lines: vec!["PartitionName=auto Nodes=ALL State=UP".into()],
        node_words: Some("Feature=mps,big".into()),
        login_shells: true,
        ..Options::default()
    },
    config: "[slurm]\nauto_partitions = [\"auto\"]\nauto_constraint = \"mps\"\n",
    ..Group::new(
        "auto",
        cells![
            a_job_has_mps_if_two_of_its_tasks_have_a_gpu_together,
            a_step_has_what_its_job_could_not_know,
            a_job_without_a_number_of_tasks_is_decided_by_its_steps,
            each_node_of_an_uneven_job_has_its_own,
            components_are_jobs_of_their_own,
            a_user_who_said_auto_reads_what_it_found_and_no_other,
            a_script_that_auto_gives_nothing_runs,
        ],
    )
};

/// The same with shards, by which jobs share a GPU. A job reaches only its own GPU.
pub const SHARDS_CONFINED: Group = Group {
    options: || {
        let options = Options {
            gres_types: vec!["shard".into()],
            gres_count: 8,
            node_name: "part",
            ..(GROUP.options)()
        };
        options.with_cgroups(&["ConstrainDevices=yes"])
    },
    needs: || no_cgroups(&["devices", "freezer"]),
    cells: cells![a_confined_share_has_mps_and_reads_what_it_would_without],
    name: "auto_shards_confined",
    ..GROUP
};

pub const PARTS: Group = Group {
    options: || Options {
        gpus: Gpus::Simulated(1),
        gres_types: vec!["mps".into()],
        gres_count: 100,
        ..Options::default()
    },
    config: "[slurm]\nauto_gres = true\n",
    ..Group::new(
        "auto_parts",
        cells![
            a_part_of_a_gpu_has_mps_by_auto_gres,
            a_percentage_is_the_jobs_part,
        ],
    )
};

fn check(cell: &Context, words: &str, tasks: usize, under_mps: bool) -> Result<()> {
    let all = cell.clients(words, "--hold 0.1")?;
    let right = |record: &Record| record.error.is_none() && record.under_mps == under_mps;
    let right = all.len() == tasks && all.iter().all(right);
    ensure!(right, "{words}: {all:?}");
    if under_mps {
        check_daemons(&all, cell.user.uid, 1)?;
    }
    Ok(())
}

fn a_job_has_mps_if_two_of_its_tasks_have_a_gpu_together(cell: &Context) -> Result<()> {
    for (words, tasks, under_mps) in [
        // Its tasks may open the node's other GPU: nothing confines them here.
        ("-p auto -n2 --gres=gpu:1", 2, false),
        ("-p auto -n3 --gres=gpu:2", 3, true),
        ("-p auto -n2 --gpus-per-task=1", 2, false),
        ("-p auto -n4 --ntasks-per-gpu=2 --gpus=2", 4, true),
        ("-p auto --mps=off -n3 --gres=gpu:2", 3, false),
        ("-p auto --mps -n1 --gres=gpu:1", 1, true),
        ("-p main -n3 --gres=gpu:2", 3, false),
        ("-p main --mps=auto -n2 --gres=gpu:1", 2, true),
        ("-p main --constraint=mps&big -n3 --gres=gpu:2", 3, true),
        ("-p main --constraint=big -n3 --gres=gpu:2", 3, false),
    ] {
        check(cell, &format!("-w node1 {words}"), tasks, under_mps)?;
    }
    let each = "-p auto -N2 --ntasks-per-node=2 --gres=gpu:2";
    check(cell, each, 4, false)
}

fn a_confined_share_has_mps_and_reads_what_it_would_without(cell: &Context) -> Result<()> {
    // This job keeps the others from the node's first GPU.
    let words = "srun -p main --mps=off -w part1 -n1 --gres=gpu:1";
    let first = cell.start(words, "sleep 20")?;
    let runs = || cell.root("squeue -h -t RUNNING -o %i");
    cell.wait("the first job", || Ok(runs()?.lines().count() == 1))?;
    for (words, tasks) in [("-n1", 1), ("-n3 --overcommit", 3)] {
        let words = format!("-w part1 {words} --gres=shard:2");
        shares(cell, "-p auto", &words, tasks)?;
    }
    drop(first);
    cell.root("scancel --state=RUNNING")?;
    Ok(())
}

fn a_part_of_a_gpu_has_mps_by_auto_gres(cell: &Context) -> Result<()> {
    shares(cell, "-p main", "-w node1 -n1 --gres=mps:25", 1)
}

/// Checks that the tasks of `srun WORDS` are under MPS in this partition, and see and print what
/// they do without.
fn shares(cell: &Context, partition: &str, words: &str, tasks: usize) -> Result<()> {
    let client = cell.client("--hold 0.5");
    let line = format!("echo \"$CUDA_VISIBLE_DEVICES $GPU_DEVICE_ORDINAL\"; {client}");
    let look = |partition: &str| -> Result<(Vec<String>, Vec<Record>)> {
        let done = cell.run(&format!("srun {partition} {words}"), &line)?;
        let done = done.success()?;
        let lines = done.stdout.lines().chain(done.stderr.lines());
        let others = lines.filter(|line| !line.starts_with('{') && !line.starts_with("srun: job "));
        let others = others.map(str::to_owned).collect();
        Ok((others, Record::all(&done.stdout)?))
    };
    let ((expected, without), (said, with)) = (look("-p main --mps=off")?, look(partition)?);
    ensure!(said == expected, "{words}: {said:?}, without {expected:?}");
    let same = |record: &Record| record.under_mps && record.uuids == without[0].uuids;
    holds(with.len() == tasks && with.iter().all(same), &with)?;
    holds(without.iter().all(|record| !record.under_mps), &without)
}

fn steps(cell: &Context, job: &str, steps: &[&str]) -> Result<Vec<bool>> {
    let client = cell.client("--hold 0.1");
    let steps = steps.iter();
    let lines = steps.map(|words| format!("srun {words} /bin/sh -c '{client}'"));
    let all = cell.records(job, &lines.collect::<Vec<_>>().join(" && "))?;
    let failed: Vec<_> = all.iter().filter(|record| record.error.is_some()).collect();
    ensure!(failed.is_empty(), "{failed:?}");
    Ok(under_mps(&all))
}

fn under_mps(records: &[Record]) -> Vec<bool> {
    records.iter().map(|record| record.under_mps).collect()
}

fn a_step_has_what_its_job_could_not_know(cell: &Context) -> Result<()> {
    let three = "-n3 --overcommit";
    let own: &[&str] = &["-n1", three, "--mps=off -n3 --overcommit", "--mps -n1"];
    let asking = &["-n2", "--mps=auto -n1", "--mps=auto -n2"];
    let has = [false, true, true, true, false, false, false, true];
    for (job, own, expected) in [
        ("-p auto -n1 --gres=gpu:2", own, &has[..]),
        ("-p main --mps=auto -n1 --gres=gpu:2", own, &has),
        // Steps of a job that did not ask, and a step of a job that opted out.
        (
            "-p main -n2 --gres=gpu:1",
            asking,
            &[false, false, false, true, true],
        ),
        ("-p auto --mps=off -n3 --gres=gpu:2", &["-n3"], &[false; 3]),
        // The job has its MPS, and a step whose tasks do not meet has none: how many such steps run
        // at once is not known.
        ("-p auto -n3 --gres=gpu:2", &["-n1", "-n3"], &has[..4]),
    ] {
        let under = steps(cell, &format!("salloc -w node1 {job}"), own)?;
        ensure!(under == expected, "{job}: {under:?}");
    }
    Ok(())
}

/// The script's steps lose the flags (`--export=NONE`), but not what root found.
fn a_job_without_a_number_of_tasks_is_decided_by_its_steps(cell: &Context) -> Result<()> {
    let client = cell.client("--hold 0.1");
    let script = format!(
        "({client})\nsrun -n1 /bin/sh -c '{client}'\nsrun -n4 --overcommit /bin/sh -c '{client}'"
    );
    for words in ["", " --export=NONE"] {
        let (_, said) = cell.batch(&format!("-p auto -w node1 --gres=gpu:2{words}"), &script)?;
        let under = under_mps(&records(&said)?);
        let expected = [false, false, true, true, true, true];
        ensure!(under == expected, "{words}: {under:?}");
    }
    Ok(())
}

fn each_node_of_an_uneven_job_has_its_own(cell: &Context) -> Result<()> {
    let all = cell.clients("-p auto -N2 -n5 --gres=gpu:2", "--hold 0.2")?;
    holds(all.len() == 5, &all)?;
    for node in ["node1", "node2"] {
        let here = all.iter().filter(|record| record.node == node);
        let several = here.clone().count() > 2;
        holds(here.clone().all(|record| record.under_mps == several), &all)?;
    }
    Ok(())
}

fn components_are_jobs_of_their_own(cell: &Context) -> Result<()> {
    let words = "-p auto -N1 -n1 --gres=gpu:2 : -p auto -N1 -n3 --gres=gpu:2";
    let all = cell.clients(words, "--hold 0.2")?;
    let under = under_mps(&all).into_iter().filter(|under| *under).count();
    holds(all.len() == 4 && under == 3, &all)
}

fn a_user_who_said_auto_reads_what_it_found_and_no_other(cell: &Context) -> Result<()> {
    let client = cell.client("");
    let command = "srun -p main --mps=auto -n2 -w node1 --gres=gpu:2";
    let done = cell.run(command, &client)?.success()?;
    let why = "on node1: auto: no MPS, because 2 tasks on 2 GPUs";
    says(&done.stderr, &[why])?;
    holds(done.stderr.matches("auto: no MPS").count() == 1, &done)?;
    for words in [
        "-p auto -n1",
        "-p auto -n2",
        "-p main --mps=auto --mps-report=off -n2",
    ] {
        let command = format!("srun {words} -w node1 --gres=gpu:1");
        let done = cell.run(&command, &client)?.success()?;
        holds(!done.stderr.contains("mps"), &done)?;
    }
    Ok(())
}

fn a_script_that_auto_gives_nothing_runs(cell: &Context) -> Result<()> {
    let (client, mpsctl) = (cell.client(""), cell.mpsctl());
    let script = format!(
        "({client})\nsrun /bin/sh -c '{client}'\n{mpsctl} exec -- /bin/sh -c '{client}'\n\
         {mpsctl} status\n{mpsctl} env\nexit 0"
    );
    let words = "-p main --mps=auto -n1 -w node1 --gres=gpu:1";
    let (job, said) = cell.batch(words, &script)?;
    let all = records(&said)?;
    ensure!(under_mps(&all) == [false; 3], "{all:?}");
    let why = "auto: no MPS, because 1 task on 1 GPU";
    let told = format!("job {job}: on node1: {why}");
    says(&said, &[&told, &format!("it needs no MPS ({why})")])
}

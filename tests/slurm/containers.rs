//! Tasks in containers, as pyxis starts them. A plugin behind our line takes each task into its own
//! namespaces. Our second line, behind that plugin, checks that the task still sees its MPS.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use tests::child::Ran;
use tests::slurm::{Bed, Options, Simulated, install_plugin_double};

use crate::jobs::{LIMIT, check_bare, check_daemons, holds, records, says};
use crate::runner::{Context, Group, cells};

pub const GROUP: Group = Group {
    options: || Options {
        login_shells: true,
        ..Options::default()
    },
    prepare,
    ..Group::new(
        "containers",
        cells![
            a_task_that_sees_its_directory_is_attached,
            a_task_that_does_not_see_it_reads_why,
            a_batch_script_reads_why,
            without_the_task_prolog_slurm_names_it,
            a_job_that_does_not_ask_runs_as_without_us,
            slurms_own_container_is_refused_and_its_user_reads_why,
        ],
    )
};

/// The double of pyxis, and our second line after it.
fn prepare(bed: &mut Bed, nodes: &mut Simulated) -> Result<()> {
    let double = install_plugin_double(bed, "libcontainer_double.so")?;
    // A runtime that shows what it was to run.
    let runtime = "RunTimeRun=\"/bin/echo contained\"\nRunTimeQuery=/bin/false\nRunTimeKill=/bin/true\nRunTimeDelete=/bin/true\n";
    fs::write(bed.dir().join("etc/oci.conf"), runtime)?;
    let (double, hidden, product) = (double.display(), bed.run_dir().display(), &nodes.product);
    let (programs, plugin) = (product.libexec.display(), product.plugin.display());
    bed.options_mut().stack_lines = vec![
        format!("required {double} hide={hidden} prolog={programs}"),
        format!("optional {plugin} look=container"),
    ];
    Ok(())
}

fn srun(cell: &Context, words: &str, kind: &str) -> Result<Ran> {
    let line = format!("echo ran; {}", cell.client(""));
    let command = format!("srun {words} -N1 --gres=gpu:1");
    let client = cell.start_as(&cell.user, &command, &line, &[("CONTAINER", kind)])?;
    client.wait(LIMIT)
}

fn a_task_that_sees_its_directory_is_attached(cell: &Context) -> Result<()> {
    let records = records(&srun(cell, "--mps -n2", "show")?.success()?.said())?;
    holds(records.len() == 2, &records)?;
    check_daemons(&records, cell.user.uid, 1)
}

fn a_task_that_does_not_see_it_reads_why(cell: &Context) -> Result<()> {
    let done = srun(cell, "--mps -n2", "hide")?.fails()?;
    let told =
        |line: &&str| line.contains("its container does not show") && line.contains("/pipe'");
    holds(!done.stdout.contains("ran\n"), &done)?;
    holds(done.stderr.lines().filter(told).count() == 1, &done)?;
    says(&done.stderr, &["docs/containers.md"])?;
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/containers.md");
    holds(page.exists(), &page)
}

/// `sbatch --container-image`: no task prolog runs before a script.
fn a_batch_script_reads_why(cell: &Context) -> Result<()> {
    for (kind, runs) in [("show", true), ("hide", false)] {
        let out = cell.bed.home(&cell.user).join(format!("script-{kind}"));
        let output = format!("--output={}", out.display());
        let words = format!("sbatch --wait --mps --gres=gpu:1 {output} --wrap id");
        let client = cell.start_as(&cell.user, &words, "", &[("CONTAINER", kind)])?;
        let done = client.wait(LIMIT)?;
        let said = fs::read_to_string(&out)?;
        let told = said.contains("its container does not show");
        let found = [done.code == Some(0), said.contains("uid="), !told];
        ensure!(found == [runs; 3], "{kind}: {done:?} {said}");
        cell.idle()?;
    }
    Ok(())
}

/// The task is in the container when Slurm looks for the prolog
/// (docs/containers.md#enroot-and-pyxis).
fn without_the_task_prolog_slurm_names_it(cell: &Context) -> Result<()> {
    let done = srun(cell, "--mps -n1", "prolog")?.fails()?;
    holds(!done.stdout.contains("ran\n"), &done)?;
    says(&done.stderr, &["mps-task-prolog"])
}

fn a_job_that_does_not_ask_runs_as_without_us(cell: &Context) -> Result<()> {
    for kind in ["show", "hide"] {
        let done = srun(cell, "-n1", kind)?.success()?;
        check_bare(&records(&done.stdout)?)?;
        holds(done.stderr.is_empty(), &done)?;
    }
    Ok(())
}

/// `--container`. In the script under `--export=NONE` only the node knows that the job asked.
fn slurms_own_container_is_refused_and_its_user_reads_why(cell: &Context) -> Result<()> {
    let bundle = cell.bed.home(&cell.user).join("bundle");
    fs::create_dir_all(bundle.join("rootfs"))?;
    let config = r#"{"ociVersion": "1.0.0", "root": {"path": "rootfs"}}"#;
    fs::write(bundle.join("config.json"), config)?;
    let step = format!("srun -n1 --container={} true", bundle.display());
    let bare = cell.run(&format!("{step} --gres=gpu:1"), "")?.success()?;
    says(&bare.stdout, &["contained"])?;
    let told = "does not show a task its MPS";
    let asks = step.replace("srun", "srun --mps --gres=gpu:1");
    let refused = cell.run(&asks, "")?.fails()?;
    says(&refused.stderr, &["--mps", told])?;
    holds(!refused.said().contains("contained"), &refused)?;
    for (words, said) in [("", "contained"), ("--mps", told)] {
        let words_of_all = format!("{words} --export=NONE -n1 --gres=gpu:1");
        let (_, output) = cell.batch(&words_of_all, &format!("{step} 2>&1 || true"))?;
        says(&output, &[said])?;
        holds(words.is_empty() || !output.contains("contained"), &output)?;
    }
    Ok(())
}

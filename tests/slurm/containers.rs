//! Tasks in containers, as pyxis starts them: a plugin behind our line takes each task into namespaces of its own, and our
//! second line behind that looks whether the task still sees its MPS.

use std::os::unix::fs::PermissionsExt as _;
use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};
use tests::slurm::{Bed, Finished, Options, Simulated, program_beside, stamp};

use crate::mps::{LIMIT, nodes, records, simulated};
use crate::runner::{Context, Group};

/// One bed.
pub const GROUP: Group = Group {
    name: "containers",
    options: Options::default,
    prepare,
    needs: || None,
    cells: &[
        (
            "who_sees_the_directory_is_attached",
            who_sees_the_directory_is_attached,
        ),
        ("who_does_not_see_it_reads_why", who_does_not_see_it_reads_why),
        ("a_batch_script_reads_why", a_batch_script_reads_why),
        (
            "without_the_task_prolog_slurm_names_it",
            without_the_task_prolog_slurm_names_it,
        ),
        (
            "who_does_not_ask_runs_as_without_us",
            who_does_not_ask_runs_as_without_us,
        ),
    ],
};

/// The double of pyxis, and our second line behind it.
fn prepare(bed: &mut Bed) -> Result<Option<Simulated>> {
    let simulated = simulated(bed)?;
    let product = &simulated.as_ref().context("simulated nodes")?.product;
    let double = bed.dir().join("lib/container.so");
    fs::copy(program_beside("libcontainer_stub.so")?, &double)?;
    fs::set_permissions(&double, fs::Permissions::from_mode(0o755))?;
    stamp::write(&double, stamp::installed()?)?;
    let run = bed.run_dir().display().to_string();
    let lines = [
        format!(
            "required {} hide={run} prolog={}",
            double.display(),
            product.libexec.display()
        ),
        format!("optional {} look=container", product.plugin.display()),
    ];
    bed.options_mut().stack_lines = lines.into();
    Ok(simulated)
}

/// `srun ARGUMENTS` with the client in a container of this kind.
fn srun(cell: &Context, arguments: &[&str], kind: &str) -> Result<Finished> {
    let line = format!("echo ran; {}", nodes(cell)?.client(""));
    let words = [&["srun"], arguments, &["--gres=gpu:1", "/bin/sh", "-c", &line]].concat();
    let client = cell.bed.spawn_with(&cell.user, &words, &[("CONTAINER", kind)])?;
    client.wait(LIMIT)
}

fn who_sees_the_directory_is_attached(cell: &Context) -> Result<()> {
    let done = srun(cell, &["--mps", "-N1", "-n2"], "show")?.success()?;
    let records = records(&done.stdout, &done.stderr)?;
    ensure!(
        records.len() == 2 && records.iter().all(|record| record.under_mps),
        "{records:?}"
    );
    cell.bed.wait_idle(LIMIT)
}

fn who_does_not_see_it_reads_why(cell: &Context) -> Result<()> {
    let done = srun(cell, &["--mps", "-N1", "-n2"], "hide")?;
    ensure!(
        !done.status.success() && !done.stdout.contains("ran\n"),
        "the program ran: {done:?}"
    );
    let hidden = |line: &&str| line.contains("its container does not show") && line.contains("/pipe'");
    let said = done.stderr.lines().filter(hidden).count();
    ensure!(said == 1, "told once: {done:?}");
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/containers.md");
    ensure!(
        home.exists() && done.stderr.contains("docs/containers.md"),
        "{done:?}"
    );
    cell.bed.wait_idle(LIMIT)
}

/// `sbatch --container-image`: no task prolog runs before a script.
fn a_batch_script_reads_why(cell: &Context) -> Result<()> {
    for (kind, runs) in [("show", true), ("hide", false)] {
        let env = [("CONTAINER", kind)];
        let out = cell.bed.home(&cell.user).join(format!("script-{kind}"));
        let output = format!("--output={}", out.display());
        let words = [
            "sbatch",
            "--wait",
            "--mps",
            "--gres=gpu:1",
            &output,
            "--wrap",
            "echo ran",
        ];
        let done = cell.bed.spawn_with(&cell.user, &words, &env)?.wait(LIMIT)?;
        let said = fs::read_to_string(&out)?;
        ensure!(done.status.success() == runs, "{kind}: {done:?} {said}");
        ensure!(said.contains("ran\n") == runs, "{kind}: {said}");
        ensure!(
            said.contains("its container does not show") != runs,
            "{kind}: {said}"
        );
        cell.bed.wait_idle(LIMIT)?;
    }
    Ok(())
}

/// Slurm runs it where the task is by then (docs/containers.md#enroot-and-pyxis).
fn without_the_task_prolog_slurm_names_it(cell: &Context) -> Result<()> {
    let done = srun(cell, &["--mps", "-N1", "-n1"], "prolog")?;
    ensure!(
        !done.status.success() && !done.stdout.contains("ran\n"),
        "the program ran: {done:?}"
    );
    ensure!(done.stderr.contains("mps-task-prolog"), "{done:?}");
    cell.bed.wait_idle(LIMIT)
}

fn who_does_not_ask_runs_as_without_us(cell: &Context) -> Result<()> {
    for kind in ["show", "hide"] {
        let done = srun(cell, &["-N1", "-n1"], kind)?.success()?;
        let records = records(&done.stdout, &done.stderr)?;
        ensure!(records.iter().all(|record| !record.under_mps), "{records:?}");
        ensure!(done.stderr.is_empty(), "{done:?}");
    }
    cell.bed.wait_idle(LIMIT)
}

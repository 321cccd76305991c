//! Our line in plugstack.conf as `mpsctl slurm enable` writes it, under a real Slurm: it loads; and what Slurm makes of a
//! plugin with another release's stamp, under both words. `mpsctl slurm check` says it before a user does.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use tests::slurm::{Finished, Options, Process, stamp};

use crate::mps::{LIMIT, check_daemons, clients, nodes, simulated};
use crate::runner::{Context, Group};

/// One bed for both words.
pub const GROUP: Group = Group {
    name: "stack",
    options: Options::default,
    prepare: simulated,
    needs: || None,
    cells: &[
        ("a_wrong_stamp_under_optional", |cell| wrong_stamp(cell, false)),
        ("a_wrong_stamp_under_required", |cell| wrong_stamp(cell, true)),
    ],
};

/// The release that can be installed here.
const RELEASE: &str = "22.05";
/// Slurm 23.11.5.
const OTHER: u32 = 0x0017_0b05;

/// The stack of the bed, ours while this lives.
struct Stack<'a> {
    cell: &'a Context,
    before: String,
}

impl Stack<'_> {
    fn file(cell: &Context) -> PathBuf {
        cell.bed.dir().join("etc/plugstack.conf")
    }

    fn plugins(&self) -> PathBuf {
        self.cell.bed.dir().join("plugins")
    }

    fn plugin(&self) -> PathBuf {
        self.plugins().join(RELEASE).join("spank_mps.so")
    }

    /// The plugin as the package installs it, and a stack that includes what `mpsctl slurm enable` writes.
    fn set_up<'a>(cell: &'a Context, words: &[&str]) -> Result<Stack<'a>> {
        let before = fs::read_to_string(Stack::file(cell))?;
        let stack = Stack { cell, before };
        fs::create_dir_all(stack.plugin().parent().context("a directory")?)?;
        stack.restore()?;
        let etc = cell.bed.dir().join("etc");
        fs::write(
            Stack::file(cell),
            format!("include {}/plugstack.conf.d/*.conf\n", etc.display()),
        )?;
        stack.mpsctl(&[&["enable"], words].concat())?.success()?;
        Ok(stack)
    }

    fn restore(&self) -> Result<()> {
        let new = self.plugin().with_extension("new");
        fs::copy(&nodes(self.cell)?.product.plugin, &new)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(new, self.plugin())?)
    }

    fn mpsctl(&self, words: &[&str]) -> Result<Finished> {
        let product = &nodes(self.cell)?.product;
        let text = |path: PathBuf| path.display().to_string();
        let (program, config) = (text(product.libexec.join("mpsctl")), text(product.config.clone()));
        let (conf, plugins) = (
            text(self.cell.bed.dir().join("etc/slurm.conf")),
            text(self.plugins()),
        );
        let place = ["--slurm-conf", &conf, "--plugins", &plugins];
        let argv = [&[&program, "--config", &config, "slurm"], words, &place].concat();
        self.cell.bed.root(&argv)
    }

    /// A submitting command as the user.
    fn says(&self, argv: &[&str]) -> Result<Finished> {
        self.cell.bed.spawn(&self.cell.user, argv)?.wait(LIMIT)
    }
}

impl Drop for Stack<'_> {
    fn drop(&mut self) {
        let _ = self.mpsctl(&["disable"]);
        let _ = fs::write(Stack::file(self.cell), &self.before);
    }
}

const COMMANDS: [&[&str]; 3] = [
    &["srun", "/bin/echo", "runs"],
    &["sbatch", "--parsable", "--output=/dev/null", "--wrap=true"],
    &["salloc", "/bin/true"],
];

fn wrong_stamp(cell: &Context, required: bool) -> Result<()> {
    let stack = Stack::set_up(cell, if required { &["--required"] } else { &[] })?;
    let records = clients(cell, &["--mps", "--gres=gpu:1"], "--hold 0.1")?;
    check_daemons(&records, cell.user.uid, 1)?;
    // Not under the job's epilog: without the plugin nobody would take its MPS down before the timer does.
    cell.bed.wait_idle(LIMIT)?;
    stamp::write(&stack.plugin(), OTHER)?;
    let outcome = check_told(&stack).and_then(|()| {
        if required {
            stops_everything(&stack)
        } else {
            stops_nothing(&stack)
        }
    });
    stack.restore()?;
    outcome?;
    let checked = stack.mpsctl(&["check"])?;
    ensure!(
        !checked.stdout.contains("is for Slurm")
            || checked
                .stdout
                .contains(&format!("is root's and for Slurm {RELEASE}")),
        "{}",
        checked.stdout
    );
    if required {
        cell.bed.start_node("node2")?;
        cell.bed.wait_idle(LIMIT)?;
    }
    let records = clients(cell, &["--mps", "-w", "node2", "--gres=gpu:1"], "--hold 0.1")?;
    check_daemons(&records, cell.user.uid, 1)
}

fn check_told(stack: &Stack<'_>) -> Result<()> {
    let checked = stack.mpsctl(&["check"])?.exits(1)?;
    let line = format!(
        "FAIL  '{}' is for Slurm 23.11, and {RELEASE} is installed: run 'mpsctl slurm enable' again",
        stack.plugin().display()
    );
    ensure!(checked.stdout.contains(&line), "not told: {}", checked.stdout);
    Ok(())
}

/// `optional`: who did not ask runs, and is told on his terminal; `--mps` is no flag any more; slurmd starts.
fn stops_nothing(stack: &Stack<'_>) -> Result<()> {
    for argv in COMMANDS {
        let done = stack.says(argv)?.success()?;
        ensure!(
            done.stderr.contains("ncompatible"),
            "nobody is told: {}",
            done.stderr
        );
    }
    let asked = stack.says(&["srun", "--mps", "/bin/echo", "runs"])?;
    ensure!(
        !asked.status.success() && asked.stdout.is_empty(),
        "a job that asked ran without: {asked:?}"
    );
    let bed = &stack.cell.bed;
    bed.wait_idle(LIMIT)?;
    bed.stop_node("node2")?;
    bed.start_node("node2")?;
    let done = stack
        .says(&["srun", "-w", "node2", "/bin/echo", "runs"])?
        .success()?;
    ensure!(done.stdout == "runs\n", "{done:?}");
    bed.wait_idle(LIMIT)?;
    bed.stop_node("node2")?;
    // Back with a plugin that fits: a slurmd that began without one calls no prolog of it.
    stack.restore()?;
    bed.start_node("node2")?;
    bed.wait_idle(LIMIT)
}

/// `required`: nobody can submit anything, and a slurmd that starts ends again.
fn stops_everything(stack: &Stack<'_>) -> Result<()> {
    for argv in COMMANDS {
        let done = stack.says(argv)?.exits(1)?;
        ensure!(
            done.stdout.is_empty() && done.stderr.contains("ncompatible"),
            "{}{}",
            done.stdout,
            done.stderr
        );
    }
    let bed = &stack.cell.bed;
    let queue = bed.root(&["squeue", "-h"])?.success()?.stdout;
    ensure!(queue.is_empty(), "something is queued: {queue}");
    bed.stop_node("node2")?;
    bed.start_node("node2")?;
    let pid = bed.daemon("node2").context("slurmd's pid")?;
    bed.wait_until("slurmd's end", LIMIT, || {
        Ok(Process::read(pid).is_none_or(|process| process.is_zombie()))
    })
}

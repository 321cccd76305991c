//! Our line in plugstack.conf as `mpsctl slurm enable` writes it, with a real Slurm: the plugin
//! loads. A plugin with another release's stamp shows what Slurm does with both words, and `mpsctl
//! slurm check` reports it first. The running slurmd tells where Slurm is and what it reads: no
//! file is named, and the machine may have another Slurm.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use tests::child::Ran;
use tests::slurm::{Options, Process, stamp};

use crate::jobs::{check_daemons, holds, says};
use crate::runner::{Context, Group, cells};

pub const CONFIGLESS: Group = Group {
    options: || Options {
        configless: true,
        minors: vec![0, 1],
        gres_conf: Some("AutoDetect=off\nName=gpu File=/dev/nvidia[0-1]\n".into()),
        ..Options::default()
    },
    ..Group::new("stack_configless", cells![the_line_reaches_the_nodes])
};

pub const GROUP: Group = Group::new(
    "stack",
    cells![
        the_running_slurmd_is_found,
        a_wrong_stamp_under_optional_stops_nothing,
        a_wrong_stamp_under_required_stops_everything,
    ],
);

/// The stamp of Slurm 23.11.5.
pub const OTHER_RELEASE: u32 = 0x0017_0b05;

struct Stack<'a> {
    cell: &'a Context,
    before: String,
    release: String,
}

impl Stack<'_> {
    fn file(cell: &Context) -> PathBuf {
        cell.bed.dir().join("etc/plugstack.conf")
    }

    fn plugins(&self) -> PathBuf {
        self.cell.bed.dir().join("plugins")
    }

    fn plugin(&self) -> PathBuf {
        self.plugins().join(&self.release).join("spank_mps.so")
    }

    /// The plugin as the package installs it; the stack has no line of ours yet.
    fn new(cell: &Context) -> Result<Stack<'_>> {
        let [_, major, minor, _] = stamp::installed()?.to_be_bytes();
        let stack = Stack {
            cell,
            before: fs::read_to_string(Stack::file(cell))?,
            release: format!("{major:02}.{minor:02}"),
        };
        fs::create_dir_all(stack.plugin().parent().context("a directory")?)?;
        stack.restore()?;
        Ok(stack)
    }

    /// The same with a stack that includes what `mpsctl slurm enable WORDS` writes.
    fn enabled<'a>(cell: &'a Context, words: &str) -> Result<Stack<'a>> {
        let stack = Stack::new(cell)?;
        let etc = cell.bed.dir().join("etc");
        let include = format!("include {}/plugstack.conf.d/*.conf\n", etc.display());
        fs::write(Stack::file(cell), include)?;
        stack.mpsctl(&format!("enable {words}"))?.success()?;
        Ok(stack)
    }

    /// `mpsctl slurm check` on `node`, without an option that names Slurm's place.
    fn check_on(&self, node: &str) -> Result<Ran> {
        let (mpsctl, plugins) = (self.cell.mpsctl(), self.plugins());
        let line = format!(
            "{mpsctl} slurm check --node {node} --plugins {}",
            plugins.display()
        );
        self.cell
            .bed
            .on_node(node, &line.split(' ').collect::<Vec<_>>())
    }

    fn restore(&self) -> Result<()> {
        let new = self.plugin().with_extension("new");
        fs::copy(&self.cell.nodes.product.plugin, &new)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755))?;
        Ok(fs::rename(new, self.plugin())?)
    }

    fn mpsctl(&self, words: &str) -> Result<Ran> {
        let (conf, plugins) = (self.cell.bed.dir().join("etc/slurm.conf"), self.plugins());
        let place = format!(
            "--slurm-conf {} --plugins {}",
            conf.display(),
            plugins.display()
        );
        self.cell.root_mpsctl(&format!("slurm {words} {place}"))
    }
}

impl Drop for Stack<'_> {
    fn drop(&mut self) {
        let _ = self.mpsctl("disable");
        let _ = fs::write(Stack::file(self.cell), &self.before);
    }
}

fn restart(cell: &Context, node: &str) -> Result<()> {
    cell.bed.stop_node(node)?;
    cell.bed.start_node(node)
}

/// Its program tells the release and the commands, its arguments the configuration, its memory
/// whether it has the plugin.
fn the_running_slurmd_is_found(cell: &Context) -> Result<()> {
    let stack = Stack::enabled(cell, "")?;
    let conf = cell.bed.dir().join("etc/slurm.conf");
    let pid = cell.bed.daemon("node1").context("slurmd's pid")?;
    let words = [
        format!("OK    Slurm's configuration is '{}'", conf.display()),
        format!("OK    Slurm {} is installed", stack.release),
        format!("FAIL  slurmd (pid {pid}) runs since before our line"),
    ];
    says(
        &stack.check_on("node1")?.stdout,
        &words.each_ref().map(String::as_str),
    )?;
    restart(cell, "node1")?;
    cell.idle()?;
    let checked = stack.check_on("node1")?.success()?;
    says(&checked.stdout, &["OK    slurmd has loaded our plugin"])?;
    drop(stack);
    restart(cell, "node1")?;
    cell.idle()
}

/// `enable` on the controller's host: its nodes get our line, and a job that asks gets its MPS.
fn the_line_reaches_the_nodes(cell: &Context) -> Result<()> {
    let stack = Stack::new(cell)?;
    let bed = &cell.bed;
    fs::remove_file(Stack::file(cell))?;
    // The controller reads its files again, and the nodes ask it for them.
    let again = |word: &str| -> Result<()> {
        bed.wait_clean(crate::jobs::LIMIT)?;
        cell.root("scontrol reconfigure")?;
        bed.nodes()
            .iter()
            .try_for_each(|node| restart(cell, node))?;
        for node in bed.nodes() {
            cell.wait(word, || Ok(stack.check_on(&node)?.stdout.contains(word)))?;
        }
        cell.idle()?;
        // Slurm 26.05 starts a new slurmscriptd.
        bed.mark();
        Ok(())
    };
    again("Slurm's configuration is '/run/slurm/conf/slurm.conf'")?;
    let none = "FAIL  no '/run/slurm/conf/plugstack.conf': run 'mpsctl slurm enable' on the controller's host";
    says(&stack.check_on("node2")?.exits(2)?.stdout, &[none])?;
    stack.mpsctl("enable")?.success()?;
    again("has loaded our plugin")?;
    let line = "OK    '/run/slurm/conf/plugstack.conf' has our line";
    says(&stack.check_on("node2")?.success()?.stdout, &[line])?;
    check_serves(cell, "-w node2")
}

fn check_serves(cell: &Context, words: &str) -> Result<()> {
    let records = cell.clients(&format!("--mps --gres=gpu:1 {words}"), "--hold 0.1")?;
    check_daemons(&records, cell.user.uid, 1)?;
    // Without the plugin nothing but the timer would end the job's MPS.
    cell.idle()
}

/// A job that did not ask runs and is told on its terminal. `--mps` is no longer a flag. slurmd
/// starts.
fn a_wrong_stamp_under_optional_stops_nothing(cell: &Context) -> Result<()> {
    wrong_stamp(cell, "", |stack| {
        for command in COMMANDS {
            says(&cell.run(command, "")?.success()?.stderr, &["ncompatible"])?;
        }
        cell.check_refused("srun --mps", &[])?;
        cell.idle()?;
        restart(cell, "node2")?;
        let done = cell.run("srun -w node2 /bin/echo runs", "")?.success()?;
        holds(done.stdout == "runs\n", &done)?;
        cell.idle()?;
        cell.bed.stop_node("node2")?;
        // Restores the plugin first: a slurmd that began without one never calls its prolog.
        stack.restore()?;
        cell.bed.start_node("node2")
    })
}

/// No command submits anything, and a slurmd ends right after its start.
fn a_wrong_stamp_under_required_stops_everything(cell: &Context) -> Result<()> {
    wrong_stamp(cell, "--required", |stack| {
        for command in COMMANDS {
            let done = cell.run(command, "")?.exits(1)?;
            holds(
                done.stdout.is_empty() && done.stderr.contains("ncompatible"),
                &done,
            )?;
        }
        let queue = cell.root("squeue -h")?;
        ensure!(queue.is_empty(), "something is queued: {queue}");
        restart(cell, "node2")?;
        let pid = cell.bed.daemon("node2").context("slurmd's pid")?;
        let gone = || Process::read(pid).is_none_or(|process| process.is_zombie());
        cell.wait("slurmd's end", || Ok(gone()))?;
        stack.restore()?;
        cell.bed.start_node("node2")
    })
}

const COMMANDS: [&str; 3] = [
    "srun /bin/echo runs",
    "sbatch --parsable --output=/dev/null --wrap=true",
    "salloc /bin/true",
];

/// The check reports another release's plugin, with the effect that `effect` tests. Both disappear
/// with the right plugin.
fn wrong_stamp(
    cell: &Context,
    words: &str,
    effect: impl Fn(&Stack<'_>) -> Result<()>,
) -> Result<()> {
    let stack = Stack::enabled(cell, words)?;
    check_serves(cell, "")?;
    stamp::write(&stack.plugin(), OTHER_RELEASE)?;
    let told = format!(
        "FAIL  '{}' is for Slurm 23.11, and {} is installed: run 'mpsctl slurm enable' again",
        stack.plugin().display(),
        stack.release
    );
    let checked = stack.mpsctl("check").and_then(|checked| checked.exits(2));
    let outcome = checked.and_then(|checked| says(&checked.stdout, &[&told]));
    let outcome = outcome.and_then(|()| effect(&stack));
    stack.restore()?;
    outcome?;
    cell.idle()?;
    let said = stack.mpsctl("check")?.stdout;
    ensure!(!said.contains(&told), "{said}");
    check_serves(cell, "-w node2")
}

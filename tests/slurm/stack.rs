//! Our line in plugstack.conf as `mpsctl slurm enable` writes it, under a real Slurm: it loads; and what Slurm makes of a
//! plugin with another release's stamp, under both words. `mpsctl slurm check` says it before a user does. Where Slurm is, and
//! what it reads, the running slurmd tells: nobody names a file, and the machine may have another Slurm installed.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use tests::slurm::{Finished, Options, Process, stamp};

use crate::mps::{LIMIT, check_daemons, clients, nodes, simulated};
use crate::runner::{Context, Group};

/// On a cluster whose nodes get their files from the controller.
pub const CONFIGLESS: Group = Group {
    name: "stack_configless",
    options: || Options {
        configless: true,
        minors: vec![0, 1],
        gres_conf: Some("AutoDetect=off\nName=gpu File=/dev/nvidia[0-1]\n".into()),
        ..Options::default()
    },
    prepare: simulated,
    needs: || None,
    cells: &[("the_line_reaches_the_nodes", the_line_reaches_the_nodes)],
};

/// One bed for both words.
pub const GROUP: Group = Group {
    name: "stack",
    options: Options::default,
    prepare: simulated,
    needs: || None,
    cells: &[
        ("the_running_slurmd_is_found", the_running_slurmd_is_found),
        ("a_wrong_stamp_under_optional", |cell| wrong_stamp(cell, false)),
        ("a_wrong_stamp_under_required", |cell| wrong_stamp(cell, true)),
    ],
};

/// The release of the Slurm that runs here.
fn release() -> Result<String> {
    let [_, major, minor, _] = stamp::installed()?.to_be_bytes();
    Ok(format!("{major:02}.{minor:02}"))
}

/// Slurm 23.11.5.
const OTHER: u32 = 0x0017_0b05;

/// The stack of the bed, ours while this lives.
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

    /// The plugin as the package installs it, and a stack that includes what `mpsctl slurm enable` writes.
    fn set_up<'a>(cell: &'a Context, words: &[&str]) -> Result<Stack<'a>> {
        let stack = Stack::new(cell)?;
        let etc = cell.bed.dir().join("etc");
        fs::write(
            Stack::file(cell),
            format!("include {}/plugstack.conf.d/*.conf\n", etc.display()),
        )?;
        stack.mpsctl(&[&["enable"], words].concat())?.success()?;
        Ok(stack)
    }

    /// The plugin as the package installs it, and nothing in the stack yet.
    fn new(cell: &Context) -> Result<Stack<'_>> {
        let before = fs::read_to_string(Stack::file(cell))?;
        let release = release()?;
        let stack = Stack {
            cell,
            before,
            release,
        };
        fs::create_dir_all(stack.plugin().parent().context("a directory")?)?;
        stack.restore()?;
        Ok(stack)
    }

    /// `mpsctl slurm check` on `node`, which nobody tells where Slurm is.
    fn check_on(&self, node: &str) -> Result<Finished> {
        let product = &nodes(self.cell)?.product;
        let text = |path: PathBuf| path.display().to_string();
        let (program, config) = (text(product.libexec.join("mpsctl")), text(product.config.clone()));
        let plugins = text(self.plugins());
        let words = [
            "--config",
            &config,
            "slurm",
            "check",
            "--node",
            node,
            "--plugins",
            &plugins,
        ];
        self.cell.bed.on_node(node, &[&[&*program], &words[..]].concat())
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

/// The line `line` is among those of a check.
fn says(checked: &Finished, line: &str) -> Result<()> {
    let told = checked.stdout.lines().any(|one| one.contains(line));
    ensure!(told, "not told '{line}': {}{}", checked.stdout, checked.stderr);
    Ok(())
}

/// Its program tells the release and the commands, its arguments the configuration, its memory whether it has the plugin.
fn the_running_slurmd_is_found(cell: &Context) -> Result<()> {
    let stack = Stack::set_up(cell, &[])?;
    let bed = &cell.bed;
    let checked = stack.check_on("node1")?;
    let pid = bed.daemon("node1").context("slurmd's pid")?;
    says(
        &checked,
        &format!(
            "OK    Slurm's configuration is '{}/etc/slurm.conf'",
            bed.dir().display()
        ),
    )?;
    says(&checked, &format!("OK    Slurm {} is installed", stack.release))?;
    says(
        &checked,
        &format!("FAIL  slurmd (pid {pid}) runs since before our line"),
    )?;
    bed.stop_node("node1")?;
    bed.start_node("node1")?;
    bed.wait_idle(LIMIT)?;
    let checked = stack.check_on("node1")?.success()?;
    says(&checked, "OK    slurmd has loaded our plugin")?;
    drop(stack);
    bed.stop_node("node1")?;
    bed.start_node("node1")?;
    bed.wait_idle(LIMIT)
}

/// `enable` where the controller is: its nodes have our line, and a job that asks its MPS.
fn the_line_reaches_the_nodes(cell: &Context) -> Result<()> {
    let stack = Stack::new(cell)?;
    let bed = &cell.bed;
    fs::remove_file(Stack::file(cell))?;
    // The controller reads its files again, and the nodes ask it for them.
    let again = |word: &str| {
        bed.wait_clean(LIMIT)?;
        bed.root(&["scontrol", "reconfigure"])?.success()?;
        for node in bed.nodes() {
            bed.stop_node(&node)?;
            bed.start_node(&node)?;
        }
        for node in bed.nodes() {
            bed.wait_until(word, LIMIT, || Ok(stack.check_on(&node)?.stdout.contains(word)))?;
        }
        bed.wait_idle(LIMIT)?;
        // Slurm 26.05 starts a new slurmscriptd.
        bed.mark();
        anyhow::Ok(())
    };
    again("Slurm's configuration is '/run/slurm/conf/slurm.conf'")?;
    let checked = stack.check_on("node2")?.exits(1)?;
    says(
        &checked,
        "FAIL  no '/run/slurm/conf/plugstack.conf': run 'mpsctl slurm enable' on the controller's host",
    )?;
    stack.mpsctl(&["enable"])?.success()?;
    again("has loaded our plugin")?;
    let checked = stack.check_on("node2")?.success()?;
    says(&checked, "OK    '/run/slurm/conf/plugstack.conf' has our line")?;
    let records = clients(cell, &["--mps", "-w", "node2", "--gres=gpu:1"], "--hold 0.1")?;
    check_daemons(&records, cell.user.uid, 1)?;
    bed.wait_idle(LIMIT)
}

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
                .contains(&format!("is root's and for Slurm {}", stack.release)),
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
        "FAIL  '{}' is for Slurm 23.11, and {} is installed: run 'mpsctl slurm enable' again",
        stack.plugin().display(),
        stack.release
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

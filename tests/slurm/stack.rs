//! Our line in plugstack.conf as `mpsctl slurm enable` writes it, with a real Slurm: the plugin
//! loads. The running slurmd tells where Slurm is and what it reads: no file is named, and the
//! machine may have another Slurm.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use tests::child::Ran;
use tests::slurm::{Options, stamp};

use crate::jobs::{check_daemons, says};
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

pub const GROUP: Group = Group::new("stack", cells![the_running_slurmd_is_found]);

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

    /// The plugin as the package installs it; the stack has no line of ours yet.
    fn new(cell: &Context) -> Result<Stack<'_>> {
        let [_, major, minor, _] = stamp::installed()?.to_be_bytes();
        let stack = Stack {
            cell,
            before: fs::read_to_string(Stack::file(cell))?,
            release: format!("{major:02}.{minor:02}"),
        };
        let dir = cell.bed.dir().join("plugins").join(&stack.release);
        fs::create_dir_all(&dir)?;
        let plugin = dir.join("spank_mps.so");
        fs::copy(&cell.nodes.product.plugin, &plugin)?;
        fs::set_permissions(plugin, fs::Permissions::from_mode(0o755))?;
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
    let stack = Stack::new(cell)?;
    let etc = cell.bed.dir().join("etc");
    let include = format!("include {}/plugstack.conf.d/*.conf\n", etc.display());
    fs::write(Stack::file(cell), include)?;
    stack.mpsctl("enable")?.success()?;
    let conf = etc.join("slurm.conf");
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
    let records = cell.clients("--mps --gres=gpu:1 -w node2", "--hold 0.1")?;
    check_daemons(&records, cell.user.uid, 1)
}

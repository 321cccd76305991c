//! Puts the built files into a bed: root-owned copies of the programs, the plugin and their
//! configuration.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::bed::Bed;
use super::host::program_beside;
use super::stamp;
use crate::double::copy_program;
use crate::run::PROGRAMS;

pub const PLUGIN: &str = "libspank_mps.so";

#[derive(Clone, Debug)]
pub struct Product {
    pub libexec: PathBuf,
    pub config: PathBuf,
    pub plugin: PathBuf,
}

impl Product {
    /// `config` is its `mpsd.toml`. The plugin gets the bed's line, and the nodes `run/NODE` and
    /// `state/NODE` of [`Product::settings`].
    pub fn install(bed: &mut Bed, config: &str) -> Result<Product> {
        let dir = bed.dir().to_owned();
        let product = Product {
            libexec: dir.join("libexec"),
            config: dir.join("etc/mpsd.toml"),
            plugin: dir.join("lib/spank_mps.so"),
        };
        fs::create_dir(&product.libexec)?;
        fs::create_dir(dir.join("lib"))?;
        for name in PROGRAMS {
            copy(&program_beside(name)?, &product.libexec.join(name), 0o755)?;
        }
        let checkout =
            || concat!(env!("CARGO_MANIFEST_DIR"), "/../etc/slurm/mps-task-prolog").into();
        let prolog = program_beside("mps-task-prolog").unwrap_or_else(|_| checkout());
        copy(&prolog, &product.libexec.join("mps-task-prolog"), 0o755)?;
        copy(&program_beside(PLUGIN)?, &product.plugin, 0o755)?;
        stamp::write(&product.plugin, stamp::installed()?)?;
        fs::write(&product.config, config)?;
        fs::set_permissions(&product.config, fs::Permissions::from_mode(0o644))?;
        let options = bed.options_mut();
        options.load(&product.plugin, &product.config, &product.libexec);
        Ok(product)
    }

    /// They keep the bed's nodes apart: `%n` is the node's name.
    pub fn settings(bed: &Bed, control: &Path, nvml: &Path) -> String {
        let mut text = String::new();
        for (key, path) in [
            ("run_dir", &*bed.run_dir_of_nodes()),
            ("state_dir", &bed.dir().join("mpsd/%n")),
            ("control", control),
            ("nvml", nvml),
        ] {
            text += &format!("{key} = \"{}\"\n", path.display());
        }
        let cgroup = bed.cgroup().map(|path| path.display());
        text + &cgroup.map_or(String::new(), |path| format!("cgroup = \"{path}/%n\"\n"))
    }
}

/// Puts the double of another plugin beside ours, with the stamp of this Slurm.
pub fn install_plugin_double(bed: &Bed, library: &str) -> Result<PathBuf> {
    let double = bed.dir().join("lib").join(library);
    copy(&program_beside(library)?, &double, 0o755)?;
    stamp::write(&double, stamp::installed()?)?;
    Ok(double)
}

pub fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    copy_program(from, to)
        .with_context(|| format!("cannot copy '{}' to '{}'", from.display(), to.display()))?;
    fs::set_permissions(to, fs::Permissions::from_mode(mode))?;
    Ok(())
}

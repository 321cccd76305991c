//! The cells of a Slurm, on that of another system.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::cargo;

/// Starts a test program in a system, below a file system in memory. One line, because it is a
/// value in cargo's configuration.
const IN_SYSTEM: &str = "root=$1 repository=$2 build=$3; shift 3; place=$build/tmp/system-root; mkdir -p $place; \
    mount -t tmpfs -o mode=755 none $place; mkdir -m 755 $place/upper $place/work $place/root; \
    mount -t overlay -o lowerdir=$root,upperdir=$place/upper,workdir=$place/work overlay $place/root; \
    for one in proc sys dev; do mount --rbind /$one $place/root/$one; done; \
    for one in $repository $build; do mkdir -p $place/root$one; mount --bind $one $place/root$one; done; \
    echo 127.0.0.1 localhost $(uname -n) > $place/root/etc/hosts; \
    exec chroot $place/root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin $*";

/// `cargo test` of the cells, with the Slurm of the system in `root`.
pub fn in_system(root: &Path) -> Result<Command> {
    let none = || format!("no system in '{}'", root.display());
    let root = root.canonicalize().with_context(none)?;
    let before = "unshare --mount --propagation private sh -ec".split(' ');
    let before = before.chain([IN_SYSTEM, "sh"]);
    let places = [root, cargo::root()?, cargo::target_directory()?];
    let places = places.map(|dir| dir.display().to_string());
    let words = before.chain(places.iter().map(String::as_str));
    let quoted: Vec<String> = words.map(|word| format!("'{word}'")).collect();
    let quoted = quoted.join(", ");
    let mut run = cargo::words("test --locked --workspace --test slurm");
    run.arg("--config");
    run.arg(format!("target.'cfg(all())'.runner = [{quoted}]"));
    Ok(run)
}

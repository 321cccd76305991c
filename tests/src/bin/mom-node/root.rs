//! The node's files: this machine's, under a layer that takes every write and is removed with the
//! node. And its cgroups.

use anyhow::{Context as _, Result};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chdir, chroot, sethostname};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tests::double::remove_cgroup;

pub const LAYER: &str = "/.layer";

/// Empty on a node, because this machine may have users' homes there, a PBS or an mpsd.
const FRESH: [(&str, u32); 7] = [
    ("/tmp", 0o1777),
    ("/run", 0o755),
    ("/dev/shm", 0o1777),
    ("/home", 0o755),
    ("/opt", 0o755),
    ("/var/spool", 0o755),
    ("/var/lib/mpsd", 0o711),
];

/// Where systemd's hierarchies for its units are mounted: v2, or v2 and a hybrid's named one.
const TOPS: [&str; 3] = [
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/cgroup/systemd",
];

const NONE: Option<&str> = None;

fn mounted(
    from: &str,
    to: &Path,
    kind: Option<&str>,
    flags: MsFlags,
    options: Option<&str>,
) -> Result<()> {
    mount(Some(from), to, kind, flags, options).with_context(|| format!("'{}'", to.display()))
}

pub fn build(dir: &str, name: &str, cgroups: &str) -> Result<()> {
    let empty = MsFlags::empty();
    let whole = MsFlags::MS_REC;
    mounted(
        "none",
        Path::new("/"),
        NONE,
        whole | MsFlags::MS_PRIVATE,
        NONE,
    )?;
    let top = Path::new(dir);
    mounted("node", top, Some("tmpfs"), empty, Some("mode=755"))?;
    for part in ["layer", "work", "root"] {
        fs::create_dir(top.join(part)).with_context(|| format!("'{dir}/{part}'"))?;
    }
    let options = format!("lowerdir=/,upperdir={dir}/layer,workdir={dir}/work");
    let root = top.join("root");
    mounted("node", &root, Some("overlay"), empty, Some(&options))?;
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    for path in ["/dev", "/sys"] {
        mounted(path, &inside(path), NONE, whole | MsFlags::MS_BIND, NONE)?;
    }
    mounted("proc", &inside("/proc"), Some("proc"), empty, NONE)?;
    for top in cgroups.split(',').filter(|top| !top.is_empty()) {
        // A hierarchy cannot be mounted over itself.
        umount2(&inside(top), MntFlags::MNT_DETACH).with_context(|| format!("'{top}'"))?;
        let (kind, options) = match top.ends_with("systemd") {
            true => ("cgroup", Some("none,name=systemd")),
            false => ("cgroup2", None),
        };
        mounted("cgroup", &inside(top), Some(kind), empty, options)?;
    }
    for (path, mode) in FRESH {
        let path = inside(path);
        fs::create_dir_all(&path)?;
        mounted("node", &path, Some("tmpfs"), empty, NONE)?;
        mounted("none", &path, NONE, MsFlags::MS_PRIVATE, NONE)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    for place in [LAYER, "/var/srv/pbs", "/srv/build"] {
        fs::create_dir_all(inside(place)).with_context(|| format!("'{place}'"))?;
    }
    let exe = fs::read_link("/proc/self/exe")?;
    let build = exe.parent().unwrap_or(Path::new("/")).to_owned();
    let server = top.parent().unwrap_or(top).join("server");
    let mut binds = vec![(top.join("layer"), LAYER), (build, "/srv/build")];
    if server.is_dir() {
        binds.push((server, "/var/srv/pbs"));
    }
    for (from, to) in binds {
        let from = from.display().to_string();
        mounted(&from, &inside(to), NONE, MsFlags::MS_BIND, NONE)?;
    }
    sethostname(name).context("host name")?;
    chroot(&root).context("root")?;
    chdir("/").context("root")
}

/// A hierarchy of cgroups. The node's root is a directory of this machine's, which is removed with
/// the node. Otherwise two nodes with the same job id would meet there.
#[derive(Debug)]
pub struct Hierarchy {
    pub top: &'static str,
    home: PathBuf,
    node: PathBuf,
}

impl Hierarchy {
    pub fn enter_all() -> Vec<Hierarchy> {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let entered = TOPS
            .into_iter()
            .filter_map(|top| Hierarchy::enter(top, &own));
        entered.collect()
    }

    fn enter(top: &'static str, own: &str) -> Option<Hierarchy> {
        let key = match top.ends_with("systemd") {
            true => ":name=systemd:",
            false => "::",
        };
        let path = own.lines().find_map(|line| line.split_once(key))?.1;
        if !Path::new(top).join("cgroup.procs").exists() {
            return None;
        }
        let home = Path::new(top).join(path.trim_start_matches('/'));
        let node = home.join(format!("mom-node-{}", std::process::id()));
        fs::create_dir(&node).ok()?;
        fs::write(node.join("cgroup.procs"), "0").ok()?;
        Some(Hierarchy { top, home, node })
    }

    pub fn leave(self) {
        let _ = fs::write(self.home.join("cgroup.procs"), "0");
        if let Err(why) = remove_cgroup(&self.node) {
            eprintln!("mom-node: cgroup '{}' stays: {why}", self.node.display());
        }
    }
}

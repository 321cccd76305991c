//! The node's files: this machine's, with a layer above that takes every write and goes with the node.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::{chdir, chroot, sethostname};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// The layer of writes, seen from inside the node.
pub const LAYER: &str = "/.layer";

/// Empty on a node, whatever this machine has there: its users' homes, its own PBS, its own mpsd's word.
const FRESH: [(&str, u32); 7] = [
    ("/tmp", 0o1777),
    ("/run", 0o755),
    ("/dev/shm", 0o1777),
    ("/home", 0o755),
    ("/opt", 0o755),
    ("/var/spool", 0o755),
    ("/var/lib/mpsd", 0o711),
];

/// Builds the tree in `dir` and enters it.
pub fn build(dir: &str, name: &str, cgroups: &str) -> Result<(), String> {
    let step = |what: &str, done: nix::Result<()>| done.map_err(|e| format!("{what}: {e}"));
    let none: Option<&str> = None;
    step(
        "private mounts",
        mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none),
    )?;
    step(
        "a layer",
        mount(
            Some("node"),
            dir,
            Some("tmpfs"),
            MsFlags::empty(),
            Some("mode=755"),
        ),
    )?;
    let top = Path::new(dir);
    for part in ["layer", "work", "root"] {
        fs::create_dir(top.join(part)).map_err(|e| format!("'{dir}/{part}': {e}"))?;
    }
    let options = format!("lowerdir=/,upperdir={dir}/layer,workdir={dir}/work");
    let root = top.join("root");
    step(
        "overlay",
        mount(
            Some("node"),
            &root,
            Some("overlay"),
            MsFlags::empty(),
            Some(&*options),
        ),
    )?;
    let inside = |path: &str| root.join(path.trim_start_matches('/'));
    for path in ["/dev", "/sys"] {
        step(
            path,
            mount(
                Some(path),
                &inside(path),
                none,
                MsFlags::MS_BIND | MsFlags::MS_REC,
                none,
            ),
        )?;
    }
    step(
        "/proc",
        mount(
            Some("proc"),
            &inside("/proc"),
            Some("proc"),
            MsFlags::empty(),
            none,
        ),
    )?;
    for top in cgroups.split(',').filter(|top| !top.is_empty()) {
        // The same hierarchy cannot be mounted over itself.
        step(top, umount2(&inside(top), MntFlags::MNT_DETACH))?;
        let (kind, options) = if top.ends_with("systemd") {
            ("cgroup", Some("none,name=systemd"))
        } else {
            ("cgroup2", None)
        };
        step(
            top,
            mount(
                Some("cgroup"),
                &inside(top),
                Some(kind),
                MsFlags::empty(),
                options,
            ),
        )?;
    }
    for (path, mode) in FRESH {
        fresh(&inside(path), mode).map_err(|e| format!("'{path}': {e}"))?;
    }
    for place in [LAYER, "/var/srv/pbs", "/srv/build"] {
        fs::create_dir_all(inside(place)).map_err(|e| format!("'{place}': {e}"))?;
    }
    bind(&top.join("layer"), &inside(LAYER))?;
    let server = top.parent().unwrap_or(top).join("server");
    if server.is_dir() {
        bind(&server, &inside("/var/srv/pbs"))?;
    }
    let exe = fs::read_link("/proc/self/exe").map_err(|e| format!("'/proc/self/exe': {e}"))?;
    bind(exe.parent().unwrap_or(Path::new("/")), &inside("/srv/build"))?;
    step("host name", sethostname(name))?;
    step("root", chroot(&root))?;
    step("root", chdir("/"))
}

fn fresh(path: &Path, mode: u32) -> std::io::Result<()> {
    let none: Option<&str> = None;
    fs::create_dir_all(path)?;
    mount(Some("node"), path, Some("tmpfs"), MsFlags::empty(), none)?;
    mount(none, path, none, MsFlags::MS_PRIVATE, none)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn bind(from: &Path, to: &Path) -> Result<(), String> {
    let none: Option<&str> = None;
    mount(Some(from), to, none, MsFlags::MS_BIND, none).map_err(|e| format!("'{}': {e}", to.display()))
}

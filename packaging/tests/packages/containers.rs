//! A real rootless Podman with crun, from Debian's packages. A container with the options of
//! `mpsctl env --container` is under its job's MPS; a container without them is not. The packages
//! lie over /usr and /etc in the container's own namespaces.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tests::node_bed::{NodeBed, fast};
use tests::run::{Ran, USER, finish};

use crate::guide::commands;
use crate::{kept, run, says, skip, unpack};

/// Podman and what it needs beyond the smallest system.
const PACKAGES: &str =
    "podman crun conmon libyajl2 libgpgme11 libassuan0 libsubid4 golang-github-containers-common";
const JOB: &str = "4711.srv";
/// The job's script is `$0`. Only cgroup v2, because crun refuses if v1 is beside it; without this
/// machine's /etc/containers. Podman leaves its user's lock in /dev/shm.
const INSIDE: &str = r#"
mount --make-rshared /
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t overlay overlay -o "lowerdir=$PACKAGES/usr:/usr" /usr
mount -t overlay overlay -o "lowerdir=$PACKAGES/etc:/etc" /etc
while umount -l /sys/fs/cgroup 2>/dev/null; do :; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
cd "$HOME"
setpriv --reuid "$AS" --regid nogroup --clear-groups sh -ec "$0"
"#;

/// The directory with the packages, unpacked; why they cannot be had.
fn unpacked() -> Result<PathBuf, String> {
    let make = |place: &Path| unpack(place, PACKAGES);
    Ok(kept("podman", PACKAGES, make)?.join("root"))
}

struct Bed {
    place: NodeBed,
    packages: PathBuf,
}

impl Bed {
    /// A job with the GPUs in mode DEFAULT, in which a client that misses its daemon gets no error.
    fn new(packages: PathBuf) -> Bed {
        let place = NodeBed::without_cgroup(fast(1), "compute_mode = \"keep\"");
        let home = "mkdir -p -m 700 home home/run home/image; cd home/image; \
                    mkdir usr etc proc dev sys tmp run var; \
                    ln -s usr/bin usr/lib usr/lib64 usr/sbin .; chown -R \"$0:nogroup\" ../../home";
        let mut make = Command::new("sh");
        run(make.args(["-ec", home, USER]).current_dir(place.path("")));
        place.begin(JOB, "MPS=true,MPS_THREADS=25", "0");
        Bed { place, packages }
    }

    /// A command of the job's script. An alias has the site's words for Podman: no subordinate ids,
    /// cgroups, or image.
    fn script(&self, line: &str) -> Ran {
        let place = &self.place;
        let node = place.node.dir().display();
        // Podman joins the namespace of the process that an earlier run wrote down. That pid is
        // another process here.
        let podman = format!(
            "rm -f \"$XDG_RUNTIME_DIR/libpod/tmp/pause.pid\"\n\
             podman() {{ [ \"$1\" = run ] && shift; command podman --root \"$HOME/store\" --runroot \"$HOME/run/pods\" \
             --storage-driver vfs --cgroup-manager cgroupfs --events-backend file run --rm --cgroups disabled --network none \
             --volume /usr:/usr:ro --volume {node}:{node} \"$@\"; }}\n\
             mpsctl() {{ command mpsctl --config {config} \"$@\"; }}\n",
            config = place.config().display(),
        );
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["--propagation", "private", "sh", "-ec", INSIDE])
            .arg(podman + line)
            .env_clear()
            .env("PACKAGES", &self.packages)
            .env("AS", USER)
            .env("HOME", place.path("home"))
            .env("XDG_RUNTIME_DIR", place.path("home/run"))
            .env("PBS_JOBID", JOB);
        let own = place.path("bin");
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", own.display());
        command.env("PATH", path);
        finish(command)
    }

    fn rootfs(&self) -> String {
        format!("--rootfs {}", self.place.path("home/image").display())
    }

    fn client(&self, options: &str) -> Value {
        let (client, node) = (self.place.node.client(), self.place.node.dir());
        let (client, node) = (client.display(), node.display());
        let rootfs = self.rootfs();
        let line = format!("podman run {options} {rootfs} {client} --node {node}");
        let ran = self.script(&line);
        let mut lines = ran.out.lines();
        let record = lines.find_map(|line| serde_json::from_str(line).ok());
        record.unwrap_or_else(|| panic!("{ran:?}"))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = self.place.torque_end(JOB);
    }
}

#[test]
fn a_container_is_attached_by_the_options_that_mpsctl_prints_and_by_nothing_less() {
    let packages = match unpacked() {
        Ok(packages) => packages,
        Err(why) => return skip("containers of a real Podman", &why),
    };
    let bed = Bed::new(packages);
    let [line] = &commands("containers.md", "Podman")[..] else {
        panic!("one command");
    };
    let (start, _) = line.split_once(" IMAGE ").unwrap();
    let options = start.strip_prefix("podman run ").unwrap();
    let attached = bed.client(options);
    assert_eq!(attached["under_mps"], true, "{attached}");
    assert_eq!(attached["sms"], 32, "{attached}");
    assert_eq!(attached["job"], JOB, "{attached}");

    // Without an option it silently runs outside MPS. The variables alone do not help either.
    let outside = bed.client("");
    assert_eq!(outside["under_mps"], false, "{outside}");
    assert_eq!(outside["error"], Value::Null, "{outside}");
    let pipe = bed.place.job(JOB).join("pipe");
    let blind = bed.client(&format!("--env CUDA_MPS_PIPE_DIRECTORY={}", pipe.display()));
    assert_eq!(blind["under_mps"], false, "{blind}");

    // If the job's MPS cannot be found, no container starts.
    for (words, why) in [
        ("podman --job '../x'", "mpsctl: "),
        ("podmann", "invalid value 'podmann'"),
    ] {
        let options = format!("$(mpsctl env --container {words}) {}", bed.rootfs());
        let refused = bed.script(&format!("podman run {options} /bin/echo ran"));
        let has_run = refused.code == Some(0) || refused.out.contains("ran");
        assert!(!has_run, "{refused:?}");
        says(&refused.err, &["unknown flag", why]);
    }

    // The probe needs only a C library from an image. There is no CUDA here, and it says so.
    let [line] = &commands("containers.md", "To see whether a container is attached")[..] else {
        panic!("one command");
    };
    let probe = format!("{}:/", bed.place.program("mps-probe").display());
    let line = line.replace("/usr/libexec/mpsd/mps-probe:/", &probe);
    let ran = bed.script(&line.replace(" IMAGE ", &format!(" {} ", bed.rootfs())));
    assert_eq!(ran.code, Some(2), "{ran:?}");
    says(&ran.err, &["mps-probe: no libcuda.so.1"]);
}

//! enroot's hook: what it writes for a container of a job with MPS, in the syntax that enroot documents, and that it does
//! nothing for any other.

use crate::sources::root;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// What enroot hands to a hook (its doc/configuration.md), and what the hook writes there.
struct Enroot {
    dir: TempDir,
}

impl Enroot {
    fn new() -> Self {
        let dir = TempDir::with_prefix("enroot-").expect("directory");
        for name in ["mounts", "environ"] {
            fs::write(dir.path().join(name), "").expect("file");
        }
        Self { dir }
    }

    fn job(&self) -> PathBuf {
        self.dir.path().join("jobs/42")
    }

    /// Runs the hook as enroot does, by its own first line; the mounts and the variables.
    #[track_caller]
    fn hook(&self, env: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let mut command = Command::new(root().join("etc/enroot/hooks.d/50-mpsd.sh"));
        command.env_clear().env("PATH", "/usr/bin:/bin");
        for (variable, file) in [("ENROOT_MOUNTS", "mounts"), ("ENROOT_ENVIRON", "environ")] {
            fs::write(self.dir.path().join(file), "").expect("file");
            command.env(variable, self.dir.path().join(file));
        }
        let output = command.envs(env.iter().copied()).output().expect("the hook");
        assert!(
            output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
        let lines = |name: &str| {
            let text = fs::read_to_string(self.dir.path().join(name)).expect("file");
            text.lines().map(str::to_owned).collect()
        };
        (lines("mounts"), lines("environ"))
    }
}

const NONE: (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());

#[test]
fn a_container_of_a_job_without_mps_is_left_alone() {
    let enroot = Enroot::new();
    assert_eq!(enroot.hook(&[("HOME", "/root"), ("SLURM_JOB_ID", "42")]), NONE);
    // The user's own MPS, and what a job that is gone left behind.
    assert_eq!(
        enroot.hook(&[("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")]),
        NONE
    );
    let gone = enroot.job().join("pipe").display().to_string();
    let left = [("MPSD_JOB", "42"), ("CUDA_MPS_PIPE_DIRECTORY", gone.as_str())];
    assert_eq!(enroot.hook(&left), NONE);
}

#[test]
fn a_container_of_a_job_with_mps_gets_its_directory_and_variables() {
    let enroot = Enroot::new();
    let job = enroot.job();
    fs::create_dir_all(job.join("pipe-1")).expect("job");
    let pipe = job.join("pipe-1").display().to_string();
    let by_hand = [
        ("MPSD_JOB", "42"),
        ("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str()),
        ("CUDA_VISIBLE_DEVICES", "GPU-0,GPU-1"),
        ("PBS_JOBID", "42"),
    ];
    let (mounts, environ) = enroot.hook(&by_hand);
    let of_job: Vec<Vec<&str>> = mounts.iter().map(|line| line.split(' ').collect()).collect();
    let path = job.display().to_string();
    // Source, target below the container's root, type, options.
    assert_eq!(
        of_job[0][..3],
        [path.as_str(), path.as_str(), "none"],
        "{mounts:?}"
    );
    let options: Vec<&str> = of_job[0][3].split(',').collect();
    assert!(
        options.contains(&"x-create=dir") && options.contains(&"bind"),
        "{mounts:?}"
    );
    // One that cannot be mounted must not pass in silence.
    assert!(!mounts.concat().contains("nofail"), "{mounts:?}");
    let set: Vec<String> = by_hand[..3]
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(environ, set);

    // From a job script of Slurm's the same; pyxis, which keeps the rank back, hands each task's own variables on itself.
    let slurm = [&by_hand[..3], &[("SLURM_JOB_ID", "42"), ("SLURM_LOCALID", "0")]].concat();
    assert_eq!(enroot.hook(&slurm), (mounts.clone(), environ));
    assert_eq!(enroot.hook(&slurm[..4]), (mounts, Vec::new()));
}

/// enroot runs no hook that is not executable, and says nothing of it.
#[test]
fn the_hook_is_executable() {
    let mode = |path: &Path| fs::metadata(path).expect("hook").permissions().mode() & 0o777;
    assert_eq!(mode(&root().join("etc/enroot/hooks.d/50-mpsd.sh")), 0o755);
}

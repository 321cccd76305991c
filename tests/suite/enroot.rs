//! enroot's hook: what it writes for a container of a job with MPS, in the syntax that enroot documents, and that it does
//! nothing for any other.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

const HOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../etc/enroot/hooks.d/50-mpsd.sh");

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

    /// Runs the hook as enroot does, by its own first line.
    fn run(&self, env: &[(&str, &str)]) -> Output {
        let mut command = Command::new(HOOK);
        command.env_clear().env("PATH", "/usr/bin:/bin");
        for (variable, file) in [("ENROOT_MOUNTS", "mounts"), ("ENROOT_ENVIRON", "environ")] {
            let given = env.iter().find(|(name, _)| *name == "GIVEN" && file == "environ");
            let given = given.map_or("", |(_, text)| text);
            fs::write(self.dir.path().join(file), given).expect("file");
            command.env(variable, self.dir.path().join(file));
        }
        command.envs(env.iter().copied()).output().expect("the hook")
    }

    /// What it says, when the container may not start.
    #[track_caller]
    fn refusal(&self, env: &[(&str, &str)]) -> String {
        let output = self.run(env);
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        said
    }

    /// The mounts and the variables.
    #[track_caller]
    fn hook(&self, env: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let output = self.run(env);
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
    // 'sbatch' and 'qsub -V' from inside of a job bring its variables along, and that job may run here still.
    for _ in 0..2 {
        for own in ["SLURM_JOB_ID", "PBS_JOBID"] {
            assert_eq!(enroot.hook(&[left[0], left[1], (own, "43")]), NONE);
        }
        fs::create_dir_all(&gone).expect("job");
    }
}

#[test]
fn a_container_that_would_miss_its_jobs_mps_does_not_start() {
    let enroot = Enroot::new();
    let job = enroot.job();
    let pipe = job.join("pipe").display().to_string();
    let of_job = [("MPSD_JOB", "42"), ("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str())];
    for own in ["SLURM_JOB_ID", "PBS_JOBID"] {
        let said = enroot.refusal(&[of_job[0], of_job[1], (own, "42")]);
        assert!(
            said.contains("job 42") && said.contains(job.to_str().expect("text")),
            "{said}"
        );
    }
    let step = [("MPSD_JOB", "42.1"), of_job[1], ("SLURM_JOB_ID", "42")];
    assert!(enroot.refusal(&step).contains("job 42.1"));
    // A job of its own beside the one whose variables it has.
    fs::create_dir_all(job.with_file_name("43")).expect("job");
    let said = enroot.refusal(&[of_job[0], of_job[1], ("PBS_JOBID", "43")]);
    assert!(
        said.contains("job 43") && said.contains("job 42") && said.contains("mpsctl env"),
        "{said}"
    );
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
        options.contains(&"x-create=dir") && options.contains(&"rbind"),
        "{mounts:?}"
    );
    // One that cannot be mounted must not pass in silence.
    assert!(!mounts.concat().contains("nofail"), "{mounts:?}");
    let set: Vec<String> = by_hand[..3]
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    assert_eq!(environ, set);

    // The same in a job of Slurm's, be it in a shell of salloc's, which has no rank.
    let slurm = [&by_hand[..3], &[("SLURM_JOB_ID", "42"), ("SLURM_LOCALID", "0")]].concat();
    assert_eq!(enroot.hook(&slurm), (mounts.clone(), environ.clone()));
    assert_eq!(enroot.hook(&slurm[..4]), (mounts.clone(), environ));
    // pyxis hands each task's own variables on itself.
    for pyxis in [
        ("PYXIS_VERSION", "0.24.0"),
        ("ENROOT_ROOTFS", "/var/lib/enroot/pyxis_42.0"),
    ] {
        let env = [&slurm[..4], &[pyxis]].concat();
        assert_eq!(enroot.hook(&env), (mounts.clone(), Vec::new()), "{pyxis:?}");
    }
    // What 'mpsctl env --container enroot' has set is this rank's, and the shell's may be less.
    let env = [&by_hand[..], &[("GIVEN", "MPSD_JOB=42\n")]].concat();
    assert_eq!(enroot.hook(&env), (mounts, vec!["MPSD_JOB=42".to_owned()]));
}

/// A task of a heterogeneous job has the leader's number, and the MPS of its own component (docs/facts/slurm.md#callbacks-of-a-plugin).
#[test]
fn a_container_of_a_component_gets_its_components_directory() {
    let enroot = Enroot::new();
    let pipe = enroot.job().join("pipe").display().to_string();
    let of = |job: &'static str, leader: &'static str| {
        [
            ("MPSD_JOB", job),
            ("CUDA_MPS_PIPE_DIRECTORY", pipe.as_str()),
            ("SLURM_JOB_ID", leader),
            ("SLURM_HET_SIZE", "2"),
        ]
    };
    // The leader may be on another node, or on this one with an MPS of its own.
    for _ in 0..2 {
        assert!(enroot.refusal(&of("42", "41")).contains("job 42"));
        fs::create_dir_all(&pipe).expect("job");
        let (mounts, environ) = enroot.hook(&of("42", "41"));
        assert!(!mounts.is_empty() && environ[0] == "MPSD_JOB=42", "{environ:?}");
        fs::remove_dir_all(enroot.job()).expect("job");
        fs::create_dir_all(enroot.job().with_file_name("41")).expect("leader");
    }
    fs::remove_dir_all(enroot.job().with_file_name("41")).expect("leader");
    // Others are not of this job, though they run here.
    fs::create_dir_all(&pipe).expect("job");
    for (job, leader) in [("42", "40"), ("42", "43"), ("42.1", "41"), ("42.srv", "41")] {
        assert_eq!(enroot.hook(&of(job, leader)), NONE, "{job} {leader}");
    }
    assert_eq!(enroot.hook(&of("42", "41")[..3]), NONE);
}

/// enroot runs no hook that is not executable, and says nothing of it.
#[test]
fn the_hook_is_executable() {
    let mode = |path: &Path| fs::metadata(path).expect("hook").permissions().mode() & 0o777;
    assert_eq!(mode(Path::new(HOOK)), 0o755);
}

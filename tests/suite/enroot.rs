//! enroot's hook: what it writes for a container of a job with MPS, in enroot's documented syntax.
//! Other containers get nothing.

use mpsd_core::JobId;
use mpsd_core::record::{Daemon, Record, RecordState};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use tests::run::{Ran, finish};

const HOOK: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../etc/enroot/hooks.d/50-mpsd.sh"
);
const PIPE: &str = "CUDA_MPS_PIPE_DIRECTORY";
const NONE: (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());

struct Enroot {
    dir: TempDir,
}

impl Enroot {
    fn new() -> Self {
        let dir = TempDir::with_prefix("enroot-").expect("directory");
        Self { dir }
    }

    fn job(&self) -> PathBuf {
        self.dir.path().join("jobs/42")
    }

    fn pipe(&self) -> String {
        self.job().join("pipe").display().to_string()
    }

    /// By its own first line. `GIVEN` is the container's environment so far.
    fn run(&self, env: &[(&str, &str)]) -> Ran {
        let given = env.iter().find(|(name, _)| *name == "GIVEN");
        let given = given.map_or("", |(_, text)| text);
        let mut command = Command::new(HOOK);
        command.env_clear().env("PATH", "/usr/bin:/bin");
        for (variable, file, text) in [
            ("ENROOT_MOUNTS", "mounts", ""),
            ("ENROOT_ENVIRON", "environ", given),
        ] {
            let file = self.dir.path().join(file);
            fs::write(&file, text).expect("file");
            command.env(variable, file);
        }
        finish(command.envs(env.iter().copied()))
    }

    /// For a reason of one line with these words.
    #[track_caller]
    fn refuses(&self, env: &[(&str, &str)], words: &[&str]) {
        let ran = self.run(env).exits(1);
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        for words in words {
            ran.complains(words);
        }
    }

    #[track_caller]
    fn hook(&self, env: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        self.run(env).prints_only("");
        let lines = |name: &str| {
            let text = fs::read_to_string(self.dir.path().join(name)).expect("file");
            text.lines().map(str::to_owned).collect()
        };
        (lines("mounts"), lines("environ"))
    }
}

#[test]
fn a_container_of_a_job_without_mps_is_left_alone() {
    let enroot = Enroot::new();
    let gone = enroot.pipe();
    let left = [("MPSD_JOB", "42"), (PIPE, gone.as_str())];
    for env in [
        &[("HOME", "/root"), ("SLURM_JOB_ID", "42")][..],
        // The user's own MPS.
        &[(PIPE, "/tmp/nvidia-mps")],
        // Left behind by a job that has ended.
        &left,
    ] {
        assert_eq!(enroot.hook(env), NONE, "{env:?}");
    }
    // 'sbatch' and 'qsub -V' in a job pass its variables on, and that job may still run here.
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
    let (job, pipe) = (enroot.job(), enroot.pipe());
    let of_job = [("MPSD_JOB", "42"), (PIPE, pipe.as_str())];
    for own in ["SLURM_JOB_ID", "PBS_JOBID"] {
        let env = [of_job[0], of_job[1], (own, "42")];
        enroot.refuses(&env, &["job 42", job.to_str().expect("text")]);
    }
    let step = [("MPSD_JOB", "42.1"), of_job[1], ("SLURM_JOB_ID", "42")];
    enroot.refuses(&step, &["job 42.1"]);
    // This job runs beside the job whose variables it has.
    fs::create_dir_all(job.with_file_name("43")).expect("job");
    let env = [of_job[0], of_job[1], ("PBS_JOBID", "43")];
    enroot.refuses(&env, &["job 43", "job 42", "mpsctl env"]);
}

#[test]
fn a_container_of_a_job_with_mps_gets_its_directory_and_variables() {
    let enroot = Enroot::new();
    let job = enroot.job();
    fs::create_dir_all(job.join("pipe-1")).expect("job");
    let pipe = job.join("pipe-1").display().to_string();
    let by_hand = [
        ("MPSD_JOB", "42"),
        (PIPE, pipe.as_str()),
        ("CUDA_VISIBLE_DEVICES", "GPU-0,GPU-1"),
        ("PBS_JOBID", "42"),
    ];
    let (mounts, environ) = enroot.hook(&by_hand);
    let fields: Vec<&str> = mounts[0].split(' ').collect();
    let path = job.display().to_string();
    // Source, target below the container's root, type, options.
    assert_eq!(fields[..3], [path.as_str(), &path, "none"], "{mounts:?}");
    let options: Vec<&str> = fields[3].split(',').collect();
    let has = |option: &str| options.contains(&option);
    assert!(has("x-create=dir") && has("rbind"), "{mounts:?}");
    // A failing mount must be an error.
    assert!(!mounts.concat().contains("nofail"), "{mounts:?}");
    let set = by_hand[..3]
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    assert_eq!(environ, set.collect::<Vec<_>>());

    // The same in a Slurm job, and in a shell of salloc, which has no rank.
    let of_slurm = [
        ("SLURM_JOB_ID", "42"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_LOCALID", "0"),
    ];
    let slurm = [&by_hand[..3], &of_slurm].concat();
    assert_eq!(enroot.hook(&slurm), (mounts.clone(), environ.clone()));
    assert_eq!(enroot.hook(&slurm[..4]), (mounts.clone(), environ));
    // pyxis itself passes each task's variables on.
    for pyxis in [
        ("PYXIS_VERSION", "0.24.0"),
        ("ENROOT_ROOTFS", "/var/lib/enroot/pyxis_42.0"),
    ] {
        let env = [&slurm[..4], &[pyxis]].concat();
        assert_eq!(enroot.hook(&env), (mounts.clone(), Vec::new()), "{pyxis:?}");
    }
    // 'mpsctl env --container enroot' has set this rank's variables. The shell may have fewer.
    let env = [&by_hand[..], &[("GIVEN", "MPSD_JOB=42\n")]].concat();
    assert_eq!(enroot.hook(&env), (mounts, vec!["MPSD_JOB=42".to_owned()]));
}

/// A record names the daemons of all tasks, and all tasks use the first task's container.
#[test]
fn a_container_of_a_job_that_shares_an_mps_on_each_of_two_gpus_gets_both_directories() {
    let enroot = Enroot::new();
    let path = |name: &str| enroot.dir.path().join(name).display().to_string();
    let shared = ["shared/1001-GPU-0", "shared/1001-GPU-1"].map(path);
    let pipes = shared.clone().map(|dir| format!("{dir}/pipe"));
    let env = [
        ("MPSD_JOB", "42"),
        (PIPE, pipes[1].as_str()),
        ("SLURM_JOB_ID", "42"),
    ];
    let first = |line: &String| line.split(' ').next().map(str::to_owned);
    let mounted = || Vec::from_iter(enroot.hook(&env).0.iter().map(first));
    enroot.refuses(&env, &["job 42", &shared[1]]);
    for pipe in &pipes {
        fs::create_dir_all(pipe).expect("pipe");
    }
    assert_eq!(mounted(), [Some(shared[1].clone())], "without a record");
    fs::create_dir_all(enroot.job()).expect("job");
    let id = JobId::parse("42").expect("an id");
    let mut record = Record::without_mps(id, 1001, RecordState::Ready, String::new());
    let daemon = |pipe: &String| Daemon {
        pipe: pipe.into(),
        ..Daemon::default()
    };
    record.daemons = pipes.iter().map(daemon).collect();
    fs::write(enroot.job().join("record"), record.to_text().expect("text")).expect("record");
    assert_eq!(mounted(), shared.map(Some));
    // Another job's variables in a job with its own MPS.
    fs::create_dir_all(enroot.job().with_file_name("43")).expect("job");
    let env = [env[0], env[1], ("SLURM_JOB_ID", "43")];
    enroot.refuses(&env, &["job 43", "job 42", "mpsctl env"]);
}

/// A task of a heterogeneous job has the leader's id, and its own component's MPS
/// (docs/facts/slurm.md#callbacks-of-a-plugin).
#[test]
fn a_container_of_a_component_gets_its_components_directory() {
    let enroot = Enroot::new();
    let pipe = enroot.pipe();
    let leader_directory = enroot.job().with_file_name("41");
    let of = |job: &'static str, leader: &'static str| {
        let (job, leader) = (("MPSD_JOB", job), ("SLURM_JOB_ID", leader));
        [job, (PIPE, pipe.as_str()), leader, ("SLURM_HET_SIZE", "2")]
    };
    // The leader may be on another node, or on this node with its own MPS.
    for _ in 0..2 {
        enroot.refuses(&of("42", "41"), &["job 42"]);
        fs::create_dir_all(&pipe).expect("job");
        let (mounts, environ) = enroot.hook(&of("42", "41"));
        let is_mounted = !mounts.is_empty();
        assert!(is_mounted && environ[0] == "MPSD_JOB=42", "{environ:?}");
        fs::remove_dir_all(enroot.job()).expect("job");
        fs::create_dir_all(&leader_directory).expect("leader");
    }
    fs::remove_dir_all(leader_directory).expect("leader");
    // Other jobs run here, but do not belong to this one.
    fs::create_dir_all(&pipe).expect("job");
    for (job, leader) in [("42", "40"), ("42", "43"), ("42.1", "41"), ("42.srv", "41")] {
        assert_eq!(enroot.hook(&of(job, leader)), NONE, "{job} {leader}");
    }
    assert_eq!(enroot.hook(&of("42", "41")[..3]), NONE);
}

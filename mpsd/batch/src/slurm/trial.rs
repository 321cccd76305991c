//! The job of `mpsctl selftest` on Slurm.

use crate::trial::{CommandLine, Trial};

pub static SRUN: Trial = Trial {
    submits: "srun",
    is_its: |version| version.to_lowercase().contains("slurm"),
    request: "--mps --mps-threads=50 --mps-mem=1G",
    submit: |job| {
        let (name, probe) = (format!("--job-name={}", job.name), job.probe());
        let mut arguments = vec![name.as_str(), "--nodes=1", "--ntasks=1", "--gres=gpu:1"];
        arguments.extend(["--time=5", "--input=none"]);
        arguments.extend(SRUN.request.split(' '));
        arguments.extend(job.own.iter().chain(&probe).map(String::as_str));
        CommandLine::new("srun", &arguments)
    },
    ask: None,
    is_over: |_| true,
    why: |name, _| {
        let name = format!("--name={name}");
        let words = ["--noheader", &name, "--format=job %i is %T: %r"];
        CommandLine::new("squeue", &words)
    },
    named: None,
    cancel: |name, _| CommandLine::new("scancel", &[&format!("--name={name}")]),
    remedy: |said| match said {
        said if said.contains("unrecognized option") => {
            "Slurm on this host does not load our plugin: run 'mpsctl slurm enable' here as root; 'mpsctl slurm check' says what is in the way"
        }
        said if said.contains("did not load") => {
            "on that node, as root: 'mpsctl slurm enable', restart slurmd, 'mpsctl slurm check'"
        }
        "" => "'mpsctl doctor' as root, here and on the node, says what is in the way",
        _ => {
            "'mpsctl doctor' as root, here and on the node, says what is in the way; words of your site for srun, as a partition, go behind '--'"
        }
    },
};

//! A user's trial job under Slurm: `srun`, which waits for its end.

use crate::scheduler::trial::{CommandLine, Trial, TrialJob};

pub(super) struct Srun;

const REQUEST: [&str; 3] = ["--mps", "--mps-threads=50", "--mps-mem=1G"];

impl Trial for Srun {
    fn submits(&self) -> &'static str {
        "srun"
    }

    fn is_its(&self, version: &str) -> bool {
        version.to_lowercase().contains("slurm")
    }

    fn request(&self) -> &'static str {
        "--mps --mps-threads=50 --mps-mem=1G"
    }

    fn submit(&self, order: &TrialJob<'_>) -> CommandLine {
        let name = format!("--job-name={}", order.name);
        let probe = order.probe();
        let mut arguments = vec![name.as_str(), "--nodes=1", "--ntasks=1", "--gres=gpu:1"];
        arguments.extend(["--time=5", "--input=none"]);
        arguments.extend(REQUEST);
        arguments.extend(order.own.iter().chain(&probe).map(String::as_str));
        CommandLine::new("srun", &arguments)
    }

    fn ask(&self, _: &str) -> Option<CommandLine> {
        None
    }

    fn is_over(&self, _: &str) -> bool {
        true
    }

    fn why(&self, name: &str, _: Option<&str>) -> CommandLine {
        let name = format!("--name={name}");
        CommandLine::new("squeue", &["--noheader", &name, "--format=job %i is %T: %r"])
    }

    fn cancel(&self, name: &str, _: Option<&str>) -> CommandLine {
        CommandLine::new("scancel", &[&format!("--name={name}")])
    }

    fn remedy(&self, said: &str) -> &'static str {
        if said.contains("unrecognized option") {
            "Slurm on this host does not load our plugin: run 'mpsctl slurm enable' here as root; 'mpsctl slurm check' says what is in the way"
        } else if said.contains("did not load") {
            "on that node, as root: 'mpsctl slurm enable', restart slurmd, 'mpsctl slurm check'"
        } else {
            "'mpsctl slurm check' as root, here and on the node, says what is in the way; words of your site for srun, as a partition, go behind '--'"
        }
    }
}

//! What a batch script does that does not go with its job's MPS, by the words in it: lines for the
//! job's output. It decides nothing.

use super::bind::Bind;
use super::environment::{PIPE_DIRECTORY, VISIBLE_DEVICES};
use super::record::Record;

/// NVIDIA's control daemon.
pub const CONTROL: &str = "nvidia-cuda-mps-control";
const LAUNCHERS: [&str; 7] = [
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "mpiexec.mpich",
    "prterun",
    "mpirun_rsh",
];
/// Variables with the node's numbers of GPUs.
const NUMBERS: [&str; 4] = [
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "PBS_GPUFILE",
    "GPU_DEVICE_ORDINAL",
];

/// What the user of this script should know. The record is of the node where it runs.
pub fn advice(script: &str, record: &Record) -> Vec<String> {
    let lines = script.lines().map(str::trim_start);
    let lines: Vec<&str> = lines.filter(|line| !line.starts_with('#')).collect();
    let all = [
        daemon(&lines, record),
        launcher(&lines, record),
        numbers(&lines, record),
    ];
    all.into_iter().flatten().collect()
}

fn daemon(lines: &[&str], record: &Record) -> Option<String> {
    let mut words = lines.iter().flat_map(|line| words(line));
    let starts = words.any(|word| word.ends_with(CONTROL));
    let set = format!("{PIPE_DIRECTORY}=");
    let sets = || lines.iter().any(|line| line.contains(&set));
    let what = match starts {
        true => CONTROL,
        false if sets() => PIPE_DIRECTORY,
        false => return None,
    };
    let then = match record.exclusive {
        true => "programs of a daemon that the script starts fail with error 805 or 46",
        false => {
            "programs of a daemon that the script starts run outside the job's MPS and its limits"
        }
    };
    Some(format!(
        "its script names {what}, and the job has the MPS that it asked for: {then}; remove these lines from the script, or \
         submit it without asking"
    ))
}

fn launcher(lines: &[&str], record: &Record) -> Option<String> {
    let is_bound = record.bind.is_some_and(Bind::is_for_all);
    let several = record.gpus.len() > 1;
    let what = match () {
        () if record.rank_threads.len() > 1 || record.rank_memory.len() > 1 => {
            "the limits by local rank"
        }
        () if record.per_gpu && several => "MPS=per-gpu",
        () if is_bound && several => "MPS_BIND",
        () => return None,
    };
    let mut lines = lines.iter().filter(|line| !line.contains("mpsctl exec"));
    let launcher = lines.find_map(|line| launched_by(line))?;
    Some(format!(
        "its script names {launcher}: {what} would be that of the first rank for all of its ranks; allowed: \
         '{launcher} -n N mpsctl exec -- PROGRAM', or Slurm's srun"
    ))
}

fn launched_by(line: &str) -> Option<&str> {
    words(line).find(|word| LAUNCHERS.contains(&word.rsplit('/').next().unwrap_or(word)))
}

fn numbers(lines: &[&str], record: &Record) -> Option<String> {
    let mut numbered = (0..).zip(&record.gpus);
    let is_same = numbered.all(|(number, gpu)| gpu.index == number);
    let written = |line: &&str| {
        let (_, value) = line.split_once(&format!("{VISIBLE_DEVICES}="))?;
        let value = value.trim_start_matches(['"', '\'']);
        let by_number = value.starts_with(|c: char| c.is_ascii_digit() && c != '0');
        (by_number || NUMBERS.iter().any(|name| value.contains(name))).then_some(())
    };
    lines.iter().find_map(written).filter(|()| !is_same)?;
    let last = record.gpus.len().saturating_sub(1);
    Some(format!(
        "its script writes numbers into {VISIBLE_DEVICES}: under the job's MPS its GPUs are 0 to {last}, and CUDA drops a list from the \
         first other number on, without an error; leave the variable as the job sets it"
    ))
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| c.is_whitespace() || ";|&()`\"'$={}".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::record;

    #[test]
    fn a_script_that_goes_with_the_jobs_mps_is_told_nothing() {
        let mut by_rank = record(&[0, 1]);
        by_rank.rank_threads = ["20", "40"].map(|p| p.parse().unwrap()).to_vec();
        for script in [
            "#!/bin/sh\nsrun ./prog\n",
            "# nvidia-cuda-mps-control -d\n  # mpirun ./prog\nsrun ./prog\n",
            "mpirun -n 4 mpsctl exec -- ./prog\n",
            "echo mpirunner; CUDA_VISIBLE_DEVICES=0 srun ./prog\n",
            "export CUDA_VISIBLE_DEVICES=$SLURM_JOB_GPUS\nsrun ./prog\n",
        ] {
            assert_eq!(advice(script, &by_rank), Vec::<String>::new(), "{script}");
        }
        // mpirun's ranks have the whole job's limits anyway.
        assert!(advice("mpirun ./prog\n", &record(&[0, 1])).is_empty());
        let mut one = record(&[0]);
        one.per_gpu = true;
        assert!(advice("mpirun ./prog\n", &one).is_empty());
    }

    #[test]
    fn what_does_not_go_with_it_is_told_once_with_the_remedy() {
        let told = |script: &str, change: fn(&mut Record)| {
            let mut record = record(&[1, 2]);
            change(&mut record);
            let lines = advice(script, &record);
            assert_eq!(lines.len(), 1, "{script}: {lines:?}");
            lines[0].clone()
        };
        let own = "export CUDA_MPS_PIPE_DIRECTORY=/tmp/p\nnvidia-cuda-mps-control -d\n./prog &\n";
        assert!(told(own, |record| record.exclusive = true).contains("error 805 or 46"));
        let plain = |script: &str| told(script, |_| {});
        let quit = plain("echo quit | /usr/bin/nvidia-cuda-mps-control\n");
        assert!(quit.contains("outside the job's MPS"), "{quit}");
        let directory = plain("export CUDA_MPS_PIPE_DIRECTORY=/tmp/p\n");
        assert!(directory.contains("names CUDA_MPS_PIPE"), "{directory}");
        let mpi = "(/opt/bin/mpirun -n 4 ./prog)\nmpiexec -n 2 mpsctl exec -- ./prog\n";
        let ranked: fn(&mut Record) = |of| of.rank_threads = vec!["20".parse().unwrap(); 2];
        let limited: fn(&mut Record) = |of| of.rank_memory = vec![vec![]; 2];
        for (change, words) in [
            (ranked, "limits by local rank"),
            (limited, "limits by local rank"),
            (|record| record.per_gpu = true, "MPS=per-gpu"),
            (|record| record.bind = "block".parse().ok(), "MPS_BIND"),
        ] {
            let line = told(mpi, change);
            let remedy = "-n N mpsctl exec -- PROGRAM";
            assert!(line.contains(words) && line.contains(remedy), "{line}");
        }
        for value in ["$SLURM_JOB_GPUS", "\"1,2\"", "2 ./prog"] {
            let line = plain(&format!("export CUDA_VISIBLE_DEVICES={value}\n"));
            assert!(line.contains("its GPUs are 0 to 1"), "{line}");
        }
    }
}

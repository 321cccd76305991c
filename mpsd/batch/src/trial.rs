//! A user's small job, which `mpsctl selftest` submits with the scheduler's own commands from the
//! user's `PATH`.

use std::path::Path;

/// The memory limit that the job asks for. MiB.
pub const MEMORY_MIB: u64 = 1024;
/// What it runs: the probe, which tries to allocate twice its limit.
const PROBE: [&str; 2] = ["--json", "--alloc=2048"];

/// The job of a trial: it asks for half of the threads and [`MEMORY_MIB`].
#[derive(Debug, Clone, Copy)]
pub struct TrialJob<'a> {
    /// A name that no other job has, of 15 bytes at most: an older PBS allows no more.
    pub name: &'a str,
    /// The user's own words for the submitting command.
    pub own: &'a [String],
    pub programs: &'a Path,
    /// The file for its output, if the submitting command does not pass the output on.
    pub output: &'a str,
}

impl TrialJob<'_> {
    pub fn probe(&self) -> Vec<String> {
        let program = self.programs.join("mps-probe").display().to_string();
        [&[program], &PROBE.map(str::to_owned)[..]].concat()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandLine {
    /// The program, in the user's `PATH`.
    pub program: &'static str,
    pub arguments: Vec<String>,
    pub input: String,
}

impl CommandLine {
    pub fn new(program: &'static str, arguments: &[&str]) -> Self {
        Self {
            program,
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            input: String::new(),
        }
    }
}

#[derive(Debug)]
pub struct Trial {
    pub submits: &'static str,
    /// Whether this is the answer of that command to `--version`.
    pub is_its: fn(&str) -> bool,
    /// The request, as the user writes it.
    pub request: &'static str,
    pub submit: fn(&TrialJob<'_>) -> CommandLine,
    /// Asks for the job of this id; `None`: the submitting command waits for the job's end.
    pub ask: Option<fn(&str) -> CommandLine>,
    /// Whether such an answer says that the job is over.
    pub is_over: fn(&str) -> bool,
    /// Says what the job waits for: by its id if that is known, else by its name.
    pub why: fn(&str, Option<&str>) -> CommandLine,
    /// Lists the ids of the jobs of this name, a line each; `None`: a job is ended by its name.
    pub named: Option<fn(&str) -> CommandLine>,
    /// Ends the job, or takes it out of the queue.
    pub cancel: fn(&str, Option<&str>) -> CommandLine,
    /// What an administrator does about a job that failed with this message. An empty message: the
    /// job ran without MPS.
    pub remedy: fn(&str) -> &'static str,
}

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
        CommandLine::new(
            "squeue",
            &["--noheader", &name, "--format=job %i is %T: %r"],
        )
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

/// The line of what the submitting command said by which it did not reach its scheduler. `said`:
/// its lines, joined by "; ".
pub fn unreached(said: &str) -> Option<&str> {
    const WORDS: [&str; 3] = [
        "Munge encode failed",
        "Unable to contact slurm controller",
        "cannot connect to server",
    ];
    let mut lines = said.split("; ");
    lines.find(|line| WORDS.iter().any(|words| line.contains(words)))
}

const QSUB_REQUEST: &str = "MPS=true,MPS_THREADS=50,MPS_MEM=1G";

pub static QSUB_OF_TORQUE: Trial = Trial {
    is_its: |version| !version.contains("pbs_version"),
    submit: |job| qsub(job, &["-l", "nodes=1:gpus=1"]),
    ..QSUB_OF_OPENPBS
};

pub const QSUB_OF_OPENPBS: Trial = Trial {
    submits: "qsub",
    is_its: |version| version.contains("pbs_version"),
    request: "-A MPS=true,MPS_THREADS=50,MPS_MEM=1G",
    submit: |job| qsub(job, &["-l", "select=1:ngpus=1", "-l", "place=exclhost"]),
    ask: Some(|id| CommandLine::new("qstat", &["-f", id])),
    is_over,
    why: |_, id| CommandLine::new("qstat", &["-s", id.unwrap_or_default()]),
    named: Some(|name| CommandLine::new("qselect", &["-N", name])),
    cancel: |_, id| CommandLine::new("qdel", &[id.unwrap_or_default()]),
    remedy: |said| match said {
        "" => "'mpsctl doctor' as root on the node says what is in the way",
        _ => {
            "'mpsctl doctor' as root on the node says what is in the way; words of your site for qsub, as a queue, go behind '--'"
        }
    },
};

/// `place`: the words that ask for one GPU.
fn qsub(job: &TrialJob<'_>, place: &[&str]) -> CommandLine {
    let (account, own) = account(job.own);
    let accounts: Vec<&str> = account
        .as_deref()
        .into_iter()
        .chain([QSUB_REQUEST])
        .collect();
    let accounts = accounts.join(",");
    let mut arguments = vec![
        "-N", job.name, "-j", "oe", "-o", job.output, "-S", "/bin/sh",
    ];
    arguments.extend(["-l", "walltime=00:05:00", "-A", &accounts]);
    // A second place is an error, or is added to the first.
    let is_place = |word: &&String| word.contains("select=") || word.contains("nodes=");
    if !own.iter().any(is_place) {
        arguments.extend(place);
    }
    arguments.extend(own.iter().map(|word| word.as_str()));
    let probe: Vec<String> = job.probe().iter().map(|word| quoted(word)).collect();
    let mpsctl = quoted(&job.programs.join("mpsctl").display().to_string());
    CommandLine {
        // This attaches the probe even without a job starter.
        input: format!("exec {mpsctl} exec -- {}\n", probe.join(" ")),
        ..CommandLine::new("qsub", &arguments)
    }
}

/// qstat shows a job for a while as completed or finished, and then not at all.
fn is_over(answer: &str) -> bool {
    let ended = ["job_state = C", "job_state = F"];
    let unknown = ["Unknown Job", "has finished"];
    answer.lines().any(|line| ended.contains(&line.trim()))
        || unknown.iter().any(|words| answer.contains(words))
}

/// The user's own account, which our request follows in one word, and the rest of the words.
fn account(own: &[String]) -> (Option<String>, Vec<&String>) {
    let (mut account, mut left) = (None, Vec::new());
    let mut words = own.iter();
    while let Some(word) = words.next() {
        match word.strip_prefix("-A") {
            Some("") => account = words.next().cloned(),
            Some(name) => account = Some(name.to_owned()),
            None => left.push(word),
        }
    }
    (account, left)
}

pub fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_account_and_the_request_are_one_word_and_the_job_attaches_the_probe() {
        let before = "-N mpsd-selftest -j oe -o /home/u/out -S /bin/sh -l walltime=00:05:00";
        for (own, account, after) in [
            (&[][..], "", "-l nodes=1:gpus=1"),
            (
                &["-A", "proj", "-q", "gpu"],
                "proj,",
                "-l nodes=1:gpus=1 -q gpu",
            ),
            (
                &["-Aproj", "-l", "nodes=1:gpus=2"],
                "proj,",
                "-l nodes=1:gpus=2",
            ),
        ] {
            let own: Vec<String> = own.iter().map(|word| (*word).to_owned()).collect();
            let typed = (QSUB_OF_TORQUE.submit)(&TrialJob {
                name: "mpsd-selftest",
                own: &own,
                programs: "/opt/it's".as_ref(),
                output: "/home/u/out",
            });
            let expected = format!("{before} -A {account}{QSUB_REQUEST} {after}");
            assert_eq!(typed.arguments.join(" "), expected);
            let dir = r"/opt/it'\''s";
            let input =
                format!("exec '{dir}/mpsctl' exec -- '{dir}/mps-probe' '--json' '--alloc=2048'\n");
            assert_eq!(typed.input, input);
        }
    }

    #[test]
    fn a_command_that_did_not_reach_its_scheduler_is_known_by_one_line() {
        // Slurm 22.05.8.
        let munge = "srun: error: If munged is up, restart with --num-threads=10; srun: error: Munge encode failed: Failed to access \
                     \"/run/munge/munge.socket.2\": No such file or directory (Did you start munged?); srun: error: \
                     slurm_send_node_msg: auth_g_create: REQUEST_RESOURCE_ALLOCATION has authentication error";
        let line = unreached(munge).unwrap();
        assert!(
            line.starts_with("srun: error: Munge encode failed: Failed to access"),
            "{line}"
        );
        assert!(line.ends_with("(Did you start munged?)"), "{line}");
        let down = "srun: error: Unable to allocate resources: Unable to contact slurm controller (connect failure)";
        assert_eq!(unreached(down), Some(down));
        let pbs = "qsub: cannot connect to server s (errno=15010)";
        assert_eq!(unreached(&format!("Connection refused; {pbs}")), Some(pbs));
        assert_eq!(
            unreached("srun: error: Invalid partition name specified"),
            None
        );
    }

    #[test]
    fn a_job_is_over_if_qstat_says_so_or_does_not_know_it() {
        for (answer, over) in [
            ("Job Id: 1.s\n    job_state = C\n", true),
            ("Job Id: 1.s\n    job_state = F\n", true),
            ("Job Id: 1.s\n    job_state = E\n", false),
            ("Job Id: 1.s\n    job_state = R\n", false),
            ("qstat: Unknown Job Id 1.s\n", true),
            (
                "qstat: 1.s Job has finished, use -x or -H to see it\n",
                true,
            ),
            ("qstat: cannot connect to server s (errno=15010)\n", false),
        ] {
            assert_eq!(is_over(answer), over, "{answer}");
        }
    }
}

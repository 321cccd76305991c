//! The job of `mpsctl selftest` on Torque and OpenPBS.

use crate::trial::{CommandLine, Trial, TrialJob};

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

fn qsub(job: &TrialJob<'_>, place: &[&str]) -> CommandLine {
    let (account, own) = account(job.own);
    let account = account.map_or(String::new(), |own| own + ",") + QSUB_REQUEST;
    let mut arguments = vec![
        "-N", job.name, "-j", "oe", "-o", job.output, "-S", "/bin/sh",
    ];
    arguments.extend(["-l", "walltime=00:05:00", "-A", &account]);
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
    let is_end = |line: &str| matches!(line.trim(), "job_state = C" | "job_state = F");
    let is_unknown = answer.contains("Unknown Job") || answer.contains("has finished");
    is_unknown || answer.lines().any(is_end)
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
            ("", "", "-l nodes=1:gpus=1"),
            ("-A proj -q gpu", "proj,", "-l nodes=1:gpus=1 -q gpu"),
            ("-Aproj -l nodes=1:gpus=2", "proj,", "-l nodes=1:gpus=2"),
        ] {
            let own: Vec<String> = own.split_whitespace().map(str::to_owned).collect();
            let typed = (QSUB_OF_TORQUE.submit)(&TrialJob {
                name: "mpsd-selftest",
                own: &own,
                programs: "/opt/it's".as_ref(),
                output: "/home/u/out",
            });
            let expected = format!("{before} -A {account}{QSUB_REQUEST} {after}");
            assert_eq!(typed.arguments.join(" "), expected);
            let dir = r"/opt/it'\''s";
            let probe = format!("'{dir}/mps-probe' '--json' '--alloc=2048'\n");
            assert_eq!(typed.input, format!("exec '{dir}/mpsctl' exec -- {probe}"));
        }
    }

    #[test]
    fn a_job_is_over_if_qstat_says_so_or_does_not_know_it() {
        for (answer, over) in [
            ("Job Id: 1.s\n    job_state = C\n", true),
            ("Job Id: 1.s\n    job_state = F\n", true),
            ("Job Id: 1.s\n    job_state = E\n", false),
            ("qstat: Unknown Job Id 1.s\n", true),
            ("qstat: 1.s Job has finished, use -x or -H\n", true),
            ("qstat: cannot connect to server s (errno=15010)\n", false),
        ] {
            assert_eq!(is_over(answer), over, "{answer}");
        }
    }
}

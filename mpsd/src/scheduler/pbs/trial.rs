//! A user's trial job under a PBS: `qsub`, and `qstat` until it is over.

use crate::scheduler::trial::{CommandLine, Trial, TrialJob, quoted};

/// How a product's `qsub` differs.
pub(crate) struct Qsub {
    /// Whether this is the answer of its `qsub --version`.
    pub(crate) is_its: fn(&str) -> bool,
    /// The words that ask for one GPU.
    pub(crate) place: &'static [&'static str],
}

const REQUEST: &str = "MPS=true,MPS_THREADS=50,MPS_MEM=1G";

impl Trial for Qsub {
    fn submits(&self) -> &'static str {
        "qsub"
    }

    fn is_its(&self, version: &str) -> bool {
        (self.is_its)(version)
    }

    fn request(&self) -> &'static str {
        "-A MPS=true,MPS_THREADS=50,MPS_MEM=1G"
    }

    fn submit(&self, order: &TrialJob<'_>) -> CommandLine {
        let (account, own) = account(order.own);
        let accounts: Vec<&str> = account.as_deref().into_iter().chain([REQUEST]).collect();
        let accounts = accounts.join(",");
        let mut arguments = vec!["-N", order.name, "-j", "oe", "-o", order.output, "-S", "/bin/sh"];
        arguments.extend(["-l", "walltime=00:05:00"]);
        arguments.extend(["-A", &accounts]);
        // A second place is an error, or is added to the first.
        let placed = own
            .iter()
            .any(|word| word.contains("select=") || word.contains("nodes="));
        arguments.extend(self.place.iter().filter(|_| !placed));
        arguments.extend(own.iter().map(|word| word.as_str()));
        let probe: Vec<String> = order.probe().iter().map(|word| quoted(word)).collect();
        let mpsctl = quoted(&order.programs.join("mpsctl").display().to_string());
        CommandLine {
            // This attaches the probe even without a job starter.
            input: format!("exec {mpsctl} exec -- {}\n", probe.join(" ")),
            ..CommandLine::new("qsub", &arguments)
        }
    }

    fn ask(&self, id: &str) -> Option<CommandLine> {
        Some(CommandLine::new("qstat", &["-f", id]))
    }

    /// qstat shows it for a while as completed or finished, and then not at all.
    fn is_over(&self, answer: &str) -> bool {
        let ended = ["job_state = C", "job_state = F"];
        answer.lines().any(|line| ended.contains(&line.trim()))
            || ["Unknown Job", "has finished"]
                .iter()
                .any(|words| answer.contains(words))
    }

    fn why(&self, _: &str, id: Option<&str>) -> CommandLine {
        CommandLine::new("qstat", &["-s", id.unwrap_or_default()])
    }

    fn named(&self, name: &str) -> Option<CommandLine> {
        Some(CommandLine::new("qselect", &["-N", name]))
    }

    fn cancel(&self, _: &str, id: Option<&str>) -> CommandLine {
        CommandLine::new("qdel", &[id.unwrap_or_default()])
    }

    fn remedy(&self, _: &str) -> &'static str {
        "'mpsctl pbs check' as root on the node says what is in the way; words of your site for qsub, as a queue, go behind '--'"
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    const QSUB: Qsub = Qsub {
        is_its: |_| true,
        place: &["-l", "nodes=1:gpus=1"],
    };

    #[test]
    fn the_users_account_and_the_request_are_one_word_and_the_job_attaches_the_probe() {
        let before = "-N mpsd-selftest -j oe -o /home/u/out -S /bin/sh -l walltime=00:05:00";
        for (own, account, after) in [
            (&[][..], "", "-l nodes=1:gpus=1"),
            (&["-A", "proj", "-q", "gpu"], "proj,", "-l nodes=1:gpus=1 -q gpu"),
            (&["-Aproj", "-l", "nodes=1:gpus=2"], "proj,", "-l nodes=1:gpus=2"),
        ] {
            let own: Vec<String> = own.iter().map(|word| (*word).to_owned()).collect();
            let typed = QSUB.submit(&TrialJob {
                name: "mpsd-selftest",
                own: &own,
                programs: "/opt/it's".as_ref(),
                output: "/home/u/out",
            });
            let expected = format!("{before} -A {account}{REQUEST} {after}");
            assert_eq!(typed.arguments.join(" "), expected);
            let dir = r"/opt/it'\''s";
            let input = format!("exec '{dir}/mpsctl' exec -- '{dir}/mps-probe' '--json' '--alloc=2048'\n");
            assert_eq!(typed.input, input);
        }
    }

    #[test]
    fn a_job_is_over_if_qstat_says_so_or_does_not_know_it() {
        for (answer, over) in [
            ("Job Id: 1.s\n    job_state = C\n", true),
            ("Job Id: 1.s\n    job_state = F\n", true),
            ("Job Id: 1.s\n    job_state = E\n", false),
            ("Job Id: 1.s\n    job_state = R\n", false),
            ("qstat: Unknown Job Id 1.s\n", true),
            ("qstat: 1.s Job has finished, use -x or -H to see it\n", true),
            ("qstat: cannot connect to server s (errno=15010)\n", false),
        ] {
            assert_eq!(QSUB.is_over(answer), over, "{answer}");
        }
    }
}

//! A user's trial job under a PBS: `qsub`, and `qstat` until it is over.

use crate::scheduler::trial::{CommandLine, Trial, TrialJob, quoted};

/// A PBS's.
pub(crate) struct Qsub {
    /// Whether its `qsub --version` says so.
    pub(crate) is_its: fn(&str) -> bool,
    /// The words that ask for one GPU.
    pub(crate) place: &'static [&'static str],
}

/// What is asked for.
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
        // A second one of theirs is an error, or is added to the first.
        let placed = own
            .iter()
            .any(|word| word.contains("select=") || word.contains("nodes="));
        arguments.extend(self.place.iter().filter(|_| !placed));
        arguments.extend(own.iter().map(|word| word.as_str()));
        let probe: Vec<String> = order.probe().iter().map(|word| quoted(word)).collect();
        let mpsctl = quoted(&order.programs.join("mpsctl").display().to_string());
        CommandLine {
            // The probe is attached even where no job starter is set up.
            input: format!("exec {mpsctl} exec -- {}\n", probe.join(" ")),
            ..CommandLine::new("qsub", &arguments)
        }
    }

    fn ask(&self, id: &str) -> Option<CommandLine> {
        Some(CommandLine::new("qstat", &["-f", id]))
    }

    /// It is told for a while as completed or finished, and then not at all.
    fn is_over(&self, answer: &str) -> bool {
        let gone = ["Unknown Job", "has finished"];
        let state = answer
            .lines()
            .find_map(|line| line.trim().strip_prefix("job_state = "));
        state.is_some_and(|state| ["C", "F"].contains(&state))
            || gone.iter().any(|word| answer.contains(word))
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

/// The user's own account, which stands in one word with our request, and what is left of the words.
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

    fn typed(own: &[&str]) -> CommandLine {
        let own: Vec<String> = own.iter().map(|word| (*word).to_owned()).collect();
        QSUB.submit(&TrialJob {
            name: "mpsd-selftest",
            own: &own,
            programs: "/opt/it's".as_ref(),
            output: "/home/u/out",
        })
    }

    #[test]
    fn the_users_account_and_the_request_are_one_word() {
        let before = "-N mpsd-selftest -j oe -o /home/u/out -S /bin/sh -l walltime=00:05:00";
        for (own, after) in [
            (&[][..], "-A MPS=true,MPS_THREADS=50,MPS_MEM=1G -l nodes=1:gpus=1"),
            (
                &["-A", "proj", "-q", "gpu"],
                "-A proj,MPS=true,MPS_THREADS=50,MPS_MEM=1G -l nodes=1:gpus=1 -q gpu",
            ),
            (
                &["-Aproj", "-l", "nodes=1:gpus=2"],
                "-A proj,MPS=true,MPS_THREADS=50,MPS_MEM=1G -l nodes=1:gpus=2",
            ),
        ] {
            assert_eq!(typed(own).arguments.join(" "), format!("{before} {after}"));
        }
    }

    #[test]
    fn the_job_attaches_the_probe_and_quotes_its_words() {
        let dir = r"/opt/it'\''s";
        assert_eq!(
            typed(&[]).input,
            format!("exec '{dir}/mpsctl' exec -- '{dir}/mps-probe' '--json' '--alloc=2048'\n")
        );
    }

    #[test]
    fn a_job_is_over_when_it_is_told_so_or_not_known_any_more() {
        for (answer, over) in [
            ("Job Id: 1.s\n    job_state = C\n", true),
            ("Job Id: 1.s\n    job_state = F\n", true),
            ("Job Id: 1.s\n    job_state = E\n", false),
            ("Job Id: 1.s\n    job_state = R\n", false),
            ("qstat: Unknown Job Id 1.s\n", true),
            (
                "qstat: 1.s Job has finished, use -x or -H to obtain historical job information\n",
                true,
            ),
            ("qstat: cannot connect to server s (errno=15010)\n", false),
        ] {
            assert_eq!(QSUB.is_over(answer), over, "{answer}");
        }
    }
}

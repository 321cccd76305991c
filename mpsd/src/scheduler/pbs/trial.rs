//! A user's trial job under a PBS: `qsub`, and `qstat` until it is over.

use crate::scheduler::trial::{Order, Trial, Typed, quoted};

/// A PBS's.
pub(crate) struct Qsub {
    /// Whether its `qsub --version` says so.
    pub(crate) is_its: fn(&str) -> bool,
    /// The job's node and GPU, on any node, or on this one.
    pub(crate) place: fn(Option<&str>) -> Vec<String>,
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

    fn submit(&self, order: &Order<'_>) -> Typed {
        let (account, own) = account(order.own);
        let request = order.mps.then_some(REQUEST).into_iter();
        let accounts: Vec<&str> = account.as_deref().into_iter().chain(request).collect();
        let accounts = accounts.join(",");
        let mut arguments = vec!["-N", order.name, "-j", "oe", "-o", order.output, "-S", "/bin/sh"];
        arguments.extend(["-l", "walltime=00:05:00"]);
        if !accounts.is_empty() {
            arguments.extend(["-A", &accounts]);
        }
        // A second one of theirs is an error, or is added to the first.
        let placed = own
            .iter()
            .any(|word| word.contains("select=") || word.contains("nodes="));
        let place = (self.place)(order.node);
        arguments.extend(place.iter().filter(|_| !placed).map(String::as_str));
        arguments.extend(own.iter().map(|word| word.as_str()));
        let words: Vec<String> = order.program.iter().map(|word| quoted(word)).collect();
        let program = words.join(" ");
        // A job with MPS is attached whatever started its shell; mpsctl is the first of the words.
        let attach = words.first().filter(|_| order.mps);
        let attach = attach.map_or_else(String::new, |mpsctl| format!("{mpsctl} exec -- "));
        Typed {
            input: format!("exec {attach}{program}\n"),
            ..Typed::new("qsub", &arguments)
        }
    }

    fn ask(&self, id: &str) -> Option<Typed> {
        Some(Typed::new("qstat", &["-f", id]))
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

    fn why(&self, _: &str, id: Option<&str>) -> Typed {
        Typed::new("qstat", &["-s", id.unwrap_or_default()])
    }

    fn named(&self, name: &str) -> Option<Typed> {
        Some(Typed::new("qselect", &["-N", name]))
    }

    fn cancel(&self, _: &str, id: Option<&str>) -> Typed {
        Typed::new("qdel", &[id.unwrap_or_default()])
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
mod tests;

//! The line of advice at the end of a job's report. The first rule that applies gives it;
//! docs/report.md has the same table.
//!
//! A rule reads what was measured. If the figure that it needs is absent, it does not apply.

use super::observations::{GpuObservations, Observations};
use super::record::{Daemon, RecordGpu, memory_limit};
use super::text::{count, one_line};
use super::usage::GpuUsage;
use serde::{Deserialize, Serialize};

/// A client or a GPU with this percentage of its memory in use has little room.
const NEARLY_FULL: u64 = 90;
/// A GPU that is used less has room for more clients. Percent.
const LITTLE_USED: u8 = 30;
/// More clients are advised up to this percentage of the GPU, and this many times the clients.
const AIM: u64 = 70;
const MOST_TIMES: u64 = 3;
/// If the clients' thread shares add up to less, a part of the GPU stays unused. Percent.
const THREADS_LEFT: u64 = 75;
/// Kernels that wait for memory reach about this much of its bandwidth. Percent.
const BANDWIDTH_BOUND: u8 = 70;
const LONGEST: usize = 200;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    pub rule: String,
    pub text: String,
}

/// What the rules read of a job with an MPS of its own.
#[derive(Debug)]
pub struct Facts<'a> {
    pub gpus: &'a [RecordGpu],
    pub daemons: &'a [Daemon],
    /// Other jobs may use its GPUs.
    pub takes_turns: bool,
    pub seen: &'a Observations,
}

#[derive(Debug)]
pub struct Rule {
    pub name: &'static str,
    pub when: &'static str,
    pub why: &'static str,
    advise: fn(&Facts<'_>) -> Option<String>,
}

/// The rules in their order: what fails comes before what is slow.
pub const RULES: [Rule; 7] = [
    Rule {
        name: "no-client",
        when: "no CUDA program used the job's MPS",
        why: "MPS was started in vain, or the program ran outside of it",
        advise: no_client,
    },
    Rule {
        name: "memory",
        when: "a client held 90 % of its memory limit or more or got no context under it, or all clients held 90 % of a GPU's memory",
        why: "a little more input ends in 'out of memory'",
        advise: memory,
    },
    Rule {
        name: "takes-turns",
        when: "`--mps=own` on a GPU that the scheduler gives to several jobs",
        why: "two MPS servers on a GPU take turns, so that none gains what one server for both would",
        advise: takes_turns,
    },
    Rule {
        name: "one-client",
        when: "never more than one client at once on any GPU",
        why: "MPS lets processes share a GPU: it brings nothing to one",
        advise: one_client,
    },
    Rule {
        name: "threads",
        when: "the thread percentages of all clients at once are together 75 % or less",
        why: "a client never gets more than its percentage, so the rest of the GPU was out of reach",
        advise: threads,
    },
    Rule {
        name: "bandwidth",
        when: "two or more clients, and they used 70 % or more of the memory's bandwidth",
        why: "clients that wait for memory slow each other down: more of them do no more work",
        advise: bandwidth,
    },
    Rule {
        name: "room",
        when: "less than 30 % of a GPU was used: of its multiprocessors, or where the driver does not count these, of the time",
        why: "more clients at once use what is idle. The line names as many as would together use 70 % of the GPU and 90 % of its \
              memory, and at most three times as many",
        advise: room,
    },
];

pub fn of(facts: &Facts<'_>) -> Option<Advice> {
    RULES.iter().find_map(|rule| {
        let text = (rule.advise)(facts)?;
        let (rule, text) = (rule.name.to_owned(), one_line(&text, LONGEST));
        Some(Advice { rule, text })
    })
}

struct OfGpu<'a> {
    gpu: &'a RecordGpu,
    clients: Option<&'a GpuObservations>,
    usage: Option<&'a GpuUsage>,
    /// `on GPU 1`; empty for the only one.
    place: String,
}

impl<'a> Facts<'a> {
    fn gpus(&self) -> impl Iterator<Item = OfGpu<'a>> + use<'a> {
        let (seen, gpus) = (self.seen, self.gpus);
        gpus.iter().map(move |gpu| OfGpu {
            gpu,
            clients: seen.gpus.iter().find(|known| known.uuid == gpu.uuid),
            usage: seen.usage.as_ref().and_then(|usage| usage.of(&gpu.uuid)),
            place: match gpus.len() {
                1 => String::new(),
                _ => format!(" on GPU {}", gpu.index),
            },
        })
    }

    /// The most clients that were at once on a GPU; `None`: not known for one of several GPUs.
    fn at_once(&self, of: &OfGpu<'_>) -> Option<u64> {
        match self.gpus.len() {
            1 => Some(self.seen.most_clients),
            _ => of.clients.map(|clients| clients.most_clients),
        }
    }
}

fn no_client(facts: &Facts<'_>) -> Option<String> {
    let why = "no CUDA program used this job's MPS: leave --mps out, or see how it was started ('mpsctl status' in the job)";
    facts.seen.had_none().then(|| why.to_owned())
}

fn memory(facts: &Facts<'_>) -> Option<String> {
    // A server that is full refuses a client beside others.
    let no_context = facts.seen.refused.iter().any(|refused| refused.beside == 0);
    let gpus = facts.gpus.iter();
    let limits = gpus.filter_map(|gpu| memory_limit(facts.daemons, &gpu.uuid));
    if let Some(limit) = limits.min().filter(|_| no_context) {
        return Some(format!(
            "a client got no context under its limit of {limit} MiB, of which the context is a part: ask for more (--mps-mem)"
        ));
    }
    let is_full =
        |held: u64, of: u64| held.saturating_mul(100) >= of.saturating_mul(NEARLY_FULL) && of > 0;
    facts.gpus().find_map(|of| {
        let seen = of.clients?;
        let (one, all) = (seen.most_client_mib, seen.most_memory_mib);
        let place = &of.place;
        let limit = memory_limit(facts.daemons, &of.gpu.uuid);
        if let Some(limit) = limit.filter(|limit| is_full(one, *limit)) {
            return Some(format!(
                "a client held {one} of the {limit} MiB that it may{place}: ask for more (--mps-mem), or have fewer tasks at once"
            ));
        }
        let whole = of.usage?.memory_mib.filter(|whole| is_full(all, *whole))?;
        let clients = count(seen.most_clients, "client");
        Some(format!(
            "{clients} held {all} of {whole} MiB{place}: the GPU is full; have fewer at once, or smaller ones"
        ))
    })
}

fn takes_turns(facts: &Facts<'_>) -> Option<String> {
    let line = "the GPU is shared, and an MPS of the job's own takes turns with the others there: ask for --mps, not --mps=own";
    facts.takes_turns.then(|| line.to_owned())
}

fn one_client(facts: &Facts<'_>) -> Option<String> {
    let at_once = facts.gpus().map(|of| facts.at_once(&of).unwrap_or(0));
    let most = at_once.max()?;
    if most != 1 {
        return None;
    }
    let all = count(facts.seen.clients, "client");
    let used = facts.gpus().find_map(|of| of.usage?.used_percent());
    let used = used.map(|percent| format!(", and used {percent} % of it"));
    let used = used.unwrap_or_default();
    let who = match facts.seen.clients {
        1 => "one client on a GPU".to_owned(),
        _ => format!("{all}, one at a time on a GPU"),
    };
    Some(format!(
        "{who}{used}: MPS brings it nothing; run more at once (mpsctl sweep finds how many), or leave --mps out"
    ))
}

fn threads(facts: &Facts<'_>) -> Option<String> {
    let mut limits = facts.daemons.iter().map(|daemon| daemon.threads);
    let each = limits.next()??;
    if limits.any(|other| other != Some(each)) {
        return None;
    }
    facts.gpus().find_map(|of| {
        let clients = facts.at_once(&of).filter(|clients| *clients > 0)?;
        let sum = clients.saturating_mul(each.tenths().into()) / 10;
        let (who, place) = (count(clients, "client"), &of.place);
        (sum <= THREADS_LEFT).then(|| {
            format!(
                "{who} with {each} % of the threads each could use {sum} % of the GPU{place}: try --mps-threads=auto, or more clients"
            )
        })
    })
}

fn bandwidth(facts: &Facts<'_>) -> Option<String> {
    facts.gpus().find_map(|of| {
        let clients = facts.at_once(&of).filter(|clients| *clients > 1)?;
        let percent = of.usage?.bandwidth_percent.filter(|percent| *percent >= BANDWIDTH_BOUND)?;
        let place = &of.place;
        Some(format!(
            "{percent} % of the memory's bandwidth used by {clients} clients{place}: more bring nothing; mpsctl sweep shows if fewer do"
        ))
    })
}

fn room(facts: &Facts<'_>) -> Option<String> {
    facts.gpus().find_map(|of| {
        let clients = facts.at_once(&of).filter(|clients| *clients > 0)?;
        let usage = of.usage?;
        let used = usage.used_percent().filter(|used| *used < LITTLE_USED)?;
        let by_use = clients.saturating_mul(AIM) / u64::from(used.max(1));
        let by_memory = of.clients.zip(usage.memory_mib).map(|(seen, whole)| {
            let each = seen.most_client_mib.max(1);
            whole.saturating_mul(NEARLY_FULL) / 100 / each
        });
        let most = clients.saturating_mul(MOST_TIMES);
        let aim = most.min(by_use).min(by_memory?);
        let (now, place) = (count(clients, "client"), &of.place);
        (aim > clients)
            .then(|| format!("{used} % busy with {now}{place}: try {aim}, or mpsctl sweep"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observations::{DaemonLost, Refused};
    use crate::testing::record_gpu;
    use crate::usage::Usage;

    struct Job {
        gpus: Vec<RecordGpu>,
        daemons: Vec<Daemon>,
        takes_turns: bool,
        seen: Observations,
    }

    fn advise(job: &Job) -> Option<Advice> {
        of(&Facts {
            gpus: &job.gpus,
            daemons: &job.daemons,
            takes_turns: job.takes_turns,
            seen: &job.seen,
        })
    }

    /// A job with 4 clients at once, of 1,000 MiB each, that use 60 % of GPU 0, which has 80,000
    /// MiB; with these changes.
    fn job(changes: &str) -> Job {
        let mut job = Job {
            gpus: vec![record_gpu(0)],
            daemons: vec![Daemon::default()],
            takes_turns: false,
            seen: Observations::default(),
        };
        let uuid = job.gpus[0].uuid.clone();
        let seen = &mut job.seen;
        (seen.clients, seen.most_clients) = (4, 4);
        seen.take_memory(&uuid, &[1000; 4]);
        let mut gpu = GpuUsage {
            memory_mib: Some(80_000),
            busy_percent: Some(95),
            sm_percent: Some(60),
            bandwidth_percent: Some(20),
            ..GpuUsage::new(uuid.clone())
        };
        for (name, value) in changes
            .split(' ')
            .filter_map(|change| change.split_once('='))
        {
            let number: Option<u64> = value.parse().ok();
            let percent = number.map(|number| number as u8);
            match name {
                "clients" => seen.clients = number.unwrap(),
                "at-once" => seen.most_clients = number.unwrap(),
                "each" => seen.gpus[0].most_client_mib = number.unwrap(),
                "held" => seen.gpus[0].most_memory_mib = number.unwrap(),
                "listed" => seen.gpus.clear(),
                "refused" => seen.refused.push(Refused { pid: 1, beside: 0 }),
                "lost" => seen.daemons_lost.push(DaemonLost {
                    pid: 1,
                    how: value.into(),
                }),
                "limit" => job.daemons[0].memory = vec![(uuid.clone(), number.unwrap())],
                "threads" => job.daemons[0].threads = value.parse().ok(),
                "other-threads" => job.daemons.push(Daemon::default()),
                "turns" => job.takes_turns = true,
                "gpu" => gpu.memory_mib = number,
                "busy" => gpu.busy_percent = percent,
                "sm" => gpu.sm_percent = percent,
                "bandwidth" => gpu.bandwidth_percent = percent,
                other => panic!("{other}"),
            }
        }
        seen.usage = Some(Usage {
            gpus: vec![gpu],
            ..Usage::default()
        });
        job
    }

    fn advised(changes: &str) -> Option<(String, String)> {
        advise(&job(changes)).map(|advice| (advice.rule, advice.text))
    }

    /// Changes, the rule and words of its line.
    const CASES: &str = "\
clients=0 at-once=0 > no-client > no CUDA program used this job's MPS
limit=100 clients=0 at-once=0 refused=1 > memory > a client got no context under its limit of 100 MiB
limit=1111 > memory > a client held 1000 of the 1111 MiB that it may
held=72000 > memory > 4 clients held 72000 of 80000 MiB: the GPU is full
turns=yes > takes-turns > takes turns with the others there
clients=1 at-once=1 > one-client > one client on a GPU, and used 60 % of it: MPS brings it nothing
clients=9 at-once=1 > one-client > 9 clients, one at a time on a GPU, and used 60 %
clients=1 at-once=1 sm=- busy=- > one-client > one client on a GPU: MPS brings it nothing
threads=10 > threads > 4 clients with 10 % of the threads each could use 40 % of the GPU
threads=18.9 > threads > 4 clients with 18.9 % of the threads each could use 75 % of the GPU
bandwidth=85 > bandwidth > 85 % of the memory's bandwidth used by 4 clients
bandwidth=70 > bandwidth > 70 %
sm=12 > room > 12 % busy with 4 clients: try 12, or mpsctl sweep
sm=29 > room > 29 % busy with 4 clients: try 9, or
sm=- busy=20 > room > 20 % busy with 4 clients: try 12, or
sm=12 each=10000 > room > 12 % busy with 4 clients: try 7, or";

    #[test]
    fn each_rule_applies_to_what_it_is_for() {
        for case in CASES.lines() {
            let [changes, rule, words] = case.split(" > ").collect::<Vec<_>>()[..] else {
                panic!("{case}")
            };
            let (found, text) = advised(changes).unwrap_or_default();
            assert_eq!(found, rule, "{case}: {text}");
            assert!(text.contains(words), "{case}: {text}");
            assert!(text.len() <= LONGEST && !text.contains('\n'), "{text}");
        }
        for Rule { name, .. } in RULES {
            assert!(CASES.contains(&format!(" > {name} > ")), "{name}");
        }
    }

    #[test]
    fn without_the_figure_there_is_no_advice() {
        for changes in [
            "",
            "sm=- busy=-",
            // Room without the GPU's memory, without the clients', and none in the memory.
            "sm=5 gpu=-",
            "sm=5 listed=no",
            "sm=5 each=17900",
            "sm=30",
            "bandwidth=-",
            "bandwidth=69",
            "limit=1112",
            "held=71999",
            "threads=19",
            // Limits that differ between daemons.
            "threads=10 other-threads=-",
            // A client that got no context is no sign of a job without CUDA.
            "clients=0 at-once=0 refused=1",
            "clients=0 at-once=0 lost=1",
            // Numbers that no job has.
            "clients=18446744073709551615 at-once=18446744073709551615 each=0 held=0 sm=0 gpu=18446744073709551615",
        ] {
            assert_eq!(advised(changes), None, "{changes}");
        }
        let full = "each=18446744073709551615 held=18446744073709551615 gpu=18446744073709551615";
        assert_eq!(advised(full).unwrap().0, "memory");
    }

    #[test]
    fn of_several_gpus_the_one_is_named() {
        let mut job = job("");
        job.gpus.push(record_gpu(1));
        let other = record_gpu(1).uuid;
        let seen = &mut job.seen;
        (seen.clients, seen.most_clients) = (8, 8);
        seen.take_memory(&other, &[1000; 4]);
        // One client waits for no other.
        seen.gpus[0].most_clients = 1;
        let gpus = &mut seen.usage.as_mut().unwrap().gpus;
        gpus[0].bandwidth_percent = Some(85);
        gpus.push(GpuUsage {
            memory_mib: Some(80_000),
            sm_percent: Some(3),
            ..GpuUsage::new(other)
        });
        let expected = "3 % busy with 4 clients on GPU 1: try 12, or mpsctl sweep";
        assert_eq!(advise(&job).unwrap().text, expected);
        job.seen.gpus.clear();
        assert_eq!(advise(&job), None, "it is not known where the clients were");
    }
}

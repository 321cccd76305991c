//! The audit trail: who had MPS on which GPUs with which limits, from when to when.

use std::time::{Duration, Instant};

use tests::node_bed::{NodeBed, fast};
use tests::run::{USER, uid_of};
use tests::scarcity::alone;
use tests::syslog::Syslog;

struct Entry<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Entry<'a> {
    fn parse(text: &'a str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once('='));
        Self(fields.collect())
    }

    #[track_caller]
    fn has(&self, name: &str, value: &str) {
        let Self(all) = self;
        assert!(all.contains(&(name, value)), "{name}={value}: {all:?}");
    }

    #[track_caller]
    fn get(&self, name: &str) -> &'a str {
        let found = self.0.iter().find(|(field, _)| *field == name);
        found.unwrap_or_else(|| panic!("no {name}")).1
    }
}

/// A daemon of many GPUs has many limits. Each appears whole.
#[test]
fn begin_and_end_of_a_jobs_mps_stand_in_the_journal_with_fields() {
    alone(|| {
        let bed = NodeBed::new(fast(80), "deadline_s = 20\n");
        let journal = Syslog::hear_journal(&bed.directory("room"));
        let list: Vec<String> = (0..80).map(|gpu| gpu.to_string()).collect();
        let account = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";
        bed.begin("77.pbs", account, &list.join(","));
        bed.assert_ends_clean("77.pbs", "an audited job");

        let all = journal.lines();
        let [begin, end] = &all[..] else {
            panic!("two entries: {all:?}");
        };
        let (begin, end) = (Entry::parse(begin), Entry::parse(end));
        let uid = uid_of(USER).to_string();
        let programs = [
            (&begin, "begin", "mps-prologue"),
            (&end, "end", "mps-epilogue"),
        ];
        for (entry, event, program) in programs {
            for (name, value) in [
                ("MPSD_EVENT", event),
                ("SYSLOG_IDENTIFIER", program),
                ("PRIORITY", "6"),
                ("MPSD_JOB", "77.pbs"),
                ("MPSD_USER", USER),
                ("MPSD_UID", &uid),
                ("MPSD_SCHEDULER", "torque"),
            ] {
                entry.has(name, value);
            }
            let limits = entry.get("MPSD_LIMITS");
            assert!(limits.starts_with("threads 25 %, memory "), "{limits}");
            for gpu in bed.node.uuids() {
                entry.has("MPSD_GPU", &gpu);
                let limit = format!("memory 4096M of {gpu}");
                assert!(limits.contains(&limit), "{limit}: {limits}");
            }
            let message = entry.get("MESSAGE");
            assert!(message.contains(&format!("user '{USER}'")), "{message}");
        }
        let number = |entry: &Entry, name: &str| entry.get(name).parse::<u64>().expect("a time");
        let began = number(&end, "MPSD_BEGAN");
        assert_eq!(began, number(&begin, "MPSD_BEGAN"));
        assert!(number(&end, "MPSD_ENDED") >= began);
        end.has("MPSD_AS_BEFORE", "yes");

        // A journal that takes no more lines must not delay a job.
        journal.fill();
        let started = Instant::now();
        bed.begin("78.pbs", "MPS=true", "0");
        bed.assert_ends_clean("78.pbs", "a job beside a full journal");
        let took = started.elapsed();
        assert!(took < Duration::from_secs(16), "{took:?}");
        assert!(journal.lines().iter().all(|entry| entry == "x"));
    });
}

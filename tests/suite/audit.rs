//! The audit trail: who had MPS on which GPUs with which limits, from when to when.

use std::fs;
use std::time::{Duration, Instant};

use tests::place::{Place, fast};
use tests::scarcity::alone;
use tests::stage::USER;
use tests::syslog::Syslog;

/// The fields of one entry in the journal's own form.
fn fields(entry: &str) -> Vec<(&str, &str)> {
    entry.lines().filter_map(|line| line.split_once('=')).collect()
}

#[track_caller]
fn has(entry: &[(&str, &str)], name: &str, value: &str) {
    assert!(entry.contains(&(name, value)), "{name}={value}: {entry:?}");
}

/// A daemon of very many GPUs has very many limits: each is there to the end of its name.
#[test]
fn no_limit_is_cut_off() {
    alone(|| {
        let place = Place::new(fast(80), "deadline_s = 20\n");
        let room = place.stage.path("room");
        fs::create_dir(&room).expect("directory");
        let journal = Syslog::hear_journal(&room);
        let list: Vec<String> = (0..80).map(|gpu| gpu.to_string()).collect();
        let ran = place.torque("79.pbs", "MPS=true,MPS_MEM=4G", &list.join(","));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        place.assert_ends_clean("79.pbs", "a job on very many GPUs");
        let all = journal.lines();
        let entry = fields(all.first().expect("an entry"));
        let limits = entry
            .iter()
            .find(|(name, _)| *name == "MPSD_LIMITS")
            .expect("limits")
            .1;
        assert!(limits.len() > 4000, "{} characters", limits.len());
        for gpu in place.stage.node.uuids() {
            assert!(
                limits.contains(&format!("memory 4096M of {gpu}")),
                "{gpu}: {limits}"
            );
        }
    });
}

#[test]
fn begin_and_end_of_a_jobs_mps_stand_in_the_journal_with_fields() {
    alone(|| {
        let place = Place::new(fast(2), "");
        let room = place.stage.path("room");
        fs::create_dir(&room).expect("directory");
        let journal = Syslog::hear_journal(&room);
        let ran = place.torque("77.pbs", "MPS=per-gpu,MPS_THREADS=25,MPS_MEM=4G", "0,1");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        place.assert_ends_clean("77.pbs", "an audited job");

        let all = journal.lines();
        let [begin, end] = &all[..] else {
            panic!("two entries: {all:?}");
        };
        let user = nix::unistd::User::from_name(USER)
            .ok()
            .flatten()
            .expect("the user");
        let uid = user.uid.to_string();
        let (begin, end) = (fields(begin), fields(end));
        for (entry, event, program) in [(&begin, "begin", "mps-prologue"), (&end, "end", "mps-epilogue")] {
            has(entry, "MPSD_EVENT", event);
            has(entry, "SYSLOG_IDENTIFIER", program);
            has(entry, "PRIORITY", "6");
            has(entry, "MPSD_JOB", "77.pbs");
            has(entry, "MPSD_USER", USER);
            has(entry, "MPSD_UID", &uid);
            has(entry, "MPSD_SCHEDULER", "torque");
            for gpu in place.stage.node.uuids() {
                has(entry, "MPSD_GPU", &gpu.to_string());
            }
            let limits = entry.iter().find(|(name, _)| *name == "MPSD_LIMITS");
            let limits = limits.expect("limits").1;
            assert!(
                limits.starts_with("threads 25 %, memory 4096M of GPU-"),
                "{limits}"
            );
            assert!(
                entry
                    .iter()
                    .any(|(name, text)| *name == "MESSAGE" && text.contains(&format!("user '{USER}'"))),
                "{entry:?}"
            );
        }
        let number = |entry: &[(&str, &str)], of: &str| {
            let found = entry.iter().find(|(name, _)| *name == of);
            found.and_then(|(_, value)| value.parse::<u64>().ok())
        };
        let began = number(&end, "MPSD_BEGAN");
        assert!(
            began.is_some() && began == number(&begin, "MPSD_BEGAN"),
            "{end:?}"
        );
        assert!(number(&end, "MPSD_ENDED") >= began, "{end:?}");
        has(&end, "MPSD_AS_BEFORE", "yes");

        // A journal that takes nothing any more holds nobody up.
        journal.fill();
        let started = Instant::now();
        let ran = place.torque("78.pbs", "MPS=true", "0");
        assert_eq!(ran.code, Some(0), "{ran:?}");
        place.assert_ends_clean("78.pbs", "a job beside a full journal");
        assert!(
            started.elapsed() < Duration::from_secs(16),
            "{:?}",
            started.elapsed()
        );
        assert!(journal.lines().iter().all(|entry| entry == "x"));
    });
}

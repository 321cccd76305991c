use super::*;
use crate::daemon::dialogue::InForce;
use crate::sys::process::ProcessId;
use mpsd_core::GpuUuid;

const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";

fn limit(limit: &str, asked: Option<&str>, said: &str) -> InForce {
    InForce {
        limit: limit.to_owned(),
        asked: asked.map(str::to_owned),
        set: None,
        said: Some(said.to_owned()),
        holds: asked.is_none_or(|asked| asked == said),
    }
}

fn seen() -> Seen {
    let memory = format!("memory limit 1024M of {GPU}");
    Seen {
        job: "42".to_owned(),
        node: "gpu001".to_owned(),
        multiprocessors: Some(66),
        limits: vec![
            limit("active thread percentage", Some("50.0"), "50.0"),
            limit(&memory, Some("1024M"), "1024M"),
        ],
        gpus: vec![GpuUuid::parse(GPU).unwrap()],
        processes: vec![ProcessId {
            pid: 7,
            start_time: 1,
        }],
        ..Seen::default()
    }
}

fn after() -> After {
    After {
        node: "gpu001".to_owned(),
        directory: Ok(false),
        processes: Vec::new(),
        modes: vec![(GpuUuid::parse(GPU).unwrap(), Ok(ComputeMode::Default))],
    }
}

fn words(found: &[Finding]) -> Vec<&str> {
    found.iter().map(Finding::status).collect()
}

#[test]
fn a_healthy_job_is_ok_in_each_line() {
    assert_eq!(words(&attached(&seen(), "x")), ["OK", "OK"]);
    assert_eq!(words(&gone(&seen(), &after())), ["OK", "OK"]);
}

#[test]
fn what_is_not_so_fails_and_says_what_to_do() {
    let mut outside = seen();
    outside.outside = Some("mps-probe: the context does not go through MPS".to_owned());
    let found = attached(&outside, "do this");
    assert_eq!(words(&found), ["FAIL", "OK"]);
    assert!(found[0].text().ends_with("MPS: do this"), "{found:?}");
    let mut other = seen();
    other.limits[0] = limit("active thread percentage", Some("50.0"), "100.0");
    let found = attached(&other, "x");
    assert!(
        found[1].is_wrong() && found[1].text().contains("100.0"),
        "{found:?}"
    );
    let mut none = seen();
    none.limits[0] = limit("active thread percentage", None, "100.0");
    assert!(attached(&none, "x")[1].is_wrong(), "asked and not there");
    let mut silent = seen();
    silent.silent = Some("no answer".to_owned());
    assert!(attached(&silent, "x")[1].text().contains("no answer"));
}

#[test]
fn what_is_left_fails_and_what_was_not_seen_is_said() {
    for (after, word) in [
        (
            After {
                directory: Ok(true),
                ..after()
            },
            "FAIL",
        ),
        (
            After {
                processes: seen().processes,
                ..after()
            },
            "FAIL",
        ),
        (
            After {
                directory: Err("no".to_owned()),
                ..after()
            },
            "WARN",
        ),
        (
            After {
                node: "gpu002".to_owned(),
                ..after()
            },
            "WARN",
        ),
    ] {
        assert_eq!(gone(&seen(), &after)[0].status(), word, "{after:?}");
    }
    let gpu = || GpuUuid::parse(GPU).unwrap();
    for mode in [Ok(ComputeMode::ExclusiveProcess), Err("no such GPU".to_owned())] {
        let after = After {
            modes: vec![(gpu(), mode)],
            ..after()
        };
        assert_eq!(words(&gone(&seen(), &after)), ["OK", "WARN"]);
    }
    let unseen = Seen {
        processes: Vec::new(),
        ..seen()
    };
    assert_eq!(words(&gone(&unseen, &after())), ["OK", "WARN", "OK"]);
}

#[test]
fn a_jobs_line_is_found_among_others() {
    let told = serde_json::to_string(&seen()).unwrap();
    let said = format!("a banner\n{MARK}{told}\nbye\n");
    assert_eq!(read::<Seen>(&said), Ok(seen()));
    assert!(matches!(read::<Seen>("a banner"), Err(Stop::Failed(why)) if why.contains("a banner")));
}

#[test]
fn no_two_jobs_have_one_name_wherever_they_come_from() {
    let (one, other) = (job_name(), job_name());
    // A process id is the same on two hosts, and 1 in each container.
    assert_ne!(one, other);
    assert!(one.len() <= 15 && one.starts_with("mpsd-"), "{one}");
}

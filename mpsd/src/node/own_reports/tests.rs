use super::*;

/// A report of job `job` that began at `began`.
fn report(job: &str, began: u64, notes: &[&str]) -> Report {
    let text = format!(
        r#"{{"version":1,"job":"{job}","scheduler":"slurm","node":"n1","user":"alice","uid":1000,"gpus":[],"daemons":[],
        "exclusive":false,"began":{began},"ready_ms":1,"ended":{began},"teardown_ms":1,"as_before":true,"undetermined":[],
        "faults":[],"notes":[],"drain":null,"said_by_user":null}}"#
    );
    let mut report: Report = serde_json::from_str(&text).expect("a report");
    report.notes = notes.iter().map(|note| (*note).to_owned()).collect();
    report
}

#[test]
fn a_job_has_one_file_with_its_steps_and_its_runs() {
    for (job, name) in [
        ("7", "7.json"),
        ("7.3", "7.json"),
        ("7100.srv", "7100.srv.json"),
        ("16[1].vm", "16[1].vm.json"),
    ] {
        assert_eq!(file_name(&JobId::parse(job).unwrap()), name);
    }
    let mut text = joined(b"", &report("7", 10, &[])).unwrap();
    for next in [
        report("7.0", 11, &[]),
        report("7", 20, &[]),
        report("7", 10, &["again"]),
    ] {
        text = joined(text.as_bytes(), &next).unwrap();
    }
    let all = parse(text.as_bytes());
    let named: Vec<_> = all.iter().map(|one| (one.job.as_str(), one.began)).collect();
    assert_eq!(named, [("7.0", 11), ("7", 20), ("7", 10)], "the same run once");
    assert_eq!(all[2].notes, ["again"]);
    assert_eq!(parse(b"{\n\xff\n\n{\"version\":1}\n"), []);
}

#[test]
fn a_file_keeps_the_youngest_and_what_is_too_long_is_not_kept() {
    let mut text = String::new();
    for began in 0..40 {
        text = joined(text.as_bytes(), &report("7", began, &[])).unwrap();
    }
    let all = parse(text.as_bytes());
    assert_eq!(
        (all.len(), all[0].began),
        (MOST_REPORTS, 40 - MOST_REPORTS as u64)
    );
    let long = "x".repeat(MOST_BYTES / 3);
    for began in 50..60 {
        text = joined(text.as_bytes(), &report("7", began, &[&long])).unwrap();
        assert!(text.len() <= MOST_BYTES, "{}", text.len());
    }
    assert_eq!(parse(text.as_bytes()).last().unwrap().began, 59);
    assert!(joined(b"", &report("7", 1, &[&long, &long, &long])).is_err());
}

#[test]
fn a_users_share_is_bounded_by_number_and_age() {
    let top = tempfile::tempdir().unwrap();
    for n in 0..MOST_JOBS + 8 {
        let file = std::fs::File::create(top.path().join(format!("{n:03}.json"))).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1000 + n as u64))
            .unwrap();
    }
    let own = Dir::open(top.path()).unwrap();
    prune(&own, 0).unwrap();
    let mut names = own.names(100).unwrap();
    names.sort();
    assert_eq!((names.len(), names[0].to_str()), (MOST_JOBS, Some("008.json")));
    prune(&own, 1000 + MOST_JOBS as u64 + 7).unwrap();
    assert_eq!(own.names(100).unwrap(), ["039.json"]);
}

//! Job reports: what root records at a job's end, and what in it is the user's word.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::fuse::{FILE, Hung};
use tests::place::{Place, Running, eventually, fast, kill};
use tests::scarcity::{Small, alone};
use tests::stage::{OTHER_USER, Ran, USER, as_user, chmod, finish, prologue_args, uid_of};

const SOON: Duration = Duration::from_secs(5);
/// Times in reports are whole seconds.
const NEXT_SECOND: Duration = Duration::from_millis(1100);

fn with_job(config: &str, job: &str, account: &str) -> Place {
    Place::with_job(fast(1), config, job, account, "0")
}

fn report(place: &Place, args: &[&str]) -> Ran {
    place.mpsctl(&[&["report"], args].concat())
}

fn report_of(place: &Place, user: &str, args: &[&str]) -> Ran {
    place.mpsctl_as(user, &[&["report"], args].concat(), &[])
}

#[track_caller]
fn of(place: &Place, job: &str) -> Value {
    report(place, &[job, "--json"]).ok().json()
}

fn files(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.path("state/reports"));
    let paths = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path());
    paths
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect()
}

/// Waits until the job's own `mpsd` has reported this.
#[track_caller]
fn tells(place: &Place, job: &str, words: &str) {
    let seen = place.job(job).join("observations");
    let told = || fs::read_to_string(&seen).is_ok_and(|text| text.contains(words));
    eventually(format_args!("'{words}' in what mpsd saw"), told);
}

fn mode(path: &Path) -> (u32, u32) {
    let about = fs::metadata(path).expect("it is there");
    (about.uid(), about.mode() & 0o7777)
}

/// A user's process may say "drained", or anything else, in the same words as root.
#[test]
fn the_last_line_of_an_end_is_roots_and_the_hook_of_openpbs_has_no_other() {
    for (job, words) in [("404.srv", 1), ("405.srv", 0)] {
        let mut place = with_job("", job, "MPS=true");
        kill(place.pids("nvidia-cuda-mps-control")[0], Signal::SIGKILL);
        tells(&place, job, "daemons_lost\":[{");
        place.node.change(|node| node.nvml.init_fails = true);
        let end = match words {
            // Torque's epilogue writes into the job's error file.
            1 => place.strict_end(job),
            _ => {
                let hook = [
                    "--scheduler",
                    "openpbs",
                    "--strict",
                    "--",
                    job,
                    USER,
                    "nogroup",
                ];
                place.epilogue(&hook, &[])
            }
        };
        place.node.change(|node| node.nvml.init_fails = false);
        let end = end.exits(2);
        let mut lines: Vec<&str> = end.err.lines().collect();
        let last = *lines.last().expect("a line");
        let said = |line: &&str| line.contains("its mpsd says: ");
        assert_eq!(
            lines.iter().filter(|line| said(line)).count(),
            words,
            "{end:?}"
        );
        let is_roots = last.contains("NVML") || last.contains("drain");
        assert!(is_roots && !said(&last), "root's line: {end:?}");
        lines.sort_unstable();
        let twice = lines.windows(2).any(|two| two[0] == two[1]);
        assert!(!twice, "said once: {end:?}");
        place.take_drains();
        place.end(job);
        report(&place, &[job]).prints("was lost (signal 9)");
    }
}

#[test]
fn reports_are_kept_by_number_and_are_roots_alone() {
    let place = Place::new(fast(1), "[reports]\nkeep = 2\n");
    for job in ["410.srv", "411.srv", "412.srv"] {
        place.begin(job, "MPS=true", "0");
        for file in ["observations", "killed"] {
            assert_eq!(mode(&place.job(job).join(file)), (0, 0o600), "{file}");
        }
        place.assert_ends_clean(job, "a job with a report");
        if job == "410.srv" {
            std::thread::sleep(NEXT_SECOND);
        }
    }
    assert_eq!(files(&place).len(), 2, "{:?}", files(&place));
    // The oldest is removed.
    report(&place, &["410.srv"]).exits(1);
    assert_eq!(mode(&place.path("state/reports")), (0, 0o700));
    for file in files(&place) {
        assert_eq!(mode(&file), (0, 0o600), "{}", file.display());
    }
    // A copy would not be safe on a disk, so there is none, and the user is told.
    let ran = report_of(&place, USER, &["412.srv"]).exits(1);
    ran.complains("job 412.srv: no report for you on this node");
    assert!(!place.path("run/reports").exists());
}

#[test]
fn a_jobs_own_user_reads_its_report_and_nobody_else_finds_or_keeps_anything() {
    alone(|| {
        let (place, job) = (Place::new(fast(1), ""), "415.srv");
        let run = place.path("run");
        let _memory = Small::over(&run, 1024, 0o755);
        place.begin(job, "MPS=true", "0");
        drop(place.attached(job, &["--hold", "30"], &[]));
        tells(&place, job, "\"clients\":1");
        // It still runs, so there is none.
        for own in [report_of(&place, USER, &[job]), report(&place, &[job])] {
            own.exits(1)
                .complains("no report yet: it runs; 'mpsctl status 415.srv'");
        }
        let other = report_of(&place, OTHER_USER, &[job]).exits(1);
        other.complains("no report for you").lacks("it runs");
        place.end(job);

        let own = report_of(&place, USER, &[job]).ok();
        own.prints("1 client, 1 at once");
        assert_eq!(own.out, report(&place, &[job]).out);
        let json = report_of(&place, USER, &[job, "--json"]);
        assert_eq!(json.out, report(&place, &[job, "--json"]).out);
        report_of(&place, OTHER_USER, &[job])
            .exits(1)
            .complains("no report for you");
        report_of(&place, USER, &["414.srv"])
            .exits(1)
            .complains("no report for you");
        // The user may read why the job was refused; root's own reports are only of jobs that had
        // MPS.
        let refused = place
            .torque("416.srv", "MPS=true,MPS_MEM=999T", "0")
            .exits(1);
        let why = refused
            .err
            .trim()
            .rsplit_once("job 416.srv: ")
            .map(|(_, why)| why.to_owned());
        let told = report_of(&place, USER, &["416.srv"]).ok();
        told.prints(format!("job 416.srv of {USER} on "));
        told.prints(format!(": not started: {}\n", why.expect("a reason")));
        report(&place, &["416.srv"]).exits(1);
        report_of(&place, OTHER_USER, &["416.srv"]).exits(1);
        let all = report_of(&place, USER, &[]).exits(1);
        all.complains("allowed: root, or 'mpsctl report JOB'");
        // No user lists, links or changes root's files. A stranger in this user's group reaches
        // nothing.
        let copies = run.join("reports");
        let mine = copies.join(uid_of(USER).to_string());
        let away = place.directory("away");
        chmod(&away, 0o777);
        let file = mine.join("415.srv.json");
        let [copies, mine, file, copy] =
            [&copies, &mine, &file, &away.join("x")].map(|path| path.display().to_string());
        for (user, program, args) in [
            (USER, "/bin/ls", vec![copies.as_str()]),
            (USER, "/bin/ls", vec![&mine]),
            (USER, "/bin/rm", vec!["-f", &file]),
            (USER, "/bin/touch", vec![&file]),
            (USER, "/bin/chmod", vec!["0666", &file]),
            (USER, "/bin/mv", vec![&mine, &copy]),
            (OTHER_USER, "/bin/cat", vec![&file]),
            (OTHER_USER, "/bin/ls", vec!["-d", &file]),
            (OTHER_USER, "/bin/ls", vec![&mine]),
        ] {
            let ran = finish(as_user(user, program).args(&args));
            assert_ne!(ran.code, Some(0), "{user} {program} {args:?}: {ran:?}");
        }
        // An open descriptor with its lock, and a read into memory that the user's file system
        // withholds, do not delay root.
        let mut lock = as_user(USER, "/usr/bin/flock");
        let lock = Running::start(lock.args(["-s", &file, "/bin/sleep", "30"]));
        let kept = place.hung("fuse", Hung::over_reads).map(|(at, hung)| {
            let mut command = as_user(USER, place.node.control());
            command.env_clear().env("FAKE_MPS_READS", &file);
            command.env("FAKE_MPS_HANGS_IN", at.join(FILE));
            let holder = Running::start(command.stdin(Stdio::null()));
            eventually("the read hangs", || hung.holds_somebody());
            (hung, holder)
        });
        std::thread::sleep(NEXT_SECOND);
        place.begin(job, "MPS=true", "0");
        let end = place.end(job);
        let told = "mps-epilogue: job 415.srv: 0 clients: no CUDA program used its MPS; mpsctl report 415.srv\n";
        assert_eq!(end.within(SOON).err, told);
        let again = report_of(&place, USER, &[job, "--json"]);
        assert_eq!(again.out.lines().count(), 2, "both runs: {again:?}");
        drop((kept, lock));
    });
}

#[test]
fn reports_that_cannot_be_used_are_counted() {
    let place = with_job("", "413.srv", "MPS=true");
    place.assert_ends_clean("413.srv", "a job with a report");
    assert_eq!(report(&place, &[]).err, "");
    let file = files(&place).remove(0);
    let text = fs::read_to_string(&file).expect("report");
    let newer = text.replacen("\"version\":1", "\"version\":9", 1);
    assert_ne!(newer, text);
    for (began, text) in [("1700000000", newer.as_str()), ("1700000001", "{")] {
        fs::write(file.with_file_name(format!("414.srv.{began}.json")), text).expect("report");
    }
    let ran = report(&place, &[]).ok();
    ran.prints("job 413.srv of ");
    ran.complains("2 reports of this node are left out: unreadable");
}

#[test]
fn a_job_that_did_not_ask_leaves_no_report_and_a_site_may_want_none() {
    let place = with_job("[reports]\nkeep = 0\n", "420.srv", "MPS=true");
    place.assert_ends_clean("420.srv", "a site without reports");
    place.configure("");
    place.begin("421.srv", "a_project", "0");
    place.assert_ends_clean("421.srv", "a job without MPS");
    assert_eq!(files(&place), Vec::<PathBuf>::new());
}

#[test]
fn a_report_that_cannot_be_written_does_not_fail_an_end() {
    let place = Place::new(fast(1), "");
    // A file in place of the directory.
    let reports = place.path("state/reports");
    fs::write(&reports, "").expect("file");
    place.begin("430.srv", "MPS=true", "0");
    place.end("430.srv");
    fs::remove_file(&reports).expect("file");
    place.assert_as_before("an end without a report");
}

#[test]
fn nobody_but_its_mpsd_reaches_the_account_of_a_job() {
    let place = with_job("", "450.srv", "MPS=true");
    let seen = place
        .job("450.srv")
        .join("observations")
        .display()
        .to_string();
    let descriptor = format!("/proc/{}/fd/5", place.pids("mpsd")[0]);
    for path in [seen.as_str(), &descriptor] {
        for (program, args) in [
            ("/bin/cat", [path, "/dev/null"]),
            ("/bin/cp", ["/dev/null", path]),
        ] {
            let ran = finish(as_user(USER, program).args(args));
            assert_ne!(ran.code, Some(0), "{program} {path}: {ran:?}");
            ran.complains("Permission denied");
        }
    }
    place.assert_ends_clean("450.srv", "an account that others tried to reach");
}

/// The scheduler shows the user an epilogue's output: a paragraph for who asks, else one line. The
/// simulated node tests who asks.
#[test]
fn who_asks_for_it_reads_a_paragraph_of_the_report_in_the_jobs_own_output() {
    for (config, account, expected) in [
        ("", "MPS=true,MPS_REPORT=on", [1, 0]),
        ("", "MPS=true", [0, 1]),
        ("[reports]\nkeep = 0\n", "MPS=true", [0, 0]),
    ] {
        let place = with_job(config, "480.srv", account);
        drop(place.attached("480.srv", &["--hold", "30"], &[]));
        if !config.contains("keep = 0") {
            tells(&place, "480.srv", "\"clients\":1");
        }
        let end = place.strict_end("480.srv");
        let paragraph = [
            "480.srv of ",
            "ready after ",
            "taken down in ",
            "by the job's own mpsd: 1 client, 1 at once",
        ];
        let summary = ["job 480.srv: 1 client at once", "; mpsctl report 480.srv"];
        let count = |words: &[&str]| {
            let all = |line: &&str| words.iter().all(|word| line.contains(word));
            end.err.lines().filter(all).count()
        };
        let told = [count(&paragraph), count(&summary)];
        assert_eq!(told, expected, "{account} {config}: {end:?}");
        place.assert_as_before("a job with a paragraph");
    }
}

#[test]
fn a_job_that_its_site_brought_in_reads_nothing_at_its_end() {
    let place = Place::new(fast(1), "");
    let jobs = place.directory("pbs/mom_priv/jobs");
    fs::write(jobs.join("481.srv.SC"), "mpirun -n 4 ./solver\n").expect("a script");
    let home = place.path("pbs");
    let pbs = format!("[pbs]\nhome = \"{}\"\n", home.display());
    place.configure(&format!("[defaults]\nreport = true\n{pbs}"));
    let by_site = ["--by-site", "--request", "MPS=on", "--gpus", "0"];
    let args = [&by_site[..], &prologue_args("481.srv", "")[..]].concat();
    place.prologue(&args, &[]).ok();
    kill(place.pids("nvidia-cuda-mps-control")[0], Signal::SIGKILL);
    tells(&place, "481.srv", "\"last_words\":[\"");
    let end = place.strict_end("481.srv");
    assert_eq!(end.err, "");
    let lost = &of(&place, "481.srv")["said_by_user"]["daemons_lost"];
    assert_eq!(lost.as_array().map(Vec::len), Some(1));
    place.assert_as_before("a job that its site brought in");
}

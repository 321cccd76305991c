//! Job reports: what root records at a job's end, and what in it is the user's word.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tests::double::node::Node;
use tests::fuse::{FILE, Hung};
use tests::node_bed::{
    NodeBed, OWN_CHILDREN, Running, eventually, fast, kernel_tells_of_ends, kill,
};
use tests::run::{OTHER_USER, Ran, USER, as_user, chmod, finish, skip, uid_of};
use tests::scarcity::{Small, alone};

const SOON: Duration = Duration::from_secs(5);
/// Times in reports are whole seconds.
const NEXT_SECOND: Duration = Duration::from_millis(1100);

fn with_job(config: &str, job: &str, account: &str) -> NodeBed {
    NodeBed::with_job(fast(1), config, job, account, "0")
}

fn report(bed: &NodeBed, args: &[&str]) -> Ran {
    bed.mpsctl(&[&["report"], args].concat())
}

fn report_of(bed: &NodeBed, user: &str, args: &[&str]) -> Ran {
    bed.mpsctl_as(user, &[&["report"], args].concat(), &[])
}

#[track_caller]
fn of(bed: &NodeBed, job: &str) -> Value {
    report(bed, &[job, "--json"]).ok().json()
}

fn files(bed: &NodeBed) -> Vec<PathBuf> {
    let entries = fs::read_dir(bed.path("state/reports"));
    let entries = entries.into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let is_report = |path: &PathBuf| path.extension().is_some_and(|end| end == "json");
    paths.filter(is_report).collect()
}

/// Waits until the job's own `mpsd` has reported this.
#[track_caller]
fn tells(bed: &NodeBed, job: &str, words: &str) {
    let seen = bed.job(job).join("observations");
    let told = || fs::read_to_string(&seen).is_ok_and(|text| text.contains(words));
    eventually(format_args!("'{words}' in what mpsd saw"), told);
}

fn mode(path: &Path) -> (u32, u32) {
    let about = fs::metadata(path).expect("it is there");
    (about.uid(), about.mode() & 0o7777)
}

#[test]
fn a_report_names_the_client_that_got_no_context_the_server_that_was_killed_and_the_culprit() {
    let job = "400.srv";
    let bed = NodeBed::new(fast(1).describe(|node| node.max_clients = 2), "");
    bed.begin(job, "MPS=true,MPS_THREADS=25,MPS_MEM=4G", "0");
    let held = [(); 2].map(|()| bed.attached(job, &["--hold", "30", "--busy"], &[]));
    let mut third = bed.client(job, &["--hold", "30"], &[]);
    assert_eq!(third.wait(), Some(3), "one too many");
    let lost = third.pid();
    tells(&bed, job, &format!("\"pid\":{lost},\"beside\":2"));
    tells(&bed, job, "most_memory_mib");
    let server = bed.pids("nvidia-cuda-mps-server")[0];
    kill(server, Signal::SIGKILL);
    tells(&bed, job, "servers_lost\":[{");
    let log = bed.log(job, "mpsd.log");
    assert_eq!(log.matches("its clients got error 806").count(), 1, "{log}");
    let culprit = bed.attached(job, &["--hold", "1", "--fault"], &[]);
    let bad = culprit.pid();
    tells(&bed, job, &format!("\"fatal\":[{bad}]"));
    drop((held, third, culprit));
    bed.assert_ends_clean(job, "a job with a report");

    let told = of(&bed, job);
    let seen = &told["said_by_user"];
    let lost_server = &seen["servers_lost"][0];
    for (found, expected) in [
        (&told["job"], json!(job)),
        (&told["user"], json!(USER)),
        (&told["as_before"], json!(true)),
        (&told["exclusive"], json!(true)),
        (&told["drain"], Value::Null),
        (&seen["refused"][0]["pid"], json!(lost)),
        (&lost_server["pid"], json!(server)),
        (&lost_server["clients"], json!(2)),
        (&seen["fatal"][0], json!(bad)),
        (&seen["clients"], json!(3)),
        (&seen["most_clients"], json!(2)),
        (&seen["gpus"][0]["most_clients"], json!(2)),
    ] {
        assert_eq!(*found, expected, "{told}");
    }
    let ready = told["ready_ms"].as_u64().expect("a time");
    assert!((1..20_000).contains(&ready), "{told}");
    let text = report(&bed, &[job]);
    for line in [
        format!("client {lost} got no context; 2 others had one"),
        format!(
            "server {server} was lost (killed or ended with status 0) with 2 clients, which got error 806"
        ),
        format!("client {bad} caused a fatal GPU error"),
        "the node is as before, compute modes restored; not drained".to_owned(),
        "limits of each client: threads 25 %, memory 4096M of ".to_owned(),
        "by the job's own mpsd: 3 clients, 2 at once".to_owned(),
    ] {
        text.prints(line);
    }
    let file = bed.path("report");
    fs::write(&file, &text.out).expect("the report");
    let explained = bed.mpsctl(&["explain", &file.display().to_string()]);
    explained.ok().prints("a fatal GPU error");
    assert_eq!(report(&bed, &["--since", "1h"]).out, text.out);
    report(&bed, &["--since", "0s"]).prints_nothing();
    report(&bed, &["401.srv"]).exits(1);
}

/// A GPU whose driver counts nothing, and clients that end between two looks.
#[test]
fn what_is_not_counted_is_absent_and_short_clients_are_not_called_absent() {
    let bed = with_job("", "471.srv", "MPS=true");
    for _ in 0..3 {
        bed.served("471.srv", &[]);
    }
    tells(&bed, "471.srv", "\"clients\":3");
    bed.assert_ends_clean("471.srv", "a job of short clients");
    let text = report(&bed, &["471.srv"]);
    text.prints("3 clients, 1 at once");
    text.prints("advice: 3 clients, one at a time on a GPU: MPS brings it nothing");
    text.lacks("no client at any look").lacks("%").lacks("kJ");
    let told = of(&bed, "471.srv");
    assert!(!told.to_string().contains("_percent"), "{told}");
}

/// NVML lists it as an MPS client on the first GPU with 9,000 MiB. It is not the job's.
fn foreign(bed: &NodeBed, user: &str) -> Running {
    let mut command = as_user(user, "/bin/sleep");
    let running = Running::start(command.arg("60").stdin(Stdio::null()));
    let node = Node::open(bed.node.dir()).expect("the node");
    let gpu = &bed.node.uuids()[0];
    let registered = node.register(gpu, running.pid(), 9_000 << 20, "mps");
    registered.expect("a context");
    running
}

#[test]
fn clients_of_others_on_a_shared_gpu_are_neither_counted_nor_held_to_the_jobs_limit() {
    let bed = with_job("", "407.srv", "MPS=true,MPS_MEM=4G");
    let others = [foreign(&bed, "root"), foreign(&bed, USER)];
    let held = bed.attached("407.srv", &["--hold", "30", "--busy"], &[]);
    tells(&bed, "407.srv", "\"most_clients\":1,\"most_memory_mib\"");
    drop((held, others));
    bed.assert_ends_clean("407.srv", "a job beside clients of others");
    let told = of(&bed, "407.srv");
    let seen = &told["said_by_user"];
    assert_eq!(seen["gpus"][0]["most_clients"], 1, "{told}");
    assert_eq!(seen["over_memory"], json!([]), "{told}");
    assert_eq!(seen["last_words"], json!([]), "{told}");
}

#[test]
fn jobs_that_share_an_mps_see_each_others_clients_and_are_told_what_came_after_their_begin() {
    let bed = NodeBed::new(fast(1), "shared_gpus = true\n");
    let [first, second, later] = ["411.srv", "412.srv", "413.srv"];
    let begin = |job: &str| bed.torque_on_gpu_0(job, "MPS=true").ok();
    let _ = [first, second].map(begin);
    let clients = [first, second].map(|job| (bed.sharer(job), job));
    let status = bed.mpsctl_as(USER, &["status", "--json"], &[("PBS_JOBID", first)]);
    let status = status.json()["jobs"][0].clone();
    assert_eq!(status["shared_with"], json!([second]), "{status}");
    let metrics = bed.mpsctl(&["metrics"]).ok();
    for (client, job) in &clients {
        let shown = status["gpus"][0]["clients"].as_array().expect("clients");
        let is_its = |shown: &&Value| shown["pid"] == client.pid() && shown["job"] == *job;
        assert!(shown.iter().any(|shown| is_its(&shown)), "{status}");
        let gpu = &bed.node.uuids()[0];
        let line = format!("mpsd_job_clients{{jobid=\"{job}\",gpu=\"0\",uuid=\"{gpu}\"}} 1\n");
        metrics.prints(line);
        metrics.prints(format!("mpsd_job_daemons_lost{{jobid=\"{job}\"}} 0\n"));
    }
    bed.exec(&["--fault"], &[("PBS_JOBID", second)]).exits(3);
    let id = format!("{}-{}", uid_of(USER), bed.node.uuids()[0]);
    let seen = bed.path("run/shared").join(id).join("observations");
    let told = || fs::read_to_string(&seen).is_ok_and(|text| text.contains("\"fatal\":["));
    eventually("mpsd tells of the fault", told);
    drop(clients);
    begin(later);
    let words = "the vendor's log says: Client";
    bed.end(first).complains(words);
    assert!(!bed.end(later).err.contains(words));
    bed.end(second).complains(words);
    bed.assert_as_before("jobs that shared an MPS");
    for (job, count, errors) in [(first, 3, 1), (second, 3, 1), (later, 0, 0)] {
        let seen = &of(&bed, job)["said_by_user"];
        let errors_told = ["fatal", "last_words"].map(|key| seen[key].as_array().map(Vec::len));
        assert_eq!(seen["clients"], count, "{job}: {seen}");
        assert_eq!(errors_told, [Some(errors); 2], "{job}: {seen}");
        let text = report(&bed, &[job]).ok();
        text.prints("by the mpsd that it shared, of all jobs on it: ");
        text.prints("neither the use of its GPUs nor advice: ");
        text.lacks("  advice: ");
        assert!(seen["usage"].is_null(), "{seen}");
        assert_eq!(text.out.contains(words), errors > 0, "{text:?}");
    }
}

#[test]
fn a_control_daemon_and_an_mpsd_that_are_killed_stand_in_the_report() {
    let bed = with_job("", "402.srv", "MPS=true");
    let control = bed.pids("nvidia-cuda-mps-control")[0];
    kill(control, Signal::SIGKILL);
    tells(&bed, "402.srv", "daemons_lost\":[{");
    let log = bed.log("402.srv", "mpsd.log");
    let told = "new steps and 'mpsctl exec' are refused";
    assert!(log.contains(told), "{log}");
    // Its user finds that the socket does not answer. Root, asked by a hook, finds that the proved
    // process is gone.
    let args = ["exec", "--job", "402.srv", "--", "true"];
    let exec = bed.mpsctl_as(USER, &args, &[]);
    let root = bed.mpsctl(&["env", "--shell", "json", "--job", "402.srv"]);
    for ran in [exec, root] {
        ran.exits(2).complains("it has ended");
    }
    // Torque puts an epilogue's output into the job's error file.
    let last = format!("job 402.srv: its mpsd says: control daemon {control} died (signal 9)");
    bed.end("402.srv").complains(last);
    bed.assert_as_before("a killed control daemon");
    let lost = format!("control daemon {control} was lost (signal 9)");
    report(&bed, &["402.srv"]).prints(lost);
    // A killed mpsd has reported its earlier observations.
    bed.begin("403.srv", "MPS=true", "0");
    let client = bed.attached("403.srv", &["--hold", "30"], &[]);
    tells(&bed, "403.srv", "\"clients\":1");
    kill(bed.pids("mpsd")[0], Signal::SIGKILL);
    drop(client);
    bed.assert_ends_clean("403.srv", "a killed mpsd");
    assert_eq!(of(&bed, "403.srv")["said_by_user"]["clients"], 1);
}

/// Outside Slurm only `mpsd` knows of it, if the kernel tells.
#[test]
fn a_client_that_a_signal_ended_stands_in_the_report() {
    if !kernel_tells_of_ends() {
        return skip("suite, a client that a signal ended", OWN_CHILDREN);
    }
    let bed = with_job("", "405.srv", "MPS=true");
    let victim = bed.attached("405.srv", &["--hold", "30"], &[]);
    let killed = victim.pid();
    tells(&bed, "405.srv", "\"clients\":1");
    drop(victim);
    tells(&bed, "405.srv", "\"killed\":[{");
    bed.assert_ends_clean("405.srv", "a job with a killed client");
    let line = format!("    client {killed} was ended by signal 9 (SIGKILL)\n");
    report(&bed, &["405.srv"]).prints(line);
}

/// A user's process may say "drained", or anything else, in the same words as root.
#[test]
fn the_last_line_of_an_end_is_roots_and_the_hook_of_openpbs_has_no_other() {
    for (job, words) in [("404.srv", 1), ("405.srv", 0)] {
        let mut bed = with_job("", job, "MPS=true");
        kill(bed.pids("nvidia-cuda-mps-control")[0], Signal::SIGKILL);
        tells(&bed, job, "daemons_lost\":[{");
        bed.node.change(|node| node.nvml.init_fails = true);
        let end = match words {
            // Torque's epilogue writes into the job's error file.
            1 => bed.strict_end(job),
            _ => {
                let words = ["--scheduler", "openpbs", "--strict", "--"];
                bed.epilogue(&[&words[..], &[job, USER, "nogroup"]].concat(), &[])
            }
        };
        bed.node.change(|node| node.nvml.init_fails = false);
        let end = end.exits(2);
        let mut lines: Vec<&str> = end.err.lines().collect();
        let last = *lines.last().expect("a line");
        let said = |line: &&str| line.contains("its mpsd says: ");
        let count = lines.iter().filter(|line| said(line)).count();
        assert_eq!(count, words, "{end:?}");
        let is_roots = last.contains("NVML") || last.contains("drain");
        assert!(is_roots && !said(&last), "root's line: {end:?}");
        lines.sort_unstable();
        let twice = lines.windows(2).any(|two| two[0] == two[1]);
        assert!(!twice, "said once: {end:?}");
        bed.take_drains();
        bed.end(job);
    }
}

#[test]
fn reports_are_kept_by_number_and_are_roots_alone() {
    let bed = NodeBed::new(fast(1), "[reports]\nkeep = 2\n");
    for job in ["410.srv", "411.srv", "412.srv"] {
        bed.begin(job, "MPS=true", "0");
        for file in ["observations", "killed"] {
            assert_eq!(mode(&bed.job(job).join(file)), (0, 0o600), "{file}");
        }
        bed.assert_ends_clean(job, "a job with a report");
        std::thread::sleep(NEXT_SECOND);
    }
    assert_eq!(files(&bed).len(), 2, "{:?}", files(&bed));
    // The oldest is removed.
    report(&bed, &["410.srv"]).exits(1);
    assert_eq!(mode(&bed.path("state/reports")), (0, 0o700));
    for file in files(&bed) {
        assert_eq!(mode(&file), (0, 0o600), "{}", file.display());
    }
    // A copy would not be safe on a disk, so there is none, and the user is told.
    let ran = report_of(&bed, USER, &["412.srv"]).exits(1);
    ran.complains("job 412.srv: no report for you on this node");
    assert!(!bed.path("run/reports").exists());
}

#[test]
fn a_jobs_own_user_reads_its_report_and_nobody_else_finds_or_keeps_anything() {
    alone(|| {
        let (bed, job) = (NodeBed::new(fast(1), ""), "415.srv");
        let run = bed.path("run");
        let _memory = Small::over(&run, 1024, 0o755);
        bed.begin(job, "MPS=true", "0");
        drop(bed.attached(job, &["--hold", "30"], &[]));
        tells(&bed, job, "\"clients\":1");
        // It still runs, so there is none.
        for own in [report_of(&bed, USER, &[job]), report(&bed, &[job])] {
            own.exits(1)
                .complains("no report yet: it runs; 'mpsctl status 415.srv'");
        }
        let other = report_of(&bed, OTHER_USER, &[job]).exits(1);
        other.complains("no report for you").lacks("it runs");
        bed.end(job);

        let own = report_of(&bed, USER, &[job]).ok();
        own.prints("1 client, 1 at once");
        assert_eq!(own.out, report(&bed, &[job]).out);
        let json = report_of(&bed, USER, &[job, "--json"]);
        assert_eq!(json.out, report(&bed, &[job, "--json"]).out);
        for (user, job) in [(OTHER_USER, job), (USER, "414.srv")] {
            let none = report_of(&bed, user, &[job]).exits(1);
            none.complains("no report for you");
        }
        // The user may read why the job was refused; root's own reports are only of jobs that had
        // MPS.
        let refused = bed.torque("416.srv", "MPS=true,MPS_MEM=999T", "0").exits(1);
        let why = refused.err.trim().rsplit_once("job 416.srv: ");
        let (_, why) = why.expect("a reason");
        let told = report_of(&bed, USER, &["416.srv"]).ok();
        told.prints(format!("job 416.srv of {USER} on "));
        told.prints(format!(": not started: {why}\n"));
        report(&bed, &["416.srv"]).exits(1);
        report_of(&bed, OTHER_USER, &["416.srv"]).exits(1);
        let all = report_of(&bed, USER, &[]).exits(1);
        all.complains("allowed: root, or 'mpsctl report JOB'");
        // No user lists, links or changes root's files. A stranger in this user's group reaches
        // nothing.
        let copies = run.join("reports");
        let mine = copies.join(uid_of(USER).to_string());
        let away = bed.directory("away");
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
        let kept = bed.hung("fuse", Hung::over_reads).map(|(at, hung)| {
            let mut command = as_user(USER, bed.node.control());
            command.env_clear().env("MPS_DOUBLE_READS", &file);
            command.env("MPS_DOUBLE_HANGS_IN", at.join(FILE));
            let holder = Running::start(command.stdin(Stdio::null()));
            eventually("the read hangs", || hung.holds_somebody());
            (hung, holder)
        });
        std::thread::sleep(NEXT_SECOND);
        bed.begin(job, "MPS=true", "0");
        let end = bed.end(job);
        let told = "mps-epilogue: job 415.srv: 0 clients: no CUDA program used its MPS; mpsctl report 415.srv\n";
        assert_eq!(end.within(SOON).err, told);
        let again = report_of(&bed, USER, &[job, "--json"]);
        assert_eq!(again.out.lines().count(), 2, "both runs: {again:?}");
        drop((kept, lock));
    });
}

#[test]
fn reports_that_cannot_be_used_are_counted() {
    let bed = with_job("", "413.srv", "MPS=true");
    bed.assert_ends_clean("413.srv", "a job with a report");
    assert_eq!(report(&bed, &[]).err, "");
    let file = files(&bed).remove(0);
    let text = fs::read_to_string(&file).expect("report");
    let newer = text.replacen("\"version\":1", "\"version\":9", 1);
    assert_ne!(newer, text);
    for (began, text) in [("1700000000", newer.as_str()), ("1700000001", "{")] {
        fs::write(file.with_file_name(format!("414.srv.{began}.json")), text).expect("report");
    }
    let ran = report(&bed, &[]).ok();
    ran.prints("job 413.srv of ");
    ran.complains("2 reports of this node are left out: unreadable");
}

#[test]
fn what_a_second_end_finds_stands_beside_what_the_first_one_found_did_and_was_told() {
    let mut bed = with_job("", "460.srv", "MPS=true");
    let client = bed.attached("460.srv", &["--hold", "30"], &[]);
    tells(&bed, "460.srv", "\"clients\":1");
    drop(client);
    bed.node.change(|node| node.nvml.init_fails = true);
    bed.strict_end("460.srv").exits(2);
    let first = of(&bed, "460.srv");
    let has = |value: &Value| value.is_string();
    assert!(has(&first["drain"]) && has(&first["faults"][0]), "{first}");
    assert_eq!(first["as_before"], false, "{first}");
    // What was taken down is not lost.
    let page = bed.mpsctl(&["metrics"]);
    page.prints("mpsd_jobs_begun_total 1\n")
        .prints("mpsd_jobs{state=\"left\"} 1\n");
    page.prints("mpsd_jobs{state=\"ready\"} 0\n")
        .lacks("mpsd_job_daemons_lost{");
    std::thread::sleep(NEXT_SECOND);
    bed.node.change(|node| node.nvml.init_fails = false);
    // No mpsd has lost what root itself ended since then.
    bed.end("460.srv").lacks("its mpsd says");
    let page = bed.mpsctl(&["metrics"]);
    page.prints("mpsd_jobs_ended_total{as_before=\"false\"} 1\n");
    page.prints("mpsd_jobs_ended_total{as_before=\"true\"} 0\n");
    page.prints("mpsd_drains{delivered=\"false\"} 1\n");
    let told = of(&bed, "460.srv");
    let kept = "faults undetermined drain drained ended teardown_ms said_by_user";
    for key in kept.split(' ') {
        assert_eq!(told[key], first[key], "{key}: {told}");
    }
    assert_eq!(told["as_before"], true, "{told}");
    assert_eq!(told["said_by_user"]["clients"], 1, "{told}");
    assert_eq!(files(&bed).len(), 1, "{:?}", files(&bed));
    let text = report(&bed, &["460.srv"]);
    for line in [
        "the node is as before",
        "  fault: ",
        "  drain: ",
        "looked at again ",
    ] {
        text.prints(line);
    }
    text.lacks("not drained").lacks("was lost");
    assert_eq!(told["drained"], false, "the scheduler did not take it");
    bed.take_drains();
    bed.assert_as_before("a second end");
}

#[test]
fn a_report_that_cannot_be_written_does_not_fail_an_end() {
    let bed = NodeBed::new(fast(1), "");
    // A file in place of the directory.
    let reports = bed.path("state/reports");
    fs::write(&reports, "").expect("file");
    bed.begin("430.srv", "MPS=true", "0");
    bed.end("430.srv");
    fs::remove_file(&reports).expect("file");
    bed.assert_as_before("an end without a report");
}

#[test]
fn nobody_but_its_mpsd_reaches_the_account_of_a_job() {
    let bed = with_job("", "450.srv", "MPS=true");
    let seen = bed.job("450.srv").join("observations");
    let descriptor = format!("/proc/{}/fd/5", bed.pids("mpsd")[0]);
    for path in [&*seen.display().to_string(), &descriptor] {
        let [from, to] = [[path, "/dev/null"], ["/dev/null", path]];
        for (program, args) in [("/bin/cat", from), ("/bin/cp", to)] {
            let ran = finish(as_user(USER, program).args(args));
            assert_ne!(ran.code, Some(0), "{program} {path}: {ran:?}");
            ran.complains("Permission denied");
        }
    }
    bed.assert_ends_clean("450.srv", "an account that others tried to reach");
}

/// The scheduler shows the user an epilogue's output: a paragraph, if the user or the site asks for
/// it.
#[test]
fn who_asks_for_it_reads_a_paragraph_of_the_report_in_the_jobs_own_output() {
    let always = "[defaults]\nreport = true\n";
    let never = "[defaults]\nreport = false\n";
    for (config, account, expected, summaries) in [
        ("", "MPS=true,MPS_REPORT=on", 1, 0),
        ("", "MPS=true", 0, 1),
        (always, "MPS=true", 1, 0),
        (always, "MPS=true,MPS_REPORT=off", 0, 0),
        (never, "MPS=true", 0, 0),
        ("[reports]\nkeep = 0\n", "MPS=true", 0, 0),
    ] {
        let bed = with_job(config, "480.srv", account);
        drop(bed.attached("480.srv", &["--hold", "30"], &[]));
        if !config.contains("keep = 0") {
            tells(&bed, "480.srv", "\"clients\":1");
        }
        let end = bed.strict_end("480.srv");
        let lines = end.err.lines().filter(|line| line.contains("480.srv of "));
        let told: Vec<&str> = lines.collect();
        assert_eq!(told.len(), expected, "{account} {config}: {end:?}");
        let ends = |line: &&str| line.ends_with("; mpsctl report 480.srv");
        let is_summary = |line: &&str| line.contains("job 480.srv: 1 client at once") && ends(line);
        let told_once = end.err.lines().filter(is_summary).count();
        assert_eq!(told_once, summaries, "{account} {config}: {end:?}");
        for words in [
            "ready after ",
            "taken down in ",
            "by the job's own mpsd: 1 client, 1 at once",
        ] {
            assert!(told.iter().all(|line| line.contains(words)), "{told:?}");
        }
        let is_kept = !config.contains("keep = 0");
        assert_eq!(!files(&bed).is_empty(), is_kept, "{config}");
        bed.assert_as_before("a job with a paragraph");
    }
}

#[test]
fn a_job_that_its_site_brought_in_reads_nothing_at_its_end() {
    for config in ["", "[defaults]\nreport = true\n"] {
        let bed = NodeBed::new(fast(1), "");
        bed.begin_by_site("481.srv", "0", config);
        kill(bed.pids("nvidia-cuda-mps-control")[0], Signal::SIGKILL);
        tells(&bed, "481.srv", "\"last_words\":[\"");
        let end = bed.strict_end("481.srv");
        assert_eq!(end.err, "", "{config}");
        let lost = of(&bed, "481.srv")["said_by_user"]["daemons_lost"].clone();
        assert_eq!(lost.as_array().map(Vec::len), Some(1));
        bed.assert_as_before("a job that its site brought in");
    }
}

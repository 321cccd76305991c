//! Job reports: what root writes down at a job's end, and what of it is the user's word.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;
use tests::double::Builder;
use tests::double::look::wait_until;
use tests::double::node::Node;
use tests::figures;
use tests::fuse::Hung;
use tests::place::{Place, Running, fast, kill};
use tests::scarcity::{Small, alone};
use tests::stage::{OTHER_USER, Ran, USER, as_user, finish};

const SOON: Duration = Duration::from_secs(5);

fn place(node: Builder, config: &str) -> Place {
    Place::new(node, config)
}

#[track_caller]
fn begin(place: &Place, job: &str, account: &str) {
    let ran = place.torque(job, account, "0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// `mpsctl report`, as root.
fn report(place: &Place, args: &[&str]) -> Ran {
    place.stage.run("mpsctl", &[&["report"], args].concat(), &[])
}

/// The report of `job`.
#[track_caller]
fn of(place: &Place, job: &str) -> Value {
    let ran = report(place, &[job, "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    serde_json::from_str(&ran.out).unwrap_or_else(|e| panic!("{e}: {ran:?}"))
}

fn files(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.stage.path("state/reports"));
    entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        // Beside them stand the counters, which are no job's.
        .filter(|path| path.extension().is_some_and(|end| end == "json"))
        .collect()
}

/// What the job's own `mpsd` has told so far, once it holds this.
#[track_caller]
fn tells(place: &Place, job: &str, words: &str) {
    let seen = place.stage.job(job).join("observations");
    let told = || fs::read_to_string(&seen).is_ok_and(|text| text.contains(words));
    assert!(
        wait_until(SOON, told),
        "'{words}' in {:?}",
        fs::read_to_string(&seen)
    );
}

#[test]
fn a_report_names_the_client_that_got_no_context_the_server_that_was_killed_and_the_culprit() {
    let place = place(fast(1).describe(|node| node.max_clients = 2), "");
    begin(&place, "400.srv", "MPS=true,MPS_THREADS=25,MPS_MEM=4G");
    let held = [(); 2].map(|()| place.attached("400.srv", &["--hold", "30", "--busy"], &[]));
    let mut third = place.client("400.srv", &["--hold", "30"], &[]);
    assert_eq!(third.wait(), Some(3), "one too many");
    tells(
        &place,
        "400.srv",
        &format!("\"pid\":{},\"beside\":2", third.0.id()),
    );
    tells(&place, "400.srv", "most_memory_mib");
    let server = place.pids("nvidia-cuda-mps-server")[0];
    kill(server, Signal::SIGKILL);
    tells(&place, "400.srv", "servers_lost\":[{");
    let culprit = place.attached("400.srv", &["--hold", "1", "--fault"], &[]);
    tells(&place, "400.srv", &format!("\"fatal\":[{}]", culprit.0.id()));
    let (lost, bad) = (third.0.id(), culprit.0.id());
    drop((held, third, culprit));
    place.assert_ends_clean("400.srv", "a job with a report");

    let told = of(&place, "400.srv");
    assert_eq!(
        (&told["job"], &told["user"]),
        (&"400.srv".into(), &USER.into()),
        "{told}"
    );
    assert_eq!(
        (&told["as_before"], &told["exclusive"], &told["drain"]),
        (&true.into(), &true.into(), &Value::Null)
    );
    assert!(
        told["ready_ms"].as_u64().is_some_and(|ms| ms > 0 && ms < 20_000),
        "{told}"
    );
    let seen = &told["said_by_user"];
    assert_eq!(seen["refused"][0]["pid"], lost, "{told}");
    assert_eq!(
        (
            &seen["servers_lost"][0]["pid"],
            &seen["servers_lost"][0]["clients"]
        ),
        (&server.into(), &2.into())
    );
    assert_eq!(seen["fatal"][0], bad, "{told}");
    assert_eq!(
        (&seen["clients"], &seen["most_clients"]),
        (&3.into(), &2.into()),
        "{told}"
    );
    assert_eq!(seen["gpus"][0]["most_clients"], 2, "{told}");
    let text = report(&place, &["400.srv"]).out;
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
        assert!(text.contains(&line), "{line}:\n{text}");
    }
    let all = report(&place, &["--since", "1h"]).out;
    assert!(
        all.contains("jobs: 1\n") && all.contains("lost a server: 1\n"),
        "{all}"
    );
    assert_eq!(report(&place, &["401.srv"]).code, Some(1));
}

/// A process of `user` that NVML lists as an MPS client on the first GPU, with 9,000 MiB, and that is none of the job's.
fn foreign(place: &Place, user: &str) -> Running {
    let mut command = as_user(user, "/bin/sleep");
    let child = command.arg("60").stdin(Stdio::null()).spawn().expect("sleep");
    let node = Node::open(place.stage.node.dir()).expect("the node");
    let gpu = &place.stage.node.uuids()[0];
    node.register(gpu, child.id(), 9_000 << 20, "mps")
        .expect("a context");
    Running(child)
}

#[test]
fn clients_of_others_on_a_shared_gpu_are_neither_counted_nor_held_to_the_jobs_limit() {
    let place = place(fast(1), "");
    begin(&place, "407.srv", "MPS=true,MPS_MEM=4G");
    let others = [foreign(&place, "root"), foreign(&place, USER)];
    let held = place.attached("407.srv", &["--hold", "30", "--busy"], &[]);
    tells(&place, "407.srv", "\"most_clients\":1,\"most_memory_mib\"");
    drop((held, others));
    place.assert_ends_clean("407.srv", "a job beside clients of others");

    let told = of(&place, "407.srv");
    let seen = &told["said_by_user"];
    assert_eq!(seen["gpus"][0]["most_clients"], 1, "{told}");
    assert_eq!(seen["over_memory"], Value::Array(Vec::new()), "{told}");
    assert_eq!(seen["last_words"], Value::Array(Vec::new()), "{told}");
}

#[test]
fn a_control_daemon_and_an_mpsd_that_are_killed_stand_in_the_report() {
    let place = place(fast(1), "");
    begin(&place, "402.srv", "MPS=true");
    let control = place.pids("nvidia-cuda-mps-control")[0];
    kill(control, Signal::SIGKILL);
    tells(&place, "402.srv", "daemons_lost\":[{");
    // Torque puts what an epilogue says into the job's error file.
    let end = place.strict_end("402.srv");
    let last = format!("job 402.srv: its mpsd says: control daemon {control} died (signal 9)");
    assert!(end.code == Some(0) && end.err.contains(&last), "{end:?}");
    place.assert_as_before("a killed control daemon");
    let text = report(&place, &["402.srv"]).out;
    assert!(
        text.contains(&format!("control daemon {control} was lost (signal 9)")),
        "{text}"
    );
    // An mpsd that was killed has told what it saw before.
    begin(&place, "403.srv", "MPS=true");
    let client = place.attached("403.srv", &["--hold", "30"], &[]);
    tells(&place, "403.srv", "\"clients\":1");
    kill(place.pids("mpsd")[0], Signal::SIGKILL);
    drop(client);
    place.assert_ends_clean("403.srv", "a killed mpsd");
    assert_eq!(of(&place, "403.srv")["said_by_user"]["clients"], 1);
}

/// By what `mpsd` itself sees, where the kernel tells it (Linux 6.15), and by what Slurm's plugin has noted.
#[test]
fn a_killed_client_stands_in_the_report_with_pid_and_signal_and_one_that_ended_does_not() {
    let place = place(fast(1), "");
    begin(&place, "404.srv", "MPS=true");
    let victim = place.attached("404.srv", &["--hold", "30"], &[]);
    let mut well = place.attached("404.srv", &["--hold", "0.5"], &[]);
    let killed = victim.0.id();
    tells(&place, "404.srv", &format!("\"pids\":[{killed},"));
    drop(victim);
    assert_eq!(well.wait(), Some(0));
    let words = format!("\"killed\":[{{\"pid\":{killed},\"signal\":9}}]");
    let kernel = nix::sys::utsname::uname().expect("uname");
    let release = kernel.release().to_string_lossy().into_owned();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|word| word.parse::<u32>().ok());
    let is_told = (numbers.next(), numbers.next()) >= (Some(6), Some(15));
    match is_told {
        true => tells(&place, "404.srv", &words),
        false => println!("not tried here: Linux {release} tells nobody how another's child ended"),
    }
    // As the plugin does it in slurmstepd; `/proc` has no such process.
    let noted = place.stage.job("404.srv").join("killed");
    let about = fs::metadata(&noted).expect("made with the job");
    assert_eq!((about.uid(), about.mode() & 0o7777, about.len()), (0, 0o600, 0));
    fs::write(&noted, format!("0 3 {killed} 9 0\n0 4 2147483646 15 0\n")).expect("notes");
    place.assert_ends_clean("404.srv", "a job with a killed client");
    let text = report(&place, &["404.srv"]).out;
    for line in [
        format!("  client {killed} (task 3 of step 0) was ended by signal 9 (SIGKILL)\n"),
        "  task 4 of step 0 (pid 2147483646) was ended by signal 15 (SIGTERM)\n".to_owned(),
    ] {
        assert!(text.contains(&line), "{line}:\n{text}");
    }
    assert_eq!(text.matches("was ended by").count(), 2, "{text}");
    if !is_told {
        return;
    }
    // Elsewhere nobody but mpsd knows of it.
    begin(&place, "405.srv", "MPS=true");
    let victim = place.attached("405.srv", &["--hold", "30"], &[]);
    let killed = victim.0.id();
    tells(&place, "405.srv", "\"clients\":1");
    drop(victim);
    tells(&place, "405.srv", "\"killed\":[{");
    place.assert_ends_clean("405.srv", "a job with a killed client");
    let text = report(&place, &["405.srv"]).out;
    let line = format!("    client {killed} was ended by signal 9 (SIGKILL)\n");
    assert!(text.contains(&line), "{line}:\n{text}");
}

/// A user's process may say "drained", or anything else, in the same words as root.
#[test]
fn the_last_line_of_an_end_is_roots_and_the_hook_of_openpbs_has_no_other() {
    for (job, words) in [("404.srv", 1), ("405.srv", 0)] {
        let mut place = place(fast(1), "");
        begin(&place, job, "MPS=true");
        kill(place.pids("nvidia-cuda-mps-control")[0], Signal::SIGKILL);
        tells(&place, job, "daemons_lost\":[{");
        place.stage.node.change(|node| node.nvml.init_fails = true);
        let end = match words {
            // Torque's epilogue writes into the job's error file.
            1 => place.strict_end(job),
            _ => {
                let hook = ["--scheduler", "openpbs", "--strict", "--", job, USER, "nogroup"];
                place.stage.epilogue(&hook, &[])
            }
        };
        place.stage.node.change(|node| node.nvml.init_fails = false);
        assert_eq!(end.code, Some(2), "{end:?}");
        let mut lines: Vec<&str> = end.err.lines().collect();
        lines.sort_unstable();
        assert!(lines.windows(2).all(|two| two[0] != two[1]), "said once: {end:?}");
        let said = |line: &&str| line.contains("its mpsd says: ");
        assert_eq!(end.err.lines().filter(said).count(), words, "{end:?}");
        let last = end.err.lines().last().unwrap_or_default();
        assert!(
            last.contains("NVML") || last.contains("drain"),
            "root's line: {end:?}"
        );
        assert!(!said(&last), "{end:?}");
        place.take_drains();
        assert_eq!(place.strict_end(job).code, Some(0), "NVML is back");
    }
}

#[test]
fn reports_are_kept_by_number_and_are_roots_alone() {
    let place = place(fast(1), "[reports]\nkeep = 2\n");
    for job in ["410.srv", "411.srv", "412.srv"] {
        begin(&place, job, "MPS=true");
        let seen = fs::metadata(place.stage.job(job).join("observations")).expect("observations");
        assert_eq!(
            (seen.uid(), seen.mode() & 0o7777),
            (0, 0o600),
            "nobody but its mpsd can write it"
        );
        place.assert_ends_clean(job, "a job with a report");
        // A report's age is that of its job's begin, in seconds.
        std::thread::sleep(Duration::from_millis(1100));
    }
    assert_eq!(files(&place).len(), 2, "{:?}", files(&place));
    assert_eq!(report(&place, &["410.srv"]).code, Some(1), "the oldest has gone");
    let about = |path: PathBuf| fs::metadata(path).map(|about| (about.uid(), about.mode() & 0o7777));
    assert_eq!(
        about(place.stage.path("state/reports")).expect("reports"),
        (0, 0o700)
    );
    assert!(
        files(&place)
            .into_iter()
            .all(|file| about(file).is_ok_and(|it| it == (0, 0o600)))
    );
    // Where copies cannot be had safely (this place is on a disk) there are none, and the user is told.
    let ran = report_of(&place, USER, &["412.srv"]);
    assert!(
        ran.code == Some(1) && ran.out.starts_with("job 412.srv: no report for you on this node"),
        "{ran:?}"
    );
    assert!(!place.stage.path("run/reports").exists());
}

/// `mpsctl report`, as an ordinary user.
fn report_of(place: &Place, user: &str, args: &[&str]) -> Ran {
    let mut command = as_user(user, place.stage.program("mpsctl"));
    command
        .arg("--config")
        .arg(place.stage.config())
        .arg("report")
        .args(args);
    finish(command)
}

fn id_of(user: &str) -> u32 {
    let user = nix::unistd::User::from_name(user).expect("users").expect("user");
    user.uid.as_raw()
}

#[test]
fn a_jobs_own_user_reads_its_report_and_nobody_else_finds_or_keeps_anything() {
    alone(|| {
        let place = place(fast(1), "");
        let run = place.stage.path("run");
        let _memory = Small::over(&run, 1024, 0o755);
        begin(&place, "415.srv", "MPS=true");
        drop(place.attached("415.srv", &["--hold", "30"], &[]));
        tells(&place, "415.srv", "\"clients\":1");
        let none = report_of(&place, USER, &["415.srv"]);
        assert_eq!(none.code, Some(1), "it runs: {none:?}");
        assert_eq!(place.strict_end("415.srv").code, Some(0));

        let (root, own) = (
            report(&place, &["415.srv"]),
            report_of(&place, USER, &["415.srv"]),
        );
        assert!(
            own.code == Some(0) && own.out == root.out && own.out.contains("1 clients, 1 at once"),
            "{own:?} {root:?}"
        );
        let json = report_of(&place, USER, &["415.srv", "--json"]).out;
        assert_eq!(json, report(&place, &["415.srv", "--json"]).out);
        for (user, args, words) in [
            (OTHER_USER, &["415.srv"][..], "no report for you"),
            (USER, &["414.srv"], "no report for you"),
            (USER, &[], "allowed: root, or 'mpsctl report JOB'"),
        ] {
            let ran = report_of(&place, user, args);
            assert!(
                ran.code == Some(1) && format!("{}{}", ran.out, ran.err).contains(words),
                "{user} {args:?}: {ran:?}"
            );
        }
        // Nobody lists, links, or changes what is root's, and no other user, in this one's group, comes near.
        let (all, mine) = (run.join("reports"), run.join(format!("reports/{}", id_of(USER))));
        let file = mine.join("415.srv.json");
        let away = place.stage.path("away");
        fs::create_dir(&away).expect("directory");
        fs::set_permissions(&away, fs::Permissions::from_mode(0o777)).expect("mode");
        let (all, mine) = (all.display().to_string(), mine.display().to_string());
        let (file, copy) = (file.display().to_string(), away.join("x").display().to_string());
        for (user, program, args) in [
            (USER, "/bin/ls", vec![all.as_str()]),
            (USER, "/bin/ls", vec![&mine]),
            (USER, "/bin/rm", vec!["-f", &file]),
            (USER, "/bin/touch", vec![&file]),
            (USER, "/bin/chmod", vec!["0666", &file]),
            (USER, "/bin/mv", vec![&mine, &copy]),
            (OTHER_USER, "/bin/cat", vec![&file]),
            (OTHER_USER, "/bin/ls", vec!["-d", &file]),
            (OTHER_USER, "/bin/ls", vec![&mine]),
        ] {
            let mut command = as_user(user, program);
            command.args(args.iter());
            let ran = finish(command);
            assert_ne!(ran.code, Some(0), "{user} {program} {args:?}: {ran:?}");
        }
        // An open descriptor and its lock, and a read into memory that the user's file system withholds, keep root from nothing.
        let mut lock = as_user(USER, "/usr/bin/flock");
        let lock = lock
            .args(["-s", &file, "/bin/sleep", "30"])
            .spawn()
            .expect("flock");
        let _lock = Running(lock);
        let fuse = place.stage.path("fuse");
        fs::create_dir(&fuse).expect("directory");
        let holder;
        let hung = Hung::over_reads(&fuse, id_of(USER));
        match &hung {
            Ok(hung) => {
                let mut command = as_user(USER, place.stage.node.control());
                command.env_clear().env("FAKE_MPS_READS", &file);
                command.env("FAKE_MPS_HANGS_IN", fuse.join(tests::fuse::FILE));
                holder = Some(Running(command.stdin(Stdio::null()).spawn().expect("a process")));
                assert!(wait_until(SOON, || hung.holds_somebody()));
            }
            Err(why) => {
                holder = None;
                println!("not tried here, this machine has no FUSE: {why}");
            }
        }
        std::thread::sleep(Duration::from_millis(1100));
        begin(&place, "415.srv", "MPS=true");
        let end = place.strict_end("415.srv");
        assert!(
            end.code == Some(0) && end.took < SOON && end.err.is_empty(),
            "{end:?}"
        );
        let again = report_of(&place, USER, &["415.srv", "--json"]).out;
        assert_eq!(again.lines().count(), 2, "both runs: {again}");
        drop((hung, holder));
    });
}

#[test]
fn reports_that_cannot_be_used_are_counted() {
    let place = place(fast(1), "");
    begin(&place, "413.srv", "MPS=true");
    place.assert_ends_clean("413.srv", "a job with a report");
    assert_eq!(report(&place, &[]).err, "");
    let file = files(&place).remove(0);
    let text = fs::read_to_string(&file).expect("report");
    let newer = text.replacen("\"version\":1", "\"version\":9", 1);
    assert_ne!(newer, text);
    for (began, text) in [("1700000000", newer.as_str()), ("1700000001", "{")] {
        fs::write(file.with_file_name(format!("414.srv.{began}.json")), text).expect("report");
    }
    let ran = report(&place, &[]);
    assert!(ran.code == Some(0) && ran.out.starts_with("jobs: 1\n"), "{ran:?}");
    assert!(
        ran.err
            .contains("2 reports of this node are left out: unreadable"),
        "{ran:?}"
    );
}

#[test]
fn what_a_second_end_finds_stands_beside_what_the_first_one_found_did_and_was_told() {
    let mut place = place(fast(1), "");
    begin(&place, "460.srv", "MPS=true");
    let client = place.attached("460.srv", &["--hold", "30"], &[]);
    tells(&place, "460.srv", "\"clients\":1");
    drop(client);
    place.stage.node.change(|node| node.nvml.init_fails = true);
    let end = place.strict_end("460.srv");
    assert_eq!(end.code, Some(2), "{end:?}");
    let first = of(&place, "460.srv");
    assert!(
        first["drain"].is_string() && first["as_before"] == false && first["faults"][0].is_string(),
        "{first}"
    );
    // Its end is told in seconds.
    std::thread::sleep(Duration::from_millis(1100));
    place.stage.node.change(|node| node.nvml.init_fails = false);
    let again = place.strict_end("460.srv");
    // What root itself ended since then, no mpsd has lost.
    assert!(
        again.code == Some(0) && !again.err.contains("its mpsd says"),
        "{again:?}"
    );
    let told = of(&place, "460.srv");
    for key in [
        "faults",
        "undetermined",
        "drain",
        "drained",
        "ended",
        "teardown_ms",
        "said_by_user",
    ] {
        assert_eq!(told[key], first[key], "{key}: {told}");
    }
    assert_eq!(
        (&told["as_before"], &told["said_by_user"]["clients"]),
        (&true.into(), &1.into()),
        "{told}"
    );
    assert_eq!(files(&place).len(), 1, "{:?}", files(&place));
    let text = report(&place, &["460.srv"]).out;
    for line in [
        "the node is as before",
        "  fault: ",
        "  drain: ",
        "looked at again ",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    assert!(
        !text.contains("not drained") && !text.contains("was lost"),
        "{text}"
    );
    // Nobody took the drain.
    let all = report(&place, &[]).out;
    for line in ["drained: 0", "drain not delivered: 1"] {
        assert!(all.lines().any(|other| other == line), "{line}:\n{all}");
    }
    let _ = place.take_drains();
    place.assert_as_before("a second end");
}

#[test]
fn a_job_that_did_not_ask_leaves_no_report_and_a_site_may_want_none() {
    let place = place(fast(1), "[reports]\nkeep = 0\n");
    begin(&place, "420.srv", "MPS=true");
    place.assert_ends_clean("420.srv", "a site without reports");
    begin(&place, "421.srv", "a_project");
    place.assert_ends_clean("421.srv", "a job without MPS");
    assert_eq!(files(&place), Vec::<PathBuf>::new());
}

#[test]
fn a_report_that_cannot_be_written_does_not_fail_an_end() {
    let place = place(fast(1), "");
    // In the place of the directory, a file.
    let reports = place.stage.path("state/reports");
    fs::write(&reports, "").expect("file");
    begin(&place, "430.srv", "MPS=true");
    let end = place.strict_end("430.srv");
    assert_eq!(end.code, Some(0), "{end:?}");
    fs::remove_file(&reports).expect("file");
    place.assert_as_before("an end without a report");
}

#[test]
fn a_disk_that_does_not_answer_does_not_hold_an_end_up() {
    alone(|| {
        let place = place(fast(1), "");
        // Nothing but a mount namespace of this thread's own is wanted of it.
        let _hidden = Small::over(&place.stage.path("run"), 256, 0o755);
        begin(&place, "431.srv", "MPS=true");
        let reports = place.stage.path("state/reports");
        fs::create_dir(&reports).expect("directory");
        let hung = match Hung::over_changes(&reports, 0) {
            Ok(hung) => hung,
            Err(why) => return println!("not tried here, this machine has no FUSE: {why}"),
        };
        let end = place.strict_end("431.srv");
        assert!(hung.holds_somebody(), "nobody asked that disk: {end:?}");
        assert_eq!(end.code, Some(0), "{end:?}");
        assert!(end.took < SOON, "{end:?}");
        drop(hung);
        place.assert_not_drained("a disk that does not answer");
        figures::tell("faults", 1);
    });
}

/// Seconds of an epilogue, the fastest of several, with reports and without.
#[test]
fn a_report_costs_an_end_no_more_than_a_child_and_a_file() {
    let fastest = |config: &str| {
        let place = place(fast(1), config);
        let ends = (0..7).map(|n| {
            let job = format!("44{n}.srv");
            begin(&place, &job, "MPS=true");
            let end = place.strict_end(&job);
            assert_eq!(end.code, Some(0), "{end:?}");
            end.took
        });
        ends.min().unwrap_or_default()
    };
    let (with, without) = (fastest(""), fastest("[reports]\nkeep = 0\n"));
    println!("an end with a report {with:?}, without {without:?}");
    assert!(
        with < without + Duration::from_millis(50),
        "{with:?}, {without:?}"
    );
}

#[test]
fn nobody_but_its_mpsd_reaches_the_account_of_a_job() {
    let place = place(fast(1), "");
    begin(&place, "450.srv", "MPS=true");
    let seen = place.stage.job("450.srv").join("observations");
    let descriptor = format!("/proc/{}/fd/5", place.pids("mpsd")[0]);
    for path in [seen.display().to_string(), descriptor] {
        for (program, args) in [
            ("/bin/cat", [path.as_str(), "/dev/null"]),
            ("/bin/cp", ["/dev/null", path.as_str()]),
        ] {
            let ran = finish({
                let mut command: Command = as_user(USER, program);
                command.args(args);
                command
            });
            assert_ne!(ran.code, Some(0), "{program} {path}: {ran:?}");
            assert!(ran.err.contains("Permission denied"), "{program} {path}: {ran:?}");
        }
    }
    place.assert_ends_clean("450.srv", "an account that others wanted");
}

/// Where the scheduler shows the user what an epilogue says, and only to who asked or where the site does.
#[test]
fn who_asks_for_it_reads_a_paragraph_of_the_report_in_the_jobs_own_output() {
    for (config, account, asked) in [
        ("", "MPS=true,MPS_REPORT=on", true),
        ("", "MPS=true", false),
        ("[defaults]\nreport = true\n", "MPS=true", true),
        ("[defaults]\nreport = true\n", "MPS=true,MPS_REPORT=off", false),
    ] {
        let place = place(fast(1), config);
        begin(&place, "480.srv", account);
        drop(place.attached("480.srv", &["--hold", "30"], &[]));
        tells(&place, "480.srv", "\"clients\":1");
        let end = place.strict_end("480.srv");
        let told: Vec<&str> = end
            .err
            .lines()
            .filter(|line| line.contains("480.srv of "))
            .collect();
        assert_eq!(told.len(), usize::from(asked), "{account} {config}: {end:?}");
        for words in [
            "ready after ",
            "taken down in ",
            "by the job's own mpsd: 1 clients, 1 at once",
        ] {
            assert!(told.iter().all(|line| line.contains(words)), "{words}: {told:?}");
        }
        place.assert_as_before("a job with a paragraph");
    }
}

//! Users' mistakes and nodes' defects: one clear line, an exit code, nothing left. A job that did
//! not ask is not touched.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tests::node_bed::{NodeBed, fast};
use tests::run::{Ran, USER, chmod, prologue_args};

/// A job without MPS may cost no more than this.
const FREE: Duration = Duration::from_millis(5);

/// Asserts the exit code, one line on standard error that holds every word, and a node as before.
#[track_caller]
fn says(bed: &NodeBed, ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "one line: {ran:?}");
    assert!(ran.err.len() < 400, "short: {ran:?}");
    assert!(!ran.err.trim_end().contains(char::is_control), "{ran:?}");
    ran.prints_nothing();
    for word in words {
        ran.complains(word);
    }
    bed.assert_as_before(&ran.err);
}

/// The file's run_dir is not the usual one.
#[test]
fn a_job_ends_whole_after_its_configuration_has_become_unusable() {
    let bed = NodeBed::new(fast(1), "");
    let config = bed.config();
    let good = fs::read_to_string(&config).expect("configuration");
    for broken in ["no_such_key = 1\n", "max_clients = \n", "]x\n"] {
        bed.begin("12.srv", "MPS=true", "0");
        fs::write(&config, format!("{good}{broken}")).expect("configuration");
        let end = bed.strict_end("12.srv").exits(0);
        end.complains("going on with the directories that it names");
        fs::write(&config, &good).expect("configuration");
        bed.assert_as_before(broken);
    }
}

#[test]
fn an_unknown_user_is_undetermined_and_root_is_refused() {
    let bed = NodeBed::new(fast(1), "deadline_s = 5\n");
    let stranger = "nobody-of-this-name";
    for (user, code, words) in [
        (stranger, 2, [stranger, "not known on this node"]),
        ("root", 1, ["root", "allowed"]),
    ] {
        let mut args = prologue_args("12.srv", "MPS=true");
        args[3] = user;
        says(&bed, &bed.prologue(&args, &[]), code, &words);
    }
    // An epilogue that names no job finds no node as it was.
    bed.strict_end("../12").exits(2);
}

/// All at once, because each waits for a scheduler to drain its node.
#[test]
fn an_unusable_configuration_is_the_nodes_and_names_the_key() {
    type Spoil = fn(&NodeBed);
    let cases: [(Spoil, &[&str]); 3] = [
        // The job's tasks would obey nothing in a run_dir that others could change.
        (
            |bed| chmod(&bed.directory("run/jobs"), 0o777),
            &["run_dir: '", "(mode 0777): chmod go-w"],
        ),
        (
            |bed| bed.configure("colour = 1\n"),
            &["mpsd.toml", "colour"],
        ),
        // A user who may write it could make root run any program.
        (|bed| chmod(&bed.config(), 0o666), &["mpsd.toml"]),
    ];
    // The place of the node's counters is in the file, or unknown. Those of the usual place are
    // another node's.
    let counters = || {
        fs::metadata("/var/lib/mpsd/reports/counters")
            .ok()?
            .modified()
            .ok()
    };
    let before = counters();
    let node = nix::unistd::gethostname().expect("name");
    let line = format!("MPS is misconfigured on {} (not your job)", node.display());
    std::thread::scope(|scope| {
        for (spoil, words) in cases {
            let line = &line;
            scope.spawn(move || {
                let bed = NodeBed::new(fast(1), "");
                spoil(&bed);
                let ran = bed.torque_on_gpu_0("14.srv", "MPS=true");
                says(&bed, &ran, 2, &[words, &[line]].concat());
            });
        }
    });
    assert_eq!(counters(), before);
}

#[test]
fn a_job_that_did_not_ask_costs_nothing_and_touches_nothing() {
    let bed = NodeBed::new(fast(1), "");
    // A program that read this configuration would fail, and so would one that asked NVML on a node
    // without it.
    fs::write(bed.config(), "not = [ a configuration\n").expect("write");
    fs::remove_file(bed.node.nvml()).expect("remove");
    let (run, state) = (bed.path("run"), bed.path("state"));
    let watched = Watched::new(&[bed.config(), run, state, bed.node.dir().to_owned()]);
    for account in ["MPSLAB", "mps_physics", "", "proj42;team=MPS", "MPS=off"] {
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..20 {
            let ran = bed.torque_on_gpu_0("15.srv", account);
            ran.prints_only("");
            times.push(ran.took);
        }
        assert_eq!(watched.events(), 0, "{account:?} touched something");
        bed.assert_as_before(account);
        let made = bed.path("run/jobs").exists();
        assert!(!made, "{account:?} made a directory");
        watched.events();
        // The slower runs waited for a processor.
        let fastest = times.iter().min().expect("a time");
        // An unoptimized build gets a multiple; the release build must keep the exact limit.
        let times_free = if cfg!(debug_assertions) { 8 } else { 1 };
        assert!(*fastest < FREE * times_free, "{account:?} took {times:?}");
    }
    // The watch itself works: it sees that a job that asks reads the configuration.
    bed.torque_on_gpu_0("15.srv", "MPS=true").exits(2);
    assert!(watched.events() > 0, "the watch saw nothing");
}

/// Files and directories whose openings and changes the kernel counts.
struct Watched(Inotify);

impl Watched {
    fn new(paths: &[PathBuf]) -> Self {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK).expect("inotify");
        let mask = AddWatchFlags::IN_OPEN | AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE;
        for path in paths {
            inotify.add_watch(path, mask).expect("watch");
        }
        Self(inotify)
    }

    fn events(&self) -> usize {
        let batches = std::iter::from_fn(|| self.0.read_events().ok());
        batches.map(|events| events.len()).sum()
    }
}

#[test]
fn a_ceiling_is_refused_in_the_words_of_the_place_where_the_request_was_found() {
    let bed = NodeBed::new(fast(1), "[ceilings]\nthreads = 50\n");
    let openpbs = |option: &str, text: &str| {
        let words = ["--scheduler", "openpbs", option, text, "--gpus", "0"];
        bed.prologue(&[&words[..], &["57.srv", USER, "nogroup"]].concat(), &[])
    };
    let resource = openpbs("--resource", "on+threads=80");
    says(&bed, &resource, 1, &["mps=threads=80", "ceiling of 50"]);
    resource.lacks("MPS_THREADS");
    let account = openpbs("--account", "MPS=true,MPS_THREADS=80");
    says(&bed, &account, 1, &["MPS_THREADS=80", "ceiling of 50"]);
}

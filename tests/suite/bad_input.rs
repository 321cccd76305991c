//! What a user may type wrongly and what a node may lack: one clear line, an exit code, nothing left; and a job that
//! did not ask is not touched at all.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tests::stage::Ran;

use tests::place::{Place, fast};
use tests::stage::prologue_args;

/// A job without MPS may cost no more than this.
const FREE: Duration = Duration::from_millis(5);

/// Asserts the exit code, one line on standard error that holds every word, and a node as before.
#[track_caller]
fn says(place: &Place, ran: &Ran, code: i32, words: &[&str]) {
    assert_eq!(ran.code, Some(code), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "one line: {ran:?}");
    assert!(ran.err.len() < 400, "short: {ran:?}");
    assert!(ran.out.is_empty(), "{ran:?}");
    for word in words {
        assert!(ran.err.contains(word), "'{word}' is missing in {:?}", ran.err);
    }
    assert!(
        !ran.err.contains('\x1b') && !ran.err.trim_end().contains(char::is_control),
        "{ran:?}"
    );
    place.assert_as_before(&ran.err);
    place.assert_not_drained(&ran.err);
}

#[test]
fn what_the_user_typed_is_refused_by_name_with_what_is_allowed() {
    let place = Place::new(fast(1), "");
    let long = format!("MPS=true,{}", "x".repeat(10 * 1024));
    let cases: [(&str, &[&str]); 11] = [
        (
            "MPS=true,MPS_THREADS=0",
            &["MPS_THREADS=0", "allowed", "1 to 100"],
        ),
        (
            "MPS=true,MPS_THREADS=101",
            &["MPS_THREADS=101", "allowed", "1 to 100"],
        ),
        (
            "MPS=true,MPS_THREADS=abc",
            &["MPS_THREADS=abc", "allowed", "1 to 100"],
        ),
        (
            "MPS=true,MPS_THREADS=NaN",
            &["MPS_THREADS=NaN", "allowed", "1 to 100"],
        ),
        ("MPS=true,MPS_MEM=3X", &["MPS_MEM=3X", "allowed", "4G"]),
        ("MPS=true,MPS_MEM=4", &["MPS_MEM=4", "unit", "allowed"]),
        ("MPS=true,MPS_MEM=0G", &["MPS_MEM=0G", "allowed"]),
        ("MPS=maybe", &["MPS=maybe", "allowed", "per-gpu"]),
        (
            "MPS=true,MPS_COLOUR=red",
            &["MPS_COLOUR", "allowed", "MPS_THREADS"],
        ),
        ("MPS=true,MPS_THR\x1b[31mEADS=5,MPS_MEM=\x07", &["allowed"]),
        (&long, &["1024", "allowed"]),
    ];
    for (account, words) in cases {
        says(&place, &place.stage.torque("11.srv", account), 1, words);
    }
}

#[test]
fn a_job_id_that_could_be_a_path_is_refused() {
    let place = Place::new(fast(1), "");
    let ids = [
        ("../../etc", "'../../etc'"),
        ("47/11", "'47/11'"),
        ("..", "'..'"),
        ("47..11", "'47..11'"),
        ("a\nb", "'a?b'"),
    ];
    for (id, shown) in ids {
        let ran = place.stage.torque(id, "MPS=true");
        says(&place, &ran, 1, &["job id", shown, "allowed"]);
        let end = place.stage.torque_end(id);
        assert_eq!(end.code, Some(0), "{end:?}");
        place.assert_as_before(id);
    }
}

#[test]
fn an_unknown_user_is_undetermined_and_root_is_refused() {
    let place = Place::new(fast(1), "deadline_s = 5\n");
    let with_user = |user: &str| {
        let mut args = prologue_args("12.srv", "MPS=true");
        args[3] = user;
        place.stage.prologue(&args, &[])
    };
    let unknown = with_user("nobody-of-this-name");
    says(
        &place,
        &unknown,
        2,
        &["nobody-of-this-name", "not known on this node"],
    );
    says(&place, &with_user("root"), 1, &["root", "allowed"]);
}

#[test]
fn a_missing_or_foreign_control_daemon_is_the_nodes_fault() {
    // The drain is switched off: on a machine without a scheduler it could only be spooled.
    let place = Place::new(fast(1), "deadline_s = 3\n[drain]\nenabled = false\n");
    let control = place.stage.node.control();
    let words = ["nvidia-cuda-mps-control"];
    fs::set_permissions(&control, fs::Permissions::from_mode(0o777)).expect("chmod");
    says(&place, &place.stage.torque("13.srv", "MPS=true"), 2, &words);
    fs::remove_file(&control).expect("remove");
    says(&place, &place.stage.torque("13.srv", "MPS=true"), 2, &words);
}

#[test]
fn an_unusable_configuration_is_the_nodes_and_names_the_key() {
    let place = Place::new(fast(1), "");
    let torque = || place.stage.torque("14.srv", "MPS=true");
    place.configure("colour = \"red\"\n");
    says(&place, &torque(), 2, &["mpsd.toml", "colour"]);
    place.configure("max_clients = \"many\"\n");
    says(&place, &torque(), 2, &["mpsd.toml:7:15", "\"many\""]);
    fs::write(place.stage.config(), "run_dir = [\n").expect("write");
    says(&place, &torque(), 2, &["mpsd.toml"]);
    // Others may write it: anybody could make root run a program of theirs.
    place.configure("");
    fs::set_permissions(place.stage.config(), fs::Permissions::from_mode(0o666)).expect("chmod");
    says(&place, &torque(), 2, &["mpsd.toml"]);
    // What root cannot read: no file there, or a directory in its place.
    fs::remove_file(place.stage.config()).expect("remove");
    says(&place, &torque(), 2, &["mpsd.toml"]);
    fs::create_dir(place.stage.config()).expect("mkdir");
    says(&place, &torque(), 2, &["mpsd.toml"]);
}

#[test]
fn a_job_that_did_not_ask_costs_nothing_and_touches_nothing() {
    let place = Place::new(fast(1), "");
    // Whoever used this configuration would fail, and whoever looked at the GPUs met a node without NVML.
    fs::write(place.stage.config(), "not = [ a configuration\n").expect("write");
    fs::remove_file(place.stage.node.nvml()).expect("remove");
    let watched = Watched::new(&[
        place.stage.config(),
        place.stage.path("run"),
        place.stage.path("state"),
        place.stage.node.dir().to_owned(),
    ]);
    for account in ["MPSLAB", "mps_physics", "", "proj42;team=MPS", "MPS=off"] {
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..20 {
            let ran = place.stage.torque("15.srv", account);
            let said = (ran.code, ran.err.as_str(), ran.out.as_str());
            assert_eq!(said, (Some(0), "", ""), "{account}");
            times.push(ran.took);
        }
        assert_eq!(watched.events(), 0, "{account:?} opened or changed something");
        place.assert_as_before(account);
        assert!(
            !place.stage.path("run/jobs").exists(),
            "{account:?} made a directory"
        );
        watched.events();
        // The others waited for a processor.
        let fastest = times.iter().min().expect("a time");
        // An unoptimised build gets a multiple; the release build is held to the word.
        let allowed = if cfg!(debug_assertions) { FREE * 8 } else { FREE };
        assert!(*fastest < allowed, "{account:?} took {times:?}");
    }
    // The watch itself works: a job that asks does read the configuration.
    let asked = place.stage.torque("15.srv", "MPS=true");
    assert_eq!(asked.code, Some(2), "{asked:?}");
    assert!(watched.events() > 0, "the watch saw nothing");
}

/// Files and directories of which every opening and change is told by the kernel.
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

    /// How many there were since the last call.
    fn events(&self) -> usize {
        let mut all = 0;
        while let Ok(events) = self.0.read_events() {
            all += events.len();
        }
        all
    }
}

#[test]
fn a_ceiling_is_refused_in_the_words_of_the_place_where_the_request_was_found() {
    let place = Place::new(fast(1), "[ceilings]\nthreads = 50\n");
    let openpbs = |option: &str, text: &str| {
        let words = ["--scheduler", "openpbs", option, text, "--gpus", "0"];
        let job = ["57.srv", tests::stage::USER, "nogroup"];
        place.stage.prologue(&[&words[..], &job[..]].concat(), &[])
    };
    let resource = openpbs("--resource", "on+threads=80");
    says(&place, &resource, 1, &["mps=threads=80", "ceiling of 50"]);
    assert!(!resource.err.contains("MPS_THREADS"), "{resource:?}");
    let account = openpbs("--account", "MPS=true,MPS_THREADS=80");
    says(&place, &account, 1, &["MPS_THREADS=80", "ceiling of 50"]);
}

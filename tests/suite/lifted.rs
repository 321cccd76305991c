//! The owner of a control daemon lifts its limits through it: their own log and root's report say so, and no node is drained.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use tests::double::look::wait_until;
use tests::figures;
use tests::place::{Place, fast};
use tests::stage::{USER, as_user};

/// A reading, and one more ten seconds later.
const SOON: Duration = Duration::from_secs(20);

fn served(job: &str) -> Place {
    let place = Place::new(fast(1), "deadline_s = 6\n");
    let ran = place.torque(job, "MPS=true,MPS_THREADS=25,MPS_MEM=1G", "0");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    place
}

fn log(place: &Place, job: &str, name: &str) -> String {
    fs::read_to_string(place.stage.job(job).join("log").join(name)).unwrap_or_default()
}

/// A session of the job's owner with its control daemon.
#[track_caller]
fn say(place: &Place, job: &str, lines: &str) {
    let mut command = as_user(USER, place.stage.node.control());
    command.env_clear().envs([place.pipe(job)]);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().expect("a session");
    let mut to = child.stdin.take().expect("stdin");
    writeln!(to, "{lines}").expect("the session reads");
    drop(to);
    assert!(child.wait().is_ok_and(|status| status.success()), "{lines}");
}

/// The job's GPU, as its control daemon was told of it.
#[track_caller]
fn gpu(place: &Place, job: &str) -> String {
    let log = log(place, job, "control.log");
    let set = log.split("Cmd:set_default_device_pinned_mem_limit ").nth(1);
    set.and_then(|rest| rest.split(' ').next())
        .unwrap_or_else(|| panic!("{log}"))
        .to_owned()
}

/// How often the job's `mpsd` has slept and woken.
fn sleeps(place: &Place) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", place.pids("mpsd").first()?)).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line?.trim().parse().ok()
}

/// Two seconds without a wake-up of its `mpsd`, once it has done what there was to do.
#[track_caller]
fn assert_sleeps(place: &Place) {
    let quiet = || {
        let before = sleeps(place);
        std::thread::sleep(Duration::from_secs(2));
        before.is_some() && sleeps(place) == before
    };
    assert!(wait_until(SOON, quiet), "mpsd goes on waking up");
}

#[test]
fn limits_that_their_owner_lifts_are_told_to_the_user_and_in_the_report() {
    let (place, job) = (served("470.srv"), "470.srv");
    let gpu = gpu(&place, job);
    say(
        &place,
        job,
        &format!("set_default_active_thread_percentage 100\nset_default_device_pinned_mem_limit {gpu} 8G"),
    );
    let threads = "active thread percentage: 25 was asked for, and it says 100.0";
    let memory = format!("memory limit 1024M of {gpu}: 1024M was asked for, and it says 8G");
    let told = || {
        let text = log(&place, job, "mpsd.log");
        text.contains(threads) && text.contains(&memory)
    };
    assert!(wait_until(SOON, told), "{}", log(&place, job, "mpsd.log"));
    assert_sleeps(&place);
    // Each is said once, however often its owner says it again.
    say(&place, job, "set_default_active_thread_percentage 100");
    assert_sleeps(&place);
    let text = log(&place, job, "mpsd.log");
    assert_eq!(text.matches(threads).count(), 1, "{text}");
    assert!(
        !text.contains("the vendor's log says"),
        "a command is no fault: {text}"
    );
    place.assert_ends_clean(job, "limits that their owner lifted");
    place.assert_not_drained("limits that their owner lifted");

    let ran = place.stage.run("mpsctl", &["report", job], &[]);
    for words in [threads, &memory] {
        let line = format!("the user had the control daemon change a limit: {words}");
        assert!(ran.out.contains(&line), "'{line}' in {ran:?}");
    }
    let ran = place.stage.run("mpsctl", &["report", job, "--json"], &[]);
    let report: serde_json::Value = serde_json::from_str(&ran.out).expect("a report");
    let changed = &report["said_by_user"]["limits_changed"];
    assert_eq!(
        (&changed[0]["asked"], &changed[0]["said"]),
        (&"25".into(), &"100.0".into()),
        "{report}"
    );
    assert_eq!(report["as_before"], true, "{report}");
    figures::tell("faults", 1);
}

#[test]
fn where_no_limit_was_changed_nothing_is_said() {
    let (place, job) = (served("471.srv"), "471.srv");
    let before = log(&place, job, "mpsd.log");
    say(
        &place,
        job,
        "get_default_active_thread_percentage\nget_server_list",
    );
    assert_sleeps(&place);
    let commands = |place: &Place| log(place, job, "control.log").matches("Cmd:get_default").count();
    let read = commands(&place);
    // To the value that it has: it is read back, and holds.
    say(&place, job, "set_default_active_thread_percentage 25");
    assert!(
        wait_until(SOON, || commands(&place) > read),
        "{}",
        log(&place, job, "control.log")
    );
    assert_sleeps(&place);
    assert_eq!(log(&place, job, "mpsd.log"), before);
    place.assert_ends_clean(job, "limits that nobody changed");
    let ran = place.stage.run("mpsctl", &["report", job], &[]);
    assert!(
        ran.code == Some(0) && !ran.out.contains("change a limit"),
        "{ran:?}"
    );
}

//! The owner of a control daemon removes its limits. The job's log and root's report say so, and no
//! node is drained.

use std::time::Duration;

use tests::double::look::wait_until;
use tests::place::{Place, eventually, fast, status_of};

/// One reading, and another ten seconds later.
const SOON: Duration = Duration::from_secs(20);

fn served(job: &str) -> Place {
    let account = "MPS=true,MPS_THREADS=25,MPS_MEM=1G";
    Place::with_job(fast(1), "deadline_s = 6\n", job, account, "0")
}

#[track_caller]
fn gpu(place: &Place, job: &str) -> String {
    let log = place.log(job, "control.log");
    let set = log.split("Cmd:set_default_device_pinned_mem_limit ").nth(1);
    let name = set.and_then(|rest| rest.split(' ').next());
    name.unwrap_or_else(|| panic!("{log}")).to_owned()
}

/// Its `mpsd` has no wake-up for two seconds, once it has finished its work.
#[track_caller]
fn assert_sleeps(place: &Place) {
    let mpsd = place.pids("mpsd")[0];
    let quiet = || {
        let before = status_of(mpsd, "voluntary_ctxt_switches");
        std::thread::sleep(Duration::from_secs(2));
        !before.is_empty() && status_of(mpsd, "voluntary_ctxt_switches") == before
    };
    assert!(wait_until(SOON, quiet), "mpsd goes on waking up");
}

#[test]
fn limits_that_their_owner_lifts_are_told_to_the_user_and_in_the_report() {
    let (place, job) = (served("470.srv"), "470.srv");
    let said = place.log(job, "mpsd.log");
    place.say(job, "get_default_active_thread_percentage\nget_server_list");
    assert_sleeps(&place);
    let log_of_control = || place.log(job, "control.log");
    let readings = || log_of_control().matches("Cmd:get_default").count();
    let read = readings();
    // The value does not change: mpsd reads it back, and it is in force.
    place.say(job, "set_default_active_thread_percentage 25");
    eventually("mpsd reads it back", || readings() > read);
    assert_sleeps(&place);
    assert_eq!(place.log(job, "mpsd.log"), said, "no limit has changed");
    let gpu = gpu(&place, job);
    let lines = format!(
        "set_default_active_thread_percentage 100\nset_default_device_pinned_mem_limit {gpu} 8G"
    );
    place.say(job, &lines);
    let threads = "active thread percentage: 25 was asked for, and it says 100.0";
    let memory = format!("memory limit 1024M of {gpu}: 1024M was asked for, and it says 8G");
    let log = || place.log(job, "mpsd.log");
    eventually("mpsd tells of both", || {
        log().contains(threads) && log().contains(&memory)
    });
    assert_sleeps(&place);
    // Each change is reported once, however often its owner repeats it.
    place.say(job, "set_default_active_thread_percentage 100");
    assert_sleeps(&place);
    assert_eq!(log().matches(threads).count(), 1, "{}", log());
    let as_fault = log().contains("the vendor's log says");
    assert!(!as_fault, "a command is no fault: {}", log());
    place.assert_ends_clean(job, "limits that their owner lifted");

    let ran = place.mpsctl(&["report", job]);
    for words in [threads, &memory] {
        ran.prints(format!(
            "the user had the control daemon change a limit: {words}"
        ));
    }
    let report = place.mpsctl(&["report", job, "--json"]).json();
    let changed = &report["said_by_user"]["limits_changed"][0];
    assert_eq!(changed["asked"], "25", "{report}");
    assert_eq!(changed["said"], "100.0", "{report}");
    assert_eq!(report["as_before"], true, "{report}");
}

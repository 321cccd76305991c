//! Several jobs, several epilogues, somebody else's hands: the accounts of the GPUs and what an epilogue may rely on.

use std::time::Duration;

use tests::double::look::wait_until;
use tests::place::{Place, fast, kill};
use tests::stage::USER;

const CONFIG: &str = "deadline_s = 6\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";

/// Starts a client in the job's MPS; whether it found itself in it.
fn client_is_served(place: &Place, job: &str) -> bool {
    let pipe = place.stage.job(job).join("pipe").display().to_string();
    let env = [("CUDA_MPS_PIPE_DIRECTORY".to_owned(), pipe)];
    let ran = place.stage.client(&[] as &[&str], &env);
    let record: serde_json::Value =
        serde_json::from_str(ran.out.lines().next().unwrap_or("")).unwrap_or_default();
    ran.code == Some(0) && record["under_mps"] == true && record["sms"] == 32
}

/// How often what only a race shows is tried.
const ROUNDS: u64 = 4;

#[test]
fn the_last_of_two_jobs_on_a_gpu_restores_the_mode() {
    let place = Place::new(fast(1), CONFIG);
    assert_eq!(place.torque("60.srv", ACCOUNT, "0").code, Some(0));
    assert_eq!(place.stage.node.modes(), ["exclusive_process"]);
    // The real GPU would not take a second server in this mode; the accounts must hold in any case.
    let second = place.torque("61.srv", ACCOUNT, "0");
    assert_eq!(place.strict_end("60.srv").code, Some(0));
    if second.code == Some(0) {
        assert_eq!(
            place.stage.node.modes(),
            ["exclusive_process"],
            "the second still holds it"
        );
    }
    assert_eq!(place.strict_end("61.srv").code, Some(0));
    place.assert_as_before("two jobs on one GPU");
}

#[test]
fn a_mode_that_an_admin_changed_meanwhile_is_left_alone() {
    let place = Place::new(fast(2), CONFIG);
    assert_eq!(place.torque("62.srv", ACCOUNT, "0,1").code, Some(0));
    let uuids = place.stage.node.uuids();
    place.stage.node.set_mode(&uuids[0], "prohibited");
    assert_eq!(place.strict_end("62.srv").code, Some(0));
    assert_eq!(place.stage.node.modes(), ["prohibited", "default"]);
    place.stage.node.set_mode(&uuids[0], "default");
    place.assert_as_before("a mode that somebody changed");
}

#[test]
fn a_mode_found_exclusive_is_found_exclusive_again() {
    let place = Place::new(
        fast(1).describe(|d| d.gpu[0].mode = "exclusive_process".into()),
        CONFIG,
    );
    assert_eq!(place.torque("63.srv", ACCOUNT, "0").code, Some(0));
    assert_eq!(place.strict_end("63.srv").code, Some(0));
    place.assert_as_before("a mode found exclusive");
}

#[test]
fn epilogues_at_once_twice_and_for_nothing() {
    let place = Place::new(fast(1), CONFIG);
    assert_eq!(place.strict_end("64.srv").code, Some(0), "no prologue before it");
    place.assert_as_before("an epilogue without a prologue");
    assert_eq!(place.torque("64.srv", ACCOUNT, "0").code, Some(0));
    let mut all: Vec<_> = (0..4).map(|_| place.start_end("64.srv")).collect();
    for epilogue in &mut all {
        assert_eq!(epilogue.wait(), Some(0));
    }
    place.assert_not_drained("four epilogues at once");
    place.assert_as_before("four epilogues at once");
    assert_eq!(place.strict_end("64.srv").code, Some(0));
    place.assert_as_before("one more");
}

/// What a restarted mom, a requeued job and the timer do to one job, all of them at once.
#[test]
fn beginnings_and_ends_of_one_job_all_at_once_are_no_evidence_and_leave_nothing() {
    let place = Place::new(fast(1), CONFIG);
    for round in 0..ROUNDS {
        let mut all = Vec::new();
        for other in 0..6 {
            all.push(if (round + other) % 3 == 0 {
                place.start_torque("72.srv", ACCOUNT, "0")
            } else {
                place.start_end("72.srv")
            });
            std::thread::sleep(Duration::from_millis((7 * round + 13 * other) % 29));
        }
        for program in &mut all {
            assert!(program.wait().is_some(), "no signal");
        }
        place.assert_ends_clean("72.srv", &format!("six at once, round {round}"));
    }
}

#[test]
fn an_epilogue_during_the_prologue_waits_or_takes_what_is_there() {
    let place = Place::new(fast(1).times(|t| t.server_ready = (150, 150)), CONFIG);
    for pause in [0, 20, 60, 120] {
        let mut prologue = place.start_torque("65.srv", ACCOUNT, "0");
        std::thread::sleep(Duration::from_millis(pause));
        let mut epilogue = place.start_end("65.srv");
        assert!(prologue.wait().is_some(), "no signal");
        assert_eq!(epilogue.wait(), Some(0));
        assert_eq!(place.strict_end("65.srv").code, Some(0));
        place.assert_as_before(&format!("an epilogue {pause} ms after the prologue began"));
        place.assert_not_drained("an epilogue during the prologue");
    }
}

#[test]
fn an_epilogue_needs_nothing_but_the_directories_of_the_configuration() {
    let place = Place::new(fast(1), CONFIG);
    assert_eq!(place.torque("66.srv", ACCOUNT, "0").code, Some(0));
    // Keys may stand once only: the site's new file has other paths for both of the vendor's things.
    let old = std::fs::read_to_string(place.stage.config()).expect("configuration");
    let changed: String = old
        .lines()
        .filter(|l| !l.starts_with("control") && !l.starts_with("nvml"))
        .map(|l| format!("{l}\n"))
        .collect();
    let changed =
        changed + "control = \"/nowhere/control\"\nnvml = \"/nowhere/nvml\"\ncompute_mode = \"keep\"\n";
    std::fs::write(place.stage.config(), changed).expect("configuration");
    let ran = place.strict_end("66.srv");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    place.assert_as_before("a changed configuration");
}

#[test]
fn an_epilogue_without_a_configuration_says_so_and_looks_in_the_usual_place() {
    let place = Place::new(fast(1), CONFIG);
    std::fs::remove_file(place.stage.config()).expect("remove");
    let ran = place.strict_end("67.srv");
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("usual directories"), "{ran:?}");
}

#[test]
fn a_killed_mpsd_goes_on_serving_and_is_cleaned_up_behind() {
    for place in [
        Place::new(fast(1), CONFIG),
        Place::without_cgroup(fast(1), CONFIG),
    ] {
        assert_eq!(place.torque("68.srv", ACCOUNT, "0").code, Some(0));
        assert!(client_is_served(&place, "68.srv"));
        let mpsd = place.pids("mpsd");
        assert_eq!(mpsd.len(), 1);
        kill(mpsd[0], nix::sys::signal::Signal::SIGKILL);
        assert!(wait_until(Duration::from_secs(30), || place
            .pids("mpsd")
            .is_empty()));
        assert!(
            client_is_served(&place, "68.srv"),
            "the job's MPS goes on without mpsd"
        );
        assert_eq!(place.strict_end("68.srv").code, Some(0));
        place.assert_as_before("a killed mpsd");
    }
}

#[test]
fn a_killed_server_is_started_again_with_the_same_limits() {
    let place = Place::new(fast(1), CONFIG);
    assert_eq!(place.torque("69.srv", ACCOUNT, "0").code, Some(0));
    let server = place.pids("nvidia-cuda-mps-server");
    kill(server[0], nix::sys::signal::Signal::SIGKILL);
    assert!(wait_until(Duration::from_secs(30), || place
        .pids("nvidia-cuda-mps-server")
        != server));
    assert!(
        client_is_served(&place, "69.srv"),
        "a new server for {USER}, under the limits of the first"
    );
    let log =
        std::fs::read_to_string(place.stage.job("69.srv").join("log/mpsd.log")).expect("the user's log");
    assert!(log.contains(&format!("server {} died", server[0])), "{log}");
    assert_eq!(place.strict_end("69.srv").code, Some(0));
    place.assert_as_before("a killed server");
}

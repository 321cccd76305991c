//! Starts that fail for one user after another: evidence against the node where no user can have been the cause, and none
//! where any could.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use nix::unistd::{Uid, User};
use tests::double::look::{self, wait_until};
use tests::figures;
use tests::place::{Place, Running, fast};
use tests::scarcity::{Small, alone};
use tests::stage::{OTHER_USER, Ran, USER, as_user, openpbs_args};

const CONFIG: &str = "deadline_s = 4\n[drain]\non_failed_starts = true\n";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";

/// Users of this system without any process, as a job's user is before the job: the other tests' users have some.
fn quiet_users() -> [String; 2] {
    let busy: Vec<u32> = look::processes().iter().map(|process| process.uid).collect();
    let mut quiet = (1..1000)
        .filter(|uid| !busy.contains(uid))
        .filter_map(|uid| User::from_uid(Uid::from_raw(uid)).ok().flatten())
        .map(|user| user.name)
        .filter(|name| name != USER && name != OTHER_USER);
    let mut next = || quiet.next().expect("a user without processes");
    [next(), next()]
}

fn start(place: &Place, job: &str, user: &str) -> Ran {
    place.stage.prologue(&openpbs_args(job, user, ACCOUNT), &[])
}

/// A node on which no control daemon comes up.
fn stillborn() -> Place {
    Place::new(fast(1).fault(|f| f.start = "exits".into()), CONFIG)
}

/// Starts for two users fail one after the other; the second start.
fn two_fail(place: &Place, users: &[String; 2]) -> Ran {
    let first = start(place, "110.srv", &users[0]);
    assert_eq!(first.code, Some(2), "{first:?}");
    place.assert_not_drained("a start that failed for one user");
    start(place, "111.srv", &users[1])
}

#[track_caller]
fn no_evidence(place: &Place, users: &[String; 2], after: &str) {
    let second = two_fail(place, users);
    assert_eq!(second.code, Some(2), "{after}: {second:?}");
    place.assert_not_drained(after);
    place.assert_as_before(after);
    figures::tell("faults", 1);
}

/// A process of this user.
fn asleep(user: &str) -> Running {
    let mut command = as_user(user, "/bin/sleep");
    let child = command
        .arg("60")
        .env_clear()
        .stdin(Stdio::null())
        .spawn()
        .expect("sleeper");
    let pid = child.id();
    assert!(wait_until(Duration::from_secs(30), || {
        look::process(pid).is_some_and(|p| p.uid != 0 && p.exe.ends_with("sleep"))
    }));
    Running(child)
}

/// One test: the quiet users must stay so while it runs.
#[test]
fn starts_that_fail_for_two_users_drain_where_no_user_can_be_the_cause_and_nowhere_else() {
    let users = quiet_users();
    // Nobody was there: it is the node.
    let place = stillborn();
    let second = two_fail(&place, &users);
    let drains = place.take_drains();
    assert_eq!(drains.len(), 1, "{second:?}");
    assert!(drains[0].contains("starts of several users failed"), "{drains:?}");
    place.assert_as_before("two users' starts");

    // A site that says nothing: the administrator is told, since two users who work together can bring it about.
    let place = stillborn();
    place.configure("deadline_s = 4\n");
    no_evidence(&place, &users, "a site that drains for no failed start");
    let told = place.stage.run("mpsctl", &["reconcile"], &[]);
    assert_eq!(told.code, Some(2), "{told:?}");
    let what = "starts of 2 users failed on this node";
    assert!(told.out.contains(what), "{told:?}");
    assert!(told.out.contains("the last one of job 111.srv"), "{told:?}");
    let conf = place.stage.path("slurm.conf");
    std::fs::write(&conf, "GresTypes=gpu\n").expect("slurm.conf");
    let conf = conf.display().to_string();
    let told = place
        .stage
        .run("mpsctl", &["slurm", "check", "--slurm-conf", &conf], &[]);
    let line = told
        .out
        .lines()
        .find(|line| line.starts_with("WARN") && line.contains(what));
    assert!(
        line.is_some_and(|line| line.contains("the last one of job 111.srv") && line.contains(" s ago")),
        "{told:?}"
    );

    // The second user has a process here.
    let sleeper = asleep(&users[1]);
    no_evidence(&stillborn(), &users, "a process of the second user");
    drop(sleeper);
    // Or the first had one when theirs failed.
    let place = stillborn();
    let sleeper = asleep(&users[0]);
    let first = start(&place, "110.srv", &users[0]);
    assert_eq!(first.code, Some(2), "{first:?}");
    drop(sleeper);
    assert_eq!(start(&place, "111.srv", &users[1]).code, Some(2));
    place.assert_not_drained("a process of the first user");
    place.assert_as_before("a process of the first user");
    figures::tell("faults", 1);

    held_by_somebody(&users);
    full(&users);
    long_ago(&users);
}

/// Somebody's program holds the GPU: contention.
fn held_by_somebody(users: &[String; 2]) {
    let place = stillborn();
    let mut command = as_user(USER, place.stage.node.client());
    command
        .arg("--node")
        .arg(place.stage.node.dir())
        .args(["--hold", "60"])
        .env_clear();
    // No daemon where it looks: it runs outside MPS.
    command.env("CUDA_MPS_PIPE_DIRECTORY", place.stage.path("nowhere"));
    let holder = Running(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .expect("client"),
    );
    assert!(wait_until(Duration::from_secs(30), || !place
        .stage
        .node
        .contexts()
        .is_empty()));
    let second = two_fail(&place, users);
    assert_eq!(second.code, Some(2), "{second:?}");
    place.assert_not_drained("a GPU that somebody holds");
    drop(holder);
    place.assert_as_before("a GPU that somebody holds");
    figures::tell("faults", 1);
}

/// A third user's job has filled the file system that everybody's pipes lie in.
fn full(users: &[String; 2]) {
    alone(|| {
        let place = stillborn();
        let small = Small::over(&place.stage.path("run"), 256, 0o755);
        small.leave(100);
        let second = two_fail(&place, users);
        small.free();
        assert_eq!(second.code, Some(2), "{second:?}");
        place.assert_not_drained("a full file system");
        place.assert_as_before("a full file system");
        figures::tell("faults", 1);
    });
}

/// The first failure is older than the site's window.
fn long_ago(users: &[String; 2]) {
    let place = stillborn();
    place.configure(&format!("{CONFIG}failed_starts_window_s = 60\n"));
    let first = start(&place, "110.srv", &users[0]);
    assert_eq!(first.code, Some(2), "{first:?}");
    // What root noted of it is made two minutes older.
    let note = place.stage.path("run/failed-starts");
    let text = std::fs::read(&note).expect("the first failure is noted");
    let mut failures: BTreeMap<u32, serde_json::Value> =
        serde_json::from_slice(&text).expect("failures by user");
    assert_eq!(failures.len(), 1, "{failures:?}");
    for failure in failures.values_mut() {
        assert_eq!(failure["job"], "110.srv", "{failure}");
        failure["when"] = (failure["when"].as_u64().expect("seconds") - 120).into();
    }
    std::fs::write(&note, serde_json::to_vec(&failures).expect("JSON")).expect("note");
    let second = start(&place, "111.srv", &users[1]);
    assert_eq!(second.code, Some(2), "{second:?}");
    place.assert_not_drained("a failure of long ago");
    figures::tell("faults", 1);
}

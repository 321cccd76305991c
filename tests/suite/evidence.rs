//! Starts that fail for one user after another. The administrator is told of them only if no user
//! can be the cause.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Stdio;

use tests::double::look;
use tests::figures;
use tests::place::{Place, Running, eventually, fast};
use tests::scarcity::{Small, alone};
use tests::stage::{OTHER_USER, Ran, USER, as_user, openpbs_args};

const CONFIG: &str = "deadline_s = 4\n";
const TOLD: &str = "starts of 2 users failed on this node";
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25,MPS_MEM=4G";

/// Users of this system without any process, as a job's user is before the job. The other tests'
/// users have some. The names keep them from other runs of this test on this machine.
fn quiet_users() -> ([String; 2], [UnixListener; 2]) {
    let mut quiet = (1..1000)
        .filter_map(users::get_user_by_uid)
        .map(|user| (user.uid(), user.name().to_string_lossy().into_owned()))
        .filter(|(_, user)| user != USER && user != OTHER_USER)
        .filter_map(|(uid, user)| {
            let name = format!("mpsd-test-user-{user}");
            let name = SocketAddr::from_abstract_name(name).ok()?;
            let lock = UnixListener::bind_addr(&name).ok()?;
            let busy = look::processes().iter().any(|process| process.uid == uid);
            (!busy).then_some((user, lock))
        });
    let mut next = || quiet.next().expect("a user without processes");
    let [(one, first), (other, second)] = [next(), next()];
    ([one, other], [first, second])
}

fn start(place: &Place, job: &str, user: &str) -> Ran {
    place.prologue(&openpbs_args(job, user, ACCOUNT), &[])
}

fn stillborn() -> Place {
    Place::new(fast(1).fault(|f| f.start = "exits".into()), CONFIG)
}

/// Starts fail for two users, one after the other.
fn two_fail(place: &Place, users: &[String; 2]) {
    start(place, "110.srv", &users[0]).exits(2);
    place.mpsctl(&["reconcile"]).lacks(TOLD);
    start(place, "111.srv", &users[1]).exits(2);
}

#[track_caller]
fn untold(place: &Place, after: &str) {
    place.mpsctl(&["reconcile"]).lacks(TOLD);
    place.assert_as_before(after);
    figures::tell("faults", 1);
}

fn asleep(user: &str) -> Running {
    let mut command = as_user(user, "/bin/sleep");
    let sleeper = Running::start(command.arg("60").env_clear().stdin(Stdio::null()));
    let is_it = |p: look::Process| p.uid != 0 && p.exe.ends_with("sleep");
    eventually("it sleeps", || {
        look::process(sleeper.pid()).is_some_and(is_it)
    });
    sleeper
}

/// A single test, because the quiet users must stay quiet while it runs.
#[test]
fn starts_that_fail_for_two_users_are_told_where_no_user_can_be_the_cause_and_nowhere_else() {
    let (users, _locks) = quiet_users();
    // No user had a process, so the node is the cause.
    // It is not drained, because two users who work together can cause it.
    let place = stillborn();
    two_fail(&place, &users);
    place.assert_as_before("two users' starts");
    let told = place.mpsctl(&["reconcile"]).exits(2);
    let last = "the last one of job 111.srv";
    told.prints(TOLD).prints(last);
    let conf = place.path("slurm.conf");
    std::fs::write(&conf, "GresTypes=gpu\n").expect("slurm.conf");
    let conf = conf.display().to_string();
    let told = place.mpsctl(&["slurm", "check", "--slurm-conf", &conf]);
    let is_it = |line: &str| {
        line.starts_with("WARN") && [TOLD, last, " s ago"].iter().all(|w| line.contains(w))
    };
    assert!(told.out.lines().any(is_it), "{told:?}");

    // The second user has a process here.
    let sleeper = asleep(&users[1]);
    let place = stillborn();
    two_fail(&place, &users);
    untold(&place, "a process of the second user");
    drop(sleeper);
    // Or the first had one when their start failed.
    let place = stillborn();
    let sleeper = asleep(&users[0]);
    start(&place, "110.srv", &users[0]).exits(2);
    drop(sleeper);
    start(&place, "111.srv", &users[1]).exits(2);
    untold(&place, "a process of the first user");

    held_by_another(&users);
    full(&users);
    long_ago(&users);
}

fn held_by_another(users: &[String; 2]) {
    let place = stillborn();
    // There is no daemon, so it runs outside MPS.
    let outside = [("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent")];
    let holder = place.attached("none", &["--hold", "60"], &outside);
    two_fail(&place, users);
    drop(holder);
    untold(&place, "a GPU that another program holds");
}

fn full(users: &[String; 2]) {
    alone(|| {
        let place = stillborn();
        let small = Small::over(&place.path("run"), 256, 0o755);
        small.leave(100);
        for (job, user) in ["110.srv", "111.srv"].into_iter().zip(users) {
            start(&place, job, user).exits(2);
        }
        small.free();
        untold(&place, "a full file system");
    });
}

fn long_ago(users: &[String; 2]) {
    let place = stillborn();
    start(&place, "110.srv", &users[0]).exits(2);
    // Makes root's note eleven minutes older.
    let note = place.path("run/ledger");
    let text = std::fs::read(&note).expect("the first failure is noted");
    let mut ledger: serde_json::Value = serde_json::from_slice(&text).expect("a ledger");
    let failures = ledger["failed_starts"]
        .as_object_mut()
        .expect("failures by user");
    assert_eq!(failures.len(), 1, "{failures:?}");
    for failure in failures.values_mut() {
        assert_eq!(failure["job"], "110.srv", "{failure}");
        failure["when"] = (failure["when"].as_u64().expect("seconds") - 660).into();
    }
    std::fs::write(&note, serde_json::to_vec(&ledger).expect("JSON")).expect("note");
    start(&place, "111.srv", &users[1]).exits(2);
    untold(&place, "a failure of long ago");
}

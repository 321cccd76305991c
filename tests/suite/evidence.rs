//! Starts that fail for one user after another, of which the administrator is told.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::Stdio;

use tests::double::look;
use tests::figures;
use tests::place::{Place, Running, eventually, fast};
use tests::stage::{OTHER_USER, USER, as_user};

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

fn asleep(user: &str) -> Running {
    let mut command = as_user(user, "/bin/sleep");
    let sleeper = Running::start(command.arg("60").env_clear().stdin(Stdio::null()));
    let is_it = |p: look::Process| p.uid != 0 && p.exe.ends_with("sleep");
    eventually("it sleeps", || {
        look::process(sleeper.pid()).is_some_and(is_it)
    });
    sleeper
}

/// A single test, because the quiet users must stay quiet while it runs. `outcomes` tests what one
/// user can have caused.
#[test]
fn starts_that_fail_for_two_users_are_told_where_no_user_can_be_the_cause() {
    let (users, _locks) = quiet_users();
    // No user had a process, so the node is the cause.
    // It is not drained, because two users who work together can cause it.
    let place = Place::new(fast(1).fault(|f| f.start = "exits".into()), CONFIG);
    place.openpbs("110.srv", &users[0], ACCOUNT).exits(2);
    place.mpsctl(&["reconcile"]).lacks(TOLD);
    place.openpbs("111.srv", &users[1], ACCOUNT).exits(2);
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
    let _sleeper = asleep(&users[1]);
    std::fs::remove_file(place.path("run/ledger")).expect("a ledger");
    place.openpbs("110.srv", &users[0], ACCOUNT).exits(2);
    place.openpbs("111.srv", &users[1], ACCOUNT).exits(2);
    place.mpsctl(&["reconcile"]).lacks(TOLD);
    place.assert_as_before("a process of the second user");
    figures::tell("faults", 2);
}

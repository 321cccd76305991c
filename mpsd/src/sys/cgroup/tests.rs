use super::mounts::Mount;
use super::*;
use crate::sys::spawn::{Child, Identity, Spawn};
use crate::sys::testing::{STRANGER, alone, soon};

const BASE: &str = "mpsd-unit-test";

/// A cgroup that is emptied and removed whatever a test does, with what was there before.
struct Kept(Cgroup);

impl Drop for Kept {
    fn drop(&mut self) {
        let _ = self.0.kill(soon());
        let _ = empties(&self.0, soon());
        let _ = self.0.remove();
        // The tests' own directory; it goes with the last.
        if let Some(base) = self.0.path().parent().filter(|base| base.ends_with(BASE)) {
            let _ = std::fs::remove_dir(base);
        }
    }
}

/// The job's cgroup in every hierarchy of this machine; at least one, or nothing is tested here.
fn everywhere(job: &str) -> Vec<Kept> {
    let make = |mount: Mount| {
        let top = Dir::open(&mount.path).unwrap();
        Kept(Cgroup::make(&top, Some(BASE), job).unwrap())
    };
    let all: Vec<_> = mounts::usable().unwrap().into_iter().map(make).collect();
    assert!(
        !all.is_empty(),
        "this machine has no cgroup hierarchy to test with"
    );
    all
}

fn start(cgroup: &Cgroup, line: &str, user: bool) -> Child {
    let mut spawn = Spawn::new("/bin/sh");
    spawn.args = vec!["-c".into(), line.into()];
    spawn.env = vec![("PATH".into(), "/usr/bin:/bin".into())];
    spawn.cgroup = Some(cgroup.directory().unwrap());
    spawn.identity = user.then(|| Identity {
        uid: STRANGER,
        gid: STRANGER,
        groups: vec![],
    });
    spawn.start(soon()).unwrap()
}

/// Waits until no process is in it; false at the deadline.
fn empties(cgroup: &Cgroup, deadline: Deadline) -> bool {
    while !cgroup.procs().unwrap().is_empty() {
        if !deadline.sleep(Duration::from_millis(5)) {
            return false;
        }
    }
    true
}

fn count_reaches(cgroup: &Cgroup, count: usize) {
    let deadline = soon();
    while cgroup.procs().unwrap().len() < count {
        assert!(deadline.sleep(Duration::from_millis(5)), "{:?}", cgroup.procs());
    }
}

#[test]
fn a_program_is_born_in_it_and_its_end_is_seen() {
    let _alone = alone();
    for Kept(cgroup) in &everywhere("4711") {
        assert!(empties(cgroup, Deadline::after_ms(0)));
        let mut child = start(cgroup, "sleep 1", true);
        assert!(
            cgroup.procs().unwrap().contains(&child.pid()),
            "{:?}",
            cgroup.path()
        );
        assert!(!empties(cgroup, Deadline::after_ms(20)));
        assert_eq!(
            cgroup.remove().unwrap_err().errno(),
            Some(Errno::EBUSY),
            "not while it is in use"
        );
        assert!(empties(cgroup, soon()));
        child.wait(soon()).unwrap();
        assert!(cgroup.remove().unwrap());
        assert!(!cgroup.remove().unwrap());
        assert!(cgroup.procs().unwrap().is_empty());
        assert!(Cgroup::open(cgroup.path()).unwrap().is_none());
    }
}

/// Fifty processes of the job's user, deaf to SIGTERM, who start new ones as fast as they can.
const BOMB: &str =
    "trap '' TERM; i=0; while [ $i -lt 50 ]; do (while :; do sleep 0.01; done) & i=$((i+1)); done; wait";

#[test]
fn a_fork_bomb_ends_by_the_file_and_one_by_one() {
    let _alone = alone();
    type Killer = fn(&Cgroup) -> Result<(), FileError>;
    for Kept(cgroup) in &everywhere("bomb") {
        for kill in [(|c| c.kill(soon())) as Killer, |c| c.kill_each(soon())] {
            let mut child = start(cgroup, BOMB, true);
            count_reaches(cgroup, 51);
            kill(cgroup).unwrap();
            assert!(empties(cgroup, soon()), "{:?}", cgroup.path());
            assert_eq!(child.wait(soon()), Some(crate::sys::Exit::Signal(9)));
        }
        assert!(cgroup.remove().unwrap());
    }
}

#[test]
fn a_stopped_process_is_killed_as_well() {
    let _alone = alone();
    for Kept(cgroup) in &everywhere("stopped") {
        let mut child = start(cgroup, "kill -STOP $$", true);
        cgroup.kill(soon()).unwrap();
        assert!(empties(cgroup, soon()));
        child.wait(soon()).unwrap();
        assert!(cgroup.remove().unwrap());
    }
}

#[test]
fn only_a_cgroup_below_a_root_is_opened_and_never_our_own() {
    let _alone = alone();
    for Kept(cgroup) in &everywhere("opened") {
        let again = Cgroup::open(cgroup.path()).unwrap().unwrap();
        assert_eq!(again.path(), cgroup.path());
        let base = cgroup.path().parent().unwrap();
        let root = Cgroup::open(base.parent().unwrap()).unwrap_err();
        assert!(
            root.to_string().ends_with("is the root of a cgroup hierarchy"),
            "{root}"
        );
        let under = Cgroup::create_under(base, "site").unwrap().unwrap();
        assert_eq!(under.path(), base.join("site"));
        assert!(under.remove().unwrap());
        assert!(base.exists(), "a directory of the site's stays");
        assert!(cgroup.remove().unwrap());
    }
    let place = tempfile::tempdir().unwrap();
    for outcome in [
        Cgroup::open(place.path()),
        Cgroup::create_under(place.path(), "x"),
    ] {
        assert!(
            outcome
                .unwrap_err()
                .to_string()
                .ends_with("is not in a cgroup hierarchy")
        );
    }
    assert!(!place.path().join("x").exists());
}

/// Our directory above the jobs', made and removed by several at once; in a place where no daemon of this machine is.
#[test]
fn the_base_comes_and_goes_under_many_hands() {
    let _alone = alone();
    let homes = everywhere("home");
    let Some(Kept(home)) = homes.first() else { return };
    let top = home.path().to_owned();
    let work = |hand: usize| {
        let top = Dir::open(&top).unwrap();
        move || {
            for round in 0..40 {
                let cgroup = Cgroup::make(&top, Some(PLAIN), &format!("{hand}-{round}")).unwrap();
                assert!(cgroup.path().exists());
                assert!(cgroup.remove().unwrap());
                assert!(!cgroup.path().exists());
            }
        }
    };
    let hands: Vec<_> = (0..4).map(|hand| std::thread::spawn(work(hand))).collect();
    for hand in hands {
        hand.join().unwrap();
    }
    assert!(!top.join(PLAIN).exists(), "removed with the last of them");
}

#[test]
fn the_products_own_place_is_found() {
    let _alone = alone();
    let Kept(cgroup) = &Kept(Cgroup::create("unit-test-place").unwrap().unwrap());
    let base = cgroup.path().parent().unwrap();
    assert!([UNIT, PLAIN].iter().any(|name| base.ends_with(name)), "{base:?}");
    assert!(cgroup.path().exists());
}

/// On a hierarchy with the controller; which of the two a machine's are in is its own affair.
#[test]
fn what_can_be_bounded_is() {
    let _alone = alone();
    let pids = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
    let has = |base: &&&str| Path::new(base).join("cgroup.procs").exists();
    let base = Path::new(pids.iter().find(has).expect("a hierarchy for pids"));
    let cgroup = Kept(Cgroup::make(&Dir::open(base).unwrap(), Some(BASE), "bounded").unwrap());
    assert_eq!(read_at(&cgroup.0.dir, "pids.max", 64).unwrap(), b"4096\n");
    // In a hierarchy of its own on version 1.
    let memory = Path::new("/sys/fs/cgroup/memory");
    if cgroup.0.path().join("memory.max").exists() {
        assert_eq!(
            read_at(&cgroup.0.dir, "memory.max", 64).unwrap(),
            b"17179869184\n"
        );
    } else {
        let controllers = std::fs::read_to_string(base.join("cgroup.controllers")).unwrap_or_default();
        assert!(
            memory.exists() || !controllers.contains("memory"),
            "{controllers}"
        );
    }
}

#[test]
fn a_directory_of_the_sites_hands_on_what_it_did_before() {
    let _alone = alone();
    for Kept(site) in &everywhere("handed") {
        let handed = || read_at(&site.dir, "cgroup.subtree_control", MOST).ok();
        let before = handed();
        let job = Kept(Cgroup::create_under(site.path(), "job").unwrap().unwrap());
        assert_eq!(handed(), before, "{:?}", site.path());
        drop(job);
        assert_eq!(handed(), before, "{:?}", site.path());
    }
}

#[test]
fn a_process_leaves_the_cgroups_it_was_started_in() {
    let _alone = alone();
    let answer = crate::sys::guard::ask(soon(), || {
        let here = everywhere("left");
        for cgroup in &here {
            write_at(&cgroup.0.dir, "cgroup.procs", "0").unwrap();
        }
        let inside = || {
            here.iter()
                .filter(|one| !one.0.procs().unwrap().is_empty())
                .count()
        };
        let before = inside();
        leave(nix::unistd::getpid().as_raw());
        vec![u8::from(before == here.len()), u8::from(inside() == 0)]
    });
    assert_eq!(answer.unwrap(), [1, 1]);
}

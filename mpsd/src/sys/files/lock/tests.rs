use crate::sys::deadline::Deadline;
use crate::sys::files::{Dir, FileError};
use crate::sys::spawn::Child;
use crate::sys::testing::alone;
use std::time::Duration;

#[test]
fn a_lock_is_waited_for_given_up_on_and_freed_by_its_holders_death() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let dir = Dir::open(place.path()).unwrap();
    let pid = match crate::sys::raw::fork().unwrap() {
        None => {
            let held = dir.lock("gpu", Deadline::after_ms(1000));
            let _ = dir.write_atomic("held", b"", 0o600);
            while held.is_ok() {
                nix::unistd::pause();
            }
            crate::sys::raw::exit_now(1)
        }
        Some(pid) => pid,
    };
    let mut child = Child::adopt(pid);
    let deadline = Deadline::after_ms(5000);
    while dir.status_of("held").unwrap().is_none() {
        assert!(deadline.sleep(Duration::from_millis(1)));
    }
    let began = std::time::Instant::now();
    assert!(matches!(
        dir.lock("gpu", Deadline::after_ms(50)),
        Err(FileError::Bound { .. })
    ));
    assert!((50..2000).contains(&began.elapsed().as_millis()));
    child.kill(deadline).unwrap();
    let lock = dir.lock("gpu", deadline).unwrap();
    assert!(dir.lock("gpu", Deadline::after_ms(10)).is_err());
    drop(lock);
    assert!(dir.lock("gpu", Deadline::after_ms(10)).is_ok());
}

#[test]
fn a_file_removed_by_its_holder_is_not_the_lock_any_more() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let dir = Dir::open(place.path()).unwrap();
    let first = dir.lock("gpu", Deadline::after_ms(100)).unwrap();
    let path = place.path().to_owned();
    let waiter = std::thread::spawn(move || {
        let dir = Dir::open(&path).unwrap();
        let lock = dir.lock("gpu", Deadline::after_ms(5000)).unwrap();
        let held = nix::sys::stat::fstat(lock.lock.as_deref().unwrap())
            .unwrap()
            .st_ino;
        assert_eq!(dir.status_of("gpu").unwrap().unwrap().st_ino, held);
    });
    std::thread::sleep(Duration::from_millis(60));
    dir.remove_file("gpu").unwrap();
    drop(first);
    waiter.join().unwrap();
}

#[test]
fn a_link_or_fifo_is_no_lock() {
    let place = tempfile::tempdir().unwrap();
    let dir = Dir::open(place.path()).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", place.path().join("link")).unwrap();
    nix::unistd::mkfifo(&place.path().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    for name in ["link", "fifo"] {
        assert!(
            matches!(
                dir.lock(name, Deadline::after_ms(50)),
                Err(FileError::Unfit { .. } | FileError::Io { act: "open", .. })
            ),
            "{name}"
        );
    }
}

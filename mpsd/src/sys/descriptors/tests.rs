use super::*;
use crate::sys::deadline::Deadline;
use crate::sys::raw::Exit;
use crate::sys::spawn::Child;
use crate::sys::testing::alone;

/// In a child, since these are the test program's own descriptors.
fn in_child(work: impl FnOnce() -> bool) {
    let pid = match raw::fork().unwrap() {
        None => raw::exit_now(if work() { 0 } else { 1 }),
        Some(pid) => pid,
    };
    assert_eq!(
        Child::adopt(pid).wait(Deadline::after_ms(5000)),
        Some(Exit::Code(0))
    );
}

fn is_null(fd: i32) -> bool {
    let null = nix::sys::stat::stat("/dev/null").map(|s| s.st_rdev);
    nix::sys::stat::fstat(raw::borrow(fd)).map(|s| s.st_rdev) == null
}

#[test]
fn closed_ones_are_reopened_and_open_ones_left() {
    let _alone = alone();
    for closed in [vec![0], vec![1], vec![0, 2], vec![0, 1, 2], vec![]] {
        in_child(|| {
            let pipe = nix::unistd::pipe()
                .map(|(read, _)| read.into_raw_fd())
                .unwrap_or(-1);
            let mut good = (0..3).all(|fd| raw::duplicate_to(pipe, fd).is_ok());
            for fd in &closed {
                good = good && nix::unistd::close(*fd).is_ok();
            }
            good = good && fix_standard_descriptors().is_ok();
            good && (0..3).all(|fd| raw::is_open(fd) && is_null(fd) == closed.contains(&fd))
        });
    }
}

#[test]
fn all_three_go_to_null() {
    let _alone = alone();
    // And nothing else is left open by it.
    let clean = || {
        raw::close_all_except(&[]);
        let good = all_to_null().is_ok() && (0..3).all(is_null);
        good && !(3..64).any(raw::is_open)
    };
    in_child(clean);
    in_child(|| nix::unistd::close(0).is_ok() && nix::unistd::close(2).is_ok() && clean());
}

#[test]
fn a_number_is_taken_as_a_file_where_it_is_one_and_else_left_open() {
    let _alone = alone();
    in_child(|| {
        raw::close_all_except(&[]);
        let file = std::fs::File::open("/proc/self/exe").map(IntoRawFd::into_raw_fd);
        let pipe = nix::unistd::pipe().map(|(read, _)| read.into_raw_fd());
        let (Ok(file), Ok(pipe)) = (file, pipe) else {
            return false;
        };
        let taken = take_file(file).is_ok_and(|fd| fd.as_raw_fd() == file);
        let left = take_file(pipe).err() == Some(Errno::EINVAL) && raw::is_open(pipe);
        taken && left && take_file(60).err() == Some(Errno::EBADF)
    });
}

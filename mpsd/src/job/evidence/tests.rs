use super::*;

fn sample(threads: &[(char, &str)]) -> Vec<Thread> {
    let thread = |(state, stack): &(char, &str)| Thread {
        state: *state,
        stack: (*stack).to_owned(),
    };
    threads.iter().map(thread).collect()
}

const DRIVER_LOCK: &str =
    "[<0>] down+0x3b/0x60\n[<0>] os_acquire_semaphore+0x1/0x2 [nvidia]\n[<0>] do_syscall_64+0x5c/0x90\n";
const IOCTL: &str = "[<0>] nvidia_ioctl+0x1/0x2 [nvidia]\n[<0>] __x64_sys_ioctl+0x1/0x2\n";
const FUSE: &str = "[<0>] request_wait_answer+0x11e/0x220\n[<0>] fuse_simple_request+0x18f/0x2f0\n";
const LOOKUP: &str = "[<0>] d_alloc_parallel+0x3c/0x120\n[<0>] path_openat+0x8f4/0x920\n";
/// A call of the driver's with an argument in memory that a file system of the user's must fill.
const FAULT_BELOW: &str = "[<0>] request_wait_answer+0x11e/0x220\n[<0>] filemap_fault+0x1/0x2\n[<0>] nvidia_ioctl+0x1/0x2 [nvidia]\n";
/// The process's own memory map is locked by a thread that its user withholds.
const MAP_LOCK: &str = "[<0>] rwsem_down_read_slowpath+0x1/0x2\n[<0>] uvm_ioctl+0x1/0x2 [nvidia_uvm]\n";

#[test]
fn only_a_wait_in_the_driver_alone_is_evidence() {
    for stack in [IOCTL, DRIVER_LOCK, MAP_LOCK] {
        assert!(is_in_driver(&sample(&[('D', stack)])), "{stack}");
        assert!(is_in_driver(&sample(&[('S', ""), ('D', stack)])), "{stack}");
    }
    for stack in ["", FUSE, LOOKUP, FAULT_BELOW, "[<0>] __refrigerator+0x3c/0x120\n"] {
        assert!(!is_in_driver(&sample(&[('D', stack)])), "{stack}");
    }
}

#[test]
fn a_thread_that_waits_for_something_else_may_hold_what_the_driver_waits_for() {
    assert!(!is_in_driver(&sample(&[('D', MAP_LOCK), ('D', FUSE)])));
    assert!(withholds(&sample(&[('D', FAULT_BELOW)])));
    assert!(!withholds(&sample(&[('D', IOCTL), ('S', "")])));
}

#[test]
fn a_process_that_runs_sleeps_or_is_stopped_is_not_held() {
    for state in ['R', 'S', 'T', 'Z'] {
        assert!(!is_in_driver(&sample(&[(state, IOCTL)])), "{state}");
    }
    assert!(!is_in_driver(&sample(&[])));
}

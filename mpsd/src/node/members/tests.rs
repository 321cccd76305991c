use super::*;

/// A stack of about 800 bytes: frames above a call of the driver's, and below it some that differ from thread to thread.
fn stack(number: usize, driver: bool) -> String {
    let frame = if driver {
        "[<0>] os_acquire_rwlock_write+0x35/0x40 [nvidia]"
    } else {
        "[<0>] folio_wait_bit_common+0x13d/0x350"
    };
    let mut frames = vec![
        "[<0>] rwsem_down_write_slowpath+0x2a1/0x5f0".to_owned(),
        frame.to_owned(),
    ];
    frames.extend((0..15).map(|depth| format!("[<0>] rm_ioctl+{number:#x}/{depth:#x} [nvidia_uvm]")));
    if !driver {
        frames.truncate(2);
        frames.extend((0..15).map(|depth| format!("[<0>] nfs_wait_bit_killable+{number:#x}/{depth:#x}")));
    }
    frames.join("\n") + "\n"
}

fn thread(state: char, stack: String) -> Thread {
    Thread { state, stack }
}

#[test]
fn a_thousand_waiting_threads_fit_into_one_answer() {
    let processes = (0..20).map(|process| {
        let threads = (0..50).map(|one| thread('D', stack(process * 50 + one, one % 2 == 0)));
        (1000 + process as u32 % 4, threads.collect())
    });
    let found: Vec<(u32, Vec<Thread>)> = processes.collect();
    let question = || Some(by_user(found.into_iter()));
    let all: Option<Vec<Waiting>> = asked(Deadline::after(ALL_TIME), question).expect("one answer");
    let all = all.unwrap();
    assert_eq!(
        all.iter().map(|one| one.uid).collect::<Vec<_>>(),
        [1000, 1001, 1002, 1003]
    );
    for one in &all {
        let driver = stack(0, true)
            .lines()
            .take(2)
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(one.threads, [thread('D', String::new()), thread('D', driver)]);
    }
}

#[test]
fn what_waits_neither_in_state_d_nor_in_the_driver_is_left_out() {
    let of = |threads: Vec<Thread>| by_user([(1000, threads)].into_iter());
    assert_eq!(
        of(vec![thread('S', stack(1, false)), thread('S', String::new())]),
        []
    );
    let held = of(vec![thread('S', stack(1, true))]);
    assert!(held[0].threads[0].stack.ends_with(" [nvidia]\n"), "{held:?}");
}

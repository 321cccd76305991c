use super::*;

fn task(rank: u32, signal: i32) -> KilledTask {
    KilledTask {
        step: Some(0),
        rank,
        pid: 8349 + i32::try_from(rank).unwrap(),
        signal,
        oom_kills: 0,
    }
}

#[test]
fn what_is_written_is_read_and_what_is_no_line_is_left_out() {
    let script = KilledTask {
        step: None,
        oom_kills: 2,
        ..task(0, 15)
    };
    let all = [task(3, 9), script];
    let text: String = all.iter().filter_map(|task| task.line(0)).collect();
    assert_eq!(text, "0 3 8352 9 0\n- 0 8349 15 2\n");
    assert_eq!(parse(text.as_bytes()), all);
    let garbled = format!("{text}0 1 2\n0 1 2 3 4 5\n\n0 -1 2 9 0\n\u{1b}[m\n0 1 77 9 0");
    assert_eq!(parse(garbled.as_bytes()), all, "the last has no end");
}

#[test]
fn the_file_ends_before_its_longest() {
    let long = KilledTask {
        step: Some(u32::MAX),
        rank: u32::MAX,
        pid: i32::MIN,
        signal: i32::MIN,
        oom_kills: u64::MAX,
    };
    let mut file = String::new();
    while let Some(line) = long.line(file.len() as u64) {
        assert!(line.len() <= LINE, "{line}");
        file += &line;
    }
    assert!(
        file.len() <= LONGEST && file.len() > LONGEST - 2 * LINE,
        "{}",
        file.len()
    );
}

#[test]
fn a_client_is_named_with_its_task_and_a_task_that_was_none_is_none() {
    let all = [task(3, 9), task(1, 15), task(2, 64)];
    assert_eq!(
        told(&all, |pid| pid == 8352),
        [
            "client 8352 (task 3 of step 0) was ended by signal 9 (SIGKILL)",
            "task 1 of step 0 (pid 8350) was ended by signal 15 (SIGTERM)",
            "task 2 of step 0 (pid 8351) was ended by signal 64",
        ]
    );
}

#[test]
fn of_many_the_first_are_told_and_of_the_out_of_memory_killer_once() {
    let mut all: Vec<KilledTask> = (0..48).map(|rank| task(rank, 9)).collect();
    all[0].oom_kills = 1;
    all[1].oom_kills = 2;
    let told = told(&all, |_| false);
    assert_eq!(told.len(), 10, "{told:?}");
    assert_eq!(
        told[8],
        "40 more tasks, at least, were ended by signals after these"
    );
    assert_eq!(
        told[9],
        "the kernel's out-of-memory killer ended processes of the job: 2"
    );
    assert_eq!(super::told(&[], |_| true), Vec::<String>::new());
}

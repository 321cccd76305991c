//! What a task that failed is told of its MPS.

use super::fake::{FakeNode, FakeSlurm, ended, key, record};
use crate::handle::{Item, Level};
use crate::plugin;
use crate::state::State;
use mpsd_core::killed::KilledTask;
use mpsd_core::observations::{DaemonLost, Observations};
use mpsd_core::record::RecordState;

const LOST: &str = "server 12 died";
const BATCH: u32 = 0xffff_fffb;

fn begin(slurm: &mut FakeSlurm, node: &FakeNode, flags: &[&str]) -> State {
    let mut state = State::default();
    plugin::init(slurm, node, &mut state, &[]);
    for flag in flags {
        plugin::option(&mut state, key(flag), None, true);
    }
    plugin::init_post_opt(slurm, node, &mut state, &[]);
    state
}

/// One of the four tasks of `slurm` ends with `status`.
fn exit(slurm: &mut FakeSlurm, node: &FakeNode, state: &mut State, status: u32) {
    slurm.items.retain(|(item, _)| *item != Item::TaskExitStatus);
    slurm.items.push((Item::TaskExitStatus, status));
    plugin::task_exit(slurm, node, state, &[]);
}

fn told(slurm: &FakeSlurm) -> Vec<String> {
    let lines = slurm.lines.borrow();
    let told = lines.iter().filter(|(level, _)| *level == Level::Told);
    told.map(|(_, line)| line.clone()).collect()
}

#[test]
fn the_first_task_that_fails_is_told_why_and_no_other_is() {
    for step in [0, BATCH] {
        let node = FakeNode::new().with_record(record("4711", RecordState::Ready));
        let mut slurm = FakeSlurm::step(step);
        let mut state = begin(&mut slurm, &node, &["mps"]);
        *node.words.borrow_mut() = vec![LOST];
        exit(&mut slurm, &node, &mut state, 0);
        assert!(slurm.is_silent(), "it ended well");
        for _ in 0..2 {
            exit(&mut slurm, &node, &mut state, 256);
        }
        assert_eq!(told(&slurm), ["job 4711: on n1 its mpsd says: server 12 died"]);
    }
}

#[test]
fn the_last_task_waits_for_what_mpsd_has_not_read_yet() {
    let node = FakeNode::new().with_record(record("4711", RecordState::Ready));
    let mut slurm = FakeSlurm::step(0);
    let mut state = begin(&mut slurm, &node, &["mps"]);
    for _ in 0..3 {
        exit(&mut slurm, &node, &mut state, 9);
    }
    assert!(slurm.is_silent());
    *node.words.borrow_mut() = vec![LOST];
    node.late.set(true);
    exit(&mut slurm, &node, &mut state, 9);
    assert_eq!(told(&slurm).len(), 1);
}

#[test]
fn a_step_with_a_daemon_of_its_own_is_told_of_that_one() {
    let node = FakeNode::new().answering(ended(0, ""), Some(record("4711.3", RecordState::Ready)));
    let mut slurm = FakeSlurm::step(3);
    let mut state = begin(&mut slurm, &node, &["mps"]);
    *node.words.borrow_mut() = vec![LOST];
    exit(&mut slurm, &node, &mut state, 256);
    assert_eq!(told(&slurm).len(), 1);
}

#[test]
fn a_task_of_a_job_without_mps_is_told_nothing_and_costs_a_look_where_it_fails() {
    for step in [0, BATCH] {
        let node = FakeNode::new();
        let mut slurm = FakeSlurm::step(step);
        let mut state = begin(&mut slurm, &node, &[]);
        let before = node.looks.get();
        (0..4).for_each(|_| exit(&mut slurm, &node, &mut state, 0));
        assert_eq!(node.looks.get(), before);
        exit(&mut slurm, &node, &mut state, 256);
        assert_eq!(node.looks.get(), before + 1);
        assert!(slurm.is_silent());
    }
}

/// Neither a step that opted out of its job's MPS nor the job of another user whose id has come again takes the words, or waits.
#[test]
fn who_has_not_that_mps_is_told_nothing_of_it() {
    for (off, uid) in [(true, 1000), (false, 1001)] {
        let mut own = record("4711", RecordState::Ready);
        own.report = true;
        let mut node = FakeNode::new().with_record(own);
        node.observations = Some(Observations::default());
        let mut slurm = FakeSlurm::step(0);
        slurm.items.retain(|(item, _)| *item != Item::JobUid);
        slurm.items.push((Item::JobUid, uid));
        let mut state = State::default();
        plugin::init(&mut slurm, &node, &mut state, &[]);
        let word = off.then_some("off");
        plugin::option(&mut state, key("mps"), word, true);
        plugin::init_post_opt(&mut slurm, &node, &mut state, &[]);
        if let Some(Ok(settings)) = &mut state.settings {
            settings.defaults.report = Some(true);
        }
        *node.words.borrow_mut() = vec![LOST];
        (0..4).for_each(|_| exit(&mut slurm, &node, &mut state, 256));
        assert_eq!(told(&slurm), Vec::<String>::new(), "{off} {uid}");
        assert_eq!(*node.words.borrow(), [LOST], "they wait for whom they concern");
    }
}

/// By the script, or where there is none by the step; never by a step of the script.
#[test]
fn a_job_that_wants_it_reads_at_the_end_what_its_mps_was_used_for() {
    let run = |step: u32, of_script: bool, flags: &[&str], recorded: bool| {
        let mut own = record("4711", RecordState::Ready);
        own.report = recorded;
        let mut node = FakeNode::new().with_record(own);
        node.observations = Some(Observations {
            clients: 3,
            most_clients: 2,
            ..Observations::default()
        });
        let mut slurm = FakeSlurm::step(step);
        if of_script {
            slurm.job_env.insert("ENVIRONMENT".into(), "BATCH".into());
        }
        let mut state = begin(&mut slurm, &node, flags);
        let before = node.looks.get();
        (0..4).for_each(|_| exit(&mut slurm, &node, &mut state, 0));
        let is_end = step == BATCH || !of_script;
        assert!(
            is_end || flags.contains(&"mps-report") || node.looks.get() == before,
            "nothing is looked at"
        );
        told(&slurm)
    };
    let asks = ["mps", "mps-report"];
    let line = "job 4711: on n1, by its own mpsd so far: 3 clients, 2 at once; GPU 2: no client at any look; GPU 3: no client at any look";
    assert_eq!(run(BATCH, true, &asks, true), [line]);
    assert_eq!(run(0, false, &asks, true), [line]);
    for (step, of_script, flags, recorded) in [
        (0, true, &asks[..], true),
        (0, false, &asks[..1], false),
        (BATCH, true, &asks[..1], false),
        (0, false, &asks[..], false),
    ] {
        assert!(
            run(step, of_script, flags, recorded).is_empty(),
            "{step} {of_script} {flags:?}"
        );
    }
}

/// One of the four tasks of `slurm`, of rank `rank` in the step, with this pid.
fn of_rank(slurm: &mut FakeSlurm, rank: u32, pid: u32) {
    slurm
        .items
        .retain(|(item, _)| !matches!(item, Item::TaskGlobalId | Item::TaskPid));
    slurm
        .items
        .extend([(Item::TaskGlobalId, rank), (Item::TaskPid, pid)]);
}

#[test]
fn a_task_that_a_signal_ended_is_noted_and_one_that_ended_or_failed_is_not() {
    for (step, of) in [(0, Some(0)), (7, Some(7)), (BATCH, None)] {
        let mut node = FakeNode::new().with_record(record("4711", RecordState::Ready));
        node.oom_kills = 3;
        let mut slurm = FakeSlurm::step(step);
        let mut state = begin(&mut slurm, &node, &["mps"]);
        // SIGKILL, ended well, failed, SIGSEGV with a core; 137 is a shell's word, and no signal.
        for (rank, status) in [(3, 9), (4, 0), (5, 256), (6, 128 + 11), (7, 137 << 8)] {
            of_rank(&mut slurm, rank, 8349 + rank);
            exit(&mut slurm, &node, &mut state, status);
        }
        let noted = |rank: u32, signal, oom_kills| KilledTask {
            step: of,
            rank,
            pid: 8349 + i32::try_from(rank).unwrap(),
            signal,
            oom_kills,
        };
        assert_eq!(*node.killed.borrow(), [noted(3, 9, 3), noted(6, 11, 0)], "{step}");
    }
}

#[test]
fn nothing_is_noted_of_who_has_not_that_mps() {
    for (records, uid, flags) in [
        (false, 1000, &[][..]),
        (true, 1001, &["mps"]),
        (true, 1000, &["off"]),
    ] {
        let node = match records {
            true => FakeNode::new().with_record(record("4711", RecordState::Ready)),
            false => FakeNode::new(),
        };
        let mut slurm = FakeSlurm::step(0);
        for (item, value) in &mut slurm.items {
            if *item == Item::JobUid {
                *value = uid;
            }
        }
        let mut state = match flags {
            ["off"] => {
                let mut state = begin(&mut slurm, &node, &[]);
                state.request = Ok(Some(mpsd_core::Request::default()));
                state
            }
            flags => begin(&mut slurm, &node, flags),
        };
        of_rank(&mut slurm, 0, 8349);
        exit(&mut slurm, &node, &mut state, 9);
        assert_eq!(*node.killed.borrow(), [], "{records} {uid} {flags:?}");
    }
}

/// What the script itself starts then runs outside MPS and may end well.
#[test]
fn a_script_that_ended_well_is_told_that_its_control_daemon_had_ended() {
    let lost = Observations {
        daemons_lost: vec![DaemonLost {
            pid: 7,
            how: "signal 9".into(),
        }],
        ..Observations::default()
    };
    for (observations, lines) in [(Observations::default(), 0), (lost, 1)] {
        let mut node = FakeNode::new().with_record(record("4711", RecordState::Ready));
        node.observations = Some(observations);
        let mut slurm = FakeSlurm::step(BATCH);
        let mut state = begin(&mut slurm, &node, &[]);
        *node.words.borrow_mut() = vec!["control daemon 7 died"];
        (0..4).for_each(|_| exit(&mut slurm, &node, &mut state, 0));
        assert_eq!(told(&slurm).len(), lines);
    }
}

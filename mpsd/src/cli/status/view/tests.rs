//! Whose client is where, by what each of three says.

use super::*;

const GPUS: [&str; 2] = ["GPU-00000000-0001", "GPU-00000000-0002"];

fn gpu(n: usize) -> GpuUuid {
    GpuUuid::parse(GPUS[n]).unwrap()
}

/// A ready job of user 1000 with two GPUs behind one daemon.
pub fn subject() -> Subject {
    let record_gpu = |n: usize| RecordGpu {
        index: n as u32,
        uuid: gpu(n),
        cpus: None,
    };
    Subject {
        job: JobId::parse("7").unwrap(),
        uid: 1000,
        user: Some("alice".to_owned()),
        began: Some(1),
        state: State::Ready,
        left: false,
        reason: None,
        gpus: vec![record_gpu(0), record_gpu(1)],
        daemons: vec![Daemon {
            gpus: vec![gpu(0), gpu(1)],
            pipe: "/p".into(),
            log: "/l".into(),
            threads: None,
            memory: Vec::new(),
            priority: None,
            partitions: Vec::new(),
        }],
    }
}

/// What a daemon says with these clients: pid and the GPU that `ps` names.
pub fn said(clients: &[(i32, Option<usize>)]) -> Said {
    Said {
        servers: vec![Server {
            pid: 50,
            state: "ACTIVE".to_owned(),
        }],
        clients: clients
            .iter()
            .map(|(pid, on)| Client {
                pid: *pid,
                server: 50,
                gpu: on.map(gpu),
            })
            .collect(),
        limits: Vec::new(),
    }
}

fn process(pid: i32, mib: u64, mps_client: bool) -> GpuProcess {
    GpuProcess {
        pid,
        memory: Some(mib << 20),
        mps_client,
    }
}

fn learnt(clients: &[(i32, Option<usize>)], nvml: [Vec<GpuProcess>; 2]) -> Learnt {
    let [first, second] = nvml;
    Learnt {
        said: vec![Ok(said(clients))],
        nvml: vec![(gpu(0), first), (gpu(1), second)],
        tasks: vec![Task {
            pid: 100,
            rank: Some(3),
            command: "./app".to_owned(),
        }],
    }
}

fn pids(view: &View, n: usize) -> Vec<i32> {
    let clients = view.gpus[n].clients.iter().flatten();
    clients.map(|client| client.pid).collect()
}

#[test]
fn a_client_is_where_nvml_counts_its_memory() {
    // It looked at the first GPU, and uses the second: NVML lists it on both, and ps names the first.
    let nvml = [vec![process(100, 0, true)], vec![process(100, 512, true)]];
    let view = view(&subject(), &learnt(&[(100, Some(0))], nvml));
    assert_eq!(pids(&view, 0), Vec::<i32>::new());
    assert_eq!(pids(&view, 1), [100]);
    assert_eq!(view.without_client, Some(vec![gpu(0)]));
    let client = &view.gpus[1].clients.as_ref().unwrap()[0];
    assert_eq!(
        (client.memory_mib, client.rank, client.command.as_deref()),
        (Some(512), Some(3), Some("./app"))
    );
}

#[test]
fn without_nvml_a_client_is_where_its_daemon_says() {
    let view = view(
        &subject(),
        &Learnt {
            nvml: Vec::new(),
            ..learnt(&[(100, Some(1)), (101, None)], [Vec::new(), Vec::new()])
        },
    );
    assert_eq!((pids(&view, 0), pids(&view, 1)), (vec![], vec![100]));
    assert_eq!(view.gpus[1].clients.as_ref().unwrap()[0].memory_mib, None);
}

#[test]
fn what_is_no_client_of_this_daemon_is_not_shown() {
    // Another job's client, and the server itself.
    let nvml = [vec![process(900, 100, true), process(50, 66, false)], Vec::new()];
    let view = view(&subject(), &learnt(&[], nvml));
    assert_eq!(pids(&view, 0), Vec::<i32>::new());
    assert_eq!(view.without_client, Some(vec![gpu(0), gpu(1)]));
}

#[test]
fn where_a_daemon_is_silent_nobody_says_that_its_gpus_are_idle() {
    let silent = Learnt {
        said: vec![Err(Silence::NoAnswer("no answer within 2000 ms".to_owned()))],
        ..Learnt::default()
    };
    let view = view(&subject(), &silent);
    assert_eq!(view.without_client, None);
    assert!(view.gpus.iter().all(|gpu| gpu.clients.is_none()));
    assert!(view.daemons[0].silent.is_some() && !view.daemons[0].ended);
}

#[test]
fn no_control_character_of_a_users_comes_through() {
    let mut learnt = learnt(&[(100, Some(0))], [Vec::new(), Vec::new()]);
    let said = learnt.said[0].as_mut().unwrap();
    said.servers[0].state = "\u{1b}[2JACTIVE\n".to_owned();
    said.limits.push(InForce {
        limit: "threads\r".to_owned(),
        asked: Some("\u{7}".to_owned()),
        set: None,
        said: Some("\u{202e}25".to_owned()),
        holds: true,
    });
    learnt.tasks[0].command = "a\u{1b}]0;x\u{7}b".to_owned();
    let view = view(&subject(), &learnt);
    let text = format!("{view:?}");
    let hidden = ["\\u{1b}", "\\u{7}", "\\u{202e}", "\\r", "\\n"];
    assert!(hidden.iter().all(|hidden| !text.contains(hidden)), "{text}");
}

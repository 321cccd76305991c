use super::*;
use crate::job::JobId;
use crate::record::{Daemon, RecordGpu, State};

fn request(text: &str) -> Request {
    text.parse().unwrap()
}

fn uuid(n: u32) -> GpuUuid {
    GpuUuid::parse(&format!("GPU-0000000{n}")).unwrap()
}

fn record(job: &str) -> Record {
    let mut record = Record::closed(JobId::parse("7").unwrap(), 1000, State::Ready, String::new());
    record.request = Some(request(job));
    record.gpus = vec![RecordGpu {
        index: 1,
        uuid: uuid(1),
        cpus: None,
    }];
    record.daemons = vec![Daemon {
        gpus: vec![uuid(1)],
        pipe: "/run/mpsd/jobs/7/pipe".into(),
        log: "/run/mpsd/jobs/7/log".into(),
        threads: "50".parse().ok(),
        memory: vec![(uuid(1), 4096)],
        priority: None,
        partitions: Vec::new(),
    }];
    record
}

const JOB: &str = "MPS=on,MPS_THREADS=50,MPS_MEM=4G";

#[test]
fn which_gpu_its_tasks_see_is_a_steps_own_affair() {
    let own = of_step(
        &record(JOB),
        &request("MPS=on,MPS_BIND=cyclic,MPS_VISIBLE=ordinal"),
    )
    .unwrap();
    assert_eq!(own.bind, "cyclic".parse().ok());
    assert_eq!(own.names(), crate::bind::DeviceNames::Ordinal);
}

/// NVIDIA's daemon ignores percentages beside static partitions, and each lies on its GPU since the job's begin.
#[test]
fn a_step_of_a_job_with_partitions_has_no_threads_and_no_binding_of_its_own() {
    let mut parted = record("MPS=on,MPS_SMS=16:32,MPS_BIND=block");
    parted.daemons[0].threads = None;
    parted.daemons[0].partitions = vec![crate::partitions::Partition {
        rank: 0,
        gpu: uuid(1),
        sms: 16,
        chunks: 2,
        id: "A".to_owned(),
    }];
    let inherited = request("MPS=on,MPS_SMS=16:32,MPS_BIND=block");
    assert!(of_step(&parted, &inherited).is_ok());
    for (step, word) in [
        ("MPS=on,MPS_THREADS=25", "--mps-threads=25"),
        ("MPS=on,MPS_BIND=cyclic", "--mps-bind=cyclic"),
    ] {
        let refusal = of_step(&parted, &request(step)).unwrap_err().to_string();
        assert!(
            refusal.starts_with(word) && refusal.contains("multiprocessors of its own"),
            "{refusal}"
        );
    }
}

#[test]
fn what_a_step_inherits_changes_nothing() {
    for step in [JOB, "MPS=on", "MPS=on,MPS_MEM=4G"] {
        assert_eq!(of_step(&record(JOB), &request(step)), Ok(record(JOB)), "{step}");
    }
}

#[test]
fn lower_limits_are_those_of_the_steps_ranks() {
    let own = of_step(&record(JOB), &request("MPS=on,MPS_THREADS=25,MPS_MEM=1G:2G")).unwrap();
    assert_eq!(own.rank_threads, ["25".parse().unwrap()]);
    assert_eq!(own.rank_memory, [vec![(uuid(1), 1024)], vec![(uuid(1), 2048)]]);
    // No limit of the job's: any is lower.
    let mut free = record("MPS=on");
    free.daemons[0].threads = None;
    free.daemons[0].memory.clear();
    let own = of_step(&free, &request("MPS=on,MPS_THREADS=90,MPS_MEM=70G")).unwrap();
    assert_eq!((own.rank_threads.len(), own.rank_memory.len()), (1, 1));
}

#[test]
fn a_step_with_fewer_gpus_than_its_job_divides_them_anew() {
    let mut whole = record("MPS=on,MPS_THREADS=auto,MPS_MEM=auto");
    whole.daemons[0].threads = "100".parse().ok();
    // As it was planned for a task on each of four GPUs.
    whole.divided = crate::record::Divided {
        threads: Some(1),
        memory: Some(1),
    };
    assert_eq!(of_tasks(&whole, 4, 4), whole);
    let own = of_tasks(&whole, 4, 1);
    assert_eq!(own.rank_threads, ["50".parse().unwrap()]);
    assert_eq!(own.rank_memory, [vec![(uuid(1), 1024)]]);
    // As many as can meet: of six tasks on two GPUs, four where each sees both, and three where each has its own.
    for (bind, met) in [("auto", 4), ("block", 3)] {
        let bound = Record {
            bind: bind.parse().ok(),
            ..whole.clone()
        };
        let own = of_tasks(&bound, 6, 2);
        assert_eq!(own.rank_memory, [vec![(uuid(1), 4096 / met)]], "{bind}");
    }
    // Its own lower limits stay, and nothing else was divided.
    let lower = of_step(&whole, &request("MPS=on,MPS_MEM=1G")).unwrap();
    assert_eq!(of_tasks(&lower, 2, 1).rank_memory, [vec![(uuid(1), 1024)]]);
    assert_eq!(of_tasks(&record(JOB), 8, 1), record(JOB));
}

#[test]
fn what_the_jobs_daemon_cannot_give_is_refused_by_name() {
    let mut ranked = record("MPS=on,MPS_THREADS=30:70");
    ranked.daemons[0].threads = None;
    ranked.rank_threads = vec!["30".parse().unwrap(), "70".parse().unwrap()];
    let cases = [
        (
            record(JOB),
            "MPS=on,MPS_THREADS=80",
            "--mps-threads=80: the job's MPS gives 50",
        ),
        (
            record(JOB),
            "MPS=on,MPS_MEM=5G",
            "--mps-mem=5G: the job's MPS gives 4096M of GPU 1",
        ),
        (record(JOB), "MPS=on,MPS_THREADS=auto", "--mps-threads=auto: "),
        (record(JOB), "MPS=on,MPS_MEM=25%", "--mps-mem=25%: "),
        (
            record(JOB),
            "MPS=per-gpu",
            "--mps=per-gpu: the job has one daemon",
        ),
        (
            record(JOB),
            "MPS=on,MPS_REPLICAS=4",
            "--mps-replicas=4: the job's MPS runs already",
        ),
        (
            record(JOB),
            "MPS=on,MPS_PRIORITY=below-normal",
            "--mps-priority=below-normal: ",
        ),
        (record(JOB), "MPS=on,MPS_VERIFY=on", "--mps-verify=on: "),
        (
            ranked.clone(),
            "MPS=on,MPS_THREADS=50",
            "--mps-threads=50: the job's MPS gives 30",
        ),
        (
            ranked.clone(),
            "MPS=on,MPS_THREADS=20:60:40",
            "the job's MPS gives 30",
        ),
    ];
    for (record, step, told) in cases {
        let refusal = of_step(&record, &request(step)).unwrap_err().to_string();
        assert!(
            refusal.contains(told) && refusal.contains("; allowed: "),
            "{step}: {refusal}"
        );
    }
    assert!(of_step(&ranked, &request("MPS=on,MPS_THREADS=20:60")).is_ok());
}

#[test]
fn a_step_is_held_to_the_limits_that_were_set_since() {
    let set = |limit: String, to: &str| LimitSet {
        limit,
        from: None,
        to: to.to_owned(),
        at: 1,
    };
    let memory = format!("{}{}", LimitSet::MEMORY, uuid(1));
    let raised = [
        set(LimitSet::THREADS.to_owned(), "60"),
        set(LimitSet::THREADS.to_owned(), "75"),
        set(memory, "6144M"),
        set("nonsense".to_owned(), "1"),
    ];
    let lowered = [set(LimitSet::THREADS.to_owned(), "10")];
    let asked = |words: &str| request(&format!("MPS=on,{words}"));
    let own = of_step_after(&record(JOB), &raised, &asked("MPS_THREADS=70,MPS_MEM=5G")).unwrap();
    assert_eq!(own.rank_threads, ["70".parse().unwrap()]);
    assert_eq!(own.daemons, record(JOB).daemons);
    for (set, words, most) in [
        (&raised[..], "MPS_THREADS=80", "75"),
        (&raised, "MPS_MEM=8G", "6144M"),
        (&lowered, "MPS_THREADS=20", "10"),
        (&[], "MPS_THREADS=70", "50"),
    ] {
        let refused = of_step_after(&record(JOB), set, &asked(words)).unwrap_err();
        let why = format!("the job's MPS gives {most}");
        assert!(refused.to_string().contains(&why), "{words}: {refused}");
    }
}

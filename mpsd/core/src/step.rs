//! A step that asks for other limits than its job: the job's daemon runs already, and a client can only lower what it
//! gives (docs/facts/mps-control.md#clients). What that cannot carry out is refused.

use super::bind::Bind;
use super::failure::Refusal;
use super::gpu::GpuUuid;
use super::limits::{Amount, Percent};
use super::observations::LimitSet;
use super::record::Record;
use super::request::{Key, MemoryLimit, Mode, Request, Syntax, Threads};
use super::text::one_line;

/// Longest word that a refusal repeats. Characters.
const SHOWN: usize = 60;

/// The job's record as it holds for a step that asked for `step`: lower limits become those of its ranks. A word that
/// says what the job said, as every step inherits it, changes nothing.
///
/// # Errors
/// A refusal of a word that differs from the job's and cannot be carried out by its daemon.
pub fn of_step(record: &Record, step: &Request) -> Result<Record, Refusal> {
    let mut own = record.clone();
    let Some(job) = &record.request else {
        return Ok(own);
    };
    // `srun --mps` says no more than that it wants MPS.
    if step.mode == Mode::PerGpu && !record.per_gpu {
        let allowed = "per-gpu for the whole job";
        return Err(refused(
            Key::Mode,
            step.mode.to_string(),
            "the job has one daemon for its GPUs",
            allowed,
        ));
    }
    if let Some((key, value)) = unchangeable(step, job) {
        let lower: Vec<String> = lowered_by_steps()
            .map(|key| Syntax::Flags.token(key, None))
            .collect();
        let allowed = format!("{}, lower than the job's", lower.join(" and "));
        return Err(refused(key, value, "the job's MPS runs already", &allowed));
    }
    if let Some((key, value)) = beside_partitions(record, step, job) {
        let why = "the job's MPS gives each rank multiprocessors of its own, of one GPU";
        return Err(refused(key, value, why, "a step without it"));
    }
    if let Some(threads) = changed(&step.threads, &job.threads) {
        own.rank_threads = lower_threads(record, threads)?;
    }
    if let Some(memory) = changed(&step.memory, &job.memory) {
        own.rank_memory = lower_memory(record, memory)?;
    }
    own.bind = step.bind.or(own.bind);
    own.names = step.visible.or(own.names);
    Ok(own)
}

/// The same where `mpsctl set` gave the job's clients other limits since: the step is held to those, which are no more than the site's
/// ceilings. They are the word of the job's own user, whose clients NVIDIA's daemon holds to what it was told in any case.
///
/// # Errors
/// As [`of_step`].
pub fn of_step_after(record: &Record, set: &[LimitSet], step: &Request) -> Result<Record, Refusal> {
    let mut now = record.clone();
    for limits in set.iter().map(LimitSet::limits) {
        for daemon in &mut now.daemons {
            *daemon = daemon.with(&limits);
        }
    }
    let mut own = of_step(&now, step)?;
    own.daemons.clone_from(&record.daemons);
    Ok(own)
}

/// The record as it holds for a step with `tasks` tasks on its `gpus` GPUs: where the job has more GPUs than its step uses
/// (`--exclusive`), `auto` gave too much to each task.
pub fn of_tasks(record: &Record, tasks: u32, gpus: u32) -> Record {
    let mut own = record.clone();
    let bind = record.bind.unwrap_or(Bind::NONE);
    let each = bind.most_on_a_gpu(record.names(), record.per_gpu, tasks, gpus);
    if record.divided.threads.is_some_and(|by| by < each) && own.rank_threads.is_empty() {
        own.rank_threads = vec![Percent::auto(each)];
    }
    if let Some(by) = record.divided.memory.filter(|by| *by < each) {
        let daemons = record.daemons.iter().flat_map(|daemon| &daemon.memory);
        let lower =
            |(gpu, mib): &(GpuUuid, u64)| (gpu.clone(), (mib * u64::from(by) / u64::from(each)).max(1));
        if own.rank_memory.is_empty() {
            own.rank_memory = vec![daemons.map(lower).collect()];
        }
    }
    own
}

fn changed<'a, T: PartialEq>(step: &'a Option<T>, job: &Option<T>) -> Option<&'a T> {
    step.as_ref().filter(|value| job.as_ref() != Some(*value))
}

fn lowered_by_steps() -> impl Iterator<Item = Key> {
    Key::ALL.into_iter().filter(|key| key.row().lowered_by_steps)
}

/// The first word of the step that no client can change by itself.
fn unchangeable(step: &Request, job: &Request) -> Option<(Key, String)> {
    let fixed = |key: &Key| {
        let row = key.row();
        *key != Key::Mode && !row.lowered_by_steps && !row.of_tasks
    };
    let other = |key: Key| {
        Some((
            key,
            step.value(key)
                .filter(|value| job.value(key).as_ref() != Some(value))?,
        ))
    };
    Key::ALL.into_iter().filter(fixed).find_map(other)
}

/// The first word of the step that means nothing beside static partitions: NVIDIA's daemon ignores percentages then, and each
/// partition lies on its GPU since the job began.
fn beside_partitions(record: &Record, step: &Request, job: &Request) -> Option<(Key, String)> {
    if record.daemons.iter().all(|daemon| daemon.partitions.is_empty()) {
        return None;
    }
    let threads = changed(&step.threads, &job.threads).map(|threads| (Key::Threads, threads.to_string()));
    threads.or_else(|| changed(&step.bind, &job.bind).map(|bind| (Key::Bind, bind.to_string())))
}

fn refused(key: Key, value: String, why: &str, allowed: &str) -> Refusal {
    let what = Syntax::Flags.token(key, Some(&value));
    Refusal::new(one_line(&what, SHOWN), why, allowed)
}

fn lower_threads(record: &Record, threads: &Threads) -> Result<Vec<Percent>, Refusal> {
    let wanted = match threads {
        Threads::Uniform(percent) => vec![*percent],
        Threads::PerRank(percents) => percents.clone(),
        Threads::Auto => {
            let why = "a step of a job with MPS takes a number";
            return Err(refused(
                Key::Threads,
                threads.to_string(),
                why,
                "1 to 100, or a list by local rank",
            ));
        }
    };
    let of_daemon = record.daemons.iter().filter_map(|daemon| daemon.threads).max();
    let above = pairs(&wanted, &record.rank_threads).find_map(|(percent, of_rank)| {
        let most = of_rank.copied().into_iter().chain(of_daemon).min()?;
        (*percent > most).then_some(most)
    });
    match above {
        Some(most) => Err(refused(
            Key::Threads,
            threads.to_string(),
            &format!("the job's MPS gives {most}, and a step can only lower it"),
            &format!("1 to {most}"),
        )),
        None => Ok(wanted),
    }
}

fn lower_memory(record: &Record, memory: &MemoryLimit) -> Result<Vec<Vec<(GpuUuid, u64)>>, Refusal> {
    let absolute = |amount: &Amount| match amount {
        Amount::Mebibytes(mib) => Some(*mib),
        Amount::Percent(_) => None,
    };
    let sizes = match memory {
        MemoryLimit::Uniform(amount) => absolute(amount).map(|mib| vec![mib]),
        MemoryLimit::PerRank(amounts) => amounts.iter().map(absolute).collect(),
        MemoryLimit::Auto | MemoryLimit::PerGpu(_) => None,
    };
    let Some(sizes) = sizes else {
        let why = "a step of a job with MPS takes a size";
        return Err(refused(
            Key::Mem,
            memory.to_string(),
            why,
            "4G, 900M, or a list of sizes by local rank",
        ));
    };
    let of_daemon = |gpu: &GpuUuid| limit(record.daemons.iter().flat_map(|daemon| &daemon.memory), gpu);
    for gpu in &record.gpus {
        let above = pairs(&sizes, &record.rank_memory).find_map(|(size, of_rank)| {
            let of_rank = of_rank.and_then(|limits| limit(limits.iter(), &gpu.uuid));
            let most = of_rank.into_iter().chain(of_daemon(&gpu.uuid)).min()?;
            (*size > most).then_some(most)
        });
        if let Some(most) = above {
            let why = format!(
                "the job's MPS gives {most}M of GPU {}, and a step can only lower it",
                gpu.index
            );
            return Err(refused(
                Key::Mem,
                memory.to_string(),
                &why,
                &format!("at most {most}M"),
            ));
        }
    }
    let on_all = |size: &u64| record.gpus.iter().map(|gpu| (gpu.uuid.clone(), *size)).collect();
    Ok(sizes.iter().map(on_all).collect())
}

fn limit<'a>(mut limits: impl Iterator<Item = &'a (GpuUuid, u64)>, gpu: &GpuUuid) -> Option<u64> {
    limits.find(|(uuid, _)| uuid == gpu).map(|(_, mib)| *mib)
}

/// Every pair that local ranks can meet: both lists start again when there are more ranks.
fn pairs<'a, A, B>(step: &'a [A], job: &'a [B]) -> impl Iterator<Item = (&'a A, Option<&'a B>)> {
    let count = step.len() * job.len().max(1);
    (0..count).filter_map(move |rank| {
        let own = step.get(rank % step.len())?;
        Some((own, (!job.is_empty()).then(|| &job[rank % job.len()])))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;
    use crate::record::{Daemon, RecordGpu, RecordState};

    fn request(text: &str) -> Request {
        text.parse().unwrap()
    }

    fn uuid(n: u32) -> GpuUuid {
        GpuUuid::parse(&format!("GPU-0000000{n}")).unwrap()
    }

    fn record(job: &str) -> Record {
        let mut record = Record::closed(
            JobId::parse("7").unwrap(),
            1000,
            RecordState::Ready,
            String::new(),
        );
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
        whole.divided = crate::record::AutoDivisors {
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
}

//! A step that asks for other limits than its job. The job's daemon already runs, and a client can
//! only lower its limits (docs/facts/mps-control.md#clients).

use super::bind::Bind;
use super::failure::Refusal;
use super::gpu::GpuUuid;
use super::limits::{Amount, Percent};
use super::record::{Record, limit_on, memory_limit};
use super::request::{Key, MemoryLimit, Mode, Request, Syntax, Threads};
use super::text::one_line;

const SHOWN: usize = 60;

/// Lower limits become those of the step's ranks; without its own it has the job's. Refuses other
/// options that the job's daemon cannot carry out.
pub fn of_step(record: &Record, step: &Request) -> Result<Record, Refusal> {
    let mut own = record.clone();
    let Some(job) = &record.request else {
        return Ok(own);
    };
    // `srun --mps` only says that the step wants MPS.
    if step.mode == Mode::PerGpu && !record.per_gpu {
        let why = "the job has one daemon for its GPUs";
        return Err(refused(Key::Mode, step, why, "per-gpu for the whole job"));
    }
    if step.mode == Mode::Own && record.shared {
        let why = "the job shares its MPS with your other jobs on the GPU";
        return Err(refused(Key::Mode, step, why, "own for the whole job"));
    }
    let differs = |key: &Key| {
        let value = step.value(*key);
        value.is_some() && value != job.value(*key)
    };
    let is_fixed = |key: &Key| !key.row().lowered_by_steps && !key.row().of_tasks;
    let others = || Key::ALL.into_iter().filter(|key| *key != Key::Mode);
    if let Some(key) = others().filter(is_fixed).find(differs) {
        let lower = others().filter(|key| key.row().lowered_by_steps);
        let lower: Vec<String> = lower.map(|key| Syntax::Flags.token(key, None)).collect();
        let allowed = format!("{}, lower than the job's", lower.join(" and "));
        return Err(refused(key, step, "the job's MPS runs already", &allowed));
    }
    if let Some(threads) = step.threads.as_ref().filter(|_| differs(&Key::Threads)) {
        own.rank_threads = lower_threads(record, step, threads)?;
    }
    if let Some(memory) = step.memory.as_ref().filter(|_| differs(&Key::Mem)) {
        own.rank_memory = lower_memory(record, step, memory)?;
    }
    own.bind = step.bind.or(own.bind);
    own.names = step.visible.or(own.names);
    Ok(own)
}

/// If the step has fewer GPUs than the job, `auto` is divided again.
pub fn of_tasks(record: &Record, tasks: u32, gpus: u32) -> Record {
    let mut own = record.clone();
    let bind = record.bind.unwrap_or(Bind::None);
    let each = bind.most_on_a_gpu(record.per_gpu, tasks, gpus);
    if record.divided.threads.is_some_and(|by| by < each) && own.rank_threads.is_empty() {
        own.rank_threads = vec![Percent::auto(1, each.into())];
    }
    let divided = record.divided.memory.filter(|by| *by < each);
    if let (Some(by), true) = (divided, own.rank_memory.is_empty()) {
        let daemons = record.daemons.iter().flat_map(|daemon| &daemon.memory);
        let lower = |mib: u64| (mib * u64::from(by) / u64::from(each)).max(1);
        let lowered = daemons.map(|(gpu, mib)| (gpu.clone(), lower(*mib)));
        own.rank_memory = vec![lowered.collect()];
    }
    own
}

fn refused(key: Key, step: &Request, why: &str, allowed: &str) -> Refusal {
    let what = Syntax::Flags.token(key, step.value(key).as_deref());
    Refusal::new(one_line(&what, SHOWN), why, allowed)
}

fn lower_threads(
    record: &Record,
    step: &Request,
    threads: &Threads,
) -> Result<Vec<Percent>, Refusal> {
    let wanted = match threads {
        Threads::Uniform(percent) => vec![*percent],
        Threads::PerRank(percents) => percents.clone(),
        Threads::Auto => {
            let why = "a step of a job with MPS takes a number";
            let allowed = "1 to 100, or a list by local rank";
            return Err(refused(Key::Threads, step, why, allowed));
        }
    };
    let daemons = record.daemons.iter();
    let of_daemon = daemons.filter_map(|daemon| daemon.threads).max();
    let of_ranks: Vec<_> = record.rank_threads.iter().copied().map(Some).collect();
    let refuse = |most| {
        let why = format!("the job's MPS gives {most}, and a step can only lower it");
        refused(Key::Threads, step, &why, &format!("1 to {most}"))
    };
    exceeded(&wanted, &of_ranks, of_daemon).map_or(Ok(wanted), |most| Err(refuse(most)))
}

fn lower_memory(
    record: &Record,
    step: &Request,
    memory: &MemoryLimit,
) -> Result<Vec<Vec<(GpuUuid, u64)>>, Refusal> {
    let absolute = |amount: &Amount| match amount {
        Amount::Mebibytes(mib) => Some(*mib),
        Amount::Percent(_) => None,
    };
    let sizes: Option<Vec<u64>> = match memory {
        MemoryLimit::Uniform(amount) => absolute(amount).map(|mib| vec![mib]),
        MemoryLimit::PerRank(amounts) => amounts.iter().map(absolute).collect(),
        MemoryLimit::Auto | MemoryLimit::Job(_) => None,
    };
    let sizes = sizes.ok_or_else(|| {
        let why = "a step of a job with MPS takes a size";
        let allowed = "4G, 900M, or a list of sizes by local rank";
        refused(Key::Mem, step, why, allowed)
    })?;
    for gpu in &record.gpus {
        let of_daemon = memory_limit(&record.daemons, &gpu.uuid);
        let of_ranks = record.rank_memory.iter();
        let of_ranks = of_ranks.map(|limits| limit_on(limits, &gpu.uuid));
        if let Some(most) = exceeded(&sizes, &of_ranks.collect::<Vec<_>>(), of_daemon) {
            let has = format!("the job's MPS gives {most}M of GPU {}", gpu.index);
            let why = format!("{has}, and a step can only lower it");
            return Err(refused(Key::Mem, step, &why, &format!("at most {most}M")));
        }
        if let Some(has) = exceeded(&sizes, &[], gpu.memory_mib) {
            let why = format!("GPU {} has {has}M", gpu.index);
            return Err(refused(Key::Mem, step, &why, &format!("at most {has}M")));
        }
    }
    let gpus = record.gpus.iter();
    let on_all = |size: &u64| gpus.clone().map(|gpu| (gpu.uuid.clone(), *size)).collect();
    Ok(sizes.iter().map(on_all).collect())
}

/// The first rank's limit that `step` exceeds. A list that is too short starts again.
fn exceeded<T: Ord + Copy>(step: &[T], of_ranks: &[Option<T>], of_daemon: Option<T>) -> Option<T> {
    let ranks = of_ranks.len().max(1);
    (0..step.len() * ranks).find_map(|rank| {
        let of_rank = of_ranks.get(rank % ranks).copied().flatten();
        let most = of_rank.into_iter().chain(of_daemon).min()?;
        (step[rank % step.len()] > most).then_some(most)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Daemon;
    use crate::testing::{self, uuid};

    fn request(text: &str) -> Request {
        text.parse().unwrap()
    }

    fn record(job: &str) -> Record {
        let mut record = testing::record(&[1]);
        record.request = Some(request(job));
        record.gpus[0].memory_mib = Some(81_920);
        record.daemons = vec![Daemon {
            gpus: vec![uuid(1)],
            pipe: "/run/mpsd/jobs/7/pipe".into(),
            log: "/run/mpsd/jobs/7/log".into(),
            threads: "50".parse().ok(),
            memory: vec![(uuid(1), 4096)],
            ..Daemon::default()
        }];
        record
    }

    const JOB: &str = "MPS=on,MPS_THREADS=50,MPS_MEM=4G";

    fn outcome(job: &Record, step: &str) -> String {
        match of_step(job, &request(step)) {
            Ok(own) if own == *job => "as its job".to_owned(),
            Ok(own) => {
                let mut all: Vec<String> =
                    own.rank_threads.iter().map(ToString::to_string).collect();
                let memory = own.rank_memory.iter().flatten();
                all.extend(memory.map(|(_, mib)| format!("{mib}M")));
                all.extend(own.bind.map(|bind| format!("{bind} {}", own.names())));
                all.join(" ")
            }
            Err(refusal) => refusal.to_string(),
        }
    }

    #[test]
    fn a_step_with_fewer_gpus_than_its_job_divides_them_by_its_own_tasks() {
        let mut whole = record("MPS=on,MPS_THREADS=auto,MPS_MEM=auto");
        whole.daemons[0].threads = "100".parse().ok();
        // Planned for a task on each of four GPUs.
        (whole.divided.threads, whole.divided.memory) = (Some(1), Some(1));
        assert_eq!(of_tasks(&whole, 4, 4), whole);
        let own = of_tasks(&whole, 4, 1);
        assert_eq!(own.rank_threads, ["50".parse().unwrap()]);
        assert_eq!(own.rank_memory, [vec![(uuid(1), 1024)]]);
        // As many as can meet: of six tasks on two GPUs, four if each sees both, and three if each
        // has its own.
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
        let slow = of_step(&whole, &request("MPS=on,MPS_THREADS=10")).unwrap();
        assert_eq!(of_tasks(&slow, 2, 1).rank_threads, ["10".parse().unwrap()]);
    }

    #[test]
    fn a_step_lowers_the_limits_of_its_ranks_and_what_its_job_cannot_give_is_refused_by_name() {
        let plain = record(JOB);
        let mut free = record("MPS=on");
        (free.daemons[0].threads, free.daemons[0].memory) = (None, Vec::new());
        let mut ranked = record("MPS=on,MPS_THREADS=30:70");
        ranked.daemons[0].threads = None;
        ranked.rank_threads = vec!["30".parse().unwrap(), "70".parse().unwrap()];
        ranked.rank_memory = vec![vec![(uuid(1), 2048)], vec![(uuid(1), 3072)]];
        let mut shared = record(JOB);
        shared.shared = true;
        let jobs = [
            ("plain", plain),
            ("free", free),
            ("together", record("MPS=on,MPS_MEM=job=4G")),
            ("ranked", ranked),
            ("shared", shared),
        ];
        let table = "
            plain  MPS_BIND=cyclic,MPS_VISIBLE=ordinal -> cyclic ordinal
            plain  MPS_THREADS=50,MPS_MEM=4G -> as its job
            plain  MPS=on                    -> as its job
            together MPS_MEM=job=4G          -> as its job
            together MPS_MEM=job=2G          -> --mps-mem=job=2G: a step of a job with MPS takes a size
            plain  MPS_THREADS=25,MPS_MEM=1G:2G -> 25 1024M 2048M
            free   MPS_THREADS=90,MPS_MEM=70G   -> 90 71680M
            ranked MPS_THREADS=20:60         -> 20 60 2048M 3072M
            free   MPS_MEM=80G                  -> 81920M
            free   MPS_MEM=1G:81G            -> --mps-mem=1G:81G: GPU 1 has 81920M
            plain  MPS_THREADS=80            -> --mps-threads=80: the job's MPS gives 50
            plain  MPS_MEM=5G                -> --mps-mem=5G: the job's MPS gives 4096M of GPU 1
            plain  MPS_THREADS=auto          -> --mps-threads=auto: a step of a job with MPS takes a number
            plain  MPS_MEM=25%               -> --mps-mem=25%: a step of a job with MPS takes a size
            plain  MPS_PRIORITY=below-normal -> --mps-priority=below-normal: the job's MPS runs already
            plain  MPS=per-gpu               -> --mps=per-gpu: the job has one daemon
            plain  MPS=own                   -> as its job
            shared MPS=own                   -> --mps=own: the job shares its MPS
            shared MPS=on                    -> as its job
            ranked MPS_MEM=3G:3G             -> --mps-mem=3G:3G: the job's MPS gives 2048M of GPU 1
            ranked MPS_THREADS=20:60:40      -> --mps-threads=20:60:40: the job's MPS gives 30";
        for row in table.trim().lines() {
            let (step, expected) = row.split_once("->").unwrap();
            let (job, step) = step.trim().split_once(' ').unwrap();
            let (_, job) = jobs.iter().find(|(name, _)| *name == job).unwrap();
            let mode = if step.contains("MPS=") { "" } else { "MPS=on," };
            let told = outcome(job, &format!("{mode}{}", step.trim()));
            let is_refused = expected.contains("--mps");
            assert!(told.starts_with(expected.trim()), "{row}: {told}");
            assert_eq!(told.contains("; allowed: "), is_refused, "{told}");
        }
    }
}

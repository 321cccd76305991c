//! The GPUs that a rank sees, and which of them is its own, by its number or by its cores.

use super::bind::Bind;
use super::failure::Refusal;
use super::orders::order;
use super::record::RecordGpu;
use std::collections::BTreeSet;

/// Most CPUs of a Linux kernel (`CONFIG_NR_CPUS`).
const MOST_CPUS: u32 = 8192;

/// The CPUs of a task, as the kernel lists them (`0-3,8`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cpus {
    pub own: String,
    /// The CPUs that its launcher may use: those of all its job's tasks on this node.
    pub of_launcher: String,
}

impl Cpus {
    pub fn of_this_process() -> Self {
        let list = |process: &str| {
            let status =
                std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            let mut lines = status.lines();
            let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            list.unwrap_or_default().trim().to_owned()
        };
        let launcher = std::os::unix::process::parent_id().to_string();
        let (own, of_launcher) = (list("self"), list(&launcher));
        Self { own, of_launcher }
    }
}

fn parse(list: &str) -> BTreeSet<u32> {
    let number = |text: &str| text.trim().parse().ok().filter(|cpu| *cpu < MOST_CPUS);
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(number(first)?..=number(last)?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// The CPUs of a bit mask, as the kernel lists them.
pub fn list(words: &[u64]) -> String {
    let word = |cpu: usize| words.get(cpu / 64).copied().unwrap_or(0);
    let is_set = |cpu: usize| word(cpu) >> (cpu % 64) & 1 == 1;
    let cpus = 0..words.len() * 64;
    let starts = cpus.filter(|cpu| is_set(*cpu) && (*cpu == 0 || !is_set(cpu - 1)));
    let range = |first: usize| {
        let last = (first..).find(|cpu| !is_set(cpu + 1)).unwrap_or(first);
        match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        }
    };
    starts.map(range).collect::<Vec<_>>().join(",")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    pub local: u32,
    pub of: Option<u32>,
}

/// Refuses a mode without the ranks or cores that it needs.
pub fn order_of(
    bind: Bind,
    rank: Rank,
    cpus: &Cpus,
    gpus: &[&RecordGpu],
) -> Result<Vec<usize>, Refusal> {
    let (local, count) = (rank.local as usize, gpus.len());
    let nearest = match bind {
        Bind::Closest => closest(local, cpus, gpus)?,
        _ => None,
    };
    let own = match (bind, nearest) {
        (Bind::None, _) => return Ok((0..count).collect()),
        (Bind::Auto, _) => return Ok(order(local, tasks(bind, rank)?, count)),
        (_, Some(place)) => place,
        (Bind::Closest | Bind::Block, None) => local * count / tasks(bind, rank)?,
        (Bind::Cyclic, None) => local % count.max(1),
    };
    if own >= count {
        let why = "this task has no GPU";
        return Err(Refusal::new("MPS", why, "a task with GPUs"));
    }
    Ok(vec![own])
}

fn tasks(bind: Bind, rank: Rank) -> Result<usize, Refusal> {
    let what = || format!("MPS_BIND={bind}");
    let why = "how many ranks this node has is not known";
    let tasks = rank.of.filter(|tasks| *tasks > rank.local);
    let tasks =
        tasks.ok_or_else(|| Refusal::new(what(), why, "a launcher that tells it, or cyclic"))?;
    Ok(tasks as usize)
}

/// `None`: all are equally near.
///
/// Among several, a task that has only some of its launcher's cores there takes its turn by the
/// place of its cores. Any other task takes it by its rank. Launchers deal ranks to sockets in
/// blocks or in turns, and the sum below is even for both.
fn closest(rank: usize, cpus: &Cpus, gpus: &[&RecordGpu]) -> Result<Option<usize>, Refusal> {
    let mut local = Vec::new();
    for gpu in gpus {
        local.push(parse(gpu.cpus.as_deref().ok_or_else(|| {
            let why = format!("NVML does not tell which cores are near GPU {}", gpu.index);
            Refusal::new("MPS_BIND=closest", why, "block or cyclic")
        })?));
    }
    let own = parse(&cpus.own);
    let share = |cpus: &BTreeSet<u32>| cpus.intersection(&own).count();
    let shares: Vec<usize> = local.iter().map(share).collect();
    let most = shares.iter().max();
    let is_near = |place: &usize| shares.get(*place) == most;
    let near: Vec<usize> = (0..gpus.len()).filter(is_near).collect();
    if near.len() == gpus.len() {
        return Ok(None);
    }
    let domains: BTreeSet<_> = local.iter().collect();
    let within = |cpus: &str| &parse(cpus) & &local[near[0]];
    let turn = slot(&within(&cpus.own), &within(&cpus.of_launcher));
    let turn = turn.unwrap_or(rank + rank / domains.len());
    Ok(near.get(turn % near.len()).copied())
}

/// The turn of the task with `own` of the CPUs `all`. Each task has as many neighboring CPUs.
fn slot(own: &BTreeSet<u32>, all: &BTreeSet<u32>) -> Option<usize> {
    if own.len() >= all.len() {
        return None;
    }
    let from_first = all.iter().skip_while(|cpu| !own.contains(cpu));
    let before = all.len() - from_first.clone().count();
    let run = from_first.take_while(|cpu| own.contains(cpu)).count();
    (run > 0).then(|| before / run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::record_gpu;

    fn gpus(cpus: &[&str]) -> Vec<RecordGpu> {
        let gpu = |(index, cpus): (u32, &&str)| RecordGpu {
            cpus: Some((*cpus).to_owned()),
            ..record_gpu(index)
        };
        (0..).zip(cpus).map(gpu).collect()
    }

    fn closest_to(gpus: &[RecordGpu], launcher: &str, tasks: &[&str]) -> String {
        let all: Vec<&RecordGpu> = gpus.iter().collect();
        let of = u32::try_from(tasks.len()).ok();
        let place = |(local, own): (u32, &&str)| {
            let cpus = Cpus {
                own: (*own).to_owned(),
                of_launcher: launcher.to_owned(),
            };
            let order = order_of(Bind::Closest, Rank { local, of }, &cpus, &all);
            order.unwrap()[0].to_string()
        };
        (0..).zip(tasks).map(place).collect()
    }

    #[test]
    fn cpus_are_listed_as_the_kernel_does() {
        let first_and_last = [0x8000_0000_0000_000f, 0b101];
        assert_eq!(list(&first_and_last), "0-3,63-64,66");
        assert_eq!(parse("0-3,63-64,66").len(), 7);
        assert_eq!((list(&[]), list(&[0])), (String::new(), String::new()));
        for odd in ["", "x", "3-", "4-1", "0-4294967295", "-1"] {
            assert!(parse(odd).is_empty(), "{odd}");
        }
    }

    #[test]
    fn a_task_is_bound_to_a_gpu_near_its_cores() {
        // The cores near each GPU, the job's, its tasks' in turn, and the GPU of each task.
        let table = "
0-3 4-7 | 0-7 | 4-5 0-1 6-7 2-3 -> 1010
0-3 4-7 | 0-7 | 3-5 -> 1
FOUR | 0-15 | 0-1 2-3 4-5 6-7 8-9 10-11 12-13 14-15 -> 01012323
FOUR | 0-15 | 0-1 8-9 2-3 10-11 4-5 12-13 6-7 14-15 -> 02130213
FOUR | 4-11 | 4-5 6-7 8-9 10-11 -> 0123
THREADS | 0-7,16-23 | 0,16 1,17 2,18 3,19 -> 0101
FOUR | 0-15 | 0-7 8-15 0-7 8-15 -> 0312
FOUR | 0-15 | 0-7 0-7 8-15 8-15 -> 0132
0-7 0-7 | 0-7 | 0-1 2-3 4-5 6-7 -> 0011
0-3 4-7 | 0-7 | 0-7 0-7 0-7 0-7 -> 0011
0-3 4-7 | 0-15 | 8-11 12-15 -> 01";
        let table = table.replace("FOUR", "0-7 0-7 8-15 8-15");
        // Both threads of a core.
        let table = table.replace("THREADS", "0-3,16-19 0-3,16-19 4-7,20-23 4-7,20-23");
        for row in table.trim().lines() {
            let (case, expected) = row.split_once(" -> ").unwrap();
            let parts: Vec<&str> = case.split(" | ").collect();
            let [near, tasks] = [parts[0], parts[2]].map(|part| Vec::from_iter(part.split(' ')));
            let found = closest_to(&gpus(&near), parts[1], &tasks);
            assert_eq!(found, expected, "{row}");
        }
    }
}

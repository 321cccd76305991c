//! The GPUs that a rank sees, and which of them is its own: by its number or by its cores.

use super::bind::{Bind, BindMode};
use super::failure::Refusal;
use super::orders::order;
use super::record::RecordGpu;
use std::collections::BTreeSet;
use std::iter::once;

/// Most CPUs that a kernel of Linux counts (`CONFIG_NR_CPUS`).
const MOST_CPUS: u32 = 8192;

/// The CPUs of a task, as the kernel lists them (`0-3,8`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cpus {
    /// Those that it may use.
    pub own: String,
    /// Those that its launcher may use: all that its job's tasks share here.
    pub of_launcher: String,
}

impl Cpus {
    /// This process's.
    pub fn of_this_process() -> Self {
        let list = |process: &str| {
            let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
            let mut lines = status.lines();
            let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            list.unwrap_or_default().trim().to_owned()
        };
        Self {
            own: list("self"),
            of_launcher: list(&std::os::unix::process::parent_id().to_string()),
        }
    }
}

/// A list of CPUs as the kernel writes it; empty where it is none.
fn parse(list: &str) -> BTreeSet<u32> {
    let number = |text: &str| text.trim().parse().ok().filter(|cpu| *cpu < MOST_CPUS);
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(number(first)?..=number(last)?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

/// A list of CPUs from bits, as the kernel writes it.
pub fn list(words: &[u64]) -> String {
    let is_set = |cpu: usize| {
        words
            .get(cpu / 64)
            .is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    };
    let cpus = 0..words.len() * 64;
    let starts = cpus.filter(|cpu| is_set(*cpu) && (*cpu == 0 || !is_set(cpu - 1)));
    let range = |first: usize| {
        let last = (first..).find(|cpu| !is_set(cpu + 1)).unwrap_or(first);
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    };
    starts.map(range).collect::<Vec<_>>().join(",")
}

/// A rank among those of its job on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// From 0.
    pub local: u32,
    /// How many there are, where the launcher tells.
    pub of: Option<u32>,
}

/// The places, among `gpus`, of those that a task sees, in its order: its own first, if it has one.
///
/// # Errors
/// A refusal where what the mode goes by is not known.
pub fn order_of(bind: Bind, rank: Rank, cpus: &Cpus, gpus: &[&RecordGpu]) -> Result<Vec<usize>, Refusal> {
    let none = || Refusal::new("MPS", "this task has no GPU", "a task with GPUs");
    let own = match bind.how {
        BindMode::None => return Ok((0..gpus.len()).collect()),
        BindMode::Auto => return Ok(order(rank.local as usize, tasks(bind.how, rank)?, gpus.len())),
        BindMode::Block | BindMode::Cyclic | BindMode::Closest => place_of(bind.how, rank, cpus, gpus)?,
    };
    if own >= gpus.len() {
        return Err(none());
    }
    let peers = (0..gpus.len()).filter(|place| bind.peers && *place != own);
    Ok(once(own).chain(peers).collect())
}

/// The place of the task's own GPU.
fn place_of(how: BindMode, rank: Rank, cpus: &Cpus, gpus: &[&RecordGpu]) -> Result<usize, Refusal> {
    let count = gpus.len().max(1);
    let local = rank.local as usize;
    match how {
        BindMode::Closest => match closest(local, cpus, gpus)? {
            Some(place) => Ok(place),
            None => block(how, rank, count),
        },
        BindMode::Block => block(how, rank, count),
        BindMode::Cyclic | BindMode::Auto | BindMode::None => Ok(local % count),
    }
}

fn block(how: BindMode, rank: Rank, gpus: usize) -> Result<usize, Refusal> {
    Ok(rank.local as usize * gpus / tasks(how, rank)?)
}

/// How many ranks the node has.
fn tasks(how: BindMode, rank: Rank) -> Result<usize, Refusal> {
    let what = || format!("MPS_BIND={}", Bind::of(how));
    let why = "how many ranks this node has is not known";
    let tasks = rank.of.filter(|tasks| *tasks > rank.local);
    let tasks = tasks.ok_or_else(|| Refusal::new(what(), why, "a launcher that tells it, or cyclic"))?;
    Ok(tasks as usize)
}

/// The place of the nearest GPU; `None` where all are as near.
///
/// Several may be as near as each other. A task that has some of its launcher's cores there takes its turn by the place
/// of these, else by its rank. Ranks are dealt out to sockets in blocks or by turns: the sum that is taken of a rank
/// shares evenly either way.
fn closest(rank: usize, cpus: &Cpus, gpus: &[&RecordGpu]) -> Result<Option<usize>, Refusal> {
    let mut local = Vec::new();
    for gpu in gpus {
        local.push(parse(gpu.cpus.as_deref().ok_or_else(|| {
            let why = format!("NVML does not tell which cores are near GPU {}", gpu.index);
            Refusal::new("MPS_BIND=closest", why, "block or cyclic")
        })?));
    }
    let own = parse(&cpus.own);
    let shares: Vec<usize> = local.iter().map(|cpus| cpus.intersection(&own).count()).collect();
    let most = shares.iter().max();
    let near: Vec<usize> = (0..gpus.len())
        .filter(|place| shares.get(*place) == most)
        .collect();
    let turn = match near[..] {
        [] => return Ok(None),
        [first, ..] if near.len() < gpus.len() => {
            let domains: BTreeSet<_> = local.iter().collect();
            let within = |cpus: &str| &parse(cpus) & &local[first];
            slot(&within(&cpus.own), &within(&cpus.of_launcher)).unwrap_or(rank + rank / domains.len())
        }
        _ => return Ok(None),
    };
    Ok(near.get(turn % near.len()).copied())
}

/// Which turn is that of the task with `own` of the CPUs `all`: each task has as many neighbouring ones.
fn slot(own: &BTreeSet<u32>, all: &BTreeSet<u32>) -> Option<usize> {
    if own.len() >= all.len() {
        return None;
    }
    let mut from_first = all.iter().skip_while(|cpu| !own.contains(cpu));
    let before = all.len() - from_first.clone().count();
    let run = from_first.by_ref().take_while(|cpu| own.contains(cpu)).count();
    (run > 0).then(|| before / run)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuUuid;

    fn gpus(cpus: &[&str]) -> Vec<RecordGpu> {
        let gpu = |(index, cpus): (u32, &&str)| RecordGpu {
            index,
            uuid: GpuUuid::parse(&format!("GPU-0000000{index}")).unwrap(),
            cpus: Some((*cpus).to_owned()),
        };
        (0..).zip(cpus).map(gpu).collect()
    }

    /// The GPU of each task with these CPUs, by rank.
    fn closest_to(gpus: &[RecordGpu], launcher: &str, tasks: &[&str]) -> String {
        let all: Vec<&RecordGpu> = gpus.iter().collect();
        let of = u32::try_from(tasks.len()).ok();
        let place = |(local, own): (u32, &&str)| {
            let cpus = Cpus {
                own: (*own).to_owned(),
                of_launcher: launcher.to_owned(),
            };
            let place = place_of(BindMode::Closest, Rank { local, of }, &cpus, &all).unwrap();
            place.to_string()
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
    fn a_task_is_bound_to_the_gpu_of_its_socket() {
        let two = gpus(&["0-3", "4-7"]);
        assert_eq!(closest_to(&two, "0-7", &["4-5", "0-1", "6-7", "2-3"]), "1010");
        // More of its cores are near the second.
        assert_eq!(closest_to(&two, "0-7", &["3-5"]), "1");
    }

    #[test]
    fn gpus_of_one_socket_are_shared_evenly() {
        let four = gpus(&["0-7", "0-7", "8-15", "8-15"]);
        // Bound to cores, rank after rank and from socket to socket.
        let cores = ["0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12-13", "14-15"];
        assert_eq!(closest_to(&four, "0-15", &cores), "01012323");
        let turns = ["0-1", "8-9", "2-3", "10-11", "4-5", "12-13", "6-7", "14-15"];
        assert_eq!(closest_to(&four, "0-15", &turns), "02130213");
        // The job has only some of the cores.
        assert_eq!(closest_to(&four, "4-11", &["4-5", "6-7", "8-9", "10-11"]), "0123");
        // Both threads of a core.
        let threads = gpus(&["0-3,16-19", "0-3,16-19", "4-7,20-23", "4-7,20-23"]);
        assert_eq!(
            closest_to(&threads, "0-7,16-23", &["0,16", "1,17", "2,18", "3,19"]),
            "0101"
        );
        // Bound to sockets only: by rank, whichever way the ranks were dealt out.
        assert_eq!(closest_to(&four, "0-15", &["0-7", "8-15", "0-7", "8-15"]), "0312");
        assert_eq!(closest_to(&four, "0-15", &["0-7", "0-7", "8-15", "8-15"]), "0132");
    }

    #[test]
    fn where_all_gpus_are_as_near_the_ranks_are_shared_in_blocks() {
        let flat = gpus(&["0-7", "0-7"]);
        assert_eq!(closest_to(&flat, "0-7", &["0-1", "2-3", "4-5", "6-7"]), "0011");
        let two = gpus(&["0-3", "4-7"]);
        assert_eq!(closest_to(&two, "0-7", &["0-7", "0-7", "0-7", "0-7"]), "0011");
        // Cores of neither socket.
        assert_eq!(closest_to(&two, "0-15", &["8-11", "12-15"]), "01");
    }
}

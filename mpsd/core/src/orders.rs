//! The order in which each task of a node sees the job's GPUs if no task is bound to a GPU
//! (`--mps-bind=auto`).
//!
//! A program takes the first visible GPU, or computes a place from its rank. We do not know which
//! habit it has. So each task gets an order in which every habit leads to a GPU that few other
//! tasks with that habit use. Programs that compute a place from their rank spread out as evenly as
//! without these orders. Under that condition, so do programs that take the first GPU.

use std::cmp::Reverse;

const HABITS: usize = 4;
const FIRST: usize = 0;
/// The habit of the rank modulo the GPUs, which is as even as can be in the order of the bus.
const IN_TURN: usize = 1;
type ByHabit = [usize; HABITS];
/// The weight of a task that a GPU already has, by habit. Both kinds of blocks are often the same.
const WEIGHTS: ByHabit = [2, 2, 1, 1];
/// For up to 16 GPUs and 512 tasks nothing becomes more even after the sixth time.
const ROUNDS: usize = 8;
/// More tasks, as a launcher may say, see the order of the bus: 16 GPUs take no more clients.
const MOST_TASKS: usize = 1024;

/// By habit: the first, the rank modulo the GPUs, blocks of ranks, blocks rounded up (LAMMPS).
fn places(task: usize, tasks: usize, gpus: usize) -> ByHabit {
    [
        0,
        task % gpus,
        task * gpus / tasks,
        task / tasks.div_ceil(gpus),
    ]
}

/// How `task` sees the `gpus`, from 0 along the bus; in that order if there are fewer tasks.
pub fn order(task: usize, tasks: usize, gpus: usize) -> Vec<usize> {
    let of_bus = || (0..gpus).collect();
    if tasks > MOST_TASKS {
        return of_bus();
    }
    let mut orders = orders(tasks, gpus).into_iter();
    orders.nth(task).unwrap_or_else(of_bus)
}

fn orders(tasks: usize, gpus: usize) -> Vec<Vec<usize>> {
    let dealt = deal(tasks, gpus).into_iter().enumerate();
    dealt
        .map(|(task, own)| {
            let mut order = vec![None; gpus];
            for (place, gpu) in places(task, tasks, gpus).into_iter().zip(own) {
                order[place] = Some(gpu);
            }
            let mut others = (0..gpus).filter(|gpu| !own.contains(gpu));
            let gpus = order.into_iter().map(|gpu| gpu.or_else(|| others.next()));
            gpus.flatten().collect()
        })
        .collect()
}

/// The tasks that a habit can bring to one GPU; 1 if each can have its own.
pub fn most_on_a_gpu(tasks: usize, gpus: usize) -> usize {
    if tasks <= gpus {
        return 1;
    }
    if tasks > MOST_TASKS {
        return tasks;
    }
    let all = crowds(&deal(tasks, gpus), gpus);
    all.into_iter().flatten().max().unwrap_or(tasks)
}

/// The GPU of each habit, by task. Each task takes the GPUs with the fewest tasks, in rounds until
/// nothing improves.
fn deal(tasks: usize, gpus: usize) -> Vec<ByHabit> {
    if gpus == 0 {
        return Vec::new();
    }
    // In the order of the bus, each GPU's number is its place.
    let places: Vec<ByHabit> = (0..tasks).map(|task| places(task, tasks, gpus)).collect();
    if tasks < gpus {
        return places;
    }
    let without = crowds(&places, gpus);
    // First the number of habits by rank that are less even than without us, then the tasks on each
    // GPU by the first place.
    let score = |dealt: &[ByHabit]| {
        let mut now = crowds(dealt, gpus);
        let is_worse = |habit: &usize| now[*habit] > without[*habit];
        let worse = (1..HABITS).filter(is_worse).count();
        (worse, std::mem::take(&mut now[FIRST]))
    };
    let even = (0, without[IN_TURN].clone());
    let mut best = places.clone();
    let mut chosen: Vec<Option<ByHabit>> = vec![None; tasks];
    let mut taken = vec![[0; HABITS]; gpus];
    for round in 0..ROUNDS {
        if score(&best) == even {
            break;
        }
        for (own, places) in chosen.iter_mut().zip(&places) {
            if let Some(own) = own.take() {
                (0..HABITS).for_each(|habit| taken[own[habit]][habit] -= 1);
            }
            let new = choose(places, &taken, round);
            (0..HABITS).for_each(|habit| taken[new[habit]][habit] += 1);
            *own = Some(new);
        }
        let dealt: Vec<ByHabit> = chosen.iter().copied().flatten().collect();
        if score(&dealt) < score(&best) {
            best = dealt;
        }
    }
    best
}

/// For each place the GPU that the fewest others have by the same habits. The place of most habits
/// chooses first. Each round begins at another GPU, so that tasks do not repeat choices.
fn choose(places: &ByHabit, taken: &[ByHabit], round: usize) -> ByHabit {
    let gpus = taken.len();
    let mut distinct = places.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let weights = |place| habits_at(places, place).map(|habit| WEIGHTS[habit]);
    let weight = |place| weights(place).sum::<usize>();
    distinct.sort_by_key(|place| Reverse(weight(*place)));
    let mut own = [usize::MAX; HABITS];
    for place in distinct {
        let others = |gpu: usize| {
            let counted = habits_at(places, place).map(|habit| WEIGHTS[habit] * taken[gpu][habit]);
            counted.sum::<usize>()
        };
        let free = (0..gpus).filter(|gpu| !own.contains(gpu));
        let least = free.min_by_key(|gpu| (others(*gpu), (gpu + round) % gpus));
        habits_at(places, place).for_each(|habit| own[habit] = least.unwrap_or(place));
    }
    own
}

fn habits_at(places: &ByHabit, place: usize) -> impl Iterator<Item = usize> {
    (0..HABITS).filter(move |habit| places[*habit] == place)
}

/// The tasks on each GPU, the fullest first, by habit. Of two such lists the smaller is more even.
fn crowds(dealt: &[ByHabit], gpus: usize) -> [Vec<usize>; HABITS] {
    std::array::from_fn(|habit| {
        let mut crowds = vec![0; gpus];
        dealt.iter().for_each(|own| crowds[own[habit]] += 1);
        crowds.sort_unstable_by_key(|crowd| Reverse(*crowd));
        crowds
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many tasks come to each GPU, by habit, if programs see the orders of [`orders`].
    fn of_programs(tasks: usize, gpus: usize) -> Vec<ByHabit> {
        let orders = orders(tasks, gpus);
        assert_eq!(orders.len(), tasks);
        let mut on_each = vec![[0; HABITS]; gpus];
        for (rank, order) in orders.iter().enumerate() {
            let mut all = order.clone();
            all.sort_unstable();
            let is_whole = all.into_iter().eq(0..gpus);
            assert!(is_whole, "{rank} of {tasks} sees {order:?}");
            let each = tasks.div_ceil(gpus);
            let programs = [0, rank % gpus, rank * gpus / tasks, rank / each];
            for (habit, place) in programs.into_iter().enumerate() {
                on_each[order[place]][habit] += 1;
            }
        }
        on_each
    }

    /// The tasks on each GPU with one habit, most first.
    fn sorted(on_each: impl Iterator<Item = usize>) -> Vec<usize> {
        let mut counts: Vec<usize> = on_each.collect();
        counts.sort_unstable_by_key(|count| Reverse(*count));
        counts
    }

    /// Every node with up to 16 GPUs and 64 tasks.
    #[test]
    fn no_habit_is_less_even_than_without_us_and_the_first_gpu_is_as_even_as_can_be() {
        for gpus in 1..=16 {
            for tasks in 1..=64 {
                let with = of_programs(tasks, gpus);
                let by = |habit: usize| sorted(with.iter().map(|gpu| gpu[habit]));
                let [first, in_turn, blocks, blocks_up] = [0, 1, 2, 3].map(by);
                let even = sorted((0..gpus).map(|gpu| (tasks + gpu) / gpus));
                let what = format!("{tasks} tasks on {gpus} GPUs");
                assert_eq!((&in_turn, &blocks), (&even, &even), "{what}");
                let each = tasks.div_ceil(gpus);
                let without = (0..gpus).map(|gpu| each.min(tasks.saturating_sub(gpu * each)));
                let without = sorted(without);
                assert!(blocks_up <= without, "{what}: {blocks_up:?}");
                let expected = match (gpus, tasks) {
                    _ if tasks < gpus => [vec![tasks], vec![0; gpus - 1]].concat(),
                    // No order is better: all orders of two GPUs have been tried.
                    (2, _) if tasks % 4 == 2 => vec![tasks / 2 + 1, tasks / 2 - 1],
                    _ => even,
                };
                assert_eq!(first, expected, "{what}");
                let most = first[0].max(in_turn[0]);
                let most = if tasks > gpus { most } else { 1 };
                assert_eq!(most_on_a_gpu(tasks, gpus), most, "{what}");
            }
        }
    }

    #[test]
    fn a_task_for_each_gpu_finds_by_its_rank_the_gpu_that_it_had() {
        for gpus in 2..=16 {
            let mut by_rank = orders(gpus, gpus).into_iter().enumerate();
            assert!(by_rank.all(|(rank, order)| order[rank] == rank), "{gpus}");
        }
    }

    #[test]
    fn a_number_of_tasks_that_no_node_has_takes_no_time() {
        let began = std::time::Instant::now();
        for tasks in [MOST_TASKS, MOST_TASKS - 2, MOST_TASKS + 1, usize::MAX] {
            for gpus in [2, 16] {
                assert_eq!(order(MOST_TASKS - 3, tasks, gpus).len(), gpus);
                assert!(most_on_a_gpu(tasks, gpus) >= tasks.div_ceil(gpus));
            }
        }
        let took = began.elapsed();
        assert!(took < std::time::Duration::from_secs(5), "{took:?}");
        assert!(order(0, 7, 0).is_empty());
    }
}

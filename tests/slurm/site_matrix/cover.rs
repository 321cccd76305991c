//! Rows in which every possible pair of values of two factors occurs at least once, and every
//! triple of some factors. A greedy covering array, the same in every run.

use std::collections::BTreeSet;

use super::factors::{in_order, interactions, is_masked, possible};

/// How many uncovered combinations are tried as the start of a row.
const SEEDS: usize = 8;

/// A value for each of some factors, in the factors' order; one byte for factor and value.
type Combination = u64;

fn combination(parts: impl Iterator<Item = (usize, usize)>) -> Combination {
    parts.fold(0, |all, (factor, value)| {
        all << 8 | (factor as u64) << 3 | value as u64
    })
}

fn parts(mut combination: Combination) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    while combination != 0 {
        let byte = combination & 0xff;
        parts.push(((byte >> 3) as usize, (byte & 7) as usize));
        combination >>= 8;
    }
    parts.reverse();
    parts
}

struct Cover<'a> {
    levels: &'a [usize],
    /// Groups of factors; every combination of their values is wanted.
    wanted: Vec<Vec<usize>>,
    missing: BTreeSet<Combination>,
}

/// Rows that begin with one of `prefixes`. Combinations within a prefix are not wanted.
pub fn cover(levels: &[usize], prefixes: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let given = prefixes.first().map_or(0, Vec::len);
    let mut cover = Cover {
        levels,
        wanted: interactions(given, levels.len()),
        missing: BTreeSet::new(),
    };
    cover.missing = cover
        .wanted
        .iter()
        .flat_map(|factors| all(factors, levels))
        .collect();
    let mut used = vec![0; prefixes.len()];
    let mut rows = Vec::new();
    while !cover.missing.is_empty() {
        let mut best: Option<(usize, usize, Vec<usize>)> = None;
        for seed in cover
            .missing
            .iter()
            .copied()
            .take(SEEDS)
            .collect::<Vec<_>>()
        {
            let mut any = false;
            for (at, prefix) in prefixes.iter().enumerate() {
                let Some(row) =
                    begin(levels.len(), prefix, seed).and_then(|row| cover.complete(row))
                else {
                    continue;
                };
                any = true;
                let gain = cover
                    .of(&row)
                    .filter(|one| cover.missing.contains(one))
                    .count();
                let better = best.as_ref().is_none_or(|(most, of, _)| {
                    gain > *most || gain == *most && used[at] < used[*of]
                });
                if better {
                    best = Some((gain, at, row));
                }
            }
            if !any {
                // No row can have it.
                cover.missing.remove(&seed);
            }
        }
        if let Some((_, at, row)) = best {
            let covered: Vec<Combination> = cover.of(&row).collect();
            for one in covered {
                cover.missing.remove(&one);
            }
            used[at] += 1;
            rows.push(row);
        }
    }
    rows
}

fn all(factors: &[usize], levels: &[usize]) -> Vec<Combination> {
    let mut found = vec![Vec::new()];
    for factor in factors {
        let longer = |one: Vec<(usize, usize)>| {
            (0..levels[*factor]).map(move |value| [&one[..], &[(*factor, value)]].concat())
        };
        found = found.into_iter().flat_map(longer).collect();
    }
    found
        .into_iter()
        .map(|one| combination(one.into_iter()))
        .collect()
}

/// The prefix with the seed, unless they contradict.
fn begin(size: usize, prefix: &[usize], seed: Combination) -> Option<Vec<Option<usize>>> {
    let mut row = vec![None; size];
    for (place, value) in row.iter_mut().zip(prefix) {
        *place = Some(*value);
    }
    for (factor, value) in parts(seed) {
        if row[factor].is_some_and(|set| set != value) {
            return None;
        }
        row[factor] = Some(value);
    }
    possible(&row).then_some(row)
}

impl Cover<'_> {
    fn of<'a>(&'a self, row: &'a [usize]) -> impl Iterator<Item = Combination> + 'a {
        let chosen: Vec<Option<usize>> = row.iter().copied().map(Some).collect();
        let one = |factors: &Vec<usize>| {
            combination(factors.iter().map(|factor| (*factor, row[*factor])))
        };
        let counts = move |factors: &&Vec<usize>| !is_masked(&chosen, factors);
        self.wanted.iter().filter(counts).map(one)
    }

    /// Fills the rest: for each factor the value that covers most, or another if that leads
    /// nowhere.
    fn complete(&self, row: Vec<Option<usize>>) -> Option<Vec<usize>> {
        let Some(next) = row.iter().position(Option::is_none) else {
            return row.into_iter().collect();
        };
        let mut values: Vec<usize> = (0..self.levels[next]).collect();
        if !in_order(next) {
            values.sort_by_cached_key(|value| std::cmp::Reverse(self.gain(&row, next, *value)));
        }
        values.into_iter().find_map(|value| {
            let mut longer = row.clone();
            longer[next] = Some(value);
            possible(&longer).then(|| self.complete(longer)).flatten()
        })
    }

    /// How many missing combinations `value` would cover, with the values chosen so far.
    fn gain(&self, row: &[Option<usize>], next: usize, value: usize) -> usize {
        let chosen = |factor: &usize| {
            let value = if *factor == next {
                Some(value)
            } else {
                row[*factor]
            };
            Some((*factor, value?))
        };
        let covers = |factors: &&Vec<usize>| {
            let parts: Option<Vec<_>> = factors.iter().map(chosen).collect();
            parts.is_some_and(|parts| self.missing.contains(&combination(parts.into_iter())))
        };
        self.wanted
            .iter()
            .filter(|factors| factors.contains(&next))
            .filter(covers)
            .filter(|factors| !is_masked(row, factors))
            .count()
    }
}

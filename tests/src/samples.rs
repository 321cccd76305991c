//! Repeated measurements and their figures.

use std::time::Duration;

use anyhow::Result;

/// Each case in turn, and each round begins with another case. Several rounds are preceded by one
/// that does not count and fills the page cache.
pub fn in_turn<C, R>(
    cases: &[C],
    rounds: usize,
    mut measure: impl FnMut(&C, usize) -> Result<R>,
) -> Result<Vec<Vec<R>>> {
    let mut results: Vec<Vec<R>> = cases.iter().map(|_| Vec::new()).collect();
    let uncounted = usize::from(rounds > 1);
    for round in 0..rounds + uncounted {
        for turn in 0..cases.len() {
            let number = (round + turn) % cases.len();
            let result = measure(&cases[number], round)?;
            if round >= uncounted {
                results[number].push(result);
            }
        }
    }
    Ok(results)
}

pub fn milliseconds(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1e3)
}
pub fn rounded(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}

/// By linear interpolation; `part` is 0 to 1. Not a number without samples.
pub fn quantile(samples: &[f64], part: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return f64::NAN;
    };
    let at = part * last as f64;
    let (low, high) = (at.floor() as usize, at.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * (at - low as f64)
}

pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

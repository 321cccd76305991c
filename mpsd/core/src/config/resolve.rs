//! Request and site put together: job > node section > defaults, and the ceilings over all of them.

use super::settings::{Ceilings, Settings};
use crate::failure::Refusal;
use crate::gpu::Gpu;
use crate::limits::{Amount, Percent};
use crate::request::{GpuSelector, Key, MemoryLimit, Request, Threads, Wording};
use crate::text::one_line;

/// Who asks, as far as defaults and ceilings depend on it.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// The job's GPUs; empty where they are not known yet, as at submission.
    pub gpus: &'a [&'a Gpu],
    /// The job's tasks on each GPU, where the scheduler tells.
    pub tasks: Option<u32>,
    /// How the user wrote the request.
    pub wording: Wording,
}

impl Settings {
    /// The request as it is to be carried out: what the job does not say comes from the defaults, and nothing exceeds
    /// a ceiling.
    ///
    /// A number that the user wrote and that exceeds a ceiling is refused. What the user did not write as a number
    /// (nothing, `auto`, the site's own default) is lowered to the ceiling instead.
    ///
    /// # Errors
    /// A refusal that names the user's word, the ceiling and what is allowed.
    pub fn resolve(&self, request: &Request, asker: &Asker<'_>) -> Result<Request, Refusal> {
        self.ceilings.check(request, asker)?;
        let mut resolved = request.clone();
        if !request.is_on() {
            return Ok(resolved);
        }
        if request.replicas.is_none() {
            resolved.threads = request.threads.clone().or_else(|| self.defaults.threads.clone());
            resolved.memory = request.memory.clone().or_else(|| self.defaults.memory.clone());
            self.ceilings.lower(&mut resolved, asker);
        }
        resolved.priority = request.priority.or(self.defaults.priority);
        resolved.verify = request.verify.or(self.defaults.verify);
        Ok(resolved)
    }
}

impl Ceilings {
    /// Refuses numbers of the user above a ceiling.
    fn check(&self, request: &Request, asker: &Asker<'_>) -> Result<(), Refusal> {
        if let Some(ceiling) = self.threads {
            self.check_threads(request, asker, ceiling)?;
        }
        match self.memory {
            Some(ceiling) => check_memory(request, asker, ceiling),
            None => Ok(()),
        }
    }

    fn check_threads(&self, request: &Request, asker: &Asker<'_>, ceiling: Percent) -> Result<(), Refusal> {
        let refused = |key: Key, value: String| {
            let what = asker.wording.token(key, Some(&value));
            let why = format!("the thread percentage is above this site's ceiling of {ceiling}");
            let allowed = match key {
                Key::Replicas => format!(
                    "at least {} replicas",
                    u32::from(Percent::WHOLE.tenths()).div_ceil(ceiling.tenths().into())
                ),
                _ => format!("1 to {ceiling}"),
            };
            Err(Refusal::new(one_line(&what, 60), why, allowed))
        };
        match (&request.threads, request.replicas) {
            (Some(threads), _) if highest(threads) > Some(ceiling) => {
                refused(Key::Threads, threads.to_string())
            }
            (_, Some(replicas)) if Percent::part_of(replicas) > ceiling => {
                refused(Key::Replicas, replicas.to_string())
            }
            _ => Ok(()),
        }
    }

    /// Lowers what no user wrote as a number.
    fn lower(&self, request: &mut Request, asker: &Asker<'_>) {
        if let Some(ceiling) = self.threads {
            request.threads = Some(lowered_threads(request.threads.take(), asker.tasks, ceiling));
        }
        if let Some(ceiling) = self.memory {
            request.memory = Some(lowered_memory(request.memory.take(), asker, ceiling));
        }
    }
}

fn highest(threads: &Threads) -> Option<Percent> {
    match threads {
        Threads::Auto => None,
        Threads::Uniform(percent) => Some(*percent),
        Threads::PerRank(percents) => percents.iter().max().copied(),
    }
}

fn lowered_threads(threads: Option<Threads>, tasks: Option<u32>, ceiling: Percent) -> Threads {
    match threads {
        None => Threads::Uniform(ceiling),
        Some(Threads::Auto) => match tasks {
            Some(tasks) if Percent::auto(tasks) > ceiling => Threads::Uniform(ceiling),
            _ => Threads::Auto,
        },
        Some(Threads::Uniform(percent)) => Threads::Uniform(percent.min(ceiling)),
        Some(Threads::PerRank(percents)) => {
            Threads::PerRank(percents.into_iter().map(|percent| percent.min(ceiling)).collect())
        }
    }
}

fn check_memory(request: &Request, asker: &Asker<'_>, ceiling: Amount) -> Result<(), Refusal> {
    let refused = |key: Key, value: String, allowed: String| {
        let what = asker.wording.token(key, Some(&value));
        let why = format!("the memory limit is above this site's ceiling of {ceiling}");
        Err(Refusal::new(one_line(&what, 60), why, allowed))
    };
    if let Some(memory) = &request.memory
        && amounts(memory, asker.gpus).any(|(amount, gpu)| is_above(amount, ceiling, gpu))
    {
        return refused(Key::Mem, memory.to_string(), format!("at most {ceiling}"));
    }
    let Some(replicas) = request.replicas else {
        return Ok(());
    };
    let share = |gpu: &&Gpu| gpu.memory_mib / u64::from(replicas.max(1));
    if asker
        .gpus
        .iter()
        .any(|gpu| share(gpu) > ceiling.mebibytes_of(gpu.memory_mib))
    {
        return refused(
            Key::Replicas,
            replicas.to_string(),
            "more replicas, each of them smaller".to_owned(),
        );
    }
    Ok(())
}

/// Each amount of a limit with the GPUs that it is for; without a GPU where none is known.
fn amounts<'a>(
    memory: &'a MemoryLimit,
    gpus: &'a [&'a Gpu],
) -> Box<dyn Iterator<Item = (Amount, Option<&'a Gpu>)> + 'a> {
    let on_all = |amounts: &'a [Amount]| {
        let unknown = gpus.is_empty().then_some(None);
        amounts.iter().flat_map(move |amount| {
            gpus.iter()
                .map(|gpu| Some(*gpu))
                .chain(unknown)
                .map(move |gpu| (*amount, gpu))
        })
    };
    match memory {
        MemoryLimit::Auto => Box::new(std::iter::empty()),
        MemoryLimit::Uniform(amount) => Box::new(on_all(std::slice::from_ref(amount))),
        MemoryLimit::PerRank(amounts) => Box::new(on_all(amounts)),
        MemoryLimit::PerGpu(limits) => Box::new(
            limits
                .iter()
                .map(|(selector, amount)| (*amount, named(selector, gpus))),
        ),
    }
}

fn named<'a>(selector: &GpuSelector, gpus: &[&'a Gpu]) -> Option<&'a Gpu> {
    match selector {
        GpuSelector::Index(index) => gpus.get(usize::try_from(*index).ok()?).copied(),
        GpuSelector::Uuid(uuid) => gpus.iter().find(|gpu| gpu.uuid == *uuid).copied(),
    }
}

/// Whether an amount exceeds the ceiling on a GPU. Without a GPU only like can be compared with like; what remains
/// open at submission is checked on the node.
fn is_above(amount: Amount, ceiling: Amount, gpu: Option<&Gpu>) -> bool {
    match (amount, ceiling, gpu) {
        (_, _, Some(gpu)) => amount.mebibytes_of(gpu.memory_mib) > ceiling.mebibytes_of(gpu.memory_mib),
        (Amount::Mebibytes(amount), Amount::Mebibytes(ceiling), None) => amount > ceiling,
        (Amount::Percent(amount), Amount::Percent(ceiling), None) => amount > ceiling,
        _ => false,
    }
}

fn lowered_memory(memory: Option<MemoryLimit>, asker: &Asker<'_>, ceiling: Amount) -> MemoryLimit {
    let lower = |amount: Amount| {
        let above = asker.gpus.iter().any(|gpu| is_above(amount, ceiling, Some(gpu)));
        if above || is_above(amount, ceiling, None) {
            ceiling
        } else {
            amount
        }
    };
    match memory {
        None => MemoryLimit::Uniform(ceiling),
        Some(MemoryLimit::Auto) => lowered_auto(asker, ceiling),
        Some(MemoryLimit::Uniform(amount)) => MemoryLimit::Uniform(lower(amount)),
        Some(MemoryLimit::PerRank(amounts)) => MemoryLimit::PerRank(amounts.into_iter().map(lower).collect()),
        Some(MemoryLimit::PerGpu(limits)) => lowered_per_gpu(limits, asker, ceiling),
    }
}

/// `auto` is total / n: by GPU, and only where the ceiling is lower.
fn lowered_auto(asker: &Asker<'_>, ceiling: Amount) -> MemoryLimit {
    let Some(tasks) = asker.tasks else {
        return MemoryLimit::Auto;
    };
    let share = |gpu: &Gpu| (gpu.memory_mib / u64::from(tasks.max(1))).max(1);
    let most = |gpu: &Gpu| ceiling.mebibytes_of(gpu.memory_mib);
    if asker.gpus.iter().all(|gpu| share(gpu) <= most(gpu)) {
        return MemoryLimit::Auto;
    }
    let limit = |gpu: &&Gpu| {
        let amount = Amount::Mebibytes(share(gpu).min(most(gpu)));
        (GpuSelector::Uuid(gpu.uuid.clone()), amount)
    };
    MemoryLimit::PerGpu(asker.gpus.iter().map(limit).collect())
}

/// Limits by GPU, those that the user left out at the ceiling.
fn lowered_per_gpu(
    mut limits: Vec<(GpuSelector, Amount)>,
    asker: &Asker<'_>,
    ceiling: Amount,
) -> MemoryLimit {
    for (selector, amount) in &mut limits {
        if is_above(*amount, ceiling, named(selector, asker.gpus)) {
            *amount = ceiling;
        }
    }
    let has = |gpu: &&&Gpu| {
        limits
            .iter()
            .any(|(selector, _)| named(selector, asker.gpus) == Some(**gpu))
    };
    let left_out: Vec<_> = asker.gpus.iter().filter(|gpu| !has(gpu)).collect();
    let at_ceiling = left_out
        .into_iter()
        .map(|gpu| (GpuSelector::Uuid(gpu.uuid.clone()), ceiling));
    let at_ceiling: Vec<_> = at_ceiling.collect();
    limits.extend(at_ceiling);
    MemoryLimit::PerGpu(limits)
}

#[cfg(test)]
#[path = "resolve_tests.rs"]
mod tests;

//! How many commands run at once on each GPU, under `-n auto`.
//!
//! The rule, and its reasons:
//!
//! - Begin with [`START`] on each GPU, or as many as have a core. One tells nothing of sharing, and
//!   growing from one would cost a minute. A command that finds no memory runs again alone.
//! - *Look* at the commands when all of them have a context on the GPU, or [`PATIENCE`] after they
//!   started: before that they load and compile. Wait for [`SETTLING`], which NVML's mean of the
//!   power needs, then take the mean power for [`LOOK`]. The first look waits for the end of a
//!   command, [`PATIENCE`] at most: that end tells how much is left.
//! - The power above that of the idle GPU stands for the work done per second. Completions are too
//!   slow a signal if a command takes minutes. NVML's utilization says 100 % as soon as one client
//!   always has some kernel running.
//! - If the work has grown by [`GAIN`] since the last look, double the number, within memory,
//!   clients and cores. Add only half if the last step brought less than half of what it added. Too
//!   many clients cost little, too few cost a lot: so steps are large, and a step without gain is
//!   kept.
//! - Try no more in the last [`WORTH`] seconds: loading new commands then costs more than they can
//!   gain.
//! - If the work has shrunk by [`GAIN`], go back to the former number.
//! - Then rest for [`REST`], and try again: later commands may be different.
//! - Memory allows as many as fit into [`ROOM`] of the GPU, by the highest memory of any command so
//!   far.
//! - Cores allow as many as would use all of them, by the processor time that the commands use now.

/// Commands on each GPU at first.
const START: u32 = 8;
const PATIENCE: f64 = 10.0;
const SETTLING: f64 = 1.0;
const LOOK: f64 = 1.5;
const REST: f64 = 60.0;
const GAIN: f64 = 0.03;
const WORTH: f64 = 30.0;
/// Tenths of a GPU's memory that commands may fill.
const ROOM: u64 = 9;

#[derive(Debug, Clone, Copy, Default)]
pub struct Sight {
    /// Seconds since the start.
    pub now: f64,
    /// As many run as may.
    pub full: bool,
    /// All that were started to fill the GPUs have a context.
    pub up: bool,
    /// Of all GPUs.
    pub watts: Option<f64>,
    /// The highest memory of a command so far.
    pub memory_mib: Option<u64>,
    /// Cores that the commands use now.
    pub busy: Option<f64>,
    /// Seconds until the last command starts, at the pace so far; `None`: none has ended.
    pub left: Option<f64>,
}

#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub gpus: u32,
    /// Of the smallest GPU.
    pub memory_mib: Option<u64>,
    /// Commands on each GPU.
    pub most: u32,
    pub cores: u32,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// Until all have a context.
    Filling {
        since: Option<f64>,
    },
    Settling {
        since: f64,
    },
    Looking {
        since: f64,
        sum: f64,
        count: f64,
    },
    Resting {
        until: f64,
    },
}

#[derive(Debug)]
pub struct Growth {
    bounds: Bounds,
    each: u32,
    former: u32,
    /// Power of the idle GPUs.
    idle: f64,
    /// At the last look.
    work: Option<f64>,
    phase: Phase,
}

impl Growth {
    pub fn new(bounds: Bounds, idle: f64) -> Self {
        let cores = bounds.cores / bounds.gpus.max(1);
        let each = START.min(bounds.most).min(cores).max(1);
        Self {
            bounds,
            each,
            former: each,
            idle,
            work: None,
            phase: Phase::Filling { since: None },
        }
    }

    /// Commands on each GPU.
    pub fn each(&self) -> u32 {
        self.each
    }

    /// Why not more run at once, if that is no choice of the rule.
    pub fn bound(&self) -> Option<&'static str> {
        let bounds = &self.bounds;
        match self.each {
            each if each >= bounds.most => {
                Some("as many as the GPU takes clients, or as have memory")
            }
            each if each <= START && each == (bounds.cores / bounds.gpus.max(1)).max(1) => {
                Some("a core each: -c gives more")
            }
            _ => None,
        }
    }

    /// Whether commands are to be started because more may run.
    pub fn is_filling(&self) -> bool {
        matches!(self.phase, Phase::Filling { since: None })
    }

    /// A command ran out of a GPU's memory beside others: fewer at once from now on.
    pub fn shrink(&mut self) {
        self.each = (self.each - 1).max(1);
        self.bounds.most = self.each;
    }

    /// Takes what is seen now. A sight without power tells nothing.
    pub fn see(&mut self, sight: &Sight) {
        let now = sight.now;
        self.phase = match self.phase {
            Phase::Filling { .. } if !sight.full => Phase::Filling { since: None },
            Phase::Filling { since } => {
                let since = since.unwrap_or(now);
                match sight.up || now - since >= PATIENCE {
                    true => Phase::Settling { since: now },
                    false => Phase::Filling { since: Some(since) },
                }
            }
            Phase::Settling { since } if now - since < SETTLING => Phase::Settling { since },
            Phase::Settling { .. } => Phase::Looking {
                since: now,
                sum: 0.0,
                count: 0.0,
            },
            Phase::Looking { since, sum, count } => match sight.watts {
                Some(watts) if now - since >= LOOK && (sight.left.is_some() || now >= PATIENCE) => {
                    let work = (sum + watts) / (count + 1.0) - self.idle;
                    self.judge(work.max(0.0), sight)
                }
                Some(watts) => Phase::Looking {
                    since,
                    sum: sum + watts,
                    count: count + 1.0,
                },
                None => Phase::Looking { since, sum, count },
            },
            Phase::Resting { until } if now < until => Phase::Resting { until },
            Phase::Resting { .. } => {
                self.work = None;
                Phase::Filling { since: None }
            }
        };
    }

    fn judge(&mut self, work: f64, sight: &Sight) -> Phase {
        let until = sight.now + REST;
        let rest = Phase::Resting { until };
        let before = self.work.replace(work);
        if before.is_some_and(|before| work < before * (1.0 - GAIN)) {
            self.each = self.former;
            return rest;
        }
        let grew = before.is_none_or(|before| work >= before * (1.0 + GAIN));
        let added = f64::from(self.each) / f64::from(self.former);
        let is_worth_it = before.is_none_or(|before| work / before >= f64::midpoint(1.0, added));
        let half = self.each.div_ceil(2);
        let step = if is_worth_it { self.each } else { half };
        let goal = (self.each + step).min(self.allowed(sight));
        let is_late = sight.left.is_some_and(|left| left < WORTH);
        if !grew || is_late || goal <= self.each {
            return rest;
        }
        (self.former, self.each) = (self.each, goal);
        Phase::Filling { since: None }
    }

    /// The most on each GPU.
    fn allowed(&self, sight: &Sight) -> u32 {
        let fit = |(all, one): (u64, u64)| u32::try_from(all * ROOM / 10 / one.max(1));
        let fit = |both| fit(both).unwrap_or(u32::MAX);
        // Without figures of memory the next one may not fit.
        let by_memory = self.bounds.memory_mib.zip(sight.memory_mib).map_or(0, fit);
        let all_busy = f64::from(self.each) * f64::from(self.bounds.cores);
        let by_cores = |busy: f64| (all_busy / busy.max(0.01)) as u32;
        let by_cores = sight.busy.map_or(u32::MAX, by_cores);
        self.bounds.most.min(by_memory).min(by_cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        gpus: 1,
        memory_mib: Some(80_000),
        most: 60,
        cores: 64,
    };

    const MUCH: Option<f64> = Some(f64::INFINITY);

    fn bounds(most: u32, cores: u32) -> Bounds {
        Bounds {
            most,
            cores,
            ..BOUNDS
        }
    }

    #[test]
    fn what_ends_the_growth_is_named_unless_the_rule_chose_it() {
        let bound = |most, cores| Growth::new(bounds(most, cores), 0.0).bound();
        assert!(bound(60, 4).is_some_and(|why| why.contains("-c")));
        assert!(bound(4, 64).is_some_and(|why| why.contains("memory")));
        assert_eq!(bound(60, 64), None);
    }

    /// Runs the rule for so many seconds beside commands that have a context after 3 s; `watts` of
    /// so many.
    fn grown(
        bounds: Bounds,
        seconds: u32,
        memory_mib: Option<u64>,
        core: f64,
        left: Option<f64>,
        watts: impl Fn(u32) -> f64,
    ) -> Vec<u32> {
        let mut growth = Growth::new(bounds, 100.0);
        let (mut all, mut changed) = (vec![growth.each()], 0.0);
        for half in 0..2 * seconds {
            let now = f64::from(half) / 2.0;
            growth.see(&Sight {
                now,
                full: true,
                up: now - changed >= 3.0,
                watts: Some(watts(growth.each())),
                memory_mib,
                busy: Some(core * f64::from(growth.each())),
                left,
            });
            if all.last() != Some(&growth.each()) {
                all.push(growth.each());
                changed = now;
            }
        }
        all
    }

    fn saturating(at: f64) -> impl Fn(u32) -> f64 {
        move |each| 100.0 + 400.0 * f64::from(each).min(at) / at
    }

    /// With little memory and work for the cores.
    fn usual(seconds: u32, watts: impl Fn(u32) -> f64) -> Vec<u32> {
        grown(BOUNDS, seconds, Some(500), 0.1, MUCH, watts)
    }

    #[test]
    fn it_grows_while_the_work_does_and_keeps_the_last_step() {
        let steps = |at| usual(60, saturating(at));
        assert_eq!(steps(4.0), [8, 16], "no gain at all");
        // Half a step after a small gain.
        assert_eq!(steps(20.0), [8, 16, 32, 48]);
        assert_eq!(steps(100.0), [8, 16, 32, 60]);
        let most_of_it = |each| 100.0 + 10.0 * f64::from(each).powf(0.9);
        assert_eq!(usual(60, most_of_it), [8, 16, 32, 60]);
        assert_eq!(usual(7, saturating(20.0)), [8, 16], "in seconds");
    }

    #[test]
    fn it_goes_back_after_a_loss_and_tries_again_later() {
        let worse_above_8 = |each| if each > 8 { 300.0 } else { 420.0 };
        assert_eq!(usual(40, worse_above_8), [8, 16, 8]);
        assert_eq!(usual(100, worse_above_8), [8, 16, 8, 16, 8]);
        let twice = usual(2 * REST as u32, saturating(4.0));
        assert_eq!(twice, [8, 16, 32], "the commands may have changed");
    }

    #[test]
    fn it_does_not_grow_when_little_is_left() {
        for (seconds, left, steps) in [
            (8, Some(45.0), &[8, 16][..]),
            (8, Some(26.0), &[8]),
            (9, None, &[8]),
            (11, None, &[8, 16]),
        ] {
            let all = grown(BOUNDS, seconds, Some(500), 0.1, left, saturating(100.0));
            assert_eq!(all, steps, "{left:?} after {seconds} s");
        }
    }

    #[test]
    fn memory_clients_and_cores_bound_it() {
        for (most, cores, memory_mib, core, steps) in [
            (60, 64, Some(7_000), 0.1, &[8, 10][..]),
            // The memory is not known.
            (60, 64, None, 0.1, &[8]),
            (6, 64, Some(500), 0.1, &[6]),
            (60, 12, Some(500), 1.0, &[8, 12]),
        ] {
            let bounds = bounds(most, cores);
            let all = grown(bounds, 60, memory_mib, core, MUCH, saturating(100.0));
            assert_eq!(all, steps, "{bounds:?}");
        }
        let two = Bounds {
            cores: 2,
            gpus: 2,
            ..BOUNDS
        };
        assert_eq!(Growth::new(two, 0.0).each(), 1);
    }

    #[test]
    fn a_command_without_memory_beside_others_makes_it_fewer_for_good() {
        let mut growth = Growth::new(BOUNDS, 100.0);
        growth.shrink();
        assert_eq!(growth.each(), 7);
        (0..9).for_each(|_| growth.shrink());
        let sight = Sight {
            memory_mib: Some(500),
            ..Sight::default()
        };
        assert_eq!((growth.each(), growth.allowed(&sight)), (1, 1));
    }
}

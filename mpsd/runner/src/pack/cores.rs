//! How many cores the commands keep busy.

use nix::unistd::{SysconfVar, sysconf};
use std::collections::BTreeMap;
use std::time::Instant;

#[derive(Debug, Default)]
pub(super) struct BusyCores {
    before: Option<(Instant, BTreeMap<i32, u64>)>,
}

impl BusyCores {
    /// Cores that `pids` have used since the last look; `None`: it is the first.
    pub fn now(&mut self, pids: &[i32]) -> Option<f64> {
        let ticks = |pid: &i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((*pid, ticks(&stat)?))
        };
        let now: BTreeMap<i32, u64> = pids.iter().filter_map(ticks).collect();
        let (at, before) = self.before.replace((Instant::now(), now.clone()))?;
        let grown = |(pid, ticks): (&i32, &u64)| Some(ticks.saturating_sub(*before.get(pid)?));
        let grown = now.iter().filter_map(grown);
        let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten()?;
        Some(grown.sum::<u64>() as f64 / per_second as f64 / at.elapsed().as_secs_f64().max(0.001))
    }
}

/// User and system time in `/proc/PID/stat` (proc_pid_stat(5)), of all threads.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn processor_time_stands_behind_the_name() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 1 1 20 0 1 0 99 0 0\n";
        assert_eq!(ticks(stat), Some(300));
        let own = nix::unistd::getpid().as_raw();
        let mut busy = BusyCores::default();
        assert_eq!(busy.now(&[own]), None);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(300) {}
        let cores = busy.now(&[own]).unwrap();
        assert!(cores > 0.0, "{cores}");
    }
}

//! Many jobs on one simulated node, several at once, with random kills; at the end nothing may be
//! different.

use crate::place::{Place, eventually, fast, kill, resident_kb, side_by_side};
use crate::stage::THREE;
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
const GPUS: u32 = 8;
/// How often an epilogue may run again before a job counts as lost: a lock may time out on a busy
/// machine.
const TRIES: u32 = 5;
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25";

#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub cycles: u32,
    pub at_once: usize,
    pub seed: u64,
}

#[derive(Debug, Default)]
pub struct Report {
    pub ready: AtomicU32,
    pub killed: AtomicU32,
    pub struck: AtomicU32,
    pub clients: AtomicU32,
    pub repeated: AtomicU32,
    /// Jobs that left something after all tries.
    pub lost: AtomicU32,
    pub grown_kb: i64,
    pub took: Duration,
    pub different: Vec<String>,
}

/// Random numbers without a crate (xorshift64*): the same seed plays the same jobs.
struct Dice(u64);

impl Dice {
    fn new(seed: u64, number: u32) -> Self {
        let mut dice = Self((seed ^ u64::from(number).wrapping_mul(0x9E37_79B9_7F4A_7C15)) | 1);
        // Similar seeds give similar numbers at first.
        for _ in 0..16 {
            dice.roll(2);
        }
        dice
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % sides.max(1)
    }
}
fn has_nvml(pid: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"));
    maps.is_ok_and(|maps| maps.contains("libnvidia-ml"))
}

pub fn run(load: Load) -> Report {
    let began = Instant::now();
    let report = Report::default();
    let config = "deadline_s = 12\ncompute_mode = \"exclusive\"\n";
    let place = Place::new(fast(GPUS as usize), config);
    let (shm, descriptors) = (names("/dev/shm"), names("/proc/self/fd").len());
    // One job lives the whole time.
    place.begin("1.srv", ACCOUNT, "7");
    let long_lived = place.pids("mpsd")[0];
    // Its first look at the GPU loads NVML, once.
    eventually("a look at the GPU", || has_nvml(long_lived));
    // The library is mapped before that look has ended.
    std::thread::sleep(Duration::from_secs(1));
    let before_kb = resident_kb(long_lived);
    let cycles = (0..load.cycles).map(|n| n + 1000).collect();
    let shared = Shared {
        place: &place,
        report: &report,
        spared: place.processes().iter().map(|p| p.pid).collect(),
    };
    side_by_side(cycles, load.at_once, |n| cycle(&shared, n, load.seed));
    let grown_kb = resident_kb(long_lived) - before_kb;
    end(&place, &report, "1.srv");
    let mut different = place.difference();
    different.extend(
        place
            .take_drains()
            .into_iter()
            .map(|d| format!("drain {d}")),
    );
    let (shm_now, descriptors_now) = (names("/dev/shm"), names("/proc/self/fd").len());
    if shm_now != shm {
        different.push(format!("/dev/shm: {shm_now:?}, was {shm:?}"));
    }
    if descriptors_now > descriptors {
        different.push(format!(
            "descriptors: {descriptors_now}, were {descriptors}"
        ));
    }
    Report {
        grown_kb,
        different,
        took: began.elapsed(),
        ..report
    }
}

struct Shared<'a> {
    place: &'a Place,
    report: &'a Report,
    spared: BTreeSet<u32>,
}

fn cycle(shared: &Shared<'_>, number: u32, seed: u64) {
    let (place, report) = (shared.place, shared.report);
    let mut dice = Dice::new(seed, number);
    let job = format!("{number}.srv");
    // GPU 7 is the long-lived job's.
    let (a, b) = (
        dice.roll(u64::from(GPUS) - 1),
        dice.roll(u64::from(GPUS) - 1),
    );
    let gpus = if a == b {
        a.to_string()
    } else {
        format!("{},{}", a.min(b), a.max(b))
    };
    let mut prologue = place.start_torque(&job, ACCOUNT, &gpus);
    if dice.roll(4) == 0 {
        std::thread::sleep(Duration::from_millis(dice.roll(120)));
        kill(prologue.pid(), Signal::SIGKILL);
        report.killed.fetch_add(1, Ordering::Relaxed);
    }
    if prologue.wait() == Some(0) {
        report.ready.fetch_add(1, Ordering::Relaxed);
        match dice.roll(4) {
            0 => strike(shared, &mut dice),
            1 | 2 if place.tried(&job, &[]).code == Some(0) => {
                report.clients.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
    if dice.roll(5) == 0 {
        let epilogue = place.start_end(&job);
        std::thread::sleep(Duration::from_millis(dice.roll(80)));
        kill(epilogue.pid(), Signal::SIGKILL);
        report.killed.fetch_add(1, Ordering::Relaxed);
    }
    end(place, report, &job);
}

/// Repeats an epilogue until it says that the node is as before this job.
fn end(place: &Place, report: &Report, job: &str) {
    for again in 0..TRIES {
        if again > 0 {
            report.repeated.fetch_add(1, Ordering::Relaxed);
        }
        if place.strict_end(job).code == Some(0) && !place.job(job).exists() {
            return;
        }
    }
    report.lost.fetch_add(1, Ordering::Relaxed);
}

fn strike(shared: &Shared<'_>, dice: &mut Dice) {
    let pids = THREE.iter().flat_map(|name| shared.place.pids(name));
    let victims: Vec<u32> = pids.filter(|pid| !shared.spared.contains(pid)).collect();
    let signal = match dice.roll(3) {
        0 => Signal::SIGSTOP,
        _ => Signal::SIGKILL,
    };
    if let Some(pid) = victims.get(dice.roll(victims.len() as u64) as usize) {
        kill(*pid, signal);
        shared.report.struck.fetch_add(1, Ordering::Relaxed);
    }
}

fn names(dir: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

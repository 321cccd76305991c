//! The soak: many jobs on a bed of one node, several at once, with random kills. At the end nothing
//! may be different. `soak [CYCLES [AT_ONCE [SEED]]]`, by default 2,000 jobs, 16 at once. Exit 0 if
//! nothing was lost.

use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use tests::figures;
use tests::node_bed::{NodeBed, eventually, fast, kill, resident_kb, side_by_side};
use tests::run::THREE;

const GPUS: u32 = 16;
/// How often an epilogue may run again before a job counts as lost: a lock may time out on a busy
/// machine.
const TRIES: u32 = 5;
const ACCOUNT: &str = "MPS=true,MPS_THREADS=25";
/// What is counted; 'lost' are jobs that left something after all tries.
const NAMES: &str = "ready clients killed struck repeated lost different";

#[derive(Default)]
struct Tally(Mutex<BTreeMap<&'static str, u64>>);

impl Tally {
    fn count(&self, what: &'static str) {
        self.add(what, 1);
    }

    fn add(&self, what: &'static str, count: u64) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(what).or_default() += count;
    }
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

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |usual: u64| numbers.next().unwrap_or(Ok(usual));
    let (Ok(cycles), Ok(at_once), Ok(seed)) = (next(2000), next(16), next(1)) else {
        eprintln!("usage: soak [CYCLES [AT_ONCE [SEED]]]");
        return ExitCode::from(64);
    };
    let (began, tally) = (Instant::now(), Tally::default());
    for name in NAMES.split(' ') {
        tally.add(name, 0);
    }
    for (name, count) in [("cycles", cycles), ("at_once", at_once), ("seed", seed)] {
        tally.add(name, count);
    }
    run(&tally, cycles as u32, at_once as usize, seed);
    tally.add("seconds", began.elapsed().as_secs());
    let counts = tally.0.into_inner().unwrap_or_else(PoisonError::into_inner);
    for (name, count) in &counts {
        figures::tell(name, *count);
    }
    match counts["lost"] + counts["different"] {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn run(tally: &Tally, cycles: u32, at_once: usize, seed: u64) {
    let config = "deadline_s = 12\ncompute_mode = \"exclusive\"\n";
    let place = NodeBed::new(fast(GPUS as usize), config);
    let (shm, descriptors) = (names("/dev/shm"), names("/proc/self/fd").len());
    place.begin("1.srv", ACCOUNT, &(GPUS - 1).to_string());
    let long_lived = place.pids("mpsd")[0];
    // Its first look at the GPU loads NVML, once.
    eventually("a look at the GPU", || has_nvml(long_lived));
    // The library is mapped before that look has ended.
    std::thread::sleep(Duration::from_secs(1));
    let before_kb = resident_kb(long_lived);
    let shared = Shared {
        place: &place,
        tally,
        spared: place.processes().iter().map(|p| p.pid).collect(),
    };
    let cycles = (0..cycles).map(|n| n + 1000).collect();
    side_by_side(cycles, at_once, |n| cycle(&shared, n, seed));
    let grown_kb = resident_kb(long_lived) - before_kb;
    tally.add("grown_kb", u64::try_from(grown_kb).unwrap_or(0));
    end(&place, tally, "1.srv");
    let mut different = place.difference();
    let drains = place.take_drains().into_iter();
    different.extend(drains.map(|drain| format!("drain {drain}")));
    let (shm_now, descriptors_now) = (names("/dev/shm"), names("/proc/self/fd").len());
    if shm_now != shm {
        different.push(format!("/dev/shm: {shm_now:?}, was {shm:?}"));
    }
    if descriptors_now > descriptors {
        let change = format!("descriptors: {descriptors_now}, were {descriptors}");
        different.push(change);
    }
    for line in different {
        println!("different: {line}");
        tally.count("different");
    }
}

struct Shared<'a> {
    place: &'a NodeBed,
    tally: &'a Tally,
    spared: BTreeSet<u32>,
}

fn cycle(shared: &Shared<'_>, number: u32, seed: u64) {
    let (place, tally) = (shared.place, shared.tally);
    let mut dice = Dice::new(seed, number);
    let job = format!("{number}.srv");
    // The last GPU is the long-lived job's.
    let gpus = BTreeSet::from([(); 2].map(|()| dice.roll(u64::from(GPUS) - 1)));
    let gpus: Vec<String> = gpus.iter().map(u64::to_string).collect();
    let gpus = gpus.join(",");
    let mut prologue = place.start_torque(&job, ACCOUNT, &gpus);
    if dice.roll(4) == 0 {
        std::thread::sleep(Duration::from_millis(dice.roll(120)));
        kill(prologue.pid(), Signal::SIGKILL);
        tally.count("killed");
    }
    if prologue.wait() == Some(0) {
        tally.count("ready");
        match dice.roll(4) {
            0 => strike(shared, &mut dice),
            1 | 2 if place.tried(&job, &[]).code == Some(0) => {
                tally.count("clients");
            }
            _ => {}
        }
    }
    if dice.roll(5) == 0 {
        let epilogue = place.start_end(&job);
        std::thread::sleep(Duration::from_millis(dice.roll(80)));
        kill(epilogue.pid(), Signal::SIGKILL);
        tally.count("killed");
    }
    end(place, tally, &job);
}

fn end(place: &NodeBed, tally: &Tally, job: &str) {
    for again in 0..TRIES {
        if again > 0 {
            tally.count("repeated");
        }
        if place.strict_end(job).code == Some(0) && !place.job(job).exists() {
            return;
        }
    }
    tally.count("lost");
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
        shared.tally.count("struck");
    }
}

fn names(dir: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

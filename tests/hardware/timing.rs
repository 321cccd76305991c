//! Times: the floor (daemon and server by the shortest possible means) and our prologue, in turn, in one process.

use std::fs::File;
use std::io::Read as _;
use std::time::{Duration, SystemTime};

use anyhow::Result;

use crate::anatomy::{self, Steps};
use crate::child;
use crate::job::Job;
use crate::result::{Section, Spread};
use crate::site::{Gpu, Place};
use crate::vendor::Daemon;

/// The prologue may take this many times the floor.
pub const LIMIT: f64 = 1.15;

const DEFINITION: &str = "from before the fork of 'nvidia-cuda-mps-control -f' as the ordinary user, through its socket and \
                          one 'start_server' session, to the line 'NEW SERVER <pid>: Ready'";

#[derive(Debug, Default)]
struct Times {
    floor: Vec<f64>,
    socket: Vec<f64>,
    quit: Vec<f64>,
    prologue: Vec<f64>,
    epilogue: Vec<f64>,
    begins: Both,
    ends: Both,
}

/// The steps of the floor, and ours.
#[derive(Debug, Default)]
struct Both {
    floor: Steps,
    ours: Steps,
}

impl Times {
    fn floor(&mut self, place: &Place, gpu: &Gpu) -> Result<()> {
        let from = SystemTime::now();
        let daemon = Daemon::start(place, &gpu.uuid, "floor", &[])?;
        self.begins.floor.begun(&daemon.log, from, from + daemon.ready);
        self.floor.push(child::ms(daemon.ready));
        self.socket.push(child::ms(daemon.socket));
        let from = SystemTime::now();
        let (took, log) = daemon.quit_and_tell()?;
        self.ends.floor.ended(&log, from, from + took);
        self.quit.push(child::ms(took));
        settle()
    }

    fn ours(&mut self, place: &Place, gpu: &Gpu, number: usize) -> Result<()> {
        let job = Job::named(place, gpu, &format!("{}.srv", 5000 + number))?;
        let from = SystemTime::now();
        let begun = job.prologue()?.success()?;
        self.prologue.push(begun.ms());
        let file = job.directory().join("log/control.log");
        self.begins
            .ours
            .begun(&anatomy::lines(&file)?, from, from + begun.wall);
        // It goes with the job; what is open stays readable.
        let mut kept = File::open(&file)?;
        let from = SystemTime::now();
        let ended = job.epilogue()?.success()?;
        self.epilogue.push(ended.ms());
        let mut text = String::new();
        kept.read_to_string(&mut text)?;
        let log: Vec<String> = text.lines().map(str::to_owned).collect();
        self.ends.ours.ended(&log, from, from + ended.wall);
        settle()
    }

    fn record(&self, section: &mut Section) {
        section.fact("floor_is", DEFINITION);
        let named = [
            ("floor_ms", &self.floor),
            ("floor_socket_ms", &self.socket),
            ("floor_quit_ms", &self.quit),
            ("prologue_ms", &self.prologue),
            ("epilogue_ms", &self.epilogue),
        ];
        for (name, values) in named {
            section.series(name, values);
        }
        self.begins.floor.record(section, "floor_begin");
        self.begins.ours.record(section, "begin");
        self.ends.floor.record(section, "floor_end");
        self.ends.ours.record(section, "end");
    }
}

/// Lets what the last start left in the driver settle, for both sides alike.
fn settle() -> Result<()> {
    child::pause(Duration::from_millis(200))
}

/// The floor alone.
pub fn floor(section: &mut Section, place: &Place, gpu: &Gpu, count: usize) -> Result<()> {
    let mut times = Times::default();
    for _ in 0..count {
        times.floor(place, gpu)?;
    }
    times.record(section);
    Ok(())
}

/// Account strings of jobs that did not ask for MPS, and what `mps-prologue` may take for one, milliseconds.
const OTHERS: [&str; 3] = ["", "mps_physics", "MPSLAB"];
const OTHERS_LIMIT: f64 = 5.0;

/// The prologue of jobs that did not ask.
pub fn others(section: &mut Section, place: &Place, gpu: &Gpu, count: usize) -> Result<()> {
    let job = Job::named(place, gpu, "6000.srv")?;
    let mut times = Vec::new();
    for number in 0..=count {
        let ran = job.prologue_with(OTHERS[number % OTHERS.len()])?.success()?;
        // The first brings the program into the page cache.
        if number > 0 {
            times.push(ran.ms());
        }
    }
    if let Some(spread) = Spread::of(&times) {
        section.fact("not_asked_ms_spread", spread.text());
        section.check(
            format!("a job that did not ask waits less than {OTHERS_LIMIT} ms"),
            spread.median < OTHERS_LIMIT,
            spread.text(),
        );
    }
    Ok(())
}

/// `count` pairs; each side goes first in every second pair.
pub fn pairs(section: &mut Section, place: &Place, gpu: &Gpu, count: usize) -> Result<()> {
    let mut times = Times::default();
    // One of each that is not counted: programs and libraries come into the page cache.
    Times::default().floor(place, gpu)?;
    Times::default().ours(place, gpu, count)?;
    for number in 0..count {
        if number % 2 == 0 {
            times.floor(place, gpu)?;
            times.ours(place, gpu, number)?;
        } else {
            times.ours(place, gpu, number)?;
            times.floor(place, gpu)?;
        }
    }
    times.record(section);
    if let (Some(floor), Some(ours)) = (Spread::of(&times.floor), Spread::of(&times.prologue)) {
        let ratio = (ours.median / floor.median * 1000.0).round() / 1000.0;
        section.fact("pairs", count as i64);
        section.fact("ratio_of_medians", ratio);
        section.check(
            format!("prologue within {LIMIT} of the floor"),
            ratio <= LIMIT,
            format!("{ratio}"),
        );
    }
    Ok(())
}

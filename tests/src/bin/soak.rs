//! The soak: `soak [CYCLES [AT_ONCE [SEED]]]`, by default 2,000 jobs, 16 at once. Exit 0 if nothing
//! was lost.

use std::process::ExitCode;
use std::sync::atomic::Ordering::Relaxed;

use tests::figures;
use tests::soak::{Load, run};

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let mut next = |usual: u64| numbers.next().unwrap_or(Ok(usual));
    let (Ok(cycles), Ok(at_once), Ok(seed)) = (next(2000), next(16), next(1)) else {
        eprintln!("usage: soak [CYCLES [AT_ONCE [SEED]]]");
        return ExitCode::from(64);
    };
    let report = run(Load {
        cycles: u32::try_from(cycles).unwrap_or(u32::MAX),
        at_once: usize::try_from(at_once).unwrap_or(16),
        seed,
    });
    for line in &report.different {
        println!("different: {line}");
    }
    for (name, count) in [
        ("cycles", cycles),
        ("at_once", at_once),
        ("seed", seed),
        ("ready", report.ready.load(Relaxed).into()),
        ("clients", report.clients.load(Relaxed).into()),
        ("killed", report.killed.load(Relaxed).into()),
        ("struck", report.struck.load(Relaxed).into()),
        ("repeated", report.repeated.load(Relaxed).into()),
        ("lost", report.lost.load(Relaxed).into()),
        ("different", report.different.len() as u64),
        ("grown_kb", u64::try_from(report.grown_kb).unwrap_or(0)),
        ("seconds", report.took.as_secs()),
    ] {
        figures::tell(name, count);
    }
    match report.different.is_empty() && report.lost.load(Relaxed) == 0 {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

//! README's first command: one MPS job on a throw-away Slurm, and what an onlooker saw of it. No
//! figure comes from our own programs.

mod onlooker;
mod promises;
mod site;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::sys::signal::{SigSet, Signal};
use tests::slurm::{Bed, Record};

use onlooker::Onlooker;
use promises::Promises;
use site::Site;

/// Longest time for the job.
const JOB: Duration = Duration::from_secs(90);
/// Longest time until the nodes are as before.
const AFTER: Duration = Duration::from_secs(40);

/// A signal has arrived, and a thread cleans up.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

fn main() -> ExitCode {
    // Before any thread starts, so that all have the mask and only one of them receives Ctrl-C.
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    if let Err(error) = signals.thread_block() {
        eprintln!("demo: cannot block signals: {error}");
        return ExitCode::FAILURE;
    }
    match run(signals) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Ctrl-C removed the bed: the thread that cleans up prints the last line and ends the
            // process.
            while INTERRUPTED.load(Ordering::Acquire) {
                std::thread::park();
            }
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(signals: SigSet) -> Result<bool> {
    let started = Instant::now();
    let mut site = Site::find()?;
    println!("{}\n", site.headline());
    let mut bed = Bed::create(site.options())?;
    step("installing plugin and programs into the throw-away cluster");
    site.install(&mut bed)?;
    let bed = Arc::new(bed);
    clean_up_on(signals, Arc::clone(&bed));
    step("starting munge, slurmctld and the nodes");
    let up = Instant::now();
    if let Err(error) = bed.start() {
        bail!("{error:#}\n{}", bed.log("slurmctld"));
    }
    let seconds = up.elapsed().as_secs_f64();
    step(&format!("Slurm is up after {seconds:.1} s; submitting"));
    let [user, _] = bed.users();
    let (arguments, (client, command)) = (site.arguments(), site.client());
    println!("\n  {}$ srun {} {client}\n", user.name, arguments.join(" "));
    let onlooker = Onlooker::start(Arc::clone(&bed), site.doubles());
    let shell = ["/bin/sh", "-c", command.as_str()];
    let done = bed.srun(&user, &[arguments.as_slice(), &shell].concat(), JOB)?;
    let mut promises = Promises::default();
    promises.check(
        done.code == Some(0),
        "the job ends with exit code 0",
        || done.story(),
    );
    let quiet = bed.wait_idle(AFTER).and_then(|()| bed.wait_clean(AFTER));
    let seen = onlooker.end();
    site.judge(&mut promises, &seen, &Record::all(&done.stdout)?, &user);
    let promise = "afterwards: no process, no directory, no shared memory, no mount";
    promises.check(quiet.is_ok(), promise, || format!("{quiet:?}"));
    for node in bed.nodes() {
        let state = bed.node_state(&node)?;
        let promise = format!("{node} takes the next job");
        promises.check(state.state == "IDLE", &promise, || format!("{state:?}"));
    }
    if !promises.are_kept() {
        for node in bed.nodes() {
            let log = bed.log(&node);
            let lines: Vec<&str> = log.lines().collect();
            eprintln!(
                "== slurmd of {node}\n{}",
                lines[lines.len().saturating_sub(30)..].join("\n")
            );
        }
    }
    let forced = bed.end()?;
    let promise = "the throw-away Slurm ended by itself and is removed";
    promises.check(forced.is_empty(), promise, || forced.join("; "));
    promises.print(started.elapsed());
    Ok(promises.are_kept())
}

fn step(what: &str) {
    println!("· {what}");
}

/// On a signal, ends the bed and then this process, so that nothing survives Ctrl-C.
fn clean_up_on(signals: SigSet, bed: Arc<Bed>) {
    std::thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        INTERRUPTED.store(true, Ordering::Release);
        eprintln!("\ndemo: {signal}: cleaning up");
        if let Err(error) = bed.end() {
            eprintln!("demo: {error:#}");
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "the main thread waits for a command of the bed that is gone"
        )]
        std::process::exit(128 + signal as i32);
    });
}

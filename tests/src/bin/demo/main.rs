//! README's first command: one MPS job on a throw-away Slurm, and what an onlooker saw of it. No
//! figure comes from our own programs.

mod onlooker;
mod promises;
mod site;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tests::slurm::{Bed, Record};

use onlooker::Onlooker;
use promises::Promises;
use site::Site;

/// Longest time for the job.
const JOB: Duration = Duration::from_secs(90);
/// Longest time until the nodes are as before.
const AFTER: Duration = Duration::from_secs(40);

/// On Ctrl-C it ends at once, and the bed's warden removes the rest.
fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let started = Instant::now();
    let mut site = Site::find()?;
    println!("{}\n", site.headline());
    let mut bed = Bed::create(site.options())?;
    step("installing plugin and programs into the throw-away cluster");
    site.install(&mut bed)?;
    let bed = Arc::new(bed);
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

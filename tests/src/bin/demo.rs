//! README's first command: one MPS job on a throw-away Slurm with doubles of NVIDIA's programs, and
//! what an onlooker saw of it. No figure comes from our own programs.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tests::double::NodeDouble;
use tests::double::look::Process;
use tests::slurm::{Bed, MODEL, Options, Record, SMS, Simulated, User};

const JOB: Duration = Duration::from_secs(90);
const AFTER: Duration = Duration::from_secs(40);
const WORDS: &str = "--mps --mps-threads=50 --mps-mem=4G -N2 -n4 --ntasks-per-node=2 --gres=gpu:1";
/// Of [`WORDS`]: thread percentage, MiB of memory, and clients on a node.
const THREADS: u64 = 50;
const MEMORY: u64 = 4096;
const CLIENTS: usize = 2;
/// How much less than its limit a client may allocate, in MiB. Its context counts too (recorded on
/// an H200: 315 MiB with 78 multiprocessors), and it tries in steps of 64.
const MARGIN: u64 = 315 + 64;

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
    println!(
        "mpsd demo: two nodes with two simulated GPUs each ('{MODEL}') and doubles of NVIDIA's control \
         daemon, server, NVML and CUDA that behave as recorded of driver 580\n"
    );
    let mut bed = Bed::create(Options::default())?;
    println!("· installing plugin and programs into the throw-away cluster");
    let simulated = Simulated::install(&mut bed, "", |node| node)?;
    println!("· starting munge, slurmctld and the nodes");
    if let Err(error) = bed.start() {
        bail!("{error:#}\n{}", bed.log("slurmctld"));
    }
    let [user, _] = bed.users();
    println!("\n{}$ srun {WORDS} a-cuda-program\n", user.name);
    let client = simulated.client("--alloc=8192 --hold 1");
    let words = ["srun"].into_iter().chain(WORDS.split(' '));
    let words: Vec<&str> = words.chain(["/bin/sh", "-c", &client]).collect();
    let job = bed.spawn(&user, &words)?;
    bed.wait_until("the job's clients", JOB, || {
        let all = simulated.nodes.iter().all(|node| clients(node) == CLIENTS);
        Ok(all || !job.runs())
    })?;
    let during = simulated.nodes.iter();
    let during: Vec<_> = during.map(|node| (node.daemons(), node.modes())).collect();
    let done = job.wait(JOB)?;
    let quiet = bed.wait_idle(AFTER).and_then(|()| bed.wait_clean(AFTER));
    let mut promises = Promises::default();
    let is_good = done.code == Some(0);
    promises.check(is_good, "the job ends with exit code 0", &done.story());
    let records = Record::all(&done.stdout)?;
    let nodes = bed.nodes().into_iter().zip(&simulated.nodes);
    for ((name, node), (daemons, modes)) in nodes.zip(&during) {
        println!("\n{name}");
        let own = records.iter().filter(|record| record.node == name);
        let own: Vec<&Record> = own.collect();
        let server = promises.daemons(daemons, &user);
        promises.limits(&own);
        promises.clients(&own, server, &user);
        promises.modes(node, modes, &own);
    }
    println!();
    let promise = "afterwards: no process, no directory, no shared memory, no mount";
    promises.check(quiet.is_ok(), promise, &quiet);
    for node in bed.nodes() {
        let state = bed.node_state(&node)?;
        let promise = format!("{node} takes the next job");
        promises.check(state.state == "IDLE", &promise, &state);
    }
    let logs: String = bed.nodes().iter().map(|node| bed.log(node)).collect();
    let forced = bed.end()?;
    let promise = "the throw-away Slurm ended by itself and is removed";
    promises.check(forced.is_empty(), promise, &forced);
    let (kept, all) = (promises.kept, promises.all);
    if kept < all {
        eprintln!("{logs}");
    }
    let took = started.elapsed().as_secs_f64();
    println!("\n{kept} of {all} promises kept, {took:.0} s in all");
    Ok(kept == all)
}

fn clients(node: &NodeDouble) -> usize {
    let contexts = node.contexts().into_iter();
    let of_clients = contexts.filter(|(_, context)| context.kind == "mps" && context.bytes > 0);
    of_clients.count()
}

#[derive(Default)]
struct Promises {
    all: usize,
    kept: usize,
}

impl Promises {
    fn check(&mut self, kept: bool, promise: &str, found: &dyn Debug) {
        self.all += 1;
        if kept {
            self.kept += 1;
            println!("  ok      {promise}");
        } else {
            println!("  BROKEN  {promise}: {found:?}");
        }
    }

    /// Returns the server's pid.
    fn daemons(&mut self, daemons: &[Process], user: &User) -> Option<i32> {
        // Without `-f` it is a command to the daemon, not the daemon.
        let is_daemon = |process: &&Process| process.args.iter().any(|word| word == "-f");
        let is_server = |process: &&Process| process.exe.ends_with("nvidia-cuda-mps-server");
        let of = || daemons.iter();
        let pids = [of().find(is_daemon), of().find(is_server)];
        let own = |process: Option<&Process>| process.is_some_and(|found| found.uid == user.uid);
        let [control, server] = pids.map(|found| found.map_or(0, |process| process.pid));
        let name = &user.name;
        let promise = format!("control daemon {control} and server {server} run as '{name}'");
        self.check(pids.into_iter().all(own), &promise, &daemons);
        i32::try_from(server).ok()
    }

    fn limits(&mut self, records: &[&Record]) {
        let gpus = || records.iter().filter_map(|record| record.gpus.first());
        let sms: BTreeSet<u64> = gpus().map(|gpu| gpu.sms).collect();
        let expected = SMS * THREADS / 100;
        let promise = format!(
            "limit: {THREADS} % of the threads gives each client {expected} multiprocessors"
        );
        self.check(sms == BTreeSet::from([expected]), &promise, &sms);
        let got: BTreeSet<u64> = gpus().filter_map(|gpu| gpu.allocatable_mib).collect();
        let least = MEMORY - MARGIN;
        let within = got.iter().all(|mib| (least..=MEMORY).contains(mib));
        let most = got.last().copied().unwrap_or(0);
        let promise = format!(
            "limit: of {MEMORY} MiB each client could allocate {most} MiB, its context takes the rest"
        );
        self.check(within && !got.is_empty(), &promise, &got);
    }

    fn clients(&mut self, records: &[&Record], server: Option<i32>, user: &User) {
        let is_attached = |record: &&Record| {
            record.under_mps && record.uid == Some(user.uid) && record.server_pid == server
        };
        let attached = records.len() == CLIENTS && records.iter().all(is_attached);
        let pids = records.iter().map(|record| record.pid.to_string());
        let pids: Vec<String> = pids.collect();
        let promise = format!("clients {} attached to that server", pids.join(", "));
        self.check(attached, &promise, &records);
    }

    fn modes(&mut self, node: &NodeDouble, during: &[String], records: &[&Record]) {
        let used: BTreeSet<&String> = records.iter().flat_map(|record| &record.uuids).collect();
        let uuids = node.uuids();
        let mut all = uuids.iter().zip(during).zip(node.modes());
        let right = all.all(|((uuid, during), after)| {
            let expected = match used.contains(uuid) {
                true => "exclusive_process",
                false => "default",
            };
            during == expected && after == "default"
        });
        let promise = "compute mode: default → exclusive_process → default on the job's GPU, untouched on the other";
        self.check(right && !used.is_empty(), promise, &during);
    }
}

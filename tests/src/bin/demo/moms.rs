//! The same on Torque or OpenPBS, by the mom simulator.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::mom::cluster::{Cluster, Job, Leftovers, Product, USER, Verdict, programs_are_built};
use tests::mom::wire::Ended;
use tests::slurm::{MODEL, SMS};

use crate::promises::Promises;
use crate::site::{CLIENTS, MEMORY, THREADS};
use crate::step;

const NODES: [&str; 2] = ["nodea", "nodeb"];

pub fn run(product: Product) -> bool {
    programs_are_built();
    let started = Instant::now();
    let (title, shape) = match product {
        Product::Torque => ("Torque 6.1", "-l nodes=2:ppn=2:gpus=1"),
        Product::OpenPbs => ("OpenPBS 23", "-l select=2:ncpus=2:ngpus=1:mpiprocs=2"),
    };
    println!(
        "mpsd demo: two nodes with two simulated GPUs each ('{MODEL}') under simulated moms of {title}, and doubles of NVIDIA's \
         control daemon, server, NVML and CUDA that behave as recorded of driver 580\n"
    );
    step("making the nodes, each installed by 'mpsctl pbs install'");
    let mut cluster = Cluster::new(product, &NODES);
    let request = format!("MPS=true,MPS_THREADS={THREADS},MPS_MEM=4G");
    println!("\n  {}$ qsub -A \"{request}\" {shape} job.sh\n", USER.0);
    let job = Job {
        tasks: 2,
        ..Job::new("1.pbsserver", &request).on(&[&[0], &[0]])
    };
    let mut promises = Promises::default();
    begins(&mut cluster, &job, &mut promises);
    for (at, node) in NODES.iter().enumerate() {
        promises.line(format!("\n{node}"));
        clients(&mut cluster, &job, at, &mut promises);
    }
    promises.line("");
    cluster.end(&job, 0);
    ends(&mut cluster, &job, &mut promises);
    promises.print(started.elapsed());
    promises.are_kept()
}

fn begins(cluster: &mut Cluster, job: &Job, promises: &mut Promises) {
    let begun = Instant::now();
    let verdict = cluster.begin(job);
    let took = begun.elapsed().as_millis();
    let promise = format!("the moms let the job through, {took} ms after its first prologue or hook began");
    promises.check(verdict == Verdict::Runs, &promise, || {
        format!("{verdict:?}: {:?}", cluster.output(job, 0))
    });
}

fn clients(cluster: &mut Cluster, job: &Job, at: usize, promises: &mut Promises) {
    let modes = cluster.gpus[at].modes();
    let promise = "compute mode: default → exclusive_process on the job's GPU, untouched on the other";
    promises.check(modes == ["exclusive_process", "default"], promise, || {
        format!("{modes:?}")
    });
    let words = Cluster::client_on(NODES[at]);
    let words: Vec<&str> = words.split(' ').collect();
    let ended: Vec<_> = (0..CLIENTS).map(|_| cluster.task(job, at, &words)).collect();
    let promise = format!("{CLIENTS} tasks that TM starts end with exit code 0");
    promises.check(
        ended.iter().all(|one| *one == Ok(Ended::Code(0))),
        &promise,
        || format!("{ended:?} {:?}", cluster.output(job, at)),
    );
    let records = cluster.records(at);
    let all =
        |name: &str| -> BTreeSet<String> { records.iter().map(|record| record[name].to_string()).collect() };
    let is = |name: &str, value: Value| {
        records.len() == CLIENTS && all(name) == BTreeSet::from([value.to_string()])
    };
    let one_daemon = all("daemon_pid").len() == 1 && is("job", job.id.clone().into());
    let sms = SMS * THREADS / 100;
    for (kept, promise) in [
        (
            is("under_mps", true.into()) && one_daemon,
            "all went through the one daemon of this job".into(),
        ),
        (
            is("uid", USER.1.into()),
            format!("they and the daemon are '{}'", USER.0),
        ),
        (
            is("sms", sms.into()),
            format!("limit: {THREADS} % of the threads gives each {sms} multiprocessors"),
        ),
        (
            is("memory_limit_mib", MEMORY.into()),
            format!("limit: {MEMORY} MiB of memory for each"),
        ),
    ] {
        promises.check(kept, &promise, || format!("{records:?}"));
    }
}

fn ends(cluster: &mut Cluster, job: &Job, promises: &mut Promises) {
    let end = Instant::now() + Duration::from_secs(10);
    for (at, node) in NODES.iter().enumerate() {
        let mut left = cluster.leftovers().swap_remove(at);
        while !left.processes.is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(50));
            left = cluster.leftovers().swap_remove(at);
        }
        let Leftovers {
            files,
            processes,
            modes,
        } = left;
        // The user's own copy of the job's report stays until the next boot.
        let is_left = |line: &&String| line.contains(&job.id) && !line.starts_with("/run/mpsd/reports/");
        let ours: Vec<&String> = files.iter().filter(is_left).collect();
        let kept = ours.is_empty() && processes.is_empty() && modes == ["default", "default"];
        let promise =
            "afterwards: no process, no directory, no shared memory of the job, both GPUs in their old mode";
        promises.check(kept, &format!("{node} {promise}"), || {
            format!("{ours:?} {processes:?} {modes:?}")
        });
        let state = cluster.state(node).0;
        promises.check(state == "free", &format!("{node} takes the next job"), || {
            state.clone()
        });
    }
}

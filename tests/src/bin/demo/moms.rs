//! The same story on Torque or OpenPBS: two nodes of the mom simulator, which do to our installed files what the moms were
//! recorded to do.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::Value;
use tests::mom::cluster::{Cluster, Job, Leftovers, Product, USER, Verdict, programs_are_built};
use tests::mom::wire::Ended;
use tests::slurm::{MODEL, SMS};

use crate::account::Account;
use crate::site::{CLIENTS, MEMORY, THREADS};
use crate::step;

const NODES: [&str; 2] = ["nodea", "nodeb"];

/// Runs it; whether every promise was kept.
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
    let mut account = Account::default();
    begins(&mut cluster, &job, &mut account);
    for (at, node) in NODES.iter().enumerate() {
        account.line(format!("\n{node}"));
        clients(&mut cluster, &job, at, &mut account);
    }
    account.line(String::new());
    cluster.end(&job, 0);
    ends(&mut cluster, &job, &mut account);
    account.print(started.elapsed());
    account.is_clean()
}

fn begins(cluster: &mut Cluster, job: &Job, account: &mut Account) {
    let begun = Instant::now();
    let verdict = cluster.begin(job);
    let took = begun.elapsed().as_millis();
    account.check(
        verdict == Verdict::Runs,
        &format!("the moms let the job through, {took} ms after its first prologue or hook began"),
        || format!("{verdict:?}: {:?}", cluster.output(job, 0)),
    );
}

/// The clients of one node, started by TM as pbsdsh and MPI launchers do: no shell, no profile.
fn clients(cluster: &mut Cluster, job: &Job, at: usize, account: &mut Account) {
    let modes = cluster.gpus[at].modes();
    account.check(
        modes == ["exclusive_process", "default"],
        "compute mode: default → exclusive_process on the job's GPU, untouched on the other",
        || format!("{modes:?}"),
    );
    let words = Cluster::client_on(NODES[at]);
    let words: Vec<&str> = words.split(' ').collect();
    let mut ended = Vec::new();
    for _ in 0..CLIENTS {
        ended.push(cluster.task(job, at, &words));
    }
    account.check(
        ended.iter().all(|one| *one == Ok(Ended::Code(0))),
        &format!("{CLIENTS} tasks that TM starts end with exit code 0"),
        || format!("{ended:?} {:?}", cluster.output(job, at)),
    );
    let records = cluster.records(at);
    let all =
        |name: &str| -> BTreeSet<String> { records.iter().map(|record| record[name].to_string()).collect() };
    let is = |name: &str, value: Value| {
        records.len() == CLIENTS && all(name) == BTreeSet::from([value.to_string()])
    };
    let found = || format!("{records:?}");
    account.check(
        is("under_mps", true.into()) && all("daemon_pid").len() == 1 && is("job", job.id.clone().into()),
        "all went through the one daemon of this job",
        found,
    );
    account.check(
        is("uid", USER.1.into()),
        &format!("they and the daemon are '{}'", USER.0),
        found,
    );
    account.check(
        is("sms", (SMS * THREADS / 100).into()),
        &format!(
            "limit: {THREADS} % of the threads gives each {} multiprocessors",
            SMS * THREADS / 100
        ),
        found,
    );
    account.check(
        is("memory_limit_mib", MEMORY.into()),
        &format!("limit: {MEMORY} MiB of memory for each"),
        found,
    );
}

fn ends(cluster: &mut Cluster, job: &Job, account: &mut Account) {
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
        let ours: Vec<&String> = files.iter().filter(|line| line.contains(&job.id)).collect();
        account.check(
            ours.is_empty() && processes.is_empty() && modes == ["default", "default"],
            &format!("{node} afterwards: no process, no directory, no shared memory of the job, both GPUs in their old mode"),
            || format!("{ours:?} {processes:?} {modes:?}"),
        );
        let state = cluster.state(node).0;
        account.check(state == "free", &format!("{node} takes the next job"), || {
            state.clone()
        });
    }
}

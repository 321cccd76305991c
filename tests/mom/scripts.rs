//! The job scripts of `tests/scripts/` that fit a PBS, each on three nodes at once: without us, in
//! a queue of `auto_queues`, with MPS and without the line about it.

use tests::double::Builder;
use tests::mom::cluster::{Cluster, Product, USER};
use tests::mom::wire::Ended;
use tests::scripts::{self, Outcome, STAND_INS, Script, Three};

use crate::jobs::begins;

const RUNS: [(&str, &str); 3] = [
    ("", "batch"),
    ("", "gpus"),
    ("MPS=true,MPS_REPORT=off", "batch"),
];

#[test]
fn every_script_runs_under_torque_as_without_us_or_its_user_reads_why() {
    all_scripts(Product::Torque);
}

#[test]
fn every_script_runs_under_openpbs_as_without_us_or_its_user_reads_why() {
    all_scripts(Product::OpenPbs);
}

fn all_scripts(product: Product) {
    let mut all = scripts::all().expect("the corpus");
    all.retain(Script::is_for_pbs);
    let [without, auto, asked] = std::thread::scope(|scope| {
        let all = &all;
        let runs = [0, 1, 2].map(|run| scope.spawn(move || run_all(product, run, all)));
        runs.map(|run| run.join().expect("a run of all scripts"))
    });
    let runs = without.into_iter().zip(auto).zip(asked);
    let mut wrong = Vec::new();
    for (script, ((without, auto), asked)) in all.iter().zip(runs) {
        let three = Three {
            without,
            auto,
            asked,
        };
        if let Err(error) = script.check(&three) {
            wrong.push(format!("{}: {error}", script.name));
        }
    }
    let count = (wrong.len(), all.len());
    assert!(wrong.is_empty(), "{count:?}:\n{}", wrong.join("\n"));
}

fn run_all(product: Product, run: usize, all: &[Script]) -> Vec<Outcome> {
    let config = "[pbs]\nauto_queues = [\"gpus\"]\n";
    let c = &mut Cluster::with(product, &["nodea"], Builder::fast, config);
    if run == 0 {
        c.nodes[0].sh("mpsctl pbs uninstall; rm -f /etc/profile.d/mpsd.*");
    }
    furnish(c);
    c.mark();
    all.iter().map(|script| outcome(c, run, script)).collect()
}

fn furnish(c: &mut Cluster) {
    let node = &mut c.nodes[0];
    let gpu = format!("/var/srv/pbs/gpu-{}", node.name);
    let client = format!("#!/bin/sh\nexec {gpu}/cuda-client-double --node {gpu} \"$@\"\n");
    node.write("/usr/bin/cuda-app", &client, 0o755);
    node.sh(&format!("ln -s {gpu}/nvidia-cuda-mps-control /usr/bin/"));
    for name in STAND_INS {
        let text =
            std::fs::read_to_string(scripts::folder().join("bin").join(name)).expect("a stand-in");
        node.write(&format!("/usr/bin/{name}"), &text, 0o755);
    }
}

/// What the script leaves ends with the job, as on a site with cgroups.
fn outcome(c: &mut Cluster, run: usize, script: &Script) -> Outcome {
    let (account, queue) = RUNS[run];
    let gpus: &[u32] = if script.gpus == 1 { &[0] } else { &[0, 1] };
    let job = c.job(account).on(&[gpus]).tasks(script.tasks);
    let job = job.in_queue(queue);
    let job = job.with_script(script.text.clone().leak());
    begins(c, &job);
    let started = std::time::Instant::now();
    let shell = c.shell(&job, &script.text);
    let mut shell = shell.unwrap_or_else(|why| panic!("{}: {why}", script.name));
    if c.product == Product::OpenPbs {
        // The hook pbs_cgroups, which runs before ours, names the job's GPUs.
        let names = c.gpus[0].uuids()[..gpus.len()].join(",");
        let visible = shell.env.entry("CUDA_VISIBLE_DEVICES".into());
        visible.or_insert(names);
    }
    let code = match c.nodes[0].run(shell) {
        Ended::Code(code) => code,
        other => panic!("{}: {other:?} {:?}", script.name, c.output(&job, 0)),
    };
    let seconds = started.elapsed().as_secs();
    let (stdout, stderr) = c.output(&job, 0);
    let uid = USER.1;
    // Again until none is left: one that starts another while they are killed is not seen.
    c.nodes[0].sh(&format!(
        "for round in 1 2 3 4 5 6 7 8 9 10; do \
         left=$(ps -o pid= -u {uid}); [ -n \"$left\" ] || break; kill -KILL $left; sleep 0.05; done"
    ));
    c.end(&job, code);
    c.nodes[0].sh(&format!("find /home/{} /tmp -mindepth 1 -delete", USER.0));
    c.is_as_before();
    Outcome {
        code: code.to_string(),
        said: (stdout + &stderr).replace(&job.id, "JOB"),
        seconds,
        gpus: c.gpus[0].uuids(),
    }
}

//! `mpsctl selftest` of an ordinary user by qsub. The test plays the server, and a client of the
//! double plays the probe.

use crate::jobs::{begins, on_both, openpbs, says, torque};
use std::time::Duration;
use tests::double::look::wait_until;
use tests::mom::cluster::{Cluster, Job, Product, USER};
use tests::mom::torque::hang_up;
use tests::mom::wire::{Ended, Run, Stream, variables};
use tests::run::skip;

const SAID: &str = "/tmp/said";

fn start(c: &mut Cluster, words: &[&str]) -> i32 {
    start_at(c, &format!("/home/{}", USER.0), words)
}

fn start_at(c: &mut Cluster, home: &str, words: &[&str]) -> i32 {
    c.open_to_users();
    let gpu = "/var/srv/pbs/gpu-nodea";
    let probe = format!("#!/bin/sh\nexec {gpu}/cuda-client-double --node {gpu} \"$@\"\n");
    c.nodes[0].write("/usr/bin/mps-probe", &probe, 0o755);
    let argv = [&["/usr/bin/mpsctl", "selftest"], words].concat();
    let said = || Stream::File(SAID.to_owned());
    let run = Run {
        env: variables(&[
            ("HOME", home),
            ("PATH", "/usr/local/bin:/opt/pbs/bin:/usr/bin:/bin"),
        ]),
        cwd: "/".to_owned(),
        stdout: said(),
        stderr: said(),
        ..c.user_process(&Job::new("", ""), 0, &argv)
    };
    c.nodes[0].start(run).expect("a running mpsctl")
}

fn next(c: &Cluster, id: &str) -> (Vec<String>, String) {
    let mut text = String::new();
    let there = wait_until(Duration::from_secs(30), || {
        text = c.served(&format!("queue/{id}"));
        text.contains("\n\n") && text.ends_with('\n')
    });
    assert!(there, "no job {id} in the queue");
    let (words, script) = text.split_once("\n\n").unwrap();
    (
        words.lines().map(str::to_owned).collect(),
        script.to_owned(),
    )
}

fn after<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == flag)?;
    words.get(at + 1).map(String::as_str)
}

fn serve(c: &mut Cluster, code: i32) -> Vec<String> {
    let id = "0.pbsserver";
    let (words, script) = next(c, id);
    let mut job = Job::new(id, after(&words, "-A").unwrap_or_default());
    if c.product == Product::OpenPbs {
        job = job.stock("exclhost");
    }
    let status = format!("jobs/{id}");
    c.serve(&status, "    job_state = R");
    begins(c, &job);
    let run = c.shell(&job, &script).unwrap_or_else(|why| panic!("{why}"));
    let ended = c.nodes[0].run(run);
    c.end(&job, 0);
    let (out, err) = c.output(&job, 0);
    assert_eq!(ended, Ended::Code(code), "{out}{err}");
    c.nodes[0].write(after(&words, "-o").unwrap(), &(out + &err), 0o644);
    c.serve(&status, "    job_state = C");
    words
}

fn ends(c: &mut Cluster, pid: i32, code: i32, words: &[&str]) -> String {
    let ended = c.nodes[0].wait(pid, 60_000);
    let text = c.nodes[0].read(SAID).unwrap_or_default();
    assert_eq!(ended, Ended::Code(code), "{text}");
    says(&text, words);
    text
}

#[test]
fn a_healthy_node_passes() {
    on_both(&["nodea"], "", |c| {
        let pid = start(c, &["--", "-q", "gpu", "-A", "proj1"]);
        let words = serve(c, 0).join(" ");
        says(&words, &["-A proj1,MPS=true,MPS_THREADS=50,MPS_MEM=1G"]);
        let shape = match c.product {
            Product::Torque => "-l nodes=1:gpus=1 -q gpu",
            Product::OpenPbs => "-l select=1:ngpus=1 -l place=exclhost -q gpu",
        };
        assert!(words.ends_with(shape), "{words}");
        let text = ends(c, pid, 0, &["job: it ran on nodea", "of the 1024 MiB"]);
        let good = text.lines().filter(|line| line.starts_with("OK")).count();
        assert!(good == 5 && text.lines().count() == 5, "{text}");
        let scheduler = format!("OK    scheduler: {}, by '", c.product.name());
        assert!(text.starts_with(&scheduler), "{text}");
        c.is_as_before();
    });
}

/// The mom has nothing of ours, and the job itself reports that.
#[test]
fn a_node_without_our_prologue_fails() {
    let mut c = torque(&["nodea"], "");
    c.nodes[0].sh("mpsctl pbs uninstall; true");
    hang_up(&mut c.nodes[0]);
    c.nodes[0].sh("mpsctl pbs uninstall; true");
    let pid = start(&mut c, &[]);
    serve(&mut c, 1);
    let advice = "'mpsctl doctor' as root on the node";
    let words = ["FAIL  job:", "it has no MPS on this node", advice];
    ends(&mut c, pid, 2, &words);
}

/// With the real probe, because no machine without a GPU has the library.
#[test]
fn a_node_without_libcuda_is_told_as_that() {
    let mut c = torque(&["nodea"], "");
    if c.nodes[0].sh("ldconfig -p").contains("libcuda.so") {
        return skip("mom, a node without libcuda", "this machine has it");
    }
    let pid = start(&mut c, &[]);
    c.nodes[0].sh("cp /srv/build/mps-probe /usr/bin/mps-probe");
    serve(&mut c, 2);
    let words = ["job: it ran on nodea", "FAIL  libcuda: no libcuda.so.1"];
    let text = ends(&mut c, pid, 2, &words);
    let others = ["behind '--'", "attached"];
    assert!(!others.iter().any(|word| text.contains(word)), "{text}");
}

const LATE: &str = "it had not ended after 3 s, and was canceled";

/// Also one whose qsub does not answer: it is in the queue, and its submitter does not know its id.
#[test]
fn a_late_job_and_the_job_of_an_interrupted_selftest_are_deleted() {
    for (product, hangs, interrupted, told) in [
        (Product::OpenPbs, false, false, LATE.to_owned()),
        (Product::OpenPbs, false, true, "ended by SIGINT".into()),
        (
            Product::OpenPbs,
            true,
            false,
            format!("{LATE}: 'qsub' had not answered"),
        ),
        (Product::Torque, true, true, "ended by SIGINT".into()),
    ] {
        let mut c = Cluster::new(product, &["nodea"]);
        if hangs {
            c.serve("qsub-hangs", "");
        }
        let wait = if interrupted { "300" } else { "3" };
        let pid = start(&mut c, &["--wait", wait]);
        next(&c, "0.pbsserver");
        if interrupted {
            c.nodes[0].signal(pid, 2);
        }
        ends(&mut c, pid, 2, &[&told]);
        let deleted = c.server().join("deleted/0.pbsserver");
        assert!(deleted.exists(), "{product:?} {hangs}: the job stays");
    }
}

/// The output could not come back: another directory exists only on this host, or belongs to
/// everybody.
#[test]
fn without_a_home_for_the_output_nothing_is_submitted() {
    let mut c = openpbs(&["nodea"], "");
    for home in ["", "/nonexistent", "/etc"] {
        let pid = start_at(&mut c, home, &["--wait", "3"]);
        let words = [&*format!("HOME is '{home}'"), "allowed: HOME="];
        ends(&mut c, pid, 2, &words);
        assert!(!c.server().join("queue/0.pbsserver").exists());
    }
}

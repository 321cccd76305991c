//! `mpsctl selftest` of an ordinary user by qsub, with this test for the server. The probe that a job runs is a client of the double's.

use crate::assertions::Before;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;
use tests::double::look::wait_until;
use tests::mom::cluster::{Cluster, Job, Product, USER, Verdict};
use tests::mom::wire::{Ended, Run, Stream};

const SAID: &str = "/tmp/said";

/// Starts it on the node, which is the submitting host as well; its pid.
fn start(c: &mut Cluster, words: &[&str]) -> i32 {
    start_at(c, &format!("/home/{}", USER.0), words)
}

/// The same with this home.
fn start_at(c: &mut Cluster, home: &str, words: &[&str]) -> i32 {
    let server = c.server();
    for dir in ["queue", "jobs", "deleted"] {
        std::fs::create_dir_all(server.join(dir)).unwrap();
        open(&server.join(dir), 0o777);
    }
    let calls = server.join("calls");
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(&calls)
        .unwrap();
    open(&calls, 0o666);
    let gpu = "/var/srv/pbs/gpu-nodea";
    let probe = format!("#!/bin/sh\nexec {gpu}/fake-cuda-client --node {gpu} \"$@\"\n");
    c.nodes[0].write("/usr/bin/mps-probe", &probe, 0o755);
    let (_, uid) = USER;
    let env = [
        ("HOME", home.to_owned()),
        ("PATH", "/usr/local/bin:/opt/pbs/bin:/usr/bin:/bin".to_owned()),
    ];
    let argv = [&["/usr/bin/mpsctl", "selftest"], words].concat();
    let run = Run {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: env.map(|(name, value)| (name.to_owned(), value)).into(),
        cwd: "/".to_owned(),
        user: Some((uid, vec![uid])),
        stdout: Stream::File(SAID.to_owned()),
        stderr: Stream::File(SAID.to_owned()),
        session: true,
        ..Run::default()
    };
    c.nodes[0].start(run).expect("a running mpsctl")
}

fn open(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// The next job in the queue: its words, and its script.
fn next(c: &Cluster, id: &str) -> (Vec<String>, String) {
    let file = c.server().join("queue").join(id);
    let mut text = String::new();
    let there = wait_until(Duration::from_secs(30), || {
        text = std::fs::read_to_string(&file).unwrap_or_default();
        text.contains("\n\n") && text.ends_with('\n')
    });
    assert!(there, "no job {id} in the queue");
    let (words, script) = text.split_once("\n\n").unwrap();
    (words.lines().map(str::to_owned).collect(), script.to_owned())
}

fn after<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word == flag)?;
    words.get(at + 1).map(String::as_str)
}

/// Runs the job as its mom does, and brings its output back.
fn serve(c: &mut Cluster, id: &str, code: i32) -> Vec<String> {
    let (words, script) = next(c, id);
    let job = Job::new(id, after(&words, "-A").unwrap_or_default());
    let job = if c.product == Product::OpenPbs {
        job.stock("exclhost")
    } else {
        job
    };
    std::fs::write(c.server().join("jobs").join(id), "    job_state = R").unwrap();
    assert_eq!(c.begin(&job), Verdict::Runs);
    let run = c.shell(&job, &script).unwrap_or_else(|why| panic!("{why}"));
    let ended = c.nodes[0].run(run);
    c.end(&job, 0);
    let (out, err) = c.output(&job, 0);
    assert_eq!(ended, Ended::Code(code), "{out}{err}");
    c.nodes[0].write(after(&words, "-o").unwrap(), &(out + &err), 0o644);
    std::fs::write(c.server().join("jobs").join(id), "    job_state = C").unwrap();
    words
}

fn said(c: &mut Cluster) -> String {
    c.nodes[0].read(SAID).unwrap_or_default()
}

fn a_healthy_node(product: Product, asked: &str) {
    let mut c = Cluster::new(product, &["nodea"]);
    let before = Before::of(&mut c);
    let pid = start(&mut c, &["--", "-q", "gpu", "-A", "proj1"]);
    let words = serve(&mut c, "0.pbsserver", 0).join(" ");
    assert!(
        words.contains("-A proj1,MPS=true,MPS_THREADS=50,MPS_MEM=1G"),
        "{words}"
    );
    assert!(words.ends_with(&format!("{asked} -q gpu")), "{words}");
    let ended = c.nodes[0].wait(pid, 60_000);
    let text = said(&mut c);
    assert_eq!(ended, Ended::Code(0), "{text}");
    let heads: Vec<&str> = text
        .lines()
        .map(|line| line.split([':', ' ']).next().unwrap())
        .collect();
    assert_eq!(heads, vec!["OK"; 5], "{text}");
    let product = product.name();
    assert!(
        text.starts_with(&format!("OK    scheduler: {product}, by '")),
        "{text}"
    );
    assert!(
        text.contains("job: it ran on nodea") && text.contains("of the 1024 MiB"),
        "{text}"
    );
    before.holds(&mut c);
}

#[test]
fn a_healthy_node_under_torque() {
    a_healthy_node(Product::Torque, "-l nodes=1:gpus=1");
}

#[test]
fn a_healthy_node_under_openpbs() {
    a_healthy_node(Product::OpenPbs, "-l select=1:ngpus=1 -l place=exclhost");
}

/// Nothing of ours is in the mom, and who asked is told by the job itself.
#[test]
fn a_node_without_our_prologue() {
    let mut c = Cluster::new(Product::Torque, &["nodea"]);
    c.nodes[0].sh("mpsctl pbs uninstall; true");
    tests::mom::torque::hang_up(&mut c.nodes[0]);
    c.nodes[0].sh("mpsctl pbs uninstall; true");
    let pid = start(&mut c, &[]);
    serve(&mut c, "0.pbsserver", 1);
    let ended = c.nodes[0].wait(pid, 60_000);
    let text = said(&mut c);
    assert_eq!(ended, Ended::Code(2), "{text}");
    for words in [
        "FAIL  job:",
        "it has no MPS on this node",
        "'mpsctl pbs check' as root on the node",
    ] {
        assert!(text.contains(words), "no '{words}': {text}");
    }
}

#[test]
fn a_late_job_and_one_of_who_loses_patience_are_deleted() {
    let mut c = Cluster::new(Product::OpenPbs, &["nodea"]);
    let pid = start(&mut c, &["--wait", "1"]);
    assert_eq!(c.nodes[0].wait(pid, 60_000), Ended::Code(2));
    let text = said(&mut c);
    assert!(
        text.contains("it had not ended after 1 s, and was cancelled"),
        "{text}"
    );
    assert!(c.server().join("deleted/0.pbsserver").exists());
    let pid = start(&mut c, &[]);
    next(&c, "1.pbsserver");
    c.nodes[0].signal(pid, 2);
    assert_eq!(c.nodes[0].wait(pid, 60_000), Ended::Code(2));
    let text = said(&mut c);
    assert!(text.contains("ended by SIGINT"), "{text}");
    assert!(c.server().join("deleted/1.pbsserver").exists());
}

/// The job is in the queue, and who submitted it has not been told its number.
#[test]
fn a_job_whose_qsub_does_not_answer_is_deleted() {
    for (product, signal) in [(Product::OpenPbs, None), (Product::Torque, Some(2))] {
        let mut c = Cluster::new(product, &["nodea"]);
        std::fs::write(c.server().join("qsub-hangs"), "").unwrap();
        let wait = if signal.is_none() { "3" } else { "300" };
        let pid = start(&mut c, &["--wait", wait]);
        next(&c, "0.pbsserver");
        if let Some(signal) = signal {
            c.nodes[0].signal(pid, signal);
        }
        assert_eq!(c.nodes[0].wait(pid, 20_000), Ended::Code(2), "{}", said(&mut c));
        let text = said(&mut c);
        let words = if signal.is_none() {
            "it had not ended after 3 s, and was cancelled: 'qsub' had not answered"
        } else {
            "ended by SIGINT"
        };
        assert!(text.contains(words), "{text}");
        assert!(
            c.server().join("deleted/0.pbsserver").exists(),
            "the job stays: {text}"
        );
    }
}

/// Nothing is submitted whose output could not come back: another directory is on this host alone, or everybody's.
#[test]
fn without_a_home_for_the_output_nothing_is_submitted() {
    let mut c = Cluster::new(Product::OpenPbs, &["nodea"]);
    for (home, why) in [
        ("", "HOME is ''"),
        ("/nonexistent", "HOME is '/nonexistent'"),
        ("/etc", "HOME is '/etc'"),
    ] {
        let pid = start_at(&mut c, home, &["--wait", "3"]);
        assert_eq!(c.nodes[0].wait(pid, 20_000), Ended::Code(2));
        let text = said(&mut c);
        assert!(text.contains(why) && text.contains("allowed: HOME="), "{text}");
        assert!(!c.server().join("queue/0.pbsserver").exists(), "{text}");
    }
}

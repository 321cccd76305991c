//! Tasks that Torque's TM starts, on any node, without a shell or a profile: attached, or the job is refused with our line.

use crate::assertions::{Before, attached, bare, client_words, shell_ends, torque_client};
use std::time::{Duration, Instant};
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::torque::hang_up;
use tests::mom::wire::{Ended, Run, Stream};

const CONFIG: &str = "/var/spool/torque/mom_priv/config";
/// A site that lets no job start whose tasks could run outside its MPS.
const STRICT: &str = "[pbs]\nunattached_tasks = \"refuse\"\n";
const STARTER: &str = "/var/spool/torque/mom_priv/mpsd-job-starter";

fn cluster(names: &[&str]) -> Cluster {
    Cluster::new(Product::Torque, names)
}

/// A node whose administrator wants no `$job_starter`.
fn without_starter(names: &[&str], config: &str) -> Cluster {
    let mut c = Cluster::with(Product::Torque, names, |builder| builder.fast(), config);
    for node in &mut c.nodes {
        node.try_sh("mpsctl pbs uninstall; mpsctl pbs uninstall");
        node.sh("mpsctl pbs install --no-job-starter");
        hang_up(node);
        assert_eq!(node.read(CONFIG).unwrap(), "$logevent 255\n");
    }
    c
}

#[test]
fn install_writes_the_line_once_and_uninstall_takes_it_back() {
    let mut c = cluster(&["nodea"]);
    let node = &mut c.nodes[0];
    let text = node.read(CONFIG).unwrap();
    assert!(
        text.starts_with("$logevent 255\n# mpsd: ") && text.ends_with(&format!("\n$job_starter {STARTER}\n")),
        "{text}"
    );
    node.sh("mpsctl pbs install");
    assert_eq!(node.read(CONFIG).unwrap(), text);
    let (code, said) = node.try_sh("mpsctl pbs uninstall");
    assert_eq!(
        code,
        Ended::Code(1),
        "the mom still starts tasks through the file: {said}"
    );
    assert!(said.contains("run this again"), "{said}");
    assert_eq!(node.read(CONFIG).unwrap(), "$logevent 255\n");
    assert!(node.read(STARTER).is_some());
    node.sh("mpsctl pbs uninstall");
    assert_eq!(node.read(STARTER), None);
}

#[test]
fn without_a_starter_a_strict_site_refuses_the_job_and_others_run() {
    let mut c = without_starter(&["nodea"], STRICT);
    let before = Before::of(&mut c);
    let job = Job::new("50.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Aborted);
    let text = c.output(&job, 0).1;
    assert!(
        text.contains(&format!("'{CONFIG}' has no $job_starter")) && text.contains("'mpsctl pbs install'"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(c.state("nodea"), ("free".into(), String::new()));
    before.holds(&mut c);
    let (code, text) = c.nodes[0].try_sh(
        "mpsctl plan --scheduler torque --gpus 0 50.vm alice alice job1 nodes=1:gpus=1 batch MPS=true",
    );
    assert_eq!(code, Ended::Code(1), "the plan is the prologue's: {text}");
    assert!(text.contains("has no $job_starter"), "{text}");
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(1));
    assert!(
        text.contains("FAIL  ") && text.contains("every job that asks for MPS is refused"),
        "{text}"
    );
    let plain = Job::new("51.vm", "proj1");
    assert_eq!(c.torque_begin(&plain), Verdict::Runs);
    torque_client(&mut c, &plain, 0, "", &[]);
    bare(&c.records(0)[0]);
}

#[test]
fn a_mom_at_an_unusual_place_is_known_by_where_it_runs_us() {
    let mut c = without_starter(&["nodea"], STRICT);
    c.nodes[0].sh("mv /var/spool/torque /var/spool/else");
    let job = Job::new("61.vm", "MPS=true");
    let run = c.torque_run(&job, 0, "prologue", None);
    let elsewhere = |text: &str| text.replace("/var/spool/torque", "/var/spool/else");
    c.nodes[0].write("/var/spool/else/aux/61.vmgpu", "nodea-gpu0\n", 0o644);
    let run = Run {
        argv: run.argv.iter().map(|word| elsewhere(word)).collect(),
        env: run
            .env
            .iter()
            .map(|(name, value)| (name.clone(), elsewhere(value)))
            .collect(),
        cwd: elsewhere(&run.cwd),
        stdout: Stream::Null,
        stderr: Stream::File("/tmp/told".into()),
        ..run
    };
    assert_eq!(c.nodes[0].run(run), Ended::Code(1));
    let told = c.nodes[0].read("/tmp/told").unwrap();
    assert!(
        told.contains("'/var/spool/else/mom_priv/config' has no $job_starter"),
        "{told}"
    );
}

#[test]
fn without_a_starter_the_job_runs_and_is_told_what_its_tasks_need() {
    let mut c = without_starter(&["nodea"], "");
    let before = Before::of(&mut c);
    let job = Job::new("52.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let text = c.output(&job, 0).1;
    assert!(
        text.contains("runs outside MPS unless it is 'mpsctl exec -- COMMAND'") && text.lines().count() == 1,
        "{text}"
    );
    let run = c.torque_shell(&job, &Cluster::client(""));
    shell_ends(&mut c, run, &job, 0);
    attached(&c.records(0)[0], &job, "nodea", 132, None);
    torque_client(&mut c, &job, 0, "/usr/bin/mpsctl exec -- ", &[]);
    attached(&c.records(0)[0], &job, "nodea", 132, None);
    c.torque_end(&job, 0);
    before.holds(&mut c);
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(0), "{text}");
    assert!(
        text.contains("WARN  ") && text.contains("has no $job_starter"),
        "{text}"
    );
}

#[test]
fn a_sister_that_cannot_attach_keeps_the_job_from_starting() {
    let mut c = Cluster::with(
        Product::Torque,
        &["nodea", "nodeb"],
        |b| b.fast(),
        &format!("deadline_s = 3\n{STRICT}"),
    );
    let before = Before::of(&mut c);
    c.nodes[1].sh(&format!(
        "cp -p {CONFIG} /root/config && echo '$logevent 255' >{CONFIG}"
    ));
    let job = Job::new("53.vm", "MPS=true").on(&[&[0], &[0]]);
    let started = Instant::now();
    assert_eq!(c.torque_begin(&job), Verdict::Requeued);
    assert!(
        started.elapsed() >= Duration::from_secs(1),
        "held back, or Torque would try again at once"
    );
    assert_eq!(c.gpus[1].modes(), ["default", "default"]);
    c.nodes[1].sh(&format!("cp -p /root/config {CONFIG}"));
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    torque_client(&mut c, &job, 1, "", &[]);
    attached(&c.records(1)[0], &job, "nodeb", 132, None);
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn a_refusal_on_two_nodes_takes_no_sister_down() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let before = Before::of(&mut c);
    // The second is refused by what the node has: it leaves a record on the sister, whose epilogue Torque does not run.
    for (account, word) in [
        ("MPS=maybe", "MPS=maybe"),
        ("MPS=true,MPS_MEM=999G", "memory limit 999G"),
    ] {
        let job = Job::new("54.vm", account).on(&[&[0], &[0]]);
        assert_eq!(
            c.torque_begin(&job),
            Verdict::Runs,
            "a prologue.parallel that fails is requeued for ever"
        );
        let run = c.torque_shell(&job, "echo ran");
        shell_ends(&mut c, run, &job, 1);
        let (out, text) = c.output(&job, 0);
        assert!(out.is_empty() && text.contains(word), "{out} {text}");
        assert!(!c.server().join("comments").exists(), "told where its user looks");
        c.torque_end(&job, 1);
        before.holds(&mut c);
        let job = job.interactive();
        assert_eq!(c.torque_begin(&job), Verdict::Aborted);
        std::fs::remove_file(c.server().join("jobs").join(&job.id)).unwrap();
        c.nodes[1].sh("mpsctl reconcile");
        c.nodes[0].sh("rm -f /var/spool/torque/spool/*");
        before.holds(&mut c);
    }
}

#[test]
fn what_a_sister_alone_refuses_its_tasks_are_told() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let before = Before::of(&mut c);
    let job = Job::new("55.vm", "MPS=true").on(&[&[0], &[0]]);
    c.torque_files(&job);
    // The server does not say which GPUs of the sister are the job's.
    let status = c.server().join("jobs").join(&job.id);
    let text = std::fs::read_to_string(&status).unwrap();
    std::fs::write(&status, text.replace("+nodeb-gpu/0", "")).unwrap();
    assert_eq!(
        c.torque_script(&job, 1, "prologue.parallel", None),
        Ended::Code(0)
    );
    assert_eq!(c.torque_script(&job, 0, "prologue", None), Ended::Code(0));
    let words = client_words("nodeb");
    let ended = c.torque_task(&job, 1, &words.split(' ').collect::<Vec<_>>());
    assert_eq!(ended, Ended::Code(1));
    let told = c.output(&job, 1).1;
    assert!(
        told.contains("job 55.vm: MPS refused: ") && told.contains("exec_gpus"),
        "{told}"
    );
    assert!(c.records(1).is_empty());
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn a_launcher_carries_the_first_nodes_environment_along() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let job = Job::new("56.vm", "MPS=true,MPS_THREADS=50").on(&[&[0], &[1]]);
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    // Its GPU by UUID, or by the number that its daemon has there.
    for carried in [c.gpus[0].uuids()[0].clone(), "0".to_owned()] {
        let passed = [
            ("CUDA_VISIBLE_DEVICES", carried),
            ("CUDA_MPS_PIPE_DIRECTORY", "/run/mpsd/jobs/56.vm/pipe".to_owned()),
            ("MPSD_JOB", "56.vm".to_owned()),
        ];
        torque_client(&mut c, &job, 1, "", &passed);
        let record = &c.records(1)[0];
        attached(record, &job, "nodeb", 66, None);
        assert_eq!(record["visible"], c.gpus[1].uuids()[1], "{record}");
    }
    c.torque_end(&job, 0);
}

#[test]
fn a_launchers_daemon_has_no_rank_and_its_children_have() {
    let mut c = cluster(&["nodea", "nodeb"]);
    let before = Before::of(&mut c);
    let job = Job::new("57.vm", "MPS=per-gpu,MPS_THREADS=25:50").on(&[&[0, 1], &[0, 1]]);
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 1));
    let ranks = format!(
        "#!/bin/sh\nfor r in 0 1; do OMPI_COMM_WORLD_LOCAL_RANK=$r mpsctl exec -- {} & done; wait\n",
        client_words("nodeb")
    );
    c.nodes[1].write("/tmp/orted", &ranks, 0o755);
    assert_eq!(
        c.torque_task(&job, 1, &["/tmp/orted", "-mca"]),
        Ended::Code(0),
        "{:?}",
        c.output(&job, 1)
    );
    let records = c.records(1);
    assert_eq!(records.len(), 2, "{:?}", c.output(&job, 1));
    for record in &records {
        let rank = usize::try_from(record["local_rank"].as_u64().unwrap()).unwrap();
        attached(record, &job, "nodeb", [32, 66][rank], None);
        assert_eq!(record["visible"], c.gpus[1].uuids()[rank], "{record}");
    }
    // A task without a rank that is no launcher fails with our line.
    let words = client_words("nodeb");
    let ended = c.torque_task(&job, 1, &words.split(' ').collect::<Vec<_>>());
    assert_eq!(ended, Ended::Code(1));
    assert!(c.output(&job, 1).1.contains("OMPI_COMM_WORLD_LOCAL_RANK"));
    assert!(c.records(1).is_empty());
    c.torque_end(&job, 0);
    before.holds(&mut c);
}

#[test]
fn the_starter_leaves_other_jobs_as_they_were_whatever_is_wrong_here() {
    let mut c = cluster(&["nodea"]);
    c.nodes[0].write("/etc/profile.d/site.sh", "MPSD_TEST_PROFILE=read\n", 0o644);
    let script = "echo arg0 $0; echo profile ${MPSD_TEST_PROFILE-none}; exit 7";
    for breakage in [
        "true",
        "echo 'no_such_key = 1' >>/etc/mpsd/mpsd.toml",
        "rm /usr/bin/mpsctl",
    ] {
        c.nodes[0].sh(breakage);
        let job = Job::new("58.vm", "proj1");
        assert_eq!(c.torque_begin(&job), Verdict::Runs);
        let run = c.torque_shell(&job, script);
        shell_ends(&mut c, run, &job, 7);
        let (out, err) = c.output(&job, 0);
        assert_eq!(err, "", "{breakage}");
        if breakage.starts_with("rm") {
            assert!(out.starts_with("arg0 "), "{out}");
        } else {
            let login = "arg0 -sh\nprofile read\n";
            assert_eq!(out, login, "a login shell, as without a starter: {breakage}");
        }
        torque_client(&mut c, &job, 0, "", &[]);
        bare(&c.records(0)[0]);
        c.nodes[0].sh("rm -f /var/spool/torque/spool/*");
    }
}

#[test]
fn a_starter_of_the_sites_own_stays_and_may_call_ours() {
    let mut c = without_starter(&["nodea"], STRICT);
    let node = &mut c.nodes[0];
    node.write(
        "/usr/local/sbin/starter",
        "#!/bin/sh\nexport SITE=1\nexec \"$@\"\n",
        0o755,
    );
    node.sh(&format!("echo '$job_starter /usr/local/sbin/starter' >>{CONFIG}"));
    hang_up(node);
    let (code, text) = node.try_sh("mpsctl pbs install");
    assert_eq!(code, Ended::Code(1), "{text}");
    let line = text
        .lines()
        .find(|line| line.contains("exec --starter"))
        .unwrap()
        .trim();
    assert_eq!(node.read(CONFIG).unwrap().matches("$job_starter").count(), 1);
    let job = Job::new("59.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Aborted);
    assert!(c.output(&job, 0).1.contains("'/usr/local/sbin/starter'"));
    let node = &mut c.nodes[0];
    node.write(
        "/usr/local/sbin/starter",
        &format!("#!/bin/sh\nexport SITE=1\n{line}\n"),
        0o755,
    );
    let (code, text) = node.try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(0), "{text}");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    torque_client(&mut c, &job, 0, "", &[]);
    attached(&c.records(0)[0], &job, "nodea", 132, None);
    c.torque_end(&job, 0);
}

//! Tasks that Torque's TM starts without a shell, and our `$job_starter`, which attaches them.

use crate::jobs::{
    attached, attached_without_limits, bare, begins, begun, checks, client, ends, free, root, says,
    says_once, shell, task_client, task_is_refused, torque,
};
use std::time::Instant;
use tests::mom::cluster::{Cluster, Verdict};
use tests::mom::node::MomNode;
use tests::mom::torque::hang_up;
use tests::mom::wire::{Ended, Run, Stream};

const CONFIG: &str = "/var/spool/torque/mom_priv/config";
const STARTER: &str = "/var/spool/torque/mom_priv/mpsd-job-starter";
/// This site starts no job whose tasks could run outside its MPS.
const STRICT: &str = "[pbs]\nunattached_tasks = \"refuse\"\n";

fn without_starter(config: &str) -> Cluster {
    let mut c = torque(&["nodea"], config);
    let node = &mut c.nodes[0];
    node.try_sh("mpsctl pbs uninstall; mpsctl pbs uninstall");
    node.sh("mpsctl pbs install --no-job-starter");
    hang_up(node);
    assert_eq!(node.read(CONFIG).unwrap(), "$logevent 255\n");
    c.mark();
    c
}

fn instead(node: &mut MomNode, lines: &str) {
    node.try_sh("mpsctl pbs uninstall; mpsctl pbs uninstall");
    node.write(CONFIG, &format!("$logevent 255\n{lines}\n"), 0o644);
    assert_eq!(node.read(STARTER), None);
}

fn is_left_out(node: &mut MomNode, why: &str) -> String {
    let before = node.read(CONFIG);
    let text = node.sh_exits(1, "mpsctl pbs install");
    says(&text, &[why, "outside MPS"]);
    assert!(
        !text.contains("exec --starter"),
        "no advice to chain it: {text}"
    );
    assert_eq!(node.read(CONFIG), before);
    assert_eq!(node.read(STARTER), None);
    text
}

#[test]
fn install_writes_the_line_once_and_uninstall_takes_it_back() {
    let mut c = torque(&["nodea"], "");
    let node = &mut c.nodes[0];
    let text = node.read(CONFIG).unwrap();
    let line = format!("\n$job_starter {STARTER}\n");
    assert!(text.starts_with("$logevent 255\n# mpsd: "), "{text}");
    assert!(text.ends_with(&line), "{text}");
    node.sh("mpsctl pbs install");
    assert_eq!(node.read(CONFIG).unwrap(), text);
    // The mom still starts tasks through this file.
    let text = node.sh_exits(1, "mpsctl pbs uninstall");
    says(&text, &["run this again"]);
    assert_eq!(node.read(CONFIG).unwrap(), "$logevent 255\n");
    assert!(node.read(STARTER).is_some());
    node.sh("mpsctl pbs uninstall");
    assert_eq!(node.read(STARTER), None);
}

#[test]
fn without_a_starter_a_strict_site_refuses_the_job_that_asks() {
    let mut c = without_starter(STRICT);
    let job = c.job("MPS=true");
    assert_eq!(c.begin(&job), Verdict::Aborted);
    let why = format!("'{CONFIG}' has no $job_starter");
    says_once(&c.told(&job), &[&why, "'mpsctl pbs install'"]);
    assert_eq!(c.state("nodea"), free());
    c.is_as_before();
    let plan = "mpsctl plan --scheduler torque --gpus 0 50.vm alice alice job1 nodes=1:gpus=1 batch MPS=true";
    root(&mut c, 1, plan, &["has no $job_starter"]);
    checks(
        &mut c,
        2,
        &["FAIL  ", "every job that asks for MPS is refused"],
    );
    let plain = begun(&mut c, "proj1");
    bare(&task_client(&mut c, &plain, 0, ""));
}

#[test]
fn without_a_starter_the_job_runs_and_is_told_what_its_tasks_need() {
    let mut c = without_starter("");
    let job = begun(&mut c, "MPS=true");
    let told = "runs outside MPS unless it is 'mpsctl exec -- COMMAND'";
    says_once(&c.told(&job), &[told]);
    attached_without_limits(&client(&mut c, &job), &job);
    let task = task_client(&mut c, &job, 0, "/usr/bin/mpsctl exec -- ");
    attached_without_limits(&task, &job);
    ends(&mut c, &job);
    checks(&mut c, 0, &["WARN  ", "has no $job_starter"]);
}

#[test]
fn a_mom_at_an_unusual_place_is_known_by_where_it_runs_us() {
    let mut c = without_starter(STRICT);
    c.nodes[0].sh("mv /var/spool/torque /var/spool/else");
    let job = c.job("MPS=true");
    let elsewhere = |text: &String| text.replace("/var/spool/torque", "/var/spool/else");
    let gpu_file = format!("/var/spool/else/aux/{}gpu", job.id);
    c.nodes[0].write(&gpu_file, "nodea-gpu0\n", 0o644);
    let run = c.torque_run(&job, 0, "prologue", None);
    let variable = |(name, value): (&String, &String)| (name.clone(), elsewhere(value));
    let run = Run {
        argv: run.argv.iter().map(elsewhere).collect(),
        env: run.env.iter().map(variable).collect(),
        cwd: elsewhere(&run.cwd),
        stdout: Stream::Null,
        stderr: Stream::File("/tmp/told".into()),
        ..run
    };
    assert_eq!(c.nodes[0].run(run), Ended::Code(1));
    let told = c.nodes[0].read("/tmp/told").unwrap();
    let why = "'/var/spool/else/mom_priv/config' has no $job_starter";
    says(&told, &[why]);
}

#[test]
fn a_sister_that_cannot_attach_keeps_the_job_from_starting() {
    let config = format!("deadline_s = 3\n{STRICT}");
    let mut c = torque(&["nodea", "nodeb"], &config);
    c.nodes[1].sh(&format!(
        "cp -p {CONFIG} /root/config && echo '$logevent 255' >{CONFIG}"
    ));
    let job = c.job("MPS=true").on(&[&[0], &[0]]);
    let started = Instant::now();
    assert_eq!(c.begin(&job), Verdict::Requeued);
    let took = started.elapsed().as_secs();
    assert!(took >= 1, "Torque would try again at once");
    assert_eq!(c.gpus[1].modes(), ["default", "default"]);
    c.nodes[1].sh(&format!("cp -p /root/config {CONFIG}"));
    begins(&mut c, &job);
    attached(&task_client(&mut c, &job, 1, ""), &job, "nodeb", 132, None);
    ends(&mut c, &job);
}

/// A failing prologue.parallel would make Torque requeue the job forever. Torque runs no epilogue
/// there, so a record stays.
#[test]
fn a_refusal_on_two_nodes_takes_no_sister_down() {
    let mut c = torque(&["nodea", "nodeb"], "");
    for (account, word) in [
        ("MPS=maybe", "MPS=maybe"),
        ("MPS=true,MPS_MEM=999G", "memory limit 999G"),
    ] {
        let job = c.job(account).on(&[&[0], &[0]]);
        begins(&mut c, &job);
        shell(&mut c, &job, "echo ran", 1);
        let (out, text) = c.output(&job, 0);
        assert_eq!(out, "");
        says(&text, &[word]);
        assert!(!c.server().join("comments").exists(), "told in its output");
        c.end(&job, 1);
        c.is_as_before();
        let job = job.interactive();
        assert_eq!(c.begin(&job), Verdict::Aborted);
        std::fs::remove_file(c.server().join("jobs").join(&job.id)).unwrap();
        c.nodes[1].sh("mpsctl reconcile");
        c.is_as_before();
    }
}

/// The server does not say which GPUs of the sister belong to the job.
#[test]
fn what_a_sister_alone_refuses_its_tasks_are_told() {
    let mut c = torque(&["nodea", "nodeb"], "");
    let job = c.job("MPS=true").on(&[&[0], &[0]]);
    c.torque_files(&job);
    c.torque_status(&job, "+nodeb-gpu/0", "");
    for (at, script) in [(1, "prologue.parallel"), (0, "prologue")] {
        assert_eq!(c.torque_script(&job, at, script, None), Ended::Code(0));
    }
    let told = task_is_refused(&mut c, &job, 1);
    let refused = format!("job {}: MPS refused: ", job.id);
    says(&told, &[&refused, "exec_gpus"]);
    ends(&mut c, &job);
}

/// An MPI launcher passes its own variables on: a GPU's UUID, or its number under the first node's
/// daemon.
#[test]
fn a_task_with_the_first_nodes_variables_has_its_own_nodes_mps() {
    let mut c = torque(&["nodea", "nodeb"], "");
    let job = c.job("MPS=true,MPS_THREADS=50").on(&[&[0], &[1]]);
    begins(&mut c, &job);
    let pipe = format!("/run/mpsd/jobs/{}/pipe", job.id);
    for carried in [c.gpus[0].uuids()[0].as_str(), "0"] {
        let passed = [
            ("CUDA_VISIBLE_DEVICES", carried),
            ("CUDA_MPS_PIPE_DIRECTORY", &pipe),
            ("MPSD_JOB", &job.id),
        ];
        let words = Cluster::client_on("nodeb");
        let ended = c.torque_task(&job, 1, &words.split(' ').collect::<Vec<_>>(), &passed);
        assert_eq!(ended, Ended::Code(0), "{:?}", c.output(&job, 1));
        let record = &c.records(1)[0];
        attached(record, &job, "nodeb", 66, None);
        assert_eq!(record["visible"], c.gpus[1].uuids()[1], "{record}");
    }
    c.end(&job, 0);
}

#[test]
fn the_starter_leaves_other_jobs_as_they_were_also_on_a_broken_node() {
    let mut c = torque(&["nodea"], "");
    c.nodes[0].write("/etc/profile.d/site.sh", "MPSD_TEST_PROFILE=read\n", 0o644);
    for breakage in [
        "true",
        "echo 'no_such_key = 1' >>/etc/mpsd/mpsd.toml",
        "rm /usr/bin/mpsctl",
    ] {
        c.nodes[0].sh(breakage);
        let job = begun(&mut c, "proj1");
        let script = "echo arg0 $0; echo profile ${MPSD_TEST_PROFILE-none}; exit 7";
        shell(&mut c, &job, script, 7);
        let (out, err) = c.output(&job, 0);
        assert_eq!(err, "", "{breakage}");
        if breakage.starts_with("rm") {
            assert!(out.starts_with("arg0 "), "{out}");
        } else {
            assert_eq!(out, "arg0 -sh\nprofile read\n", "{breakage}");
        }
        bare(&task_client(&mut c, &job, 0, ""));
    }
}

#[test]
fn a_plain_jobs_task_needs_our_program_only_if_another_job_left_something() {
    let mut c = torque(&["nodea"], "");
    let job = begun(&mut c, "proj1");
    let words = Cluster::client_on("nodea");
    let words: Vec<&str> = words.split(' ').collect();
    let pipe = (
        "CUDA_MPS_PIPE_DIRECTORY",
        "/run/mpsd/jobs/99.localhost/pipe",
    );
    let left = [("MPSD_JOB", "99.localhost"), pipe];
    assert_eq!(c.torque_task(&job, 0, &words, &left), Ended::Code(0));
    bare(&c.records(0)[0]);
    c.nodes[0].sh("ln -sf /bin/false /usr/bin/mpsctl");
    assert_eq!(c.torque_task(&job, 0, &words, &left), Ended::Code(1));
    bare(&task_client(&mut c, &job, 0, ""));
}

#[test]
fn a_starter_of_the_site_stays_and_may_call_ours() {
    let mut c = without_starter(STRICT);
    let node = &mut c.nodes[0];
    let own = "/usr/local/sbin/starter";
    node.write(own, "#!/bin/sh\nexport SITE=1\nexec \"$@\"\n", 0o755);
    node.sh(&format!("echo '$job_starter {own}' >>{CONFIG}"));
    hang_up(node);
    let text = node.sh_exits(1, "mpsctl pbs install");
    let line = text.lines().find(|line| line.contains("exec --starter"));
    let line = line.unwrap().trim();
    let config = node.read(CONFIG).unwrap();
    assert_eq!(config.matches("$job_starter").count(), 1);
    let job = c.job("MPS=true");
    assert_eq!(c.begin(&job), Verdict::Aborted);
    says(&c.told(&job), &["'/usr/local/sbin/starter'"]);
    c.nodes[0].write(own, &format!("#!/bin/sh\nexport SITE=1\n{line}\n"), 0o755);
    c.nodes[0].sh("mpsctl pbs check");
    begins(&mut c, &job);
    attached_without_limits(&task_client(&mut c, &job, 0, ""), &job);
    c.end(&job, 0);
}

/// Such a mom starts tasks itself, as the job's user. Then only TM's tasks are not attached, and
/// the job is told.
#[test]
fn a_mom_that_would_run_it_as_root_or_otherwise_is_given_no_starter() {
    let mut c = torque(&["nodea"], "");
    let privileged = "$job_starter_run_privileged";
    let words = ["true", "1", "maybe", ""].map(|word| (format!("{privileged} {word}"), privileged));
    c.nodes[0].write("/usr/local/sbin/starter", "#!/bin/sh\nexec \"$@\"\n", 0o755);
    let own = "$job_starter /usr/local/sbin/starter";
    for (lines, why) in words.into_iter().chain([
        (format!("{own}\n{privileged} yes"), privileged),
        (format!("{privileged} yes\n{own}"), privileged),
        ("$source_login_batch false".into(), "$source_login_batch"),
        (
            "$Source_Login_Interactive\toff # as ever".into(),
            "$source_login_interactive",
        ),
        ("$preexec /usr/local/bin/wrap".into(), "$preexec"),
    ]) {
        instead(&mut c.nodes[0], &lines);
        is_left_out(&mut c.nodes[0], why);
    }
    instead(&mut c.nodes[0], &format!("{privileged} true"));
    is_left_out(&mut c.nodes[0], privileged);
    let job = begun(&mut c, "MPS=true");
    says(&c.told(&job), &["has $job_starter_run_privileged"]);
    c.end(&job, 0);
    let node = &mut c.nodes[0];
    let read_last = format!("{privileged} true\n{privileged} false");
    for good in [read_last.as_str(), "$source_login_batch true"] {
        instead(node, good);
        node.sh("mpsctl pbs install");
        assert!(node.read(STARTER).is_some(), "{good}");
    }
    instead(node, "");
    node.sh("chmod 0750 /var/spool/torque/mom_priv");
    let text = is_left_out(node, "users may not pass '/var/spool/torque/mom_priv'");
    // Removing the package removes that directory.
    assert!(!text.contains("/usr/libexec"), "{text}");
}

#[test]
fn a_starter_that_would_run_as_root_is_refused() {
    let mut c = torque(&["nodea"], "");
    let own = c.nodes[0].read(CONFIG).unwrap();
    let privileged = "$job_starter_run_privileged true\n";
    let root = format!("USER=root LOGNAME=root {STARTER} id -u");
    for text in [format!("{own}{privileged}"), format!("{privileged}{own}")] {
        let node = &mut c.nodes[0];
        node.write(CONFIG, &text, 0o644);
        let text = node.sh_exits(2, "mpsctl pbs check");
        says(&text, &["has $job_starter_run_privileged"]);
        for command in [
            &root,
            &format!("USER=alice LOGNAME=alice {STARTER} id -u"),
            &format!("env -u USER -u LOGNAME {STARTER} id -u"),
        ] {
            let text = node.sh_exits(1, command);
            says(&text, &["it runs as root"]);
            assert!(!text.lines().any(|line| line == "0"), "{text}");
        }
        let job = c.job("MPS=true");
        assert_eq!(c.begin(&job), Verdict::Aborted);
    }
    let node = &mut c.nodes[0];
    let without_us =
        "mv /usr/bin/mpsctl /root; {} id -u; code=$?; mv /root/mpsctl /usr/bin; exit $code";
    node.sh_exits(127, &without_us.replace("{}", STARTER));
    node.sh(&format!("rm {CONFIG}"));
    node.sh_exits(1, &root);
    node.write(CONFIG, &own, 0o644);
    assert_eq!(node.sh(&root).trim(), "0", "root's own job");
    node.sh_exits(1, &format!("USER=alice {STARTER} id -u"));
}

/// A program outside MPS gets no context on an exclusive GPU.
fn keep_modes(c: &mut Cluster) {
    c.nodes[0].sh("sed -i '1i compute_mode = \"keep\"' /etc/mpsd/mpsd.toml");
}

#[test]
fn a_starter_that_the_mom_has_not_read_is_not_vouched_for() {
    let mut c = torque(&["nodea"], "");
    keep_modes(&mut c);
    let node = &mut c.nodes[0];
    node.try_sh("mpsctl pbs uninstall");
    hang_up(node);
    node.sh("mpsctl pbs uninstall");
    says(&node.sh("mpsctl pbs install"), &["\n    kill -HUP 1\n"]);
    let text = node.sh("mpsctl pbs check");
    assert!(!text.contains("every task has its MPS"), "{text}");
    says(&text, &["WARN  the mom has not read", "(kill -HUP 1)"]);
    let job = begun(&mut c, "MPS=true");
    says(&c.told(&job), &["the mom has not read the $job_starter"]);
    bare(&task_client(&mut c, &job, 0, ""));
    c.end(&job, 0);
    c.nodes[0].sh(&format!("printf '{STRICT}' >>/etc/mpsd/mpsd.toml"));
    c.nodes[0].sh_exits(2, "mpsctl pbs check");
    let job = c.job("MPS=true");
    assert_eq!(c.begin(&job), Verdict::Aborted);
    hang_up(&mut c.nodes[0]);
    checks(&mut c, 0, &["every task has its MPS"]);
    begins(&mut c, &job);
    attached_without_limits(&task_client(&mut c, &job, 0, ""), &job);
    c.end(&job, 0);
}

#[test]
fn what_the_starter_cannot_read_stops_no_task() {
    let mut c = torque(&["nodea"], "");
    keep_modes(&mut c);
    let (plain, asking) = (c.job("proj1"), begun(&mut c, "MPS=true"));
    let clear = "rm -f /var/spool/torque/spool/*";
    for dir in ["/run/mpsd", "/run/mpsd/jobs"] {
        c.nodes[0].sh(&format!("chmod 0775 {dir}; {clear}"));
        for (job, lines) in [(&plain, 0), (&asking, 1)] {
            bare(&task_client(&mut c, job, 0, ""));
            let told = c.told(job);
            assert_eq!(told.lines().count(), lines, "{dir}: {told}");
            assert!(lines == 0 || told.contains("without MPS"), "{told}");
        }
        c.nodes[0].sh(&format!("chmod 0711 {dir}"));
    }
    let record = format!("/run/mpsd/jobs/{}/record", asking.id);
    c.nodes[0].sh(&format!("chmod 0600 {record}; {clear}"));
    bare(&task_client(&mut c, &asking, 0, ""));
    says_once(&c.told(&asking), &[&record]);
    // A command that names mpsctl itself still fails.
    let words = format!("/usr/bin/mpsctl exec -- {}", Cluster::client_on("nodea"));
    let run = c.user_process(&asking, 0, &words.split(' ').collect::<Vec<_>>());
    assert_eq!(c.nodes[0].run(run), Ended::Code(2));
    c.nodes[0].sh(&format!("chmod 0644 {record}"));
    attached_without_limits(&task_client(&mut c, &asking, 0, ""), &asking);
    c.end(&asking, 0);
}

#[test]
fn the_starter_stays_while_a_line_of_the_configuration_names_it() {
    let mut c = torque(&["nodea"], "");
    let node = &mut c.nodes[0];
    for line in [
        format!("$job_starter\\t{STARTER}"),
        format!("$job_starter  {STARTER}"),
        format!("$Job_Starter {STARTER} --with words"),
    ] {
        node.sh("mpsctl pbs install");
        node.sh(&format!("printf '# caf\\351\\n{line}\\n' >{CONFIG}"));
        node.sh_exits(1, "mpsctl pbs uninstall");
        assert!(node.read(STARTER).is_some(), "{line}");
        node.sh(&format!("printf '# caf\\351\\n' | cmp - {CONFIG}"));
        node.sh("mpsctl pbs uninstall");
        assert_eq!(node.read(STARTER), None);
    }
    node.sh("mpsctl pbs install");
    node.sh(&format!(
        "grep -q '^$job_starter {STARTER}$' {CONFIG} && grep -qa caf {CONFIG}"
    ));
    node.sh(&format!("mv {CONFIG} /root/config && mkdir {CONFIG}"));
    let (code, text) = node.try_sh("mpsctl pbs uninstall");
    assert_ne!(code, Ended::Code(0), "{text}");
    says(&text, &[&format!("cannot read '{CONFIG}'")]);
    assert!(node.read(STARTER).is_some());
}

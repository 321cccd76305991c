//! Our `$job_starter` in a mom's configuration: where it is not put, how it goes, and what it does to no job.

use crate::assertions::{attached, bare, client_words, shell_ends, torque_client};
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::node::MomNode;
use tests::mom::torque::hang_up;
use tests::mom::wire::Ended;

const CONFIG: &str = "/var/spool/torque/mom_priv/config";
const STARTER: &str = "/var/spool/torque/mom_priv/mpsd-job-starter";

fn cluster() -> Cluster {
    Cluster::new(Product::Torque, &["nodea"])
}

/// Takes the starter out of the configuration and adds `lines` to it.
fn instead(node: &mut MomNode, lines: &str) {
    node.try_sh("mpsctl pbs uninstall; mpsctl pbs uninstall");
    node.write(CONFIG, &format!("$logevent 255\n{lines}\n"), 0o644);
    assert_eq!(node.read(STARTER), None);
}

/// `mpsctl pbs install` leaves the mom without our starter, and says `why`.
fn is_left_out(node: &mut MomNode, why: &str) -> String {
    let before = node.read(CONFIG);
    let (code, text) = node.try_sh("mpsctl pbs install");
    assert_eq!(code, Ended::Code(1), "{text}");
    assert!(text.contains(why), "{why}: {text}");
    assert!(!text.contains("exec --starter"), "no advice to chain it: {text}");
    assert_eq!(node.read(CONFIG), before);
    assert_eq!(node.read(STARTER), None);
    text
}

#[test]
fn a_mom_that_would_run_it_as_root_is_given_no_starter() {
    let mut c = cluster();
    for word in ["true", "1", "maybe", ""] {
        let node = &mut c.nodes[0];
        instead(node, &format!("$job_starter_run_privileged {word}"));
        is_left_out(node, "has $job_starter_run_privileged");
    }
    // The mom starts tasks itself, as the job's user: only TM's own are not attached, and the job is told.
    let job = Job::new("60.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let told = c.output(&job, 0).1;
    assert!(told.contains("has $job_starter_run_privileged"), "{told}");
    c.torque_end(&job, 0);
    let node = &mut c.nodes[0];
    node.write("/usr/local/sbin/starter", "#!/bin/sh\nexec \"$@\"\n", 0o755);
    let (starter, privileged) = (
        "$job_starter /usr/local/sbin/starter",
        "$job_starter_run_privileged yes",
    );
    for lines in [
        format!("{starter}\n{privileged}"),
        format!("{privileged}\n{starter}"),
    ] {
        instead(node, &lines);
        is_left_out(node, "has $job_starter_run_privileged");
    }
    instead(
        node,
        "$job_starter_run_privileged true\n$job_starter_run_privileged false",
    );
    node.sh("mpsctl pbs install");
    assert!(node.read(STARTER).is_some());
}

#[test]
fn a_starter_that_would_run_as_root_is_refused() {
    let mut c = cluster();
    let own = c.nodes[0].read(CONFIG).unwrap();
    let as_root = [
        "USER=alice LOGNAME=alice",
        "USER=root LOGNAME=root",
        "env -u USER -u LOGNAME",
    ];
    let privileged = "$job_starter_run_privileged true\n";
    for text in [format!("{own}{privileged}"), format!("{privileged}{own}")] {
        let node = &mut c.nodes[0];
        node.write(CONFIG, &text, 0o644);
        let (code, text) = node.try_sh("mpsctl pbs check");
        assert_eq!(code, Ended::Code(1));
        assert!(text.contains("has $job_starter_run_privileged"), "{text}");
        for names in as_root {
            let (code, text) = node.try_sh(&format!("{names} {STARTER} id -u"));
            assert_eq!(code, Ended::Code(1), "{names}: {text}");
            assert!(text.contains("it runs as root"), "{text}");
            assert!(!text.lines().any(|line| line == "0"), "{text}");
        }
        let job = Job::new("60.vm", "MPS=true");
        assert_eq!(c.torque_begin(&job), Verdict::Aborted);
    }
    let node = &mut c.nodes[0];
    let (code, text) = node.try_sh(&format!(
        "mv /usr/bin/mpsctl /root; {STARTER} id -u; code=$?; mv /root/mpsctl /usr/bin; exit $code"
    ));
    assert_eq!(code, Ended::Code(127), "{text}");
    node.sh(&format!("rm {CONFIG}"));
    let root = format!("USER=root LOGNAME=root {STARTER} id -u");
    assert_eq!(node.try_sh(&root).0, Ended::Code(1), "nobody knows");
    node.write(CONFIG, &own, 0o644);
    let (code, text) = node.try_sh(&root);
    assert_eq!((code, text.trim()), (Ended::Code(0), "0"), "root's own job");
    assert_eq!(
        node.try_sh(&format!("USER=alice {STARTER} id -u")).0,
        Ended::Code(1)
    );
}

#[test]
fn a_starter_that_the_mom_has_not_read_is_not_vouched_for() {
    let mut c = cluster();
    let node = &mut c.nodes[0];
    node.try_sh("mpsctl pbs uninstall");
    hang_up(node);
    node.sh("mpsctl pbs uninstall");
    let text = node.sh("mpsctl pbs install");
    assert!(text.contains("\n    kill -HUP 1\n"), "{text}");
    let text = node.sh("mpsctl pbs check");
    assert!(!text.contains("every task has its MPS"), "{text}");
    assert!(
        text.contains("WARN  the mom has not read") && text.contains("(kill -HUP 1)"),
        "{text}"
    );
    let job = Job::new("64.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let told = c.output(&job, 0).1;
    assert!(told.contains("the mom has not read the $job_starter"), "{told}");
    torque_client(&mut c, &job, 0, "", &[]);
    bare(&c.records(0)[0]);
    c.torque_end(&job, 0);
    c.nodes[0].sh("cp -p /etc/mpsd/mpsd.toml /root; printf '[pbs]\\nunattached_tasks = \"refuse\"\\n' >>/etc/mpsd/mpsd.toml");
    assert_eq!(c.nodes[0].try_sh("mpsctl pbs check").0, Ended::Code(1));
    let job = Job::new("65.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Aborted);
    hang_up(&mut c.nodes[0]);
    let text = c.nodes[0].sh("mpsctl pbs check");
    assert!(text.contains("every task has its MPS"), "{text}");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    torque_client(&mut c, &job, 0, "", &[]);
    attached(&c.records(0)[0], &job, "nodea", 132, None);
    c.torque_end(&job, 0);
}

#[test]
fn what_cannot_be_read_stops_no_task() {
    let mut c = cluster();
    let (plain, asked) = (Job::new("61.vm", "proj1"), Job::new("62.vm", "MPS=true"));
    assert_eq!(c.torque_begin(&asked), Verdict::Runs);
    let record = "/run/mpsd/jobs/62.vm/record";
    for (breakage, mend) in [
        ("chmod 0775 /run/mpsd", "chmod 0711 /run/mpsd"),
        ("chmod 0775 /run/mpsd/jobs", "chmod 0711 /run/mpsd/jobs"),
    ] {
        c.nodes[0].sh(breakage);
        for job in [&plain, &asked] {
            c.nodes[0].sh("rm -f /var/spool/torque/spool/*");
            torque_client(&mut c, job, 0, "", &[]);
            bare(&c.records(0)[0]);
            let told = c.output(job, 0).1;
            let lines = usize::from(job.id == asked.id);
            assert_eq!(told.lines().count(), lines, "{breakage}: {told}");
            assert!(lines == 0 || told.contains("without MPS"), "{told}");
        }
        c.nodes[0].sh(mend);
    }
    c.nodes[0].sh(&format!(
        "ls {record}; chmod 0600 {record}; rm -f /var/spool/torque/spool/*"
    ));
    torque_client(&mut c, &asked, 0, "", &[]);
    bare(&c.records(0)[0]);
    let told = c.output(&asked, 0).1;
    assert!(told.contains(record) && told.lines().count() == 1, "{told}");
    // Who asks for MPS by its name is still told that there is none.
    let words = format!("/usr/bin/mpsctl exec -- {}", client_words("nodea"));
    let words: Vec<&str> = words.split(' ').collect();
    let run = c.user_process(&asked, 0, &words);
    assert_eq!(c.nodes[0].run(run), Ended::Code(2));
    c.nodes[0].sh(&format!("chmod 0644 {record}"));
    torque_client(&mut c, &asked, 0, "", &[]);
    attached(&c.records(0)[0], &asked, "nodea", 132, None);
    c.torque_end(&asked, 0);
}

#[test]
fn only_the_jobs_own_shell_becomes_a_login_shell() {
    let mut c = cluster();
    c.nodes[0].sh("cp /bin/sh /bin/oddsh");
    let job = Job::new("63.vm", "proj1");
    assert_eq!(c.torque_begin(&job), Verdict::Runs);
    let name = "tr '\\0' ' ' </proc/$$/cmdline; exit 7";
    for (shell, users, task, arg0) in [
        ("/bin/sh", "/bin/sh", "1", "-sh "),
        ("/bin/sh", "/bin/sh", "2", "/bin/sh "),
        ("/bin/oddsh", "/bin/oddsh", "1", "-oddsh "),
        ("/bin/oddsh", "/bin/oddsh", "2", "/bin/oddsh "),
        ("/bin/oddsh", "/bin/sh", "1", "/bin/oddsh "),
    ] {
        c.nodes[0].sh("rm -f /var/spool/torque/spool/*");
        let mut run = c.torque_shell(&job, name);
        shell.clone_into(run.argv.last_mut().unwrap());
        run.env.insert("SHELL".into(), users.into());
        run.env.insert("PBS_TASKNUM".into(), task.into());
        shell_ends(&mut c, run, &job, 7);
        assert_eq!(c.output(&job, 0), (arg0.into(), String::new()), "{shell} {task}");
    }
}

#[test]
fn a_mom_that_starts_its_shells_otherwise_keeps_them() {
    let mut c = cluster();
    let node = &mut c.nodes[0];
    for (line, name) in [
        ("$source_login_batch false", "$source_login_batch"),
        (
            "$Source_Login_Interactive\toff # as ever",
            "$source_login_interactive",
        ),
        ("$preexec /usr/local/bin/wrap", "$preexec"),
    ] {
        instead(node, line);
        let text = is_left_out(node, name);
        assert!(text.contains("outside MPS"), "{text}");
    }
    instead(node, "$source_login_batch true");
    node.sh("mpsctl pbs install");
    assert!(node.read(STARTER).is_some());
}

#[test]
fn no_starter_is_set_where_users_cannot_reach_it() {
    let mut c = cluster();
    let node = &mut c.nodes[0];
    instead(node, "");
    node.sh("chmod 0750 /var/spool/torque/mom_priv");
    let text = is_left_out(node, "users may not pass '/var/spool/torque/mom_priv'");
    assert!(
        !text.contains("/usr/libexec"),
        "a package takes that with it: {text}"
    );
    assert!(text.contains("outside MPS"), "{text}");
}

#[test]
fn the_file_stays_while_a_line_names_it() {
    let mut c = cluster();
    let node = &mut c.nodes[0];
    let lines = [
        format!("$job_starter\\t{STARTER}"),
        format!("$job_starter  {STARTER}"),
        format!("$Job_Starter {STARTER} --with words"),
    ];
    for line in lines {
        node.sh("mpsctl pbs install");
        node.sh(&format!("printf '# caf\\351\\n{line}\\n' >{CONFIG}"));
        assert_eq!(node.try_sh("mpsctl pbs uninstall").0, Ended::Code(1));
        assert!(
            node.read(STARTER).is_some(),
            "the mom still starts tasks through it: {line}"
        );
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
    assert!(text.contains(&format!("cannot read '{CONFIG}'")), "{text}");
    assert!(node.read(STARTER).is_some());
}

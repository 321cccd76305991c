//! `mpsctl pbs install | uninstall | check`, and what a shell makes of `mpsctl env`.

use crate::jobs::{
    attached_without_limits, begins, begun, checks, client, on_both, openpbs, root, says, torque,
};
use std::time::Instant;
use tests::mom::cluster::{Job, Product};
use tests::mom::torque::hang_up;
use tests::mom::wire::{Ended, Run};

#[test]
fn a_prologue_of_the_site_is_never_touched() {
    let queue = "[pbs]\nauto_queues = [\"gpus\"]\n";
    let mut c = torque(&["nodea"], queue);
    let node = &mut c.nodes[0];
    node.sh("mpsctl pbs uninstall; mpsctl pbs uninstall");
    let file = "/var/spool/torque/mom_priv/prologue";
    let left = node.sh("ls /var/spool/torque/mom_priv | grep logue; true");
    assert_eq!(left, "");
    let own = "#!/bin/sh\necho a script of the site\n";
    node.write(file, own, 0o500);
    let text = node.sh_exits(1, "mpsctl pbs install");
    says(&text, &["is the site's own and stays; add to it:"]);
    assert_eq!(node.read(file).unwrap(), own);
    let words = ["prologue' is the site's own and does not call us"];
    checks(&mut c, 2, &words);
    // The printed lines work in the place that they name.
    let (_, lines) = text.split_once("add to it:\n").unwrap();
    let lines: String = lines.split_inclusive('\n').take(2).collect();
    let chained = format!("{own}{lines}");
    c.nodes[0].write(file, &chained.replace("--queue", "--node"), 0o500);
    let told = ["lacks our lines for auto_queues"];
    checks(&mut c, 0, &told);
    root(
        &mut c,
        1,
        "mpsctl pbs install",
        &["replace our lines in it by:"],
    );
    c.nodes[0].write(file, &chained, 0o500);
    let checked = checks(&mut c, 0, &[]);
    assert!(!checked.contains(told[0]), "{checked}");
    let job = begun(&mut c, "MPS=true");
    assert_eq!(c.gpus[0].modes()[0], "exclusive_process");
    c.end(&job, 0);
    assert_eq!(c.gpus[0].modes()[0], "default");
    let job = c.job("").on(&[&[0, 1]]).in_queue("gpus");
    begins(&mut c, &job);
    attached_without_limits(&client(&mut c, &job), &job);
    c.end(&job, 0);
    root(
        &mut c,
        0,
        "mpsctl pbs install",
        &["is the site's own and calls us"],
    );
    c.nodes[0].sh("mpsctl pbs uninstall; true");
    assert_eq!(c.nodes[0].read(file).unwrap(), chained);
}

#[test]
fn check_names_the_operator_line_and_a_short_alarm() {
    let mut c = torque(&["nodea"], "");
    c.serve("operators", "root@elsewhere\n");
    c.nodes[0].sh("echo '$prologalarm 25' >>/var/spool/torque/mom_priv/config");
    let words = [
        "FAIL  root@nodea may not take the node offline: qmgr -c 'set server operators += root@nodea'",
        "FAIL  the mom kills a prologue after 15 s (Torque fires 10 s before $prologalarm)",
        "set '$prologalarm 36'",
    ];
    checks(&mut c, 2, &words);
    c.nodes[0].sh("sed -i 's/$prologalarm 25/$prologalarm 36/' /var/spool/torque/mom_priv/config");
    c.serve("operators", "root@*\n");
    checks(&mut c, 0, &[]);
}

#[test]
fn the_hook_needs_a_manager_and_is_read_back() {
    let mut c = openpbs(&["nodea"], "");
    checks(&mut c, 0, &[]);
    c.nodes[0].sh("mpsctl pbs uninstall");
    assert_eq!(c.served("hooks/mpsd.HK") + &c.served("hooks/mpsd.PY"), "");
    assert_eq!(c.nodes[0].read("/var/lib/mpsd/mpsd.py"), None);
    let words = ["FAIL  this mom has no hook 'mpsd': jobs run without MPS"];
    checks(&mut c, 2, &words);
    c.serve("operators", "root@elsewhere\n");
    let words = [
        "qmgr -c 'import hook mpsd application/x-python default /var/lib/mpsd/mpsd.py'",
        "qmgr -c 'create resource mps type=string,flag=m'",
    ];
    root(&mut c, 1, "mpsctl pbs install", &words);
}

/// A deleted hook keeps its name until every mom has removed its copy.
#[test]
fn a_hook_is_installed_again_at_once_after_its_removal() {
    let mut c = openpbs(&["nodea"], "");
    c.nodes[0].sh("mpsctl pbs uninstall");
    c.serve("hooks-pending", "2");
    root(&mut c, 0, "mpsctl pbs install", &["imported hook 'mpsd'"]);
    checks(&mut c, 0, &[]);
    c.nodes[0].sh("mpsctl pbs uninstall");
    c.serve("hooks-pending", "1000");
    let started = Instant::now();
    root(
        &mut c,
        1,
        "mpsctl pbs install",
        &["a mom that is down keeps its copy"],
    );
    assert!(started.elapsed().as_secs() < 60, "bounded");
}

/// The documented two lines, one after the other.
#[test]
fn install_waits_until_the_mom_here_has_the_hook() {
    let mut c = openpbs(&["nodea"], "");
    c.nodes[0].sh("mpsctl pbs uninstall");
    c.serve("hooks-late", "4");
    root(&mut c, 0, "mpsctl pbs install", &["the mom here has it"]);
    checks(&mut c, 0, &["OK    hook 'mpsd' is enabled"]);
    c.serve("hooks-late", "90");
    c.nodes[0].sh("mpsctl pbs uninstall; rm /var/spool/pbs/mom_priv/hooks/mpsd.*");
    let started = Instant::now();
    let words = ["the mom here has not got the hook within 20 s"];
    root(&mut c, 1, "mpsctl pbs install", &words);
    assert!(started.elapsed().as_secs() < 40, "bounded");
}

/// A mom may lack the hook, or keep an older one.
#[test]
fn check_finds_a_mom_that_has_no_hook_or_an_older_one() {
    let mut c = openpbs(&["nodea"], "");
    // The mom's copy counts for its jobs, and root of a node may not be allowed to ask the server.
    c.serve("hooks-denied", "yes");
    let hooks = "/var/spool/pbs/mom_priv/hooks";
    let copy = format!("{hooks}/mpsd.PY");
    let text = checks(&mut c, 0, &["OK    hook 'mpsd' is enabled"]);
    assert!(!text.contains("another version"), "{text}");
    // A copy that an earlier installation filled in is older too.
    for change in ["sed -i 's/^LIMIT_S = .*/LIMIT_S = 7/'", "sed -i 1,999d"] {
        c.nodes[0].sh(&format!("{change} {copy}"));
        let line = format!("WARN  '{copy}' is another version's hook than the server's");
        checks(&mut c, 0, &[&line]);
    }
    c.nodes[0].sh("rm /var/lib/mpsd/mpsd.py");
    let line = format!("WARN  '{copy}' is another version's hook than this mpsctl's");
    checks(&mut c, 0, &[&line]);
    // A mom's file leaves out values that are the default.
    let attributes =
        "hook_name=mpsd\nevent=execjob_begin,execjob_launch,execjob_end,execjob_abort\norder=110\n";
    for (more, code, line) in [
        ("", 2, "FAIL  hook 'mpsd' is killed after 30 s"),
        (
            "alarm=60\nenabled=false\n",
            2,
            "FAIL  hook 'mpsd' is not enabled",
        ),
        ("alarm=60\n", 0, "OK    hook 'mpsd' is enabled"),
    ] {
        let text = format!("{attributes}{more}");
        c.nodes[0].write(&format!("{hooks}/mpsd.HK"), &text, 0o600);
        checks(&mut c, code, &[line]);
    }
    c.nodes[0].sh(&format!("rm {copy}"));
    checks(&mut c, 2, &["FAIL  this mom has no hook 'mpsd'"]);
    c.nodes[0].sh("rm /var/spool/pbs/mom_priv/mom.lock");
    checks(&mut c, 0, &["WARN  no mom runs here"]);
}

/// A configuration manager runs it repeatedly.
#[test]
fn install_writes_only_what_is_not_so_already() {
    on_both(&["nodea"], "", |c| {
        let home = c.product.home();
        let stat = format!("stat -c '%n %i %y' {home}/mom_priv/* /var/lib/mpsd/*");
        let before = c.nodes[0].try_sh(&stat);
        let text = c.nodes[0].sh("mpsctl pbs install");
        assert!(!text.contains("wrote '"), "{text}");
        assert!(!text.contains("imported hook"), "{text}");
        assert_eq!(c.nodes[0].try_sh(&stat), before);
        // It repairs a changed file, and says so.
        let file = match c.product {
            Product::Torque => "/var/spool/torque/mom_priv/mpsd-job-starter",
            Product::OpenPbs => "/var/lib/mpsd/mpsd.py",
        };
        c.nodes[0].sh(&format!("echo '# older' >>{file}"));
        root(c, 0, "mpsctl pbs install", &["wrote '"]);
    });
}

#[test]
fn install_imports_a_hook_that_was_changed() {
    let mut c = openpbs(&["nodea"], "");
    for (from, to) in [
        ("alarm = 60", "alarm = 30"),
        ("enabled = true", "enabled = false"),
        ("execjob_abort", "execjob_prologue"),
    ] {
        let text = c.served("hooks/mpsd.HK");
        says(&text, &[from]);
        c.serve("hooks/mpsd.HK", &text.replace(from, to));
        root(&mut c, 0, "mpsctl pbs install", &["imported hook"]);
        says(&c.served("hooks/mpsd.HK"), &[from]);
    }
    c.serve("hooks/mpsd.PY", "import pbs\n");
    root(&mut c, 0, "mpsctl pbs install", &["imported hook"]);
}

/// A stock server counts GPUs and names none.
#[test]
fn check_warns_unless_something_names_the_gpus() {
    let mut c = openpbs(&["nodea"], "");
    let copies = "/var/spool/pbs/mom_priv/hooks/pbs_cgroups";
    let (on, off) = ("alarm=90\n", "enabled=false\n");
    let devices = |on: bool| {
        format!("{{\"discover_gpus\": true, \"cgroup\": {{\"devices\": {{\"enabled\": {on}}}}}}}")
    };
    let none = "WARN  there is no hook pbs_cgroups: PBS counts GPUs";
    let unknown = "WARN  the configuration of pbs_cgroups is not known";
    let names = "OK    pbs_cgroups names each job's GPUs";
    for (hook, config, line) in [
        (None, devices(true), none),
        (Some(off), devices(true), "WARN  pbs_cgroups is not enabled"),
        (
            Some(on),
            devices(false),
            "WARN  pbs_cgroups leaves GPUs out",
        ),
        (Some(on), "{".to_owned(), unknown),
        (Some(on), devices(true), names),
    ] {
        if let Some(hook) = hook {
            c.nodes[0].write(&format!("{copies}.HK"), hook, 0o600);
            c.nodes[0].write(&format!("{copies}.PY"), "", 0o600);
        }
        c.nodes[0].write(&format!("{copies}.CF"), &config, 0o600);
        let advice = "qmgr -c 'set hook pbs_cgroups enabled = True'";
        let text = checks(&mut c, 0, &[line]);
        assert_eq!(text.contains(advice), line != names, "{text}");
    }
    c.nodes[0].write(&format!("{copies}.HK"), off, 0o600);
    c.nodes[0].sh("echo 'gpus_unknown = \"whole-node-if-exclusive\"' >>/etc/mpsd/mpsd.toml");
    let words = [
        "WARN  pbs_cgroups is not enabled: PBS counts GPUs",
        "gpus_unknown of mpsd.toml decides only for a job that asks for no ngpus",
    ];
    says(&c.nodes[0].try_sh("mpsctl pbs check").1, &words);
}

/// Without our files the daemon of a running job and its exclusive GPU would stay until the timer
/// runs.
#[test]
fn uninstall_names_the_jobs_that_run_and_waits_or_is_forced() {
    on_both(&["nodea"], "", |c| {
        let found = match c.product {
            Product::Torque => "removed",
            Product::OpenPbs => "cannot be seen from here",
        };
        let job = begun(c, "MPS=true");
        for (option, least) in [("", 0), ("--wait 1", 1)] {
            let started = Instant::now();
            let uninstall = format!("mpsctl pbs uninstall {option}");
            root(c, 1, &uninstall, &["nothing removed", &job.id]);
            assert!(started.elapsed().as_secs() >= least);
        }
        checks(c, 0, &[]);
        c.end(&job, 0);
        assert_eq!(c.gpus[0].modes()[0], "default");
        begins(c, &job);
        let (_, text) = c.nodes[0].try_sh("mpsctl pbs uninstall --force");
        says(&text, &[&job.id, "mpsd-reconcile.timer", found]);
        let (scheduler, id) = (c.product.name(), &job.id);
        c.nodes[0].sh(&format!(
            "mps-epilogue --scheduler {scheduler} -- {id} alice alice || true"
        ));
    });
}

#[test]
fn check_says_what_a_torque_node_lacks_until_it_lacks_nothing() {
    let mut c = torque(&["nodea"], "");
    let node = &mut c.nodes[0];
    node.try_sh("mpsctl pbs uninstall");
    hang_up(node);
    node.sh("mpsctl pbs uninstall");
    let text = checks(&mut c, 2, &[]);
    let missing =
        |line: &&str| line.starts_with("FAIL  no '") && line.contains("jobs run without MPS");
    assert_eq!(text.lines().filter(missing).count(), 4, "{text}");
    // A health check takes the node out: nothing else tells that its jobs run without MPS.
    let text = c.nodes[0].sh_exits(2, "mpsctl doctor --own --problems");
    assert_eq!(text.lines().filter(missing).count(), 4, "{text}");
    c.nodes[0].sh("mpsctl pbs install");
    checks(&mut c, 0, &["WARN  the mom has not read"]);
    hang_up(&mut c.nodes[0]);
    let text = checks(&mut c, 0, &[]);
    // The simulated node has no systemd.
    let left = text.lines().filter(|line| !line.starts_with("OK"));
    let left: Vec<&str> = left.collect();
    let systemd = |line: &str| line.starts_with("WARN  systemd does not run here");
    assert!(matches!(left[..], [line] if systemd(line)), "{text}");
}

#[test]
fn every_shell_gets_the_environment_and_nothing_outside_a_job() {
    let mut c = torque(&["nodea"], "");
    let outside = "mpsctl env; mpsctl env --shell csh; PBS_JOBID=99.vm mpsctl env";
    assert_eq!(c.nodes[0].sh(outside), "");
    let forged = c.nodes[0].sh("PBS_JOBID=../x sh -lc 'echo fine'");
    assert_eq!(forged.lines().last(), Some("fine"));
    let id = "41.a-server-whose-name-is-too-long-for-a-directory.example.org";
    let job = Job::new(id, "MPS=true");
    begins(&mut c, &job);
    let record = client(&mut c, &job);
    assert_eq!(record["under_mps"], true, "{record}");
    for (shell, option, setting) in [
        ("/bin/bash", "-lc", ""),
        ("/bin/dash", "-c", "eval \"$(mpsctl env)\"; "),
        ("/bin/zsh", "-c", "eval \"$(mpsctl env)\"; "),
        ("/bin/tcsh", "-c", "eval `mpsctl env --shell csh`; "),
        ("/bin/tcsh", "-c", "source /etc/profile.d/mpsd.csh; "),
    ] {
        if !std::path::Path::new(shell).exists() {
            eprintln!("not tried: {shell} is not installed on this machine");
            continue;
        }
        c.nodes[0].sh("rm -f /var/spool/torque/spool/*");
        let line = format!("{setting}echo $CUDA_MPS_PIPE_DIRECTORY");
        let run = Run {
            session: false,
            ..c.user_process(&job, 0, &[shell, option, &line])
        };
        let ended = c.nodes[0].run(run);
        let (out, err) = c.output(&job, 0);
        assert_eq!(ended, Ended::Code(0), "{shell} {out} {err}");
        assert_eq!(out.trim(), record["pipe_directory"], "{shell}");
        assert_eq!(err, "", "{shell}");
    }
    c.end(&job, 0);
}

//! `mpsctl pbs install | uninstall | check`, and what a shell reads of `mpsctl env`.

use crate::assertions::attached;
use tests::mom::cluster::{Cluster, Job, Product, Verdict};
use tests::mom::wire::{Ended, Run};

#[test]
fn a_foreign_prologue_is_never_touched() {
    let mut c = Cluster::new(Product::Torque, &["nodea"]);
    let node = &mut c.nodes[0];
    node.sh("mpsctl pbs uninstall; mpsctl pbs uninstall");
    let home = "/var/spool/torque/mom_priv";
    assert_eq!(
        node.sh(&format!("ls {home} | grep logue; true")),
        "",
        "uninstall takes back what install wrote"
    );
    let own = "#!/bin/sh\necho a script of the site\n";
    node.write(&format!("{home}/prologue"), own, 0o500);
    let (code, text) = node.try_sh("mpsctl pbs install");
    assert_eq!(code, Ended::Code(1), "something is left to do by hand");
    assert!(text.contains("is the site's own and stays; add to it:"), "{text}");
    assert!(
        text.contains("/usr/bin/mps-prologue --scheduler torque \"$@\""),
        "{text}"
    );
    assert_eq!(node.read(&format!("{home}/prologue")).unwrap(), own);
    let (code, text) = node.try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(1));
    assert!(
        text.contains("prologue' is the site's own and does not call us"),
        "{text}"
    );
    // The printed line, put where it says, works.
    let line = text_line(node.try_sh("mpsctl pbs install").1.as_str());
    node.write(&format!("{home}/prologue"), &format!("{own}{line}\n"), 0o500);
    assert_eq!(
        node.try_sh("mpsctl pbs check").0,
        Ended::Code(0),
        "{}",
        node.try_sh("mpsctl pbs check").1
    );
    let job = Job::new("40.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    assert_eq!(c.gpus[0].modes()[0], "exclusive_process");
    c.torque_end(&job, 0);
    assert_eq!(c.gpus[0].modes()[0], "default");
    // Nothing is left to do by hand any more.
    let text = c.nodes[0].sh("mpsctl pbs install");
    assert!(text.contains("is the site's own and calls us"), "{text}");
    c.nodes[0].sh("mpsctl pbs uninstall; true");
    assert_eq!(
        c.nodes[0].read(&format!("{home}/prologue")).unwrap(),
        format!("{own}{line}\n")
    );
}

fn text_line(text: &str) -> String {
    text.lines()
        .find(|line| line.contains("mps-prologue"))
        .unwrap()
        .trim()
        .to_owned()
}

#[test]
fn check_names_the_operator_line_and_a_short_alarm() {
    let mut c = Cluster::new(Product::Torque, &["nodea"]);
    std::fs::write(c.server().join("operators"), "root@elsewhere\n").unwrap();
    c.nodes[0].sh("echo '$prologalarm 25' >>/var/spool/torque/mom_priv/config");
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(1));
    assert!(
        text.contains(
            "FAIL  root@nodea may not take the node offline: qmgr -c 'set server operators += root@nodea'"
        ),
        "{text}"
    );
    assert!(
        text.contains("FAIL  the mom kills a prologue after 15 s (Torque fires 10 s before $prologalarm)"),
        "{text}"
    );
    assert!(text.contains("set '$prologalarm 36'"), "{text}");
    c.nodes[0].sh("sed -i 's/$prologalarm 25/$prologalarm 36/' /var/spool/torque/mom_priv/config");
    std::fs::write(c.server().join("operators"), "root@*\n").unwrap();
    assert_eq!(c.nodes[0].try_sh("mpsctl pbs check").0, Ended::Code(0));
}

#[test]
fn the_hook_needs_a_manager_and_is_read_back() {
    let mut c = Cluster::new(Product::OpenPbs, &["nodea"]);
    assert_eq!(
        c.nodes[0].try_sh("mpsctl pbs check").0,
        Ended::Code(0),
        "{}",
        c.nodes[0].try_sh("mpsctl pbs check").1
    );
    c.nodes[0].sh("mpsctl pbs uninstall");
    assert!(!c.server().join("hooks/mpsd.HK").exists() && !c.server().join("hooks/mpsd.PY").exists());
    assert_eq!(c.nodes[0].read("/var/lib/mpsd/mpsd.py"), None);
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(1), "jobs run without MPS: {text}");
    assert!(
        text.contains("FAIL  PBS has no hook 'mpsd': jobs run without MPS"),
        "{text}"
    );
    // The classic scripts do without it.
    c.nodes[0].sh("mpsctl pbs install --classic; mpsctl pbs check; mpsctl pbs uninstall");
    std::fs::write(c.server().join("operators"), "root@elsewhere\n").unwrap();
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs install");
    assert_eq!(code, Ended::Code(1));
    assert!(
        text.contains("qmgr -c 'import hook mpsd application/x-python default /var/lib/mpsd/mpsd.py'"),
        "{text}"
    );
    assert!(
        text.contains("qmgr -c 'create resource mps type=string,flag=m'"),
        "{text}"
    );
}

/// A deleted hook keeps its name until every mom has removed its copy.
#[test]
fn a_hook_is_installed_again_at_once_after_its_removal() {
    let mut c = Cluster::new(Product::OpenPbs, &["nodea"]);
    c.nodes[0].sh("mpsctl pbs uninstall");
    std::fs::write(c.server().join("hooks-pending"), "2").unwrap();
    let text = c.nodes[0].sh("mpsctl pbs install");
    assert!(text.contains("imported hook 'mpsd'"), "{text}");
    assert_eq!(c.nodes[0].try_sh("mpsctl pbs check").0, Ended::Code(0));
    // With a mom that is down it stays so.
    c.nodes[0].sh("mpsctl pbs uninstall");
    std::fs::write(c.server().join("hooks-pending"), "1000").unwrap();
    let started = std::time::Instant::now();
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs install");
    assert!(started.elapsed().as_secs() < 60, "bounded");
    assert_eq!(code, Ended::Code(1), "{text}");
    assert!(text.contains("a mom that is down keeps its copy"), "{text}");
}

/// On the server's own host, where root may ask the server as well, the copy of the mom beside it decides.
#[test]
fn check_finds_a_mom_that_has_no_hook_or_keeps_an_older_one() {
    let mut c = Cluster::new(Product::OpenPbs, &["nodea"]);
    let copy = "/var/spool/pbs/mom_priv/hooks/mpsd.PY";
    let check = |c: &mut Cluster| c.nodes[0].try_sh("mpsctl pbs check");
    let missing = "FAIL  no '/var/spool/pbs/mom_priv/hooks/mpsd.PY': this mom has no hook 'mpsd'";
    assert!(!check(&mut c).1.contains("this mom"), "no mom runs here");
    c.nodes[0].write("/var/spool/pbs/mom_priv/mom.lock", "1\n", 0o600);
    let (code, text) = check(&mut c);
    assert!(code != Ended::Code(0) && text.contains(missing), "{text}");
    c.nodes[0].sh(&format!("cp /var/lib/mpsd/mpsd.py {copy}"));
    let (code, text) = check(&mut c);
    assert!(code == Ended::Code(0) && !text.contains("mpsd.PY'"), "{text}");
    // What was filled in at an earlier installation is older as well.
    c.nodes[0].sh(&format!("sed -i 's/^LIMIT_S = .*/LIMIT_S = 7/' {copy}"));
    let text = check(&mut c).1;
    assert!(
        text.contains(&format!(
            "WARN  '{copy}' is another version's hook than the server's"
        )),
        "{text}"
    );
    c.nodes[0].write(copy, "import pbs\n", 0o600);
    let text = check(&mut c).1;
    assert!(
        text.contains(&format!(
            "WARN  '{copy}' is another version's hook than the server's"
        )),
        "{text}"
    );
    std::fs::write(c.server().join("hooks/mpsd.PY"), "import pbs\n").unwrap();
    let text = check(&mut c).1;
    assert!(
        text.contains(&format!(
            "WARN  '{copy}' is another version's hook than this mpsctl's"
        )),
        "{text}"
    );
}

/// A configuration manager runs it each time, and changes nothing where nothing is to be changed.
#[test]
fn install_writes_only_what_is_not_so_already() {
    for product in [Product::Torque, Product::OpenPbs] {
        let mut c = Cluster::new(product, &["nodea"]);
        let (said, stat) = (
            "wrote '|imported hook",
            format!("stat -c '%n %i %y' {}/mom_priv/* /var/lib/mpsd/*", product.home()),
        );
        let before = c.nodes[0].try_sh(&stat);
        let text = c.nodes[0].sh("mpsctl pbs install");
        assert!(said.split('|').all(|word| !text.contains(word)), "{text}");
        assert_eq!(c.nodes[0].try_sh(&stat), before);
        // What was changed is put right, and said.
        let hook = c.server().join("hooks/mpsd.HK");
        let (file, word) = match product {
            Product::Torque => ("/var/spool/torque/mom_priv/mpsd-job-starter", "wrote '"),
            Product::OpenPbs => ("/var/lib/mpsd/mpsd.py", "wrote '"),
        };
        c.nodes[0].sh(&format!("echo '# older' >>{file}"));
        assert!(c.nodes[0].sh("mpsctl pbs install").contains(word));
        if product == Product::OpenPbs {
            for (from, to) in [
                ("alarm = 60", "alarm = 30"),
                ("enabled = true", "enabled = false"),
                ("execjob_abort", "execjob_prologue"),
            ] {
                let text = std::fs::read_to_string(&hook).unwrap();
                assert!(text.contains(from), "{text}");
                std::fs::write(&hook, text.replace(from, to)).unwrap();
                assert!(
                    c.nodes[0].sh("mpsctl pbs install").contains("imported hook"),
                    "{from}"
                );
                assert!(std::fs::read_to_string(&hook).unwrap().contains(from));
            }
            std::fs::write(c.server().join("hooks/mpsd.PY"), "import pbs\n").unwrap();
            assert!(c.nodes[0].sh("mpsctl pbs install").contains("imported hook"));
        }
    }
}

/// A stock server counts GPUs: said before the first user is refused.
#[test]
fn check_warns_unless_something_names_the_gpus() {
    let mut c = Cluster::new(Product::OpenPbs, &["nodea"]);
    let on = "    enabled = true\n    alarm = 90\n";
    let devices =
        |on: bool| format!("{{\"discover_gpus\": true, \"cgroup\": {{\"devices\": {{\"enabled\": {on}}}}}}}");
    let names = "OK    pbs_cgroups names each job's GPUs";
    for (hook, config, line) in [
        (
            None,
            devices(true),
            "WARN  there is no hook pbs_cgroups: PBS counts GPUs",
        ),
        (
            Some(on.replace("true", "false")),
            devices(true),
            "WARN  pbs_cgroups is not enabled",
        ),
        (
            Some(on.to_owned()),
            devices(false),
            "WARN  pbs_cgroups leaves GPUs out",
        ),
        (
            Some(on.to_owned()),
            "{".to_owned(),
            "WARN  the configuration of pbs_cgroups is not known",
        ),
        (Some(on.to_owned()), devices(true), names),
    ] {
        let hooks = c.server().join("hooks");
        if let Some(hook) = hook {
            std::fs::write(hooks.join("pbs_cgroups.HK"), hook).unwrap();
        }
        std::fs::write(hooks.join("pbs_cgroups.CF"), config).unwrap();
        let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
        assert_eq!(code, Ended::Code(0), "{text}");
        assert!(text.contains(line), "{line}: {text}");
        assert!(
            line == names || text.contains("qmgr -c 'set hook pbs_cgroups enabled = True'"),
            "{text}"
        );
    }
    // With a hook of pbs_cgroups' events PBS runs no classic epilogue.
    c.nodes[0].sh("mpsctl pbs uninstall; mpsctl pbs install --classic");
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(1), "{text}");
    assert!(
        text.contains("FAIL  pbs_cgroups is enabled, and PBS then runs no classic epilogue"),
        "{text}"
    );
    c.nodes[0].sh("mpsctl pbs uninstall; mpsctl pbs install");
    // Where root may not ask, the mom's own copy tells; its defaults are left out.
    std::fs::write(c.server().join("hooks-denied"), "yes").unwrap();
    let copies = "/var/spool/pbs/mom_priv/hooks";
    for (name, text) in [("mpsd.HK", "alarm=60\n"), ("mpsd.PY", ""), ("pbs_cgroups.PY", "")] {
        c.nodes[0].write(&format!("{copies}/{name}"), text, 0o600);
    }
    c.nodes[0].write(&format!("{copies}/pbs_cgroups.CF"), &devices(true), 0o600);
    for (hook, line) in [
        ("enabled=false\n", "WARN  pbs_cgroups is not enabled"),
        ("alarm=90\n", names),
    ] {
        c.nodes[0].write(&format!("{copies}/pbs_cgroups.HK"), hook, 0o600);
        let text = c.nodes[0].try_sh("mpsctl pbs check").1;
        assert!(text.contains(line), "{line}: {text}");
    }
    c.nodes[0].sh(&format!(
        "echo enabled=false >{copies}/pbs_cgroups.HK; echo 'gpus_unknown = \"whole-node-if-exclusive\"' >>/etc/mpsd/mpsd.toml"
    ));
    let text = c.nodes[0].try_sh("mpsctl pbs check").1;
    assert!(
        text.contains("WARN  pbs_cgroups is not enabled: PBS counts GPUs")
            && text.contains("gpus_unknown of mpsd.toml decides only for a job that asks for no ngpus"),
        "{text}"
    );
}

/// The end of a running job needs our files: without them its daemon and its exclusive GPU would stay until the timer.
#[test]
fn uninstall_names_the_jobs_that_run_and_waits_or_is_forced() {
    for (product, id) in [(Product::Torque, "43.vm"), (Product::OpenPbs, "43.localhost")] {
        let mut c = Cluster::new(product, &["nodea"]);
        let job = Job::new(id, "MPS=true");
        assert_eq!(c.begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
        for options in ["", " --wait 1"] {
            let started = std::time::Instant::now();
            let (code, text) = c.nodes[0].try_sh(&format!("mpsctl pbs uninstall{options}"));
            assert_eq!(code, Ended::Code(1), "{text}");
            assert!(text.contains("nothing removed") && text.contains(id), "{text}");
            assert!(options.is_empty() || started.elapsed().as_secs() >= 1);
        }
        assert_eq!(
            c.nodes[0].try_sh("mpsctl pbs check").0,
            Ended::Code(0),
            "all stands"
        );
        c.end(&job, 0);
        assert_eq!(c.gpus[0].modes()[0], "default");
        assert_eq!(c.begin(&job), Verdict::Runs);
        let (_, text) = c.nodes[0].try_sh("mpsctl pbs uninstall --force");
        assert!(
            text.contains(id) && text.contains("mpsd-reconcile.timer"),
            "{text}"
        );
        let seen = if product == Product::Torque {
            "removed"
        } else {
            "cannot be seen from here"
        };
        assert!(text.contains(seen), "{text}");
        c.nodes[0].sh(&format!(
            "mps-epilogue --scheduler {} -- {id} alice alice || true",
            product.name()
        ));
    }
}

#[test]
fn a_compute_node_looks_at_its_moms_own_copy_of_the_hook() {
    let mut c = Cluster::new(Product::OpenPbs, &["nodea"]);
    std::fs::write(c.server().join("hooks-denied"), "yes").unwrap();
    let hooks = "/var/spool/pbs/mom_priv/hooks";
    let (code, text) = c.nodes[0].try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(1), "{text}");
    assert!(text.contains("FAIL  this mom has no hook 'mpsd'"), "{text}");
    // The values that are the default are not written.
    let copy = "hook_name=mpsd\nevent=execjob_begin,execjob_launch,execjob_end,execjob_abort\norder=110\n";
    c.nodes[0].write(&format!("{hooks}/mpsd.PY"), "import pbs\n", 0o600);
    for (more, code, line) in [
        ("alarm=60\n", 0, "OK    hook 'mpsd' is enabled"),
        ("", 1, "FAIL  hook 'mpsd' is killed after 30 s"),
        ("alarm=60\nenabled=false\n", 1, "FAIL  hook 'mpsd' is not enabled"),
    ] {
        c.nodes[0].write(&format!("{hooks}/mpsd.HK"), &format!("{copy}{more}"), 0o600);
        let (ended, text) = c.nodes[0].try_sh("mpsctl pbs check");
        assert_eq!(ended, Ended::Code(code), "{text}");
        assert!(text.contains(line), "{text}");
    }
    // A mom that is late, or an upgrade after which nobody installed the hook anew.
    c.nodes[0].write(&format!("{hooks}/mpsd.HK"), &format!("{copy}alarm=60\n"), 0o600);
    let late = "WARN  '/var/spool/pbs/mom_priv/hooks/mpsd.PY' is another version's hook";
    let text = c.nodes[0].sh("mpsctl pbs check");
    assert!(text.contains(late), "{text}");
    c.nodes[0].sh(&format!("cp /var/lib/mpsd/mpsd.py {hooks}/mpsd.PY"));
    let text = c.nodes[0].sh("mpsctl pbs check");
    assert!(!text.contains("another version"), "{text}");
}

/// Each state of an installation of Torque, from nothing to what the mom has read; the foreign ones are in `tasks` and above.
#[test]
fn check_says_what_a_torque_node_lacks_until_it_lacks_nothing() {
    let mut c = Cluster::new(Product::Torque, &["nodea"]);
    let node = &mut c.nodes[0];
    node.try_sh("mpsctl pbs uninstall");
    tests::mom::torque::hang_up(node);
    node.sh("mpsctl pbs uninstall");
    let (code, text) = node.try_sh("mpsctl pbs check");
    assert_eq!(code, Ended::Code(1), "{text}");
    let missing = text
        .lines()
        .filter(|line| line.starts_with("FAIL  no '") && line.contains("jobs run without MPS"));
    assert_eq!(missing.count(), 4, "{text}");
    node.sh("mpsctl pbs install");
    let text = node.sh("mpsctl pbs check");
    assert!(text.contains("WARN  the mom has not read"), "{text}");
    tests::mom::torque::hang_up(node);
    let text = node.sh("mpsctl pbs check");
    // The simulated node has no systemd, which is the one thing left to say.
    let left = text.lines().filter(|line| !line.starts_with("OK"));
    assert!(left.eq(["WARN  systemd does not run here: nothing calls 'mpsctl reconcile' by itself; let cron do that every ten minutes"]), "{text}");
}

#[test]
fn every_shell_gets_the_environment_and_nothing_outside_a_job() {
    let mut c = Cluster::new(Product::Torque, &["nodea"]);
    assert_eq!(
        c.nodes[0].sh("mpsctl env; mpsctl env --shell csh; PBS_JOBID=99.vm mpsctl env"),
        ""
    );
    assert_eq!(
        c.nodes[0].sh("PBS_JOBID=../x sh -lc 'echo fine'").lines().last(),
        Some("fine")
    );
    let job = Job::new(
        "41.a-server-whose-name-is-too-long-for-a-directory.example.org",
        "MPS=true",
    );
    assert_eq!(c.torque_begin(&job), Verdict::Runs, "{:?}", c.output(&job, 0));
    let run = c.torque_shell(&job, &Cluster::client(""));
    assert_eq!(c.nodes[0].run(run), Ended::Code(0));
    let record = &c.records(0)[0];
    assert_eq!(record["under_mps"], true, "{record}");
    let show = "echo $CUDA_MPS_PIPE_DIRECTORY";
    let shells: [&[&str]; 5] = [
        &["/bin/bash", "-lc", show],
        &[
            "/bin/dash",
            "-c",
            "eval \"$(mpsctl env)\"; echo $CUDA_MPS_PIPE_DIRECTORY",
        ],
        &[
            "/bin/zsh",
            "-c",
            "eval \"$(mpsctl env)\"; echo $CUDA_MPS_PIPE_DIRECTORY",
        ],
        &[
            "/bin/tcsh",
            "-c",
            "eval `mpsctl env --shell csh`; echo $CUDA_MPS_PIPE_DIRECTORY",
        ],
        &[
            "/bin/tcsh",
            "-c",
            "source /etc/profile.d/mpsd.csh; echo $CUDA_MPS_PIPE_DIRECTORY",
        ],
    ];
    for argv in shells {
        if !std::path::Path::new(argv[0]).exists() {
            eprintln!("not tried: {} is not installed on this machine", argv[0]);
            continue;
        }
        c.nodes[0].sh("rm -f /var/spool/torque/spool/*");
        let run = c.user_process(&job, 0, argv);
        assert_eq!(
            c.nodes[0].run(Run {
                session: false,
                ..run
            }),
            Ended::Code(0),
            "{argv:?} {:?}",
            c.output(&job, 0)
        );
        let (out, err) = c.output(&job, 0);
        assert_eq!(out.trim(), record["pipe_directory"], "{argv:?}");
        assert_eq!(err, "", "{argv:?}");
    }
    c.torque_end(&job, 0);
}

#[test]
fn another_users_job_is_no_ones_else() {
    let mut c = Cluster::new(Product::Torque, &["nodea"]);
    let job = Job::new("42.vm", "MPS=true");
    assert_eq!(c.torque_begin(&job), Verdict::Runs);
    let run = c.torque_shell(&job, &Cluster::client(""));
    assert_eq!(c.nodes[0].run(run), Ended::Code(0));
    attached(&c.records(0)[0], &job, "nodea", 132, None);
    let stranger = Run {
        user: Some((65534, vec![65534])),
        cwd: "/".into(),
        ..c.user_process(&job, 0, &["/bin/ls", "/run/mpsd/jobs/42.vm/pipe"])
    };
    assert_eq!(
        c.nodes[0].run(stranger),
        Ended::Code(2),
        "a stranger reaches no pipe"
    );
    c.torque_end(&job, 0);
}

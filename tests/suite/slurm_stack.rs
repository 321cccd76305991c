//! `mpsctl slurm enable | disable | check` on a configuration of Slurm's in a directory of its own, and our units.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime};
use tests::double::{NodeDouble, copy_program};
use tests::stage::{Ran, Stage, USER, as_user, built, finish};

/// A Slurm's configuration, and plugins beside it.
struct Cluster {
    stage: Stage,
}

impl Cluster {
    fn new(slurm_conf: &str) -> Self {
        let node = NodeDouble::builder()
            .gpus(1, "NVIDIA H200")
            .build()
            .expect("node");
        let cluster = Self {
            stage: Stage::new(node, ""),
        };
        for release in ["22.05", "23.11"] {
            let dir = cluster.path("plugins").join(release);
            fs::create_dir_all(&dir).expect("directory");
            let file = dir.join("spank_mps.so");
            // As linked, it is stamped for 22.05: right in one directory, wrong in the other.
            fs::copy(built("libspank_mps.so"), &file).expect("build spank first");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("chmod");
        }
        fs::create_dir(cluster.path("etc")).expect("directory");
        fs::write(cluster.path("etc/slurm.conf"), format!("{slurm_conf}\n")).expect("slurm.conf");
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.stage.path(name)
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path("etc").join(name)).unwrap_or_default()
    }

    fn slurm(&self, verb: &str, more: &[&str]) -> Ran {
        let (conf, plugins) = (self.path("etc/slurm.conf"), self.path("plugins"));
        let place = [
            "--slurm-conf",
            conf.to_str().expect("path"),
            "--plugins",
            plugins.to_str().expect("path"),
        ];
        self.stage
            .run("mpsctl", &[&["slurm", verb], &place[..], more].concat(), &[])
    }

    fn enable(&self) -> Ran {
        self.slurm("enable", &["--release", "22.05"])
    }

    /// A process that goes by slurmd's name, with this Slurm's configuration. It writes no pid file, as with `--systemd`.
    fn slurmd(&self) -> Slurmd {
        fs::create_dir_all(self.path("prefix/sbin")).expect("directory");
        let program = self.path("prefix/sbin/slurmd");
        copy_program(Path::new("/bin/sleep"), &program).expect("sleep");
        let mut command = Command::new(&program);
        command.arg("60").env("SLURM_CONF", self.path("etc/slurm.conf"));
        Slurmd(command.spawn().expect("slurmd"))
    }

    /// The check of the Slurm that runs for `node`, with no slurm.conf named.
    fn check_of_running(&self, node: &str) -> Ran {
        self.stage.run("mpsctl", &["slurm", "check", "--node", node], &[])
    }

    /// Slurm's commands of a release beside that slurmd.
    fn commands(&self, release: &str) {
        fs::create_dir_all(self.path("prefix/bin")).expect("directory");
        for (name, said) in [("scontrol", ""), ("sinfo", &*format!("slurm {release}"))] {
            let file = self.path("prefix/bin").join(name);
            fs::write(&file, format!("#!/bin/sh\necho {said}\n")).expect("command");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("chmod");
        }
    }

    /// The line that enable writes.
    fn line(&self) -> String {
        let (plugin, bin) = (self.path("plugins/22.05/spank_mps.so"), self.path("bin"));
        format!(
            "optional {} config={} prologue={bin}/mps-prologue epilogue={bin}/mps-epilogue",
            plugin.display(),
            self.stage.config().display(),
            bin = bin.display(),
        )
    }
}

struct Slurmd(Child);

impl Drop for Slurmd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const GOOD: &str = "GresTypes=gpu\nPrologFlags=Alloc";

/// Files are taken in the order of their names, so pyxis' own, `pyxis.conf`, comes behind ours.
#[test]
fn beside_pyxis_a_second_line_looks_behind_it() {
    let cluster = Cluster::new(GOOD);
    let dir = cluster.path("etc/plugstack.conf.d");
    fs::create_dir(&dir).expect("directory");
    let pyxis =
        |name: &str| fs::write(dir.join(name), "required /usr/lib/slurm/spank_pyxis.so\n").expect("pyxis");
    assert_eq!(cluster.enable().code, Some(0));
    pyxis("pyxis.conf");
    let ran = cluster.slurm("check", &[]);
    let look = format!(
        "optional {} look=container",
        cluster.path("plugins/22.05/spank_mps.so").display()
    );
    assert!(ran.out.contains("WARN") && ran.out.contains(&look), "{ran:?}");

    assert_eq!(cluster.enable().code, Some(0));
    assert_eq!(
        cluster.read("plugstack.conf.d/zz-mpsd.conf").lines().last(),
        Some(&*look)
    );
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.out.contains("whose container hides its MPS does not start"),
        "{ran:?}"
    );
    assert!(ran.out.contains("has our line, 'optional'"), "{ran:?}");

    pyxis("a-pyxis.conf");
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.out.contains("WARN") && ran.out.contains("comes before ours"),
        "{ran:?}"
    );

    let ran = cluster.slurm("disable", &[]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let left = fs::read_dir(&dir)
        .expect("directory")
        .flatten()
        .map(|entry| entry.file_name());
    let mut left: Vec<_> = left.collect();
    left.sort();
    assert_eq!(left, ["a-pyxis.conf", "pyxis.conf"]);
}

#[test]
fn enable_writes_one_line_and_disable_takes_it_back() {
    let cluster = Cluster::new(GOOD);
    let ran = cluster.enable();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        cluster
            .read("plugstack.conf.d/mpsd.conf")
            .lines()
            .skip(1)
            .collect::<Vec<_>>(),
        [cluster.line()]
    );
    let include = format!(
        "include {}/*.conf\n",
        cluster.path("etc/plugstack.conf.d").display()
    );
    assert!(cluster.read("plugstack.conf").ends_with(&include));
    let files = || ["plugstack.conf", "plugstack.conf.d/mpsd.conf"].map(|name| cluster.read(name));
    let before = files();
    assert!(ran.out.contains("restart slurmd"), "{ran:?}");
    let again = cluster.enable();
    assert!(again.code == Some(0) && files() == before, "{again:?}");
    assert!(
        !again.out.contains("restart slurmd"),
        "nothing changed: {again:?}"
    );
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(0) && !ran.out.contains("FAIL") && ran.out.contains("for Slurm 22.05"),
        "{ran:?}"
    );
    let ran = cluster.slurm("enable", &["--release", "22.05", "--required"]);
    assert!(
        ran.code == Some(0)
            && cluster
                .read("plugstack.conf.d/mpsd.conf")
                .contains("\nrequired /"),
        "{ran:?}"
    );
    for _ in 0..2 {
        assert_eq!(cluster.slurm("disable", &[]).code, Some(0));
        assert!(
            !cluster.path("etc/plugstack.conf").exists()
                && !cluster.path("etc/plugstack.conf.d/mpsd.conf").exists()
        );
    }
    let ran = cluster.slurm("check", &[]);
    assert!(ran.code == Some(1) && ran.out.contains("FAIL  no '"), "{ran:?}");
}

/// Else the first job that asks drains the node, and its user reads of a broken boot.
#[test]
fn no_check_is_green_on_a_node_whose_first_job_would_drain_it() {
    let mut cluster = Cluster::new(GOOD);
    assert_eq!(cluster.enable().code, Some(0));
    let control = cluster.stage.node.control();
    let away = control.with_extension("away");
    fs::rename(&control, &away).expect("away");
    let ran = cluster.slurm("check", &[]);
    let line = "FAIL  NVIDIA's MPS: cannot open";
    assert!(ran.code == Some(1) && ran.out.contains(line), "{ran:?}");
    fs::rename(&away, &control).expect("back");
    cluster.stage.node.change(|node| node.nvml.init_fails = true);
    let ran = cluster.slurm("check", &[]);
    let line = "FAIL  NVML gives no answer: the first job that asks for MPS takes the node out of service";
    assert!(ran.code == Some(1) && ran.out.contains(line), "{ran:?}");
    cluster.stage.node.change(|node| node.nvml.init_fails = false);
    assert_eq!(cluster.slurm("check", &[]).code, Some(0));
}

/// As every other program of ours, where several nodes run on one host.
#[test]
fn a_check_goes_by_the_settings_of_the_node_that_it_names() {
    let cluster = Cluster::new(GOOD);
    cluster
        .stage
        .configure("[[node]]\nhosts = \"n1\"\ncontrol = \"/nonexistent/control\"");
    assert_eq!(cluster.enable().code, Some(0));
    let ran = cluster.slurm("check", &["--node", "n1"]);
    let line = "FAIL  NVIDIA's MPS: cannot open '/nonexistent'";
    assert!(ran.code == Some(1) && ran.out.contains(line), "{ran:?}");
    let ran = cluster.slurm("check", &["--node", "n2"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

/// The end of a running job needs the plugin: without it its daemons and its exclusive GPU would stay until the timer.
#[test]
fn disable_names_the_jobs_that_run_and_waits_or_is_forced() {
    let cluster = Cluster::new(GOOD);
    assert_eq!(cluster.enable().code, Some(0));
    let job = cluster.path("run/jobs/4711");
    fs::create_dir_all(&job).expect("directory");
    fs::write(job.join("journal"), "").expect("journal");
    for (options, seconds) in [(&[][..], 0), (&["--wait", "1"], 1)] {
        let began = Instant::now();
        let ran = cluster.slurm("disable", options);
        assert!(
            ran.code == Some(1) && ran.err.contains("4711") && ran.err.contains("allowed: --wait SECONDS"),
            "{ran:?}"
        );
        assert!(began.elapsed() >= Duration::from_secs(seconds));
        assert!(
            cluster
                .read("plugstack.conf.d/mpsd.conf")
                .contains(&cluster.line())
        );
    }
    let ran = cluster.slurm("disable", &["--force"]);
    assert!(
        ran.code == Some(0) && ran.out.contains("4711: with MPS here still"),
        "{ran:?}"
    );
    assert!(!cluster.path("etc/plugstack.conf.d/mpsd.conf").exists());

    assert_eq!(cluster.enable().code, Some(0));
    let ends = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(700));
        fs::remove_file(job.join("journal")).expect("journal");
    });
    assert_eq!(cluster.slurm("disable", &["--wait", "60"]).code, Some(0));
    ends.join().expect("the job's end");
}

/// What the packages ask before they are removed.
#[test]
fn idle_tells_whether_a_job_has_mps_here() {
    let cluster = Cluster::new(GOOD);
    let idle = |options: &[&str]| cluster.stage.run("mpsctl", &[&["idle"], options].concat(), &[]);
    assert_eq!(idle(&[]).code, Some(0));
    let job = cluster.path("run/jobs/4711");
    fs::create_dir_all(&job).expect("directory");
    // A request that was refused leaves a record, which nobody has to end.
    assert_eq!(idle(&[]).code, Some(0));
    fs::write(job.join("journal"), "").expect("journal");
    let ran = idle(&["--wait", "1"]);
    assert!(ran.code == Some(1) && ran.err.contains("4711"), "{ran:?}");
    let mut command = as_user(USER, cluster.stage.program("mpsctl"));
    command
        .arg("--config")
        .arg(cluster.stage.config())
        .arg("idle")
        .env_clear();
    assert!(finish(command).err.contains("allowed: root"));
}

#[test]
fn nobody_elses_file_is_touched() {
    let cluster = Cluster::new(GOOD);
    let stack = "optional /usr/lib/slurm/spank_pyxis.so\n";
    fs::write(cluster.path("etc/plugstack.conf"), stack).expect("stack");
    let ran = cluster.enable();
    assert!(
        ran.code == Some(1) && ran.out.contains("add this line to '"),
        "{ran:?}"
    );
    assert_eq!(cluster.read("plugstack.conf"), stack);
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(1) && ran.out.contains("does not include our line; add: include /"),
        "{ran:?}"
    );
    fs::write(
        cluster.path("etc/plugstack.conf"),
        format!("{stack}include plugstack.conf.d/*.conf\n"),
    )
    .expect("stack");
    assert_eq!(cluster.enable().code, Some(0));
    assert_eq!(cluster.slurm("check", &[]).code, Some(0));
    assert_eq!(cluster.slurm("disable", &[]).code, Some(0));
    assert!(cluster.read("plugstack.conf").starts_with(stack));

    let foreign = "required /opt/site/spank_mps.so\n";
    fs::write(cluster.path("etc/plugstack.conf.d/mpsd.conf"), foreign).expect("another's");
    let ran = cluster.enable();
    assert!(
        ran.code == Some(1) && ran.err.contains("one that we did not write"),
        "{ran:?}"
    );
    assert_eq!(cluster.slurm("disable", &[]).code, Some(1));
    assert_eq!(cluster.read("plugstack.conf.d/mpsd.conf"), foreign);
}

#[test]
fn the_plugin_must_fit_the_installed_slurm() {
    let cluster = Cluster::new(GOOD);
    let ran = cluster.slurm("enable", &["--release", "23.11"]);
    assert!(
        ran.code == Some(1) && ran.err.contains("is stamped for Slurm 22.05, not 23.11"),
        "{ran:?}"
    );
    let ran = cluster.slurm("enable", &["--release", "25.05"]);
    assert!(
        ran.code == Some(1)
            && ran
                .err
                .contains("no plugin for Slurm 25.05; there are: 22.05, 23.11"),
        "{ran:?}"
    );
    assert!(!cluster.path("etc/plugstack.conf.d").exists());
    let mut command = as_user(USER, cluster.stage.program("mpsctl"));
    command
        .args(["slurm", "enable", "--slurm-conf"])
        .arg(cluster.path("etc/slurm.conf"))
        .env_clear();
    let ran = finish(command);
    assert!(
        ran.code == Some(1) && ran.err.contains("allowed: root"),
        "{ran:?}"
    );
}

#[test]
fn a_slurmd_that_began_before_our_line_is_told_of() {
    let cluster = Cluster::new(GOOD);
    let _slurmd = cluster.slurmd();
    let began = SystemTime::now();
    assert_eq!(cluster.enable().code, Some(0));
    let line_is_of = |when: SystemTime| {
        let line = cluster.path("etc/plugstack.conf.d/mpsd.conf");
        let line = fs::OpenOptions::new().write(true).open(line).expect("our line");
        line.set_modified(when).expect("its time");
    };
    line_is_of(began + Duration::from_secs(3));
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(1) && ran.out.contains("restart slurmd"),
        "{ran:?}"
    );
    line_is_of(began - Duration::from_secs(3));
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(0) && ran.out.contains("began after our line was written"),
        "{ran:?}"
    );
}

/// A site's own stack may include the directory of our file; before enable only that file is missing.
#[test]
fn before_enable_only_our_file_is_missing() {
    let cluster = Cluster::new(GOOD);
    let _slurmd = cluster.slurmd();
    fs::write(
        cluster.path("etc/plugstack.conf"),
        "include plugstack.conf.d/*.conf\n",
    )
    .expect("stack");
    let ran = cluster.slurm("check", &[]);
    let wrong: Vec<&str> = ran.out.lines().filter(|line| line.starts_with("FAIL")).collect();
    assert!(
        matches!(wrong[..], [one] if one.contains("plugstack.conf.d/mpsd.conf': not there; run 'mpsctl slurm enable'")),
        "{ran:?}"
    );
    assert!(
        !ran.out.contains("our line was written"),
        "no line was written: {ran:?}"
    );
    assert_eq!(cluster.enable().code, Some(0));
    assert!(cluster.slurm("check", &[]).out.contains("includes our line"));
}

#[test]
fn a_slurmd_that_began_just_before_our_line_is_told_of() {
    let cluster = Cluster::new("GresTypes = gpu\nPrologFlags = Alloc\nSlurmdPidFile = /run/%n/%h.pid");
    let _slurmd = cluster.slurmd();
    assert_eq!(cluster.enable().code, Some(0));
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(1) && ran.out.contains("restart slurmd"),
        "{ran:?}"
    );
    let line = cluster.path("etc/plugstack.conf.d/mpsd.conf");
    let written = || {
        fs::metadata(&line)
            .expect("our line")
            .modified()
            .expect("its time")
    };
    let before = written();
    assert_eq!(cluster.enable().code, Some(0));
    assert_eq!(written(), before, "the same line was written again");
}

#[test]
fn blanks_around_the_sign_are_read_as_slurm_does() {
    let cluster = Cluster::new("GresTypes = gpu\nPrologFlags = Alloc,Contain\nSlurmdParameters = \"a, b\"");
    let stack = cluster.path("etc/site-stack.conf");
    let conf = cluster.path("etc/slurm.conf");
    let text = fs::read_to_string(&conf).expect("slurm.conf");
    fs::write(&conf, format!("{text}PlugStackConfig = {}\n", stack.display())).expect("slurm.conf");
    assert_eq!(cluster.enable().code, Some(0));
    assert!(stack.exists() && !cluster.path("etc/plugstack.conf").exists());
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(0) && ran.out.contains("PrologFlags is Alloc,Contain: "),
        "{ran:?}"
    );
}

const CONFIGLESS: &str = "GresTypes=gpu\nPrologFlags=Alloc\nSlurmctldParameters=enable_configless";

/// The controller sends plugstack.conf to the nodes, and nothing that it includes.
#[test]
fn on_a_configless_cluster_our_line_is_in_the_stack_itself() {
    let cluster = Cluster::new(CONFIGLESS);
    assert_eq!(cluster.enable().code, Some(0));
    let stack = cluster.read("plugstack.conf");
    assert_eq!(stack.lines().skip(1).collect::<Vec<_>>(), [cluster.line()]);
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(0) && ran.out.contains("plugstack.conf' has our line\n"),
        "{ran:?}"
    );
    assert_eq!(cluster.slurm("disable", &[]).code, Some(0));
    assert!(!cluster.path("etc/plugstack.conf").exists());
}

#[test]
fn a_configless_sites_own_stack_is_left_and_its_line_told() {
    let cluster = Cluster::new(CONFIGLESS);
    let own = "optional /usr/lib/slurm/spank_pyxis.so\ninclude /etc/slurm/plugstack.conf.d/*.conf\n";
    let stack = cluster.path("etc/plugstack.conf");
    fs::write(&stack, own).expect("stack");
    let ran = cluster.enable();
    assert!(
        ran.code == Some(1) && ran.out.contains(&cluster.line()),
        "{ran:?}"
    );
    assert_eq!(cluster.read("plugstack.conf"), own);
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(1)
            && ran
                .out
                .contains("has no line of ours in it, and the controller sends nothing"),
        "{ran:?}"
    );
    fs::write(&stack, format!("{own}{}\n", cluster.line())).expect("stack");
    assert_eq!(cluster.enable().code, Some(0));
    assert_eq!(cluster.slurm("check", &[]).code, Some(0));
    let ran = cluster.slurm("disable", &[]);
    assert!(
        ran.code == Some(1) && ran.out.contains("remove the line for spank_mps.so"),
        "{ran:?}"
    );
}

/// From files on every node to configless and back.
#[test]
fn a_cluster_that_changes_has_one_line() {
    let cluster = Cluster::new(GOOD);
    let conf = cluster.path("etc/slurm.conf");
    for text in [GOOD, CONFIGLESS, GOOD] {
        fs::write(&conf, format!("{text}\n")).expect("slurm.conf");
        assert_eq!(cluster.enable().code, Some(0));
        let ran = cluster.slurm("check", &[]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let stack = cluster.read("plugstack.conf");
        assert_eq!(stack.contains(&cluster.line()), text == CONFIGLESS, "{stack}");
    }
}

/// A process has the name of a link that any user may have made, and set-user-id programs are root's at once.
#[test]
fn a_program_that_goes_by_slurmds_name_is_nobody() {
    let cluster = Cluster::new(GOOD);
    assert_eq!(cluster.enable().code, Some(0));
    let conf = cluster.path("etc/slurm.conf");
    let start = |mut command: Command| {
        command.arg("60").env("SLURM_CONF", &conf);
        let child = Slurmd(command.spawn().expect("a program"));
        let comm = format!("/proc/{}/comm", child.0.id());
        let patience = SystemTime::now() + Duration::from_secs(10);
        while fs::read_to_string(&comm).is_ok_and(|comm| comm != "slurmd\n") {
            assert!(SystemTime::now() < patience, "no program of that name");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    };
    let is_seen = || {
        let ran = cluster.slurm("check", &[]);
        let nobody = ran.out.contains("no slurmd runs here");
        assert!(nobody || ran.out.contains("slurmd (pid "), "{ran:?}");
        !nobody
    };
    let user = nix::unistd::User::from_name(USER).expect("passwd").expect(USER);
    let theirs = cluster.path("theirs");
    fs::create_dir(&theirs).expect("directory");
    std::os::unix::fs::chown(&theirs, Some(user.uid.as_raw()), None).expect("chown");

    let link = theirs.join("slurmd");
    std::os::unix::fs::symlink("/bin/sleep", &link).expect("link");
    let running = start(Command::new(&link));
    assert!(!is_seen(), "a link of that name to another program");
    drop(running);

    // A file of that name, of root's, in a user's directory: as a hard link to a program of root's.
    fs::remove_file(&link).expect("link");
    copy_program(Path::new("/bin/sleep"), &link).expect("sleep");
    let running = start(Command::new(&link));
    assert!(!is_seen(), "a program in a user's directory");
    fs::remove_file(&link).expect("program");
    assert!(!is_seen(), "a program that was in a user's directory");
    drop(running);

    let honest = cluster.slurmd();
    assert!(is_seen(), "root's own");
    drop(honest);
    let program = cluster.path("prefix/sbin/slurmd");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("chmod");
    let running = start(as_user(USER, &program));
    assert!(!is_seen(), "a set-user-id program that a user started");
    drop(running);
}

/// Whoever may write a slurm.conf has root's commands load plugins: one that is not root's alone is read where mpsd.toml names it.
#[test]
fn a_slurm_conf_that_others_may_write_is_read_only_where_the_site_names_it() {
    let cluster = Cluster::new(GOOD);
    assert_eq!(cluster.enable().code, Some(0));
    let conf = cluster.path("etc/slurm.conf");
    fs::create_dir_all(cluster.path("prefix/sbin")).expect("directory");
    let program = cluster.path("prefix/sbin/slurmd");
    copy_program(Path::new("/bin/sh"), &program).expect("sh");
    // It waits for a line that never comes.
    let node = format!("stack{}", std::process::id());
    let mut command = Command::new(&program);
    command
        .args(["-c", "read line", "-N", &node])
        .env("SLURM_CONF", &conf)
        .stdin(std::process::Stdio::piped());
    let _slurmd = Slurmd(command.spawn().expect("slurmd"));
    let own = format!("OK    Slurm's configuration is '{}'", conf.display());
    let ran = cluster.check_of_running(&node);
    assert!(ran.out.contains(&own), "{ran:?}");

    let user = nix::unistd::User::from_name(USER).expect("passwd").expect(USER);
    std::os::unix::fs::chown(&conf, Some(user.uid.as_raw()), None).expect("chown");
    let ran = cluster.check_of_running(&node);
    let why = format!("belongs to user {}, not to root", user.uid);
    assert!(
        ran.code == Some(1)
            && ran.err.contains(&why)
            && ran.err.contains("name the slurm.conf in mpsd.toml")
            && !ran.out.contains(&own),
        "{ran:?}"
    );
    cluster
        .stage
        .configure(&format!("[slurm]\nconf = \"{}\"", conf.display()));
    let ran = cluster.check_of_running(&node);
    assert!(
        ran.out.contains(&own) && ran.out.contains("slurmd (pid "),
        "{ran:?}"
    );
}

/// The running slurmd's program decides, whatever else is installed; a setting overrides it.
#[test]
fn the_running_slurmd_says_where_slurm_is() {
    let cluster = Cluster::new(GOOD);
    cluster.commands("23.11.7");
    let _slurmd = cluster.slurmd();
    let ran = cluster.slurm("enable", &[]);
    assert!(
        ran.code == Some(1) && ran.err.contains("is stamped for Slurm 22.05, not 23.11"),
        "{ran:?}"
    );
    cluster.commands("22.05.3");
    assert_eq!(cluster.slurm("enable", &[]).code, Some(0));
    let ran = cluster.slurm("check", &[]);
    let dir = cluster.path("prefix/bin");
    let line = format!(
        "OK    Slurm 22.05 is installed, its commands in '{}'",
        dir.display()
    );
    assert!(ran.out.contains(&line), "{ran:?}");
    // A setting comes before what runs.
    let other = cluster.path("elsewhere");
    fs::rename(cluster.path("prefix/bin"), &other).expect("rename");
    cluster
        .stage
        .configure(&format!("[slurm]\nexec = \"{}\"", other.display()));
    let ran = cluster.slurm("check", &[]);
    let line = format!("Slurm 22.05 is installed, its commands in '{}'", other.display());
    assert!(ran.out.contains(&line), "{ran:?}");
}

#[test]
fn what_mps_needs_of_slurms_configuration_is_checked() {
    let cluster = Cluster::new("JobContainerType=job_container/tmpfs\ngrestypes=gpu,shard");
    assert_eq!(cluster.enable().code, Some(0));
    let ran = cluster.slurm("check", &[]);
    for line in [
        "WARN  PrologFlags is not set",
        "WARN  GresTypes has shard",
        "is hidden from tasks by job_container/tmpfs",
        "OK    UnkillableStepTimeout is 60 s",
    ] {
        assert!(ran.out.contains(line), "{line}: {ran:?}");
    }
    let cluster = Cluster::new(&format!("{GOOD}\nunkillablesteptimeout=12"));
    assert_eq!(cluster.enable().code, Some(0));
    let ran = cluster.slurm("check", &[]);
    let line = "WARN  UnkillableStepTimeout is 12 s: a step's own daemon gets 6 s of our 20 (deadline_s) to start and to end";
    assert!(
        ran.out.contains(line) && ran.out.contains("; 26 s leave it all"),
        "{ran:?}"
    );
    let cluster = Cluster::new("PrologFlags=Contain");
    let ran = cluster.slurm("check", &[]);
    assert!(
        ran.code == Some(1) && ran.out.contains("FAIL  GresTypes has no gpu"),
        "{ran:?}"
    );
}

#[test]
fn units_call_verbs_that_there_are() {
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../etc/systemd/system");
    let mut calls = 0;
    for unit in fs::read_dir(&units).expect("units").flatten() {
        let text = fs::read_to_string(unit.path()).expect("unit");
        let commands = text.lines().filter_map(|line| line.strip_prefix("ExecStart="));
        for line in commands.filter(|line| line.contains("mps")) {
            let words = line
                .trim_start_matches('-')
                .split_whitespace()
                .map(|word| word.trim_start_matches("/usr/bin/"));
            let parsed = mpsd::cli::mpsctl::command().try_get_matches_from(words);
            assert!(
                parsed.is_ok(),
                "{line}: {}",
                parsed.err().map(|e| e.to_string()).unwrap_or_default()
            );
            calls += 1;
        }
    }
    assert_eq!(calls, 3);
    let home = fs::read_to_string(units.join("mpsd.service")).expect("unit");
    for promise in [
        "Delegate=yes",
        "KillMode=process",
        "SendSIGKILL=no",
        "OOMPolicy=continue",
        "TasksMax=infinity",
        "RemainAfterExit=yes",
        "ExecStart=-/bin/true",
    ] {
        assert!(
            home.lines().any(|line| line == promise),
            "a stop of the unit, or too many processes, would end jobs: {promise}"
        );
    }
}

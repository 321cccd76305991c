//! What `mpsctl slurm check` and `mpsctl doctor` say of a node under Slurm.

use super::*;
use tests::run::skip;

/// Slurm's own lines name some programs that doctor has named.
#[test]
fn doctor_says_each_line_of_a_node_under_slurm_once() {
    let cluster = Cluster::enabled();
    let conf = cluster.path("etc/slurm.conf");
    let setting = format!("[slurm]\nconf = \"{}\"", conf.display());
    cluster.bed.configure(&setting);
    let ran = cluster.bed.mpsctl(&["doctor", "--node", "n1"]);
    ran.prints("has our line, 'optional'\n");
    let mut lines: Vec<&str> = ran.out.lines().collect();
    let said = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), said, "{ran:?}");
}

/// A test machine of a site whose slurm.conf is everywhere the same. This machine must have no GPU
/// and no driver.
#[test]
fn a_host_without_gpus_that_slurm_offers_is_misconfigured_and_not_drained() {
    if Path::new("/proc/driver/nvidia/version").exists() {
        return skip(
            "suite, a host without a driver",
            "this machine has NVIDIA's driver",
        );
    }
    let cluster = Cluster::new(&format!("{GOOD}\nNodeName=n1 Gres=gpu:2"));
    cluster.enable().ok();
    let usual = format!("nvml = \"{}\"", cluster.bed.node.nvml().display());
    let text = fs::read_to_string(cluster.bed.config()).expect("configuration");
    let text = text.replace(&usual, "nvml = \"libnvidia-ml.so.1\"");
    let conf = cluster.path("etc/slurm.conf");
    let slurm = format!("\n[slurm]\nconf = \"{}\"\n", conf.display());
    fs::write(cluster.bed.config(), text + &slurm).expect("configuration");
    let line =
        "FAIL  this node: it has no NVIDIA GPU and no driver, but its scheduler offers GPUs here";
    let ran = cluster.slurm("check", &["--node", "n1"]).exits(2);
    ran.prints(line);
    // A health check goes by it; Slurm's other lines are not the node's own.
    let own = ["doctor", "--node", "n1", "--own", "--problems"];
    cluster.bed.mpsctl(&own).exits(2).prints(line);
    let ran = cluster.bed.openpbs("5.srv", USER, "MPS=true");
    ran.exits(2)
        .complains("this node: it has no NVIDIA GPU and no driver");
    cluster.bed.assert_not_drained("a host without GPUs");
}

/// Then srun refuses every `--mps`, or prints ten lines for each job.
#[test]
fn a_line_that_the_plugin_does_not_take_and_one_that_stands_twice_are_told() {
    let cluster = Cluster::enabled();
    let good = cluster.line();
    for word in ["scope=job", "konfig=/x", "config=etc/mpsd.toml"] {
        cluster.write(OURS, &format!("{good} {word}\n"));
        let ran = cluster.check().exits(2);
        ran.prints(format!("FAIL  plugstack.conf: '{word}'"));
    }
    cluster.write(OURS, &format!("{good}\n"));
    cluster.write("plugstack.conf.d/aa.conf", &format!("{good}\n"));
    cluster.check().ok().prints("WARN  our line stands 2 times");
    fs::remove_file(cluster.path("etc/plugstack.conf.d/aa.conf")).expect("remove");
    cluster.check().ok().lacks("WARN  our line");
}

/// One line says so. Without a configuration it does not ask NVML.
#[test]
fn a_configuration_that_cannot_be_used_is_the_only_trouble() {
    let cluster = Cluster::enabled();
    cluster.bed.configure("compute_mode = \"exclusiv\"");
    let ran = cluster.check().exits(2);
    let wrong = ran.out.lines().filter(|line| line.starts_with("FAIL"));
    assert_eq!(wrong.count(), 1, "{ran:?}");
    ran.prints("did you mean 'exclusive'?")
        .lacks("NVML does not");
}

/// Like every other program of ours on a host with several nodes.
#[test]
fn a_check_goes_by_the_settings_of_the_node_that_it_names() {
    let cluster = Cluster::new(GOOD);
    let of_n1 = "[[node]]\nhosts = \"n1\"\ncontrol = \"/nonexistent/control\"";
    cluster.bed.configure(of_n1);
    cluster.enable().ok();
    let ran = cluster.slurm("check", &["--node", "n1"]).exits(2);
    ran.prints("FAIL  NVIDIA's MPS: cannot open '/nonexistent'");
    cluster.slurm("check", &["--node", "n2"]).ok();
}

/// Even if it began just before: the configuration's times are whole seconds.
#[test]
fn a_slurmd_that_began_before_our_line_is_told_of() {
    let cluster =
        Cluster::new("GresTypes = gpu\nPrologFlags = Alloc\nSlurmdPidFile = /run/%n/%h.pid");
    let _slurmd = cluster.slurmd();
    let began = SystemTime::now();
    cluster.enable().ok();
    cluster.check().exits(2).prints("restart slurmd");
    let line = cluster.path("etc").join(OURS);
    let about = || fs::metadata(&line).and_then(|line| line.modified());
    let written = || about().expect("its time");
    let before = written();
    cluster.enable().ok();
    assert_eq!(written(), before, "the same line was written again");
    let line_is_of = |when: SystemTime| {
        let line = fs::OpenOptions::new().write(true).open(&line);
        let dated = line.expect("our line").set_modified(when);
        dated.expect("its time");
    };
    line_is_of(began + Duration::from_secs(3));
    cluster.check().exits(2).prints("restart slurmd");
    line_is_of(began - Duration::from_secs(3));
    let ran = cluster.check().ok();
    ran.prints("began after our line was written");
}

/// Any user can run a program through a link of that name, and set-user-id programs become root's
/// at once.
#[test]
fn a_program_under_slurmds_name_is_not_believed_to_be_slurmd() {
    let cluster = Cluster::enabled();
    let is_seen = || {
        let ran = cluster.check();
        let none = ran.out.contains("no slurmd runs here");
        assert!(none || ran.out.contains("slurmd (pid "), "{ran:?}");
        !none
    };
    let theirs = cluster.bed.directory("theirs");
    chown(&theirs, Some(uid_of(USER)), None).expect("chown");

    let link = theirs.join("slurmd");
    symlink("/bin/sleep", &link).expect("link");
    let running = cluster.start(Command::new(&link));
    assert!(!is_seen(), "a link of that name to another program");
    drop(running);

    // A file of root's under that name in a user's directory: a hard link to a program of root's.
    fs::remove_file(&link).expect("link");
    copy_program(Path::new("/bin/sleep"), &link).expect("sleep");
    let running = cluster.start(Command::new(&link));
    assert!(!is_seen(), "a program in a user's directory");
    fs::remove_file(&link).expect("program");
    assert!(!is_seen(), "a program that was in a user's directory");
    drop(running);

    let honest = cluster.slurmd();
    assert!(is_seen(), "root's own");
    drop(honest);
    let program = cluster.path("prefix/sbin/slurmd");
    chmod(&program, 0o4755);
    let _running = cluster.start(as_user(USER, &program));
    assert!(!is_seen(), "a set-user-id program that a user started");
}

/// A user who may write a slurm.conf can make root's commands load plugins. Unless it is root's,
/// mpsd.toml must name it.
#[test]
fn a_slurm_conf_that_others_may_write_is_read_only_if_the_site_names_it() {
    let cluster = Cluster::enabled();
    let conf = cluster.path("etc/slurm.conf");
    // It waits for a line that never comes.
    let node = format!("stack{}", std::process::id());
    let mut command = Command::new(cluster.slurmd_from("/bin/sh"));
    command.args(["-c", "read line", "-N", &node]);
    command.env("SLURM_CONF", &conf).stdin(Stdio::piped());
    let _slurmd = Running::start(command);
    let check = || cluster.bed.mpsctl(&["slurm", "check", "--node", &node]);
    let own = format!("OK    Slurm's configuration is '{}'", conf.display());
    check().prints(&own);

    chown(&conf, Some(uid_of(USER)), None).expect("chown");
    let ran = check().exits(1);
    let uid = uid_of(USER);
    ran.complains(format!("belongs to user {uid}, not to root: chown root"));
    ran.complains("name the slurm.conf in mpsd.toml")
        .lacks(&own);
    let named = format!("[slurm]\nconf = \"{}\"", conf.display());
    cluster.bed.configure(&named);
    check().prints(&own).prints("slurmd (pid ");
}

/// The running slurmd's program decides, whatever else is installed; a setting overrides it.
#[test]
fn the_running_slurmd_says_where_slurm_is() {
    let cluster = Cluster::new(GOOD);
    let told = "Slurm 22.05 is installed, its commands in";
    let installed = |dir: &Path| format!("{told} '{}'", dir.display());
    cluster.commands("23.11.7");
    let _slurmd = cluster.slurmd();
    let ran = cluster.slurm("enable", &[]).exits(1);
    ran.complains("is stamped for Slurm 22.05, not 23.11");
    cluster.commands("22.05.3");
    cluster.slurm("enable", &[]).ok();
    let usual = installed(&cluster.path("prefix/bin"));
    cluster.check().prints(usual);
    // A setting overrides what runs.
    let other = cluster.path("elsewhere");
    fs::rename(cluster.path("prefix/bin"), &other).expect("rename");
    let setting = format!("[slurm]\nexec = \"{}\"", other.display());
    cluster.bed.configure(&setting);
    cluster.check().prints(installed(&other));
    fs::remove_file(other.join("scontrol")).expect("commands");
    let none = format!("FAIL  no scontrol in '{}'", other.display());
    let ran = cluster.check().exits(2);
    ran.prints(none).lacks(installed(&other));
}

/// A host with GPUs may be a node whose slurmd has died.
#[test]
fn a_node_without_slurmd_and_one_without_the_plugins_file_are_told() {
    let cluster = Cluster::enabled();
    cluster.check().ok().prints("WARN  no slurmd runs here");
    let _slurmd = cluster.slurmd();
    cluster.check().lacks("no slurmd runs here");

    cluster.commands("22.05.3");
    let setting = format!("[slurm]\nexec = \"{}\"", cluster.path("prefix").display());
    cluster.bed.configure(&setting);
    fs::remove_dir_all(cluster.path("plugins/22.05")).expect("plugin");
    let ran = cluster.check().exits(2);
    ran.prints("install the package with the plugins again")
        .lacks("run 'mpsctl slurm enable'");
}

/// The release, or `-` on a node with our line; slurm.conf; what is said, `!` before what is not.
const NEEDS: &str = "
22.05.3 | GresTypes=gpu; PrologFlags=DeferBatch | WARN  PrologFlags is
26.05.3 | GresTypes=gpu; PrologFlags=DeferBatch | OK    PrologFlags is; the prolog runs on each node at the allocation
26.05.3 | GresTypes=gpu; PrologFlags=NoHold,ForceRequeueOnFail | OK    PrologFlags is; the prolog \
    runs on each node at the allocation
26.05.3 | GresTypes=gpu; PrologFlags=X11 | OK    PrologFlags is; the prolog runs on each node at the allocation
26.05.3 | GresTypes=gpu; PrologFlags=RunInJob | FAIL  PrologFlags has RunInJob
26.05.3 | GresTypes=gpu; PrologFlags=Alloc; NamespaceType=namespace/tmpfs | is hidden from tasks by namespace/tmpfs
26.05.3 | GresTypes=gpu; PrologFlags=Alloc; NamespaceType=namespace/linux | is hidden from tasks by namespace/linux
22.05.3 | GresTypes=gpu; PrologFlags=Alloc; \
    LaunchParameters=enable_nss_slurm,use_interactive_step | WARN  LaunchParameters has enable_nss_slurm
26.05.3 | GresTypes=gpu; PrologFlags=Alloc; ProctrackType=proctrack/cgroup | OK    Slurm 26.05 \
    names the cgroup of a job by its SLUID
25.11.7 | GresTypes=gpu; PrologFlags=Alloc; ProctrackType=proctrack/cgroup | !SLUID
- | JobContainerType=job_container/tmpfs; grestypes=gpu,shard | WARN  PrologFlags is not set; \
    OK    GresTypes has shard; is hidden from tasks by job_container/tmpfs; OK    UnkillableStepTimeout is 60 s
- | GresTypes=gpu; PrologFlags=Alloc; unkillablesteptimeout=12 | WARN  UnkillableStepTimeout is \
    12 s: a step's own daemon gets 6 s of our 20 (deadline_s); 26 s leave it all
- | PrologFlags=Contain | FAIL  GresTypes has no gpu
";

#[test]
fn what_mps_needs_of_slurms_configuration_is_checked() {
    for row in NEEDS.lines().filter(|row| !row.is_empty()) {
        let [release, conf, said] = row.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let conf = conf.replace("; ", "\n");
        let cluster = match release {
            "-" => Cluster::new(&conf),
            _ => Cluster::of_release(release, &conf),
        };
        if release == "-" {
            cluster.enable();
        }
        let ran = cluster.check();
        for words in said.split("; ") {
            match words.strip_prefix('!') {
                Some(absent) => ran.lacks(absent),
                None => ran.prints(words),
            };
        }
        assert!(!said.starts_with("FAIL") || ran.code == Some(2), "{ran:?}");
    }
    let by_sluid = format!("{GOOD}\nProctrackType=proctrack/cgroup");
    let by_id = Cluster::of_release("26.05.3", &by_sluid);
    by_id.write("cgroup.conf", "CgroupJobIdPaths=yes\n");
    by_id.check().lacks("SLUID");
}

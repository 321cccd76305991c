//! From the packages to a user's job by the guide's lines and nothing else, in a Debian made from nothing: real dpkg, real
//! systemd, real Slurm; the GPUs alone are simulated. Then what an administrator does later: restart, upgrade, remove, purge.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use tests::slurm::Record;

use crate::cluster::{self, CLIENT, Cluster, USER, VENDOR, listed};
use crate::guide::{commands, script};
use crate::machine::{Cgroup, Machine};
use crate::root::Root;
use crate::stopwatch::Stopwatch;
use crate::{BEFORE, NAMES, debian, monitoring, older, package, packages, repository, said, skip, units};

/// Lists systemd's units of ours.
const UNITS: [&str; 6] = [
    "systemctl",
    "list-units",
    "--all",
    "--plain",
    "--no-legend",
    "mps*",
];

const CONFIG: &str = "/etc/mpsd/mpsd.toml";
/// What changes by itself, or is the package manager's own memory.
const OTHERS: [&str; 9] = [
    "/var/lib/dpkg",
    "/var/lib/apt",
    "/var/lib/systemd",
    "/var/lib/slurm",
    "/var/cache",
    "/var/log",
    "/root",
    "/tmp",
    VENDOR,
];

/// Slurm 22.05.
#[test]
fn a_job_runs_by_the_guide_on_a_fresh_debian_12() {
    by_the_guide("bookworm");
}

/// Slurm 24.11.
#[test]
fn a_job_runs_by_the_guide_on_a_fresh_debian_13() {
    // While the other one gets its Debian, on a machine with two cores.
    packages();
    by_the_guide("trixie");
}

fn by_the_guide(suite: &'static str) {
    let (base, cgroup) = match (debian::base(suite), Cgroup::create(suite)) {
        (Ok(base), Ok(cgroup)) => (base, cgroup),
        (Err(why), _) | (_, Err(why)) => return skip(&format!("a job from the packages on {suite}"), &why),
    };
    let debs = NAMES.map(|name| older(name, ".deb"));
    let newer = NAMES.map(|name| package(name, ".deb"));
    Root::over(&base, suite, move |root| {
        let _vendor = cluster::configure(root);
        for (dir, files) in [("packages", &debs), ("newer", &newer)] {
            fs::create_dir_all(root.at(&format!("/root/{dir}"))).unwrap();
            for (name, file) in NAMES.iter().zip(files) {
                fs::copy(file, root.at(&format!("/root/{dir}/{name}_{dir}.deb"))).unwrap();
            }
        }
        let mut cluster = Cluster {
            machine: Machine::boot(root, cgroup),
        };
        cluster.idle();
        let before = tree(root);

        let mut watch = Stopwatch::default();
        install(&cluster, &mut watch);
        simulate(root);
        selftest(&mut cluster, &mut watch);
        watch.stop(suite, "mpsctl selftest");
        let with_mps = jobs(&mut cluster);
        quick_start(&mut cluster);
        who_had_mps(&cluster, &with_mps);
        report_a_problem(&cluster);
        let note = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("held-client-{suite}"));
        units::reach_the_simulated_gpus(&cluster.machine);
        units::are_rated(&cluster.machine);
        units::reconcile_in_their_sandbox(&mut cluster, &note);
        units::look_again_once(&mut cluster.machine);
        if suite == "bookworm" {
            monitoring::tells_of_jobs_and_of_a_drain(&mut cluster, &note);
        }
        restart_and_upgrade(&mut cluster, &note);
        go_back(&mut cluster);
        let removals = [
            "mpsctl slurm disable",
            "apt-get remove -y mpsd mpsd-slurm",
            "dpkg --remove mpsd-slurm",
        ];
        nothing_goes_while_a_job_runs(&mut cluster, &note, &removals);
        remove(root, &mut cluster, &before);
        if suite == "bookworm" {
            by_dnf(root, &mut cluster, &note);
        }
        repository::apt_installs_from_it(root, &cluster);
    });
}

/// Installed and enabled by the guide; in between, nothing has changed for a job.
fn install(cluster: &Cluster, watch: &mut Stopwatch) {
    let packages = commands("install.md", "From the packages");
    for step in packages.iter().filter(|step| !step.starts_with("dnf ")) {
        watch.take(step, || cluster.administrator(step));
    }
    enable(cluster, watch);
    for step in commands("fleets.md", "One configuration") {
        assert!(cluster.administrator(&step).contains("deadline_s"), "{step}");
    }
}

/// The lines behind the package manager's, whichever that was.
fn enable(cluster: &Cluster, watch: &mut Stopwatch) {
    for step in commands("install.md", "On the nodes") {
        watch.take(&step, || cluster.administrator(&step));
    }
    for unit in ["mpsd.service", "mpsd-reconcile.timer"] {
        cluster.machine.run(&["systemctl", "is-active", unit]);
    }
    assert!(!knows_the_flag(cluster), "installing was enough");
    let help = cluster.administrator("man -w mpsd 2>/dev/null || ls /usr/share/man/man8/mpsd.8.gz");
    assert!(help.contains("mpsd.8"), "{help}");
    for step in commands("slurm.md", "Enable") {
        watch.take(&step, || cluster.administrator(&step));
    }
    assert!(knows_the_flag(cluster));
}

/// The same with the RPM packages, whose scripts and triggers then meet a systemd and a Slurm that run; and away again. No distribution that is made
/// of RPM packages can be had as Debian can.
fn by_dnf(root: &Root, cluster: &mut Cluster, note: &Path) {
    let mut watch = Stopwatch::default();
    repository::dnf_installs_from_it(root, cluster, &mut watch);
    enable(cluster, &mut watch);
    simulate(root);
    selftest(cluster, &mut watch);
    watch.stop("bookworm-dnf", "mpsctl selftest");
    nothing_goes_while_a_job_runs(
        cluster,
        note,
        &["dnf remove -y mpsd mpsd-slurm", "rpm --erase mpsd-slurm"],
    );
    for step in commands("install.md", "Remove with dnf") {
        cluster.administrator(&step);
    }
    assert!(!knows_the_flag(cluster) && !cluster.machine.at("/usr/bin/mpsctl").exists());
    assert_eq!(cluster.machine.run(&UNITS), "", "units");
    assert!(!cluster.machine.at("/run/mpsd").exists());
    cluster.machine.run(&[
        "rm",
        "-r",
        "/etc/mpsd/mpsd.toml.rpmsave",
        "/etc/mpsd",
        "/var/lib/mpsd",
    ]);
    cluster.idle();
}

/// Whether srun knows our options: only if Slurm itself has loaded the plugin.
fn knows_the_flag(cluster: &Cluster) -> bool {
    cluster.machine.run(&["srun", "--help"]).contains("--mps-threads")
}

/// The two keys that name the vendor's parts: the only difference to a node with GPUs.
fn simulate(root: &Root) {
    let shipped = root.read(CONFIG);
    let keys =
        format!("control = \"{VENDOR}/nvidia-cuda-mps-control\"\nnvml = \"{VENDOR}/libnvidia-ml.so.1\"\n");
    root.write(CONFIG, &(keys + &shipped));
}

/// The last line of the guide, by the user: all is well, with a client of the double's for the probe, which needs a real CUDA.
fn selftest(cluster: &mut Cluster, watch: &mut Stopwatch) {
    cluster.idle();
    let probe = cluster.machine.at("/usr/libexec/mpsd/mps-probe");
    let real = fs::read(&probe).unwrap();
    // In its place by a rename, since it may run.
    let put = |bytes: &[u8]| {
        let new = probe.with_extension("new");
        fs::write(&new, bytes).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&new, &probe).unwrap();
    };
    put(format!("#!/bin/sh\nexec {} \"$@\"\n", CLIENT.join(" ")).as_bytes());
    for step in commands("install.md", "Last, one job") {
        let typed = format!("cd /home/{USER} && {step}");
        let words = ["runuser", "-u", USER, "--", "sh", "-ec", &typed];
        let told = watch.take(&step, || cluster.machine.run(&words));
        assert!(told.ends_with("OK    selftest\n"), "{told}");
    }
    put(&real);
    cluster.nothing_is_left();
}

/// Under the MPS of their own job, as its user, with a quarter of the GPU.
#[track_caller]
fn are_under_mps(records: &[Record], uid: u32) {
    for record in records {
        assert!(record.under_mps && record.error.is_none(), "{record:?}");
        assert_eq!((record.uid, record.sms), (Some(uid), Some(32)), "{record:?}");
        assert_eq!(record.daemon_pid, records[0].daemon_pid, "{record:?}");
        let job = record.job.as_deref().unwrap();
        assert_eq!(
            record.pipe_directory,
            Some(format!("/run/mpsd/jobs/{job}/pipe")),
            "{record:?}"
        );
        // The node's first GPU has the same number with and without its daemon; another is named by its UUID.
        let visible = record.visible.as_deref().unwrap_or_default();
        assert!(["0", &record.uuids[0]].contains(&visible), "{record:?}");
    }
}

fn uid(cluster: &Cluster) -> u32 {
    cluster.machine.run(&["id", "-u", USER]).trim().parse().unwrap()
}

/// Returns the id of the one with MPS.
fn jobs(cluster: &mut Cluster) -> String {
    cluster.idle();
    let plain = cluster.clients(&["--gres=gpu:1"]);
    assert!(
        !plain[0].under_mps && plain[0].pipe_directory.is_none() && plain[0].job.is_none(),
        "{plain:?}"
    );

    let records = cluster.clients(&["--gres=gpu:1", "--mps", "--mps-threads=25", "-n2"]);
    assert_eq!(records.len(), 2, "{records:?}");
    are_under_mps(&records, uid(cluster));
    cluster.nothing_is_left();

    let refused = cluster
        .srun(&["--gres=gpu:1", "--mps", "--mps-threads=300", "true"])
        .output()
        .unwrap();
    let said = said(&refused);
    assert!(
        !refused.status.success() && said.contains("--mps-threads") && said.contains("300"),
        "{said}"
    );
    records[0].job.clone().unwrap()
}

/// Every line of the quick start for Slurm, as it stands there, with a client of the double's for the user's program.
fn quick_start(cluster: &mut Cluster) {
    let home = format!("/home/{USER}");
    let solver = format!("#!/bin/sh\nexec {} \"$@\"\n", CLIENT.join(" "));
    for (name, text) in [
        ("solver", &solver),
        ("job.sh", &script("quick-start.md", "Slurm")),
    ] {
        let path = cluster.machine.at(&format!("{home}/{name}"));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let lines = commands("quick-start.md", "Slurm");
    // mps-probe needs a real CUDA: `cargo xtask hardware` runs it.
    for line in lines.iter().filter(|line| !line.contains("mps-probe")) {
        let typed = format!("cd {home}\n{line}\ncat slurm-*.out 2>/dev/null || :\n");
        let wrote = cluster
            .machine
            .run(&["runuser", "-u", USER, "--", "sh", "-ec", &typed]);
        let records = Record::all(&wrote).unwrap();
        let tasks = line
            .rsplit_once(" -n")
            .map_or(8, |(_, rest)| rest[..1].parse().unwrap());
        assert_eq!(records.len(), tasks, "{line}: {wrote}");
        for record in &records {
            assert!(record.under_mps && record.error.is_none(), "{line}: {record:?}");
            assert_eq!(record.uid, Some(uid(cluster)), "{line}: {record:?}");
        }
        cluster.nothing_is_left();
    }
    cluster
        .machine
        .run(&["sh", "-ec", &format!("cd {home}; rm solver job.sh slurm-*.out")]);
}

/// The guide's questions to the journal are answered, of `job`, which had MPS, for the guide's. What a user sends it is no answer.
fn who_had_mps(cluster: &Cluster, job: &str) {
    let fields = format!("MESSAGE=forged\\nMPSD_EVENT=begin\\nMPSD_JOB={job}\\nMPSD_UID=1000\\n");
    let forged = format!("printf '{fields}' | logger --journald");
    cluster
        .machine
        .run(&["runuser", "-u", USER, "--", "sh", "-c", &forged]);
    cluster.machine.run(&["journalctl", "--sync"]);
    let sent = cluster.administrator("journalctl --no-pager MPSD_EVENT=begin");
    assert!(sent.contains("forged"), "{sent}");
    let told = [
        ["MPS ready for user 'worker' on GPU-", ": threads 25 %"],
        ["MPSD_EVENT=end", "MPSD_LIMITS=threads 25 %"],
        ["\"MPSD_EVENT\":\"end\"", "\"MPSD_LIMITS\":\"threads 25 %\""],
    ];
    let lines = commands("metrics.md", "Who had MPS");
    assert_eq!(lines.len(), told.len());
    for (line, words) in lines.iter().zip(told) {
        let line = line.replace("MPSD_JOB=2 ", &format!("MPSD_JOB={job} "));
        let text = cluster.administrator(&line);
        assert!(!text.contains("forged"), "{line}: {text}");
        for word in words {
            assert!(text.contains(word), "{line}: no '{word}': {text}");
        }
    }
}

/// The bundle of a node on which jobs ran: the checks' lines and our programs' are in it, and it is root's alone.
fn report_a_problem(cluster: &Cluster) {
    for step in commands("troubleshooting.md", "To report a problem") {
        cluster.administrator(&step);
    }
    let look = "cd /root/packages; stat --format='%a %U' mpsd-support-*.tar; tar -xOf mpsd-support-*.tar; rm mpsd-support-*.tar";
    let text = cluster.machine.run(&["sh", "-ec", look]);
    assert!(text.starts_with("600 root\n"), "{text}");
    for words in ["OK    Slurm", "mpsd.service", "deadline_s", "mps-prologue["] {
        assert!(text.contains(words), "no '{words}' in {text}");
    }
    assert!(!text.contains(&format!("'{USER}'")), "{text}");
}

/// A job lives through restarts of everything that root may restart, and through an upgrade from 0.1.0 and its units, and its
/// epilogue is then the newer one.
fn restart_and_upgrade(cluster: &mut Cluster, note: &Path) {
    units::have_been_those_of_0_1_0(&cluster.machine);
    let (mut srun, record) = cluster.holding(&["--gres=gpu:1", "--mps", "--mps-threads=25"], note);
    are_under_mps(std::slice::from_ref(&record), uid(cluster));
    let (job, daemon) = (record.job.clone().unwrap(), record.daemon_pid.unwrap());
    let home = format!("/system.slice/mpsd.service/{job}");
    let lives = |cluster: &Cluster, when: &str| {
        let cgroup = cluster.machine.run(&["cat", &format!("/proc/{daemon}/cgroup")]);
        assert!(
            cgroup.lines().any(|line| line == format!("0::{home}")),
            "{when}: '{cgroup}'"
        );
        let jobs = listed(&cluster.machine.at("/run/mpsd/jobs"));
        assert!(jobs.contains(&job), "{when}: {jobs:?}");
    };
    lives(cluster, "before");
    cluster.machine.run(&[
        "systemctl",
        "restart",
        "slurmd",
        "mpsd.service",
        "mpsd-reconcile.timer",
    ]);
    cluster
        .machine
        .run(&["systemctl", "start", "mpsd-reconcile.service"]);
    lives(cluster, "after the restarts");

    let changed = fs::read_to_string(cluster.machine.at(CONFIG)).unwrap();
    cluster.machine.run(&[
        "sh",
        "-ec",
        "cd /root/newer\napt install ./mpsd_*.deb ./mpsd-slurm_*.deb",
    ]);
    assert_eq!(
        fs::read_to_string(cluster.machine.at(CONFIG)).unwrap(),
        changed,
        "the upgrade took the configuration"
    );
    let versions = cluster
        .machine
        .run(&["dpkg-query", "-W", "-f", "${Version}\n", "mpsd", "mpsd-slurm"]);
    assert!(
        versions
            .lines()
            .all(|version| version == env!("CARGO_PKG_VERSION")),
        "{versions}"
    );
    for unit in ["mpsd.service", "mpsd-reconcile.timer"] {
        cluster.machine.run(&["systemctl", "is-enabled", unit]);
        cluster.machine.run(&["systemctl", "is-active", unit]);
    }
    lives(cluster, "after the upgrade");
    units::are_complete_after_the_upgrade(&cluster.machine);
    cluster
        .machine
        .run(&["systemctl", "start", "mpsd-reconcile.service"]);
    lives(cluster, "after a restart of the newer units");
    assert!(srun.try_wait().unwrap().is_none(), "the upgrade ended the job");

    cluster.machine.run(&["scancel", &job]);
    srun.wait().unwrap();
    cluster.nothing_is_left();
    are_under_mps(
        &cluster.clients(&["--gres=gpu:1", "--mps", "--mps-threads=25", "-n2"]),
        uid(cluster),
    );
    cluster.nothing_is_left();
}

/// The older packages over the newer ones, by the guide: with nothing restarted, a job has its MPS.
fn go_back(cluster: &mut Cluster) {
    let configuration = fs::read_to_string(cluster.machine.at(CONFIG)).unwrap();
    let since = [
        "systemctl",
        "show",
        "--property=ExecMainStartTimestampMonotonic",
        "slurmd",
        "mpsd.service",
    ];
    let before = cluster.machine.run(&since);
    let lines = commands("install.md", "Back to an older release");
    for step in lines.iter().filter(|step| !step.starts_with("dnf ")) {
        cluster.administrator(step);
    }
    let have = ["dpkg-query", "-W", "-f", "${Version}\n", "mpsd", "mpsd-slurm"];
    let have = cluster.machine.run(&have);
    assert!(have.lines().all(|version| version == BEFORE), "{have}");
    assert_eq!(
        fs::read_to_string(cluster.machine.at(CONFIG)).unwrap(),
        configuration
    );
    assert_eq!(cluster.machine.run(&since), before, "something was restarted");
    for unit in ["mpsd.service", "mpsd-reconcile.timer"] {
        cluster.machine.run(&["systemctl", "is-active", unit]);
    }
    are_under_mps(
        &cluster.clients(&["--gres=gpu:1", "--mps", "--mps-threads=25"]),
        uid(cluster),
    );
    cluster.nothing_is_left();
}

/// A running job's end needs what is installed: each of these removals names it, and it ends as if none had been tried.
fn nothing_goes_while_a_job_runs(cluster: &mut Cluster, note: &Path, removals: &[&str]) {
    let (mut srun, record) = cluster.holding(&["--gres=gpu:1", "--mps", "--mps-threads=25"], note);
    let job = record.job.unwrap();
    for line in removals {
        let output = cluster.machine.output(&["sh", "-ec", line]);
        let said = said(&output);
        let names = format!("needs our files: {job}");
        assert!(
            !output.status.success() && said.contains(&names),
            "{line}: {said}"
        );
    }
    assert!(knows_the_flag(cluster));
    cluster
        .machine
        .run(&["systemctl", "is-active", "mpsd-reconcile.timer"]);
    cluster.machine.run(&["scancel", &job]);
    srun.wait().unwrap();
    cluster.machine.run(&["mpsctl", "idle", "--wait", "60"]);
    cluster.nothing_is_left();
}

/// Taken away by the guide, purged, and every file is as it was before.
fn remove(root: &Root, cluster: &mut Cluster, before: &BTreeMap<String, String>) {
    for step in commands("install.md", "Remove") {
        cluster.administrator(&step);
    }
    assert!(!knows_the_flag(cluster));
    assert!(
        root.read(CONFIG).starts_with("control = "),
        "removal took the configuration"
    );
    assert_eq!(cluster.machine.run(&UNITS), "", "units");
    cluster.idle();
    let plain = cluster.clients(&["--gres=gpu:1"]);
    assert!(!plain[0].under_mps, "{plain:?}");

    cluster.administrator("apt-get purge -y mpsd mpsd-slurm");
    let after = tree(root);
    let differing: Vec<(&String, Option<&String>)> = before
        .keys()
        .chain(after.keys())
        .filter(|path| before.get(*path) != after.get(*path))
        .map(|path| (path, after.get(path)))
        .collect();
    assert!(differing.is_empty(), "{differing:#?}");
    assert!(
        !cluster.machine.at("/run/mpsd").exists(),
        "{:?}",
        listed(&cluster.machine.at("/run/mpsd"))
    );
}

/// Every file of the system with its mode and owner, and those below /etc with what is in them.
fn tree(root: &Root) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    walk(&root.at("/"), "", &mut found);
    found
}

fn walk(dir: &Path, path: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{path}/{}", entry.file_name().to_str().unwrap());
        if OTHERS.contains(&path.as_str()) {
            continue;
        }
        let meta = entry.metadata().unwrap();
        let mut about = format!("{:o} {}:{}", meta.mode(), meta.uid(), meta.gid());
        if meta.is_file() && path.starts_with("/etc/") {
            let mut hasher = DefaultHasher::new();
            fs::read(entry.path()).unwrap().hash(&mut hasher);
            about += &format!(" {:x}", hasher.finish());
        }
        if meta.is_dir() {
            walk(&entry.path(), &path, found);
        }
        found.insert(path, about);
    }
}

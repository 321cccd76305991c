//! From the packages to a user's job by the guide's commands alone, in a Debian with real dpkg,
//! systemd and Slurm and with simulated GPUs. Then restart, upgrade, remove, purge.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tests::slurm::Record;

use crate::cluster::{self, CLIENT, KEYS, QUARTER, USER, VENDOR, listed};
use crate::guide::{commands, script};
use crate::machine::{Machine, bootable};
use crate::root::Root;
use crate::stopwatch::Stopwatch;
use crate::{
    BEFORE, NAMES, monitoring, older, package, packages, put_program, repository, said, says, skip,
    target, units,
};

const UNITS: &str = "systemctl list-units --all --plain --no-legend 'mps*'";
const ACTIVE: &str = "systemctl is-active mpsd.service mpsd-reconcile.timer";
const CONFIG: &str = "/etc/mpsd/mpsd.toml";
/// What changes by itself, or belongs to the package manager.
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
    // The other test prepares its Debian meanwhile, on a machine with two cores.
    packages();
    by_the_guide("trixie");
}

fn by_the_guide(suite: &'static str) {
    let (base, cgroup) = match bootable(suite, suite) {
        Ok(system) => system,
        Err(why) => return skip(&format!("a job from the packages on {suite}"), &why),
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
        let mut cluster = Machine::boot(root, cgroup);
        cluster.idle();
        let before = tree(root);

        let mut watch = Stopwatch::default();
        install(&cluster, &mut watch);
        selftest(&mut cluster, &mut watch);
        watch.stop(suite, "mpsctl selftest");
        let with_mps = jobs(&mut cluster);
        quick_start(&mut cluster);
        a_shell_of_ssh_is_told(&cluster);
        who_had_mps(&cluster, &with_mps);
        report_a_problem(&cluster);
        let note = target(&format!("held-client-{suite}"));
        units::reach_the_simulated_gpus(&cluster);
        units::are_rated(&cluster);
        units::reconcile_in_their_sandbox(&mut cluster, &note);
        units::look_again_once(&mut cluster);
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

/// Installed and enabled by the guide. In between, nothing has changed for a job.
fn install(cluster: &Machine, watch: &mut Stopwatch) {
    let packages = commands("install.md", "From the packages");
    for step in packages.iter().filter(|step| !step.starts_with("dnf ")) {
        watch.take(step, || cluster.administrator(step));
    }
    enable(cluster, watch);
    for step in commands("fleets.md", "One configuration") {
        says(&cluster.administrator(&step), &["deadline_s"]);
    }
}

fn enable(cluster: &Machine, watch: &mut Stopwatch) {
    for step in commands("install.md", "On the nodes") {
        watch.take(&step, || cluster.administrator(&step));
    }
    cluster.run(ACTIVE);
    assert!(!cluster.knows_the_flag(), "installing was enough");
    let help = cluster.administrator("man -w mpsd 2>/dev/null || ls /usr/share/man/man8/mpsd.8.gz");
    says(&help, &["mpsd.8"]);
    // KEYS are the only difference from a node with GPUs.
    let config = cluster.at(CONFIG);
    let text = fs::read_to_string(&config).unwrap();
    fs::write(config, KEYS.to_owned() + &text).unwrap();
    for step in commands("slurm.md", "Enable") {
        watch.take(&step, || cluster.administrator(&step));
    }
    assert!(cluster.knows_the_flag());
}

/// The same with the RPM packages, whose scripts and triggers meet a systemd and a Slurm that run.
fn by_dnf(root: &Root, cluster: &mut Machine, note: &Path) {
    let mut watch = Stopwatch::default();
    repository::dnf_installs_from_it(root, cluster, &mut watch);
    enable(cluster, &mut watch);
    selftest(cluster, &mut watch);
    watch.stop("bookworm-dnf", "mpsctl selftest");
    let removals = ["dnf remove -y mpsd mpsd-slurm", "rpm --erase mpsd-slurm"];
    nothing_goes_while_a_job_runs(cluster, note, &removals);
    for step in commands("install.md", "Remove with dnf") {
        cluster.administrator(&step);
    }
    assert!(!cluster.knows_the_flag() && !cluster.at("/usr/bin/mpsctl").exists());
    assert_eq!(cluster.run(UNITS), "", "units");
    assert!(!cluster.at("/run/mpsd").exists());
    cluster.run("rm -r /etc/mpsd/mpsd.toml.rpmsave /etc/mpsd /var/lib/mpsd");
    cluster.idle();
}

/// The guide's last command, run by the user: all is well. A client of the double replaces the
/// probe, which needs a real CUDA.
fn selftest(cluster: &mut Machine, watch: &mut Stopwatch) {
    cluster.idle();
    let told = cluster.administrator("mpsctl slurm check");
    says(&told, &["slurmd has loaded our plugin"]);
    let probe = cluster.at("/usr/libexec/mpsd/mps-probe");
    let real = fs::read(&probe).unwrap();
    put_program(&probe, client());
    for step in commands("install.md", "Last, one job") {
        let told = watch.take(&step, || cluster.user(&step));
        assert!(told.ends_with("OK    selftest\n"), "{told}");
    }
    put_program(&probe, real);
    cluster.nothing_is_left();
}

fn client() -> String {
    format!("#!/bin/sh\nexec {} \"$@\"\n", CLIENT.join(" "))
}

#[track_caller]
fn are_under_mps(records: &[Record], uid: u32) {
    for record in records {
        assert!(record.under_mps && record.error.is_none(), "{record:?}");
        assert_eq!(record.uid, Some(uid), "{record:?}");
        assert_eq!(record.sms, Some(32), "{record:?}");
        assert_eq!(record.daemon_pid, records[0].daemon_pid, "{record:?}");
        let pipe = format!("/run/mpsd/jobs/{}/pipe", record.job.as_deref().unwrap());
        assert_eq!(record.pipe_directory, Some(pipe), "{record:?}");
        // The node's first GPU has the same number with and without its daemon; another is named by
        // its UUID.
        let visible = record.visible.as_deref().unwrap_or_default();
        assert!(["0", &record.uuids[0]].contains(&visible), "{record:?}");
    }
}

fn uid(cluster: &Machine) -> u32 {
    let uid = cluster.run(&format!("id -u {USER}"));
    uid.trim().parse().unwrap()
}

fn jobs(cluster: &mut Machine) -> String {
    cluster.idle();
    let plain = &cluster.clients(&["--gres=gpu:1"])[0];
    let is_plain = plain.pipe_directory.is_none() && plain.job.is_none();
    assert!(!plain.under_mps && is_plain, "{plain:?}");

    let records = cluster.clients(&[&QUARTER[..], &["-n2"]].concat());
    assert_eq!(records.len(), 2, "{records:?}");
    are_under_mps(&records, uid(cluster));
    cluster.nothing_is_left();

    let words = ["--gres=gpu:1", "--mps", "--mps-threads=300", "true"];
    let refused = cluster.srun(&words).output().unwrap();
    assert!(!refused.status.success());
    says(&said(&refused), &["--mps-threads", "300"]);
    records[0].job.clone().unwrap()
}

/// Every command of the quick start for Slurm. A client of the double replaces the user's program.
fn quick_start(cluster: &mut Machine) {
    let home = cluster.at(&format!("/home/{USER}"));
    put_program(&home.join("solver"), client());
    put_program(&home.join("job.sh"), script("quick-start.md", "Slurm"));
    let lines = commands("quick-start.md", "Slurm");
    // mps-probe needs a real CUDA: `cargo xtask hardware` runs it.
    for line in lines.iter().filter(|line| !line.contains("mps-probe")) {
        let wrote = cluster.user(&format!("{line}\ncat slurm-*.out 2>/dev/null || :\n"));
        let records = Record::all(&wrote).unwrap();
        let tasks = line.rsplit_once(" -n");
        let tasks = tasks.map_or(8, |(_, rest)| rest[..1].parse().unwrap());
        assert_eq!(records.len(), tasks, "{line}: {wrote}");
        for record in &records {
            let is_right = record.under_mps && record.error.is_none();
            assert!(is_right, "{line}: {record:?}");
            assert_eq!(record.uid, Some(uid(cluster)), "{line}: {record:?}");
        }
        cluster.nothing_is_left();
    }
    cluster.run(&format!("cd /home/{USER}; rm solver job.sh slurm-*.out"));
}

/// pam_slurm_adopt put the shell into the job and leaves it only the job's cgroup, so the profile
/// script tells it.
fn a_shell_of_ssh_is_told(cluster: &Machine) {
    let shell = |words: &str, job: &str| {
        let line = format!(
            "mkdir -p /run/mpsd/jobs/77 /sys/fs/cgroup/ssh/job_{job}/step_extern
            sh -c 'echo $$ >/sys/fs/cgroup/ssh/job_{job}/step_extern/cgroup.procs; exec {words}' 2>&1
            rmdir /run/mpsd/jobs/77 /sys/fs/cgroup/ssh/job_{job}/step_extern /sys/fs/cgroup/ssh/job_{job} /sys/fs/cgroup/ssh"
        );
        cluster.run(&line)
    };
    let told = shell("bash -l -i -c true", "77");
    says(&told, &["job 77 has an MPS", "mpsctl env --job 77"]);
    for (words, job) in [
        ("bash -l -i -c true", "78"),
        ("bash -l -c true", "77"),
        ("env SLURM_JOB_ID=77 bash -l -i -c true", "77"),
    ] {
        assert!(!shell(words, job).contains("MPS"), "{words} in job {job}");
    }
}

/// The guide's questions to the journal find `job`, which had MPS. A forged entry of a user is no
/// answer.
fn who_had_mps(cluster: &Machine, job: &str) {
    let fields = format!("MESSAGE=forged\\nMPSD_EVENT=begin\\nMPSD_JOB={job}\\nMPSD_UID=1000\\n");
    let forged = format!("printf '{fields}' | logger --journald");
    cluster.user(&forged);
    cluster.run("journalctl --sync");
    let sent = cluster.administrator("journalctl --no-pager MPSD_EVENT=begin");
    says(&sent, &["forged"]);
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
        says(&text, &words);
    }
}

/// What an administrator sends of a node on which jobs ran has the lines of the checks and of our
/// programs.
fn report_a_problem(cluster: &Machine) {
    let steps = commands("troubleshooting.md", "To report a problem");
    let said = |step: &String| cluster.administrator(&format!("{step} || true"));
    let text: String = steps.iter().map(said).collect();
    let words = ["OK    Slurm", "mpsd.service", "deadline_s", "mps-prologue["];
    says(&text, &words);
}

/// A job survives restarts and an upgrade; the newer epilogue ends it.
fn restart_and_upgrade(cluster: &mut Machine, note: &Path) {
    let (mut srun, record) = cluster.holding(note);
    are_under_mps(std::slice::from_ref(&record), uid(cluster));
    let (job, daemon) = (record.job.unwrap(), record.daemon_pid.unwrap());
    let home = format!("0::/system.slice/mpsd.service/{job}");
    let lives = |cluster: &Machine, when: &str| {
        let cgroup = cluster.run(&format!("cat /proc/{daemon}/cgroup"));
        let is_home = cgroup.lines().any(|line| line == home);
        assert!(is_home, "{when}: '{cgroup}'");
        let jobs = listed(&cluster.at("/run/mpsd/jobs"));
        assert!(jobs.contains(&job), "{when}: {jobs:?}");
    };
    let configuration = |cluster: &Machine| fs::read_to_string(cluster.at(CONFIG)).unwrap();
    lives(cluster, "before");
    cluster.run("systemctl restart slurmd mpsd.service mpsd-reconcile.timer");
    cluster.run("systemctl start mpsd-reconcile.service");
    lives(cluster, "after the restarts");

    let changed = configuration(cluster);
    cluster.run("cd /root/newer\napt install ./mpsd_*.deb ./mpsd-slurm_*.deb");
    assert_eq!(configuration(cluster), changed);
    cluster.has_versions(env!("CARGO_PKG_VERSION"));
    cluster.run("systemctl is-enabled mpsd.service mpsd-reconcile.timer");
    cluster.run(ACTIVE);
    lives(cluster, "after the upgrade");
    cluster.run("systemctl restart mpsd.service; systemctl start mpsd-reconcile.service");
    lives(cluster, "after a restart of the newer units");
    let still = srun.try_wait().unwrap().is_none();
    assert!(still, "the upgrade ended the job");

    cluster.cancel(&job, srun);
    cluster.nothing_is_left();
    let records = cluster.clients(&[&QUARTER[..], &["-n2"]].concat());
    are_under_mps(&records, uid(cluster));
    cluster.nothing_is_left();
}

/// The older packages are installed over the newer ones, by the guide. A job has its MPS, and
/// nothing was restarted.
fn go_back(cluster: &mut Machine) {
    let since = "systemctl show --property=ExecMainStartTimestampMonotonic slurmd mpsd.service";
    let state = |cluster: &Machine| {
        let config = fs::read_to_string(cluster.at(CONFIG)).unwrap();
        (config, cluster.run(since))
    };
    let before = state(cluster);
    let lines = commands("install.md", "Back to an older release");
    for step in lines.iter().filter(|step| !step.starts_with("dnf ")) {
        cluster.administrator(step);
    }
    cluster.has_versions(BEFORE);
    assert_eq!(state(cluster), before);
    cluster.run(ACTIVE);
    are_under_mps(&cluster.clients(&QUARTER), uid(cluster));
    cluster.nothing_is_left();
}

/// A running job's end needs the installed files. Each of these removals names the job, which ends
/// as if none had been tried.
fn nothing_goes_while_a_job_runs(cluster: &mut Machine, note: &Path, removals: &[&str]) {
    let (srun, record) = cluster.holding(note);
    let job = record.job.unwrap();
    for line in removals {
        let named = format!("needs our files: {job}");
        says(&cluster.fails(line), &[&named]);
    }
    assert!(cluster.knows_the_flag());
    cluster.run(ACTIVE);
    cluster.cancel(&job, srun);
    cluster.run("mpsctl idle --wait 60");
    cluster.nothing_is_left();
}

/// Removed and purged by the guide. Every file is as before.
fn remove(root: &Root, cluster: &mut Machine, before: &BTreeMap<String, String>) {
    for step in commands("install.md", "Remove") {
        cluster.administrator(&step);
    }
    assert!(!cluster.knows_the_flag());
    let is_kept = root.read(CONFIG).starts_with(KEYS);
    assert!(is_kept, "removal took the configuration");
    assert_eq!(cluster.run(UNITS), "", "units");
    cluster.idle();
    let plain = cluster.clients(&["--gres=gpu:1"]);
    assert!(!plain[0].under_mps, "{plain:?}");

    cluster.administrator("apt-get purge -y mpsd mpsd-slurm");
    let after = tree(root);
    let mut differing = Vec::from_iter(before.keys().chain(after.keys()));
    differing.retain(|path| before.get(*path) != after.get(*path));
    assert!(differing.is_empty(), "{differing:#?}");
    assert!(!cluster.at("/run/mpsd").exists());
}

/// Every file of the system with its mode and owner; below /etc also its content.
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

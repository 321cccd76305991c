//! The Ansible role on a booted Debian: the first run changes something, a second run nothing; then
//! an upgrade and the removal.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{OnceLock, mpsc};

use serde_json::{Value, json};
use tests::slurm::Record;

use crate::cluster::{self, NODES, VENDOR};
use crate::install::distribution;
use crate::machine::{Cgroup, HOST, Machine, bootable};
use crate::root::Root;
use crate::stopwatch::Laps;
use crate::{
    debian, emptied, guide, kept, older, open_to_all, package, put_program, repository, said, says,
    skip, try_run,
};

/// ansible-core, which needs Python 3.11 here and 3.8 there, and what it needs.
const ANSIBLE: &str = include_str!("../../python/ansible.txt");
/// Longest time for pip, or for one playbook, in seconds.
const LIMIT: &str = "400";

/// The directory with its programs, made by the first caller; the error says why it cannot be had.
fn ansible() -> Result<PathBuf, String> {
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let make = |home: &Path| {
        let list = home.join("wanted");
        fs::write(&list, ANSIBLE).unwrap();
        try_run(Command::new("python3").args(["-m", "venv"]).arg(home))?;
        let words = "-m pip install --quiet --disable-pip-version-check --only-binary=:all: --require-hashes --requirement";
        let mut pip = Command::new("timeout");
        pip.args(["--kill-after=5", LIMIT]);
        pip.arg(home.join("bin/python"));
        try_run(pip.args(words.split(' ')).arg(list))
    };
    let made = MADE.get_or_init(|| kept("ansible", ANSIBLE, make));
    Ok(made.clone()?.join("bin"))
}

struct Control {
    bin: PathBuf,
    place: PathBuf,
    inventory: String,
}

impl Control {
    fn of(name: &str, machine: &Machine, bin: PathBuf) -> Control {
        Control::of_hosts(name, &[(HOST, &machine.command(&["sh", "-c"]))], bin)
    }

    /// Reaches each host by its command, in place of ssh.
    fn of_hosts(name: &str, hosts: &[(&str, &Command)], bin: PathBuf) -> Control {
        let place = emptied(&format!("{name}-control"));
        let variables = "PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8";
        // ssh's last two words are the host and the command.
        let mut text =
            "#!/bin/sh\nfor word; do host=$last; last=$word; done\ncase $host in\n".to_owned();
        for (host, enter) in hosts {
            let words = std::iter::once(enter.get_program()).chain(enter.get_args());
            let words: Vec<&str> = words.map(|word| word.to_str().unwrap()).collect();
            let words = words.join(" ");
            text += &format!("{host}) exec env -i {variables} {words} \"$last\";;\n");
        }
        put_program(&place.join("ssh"), text + "esac\n");
        let inventory = hosts.iter().map(|(host, _)| format!("{host},")).collect();
        Control {
            bin,
            place,
            inventory,
        }
    }

    fn play(&self, variables: &Value, options: &[&str]) -> Output {
        let role = Path::new(env!("CARGO_MANIFEST_DIR")).join("ansible");
        let play = json!([{
            // The only fact that the role reads: each run of it gathers them on each host.
            "hosts": "all", "gather_facts": true, "gather_subset": ["!all", "!min", "pkg_mgr"],
            "roles": [{"role": "mpsd", "vars": variables}],
        }]);
        // JSON is YAML.
        fs::write(self.place.join("play.yml"), play.to_string()).unwrap();
        let mut command = Command::new("timeout");
        command.args(["--kill-after=5", LIMIT]);
        command.arg(self.bin.join("ansible-playbook"));
        command.arg(self.place.join("play.yml"));
        command.args(["--inventory", &self.inventory, "--connection", "ssh"]);
        command.args(options).env("ANSIBLE_ROLES_PATH", role);
        command.env("ANSIBLE_HOME", self.place.join("home"));
        command.env("ANSIBLE_SSH_EXECUTABLE", self.place.join("ssh"));
        command.envs([
            ("ANSIBLE_SSH_TRANSFER_METHOD", "piped"),
            ("ANSIBLE_SSH_ARGS", ""),
            ("ANSIBLE_PIPELINING", "true"),
            ("ANSIBLE_NOCOLOR", "true"),
            ("ANSIBLE_PYTHON_INTERPRETER", "/usr/bin/python3"),
            ("LC_ALL", "C.UTF-8"),
        ]);
        command.env_remove("ANSIBLE_CONFIG").output().unwrap()
    }

    /// What is said by a play that changes something in at least `least` of the role's tasks.
    #[track_caller]
    fn changes(&self, variables: &Value, least: u32) -> String {
        let (changed, told) = self.changed(variables);
        assert!(changed >= least, "{told}");
        told
    }

    #[track_caller]
    fn changes_nothing(&self, variables: &Value) {
        let (changed, told) = self.changed(variables);
        assert_eq!(changed, 0, "{told}");
    }

    #[track_caller]
    fn changed(&self, variables: &Value) -> (u32, String) {
        let output = self.play(variables, &[]);
        let text = said(&output);
        assert!(output.status.success(), "{text}");
        let recaps = text.split("changed=").skip(1);
        let words = recaps.map(|rest| rest.split_whitespace().next().unwrap());
        let counts: Vec<u32> = words.map(|count| count.parse().unwrap()).collect();
        assert_eq!(counts.len(), self.inventory.matches(',').count(), "{text}");
        (counts.iter().sum(), text)
    }
}

/// The keys of mpsd.toml for simulated GPUs.
fn vendor() -> Value {
    json!({
        "control": format!("{VENDOR}/nvidia-cuda-mps-control"),
        "nvml": format!("{VENDOR}/libnvidia-ml.so.1"),
    })
}

fn started(cluster: &Machine) -> String {
    cluster.run("systemctl show --property=ExecMainStartTimestampMonotonic slurmd")
}

fn on_a_machine(name: &'static str, body: impl FnOnce(&Root, Cgroup, PathBuf) + Send + 'static) {
    match bootable("bookworm", name).and_then(|system| Ok((system, ansible()?))) {
        Ok(((base, cgroup), bin)) => Root::over(&base, name, move |root| body(root, cgroup, bin)),
        Err(why) => skip(&format!("the Ansible role, {name}"), &why),
    }
}

#[test]
fn the_ansible_role_installs_upgrades_and_removes() {
    let before = ["mpsd", "mpsd-slurm"].map(|name| older(name, ".deb"));
    repository::repository();
    on_a_machine("ansible", move |root, cgroup, bin| {
        let _vendor = cluster::configure(root);
        repository::place(root);
        let mut cluster = Machine::boot(root, cgroup);
        let control = Control::of("ansible", &cluster, bin);
        cluster.idle();
        root.write("/etc/apt/sources.list", "");

        let mut config = vendor();
        config["deadline_s"] = 25.into();
        config["defaults"] = json!({"threads": 50});
        config["node"] = json!([{"hosts": "gpu[001-100]", "compute_mode": "keep"}]);
        let mut variables = json!({
            "mpsd_scheduler": "slurm",
            "mpsd_files": before.map(|file| file.display().to_string()),
            "mpsd_config": config,
        });
        let before = started(&cluster);
        let dry = control.play(&variables, &["--check"]);
        assert!(dry.status.success(), "{}", said(&dry));
        assert!(!cluster.at("/usr/bin/mpsctl").exists());
        let told = control.changes(&variables, 5);
        assert!(cluster.knows_the_flag(), "{told}");
        assert_ne!(started(&cluster), before, "slurmd did not restart");
        let shown = cluster.run("mpsctl config show --node gpu001");
        says(&shown, &["deadline_s = 25", "compute_mode = \"keep\""]);
        cluster.idle();
        for record in cluster.clients(&["--gres=gpu:1", "--mps"]) {
            assert!(record.under_mps && record.sms == Some(66), "{record:?}");
        }
        cluster.nothing_is_left();

        let before = started(&cluster);
        control.changes_nothing(&variables);
        assert_eq!(started(&cluster), before, "slurmd restarted for nothing");

        // The newer packages from a repository, and another value: neither restarts anything.
        variables["mpsd_repository"] = "file:///srv/mpsd".into();
        variables["mpsd_upgrade"] = true.into();
        variables["mpsd_config"]["deadline_s"] = 26.into();
        let told = control.changes(&variables, 1);
        assert!(started(&cluster) == before, "{told}");
        cluster.has_versions(env!("CARGO_PKG_VERSION"));
        let is_26 = || says(&cluster.run("mpsctl config show"), &["deadline_s = 26"]);
        is_26();
        control.changes_nothing(&variables);

        // An unusable file is not installed.
        variables["mpsd_config"]["deadline_s"] = "soon".into();
        let refused = control.play(&variables, &[]);
        assert!(!refused.status.success());
        says(&said(&refused), &["failed to validate"]);
        is_26();

        let away = json!({"mpsd_state": "absent", "mpsd_scheduler": "slurm"});
        let told = control.changes(&away, 3);
        assert!(!cluster.knows_the_flag(), "{told}");
        assert!(!cluster.at("/usr/bin/mpsctl").exists(), "{told}");
        control.changes_nothing(&away);
        cluster.idle();
    });
}

/// slurmctld has the line, and slurmd fetches it.
#[test]
fn the_ansible_role_enables_a_configless_node() {
    let debs = ["mpsd", "mpsd-slurm"].map(|name| package(name, ".deb").display().to_string());
    on_a_machine("ansible-configless", move |root, cgroup, bin| {
        let _vendor = cluster::configure(root);
        root.run("mkdir -p /srv && mv /etc/slurm /srv/slurm");
        // Debian's own spool directory is not root's, so what slurmd fetches there is not trusted.
        let conf = root.read("/srv/slurm/slurm.conf");
        let conf = conf.replace("=/var/lib/slurm/slurmd\n", "=/var/spool/slurmd\n");
        let sends = format!("SlurmctldParameters=enable_configless\n{conf}");
        root.write("/srv/slurm/slurm.conf", &sends);
        let line = "optional /usr/lib/mpsd/spank/22.05/spank_mps.so\n";
        root.write("/srv/slurm/plugstack.conf", line);
        for starts in [
            "slurmctld -D -f /srv/slurm/slurm.conf",
            "slurmd -D --conf-server gpu001",
        ] {
            let daemon = starts.split(' ').next().unwrap();
            let start = format!("[Service]\nExecStart=\nExecStart=/usr/sbin/{starts}\n");
            let unit = format!("[Unit]\nConditionPathExists=\n{start}");
            let path = format!("/etc/systemd/system/{daemon}.service.d/configless.conf");
            root.write(&path, &unit);
        }
        let mut cluster = Machine::boot(root, cgroup);
        let control = Control::of("ansible-configless", &cluster, bin);
        cluster.idle();
        let before = started(&cluster);
        let variables = json!({
            "mpsd_scheduler": "slurm", "mpsd_files": debs, "mpsd_config": vendor(),
        });
        control.changes(&variables, 3);
        assert_ne!(started(&cluster), before, "slurmd did not restart");
        cluster.idle();
        let check = cluster.run("mpsctl slurm check");
        let fetched = "'/run/slurm/conf/slurm.conf'";
        says(&check, &[fetched, "slurmd has loaded our plugin"]);
        let records = cluster.clients(&["--gres=gpu:1", "--mps"]);
        assert!(records.iter().all(|record| record.under_mps), "{records:?}");
        control.changes_nothing(&variables);
    });
}

/// slurmd gives the script a variable and no `PATH`. The node's name is not the host's, and Slurm
/// is below /opt.
#[test]
fn the_health_check_drains_the_node_by_its_name_in_slurm() {
    Root::with("health-check", |root| {
        root.run("rm -f /usr/bin/scontrol");
        let script = guide::script("operations.md", "Health checks without NHC");
        root.write("/root/check", &script);
        let mpsctl = "echo 'WARN  no timer'; [ \"$*\" = 'doctor --own --problems' ] && echo 'FAIL  no daemon'";
        // Without -N it has a line for each partition, also with no node.
        let sinfo = "[ \"$1\" = -hN ] || echo all; [ ! -e /root/drained ] || echo \"$*\"";
        for (path, body) in [
            ("/usr/local/bin/mpsctl", mpsctl),
            ("/opt/slurm/bin/scontrol", "echo \"$*\""),
            ("/usr/local/bin/sinfo", sinfo),
        ] {
            root.write(path, &format!("#!/bin/sh\n{body}\n"));
            open_to_all(&root.at(path));
        }
        let told = root.run("env -i SLURMD_NODENAME=n17 sh /root/check");
        let drain = "update NodeName=n17 State=DRAIN Reason=check_mpsd: no daemon\n";
        assert!(told.ends_with(drain), "{told}");
        root.write("/root/drained", "");
        let told = root.run("env -i SLURMD_NODENAME=n17 sh /root/check");
        assert!(!told.contains("State=DRAIN"), "{told}");
    });
}

/// Three nodes by one play, as in the first hour of a cluster: first nothing, then jobs on all
/// nodes. Then a health check drains the node that cannot run them.
#[test]
fn the_ansible_role_enables_three_nodes_and_a_health_check_drains_one() {
    repository::repository();
    let made = || {
        let cgroups = NODES.map(Cgroup::create).into_iter();
        Ok((
            debian::base("bookworm")?,
            ansible()?,
            cgroups.collect::<Result<Vec<_>, _>>()?,
        ))
    };
    let (base, bin, cgroups) = match made() {
        Ok(made) => made,
        Err::<_, String>(why) => return skip("the Ansible role on three nodes", &why),
    };
    std::thread::scope(|scope| {
        let (booted, machines) = mpsc::channel();
        let mut ends = Vec::new();
        for ((at, name), cgroup) in NODES.into_iter().enumerate().zip(cgroups) {
            let (end, ended) = mpsc::channel::<()>();
            let (booted, base) = (booted.clone(), base.clone());
            ends.push(end);
            // The machine ends with the thread that booted it.
            scope.spawn(move || {
                Root::over(&base, &format!("three-{name}"), move |root| {
                    let _vendor = cluster::configure_of_three(root, at, HEALTH);
                    repository::place(root);
                    root.write("/etc/apt/sources.list", "");
                    let machine = Machine::boot_as(name, root, cgroup);
                    booted.send((at, machine)).unwrap();
                    let _ = ended.recv();
                });
            });
        }
        let mut machines: Vec<(usize, Machine)> = machines.iter().take(NODES.len()).collect();
        machines.sort_by_key(|(at, _)| *at);
        let machines: Vec<Machine> = machines.into_iter().map(|(_, machine)| machine).collect();
        assert_eq!(machines.len(), NODES.len());
        of_three(machines, bin);
        drop(ends);
    });
}

const HEALTH: &str = "HealthCheckProgram=/usr/local/sbin/mpsd-health\nHealthCheckInterval=5\n";

fn of_three(mut machines: Vec<Machine>, bin: PathBuf) {
    cluster::connect(&machines);
    for machine in &machines {
        machine.run("systemctl restart slurmd");
    }
    machines[0].run("systemctl restart slurmctld");
    let nodes = |machines: &mut [Machine], state: &str, count: usize| {
        machines[0].until(state, |first| {
            let shown = first.output("sinfo --noheader --Node --format=%T");
            let shown = String::from_utf8_lossy(&shown.stdout);
            shown.lines().filter(|line| line.trim() == state).count() == count
        });
    };
    nodes(&mut machines, "idle", 3);
    let enter = machines
        .iter()
        .map(|machine| machine.command(&["sh", "-c"]));
    let enter: Vec<Command> = enter.collect();
    let hosts: Vec<(&str, &Command)> = NODES.into_iter().zip(&enter).collect();
    let control = Control::of_hosts("three", &hosts, bin);
    let mut watch = Laps::begin();

    let variables = json!({
        "mpsd_scheduler": "slurm", "mpsd_repository": "file:///srv/mpsd", "mpsd_config": vendor(),
    });
    control.changes(&variables, 15);
    watch.lap("ansible_s");
    nodes(&mut machines, "idle", 3);
    watch.lap("");
    let records = machines[0].clients(&["-N3", "-n6", "--gres=gpu:1", "--mps"]);
    watch.lap("job_s");
    let on: BTreeSet<_> = records.iter().map(|record| &record.uuids).collect();
    let is_under = |record: &&Record| record.under_mps && record.error.is_none();
    let under = records.iter().filter(is_under);
    assert_eq!((under.count(), on.len()), (6, 3), "{records:?}");
    control.changes_nothing(&variables);
    watch.lap("ansible_again_s");

    let script = guide::script("operations.md", "Health checks without NHC");
    for machine in &machines {
        put_program(&machine.at("/usr/local/sbin/mpsd-health"), &script);
    }
    let config = machines[2].at("/etc/mpsd/mpsd.toml");
    let sound = fs::read_to_string(&config).unwrap();
    let broken = sound.replace("nvidia-cuda-mps-control", "not-there");
    fs::write(&config, broken).unwrap();
    watch.lap("");
    nodes(&mut machines, "drained", 1);
    watch.lap("health_check_s");
    let why = machines[0].run("sinfo --noheader --list-reasons --format='%E %N'");
    assert!(why.starts_with("check_mpsd: NVIDIA's MPS: "), "{why}");
    says(&why, &["not-there"]);
    assert!(why.trim().ends_with(" gpu003"), "{why}");
    fs::write(&config, sound).unwrap();
    machines[0].until("idle again", |first| {
        // A check under way may drain it once more.
        first.output("scontrol update NodeName=gpu003 State=RESUME");
        first.run("sinfo --noheader --Node --format=%T") == "idle\n".repeat(3)
    });
    watch.write("three");
}

/// Stands for a mom: its lock, and its log's line when it reads its configuration
/// (docs/facts/pbs.md#environment-into-the-job).
const MOM: &str = r#"#!/bin/bash
home=/var/spool/torque
mkdir -p $home/mom_logs $home/mom_priv
[ -e $home/mom_priv/config ] || echo '$logevent 255' >$home/mom_priv/config
said() { echo "11/22/2026 00:10:12.123;02;   pbs_mom.$$;Svr;$1" >>$home/mom_logs/20261122; }
starter() { while read -r key path; do [ "$key" != '$job_starter' ] || said "jobstarter;$path"; done <$home/mom_priv/config; }
trap 'said "process_hup;reset"; starter' HUP
starter
printf '%d\n\0' $$ >$home/mom_priv/mom.lock
while :; do sleep 1000 & wait; done
"#;

fn pbs(root: &Root) {
    let double = Path::new(env!("CARGO_BIN_EXE_xtask")).with_file_name("pbs-double");
    for product in ["torque", "pbs"] {
        fs::create_dir_all(root.at(&format!("/opt/{product}/bin"))).unwrap();
        for name in ["qmgr", "pbsnodes", "qstat"] {
            let to = root.at(&format!("/opt/{product}/bin/{name}"));
            tests::double::copy_program(&double, &to).unwrap();
        }
    }
    root.write("/var/srv/pbs/server", HOST);
    root.write("/var/srv/pbs/operators", &format!("root@{HOST}\n"));
    root.write(&format!("/var/srv/pbs/nodes/{HOST}"), "free\n");
    put_program(&root.at("/usr/local/sbin/pbs_mom"), MOM);
    let unit =
        "[Service]\nExecStart=/usr/local/sbin/pbs_mom\n[Install]\nWantedBy=multi-user.target\n";
    root.write("/etc/systemd/system/pbs_mom.service", unit);
    root.run("systemctl enable pbs_mom.service");
}

#[test]
fn the_ansible_role_enables_torque_and_openpbs_and_removes_them() {
    let debs = ["mpsd", "mpsd-pbs"].map(|name| package(name, ".deb").display().to_string());
    on_a_machine("ansible-pbs", move |root, cgroup, bin| {
        let _vendor = cluster::vendor(root);
        pbs(root);
        let machine = Machine::boot(root, cgroup);
        let control = Control::of("ansible-pbs", &machine, bin);
        root.write("/etc/apt/sources.list", "");
        let ours = || machine.run("find /var/spool /var/srv/pbs/hooks -name '*mpsd*'");
        fs::create_dir_all(machine.at("/var/srv/pbs/hooks")).unwrap();
        for (product, sign, count) in [
            ("torque", "/var/spool/torque/mom_priv/mpsd-job-starter", 4),
            ("openpbs", "/var/srv/pbs/hooks/mpsd.PY", 3),
        ] {
            let write = |path: &str, text: &str| fs::write(machine.at(path), text).unwrap();
            write("/var/srv/pbs/product", product);
            let exec = if product == "torque" { "torque" } else { "pbs" };
            let mut config = vendor();
            config["pbs"] = json!({"exec": format!("/opt/{exec}")});
            if product == "openpbs" {
                machine.run("systemctl stop pbs_mom; rm -r /var/spool/torque; mkdir -p /var/spool/pbs/mom_priv");
                write("/var/spool/pbs/mom_priv/config", "$logevent 255\n");
                let conf = "PBS_SERVER=gpu001\nPBS_HOME=/var/spool/pbs\nPBS_EXEC=/opt/pbs\n";
                write("/etc/pbs.conf", conf);
            }
            let variables = json!({
                "mpsd_scheduler": product, "mpsd_server": true, "mpsd_files": debs, "mpsd_config": config,
            });
            let told = control.changes(&variables, count);
            assert!(machine.at(sign).exists(), "{told}");
            let check = machine.run(&format!("mpsctl pbs check --scheduler {product}"));
            let is_told = check.contains("kill -HUP") || check.contains("FAIL");
            assert!(!is_told, "{check}{told}");
            control.changes_nothing(&variables);

            let mut away = variables.clone();
            away["mpsd_state"] = "absent".into();
            let told = control.changes(&away, 2);
            assert!(!machine.at("/usr/bin/mpsctl").exists(), "{told}");
            assert_eq!(ours(), "", "{told}");
            control.changes_nothing(&away);
        }
    });
}

/// The packages and mpsd.toml alone, as in an image: no systemd runs in this copy of a system.
#[test]
fn the_ansible_role_installs_with_dnf() {
    let what = "the Ansible role with dnf";
    if !Path::new("/usr/bin/dnf").exists() || !Path::new("/usr/bin/python3").exists() {
        return skip(what, "no dnf is here");
    }
    let bin = match ansible() {
        Ok(bin) => bin,
        Err(why) => return skip(what, &why),
    };
    repository::repository();
    Root::with("ansible-dnf", move |root| {
        distribution(root);
        repository::place(root);
        fs::create_dir_all(root.at("/etc/yum.repos.d")).unwrap();
        // In its own pid namespace, which ends the gpg agent that dnf leaves behind.
        let mut enter = Command::new("unshare");
        enter.args(["--pid", "--fork", "--kill-child", "chroot"]);
        enter.arg(root.at("/")).args(["sh", "-c"]);
        let control = Control::of_hosts("ansible-dnf", &[(HOST, &enter)], bin);
        let variables = json!({
            "mpsd_manager": "dnf", "mpsd_dnf": "dnf4", "mpsd_node": false, "mpsd_repository": "file:///srv/mpsd",
            "mpsd_packages": ["mpsd", "mpsd-slurm"], "mpsd_config": {"deadline_s": 25},
        });
        control.changes(&variables, 3);
        root.run("rpm --query mpsd mpsd-slurm");
        let list = root.read("/etc/yum.repos.d/mpsd.repo");
        let mut lines = list.lines();
        let seconds = lines.find_map(|line| line.strip_prefix("metadata_expire"));
        assert!(seconds.is_some_and(|rest| rest.ends_with("300")), "{list}");
        says(&root.run("mpsctl config show"), &["deadline_s = 25"]);
        control.changes_nothing(&variables);
        let away = json!({"mpsd_manager": "dnf", "mpsd_dnf": "dnf4", "mpsd_state": "absent"});
        let told = control.changes(&away, 1);
        assert!(!root.at("/usr/bin/mpsctl").exists(), "{told}");
        control.changes_nothing(&away);
    });
}
